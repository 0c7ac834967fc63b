"""Names of columns that readers of a copy, or this project, take for their own."""

from __future__ import annotations

import pytest

from airflow_provider_cdc.ddl.column_names import column_name_problem
from airflow_provider_cdc.model.column_policy import ColumnPolicy
from airflow_provider_cdc.model.schema import Column, TableSchema


def table(*names: str, left_out: tuple[str, ...] = ()) -> TableSchema:
    columns = tuple(Column(name, "int", "int", True) for name in ("id", *names))
    return TableSchema("d", "t", columns, ("id",), left_out)


@pytest.mark.parametrize("name", ["_cdc_seq", "_CDC_SEQ", "_Cdc_Op", "_cdc_deleted", "_cDc_anything"])
def test_names_of_this_project(name: str) -> None:
    reason, remedy = column_name_problem(table(name)) or ("", "")
    assert reason == f"column {name}: the prefix _cdc_ is used in the sink, in whatever case"
    assert remedy.startswith("Rename it in the source or in the copy (transforms.columns), or leave it out")
    assert column_name_problem(table(name, left_out=(name,))) is None


@pytest.mark.parametrize("name", ["_metadata", "_tmp_metadata_row_index", "__delta_internal_is_row_deleted"])
def test_names_of_spark(name: str) -> None:
    for written in (name, name.upper(), name.title()):
        reason, _ = column_name_problem(table(written)) or ("", "")
        assert reason == f"column {written}: Spark uses this name for a column of its own, and could not read the copy"
    assert column_name_problem(table(name, left_out=(name,))) is None


def test_names_of_delta_rs() -> None:
    for written in ("__delta_rs_file_id__", "__Delta_RS_path"):
        reason, _ = column_name_problem(table(written)) or ("", "")
        assert reason.startswith(f"column {written}: delta-rs uses the prefix __delta_rs_ for columns of its own")


def test_names_that_differ_in_case_only() -> None:
    reason, _ = column_name_problem(table("a", "b", "A")) or ("", "")
    assert reason == "columns a and A: they differ in case only"
    assert column_name_problem(table("a", "b", "A", left_out=("A",))) is None


def renamed(**names: str) -> TableSchema:
    return table("a", "b").replace(policies=tuple(ColumnPolicy(name, new_name=new) for name, new in names.items()))


@pytest.mark.parametrize(
    ("new_name", "reason"),
    [
        ("_CDC_seq", "column _CDC_seq: the prefix _cdc_ is used in the sink, in whatever case"),
        ("_metadata", "column _metadata: Spark uses this name for a column of its own, and could not read the copy"),
        ("b", "column b: more than one column of the copy would have this name"),
        ("B", "columns B and b: they differ in case only"),
        ("id", "column id: more than one column of the copy would have this name"),
    ],
)
def test_names_that_only_the_copy_has(new_name: str, reason: str) -> None:
    found, remedy = column_name_problem(renamed(a=new_name)) or ("", "")
    assert (found, "transforms.columns" in remedy) == (reason, True)


def test_names_that_only_the_source_has() -> None:
    assert column_name_problem(table("_cdc_x", "A", "a")) is not None
    better = table("_cdc_x", "A", "a").replace(
        policies=(ColumnPolicy("_cdc_x", new_name="x"), ColumnPolicy("A", new_name="b"))
    )
    assert column_name_problem(better) is None
    assert column_name_problem(renamed(a="b", b="a")) is None, "the names of two columns are exchanged"


@pytest.mark.parametrize("name", ["metadata", "_cdc", "cdc_seq", "_metadata_", "__delta", "row_index", "file_path"])
def test_other_names(name: str) -> None:
    assert column_name_problem(table(name)) is None
