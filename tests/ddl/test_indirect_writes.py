"""What leads to captured tables."""

from __future__ import annotations

from airflow_provider_cdc.ddl.affected_tables import classify
from airflow_provider_cdc.ddl.indirect_writes import Stored, find_detours, stays_inside

CAPTURED = [("Shop", "t")]


def test_in_several_steps() -> None:
    """Each is listed before what it leads to."""
    stored = [
        Stored(("shop", "third"), "SELECT a FROM second"),
        Stored(("shop", "second"), "SELECT a FROM other.first"),
        Stored(("other", "first"), "SELECT a FROM shop.t"),
        Stored(("shop", "elsewhere"), "SELECT a FROM first"),
    ]
    found = find_detours(CAPTURED, stored, [(("shop", "up"), ("shop", "middle")), (("shop", "middle"), ("shop", "t"))])
    assert found.write_paths == {("shop", n) for n in ("third", "second", "up", "middle")} | {("other", "first")}
    assert found.call_paths == frozenset()


def test_captured_tables_are_no_detour() -> None:
    assert find_detours(CAPTURED, [Stored(("shop", "t"), "UPDATE t SET a = 1")], []).write_paths == frozenset()


def test_what_may_not_be_seen_counts() -> None:
    stored = [Stored(("x", "v"), None), Stored(("x", "f"), "", is_routine=True), Stored(("x", "w"), "SELECT x.f()")]
    found = find_detours(CAPTURED, stored, [])
    assert found.write_paths == {("x", "v"), ("x", "w")} and found.call_paths == {("x", "f"), ("x", "w")}


def test_what_is_only_read_changes_nothing() -> None:
    stored = [Stored(("shop", "v"), "SELECT * FROM t"), Stored(("shop", "f"), "UPDATE t SET a = 1", is_routine=True)]
    found = find_detours(CAPTURED, stored, [])
    assert found.paths_used_by(classify("INSERT INTO audit SELECT * FROM v", "shop")) == []
    assert found.paths_used_by(classify("INSERT INTO v SELECT 1", "shop")) == [("shop", "v")]
    assert found.paths_used_by(classify("INSERT INTO audit SELECT f()", "shop")) == [("shop", "f")]
    assert found.paths_used_by(classify("SELECT f()", "shop")) == [("shop", "f")]
    assert found.paths_used_by(classify("CREATE TABLE x SELECT f()", "shop")) == [("shop", "f")]
    assert found.paths_used_by(classify("DELETE x FROM x JOIN v", "shop")) == [("shop", "v")]


def test_what_is_the_servers_own_leads_nowhere() -> None:
    beat = "INSERT INTO mysql.rds_heartbeat2 (id, value) VALUES (1, 2) ON DUPLICATE KEY UPDATE value = 2"
    assert [stays_inside(classify(beat, database)) for database in ("", "mysql", "shop")] == [True, True, False]
    assert not stays_inside(classify("INSERT INTO mysql.x VALUES (shop.f())", ""))
    assert not stays_inside(classify("UPDATE mysql.x JOIN shop.v SET a = 1", "mysql"))
