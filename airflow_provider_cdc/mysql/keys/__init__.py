"""Keys: where tables are cut, and which chunk owns a key."""
