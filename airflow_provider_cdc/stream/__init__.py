"""The stream: its epochs, its Spark query, how it resumes, and how it is controlled."""
