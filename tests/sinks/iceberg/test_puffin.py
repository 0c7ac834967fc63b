"""Puffin files with deletion vectors, as the specification and pyiceberg have them."""

from __future__ import annotations

import json
import struct
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.table.puffin import PuffinFile
from pyroaring import BitMap, BitMap64

from airflow_provider_cdc.model.errors import TerminalError
from airflow_provider_cdc.sinks.iceberg.format.puffin import (
    PuffinBlob,
    VectorBlob,
    read_footer,
    read_vector_blob,
    write_vectors_file,
)
from airflow_provider_cdc.sinks.lake.log.vector_codec import decode_vector, frame_vector

ROWS = st.sets(st.integers(0, (1 << 31) - 1), min_size=1)


@settings(deadline=None)
@given(st.dictionaries(st.text("ab/é ", min_size=1), ROWS, min_size=1, max_size=4))
def test_what_is_written_is_read(dead: dict[str, set[int]]) -> None:
    data, places = write_vectors_file({path: BitMap(rows) for path, rows in dead.items()}, "tests 1.0")
    for path, place in places.items():
        blob = data[place.offset : place.offset + place.length]
        assert set(read_vector_blob(blob, place.cardinality, "f")) == dead[path]
    assert read_footer(data, "f") == [
        PuffinBlob(
            *("deletion-vector-v1", (2147483545,), -1, -1, place.offset, place.length, None),
            {"referenced-data-file": path, "cardinality": str(len(dead[path]))},
        )
        for path, place in places.items()
    ]
    theirs = PuffinFile(data).to_vector()
    assert {path: set(vector.to_pylist()) for path, vector in theirs.items()} == dead


def test_the_bytes_are_those_of_the_specification() -> None:
    data, places = write_vectors_file({"s3://b/a.parquet": BitMap([1, 5])}, "tests 1.0")
    assert places == {"s3://b/a.parquet": VectorBlob(4, len(data[4:]) - len(footer_of(data)), 2)}
    blob = data[4:][: places["s3://b/a.parquet"].length]
    body = b"\xd1\xd3\x39\x64" + struct.pack("<qi", 1, 0) + BitMap([1, 5]).serialize()
    assert blob == struct.pack(">i", len(body)) + body + struct.pack(">I", zlib.crc32(body))
    footer = footer_of(data)
    assert data[:4] == footer[:4] == footer[-4:] == b"PFA1" and footer[-8:-4] == bytes(4)
    payload = json.loads(footer[4:-12])
    assert struct.unpack("<i", footer[-12:-8]) == (len(footer) - 16,)
    assert "compression-codec" not in payload["blobs"][0] and payload["properties"] == {"created-by": "tests 1.0"}


def footer_of(data: bytes) -> bytes:
    return data[-(struct.unpack("<i", data[-12:-8])[0] + 16) :]


@pytest.mark.parametrize("harm", ["bit", "short", "empty", "count", "other"])
def test_a_damaged_vector_stops(harm: str) -> None:
    data, places = write_vectors_file({"a": BitMap([2, 3])}, "tests 1.0")
    place = places["a"]
    blob = bytearray(data[place.offset : place.offset + place.length])
    if harm == "bit":
        blob[-6] ^= 4  # row 3 becomes row 7: nothing else is wrong with it
    cut = {"short": -3, "empty": -len(blob), "other": -1}.get(harm, len(blob))
    with pytest.raises(TerminalError, match="a deletion vector in s3://b/f is missing or damaged"):
        read_vector_blob(bytes(blob[:cut]), 3 if harm == "count" else 2, "s3://b/f")


def test_rows_that_no_file_has() -> None:
    body = struct.pack("<i", 1681511377) + bytes(BitMap64([1 << 40]).serialize())
    with pytest.raises(ValueError, match="it has row 1099511627776"):
        decode_vector(body)
    with pytest.raises(TerminalError, match="it has row 1099511627776"):
        read_vector_blob(frame_vector(body), 1, "f")


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "damaged"),
        (b"PFA1" + bytes(40), "does not end as a Puffin file"),
        (b"PFA1PFA1{}" + struct.pack("<i", 2) + b"\1\0\0\0PFA1", "its footer is compressed"),
        (b"PFA1PFA1{}" + struct.pack("<i", 2) + b"\0\0\0\0PFA1", "damaged: 'blobs'"),
        (b"PFA1PFA1{}" + struct.pack("<i", -1) + b"\0\0\0\0PFA1", "does not end"),
    ],
)
def test_a_damaged_footer(data: bytes, problem: str) -> None:
    with pytest.raises(TerminalError, match=f"the Puffin file s3://b/f is .*{problem}"):
        read_footer(data, "s3://b/f")
