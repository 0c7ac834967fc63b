"""Source and copy are compared, and repaired."""
