"""What tasks run: slices of a snapshot, pieces of batches. Whatever carries them, Spark or a thread, is elsewhere."""
