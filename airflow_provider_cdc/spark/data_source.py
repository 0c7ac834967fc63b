"""The binlog of a MySQL or MariaDB server as a PySpark data source of its own: the changes of one table, typed.

Register :class:`MySQLCdcDataSource` with a Spark session and read ``format("mysql_cdc")``, as a stream or as a range of
the binlog. No other part of this project is needed. See docs/data_source.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyspark
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from airflow_provider_cdc.connections import mysql_args, resolve, resolve_file
from airflow_provider_cdc.core.offset import Offset
from airflow_provider_cdc.exceptions import CdcError, NotReadyError
from airflow_provider_cdc.mysql.stream.changes_planner import ChangesPlanner
from airflow_provider_cdc.mysql.stream.table_changes import TableChanges

if TYPE_CHECKING:
    from airflow_provider_cdc.spark.data_source_stream import StreamReader

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
def reader_errors() -> Iterator[None]:
    """Say errors of the layers below in the words of this source."""
    try:
        yield
    except CdcError as error:
        texts = [error.message, error.remedy]
        for pattern, words in _WORDS:
            texts = [pattern.sub(words, text) for text in texts]
        raise type(error)(*texts) from None


class Range(InputPartition):
    """The transactions in (start, end], read by one task.

    :param slot: number of the task's first reader.
    :param piece_bytes: with which it was made.
    """

    def __init__(self, start: Offset, end: Offset, slot: int, piece_bytes: int) -> None:
        super().__init__(None)
        self.start, self.end, self.slot, self.piece_bytes = start, end, slot, piece_bytes


def ranges(start: Offset, ends: Sequence[Offset], piece_bytes: int) -> list[InputPartition]:
    """A partition for each piece of (start, the last of the ends]."""
    pairs = enumerate(zip([start, *ends], ends, strict=False))
    return [Range(a, b, _LOOKING + _TASKS * i, piece_bytes) for i, (a, b) in pairs]


def read_range(log: TableChanges, schema: pa.Schema, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Read the changes of one piece, as Spark wants them."""
    if not isinstance(partition, Range):  # what Spark makes of no partitions at all
        return
    with reader_errors():
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
        with reader_errors(), closing(ChangesPlanner(self._log)) as planner:
            end = planner.find(self._options.end)
            start = planner.find(self._options.start or "earliest")
            if end.at < start.at:
                raise NotReadyError(f"the range ends at {end.at} and begins at {start.at}", "See start and end")
            planner.check(start)
            ends, altered = planner.pieces(start, end.at)
            if altered is not None:
                raise planner.altered(altered)
            return ranges(start, ends, self._log.piece_bytes)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Changes of one piece."""
        return read_range(self._log, self._schema, partition)


class MySQLCdcDataSource(DataSource):
    """The data source ``mysql_cdc``: ``spark.dataSource.register(MySQLCdcDataSource)``.

    It keeps no secret: every process that reads looks the connection up, in its environment or in a file.

    :param options: options of the reader; see docs/data_source.md.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__({})
        with reader_errors():
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
        if tuple(map(int, pyspark.__version__.split(".")[:2])) < (4, 2):
            raise NotReadyError(
                f"Spark {pyspark.__version__} does not tell a source where a batch begins",
                "Install pyspark 4.2 or newer to read a stream. Ranges can be read with this one",
            )
        from airflow_provider_cdc.spark.data_source_stream import StreamReader

        return StreamReader(self._log, self._options, self._arrow(schema))

    def _arrow(self, schema: StructType) -> pa.Schema:
        if schema != self.schema():
            raise NotReadyError("the schema is that of the table", "Leave .schema(...) out")
        return to_arrow_schema(schema, timezone="UTC")
