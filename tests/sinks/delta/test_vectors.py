"""Deletion vectors as the Delta protocol has them."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap, BitMap64

from airflow_provider_cdc.model.errors import TerminalError
from airflow_provider_cdc.sinks.delta.log.deletion_vectors import (
    DeletionVector,
    read_vector,
    write_vectors,
)
from airflow_provider_cdc.sinks.lake.log.vector_codec import decode_vector, encode_vector
from airflow_provider_cdc.sinks.storage.local_storage import LocalStorage

#: Rows 3, 4, 7, 11, 18, 29 as Spark writes them into the log.
INLINE = {
    "storageType": "i",
    "pathOrInlineDv": "^Bg9^0rr910000000000iXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L",
    "sizeInBytes": 44,
    "cardinality": 6,
}
#: The same in a format that only old versions wrote: an example in the text of the protocol.
OLD = {**INLINE, "pathOrInlineDv": "wi5b=000010000siXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L", "sizeInBytes": 40}
#: Another example of the text.
IN_A_FILE = {
    "storageType": "u",
    "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^",
    "offset": 4,
    "sizeInBytes": 40,
    "cardinality": 6,
}


def test_a_vector_in_the_log(tmp_path: Path) -> None:
    with pytest.raises(TerminalError, match="deletion vector in the log is .*: unexpected magic number"):
        read_vector(LocalStorage(tmp_path), DeletionVector.from_json(OLD))
    found = read_vector(LocalStorage(tmp_path), DeletionVector.from_json(INLINE))
    assert sorted(found) == [3, 4, 7, 11, 18, 29]
    assert decode_vector(encode_vector(found)) == found


def test_where_a_vector_is() -> None:
    vector = DeletionVector.from_json(IN_A_FILE)
    assert vector.file_name == "ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"
    assert vector.to_json() == IN_A_FILE
    assert DeletionVector.from_json(INLINE).file_name is None and DeletionVector.from_json(INLINE).to_json() == INLINE


@given(st.dictionaries(st.text("abc", min_size=1), st.sets(st.integers(0, 1 << 31)), max_size=4))
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, dead: dict[str, set[int]]) -> None:
    storage = LocalStorage(tmp_path_factory.mktemp("vectors"))
    found = write_vectors(storage, {path: BitMap(rows) for path, rows in dead.items()})
    assert {path: set(read_vector(storage, vector)) for path, vector in found.items()} == dead
    assert len({vector.file_name for vector in found.values()}) <= 1, "one file a commit"
    assert all(vector.cardinality == len(dead[path]) for path, vector in found.items())


def test_of_several_maps() -> None:
    """Of a file with more than 2^32 rows; nobody writes one, and others could."""
    rows = BitMap64([1, 5])
    assert decode_vector(struct.pack("<i", 1681511377) + bytes(rows.serialize())) == BitMap([1, 5])
    assert decode_vector(struct.pack("<iq", 1681511377, 0)) == BitMap()


@pytest.mark.parametrize("harm", ["gone", "short", "bit", "another"])
def test_a_damaged_vector_stops(tmp_path: Path, harm: str) -> None:
    storage = LocalStorage(tmp_path)
    vectors = write_vectors(storage, {"a": BitMap([1]), "b": BitMap([2, 3])})
    vector = vectors["b"]
    assert vector.file_name is not None and vector.offset is not None
    path = tmp_path / vector.file_name
    if harm == "gone":
        path.unlink()
    elif harm == "short":
        path.write_bytes(path.read_bytes()[:-3])
    elif harm == "bit":
        data = bytearray(path.read_bytes())
        data[-6] ^= 4  # row 3 becomes row 7: nothing else is wrong with it
        path.write_bytes(data)
    else:
        vector = DeletionVector(
            vector.storage_type, vector.path_or_inline, vector.size_bytes, vector.cardinality + 1, vector.offset
        )
    with pytest.raises(TerminalError, match=r"deletion vector at \d+ of .* is missing or damaged") as found:
        read_vector(storage, vector)
    assert str(tmp_path) in str(found.value)


def test_a_vector_elsewhere_is_not_read(tmp_path: Path) -> None:
    elsewhere = DeletionVector("p", "file:///elsewhere/vector.bin", 40, 6, 4)
    with pytest.raises(TerminalError, match="is outside of .*: file:///elsewhere/vector.bin"):
        read_vector(LocalStorage(tmp_path), elsewhere)
