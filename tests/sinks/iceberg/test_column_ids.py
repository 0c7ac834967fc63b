"""Columns of data files are known by their field ids: what they are called there, now or before, does not matter."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_cdc.model.errors import TerminalError
from airflow_provider_cdc.model.schema import SEQ_COLUMN
from airflow_provider_cdc.sinks.files.parquet import read_file, write_file
from airflow_provider_cdc.sinks.files.stored_columns import identified_field, identified_schema
from airflow_provider_cdc.sinks.iceberg.format import table_updates
from airflow_provider_cdc.sinks.iceberg.format.manifests import ContentFile
from airflow_provider_cdc.sinks.iceberg.format.schema import NAME_MAPPING_PROPERTY, name_mapping_of, new_schema
from airflow_provider_cdc.sinks.iceberg.format.schema_changes import SchemaEditor
from airflow_provider_cdc.sinks.iceberg.format.table_metadata import TableMetadata
from airflow_provider_cdc.sinks.iceberg.format.types import PrimitiveType
from airflow_provider_cdc.sinks.iceberg.format.values import encode_value
from airflow_provider_cdc.sinks.iceberg.log.column_ids import identify_columns
from airflow_provider_cdc.sinks.iceberg.table import IcebergSinkTable
from airflow_provider_cdc.sinks.protocol import Fence, Truncate, Upsert
from airflow_provider_cdc.sinks.scan_tasks import plan_table_scan
from airflow_provider_cdc.sinks.storage.local_storage import LocalStorage
from tests.sinks.conformance import KEYED
from tests.sinks.iceberg.test_table import FENCE, READERS, make_table, other_writer, rows, upsert
from tests.support.iceberg_catalogs import CatalogFolderTable
from tests.support.iceberg_sink import metadata_file

MERGES = [(), (".*[.].*",)]


def change_schema(other: CatalogFolderTable, change: Callable[[SchemaEditor], None]) -> None:
    """As ALTER TABLE of another client does."""
    metadata = other.metadata
    editor = SchemaEditor(metadata.current_schema, metadata.last_column_id, metadata.format_version)
    change(editor)
    schema = editor.build_schema(max(metadata.schemas) + 1)
    other.update([table_updates.add_schema(schema, editor.last_column_id), table_updates.set_current_schema()])
    assert other.outcome == "done"


def values(target: IcebergSinkTable) -> dict[int, str | None]:
    """The texts by key: as tasks read them, as a whole, and as other readers do."""
    tasks, _ = plan_table_scan(target)
    scanned = [part for task in tasks for part in task.read_rows(["id", "v.w"])]
    found = [pa.concat_tables(scanned), target.read()[0], *(read(metadata_file(target)) for read in READERS)]
    listed = [dict(zip(r["id"].to_pylist(), r["v.w"].to_pylist(), strict=True)) for r in found]
    assert all(one == listed[0] for one in listed), listed
    return listed[0]


def compact(target: IcebergSinkTable) -> None:
    """All files become one, unless they are already."""
    work = target.plan_compactions(purge=True)
    assert target.commit_compactions([(c, c.run()) for c in work]) == len(work)


@pytest.mark.parametrize("copies", MERGES)
def test_a_column_that_others_have_renamed_and_renamed_back(tmp_path: Path, copies: tuple[str, ...]) -> None:
    """The file from in between has its values under the other name."""
    target = make_table(tmp_path, copy_on_write_tables=copies)
    upsert(target, 1, 1, 2)
    other = other_writer(target)
    change_schema(other, lambda editor: editor.rename_column("v.w", "w"))
    theirs = rows((8, "eight", 1, "c"), (9, "nine", 1, "c"))
    other.commit(other.write_rows(theirs.rename_columns(["id", "w", *theirs.column_names[2:]])))
    change_schema(other, lambda editor: editor.rename_column("w", "v.w"))
    assert values(target) == {1: "v1", 2: "v1", 8: "eight", 9: "nine"}
    upsert(target, 2, 1, 8)
    assert values(target) == {1: "v2", 2: "v1", 8: "v2", 9: "nine"}
    compact(target)
    assert values(target) == {1: "v2", 2: "v1", 8: "v2", 9: "nine"}


@pytest.mark.parametrize("copies", MERGES)
def test_columns_that_others_have_exchanged(tmp_path: Path, copies: tuple[str, ...]) -> None:
    """Even the key, and twice: the names are those of the table, and the file from in between has the others."""
    target = make_table(tmp_path, KEYED, copy_on_write_tables=copies)
    upsert(target, 1, 1)
    other = other_writer(target)

    def exchange(editor: SchemaEditor) -> None:
        editor.rename_column("_cdc_seq", "x")
        editor.rename_column("id", "_cdc_seq")
        editor.rename_column("x", "id")

    change_schema(other, exchange)
    theirs = rows((2, "two", 5, "c"))
    names = ["_cdc_seq", "v.w", "id", *theirs.column_names[3:]]
    other.commit(other.write_rows(theirs.rename_columns(names).cast(other_columns(other, names))))
    change_schema(other, exchange)
    assert values(target) == {1: "v1", 2: "two"}
    upsert(target, 3, 2)
    assert values(target) == {1: "v1", 2: "two"}, "its change is older"
    upsert(target, 6, 2)
    assert values(target) == {1: "v1", 2: "v6"}


def other_columns(other: CatalogFolderTable, names: list[str]) -> pa.Schema:
    schema = other.metadata.current_schema.arrow_schema()
    return pa.schema([pa.field(name, schema.field(name).type) for name in names])


def test_old_values_of_a_dropped_column_do_not_come_back(tmp_path: Path) -> None:
    """A file of this project that has the column of the same name, with another id."""
    target = make_table(tmp_path)
    upsert(target, 1, 1)
    log = target.load_log()
    (file,) = log.files.values()
    editor = SchemaEditor(log.metadata.current_schema, log.metadata.last_column_id, 3)
    editor.drop_column("v.w")
    editor.add_column("v.w", pa.string())
    schema = identify_columns(KEYED.sink_schema, editor.build_schema(1), {}, "Iceberg table t")
    read = read_file(target.storage, file.path, schema, ["v.w", "id"], may_lack_columns=True)
    assert read.to_pylist() == [{"v.w": None, "id": 1}]
    assert read_file(target.storage, file.path, log.identify_columns(KEYED.sink_schema))["v.w"].to_pylist() == ["v1"]


def add_file_without_ids(target: IcebergSinkTable, table: pa.Table, **properties: str) -> None:
    other = other_writer(target)
    path = Path(target.storage.location("data/theirs.parquet"))
    path.parent.mkdir(exist_ok=True)
    pq.write_table(table, path)
    other.commit(
        [ContentFile(f"{other.metadata.location}/data/theirs.parquet", table.num_rows, path.stat().st_size)],
        properties={name.replace("__", "."): value for name, value in properties.items()},
    )
    assert other.outcome == "done"


def test_a_file_without_field_ids_is_refused(tmp_path: Path) -> None:
    target = make_table(tmp_path)
    upsert(target, 1, 1)
    add_file_without_ids(target, rows((2, "two", 1, "c")))
    for attempt in (lambda: target.read(), lambda: upsert(target, 2, 2), lambda: compact(target)):
        with pytest.raises(TerminalError) as raised:
            attempt()
        assert "data/theirs.parquet of the Iceberg table shop.orders has no field ids" in raised.value.message
        assert "schema.name-mapping.default" in raised.value.remedy


def test_a_name_mapping_says_which_columns_such_a_file_has(tmp_path: Path) -> None:
    """By any of the names; a column that it does not mention is NULL."""
    target = make_table(tmp_path)
    upsert(target, 1, 1)
    mapping = name_mapping_of(other_writer(target).metadata.current_schema.fields)
    mapping[1]["names"] = ["old name", "v.w"]
    theirs = rows((2, "two", 1, "c"))
    add_file_without_ids(
        target,
        theirs.rename_columns(["id", "old name", *theirs.column_names[2:]]),
        **{NAME_MAPPING_PROPERTY: json.dumps(mapping)},
    )
    assert {row["id"]: row["v.w"] for row in target.read()[0].to_pylist()} == {1: "v1", 2: "two"}
    compact(target)
    assert values(target) == {1: "v1", 2: "two"}
    damaged = other_writer(target)
    damaged.commit(properties={NAME_MAPPING_PROPERTY: "[1]"})
    with pytest.raises(TerminalError, match="schema.name-mapping.default of the Iceberg table shop.orders is damaged"):
        target.read()


# ---------------------------------------------------------------- defaults

DEFAULTS: tuple[tuple[pa.DataType, Any, Any], ...] = (
    (pa.int8(), -5, -5),
    (pa.int64(), 2**62, 2**62),
    (pa.float32(), 0.1, pa.scalar(0.1, pa.float32()).as_py()),
    (pa.float64(), -0.0, -0.0),
    (pa.bool_(), True, True),
    (pa.string(), "é'", "é'"),
    (pa.binary(), b"\x00\xff", b"\x00\xff"),
    (pa.decimal128(38, 10), -(10**38 - 1), Decimal("-9999999999999999999999999999.9999999999")),
    (pa.decimal128(5, 0), 12, Decimal(12)),
    (pa.date32(), -1, pa.scalar(-1, pa.int32()).cast(pa.date32()).as_py()),
    (pa.timestamp("us"), 1, pa.scalar(1, pa.timestamp("us")).as_py()),
    (pa.timestamp("us", tz="UTC"), -1, pa.scalar(-1, pa.timestamp("us", tz="UTC")).as_py()),
)


@pytest.mark.parametrize(("kind", "default", "expected"), DEFAULTS, ids=[str(one[0]) for one in DEFAULTS])
def test_a_file_without_a_column_has_its_default(tmp_path: Path, kind: Any, default: Any, expected: Any) -> None:
    storage, columns = LocalStorage(str(tmp_path)), pa.schema([("id", pa.int64())])
    first = new_schema(columns, 3)
    written = identify_columns(first.arrow_schema(), first, {}, "table")
    write_file(storage, "a.parquet", written, [pa.table({"id": [1, 2]})], None)
    editor = SchemaEditor(first, 1, 3)
    editor.add_column("n", kind, default=default)
    altered = editor.build_schema(1)
    schema = identify_columns(pa.schema([("n", kind), ("id", pa.int64())]), altered, {}, "table")
    read = read_file(storage, "a.parquet", schema)
    assert read["n"].to_pylist() == [expected, expected] and read["n"].type == kind
    write_file(storage, "b.parquet", schema, [read.set_column(0, "n", pa.nulls(2, kind))], None)
    assert read_file(storage, "b.parquet", schema)["n"].to_pylist() == [None, None], "the file has it"


def test_a_default_that_is_damaged(tmp_path: Path) -> None:
    schema = new_schema(pa.schema([("n", pa.decimal128(5, 2))]), 3)
    json_schema = schema.to_json()
    json_schema["fields"][0]["initial-default"] = "x"
    metadata = TableMetadata({"schemas": [json_schema], "current-schema-id": 0})
    with pytest.raises(TerminalError, match="default value 'x' of a column of type decimal"):
        identify_columns(pa.schema([("n", pa.decimal128(5, 2))]), metadata.current_schema, {}, "table")


def test_columns_behind_a_struct(tmp_path: Path) -> None:
    """A struct has more than one leaf column."""
    storage = LocalStorage(str(tmp_path))
    fields = [
        pa.field(
            "s", pa.struct([("a", pa.int64()), ("b", pa.list_(pa.struct([("c", pa.int64()), ("d", pa.int64())])))])
        ),
        pa.field("n", pa.int64(), metadata={b"PARQUET:field_id": b"7"}),
    ]
    data = pa.table([[{"a": 1, "b": [{"c": 2, "d": 3}]}], [9]], schema=pa.schema(fields))
    pq.write_table(data, tmp_path / "a.parquet")
    schema = identified_schema([identified_field(pa.field("m", pa.int64()), 7)], "table")
    assert read_file(storage, "a.parquet", schema).to_pylist() == [{"m": 9}]


# ---------------------------------------------------------------- rows without a _cdc_seq


@pytest.mark.parametrize("is_compacted", [False, True])
@pytest.mark.parametrize("copies", MERGES)
def test_rows_that_others_have_inserted_are_older_than_all_others(
    tmp_path: Path, copies: tuple[str, ...], is_compacted: bool
) -> None:
    """Their ``_cdc_seq`` is NULL, which bounds leave out: changes replace them, and a TRUNCATE removes them."""
    target, big = make_table(tmp_path, copy_on_write_tables=copies), 2**60 + 1
    upsert(target, big, 1, 2)
    other = other_writer(target)
    theirs = rows((8, "eight", 0, "c"), (9, "nine", big, "c"), (10, "ten", 0, "c"))
    (file,) = other.write_rows(theirs.set_column(2, SEQ_COLUMN, pa.array([None, big, None], pa.int64())))
    number, bound = other.metadata.current_schema.columns[SEQ_COLUMN].id, encode_value(PrimitiveType("long"), big)
    bounds = [{**(known or {}), number: bound} for known in (file.lower_bounds, file.upper_bounds)]
    counts = {**(file.null_value_counts or {}), number: 2}
    other.commit(
        [msgspec.structs.replace(file, lower_bounds=bounds[0], upper_bounds=bounds[1], null_value_counts=counts)]
    )
    if is_compacted:
        compact(target)
    upsert(target, big + 1, 8)
    upsert(target, big - 1, 9)
    assert values(target) == {1: f"v{big}", 2: f"v{big}", 8: f"v{big + 1}", 9: "nine", 10: "ten"}
    assert target.commit(lambda _: Truncate(big), {}, Fence("epoch", 1))
    assert values(target) == {1: f"v{big}", 2: f"v{big}", 8: f"v{big + 1}", 9: "nine"}


def test_all_rows_of_a_file_are_without_a_seq(tmp_path: Path) -> None:
    target = make_table(tmp_path)
    upsert(target, 5, 1)
    other = other_writer(target)
    theirs = rows((8, "eight", 0, "c"))
    other.commit(other.write_rows(theirs.set_column(2, SEQ_COLUMN, pa.nulls(1, pa.int64()))))
    changes = rows((8, None, 6, "d"))
    assert target.commit(lambda _: Upsert(changes), {}, FENCE)
    assert values(target) == {1: "v5"}
