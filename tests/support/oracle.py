"""Is the sink exactly the source? Whole tables, row by row, every value.

Independent of the project's own code on purpose: only PyMySQL, deltalake, pyiceberg and Arrow. The server writes each
row as one line of text (strings and bytes in HEX), so that no client library interprets a value; floats stand beside
the line. Arrow turns both, and the sink's columns, into one exact form. Rows are matched by the bytes of their key: 'a'
and 'A' are two keys here.
"""

from __future__ import annotations

import binascii
import struct
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.fs
from deltalake import DeltaTable
from pymysql.cursors import SSCursor

from tests.support.gone import MOMENT, NUMBER
from tests.support.iceberg_place import CatalogPlace, find_in_catalog
from tests.support.servers import MySQLServer

if TYPE_CHECKING:
    from pyiceberg.table import Table as IcebergTable

#: How many rows of each kind of difference are shown.
EXAMPLES = 5
#: Stands for NULL in the server's lines; no value is written like this.
_NULL = "~"
_BATCH = 50_000

_INTEGERS = {"tinyint", "smallint", "mediumint", "int", "bigint", "year"}
_TEXTS = {
    "uuid",
    "inet4",
    "inet6",
    "char",
    "varchar",
    "tinytext",
    "text",
    "mediumtext",
    "longtext",
    "enum",
    "set",
    "json",
}
_BYTES = {"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"}
_GEOMETRY = {
    *("geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon"),
    *("geomcollection", "geometrycollection"),
}
_BYTES |= {"bit", "vector"} | _GEOMETRY
_OTHERS = {"decimal", "float", "double", "date", "datetime", "timestamp", "time"}


class Remote(Protocol):
    """A place in an object store: ``tests/support/s3.py`` has one."""

    def uri(self) -> str:
        """Its address."""

    @property
    def options(self) -> Mapping[str, str]:
        """What readers need to know besides."""

    def under(self, path: str) -> Remote:
        """A place below."""


#: Where a sink or one of its tables is.
Place = str | Path | Remote


@dataclass
class Difference:
    """How a sink table differs from its source.

    :param missing: rows of the source that the sink lacks; ``extra``: the other way round.
    :param doubled: keys that the sink has more than once; ``different``: rows with another value under the same key.
    :param examples: lines for people, up to five of each kind.
    """

    table: str
    source_rows: int = 0
    sink_rows: int = 0
    missing: int = 0
    extra: int = 0
    doubled: int = 0
    different: int = 0
    examples: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        head = (
            f"{self.table}: {self.source_rows} rows in the source, {self.sink_rows} in the sink; "
            f"missing {self.missing}, extra {self.extra}, doubled {self.doubled}, different {self.different}"
        )
        return "\n  ".join([head, *self.examples])


@dataclass(frozen=True)
class Kept:
    """Deleted rows that stay in the copy, as :class:`tests.support.gone.Gone` has written them down.

    :param database: where that stands; if the copy is compared with a view, in a view of the same name.
    :param since: a row that was deleted at this time (UTC) or later must be in the copy; one that was deleted earlier
        may be, as it may have been deleted before it was read.
    :param marked: whether ``_cdc_deleted`` says which they are.
    """

    database: str
    since: str
    marked: bool


@dataclass(frozen=True)
class _Column:
    name: str
    kind: str
    precision: int
    scale: int
    unsigned: bool

    @property
    def hexed(self) -> bool:
        return self.kind in _TEXTS or self.kind in _BYTES

    @property
    def floating(self) -> bool:
        return self.kind in {"float", "double"}

    @property
    def select(self) -> str:
        """Expression of the server's exact value.

        FLOAT alone is printed with six digits, ``+ 0e0`` loses the sign of -0.0, and as a string the server cuts a
        DOUBLE expression to 22 characters: only a DOUBLE in a result column of its own is printed whole.
        """
        name = _quoted(self.name)
        if self.kind in _TEXTS:
            value = f"HEX(CAST({name} AS CHAR CHARACTER SET utf8mb4))"
        elif self.kind == "bit":
            value = f"LPAD(HEX({name} + 0), {(self.precision + 7) // 8 * 2}, '0')"
        elif self.kind in _BYTES:
            value = f"HEX({name})"
        elif self.floating:
            return f"CAST({name} AS DOUBLE)"
        else:
            value = f"CAST({name} AS CHAR)"
        return f"IFNULL({value}, '{_NULL}')"

    @property
    def exact(self) -> pa.DataType:
        """Type of the exact form; floats in it are compared by their bits."""
        if self.hexed:
            return pa.large_binary()
        if self.kind == "decimal":
            return pa.decimal128(self.precision, self.scale) if self.precision <= 38 else pa.large_string()
        if self.kind == "bigint" and self.unsigned:
            return pa.decimal128(20, 0)
        if self.floating:
            return pa.float64()
        if self.kind in {"datetime", "timestamp"}:
            return pa.timestamp("us")
        return pa.date32() if self.kind == "date" else pa.int64()

    def of_text(self, text: pa.Array) -> pa.Array:
        """The server's text in the exact form."""
        if self.hexed:
            return _unhex(text)
        if self.kind == "time":
            return _microseconds(text)
        if self.kind in {"date", "datetime", "timestamp"}:  # with source.zero_dates: null; else a zero one stops
            text = pc.if_else(pc.starts_with(text, "0000-00-00"), pa.scalar(None, text.type), text)
        return text.cast(self.exact)

    def of_sink(self, values: pa.Array) -> pa.Array:
        """A column of the sink in the exact form.

        :raises pyarrow.ArrowInvalid: when the sink's type cannot hold the source's values.
        """
        if self.kind == "vector":
            packed = [None if v is None else struct.pack(f"<{len(v)}f", *v) for v in values.to_pylist()]
            return pa.array(packed, self.exact)
        is_text = pa.types.is_string(values.type) or pa.types.is_large_string(values.type)
        fits = is_text == (self.kind in _TEXTS or pa.types.is_large_string(self.exact))
        if self.floating:
            fits = pa.types.is_floating(values.type)
        elif self.kind in {"datetime", "timestamp"}:
            fits = values.type == pa.timestamp("us", tz="UTC" if self.kind == "timestamp" else None)
        if not fits:
            raise pa.ArrowInvalid(f"{values.type} is no type for {self.kind}")
        return values.cast(self.exact)


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _unhex(text: pa.Array) -> pa.Array:
    """HEX digits back to bytes, all rows at once."""
    text = text.cast(pa.large_string())
    valid, offsets, data = text.buffers()
    bounds = np.frombuffer(offsets, np.int64)[text.offset : text.offset + len(text) + 1]
    raw = binascii.unhexlify(memoryview(data)[bounds[0] : bounds[-1]]) if data is not None and len(text) else b""
    mask = pc.invert(pc.is_valid(text)).to_numpy(zero_copy_only=False)
    values = pa.Array.from_buffers(
        pa.large_binary(), len(text), [None, pa.py_buffer((bounds - bounds[0]) // 2), pa.py_buffer(raw)]
    )
    return pc.if_else(pa.array(~mask), values, None) if valid is not None else values


def _microseconds(text: pa.Array) -> pa.Array:
    """TIME text such as -838:59:59.000001 as microseconds."""
    parts = pc.extract_regex(text, r"^(?P<sign>-?)(?P<h>\d+):(?P<m>\d\d):(?P<s>\d\d)\.?(?P<f>\d*)$")
    h, m, s = (pc.struct_field(parts, name).cast(pa.int64()) for name in "hms")
    fraction = pc.utf8_rpad(pc.struct_field(parts, "f"), 6, "0").cast(pa.int64())
    seconds = pc.add(pc.multiply(h, 3600), pc.add(pc.multiply(m, 60), s))
    size = pc.add(pc.multiply(seconds, 1_000_000), fraction)
    sized = pc.if_else(pc.equal(pc.struct_field(parts, "sign"), "-"), pc.negate(size), size)
    if sized.null_count != text.null_count:
        raise ValueError("a TIME value of the server could not be read")
    return sized


@contextmanager
def _exact_session(conn: Any) -> Iterator[None]:
    with conn.cursor() as cursor:
        cursor.execute("SELECT @@SESSION.time_zone, @@SESSION.sql_mode")
        before = cursor.fetchone()
        before = tuple(before.values()) if isinstance(before, dict) else before
        # PAD_CHAR_TO_FULL_LENGTH and the like would change what is printed.
        cursor.execute("SET SESSION time_zone = '+00:00', sql_mode = ''")
    try:
        yield
    finally:
        with conn.cursor() as cursor:
            cursor.execute("SET SESSION time_zone = %s, sql_mode = %s", before)


def described(conn: Any, database: str, table: str) -> list[_Column]:
    """The columns of a table."""
    return _describe(conn, database, table)[0]


def _describe(conn: Any, database: str, table: str) -> tuple[list[_Column], list[str]]:
    """Columns, and the names of the key's: the primary key, else the first NOT NULL unique one, else none."""
    with SSCursor(conn) as cursor:
        cursor.execute(
            "SELECT column_name, data_type, COALESCE(numeric_precision, 0), COALESCE(numeric_scale, 0), column_type "
            "FROM information_schema.columns WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position",
            (database, table),
        )
        columns = [_Column(n, k, int(p), int(s), "unsigned" in t) for n, k, p, s, t in cursor.fetchall()]
        cursor.execute(
            "SELECT index_name, column_name, nullable FROM information_schema.statistics "
            "WHERE table_schema = %s AND table_name = %s AND non_unique = 0 "
            "ORDER BY index_name <> 'PRIMARY', index_name, seq_in_index",
            (database, table),
        )
        keys: dict[str, list[tuple[str, str]]] = {}
        for index, name, nullable in cursor.fetchall():
            keys.setdefault(index, []).append((name, nullable))
    if not columns:
        raise ValueError(f"{database}.{table} is not in the source")
    for column in columns:
        if not (column.hexed or column.kind in _INTEGERS | _OTHERS):
            raise ValueError(f"{database}.{table}.{column.name}: type {column.kind} is not known here")
    usable = [[n for n, _ in parts] for parts in keys.values() if all(n and nullable != "YES" for n, nullable in parts)]
    return columns, usable[0] if usable else []


def _read_source(conn: Any, database: str, table: str, columns: list[_Column]) -> pa.Table:
    """The whole table in the exact form, by one statement and therefore of one moment."""
    floats = [c for c in columns if c.floating]
    texts = [c for c in columns if not c.floating]
    line = f"CAST(CONCAT_WS(',', {', '.join(c.select for c in texts)}) AS BINARY)"
    query = f"SELECT {', '.join([line, *(c.select for c in floats)])} FROM {_quoted(database)}.{_quoted(table)}"
    schema = pa.schema([(c.name, c.exact) for c in columns])
    names = [c.name for c in texts]
    parse = {
        "parse_options": pa.csv.ParseOptions(quote_char=False, ignore_empty_lines=False),
        "convert_options": pa.csv.ConvertOptions(
            column_types={n: pa.large_string() for n in names}, null_values=[_NULL], strings_can_be_null=True
        ),
    }
    batches: list[pa.RecordBatch] = []
    with _exact_session(conn), SSCursor(conn) as cursor:
        cursor.execute(query)
        while rows := cursor.fetchmany(_BATCH):
            # CONCAT_WS gives NULL for a row longer than max_allowed_packet: join() then raises.
            values = dict(zip([c.name for c in floats], [*zip(*rows, strict=True)][1:], strict=True))
            lines = b"\n".join(row[0] for row in rows) + b"\n"
            options = pa.csv.ReadOptions(column_names=names, block_size=max(1 << 20, 2 * max(len(r[0]) for r in rows)))
            text = pa.csv.read_csv(pa.BufferReader(lines), read_options=options, **parse)
            arrays = [
                pa.array(values[c.name], pa.float64()) if c.floating else c.of_text(_flat(text.column(c.name)))
                for c in columns
            ]
            batches.append(pa.record_batch(arrays, schema=schema))
    return pa.Table.from_batches(batches, schema=schema)


def below(place: Place, path: str) -> Place:
    """A place below another one."""
    return Path(place) / path if isinstance(place, str | Path) else place.under(path)


class Copy(Protocol):
    """A table of a sink, read by a program that knows deletion vectors and is not the project's own."""

    @property
    def reader(self) -> str:
        """The program and its version."""

    @property
    def columns(self) -> list[str]:
        """Names of all columns."""

    def read(self, columns: list[str]) -> pa.Table:
        """Read all rows."""

    def find_misplaced(self, derived: Collection[str]) -> list[str]:
        """What is wrong with the partitions, a line each.

        :param derived: columns that are a part of a date, as ``<column>_<unit>``.
        """

    @property
    def partition_columns(self) -> list[str]:
        """Columns by which the table is partitioned."""


@dataclass(frozen=True)
class _DeltaCopy:
    table: DeltaTable

    @property
    def reader(self) -> str:
        return f"delta-rs {version('deltalake')}"

    @property
    def columns(self) -> list[str]:
        return [field.name for field in self.table.schema().fields]

    @property
    def partition_columns(self) -> list[str]:
        return list(self.table.metadata().partition_columns)

    def read(self, columns: list[str]) -> pa.Table:
        schema = pa.schema(self.table.schema().to_arrow())
        found = pa.RecordBatchReader.from_stream(self.table.scan()).read_all().select(columns)
        return found.cast(pa.schema([schema.field(name) for name in columns]))

    def find_misplaced(self, derived: Collection[str]) -> list[str]:
        return _misplaced(self, derived)


@dataclass(frozen=True)
class _IcebergCopy:
    """Its partitions are hidden: no column has their values, and readers compute them."""

    table: IcebergTable

    @property
    def reader(self) -> str:
        return f"pyiceberg {version('pyiceberg')}"

    @property
    def columns(self) -> list[str]:
        return [field.name for field in self.table.schema().fields]

    @property
    def partition_columns(self) -> list[str]:
        return []

    def read(self, columns: list[str]) -> pa.Table:
        return self.table.scan(selected_fields=tuple(columns)).to_arrow().select(columns)

    def find_misplaced(self, derived: Collection[str]) -> list[str]:
        return []


def open_copy(place: Place) -> Copy | None:
    """Open the table there, if there is one."""
    if isinstance(place, CatalogPlace):
        table = place.load()
        return None if table is None else _IcebergCopy(table)
    address, options = (str(place), None) if isinstance(place, str | Path) else (place.uri(), dict(place.options))
    if not DeltaTable.is_deltatable(address, options):
        table = find_in_catalog(Path(place)) if isinstance(place, str | Path) else None
        return None if table is None else _IcebergCopy(table)
    return _DeltaCopy(DeltaTable(address, storage_options=options))


def _flat(column: pa.ChunkedArray) -> pa.Array:
    # One array holds at most 2 GiB of text unless its offsets are large.
    large = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
    return column.cast(large.get(column.type, column.type)).combine_chunks()


def _bits(column: pa.ChunkedArray) -> pa.Array:
    """Floats as their 64 bits, so that -0.0 is not 0.0; other columns as they are."""
    flat = column.combine_chunks()
    return flat.view(pa.int64()) if pa.types.is_floating(flat.type) else flat


def _keys(table: pa.Table, key: list[str]) -> pa.Array:
    """One binary value a row; the length before each part keeps ('a', 'bc') and ('ab', 'c') apart, and NULL and ''."""
    parts = []
    for name in key:
        column = _bits(table.column(name))
        if not pa.types.is_large_binary(column.type):
            column = column.cast(pa.large_string()).cast(pa.large_binary())
        size = pc.binary_length(column).cast(pa.string()).cast(pa.large_binary())
        parts += [pc.fill_null(size, b"NULL"), pc.fill_null(column, b"")]
    return pc.binary_join_element_wise(*parts, pa.scalar(b":", pa.large_binary()))


def compare(
    conn: Any,
    database: str,
    table: str,
    sink_table_path: Place,
    without: Collection[str] = (),
    kept: Kept | None = None,
    beside: Collection[str] = (),
    view: tuple[str, Sequence[str]] | None = None,
) -> Difference | None:
    """Compare one source table with its copy; ``None`` when they are the same.

    The source must not change between the sink's last commit and this call. Columns whose names begin with ``_cdc_``
    are the sink's own and are left out, as are parts of dates that it is partitioned by. Without a key, equal rows are
    counted. Of a table with partitions it is also checked that each file is in the folder of its partition.

    :param conn: a PyMySQL connection that may read the table; it has no other statement open.
    :param without: columns that are not copied. If those of the key are among them, equal rows are counted.
    :param kept: deleted rows that stay in the copy.
    :param beside: columns that the copy alone has, and that are not compared.
    :param view: name of a view of what the copy must be, and its key.
    :raises ValueError: for a table that is not there, or with a type that is not known here.
    """
    columns, key = _describe(conn, database, table if view is None else view[0])
    key = key if view is None else [*view[1]]
    columns = [c for c in columns if c.name not in without]
    key = key if not {*key} & {*without} else []
    found = Difference(f"{database}.{table}")
    copy = open_copy(sink_table_path)
    if copy is None:
        where = sink_table_path if isinstance(sink_table_path, str | Path) else sink_table_path.uri()
        found.examples.append(f"there is no table at {where}")
        found.missing = 1
        return found
    marked = [f"_cdc_{name}" for name in ("deleted", "op", "ts")] if kept and kept.marked else []
    derived = ({*copy.partition_columns} - {c.name for c in columns}) | {*beside}
    if misplaced := copy.find_misplaced(derived):
        found.different, found.examples = len(misplaced), misplaced[:EXAMPLES]
        return found
    present = [name for name in copy.columns if not name.startswith("_cdc_") and name not in derived]
    if present != [c.name for c in columns]:
        found.examples.append(f"columns: source {[c.name for c in columns]}, sink {present}")
        found.different = 1
        return found
    source = _read_source(conn, database, table if view is None else view[0], columns)
    raw = copy.read([*present, *marked])
    found.source_rows, found.sink_rows = len(source), len(raw)
    arrays = []
    for column in columns:
        try:
            arrays.append(column.of_sink(_flat(raw.column(column.name))))
        except pa.ArrowException as error:
            found.different += 1
            found.examples.append(f"column {column.name}: {error}")
    if found.different:
        return found
    sink = pa.table(arrays, names=present)
    if kept:
        source = _with_kept(conn, kept, table if view is None else view[0], columns, key, source, sink)
        if kept.marked:
            sink = sink.append_column("_cdc_deleted", raw["_cdc_deleted"])
            present.append("_cdc_deleted")
    meta = raw.select(marked)
    del raw, arrays

    if not key:
        return _counted(found, source, sink)
    source_keys, sink_keys = _keys(source, key), _keys(sink, key)
    here = pc.index_in(source_keys, sink_keys)
    there = pc.index_in(sink_keys, source_keys)
    show = _Show(found, source, sink, key)
    found.missing = here.null_count
    show.rows("missing", source, pc.indices_nonzero(pc.is_null(here)))
    found.extra = there.null_count
    show.rows("extra", sink, pc.indices_nonzero(pc.is_null(there)))
    counts = pc.value_counts(sink_keys)
    doubled = counts.filter(pc.greater(counts.field("counts"), 1)).field("values")
    found.doubled = len(doubled)
    show.rows("doubled", sink, pc.index_in(doubled.slice(0, EXAMPLES), sink_keys))

    # Every row of the sink that has a partner is compared, the second of a double too.
    partner = pc.indices_nonzero(pc.is_valid(there))
    origin = there.take(partner)
    unequal = None
    for name in present:
        a, b = _bits(source.column(name)).take(origin), _bits(sink.column(name)).take(partner)
        same = pc.or_(pc.fill_null(pc.equal(a, b), False), pc.and_(pc.is_null(a), pc.is_null(b)))
        unequal = pc.invert(same) if unequal is None else pc.or_(unequal, pc.invert(same))
    if kept and kept.marked:
        unequal = pc.or_(unequal, _wrongly_marked(meta.take(partner), source[MOMENT].take(origin)))
    different = pc.indices_nonzero(unequal)
    found.different = len(different)
    show.pairs(origin.take(different), partner.take(different))
    return found if found.missing or found.extra or found.doubled or found.different else None


def _with_kept(
    conn: Any, kept: Kept, table: str, columns: list[_Column], key: list[str], source: pa.Table, sink: pa.Table
) -> pa.Table:
    """The source's rows, and the last state of those that it has lost and the copy must, or may, still have."""
    about = [_Column(NUMBER, "bigint", 20, 0, True), _Column(MOMENT, "datetime", 0, 6, False)]
    gone = _read_source(conn, kept.database, table, [*about, *columns]).sort_by(NUMBER)
    keys = _keys(gone, key)
    last = np.unique(keys.to_numpy(zero_copy_only=False)[::-1], return_index=True)[1]
    numbers = np.sort(len(gone) - 1 - last)
    gone, keys = gone.take(pa.array(numbers)), keys.take(pa.array(numbers))
    must = pc.greater_equal(gone[MOMENT], pa.scalar(kept.since).cast(pa.timestamp("us")))
    here = pc.and_(
        pc.invert(pc.is_in(keys, _keys(source, key))),
        pc.or_(must, pa.chunked_array([pc.is_in(keys, _keys(sink, key))])),
    )
    gone = gone.drop_columns([NUMBER]).filter(here)
    parts = []
    for rows, deleted in ((source, False), (gone, True)):
        if MOMENT not in rows.column_names:
            rows = rows.add_column(0, MOMENT, pa.nulls(len(rows), pa.timestamp("us")))
        parts.append(rows.append_column("_cdc_deleted", pa.repeat(deleted, len(rows))))
    return pa.concat_tables(parts)


def _wrongly_marked(meta: pa.Table, moments: pa.ChunkedArray) -> pa.ChunkedArray:
    """Of rows, whether ``_cdc_op`` contradicts ``_cdc_deleted``, or ``_cdc_ts`` lies before the delete."""
    before = pc.less(meta["_cdc_ts"].cast(pa.timestamp("us")), moments)
    return pc.or_(pc.not_equal(pc.equal(meta["_cdc_op"], "d"), meta["_cdc_deleted"]), pc.fill_null(before, False))


def _misplaced(copy: _DeltaCopy, derived: Collection[str]) -> list[str]:
    """What is wrong with the partitions of a table, a line each. (That a row has the value of its file's partition is
    seen where it is compared with the source.)

    :param derived: columns that are a part of a date, as ``<column>_<unit>``.
    """
    if not (names := copy.partition_columns):
        return []
    wrong = []
    for file in pa.table(copy.table.get_add_actions(flatten=True)).to_pylist():
        folders = dict(part.split("=", 1) for part in unquote(file["path"]).split("/") if "=" in part)
        values = {n: None if folders[n] == "__HIVE_DEFAULT_PARTITION__" else unquote(folders[n]) for n in names}
        said = {n: None if (v := file[f"partition.{n}"]) is None else str(v) for n in names}
        if values != said:
            wrong.append(f"{file['path']} has rows of {said}")
    lengths = {"year": 4, "month": 7, "day": 10, "hour": 13}
    for name in derived:
        column, _, unit = name.rpartition("_")
        rows = copy.read([column, name])
        text = pc.utf8_slice_codeunits(pc.strftime(rows[column], "%Y-%m-%d-%H"), 0, lengths[unit])
        pairs = {*zip(text.to_pylist(), map(str, rows[name].to_pylist()), strict=True)}
        wrong += [f"{name} of a row of {a} is {b}" for a, b in pairs if str(a) != b]
    return wrong


def _counted(found: Difference, source: pa.Table, sink: pa.Table) -> Difference | None:
    sides = [Counter(_keys(side, side.column_names).to_pylist()) for side in (source, sink)]
    missing, extra = sides[0] - sides[1], sides[1] - sides[0]
    found.missing, found.extra = missing.total(), extra.total()
    for kind, rows in (("missing", missing), ("extra", extra)):
        found.examples += [f"{kind}: {count} of {_readable(row)}" for row, count in rows.most_common(EXAMPLES)]
    return found if missing or extra else None


@dataclass
class _Show:
    """Writes the examples of a difference."""

    found: Difference
    source: pa.Table
    sink: pa.Table
    key: list[str]

    def _name(self, row: dict[str, Any]) -> str:
        return ", ".join(f"{k}={_readable(row[k])}" for k in self.key)

    def rows(self, kind: str, table: pa.Table, positions: pa.Array) -> None:
        for row in table.select(self.key).take(positions.slice(0, EXAMPLES)).to_pylist():
            self.found.examples.append(f"{kind}: {self._name(row)}")

    def pairs(self, origin: pa.Array, partner: pa.Array) -> None:
        sources = self.source.take(origin.slice(0, EXAMPLES)).to_pylist()
        for a, b in zip(sources, self.sink.take(partner.slice(0, EXAMPLES)).to_pylist(), strict=True):
            other = [n for n in a if n in b and repr(a[n]) != repr(b[n])]
            values = [f"{n}: source {_readable(a[n])}, sink {_readable(b[n])}" for n in other]
            values = values or ["what deleted it, or when"]
            self.found.examples.append(f"different: {self._name(a)}: {'; '.join(values)}")


def _readable(value: Any) -> str:
    if isinstance(value, bytes):
        try:
            return repr(value.decode())
        except UnicodeDecodeError:
            return f"x'{value.hex()}'"
    return str(value)


def _as_named(database: str, table: str) -> str:
    return f"{database}/{table}"


def compare_database(
    server: MySQLServer, database: str, sink_path: Place, tables: Iterable[str] | None = None, **how: Any
) -> list[Difference]:
    """The same as :func:`compare_all`, by a connection of its own."""
    with closing(server.connect()) as connection:
        return compare_all(connection, database, sink_path, tables, **how)


def compare_all(
    conn: Any,
    database: str,
    sink_path: Place,
    tables: Iterable[str] | None = None,
    *,
    folder: Callable[[str, str], str] = _as_named,
    kept: Mapping[str, Kept] | None = None,
    views: Mapping[str, tuple[str, Sequence[str]]] | None = None,
) -> list[Difference]:
    """Compare tables of a database (all of its base tables by default) with ``<sink_path>/<database>/<table>``.

    :param folder: where a table is below ``sink_path``, if elsewhere.
    :param kept: tables in whose copies deleted rows stay.
    :param views: of tables whose copies are something else: name of the view of that, and its key.
    :return: the differences; empty when everything is the same. A sink table that does not exist is a difference.
    """
    if tables is None:
        with SSCursor(conn) as cursor:
            cursor.execute(
                "SELECT table_name FROM information_schema.tables "
                "WHERE table_schema = %s AND table_type = 'BASE TABLE' ORDER BY table_name",
                (database,),
            )
            tables = [name for (name,) in cursor.fetchall()]
    found: list[Difference] = []
    for table in tables:
        place = below(sink_path, folder(database, table))
        difference = compare(conn, database, table, place, kept=(kept or {}).get(table), view=(views or {}).get(table))
        if difference:
            found.append(difference)
    return found


def check_ledger(
    sink_path: Place,
    database: str = "shop",
    table: str = "ledger",
    folder: Callable[[str, str], str] = _as_named,
) -> list[str]:
    """Check the sink's ledger by arithmetic alone: each writer's n must be 1, 2, .. max, each once.

    :return: one line for each gap or double; empty when there is none.
    """
    copy = open_copy(below(sink_path, folder(database, table)))
    if copy is None:
        return ["there is no ledger"]
    rows = copy.read(["writer", "n"]).sort_by([("writer", "ascending"), ("n", "ascending")])
    writers, numbers = (rows.column(name).to_numpy() for name in ("writer", "n"))
    problems = []
    for writer in np.unique(writers):
        n = numbers[writers == writer]
        before = np.concatenate(([0], n[:-1]))
        problems += [f"writer {writer}: {k} is doubled" for k in n[n == before].tolist()[:EXAMPLES]]
        gaps = np.flatnonzero(n > before + 1)[:EXAMPLES]
        problems += [f"writer {writer}: {before[g] + 1} to {n[g] - 1} are missing" for g in gaps]
        problems += [f"writer {writer}: {k} is below 1" for k in n[n < 1].tolist()[:EXAMPLES]]
    return problems
