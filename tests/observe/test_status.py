"""What ``status`` says of a stream: how far the source is ahead, how long it keeps that, and the rate of changes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pymysql
import pytest

from airflow_provider_cdc.model.errors import TableSuspendedError, TerminalError
from airflow_provider_cdc.mysql.client.identity import binlog_end as end_of_log
from airflow_provider_cdc.mysql.client.session import connect
from airflow_provider_cdc.observe.lag import Lag, changes_per_second, measure_lag
from airflow_provider_cdc.state.models import BatchRow
from tests import ROOT
from tests.support.cli import Cli
from tests.support.mariadb import MariaDBServer
from tests.support.servers import MySQLServer
from tests.support.transforms import HASH_CONNECTION, HASH_ENV

SERVERS: dict[str, type[MySQLServer]] = {"MySQL": MySQLServer, "MariaDB": MariaDBServer}


@contextmanager
def followed(kind: str, folder: Path) -> Iterator[tuple[MySQLServer, Cli]]:
    """A server of its own with a table ``d.t`` whose snapshot is done."""
    with SERVERS[kind]() as server:
        server.execute("CREATE DATABASE d")
        server.execute("CREATE TABLE d.t (id INT PRIMARY KEY, v INT)")
        server.execute("INSERT INTO d.t VALUES (0, 0)")
        cli = Cli(folder, server, "d.t", user=server.create_cdc_user())
        cli.snapshot()
        yield server, cli


def purge(server: MySQLServer) -> None:
    """Remove all binlog files but a new one."""
    with suppress(pymysql.MySQLError):  # where there is such a thing
        server.execute("SET GLOBAL slave_connections_needed_for_purge = 0")
    server.execute("FLUSH BINARY LOGS")
    end = time.monotonic() + 400
    while len(files := server.execute("SHOW BINARY LOGS")) > 1:  # a reader that has just left may hold one
        assert time.monotonic() < end
        server.execute("PURGE BINARY LOGS TO %s", (files[-1][0],))
        time.sleep(0.1)


def lag(cli: Cli) -> Lag:
    """As ``status`` finds it, not rounded."""
    context = cli.context
    plan = context.plans.require()
    return measure_lag(context, context.sink.resume_point().read() or plan.p0)


@pytest.mark.parametrize("kind", SERVERS)
def test_how_far_the_source_is_ahead(kind: str, tmp_path: Path) -> None:
    with followed(kind, tmp_path) as (server, cli):
        assert cli.reported_status()["offset"] is None, "P0 takes its place"
        began = time.monotonic()
        server.execute("INSERT INTO d.t VALUES (1, 1)")
        time.sleep(2.5)
        server.execute("INSERT INTO d.t VALUES (2, 2)")
        behind = cli.reported_status()
        took = time.monotonic() - began
        # MariaDB tells whole seconds, and the clock of the server's commits is a cached one.
        assert 1.4 < behind["lag_seconds"] < took + 1.1, "it is the age of the oldest commit that was not read"
        server.execute("FLUSH BINARY LOGS")
        server.execute("INSERT INTO d.t VALUES (3, 3)")
        p0 = cli.context.plans.require().p0.at
        with closing(connect(server.connect_args())) as connection:
            more, end = lag(cli), end_of_log(connection)
            while end_of_log(connection) != end or lag(cli).bytes != more.bytes:  # MariaDB writes a checkpoint later
                more, end = lag(cli), end_of_log(connection)
            sizes = dict(row[:2] for row in server.execute("SHOW BINARY LOGS"))
        assert end.file != p0.file
        assert more.bytes == sizes[p0.file] - p0.position + end.position
        assert more.seconds is not None and more.seconds >= behind["lag_seconds"]

        cli.catch_up()
        now = cli.reported_status()
        assert (now["lag_seconds"], now["lag_bytes"], now["lag_unknown"]) == (0.0, 0, None)
        # A new file alone is something to read, but nothing to wait for.
        server.execute("FLUSH BINARY LOGS")
        time.sleep(1)  # MariaDB writes a checkpoint into a new file, a little later
        idle = lag(cli)
        assert idle.seconds == 0 and idle.bytes is not None and idle.bytes > 0
        text = cli.call("status").out
        assert f"lag: 0.0 s, {idle.bytes:,} bytes to read, the source keeps them for" in text


@pytest.mark.parametrize("kind", SERVERS)
def test_how_long_the_source_keeps_it(kind: str, tmp_path: Path) -> None:
    with followed(kind, tmp_path) as (server, cli):
        cli.catch_up()
        server.execute("SET GLOBAL binlog_expire_logs_seconds = 0")
        assert cli.reported_status()["purge_in_hours"] is None
        server.execute("SET GLOBAL binlog_expire_logs_seconds = 9000")
        assert cli.reported_status()["purge_in_hours"] == 2.5, "the file in use has no end yet"
        with closing(server.connect()) as session, session.cursor() as cursor:
            for sql in ("XA START 'x'", "INSERT INTO d.t VALUES (1, 1)", "XA END 'x'", "XA PREPARE 'x'"):
                cursor.execute(sql)
            server.execute("FLUSH BINARY LOGS")
            cli.catch_up()
            assert lag(cli).bytes == 0
            time.sleep(2)
            kept = lag(cli).seconds_to_purge
            assert kept is not None and kept < 9000, "the rows of an open XA transaction are in a file that has ended"
            cursor.execute("XA COMMIT 'x'")
        cli.catch_up()
        assert lag(cli).seconds_to_purge == 9000
        purge(server)
        gone = cli.reported_status()
        assert (gone["lag_seconds"], gone["lag_bytes"], gone["purge_in_hours"]) == (None, None, 0.0)
        assert "is no longer on the server" in gone["lag_unknown"]


def test_a_source_that_cannot_be_reached(tmp_path: Path) -> None:
    with followed("MySQL", tmp_path) as (server, cli):
        server.execute("INSERT INTO d.t VALUES (1, 1), (2, 2)")
        cli.catch_up()
        before = cli.reported_status()
        server.kill()
        after = cli.reported_status()
        names = ("lag_seconds", "lag_bytes", "purge_in_hours", "lag_unknown")
        reason = after["lag_unknown"]
        assert before["tables"][0].pop("lag_seconds") == 0 and after["tables"][0].pop("lag_seconds") is None
        assert [after.pop(name) for name in names[:3]] == [None] * 3 and "\n" not in reason
        assert f"{server.host}:{server.port}" in reason
        assert {k: v for k, v in before.items() if k not in names} == {k: v for k, v in after.items() if k not in names}
        shown = cli.call("status")
        assert shown.code == 0 and f"lag: unknown: {reason}" in shown.out


def batches(*found: tuple[float, int, float]) -> list[BatchRow]:
    """Batches as (second of the commit, changes, seconds that it took), the newest last; returned the newest first."""
    made = [BatchRow(committed_at=START + timedelta(seconds=at), changes=n, seconds=took) for at, n, took in found]
    return made[::-1]


START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("found", "until", "rate"),
    [
        ([], 10, 0.0),
        ([(2, 100, 1), (4, 100, 1)], 5, 40.0),
        ([(2, 100, 1), (4, 100, 1)], 4, 50.0),
        ([(100, 9999, 1), (3700, 600, 1)], 3700, 10.0),  # an hour without changes before it does not count
        ([(100, 600, 1)], 3640, 0.2),  # nothing since: the rate goes down
        ([(200, 600, 150)], 200, 4.0),  # a batch that took long
        ([(10, 9999, 1), (100, 90, 1), (145, 45, 1)], 145, 1.3),  # the first one is older than a minute
    ],
)
def test_changes_per_second(found: list[tuple[float, int, float]], until: float, rate: float) -> None:
    assert changes_per_second(batches(*found), START, START + timedelta(seconds=until)) == rate


def test_the_rate_of_a_run(tmp_path: Path, mysql_server: MySQLServer, database: str) -> None:
    mysql_server.execute(f"CREATE TABLE {database}.t (id INT PRIMARY KEY)")
    cli = Cli(tmp_path, mysql_server, f"{database}.t")
    cli.snapshot()
    assert cli.reported_status()["stream"] is None
    cli.catch_up()
    flow = cli.reported_status()["stream"]
    assert (flow["state"], flow["lag_p50_seconds"], flow["lag_p95_seconds"]) == ("caught_up", None, None)
    shown = cli.call("status").out
    assert "0 changes/s\n" in shown and "None" not in shown and "lag p50" not in shown
    mysql_server.execute(f"INSERT INTO {database}.t VALUES {','.join(f'({n})' for n in range(500))}")
    cli.catch_up()
    rate = cli.reported_status()["stream"]["changes_per_second"]
    assert rate > 0, "the run has ended; its rate stays"
    assert f"{rate:,} changes/s, lag p50 " in cli.call("status").out
    assert loaded(cli, "status") <= {"pymysql", "pymysqlreplication", "numpy", "pyarrow", "deltalake", "sqlalchemy"}
    assert loaded(cli, "check") <= {"pymysql", "pymysqlreplication", "numpy", "pyarrow", "deltalake"}
    cli.catch_up()
    assert cli.reported_status()["stream"]["changes_per_second"] == 0, "another run, without changes"


#: What takes long to import.
HEAVY = "pyspark pandas numba alembic sqlglot airflow sqlalchemy deltalake pyarrow numpy pymysql pymysqlreplication"


def loaded(cli: Cli, command: str) -> set[str]:
    """What of it a command has imported when it ends."""
    code = (
        "import sys; from airflow_provider_cdc.cli import main\n"
        f"try: main()\nfinally: print(*sorted(set('{HEAVY}'.split()) & set(sys.modules)), file=sys.stderr)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, command, "-f", str(cli.file)],
        env={**os.environ, **cli.env, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    return set(run.stderr.split())


def test_what_the_sink_takes(tmp_path: Path, mysql_server: MySQLServer, database: str) -> None:
    """Tables, dead rows, and the index of keys of the stream; a table that was empty as well."""
    mysql_server.session(
        database,
        "CREATE TABLE a (id INT PRIMARY KEY, v INT)",
        "INSERT INTO a VALUES (1, 1), (2, 2), (3, 3)",
        "CREATE TABLE b (id INT PRIMARY KEY)",
    )
    cli = Cli(tmp_path, mysql_server, rf"{database}\..*", name=database)
    cli.snapshot()
    before = cli.reported_status()["sink"]
    assert [(t["table"], t["files"], t["rows"]) for t in before] == [(f"{database}.a", 1, 3), (f"{database}.b", 0, 0)]
    mysql_server.session(database, "UPDATE a SET v = 5 WHERE id = 2", "INSERT INTO b VALUES (1)")
    cli.catch_up()
    found = cli.reported_status()
    first, second = found["sink"]
    assert (first["files"], first["rows"], first["dead_rows"], first["files_with_vectors"]) == (2, 3, 1, 1)
    assert (second["files"], second["rows"], second["dead_rows"], second["compactions"]) == (1, 1, 0, 0)
    assert first["bytes"] == sum(p.stat().st_size for p in (cli.sink / database / "a").rglob("*.parquet"))
    assert found["stream"]["index_bytes"] > 0 and found["stream"]["index_disk_bytes"] == 0
    said = cli.call("status").out
    assert f"    {database}.a: 3 rows in 2 files, {first['bytes']:,} bytes, 1 dead rows in 1 of them\n" in said
    held = f"{found['stream']['index_bytes']:,} bytes; at most {found['stream']['index_bytes_per_table']:,} in memory"
    assert f"    index of keys: {held} for a table\n" in said and found["stream"]["index_bytes_per_table"] == 1 << 28
    assert "object store" not in said


def test_how_each_table_stands(tmp_path: Path, mysql_server: MySQLServer, database: str) -> None:
    """From a table that waits for its snapshot to one that was removed: state, place, definitions, readings."""
    mysql_server.session(
        database,
        "CREATE TABLE a (id INT PRIMARY KEY, v INT)",
        "INSERT INTO a VALUES (1, 1), (2, 2)",
        "CREATE TABLE b (id INT PRIMARY KEY)",
    )
    cli = Cli(
        tmp_path, mysql_server, rf"{database}\..*", name=database, stream={"on_table_error": "suspend", "reread": "ask"}
    )

    def found() -> list[Any]:
        listed: list[Any] = cli.reported_status()["tables"]
        assert [table["table"] for table in listed] == [f"{database}.a", f"{database}.b"]
        return listed

    def states() -> list[str]:
        return [table["state"] for table in found()]

    with cli.opened() as (context, store):
        context.plans.ensure(store)
    assert states() == ["waiting", "copied"], "there is nothing to read of the other one"
    cli.snapshot()
    first, _ = found()
    assert (first["state"], first["at"], first["rows"], first["chunks_done"]) == ("copied", None, 2, 1)
    mysql_server.session(database, "INSERT INTO a VALUES (3, 3)", "ALTER TABLE a ADD COLUMN w INT")
    cli.catch_up()
    first, second = found()
    offset = cli.reported_status()["offset"]
    assert first["state"] == second["state"] == "stopped"
    assert first["at"] == second["at"] == f"{offset['file']}:{offset['position']}" and first["lag_seconds"] == 0
    before, after = first["definitions"]
    assert before == {"since": None, "columns": {"id": "int", "v": "int"}, "key": ["id"], "changed": ""}
    assert after["columns"] == {"id": "int", "v": "int", "w": "int"} and after["since"].startswith("binlog.")
    assert after["changed"] == "new columns: w"
    mysql_server.session(database, "ALTER TABLE a DROP COLUMN w, ORDER BY id", "INSERT INTO b VALUES (7)")
    with pytest.raises(TableSuspendedError):
        cli.catch_up()
    first, second = found()
    assert (first["state"], first["lag_seconds"], second["state"]) == ("suspended", None, "stopped")
    assert first["at"] != second["at"], "it stands where it was"
    assert cli.resnapshot(f"{database}.a") == "staged" and states() == ["rereading", "stopped"]
    cli.catch_up()
    first, _ = found()
    assert (first["state"], first["revision"], len(first["definitions"])) == ("stopped", 1, 1)
    cli.value["source"]["tables"] = [rf"{database}\.b"]
    cli.write()
    cli.catch_up()
    assert states() == ["removed", "stopped"]
    said = cli.call("status").out
    assert f"    {database}.a: removed at {found()[0]['at']}, 1/1 chunks" in said and "re-snapshotted once" in said


def test_a_copy_that_cannot_be_read(tmp_path: Path, mysql_server: MySQLServer, database: str) -> None:
    """Its row says why; all others are shown as ever, and the exit code is that of the error."""
    mysql_server.session(
        database,
        "CREATE TABLE a (id INT PRIMARY KEY)",
        "INSERT INTO a VALUES (1)",
        "CREATE TABLE b (id INT PRIMARY KEY)",
        "INSERT INTO b VALUES (1)",
    )
    cli = Cli(tmp_path, mysql_server, rf"{database}\..*", name=database)
    cli.snapshot()
    whole = cli.reported_status()
    newest = max((cli.sink / database / "b" / "_delta_log").glob("*.json"))
    newest.write_bytes(b'{"commitInfo"')
    result = cli.call("status", "--json")
    found = json.loads(result.out)
    assert result.code == TerminalError.exit_code
    assert f"1 of 2 copies cannot be read: {database}.b" in result.problem
    (a, b), (whole_a, whole_b) = found["tables"], whole["tables"]
    assert (a, a["error"]) == (whole_a, None)
    assert newest.name in b["error"] and {**b, "error": None} == whole_b
    assert found["sink"] == whole["sink"][:1] and found["phase"] == whole["phase"] == "snapshot_complete"
    shown = cli.call("status")
    assert shown.code == TerminalError.exit_code and f"    {database}.a: 1 rows in 1 files" in shown.out
    assert f"    {database}.b: copied, 1/1 chunks" in shown.out and f"; {b['error']}" in shown.out


def test_the_end_of_the_log_of_a_pod(tmp_path: Path, mysql_server: MySQLServer, database: str) -> None:
    """No file has it, and the command that shows it needs rights: what the driver has last told stands in for it."""
    mysql_server.execute(f"CREATE TABLE {database}.t (id INT PRIMARY KEY)")
    cli = Cli(tmp_path, mysql_server, f"{database}.t", name=database)
    cli.snapshot()
    log = "kubectl -n airflow logs airflow-cdc-2 -c driver"
    with cli.opened() as (_, store):
        for driver, address in (("1", f"{log}-other"), ("2", log)):
            store.create_driver(driver, database, what="stream", requester="a.b", sealed="")
            store.record_submission(driver, handle=driver, log=address)
            store.take_driver(driver, address)
            store.record_driver_heartbeat(driver, f"the last line of {driver}")
        store.begin_epoch(database, 0, "node", 1, 1.0, details={"log": log})
        found = cli.reported_status()["stream"]
        assert (found["log"], found["log_tail"]) == (log, ["the last line of 2"])
        store.end_driver("2", {"outcome": {}})
        assert cli.reported_status()["stream"]["log_tail"] == []


def test_rules_are_shown(mysql_server: MySQLServer, database: str, tmp_path: Path) -> None:
    """Policies by the names of the copy's columns, and the condition; nothing for a table that has neither."""
    mysql_server.session(
        database,
        "CREATE TABLE a (id INT PRIMARY KEY, email VARCHAR(60), phone VARCHAR(20), note TEXT, born DATE, x INT)",
        "CREATE TABLE b (id INT PRIMARY KEY)",
    )
    columns = {"id": {"rename": "number"}, "email": {"hash": "binary", "rename": "e"}, "phone": {"mask": 4}}
    columns |= {"note": {"truncate": 5}, "born": "null", "x": "exclude"}
    rules = {
        "hash_key_conn_id": HASH_CONNECTION,
        "columns": {rf"{database}.a.{name}": value for name, value in columns.items()},
        "where": {f"{database}.a": "x = 7 AND id > 0"},
    }
    cli = Cli(tmp_path, mysql_server, rf"{database}\..*", transforms=rules)
    cli.env |= HASH_ENV
    cli.snapshot()
    first, second = cli.reported_status()["tables"]
    (definition,) = first["definitions"]
    assert definition["policies"] == {
        "number": {"column": "id", "action": "keep"},
        "e": {"column": "email", "action": "hash", "encoding": "binary"},
        "phone": {"column": "phone", "action": "mask", "length": 4},
        "note": {"column": "note", "action": "truncate", "length": 5},
        "born": {"column": "born", "action": "null"},
    }
    assert definition["where"] == "x = 7 AND id > 0" and definition["key"] == ["number"]
    assert [*definition["columns"]] == ["number", "e", "phone", "note", "born"]
    assert not {"policies", "where"} & second["definitions"][0].keys()
