"""Mutated events of a recording through both roads, in a process of its own, which may crash.

``python -m tests.support.binlog.fuzz RECORDING SEED TRIES``
"""

from __future__ import annotations

import collections
import pickle
import random
import sys
from pathlib import Path

import pyarrow as pa
import zstandard

from airflow_provider_cdc.model.errors import CdcError
from tests.support.binlog.plain import by_plain, by_walker
from tests.support.binlog.reading import Captured, rows_of
from tests.support.binlog.replay import Recording, Replay, sealed

#: Table maps, row events, GTIDs, queries, ends of transactions.
_MUTATED = (2, 16, 19, 30, 31, 32, 33, 40, 42)
#: What a payload begins with whose events are not compressed: compression 255, a packed number of three bytes.
STORED = b"\x02\x03\xfc\xff\x00\x00"
_BYTES = (0, 1, 0x7F, 0x80, 250, 251, 252, 253, 254, 255)


def mutated(packet: bytes, pick: random.Random) -> bytes:
    """An event with bytes changed, put in or taken out, and its length and checksum put right."""
    event = bytearray(packet[1:-4])
    is_open = packet[5] == 40 and pick.randrange(8)
    if is_open:
        event[19:] = stored(unpacked(bytes(event[19:])))  # so that the damage is inside
    for _ in range(pick.randrange(1, 4)):
        at, what = pick.randrange(19, len(event) + 1), pick.randrange(5)
        if what == 0:
            event[at:at] = pick.randbytes(pick.randrange(1, 5))
        elif what == 1:
            del event[at : at + pick.randrange(1, 5)]
        elif at < len(event):
            event[at] = pick.choice([*_BYTES, pick.randrange(256), event[at] ^ 1 << pick.randrange(8)])
    if is_open and bytes(event[19:]).startswith(STORED) and pick.randrange(3):
        event[19:] = packed(bytes(event[19 + len(STORED) :]))
    if pick.randrange(10):
        event[9:13] = (len(event) + 4).to_bytes(4, "little")
        grown = len(event) + 5 - len(packet)
        end = int.from_bytes(event[13:17], "little") + grown
        if grown and pick.randrange(10):
            event[13:17] = (end % (1 << 32)).to_bytes(4, "little")
    return sealed(bytes(event))


def unpacked(body: bytes) -> bytes:
    """The events inside of a compressed transaction, by its body."""
    frame = body[body.index(b"\x28\xb5\x2f\xfd") :]
    return zstandard.ZstdDecompressor().decompressobj().decompress(frame)


def stored(events: bytes) -> bytes:
    """The body of a compressed transaction whose events are not compressed."""
    return STORED + events


def packed(events: bytes, frame: bytes | None = None, claimed: int | None = None) -> bytes:
    """The body of a compressed transaction as a server writes it, but for what is given."""
    frame = zstandard.compress(events) if frame is None else frame
    sizes = (len(events) if claimed is None else claimed, len(frame))
    fields = b"".join(
        bytes([kind, 9, 254]) + size.to_bytes(8, "little") for kind, size in zip((3, 1), sizes, strict=True)
    )
    return b"\x02\x01\x00" + fields + b"\x00" + frame


def with_body(recording: Recording, number: int, body: bytes) -> Recording:
    """The recording with another body of one event, and all positions put right."""
    packets = list(recording.packets())
    event = bytearray(packets[number][1:-4])
    event[19:] = body
    event[9:13] = (len(event) + 4).to_bytes(4, "little")
    grown = len(event) + 5 - len(packets[number])
    event[13:17] = (int.from_bytes(event[13:17], "little") + grown).to_bytes(4, "little")
    listed = [*packets[:number], sealed(bytes(event)), *packets[number + 1 :]]
    return recording.changed(shifted(listed, number, grown))


def shifted(packets: list[bytes], number: int, by: int) -> list[bytes]:
    """The packets behind an event that has become longer, at the positions that they have then."""
    found = packets[: number + 1]
    for packet in packets[number + 1 :]:
        event, moved = bytearray(packet[1:-4]), len(packet) > 23 and packet[5] != 4
        if not moved or not by:
            found += packets[len(found) :]
            break
        end = int.from_bytes(event[13:17], "little") + by
        event[13:17] = (end % (1 << 32)).to_bytes(4, "little")
        found.append(sealed(bytes(event)))
    return found


def fuzz(recording: Recording, captured: Captured, seed: int, tries: int) -> dict[str, int]:
    """(what became of them: how often)."""
    pick, found = random.Random(seed), collections.Counter[str]()
    packets = list(recording.packets())
    numbers = [n for n, p in enumerate(packets) if len(p) > 23 and p[5] in _MUTATED]
    for n in range(tries):
        number = pick.choice(numbers)
        packet = mutated(packets[number], pick)
        listed = [*packets[:number], packet, *packets[number + 1 :]]
        other = recording.changed(shifted(listed, number, len(packet) - len(packets[number])))
        both = bool(pick.randrange(2))
        try:
            sizes = random.Random(seed + n)
            replay = Replay(other, lambda sizes=sizes: sizes.choice([1, 7, 100, 5000, 1 << 20]))  # type: ignore[misc]
            made = by_walker(other, captured, replay, both)
        except CdcError:
            found["stopped"] += 1
            continue
        try:
            expected = by_plain(other, captured, True)
        except (CdcError, pa.ArrowInvalid) as error:  # digits that no decimal has show only in Arrow
            # Without old images nobody looks at those of an update.
            assert not both, (seed, n, error)
            found["old image damaged"] += 1
            continue
        if not both:
            expected = by_plain(other, captured, False)
        assert made[1:] == expected[1:], (seed, n, made[1:], expected[1:])
        for name, table in expected[0].items():
            same = made[0][name].equals(table) or repr(rows_of(made[0][name])) == repr(rows_of(table))  # NaN
            assert same, (seed, n, name)
        found["read"] += 1
    return dict(found)


if __name__ == "__main__":
    recorded, tables = pickle.loads(Path(sys.argv[1]).read_bytes())
    print(fuzz(recorded, tables, int(sys.argv[2]), int(sys.argv[3])))
