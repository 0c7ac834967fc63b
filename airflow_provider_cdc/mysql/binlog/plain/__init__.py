"""Values of row images in plain Python: what the compiled kernels leave to Python."""
