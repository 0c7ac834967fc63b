"""The declarative Pipeline: what to copy, how, and where to. The same names in YAML and in Python.

Every value is checked where it is made, so a file and a Python object are held to the same rules. The first problem
found is reported in one line that names the key, the value and what is allowed. Every key: ``docs/pipeline.md``.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import reprlib
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from airflow_provider_cdc.core import slots
from airflow_provider_cdc.core.checks import (
    check_choice,
    check_conn_id,
    check_keys,
    check_whole,
    key_names,
    refused,
    unbuilt,
)
from airflow_provider_cdc.core.limits import Limits
from airflow_provider_cdc.core.patterns import check_patterns, matches
from airflow_provider_cdc.core.spark_conf import check_conf, check_master
from airflow_provider_cdc.core.start import SNAPSHOT, Start, check_start
from airflow_provider_cdc.core.strict_yaml import parse
from airflow_provider_cdc.exceptions import NotReadyError
from airflow_provider_cdc.sinks.registry import KINDS

#: Highest value of ``source.server_id``: the slots of a pipeline follow it and must stay below 2^32.
MAX_SERVER_ID = 2**32 - 1 - slots.LAST

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*):/")
# A derived server id is far above the small numbers people give to their own servers.
_FIRST_DERIVED_ID, _ID_STRIDE = 2**20, 1024
_UUIDS = uuid.uuid5(uuid.NAMESPACE_URL, "airflow-provider-cdc")

_SCHEMA_CHANGES = ("exception", "evolve", "try_evolve", "lenient", "ignore")
_ZERO_DATES = ("error", "null")
_SINK_KINDS = ("delta", "iceberg", "jdbc", "kafka", "changelog")
_MERGES = ("deletion_vectors", "copy_on_write")


@dataclass(frozen=True)
class Source:
    """Where rows come from.

    :param conn_id: Airflow connection of the server.
    :param tables: anchored regular expressions ``database.table`` of the tables to capture; at least one.
    :param exclude: tables to leave out again, in the same form.
    :param server_id: first of the replication server ids that the pipeline uses; derived from its name when ``None``.
    :param include_columns: anchored regular expressions ``database.table.column`` of the columns to copy; all if empty.
        The key's columns are always copied.
    :param exclude_columns: columns to leave out, in the same form; only one of the two lists may be given.
    :param zero_dates: what becomes of an invalid date such as 0000-00-00: ``error`` stops; ``null`` (or ``None``,
        which is how YAML reads the bare word) makes it NULL.
    """

    conn_id: str
    tables: tuple[str, ...]
    exclude: tuple[str, ...] = ()
    server_id: int | None = None
    include_columns: tuple[str, ...] = ()
    exclude_columns: tuple[str, ...] = ()
    zero_dates: str = "error"

    def __post_init__(self) -> None:
        zero_dates: object = self.zero_dates
        if zero_dates is None:
            object.__setattr__(self, "zero_dates", "null")
        check_choice("source.zero_dates", self.zero_dates, _ZERO_DATES, (), "")
        check_conn_id("source.conn_id", self.conn_id)
        object.__setattr__(self, "tables", check_patterns("source.tables", self.tables))
        object.__setattr__(self, "exclude", check_patterns("source.exclude", self.exclude))
        for key in ("include_columns", "exclude_columns"):
            object.__setattr__(self, key, check_patterns(f"source.{key}", getattr(self, key), dots=2))
        if self.include_columns and self.exclude_columns:
            raise NotReadyError(
                "source.include_columns and source.exclude_columns are both set", "Leave one of them out"
            )
        if not self.tables:
            raise refused("source.tables", [], "at least one regular expression such as shop.order_.*")
        if self.server_id is not None:
            check_whole("source.server_id", self.server_id, 1, MAX_SERVER_ID)

    @property
    def patterns(self) -> dict[str, tuple[str, ...]]:
        """Everything that decides what is captured, by key."""
        return {key: getattr(self, key) for key in ("tables", "exclude", "include_columns", "exclude_columns")}


@dataclass(frozen=True)
class Snapshot:
    """How existing rows are read.

    :param chunk_rows: rows of one chunk, the unit of watermarks.
    :param group_rows: rows of one chunk group, the unit of retry.
    :param parallelism: chunks read at the same time.
    :param max_rows_per_second: rows that a group's readers take from the server in a second, together.
    :param max_bytes_per_second: the same in bytes.
    :param max_threads_running: no chunk is begun while the server's ``Threads_running`` is above it.
    :param max_replica_lag_seconds: no chunk is begun while the server, itself a replica, is further behind.
    """

    chunk_rows: int = 8096
    group_rows: int = 4_000_000
    parallelism: int = 2
    max_rows_per_second: int | None = None
    max_bytes_per_second: int | None = None
    max_threads_running: int | None = None
    max_replica_lag_seconds: int | None = None

    def __post_init__(self) -> None:
        check_whole("snapshot.chunk_rows", self.chunk_rows, 1, 1_000_000)
        check_whole("snapshot.group_rows", self.group_rows, 1)
        if self.group_rows < self.chunk_rows:
            raise refused("snapshot.group_rows", self.group_rows, f"at least snapshot.chunk_rows ({self.chunk_rows})")
        check_whole("snapshot.parallelism", self.parallelism, 1, slots.MAX_PARALLELISM)
        for name in ("max_rows_per_second", "max_bytes_per_second", "max_replica_lag_seconds"):
            if getattr(self, name) is not None:
                check_whole(f"snapshot.{name}", getattr(self, name), 1)
        if self.max_threads_running is not None:
            # Each reader is up to two running threads of the server itself, and one of them asks for the number.
            check_whole("snapshot.max_threads_running", self.max_threads_running, 2 * self.parallelism + 1)

    @property
    def limits(self) -> Limits:
        """What the readers of a group may ask of the server."""
        return Limits(
            self.max_rows_per_second,
            self.max_bytes_per_second,
            self.max_threads_running,
            self.max_replica_lag_seconds,
        )


@dataclass(frozen=True)
class Stream:
    """How changes are followed.

    :param mode: ``continuous``, or ``catch_up`` to end at the position seen at the start.
    :param trigger_seconds: seconds between the starts of two batches.
    :param schema_changes: ``exception``: stop at every DDL of a captured table.
    :param max_batch_bytes: soft limit of one batch in bytes of binlog.
    :param max_batch_rows: soft limit of one batch in changed rows.
    :param parallelism: tasks that read one batch at the same time.
    :param start: ``snapshot``; or, to read no rows of the tables and follow the binlog alone, ``earliest``,
        ``latest``, or a mapping with ``gtid_set``, with ``file`` and ``position``, or with ``timestamp``.
    :param on_purged: when the server has removed binlogs that were never read: ``stop``, or ``reread`` all tables.
    """

    mode: str = "continuous"
    trigger_seconds: float = 1
    schema_changes: str = "exception"
    max_batch_bytes: int = 268_435_456
    max_batch_rows: int = 5_000_000
    parallelism: int = 2
    start: Start = field(default=SNAPSHOT, hash=False)
    on_purged: str = "stop"

    def __post_init__(self) -> None:
        check_choice("stream.mode", self.mode, ("continuous", "catch_up"), (), "")
        seconds: object = self.trigger_seconds
        if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0 <= seconds <= 3600:
            raise refused("stream.trigger_seconds", seconds, "a number from 0 to 3600")
        remedy = "Use exception: this version stops at every DDL of a captured table"
        check_choice("stream.schema_changes", self.schema_changes, ("exception",), _SCHEMA_CHANGES, remedy)
        check_whole("stream.max_batch_bytes", self.max_batch_bytes, 1024 * 1024)
        check_whole("stream.max_batch_rows", self.max_batch_rows, 1000)
        check_whole("stream.parallelism", self.parallelism, 1, slots.MAX_PARALLELISM)
        object.__setattr__(self, "start", check_start("stream.start", self.start))
        check_choice("stream.on_purged", self.on_purged, ("stop", "reread"), (), "")
        if self.on_purged == "reread" and self.start != SNAPSHOT:
            raise refused(
                "stream.on_purged", self.on_purged, "stop: a pipeline without a snapshot has nothing to read again"
            )


@dataclass(frozen=True)
class Sink:
    """Where rows go.

    :param path: absolute folder; one table a folder: ``<path>/<database>/<table>``.
    :param kind: ``delta``; one of :data:`airflow_provider_cdc.sinks.registry.KINDS`.
    :param deletes: ``hard``: a deleted row is gone.
    :param merge: how rows that are replaced or deleted go: ``deletion_vectors`` or ``copy_on_write``; or, for some
        tables, ``{"copy_on_write": [patterns]}``.
    :param index_bytes: what the index of a table's keys may take in memory.
    :param compaction: whether the stream compacts the tables beside its work; else only ``airflow-cdc maintain`` does.
    """

    path: str
    kind: str = "delta"
    deletes: str = "hard"
    merge: str | Mapping[str, Sequence[str]] = field(default="deletion_vectors", hash=False)
    index_bytes: int = 268_435_456
    compaction: bool = True

    def __post_init__(self) -> None:
        check_choice("sink.kind", self.kind, tuple(KINDS), _SINK_KINDS, f"Use {' or '.join(KINDS)}")
        path: object = self.path
        if not isinstance(path, str):
            raise refused("sink.path", path, "the absolute path of a folder, such as /data/lake")
        if scheme := _SCHEME.match(path):
            # The rest is not shown: storage addresses can carry keys.
            raise unbuilt(
                "sink.path", f"{scheme[1]}://", "Use the plain path of a folder that the driver and all executors share"
            )
        if not path.startswith("/") or not path.isprintable():
            raise refused("sink.path", path, "the absolute path of a folder, such as /data/lake")
        check_choice(
            "sink.deletes", self.deletes, ("hard",), ("soft",), "Use hard: a deleted row is removed from the sink"
        )
        self._check_merge()
        check_whole("sink.index_bytes", self.index_bytes, 1 << 20)
        compaction: object = self.compaction
        if not isinstance(compaction, bool):
            raise refused("sink.compaction", compaction, "true or false")

    def _check_merge(self) -> None:
        merge: object = self.merge
        if not isinstance(merge, Mapping):
            check_choice("sink.merge", merge, _MERGES, (), "")
        elif list(merge) != ["copy_on_write"]:
            raise refused("sink.merge", merge, f"{' or '.join(_MERGES)}, or {{copy_on_write: [patterns of tables]}}")
        else:
            patterns = check_patterns("sink.merge.copy_on_write", merge["copy_on_write"])
            object.__setattr__(self, "merge", {"copy_on_write": patterns})

    @property
    def settings(self) -> dict[str, Any]:
        """What the class of the sink takes beside path and pipeline, as far as it is not the default."""
        found: dict[str, Any] = {}
        if self.merge != "deletion_vectors":
            found["copies"] = (".*[.].*",) if isinstance(self.merge, str) else tuple(self.merge["copy_on_write"])
        if self.index_bytes != type(self).index_bytes:
            found["index_bytes"] = self.index_bytes
        return found


@dataclass(frozen=True)
class State:
    """Where the bookkeeping is kept.

    :param conn_id: Airflow connection of the bookkeeping database; ``None`` for a SQLite file.
    """

    conn_id: str | None = None

    def __post_init__(self) -> None:
        if self.conn_id is not None:
            check_conn_id("state.conn_id", self.conn_id)


@dataclass(frozen=True)
class Spark:
    """Where Spark runs, and how.

    :param conn_id: Airflow connection of a Spark master; instead of ``master``.
    :param master: address of a Spark master; ``local[2]`` if there is no ``conn_id`` either.
    :param conf: further Spark settings; they win over those of the connection.
    """

    conn_id: str | None = None
    master: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if self.conn_id is not None:
            check_conn_id("spark.conn_id", self.conn_id)
            if self.master is not None:
                raise NotReadyError("spark.conn_id and spark.master are both set", "Leave one of them out")
        else:
            master = "local[2]" if self.master is None else self.master
            object.__setattr__(self, "master", check_master("spark.master", master))
        object.__setattr__(self, "conf", check_conf("spark.conf", {} if self.conf is None else self.conf))


_SECTIONS: dict[str, type[Any]] = {
    section.__name__.lower(): section for section in (Source, Snapshot, Stream, Sink, State, Spark)
}


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """One pipeline: the object that the command line, DAGs and tests all take.

    :param name: identity of the pipeline in the bookkeeping, in sink transactions and in replication server ids.
    :raises NotReadyError: for the first value that is not usable.
    """

    name: str
    source: Source
    snapshot: Snapshot = field(default_factory=Snapshot)
    stream: Stream = field(default_factory=Stream)
    sink: Sink
    state: State = field(default_factory=State)
    spark: Spark = field(default_factory=Spark)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise refused("name", self.name, "1 to 63 letters, digits, '_', '.' or '-', with a letter or digit first")
        for key, section in _SECTIONS.items():
            if not isinstance(getattr(self, key), section):
                raise refused(key, getattr(self, key), f"a {section.__name__}; Pipeline.from_dict takes plain mappings")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Pipeline:
        """Read a pipeline from a YAML file.

        :param path: file to read, UTF-8.
        :raises NotReadyError: if the file cannot be read, is not YAML, or holds a value that is not usable.
        """
        try:
            text = Path(path).read_text(encoding="utf-8-sig")
        except OSError as error:
            raise NotReadyError(f"cannot read {path}: {error.strerror}", "Give the pipeline's YAML file") from None
        except UnicodeDecodeError:
            raise NotReadyError(f"{path} is not a UTF-8 text", "Give the pipeline's YAML file") from None
        return cls.from_yaml(text, str(path))

    @classmethod
    def from_yaml(cls, text: str, name: str = "pipeline") -> Pipeline:
        """Read a pipeline from YAML text; :meth:`to_yaml` writes it.

        :param text: the YAML.
        :param name: what messages call it.
        :raises NotReadyError: if it is not YAML, or holds a value that is not usable.
        """
        value = parse(text, name)
        try:
            return cls.from_dict(value)
        except NotReadyError as error:
            raise NotReadyError(f"{name}: {error.message}", error.remedy) from None

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Pipeline:
        """Make a pipeline of plain values, as YAML or JSON gives them.

        :param value: mapping with the names of the sections; a section that is missing or ``None`` has its defaults.
        :raises NotReadyError: for the first key or value that is not usable.
        """
        if not isinstance(value, Mapping):
            raise NotReadyError(
                f"a pipeline is not {reprlib.repr(value)}", "It is a mapping with name, source and sink"
            )
        values = dict(value)
        check_keys("", values, cls)
        for key, section in _SECTIONS.items():
            if values.get(key) is None:
                values[key] = {}
            if not isinstance(values[key], Mapping):
                raise refused(key, values[key], f"a mapping with the keys {key_names(section)}")
            check_keys(f"{key}.", values[key], section)
            values[key] = section(**values[key])
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """Plain values in the order of the contract; :meth:`from_dict` turns them back."""
        value = dataclasses.asdict(self)
        value["source"].update({key: list(patterns) for key, patterns in self.source.patterns.items()})
        if isinstance(self.sink.merge, Mapping):
            value["sink"]["merge"] = {mode: list(patterns) for mode, patterns in self.sink.merge.items()}
        return value

    def to_yaml(self) -> str:
        """YAML text; :meth:`from_yaml` reads it back. It holds no secret: connections are named only."""
        return yaml.safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True)

    def captures(self, database: str, table: str) -> bool:
        """Whether a table is one of the pipeline's."""
        source = self.source
        return matches(source.tables, database, table) and not matches(source.exclude, database, table)

    def keeps(self, database: str, table: str, column: str) -> bool:
        """Whether a column of a captured table is copied, unless it is one of the key: those always are."""
        included, excluded = self.source.include_columns, self.source.exclude_columns
        if included:
            return matches(included, database, table, column)
        return not matches(excluded, database, table, column)

    def server_id(self, slot: int) -> int:
        """Replication server id of one of the pipeline's binlog readers.

        :param slot: one of :mod:`~airflow_provider_cdc.core.slots`.
        :return: a number below 2^32, the same in every run.
        """
        if not 0 <= slot <= slots.LAST:
            raise ValueError(f"slot {slot} is not in 0..{slots.LAST}")
        if self.source.server_id is not None:
            return self.source.server_id + slot
        # Strides, so that the ids of two pipelines never overlap in part.
        strides = (MAX_SERVER_ID - _FIRST_DERIVED_ID) // _ID_STRIDE
        digest = int.from_bytes(hashlib.sha256(self.name.encode()).digest()[:8], "big")
        return _FIRST_DERIVED_ID + digest % strides * _ID_STRIDE + slot

    def replica_uuid(self, slot: int) -> str:
        """UUID with which the reader of a slot registers at the server; the same in every run."""
        return str(uuid.uuid5(_UUIDS, f"{self.name}/{self.server_id(slot)}"))

    def replica(self, slot: int) -> tuple[int, str]:
        """Server id and UUID with which the reader of a slot registers at the server."""
        return self.server_id(slot), self.replica_uuid(slot)
