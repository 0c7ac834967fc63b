"""Ways to start a driver: in a process on this host, or as an application of a YARN cluster."""
