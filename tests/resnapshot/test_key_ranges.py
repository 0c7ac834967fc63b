"""Ranges of a table's keys are read again, and take the place of what the copy has there: nothing else changes. So does
a repair, of what a comparison has found.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.chunk_groups.chunk_group import ChunkGroup
from airflow_provider_cdc.chunk_groups.task import run_in_threads
from airflow_provider_cdc.model.errors import CdcError, NotReadyError, TransientError
from airflow_provider_cdc.model.plan import Chunk, Plan
from airflow_provider_cdc.model.staged_read import StagedRead
from airflow_provider_cdc.resnapshot import publish
from airflow_provider_cdc.resnapshot import staged_files as staged
from airflow_provider_cdc.resnapshot.read import stage_ranges
from airflow_provider_cdc.resnapshot.staged_files import list_pending_reads
from airflow_provider_cdc.resnapshot.wait import publish_or_wait
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.snapshot.run import run_group
from airflow_provider_cdc.stream.run import begin_epoch
from airflow_provider_cdc.verify import compare as comparing
from airflow_provider_cdc.verify.run import verify_tables
from tests.support.chance import killed_at
from tests.support.cli import Cli, asked_by
from tests.support.epochs import run_epoch_in_process
from tests.support.failpoints import RESNAPSHOT_OUTCOME
from tests.support.oracle import compare_database
from tests.support.servers import MySQLServer

pytestmark = pytest.mark.one_of("server")

_TEXT = "VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci"
#: Columns, the nth row, a condition, and keys in and outside of it: of rows that are there, and of one that is not.
TABLES: dict[str, tuple[str, str, str, tuple[str, str, str], tuple[str, str, str]]] = {
    "number": (
        "id INT PRIMARY KEY, v INT",
        "(@ * 10, 1)",
        "id >= 205 AND id < 505",
        ("id = 210", "id = 480", "444"),
        ("id = 200", "id = 510", "506"),
    ),
    "word": (
        f"k {_TEXT} PRIMARY KEY, v INT",
        "(CONCAT('Key', 100 + @), 1)",
        "k >= 'KEY120' AND k <= 'key150'",
        ("k = 'Key121'", "k = 'Key150'", "'kEY1333'"),
        ("k = 'Key119'", "k = 'Key151'", "'kEY1501'"),
    ),
    "two": (
        f"a INT, b {_TEXT}, v INT, PRIMARY KEY (a, b)",
        "(@ DIV 10, CONCAT('x', @ MOD 10), 1)",
        "a = 4",
        ("a = 4 AND b = 'x0'", "a = 4 AND b = 'x9'", "4, 'X55'"),
        ("a = 3 AND b = 'x9'", "a = 5 AND b = 'x0'", "5, 'W'"),
    ),
    "listed": (
        "id BIGINT UNSIGNED PRIMARY KEY, v INT",
        "(@ * 2, 1)",
        "id IN (0, 31, 40, 41, 198)",
        ("id = 0", "id = 40", "31"),
        ("id = 2", "id = 42", "43"),
    ),
}
ROWS = 100


@pytest.fixture
def database(server: MySQLServer) -> Iterator[str]:
    server.execute("DROP DATABASE IF EXISTS part")
    server.execute("CREATE DATABASE part")
    for name, (columns, row, *_) in TABLES.items():
        values = ", ".join(row.replace("@", str(n)) for n in range(ROWS))
        server.session("part", f"CREATE TABLE {name} ({columns})", f"INSERT INTO {name} VALUES {values}")
    yield "part"
    server.execute("DROP DATABASE part")


@pytest.fixture
def cli(server: MySQLServer, database: str, tmp_path: Path) -> Cli:
    """A pipeline whose stream has passed its snapshot, and has merged."""
    return copied(server, tmp_path)


def copied(server: MySQLServer, folder: Path, **settings: Any) -> Cli:
    cli = Cli(folder / "p", server, r"part\..*", snapshot={"chunk_rows": 10, "group_rows": 40}, **settings)
    cli.snapshot()
    server.session("part", *(f"UPDATE {name} SET v = 2 WHERE v = 1 LIMIT 30" for name in TABLES))
    cli.catch_up()
    return cli


def damage(server: MySQLServer, name: str, *, outside: bool = True) -> None:
    """Change the source without its binlog: in the range and outside of it a row is other, one goes, one comes."""
    *_, inside, beyond = TABLES[name]
    for other, gone, new in (inside, beyond) if outside else (inside,):
        server.session(
            "part",
            "SET SESSION sql_log_bin = 0",
            f"UPDATE {name} SET v = 77 WHERE {other}",
            f"DELETE FROM {name} WHERE {gone}",
            f"INSERT INTO {name} VALUES ({new}, 78)",
        )


def write(server: MySQLServer, name: str) -> None:
    """Changes that the binlog has, everywhere in the table."""
    server.session(
        "part",
        f"UPDATE {name} SET v = v + 100 WHERE v = 1 LIMIT 20",
        f"UPDATE {name} SET v = v + 1000 WHERE {TABLES[name][2]} LIMIT 3",
        f"DELETE FROM {name} WHERE {TABLES[name][2]} AND v < 77 LIMIT 1",
    )


def differences(server: MySQLServer, cli: Cli, *tables: str) -> list[str]:
    return [str(one) for one in compare_database(server, "part", cli.sink, tables)]


def is_equal(server: MySQLServer, cli: Cli, *tables: str) -> bool:
    return not differences(server, cli, *tables)


@pytest.mark.parametrize("name", TABLES)
def test_rows_in_the_range_become_those_of_the_source(server: MySQLServer, cli: Cli, name: str) -> None:
    damage(server, name)
    write(server, name)
    assert cli.resnapshot(f"part.{name}", TABLES[name][2]) == "staged"
    write(server, name)
    cli.catch_up()
    # Each side has three rows that differ; those in the range do not any more.
    (verdict,) = [v for v in verify_tables(cli.context) if v.table == f"part.{name}"]
    assert (verdict.missing, verdict.extra, verdict.different) == (1, 1, 1)
    assert is_equal(server, cli, *({*TABLES} - {name}))
    # Where the whole is read again, the rest is right as well.
    assert cli.resnapshot(f"part.{name}") == "staged"
    write(server, name)
    cli.catch_up()
    assert is_equal(server, cli, *TABLES)


@pytest.mark.one_of("server", "settings")
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"sink": {"deletes": "soft"}}, id="soft"),
        pytest.param({"sink": {"merge": "copy_on_write"}}, id="copies"),
        pytest.param({"sink": {"partition_by": {r"part\..*": ["v"]}}}, id="partitions"),
    ],
)
def test_other_ways_of_keeping_rows(
    server: MySQLServer, database: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    cli = copied(server, tmp_path, **settings)
    for name in TABLES:
        damage(server, name, outside=False)
        write(server, name)
        assert cli.resnapshot(f"part.{name}", TABLES[name][2]) == "staged"
        write(server, name)
    cli.catch_up()
    assert all(v.is_equal for v in verify_tables(cli.context))
    if "deletes" not in str(settings):
        assert not differences(server, cli, *TABLES)


def test_a_group_is_read_again_behind_a_range(server: MySQLServer, cli: Cli) -> None:
    """Rows of the group stand in files of the range now."""
    assert cli.resnapshot("part.number", "id >= 0 AND id < 900") == "staged"
    cli.catch_up()
    damage(server, "number", outside=False)
    with cli.opened() as (context, store):
        plan = context.plans.require()
        numbers = {chunk.group for chunk in plan.chunks if plan.tables[chunk.table].name == "number"}
        for number, me in itertools.product(sorted(numbers), ("me#1", "me#2")):
            run_group(context, store, plan, number, run_in_threads, holder="me", requested_by=asked_by(me))
    write(server, "number")
    cli.catch_up()
    assert is_equal(server, cli, *TABLES)


def test_beside_a_stream(server: MySQLServer, cli: Cli) -> None:
    for name in TABLES:
        damage(server, name, outside=False)
    with cli.streaming():
        for name in TABLES:
            write(server, name)
            assert cli.resnapshot(f"part.{name}", TABLES[name][2]) == "replaced"
            write(server, name)
    cli.catch_up()
    assert is_equal(server, cli, *TABLES)
    with cli.opened() as (_, store):
        assert sum(event.kind == "part_reread" for event in store.last_events("p", 100)) == len(TABLES)


def test_before_the_stream_has_passed_the_snapshot(server: MySQLServer, database: str, tmp_path: Path) -> None:
    """What was read is exchanged when it has: until then chunks of the snapshot hold other moments than the table."""
    cli = Cli(tmp_path / "p", server, r"part\..*", snapshot={"chunk_rows": 10, "group_rows": 40})
    cli.snapshot()
    damage(server, "number", outside=False)
    write(server, "number")
    assert cli.resnapshot("part.number", "id >= 205 AND id < 505") == "staged"
    write(server, "number")
    cli.catch_up()
    assert is_equal(server, cli, *TABLES)


@pytest.mark.parametrize("place", ["reread.before_commit", "reread.after_commit", *RESNAPSHOT_OUTCOME])
def test_a_stream_that_dies(server: MySQLServer, cli: Cli, place: str) -> None:
    damage(server, "number", outside=False)
    damage(server, "two", outside=False)
    assert cli.resnapshot("part.number", TABLES["number"][2]) == "staged"
    assert cli.resnapshot("part.number", "id = 210") == "staged"
    assert cli.resnapshot("part.two", TABLES["two"][2]) == "staged"
    write(server, "number")
    with killed_at(place, publish, staged):
        cli.catch_up()
    write(server, "number")
    cli.catch_up()
    assert is_equal(server, cli, *TABLES)
    with cli.opened() as (context, store):
        assert not list_pending_reads(context, context.plans.require())
        assert not [event for event in store.last_events("p", 100) if event.kind == "reread_dropped"]


def test_a_part_that_another_has_overtaken(server: MySQLServer, cli: Cli) -> None:
    """The marker cannot tell that the first one was exchanged: it must not be taken for that."""
    damage(server, "number", outside=False)
    with cli.opened() as (context, store):
        index = next(i for i, table in enumerate(context.plans.require().tables) if table.name == "number")

        def run(job: Any) -> list[dict[str, Any]]:
            """While the first one is read, a second one is planned, read and exchanged."""
            assert cli.resnapshot("part.number", "id = 210") == "replaced"
            return run_in_threads(job)

        with cli.streaming(), pytest.raises(TransientError, match="cannot be published"):
            chunks = [Chunk(0, index, 0, (205,), (505,), False)]
            publish_or_wait(*stage_ranges(context, index, lambda *_: chunks, run), store)
        assert [e.kind for e in store.last_events("p", 100) if "began later" in e.detail] == ["reread_dropped"]
    assert differences(server, cli, "number")
    assert cli.resnapshot("part.number", TABLES["number"][2]) == "staged"
    cli.catch_up()
    assert is_equal(server, cli, *TABLES)


def test_beside_a_ddl(server: MySQLServer, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    damage(server, "number", outside=False)
    # The stream has not met it yet.
    server.session("part", "ALTER TABLE number ADD w INT")
    with pytest.raises(TransientError, match=r"part\.number was altered, and the stream has not followed that yet"):
        cli.resnapshot("part.number", TABLES["number"][2])
    cli.catch_up()
    # It meets it behind the reading, and looks for what was read again only then.
    assert cli.resnapshot("part.number", TABLES["number"][2]) == "staged"
    server.session("part", "UPDATE number SET w = 5 WHERE id = 220", "ALTER TABLE number ADD x INT")
    looks = list_pending_reads

    def late(context: RunContext, plan: Plan, names: list[str]) -> list[StagedRead]:
        altered = any("x" in table.sink_schema.names for table in plan.tables)
        return looks(context, plan, names) if altered else []

    with monkeypatch.context() as patch:
        patch.setattr("airflow_provider_cdc.stream.epoch.list_pending_reads", late)
        cli.catch_up()
    assert differences(server, cli, "number")
    with cli.opened() as (_, store):
        assert any(event.kind == "reread_dropped" for event in store.last_events("p", 100))
    with cli.streaming():
        assert cli.resnapshot("part.number", TABLES["number"][2]) == "replaced"
        server.session("part", "UPDATE number SET x = 6 WHERE id = 220")
    cli.catch_up()
    assert is_equal(server, cli, *TABLES)


def test_what_is_refused(server: MySQLServer, cli: Cli) -> None:
    server.session("part", "CREATE TABLE heap (v INT)", "INSERT INTO heap VALUES (1), (1)")
    cli.value["stream"] |= {"on_table_error": "suspend", "reread": "ask"}
    cli.write()
    cli.catch_up()
    with contextlib.suppress(CdcError):
        server.session("part", "ALTER TABLE word MODIFY v VARCHAR(9)")
        cli.catch_up()
    before = sorted(str(path) for path in cli.sink.rglob("*"))
    for name, condition, said in (
        (
            "number",
            "v = 1",
            r"condition on the key of part\.number: v is not a column of the key \(id\)\. Write it as a range",
        ),
        ("number", "id = 'x'", "not a value"),
        ("number", "id = 1; DROP TABLE word", "not a condition"),
        ("heap", "v = 1", "no usable key"),
        ("word", "k = 'a'", r"suspended.*airflow-cdc resnapshot --table part\.word"),
        ("nothing", "id = 1", "copies no table"),
    ):
        with pytest.raises(NotReadyError, match=said):
            cli.resnapshot(f"part.{name}", condition)
    assert sorted(str(path) for path in cli.sink.rglob("*")) == before


def test_lenient_columns(server: MySQLServer, database: str, tmp_path: Path) -> None:
    """Columns that only the copy has are NULL in the rows that are exchanged."""
    cli = copied(server, tmp_path, stream={"schema_changes": "lenient"})
    server.session("part", "ALTER TABLE number DROP v")
    cli.catch_up()
    assert cli.resnapshot("part.number", "id <= 50") == "staged"
    cli.catch_up()
    rows = {row["id"]: row for row in cli.rows("part", "number").to_pylist()}
    assert len(rows) == ROWS and all((row["v"] is None) == (id <= 50) for id, row in rows.items())
    assert all(v.is_equal for v in verify_tables(cli.context))


def test_large_ranges_are_cut(server: MySQLServer, cli: Cli) -> None:
    """Into chunks as in a snapshot, with more of them than one file holds; and one range that holds no row."""
    damage(server, "number", outside=False)
    # The copy has a row after the source's last one.
    server.session("part", "SET SESSION sql_log_bin = 0", "DELETE FROM number ORDER BY id DESC LIMIT 1")
    for condition, chunks in (("id >= -100", 10), ("id > 100000", 1)):
        assert cli.resnapshot("part.number", condition) == "staged"
        with cli.opened() as (context, _):
            (found,) = list_pending_reads(context, context.plans.require())
            group = ChunkGroup(context, context.plans.require(), found.group)
            entries = group.read_manifest(1)
        assert sum(len(entry["chunks"]) for entry in entries) >= chunks
        write(server, "number")
        cli.catch_up()
    assert is_equal(server, cli, *TABLES)


def test_it_is_read_by_the_stream_that_was_begun_before(server: MySQLServer, cli: Cli) -> None:
    with cli.opened() as (context, store):
        begun = begin_epoch(context, store, catch_up=True)
        damage(server, "listed", outside=False)
        write(server, "listed")
        assert cli.resnapshot("part.listed", TABLES["listed"][2]) in ("staged", "replaced")
        run_epoch_in_process(begun)
    cli.catch_up()
    assert is_equal(server, cli, *TABLES)


def test_a_repair(server: MySQLServer, cli: Cli) -> None:
    """Just the keys that differ are read again; what has no key to find its rows by is told."""
    server.session("part", "CREATE TABLE heap (v INT)", "INSERT INTO heap VALUES (1), (1), (2)")
    cli.catch_up()
    for name in TABLES:
        damage(server, name)
    with cli.streaming():
        write(server, "number")
        found = cli.call("verify", "--repair", "--json", "--tables", r"part\.(number|word|two|listed)")
        assert found.code == 0, found
        verdicts = {verdict["table"]: verdict for verdict in json.loads(found.out)}
        assert all(verdict["equal"] and 1 < verdict["repaired"] <= 6 for verdict in verdicts.values()), verdicts
    cli.catch_up()
    assert is_equal(server, cli, *TABLES)
    with cli.opened() as (_, store):
        assert sum(event.kind == "part_reread" for event in store.last_events("p", 100)) == len(TABLES)
    # Without a stream nobody exchanges them yet; and one table is left as it is.
    server.session(
        "part", "SET SESSION sql_log_bin = 0", "UPDATE two SET v = 79 LIMIT 3", "UPDATE heap SET v = 3 LIMIT 1"
    )
    found = cli.call("verify", "--repair")
    assert found.code == 1 and "See above for what was not repaired" in found.err
    assert "part.two: compare it again after a stream has run" in found.err
    assert "part.heap is not repaired: it has no usable key. Re-snapshot the whole table" in found.err
    cli.catch_up()
    assert is_equal(server, cli, *TABLES)


def test_a_repair_of_too_much(server: MySQLServer, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparing, "MAX_REPORTED_KEYS", 2)
    damage(server, "number")
    with cli.streaming():
        found = cli.call("verify", "--repair")
    assert found.code == 1
    assert "part.number is not repaired: more than 2 of its keys differ. Re-snapshot the whole table" in found.err
