"""Deletion vectors: which rows of a data file are dead. The Delta protocol defines their format.

One file contains the vectors of one commit. Its folder has a name that begins with an underscore, so that no vacuum
touches it: the vacuum of delta-rs would delete live vectors in other folders.
"""

from __future__ import annotations

import base64
import struct
import uuid
from collections.abc import Mapping

from pyroaring import BitMap

from airflow_provider_cdc.model.errors import TerminalError
from airflow_provider_cdc.model.json_record import JsonRecord
from airflow_provider_cdc.sinks.lake.log.vector_codec import (
    FRAME_BYTES,
    decode_vector,
    encode_vector,
    frame_vector,
    unframe_vector,
)
from airflow_provider_cdc.sinks.storage.storage import Storage

#: Folder of the vector files in the table's folder.
VECTOR_FOLDER = "_dv"
# Python's base 85 and that of the protocol (Z85) differ only in their alphabets.
_PYTHON_BASE85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_TO_Z85, _FROM_Z85 = str.maketrans(_PYTHON_BASE85, _Z85), str.maketrans(_Z85, _PYTHON_BASE85)
_LOG_NAMES = {
    "storage_type": "storageType",
    "path_or_inline": "pathOrInlineDv",
    "size_bytes": "sizeInBytes",
}
#: Length of a UUID in base 85.
_UUID_LENGTH = 20


class DeletionVector(JsonRecord, frozen=True, rename=_LOG_NAMES, forbid_unknown_fields=False):
    """The location of a deletion vector; its JSON is that of an action in the log.

    :param storage_type: ``u`` for a file of the table, ``i`` for the log itself, ``p`` for a file anywhere.
    :param path_or_inline: folder and UUID of the file for ``u``, the bytes for ``i``, the path for ``p``.
    :param size_bytes: bytes.
    :param cardinality: number of dead rows.
    :param offset: position in the file.
    """

    storage_type: str
    path_or_inline: str
    size_bytes: int
    cardinality: int
    offset: int | None = None

    @property
    def file_name(self) -> str | None:
        """Name of its file in the table's folder; ``None`` if it is elsewhere."""
        if self.storage_type != "u":
            return None
        folder = self.path_or_inline[:-_UUID_LENGTH]
        number = uuid.UUID(bytes=_from_z85(self.path_or_inline[-_UUID_LENGTH:]))
        return f"{folder}/deletion_vector_{number}.bin" if folder else f"deletion_vector_{number}.bin"


def write_vectors(storage: Storage, dead: Mapping[str, BitMap]) -> dict[str, DeletionVector]:
    """Write the vectors of one commit to one file.

    :param dead: dead rows by data file.
    :returns: the vectors by data file.
    """
    if not dead:
        return {}
    content, number, vectors = bytearray(b"\x01"), uuid.uuid4(), dict[str, DeletionVector]()
    path_or_inline = VECTOR_FOLDER + base64.b85encode(number.bytes).decode().translate(_TO_Z85)
    for path, rows in dead.items():
        body = encode_vector(rows)
        vectors[path] = DeletionVector("u", path_or_inline, len(body), len(rows), len(content))
        content += frame_vector(body)
    storage.write(f"{VECTOR_FOLDER}/deletion_vector_{number}.bin", bytes(content))
    return vectors


def read_vector(storage: Storage, vector: DeletionVector) -> BitMap:
    """Return the dead rows in a vector.

    :raises TerminalError: if it is missing, damaged, or outside the table's folder.
    """
    remedy = "Restore the file, or start with a fresh sink.path"
    location = "in the log"
    try:
        if vector.storage_type == "i":
            dead = decode_vector(_from_z85(vector.path_or_inline)[: vector.size_bytes])
        elif vector.file_name is None:
            raise TerminalError(
                f"a deletion vector is outside of {storage.location()}: {vector.path_or_inline}", remedy
            )
        else:
            location = f"at {vector.offset or 0} of {storage.location(vector.file_name)}"
            dead = decode_vector(_read_vector_bytes(storage, vector.file_name, vector.offset or 0, vector.size_bytes))
        if len(dead) != vector.cardinality:
            raise ValueError(f"it has {len(dead)} rows, but the log records {vector.cardinality}")
        return dead
    except (FileNotFoundError, ValueError, struct.error) as error:
        raise TerminalError(f"the deletion vector {location} is missing or damaged: {error}", remedy) from None


def _read_vector_bytes(storage: Storage, file: str, offset: int, size: int) -> bytes:
    with storage.open(file, "rb") as opened:
        opened.seek(offset)
        data: bytes = opened.read(size + FRAME_BYTES)
    return unframe_vector(data)


def _from_z85(text: str) -> bytes:
    return base64.b85decode(text.translate(_FROM_Z85))
