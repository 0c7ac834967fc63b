"""Puffin files with deletion vectors: all vectors of a commit are in one file.

A vector is read by its offset and length, which the manifest has, without the footer of the file.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyroaring import BitMap

from airflow_provider_cdc.model.errors import TerminalError
from airflow_provider_cdc.sinks.lake.log.vector_codec import decode_vector, encode_vector, frame_vector, unframe_vector

DELETION_VECTOR = "deletion-vector-v1"
#: Property of a blob: location of the data file whose dead rows it has.
REFERENCED_DATA_FILE = "referenced-data-file"
CARDINALITY = "cardinality"
_MAGIC = b"PFA1"
#: Field id of the row number in deletes.
_POSITION_FIELD_ID = 2147483545
_FOOTER_END = struct.Struct("<i4s4s")
_REMEDY = "Restore the file from a backup, or roll the table back to an older snapshot"


@dataclass(frozen=True)
class VectorBlob:
    """A deletion vector in a Puffin file.

    :param offset: where it begins in the file.
    :param length: bytes.
    :param cardinality: number of dead rows.
    """

    offset: int
    length: int
    cardinality: int


@dataclass(frozen=True)
class PuffinBlob:
    """A blob as the footer of a Puffin file describes it."""

    type: str
    fields: tuple[int, ...]
    snapshot_id: int
    sequence_number: int
    offset: int
    length: int
    compression_codec: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)


def write_vectors_file(dead: Mapping[str, BitMap], created_by: str) -> tuple[bytes, dict[str, VectorBlob]]:
    """Return the bytes of a file with deletion vectors, and where each vector is.

    :param dead: dead rows by location of the data file.
    :param created_by: name and version of this software.
    """
    content, blobs, places = bytearray(_MAGIC), list[dict[str, Any]](), dict[str, VectorBlob]()
    for path, rows in dead.items():
        blob = frame_vector(encode_vector(rows))
        places[path] = VectorBlob(len(content), len(blob), len(rows))
        blobs.append(
            {
                "type": DELETION_VECTOR,
                "fields": [_POSITION_FIELD_ID],
                "snapshot-id": -1,  # neither is known before the commit
                "sequence-number": -1,
                "offset": len(content),
                "length": len(blob),
                "properties": {REFERENCED_DATA_FILE: path, CARDINALITY: str(len(rows))},
            }
        )
        content += blob
    footer = json.dumps({"blobs": blobs, "properties": {"created-by": created_by}}).encode()
    content += _MAGIC + footer + _FOOTER_END.pack(len(footer), bytes(4), _MAGIC)
    return bytes(content), places


def read_vector_blob(data: bytes, cardinality: int, location: str) -> BitMap:
    """Return the dead rows in a deletion vector.

    :param data: the bytes of the blob: those from its offset on, as many as its length.
    :param cardinality: number of dead rows that the manifest records.
    :param location: location of the file, for errors.
    :raises TerminalError: if it is damaged.
    """
    try:
        dead = decode_vector(unframe_vector(data))
        if len(dead) != cardinality:
            raise ValueError(f"it has {len(dead)} rows, but the manifest records {cardinality}")
        return dead
    except (ValueError, struct.error) as error:
        raise TerminalError(f"a deletion vector in {location} is missing or damaged: {error}", _REMEDY) from None


def read_footer(data: bytes, location: str) -> list[PuffinBlob]:
    """Return the blobs of a Puffin file.

    :param data: the bytes of the file, or its end.
    :param location: location of the file, for errors.
    :raises TerminalError: if the footer is damaged, compressed, or incomplete.
    """
    try:
        length, flags, magic = _FOOTER_END.unpack(data[-_FOOTER_END.size :])
        start = len(data) - _FOOTER_END.size - length
        if magic != _MAGIC or length < 0 or start < len(_MAGIC) or data[start - len(_MAGIC) : start] != _MAGIC:
            raise ValueError("it does not end as a Puffin file")
        if flags[0] & 1:
            raise ValueError("its footer is compressed, which this version does not support")
        blobs = json.loads(data[start : start + length])["blobs"]
        return [
            PuffinBlob(
                blob["type"],
                tuple(blob["fields"]),
                blob["snapshot-id"],
                blob["sequence-number"],
                blob["offset"],
                blob["length"],
                blob.get("compression-codec"),
                blob.get("properties") or {},
            )
            for blob in blobs
        ]
    except (ValueError, KeyError, TypeError, struct.error) as error:
        raise TerminalError(f"the Puffin file {location} is damaged: {error}", _REMEDY) from None
