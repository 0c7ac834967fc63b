"""Connections to a server and what it is asked: identity, product, catalog, character sets, load."""
