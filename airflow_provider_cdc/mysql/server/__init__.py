"""What one server says of itself: who it is, its tables, keys, charsets, load."""
