"""Paths of tables below ``sink.path``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from airflow_provider_cdc.config.patterns import match_pattern
from airflow_provider_cdc.model.errors import NotReadyError
from airflow_provider_cdc.model.value_checks import invalid_value

_PART = re.compile(r"(?!\.|_cdc|_delta_log)([A-Za-z0-9_.\-]|\{database\}|\{table\})+")
#: ``$1``, ``${1}`` and ``${name}`` stand for what a group of a route's pattern has captured.
_GROUP = re.compile(r"\$(?:(?P<number>[1-9][0-9]?)|\{(?P<group>\w+)\})")
_REFERENCE = re.compile(rf"\{{(?P<name>database|table)\}}|{_GROUP.pattern}")

#: Characters that are escaped in URLs: readers that treat the path of a table as a URL do not find its files.
_URL_ESCAPED = re.compile(r"[^\x21-\x7e]|[%\\\"#<>?`{}]")


#: Remedy for such characters.
URL_READERS_REMEDY = (
    "Polars and Daft do not find the files of such a table. If you need them, use "
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


class Route(NamedTuple):
    """Where the tables that a pattern matches are copied to.

    :param pattern: an anchored pattern of tables.
    :param path: path of their folders, or of the one that they share.
    :param shared: empty if each table has a folder of its own; otherwise how rows are identified in the table that all
        of them are copied into: ``source`` (by source table and key) or ``unique`` (by key).
    """

    pattern: str
    path: str
    shared: str = ""

    @property
    def setting(self) -> str:
        """Name of the setting that has the path."""
        return "into" if self.shared else "table_path"


@dataclass(frozen=True)
class TablePaths:
    """How the folders of tables are named.

    :param template: a path, at least one part of which contains ``{table}``.
    :param lower_case: whether names are in lower case.
    :param routes: other paths for some tables; the first pattern that matches counts. ``$1`` and ``${name}`` in a path
        stand for groups of the pattern.
    :raises NotReadyError: if the template or a route is not valid.
    """

    template: str = "{database}/{table}"
    lower_case: bool = False
    routes: tuple[Route, ...] = ()

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

        for route in self.routes:
            _check_route(route)

    @property
    def stored_routes(self) -> tuple[tuple[str, ...], ...]:
        """The routes as plans store them."""
        return tuple(tuple(filter(None, route)) for route in self.routes)

    def path_of(self, database: str, table: str) -> str:
        """Return the path of a table's folder.

        :raises NotReadyError: if the groups of a route have captured nothing, so that a folder would have no name.
        """
        route, match = self._route_of(database, table)
        path = self.template if route is None else route.path
        names = {"database": database, "table": table}

        def name_of(reference: re.Match[str]) -> str:
            name = names.get(reference["name"])
            if name is None and match is not None:
                # NUL is the dot between database and table.
                name = (match[_group_key(reference)] or "").replace("\0", ".")
            return str(name).lower() if self.lower_case else str(name)

        parts = [_REFERENCE.sub(name_of, part) for part in path.split("/")]
        if not all(parts):
            raise NotReadyError(
                f"table {database}.{table}: its path in sink.routes, {path}, has a folder without a name",
                "A group of the pattern has captured nothing: change the pattern or the path",
            )
        # folder_name escapes slashes, so a name never creates additional folders.
        return "/".join(map(folder_name, parts))

    def shared_key_of(self, database: str, table: str) -> str:
        """Return how rows of a table are identified in its copy if it shares that with others; otherwise ``""``.

        See :class:`Route`.
        """
        route, _ = self._route_of(database, table)
        return "" if route is None else route.shared

    def _route_of(self, database: str, table: str) -> tuple[Route | None, re.Match[str] | None]:
        """Return the route of a table, and its match."""
        for route in self.routes:
            if match := match_pattern(route.pattern, database, table):
                return route, match
        return None, None

    def check_distinct(self, tables: Iterable[tuple[str, str]]) -> None:
        """Reject tables that would share a folder unasked, or whose folder would be inside that of another table.

        :param tables: database and name of each.
        :raises NotReadyError: with the names of two of them.
        """
        table_by_path: dict[str, tuple[str, str]] = {}
        table_by_source: dict[tuple[str, str], tuple[str, str]] = {}
        for table in dict.fromkeys(tables):
            path, source = self.path_of(*table), ".".join(table)
            other = table_by_path.setdefault(path, table)
            if (same := table_by_source.setdefault((path, source), table)) != table:
                raise NotReadyError(
                    f"table {table[1]} of database {table[0]} and table {same[1]} of database {same[0]} would both be "
                    f"{source} in {path}, and rows of the one would replace those of the other",
                    "Give one of them another path in sink.routes, or exclude it",
                )
            if other != table and not self._share_copy(other, table):
                raise NotReadyError(
                    f"tables {'.'.join(other)} and {'.'.join(table)} would both be copied to {self.path_of(*table)}",
                    "Make them differ in sink.table_path or sink.routes (or leave out sink.lower_case), or exclude one "
                    "of them. To copy several tables into one, give all of them a route with `into`, and none or all "
                    "of these `unique`",
                )
        for path, table in table_by_path.items():
            for end in (at for at, character in enumerate(path) if character == "/"):
                if (outer := table_by_path.get(path[:end])) is not None:
                    raise NotReadyError(
                        f"table {'.'.join(table)} would be copied to {path}, inside the folder of table "
                        f"{'.'.join(outer)}",
                        "Change sink.routes so that no table is below another, or exclude one of them",
                    )

    def _share_copy(self, *tables: tuple[str, str]) -> bool:
        """Return whether tables are to share a copy, in which their rows are identified in the same way."""
        keys = {self.shared_key_of(*table) for table in tables}
        return len(keys) == 1 and "" not in keys


def _group_key(reference: re.Match[str]) -> int | str:
    key = reference["number"] or reference["group"]
    return int(key) if key.isdecimal() else key


def _check_route(route: Route) -> None:
    pattern, path = route.pattern, route.path
    parts = path.split("/") if isinstance(path, str) else []
    if not parts or not all(_PART.fullmatch(_GROUP.sub("x", part)) for part in parts):
        raise invalid_value(
            f"sink.routes: {route.setting} of {pattern}",
            path,
            "folders below sink.path with {database}, {table}, and groups of the pattern in their names, such as "
            "{table}_$1",
        )
    compiled = re.compile(pattern)
    for reference in _GROUP.finditer(str(path)):
        key = _group_key(reference)
        if key not in (range(1, compiled.groups + 1) if isinstance(key, int) else compiled.groupindex):
            raise NotReadyError(
                f"sink.routes: {pattern} has no group {key}, which {route.setting} {path} names",
                "Groups are in parentheses: the first one is $1, and (?P<name>...) is ${name}",
            )


DEFAULT_TABLE_PATHS = TablePaths()
