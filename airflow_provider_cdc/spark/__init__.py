"""Spark itself: Java, the installation check, the session, and tasks."""
