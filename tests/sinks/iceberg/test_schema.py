"""Schemas by field ids, and changes of them that are metadata only."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.table.name_mapping import create_mapping_from_schema

from airflow_provider_cdc.model.errors import NotReadyError, TerminalError
from airflow_provider_cdc.sinks.iceberg.format.schema import IcebergSchema, name_mapping_of, new_schema, parse_schema
from airflow_provider_cdc.sinks.iceberg.format.schema_changes import SchemaEditor
from tests.sinks.iceberg.test_types import nested_json

COLUMNS = pa.schema(
    [
        pa.field("id", pa.int32()),
        pa.field("v", pa.list_(pa.float32())),
        pa.field("a.b", pa.int16()),
        pa.field("price", pa.decimal128(9, 2)),
        pa.field("ratio", pa.float32()),
    ]
)


def table_schema(version: int = 3) -> IcebergSchema:
    return new_schema(COLUMNS, version, identifiers=["id"], docs={"price": "in euros"})


def editor(version: int = 3, partitions: tuple[int, ...] = ()) -> SchemaEditor:
    return SchemaEditor(table_schema(version), 20, version, partitions)


def as_pyiceberg(schema: IcebergSchema) -> Schema:
    return Schema.model_validate_json(json.dumps(schema.to_json()))


def test_a_new_schema() -> None:
    schema = table_schema()
    assert [(f.id, f.name, str(f.type), f.required) for f in schema.fields] == [
        (1, "id", "int", True),
        (2, "v", "list<float>", False),
        (3, "a.b", "int", False),
        (4, "price", "decimal(9, 2)", False),
        (5, "ratio", "float", False),
    ]
    assert schema.highest_field_id == 6, "the element of the list"
    assert schema.identifier_field_ids == (1,) and schema.require_column("price").doc == "in euros"
    theirs = as_pyiceberg(schema)
    assert theirs.identifier_field_ids == [1] and theirs.highest_field_id == 6
    assert [f.metadata[b"PARQUET:field_id"] for f in schema.arrow_schema()] == [b"1", b"2", b"3", b"4", b"5"]
    assert schema.arrow_schema().field("a.b").type == pa.int32()


@given(nested_json(), st.dictionaries(st.sampled_from(["x-note", "future"]), st.integers()))
def test_what_others_have_written_is_written_again(kind: Any, other: dict[str, int]) -> None:
    column = {"id": 500, "name": "c", "required": False, "type": kind, "doc": "a", **other}
    value = {"type": "struct", "schema-id": 3, "fields": [column], **other}
    ours = parse_schema(value).to_json()
    assert parse_schema(ours) == parse_schema(value)
    # Only the spelling of types changes.
    assert json.dumps(ours).replace(" ", "") == json.dumps({**value, **ours, "fields": ours["fields"]}).replace(" ", "")
    assert as_pyiceberg(parse_schema(value)) == Schema.model_validate_json(json.dumps(value))
    assert {k: v for k, v in ours["fields"][0].items() if k != "type"} == {
        k: v for k, v in column.items() if k != "type"
    }
    assert {k: v for k, v in ours.items() if k != "fields"} == {k: v for k, v in value.items() if k != "fields"}


@pytest.mark.parametrize("value", [{}, {"fields": [{}]}, {"fields": 1}, {"fields": [{"id": 1, "name": "a"}]}])
def test_a_damaged_schema(value: Any) -> None:
    with pytest.raises(TerminalError, match="an Iceberg schema is damaged"):
        parse_schema(value)


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (["id", "ID"], "column ID: there is also a column id"),
        (["_row_id"], "column _row_id: readers of Iceberg tables have a column of this name"),
    ],
)
def test_names_that_readers_cannot_distinguish(names: list[str], problem: str) -> None:
    with pytest.raises(NotReadyError, match=problem):
        new_schema(pa.schema([(name, pa.int32()) for name in names]), 3)


def test_a_column_that_comes_back_has_another_id() -> None:
    change = editor()
    change.drop_column("ratio")
    change.add_column("ratio", pa.float32())
    schema = change.build_schema(1)
    assert schema.require_column("ratio").id == 21 and change.last_column_id == 21, "20 was used once"
    change.add_column("w", pa.list_(pa.float32()))
    assert change.build_schema(2).require_column("w").type.element_id == 23  # type: ignore[union-attr]
    assert change.last_column_id == 23


def test_a_renamed_column_keeps_its_id_and_its_place() -> None:
    change = editor()
    change.rename_column("v", "w")
    change.rename_column("w", "x.y")
    assert [(f.id, f.name) for f in change.build_schema(1).fields][:3] == [(1, "id"), (2, "x.y"), (3, "a.b")]
    with pytest.raises(NotReadyError, match="column ID: there is also a column id"):
        change.rename_column("x.y", "ID")
    change.rename_column("x.y", "X.Y")
    change.order_columns(["ratio", "price", "a.b", "X.Y", "id"])
    assert [f.id for f in change.build_schema(1).fields] == [5, 4, 3, 2, 1]
    with pytest.raises(ValueError, match="not the columns"):
        change.order_columns(["ratio"])


def test_wider_types_are_metadata() -> None:
    change = editor()
    change.promote_column("id", pa.int64())
    change.promote_column("a.b", pa.int32())  # 16 bits are stored as 32
    change.promote_column("price", pa.decimal128(20, 2))
    change.promote_column("ratio", pa.float64())
    schema = change.build_schema(1)
    assert [str(f.type) for f in schema.fields] == ["long", "list<float>", "int", "decimal(20, 2)", "double"]
    assert [f.id for f in schema.fields] == [1, 2, 3, 4, 5]
    as_pyiceberg(table_schema()).check_format_version_compatibility(3)
    assert as_pyiceberg(schema).find_field("id").field_type.__class__.__name__ == "LongType"


@pytest.mark.parametrize(
    ("name", "kind"),
    [("id", pa.string()), ("price", pa.decimal128(20, 3)), ("price", pa.decimal128(5, 2)), ("v", pa.int64())],
)
def test_other_types_are_refused(name: str, kind: pa.DataType) -> None:
    with pytest.raises(TerminalError, match=f"column {name} of the Iceberg table cannot change: its type cannot"):
        editor().promote_column(name, kind)


def test_a_default_is_free_in_version_3() -> None:
    change = editor()
    change.add_column("n", pa.int32(), required=True, default=7, doc="added")
    column = change.build_schema(1).require_column("n")
    assert column.to_json() == {
        "id": 21,
        "name": "n",
        "required": True,
        "type": "int",
        "doc": "added",
        "initial-default": 7,
        "write-default": 7,
    }
    change.set_write_default("n", 8)
    column = change.build_schema(1).require_column("n")
    assert (column.initial_default, column.write_default) == (7, 8), "existing rows are as before"
    assert as_pyiceberg(change.build_schema(1)).find_field("n").initial_default == 7
    with pytest.raises(TerminalError, match="column n .*: it is NOT NULL, so its default cannot be NULL"):
        change.set_write_default("n", None)


def test_version_2_has_no_defaults() -> None:
    with pytest.raises(TerminalError, match="format version 2 has no default of int"):
        editor(2).add_column("n", pa.int32(), default=7)
    with pytest.raises(TerminalError, match="column n .*: it is NOT NULL and has no default"):
        editor(3).add_column("n", pa.int32(), required=True)
    change = editor(2)
    change.add_column("n", pa.int32())
    with pytest.raises(TerminalError, match="format version 2 has no default"):
        change.set_write_default("n", 7)


def test_what_identifies_or_partitions_rows_stays() -> None:
    with pytest.raises(TerminalError, match="column id .*: it identifies rows or partitions"):
        editor().drop_column("id")
    with pytest.raises(TerminalError, match="column price .*: it identifies rows or partitions"):
        editor(partitions=(4,)).drop_column("price")
    with pytest.raises(TerminalError, match="column id .*: it identifies rows, so it cannot be NULL"):
        editor().make_optional("id")
    with pytest.raises(TerminalError, match="column nope .*: there is no such column"):
        editor().drop_column("nope")


def test_null_and_comments() -> None:
    change = SchemaEditor(new_schema(COLUMNS, 3, required=["price"]), 6, 3)
    change.make_optional("price")
    change.set_doc("price", "new")
    column = change.build_schema(1).require_column("price")
    assert (column.required, column.doc) == (False, "new")
    assert not change.build_schema(9).has_same_fields(new_schema(COLUMNS, 3, required=["price"]))
    assert SchemaEditor(table_schema(), 6, 3).build_schema(9).has_same_fields(table_schema())


def test_a_date_that_partitions_stays_a_date() -> None:
    schema = new_schema(pa.schema([("d", pa.date32())]), 3)
    SchemaEditor(schema, 1, 3).promote_column("d", pa.timestamp("us"))
    with pytest.raises(TerminalError, match="column d .*: it partitions the table"):
        SchemaEditor(schema, 1, 3, (1,)).promote_column("d", pa.timestamp("us"))


@given(nested_json())
def test_name_mappings_as_pyiceberg_has_them(kind: Any) -> None:
    value = {"type": "struct", "schema-id": 0, "fields": [{"id": 500, "name": "c", "required": False, "type": kind}]}
    theirs = create_mapping_from_schema(Schema.model_validate_json(json.dumps(value)))
    assert name_mapping_of(parse_schema(value).fields) == json.loads(theirs.model_dump_json())


def test_the_columns_of_a_table() -> None:
    with pytest.raises(TerminalError, match="has no column nope, but id, v, a.b, price, ratio"):
        table_schema().require_column("nope")
    assert table_schema().primitive_type_of(2) is None and table_schema().primitive_type_of(99) is None
    assert str(table_schema().primitive_type_of(6)) == "float"
