"""What leads to captured tables."""

from __future__ import annotations

from airflow_provider_cdc.ddl.affected_tables import classify_statement
from airflow_provider_cdc.ddl.indirect_writes import StoredObject, find_indirect_writes, names_only_system_tables

CAPTURED = [("Shop", "t")]


def test_in_several_steps() -> None:
    """Each is listed before what it leads to."""
    stored = [
        StoredObject(("shop", "third"), "SELECT a FROM second"),
        StoredObject(("shop", "second"), "SELECT a FROM other.first"),
        StoredObject(("other", "first"), "SELECT a FROM shop.t"),
        StoredObject(("shop", "elsewhere"), "SELECT a FROM first"),
    ]
    found = find_indirect_writes(
        CAPTURED, stored, [(("shop", "up"), ("shop", "middle")), (("shop", "middle"), ("shop", "t"))]
    )
    assert found.write_paths == {("shop", n) for n in ("third", "second", "up", "middle")} | {("other", "first")}
    assert found.call_paths == frozenset()


def test_captured_tables_are_no_detour() -> None:
    assert (
        find_indirect_writes(CAPTURED, [StoredObject(("shop", "t"), "UPDATE t SET a = 1")], []).write_paths
        == frozenset()
    )


def test_what_may_not_be_seen_counts() -> None:
    stored = [
        StoredObject(("x", "v"), None),
        StoredObject(("x", "f"), "", is_routine=True),
        StoredObject(("x", "w"), "SELECT x.f()"),
    ]
    found = find_indirect_writes(CAPTURED, stored, [])
    assert found.write_paths == {("x", "v"), ("x", "w")} and found.call_paths == {("x", "f"), ("x", "w")}


def test_what_is_only_read_changes_nothing() -> None:
    stored = [
        StoredObject(("shop", "v"), "SELECT * FROM t"),
        StoredObject(("shop", "f"), "UPDATE t SET a = 1", is_routine=True),
    ]
    found = find_indirect_writes(CAPTURED, stored, [])
    assert found.paths_used_by(classify_statement("INSERT INTO audit SELECT * FROM v", "shop")) == []
    assert found.paths_used_by(classify_statement("INSERT INTO v SELECT 1", "shop")) == [("shop", "v")]
    assert found.paths_used_by(classify_statement("INSERT INTO audit SELECT f()", "shop")) == [("shop", "f")]
    assert found.paths_used_by(classify_statement("SELECT f()", "shop")) == [("shop", "f")]
    assert found.paths_used_by(classify_statement("CREATE TABLE x SELECT f()", "shop")) == [("shop", "f")]
    assert found.paths_used_by(classify_statement("DELETE x FROM x JOIN v", "shop")) == [("shop", "v")]


def test_what_is_the_servers_own_leads_nowhere() -> None:
    beat = "INSERT INTO mysql.rds_heartbeat2 (id, value) VALUES (1, 2) ON DUPLICATE KEY UPDATE value = 2"
    assert [names_only_system_tables(classify_statement(beat, database)) for database in ("", "mysql", "shop")] == [
        True,
        True,
        False,
    ]
    assert not names_only_system_tables(classify_statement("INSERT INTO mysql.x VALUES (shop.f())", ""))
    assert not names_only_system_tables(classify_statement("UPDATE mysql.x JOIN shop.v SET a = 1", "mysql"))
