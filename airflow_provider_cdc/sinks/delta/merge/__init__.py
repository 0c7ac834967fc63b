"""Merging changes into a Delta table: key index, copy-on-write, deletion vectors, partitions, change data feed."""
