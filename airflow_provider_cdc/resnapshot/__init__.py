"""Tables and parts of them that are read again: staged reads, their exchange, suspension, membership."""
