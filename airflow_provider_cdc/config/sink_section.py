"""The sink section of a pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Annotated, Any

from airflow_provider_cdc.config.delete_policy import DELETE_MODES, HARD, IGNORE, SOFT, DeletePolicy
from airflow_provider_cdc.config.patterns import check_patterns, matches_any
from airflow_provider_cdc.config.section import ConnId, Flag, Section, whole_number
from airflow_provider_cdc.config.sink_kinds import COPY_ON_WRITE, KIND_SETTINGS, SINK_KINDS
from airflow_provider_cdc.config.store_address import StoreAddress, local_folder_of
from airflow_provider_cdc.config.table_paths import DEFAULT_TABLE_PATHS, TablePaths
from airflow_provider_cdc.config.table_properties import TableProperties
from airflow_provider_cdc.model.errors import NotReadyError
from airflow_provider_cdc.model.value_checks import check_choice, invalid_value

_PLANNED_KINDS = ("iceberg", "jdbc", "kafka", "changelog")
_PARTITION_UNITS = ("year", "month", "day", "hour")
_Modes = str | Mapping[str, Sequence[str]]
_Partitions = Mapping[str, Sequence[str | Mapping[str, str]]]
#: ``on_dropped``: the copy of a dropped table is left unchanged; or its rows are deleted.
KEEP, DROP = "keep", "drop"


def _check_path(key: str, path: object) -> str:
    if not isinstance(path, str):
        raise invalid_value(key, path, "the absolute path of a folder, such as /data/lake")
    StoreAddress.parse(path)
    if "%" in (local_folder_of(path) or path):
        raise NotReadyError(
            f"{key} has a percent sign: {path[:60]!r}",
            "Name a folder without one: readers of Delta tables treat it as the start of an escape",
        )
    return path


def _check_kind(key: str, kind: object) -> str:
    return check_choice(key, kind, tuple(SINK_KINDS), _PLANNED_KINDS, f"Use {' or '.join(SINK_KINDS)}")


def _check_modes(key: str, value: object, modes: tuple[str, ...]) -> _Modes:
    """Check a mode for all tables, or patterns of tables by mode; the first mode is the default."""
    if not isinstance(value, Mapping):
        return check_choice(key, value, modes)
    if not value or not {*value} <= {*modes[1:]}:
        forms = ", ".join(f"{mode}: [patterns of tables]" for mode in modes[1:])
        raise invalid_value(key, value, f"{' or '.join(modes)}, or {{{forms}}}" if forms else modes[0])
    return {mode: check_patterns(f"{key}.{mode}", patterns) for mode, patterns in value.items()}


def _check_partitions(key: str, value: object) -> _Partitions:
    if not isinstance(value, Mapping | None):
        raise invalid_value(key, value, "a mapping of patterns of tables to lists of columns")
    partitions: dict[str, list[str | Mapping[str, str]]] = {}
    for pattern in check_patterns(key, list(value or ())):
        name, parts = f"{key}.{pattern}", (value or {})[pattern]
        if not isinstance(parts, list | tuple) or not parts:
            raise invalid_value(name, parts, "a list such as [country, {month: created_at}]")
        partitions[pattern] = [_check_partition(name, part) for part in parts]
    return partitions


def _check_partition(key: str, part: object) -> str | dict[str, str]:
    """Return a valid partition column or part of a date.

    :raises NotReadyError: if it is neither.
    """
    if isinstance(part, str) and part:
        return part
    if isinstance(part, Mapping) and len(part) == 1:
        ((unit, column),) = part.items()
        if unit in _PARTITION_UNITS and isinstance(column, str) and column:
            return {unit: column}
    raise invalid_value(
        key, part, f"a list of columns and parts of dates, such as {{month: created_at}}: {', '.join(_PARTITION_UNITS)}"
    )


@dataclass(frozen=True)
class Sink(Section):
    """Where rows go.

    :param path: absolute path of a folder, or address in an object store (``s3://``, ``gs://``, ``abfss://``,
        ``az://``). Each table has a folder: ``<path>/<database>/<table>``.
    :param kind: ``delta``; one of :data:`airflow_provider_cdc.config.sink_kinds.SINK_KINDS`.
    :param deletes: how rows are handled that are deleted in the source. ``hard`` deletes them, ``soft`` keeps and marks
        them, ``ignore`` keeps them unchanged; or, for some tables, ``{"soft": [patterns], "ignore": [patterns]}``.
    :param merge: how replaced or deleted rows are removed: ``deletion_vectors`` or ``copy_on_write``; or, for some
        tables, ``{"copy_on_write": [patterns]}``. ``None`` becomes the default of the kind.
    :param index_bytes: memory limit of the index of a table's keys, in bytes.
    :param partition_by: maps patterns of tables to partition columns, and parts of dates such as ``{"month":
        "created_at"}``; the first matching pattern counts.
    :param compaction: whether the stream compacts tables while it runs; otherwise only ``airflow-cdc maintain`` does.
    :param conn_id: Airflow connection of the object store; ``None`` to use the environment of each host.
    :param table_path: path of a table's folder below ``path``, with ``{database}`` and ``{table}`` for its names.
    :param lower_case: whether names are in lower case there.
    :param table_properties: properties of the tables: ``{property: value}``, or ``{property: {value: [patterns]}}`` for
        some tables.
    :param adopt: whether an existing table of another origin may become the copy; the snapshot replaces its rows.
    :param on_dropped: how the copy of a table is handled that is dropped in the source. ``keep`` leaves it unchanged,
        ``drop`` deletes its rows; or, for some tables, ``{"drop": [patterns]}``.
    """

    path: Annotated[str, _check_path]
    kind: Annotated[str, _check_kind] = "delta"
    deletes: Annotated[_Modes, partial(_check_modes, modes=DELETE_MODES)] = field(default=HARD, hash=False)
    merge: _Modes | None = field(default=None, hash=False)
    index_bytes: Annotated[int, whole_number(1 << 20)] = 268_435_456
    partition_by: Annotated[_Partitions, _check_partitions] = field(default_factory=dict, hash=False)
    compaction: Flag = True
    conn_id: ConnId | None = None
    table_path: str = DEFAULT_TABLE_PATHS.template
    lower_case: bool = False
    table_properties: Mapping[str, Any] = field(default_factory=dict, hash=False)
    adopt: Flag = False
    on_dropped: Annotated[_Modes, partial(_check_modes, modes=(KEEP, DROP))] = field(default=KEEP, hash=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.conn_id is not None and StoreAddress.parse(self.path) is None:
            raise NotReadyError("sink.conn_id is set, and sink.path is a folder", "Leave one of them out")
        TablePaths(self.table_path, self.lower_case)
        TableProperties.parse(self.table_properties)
        kind = SINK_KINDS[self.kind]
        merge = kind.merge_modes[0] if self.merge is None else self.merge
        self._set("merge", _check_modes("sink.merge", merge, kind.merge_modes))
        for spec in fields(self):
            is_set = getattr(self, spec.name) not in (spec.default, {})
            if is_set and spec.name in KIND_SETTINGS - kind.settings:
                problem = f"sink.{spec.name} is set, and a sink of kind {self.kind} has no such setting"
                raise NotReadyError(problem, "Leave it out")

    def _patterns_of_mode(self, name: str, mode: str) -> tuple[str, ...]:
        """Return the patterns of the tables for which a setting has this mode."""
        value = getattr(self, name)
        if isinstance(value, str):
            return (".*[.].*",) if value == mode else ()
        return tuple(value.get(mode, ()))

    @property
    def delete_policy(self) -> DeletePolicy:
        """``deletes`` as a policy by table."""
        return DeletePolicy(self._patterns_of_mode("deletes", SOFT), self._patterns_of_mode("deletes", IGNORE))

    def empties_dropped_table(self, database: str, table: str) -> bool:
        """Return whether the rows of a table's copy are deleted when the table is dropped in the source."""
        return matches_any(self._patterns_of_mode("on_dropped", DROP), database, table)

    @property
    def table_paths(self) -> TablePaths:
        """``table_path`` and ``lower_case`` together."""
        return TablePaths(self.table_path, self.lower_case)

    @property
    def copy_on_write_tables(self) -> tuple[str, ...]:
        """Patterns of the tables for which ``merge`` is ``copy_on_write``."""
        return self._patterns_of_mode("merge", COPY_ON_WRITE)

    @property
    def partition_fields(self) -> tuple[tuple[str, tuple[tuple[str, str | None], ...]], ...]:
        """``partition_by`` as pairs: a pattern of tables, and their columns with the part of the date or ``None``."""
        return tuple((pattern, tuple(map(_column_and_unit, parts))) for pattern, parts in self.partition_by.items())


def _column_and_unit(part: str | Mapping[str, str]) -> tuple[str, str | None]:
    if isinstance(part, str):
        return part, None
    ((unit, column),) = part.items()
    return column, unit
