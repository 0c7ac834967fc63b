"""Row changes as Arrow record batches: the Python side that drives the compiled kernels over a range of the binlog."""
