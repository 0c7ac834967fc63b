"""Paths of tables below ``sink.path``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from airflow_provider_cdc.model.errors import NotReadyError
from airflow_provider_cdc.model.value_checks import invalid_value

_NAME = re.compile(r"\{(database|table)\}")
_PART = re.compile(r"(?!\.|_cdc|_delta_log)([A-Za-z0-9_.\-]|\{database\}|\{table\})+")


#: Characters that are escaped in URLs: readers that treat the path of a table as a URL do not find its files.
_URL_ESCAPED = re.compile(r"[^\x21-\x7e]|[%\\\"#<>?`{}]")


#: Remedy for such characters.
URL_READERS_REMEDY = (
    "Polars and Daft do not find the files of such a table (docs/readers.md). If you need them, use "
    "another folder name, by sink.path or sink.table_path"
)


def url_escaped_characters(path: str) -> str:
    """Return the distinct characters of a path that prevent some readers of Delta tables from finding files."""
    return "".join(sorted({*_URL_ESCAPED.findall(path)}))


def folder_name(name: str) -> str:
    r"""Return the folder name of a database or table, with ``/ \ % =`` and control characters as ``=XX``.

    Percent signs are escaped because Delta readers treat paths as URLs and decode them. A leading dot is escaped too,
    as are names that begin like the folders of the project or of Delta.
    """
    return re.sub(r"[/\\%=\x00-\x1f\x7f]|^\.|^_(?=cdc|delta_log)", lambda m: f"={ord(m[0]):02X}", name)


@dataclass(frozen=True)
class TablePaths:
    """How the folders of tables are named.

    :param template: a path, at least one part of which contains ``{table}``.
    :param lower_case: whether names are in lower case.
    :raises NotReadyError: if the template is not valid.
    """

    template: str = "{database}/{table}"
    lower_case: bool = False

    def __post_init__(self) -> None:
        template: object = self.template
        parts = template.split("/") if isinstance(template, str) else []
        if not all(map(_PART.fullmatch, parts)) or not any("{table}" in part for part in parts):
            raise invalid_value(
                "sink.table_path",
                template,
                "folders below sink.path with {table} and {database} in their names, such as bronze/{database}_{table}",
            )
        lower_case: object = self.lower_case
        if not isinstance(lower_case, bool):
            raise invalid_value("sink.lower_case", lower_case, "true or false")

    def path_of(self, database: str, table: str) -> str:
        """Return the path of a table's folder."""
        names = {"database": database, "table": table}
        if self.lower_case:
            names = {key: name.lower() for key, name in names.items()}
        # folder_name escapes slashes, so a name never creates additional folders.
        return "/".join(folder_name(_NAME.sub(lambda m: names[m[1]], part)) for part in self.template.split("/"))

    def check_distinct(self, tables: Iterable[tuple[str, str]]) -> None:
        """Reject tables that would share a folder.

        :param tables: database and name of each.
        :raises NotReadyError: with the names of two of them.
        """
        table_by_path: dict[str, tuple[str, str]] = {}
        for table in tables:
            other = table_by_path.setdefault(self.path_of(*table), table)
            if other != table:
                raise NotReadyError(
                    f"tables {'.'.join(other)} and {'.'.join(table)} would both be copied to {self.path_of(*table)}",
                    "Make them differ in sink.table_path (or leave out sink.lower_case), or exclude one of them",
                )


DEFAULT_TABLE_PATHS = TablePaths()
