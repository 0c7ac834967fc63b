"""The log of an Iceberg table: what a catalog and the files of the table say of its newest version.

``iceberg_log.IcebergLog`` is one version of a table. A catalog says which metadata it has
(``sinks.iceberg.catalogs``); the manifest list of its current snapshot, the manifests, and the deletion vectors are
read from the table's folder (``snapshot_files``). Manifests never change, so that of another version only those are
read that are not known yet, and nothing is read again after an own commit. ``live_file`` is a data file in a version,
``table_markers`` keeps markers in few properties of the table, ``table_location`` translates the locations that
metadata has into paths in the folder, ``file_schemas`` finds or makes the schema whose field ids new files have,
``column_ids`` says by which ids columns are found in files,
``snapshot_commit`` is a commit and what proves that it was not made, ``retained_files`` finds what expired snapshots
refer to, ``folder_owner`` keeps the uuid of the table that a folder belongs to, and ``cross_check`` compares live files
with those that pyiceberg finds. The room is called by ``sinks.iceberg``.
"""
