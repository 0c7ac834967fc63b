"""Connections to a server and queries about it: identity, product, catalog, character sets, load."""
