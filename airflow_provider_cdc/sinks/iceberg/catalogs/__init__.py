"""Catalogs of Iceberg tables: which metadata a table has now, and how the next one replaces it.

``protocol.Catalog`` is what the sink needs of a catalog: load, create, commit and drop a table. A commit has
requirements, and one of three outcomes; if the outcome is not known, the sink looks for its snapshot. The room knows
nothing of files but those of metadata. The room is called by ``sinks.iceberg``.
"""
