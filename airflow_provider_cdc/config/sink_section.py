"""The sink section of a pipeline."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from airflow_provider_cdc.config.catalog_settings import (
    ICEBERG_CONNECTION,
    catalog_settings,
    check_catalog,
    parse_catalog_connection,
    table_identifier,
)
from airflow_provider_cdc.config.connections import ResolvedConnection
from airflow_provider_cdc.config.delete_policy import DELETE_MODES, HARD, IGNORE, SOFT, DeletePolicy
from airflow_provider_cdc.config.patterns import check_patterns, matches_any
from airflow_provider_cdc.config.sink_kinds import CATALOG_SETTING, COPY_ON_WRITE, KIND_SETTINGS, SINK_KINDS
from airflow_provider_cdc.config.store_access import StoreAccess, parse_store_access
from airflow_provider_cdc.config.store_address import StoreAddress
from airflow_provider_cdc.config.table_paths import DEFAULT_TABLE_PATHS, Route, TablePaths
from airflow_provider_cdc.model.column_policy import KEY_WITH_SOURCE, UNIQUE_KEY
from airflow_provider_cdc.model.errors import NotReadyError
from airflow_provider_cdc.model.value_checks import check_choice, check_conn_id, check_integer, invalid_value

#: Number of buckets, or width, in ``bucket[16]`` and the like.
_NUMBER = re.compile(r"\[[1-9][0-9]{0,8}\]$")
_PLANNED_KINDS = ("jdbc", "kafka", "changelog")
#: ``on_dropped``: the copy of a dropped table is left unchanged; or its rows are deleted.
KEEP, DROP = "keep", "drop"


@dataclass(frozen=True)
class Sink:
    """Where rows go.

    :param path: absolute path of a folder, or address in an object store (``s3://``, ``gs://``, ``abfss://``,
        ``az://``). Each table has a folder: ``<path>/<database>/<table>``.
    :param kind: ``delta`` or ``iceberg``; one of :data:`airflow_provider_cdc.config.sink_kinds.SINK_KINDS`.
    :param deletes: how rows are handled that are deleted in the source. ``hard`` deletes them, ``soft`` keeps and marks
        them, ``ignore`` keeps them unchanged; or, for some tables, ``{"soft": [patterns], "ignore": [patterns]}``.
    :param merge: how replaced or deleted rows are removed: ``deletion_vectors`` or ``copy_on_write``; or, for some
        tables, ``{"copy_on_write": [patterns]}``. ``None`` becomes the default of the kind.
    :param index_bytes: memory limit of the index of a table's keys, in bytes.
    :param partition_by: maps patterns of tables to partition columns, and parts of dates such as ``{"month":
        "created_at"}``; the first matching pattern counts.
    :param compaction: whether the stream compacts tables while it runs; otherwise only ``airflow-cdc maintain`` does.
    :param conn_id: Airflow connection of the object store, or of the catalog and the object store; ``None`` to use the
        environment of each host.
    :param table_path: path of a table's folder below ``path``, with ``{database}`` and ``{table}`` for its names.
    :param lower_case: whether names are in lower case there.
    :param routes: other paths for some tables: ``{"match": pattern, "table_path": path}``. The first matching pattern
        counts, and ``$1`` or ``${name}`` in the path stand for what its groups have captured. With ``into`` in place of
        ``table_path``, tables of the same path are copied into one; ``unique`` says that no key occurs in two of them.
    :param table_properties: properties of the tables: ``{property: value}``, or ``{property: {value: [patterns]}}`` for
        some tables.
    :param adopt: whether an existing table of another origin may become the copy; the snapshot replaces its rows.
    :param on_dropped: how the copy of a table is handled that is dropped in the source. ``keep`` leaves it unchanged,
        ``drop`` deletes its rows; or, for some tables, ``{"drop": [patterns]}``.
    :param catalog: the catalog of the tables, of a kind that has one: its ``type``, ``uri`` and further properties.
    """

    path: str
    kind: str = "delta"
    deletes: str | Mapping[str, Sequence[str]] = field(default=HARD, hash=False)
    merge: str | Mapping[str, Sequence[str]] | None = field(default=None, hash=False)
    index_bytes: int = 268_435_456
    partition_by: Mapping[str, Sequence[str | Mapping[str, str]]] = field(default_factory=dict, hash=False)
    compaction: bool = True
    conn_id: str | None = None
    table_path: str = DEFAULT_TABLE_PATHS.template
    lower_case: bool = False
    routes: Sequence[Mapping[str, Any]] = field(default=(), hash=False)
    table_properties: Mapping[str, Any] = field(default_factory=dict, hash=False)
    adopt: bool = False
    on_dropped: str | Mapping[str, Sequence[str]] = field(default=KEEP, hash=False)
    catalog: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        check_choice("sink.kind", self.kind, tuple(SINK_KINDS), _PLANNED_KINDS, f"Use {' or '.join(SINK_KINDS)}")
        path: object = self.path
        if not isinstance(path, str):
            raise invalid_value("sink.path", path, "the absolute path of a folder, such as /data/lake")
        address = StoreAddress.parse(path)
        if self.conn_id is not None:
            check_conn_id("sink.conn_id", self.conn_id)
            if address is None and not self.has_catalog:
                raise NotReadyError("sink.conn_id is set, and sink.path is a folder", "Leave one of them out")
        self._check_settings_of_kind()
        object.__setattr__(self, "catalog", check_catalog(self.catalog))
        if self.has_catalog and self.conn_id is None:
            catalog_settings(self, None)
        self._check_modes("deletes", DELETE_MODES)
        self._check_routes()
        sink_kind = SINK_KINDS[self.kind]
        sink_kind.check_settings(path, self.table_properties)
        merge_modes = sink_kind.merge_modes
        if self.merge is None:
            object.__setattr__(self, "merge", merge_modes[0])
        self._check_modes("merge", merge_modes)
        self._check_modes("on_dropped", (KEEP, DROP))
        self._check_partitions()
        check_integer("sink.index_bytes", self.index_bytes, 1 << 20)
        for name in ("compaction", "adopt"):
            if not isinstance(getattr(self, name), bool):
                raise invalid_value(f"sink.{name}", getattr(self, name), "true or false")

    def _check_settings_of_kind(self) -> None:
        missing = KIND_SETTINGS - SINK_KINDS[self.kind].settings
        for spec in fields(self):
            if spec.name in missing and getattr(self, spec.name) not in (spec.default, {}, []):
                key, kind = f"sink.{spec.name}", self.kind
                raise NotReadyError(f"{key} is set, and a sink of kind {kind} has no such setting", "Leave it out")

    def _check_modes(self, name: str, modes: tuple[str, ...]) -> None:
        """Check a mode for all tables, or patterns of tables by mode; the first mode is the default."""
        value: object = getattr(self, name)
        if not isinstance(value, Mapping):
            check_choice(f"sink.{name}", value, modes, (), "")
            return
        if not value or not {*value} <= {*modes[1:]}:
            forms = ", ".join(f"{mode}: [patterns of tables]" for mode in modes[1:])
            allowed = f"{' or '.join(modes)}, or {{{forms}}}" if forms else modes[0]
            raise invalid_value(f"sink.{name}", value, allowed)
        patterns = {mode: check_patterns(f"sink.{name}.{mode}", mode_patterns) for mode, mode_patterns in value.items()}
        object.__setattr__(self, name, patterns)

    def _patterns_of_mode(self, name: str, mode: str) -> tuple[str, ...]:
        """Return the patterns of the tables for which a setting has this mode."""
        value = getattr(self, name)
        if isinstance(value, str):
            return (".*[.].*",) if value == mode else ()
        return tuple(value.get(mode, ()))

    @property
    def has_catalog(self) -> bool:
        """Whether the tables are in a catalog."""
        return CATALOG_SETTING in SINK_KINDS[self.kind].settings

    def parse_connection(self, conn: ResolvedConnection) -> StoreAccess:
        """Return what the connection in ``conn_id`` specifies: access to the object store, the catalog, or both.

        :raises NotReadyError: if it is not usable with the other settings.
        """
        is_catalog = self.has_catalog and conn.conn_type == ICEBERG_CONNECTION
        access = parse_catalog_connection(conn) if is_catalog else parse_store_access(conn)
        access.check_path(self.path)
        if self.has_catalog:
            catalog_settings(self, access)
        return access

    @property
    def delete_policy(self) -> DeletePolicy:
        """``deletes`` as a policy by table."""
        return DeletePolicy(self._patterns_of_mode("deletes", SOFT), self._patterns_of_mode("deletes", IGNORE))

    def empties_dropped_table(self, database: str, table: str) -> bool:
        """Return whether the rows of a table's copy are deleted when the table is dropped in the source."""
        return matches_any(self._patterns_of_mode("on_dropped", DROP), database, table)

    @property
    def table_paths(self) -> TablePaths:
        """``table_path``, ``lower_case`` and ``routes`` together."""
        return TablePaths(self.table_path, self.lower_case, tuple(map(_parse_route, self.routes)))

    def check_distinct_tables(self, tables: Iterable[tuple[str, str]]) -> None:
        """Reject tables whose copies would conflict: one folder, one inside the other, or one name in the catalog.

        :param tables: database and name of each.
        :raises NotReadyError: with the names of two of them.
        """
        ids, paths, table_by_name = list(tables), self.table_paths, dict[Any, tuple[str, str]]()
        paths.check_distinct(ids)
        for table in ids if self.has_catalog else ():
            levels, name = table_identifier(paths.path_of(*table))
            other = table_by_name.setdefault((levels, name), table)
            if other != table and paths.path_of(*other) != paths.path_of(*table):
                raise NotReadyError(
                    f"tables {'.'.join(other)} and {'.'.join(table)} would both be {'.'.join((*levels, name))} in the "
                    "catalog",
                    "Make them differ in sink.table_path or sink.routes, or exclude one of them",
                )

    def _check_routes(self) -> None:
        value: object = () if self.routes is None else self.routes
        form = (
            r"a list such as [{match: 'shop_(\d+).orders', table_path: 'orders_$1'}] or "
            r"[{match: 'shop_\d+.orders', into: orders}]"
        )
        if not isinstance(value, list | tuple):
            raise invalid_value("sink.routes", value, form)
        for route in value:
            keys = {*route} - {"unique"} if isinstance(route, Mapping) and "into" in route else {*route}
            if not isinstance(route, Mapping) or keys not in ({"match", "table_path"}, {"match", "into"}):
                raise invalid_value("sink.routes", route, form)
            check_patterns("sink.routes.match", [route["match"]])
            if not isinstance(route.get("unique", False), bool):
                raise invalid_value(f"sink.routes: unique of {route['match']}", route["unique"], "true or false")
        object.__setattr__(self, "routes", tuple(map(dict, value)))
        _ = self.table_paths  # refuses paths that are not valid
        if self.adopt and any("into" in route for route in self.routes):
            raise NotReadyError(
                "sink.adopt is set, and sink.routes copies several tables into one",
                "Leave one of them out: a table of another origin cannot become such a copy",
            )

    def _check_partitions(self) -> None:
        value: object = {} if self.partition_by is None else self.partition_by
        if not isinstance(value, Mapping):
            raise invalid_value("sink.partition_by", value, "a mapping of patterns of tables to lists of columns")
        partitions: dict[str, list[str | dict[str, str]]] = {}
        for pattern in check_patterns("sink.partition_by", list(value)):
            key, parts = f"sink.partition_by.{pattern}", value[pattern]
            if not isinstance(parts, list | tuple) or not parts:
                raise invalid_value(key, parts, "a list such as [country, {month: created_at}]")
            partitions[pattern] = [_check_partition(key, part, SINK_KINDS[self.kind].partition_units) for part in parts]
        object.__setattr__(self, "partition_by", partitions)

    @property
    def copy_on_write_tables(self) -> tuple[str, ...]:
        """Patterns of the tables for which ``merge`` is ``copy_on_write``."""
        return self._patterns_of_mode("merge", COPY_ON_WRITE)

    @property
    def partition_fields(self) -> tuple[tuple[str, tuple[tuple[str, str | None], ...]], ...]:
        """``partition_by`` as pairs: a pattern of tables, and their columns with the part of the date or ``None``."""
        return tuple((pattern, tuple(map(_column_and_unit, parts))) for pattern, parts in self.partition_by.items())


def _parse_route(route: Mapping[str, Any]) -> Route:
    if "into" not in route:
        return Route(route["match"], route["table_path"])
    return Route(route["match"], route["into"], UNIQUE_KEY if route.get("unique") else KEY_WITH_SOURCE)


def _check_partition(key: str, part: object, units: tuple[str, ...]) -> str | dict[str, str]:
    """Return a valid partition column, part of a date, or other transform.

    :param units: parts of dates, and other transforms, that the kind of sink has.
    :raises NotReadyError: if it is neither.
    """
    if isinstance(part, str) and part:
        return part
    if isinstance(part, Mapping) and len(part) == 1:
        ((unit, column),) = part.items()
        if _NUMBER.sub("[n]", str(unit)) in units and "[n]" not in str(unit) and isinstance(column, str) and column:
            return {unit: column}
    raise invalid_value(
        key, part, f"a list of columns and parts of dates, such as {{month: created_at}}: {', '.join(units)}"
    )


def _column_and_unit(part: str | Mapping[str, str]) -> tuple[str, str | None]:
    if isinstance(part, str):
        return part, None
    ((unit, column),) = part.items()
    return column, unit
