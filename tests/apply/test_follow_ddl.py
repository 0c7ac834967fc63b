"""DDL that the stream meets: followed exactly, or a stop that says why."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from airflow_provider_cdc.apply import follow_ddl as schema_changes
from airflow_provider_cdc.chunk_groups.task import run_in_threads
from airflow_provider_cdc.model.errors import DdlError, FencedError, TerminalError, TransientError
from airflow_provider_cdc.mysql.chunks import chunk, planner
from airflow_provider_cdc.mysql.positions.p0 import take_p0
from airflow_provider_cdc.resnapshot import read as reread
from airflow_provider_cdc.runtime.resolved_pipeline import SilentReporter
from airflow_provider_cdc.snapshot import run as snapshot
from airflow_provider_cdc.snapshot.run import run_group
from airflow_provider_cdc.stream.run import begin_epoch
from airflow_provider_cdc.verify.run import verify_tables
from tests.support.chance import killed_at
from tests.support.cli import Cli, asked_by
from tests.support.epochs import run_epoch_in_process
from tests.support.failpoints import SCHEMA_CHANGES
from tests.support.mariadb import MariaDBServer
from tests.support.oracle import compare_all, compare_database
from tests.support.servers import MySQLServer
from tests.support.three_tables import TABLES, run, streamed_copy, three_tables_database

# The servers have their turn: each test with each of them would be a product.
pytestmark = pytest.mark.one_of("server")
database = three_tables_database

#: What happens to table ``keyed`` (or ``plain``, which has no key) while no stream runs, or between two of its batches.
FOLLOWED: dict[str, tuple[str, ...]] = {
    "a column": ("ALTER TABLE keyed ADD COLUMN w INT", "UPDATE keyed SET w = id WHERE id % 2"),
    "a column first": ("ALTER TABLE keyed ADD w VARCHAR(9) FIRST", "INSERT INTO keyed VALUES ('new', 901, 'x')"),
    "a column in the middle": (
        "UPDATE keyed SET v = 'before' WHERE id = 3",
        "ALTER TABLE d.keyed ADD w DECIMAL(9,2) NULL AFTER id",
        "INSERT INTO keyed VALUES (901, 1.50, 'x'), (902, NULL, 'y')",
        "DELETE FROM keyed WHERE id IN (3, 4)",
    ),
    "several columns": (
        "ALTER TABLE keyed ADD (a DATETIME(6), b JSON), ADD COLUMN c BIGINT UNSIGNED FIRST",
        "INSERT INTO keyed VALUES (18446744073709551615, 901, 'x', '2020-02-29 23:59:59.999999', '{\"a\": 1}')",
        "UPDATE keyed SET c = id, v = 'c' WHERE id < 9",
    ),
    "one after the other": (
        "ALTER TABLE keyed ADD a INT",
        "UPDATE keyed SET a = 1 WHERE id < 20",
        "ALTER TABLE keyed ADD b INT FIRST",
        "ALTER TABLE plain ADD b INT",
        "UPDATE keyed SET b = 2 WHERE id > 10",
        "ALTER TABLE keyed ADD c TEXT AFTER a",
        "INSERT INTO keyed VALUES (1, 901, 'v', 2, 'c')",
        "UPDATE plain SET b = 7 WHERE v = 'plain 3'",
        "DELETE FROM keyed WHERE id BETWEEN 15 AND 18",
    ),
    "a table without a key": (
        "INSERT INTO plain VALUES (1, 'twice'), (1, 'twice')",
        "ALTER TABLE plain ADD w INT AFTER n",
        "DELETE FROM plain WHERE v = 'plain 5'",
        "UPDATE plain SET w = 1 WHERE v = 'twice' LIMIT 1",
        "INSERT INTO plain VALUES (1, NULL, 'twice'), (2, 2, 'x')",
    ),
    "an index": (
        "ALTER TABLE keyed ADD INDEX by_v (v)",
        "CREATE INDEX v2 ON keyed (v, id)",
        "UPDATE keyed SET v = 'i'",
    ),
    "a longer text": ("ALTER TABLE keyed MODIFY v VARCHAR(90)", "UPDATE keyed SET v = REPEAT('x', 80) WHERE id = 5"),
    "a default": ("ALTER TABLE keyed ALTER v SET DEFAULT 'new'", "INSERT INTO keyed (id) VALUES (901)"),
    "then empty": (
        "ALTER TABLE keyed ADD w INT",
        "INSERT INTO keyed VALUES (901, 'x', 1)",
        "TRUNCATE TABLE keyed",
        "INSERT INTO keyed VALUES (5, 'after', 2)",
        "ALTER TABLE keyed ADD x INT FIRST",
        "UPDATE keyed SET x = 1",
    ),
    "a column goes": (
        "UPDATE keyed SET v = 'before' WHERE id < 5",
        "ALTER TABLE keyed DROP COLUMN v, ADD COLUMN w INT",
        "INSERT INTO keyed VALUES (901, 1)",
        "UPDATE keyed SET w = 2 WHERE id IN (3, 4)",
        "DELETE FROM keyed WHERE id = 5",
        "ALTER TABLE keyed ADD COLUMN x INT, DROP COLUMN w",
        "UPDATE keyed SET x = id WHERE id > 10",
    ),
    "and nothing else": ("ALTER TABLE keyed ADD w INT",),
}
#: What is not followed yet, with a word of the message.
STOPS: dict[str, tuple[str, str]] = {
    "a default that rows get": ("ALTER TABLE keyed ADD w INT DEFAULT 7", "w"),
    "another place": ("ALTER TABLE keyed MODIFY v VARCHAR(40) FIRST", "moving a column"),
    "another type": ("ALTER TABLE keyed MODIFY v VARBINARY(40)", "v"),
    "another name": ("RENAME TABLE keyed TO elsewhere", "RENAME TABLE"),
    "a table that goes": ("DROP TABLE keyed", ": it drops the table"),
    "two tables": ("RENAME TABLE keyed TO one, plain TO other", "several"),
    "another key": ("ALTER TABLE keyed DROP PRIMARY KEY, ADD PRIMARY KEY (id, v)", "PRIMARY KEY"),
}


def copied(server: MySQLServer, folder: Path, **settings: Any) -> Cli:
    """A pipeline whose stream has passed its snapshot."""
    return streamed_copy(server, folder, "UPDATE quiet SET v = 'on' WHERE id = 1", **settings)


def is_copy(server: MySQLServer, cli: Cli) -> None:
    """Rows, and the names and order of the columns, are the source's."""
    with contextlib.closing(server.connect(database="d")) as connection, connection.cursor() as cursor:
        assert compare_all(connection, "d", cli.sink, TABLES) == []
        for table in TABLES:
            cursor.execute(
                "SELECT column_name, CAST(column_type AS CHAR) FROM information_schema.columns "
                "WHERE table_schema = 'd' AND table_name = %s ORDER BY ordinal_position",
                (table,),
            )
            types = dict(cursor.fetchall())
            assert [n for n in cli.rows("d", table).column_names if not n.startswith("_cdc_")] == [*types]
            fields = DeltaTable(str(cli.sink / "d" / table)).schema().fields
            assert {f.name: f.metadata["airflow-cdc.type"] for f in fields if not f.name.startswith("_cdc_")} == types
    assert all(v.is_equal for v in verify_tables(cli.context))


@pytest.mark.one_of("server", "how")
@pytest.mark.parametrize("kind", FOLLOWED)
@pytest.mark.parametrize("how", ["while it was down", "one by one"])
def test_followed(server: MySQLServer, database: str, kind: str, how: str, tmp_path: Path) -> None:
    cli = copied(server, tmp_path)
    if how == "one by one":
        for statement in FOLLOWED[kind]:
            run(server, statement)
            cli.catch_up()
    else:
        run(server, *FOLLOWED[kind])
        cli.catch_up()
    is_copy(server, cli)
    run(
        server, "DELETE FROM keyed WHERE id < 8", "INSERT INTO plain (v) VALUES ('late')", "UPDATE quiet SET v = 'late'"
    )
    cli.catch_up()
    is_copy(server, cli)


@pytest.mark.parametrize("merge", ["deletion_vectors", "copy_on_write"])
def test_before_the_stream_has_begun(server: MySQLServer, database: str, merge: str, tmp_path: Path) -> None:
    """Behind all chunks of the table, before the first batch."""
    cli = Cli(tmp_path, server, r"d\..*", snapshot={"chunk_rows": 5, "group_rows": 10}, sink={"merge": merge})
    cli.snapshot()
    run(server, "UPDATE keyed SET v = 'a'", *FOLLOWED["one after the other"])
    cli.catch_up()
    is_copy(server, cli)


@pytest.mark.parametrize("again", [False, True], ids=["planned", "planned again"])
def test_altered_behind_p0(
    server: MySQLServer, database: str, again: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A DDL behind the place where the stream begins is not part of the definition that the stream begins with."""
    at = {"first": "ALTER TABLE keyed ADD a INT"} if again else {}
    behind = ["ALTER TABLE keyed ADD w INT FIRST"]

    def alter(name: str) -> None:
        if name == "chunk.before_lw" and at:
            run(server, at.popitem()[1])

    def then_alter(*args: Any) -> Any:
        found = take_p0(*args)
        if behind and not at:
            run(server, behind.pop(), "UPDATE keyed SET w = 1 WHERE id < 5")
        return found

    monkeypatch.setattr(chunk, "failpoint", alter)
    monkeypatch.setattr(planner, "take_p0", then_alter)
    cli = Cli(tmp_path, server, r"d\..*", snapshot={"chunk_rows": 50})
    cli.snapshot()
    assert not at and not behind
    run(server, "UPDATE keyed SET v = 'late' WHERE id < 9", "UPDATE quiet SET v = 'late' WHERE id = 1")
    cli.catch_up()
    is_copy(server, cli)


@pytest.mark.parametrize("kind", STOPS)
def test_what_is_not_followed_stops(server: MySQLServer, database: str, kind: str, tmp_path: Path) -> None:
    statement, word = STOPS[kind]
    cli = copied(server, tmp_path)
    run(server, "UPDATE keyed SET v = 'before' WHERE id = 5", statement)
    for _ in range(2):
        with pytest.raises(DdlError) as error:
            cli.catch_up()
        assert "on captured table d.keyed, at " in error.value.message and word in error.value.message
        assert error.value.remedy
    rows = cli.rows("d", "keyed")
    assert rows.filter(pc.equal(rows["id"], 5))["v"].to_pylist() == ["before"]


def test_partitions_that_are_arranged(server: MySQLServer, database: str, tmp_path: Path) -> None:
    """No row and no column changes, so the table is neither read again nor altered."""
    run(server, "ALTER TABLE keyed PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (100))")
    cli = copied(server, tmp_path)
    run(
        server,
        "UPDATE keyed SET v = 'before' WHERE id = 3",
        "ALTER TABLE keyed ADD PARTITION (PARTITION p1 VALUES LESS THAN MAXVALUE)",
        "ALTER TABLE keyed ANALYZE PARTITION p0",
        "ALTER TABLE keyed CHECK PARTITION ALL",
        "ALTER TABLE keyed REORGANIZE PARTITION p0 INTO (PARTITION keyed VALUES LESS THAN (5), "
        "PARTITION plain VALUES LESS THAN (100))",
        "INSERT INTO keyed VALUES (901, 'between')",
        "ALTER TABLE keyed REBUILD PARTITION ALL",
        "ALTER TABLE keyed OPTIMIZE PARTITION plain",
        "ALTER TABLE keyed REMOVE PARTITIONING",
        "DELETE FROM keyed WHERE id = 7",
    )
    cli.catch_up()  # a statement that is not followed would stop it
    assert compare_database(server, "d", cli.sink, TABLES) == []


def test_an_alter_that_may_be_of_a_temporary_table(server: MySQLServer, database: str, tmp_path: Path) -> None:
    cli = copied(server, tmp_path)
    run(
        server,
        "SET SESSION binlog_format = STATEMENT",
        "CREATE TEMPORARY TABLE keyed (a INT)",
        "ALTER TABLE keyed ADD w INT",
    )
    with pytest.raises(DdlError, match="d.keyed.*its session uses temporary tables"):
        cli.catch_up()


def test_exception(server: MySQLServer, database: str, tmp_path: Path) -> None:
    cli = copied(server, tmp_path, stream={"schema_changes": "exception"})
    run(server, "ALTER TABLE keyed ADD w INT")
    with pytest.raises(DdlError, match="ALTER TABLE on captured table d.keyed, at "):
        cli.catch_up()
    cli.value["stream"] = {"schema_changes": "evolve"}
    cli.write()
    cli.catch_up()
    is_copy(server, cli)


@pytest.mark.parametrize("name", SCHEMA_CHANGES)
def test_killed(server: MySQLServer, database: str, name: str, tmp_path: Path) -> None:
    cli = copied(server, tmp_path)
    run(server, *FOLLOWED["one after the other"])
    with killed_at(name, schema_changes):
        cli.catch_up()
    cli.catch_up()
    is_copy(server, cli)
    files = [json.loads(f.read_text()) for f in (cli.sink / "_cdc" / "p" / "amended" / "1").glob("*.json")]
    assert len(files) == 4  # each DDL has been written down once


def test_an_epoch_that_was_overtaken_writes_no_definition(server: MySQLServer, database: str, tmp_path: Path) -> None:
    cli = copied(server, tmp_path)
    run(server, "ALTER TABLE keyed ADD w INT")
    with cli.opened() as (context, store):
        old = begin_epoch(context, store, catch_up=True)
        context.liveness.is_alive = lambda epoch_row: False  # type: ignore[method-assign]
        with cli.opened() as (_, other):
            newer = begin_epoch(context, other, catch_up=True)
            with pytest.raises(FencedError):
                old.follow_ddl()
            assert not (cli.sink / "_cdc" / "p" / "amended").exists()
            run_epoch_in_process(newer)
    is_copy(server, cli)


@contextlib.contextmanager
def cleared(cli: Cli) -> Iterator[Callable[[], str]]:
    """Reads a group of table ``keyed`` again whenever it is called, as a task that was cleared; says how that ended."""
    with cli.opened() as (context, store):

        def read() -> str:
            plan = context.plans.require()
            group = min(plan.groups_of(next(i for i, t in enumerate(plan.tables) if t.name == "keyed")))
            me = asked_by("task")
            return run_group(context, store, plan, group, run_in_threads, holder="me", requested_by=me).outcome

        assert read() == "adopted"
        yield read


def test_a_group_that_is_read_again_behind_it(
    server: MySQLServer, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has come since then is replayed onto it, over the DDL of another table."""
    cli = copied(server, tmp_path)
    said: list[str] = []
    monkeypatch.setattr(SilentReporter, "line", lambda _, text, *__: said.append(text))
    with cleared(cli) as read:
        run(server, *FOLLOWED["a column in the middle"])
        cli.catch_up()
        run(server, "UPDATE plain SET v = 'before'", "ALTER TABLE plain ADD w INT FIRST", "UPDATE plain SET w = n")
        run(server, "UPDATE keyed SET v = 'later', w = 3 WHERE id < 7")
        assert read() == "staged"
        run(server, "UPDATE keyed SET v = 'last' WHERE id < 3", "ALTER TABLE quiet ADD w INT FIRST")
        cli.catch_up()
    assert any(re.search("was re-snapshotted.*: published at", line) for line in said)
    is_copy(server, cli)


def test_a_group_that_is_read_again_before_it_is_followed(server: MySQLServer, database: str, tmp_path: Path) -> None:
    cli = copied(server, tmp_path)
    with cleared(cli) as read:
        run(server, "UPDATE keyed SET v = 'x' WHERE id < 3", *FOLLOWED["a column in the middle"])
        with pytest.raises(TransientError, match="the stream has not followed that yet"):
            read()
        # Its definition is known, and the resume point stands before it: what is read now is of the new one.
        with killed_at("definition.after_alter", schema_changes):
            cli.catch_up()
        assert read() == "staged"
        cli.catch_up()
        is_copy(server, cli)
        assert read() == "staged"
        cli.catch_up()
    is_copy(server, cli)


def test_a_staged_group_of_the_definition_before(
    server: MySQLServer, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read before the DDL, and written down when the stream had followed it."""
    cli = copied(server, tmp_path)
    said: list[str] = []
    monkeypatch.setattr(SilentReporter, "line", lambda _, text, *__: said.append(text))
    with cleared(cli) as read:
        stage = reread.stage_group

        def late(*args: Any) -> Any:
            run(server, *FOLLOWED["a column in the middle"])
            cli.catch_up()
            return stage(*args)

        monkeypatch.setattr(snapshot, "stage_group", late)
        assert read() == "staged"
    cli.catch_up()
    assert any("d.keyed was altered since it was read" in line for line in said)
    is_copy(server, cli)


def test_a_column_that_comes_and_goes_between_chunks(server: MySQLServer, database: str, tmp_path: Path) -> None:
    """No chunk sees it, and the stream meets it before it has passed them."""
    cli = Cli(tmp_path, server, r"d\.keyed", snapshot={"chunk_rows": 5, "group_rows": 10})
    with cli.opened() as (context, store):
        plan = context.plans.ensure(store)
        for group in plan.groups():
            run_group(context, store, plan, group, run_in_threads, holder="me")
            if group == 0:
                run(server, "ALTER TABLE keyed ADD w INT", "ALTER TABLE keyed DROP COLUMN w")
    with pytest.raises(DdlError, match="ALTER TABLE on captured table d.keyed.*had not passed the snapshot"):
        cli.catch_up()


def test_an_index_between_chunks(server: MySQLServer, database: str, tmp_path: Path) -> None:
    cli = Cli(tmp_path, server, r"d\..*", snapshot={"chunk_rows": 5, "group_rows": 10})
    with cli.opened() as (context, store):
        plan = context.plans.ensure(store)
        for group in plan.groups():
            run_group(context, store, plan, group, run_in_threads, holder="me")
            run(server, f"ALTER TABLE keyed ADD INDEX i{group} (v)", "UPDATE keyed SET v = 'x' WHERE id % 7 = 0")
    cli.catch_up()
    is_copy(server, cli)


@pytest.mark.parametrize("how", ["rows", "prepared"])
def test_altered_just_before_a_group_is_read_again(
    server: MySQLServer, database: str, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at the definitions and the first low watermark: only rows of the new layout tell of it, in the
    window, or of an XA transaction that is open at the low watermark."""
    if how == "prepared" and isinstance(server, MariaDBServer):
        pytest.skip("its low watermarks wait for the end of XA transactions")
    changes = ["UPDATE keyed SET w = 1"]
    if how == "prepared":
        changes = ["XA START 'x'", *changes, "XA END 'x'", "XA PREPARE 'x'", "XA COMMIT 'x'"]
    cli = copied(server, tmp_path)
    with cleared(cli) as read:
        at = {"chunk.before_lw": ["ALTER TABLE keyed ADD w INT", *changes[:-1]], "chunk.after_select": changes[-1:]}

        def alter(name: str) -> None:
            run(server, *at.pop(name, []))

        monkeypatch.setattr(chunk, "failpoint", alter)
        with pytest.raises(TransientError, match=r"read, at .*binlog.*the stream has not followed that yet") as error:
            read()
        assert not at
        if how == "rows" and not isinstance(server, MariaDBServer):  # whose views end where they begin
            assert "at or before" not in error.value.message
        cli.catch_up()
        assert read() == "staged"
        cli.catch_up()
    is_copy(server, cli)


def test_verify_while_the_stream_is_behind(server: MySQLServer, database: str, tmp_path: Path) -> None:
    cli = copied(server, tmp_path)
    run(server, "ALTER TABLE keyed ADD w INT")
    assert {v.table: v.verdict for v in verify_tables(cli.context)}["d.keyed"] == "not_comparable"
    cli.catch_up()
    is_copy(server, cli)


def test_a_column_that_is_left_out(server: MySQLServer, database: str, tmp_path: Path) -> None:
    """The patterns of columns say of a new one, too, whether it is copied."""
    cli = copied(server, tmp_path, source={"exclude_columns": [r"d\.keyed\.secret"]})
    run(server, "ALTER TABLE keyed ADD secret INT, ADD w INT", "UPDATE keyed SET secret = 1, w = 2 WHERE id < 9")
    cli.catch_up()
    rows = cli.rows("d", "keyed")
    assert "secret" not in rows.column_names
    assert sorted(rows["w"].to_pylist(), key=str).count(2) == 8
    assert all(v.is_equal for v in verify_tables(cli.context))


def test_a_name_that_the_sink_uses(server: MySQLServer, database: str, tmp_path: Path) -> None:
    cli = copied(server, tmp_path)
    run(server, "ALTER TABLE keyed ADD _cdc_seq INT")
    with pytest.raises(TerminalError, match="_cdc_"):
        cli.catch_up()
