"""Compiled code: the cache of compiled functions, buffers, and primitives on memory."""
