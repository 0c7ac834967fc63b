"""Which features of the Delta protocol a table may use. What is not understood here is refused by name."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import pyarrow as pa

from airflow_provider_cdc.config.table_properties import FEED as FEED_ENABLED
from airflow_provider_cdc.model.errors import TerminalError

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
#: What all writers know.
_BASIC = ("appendOnly", "invariants")
#: Features of tables whose protocol names none, by the version from which on readers or writers know them.
_READER_SINCE = {"columnMapping": 2}
_WRITER_SINCE = {
    **dict.fromkeys(_BASIC, 2),
    "checkConstraints": 3,
    FEED: 4,
    _GENERATED: 4,
    "columnMapping": 5,
    "identityColumns": 6,
}
ROW_TRACKING = "rowTracking"
#: Features that ask for nothing, or only for what is done here (:mod:`~.commit_actions`, :mod:`~.upkeep`).
_HARMLESS = {"v2Checkpoint", "vacuumProtocolCheck", "domainMetadata", "clustering", "checkpointProtection"}
#: Features that count only where a property of the table, of which :func:`check_protocol` knows more, uses them.
_IF_USED = {"appendOnly", "invariants", "checkConstraints", "columnMapping"}
_KNOWN = {VECTORS, FEED, _NTZ, "timestampNtz-preview"} | _HARMLESS | _IF_USED
#: Features that count only where a property of the table says so.
_BY_PROPERTY = {
    ROW_TRACKING: "delta.enableRowTracking",
    "inCommitTimestamp": "delta.enableInCommitTimestamps",
    "inCommitTimestamp-preview": "delta.enableInCommitTimestamps",
    "icebergCompatV1": "delta.enableIcebergCompatV1",
    "icebergCompatV2": "delta.enableIcebergCompatV2",
    "icebergCompatV3": "delta.enableIcebergCompatV3",
    "icebergWriterCompatV1": "delta.enableIcebergWriterCompatV1",
    "icebergWriterCompatV3": "delta.enableIcebergWriterCompatV3",
    "variantShredding": "delta.enableVariantShredding",
    "variantShredding-preview": "delta.enableVariantShredding",
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
    "typeWidening": "delta.typeChanges",
}
#: Features that some readers refuse as long as they are supported: they are taken out as a whole.
_DROPPED = {"typeWidening", "typeWidening-preview"}
#: Features that count only where a column has such a type.
_BY_TYPE = {"variantType": "variant", "variantType-preview": "variant"}
_CONSTRAINT, _MAPPING, _APPEND_ONLY = "delta.constraints.", "delta.columnMapping.mode", "delta.appendOnly"


def protocol_for(schema: pa.Schema, *, vectors: bool) -> dict[str, Any]:
    """The protocol that a new table needs.

    :param schema: of the table.
    :param vectors: whether rows die by deletion vectors.
    """
    generated = any(EXPRESSION.encode() in (f.metadata or {}) for f in schema)
    zoneless = any(pa.types.is_timestamp(f.type) and f.type.tz is None for f in schema)
    features = [name for name, used in ((VECTORS, vectors), (_NTZ, zoneless)) if used]
    writers = [*features, "appendOnly", "invariants", *([_GENERATED] if generated else [])]
    return _naming(features, writers)


def features_of(protocol: Mapping[str, Any]) -> tuple[frozenset[str], frozenset[str]]:
    """The features that readers and writers of a table have to know, also where its protocol names none."""
    reader, writer = int(protocol.get("minReaderVersion") or 1), int(protocol.get("minWriterVersion") or 1)
    readers = protocol.get("readerFeatures") or () if reader >= _READER else _since(_READER_SINCE, reader)
    writers = protocol.get("writerFeatures") or () if writer >= _WRITER else _since(_WRITER_SINCE, writer)
    one_sided = {*_READER_SINCE} if reader < _READER and "columnMapping" not in {*readers} & {*writers} else set[str]()
    return frozenset(readers) - one_sided, frozenset(writers) - one_sided


def _since(features: Mapping[str, int], version: int) -> list[str]:
    return [name for name, since in features.items() if since <= version]


def _naming(readers: Collection[str], writers: Collection[str]) -> dict[str, Any]:
    """The protocol that has these features, by name unless all writers know them."""
    if not readers and {*writers} <= {*_BASIC}:
        return {"minReaderVersion": 1, "minWriterVersion": 2}
    return {
        "minReaderVersion": _READER if readers else 1,
        "minWriterVersion": _WRITER,
        **({"readerFeatures": sorted(readers)} if readers else {}),
        "writerFeatures": sorted(writers),
    }


def both(current: Mapping[str, Any], needed: Mapping[str, Any]) -> Mapping[str, Any]:
    """A protocol that has what a table has, and what it needs: it is only ever extended, as others count on the rest.

    The very same if it has all of that.
    """
    (readers, writers), (more_readers, more_writers) = features_of(current), features_of(needed)
    if more_readers <= readers and more_writers - {*_BASIC} <= writers:
        return current
    return _naming(readers | more_readers, writers | more_writers)


def with_vectors(protocol: Mapping[str, Any], *, vectors: bool) -> Mapping[str, Any]:
    """A table's protocol with or without deletion vectors, and all else that it has."""
    if vectors:
        return both(protocol, _naming([VECTORS], [VECTORS, *_BASIC]))
    readers, writers = features_of(protocol)
    return _naming(readers - {VECTORS}, writers - {VECTORS}) if VECTORS in readers | writers else protocol


def with_feed(protocol: Mapping[str, Any], configuration: Mapping[str, str]) -> Mapping[str, Any]:
    """A table's protocol with all that its change data feed needs; the very same if it has that, or there is no feed.

    :param configuration: properties that the table is to have.
    """
    return both(protocol, _naming([], [FEED, *_BASIC])) if has_feed(configuration) else protocol


def switched(protocol: Mapping[str, Any], metadata: Mapping[str, Any], *, vectors: bool) -> list[dict[str, Any]]:
    """Actions that begin the use of deletion vectors, or end it when no file has one."""
    before = metadata.get("configuration") or {}
    configuration = {k: v for k, v in before.items() if k != ENABLED} | ({ENABLED: "true"} if vectors else {})
    return [
        {"protocol": with_feed(with_vectors(protocol, vectors=vectors), configuration)},
        {"metaData": {**metadata, "configuration": configuration}},
    ]


def reconfigured(
    protocol: Mapping[str, Any], metadata: Mapping[str, Any], new_metadata: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Actions that give a table other properties; none if it has them.

    :param metadata: of the table; the very same as the next if nothing is to change.
    :param new_metadata: what it is to be.
    """
    new_protocol = with_feed(protocol, new_metadata.get("configuration") or {})
    protocol_actions = [{"protocol": new_protocol}] if new_protocol is not protocol else []
    return [*protocol_actions, *([{"metaData": new_metadata}] if new_metadata is not metadata else [])]


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
    used = _used(protocol, metadata)
    if used:
        statements = "; ".join(dict.fromkeys(filter(None, used.values())))
        raise TerminalError(
            f"the {name} uses {', '.join(sorted(used))}",
            "Something else enabled it, and this version cannot merge into such a table: "
            + (
                f"take it out, in Spark by {statements}, or use a fresh sink.path"
                if statements
                else "use a fresh sink.path"
            ),
        )


def _used(protocol: Mapping[str, Any], metadata: Mapping[str, Any]) -> dict[str, str]:
    """What a table uses that is not understood, each with the statement that takes it out, if there is one.

    A feature that is only supported changes nothing yet: delta-rs adds some that nobody has asked for.
    """
    configuration = metadata.get("configuration") or {}
    fields = json.loads(metadata.get("schemaString") or '{"fields":[]}')["fields"]
    readers, writers = features_of(protocol)
    unsupported = {
        feature: _drop(feature)
        for feature in (readers | writers) - _KNOWN - _BY_PROPERTY.keys() - _BY_COLUMN.keys() - _BY_TYPE.keys()
    }
    # Also of tables whose protocol is old and names no features: the properties are the same.
    for feature, key in {**_BY_PROPERTY, "appendOnly": _APPEND_ONLY}.items():
        if str(configuration.get(key, "")).lower() == "true" and (feature in writers or "-preview" not in feature):
            unsupported[feature] = _drop(feature) if feature in _DROPPED else _set(key, "false")
    if str(configuration.get(_MAPPING, "none")) != "none":
        unsupported["columnMapping"] = _set(_MAPPING, "none")
    if _FORGETFUL in configuration:
        unsupported[_FORGETFUL] = f"ALTER TABLE t UNSET TBLPROPERTIES ('{_FORGETFUL}')"
    if constraints := [key for key in configuration if key.startswith(_CONSTRAINT)]:
        dropped = (f"ALTER TABLE t DROP CONSTRAINT {key.removeprefix(_CONSTRAINT)}" for key in constraints)
        unsupported["checkConstraints"] = "; ".join(dropped)
    reader, writer = protocol.get("minReaderVersion"), protocol.get("minWriterVersion")
    if int(reader or 1) > _READER or int(writer or 1) > _WRITER:
        unsupported[f"protocol {reader}, {writer}"] = ""
    if has_feed(configuration) and (hidden_columns := hidden_by_feed(column["name"] for column in fields)):
        unsupported[f"{FEED}, which hides its columns {', '.join(hidden_columns)}"] = _set(FEED_ENABLED, "false")
    by_columns = _used_by_columns(fields, metadata.get("partitionColumns") or ())
    return unsupported | {feature: _drop(feature) if feature in _DROPPED else "" for feature in by_columns}


def _used_by_columns(fields: Iterable[Mapping[str, Any]], partition_columns: Collection[str]) -> set[str]:
    """Likewise, by the definitions of its columns.

    :param partition_columns: columns that it is partitioned by: this project generates them.
    """
    used = set[str]()
    for column in fields:
        column_features = {f for f, key in _BY_COLUMN.items() if any(m.startswith(key) for m in column["metadata"])}
        used |= column_features - ({_GENERATED} if column["name"] in partition_columns else set())
        used |= {f for f, kind in _BY_TYPE.items() if "-" not in f and f'"{kind}"' in json.dumps(column["type"])}
        if "delta.invariants" in column["metadata"]:
            used.add("invariants")
    return used


def _drop(feature: str) -> str:
    return f"ALTER TABLE t DROP FEATURE {feature}"


def _set(key: str, value: str) -> str:
    return f"ALTER TABLE t SET TBLPROPERTIES ('{key}' = '{value}')"
