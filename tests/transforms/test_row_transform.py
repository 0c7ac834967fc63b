"""The row transform by itself: what becomes of rows and changes, with a model of a few lines beside it."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_cdc.model.column_policy import MASK, NULL, ColumnPolicy
from airflow_provider_cdc.model.schema import OP_COLUMN, SEQ_COLUMN, Column, TableSchema
from airflow_provider_cdc.transforms.row_transform import RowTransform

COLUMNS = (
    Column("id", "int", "int", False),
    Column("tenant", "int", "int", True),
    Column("name", "varchar", "varchar(10)", True, length=10, octets=40, charset="utf8mb4"),
)
KEYED = TableSchema("d", "t", COLUMNS, ("id",), condition="tenant = 1", condition_columns=("tenant",))
KEYLESS = KEYED.replace(key=())
#: Deleted rows stay: the last image that satisfied the condition is wanted.
SOFT = KEYED.replace(full_before_images=True)
Row = tuple[int, int | None, str | None]


def changes_of(table: TableSchema, *rows: tuple[str, int, int, int | None, str | None]) -> pa.Table:
    """Changes, each as (operation, seq, id, tenant, name)."""
    columns: list[list[Any]] = [[row[i] for row in rows] for i in (2, 3, 4, 1, 0)]
    columns.append([None] * len(rows))
    arrays = [pa.array(values, field.type) for values, field in zip(columns, table.row_schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=table.row_schema)


def outcome(table: TableSchema, changes: pa.Table, *, with_before_images: bool = False) -> list[tuple[str, int, int]]:
    """What is left of changes: (operation, id, seq)."""
    left = RowTransform(table).changes(changes, with_before_images=with_before_images)
    assert left.schema == table.sink_schema
    return list(zip(left[OP_COLUMN].to_pylist(), left["id"].to_pylist(), left[SEQ_COLUMN].to_pylist(), strict=True))


def test_nothing_to_do_copies_nothing() -> None:
    plain = KEYED.replace(condition=None, condition_columns=())
    rows = changes_of(plain, ("c", 1, 1, 1, "a"))
    assert RowTransform(plain).changes(rows) is rows and RowTransform(plain).rows(rows) is rows and plain.copy is plain


def test_what_becomes_of_changes_of_a_table_with_a_key() -> None:
    changes = changes_of(
        KEYED,
        ("c", 1, 1, 1, "in"),
        ("c", 2, 2, 2, "out"),  # nothing was there, and nothing comes
        ("c", 3, 3, None, "unknown"),
        ("u", 4, 1, 2, "leaves"),
        ("u", 5, 2, 1, "enters"),
        ("d", 6, 3, None, None),  # of a delete, only the key counts
    )
    assert outcome(KEYED, changes) == [("c", 1, 1), ("d", 1, 4), ("u", 2, 5), ("d", 3, 6)]


def test_what_becomes_of_changes_of_a_table_without_a_key() -> None:
    changes = changes_of(KEYLESS, ("d", 1, 1, 1, "was in"), ("c", 1, 1, 2, "is out"), ("d", 2, 1, 2, "was out"))
    assert outcome(KEYLESS, changes) == [("d", 1, 1)]


def test_old_images_beside_changes() -> None:
    """With them, a deleted row that stays has the values of before; elsewhere they only show that a key changed."""
    changes = changes_of(
        KEYED,
        *(("b", 1, 1, 1, "before"), ("u", 1, 1, 2, "leaves")),
        *(("b", 2, 2, 2, "out"), ("u", 2, 2, 3, "still out")),
        *(("b", 3, 3, 2, "out"), ("u", 3, 3, 1, "enters")),
        *(("b", 4, 4, 1, "in"), ("u", 4, 4, 1, "still in")),
        *(("b", 5, 5, 1, "in"), ("u", 5, 50, 1, "another key")),
        *(("b", 6, 6, 2, "out"), ("u", 6, 60, 1, "another key, enters")),
        *(("b", 7, 7, 1, "in"), ("u", 7, 70, 2, "another key, leaves")),
        ("d", 8, 8, 2, "out"),
        ("d", 9, 9, 1, "in"),
    )
    soft = RowTransform(SOFT).changes(changes, with_before_images=True)
    assert [*zip(*(soft[name].to_pylist() for name in (OP_COLUMN, "id", "name")), strict=True)] == [
        ("d", 1, "before"),
        ("u", 3, "enters"),
        ("u", 4, "still in"),
        *(("d", 5, "in"), ("u", 50, "another key")),
        ("u", 60, "another key, enters"),
        ("d", 7, "in"),
        ("d", 9, "in"),
    ]
    hard = outcome(KEYED, changes, with_before_images=True)
    assert [one[:2] for one in hard] == [
        *(("d", 1), ("d", 2), ("u", 3), ("u", 4)),
        *(("d", 5), ("u", 50), ("d", 6), ("u", 60), ("d", 7), ("d", 70), ("d", 8), ("d", 9)),
    ]
    plain = KEYED.replace(condition=None, condition_columns=())
    assert outcome(plain, changes.slice(8, 2), with_before_images=True) == [("d", 5, 5), ("u", 50, 5)]
    assert outcome(plain, changes.slice(0, 2), with_before_images=True) == [("u", 1, 1)]


def test_no_changes_are_left() -> None:
    """The snapshot may include all changes of a batch."""
    assert outcome(SOFT, changes_of(SOFT), with_before_images=True) == []


@pytest.mark.parametrize("table", [KEYED, SOFT, SOFT.replace(condition=None, condition_columns=())])
def test_old_images_of_keys_that_change_without_new_ones(table: TableSchema) -> None:
    """A chunk that was read later includes the new image."""
    alone = changes_of(table, ("b", 1, 1, 1, "moved"))
    assert outcome(table, alone, with_before_images=True) == [("d", 1, 1)]
    changes = changes_of(table, ("b", 1, 1, 1, "moved"), ("c", 2, 1, 2, "another row"), ("b", 3, 2, 1, "moved"))
    inserted = [] if table.condition else [("c", 1, 2)]
    assert outcome(table, changes, with_before_images=True) == [("d", 1, 1), *inserted, ("d", 2, 3)]


def test_columns_that_are_read_and_not_copied() -> None:
    table = KEYED.replace(excluded=("tenant",), policies=(ColumnPolicy("name", MASK, new_name="nick"),))
    assert [c.name for c in table.read_columns] == ["id", "tenant", "name"] and table.copy.condition is None
    assert table.sink_schema.names[:2] == ["id", "nick"] and table.copy.copy is table.copy
    rows = RowTransform(table).rows(changes_of(table, ("r", 1, 1, 1, "abc"), ("r", 1, 2, 2, "abc")))
    assert rows.select(["id", "nick"]).to_pylist() == [{"id": 1, "nick": "***"}] and rows.schema == table.sink_schema


def test_retained_columns_are_those_of_the_copy() -> None:
    old = Column("old", "varchar", "varchar(5)", True, length=5)
    table = KEYED.replace(condition=None, condition_columns=(), retained=(old,), policies=(ColumnPolicy("name", NULL),))
    rows = RowTransform(table).rows(changes_of(KEYED, ("r", 1, 1, 1, "abc")))
    assert rows.to_pylist()[0] | {"id": 1, "tenant": 1, "name": None, "old": None} == rows.to_pylist()[0]


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("with_before_images", [False, True])
def test_against_a_model(seed: int, with_before_images: bool) -> None:
    """A copy that applies what the transform makes of changes is the filtered source after each of them."""
    draw, source, copy = random.Random(seed), dict[int, Row](), dict[int, Row]()
    for seq in range(1, 200):
        rows = list[tuple[str, int, int, int | None, str | None]]()
        key, new = draw.randrange(8), (draw.randrange(8), draw.choice((1, 2, None)), draw.choice("abc"))
        if key not in source:
            source[key] = (key, *new[1:])
            rows.append(("c", seq, *source[key]))
        elif draw.random() < 0.3:
            rows.append(("d", seq, *source.pop(key)))
        else:
            old = source.pop(key)
            changed = new if new[0] not in source else (key, *new[1:])
            source[changed[0]] = changed
            if with_before_images:
                rows.append(("b", seq, *old))
            elif changed[0] != key:
                rows.append(("d", seq, *old))
            rows.append(("u", seq, *changed))
        left = RowTransform(KEYED).changes(changes_of(KEYED, *rows), with_before_images=with_before_images)
        for change in left.to_pylist():
            if change[OP_COLUMN] == "d":
                copy.pop(change["id"], None)
            else:
                copy[change["id"]] = (change["id"], change["tenant"], change["name"])
        assert copy == {key: row for key, row in source.items() if row[1] == 1}


def test_a_condition_is_parsed_once() -> None:
    """Not for each of the chunks of a table."""
    assert RowTransform(KEYED).condition is RowTransform(KEYED.replace()).condition
    other = KEYED.replace(condition="tenant = 2")
    assert RowTransform(other).condition is not RowTransform(KEYED).condition
    # What determines its meaning besides.
    assert RowTransform(KEYED.with_zero_dates("null")).condition is not RowTransform(KEYED).condition
