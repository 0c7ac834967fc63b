"""Row images of all kinds made, mangled and read in a process of its own, which may crash.

``python -m tests.support.binlog.mangled mangle|read SEED``
"""

from __future__ import annotations

import collections
import contextlib
import random
import struct
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from airflow_provider_cdc.model.errors import TerminalError
from airflow_provider_cdc.model.schema import Column, TableSchema
from airflow_provider_cdc.mysql.binlog.events import wire_types as wire
from airflow_provider_cdc.mysql.binlog.events.rows_event import RowsEvent
from airflow_provider_cdc.mysql.binlog.events.table_map import OLD_TEMPORAL_TYPES, TableMap
from airflow_provider_cdc.mysql.binlog.events.wire_types import WireColumn
from airflow_provider_cdc.mysql.binlog.plain.values import OLD_TEMPORAL_SIZES, decimal_size
from airflow_provider_cdc.mysql.client.charsets import UNICODE_DECODERS
from tests.support.binlog.row_decoder import decode_rows
from tests.support.mangled_results import Guarded

if TYPE_CHECKING:
    from airflow_provider_cdc.mysql.binlog.walk.change_buffer import ChangeBuffer

Make = Callable[[random.Random], bytes]


def _bytes(size: int) -> Make:
    return lambda pick: pick.choice([bytes(size), b"\xff" * size, pick.randbytes(size)])


def _one_of(values: list[bytes]) -> Make:
    return lambda pick: pick.choice(values)


def _digits(precision: int, scale: int) -> Make:
    def make(pick: random.Random) -> bytes:
        whole, sizes = precision - scale, (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
        groups = [whole % 9, *[9] * (whole // 9), *[9] * (scale // 9), scale % 9]
        parts = [pick.choice([0, 10**g - 1, pick.randrange(10**g)]).to_bytes(sizes[g], "big") for g in groups if g]
        raw = bytearray(b"".join(parts))
        raw[0] ^= 0x80
        return bytes(byte ^ 0xFF for byte in raw) if pick.randrange(2) and any(parts) else bytes(raw)

    return make


def _text(prefix: int, longest: int, words: tuple[bytes, ...] = ()) -> Make:
    def make(pick: random.Random) -> bytes:
        some = [b"", b"a", "é🎁".encode(), b"x" * longest, b"y" * pick.randrange(longest + 1), *words]
        value = pick.choice([v for v in some if len(v) <= longest])
        return len(value).to_bytes(prefix, "little") + value

    return make


def _moment(pick: random.Random) -> int:
    day = (pick.randrange(1, 10_000) * 13 + pick.randrange(1, 13)) << 5 | pick.randrange(1, 29)
    return day << 17 | pick.randrange(24) << 12 | pick.randrange(60) << 6 | pick.randrange(60)


def _fraction(pick: random.Random, size: int) -> bytes:
    return pick.choice([0, 1, 100**size - 1]).to_bytes(size, "big") if size else b""


def _datetime(size: int) -> Make:
    return lambda pick: (_moment(pick) + (1 << 39)).to_bytes(5, "big") + _fraction(pick, size)


def _timestamp(size: int) -> Make:
    return lambda pick: pick.randrange(1, 1 << 32).to_bytes(4, "big") + _fraction(pick, size)


def _time(size: int) -> Make:
    def make(pick: random.Random) -> bytes:
        whole = pick.randrange(839) << 12 | pick.randrange(60) << 6 | pick.randrange(60)
        number = whole << 8 * size | int.from_bytes(_fraction(pick, size), "big")
        return ((0x80_0000 << 8 * size) + pick.choice([number, -number])).to_bytes(3 + size, "big")

    return make


def _date(pick: random.Random) -> bytes:
    return (pick.randrange(1, 10_000) << 9 | pick.randrange(1, 13) << 5 | pick.randrange(1, 29)).to_bytes(3, "little")


def _old(kind: str, fsp: int) -> Make:
    """Values in the format of MariaDB 5.3, made in another way than they are read."""

    def make(pick: random.Random) -> bytes:
        size, part = OLD_TEMPORAL_SIZES[kind][fsp], pick.choice([0, 1, 10**fsp - 1]) if fsp else 0
        clock = pick.randrange(24), pick.randrange(60), pick.randrange(60)
        if kind == "timestamp":
            seconds = pick.randrange(1, 1 << 32).to_bytes(4, "big" if fsp else "little")
            return seconds + bytes(part.to_bytes(size - 4, "big"))
        if kind == "datetime":
            day = pick.randrange(1, 10_000), pick.randrange(1, 13), pick.randrange(1, 29)
            if not fsp:
                return int("{:04d}{:02d}{:02d}{:02d}{:02d}{:02d}".format(*day, *clock)).to_bytes(8, "little")
            days = (day[0] * 13 + day[1]) * 32 + day[2]
            whole = ((days * 24 + clock[0]) * 60 + clock[1]) * 60 + clock[2]
            return int(whole * 10**fsp + part).to_bytes(size, "big")
        hours, sign = pick.randrange(838), pick.choice([1, -1])
        if not fsp:
            number = sign * (hours * 10_000 + clock[1] * 100 + clock[2])
            return number.to_bytes(3, "little", signed=True)
        number = (hours * 3600 + clock[1] * 60 + clock[2]) * 10**fsp + part
        return int(3_020_400 * 10**fsp + sign * number).to_bytes(size, "big")

    return make


def _vectors(prefix: int) -> list[bytes]:
    return [(4 * n).to_bytes(prefix, "little") + struct.pack(f"<{n}f", *[1.5] * n) for n in (0, 1, 5)]


def _column(name: str, kind: str, full: str = "", **more: Any) -> Column:
    return Column(name, kind, full or kind, True, charset=more.pop("charset", "utf8mb4"), **more)


def columns() -> list[tuple[Column, WireColumn, Make]]:
    """(column, its layout, what makes values of it)."""
    found: list[tuple[Column, WireColumn, Make]] = []

    def add(column: Column, layout: WireColumn, make: Make) -> None:
        found.append((column, layout, make))

    integers = {"tinyint": wire.TINY, "smallint": wire.SHORT, "mediumint": wire.INT24, "int": wire.LONG}
    sizes = {"tinyint": 1, "smallint": 2, "mediumint": 3, "int": 4, "bigint": 8}
    for kind, code in {**integers, "bigint": wire.LONGLONG}.items():
        add(_column(f"{kind}_s", kind), WireColumn(code), _bytes(sizes[kind]))
        add(_column(f"{kind}_u", kind, f"{kind} unsigned"), WireColumn(code), _bytes(sizes[kind]))
    for precision, scale in ((5, 2), (9, 9), (18, 0), (38, 19), (38, 0), (39, 3), (65, 30)):
        column = _column(f"decimal_{precision}_{scale}", "decimal", precision=precision, scale=scale)
        layout = WireColumn(wire.NEWDECIMAL, precision=precision, scale=scale)
        add(column, layout, _digits(precision, scale))
        assert len(_digits(precision, scale)(random.Random(1))) == decimal_size(precision, scale)
    numbers = (0.0, -0.0, 1.5, -1e30, 1e-30)
    add(_column("float", "float"), WireColumn(wire.FLOAT, 4), lambda p: struct.pack("<f", p.choice(numbers)))
    add(_column("double", "double"), WireColumn(wire.DOUBLE, 8), lambda p: struct.pack("<d", p.choice(numbers)))
    add(_column("year", "year"), WireColumn(wire.YEAR), _bytes(1))
    add(_column("date", "date"), WireColumn(wire.DATE), _date)
    for fsp in (0, 1, 2, 3, 6):
        size = (fsp + 1) // 2
        add(_column(f"datetime{fsp}", "datetime", fsp=fsp), WireColumn(wire.DATETIME2, fsp), _datetime(size))
        add(_column(f"timestamp{fsp}", "timestamp", fsp=fsp), WireColumn(wire.TIMESTAMP2, fsp), _timestamp(size))
        add(_column(f"time{fsp}", "time", fsp=fsp), WireColumn(wire.TIME2, fsp), _time(size))
    add(_column("short_year", "year", "year(2)"), WireColumn(wire.YEAR), _bytes(1))
    for fsp in range(7):
        for kind, code in OLD_TEMPORAL_TYPES.items():
            column = _column(f"old_{kind}{fsp}", kind, f"{kind} /* mariadb-5.3 */", fsp=fsp)
            add(column, WireColumn(code), _old(kind, fsp))
    add(_column("mariadb_vector", "vector", charset=None), WireColumn(wire.VARCHAR, 300), _one_of(_vectors(2)))
    add(_column("char", "char", octets=40), WireColumn(wire.STRING, 40), _text(1, 40))
    add(_column("varchar", "varchar", octets=1200), WireColumn(wire.VARCHAR, 1200), _text(2, 1200))
    add(_column("binary", "binary", charset=None), WireColumn(wire.STRING, 16), _text(1, 16, (b"\0a", b"\xff")))
    add(_column("varbinary", "varbinary", charset=None), WireColumn(wire.VARCHAR, 300), _text(2, 300, (b"\xff\0",)))
    for prefix, kind in enumerate(("tinytext", "text", "mediumtext", "longtext"), 1):
        add(_column(kind, kind), WireColumn(wire.BLOB, prefix), _text(prefix, 200))
    add(_column("blob", "blob", charset=None), WireColumn(wire.BLOB, 2), _text(2, 200, (b"\xff\0",)))
    few, many = ("a", "é", ""), tuple(f"m{i}" for i in range(300))
    add(_column("few", "enum", members=few), WireColumn(wire.ENUM, 1), lambda p: bytes([p.randrange(4)]))
    add(_column("many", "enum", members=many), WireColumn(wire.ENUM, 2), lambda p: struct.pack("<H", p.randrange(301)))
    for size in (1, 3, 8):
        flags = tuple(f"s{i}" for i in range(8 * size - (size < 8)))
        most = (1 << len(flags)) - 1
        numbers_of = [(n & most).to_bytes(size, "little") for n in (0, 1, most, 0b101, 1 << len(flags) - 1)]
        add(_column(f"set{size}", "set", members=flags), WireColumn(wire.SET, size), _one_of(numbers_of))
    for bits in (1, 10, 64):
        layout = WireColumn(wire.BIT, bits % 8 | bits // 8 << 8)
        add(_column(f"bit{bits}", "bit", precision=bits), layout, _bytes((bits + 7) // 8))
    add(_column("geometry", "geometry", charset=None), WireColumn(wire.GEOMETRY, 4), _text(4, 60, (b"\0\xff",)))
    add(_column("vector", "vector", charset=None), WireColumn(wire.VECTOR, 4), _one_of(_vectors(4)))
    wide = [b"", "aé".encode("utf-16-be"), "🎁".encode("utf-16-be")]
    sized_wide = [len(w).to_bytes(2, "little") + w for w in wide]
    column = _column("utf16", "varchar", octets=400, charset="utf16")
    add(column, WireColumn(wire.VARCHAR, 400), _one_of(sized_wide))
    documents = (b"", b"\4\0", b"\5\xff\xff", b"\x0c\1a", b"\0\1\0\x0c\0\x0b\0\1\0\5\2\0a")
    sized = [len(d).to_bytes(4, "little") + d for d in documents]
    add(_column("json", "json"), WireColumn(wire.JSON, 4), _one_of(sized))
    return found


def table_and_rows(pick: random.Random, rows: int) -> tuple[TableMap, list[bytes]]:
    """A table with a column of each kind, and images of rows with a value or NULL in each."""
    listed = columns()
    schema = TableSchema("d", "t", tuple(c for c, _, _ in listed), ("int_s", "char"))
    count = len(listed)
    images = []
    for _ in range(rows):
        nulls = pick.choice([0, 0, pick.getrandbits(count)])
        values = [b"" if nulls >> i & 1 else make(pick) for i, (_, _, make) in enumerate(listed)]
        images.append(nulls.to_bytes((count + 7) // 8, "little") + b"".join(values))
    return TableMap(schema, tuple(w for _, w, _ in listed), {}, "here"), images


def some_columns(
    pick: random.Random, images: list[bytes], makes: list[Make], key: set[int]
) -> tuple[list[bytes], bytes]:
    """Images of some columns only, always those of the key, and the bitmap of these."""
    having = [i for i in range(len(makes)) if i in key or pick.randrange(3)]
    found = []
    for _ in images:
        nulls = pick.choice([0, pick.getrandbits(len(having))])
        values = [b"" if nulls >> bit & 1 else makes[i](pick) for bit, i in enumerate(having)]
        found.append(nulls.to_bytes((len(having) + 7) // 8, "little") + b"".join(values))
    return found, sum(1 << i for i in having).to_bytes((len(makes) + 7) // 8, "little")


def _plain(
    table: TableMap, kind: Literal["insert", "update", "delete"], data: bytes, present: bytes, kept: list[int]
) -> list[tuple[str, Any]] | None:
    """Rows with the columns that are kept only: nobody looks at values of the others."""
    from tests.support.binlog.reading import as_arrow, flat

    try:
        found = flat(kind, decode_rows(RowsEvent(table, kind, memoryview(data), "here", present)))
    except TerminalError:
        return None
    schema = table.schema.replace(columns=tuple(table.schema.columns[i] for i in kept))
    images = as_arrow(schema, [tuple(image[i] for i in kept) for _, image in found])
    return list(zip((op for op, _ in found), images, strict=True))


def _compiled(
    space: ChangeBuffer, kind: Literal["insert", "update", "delete"], data: bytes, present: bytes, memory: Guarded
) -> list[tuple[str, Any]] | int | None:
    """The rows; of a space that only counts them, how many; ``None`` for rows that were refused."""
    import numpy as np

    from airflow_provider_cdc.model.unsupported_values import UnsupportedValue
    from airflow_provider_cdc.mysql.binlog.kernels import row_kernel as kernel
    from tests.support.binlog.reading import rows_of

    change = ("insert", "update", "delete").index(kind)
    state, placed, at = np.zeros(kernel.STATE_SIZE, np.int64), memory.put(present + data), len(present)
    end, where = at + len(data), 0 if present else -1
    space.truncate(0)
    while True:
        line = space.table_line.reshape(1, -1)
        why = kernel.read_rows(placed, at, end, 0, change, where, 1, 7, 9, line, space.column_lines, state)
        at = int(state[kernel.NEXT_IMAGE])
        if why == kernel.NEED_ROWS:
            space.grow_rows()
        elif why == kernel.NEED_ROOM:
            assert state[kernel.WANTED_SIZE] < 1 << 28
            space.grow_column(int(state[kernel.FAILED_COLUMN]), int(state[kernel.WANTED_SIZE]))
        else:
            break
    if why != kernel.DONE:
        return None
    if space.table_line[kernel.ROW_CAPACITY] < 0:
        return int(space.row_count)
    try:
        batch = space.take_batch()
    except UnsupportedValue:
        return None
    batch.validate(full=True)
    names = space.table_map.schema.column_schema.names
    return list(zip(batch["_cdc_op"].to_pylist(), rows_of(batch.select(names)), strict=True))


def run(seed: int, tries: int, mangle: bool) -> dict[str, int]:
    """Read changes by both decoders: what one says the other says, or the machine code stops."""
    from airflow_provider_cdc.mysql.binlog.walk.change_buffer import ChangeBuffer

    pick, memory = random.Random(seed), Guarded(1 << 17)
    table, images = table_and_rows(pick, 60)
    # The same table once more, of which every third column is left out.
    names = [c.name for c in table.schema.columns]
    left_out = tuple(name for name in names[2::3] if name not in table.schema.key)
    part = replace(table, schema=table.schema.replace(excluded=left_out))
    whole, less, counting = (
        ChangeBuffer(table, UNICODE_DECODERS),
        ChangeBuffer(part, UNICODE_DECODERS),
        ChangeBuffer(table, UNICODE_DECODERS, count_only=True),
    )
    kept = [i for i, name in enumerate(names) if name not in left_out]
    makes = [make for _, _, make in columns()]
    key = {names.index(name) for name in table.schema.key}
    found = collections.Counter[str]()
    kinds: tuple[Literal["insert", "update", "delete"], ...] = ("insert", "update", "delete")
    for n in range(tries):
        kind = pick.choice(kinds)
        data, present = bytearray(b"".join(pick.sample(images, 2 * pick.randrange(1, 3)))), b""
        if pick.randrange(3) == 0:  # images that have not all columns; of an update the new ones have others
            parts = [some_columns(pick, [b"", b""], makes, key) for _ in range(2 if kind == "update" else 1)]
            data = bytearray(b"".join(b"".join(same) for same in zip(*(images for images, _ in parts), strict=True)))
            present = b"".join(bitmap for _, bitmap in parts)
        for _ in range(pick.randrange(1, 4) if mangle else 0):
            at, what = pick.randrange(len(data) + 1), pick.randrange(6)
            if what == 0:
                del data[at:]
            elif what == 1:
                data[at:at] = pick.randbytes(pick.randrange(1, 9))
            elif what == 2:
                del data[at : at + pick.randrange(1, 9)]
            elif at < len(data):
                data[at] = pick.choice([0, 1, 0x7F, 0x80, 251, 254, 255, pick.randrange(256)])
        space = pick.choice([whole, less, counting])
        made = _compiled(space, kind, bytes(data), present, memory)
        if made is not None and space is whole:
            assert repr(made) == repr(_plain(table, kind, bytes(data), present, list(range(len(names))))), (seed, n)
        elif made is not None and space is counting:
            with contextlib.suppress(TerminalError):
                rows = decode_rows(RowsEvent(table, kind, memoryview(data), "here", present))
                assert made == len(rows), (seed, n)
        elif made is not None and (expected := _plain(table, kind, bytes(data), present, kept)) is not None:
            assert repr(made) == repr(expected), (seed, n)
        assert mangle or made is not None, (seed, n)
        found["refused" if made is None else "read"] += 1
    return dict(found)


if __name__ == "__main__":
    print(run(int(sys.argv[2]), 1500, sys.argv[1] == "mangle"))
