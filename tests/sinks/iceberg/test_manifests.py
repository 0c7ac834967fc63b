"""Manifests and manifest lists: what is written is read, by pyiceberg too; files of others are read by field ids."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import fastavro
import msgspec
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import ManifestFile as PyManifestFile
from pyiceberg.manifest import read_manifest_list as read_their_list
from pyiceberg.typedef import Record

from airflow_provider_cdc.model.errors import TerminalError
from airflow_provider_cdc.sinks.iceberg.format.avro_files import read_records
from airflow_provider_cdc.sinks.iceberg.format.manifest_list import (
    ManifestContent,
    ManifestFile,
    PartitionSummary,
    assign_inherited,
    read_manifest_list,
    write_manifest_list,
)
from airflow_provider_cdc.sinks.iceberg.format.manifest_schemas import (
    LIST_NAMES,
    MANIFEST_NAMES,
    avro_name,
    decimal_bytes,
    manifest_list_schema,
    manifest_schema,
)
from airflow_provider_cdc.sinks.iceberg.format.manifests import (
    ContentFile,
    EntryStatus,
    FileContent,
    ManifestEntry,
    ManifestHeader,
    read_manifest,
    write_manifest,
)
from airflow_provider_cdc.sinks.iceberg.format.partition_spec import PartitionSpec, new_partition_spec
from airflow_provider_cdc.sinks.iceberg.format.schema import new_schema

SCHEMA = new_schema(
    pa.schema(
        [
            ("id", pa.int64()),
            ("at", pa.timestamp("us")),
            ("a.b/é", pa.string()),
            ("price", pa.decimal128(20, 2)),
            ("day", pa.date32()),
        ]
    ),
    3,
)
SPEC = new_partition_spec(
    SCHEMA,
    [
        *[("id", "bucket[8]"), ("at", "hour"), ("a.b/é", "identity"), ("price", "identity"), ("price", "truncate[5]")],
        ("day", "identity"),
    ],
)
NO_SPEC = PartitionSpec(0)
LONG = st.integers(0, (1 << 63) - 1)
PATHS = st.text("ab/é \0😀", min_size=1, max_size=5)


def header(
    content: ManifestContent = ManifestContent.DATA, spec: PartitionSpec = NO_SPEC, version: int = 3
) -> ManifestHeader:
    return ManifestHeader(version, content, spec, SCHEMA)


def metrics(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | st.dictionaries(st.integers(1, 2000), values, max_size=2)


def partition_values() -> st.SearchStrategy[dict[int, Any]]:
    unscaled = st.integers(-(10**20) + 1, 10**20 - 1)
    kinds: list[st.SearchStrategy[Any]] = [
        *[st.integers(0, 7), st.integers(-17259888, 70389527), PATHS],
        *[unscaled, unscaled, st.integers(-719528, 2932896)],
    ]
    return st.tuples(*(st.none() | kind for kind in kinds)).map(lambda values: dict(enumerate(values, 1000)))


@st.composite
def data_files(draw: st.DrawFn, spec: PartitionSpec = NO_SPEC) -> ContentFile:
    return ContentFile(
        draw(PATHS),
        draw(st.integers(0, 1 << 40)),
        draw(LONG),
        partition=draw(partition_values()) if spec.fields else {},
        column_sizes=draw(metrics(LONG)),
        value_counts=draw(metrics(LONG)),
        null_value_counts=draw(metrics(LONG)),
        nan_value_counts=draw(metrics(LONG)),
        lower_bounds=draw(metrics(st.binary())),
        upper_bounds=draw(metrics(st.binary())),
        split_offsets=draw(st.none() | st.lists(LONG, max_size=2)),
        sort_order_id=draw(st.none() | st.integers(0, 5)),
    )


@st.composite
def data_entries(draw: st.DrawFn, spec: PartitionSpec, version: int) -> ManifestEntry:
    file, status = draw(data_files(spec)), draw(st.sampled_from(EntryStatus))
    if status is EntryStatus.ADDED:
        return ManifestEntry(status, file, draw(st.none() | LONG), draw(st.none() | st.integers(1, 90)))
    if version == 3 and draw(st.booleans()):
        file = msgspec.structs.replace(file, first_row_id=draw(LONG))
    return ManifestEntry(status, file, draw(LONG), draw(st.integers(0, 90)), draw(st.integers(0, 90)))


def cases() -> st.SearchStrategy[tuple[int, PartitionSpec, list[ManifestEntry]]]:
    return st.tuples(st.sampled_from([2, 3]), st.sampled_from([NO_SPEC, SPEC])).flatmap(
        lambda c: st.tuples(st.just(c[0]), st.just(c[1]), st.lists(data_entries(c[1], c[0]), max_size=3))
    )


def inherited(entry: ManifestEntry, first_row_id: int | None) -> ManifestEntry:
    """As the specification says it, for snapshot 7 with sequence number 99."""
    return msgspec.structs.replace(
        entry,
        snapshot_id=7 if entry.snapshot_id is None else entry.snapshot_id,
        sequence_number=99 if entry.sequence_number is None else entry.sequence_number,
        file_sequence_number=99 if entry.file_sequence_number is None else entry.file_sequence_number,
        file=msgspec.structs.replace(entry.file, first_row_id=first_row_id),
    )


slow_to_draw = settings(suppress_health_check=[HealthCheck.too_slow], max_examples=60)


@slow_to_draw
@given(cases(), st.integers(0, 1000))
def test_what_is_written_is_read(case: tuple[int, PartitionSpec, list[ManifestEntry]], next_row_id: int) -> None:
    version, spec, entries = case
    data, manifest = write_manifest(header(spec=spec, version=version), entries, "file:///m.avro", 7)
    (committed,), after = assign_inherited([manifest], 99, next_row_id if version == 3 else None)
    expected, row_id = [], next_row_id
    for entry in entries:
        first = entry.file.first_row_id
        if version == 3 and entry.is_live and first is None:
            first, row_id = row_id, row_id + entry.file.record_count
        expected.append(inherited(entry, first if version == 3 else None))
    assert read_manifest(data, committed) == expected
    assert after is None if version == 2 else after is not None and after >= row_id
    assert committed.sequence_number == 99 and committed.manifest_length == len(data)
    explicit = [e.sequence_number for e in entries if e.is_live and e.sequence_number is not None]
    assert committed.min_sequence_number == min(explicit, default=99)
    listed = write_manifest_list([committed], version, 7, 6, 99, next_row_id)
    assert read_manifest_list(listed, "l") == [committed]


@slow_to_draw
@given(cases())
def test_manifests_as_pyiceberg_reads_them(case: tuple[int, PartitionSpec, list[ManifestEntry]]) -> None:
    version, spec, entries = case
    entries = [
        entry for entry in entries if not any(v is not None and v < -719162 for v in [entry.file.partition.get(1005)])
    ]
    data, manifest = write_manifest(header(spec=spec, version=version), entries, "file:///m.avro", 7)
    theirs = their_entries(data, manifest, version)
    assert len(theirs) == len(entries)
    for their, ours in zip(theirs, [inherited(entry, None) for entry in entries], strict=True):
        found = (int(their.status), their.snapshot_id, their.sequence_number, their.file_sequence_number)
        assert found == (ours.status, ours.snapshot_id, ours.sequence_number, ours.file_sequence_number)
        file = their.data_file
        assert (file.file_path, file.record_count, file.file_size_in_bytes) == (
            ours.file.file_path,
            ours.file.record_count,
            ours.file.file_size_in_bytes,
        )
        for name in ("column_sizes", "null_value_counts", "lower_bounds", "upper_bounds", "split_offsets"):
            assert getattr(file, name) == getattr(ours.file, name), name
        if spec.fields:
            found_values = [*file.partition]
            assert found_values[:3] == [ours.file.partition[n] for n in (1000, 1001, 1002)]
            unscaled = [None if v is None else int(v.scaleb(2)) for v in found_values[3:5]]
            assert unscaled == [ours.file.partition[n] for n in (1003, 1004)]


def their_entries(data: bytes, manifest: ManifestFile, version: Any) -> Sequence[Any]:
    class _Bytes(PyArrowFileIO):
        def new_input(self, location: str) -> Any:
            return _Input(data)

    ours = assign_inherited([manifest], 99, 0)[0][0]
    theirs = PyManifestFile.from_args(
        _table_format_version=version,
        manifest_path="file:///m.avro",
        manifest_length=len(data),
        partition_spec_id=0,
        content=0,
        sequence_number=99,
        min_sequence_number=ours.min_sequence_number,
        added_snapshot_id=7,
    )
    return theirs.fetch_manifest_entry(_Bytes(), discard_deleted=False)


class _Input:
    def __init__(self, data: bytes) -> None:
        self.data = data

    def open(self, seekable: bool = True) -> Any:
        return io.BytesIO(self.data)


def test_manifest_lists_as_pyiceberg_reads_them(tmp_path: Path) -> None:
    summaries = (PartitionSummary(True, None, b"\1\0\0\0", b"\7\0\0\0"), PartitionSummary(False, True))
    manifests = [
        ManifestFile("file:///a", 10, 0, ManifestContent.DATA, None, None, 5, 1, 2, 3, 4, 5, 6, summaries),
        ManifestFile("file:///b", 11, 1, ManifestContent.DELETES, 3, 2, 4, 1, partitions=()),
    ]
    assigned, next_row_id = assign_inherited(manifests, 8, 100)
    assert [(m.sequence_number, m.min_sequence_number, m.first_row_id) for m in assigned] == [(8, 8, 100), (3, 2, None)]
    assert next_row_id == 109, "added and existing rows"
    path = tmp_path / "list.avro"
    path.write_bytes(write_manifest_list(assigned, 3, 5, None, 8, 100))
    theirs = [*read_their_list(PyArrowFileIO().new_input(path.as_uri()))]
    for their, ours in zip(theirs, assigned, strict=True):
        for name in ManifestFile.__dataclass_fields__:
            if name not in ("partitions", "first_row_id", "content"):
                assert getattr(their, name) == getattr(ours, name), name
        assert int(their.content) == ours.content
    summary = (theirs[0].partitions or [])[0]
    assert (summary.contains_null, summary.lower_bound, summary.upper_bound) == (True, b"\1\0\0\0", b"\7\0\0\0")
    assert isinstance(theirs[0], Record)


def test_existing_manifests_keep_what_they_have() -> None:
    old = ManifestFile("a", 1, 0, ManifestContent.DATA, 3, 2, 4, 1, added_rows_count=10, first_row_id=0)
    new = replace(old, manifest_path="b", sequence_number=None, min_sequence_number=2, first_row_id=None)
    assert assign_inherited([old, new, new], 9, 50) == (
        [
            old,
            replace(new, sequence_number=9, min_sequence_number=2, first_row_id=50),
            replace(new, sequence_number=9, min_sequence_number=2, first_row_id=60),
        ],
        70,
    )


def test_a_manifest_of_a_table_that_was_upgraded_gets_row_ids() -> None:
    """Its files are existing, and have none."""
    files = [ContentFile("a", 10, 1), ContentFile("b", 5, 1), ContentFile("c", 7, 1)]
    entries = [
        ManifestEntry(EntryStatus.EXISTING, files[0], 1, 1, 1),
        ManifestEntry(EntryStatus.DELETED, files[1], 1, 1, 1),
        ManifestEntry(EntryStatus.EXISTING, files[2], 1, 2, 2),
    ]
    data, manifest = write_manifest(header(version=2), entries, "m", 2)
    before = assign_inherited([manifest], 3, None)[0][0]
    assert [e.file.first_row_id for e in read_manifest(data, before)] == [None, None, None]
    (after,), next_row_id = assign_inherited([before], 4, 0)
    assert [e.file.first_row_id for e in read_manifest(data, after)] == [0, None, 10]
    assert (next_row_id, after.sequence_number, after.min_sequence_number) == (17, 3, 1)


VECTOR = ContentFile(
    *("p.puffin", 3, 99, FileContent.POSITION_DELETES, "PUFFIN"),
    referenced_data_file="a.parquet",
    content_offset=4,
    content_size_in_bytes=50,
)


def test_deletion_vectors() -> None:
    entries = [
        ManifestEntry(EntryStatus.ADDED, VECTOR, 7),
        ManifestEntry(EntryStatus.ADDED, msgspec.structs.replace(VECTOR, content_offset=54), 7),
    ]
    data, manifest = write_manifest(header(ManifestContent.DELETES), entries, "m", 7)
    (committed,), next_row_id = assign_inherited([manifest], 99, 5)
    assert (committed.first_row_id, next_row_id, committed.added_rows_count) == (None, 5, 6)
    read = read_manifest(data, committed)
    assert read == [inherited(entry, None) for entry in entries] and read[0].file.is_deletion_vector
    assert read[0].as_deleted(8).snapshot_id == 8 and not read[0].as_deleted(8).is_live
    assert read[0].as_existing().sequence_number == 99


@pytest.mark.parametrize(
    ("head", "entry", "problem"),
    [
        (header(), ManifestEntry(1, VECTOR), "a manifest of data cannot list it"),
        (header(ManifestContent.DELETES), ManifestEntry(1, ContentFile("a", 1, 1)), "a manifest of deletes cannot"),
        (header(), ManifestEntry(0, ContentFile("a", 1, 1), 1, 1), "it is not new, and has no sequence numbers"),
        (header(), ManifestEntry(2, ContentFile("a", 1, 1), 1, None, 1), "it is not new, and has no sequence numbers"),
        (header(), ManifestEntry(1, ContentFile("a", 1, 1, first_row_id=1)), "it is new, and has a first_row_id"),
        (header(ManifestContent.DELETES, version=2), ManifestEntry(1, VECTOR), "format version 2 has neither"),
        (
            header(ManifestContent.DELETES),
            ManifestEntry(1, msgspec.structs.replace(VECTOR, referenced_data_file=None)),
            "without a data file or a place",
        ),
        (
            header(ManifestContent.DELETES),
            ManifestEntry(1, ContentFile("d.parquet", 1, 1, FileContent.POSITION_DELETES)),
            "allows no new files of position deletes",
        ),
    ],
)
def test_entries_that_no_reader_would_understand(head: ManifestHeader, entry: ManifestEntry, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        write_manifest(head, [entry], "m", 7)


def test_summaries_of_partitions() -> None:
    files: list[dict[int, Any]] = [
        {1000: 3, 1001: None, 1002: "b", 1003: -5, 1004: 0, 1005: 1},
        {1000: 1, 1002: "a", 1003: 300, 1005: -1},
    ]
    entries = [ManifestEntry(1, ContentFile("a", 1, 1, partition=values)) for values in files]
    _, manifest = write_manifest(header(spec=SPEC), entries, "m", 7)
    assert manifest.partitions == (
        PartitionSummary(False, None, b"\1\0\0\0", b"\3\0\0\0"),
        PartitionSummary(True),
        PartitionSummary(False, None, b"a", b"b"),
        PartitionSummary(False, None, b"\xfb", b"\1\x2c"),
        PartitionSummary(True, None, b"\0", b"\0"),
        PartitionSummary(False, None, b"\xff\xff\xff\xff", b"\1\0\0\0"),
    )


def test_summaries_of_floating_point_partitions() -> None:
    schema = new_schema(pa.schema([("f", pa.float64())]), 3)
    spec = new_partition_spec(schema, [("f", "identity")])
    values = [0.0, -0.0, float("nan")]
    entries = [ManifestEntry(1, ContentFile("a", 1, 1, partition={1000: value})) for value in values]
    _, manifest = write_manifest(ManifestHeader(3, ManifestContent.DATA, spec, schema), entries, "m", 7)
    assert manifest.partitions == (PartitionSummary(False, True, b"\0" * 7 + b"\x80", b"\0" * 8),)


def test_names_of_others() -> None:
    """Fields are known by their ids: older writers have other names, and partition fields any."""
    schema = json.loads(json.dumps(manifest_list_schema(2), default=str))
    schema.pop("__fastavro_parsed__", None), schema.pop("__named_schemas", None)
    for field in schema["fields"]:
        field["name"] = {"added_files_count": "added_data_files_count"}.get(field["name"], field["name"])
    record = {
        "manifest_path": "a",
        "manifest_length": 1,
        "partition_spec_id": 0,
        "content": 0,
        "sequence_number": 1,
        "min_sequence_number": 1,
        "added_snapshot_id": 3,
        "added_data_files_count": 4,
        **dict.fromkeys(["existing_files_count", "deleted_files_count", "added_rows_count"], 0),
        **dict.fromkeys(["existing_rows_count", "deleted_rows_count"], 0),
    }
    file = io.BytesIO()
    fastavro.writer(file, fastavro.parse_schema(schema), [record])
    assert read_manifest_list(file.getvalue(), "l")[0].added_files_count == 4


def test_a_manifest_list_of_version_1() -> None:
    fields = [
        {"name": "manifest_path", "type": "string", "field-id": 500},
        {"name": "manifest_length", "type": "long", "field-id": 501},
        {"name": "partition_spec_id", "type": "int", "field-id": 502},
        {"name": "added_snapshot_id", "type": ["null", "long"], "field-id": 503},
    ]
    file = io.BytesIO()
    record = {"manifest_path": "a", "manifest_length": 1, "partition_spec_id": 0, "added_snapshot_id": 3}
    fastavro.writer(file, {"type": "record", "name": "manifest_file", "fields": fields}, [record])
    (manifest,) = read_manifest_list(file.getvalue(), "l")
    assert (manifest.content, manifest.sequence_number, manifest.has_live_files) == (ManifestContent.DATA, 0, True)
    with pytest.raises(TerminalError, match="the Iceberg manifest a has no counts of rows"):
        assign_inherited([manifest], 1, 0)
    with pytest.raises(TerminalError, match="the Iceberg manifest a has no counts of rows"):
        write_manifest_list([manifest], 2, 1, None, 1)


@pytest.mark.parametrize("harm", [b"", b"PAR1", "short", "body"])
def test_a_damaged_file(harm: bytes | str) -> None:
    data, manifest = write_manifest(header(), [ManifestEntry(1, ContentFile("a", 1, 1), 7)], "s3://b/m.avro", 7)
    damaged = (
        harm if isinstance(harm, bytes) else data[:-20] if harm == "short" else data[:-24] + b"\0" * 8 + data[-16:]
    )
    with pytest.raises(TerminalError, match="s3://b/m.avro is damaged"):
        read_manifest(damaged, manifest)


def test_schemas_have_the_ids_of_the_specification() -> None:
    """As pyiceberg writes them in version 2; it writes none of version 3."""
    from pyiceberg.manifest import MANIFEST_ENTRY_SCHEMAS, MANIFEST_LIST_FILE_SCHEMAS

    for version in (2, 3):
        ours = ids_of(manifest_schema((), version))
        theirs = {f.field_id: f.name for f in MANIFEST_ENTRY_SCHEMAS[version].fields}
        their_file: Any = next(f for f in MANIFEST_ENTRY_SCHEMAS[version].fields if f.name == "data_file").field_type
        theirs |= {f.field_id: f.name for f in their_file.fields}
        common = ours.keys() & theirs.keys()
        assert {n: ours[n] for n in common} == {n: theirs[n] for n in common} and len(common) > 18
        assert {*ours} <= {*MANIFEST_NAMES}
        listed, expected = ids_of(manifest_list_schema(version)), MANIFEST_LIST_FILE_SCHEMAS[version].fields
        assert {f.field_id: f.name for f in expected}.items() <= listed.items() <= LIST_NAMES.items()


def ids_of(schema: Any) -> dict[int, str]:
    if isinstance(schema, list):
        return {n: name for part in schema for n, name in ids_of(part).items()}
    if not isinstance(schema, dict):
        return {}
    found = dict[int, str]()
    for field in schema.get("fields", ()):
        found |= {field["field-id"]: field["name"], **ids_of(field["type"])}
    return found | ids_of(schema.get("items"))


def test_names_that_avro_allows() -> None:
    assert [avro_name(n) for n in ("a_1", "a.b", "1a", "é", "a b")] == ["a_1", "a_x2Eb", "_1a", "_xE9", "a_x20b"]
    assert [decimal_bytes(p) for p in (1, 2, 3, 9, 18, 38)] == [1, 1, 2, 4, 8, 16]


def test_properties_of_a_manifest() -> None:
    data, _ = write_manifest(header(spec=SPEC), [], "m", 7)
    _, properties = read_records(data, MANIFEST_NAMES, "m")
    assert json.loads(properties["schema"]) == SCHEMA.to_json()
    assert json.loads(properties["partition-spec"]) == SPEC.to_json()["fields"]
    assert {n: v for n, v in properties.items() if "spec" not in n and n != "schema"} == {
        "schema-id": "0",
        "format-version": "3",
        "content": "data",
    }
    assert properties["partition-spec-id"] == "0"
