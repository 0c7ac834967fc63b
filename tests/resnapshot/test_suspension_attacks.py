"""Attacks on tables that are suspended and that rejoin."""

from __future__ import annotations

import contextlib
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from airflow_provider_cdc.apply import applier as apply
from airflow_provider_cdc.apply import follow_ddl as schema_changes
from airflow_provider_cdc.chunk_groups.task import run_in_threads
from airflow_provider_cdc.model.errors import CdcError, TableSuspendedError
from airflow_provider_cdc.resnapshot import publish, suspension
from airflow_provider_cdc.resnapshot import staged_files as staged
from airflow_provider_cdc.snapshot.run import run_group
from tests.resnapshot.test_suspension import equal
from tests.support import failpoints
from tests.support.chance import killed, killed_at
from tests.support.cli import Cli, asked_by
from tests.support.mariadb import MariaDBServer
from tests.support.servers import MySQLServer
from tests.support.three_tables import SUSPENDS, TABLES, run, suspending_copy, three_tables

pytestmark = pytest.mark.one_of("server")


@pytest.fixture
def database(server: MySQLServer) -> Iterator[str]:
    with three_tables(server) as made:
        yield made
        server.roll_back_prepared()


def prepare(server: MySQLServer, xid: str, *statements: str) -> None:
    level = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"
    run(server, level, f"XA START '{xid}'", *statements, f"XA END '{xid}'", f"XA PREPARE '{xid}'")


def suspended(server: MySQLServer, cli: Cli) -> None:
    run(server, "ALTER TABLE keyed DROP COLUMN v, ADD COLUMN w INT, ORDER BY id")
    with pytest.raises(TableSuspendedError):
        cli.catch_up()


def _needs_xa(server: MySQLServer) -> None:
    if isinstance(server, MariaDBServer):
        pytest.skip("a low watermark of MariaDB waits for XA transactions that are prepared, and says so if they stay")


def dies(at: str) -> AbstractContextManager[None]:
    """A run that is killed where it reaches a failpoint, if it does."""
    return killed((apply, publish, staged, schema_changes, suspension), at, 1, Counter())


@pytest.mark.parametrize("batch", [False, True], ids=["no batch behind", "a batch behind"])
def test_xa_prepared_while_suspended(server: MySQLServer, database: str, batch: bool, tmp_path: Path) -> None:
    _needs_xa(server)
    cli = suspending_copy(server, tmp_path)
    suspended(server, cli)
    prepare(server, "a", "INSERT INTO keyed VALUES (501, 5)", "UPDATE keyed SET w = 9 WHERE id = 4")
    prepare(server, "b", "INSERT INTO keyed VALUES (502, 5)", "INSERT INTO quiet VALUES (502, 'xa')")
    run(server, "UPDATE quiet SET v = 'x' WHERE id = 9")
    with pytest.raises(TableSuspendedError):
        cli.catch_up()
    assert cli.resnapshot("d.keyed") == "staged"
    cli.catch_up()
    if batch:
        run(server, "UPDATE quiet SET v = 'y' WHERE id = 9")
        cli.catch_up()
    run(server, "XA COMMIT 'a'")
    run(server, "XA COMMIT 'b'")
    cli.catch_up()
    equal(server, cli, *TABLES)


def test_xa_and_then_others_while_suspended(server: MySQLServer, database: str, tmp_path: Path) -> None:
    """What is kept of an XA transaction, since it may end where the table has rejoined, is kept of no other."""
    cli = suspending_copy(server, tmp_path)
    run(server, "SET SESSION binlog_format = STATEMENT", "UPDATE keyed SET v = 'by statement' WHERE id = 3")
    with pytest.raises(TableSuspendedError):
        cli.catch_up()
    held = cli.rows("d", "keyed").to_pylist()
    run(
        server,
        *("XA START 'x'", "UPDATE keyed SET v = 'xa' WHERE id = 4", "UPDATE plain SET v = 'xa' WHERE n = 4"),
        *("XA END 'x'", "XA PREPARE 'x'", "XA COMMIT 'x'"),
        *("UPDATE keyed SET v = 'plain' WHERE id = 5", "UPDATE plain SET v = 'plain' WHERE n = 5"),
    )
    with pytest.raises(TableSuspendedError):
        cli.catch_up()
    equal(server, cli, "plain", "quiet")
    assert cli.rows("d", "keyed").to_pylist() == held


@pytest.mark.parametrize("when", ["window", "before", "active"])
def test_xa_around(server: MySQLServer, database: str, when: str, tmp_path: Path) -> None:
    """Prepared before W or in the window, also of a table that is not suspended; committed in the window and later."""
    _needs_xa(server)
    cli = suspending_copy(server, tmp_path)
    if when != "active":
        suspended(server, cli)
    column = "v" if when == "active" else "w"

    def both(n: int) -> None:
        for xid in ("in", "late", "gone"):
            n += 1
            prepare(
                server, xid, f"INSERT INTO keyed VALUES ({n}, 5)", f"UPDATE keyed SET {column} = 7 WHERE id = {n - 599}"
            )
            prepare(server, xid + "p", f"INSERT INTO plain VALUES ({n}, 5)", f"INSERT INTO quiet VALUES ({n}, 5)")

    if when != "window":
        both(600)
    assert cli.resnapshot("d.keyed") == "staged"
    assert cli.resnapshot("d.plain") == "staged"
    if when == "window":
        both(600)
    run(server, "XA COMMIT 'in'", "XA COMMIT 'inp'", "UPDATE quiet SET v = 'y' WHERE id = 9")
    cli.catch_up()
    run(server, "XA COMMIT 'late'", "XA COMMIT 'latep'")
    run(server, "XA ROLLBACK 'gone'", "XA ROLLBACK 'gonep'")
    cli.catch_up()
    equal(server, cli, *TABLES)


def test_an_empty_table_without_a_key(server: MySQLServer, database: str, tmp_path: Path) -> None:
    cli = suspending_copy(server, tmp_path)
    run(server, "DELETE FROM plain")
    cli.catch_up()
    assert cli.resnapshot("d.plain") == "staged"
    run(server, "INSERT INTO plain VALUES (1, 'a'), (1, 'a')", "UPDATE quiet SET v = 'y' WHERE id = 9")
    cli.catch_up()
    equal(server, cli, *TABLES)


def test_read_again_in_the_next_snapshot(server: MySQLServer, database: str, tmp_path: Path) -> None:
    """All tables are read again since binlogs were purged; then the table is once more by itself."""
    cli = suspending_copy(server, tmp_path, stream={"on_purged": "reread"})
    assert cli.resnapshot("d.keyed") == "staged"
    cli.catch_up()
    run(server, "DELETE FROM keyed WHERE id = 3", "UPDATE plain SET v = 'z' WHERE n = 4")
    server.purge()
    cli.snapshot()
    cli.catch_up()
    equal(server, cli, *TABLES)
    suspended(server, cli)
    run(server, "INSERT INTO keyed VALUES (901, 8)")
    assert cli.resnapshot("d.keyed") == "staged"
    run(server, "INSERT INTO keyed VALUES (902, 8)")
    cli.catch_up()
    equal(server, cli, *TABLES)


KILLS = (*failpoints.SUSPENSION, "table.after_commit", "progress.before_commit")


@pytest.mark.parametrize("at", KILLS)
def test_killed(server: MySQLServer, database: str, at: str, tmp_path: Path) -> None:
    cli = suspending_copy(server, tmp_path)
    run(
        server,
        "UPDATE keyed SET v = 'last' WHERE id = 3",
        "ALTER TABLE keyed DROP COLUMN v, ADD COLUMN w INT, ORDER BY id",
        "INSERT INTO keyed VALUES (901, 1)",
        "UPDATE quiet SET v = 'behind' WHERE id = 2",
        "DELETE FROM plain WHERE n = 7",
    )
    with dies(at), contextlib.suppress(TableSuspendedError):
        cli.catch_up()
    xa = not isinstance(server, MariaDBServer)
    if xa:
        prepare(server, "a", "INSERT INTO keyed VALUES (501, 5)")
    with pytest.raises(TableSuspendedError):
        cli.catch_up()
    equal(server, cli, "plain", "quiet")
    assert cli.resnapshot("d.keyed") == "staged"
    run(
        server,
        "INSERT INTO keyed VALUES (902, 1), (-3, 1)",
        "UPDATE quiet SET v = 'b' WHERE id = 2",
        "DELETE FROM plain WHERE n = 9",
    )
    with dies(at):
        cli.catch_up()
    if xa:
        run(server, "XA COMMIT 'a'")
    run(server, "UPDATE keyed SET id = 77 WHERE id = 4", "INSERT INTO plain VALUES (1, 'plain 1')")
    cli.catch_up()
    equal(server, cli, *TABLES)


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_the_folder_of_a_suspended_table(server: MySQLServer, database: str, how: str, tmp_path: Path) -> None:
    """Whatever becomes of the copy of a suspended table, the others go on; also when it is read again."""
    cli = suspending_copy(server, tmp_path)
    suspended(server, cli)
    folder = cli.sink / "d" / "keyed"
    shutil.rmtree(folder)
    if how == "replaced":
        write_deltalake(str(folder), pa.table({"x": [1]}))
    run(server, "UPDATE quiet SET v = 'b' WHERE id = 2")
    with pytest.raises(TableSuspendedError):
        cli.catch_up()
    equal(server, cli, "plain", "quiet")
    with contextlib.suppress(CdcError):
        cli.resnapshot("d.keyed")
    run(server, "UPDATE quiet SET v = 'c' WHERE id = 2")
    for _ in range(2):
        with contextlib.suppress(TableSuspendedError):
            cli.catch_up()
        equal(server, cli, "plain", "quiet")


def test_dropped_while_suspended(server: MySQLServer, database: str, tmp_path: Path) -> None:
    cli = suspending_copy(server, tmp_path)
    run(server, "DROP TABLE keyed", "UPDATE quiet SET v = 'b' WHERE id = 2")
    cli.catch_up()
    print(cli.call("check"), cli.call("status"), sep="\n")
    assert not cli.call("check").found
    with pytest.raises(CdcError, match="keyed") as error:
        cli.resnapshot("d.keyed")
    print(error.value)
    run(server, "UPDATE quiet SET v = 'c' WHERE id = 2")
    cli.catch_up()
    equal(server, cli, "plain", "quiet")


@pytest.mark.parametrize("order", ["before", "staged", "after"])
def test_groups_of_several_tables(server: MySQLServer, database: str, order: str, tmp_path: Path) -> None:
    """A group that holds chunks of all tables is read again around a suspension and a rejoining."""
    cli = Cli(
        tmp_path,
        server,
        r"d\..*",
        snapshot={"chunk_rows": 7, "group_rows": 35},
        stream=SUSPENDS,
    )

    def read(which: int, request: int) -> str:
        with cli.opened() as (context, store):
            plan = context.plans.ensure(store)
            number = sorted(plan.groups())[which % len(plan.groups())]
            asked = asked_by(f"me#{request}")
            return run_group(context, store, plan, number, run_in_threads, holder="me", requested_by=asked).outcome

    with cli.opened() as (context, store):
        for number in sorted(context.plans.ensure(store).groups()):
            run_group(
                context,
                store,
                context.plans.require(),
                number,
                run_in_threads,
                holder="me",
                requested_by=asked_by("me#1"),
            )
    run(server, "UPDATE quiet SET v = 'on' WHERE id = 1", "UPDATE keyed SET v = 'before' WHERE id = 2")
    cli.catch_up()
    request = 2

    def again() -> None:
        nonlocal request
        for which in range(3):
            print(order, which, read(which, request))
            request += 1

    if order == "before":  # staged by the old definition, and not taken in before the suspension
        again()
    suspended(server, cli)
    run(
        server,
        "INSERT INTO keyed VALUES (901, 8)",
        "UPDATE plain SET v = 'q' WHERE n = 4",
        "DELETE FROM quiet WHERE id = 30",
    )
    if order == "staged":
        again()
    assert cli.resnapshot("d.keyed") == "staged"
    run(
        server,
        "INSERT INTO keyed VALUES (902, 8)",
        "UPDATE plain SET v = 'r' WHERE n = 4",
        "INSERT INTO quiet VALUES (30, 'x')",
    )
    if order == "staged":
        again()
    cli.catch_up()
    equal(server, cli, *TABLES)
    if order == "after":
        again()
    run(
        server,
        "DELETE FROM keyed WHERE id < 5",
        "UPDATE plain SET v = 's' WHERE n = 4",
        "INSERT INTO quiet VALUES (31, 'x')",
    )
    cli.catch_up()
    equal(server, cli, *TABLES)
    shutil.rmtree(cli.folder / "lake" / "_cdc" / "p" / "checkpoint", ignore_errors=True)
    (cli.folder / "lake" / "_cdc" / "p" / "bookkeeping.db").unlink()
    cli.snapshot()
    run(server, "UPDATE keyed SET w = 3 WHERE id = 902")
    cli.catch_up()
    equal(server, cli, *TABLES)


WINDOW = {
    "truncate": ("TRUNCATE TABLE keyed", "INSERT INTO keyed VALUES (5, 5), (900, 1)", "TRUNCATE TABLE plain"),
    "keys move": (
        "UPDATE keyed SET id = 1000 WHERE id = 1",
        "UPDATE keyed SET id = id + 100 WHERE id BETWEEN 5 AND 15",
        "UPDATE keyed SET id = 6 WHERE id = 30",
        "UPDATE keyed SET id = -6 WHERE id = 20",
    ),
    "duplicates": ("INSERT INTO plain SELECT * FROM plain", "DELETE FROM plain WHERE n = 3 LIMIT 1"),
}


@pytest.mark.one_of("server", "settings")
@pytest.mark.parametrize("settings", [{}, {"merge": "copy_on_write"}], ids=str)
@pytest.mark.parametrize("kind", WINDOW)
def test_in_the_window(server: MySQLServer, database: str, kind: str, settings: dict[str, Any], tmp_path: Path) -> None:
    cli = suspending_copy(server, tmp_path, sink=settings)
    assert cli.resnapshot("d.keyed") == "staged"
    assert cli.resnapshot("d.plain") == "staged"
    run(server, *WINDOW[kind])
    cli.catch_up()
    run(server, "INSERT INTO keyed VALUES (2001, 'a')", "INSERT INTO plain VALUES (1, 'plain 1')")
    cli.catch_up()
    equal(server, cli, *TABLES)


def test_statements(server: MySQLServer, database: str, tmp_path: Path) -> None:
    """Changed by statement in the window, directly and by a trigger: what was read is not taken in."""
    cli = suspending_copy(server, tmp_path)
    suspended(server, cli)
    run(server, "CREATE TABLE elsewhere (id INT PRIMARY KEY)")
    cli.value["source"]["exclude_tables"] = [r"d\.elsewhere"]
    assert cli.resnapshot("d.keyed") == "staged"
    run(server, "CREATE TRIGGER tr AFTER INSERT ON elsewhere FOR EACH ROW UPDATE keyed SET w = 99 WHERE id = NEW.id")
    run(server, "SET SESSION binlog_format = STATEMENT", "INSERT INTO elsewhere VALUES (4)")
    with pytest.raises(TableSuspendedError):
        cli.catch_up()
    assert cli.resnapshot("d.keyed") == "staged"
    cli.catch_up()
    equal(server, cli, *TABLES)
    run(server, "SET SESSION binlog_format = STATEMENT", "UPDATE keyed SET w = 98")
    with pytest.raises(TableSuspendedError):
        cli.catch_up()
    assert cli.resnapshot("d.keyed") == "staged"
    cli.catch_up()
    equal(server, cli, *TABLES)


def test_a_copy_that_is_ahead(server: MySQLServer, database: str, tmp_path: Path) -> None:
    """Asked for while a batch is applied; killed between the commits of that and the resume point."""
    cli = suspending_copy(server, tmp_path)
    assert cli.resnapshot("d.keyed") == "staged"
    assert cli.resnapshot("d.plain") == "staged"
    folder = cli.sink / "_cdc" / "p" / "staged"
    folder.rename(tmp_path / "aside")
    cli.catch_up()
    run(
        server,
        "UPDATE keyed SET id = 77 WHERE id = 4",
        "INSERT INTO plain VALUES (1, 'plain 1')",
        "DELETE FROM plain WHERE n = 5",
    )
    with killed_at("progress.before_commit", apply):
        cli.catch_up()
    shutil.rmtree(folder, ignore_errors=True)
    (tmp_path / "aside").rename(folder)
    cli.catch_up()
    equal(server, cli, *TABLES)
    assert cli.context.plans.require().revision_of(0) == 1


def test_twice_at_once(server: MySQLServer, database: str, tmp_path: Path) -> None:
    cli = suspending_copy(server, tmp_path)
    suspended(server, cli)
    assert cli.resnapshot("d.keyed") == "staged"
    run(server, "INSERT INTO keyed VALUES (901, 8)", "DELETE FROM keyed WHERE id = 3")
    assert cli.resnapshot("d.keyed") == "staged"
    run(server, "INSERT INTO keyed VALUES (902, 8)")
    cli.catch_up()
    equal(server, cli, *TABLES)
    assert cli.context.plans.require().revision_of(0) == 2, (
        "the stream was at the first one already; the second took its place"
    )
    run(server, "INSERT INTO keyed VALUES (903, 8)")
    cli.catch_up()
    equal(server, cli, *TABLES)
