"""Keys: where to cut tables into chunks, and which chunk owns a key."""
