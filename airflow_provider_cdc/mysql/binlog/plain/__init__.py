"""Decoders in plain Python: the reference for the compiled kernels, and the fallback for what they do not handle."""
