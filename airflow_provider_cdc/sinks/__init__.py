"""Sinks: the protocol that each kind implements, and what they share."""
