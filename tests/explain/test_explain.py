"""Why is this row as it is: what was read that has it, what has changed it, and whether both sides agree."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from airflow_provider_cdc.explain.explanation import Explanation
from airflow_provider_cdc.explain.run import _RowExplainer, explain_row
from airflow_provider_cdc.model.errors import NotReadyError, TableSuspendedError
from airflow_provider_cdc.mysql.chunks import chunk
from airflow_provider_cdc.verify import last_changes
from tests.support.cli import Cli, asked_by
from tests.support.s3 import S3
from tests.support.servers import MySQLServer

pytestmark = pytest.mark.one_of("server")

ROWS = 40


@pytest.fixture
def database(server: MySQLServer) -> Iterator[str]:
    server.execute("DROP DATABASE IF EXISTS why")
    server.execute("CREATE DATABASE why")
    text = "VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci"
    server.session(
        "why",
        "CREATE TABLE number "
        "(id BIGINT UNSIGNED PRIMARY KEY, v VARCHAR(20), b VARBINARY(4), d DECIMAL(9,2), t DATETIME)",
        f"CREATE TABLE word (k {text} PRIMARY KEY, v INT)",
        f"CREATE TABLE two (a INT, b {text}, v INT, PRIMARY KEY (a, b))",
        "CREATE TABLE day (d DATE PRIMARY KEY, v INT)",
        "CREATE TABLE plain (v INT)",
        "INSERT INTO number VALUES "
        + ", ".join(f"({n * 10}, 'v{n}', x'00ff', {n}.5, '2026-01-02 03:04:05')" for n in range(1, ROWS)),
        "INSERT INTO word VALUES " + ", ".join(f"('Key{100 + n}', {n})" for n in range(ROWS)),
        "INSERT INTO two VALUES " + ", ".join(f"({n // 10}, 'x{n % 10}', {n})" for n in range(ROWS)),
        "INSERT INTO day VALUES ('2024-02-29', 1), ('2024-03-01', 2)",
        "INSERT INTO plain VALUES (1)",
    )
    yield "why"
    server.execute("DROP DATABASE IF EXISTS why")  # a later test of this file may have had it anew


@pytest.fixture
def cli(server: MySQLServer, database: str, tmp_path: Path) -> Cli:
    return copied(server, tmp_path)


def copied(server: MySQLServer, folder: Path, **settings: Any) -> Cli:
    """A pipeline whose stream has passed its snapshot."""
    snapshot = {"chunk_rows": 10, "group_rows": 20, **settings.pop("snapshot", {})}
    cli = Cli(folder / "p", server, r"why\..*", snapshot=snapshot, **settings)
    cli.snapshot()
    cli.catch_up()
    return cli


def why(cli: Cli, table: str, *keys: str) -> Explanation:
    found = explain_row(cli.context, f"why.{table}", keys)
    json.dumps(found.to_json())
    assert all(line.strip() for line in found.lines())
    return found


def test_a_row_of_the_snapshot(server: MySQLServer, cli: Cli) -> None:
    found = why(cli, "number", "150")
    (read,) = found.reads
    manifest = cli.context.layout.attempt_manifest(1, read.group or 0, 1)
    listed = json.loads(cli.context.storage.read(manifest) or b"")
    (there,) = [c for entry in listed for c in entry["chunks"] if c["no"] == read.chunk]
    assert read.low and read.high and [read.low.to_json(), read.high.to_json()] == [there["lw"], there["hw"]]
    assert (read.how, read.state, read.attempt, read.rows) == ("snapshot", "published", 1, there["rows"])
    assert (found.corrections.count, found.corrections.unknown_reason) == (0, "")
    assert found.equal is True and found.pending_changes == 0
    assert found.copy.rows == found.source.rows
    assert found.copy.written_by == ("read", read.high)
    # It was inserted before P0, and the binlog still has it.
    assert (
        found.last_change is not None and found.last_change.operation == "insert" and found.last_change.at <= read.low
    )
    text = "\n".join(found.lines())
    assert "id=150, v='v15', b=x'00ff', d=15.50, t=2026-01-02 03:04:05" in text
    assert f"group {read.group}, chunk {read.chunk}, attempt 1, between {read.low} and {read.high}" in text


def test_what_the_stream_has_changed_and_what_it_lacks(server: MySQLServer, cli: Cli) -> None:
    server.session("why", "UPDATE number SET v = 'new' WHERE id = 150", "DELETE FROM number WHERE id = 160")
    behind = why(cli, "number", "150")
    assert (behind.equal, behind.pending_changes) == (True, 1)
    assert [row["v"] for side in (behind.source, behind.copy) for row in side.rows] == ["new", "v15"]
    assert behind.last_change is not None and behind.last_change.row is not None
    assert (behind.last_change.operation, behind.last_change.row["v"]) == ("update", "new")
    cli.catch_up()
    found = why(cli, "number", "id=150")
    assert (found.equal, found.pending_changes) == (True, 0)
    assert found.last_change is not None and found.copy.written_by == ("update", found.last_change.at)
    assert re.fullmatch(r"[0-9a-f-]{36}:\d+|\d+-\d+-\d+", found.last_change.gtid)
    gone = why(cli, "number", "160")
    assert gone.equal is True and (gone.source.rows, gone.copy.rows) == ((), ())
    assert gone.last_change is not None and gone.last_change.operation == "delete"


def test_changes_between_the_watermarks(mysql_server: MySQLServer, tmp_path: Path) -> None:
    """Of MariaDB the two are one place."""
    server = mysql_server
    server.execute("DROP DATABASE IF EXISTS why")
    server.session("", "CREATE DATABASE why", "CREATE TABLE why.number (id INT PRIMARY KEY, v INT)")
    server.session("why", f"INSERT INTO number VALUES {', '.join(f'({n}, 0)' for n in range(20))}")
    written = iter([["UPDATE number SET v = v + 1", "UPDATE number SET v = v + 1 WHERE id < 3"]])

    def write(name: str) -> None:
        if name == "chunk.after_lw":
            server.session("why", *next(written, []))

    cli = Cli(tmp_path / "p", server, r"why\..*", snapshot={"chunk_rows": 100})
    with patch.object(chunk, "failpoint", write):
        cli.snapshot()
    for key, count in (("2", 2), ("7", 1)):
        found = why(cli, "number", key)
        assert found.reads[0].corrected == 20
        assert found.corrections.count == count
        assert [change.operation for change in found.corrections.latest] == ["update"] * count
        assert [change.row for change in found.corrections.latest][-1] == {"id": int(key), "v": count}
        assert all(found.reads[0].low < change.at <= found.reads[0].high for change in found.corrections.latest)  # type: ignore[operator]
        assert (found.equal, found.pending_changes) == (True, 0)
    mysql_server.execute("DROP DATABASE why")


def test_a_hot_row(server: MySQLServer, cli: Cli) -> None:
    server.session("why", "UPDATE number SET v = 0 WHERE id > 20")
    server.session("why", *[f"UPDATE number SET v = {n} WHERE id = 20" for n in range(50)])
    found = why(cli, "number", "20")
    assert (found.equal, found.pending_changes) == (True, 50)
    assert found.last_change is not None and found.last_change.row is not None and found.last_change.row["v"] == "49"


@pytest.mark.parametrize(
    ("table", "keys", "change"),
    [
        ("word", ["kEY105"], "UPDATE word SET k = 'KEY105', v = 7 WHERE k = 'Key105'"),
        ("two", ["1", "X5"], "UPDATE two SET v = 7 WHERE a = 1 AND b = 'x5'"),
        ("two", ["b=X5", "A=1"], "UPDATE two SET v = 7 WHERE a = 1 AND b = 'x5'"),
        ("day", ["2024-02-29"], "UPDATE day SET v = 7 WHERE v = 1"),
    ],
)
def test_keys_of_other_kinds(server: MySQLServer, cli: Cli, table: str, keys: list[str], change: str) -> None:
    """The server says which keys are the same."""
    before = why(cli, table, *keys)
    assert before.equal is True and before.source.rows and before.copy.rows and before.reads[0].chunk is not None
    server.session("why", change)
    changed = why(cli, table, *keys)
    assert changed.equal is True and changed.pending_changes
    others = (
        "UPDATE word SET v = 8 WHERE v = 9",
        "UPDATE two SET v = 8 WHERE v = 9",
        "UPDATE day SET v = 8 WHERE v = 2",
    )
    server.session("why", *others)
    after = why(cli, table, *keys)
    assert (after.equal, after.pending_changes, after.last_change) == (
        True,
        changed.pending_changes,
        changed.last_change,
    )
    cli.catch_up()
    found = why(cli, table, *keys)
    assert found.equal is True and found.copy.rows[0]["v"] == 7
    assert found.last_change is not None and found.last_change.operation == "update"


def test_what_is_in_neither(server: MySQLServer, cli: Cli) -> None:
    found = why(cli, "number", "155")
    assert found.equal is True and not found.source.rows and not found.copy.rows
    assert found.last_change is not None and found.last_change.operation == "empty"  # the CREATE TABLE
    for table, key in (("number", "9999"), ("word", "zzz")):
        beyond = why(cli, table, key)
        assert beyond.equal is True and beyond.reads[0].chunk is None
        assert "in no chunk of the snapshot" in str(beyond.reads[0])
    server.session("why", "INSERT INTO number (id) VALUES (9999)")
    assert (why(cli, "number", "9999").pending_changes, why(cli, "number", "9999").equal) == (1, True)
    cli.catch_up()
    assert why(cli, "number", "9999").equal is True


def test_differences(server: MySQLServer, cli: Cli) -> None:
    server.session(
        "why",
        "SET SESSION sql_log_bin = 0",
        "UPDATE number SET v = 'else', d = 1 WHERE id = 150",
        "DELETE FROM word WHERE k = 'Key107'",
        "INSERT INTO two VALUES (1, 'y', 1)",
    )
    found = why(cli, "number", "150")
    assert (found.equal, found.differing_columns) == (False, ("v", "d"))
    extra, missing = why(cli, "word", "KEY107"), why(cli, "two", "1", "y")
    assert extra.equal is False and extra.copy.rows and not extra.source.rows
    assert missing.equal is False and missing.source.rows and not missing.copy.rows
    result = cli.call("explain", "--table", "why.number", "--key", "150")
    assert result.code == 1 and "v='else'" in result.out and "differ" in result.err and "else" not in result.err
    assert cli.resnapshot("why.number", "id >= 145 AND id < 200") == "staged"
    waits = why(cli, "number", "150")
    assert [(read.how, read.state) for read in waits.reads] == [("snapshot", "published"), ("keys", "staged")]
    assert waits.equal is False
    cli.catch_up()
    repaired = why(cli, "number", "150")
    assert [(read.how, read.state) for read in repaired.reads] == [("snapshot", "published"), ("keys", "published")]
    assert repaired.equal is True and repaired.copy.rows[0]["v"] == "else"
    assert repaired.copy.written_by is not None and repaired.copy.written_by[0] == "read"
    assert len(why(cli, "number", "140").reads) == 1
    # The whole table takes the place of both.
    cli.resnapshot("why.number")
    cli.catch_up()
    (read,) = why(cli, "number", "150").reads
    assert (read.how, read.state) == ("table", "published") and read.chunk is not None


def test_a_group_that_was_read_again(server: MySQLServer, cli: Cli) -> None:
    from airflow_provider_cdc.chunk_groups.task import run_in_threads
    from airflow_provider_cdc.snapshot.run import run_group

    group = why(cli, "number", "150").reads[0].group
    assert group is not None
    for number in (1, 2):
        with cli.opened() as (context, store):
            plan = context.plans.require()
            run_group(context, store, plan, group, run_in_threads, holder="t", requested_by=asked_by(f"t#{number}"))
    cli.catch_up()
    (read,) = why(cli, "number", "150").reads
    assert (read.attempt, read.attempts) == (2, 2) and "read completely 2 times" in str(read)


def test_before_the_snapshot_is_published(server: MySQLServer, database: str, tmp_path: Path) -> None:
    cli = Cli(tmp_path / "p", server, r"why\..*", snapshot={"chunk_rows": 10, "group_rows": 20})
    with pytest.raises(NotReadyError, match="has no snapshot"):
        why(cli, "number", "150")
    with cli.opened() as (context, store):
        context.plans.ensure(store)
    found = why(cli, "number", "150")
    assert [read.state for read in found.reads] == ["waiting"] and found.equal is None
    assert found.copy.unknown_reason == "there is no copy of the table yet" and found.source.rows


def test_purged(server: MySQLServer, cli: Cli) -> None:
    server.session("why", "FLUSH BINARY LOGS", "UPDATE number SET v = 'late' WHERE id = 20")
    cli.catch_up()
    server.purge(flush=False)
    file = server.execute("SHOW BINARY LOGS")[0][0]
    old = why(cli, "number", "150")
    assert old.corrections.unknown_reason == f"the server has removed the binlog before {file}"
    assert (
        old.equal is True
        and old.last_change is None
        and old.searched_from is not None
        and old.searched_from.file == file
    )
    assert old.search_end_reason == "the server has no older binlog"
    late = why(cli, "number", "20")
    assert late.equal is True and late.last_change is not None and late.last_change.operation == "update"


def test_a_budget(server: MySQLServer, cli: Cli) -> None:
    server.session("why", "FLUSH BINARY LOGS", "UPDATE number SET v = 'late' WHERE id = 20")
    with patch.object(last_changes, "MAX_SEARCHED_BYTES", 1):
        found = why(cli, "number", "150")
    assert found.last_change is None and "GiB is searched" in found.search_end_reason


def test_a_suspended_table(server: MySQLServer, database: str, tmp_path: Path) -> None:
    cli = copied(server, tmp_path, stream={"on_table_error": "suspend", "reread": "ask"})
    server.session(
        "why",
        "UPDATE number SET v = 'last' WHERE id = 150",
        "ALTER TABLE number DROP COLUMN d, ORDER BY id",
        "UPDATE number SET v = 'behind' WHERE id = 150",
    )
    with pytest.raises(TableSuspendedError):
        cli.catch_up()
    found = why(cli, "number", "150")
    assert "ORDER is not followed" in found.suspended and found.equal is None
    assert found.not_compared_reason == "the table is suspended"
    assert (found.copy.rows[0]["v"], found.source.rows[0]["v"]) == ("last", "behind")
    assert (
        found.last_change is not None and found.last_change.row is not None and found.last_change.row["v"] == "behind"
    )
    assert found.reads[0].how == "snapshot" and found.reads[0].chunk is not None
    other = why(cli, "number", "160")
    assert other.last_change is None and "altered at" in other.search_end_reason
    cli.resnapshot("why.number")
    cli.catch_up()
    again = why(cli, "number", "150")
    assert again.equal is True and again.reads[0].how == "table" and not again.suspended


def test_a_ddl_that_is_followed(server: MySQLServer, cli: Cli) -> None:
    server.session("why", "ALTER TABLE number ADD COLUMN w INT", "UPDATE number SET w = 1 WHERE id = 150")
    found = why(cli, "number", "150")
    assert (
        found.equal is None and "not followed that yet" in found.not_compared_reason and found.source.rows[0]["w"] == 1
    )
    cli.catch_up()
    assert why(cli, "number", "150").equal is True
    before = why(cli, "number", "160")
    assert before.equal is True and before.last_change is not None and before.last_change.operation == "insert"


def test_emptied(server: MySQLServer, cli: Cli) -> None:
    server.session("why", "TRUNCATE TABLE number")
    found = why(cli, "number", "150")
    assert (found.equal, found.pending_changes) == (True, 1)
    assert found.last_change is not None and found.last_change.operation == "empty"
    cli.catch_up()
    assert why(cli, "number", "150").equal is True


def test_an_xa_transaction(server: MySQLServer, cli: Cli) -> None:
    server.session("why", "XA START 'x'", "UPDATE number SET v = 'xa' WHERE id = 150", "XA END 'x'", "XA PREPARE 'x'")
    server.session("why", "UPDATE number SET v = 'other' WHERE id = 20", "FLUSH BINARY LOGS")
    assert why(cli, "number", "150").pending_changes == 0
    server.session("why", "XA COMMIT 'x'")
    found = why(cli, "number", "150")
    assert (found.equal, found.pending_changes) == (True, 1)
    assert (
        found.last_change is not None
        and found.last_change.row is not None
        and found.last_change.row["v"] == "xa"
        and found.last_change.gtid
    )
    cli.catch_up()
    assert why(cli, "number", "150").equal is True


@pytest.mark.parametrize("deletes", ["soft", "ignore"])
def test_deleted_rows_that_stay(server: MySQLServer, database: str, tmp_path: Path, deletes: str) -> None:
    cli = copied(server, tmp_path, source={"exclude": [r"why\.plain"]}, sink={"deletes": deletes})
    server.session("why", "DELETE FROM number WHERE id = 150", "UPDATE number SET v = 'u' WHERE id = 160")
    for _ in range(2):
        found = why(cli, "number", "150")
        assert found.equal is (True if deletes == "soft" else None)
        assert why(cli, "number", "160").equal is True
        cli.catch_up()


def test_without_a_snapshot(server: MySQLServer, database: str, tmp_path: Path) -> None:
    cli = Cli(tmp_path / "p", server, r"why\..*", source={"exclude": [r"why\.plain"]}, stream={"start": "latest"})
    cli.snapshot()
    server.session("why", "UPDATE number SET v = 'u' WHERE id = 160")
    cli.catch_up()
    assert "began without a snapshot" in str(why(cli, "number", "150").reads[0])
    assert why(cli, "number", "150").equal is None and why(cli, "number", "160").equal is True


@pytest.mark.parametrize(
    ("table", "keys", "words"),
    [
        ("why.plain", ["1"], ["has no usable key", "verify --tables 'why.plain'"]),
        ("why.nothing", ["1"], ["copies no table why.nothing", "why.number"]),
        ("why.number", ["x"], ["'x' is not a value of id, which is bigint"]),
        ("why.number", ["1", "2"], ["the key is (id): give 1 values", "2 given"]),
        ("why.two", ["1"], ["the key is (a, b): give 2 values"]),
        ("why.two", ["a=1", "x1"], ["given: a, and 1 without a name"]),
        ("why.two", ["a=1", "a=2"], ["the key is (a, b)"]),
        ("why.day", ["2023-02-29"], ["is not a value of d"]),
    ],
)
def test_refused(mysql_server: MySQLServer, shared: Cli, table: str, keys: list[str], words: list[str]) -> None:
    result = shared.call("explain", "--table", table, *(part for key in keys for part in ("--key", key)))
    assert result.code == 2 and result.out == ""
    assert all(word in result.problem for word in words), result.problem


@pytest.fixture(scope="module")
def shared(
    mysql_server: MySQLServer, cdc_user: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cli]:
    """With the rights that a pipeline needs, and no others."""
    with contextlib.contextmanager(database.__wrapped__)(mysql_server):  # type: ignore[attr-defined]
        yield copied(mysql_server, tmp_path_factory.mktemp("shared"), user=cdc_user)


def test_the_command(shared: Cli) -> None:
    found = shared.call("explain", "--table", "why.number", "--key", "id=150", "--json")
    assert found.code == 0
    value = json.loads(found.out)
    assert value["key"] == {"id": "150"} and value["equal"] is True and value["copy"]["rows"] == value["source"]["rows"]
    assert value["source"]["rows"][0]["d"] == "15.50"
    text = shared.call("explain", "--table", "why.number", "--key", "150").out
    assert text.startswith("why.number, id=150\n") and text.splitlines()[-1].split() == ["equal", "yes"]
    assert shared.call("explain", "--table", "why.number").code == 2


def test_in_an_object_store(mysql_server: MySQLServer, s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CDC_STATE_DIR", str(tmp_path / "state"))
    with contextlib.contextmanager(database.__wrapped__)(mysql_server):  # type: ignore[attr-defined]
        cli = Cli(
            tmp_path / "p",
            mysql_server,
            r"why\..*",
            sink={"path": s3.uri("lake"), "conn_id": "cdc_lake"},
            snapshot={"chunk_rows": 10, "group_rows": 20},
        )
        cli.env["AIRFLOW_CONN_CDC_LAKE"] = s3.connection()
        cli.snapshot()
        cli.catch_up()
        mysql_server.session("why", "UPDATE number SET v = 'new' WHERE id = 150")
        kept = s3.stamps("lake")
        found = why(cli, "number", "150")
        assert (found.equal, found.pending_changes, found.copy.rows[0]["v"]) == (True, 1, "v15")
        assert found.reads[0].chunk is not None and found.copy.written_by == ("read", found.reads[0].high)
        assert s3.stamps("lake") == kept, "nothing was written"
        cli.catch_up()
        found = why(cli, "number", "150")
        assert (found.equal, found.pending_changes, found.copy.rows[0]["v"]) == (True, 0, "new")
        assert cli.resnapshot("why.number", "id = 150") == "staged"
        cli.catch_up()
        assert [(read.how, read.state) for read in why(cli, "number", "150").reads][1:] == [("keys", "published")]
        assert why(cli, "word", "KEY105").equal is True


def test_while_a_stream_goes_on(server: MySQLServer, cli: Cli) -> None:
    ended, seen = threading.Event(), set[bool]()

    def write() -> None:
        for n in itertools.count():
            if ended.is_set():
                return
            server.session(
                "why",
                f"UPDATE number SET v = {n} WHERE id IN (150, 160)",
                "DELETE FROM word WHERE k = 'Key105'" if n % 2 else "INSERT INTO word VALUES ('KEY105', 1)",
            )

    server.execute("DELETE FROM why.word WHERE k = 'Key105'")
    writer = threading.Thread(target=write)
    with cli.streaming():
        writer.start()
        try:
            for _ in range(6):
                for table, key in (("number", "150"), ("word", "key105")):
                    found = why(cli, table, key)
                    assert found.equal is True, (found.not_compared_reason, found.differing_columns)
                    seen.add(bool(found.pending_changes))
        finally:
            ended.set()
            writer.join()
    assert seen, "it was looked at"
    cli.catch_up()
    assert (why(cli, "number", "150").equal, why(cli, "number", "150").pending_changes) == (True, 0)


def test_a_copy_that_has_got_ahead(mysql_server: MySQLServer, tmp_path: Path) -> None:
    """Of what was known of the stream, and of the row in the source: a stream has gone on in between."""
    with contextlib.contextmanager(database.__wrapped__)(mysql_server):  # type: ignore[attr-defined]
        cli, look = copied(mysql_server, tmp_path), _RowExplainer._find_in_copy

        def later(*args: Any) -> Any:
            mysql_server.session("why", "UPDATE number SET v = 'new' WHERE id = 150")
            cli.catch_up()
            return look(*args)

        with patch.object(_RowExplainer, "_find_in_copy", later):
            found = why(cli, "number", "150")
        assert [row["v"] for side in (found.source, found.copy) for row in side.rows] == ["v15", "new"]
        assert found.equal is True and found.source.at and found.copy.at and found.source.at < found.copy.at
