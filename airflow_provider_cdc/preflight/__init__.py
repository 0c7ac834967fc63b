"""What is checked before a pipeline starts."""
