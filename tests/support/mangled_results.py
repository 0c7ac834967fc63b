"""Rows of the binary protocol made, mangled and read in a process of its own, which may crash.

``python -m tests.support.mangled_results mangle SEED``; the other commands serve the tests of where machine code is
kept.
"""

from __future__ import annotations

import collections
import ctypes
import mmap
import random
import struct
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from airflow_provider_cdc.mysql.resultset.columns import ColumnBuffers

#: (type on the wire, flags, character set, decimals, Arrow type)
COLUMNS: tuple[tuple[int, int, int, int, pa.DataType], ...] = (
    (1, 0, 63, 0, pa.int8()),
    (1, 32, 63, 0, pa.int16()),
    (2, 0, 63, 0, pa.int16()),
    (2, 32, 63, 0, pa.int32()),
    (3, 0, 63, 0, pa.int32()),
    (3, 32, 63, 0, pa.int64()),
    (8, 0, 63, 0, pa.int64()),
    (8, 32, 63, 0, pa.decimal128(20, 0)),
    (4, 0, 63, 31, pa.float32()),
    (5, 0, 63, 31, pa.float64()),
    (10, 0, 63, 0, pa.date32()),
    (12, 0, 63, 6, pa.timestamp("us")),
    (11, 0, 63, 6, pa.int64()),
    (246, 0, 63, 3, pa.decimal128(38, 3)),
    (253, 0, 255, 0, pa.string()),
    (252, 0, 63, 0, pa.binary()),
)
_WIDTHS = {0: "b", 1: "B", 2: "h", 3: "H", 4: "i", 5: "I", 6: "q", 7: "Q", 8: "f", 9: "d"}


def _length(n: int) -> bytes:
    if n < 251:
        return bytes([n])
    return b"\xfc" + struct.pack("<H", n) if n < 1 << 16 else b"\xfd" + struct.pack("<I", n)[:3]


def _value(column: int, pick: random.Random) -> bytes:
    if column in _WIDTHS:
        return (
            pick.randbytes(struct.calcsize("<" + _WIDTHS[column]))
            if column < 8
            else struct.pack("<" + _WIDTHS[column], pick.randrange(-1000, 1000) / 8)
        )
    day = struct.pack("<HBB", pick.randrange(1, 10_000), pick.randrange(1, 13), pick.randrange(1, 29))
    clock = bytes([pick.randrange(24), pick.randrange(60), pick.randrange(60)])
    micros = struct.pack("<I", pick.randrange(1_000_000))
    if column == 10:
        return b"\4" + day
    if column == 11:
        return pick.choice([b"\4" + day, b"\7" + day + clock, b"\13" + day + clock + micros])
    if column == 12:
        past = bytes([pick.randrange(2)]) + struct.pack("<I", pick.randrange(34))
        return pick.choice([b"\0", b"\10" + past + clock, b"\14" + past + clock + micros])
    if column == 13:
        digits = str(pick.randrange(10 ** pick.randrange(1, 35)))
        text = f"{pick.choice(['', '-'])}{digits}.{pick.randrange(1000):03d}".encode()
        return _length(len(text)) + text
    text = pick.choice(["", "a", "é🎁" * 3, "x" * pick.randrange(400), "y" * 70_000]).encode()
    return _length(len(text)) + text


def rows_of_all_kinds(pick: random.Random) -> list[bytes]:
    """Payloads of rows with a value, or NULL, in each column."""
    found = []
    for _ in range(20):
        nulls = pick.choice([0, pick.getrandbits(16)]) << 2
        values = [b"" if nulls >> (i + 2) & 1 else _value(i, pick) for i in range(len(COLUMNS))]
        found.append(b"\0" + nulls.to_bytes(3, "little") + b"".join(values))
    return found


class Guarded:
    """Memory whose last byte stands right before a page that must not be touched."""

    def __init__(self, size: int) -> None:
        import numpy as np

        page = mmap.PAGESIZE
        whole = (size + page - 1) // page * page
        self._map = mmap.mmap(-1, whole + page)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.mprotect(ctypes.c_void_p(address + whole), ctypes.c_size_t(page), 0) == 0
        self.bytes: Any = np.frombuffer(self._map, np.uint8, whole)

    def put(self, content: bytes) -> Any:
        """The content, followed by nothing but the slack that the machine code asks for."""
        from airflow_provider_cdc.native.primitives import PADDING

        size = len(content) + PADDING
        place = self.bytes[len(self.bytes) - size :]
        place[: len(content)] = memoryview(content)
        return place


def _space() -> ColumnBuffers:
    from airflow_provider_cdc.mysql.resultset.columns import ColumnBuffers, kind_and_scale

    kinds = [kind_and_scale(code, flags, charset, scale, wanted) for code, flags, charset, scale, wanted in COLUMNS]
    assert None not in kinds
    return ColumnBuffers(pa.schema([(str(i), c[-1]) for i, c in enumerate(COLUMNS)]), tuple(k for k in kinds if k))


def _read(data: Any, size: int, row: int, space: ColumnBuffers, state: Any) -> int:
    from airflow_provider_cdc.mysql.resultset import row_kernel

    while True:
        why = int(row_kernel.read_row(data, 0, size, space.column_lines, row, state))
        if why != row_kernel.NEED_ROOM:
            return why
        assert (
            state[row_kernel.WANTED_BYTES]
            <= size + space.column_lines[state[row_kernel.FAILED_COLUMN], row_kernel.CAPACITY]
        )
        space.grow_column(int(state[row_kernel.FAILED_COLUMN]), int(state[row_kernel.WANTED_BYTES]))


def mangle(seed: int, tries: int = 20_000) -> None:
    """Read rows that are cut off, or have bytes changed, put in or taken out."""
    import numpy as np

    from airflow_provider_cdc.mysql.resultset import row_kernel

    pick, memory, state = random.Random(seed), Guarded(1 << 18), np.zeros(row_kernel.STATE_SIZE, np.int64)
    rows, space, found = rows_of_all_kinds(pick), _space(), collections.Counter[str]()
    for n in range(tries):
        row = bytearray(pick.choice(rows))
        if len(row) > 2000 and n % 50:
            continue
        for _ in range(pick.randrange(1, 4)):
            at = pick.randrange(min(len(row), 300)) if row else 0
            what = pick.randrange(4)
            if what == 0:
                del row[at:]
            elif what == 1 and row:
                row[at] = pick.choice([0, 1, 250, 251, 252, 253, 254, 255, pick.randrange(256)])
            elif what == 2:
                row[at:at] = pick.randbytes(pick.randrange(1, 9))
            else:
                del row[at : at + pick.randrange(1, 9)]
        why = _read(memory.put(bytes(row)), len(row), 0, space, state)
        found["read" if why == row_kernel.ROW_READ else "refused"] += 1
        # The same as a packet: whatever its header says, nothing behind the end is touched.
        size = pick.choice([len(row), len(row), 0, pick.randrange(1 << 24), 0xFFFFFF])
        packet = struct.pack("<I", size)[:3] + bytes([pick.choice([0, 0, 0, 7])]) + row
        state[:] = 0
        why = row_kernel.read_rows(memory.put(packet), len(packet), space.column_lines, space.row_capacity, state)
        assert 0 <= state[row_kernel.DATA_AT] <= len(packet) and state[row_kernel.ROW] <= 1, why
    for name, count in found.items():
        print(name, count)


def read(seed: int) -> None:
    """Read rows, and compare them with what struct makes of them."""
    import numpy as np

    from airflow_provider_cdc.mysql.resultset import row_kernel

    pick, state, space = random.Random(seed), np.zeros(row_kernel.STATE_SIZE, np.int64), _space()
    rows = rows_of_all_kinds(pick)
    memory = Guarded(1 << 18)
    for n, row in enumerate(rows):
        assert _read(memory.put(row), len(row), n, space, state) == row_kernel.ROW_READ
    batch = space.copy_batch(len(rows))
    batch.validate(full=True)
    for n, row in enumerate(rows):
        at, nulls = 4, int.from_bytes(row[1:4], "little") >> 2
        for i, kind in _WIDTHS.items():
            expected = None
            if not nulls >> i & 1:
                (expected,) = struct.unpack_from("<" + kind, row, at)
                at += struct.calcsize("<" + kind)
            assert batch[i][n].as_py() == expected, (n, i)
    print("equal")


def main() -> None:
    command, *rest = sys.argv[1:]
    if command == "folder":
        from airflow_provider_cdc.native.compile import cache_folder

        print(cache_folder(Path(__file__)))
    elif command == "hits":
        from airflow_provider_cdc.mysql.resultset import row_kernel

        made: Any
        for made in (row_kernel.read_row, row_kernel.read_rows):
            print(sum(made.stats.cache_hits.values()), sum(made.stats.cache_misses.values()))
    else:
        {"mangle": mangle, "read": read}[command](int(rest[0]))


if __name__ == "__main__":
    main()
