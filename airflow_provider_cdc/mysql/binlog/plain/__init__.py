"""Values and JSON documents in plain Python: the fallback for what the compiled kernels do not handle."""
