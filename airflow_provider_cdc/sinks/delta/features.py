"""Which features of the Delta protocol a table may use. What is not understood here is refused by name."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from airflow_provider_cdc.core.table_properties import FEED as FEED_ENABLED
from airflow_provider_cdc.exceptions import TerminalError

VECTORS = "deletionVectors"
#: Property of a table whose rows may die by them.
ENABLED = "delta.enableDeletionVectors"
FEED = "changeDataFeed"
#: Columns that only its readers see.
_FEED_COLUMNS = {"_change_type", "_commit_version", "_commit_timestamp"}
_NTZ = "timestampNtz"
_GENERATED = "generatedColumns"
#: What says of a column how its values follow from others: readers that know it need no condition on it.
EXPRESSION = "delta.generationExpression"
_READER, _WRITER = 3, 7
#: From this version of writers on, a table whose protocol names no features may have a change data feed.
_FEEDING = 4
#: What all writers know.
_BASIC = ("appendOnly", "invariants")
#: Features that change nothing of what is written here.
_HARMLESS = {"appendOnly", "invariants", "v2Checkpoint", "vacuumProtocolCheck", "domainMetadata", "clustering"}
_KNOWN = {VECTORS, FEED, _NTZ, "timestampNtz-preview"} | _HARMLESS
#: Features that count only where a property of the table says so.
_BY_PROPERTY = {
    "rowTracking": "delta.enableRowTracking",
    "inCommitTimestamp": "delta.enableInCommitTimestamps",
    "inCommitTimestamp-preview": "delta.enableInCommitTimestamps",
    "icebergCompatV1": "delta.enableIcebergCompatV1",
    "icebergCompatV2": "delta.enableIcebergCompatV2",
    "typeWidening": "delta.enableTypeWidening",
    "typeWidening-preview": "delta.enableTypeWidening",
}
#: Markers that were written longer ago are left out of checkpoints: among them those that say what was published.
_FORGETFUL = "delta.setTransactionRetentionDuration"
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
    writers = {*(protocol.get("writerFeatures") or _BASIC)} - {VECTORS}
    if vectors:
        readers, writers = readers | {VECTORS}, writers | {VECTORS}
    if not readers and writers <= {*_BASIC}:
        return {"minReaderVersion": 1, "minWriterVersion": 2}
    return {
        "minReaderVersion": _READER if readers else 1,
        "minWriterVersion": _WRITER,
        **({"readerFeatures": sorted(readers)} if readers else {}),
        "writerFeatures": sorted(writers),
    }


def with_feed(protocol: Mapping[str, Any], configuration: Mapping[str, str]) -> Mapping[str, Any]:
    """A table's protocol with all that its change data feed needs; the very same if it has that, or there is no feed.

    :param configuration: properties that the table is to have.
    """
    writers = protocol.get("writerFeatures") or ()
    version = int(protocol.get("minWriterVersion") or 1)
    if not has_feed(configuration) or FEED in writers or _FEEDING <= version < _WRITER:
        return protocol
    return {**protocol, "minWriterVersion": _WRITER, "writerFeatures": sorted({*(writers or _BASIC), FEED})}


def both(there: Mapping[str, Any], needed: Mapping[str, Any]) -> Mapping[str, Any]:
    """A protocol that has what a table has and what it needs."""
    if "writerFeatures" not in needed:
        return there
    readers = {*(there.get("readerFeatures") or ())} | {*(needed.get("readerFeatures") or ())}
    writers = {*(there.get("writerFeatures") or ())} | {*needed["writerFeatures"]}
    if readers == {*(there.get("readerFeatures") or ())} and writers == {*(there.get("writerFeatures") or ())}:
        return there
    least = {"minReaderVersion": 3, "readerFeatures": sorted(readers)} if readers else {}
    return {**needed, **least, "writerFeatures": sorted(writers)}


def switched(protocol: Mapping[str, Any], metadata: Mapping[str, Any], *, vectors: bool) -> list[dict[str, Any]]:
    """Actions that begin the use of deletion vectors, or end it when no file has one."""
    before = metadata.get("configuration") or {}
    configuration = {k: v for k, v in before.items() if k != ENABLED} | ({ENABLED: "true"} if vectors else {})
    return [
        {"protocol": with_feed(with_vectors(protocol, vectors=vectors), configuration)},
        {"metaData": {**metadata, "configuration": configuration}},
    ]


def reconfigured(
    protocol: Mapping[str, Any], metadata: Mapping[str, Any], wanted: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Actions that give a table other properties; none if it has them.

    :param metadata: of the table; the very same as the next if nothing is to change.
    :param wanted: what it is to be.
    """
    needed = with_feed(protocol, wanted.get("configuration") or {})
    changed = [{"protocol": needed}] if needed is not protocol else []
    return [*changed, *([{"metaData": wanted}] if wanted is not metadata else [])]


def has_feed(configuration: Mapping[str, str]) -> bool:
    """Whether commits say which rows they insert, update and delete."""
    return str(configuration.get(FEED_ENABLED, "")).lower() == "true"


def hidden_by_feed(columns: Iterable[str]) -> list[str]:
    """Those of some columns that a table with a change data feed must not have."""
    return [name for name in columns if name.lower() in _FEED_COLUMNS]


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
    if _FORGETFUL in configuration:
        strange.add(_FORGETFUL)
    if any(key.startswith("delta.constraints.") for key in configuration):
        strange.add("checkConstraints")
    if configuration.get("delta.appendOnly", "").lower() == "true":
        strange.add("appendOnly")
    if int(protocol.get("minReaderVersion") or 1) > _READER or int(protocol.get("minWriterVersion") or 1) > _WRITER:
        strange.add(f"protocol {protocol.get('minReaderVersion')}, {protocol.get('minWriterVersion')}")
    fields = json.loads(metadata.get("schemaString") or '{"fields":[]}')["fields"]
    if has_feed(configuration) and (taken := hidden_by_feed(column["name"] for column in fields)):
        strange.add(f"{FEED}, which hides its columns {', '.join(taken)}")
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
