"""The binlog of a MySQL or MariaDB server as a PySpark data source of its own: the changes of one table, typed.

Register :class:`MySQLCdcDataSource` with a Spark session and read ``format("mysql_cdc")``, as a stream or as a range of
the binlog. No other part of this project is needed. See docs/data_source.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from airflow_provider_cdc.connections import mysql_args, resolve, resolve_file
from airflow_provider_cdc.core.offset import Offset, Position
from airflow_provider_cdc.exceptions import CdcError, NotReadyError, TransientError
from airflow_provider_cdc.mysql.stream.changes_planner import ChangesPlanner
from airflow_provider_cdc.mysql.stream.table_changes import TableChanges

#: Options, and what they are where they are not given.
_DEFAULTS = {
    "conn_id": "",
    "conn_file": "",
    "table": "",
    "start": "",
    "end": "latest",
    "max_bytes_per_batch": str(256 << 20),
    "max_bytes_per_partition": str(64 << 20),
    "before_images": "false",
    "zero_dates": "error",
    "exclude_columns": "",
    "server_id": "",
}
_LARGEST = (1 << 31) - 1
#: Readers that a server id is followed by: two that look ahead, and two a task.
_LOOKING, _TASKS = 2, 2
# The words of the pipeline, which the layers below speak of.
_WORDS = (
    (re.compile(r"a fresh sink\.path(?: \(or remove the old one\))?"), "a new checkpoint and another `start`"),
    (re.compile(r"\b(?:this|the) pipeline\b"), "this reader"),
    (re.compile(r"source\.(zero_dates|exclude_columns)"), r"the option \1"),
)


@dataclass(frozen=True)
class Login:
    """Where the connection is looked up: it holds no secret.

    :param conn_id: id of a connection in the environment, or ``None``.
    :param conn_file: path of a file that holds it, or ``None``.
    """

    conn_id: str | None = None
    conn_file: str | None = None

    def __call__(self) -> dict[str, Any]:
        """pymysql.connect keyword arguments.

        :raises NotReadyError: if there is no such connection, or it is none to MySQL.
        """
        return mysql_args(resolve_file(self.conn_file) if self.conn_file else resolve(self.conn_id or ""))


@dataclass(frozen=True)
class Options:
    """The options of a reader, in order.

    :param login: where the connection is.
    :param table: (database, table).
    :param start: where to begin; ``None`` if it was not said.
    :param end: where a range ends.
    :param batch_bytes: about how many bytes of binlog make one batch of a stream.
    :param partition_bytes: about how many bytes of binlog one task reads.
    :param exclude: columns that are not wanted.
    """

    login: Login
    table: tuple[str, str]
    start: str | None
    end: str
    batch_bytes: int
    partition_bytes: int
    before_images: bool
    zero_dates: str
    exclude: tuple[str, ...]
    server_id: int | None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Options:
        """Read what was given.

        :raises NotReadyError: for an option that is unknown or missing, or has a bad value.
        """
        for name in sorted(options):
            if name.lower() not in _DEFAULTS:  # its value is not shown: it may be a password
                hint = "A login is never an option: see conn_id and conn_file. " if _is_login(name) else ""
                raise NotReadyError(f"option {name} is not known", f"{hint}Known options: {', '.join(_DEFAULTS)}")
        found = _DEFAULTS | {name.lower(): value.strip() for name, value in options.items()}
        if bool(found["conn_id"]) == bool(found["conn_file"]):
            raise NotReadyError("give exactly one of conn_id and conn_file", "It names the connection to the server")
        database, _, table = found["table"].partition(".")
        if not table:
            raise NotReadyError(f"option table is {found['table']!r}", "Give database.table")
        batch = _number(found, "max_bytes_per_batch", 1, _LARGEST)
        server_id = _number(found, "server_id", 1, (1 << 32) - 1 - (1 << 20)) if found["server_id"] else None
        return cls(
            Login(found["conn_id"] or None, found["conn_file"] or None),
            (database, table),
            found["start"] or None,
            found["end"],
            batch,
            min(batch, _number(found, "max_bytes_per_partition", 1, _LARGEST)),
            _choice(found, "before_images", ("true", "false")) == "true",
            _choice(found, "zero_dates", ("error", "null")),
            tuple(name for part in found["exclude_columns"].split(",") if (name := part.strip())),
            server_id,
        )

    def log(self) -> TableChanges:
        """Look the table up."""
        return TableChanges.of(
            self.login,
            *self.table,
            self.zero_dates,
            self.exclude,
            piece_bytes=self.partition_bytes,
            before_images=self.before_images,
            server_id=self.server_id,
        )


def _is_login(name: str) -> bool:
    return name.lower() in ("password", "user", "username", "login", "host", "port", "url", "uri")


def _number(found: Mapping[str, str], name: str, low: int, high: int) -> int:
    text = found[name]
    if not text.isascii() or not text.isdigit() or not low <= int(text) <= high:
        raise NotReadyError(f"option {name} is {text!r}", f"Give a whole number from {low} to {high}")
    return int(text)


def _choice(found: Mapping[str, str], name: str, values: Sequence[str]) -> str:
    if found[name].lower() not in values:
        raise NotReadyError(f"option {name} is {found[name]!r}", f"Give {' or '.join(values)}")
    return found[name].lower()


@contextmanager
def _errors() -> Iterator[None]:
    """Errors in the words of a reader."""
    try:
        yield
    except CdcError as error:
        texts = [error.message, error.remedy]
        for pattern, words in _WORDS:
            texts = [pattern.sub(words, text) for text in texts]
        raise type(error)(*texts) from None


def _encode(offset: Offset, parts: Sequence[Offset] = (), piece_bytes: int = 0) -> dict[str, Any]:
    """An offset as Spark keeps it: a dictionary of simple values.

    :param parts: ends of the pieces of the batch that ends there.
    :param piece_bytes: with which they were made.
    """
    value: dict[str, Any] = {"version": 1, **offset.to_json(), "xa": json.dumps(list(offset.xa))}
    return value | {"parts": json.dumps([part.to_json() for part in parts]), "piece_bytes": piece_bytes}


def _decode(value: dict[str, Any]) -> Offset:
    if value.get("version") != 1:
        raise NotReadyError("the checkpoint is of another version of this source", "Begin with a new checkpoint")
    return Offset.from_json({**value, "xa": json.loads(value["xa"])})


class Range(InputPartition):
    """The transactions in (start, end], read by one task.

    :param slot: number of the task's first reader.
    :param piece_bytes: with which it was made.
    """

    def __init__(self, start: Offset, end: Offset, slot: int, piece_bytes: int) -> None:
        super().__init__(None)
        self.start, self.end, self.slot, self.piece_bytes = start, end, slot, piece_bytes


def _ranges(start: Offset, ends: Sequence[Offset], piece_bytes: int) -> list[InputPartition]:
    pairs = enumerate(zip([start, *ends], ends, strict=False))
    return [Range(a, b, _LOOKING + _TASKS * i, piece_bytes) for i, (a, b) in pairs]


def _read(log: TableChanges, schema: pa.Schema, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, Range):  # what Spark makes of no partitions at all
        return
    with _errors():
        for batch in log.read(partition.start, partition.end, partition.slot, partition.piece_bytes):
            columns = [a.cast(field.type) for a, field in zip(batch.columns, schema, strict=True)]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


class RangeReader(DataSourceReader):
    """Reads a range of the binlog.

    :param log: what is read.
    :param options: where it begins and ends.
    :param schema: Arrow schema, as Spark wants it.
    """

    def __init__(self, log: TableChanges, options: Options, schema: pa.Schema) -> None:
        self._log, self._options, self._schema = log, options, schema

    def partitions(self) -> list[InputPartition]:
        """Pieces of the range; each ends with a transaction."""
        with _errors(), closing(ChangesPlanner(self._log)) as planner:
            end = planner.find(self._options.end)
            start = planner.find(self._options.start or "earliest")
            if end.at < start.at:
                raise NotReadyError(f"the range ends at {end.at} and begins at {start.at}", "See start and end")
            planner.check(start)
            ends, altered = planner.pieces(start, end.at)
            if altered is not None:
                raise planner.altered(altered)
            return _ranges(start, ends, self._log.piece_bytes)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Changes of one piece."""
        return _read(self._log, self._schema, partition)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows the binlog.

    :param log: what is read.
    :param options: where it begins, and how much makes a batch.
    :param schema: Arrow schema, as Spark wants it.
    """

    def __init__(self, log: TableChanges, options: Options, schema: pa.Schema) -> None:
        self._log, self._options, self._schema = log, options, schema
        self._planner: ChangesPlanner | None = None
        self._checked = False
        self._target: Position | None = None

    def initialOffset(self) -> dict[str, Any]:
        """Where a new query begins."""
        with _errors():
            return _encode(self._open_planner().find(self._options.start or "latest"))

    def getDefaultReadLimit(self) -> ReadLimit:
        """The size of a batch."""
        return ReadMaxBytes(self._options.batch_bytes)

    def prepareForTriggerAvailableNow(self) -> None:
        """The stream ends where the server stands now."""
        with _errors():
            self._target = self._open_planner().end()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """End of the next batch: a transaction's; ``start`` itself if nothing is new."""
        size = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        with _errors():
            try:
                return self._latest(start, size)
            except TransientError:  # a connection that stood idle for long may be gone
                self.stop()
                return self._latest(start, size)

    def _latest(self, start: dict[str, Any], size: int | None) -> dict[str, Any]:
        at = self._check(start)
        planner = self._open_planner()
        target = planner.end() if self._target is None else self._target
        ends, altered = planner.pieces(at, target, size)
        if not ends and altered is not None:
            raise planner.altered(altered)
        return _encode(ends[-1], ends, self._log.piece_bytes) if ends else start

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The pieces of a batch, one a task."""
        with _errors():
            at, to = self._check(start), _decode(end)
            ends = [Offset.from_json(part) for part in json.loads(end["parts"])]
            return _ranges(at, ends, int(end["piece_bytes"])) if at.at < to.at else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Changes of one piece."""
        return _read(self._log, self._schema, partition)

    def stop(self) -> None:
        """Close the connections."""
        if self._planner is not None:
            self._planner.close()
            self._planner = None

    def _open_planner(self) -> ChangesPlanner:
        if self._planner is None:
            self._planner = ChangesPlanner(self._log)
        return self._planner

    def _check(self, start: dict[str, Any]) -> Offset:
        at = _decode(start)
        if not self._checked:
            self._open_planner().check(at)
            self._checked = True
        return at


class MySQLCdcDataSource(DataSource):
    """The data source ``mysql_cdc``: ``spark.dataSource.register(MySQLCdcDataSource)``.

    It keeps no secret: every process that reads looks the connection up, in its environment or in a file.

    :param options: options of the reader; see docs/data_source.md.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__({})
        with _errors():
            self._options = Options.of(options)
            self._log = self._options.log()

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "mysql_cdc"

    def schema(self) -> StructType:
        """The table's columns, then those that tell of the change."""
        return from_arrow_schema(self._log.schema, prefer_timestamp_ntz=True)

    def reader(self, schema: StructType) -> RangeReader:
        """Reader of a range."""
        return RangeReader(self._log, self._options, self._arrow(schema))

    def streamReader(self, schema: StructType) -> StreamReader:
        """Reader of a stream."""
        if self._options.end != "latest":
            raise NotReadyError("a stream has no end", "Leave the option end out, or read a range")
        return StreamReader(self._log, self._options, self._arrow(schema))

    def _arrow(self, schema: StructType) -> pa.Schema:
        if schema != self.schema():
            raise NotReadyError("the schema is that of the table", "Leave .schema(...) out")
        return to_arrow_schema(schema, timezone="UTC")
