"""Metadata of tables: what others have written stays, and changes are those that a REST catalog would make."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter
from pyiceberg.table.metadata import TableMetadataUtil
from pyiceberg.table.update import TableRequirement, TableUpdate, update_table_metadata

from airflow_provider_cdc.model.errors import TerminalError
from airflow_provider_cdc.sinks.iceberg.format import table_updates as updates_of
from airflow_provider_cdc.sinks.iceberg.format.partition_spec import new_partition_spec
from airflow_provider_cdc.sinks.iceberg.format.schema import new_schema
from airflow_provider_cdc.sinks.iceberg.format.schema_changes import SchemaEditor
from airflow_provider_cdc.sinks.iceberg.format.snapshots import (
    TableSnapshot,
    ancestors_of,
    expired_refs,
    expired_snapshots,
    make_snapshot,
    new_snapshot_id,
)
from airflow_provider_cdc.sinks.iceberg.format.table_metadata import TableMetadata, new_metadata, parse_metadata

SCHEMA = new_schema(pa.schema([("id", pa.int64()), ("at", pa.date32())]), 3, identifiers=["id"])
NOW = 1_700_000_000_000


def table(version: int = 3) -> TableMetadata:
    spec = new_partition_spec(SCHEMA, [("at", "month")])
    return new_metadata(version, "s3://b/shop/t/", SCHEMA, spec, {"owner": "p"}, NOW)


def snapshot(number: int, parent: int | None, sequence_number: int, version: int, row_id: int = 0) -> TableSnapshot:
    rows: dict[str, Any] = {"first_row_id": row_id, "added_rows": 10} if version == 3 else {}
    location = f"s3://b/shop/t/metadata/{number}.avro"
    return make_snapshot(number, parent, sequence_number, NOW + sequence_number, location, "append", 0, **rows)


def change(metadata: TableMetadata, *updates: updates_of.Update, location: str | None = None) -> TableMetadata:
    """Apply updates; the result is one that can be read again, and it is pyiceberg's."""
    result = updates_of.apply_updates(metadata, updates, NOW + 5000, location)
    assert parse_metadata(result.to_bytes(), "m").json == result.json
    theirs = TableMetadataUtil.parse_raw(metadata.to_bytes().decode())
    parsed = [TypeAdapter[Any](TableUpdate).validate_python(update) for update in updates]
    expected = as_json(update_table_metadata(theirs, tuple(parsed)))
    found = as_json(TableMetadataUtil.parse_raw(result.to_bytes().decode()))
    for name in set(expected) - {"last_updated_ms", "metadata_log", "next_row_id"}:
        if name == "snapshot_log":
            assert [e["snapshot_id"] for e in found[name]] == [e["snapshot_id"] for e in expected[name]]
        elif name == "snapshots":
            without = [{**s, "parent_snapshot_id": None} for s in found[name]]  # they forget one that is removed
            assert without == [{**s, "parent_snapshot_id": None} for s in expected[name]]
        else:
            assert found[name] == expected[name], name
    return result


def as_json(metadata: Any) -> dict[str, Any]:
    # Theirs of version 3 cannot be written as JSON.
    members = {name: getattr(metadata, name) for name in type(metadata).model_fields}
    adapter = TypeAdapter[Any](Any)
    plain: dict[str, Any] = adapter.dump_python(members, mode="json", fallback=str)
    return plain


@pytest.mark.parametrize("version", [2, 3])
def test_a_new_table(version: int) -> None:
    metadata = table(version)
    theirs = TableMetadataUtil.parse_raw(metadata.to_bytes().decode())
    assert (theirs.format_version, theirs.location) == (version, "s3://b/shop/t")
    assert (theirs.last_column_id, theirs.last_partition_id, theirs.schema().highest_field_id) == (2, 1000, 2)
    assert metadata.current_snapshot is None and metadata.refs == {}
    assert metadata.next_row_id == (0 if version == 3 else None)
    assert metadata.current_schema == SCHEMA and metadata.default_spec.fields[0].name == "at_month"
    assert metadata.table_uuid == str(theirs.table_uuid) != table().table_uuid


@pytest.mark.parametrize("version", [2, 3])
def test_a_commit(version: int) -> None:
    first = change(
        table(version),
        updates_of.add_snapshot(snapshot(11, None, 1, version)),
        updates_of.set_snapshot_ref(11),
        updates_of.set_properties({"airflow-cdc.stream": "5"}),
        location="s3://b/shop/t/metadata/0.json",
    )
    assert first.current_snapshot == snapshot(11, None, 1, version)
    assert (first.last_sequence_number, first.next_row_id) == (1, 10 if version == 3 else None)
    assert first.properties == {"owner": "p", "airflow-cdc.stream": "5"}
    assert first.json["metadata-log"] == [{"metadata-file": "s3://b/shop/t/metadata/0.json", "timestamp-ms": NOW}]
    second = change(
        first,
        updates_of.add_snapshot(snapshot(12, 11, 2, version, 10)),
        updates_of.set_snapshot_ref(12),
        updates_of.remove_snapshots([11]),
        updates_of.remove_properties(["owner"]),
    )
    assert [*second.snapshots] == [12] and second.snapshots[12].parent_snapshot_id == 11
    assert updates_of.apply_updates(second, [updates_of.remove_properties(["nope"])], NOW).json is not second.json
    assert second.properties == {"airflow-cdc.stream": "5"}
    assert [entry["snapshot-id"] for entry in second.json["snapshot-log"]] == [12]
    assert second.next_row_id == (20 if version == 3 else None)
    assert second.last_updated_ms == NOW + 5000


def test_columns_and_partitions() -> None:
    metadata = table()
    editor = SchemaEditor(SCHEMA, metadata.last_column_id, 3)
    editor.add_column("n", pa.int32(), required=True, default=1)
    added = updates_of.add_schema(editor.build_schema(1), editor.last_column_id)
    changed = change(metadata, added, updates_of.set_current_schema())
    assert changed.json["current-schema-id"] == 1 and changed.last_column_id == 3
    assert [*changed.schemas] == [0, 1] and changed.current_schema.require_column("n").initial_default == 1
    back = updates_of.apply_updates(changed, [updates_of.add_schema(SCHEMA, 3), updates_of.set_current_schema()], NOW)
    assert [*back.schemas] == [0, 1] and back.json["current-schema-id"] == 0, "an equal schema has its id"
    spec = new_partition_spec(
        changed.current_schema, [("id", "bucket[4]")], spec_id=1, last_partition_id=changed.last_partition_id
    )
    parted = change(changed, updates_of.add_partition_spec(spec), updates_of.set_default_spec())
    assert (parted.default_spec.spec_id, parted.last_partition_id) == (1, 1001)


@pytest.mark.parametrize(
    ("updates", "problem"),
    [
        ([{"action": "upgrade-format-version"}], "unknown update upgrade-format-version"),
        ([updates_of.set_snapshot_ref(99)], "there is no snapshot 99"),
        ([updates_of.add_snapshot(snapshot(12, 11, 1, 3, 10))], "sequence number 1 is not above 1"),
        ([updates_of.add_snapshot(snapshot(12, 11, 2, 3, 9))], "first-row-id 9 is below next-row-id 10"),
        ([updates_of.add_snapshot(snapshot(11, 11, 2, 3, 10))], "snapshot 11 exists"),
        ([updates_of.remove_snapshots([11])], r"snapshots \[11\] are those of branches or tags"),
        ([updates_of.set_current_schema(7)], "there is no schema-id 7"),
        ([updates_of.set_default_spec()], "there is no spec-id -1"),
    ],
)
def test_changes_that_contradict_the_metadata(updates: Sequence[updates_of.Update], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        updates_of.apply_updates(committed(), updates, NOW)


def committed() -> TableMetadata:
    added = updates_of.add_snapshot(snapshot(11, None, 1, 3))
    return updates_of.apply_updates(table(), [added, updates_of.set_snapshot_ref(11)], NOW)


def test_requirements() -> None:
    metadata, other = committed(), table()
    wanted = [
        updates_of.require_uuid(metadata),
        updates_of.require_ref(metadata),
        *updates_of.require_definition(metadata),
    ]
    for requirement in wanted:
        TypeAdapter[Any](TableRequirement).validate_python(requirement)
    assert updates_of.find_unmet_requirement(metadata, wanted) is None
    assert updates_of.find_unmet_requirement(other, wanted) == wanted[0]
    assert updates_of.find_unmet_requirement(table(), [updates_of.require_ref(table())]) is None
    unmet = updates_of.find_unmet_requirement(metadata, [updates_of.require_ref(other)])
    assert unmet == {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": None}, "it was empty"
    properties = updates_of.apply_updates(metadata, [updates_of.set_properties({"a": "b"})], NOW)
    assert updates_of.find_unmet_requirement(properties, wanted) is None, "hence each marker needs a snapshot"
    for update in (updates_of.add_schema(SCHEMA, 9), updates_of.add_snapshot(snapshot(12, 11, 2, 3, 10))):
        next_one = [update] if update["action"] == "add-schema" else [update, updates_of.set_snapshot_ref(12)]
        assert updates_of.find_unmet_requirement(updates_of.apply_updates(metadata, next_one, NOW), wanted) is not None
    with pytest.raises(ValueError, match="unknown requirement assert-view-uuid"):
        updates_of.find_unmet_requirement(metadata, [{"type": "assert-view-uuid"}])


def test_what_others_have_written_stays() -> None:
    foreign = {
        **committed().json,
        "encryption-keys": [{"key-id": "k"}],
        "future": {"a": 1},
        "statistics": [{"snapshot-id": 11, "x": 1}, {"snapshot-id": 5, "x": 2}],
        "refs": {
            "main": {"snapshot-id": 11, "type": "branch", "min-snapshots-to-keep": 3},
            "audit": {"snapshot-id": 11, "type": "tag", "note": "n"},
        },
    }
    metadata = parse_metadata(json.dumps(foreign).encode(), "m")
    new = updates_of.apply_updates(
        metadata,
        [
            updates_of.add_snapshot(snapshot(12, 11, 2, 3, 10)),
            updates_of.set_snapshot_ref(12),
            updates_of.remove_snapshot_ref("nope"),
            updates_of.remove_snapshots([5]),
        ],
        NOW - 9999,
    )
    assert new.json["encryption-keys"] == [{"key-id": "k"}] and new.json["future"] == {"a": 1}
    # As in REST catalogs: what the update does not say of the branch is forgotten, so commits repeat it.
    assert new.refs["main"] == {"snapshot-id": 12, "type": "branch"}
    assert new.refs["audit"] == {"snapshot-id": 11, "type": "tag", "note": "n"}
    assert new.json["statistics"] == [{"snapshot-id": 11, "x": 1}]
    assert new.last_updated_ms == metadata.last_updated_ms, "time does not go back"
    assert metadata.json == foreign, "nothing is changed in place"
    gone = updates_of.apply_updates(new, [updates_of.remove_snapshot_ref("main")], NOW)
    assert gone.current_snapshot is None


def test_the_log_of_metadata_is_bounded() -> None:
    metadata = updates_of.apply_updates(table(), [updates_of.set_properties({updates_of.PREVIOUS_VERSIONS: "3"})], NOW)
    for number in range(10):
        metadata = updates_of.apply_updates(metadata, [], NOW + number, f"m{number}")
    assert [entry["metadata-file"] for entry in metadata.json["metadata-log"]] == ["m7", "m8", "m9"]


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (b"", "m of an|in m is damaged"),
        (b"[]", "it is no JSON object"),
        (b"\x1f\x8bxx", "is damaged"),
        (b"{}", "'format-version'"),
        (json.dumps({**table().json, "schemas": []}).encode(), "in m is damaged"),
        (json.dumps({"format-version": 3}).encode(), "it lacks table-uuid, location"),
        (json.dumps({**table().json, "format-version": 4}).encode(), "format version 4; this version supports 2 and 3"),
        (json.dumps({**table().json, "format-version": 1}).encode(), r"format version 1; .*'format-version' = '2'"),
    ],
)
def test_metadata_that_cannot_be_read(value: bytes, problem: str) -> None:
    with pytest.raises(TerminalError, match=problem):
        parse_metadata(value, "m")


def test_metadata_of_others() -> None:
    compressed = parse_metadata(gzip.compress(table().to_bytes()), "m")
    assert compressed.properties == {"owner": "p"}
    without = {name: value for name, value in committed().json.items() if name != "refs"}
    found = parse_metadata({**without, "format-version": 2}, "m")
    assert found.current_snapshot is not None and found.current_snapshot.snapshot_id == 11
    assert parse_metadata({**without, "current-snapshot-id": -1}, "m").current_snapshot is None
    missing = parse_metadata({**without, "snapshots": []}, "m")
    with pytest.raises(TerminalError, match="the current snapshot 11 of the Iceberg table at s3://b/shop/t is missing"):
        _ = missing.current_snapshot
    old = TableSnapshot({"snapshot-id": 5, "parent-snapshot-id": -1, "timestamp-ms": 1, "manifests": ["a"]})
    assert (old.parent_snapshot_id, old.sequence_number, old.summary) == (None, 0, {})
    with pytest.raises(TerminalError, match="snapshot 5 .* has no manifest list"):
        _ = old.manifest_list


# ---------------------------------------------------------------- expiry


def test_ids_of_snapshots() -> None:
    ids = {new_snapshot_id() for _ in range(1000)}
    assert len(ids) == 1000 and min(ids) > 0 and max(ids) < 1 << 63


HOUR = 3_600_000


def history(ages_hours: Sequence[float]) -> dict[int, TableSnapshot]:
    """Snapshots 1, 2, ... of one branch, each as old as that."""
    return {
        number: TableSnapshot(
            {
                "snapshot-id": number,
                "parent-snapshot-id": number - 1,
                "sequence-number": number,
                "timestamp-ms": NOW - int(age * HOUR),
            }
        )
        for number, age in enumerate(ages_hours, 1)
    }


def branch(number: int, **limits: int) -> dict[str, Any]:
    return {"snapshot-id": number, "type": "branch", **{key.replace("_", "-"): value for key, value in limits.items()}}


@pytest.mark.parametrize(
    ("refs", "properties", "max_count", "expired"),
    [
        ({"main": branch(5)}, {}, None, []),
        ({"main": branch(5)}, {"history.expire.max-snapshot-age-ms": str(2 * HOUR)}, None, [1, 2]),
        ({"main": branch(5, max_snapshot_age_ms=HOUR // 2)}, {}, None, [1, 2, 3, 4]),
        ({"main": branch(5, max_snapshot_age_ms=HOUR // 2, min_snapshots_to_keep=3)}, {}, None, [1, 2]),
        ({"main": branch(5, max_snapshot_age_ms=1)}, {"history.expire.min-snapshots-to-keep": "2"}, None, [1, 2, 3]),
        ({"main": branch(5)}, {}, 2, [1, 2, 3]),
        ({"main": branch(5, min_snapshots_to_keep=4)}, {}, 2, [1]),
        ({"main": branch(5), "t": {"snapshot-id": 2, "type": "tag"}}, {}, 2, [1, 3]),
        ({"main": branch(5), "b": branch(3)}, {}, 1, [4]),
        ({"main": branch(5), "b": branch(3, max_snapshot_age_ms=1)}, {}, 1, [1, 2, 4]),
        ({}, {}, 1, []),
    ],
    ids=str,
)
def test_snapshots_that_expire(
    refs: dict[str, Any], properties: dict[str, str], max_count: int | None, expired: list[int]
) -> None:
    assert expired_snapshots(history([4, 3, 2, 1, 0]), refs, properties, NOW, max_count=max_count) == expired


@given(
    st.lists(st.floats(0, 9), min_size=1, max_size=12),
    st.dictionaries(st.sampled_from("tuv"), st.integers(0, 99), max_size=3),
    st.integers(0, 9),
    st.integers(1, 5),
    st.none() | st.integers(1, 9),
)
def test_what_may_still_be_read_never_expires(
    ages: list[float], tags: dict[str, int], max_age: int, at_least: int, max_count: int | None
) -> None:
    snapshots = history(sorted(ages, reverse=True))
    newest = len(ages)
    refs = {name: {"snapshot-id": number % newest + 1, "type": "tag"} for name, number in tags.items()}
    refs["main"] = branch(newest, min_snapshots_to_keep=at_least)
    properties = {"history.expire.max-snapshot-age-ms": str(max_age * HOUR)}
    expired = expired_snapshots(snapshots, refs, properties, NOW, max_count=max_count)
    assert not {*expired} & {ref["snapshot-id"] for ref in refs.values()}
    assert not {*expired} & {newest - back for back in range(at_least)}
    for number in expired:
        too_old = NOW - snapshots[number].timestamp_ms > max_age * HOUR
        assert too_old or (max_count is not None and newest - number >= max_count)
    if max_count is None:
        young = [n for n in snapshots if NOW - snapshots[n].timestamp_ms <= max_age * HOUR]
        assert not {*young} & {*expired}
    assert [s.snapshot_id for s in ancestors_of(snapshots, newest)] == [*range(newest, 0, -1)]


def test_refs_that_expire() -> None:
    refs = {
        "main": branch(1),
        "old": branch(2),
        "young": branch(5),
        "own": branch(2, max_ref_age_ms=100 * HOUR),
        "lost": branch(99),
    }
    properties = {"history.expire.max-ref-age-ms": str(2 * HOUR)}
    assert expired_refs(history([4, 3, 2, 1, 0]), refs, properties, NOW) == ["old"]
    assert expired_refs(history([4, 3, 2, 1, 0]), refs, {}, NOW) == []
