"""Sinks: the protocol that each kind implements, and shared code."""
