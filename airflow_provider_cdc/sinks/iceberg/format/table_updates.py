"""Changes of a table's metadata, and what they require, in the JSON of the REST catalog.

A REST catalog applies them itself. For other catalogs, :func:`apply_updates` makes the next metadata, which the catalog
sets only if nobody else has set another one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from airflow_provider_cdc.sinks.iceberg.format.partition_spec import PartitionSpec
from airflow_provider_cdc.sinks.iceberg.format.schema import IcebergSchema
from airflow_provider_cdc.sinks.iceberg.format.snapshots import BRANCH, MAIN_BRANCH, TableSnapshot
from airflow_provider_cdc.sinks.iceberg.format.table_metadata import TableMetadata

#: Property with the number of older metadata files that the metadata lists.
PREVIOUS_VERSIONS = "write.metadata.previous-versions-max"
_DEFAULT_PREVIOUS_VERSIONS = 100
#: The schema, or spec, that the same updates add.
LAST_ADDED = -1

Update = Mapping[str, Any]
Requirement = Mapping[str, Any]

# ---------------------------------------------------------------- updates


def add_snapshot(snapshot: TableSnapshot) -> Update:
    """Add a snapshot, which is in no branch yet."""
    return {"action": "add-snapshot", "snapshot": snapshot.json}


def set_snapshot_ref(snapshot_id: int, name: str = MAIN_BRANCH, **retention: int) -> Update:
    """Let a branch have a snapshot.

    :param retention: ``max-ref-age-ms`` and so on, with underscores.
    """
    limits = {key.replace("_", "-"): value for key, value in retention.items()}
    return {"action": "set-snapshot-ref", "ref-name": name, "type": BRANCH, "snapshot-id": snapshot_id, **limits}


def remove_snapshot_ref(name: str) -> Update:
    """Remove a branch or tag."""
    return {"action": "remove-snapshot-ref", "ref-name": name}


def remove_snapshots(snapshot_ids: Collection[int]) -> Update:
    """Remove snapshots, none of which a branch or tag has."""
    return {"action": "remove-snapshots", "snapshot-ids": [*snapshot_ids]}


def set_properties(properties: Mapping[str, str]) -> Update:
    """Set properties."""
    return {"action": "set-properties", "updates": dict(properties)}


def remove_properties(names: Collection[str]) -> Update:
    """Remove properties."""
    return {"action": "remove-properties", "removals": [*names]}


def add_schema(schema: IcebergSchema, last_column_id: int) -> Update:
    """Add a schema; its id is assigned by the catalog."""
    return {"action": "add-schema", "schema": schema.to_json(), "last-column-id": last_column_id}


def set_current_schema(schema_id: int = LAST_ADDED) -> Update:
    """Make a schema the current one."""
    return {"action": "set-current-schema", "schema-id": schema_id}


def add_partition_spec(spec: PartitionSpec) -> Update:
    """Add a partition spec; its id is assigned by the catalog."""
    return {"action": "add-spec", "spec": spec.to_json()}


def set_default_spec(spec_id: int = LAST_ADDED) -> Update:
    """Make a partition spec that of new files."""
    return {"action": "set-default-spec", "spec-id": spec_id}


# ---------------------------------------------------------------- requirements


def require_uuid(metadata: TableMetadata) -> Requirement:
    """Require that the table was not replaced by another one."""
    return {"type": "assert-table-uuid", "uuid": metadata.table_uuid}


def require_ref(metadata: TableMetadata, name: str = MAIN_BRANCH) -> Requirement:
    """Require that nothing was committed to a branch."""
    ref = metadata.refs.get(name)
    return {"type": "assert-ref-snapshot-id", "ref": name, "snapshot-id": ref["snapshot-id"] if ref else None}


def require_definition(metadata: TableMetadata) -> list[Requirement]:
    """Require that nobody has changed columns or partitioning."""
    return [
        {"type": "assert-current-schema-id", "current-schema-id": metadata.json["current-schema-id"]},
        {"type": "assert-last-assigned-field-id", "last-assigned-field-id": metadata.last_column_id},
        {"type": "assert-default-spec-id", "default-spec-id": metadata.json["default-spec-id"]},
        {"type": "assert-last-assigned-partition-id", "last-assigned-partition-id": metadata.last_partition_id},
    ]


def find_unmet_requirement(metadata: TableMetadata, requirements: Sequence[Requirement]) -> Requirement | None:
    """Return the first requirement that a table does not meet; ``None`` if it meets all.

    :raises ValueError: for a requirement that is not known.
    """
    for requirement in requirements:
        kind = requirement["type"]
        if kind == "assert-ref-snapshot-id":
            ref = metadata.refs.get(requirement["ref"])
            met = (ref["snapshot-id"] if ref else None) == requirement["snapshot-id"]
        elif kind == "assert-table-uuid":
            met = metadata.table_uuid == requirement["uuid"]
        elif kind in _REQUIRED_MEMBERS:
            member = _REQUIRED_MEMBERS[kind]
            met = metadata.json[member] == requirement[kind.removeprefix("assert-")]
        else:
            raise ValueError(f"unknown requirement {kind}")
        if not met:
            return requirement
    return None


_REQUIRED_MEMBERS = {
    "assert-current-schema-id": "current-schema-id",
    "assert-last-assigned-field-id": "last-column-id",
    "assert-default-spec-id": "default-spec-id",
    "assert-last-assigned-partition-id": "last-partition-id",
}

# ---------------------------------------------------------------- the next metadata


def apply_updates(
    metadata: TableMetadata, updates: Sequence[Update], now_ms: int, metadata_location: str | None = None
) -> TableMetadata:
    """Return the metadata after changes. Everything that the changes do not touch stays as it is.

    :param now_ms: milliseconds since 1970; times in the metadata never go back.
    :param metadata_location: location of the file of ``metadata``, which becomes part of the log.
    :raises ValueError: if a change is not known, or contradicts the metadata.
    """
    json = dict(metadata.json)
    changed_ms = max(now_ms, metadata.last_updated_ms)
    added = dict[str, int]()
    for update in updates:
        _ACTIONS[update["action"]](json, update, changed_ms, added) if update["action"] in _ACTIONS else _refuse_update(
            update
        )
    json["last-updated-ms"] = changed_ms
    if metadata_location is not None:
        log = [*(json.get("metadata-log") or ())]
        log.append({"metadata-file": metadata_location, "timestamp-ms": metadata.last_updated_ms})
        limit = int((json.get("properties") or {}).get(PREVIOUS_VERSIONS, _DEFAULT_PREVIOUS_VERSIONS))
        json["metadata-log"] = log[-max(limit, 1) :]
    return TableMetadata(json)


def _add_snapshot(json: dict[str, Any], update: Update, now_ms: int, _: dict[str, int]) -> None:
    snapshot = update["snapshot"]
    if snapshot["snapshot-id"] in {known["snapshot-id"] for known in json.get("snapshots") or ()}:
        raise ValueError(f"snapshot {snapshot['snapshot-id']} exists")
    if snapshot["sequence-number"] <= json["last-sequence-number"]:
        raise ValueError(f"sequence number {snapshot['sequence-number']} is not above {json['last-sequence-number']}")
    if json["format-version"] >= 3:
        next_row_id = json.get("next-row-id") or 0
        if snapshot.get("first-row-id") is None or snapshot["first-row-id"] < next_row_id:
            raise ValueError(f"first-row-id {snapshot.get('first-row-id')} is below next-row-id {next_row_id}")
        json["next-row-id"] = snapshot["first-row-id"] + snapshot["added-rows"]
    json["last-sequence-number"] = snapshot["sequence-number"]
    json["snapshots"] = [*(json.get("snapshots") or ()), snapshot]


def _set_snapshot_ref(json: dict[str, Any], update: Update, now_ms: int, _: dict[str, int]) -> None:
    snapshot_id, name = update["snapshot-id"], update["ref-name"]
    if snapshot_id not in {known["snapshot-id"] for known in json.get("snapshots") or ()}:
        raise ValueError(f"there is no snapshot {snapshot_id}")
    given = {key: value for key, value in update.items() if key not in ("action", "ref-name")}
    json["refs"] = {**(json.get("refs") or {}), name: given}
    if name == MAIN_BRANCH:
        json["current-snapshot-id"] = snapshot_id
        entry = {"timestamp-ms": now_ms, "snapshot-id": snapshot_id}
        json["snapshot-log"] = [*(json.get("snapshot-log") or ()), entry]


def _remove_snapshot_ref(json: dict[str, Any], update: Update, now_ms: int, _: dict[str, int]) -> None:
    json["refs"] = {name: ref for name, ref in (json.get("refs") or {}).items() if name != update["ref-name"]}
    if update["ref-name"] == MAIN_BRANCH:
        json["current-snapshot-id"] = None


def _remove_snapshots(json: dict[str, Any], update: Update, now_ms: int, _: dict[str, int]) -> None:
    gone = set(update["snapshot-ids"])
    if held := gone & {ref["snapshot-id"] for ref in (json.get("refs") or {}).values()}:
        raise ValueError(f"snapshots {sorted(held)} are those of branches or tags")
    json["snapshots"] = [known for known in json.get("snapshots") or () if known["snapshot-id"] not in gone]
    log = json.get("snapshot-log") or []
    # The log has no gaps: what came before a snapshot that is gone goes too.
    first = max((number + 1 for number, entry in enumerate(log) if entry["snapshot-id"] in gone), default=0)
    json["snapshot-log"] = log[first:]
    for name in ("statistics", "partition-statistics"):
        if json.get(name):
            json[name] = [entry for entry in json[name] if entry["snapshot-id"] not in gone]


def _set_properties(json: dict[str, Any], update: Update, now_ms: int, _: dict[str, int]) -> None:
    json["properties"] = {**(json.get("properties") or {}), **update["updates"]}


def _remove_properties(json: dict[str, Any], update: Update, now_ms: int, _: dict[str, int]) -> None:
    removals = {*update["removals"]}
    json["properties"] = {n: value for n, value in (json.get("properties") or {}).items() if n not in removals}


def _add_schema(json: dict[str, Any], update: Update, now_ms: int, added: dict[str, int]) -> None:
    schema = update["schema"]
    added["schema"] = _reuse_or_append(json, "schemas", "schema-id", schema)
    json["last-column-id"] = max(json["last-column-id"], update.get("last-column-id") or 0)


def _set_current_schema(json: dict[str, Any], update: Update, now_ms: int, added: dict[str, int]) -> None:
    json["current-schema-id"] = _find_existing_id(
        json, "schemas", "schema-id", update["schema-id"], added.get("schema")
    )


def _add_spec(json: dict[str, Any], update: Update, now_ms: int, added: dict[str, int]) -> None:
    added["spec"] = _reuse_or_append(json, "partition-specs", "spec-id", update["spec"])
    ids = [part["field-id"] for part in update["spec"]["fields"]]
    json["last-partition-id"] = max(json["last-partition-id"], *ids, 0)


def _set_default_spec(json: dict[str, Any], update: Update, now_ms: int, added: dict[str, int]) -> None:
    json["default-spec-id"] = _find_existing_id(
        json, "partition-specs", "spec-id", update["spec-id"], added.get("spec")
    )


def _reuse_or_append(json: dict[str, Any], member: str, id_name: str, value: Mapping[str, Any]) -> int:
    """Add a schema or spec with a new id, unless there is an equal one; return its id."""
    for known in json[member]:
        if {**known, id_name: 0} == {**value, id_name: 0}:
            return int(known[id_name])
    number = max(known[id_name] for known in json[member]) + 1
    json[member] = [*json[member], {**value, id_name: number}]
    return int(number)


def _find_existing_id(json: dict[str, Any], member: str, id_name: str, number: int, last_added: int | None) -> int:
    found = last_added if number == LAST_ADDED else number
    if found is None or found not in {known[id_name] for known in json[member]}:
        raise ValueError(f"there is no {id_name} {number}")
    return int(found)


def _refuse_update(update: Update) -> None:
    raise ValueError(f"unknown update {update['action']}")


_ACTIONS: Mapping[str, Callable[[dict[str, Any], Update, int, dict[str, int]], None]] = {
    "add-snapshot": _add_snapshot,
    "set-snapshot-ref": _set_snapshot_ref,
    "remove-snapshot-ref": _remove_snapshot_ref,
    "remove-snapshots": _remove_snapshots,
    "set-properties": _set_properties,
    "remove-properties": _remove_properties,
    "add-schema": _add_schema,
    "set-current-schema": _set_current_schema,
    "add-spec": _add_spec,
    "set-default-spec": _set_default_spec,
}
