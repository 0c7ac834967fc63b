"""Chunk groups: their Spark tasks, manifests and publication."""
