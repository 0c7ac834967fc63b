"""Catalogs of Iceberg tables: which metadata a table has now, and how the next one replaces it.

``protocol.Catalog`` is what the sink needs of a catalog: load, create, commit and drop a table. A commit has
requirements, and one of three outcomes; if the outcome is not known, the sink looks for its snapshot.

``open_catalog.open_catalog`` opens the one that the settings name. ``sql_catalog.SqlCatalog`` is a SQL database, with
the tables (``sql_tables``) that Java's ``JdbcCatalog`` and pyiceberg's ``SqlCatalog`` have. It writes the files with
the metadata itself, and the database has the location of the newest one of each table. ``file_locations`` opens files
by such locations. ``rest_catalog.RestCatalog`` speaks the REST protocol; ``rest_client`` sends its requests, each once,
with the configuration and authentication of pyiceberg, which only this room imports, when it is needed. The room knows
no other files of a table, and nothing of pipelines. It is called by ``sinks.iceberg``; nothing here is called by
others.
"""
