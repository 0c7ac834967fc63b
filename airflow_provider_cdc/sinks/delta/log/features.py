"""Features of the Delta protocol that a table may use. Unknown features are refused by name."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import pyarrow as pa

from airflow_provider_cdc.config.table_properties import CHANGE_DATA_FEED as FEED_ENABLED
from airflow_provider_cdc.model.errors import TerminalError

DELETION_VECTORS = "deletionVectors"
#: Property of a table that uses deletion vectors.
VECTORS_PROPERTY = "delta.enableDeletionVectors"
CHANGE_DATA_FEED = "changeDataFeed"
#: Columns that readers of a change data feed see in addition.
_FEED_COLUMNS = {"_change_type", "_commit_version", "_commit_timestamp"}
_TIMESTAMP_NTZ = "timestampNtz"
_GENERATED_COLUMNS = "generatedColumns"
#: Column metadata that defines how its values are computed: readers that know it can derive filters on the column.
GENERATION_EXPRESSION = "delta.generationExpression"
_READER_VERSION, _WRITER_VERSION = 3, 7
#: Features that all writers know.
_BASIC_FEATURES = ("appendOnly", "invariants")
#: First reader or writer version of features, for tables whose protocol names no features.
_READER_SINCE = {"columnMapping": 2}
_WRITER_SINCE = {
    **dict.fromkeys(_BASIC_FEATURES, 2),
    "checkConstraints": 3,
    CHANGE_DATA_FEED: 4,
    _GENERATED_COLUMNS: 4,
    "columnMapping": 5,
    "identityColumns": 6,
}
ROW_TRACKING = "rowTracking"
#: Features that need nothing, or only what this package does (:mod:`~.commit_actions`, :mod:`~.maintenance`).
_HARMLESS_FEATURES = {"v2Checkpoint", "vacuumProtocolCheck", "domainMetadata", "clustering", "checkpointProtection"}
#: Features that matter only if table properties use them; :func:`check_protocol` checks these.
_FEATURES_IF_USED = {"appendOnly", "invariants", "checkConstraints", "columnMapping"}
_KNOWN_FEATURES = (
    {DELETION_VECTORS, CHANGE_DATA_FEED, _TIMESTAMP_NTZ, "timestampNtz-preview"}
    | _HARMLESS_FEATURES
    | _FEATURES_IF_USED
)
#: Features that matter only if a table property enables them.
_FEATURES_BY_PROPERTY = {
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
#: Removes older markers from checkpoints, including those that record what was published.
_TXN_RETENTION_PROPERTY = "delta.setTransactionRetentionDuration"
#: Features that matter only if a column uses them.
_FEATURES_BY_COLUMN = {
    _GENERATED_COLUMNS: GENERATION_EXPRESSION,
    "identityColumns": "delta.identity",
    "allowColumnDefaults": "CURRENT_DEFAULT",
    "typeWidening": "delta.typeChanges",
}
#: Features that some readers refuse even if unused: they must be dropped.
_FEATURES_TO_DROP = {"typeWidening", "typeWidening-preview"}
#: Features that matter only if a column has this type.
_FEATURES_BY_TYPE = {"variantType": "variant", "variantType-preview": "variant"}
_CONSTRAINT_PREFIX, _COLUMN_MAPPING_PROPERTY, _APPEND_ONLY_PROPERTY = (
    "delta.constraints.",
    "delta.columnMapping.mode",
    "delta.appendOnly",
)


def protocol_for(schema: pa.Schema, *, vectors: bool) -> dict[str, Any]:
    """Return the protocol that a new table needs.

    :param schema: schema of the table.
    :param vectors: whether rows are deleted by deletion vectors.
    """
    generated = any(GENERATION_EXPRESSION.encode() in (f.metadata or {}) for f in schema)
    zoneless = any(pa.types.is_timestamp(f.type) and f.type.tz is None for f in schema)
    features = [name for name, used in ((DELETION_VECTORS, vectors), (_TIMESTAMP_NTZ, zoneless)) if used]
    writers = [*features, "appendOnly", "invariants", *([_GENERATED_COLUMNS] if generated else [])]
    return _protocol_naming(features, writers)


def features_of(protocol: Mapping[str, Any]) -> tuple[frozenset[str], frozenset[str]]:
    """Return the features that readers and writers must know, even if the protocol names none."""
    reader, writer = int(protocol.get("minReaderVersion") or 1), int(protocol.get("minWriterVersion") or 1)
    readers = (
        protocol.get("readerFeatures") or () if reader >= _READER_VERSION else _features_since(_READER_SINCE, reader)
    )
    writers = (
        protocol.get("writerFeatures") or () if writer >= _WRITER_VERSION else _features_since(_WRITER_SINCE, writer)
    )
    one_sided = (
        {*_READER_SINCE} if reader < _READER_VERSION and "columnMapping" not in {*readers} & {*writers} else set[str]()
    )
    return frozenset(readers) - one_sided, frozenset(writers) - one_sided


def _features_since(features: Mapping[str, int], version: int) -> list[str]:
    return [name for name, since in features.items() if since <= version]


def _protocol_naming(readers: Collection[str], writers: Collection[str]) -> dict[str, Any]:
    """Return the protocol with these features, named unless all writers know them."""
    if not readers and {*writers} <= {*_BASIC_FEATURES}:
        return {"minReaderVersion": 1, "minWriterVersion": 2}
    return {
        "minReaderVersion": _READER_VERSION if readers else 1,
        "minWriterVersion": _WRITER_VERSION,
        **({"readerFeatures": sorted(readers)} if readers else {}),
        "writerFeatures": sorted(writers),
    }


def merge_protocols(current: Mapping[str, Any], needed: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the current protocol extended by what is needed; nothing is removed, as others may rely on it.

    The same object is returned if nothing is missing.
    """
    (readers, writers), (more_readers, more_writers) = features_of(current), features_of(needed)
    if more_readers <= readers and more_writers - {*_BASIC_FEATURES} <= writers:
        return current
    return _protocol_naming(readers | more_readers, writers | more_writers)


def protocol_actions(current: Mapping[str, Any], new: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the action that gives a table another protocol; none if it has it."""
    return [] if new == current else [{"protocol": new}]


def protocol_with_vectors(protocol: Mapping[str, Any], *, vectors: bool) -> Mapping[str, Any]:
    """Return a table's protocol with or without deletion vectors, otherwise unchanged."""
    if vectors:
        return merge_protocols(protocol, _protocol_naming([DELETION_VECTORS], [DELETION_VECTORS, *_BASIC_FEATURES]))
    readers, writers = features_of(protocol)
    if DELETION_VECTORS not in readers | writers:
        return protocol
    return _protocol_naming(readers - {DELETION_VECTORS}, writers - {DELETION_VECTORS})


def protocol_with_feed(protocol: Mapping[str, Any], configuration: Mapping[str, str]) -> Mapping[str, Any]:
    """Return a table's protocol with everything that its change data feed needs.

    The same object is returned if there is nothing to add or no feed.

    :param configuration: properties that the table is to have.
    """
    if not has_feed(configuration):
        return protocol
    return merge_protocols(protocol, _protocol_naming([], [CHANGE_DATA_FEED, *_BASIC_FEATURES]))


def switch_vectors_actions(
    protocol: Mapping[str, Any], metadata: Mapping[str, Any], *, vectors: bool
) -> list[dict[str, Any]]:
    """Return actions that start the use of deletion vectors, or end it once no file has one."""
    configuration = {**(metadata.get("configuration") or {}), VECTORS_PROPERTY: "true"}
    if not vectors:
        del configuration[VECTORS_PROPERTY]
    return [
        {"protocol": protocol_with_feed(protocol_with_vectors(protocol, vectors=vectors), configuration)},
        {"metaData": {**metadata, "configuration": configuration}},
    ]


def reconfigure_actions(
    protocol: Mapping[str, Any], metadata: Mapping[str, Any], new_metadata: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return actions that give a table other properties; none if it has them.

    :param metadata: metadata of the table; the same object as ``new_metadata`` if nothing is to change.
    :param new_metadata: metadata that it is to have.
    """
    new_protocol = protocol_with_feed(protocol, new_metadata.get("configuration") or {})
    metadata_actions = [{"metaData": new_metadata}] if new_metadata is not metadata else []
    return protocol_actions(protocol, new_protocol) + metadata_actions


def has_feed(configuration: Mapping[str, str]) -> bool:
    """Return whether commits record which rows they insert, update and delete."""
    return str(configuration.get(FEED_ENABLED, "")).lower() == "true"


def reserved_by_feed(columns: Iterable[str]) -> list[str]:
    """Return those columns that a table with a change data feed must not have."""
    return [name for name in columns if name.lower() in _FEED_COLUMNS]


def uses_vectors(protocol: Mapping[str, Any], configuration: Mapping[str, str]) -> bool:
    """Return whether rows may be deleted by deletion vectors."""
    return DELETION_VECTORS in (protocol.get("readerFeatures") or ()) and configuration.get(VECTORS_PROPERTY) == "true"


def check_protocol(name: str, protocol: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
    """Refuse a table whose rows would not be read or written as other programs expect.

    :param name: name of the table in messages.
    :raises TerminalError: naming the features.
    """
    used = _unsupported_features(protocol, metadata)
    if used:
        statements = "; ".join(dict.fromkeys(filter(None, used.values())))
        removal = f"remove it, in Spark with {statements}, or " if statements else ""
        raise TerminalError(
            f"the {name} uses {', '.join(sorted(used))}",
            "Other software enabled this, and this version cannot merge into such a table: "
            f"{removal}use a fresh sink.path",
        )


def _unsupported_features(protocol: Mapping[str, Any], metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return the unsupported features that a table uses, each with the SQL statement that removes it, if any.

    A feature that is merely supported has no effect yet: delta-rs adds some that no user has requested.
    """
    configuration = metadata.get("configuration") or {}
    fields = json.loads(metadata.get("schemaString") or '{"fields":[]}')["fields"]
    readers, writers = features_of(protocol)
    unsupported = {
        feature: _drop_feature_sql(feature)
        for feature in (readers | writers)
        - _KNOWN_FEATURES
        - _FEATURES_BY_PROPERTY.keys()
        - _FEATURES_BY_COLUMN.keys()
        - _FEATURES_BY_TYPE.keys()
    }
    # Also for old protocols that name no features: the properties are the same.
    for feature, key in {**_FEATURES_BY_PROPERTY, "appendOnly": _APPEND_ONLY_PROPERTY}.items():
        if str(configuration.get(key, "")).lower() == "true" and (feature in writers or "-preview" not in feature):
            unsupported[feature] = (
                _drop_feature_sql(feature) if feature in _FEATURES_TO_DROP else _set_property_sql(key, "false")
            )
    if str(configuration.get(_COLUMN_MAPPING_PROPERTY, "none")) != "none":
        unsupported["columnMapping"] = _set_property_sql(_COLUMN_MAPPING_PROPERTY, "none")
    if _TXN_RETENTION_PROPERTY in configuration:
        unsupported[_TXN_RETENTION_PROPERTY] = f"ALTER TABLE t UNSET TBLPROPERTIES ('{_TXN_RETENTION_PROPERTY}')"
    if constraints := [key for key in configuration if key.startswith(_CONSTRAINT_PREFIX)]:
        dropped = (f"ALTER TABLE t DROP CONSTRAINT {key.removeprefix(_CONSTRAINT_PREFIX)}" for key in constraints)
        unsupported["checkConstraints"] = "; ".join(dropped)
    reader, writer = protocol.get("minReaderVersion"), protocol.get("minWriterVersion")
    if int(reader or 1) > _READER_VERSION or int(writer or 1) > _WRITER_VERSION:
        unsupported[f"protocol {reader}, {writer}"] = ""
    if has_feed(configuration) and (hidden_columns := reserved_by_feed(column["name"] for column in fields)):
        unsupported[f"{CHANGE_DATA_FEED}, which hides its columns {', '.join(hidden_columns)}"] = _set_property_sql(
            FEED_ENABLED, "false"
        )
    by_columns = _features_used_by_columns(fields, metadata.get("partitionColumns") or ())
    return unsupported | {
        feature: _drop_feature_sql(feature) if feature in _FEATURES_TO_DROP else "" for feature in by_columns
    }


def _features_used_by_columns(fields: Iterable[Mapping[str, Any]], partition_columns: Collection[str]) -> set[str]:
    """Return the features that the definitions of columns use.

    :param partition_columns: partition columns, which this project generates.
    """
    used = set[str]()
    for column in fields:
        column_features = {
            f for f, key in _FEATURES_BY_COLUMN.items() if any(m.startswith(key) for m in column["metadata"])
        }
        used |= column_features - ({_GENERATED_COLUMNS} if column["name"] in partition_columns else set())
        used |= {
            f for f, kind in _FEATURES_BY_TYPE.items() if "-" not in f and f'"{kind}"' in json.dumps(column["type"])
        }
        if "delta.invariants" in column["metadata"]:
            used.add("invariants")
    return used


def _drop_feature_sql(feature: str) -> str:
    return f"ALTER TABLE t DROP FEATURE {feature}"


def _set_property_sql(key: str, value: str) -> str:
    return f"ALTER TABLE t SET TBLPROPERTIES ('{key}' = '{value}')"
