"""The size of a sink table."""

from __future__ import annotations

from airflow_provider_cdc.model.json_record import JsonRecord


class TableSize(JsonRecord, frozen=True):
    """The size of a table, as recorded in its log: no data file is opened.

    :param files: number of data files.
    :param bytes: their size.
    :param rows: living rows; ``None`` if the log does not record their number.
    :param dead_rows: dead rows that are still in files.
    :param files_with_vectors: files that have a deletion vector.
    :param compactions: compactions committed since the table was created.
    """

    files: int
    bytes: int
    rows: int | None
    dead_rows: int
    files_with_vectors: int
    compactions: int
