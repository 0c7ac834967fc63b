"""The bytes of a deletion vector, which are the same in the Delta and the Iceberg format.

A vector is a roaring bitmap of row numbers of 64 bits, behind a magic number. In a file, it is preceded by its length
and followed by its checksum.
"""

from __future__ import annotations

import struct
import zlib

from pyroaring import BitMap, BitMap64

_MAGIC = 1681511377
#: Bytes that :func:`frame_vector` adds.
FRAME_BYTES = 8


def encode_vector(dead: BitMap) -> bytes:
    """Return the bytes of a vector."""
    return struct.pack("<iqi", _MAGIC, 1, 0) + bytes(dead.serialize())


def decode_vector(data: bytes) -> BitMap:
    """Return the dead rows in a vector.

    :raises ValueError: if it is damaged.
    """
    magic, count = struct.unpack_from("<iq", data)
    if magic != _MAGIC:
        raise ValueError(f"unexpected magic number {magic}")
    if count == 0:
        return BitMap()
    if count == 1 and struct.unpack_from("<i", data, 12)[0] == 0:
        return BitMap.deserialize(data[16:])
    rows = BitMap64.deserialize(data[4:])
    if rows and rows.max() >= 1 << 32:
        raise ValueError(f"it has row {rows.max()}, and no data file has as many rows")
    return BitMap(rows)


def frame_vector(body: bytes) -> bytes:
    """Return a vector as it is in a file: with its length and its checksum."""
    return struct.pack(">i", len(body)) + body + struct.pack(">I", zlib.crc32(body))


def unframe_vector(data: bytes) -> bytes:
    """Return the vector in a frame.

    :raises ValueError: if its length or its checksum is wrong.
    """
    body, check = data[4:-4], struct.unpack(">I", data[-4:])[0]
    if struct.unpack(">i", data[:4])[0] != len(body) or check != zlib.crc32(body):
        raise ValueError("its checksum is wrong")
    return body
