"""Which features of the Delta protocol a table may use. What is not understood here is refused by name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from airflow_provider_cdc.exceptions import TerminalError

VECTORS = "deletionVectors"
#: Property of a table whose rows may die by them.
ENABLED = "delta.enableDeletionVectors"
_NTZ = "timestampNtz"
_GENERATED = "generatedColumns"
#: What says of a column how its values follow from others: readers that know it need no condition on it.
EXPRESSION = "delta.generationExpression"
_READER, _WRITER = 3, 7
#: Features that change nothing of what is written here.
_HARMLESS = {"appendOnly", "invariants", "v2Checkpoint", "vacuumProtocolCheck", "domainMetadata", "clustering"}
_KNOWN = {VECTORS, _NTZ, "timestampNtz-preview"} | _HARMLESS
#: Features that count only where a property of the table says so.
_BY_PROPERTY = {
    "changeDataFeed": "delta.enableChangeDataFeed",
    "rowTracking": "delta.enableRowTracking",
    "inCommitTimestamp": "delta.enableInCommitTimestamps",
    "inCommitTimestamp-preview": "delta.enableInCommitTimestamps",
    "icebergCompatV1": "delta.enableIcebergCompatV1",
    "icebergCompatV2": "delta.enableIcebergCompatV2",
    "typeWidening": "delta.enableTypeWidening",
    "typeWidening-preview": "delta.enableTypeWidening",
}
#: Features that count only where a column uses them.
_BY_COLUMN = {
    _GENERATED: EXPRESSION,
    "identityColumns": "delta.identity",
    "allowColumnDefaults": "CURRENT_DEFAULT",
}


def protocol_for(schema: pa.Schema, *, vectors: bool) -> dict[str, Any]:
    """The protocol that a new table needs.

    :param schema: of the table.
    :param vectors: whether rows die by deletion vectors.
    """
    generated = any(EXPRESSION.encode() in (f.metadata or {}) for f in schema)
    zoneless = any(pa.types.is_timestamp(f.type) and f.type.tz is None for f in schema)
    features = [name for name, used in ((VECTORS, vectors), (_NTZ, zoneless)) if used]
    writers = [*features, "appendOnly", "invariants", *([_GENERATED] if generated else [])]
    if not features and not generated:
        return {"minReaderVersion": 1, "minWriterVersion": 2}
    return {
        "minReaderVersion": _READER if features else 1,
        "minWriterVersion": _WRITER,
        **({"readerFeatures": features} if features else {}),
        "writerFeatures": writers,
    }


def with_vectors(protocol: Mapping[str, Any], *, vectors: bool) -> dict[str, Any]:
    """A table's protocol with or without deletion vectors."""
    readers = {*(protocol.get("readerFeatures") or ())} - {VECTORS}
    writers = {*(protocol.get("writerFeatures") or ("appendOnly", "invariants"))} - {VECTORS}
    if vectors:
        readers, writers = readers | {VECTORS}, writers | {VECTORS}
    if not readers and writers <= {"appendOnly", "invariants"}:
        return {"minReaderVersion": 1, "minWriterVersion": 2}
    return {
        "minReaderVersion": _READER if readers else 1,
        "minWriterVersion": _WRITER,
        **({"readerFeatures": sorted(readers)} if readers else {}),
        "writerFeatures": sorted(writers),
    }


def switched(protocol: Mapping[str, Any], metadata: Mapping[str, Any], *, vectors: bool) -> list[dict[str, Any]]:
    """Actions that begin the use of deletion vectors, or end it when no file has one."""
    configuration = {k: v for k, v in (metadata.get("configuration") or {}).items() if k != ENABLED}
    return [
        {"protocol": with_vectors(protocol, vectors=vectors)},
        {"metaData": {**metadata, "configuration": configuration | ({ENABLED: "true"} if vectors else {})}},
    ]


def uses_vectors(protocol: Mapping[str, Any], configuration: Mapping[str, str]) -> bool:
    """Whether rows may die by deletion vectors."""
    return VECTORS in (protocol.get("readerFeatures") or ()) and configuration.get(ENABLED) == "true"


def check_protocol(name: str, protocol: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
    """Refuse a table whose rows would not be read, or written, as others expect it.

    :param name: what messages call the table.
    :raises TerminalError: naming the features.
    """
    configuration = metadata.get("configuration") or {}
    named = {*(protocol.get("readerFeatures") or ()), *(protocol.get("writerFeatures") or ())}
    strange = {f for f in named - _KNOWN - _BY_PROPERTY.keys() - _BY_COLUMN.keys() if f != "checkConstraints"}
    # Also of tables whose protocol is old and names no features: the properties are the same.
    strange |= {f for f, key in _BY_PROPERTY.items() if str(configuration.get(key, "")).lower() == "true"}
    if str(configuration.get("delta.columnMapping.mode", "none")) != "none":
        strange.add("columnMapping")
    if any(key.startswith("delta.constraints.") for key in configuration):
        strange.add("checkConstraints")
    if configuration.get("delta.appendOnly", "").lower() == "true":
        strange.add("appendOnly")
    if int(protocol.get("minReaderVersion") or 1) > _READER or int(protocol.get("minWriterVersion") or 1) > _WRITER:
        strange.add(f"protocol {protocol.get('minReaderVersion')}, {protocol.get('minWriterVersion')}")
    fields = json.loads(metadata.get("schemaString") or '{"fields":[]}')["fields"]
    parts = metadata.get("partitionColumns") or ()  # this project has generated those
    for column in fields:
        found = {f for f, key in _BY_COLUMN.items() if any(m.startswith(key) for m in column["metadata"])}
        strange |= found - ({_GENERATED} if column["name"] in parts else set())
    if any("delta.invariants" in c["metadata"] for c in fields):
        strange.add("invariants")
    if strange:
        raise TerminalError(
            f"the {name} uses {', '.join(sorted(strange))}",
            "Something else enabled it; this version cannot merge into such a table: use a fresh sink.path",
        )
