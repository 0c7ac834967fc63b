"""Compiled kernels that walk events and decode rows, GTIDs and JSON documents."""
