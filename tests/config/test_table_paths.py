"""Where tables lie below ``sink.path``."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_cdc.config.table_paths import DEFAULT_TABLE_PATHS, TablePaths
from airflow_provider_cdc.model.errors import NotReadyError

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12) | st.sampled_from(
    ["_cdc", "_cdc_progress", "_delta_log", "..", ".", "a/b", "=2F", "{table}", "snapshot"]
)


@pytest.mark.parametrize(
    ("template", "lower_case", "path"),
    [
        ("{database}/{table}", False, "Shop/_Order=2FLine"),
        ("{database}/{table}", True, "shop/_order=2Fline"),
        ("bronze/{database}__{table}", False, "bronze/Shop___Order=2FLine"),
        ("{table}", False, "_Order=2FLine"),
        ("a.b-c/{table}_of_{database}/x", True, "a.b-c/_order=2Fline_of_shop/x"),
    ],
)
def test_the_template(template: str, lower_case: bool, path: str) -> None:
    assert TablePaths(template, lower_case).path_of("Shop", "_Order/Line") == path


@given(NAMES, NAMES, st.sampled_from(["{database}/{table}", "_{database}/x{table}", "{table}", "_{table}/{database}"]))
def test_no_name_leads_elsewhere(database: str, table: str, template: str) -> None:
    """Into the project's own folders, into Delta's, above ``sink.path``, or into the folder of another table."""
    path = TablePaths(template).path_of(database, table)
    parts = path.split("/")
    assert len(parts) == template.count("/") + 1
    assert not any(part.startswith(("_cdc", "_delta_log", ".")) or not part for part in parts)


@given(NAMES, NAMES, NAMES, NAMES)
def test_each_table_has_a_folder(database: str, table: str, other_database: str, other: str) -> None:
    if (database, table) != (other_database, other):
        assert DEFAULT_TABLE_PATHS.path_of(database, table) != DEFAULT_TABLE_PATHS.path_of(other_database, other)


@pytest.mark.parametrize(
    ("paths", "tables", "path"),
    [
        (TablePaths("{table}"), [("a", "t"), ("b", "t")], "t"),
        (TablePaths("{database}_{table}"), [("a_b", "c"), ("a", "b_c")], "a_b_c"),
        (TablePaths(lower_case=True), [("a", "T"), ("a", "u"), ("a", "t")], "a/t"),
    ],
)
def test_no_two_tables_in_one_folder(paths: TablePaths, tables: list[tuple[str, str]], path: str) -> None:
    first, last = ".".join(tables[0]), ".".join(tables[-1])
    with pytest.raises(NotReadyError, match=rf"tables {first} and {last} would both be copied to {path}"):
        paths.check_distinct(tables)
    DEFAULT_TABLE_PATHS.check_distinct(tables)


@pytest.mark.parametrize(
    "template",
    ["", "/{table}", "{database}", "{table}/", "../{table}", "_cdc/{table}", "a//{table}", "{name}", ".x/{table}", 5,
     "{table}\n", "_delta_log/{table}", "a b/{table}", "{table!r}"],
)  # fmt: skip
def test_what_is_no_template(template: str) -> None:
    with pytest.raises(NotReadyError, match=r"sink.table_path is .*folders below sink.path with \{table\}"):
        TablePaths(template)
