"""Where the tables lie below ``sink.path``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from airflow_provider_cdc.model.errors import NotReadyError
from airflow_provider_cdc.model.value_checks import invalid_value

_NAME = re.compile(r"\{(database|table)\}")
_PART = re.compile(r"(?!\.|_cdc|_delta_log)([A-Za-z0-9_.\-]|\{database\}|\{table\})+")


#: What is written in another way in a URL: readers that take the path of a table for one do not find its files.
_URL_ESCAPED = re.compile(r"[^\x21-\x7e]|[%\\\"#<>?`{}]")


#: What to do about them.
URL_READERS_REMEDY = (
    "Polars and Daft do not find the files of such a table (docs/readers.md). If you need them: name the folder "
    "otherwise, by sink.path or sink.table_path"
)


def url_escaped_characters(path: str) -> str:
    """The characters of a path that some readers of Delta tables do not find files by, each once."""
    return "".join(sorted({*_URL_ESCAPED.findall(path)}))


def folder_name(name: str) -> str:
    r"""Folder name of a database or table: the name, with ``/ \ % =`` and control characters as ``=XX``.

    Percent signs are escaped since Delta readers take paths for URLs and decode them; a leading dot, and names that
    begin like the project's and Delta's own folders, so that they are not taken for those.
    """
    return re.sub(r"[/\\%=\x00-\x1f\x7f]|^\.|^_(?=cdc|delta_log)", lambda m: f"={ord(m[0]):02X}", name)


@dataclass(frozen=True)
class TablePaths:
    """How the folder of a table is named.

    :param template: folders, of which one has ``{table}`` in it.
    :param lower_case: whether names are written in lower case.
    :raises NotReadyError: if it cannot be one.
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
        """Folder of a table."""
        names = {"database": database, "table": table}
        if self.lower_case:
            names = {key: name.lower() for key, name in names.items()}
        # What a name has in it never makes a folder of its own.
        return "/".join(folder_name(_NAME.sub(lambda m: names[m[1]], part)) for part in self.template.split("/"))

    def check_distinct(self, tables: Iterable[tuple[str, str]]) -> None:
        """Refuse tables that would share a folder.

        :param tables: database and name of each.
        :raises NotReadyError: naming two of them.
        """
        table_by_path: dict[str, tuple[str, str]] = {}
        for table in tables:
            other = table_by_path.setdefault(self.path_of(*table), table)
            if other != table:
                raise NotReadyError(
                    f"tables {'.'.join(other)} and {'.'.join(table)} would both be copied to {self.path_of(*table)}",
                    "Tell them apart in sink.table_path (or leave out sink.lower_case), or exclude one of them",
                )


DEFAULT_TABLE_PATHS = TablePaths()
