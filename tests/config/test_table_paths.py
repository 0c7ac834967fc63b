"""Where tables lie below ``sink.path``."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_cdc.config.table_paths import DEFAULT_TABLE_PATHS, Route, TablePaths
from airflow_provider_cdc.model.errors import NotReadyError

#: No name on a server has U+0000, which separates database and table where patterns are matched.
NAMES = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=12
) | st.sampled_from(["_cdc", "_cdc_progress", "_delta_log", "..", ".", "a/b", "=2F", "{table}", "snapshot"])


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


ROUTES = (
    Route(r"shop_(\d+)\.orders", "orders_$1"),
    Route(r"(?P<region>[a-z]+)_(?P<number>\d+)\.(.*)", "${region}/{table}_${number}_${3}"),
    Route(r"(Big.Order)s?(x)?", "$1-$2"),
    Route(r"a.b(c)?", "x/$1"),
)


@pytest.mark.parametrize(
    ("database", "table", "lower_case", "path"),
    [
        ("shop_7", "orders", False, "orders_7"),  # the first that matches counts
        ("shop_7", "Order/Line", False, "shop/Order=2FLine_7_Order=2FLine"),
        ("shop_7", "Order/Line", True, "shop/order=2Fline_7_order=2Fline"),
        ("Big", "Orders", False, "Big.Order-"),  # the dot between database and table is in a group
        ("Big", "Orders", True, "big.order-"),
        ("a", "bc", False, "x/c"),
        ("shop", "orders", False, "{database}/{table}"),  # none matches
        ("xshop_7", "orders1", False, "xshop/orders1_7_orders1"),
        ("shop_7.orders", "t", False, "{database}/{table}"),
    ],
)
def test_routes(database: str, table: str, lower_case: bool, path: str) -> None:
    paths = TablePaths(lower_case=lower_case, routes=ROUTES)
    assert paths.path_of(database, table) == path.format(database=database, table=table)


@given(NAMES, NAMES, st.sampled_from(["$1", "x/$1", "_$2", "$1/$2", "$1$2/x", "_${1}cdc", "{table}$1"]))
def test_no_group_leads_elsewhere(database: str, table: str, path: str) -> None:
    paths = TablePaths(routes=(Route(r"((?s:.*))[.]((?s:.*))", path),))
    parts = paths.path_of(database, table).split("/")
    assert len(parts) == path.count("/") + 1
    assert not any(part.startswith(("_cdc", "_delta_log", ".")) or not part for part in parts)


def test_a_group_that_has_captured_nothing() -> None:
    with pytest.raises(NotReadyError, match=r"table a.b: its path in sink.routes, x/\$1, has a folder without a name"):
        TablePaths(routes=ROUTES).path_of("a", "b")


@pytest.mark.parametrize("outer_first", [False, True])
def test_no_table_is_inside_the_folder_of_another(outer_first: bool) -> None:
    paths = TablePaths(routes=(Route("a.t", "a"), Route("a.u", "ab/u/x"), Route("a.v", "ab")))
    tables = [("a", "t"), ("a", "w")]
    with pytest.raises(NotReadyError, match=r"table a.w would be copied to a/w, inside the folder of table a.t"):
        paths.check_distinct(tables if outer_first else tables[::-1])
    with pytest.raises(NotReadyError, match=r"table a.u would be copied to ab/u/x, inside the folder of table a.v"):
        paths.check_distinct([("a", "u"), ("a", "v")])
    paths.check_distinct([("a", "t"), ("a", "u"), ("b", "t")])


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


def test_tables_with_one_name_cannot_share_a_copy() -> None:
    """Their rows could not be told apart there: names may contain dots."""
    paths = TablePaths(routes=(Route(r"a.*\..*", "all", "source"),))
    paths.check_distinct([("a", "b"), ("a", "c"), ("a.b", "d")])
    with pytest.raises(NotReadyError) as refused:
        paths.check_distinct([("a", "x"), ("a.b", "c"), ("a", "b.c")])
    assert refused.value.message.startswith(
        "table b.c of database a and table c of database a.b would both be a.b.c in"
    )
