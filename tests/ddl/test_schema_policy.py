"""What a copy takes over of a change of its table's definition."""

from __future__ import annotations

import pytest

from airflow_provider_cdc.ddl.schema_policy import SchemaPolicy, check_reused_names, describe_change
from airflow_provider_cdc.ddl.token_cursor import DdlNotFollowed
from airflow_provider_cdc.model.schema import Column, TableSchema
from tests.sinks.conformance import nullable

ID = Column("id", "bigint", "bigint", nullable=False)
A, B, C = nullable("a", "int"), nullable("b", "varchar", "varchar(9)", charset="utf8mb4"), nullable("c", "date")
TABLE = TableSchema("d", "t", (ID, A, B), ("id",), comments=(("b", "of b"),))
LENIENT, IGNORE = SchemaPolicy.from_settings("lenient"), SchemaPolicy.from_settings("ignore")
EVOLVE = SchemaPolicy.from_settings("evolve")


def of(*columns: Column, key: tuple[str, ...] = ("id",), left_out: tuple[str, ...] = ()) -> TableSchema:
    return TableSchema("d", "t", (ID, *columns), key, left_out)


def names(table: TableSchema) -> tuple[list[str], list[str]]:
    """What is copied, and what is kept."""
    return [c.name for c in table.copied_columns], [c.name for c in table.retained]


def test_modes_and_lists() -> None:
    assert SchemaPolicy.from_settings("evolve") == SchemaPolicy("evolve", True, True, "all")
    assert SchemaPolicy.from_settings("lenient") == SchemaPolicy("lenient", True, False, "wider")
    assert SchemaPolicy.from_settings("ignore") == SchemaPolicy("ignore", False, False, "none")
    assert SchemaPolicy.from_settings("evolve", ["add.column"]) == SchemaPolicy("evolve", True, False, "none")
    assert SchemaPolicy.from_settings("evolve", [], ["add.column"]) == SchemaPolicy("evolve", False, True, "all")
    both = SchemaPolicy.from_settings("lenient", ["add.column", "alter.column.type"], ["add.column"])
    assert both == SchemaPolicy("lenient", False, False, "wider"), "what is excluded is not included"


@pytest.mark.parametrize(
    ("policy", "copied", "kept", "dropped"),
    [
        (EVOLVE, ["id", "a", "c"], [], ("b",)),
        (LENIENT, ["id", "a", "c"], ["b"], ()),
        (IGNORE, ["id", "a"], ["b"], ()),
    ],
    ids=["evolve", "lenient", "ignore"],
)
def test_a_column_goes_and_one_comes(
    policy: SchemaPolicy, copied: list[str], kept: list[str], dropped: tuple[str, ...]
) -> None:
    made = policy.decide_definition(TABLE, of(A, C))
    assert names(made) == (copied, kept) and made.removed == dropped
    assert made.sink_schema.names == [*copied, *kept, "_cdc_seq", "_cdc_op", "_cdc_ts"]
    assert ("b", "of b") in made.comments or not kept
    assert all(column.nullable for column in made.retained)
    assert TableSchema.from_json(made.to_json()).to_json() == made.to_json()
    # What comes next leaves it as it is.
    again = policy.decide_definition(
        made, made.replace(columns=(*made.columns, nullable("d", "int")), retained=(), removed=())
    )
    assert names(again)[1] == kept and again.removed == dropped
    # Read again, nothing of its name is left in a file.
    anew = policy.decide_definition(made, of(A, C), overwrites_rows=True)
    assert names(anew) == (copied, kept) and anew.removed == ()
    assert names(EVOLVE.decide_definition(made, of(A, C), overwrites_rows=True)) == (["id", "a", "c"], [])


def test_what_the_lists_leave_out_is_not_kept() -> None:
    made = LENIENT.decide_definition(TABLE, of(A, B, left_out=("b",)), overwrites_rows=True)
    assert names(made) == (["id", "a"], [])
    made = LENIENT.decide_definition(of(A, B, left_out=("b",)), of(A))
    assert names(made) == (["id", "a"], []) and made.removed == ()


def test_a_name_in_another_case_is_the_same_column() -> None:
    for policy in (LENIENT, IGNORE):
        assert names(policy.decide_definition(TABLE, of(A, B.replace(name="B")), overwrites_rows=True)) == (
            ["id", "a", "B"],
            [],
        )


def test_a_column_that_comes_back() -> None:
    """No file may have other values under its name."""
    for policy in (EVOLVE, LENIENT, IGNORE):
        without = policy.decide_definition(TABLE, of(A))
        back = policy.decide_definition(without, of(A, B))
        with pytest.raises(DdlNotFollowed, match="had a column b before"):
            check_reused_names(without, back, ["b"])
        again = policy.decide_definition(without, of(A, B), overwrites_rows=True)
        assert names(again) == (["id", "a", "b"], [])
    left_out = IGNORE.decide_definition(TABLE, of(A, B, C))
    check_reused_names(TABLE, left_out, ["c"])
    assert names(left_out) == (["id", "a", "b"], []) and left_out.excluded == ("c",)
    # It stays left out until it is read again under another policy, whatever comes in between.
    later = EVOLVE.decide_definition(left_out, left_out.replace(columns=(*left_out.columns, nullable("d", "int"))))
    assert names(later)[0] == ["id", "a", "b", "d"] and later.auto_excluded == ("c",)
    assert TableSchema.from_json(later.to_json()).auto_excluded == ("c",)
    again = EVOLVE.decide_definition(later, of(A, B, C, nullable("d", "int")), overwrites_rows=True)
    assert again.excluded == again.auto_excluded == ()


def test_a_table_without_a_usable_key() -> None:
    before, after = TABLE.replace(key=()), of(A).replace(key=())
    for policy in (LENIENT, IGNORE):
        with pytest.raises(DdlNotFollowed, match="column b is gone, which a table without a usable key cannot keep"):
            policy.decide_definition(before, after, overwrites_rows=True)
        assert names(policy.decide_definition(before, after, overwrites_rows=True, is_requested=True)) == (
            ["id", "a"],
            [],
        )
        with pytest.raises(DdlNotFollowed, match="column b is gone"):  # it was kept, and the key is gone
            policy.decide_definition(policy.decide_definition(TABLE, of(A)), after, overwrites_rows=True)
    assert EVOLVE.decide_definition(before, after, overwrites_rows=True).retained == ()


def test_a_new_column_of_the_key() -> None:
    with pytest.raises(DdlNotFollowed, match="new column c is part of the key"):
        IGNORE.decide_definition(TABLE, of(A, B, C, key=("id", "c")), overwrites_rows=True)
    made = IGNORE.decide_definition(
        TABLE, of(A, B, C, nullable("d", "int"), key=("id", "c")), overwrites_rows=True, is_requested=True
    )
    assert names(made) == (["id", "a", "b", "c"], []) and made.excluded == ("d",)


def test_nothing_but_new_columns() -> None:
    """As of a table that was dropped and made again: a copy without columns is none."""
    again = TableSchema("d", "t", (C,), ())
    with pytest.raises(DdlNotFollowed, match="all of its columns are new, and .* ignore leaves new columns out"):
        IGNORE.decide_definition(TABLE, again, overwrites_rows=True)
    assert names(IGNORE.decide_definition(TABLE, again, overwrites_rows=True, is_requested=True)) == (["c"], [])


@pytest.mark.parametrize(
    ("old", "new", "wider"),
    [
        (nullable("a", "int"), nullable("a", "bigint"), True),
        (nullable("a", "bigint"), nullable("a", "int"), False),
        (nullable("a", "int"), nullable("a", "int", "int unsigned"), True),
        (nullable("a", "bigint"), nullable("a", "bigint", "bigint unsigned"), True),
        (nullable("a", "int"), nullable("a", "double"), False),
        (nullable("a", "float"), nullable("a", "double"), True),
        (nullable("a", "decimal", precision=9, scale=2), nullable("a", "decimal", precision=10, scale=3), True),
        (nullable("a", "decimal", precision=9, scale=2), nullable("a", "decimal", precision=9, scale=3), False),
        (nullable("a", "int"), nullable("a", "decimal", precision=9, scale=0), False),
        (nullable("a", "int"), nullable("a", "varchar", charset="utf8mb4"), False),
    ],
    ids=lambda found: found if isinstance(found, bool) else found.column_type,
)
def test_types(old: Column, new: Column, wider: bool) -> None:
    before, after = TABLE.replace(columns=(ID, old)), of(new)
    assert EVOLVE.decide_definition(before, after).copied_columns == after.copied_columns
    with pytest.raises(DdlNotFollowed, match="column a was .* and is .*, which stream.schema_changes: ignore does not"):
        IGNORE.decide_definition(before, after)
    if wider:
        assert LENIENT.decide_definition(before, after).copied_columns == after.copied_columns
    else:
        with pytest.raises(DdlNotFollowed, match="stream.schema_changes: lenient does not take over"):
            LENIENT.decide_definition(before, after)
    assert IGNORE.decide_definition(before, after, is_requested=True).copied_columns == after.copied_columns
    same = of(old.replace(column_type=f"{old.column_type} /* as before */"))
    assert IGNORE.decide_definition(before, same).copied_columns == same.copied_columns


def test_what_is_told() -> None:
    assert describe_change(TABLE, TABLE) == ""
    assert describe_change(TABLE, EVOLVE.decide_definition(TABLE, of(A, C))) == "; new columns: c; dropped: b"
    assert describe_change(TABLE, LENIENT.decide_definition(TABLE, of(A, C))) == (
        "; new columns: c; no longer in the source, and NULL from now on: b"
    )
    assert describe_change(TABLE, IGNORE.decide_definition(TABLE, of(A, C))) == (
        "; left out: c; no longer in the source, and NULL from now on: b"
    )
