"""Spark itself: Java, the session, the check of the installation, and tasks."""
