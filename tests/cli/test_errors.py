"""Bad input and an environment that is not ready: exit 2, one line with the remedy, nothing written."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch
from uuid import uuid4

import pytest
from pymysqlreplication import BinLogStreamReader

from airflow_provider_cdc.model.errors import CdcError, DdlError, NotReadyError, TerminalError
from airflow_provider_cdc.spark import java
from tests.support.cli import Cli, tree
from tests.support.servers import MySQLServer

COMMANDS = ("check", "plan", "snapshot", "stream", "run")
#: For most cases: the preflight is the same for all.
SOME = ("check", "run")
Make = Callable[..., Cli]


@pytest.fixture(autouse=True, scope="module")
def java_once() -> Iterator[None]:
    """The preflight asks Java for its version, half a second each time; here the answer is kept."""
    with patch.object(java, "java_version", cache(java.java_version)):
        yield


@pytest.fixture
def table(mysql_server: MySQLServer, database: str) -> str:
    """A database with one table of three rows."""
    mysql_server.execute(f"CREATE TABLE `{database}`.t (id INT PRIMARY KEY, v VARCHAR(20))")
    mysql_server.execute(f"INSERT INTO `{database}`.t VALUES (1, 'a'), (2, 'b'), (3, 'c')")
    return database


@pytest.fixture
def make(mysql_server: MySQLServer, table: str, tmp_path: Path, cdc_user: dict[str, str]) -> Make:
    """Makes a pipeline on that table; settings as in :class:`Cli`."""

    def one(*tables: str, **settings: Any) -> Cli:
        given = {"server": mysql_server, "user": cdc_user, "name": table, **settings}
        return Cli(tmp_path / "work", given.pop("server"), *(tables or (rf"{table}\..*",)), **given)

    return one


@contextlib.contextmanager
def setting(server: MySQLServer, name: str, value: str) -> Iterator[None]:
    """A global variable with another value for a while."""
    before = server.execute(f"SELECT @@global.{name}")[0][0]
    server.execute(f"SET GLOBAL {name} = {value}")
    try:
        yield
    finally:
        server.execute(f"SET GLOBAL {name} = %s", (before,))


def refused(cli: Cli, *words: str, commands: tuple[str, ...] = SOME, code: int = 2) -> None:
    """Every command is refused with this exit code and one line with the words in it, and leaves nothing behind."""
    before = tree(cli.folder)
    for command in commands:
        result = cli.call(command)
        assert result.code == code, (command, result)
        if command == "check" and not result.err:
            (line,) = result.found
        else:
            assert result.out == "", (command, result.out)
            line = result.problem
        for word in words:
            assert word in line, (command, word, line)
    assert tree(cli.folder) == before


# ---------------------------------------------------------------- the file


def test_a_missing_file(make: Make) -> None:
    cli = make()
    cli.file.unlink()
    refused(cli, str(cli.file), "does not exist", commands=COMMANDS)


def test_a_folder_instead_of_a_file(make: Make) -> None:
    cli = make()
    cli.file.unlink()
    cli.file.mkdir()
    refused(cli, str(cli.file), "is a directory", "--help")


@pytest.mark.parametrize("options", [[], ["--no-such-option"], ["-f"]])
def test_wrong_options(make: Make, options: list[str]) -> None:
    cli = make()
    result = cli.call("plan", *options) if options else cli.call("no-such-command")
    assert result.code == 2
    assert "--help" in result.problem


def test_unknown_key(make: Make) -> None:
    refused(
        make(snapshot={"chunk_row": 5}),
        "unknown key snapshot.chunk_row",
        "Did you mean snapshot.chunk_rows",
        commands=COMMANDS,
    )


def test_unknown_section_whose_value_stays_unsaid(make: Make) -> None:
    cli = make()
    cli.value["password"] = "hush-hush"
    cli.write()
    refused(cli, "unknown key password")
    assert "hush-hush" not in cli.call("run").err


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"snapshot": {"chunk_rows": 0}}, ("snapshot.chunk_rows is 0", "from 1 to")),
        ({"snapshot": {"chunk_rows": "many"}}, ("snapshot.chunk_rows is 'many'",)),
        ({"stream": {"mode": "forever"}}, ("stream.mode is 'forever'", "continuous, catch_up")),
        ({"sink": {"path": "lake"}}, ("sink.path is 'lake'", "absolute")),
        ({"sink": {"kind": "kafka"}}, ("sink.kind: 'kafka' is not supported yet", "Use delta or iceberg")),
        ({"sink": {"deletes": "maybe"}}, ("sink.deletes is 'maybe'", "hard, soft, ignore")),
        ({"stream": {"schema_changes": "try_evolve"}}, ("stream.schema_changes: 'try_evolve' is not supported yet",)),
        ({"source": {"tables": ["("]}}, ("source.tables is '('", "regular expressions")),
        ({"spark": {"master": "mesos://h:1"}}, ("spark.master is 'mesos://h:1'", "It must be local")),
    ],
)
def test_bad_values(make: Make, settings: dict[str, Any], words: tuple[str, ...]) -> None:
    refused(make(**settings), *words)


def test_text_that_is_no_yaml(make: Make) -> None:
    cli = make()
    cli.file.write_text("name: [unclosed\n")
    refused(cli, str(cli.file), "line ")


# ---------------------------------------------------------------- connection and server


def test_a_missing_connection(make: Make) -> None:
    cli = make()
    cli.env = {}
    refused(cli, "connection cdc_source is not defined", "AIRFLOW_CONN_CDC_SOURCE", commands=COMMANDS)


def test_a_connection_that_cannot_be_understood_is_not_shown(make: Make) -> None:
    cli = make()
    cli.env = {"AIRFLOW_CONN_CDC_SOURCE": "mysql://cdc:hush/hush@127.0.0.1:3306/"}
    refused(cli, "AIRFLOW_CONN_CDC_SOURCE", "percent-encoded")
    assert "hush" not in cli.call("run").err


def test_a_connection_of_another_type(make: Make) -> None:
    cli = make()
    cli.env = {"AIRFLOW_CONN_CDC_SOURCE": "postgres://cdc:x@127.0.0.1:5432/"}
    refused(cli, "type postgres", "mysql")


def test_wrong_password(make: Make, cdc_user: dict[str, str]) -> None:
    cli = make(user={**cdc_user, "password": "not-the-password"})
    refused(cli, "Access denied", cdc_user["user"], "Check user, password and grants")


def test_server_away(make: Make) -> None:
    cli = make(server=MySQLServer())  # never started: nobody listens on its port
    refused(cli, "the server cannot be reached", "Check host, port", commands=COMMANDS, code=3)


def test_as_a_real_process(make: Make, cdc_user: dict[str, str]) -> None:
    """The same as above, once with nothing of the test around it."""
    cli = make(user={**cdc_user, "password": "not-the-password"})
    result = cli.run("run", "--catch-up")
    assert (result.code, result.out) == (2, "")
    assert "Check user, password and grants" in result.problem
    assert not cli.sink.exists()


def test_no_table_matches(make: Make, table: str) -> None:
    refused(make(rf"{table}\.nothing"), "no table matches", f"{table}", "SELECT on the tables", commands=COMMANDS)


def test_an_excluded_table_does_not_match(make: Make, table: str) -> None:
    refused(make(source={"exclude": [rf"{table}\.t"]}), "no table matches")


def test_binlog_off(make: Make) -> None:
    with MySQLServer(args=["--skip-log-bin"]) as server:
        server.execute("CREATE DATABASE d")
        server.execute("CREATE TABLE d.t (id INT PRIMARY KEY)")
        cli = make(r"d\.t", server=server, user=server.create_cdc_user())
        refused(cli, "log_bin", "--log-bin", commands=COMMANDS)


def test_changes_that_are_not_in_the_binlog(make: Make) -> None:
    """Databases that the server leaves out are refused; cascades that it does not log are warned of."""
    with MySQLServer(args=["--binlog-ignore-db=quiet", "--innodb-native-foreign-keys=ON"]) as server:
        server.execute("CREATE DATABASE d")
        server.execute("CREATE TABLE d.parent (id INT PRIMARY KEY)")
        cascade = "FOREIGN KEY (p) REFERENCES d.parent (id) ON DELETE CASCADE"
        server.execute(f"CREATE TABLE d.child (id INT PRIMARY KEY, p INT, {cascade})")
        cli = make(r"d\..*", server=server, user=server.create_cdc_user())
        refused(cli, "binlog-ignore-db=quiet", "Remove these options")
        warnings = [line for line in cli.call("check").out.splitlines() if line.startswith("warning")]
    assert len(warnings) == 1 and "table d.child" in warnings[0] and "ON DELETE CASCADE" in warnings[0]


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("binlog_row_image", "'MINIMAL'", "binlog_row_image = 'FULL'"),
        ("binlog_row_image", "'NOBLOB'", "binlog_row_image = 'FULL'"),
        ("binlog_row_value_options", "'PARTIAL_JSON'", "binlog_row_value_options = ''"),
        ("binlog_format", "'MIXED'", "binlog_format = 'ROW'"),
    ],
)
def test_server_settings(make: Make, mysql_server: MySQLServer, name: str, value: str, remedy: str) -> None:
    with setting(mysql_server, name, value):
        refused(make(), f"{name} is {value.strip(chr(39))!r}", remedy)


def test_without_gtids_the_grants_for_watermarks_are_named(make: Make, mysql_server: MySQLServer) -> None:
    user = mysql_server.create_cdc_user(f"u_{uuid4().hex[:8]}")
    with setting(mysql_server, "gtid_mode", "ON_PERMISSIVE"):
        refused(make(user=user), "gtid_mode is ON_PERMISSIVE, and the user has no grant", "GRANT BACKUP_ADMIN")
        mysql_server.execute("GRANT RELOAD ON *.* TO %s@'%%'", (user["user"],))
        result = make(user=user).call("check")
        assert result.code == 0 and "low watermarks can be taken without GTIDs" in result.out


@pytest.mark.parametrize("missing", ["REPLICATION SLAVE", "REPLICATION CLIENT"])
def test_missing_grants(make: Make, mysql_server: MySQLServer, missing: str) -> None:
    user = mysql_server.create_cdc_user(f"u_{uuid4().hex[:8]}")
    mysql_server.execute(f"REVOKE {missing} ON *.* FROM %s@'%%'", (user["user"],))
    refused(make(user=user), f"lacks the grant {missing}", f"GRANT {missing} ON *.* TO")


def test_select_missing_on_everything(make: Make, mysql_server: MySQLServer) -> None:
    user = mysql_server.create_cdc_user(f"u_{uuid4().hex[:8]}", databases=["elsewhere"])
    refused(make(user=user), "no table matches", "SELECT")


@pytest.mark.parametrize("privilege", ["INSERT", "SELECT (id)"])
def test_select_missing_on_a_table_that_is_seen(
    make: Make, mysql_server: MySQLServer, table: str, privilege: str
) -> None:
    """A right on one column shows the table with that column alone: the others would be lost."""
    user = mysql_server.create_cdc_user(f"u_{uuid4().hex[:8]}", databases=["elsewhere"])
    mysql_server.execute(f"GRANT {privilege} ON `{table}`.t TO %s@'%%'", (user["user"],))
    refused(make(user=user), "lacks the grant SELECT", f"GRANT SELECT ON `{table}`.`t` TO")


def test_server_id_of_the_server_itself(make: Make, mysql_server: MySQLServer) -> None:
    own = int(mysql_server.execute("SELECT @@server_id")[0][0])
    refused(make(source={"server_id": own}), f"replication server id {own} is in use", "source.server_id")


def test_server_id_of_another_replica(make: Make, mysql_server: MySQLServer) -> None:
    taken = 77_001
    settings = {**mysql_server.connect_args(), "connect_timeout": 10}
    replica = BinLogStreamReader(settings, server_id=taken, report_slave="elsewhere", blocking=True)
    with contextlib.closing(replica):
        for _ in replica:  # it registers with the first event
            break
        refused(make(source={"server_id": taken - 1000}), f"replication server id {taken} is in use", "SHOW REPLICAS")


# ---------------------------------------------------------------- sink and tables


def test_a_sink_below_a_file(make: Make, tmp_path: Path) -> None:
    """Root may write everywhere, but not below a regular file."""
    (tmp_path / "file").write_text("")
    refused(make(sink={"path": str(tmp_path / "file" / "lake")}), "cannot be written", "another sink.path")


def test_a_sink_that_takes_no_file(make: Make) -> None:
    """Its mode would allow it, at least for root; only a file that is written shows that it does not."""
    words = "cannot be written: /proc does not accept a file", "Give the user that runs this write access"
    refused(make(sink={"path": "/proc/lake"}), *words)


def test_the_probe_of_a_sink_goes(make: Make) -> None:
    cli = make()
    cli.sink.mkdir()
    assert not cli.call("check").found
    assert tree(cli.sink) == {}


def test_a_command_that_is_none(make: Make) -> None:
    cli = make()
    assert cli.call("verifi").problem.endswith("'verify'? See airflow-cdc --help")
    assert cli.call("verifi").code == 2


def test_a_sink_that_is_a_file(make: Make, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused(make(sink={"path": str(tmp_path / "file")}), "cannot be written")


@pytest.mark.parametrize(
    ("definition", "words"),
    [
        ("id INT PRIMARY KEY, _cdc_x INT", ("column _cdc_x", "Rename")),
        ("id INT PRIMARY KEY) ENGINE=MyISAM COMMENT=('')", ("engine MyISAM", "convert the table or exclude it")),
    ],
)
def test_tables_that_cannot_be_copied(
    make: Make, mysql_server: MySQLServer, table: str, definition: str, words: tuple[str, ...]
) -> None:
    definition = definition.replace(" COMMENT=('')", "") if "MyISAM" in definition else f"{definition})"
    mysql_server.execute(f"CREATE TABLE `{table}`.bad ({definition}")
    refused(make(), f"{table}.bad", *words, commands=("check", "plan", "run"))
    cli = make(source={"exclude": [rf"{table}\.bad"]})
    assert cli.call("check").code == 0  # the remedy helps


@pytest.mark.parametrize(
    ("definition", "why"),
    [
        ("id INT", ""),
        ("id INT UNIQUE", " (id: id may be NULL)"),
        ("id VARCHAR(9), PRIMARY KEY (id(3))", " (PRIMARY: only a prefix of id is indexed)"),
        ("id DOUBLE PRIMARY KEY", " (PRIMARY: id is of type double)"),
        ("id SET('a') PRIMARY KEY", " (PRIMARY: id is of type set)"),
    ],
)
def test_tables_without_a_usable_key_are_warned_of(
    make: Make, mysql_server: MySQLServer, table: str, definition: str, why: str
) -> None:
    mysql_server.execute(f"CREATE TABLE `{table}`.bare ({definition})")
    checked, planned = make().call("check"), make().call("plan")
    (warned,) = [line for line in checked.out.splitlines() if "bare" in line]
    assert checked.code == planned.code == 0
    assert warned.startswith("warning") and f"no usable key{why}: it is read whole" in warned
    assert "Add a primary key" in warned
    assert f"{table}.bare: no usable key, so read as 1 chunk" in planned.out


def test_a_table_without_a_key_and_columns(make: Make, mysql_server: MySQLServer, table: str) -> None:
    mysql_server.execute(f"CREATE TABLE `{table}`.bare (id INT)")
    cli = make(source={"exclude_columns": [rf"{table}\.bare\.id"]})
    refused(
        cli, f"{table}.bare has no usable key, and none of its columns", "exclude the table", commands=("check", "run")
    )


def test_a_second_problem_is_a_second_line_of_check(make: Make, mysql_server: MySQLServer, table: str) -> None:
    mysql_server.execute(f"CREATE TABLE `{table}`.bad (id INT PRIMARY KEY, _cdc_v INT)")
    mysql_server.execute(f"CREATE TABLE `{table}`.worse (id INT) ENGINE=MyISAM")
    with setting(mysql_server, "binlog_row_image", "'MINIMAL'"):
        result = make().call("check", "--json")
    assert result.code == 2
    assert result.out.count('"level": "error"') == 3


# ---------------------------------------------------------------- commands out of their order


@pytest.mark.parametrize("command", ["stream", "status", "stop", "verify"])
def test_without_a_snapshot(make: Make, command: str) -> None:
    refused(make(), "has no snapshot", "airflow-cdc run", commands=(command,))


def test_stream_before_the_snapshot_is_complete(make: Make) -> None:
    cli = make()
    with cli.opened() as (context, store):
        context.plans.ensure(store)
        with pytest.raises(CdcError, match="is not complete.*airflow-cdc snapshot") as caught:
            cli.catch_up()
    assert caught.value.exit_code == 2


@pytest.mark.spark
def test_a_table_is_read_again_through_the_command_line(make: Make, mysql_server: MySQLServer, table: str) -> None:
    """By hand, as the error says, and by the stream itself, which has no other table meanwhile."""
    cli = make(stream={"on_table_error": "suspend", "reread": "ask"})
    result = cli.call("resnapshot", "--table", f"{table}.t")
    assert (result.code, cli.sink.exists()) == (2, False) and "has no snapshot" in result.problem
    cli.snapshot()
    cli.catch_up()
    mysql_server.execute(f"ALTER TABLE `{table}`.t ADD COLUMN w INT NOT NULL DEFAULT 7")
    result = cli.run("stream")  # it does not wait for what cannot come
    remedy = f"airflow-cdc resume --table {table}.t"
    assert result.code == 1 and remedy in result.err, result
    told = cli.call("status")
    assert f"suspended: {table}.t since " in told.out
    (row,) = json.loads(cli.call("status", "--json").out)["suspended"]
    assert row["kind"] == "NotFollowedError" and row["table"] == f"{table}.t"
    assert cli.call("verify").code == 4
    result = cli.run("resnapshot", "--table", f"{table}.nothing")
    assert result.code == 2 and f"no table {table}.nothing" in result.err
    result = cli.run("resnapshot", "--table", f"{table}.t")
    assert result.code == 0 and "the next one will publish it" in result.err, result
    assert cli.run("stream", "--catch-up").code == 0
    assert set(cli.rows(table, "t").column("w").to_pylist()) == {7}
    mysql_server.execute(f"ALTER TABLE `{table}`.t ADD COLUMN x INT NOT NULL DEFAULT 8")
    assert cli.run("stream").code == 1
    result = cli.run(*remedy.split()[1:])
    assert result.code == 0 and "the next one will handle it" in result.out, result
    assert cli.run("stream", "--catch-up").code == 0
    assert set(cli.rows(table, "t").column("x").to_pylist()) == {8}
    assert cli.call("verify").code == 0
    cli.value["stream"]["reread"] = "auto"
    cli.write()
    mysql_server.execute(f"ALTER TABLE `{table}`.t DROP COLUMN w, DROP COLUMN x, ORDER BY id")
    result = cli.run("stream", "--catch-up")
    assert result.code == 0 and "is part of the stream" in result.err, result
    assert "w" not in cli.rows(table, "t").column_names
    assert cli.call("verify").code == 0


def test_plan_and_check_write_nothing(make: Make, table: str) -> None:
    cli = make()
    before = tree(cli.folder)
    assert cli.call("check").code == 0
    plan = cli.call("plan")
    assert plan.code == 0 and f"{table}.t: 1 chunks" in plan.out
    assert "planned with" in plan.out
    told = json.loads(cli.call("plan", "--json").out)["tables"][0]["planning"]
    assert 2 < told["statements"] < 10 and 0 < told["rows"] < 200
    assert tree(cli.folder) == before


def test_tables_that_come_and_go_are_told(make: Make, mysql_server: MySQLServer, table: str) -> None:
    cli = make()
    cli.snapshot()
    mysql_server.execute(f"CREATE TABLE `{table}`.late (id INT PRIMARY KEY)")
    result = cli.call("check")
    assert result.code == 0
    (warning,) = (line for line in result.out.splitlines() if line.startswith("warning"))
    assert f"{table}.late is not part of the plan yet" in warning and "source.exclude" in warning
    cli.catch_up()
    assert "warning" not in cli.call("check").out
    changed = make(source={"exclude": [rf"{table}\.late"]})
    changed.catch_up()
    with changed.opened() as (_, store):
        (event,) = store.last_events(table, 1, ["table_removed"])
    assert f"{table}.late was removed from the pipeline" in event.detail
    changed = make(source={"exclude_columns": [rf"{table}\..*\.v"]})
    result = changed.call("check")
    assert result.code == 0 and f"leave out v of {table}.t" in result.out and "the next run of the stream" in result.out
    with pytest.raises(DdlError, match=f"leave out v of {table}.t.*Undo the change"):
        changed.catch_up()


def test_two_pipelines_with_one_sink(make: Make, table: str) -> None:
    make().snapshot()
    with pytest.raises(NotReadyError, match=rf"{table}/t, but no plan at .*other.*fresh sink\.path"):
        make(name="other").snapshot()


# ---------------------------------------------------------------- while streaming


def stopped(cli: Cli, *words: str) -> None:
    """The stream ends with exit 1 and a message, at the place where it was, and does so again."""
    for _ in range(2):
        with pytest.raises(TerminalError) as caught:
            cli.catch_up()
        assert caught.value.exit_code == 1
        for word in words:
            assert word in str(caught.value)
    assert words[0] in cli.call("status").out


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE t ADD COLUMN w INT DEFAULT 7",
        "ALTER TABLE t RENAME TO u",
        "DROP TABLE t",
    ],
)
def test_ddl_on_a_captured_table(make: Make, mysql_server: MySQLServer, table: str, statement: str) -> None:
    cli = make()
    cli.snapshot()
    elsewhere = "CREATE TABLE elsewhere (id INT)"  # of no concern
    mysql_server.session(table, "INSERT INTO t VALUES (4, 'd')", elsewhere, statement)
    stopped(cli, f"{table}.t", "fresh sink.path")


def test_an_index_changes_no_row(make: Make, mysql_server: MySQLServer, table: str) -> None:
    cli = make()
    cli.snapshot()
    mysql_server.execute(f"CREATE INDEX i ON `{table}`.t (v)")
    cli.catch_up()


def test_dml_by_statement(make: Make, mysql_server: MySQLServer, table: str) -> None:
    cli = make()
    cli.snapshot()
    mysql_server.session(table, "SET SESSION binlog_format = 'STATEMENT'", "UPDATE t SET v = 'x'")
    stopped(cli, f"{table}.t", "binlog_format=ROW")


def test_row_images_that_are_not_full(make: Make, mysql_server: MySQLServer, table: str) -> None:
    cli = make()
    cli.snapshot()
    mysql_server.session(table, "SET SESSION binlog_row_image = 'MINIMAL'", "UPDATE t SET v = 'x'")
    stopped(cli, f"{table}.t", "binlog_row_image=FULL")


def test_xa_on_other_tables_is_of_no_concern(make: Make, mysql_server: MySQLServer, table: str) -> None:
    mysql_server.execute(f"CREATE TABLE `{table}`.other (id INT PRIMARY KEY)")
    cli = make(rf"{table}\.t")
    cli.snapshot()
    with contextlib.closing(mysql_server.connect(database=table)) as connection, connection.cursor() as cursor:
        for sql in (
            "XA START 'y'",
            "INSERT INTO other VALUES (9)",
            "XA END 'y'",
            "XA PREPARE 'y'",
            "INSERT INTO t VALUES (9, 'x')",
            "XA COMMIT 'y'",
        ):
            with contextlib.suppress(Exception) if sql.startswith("INSERT INTO t ") else contextlib.nullcontext():
                cursor.execute(sql)
    cli.catch_up()


def test_a_purged_position(make: Make, tmp_path: Path) -> None:
    with MySQLServer() as server:
        server.execute("CREATE DATABASE d")
        server.execute("CREATE TABLE d.t (id INT PRIMARY KEY)")
        cli = make(r"d\.t", server=server, user=server.create_cdc_user())
        cli.snapshot()
        cli.catch_up()
        server.execute("INSERT INTO d.t VALUES (1)")
        server.purge()
        stopped(cli, "no longer on the server", "fresh sink.path")


@pytest.mark.spark
def test_ddl_through_the_command_line(make: Make, mysql_server: MySQLServer, table: str) -> None:
    cli = make()
    cli.snapshot()
    mysql_server.execute(f"ALTER TABLE `{table}`.t ADD COLUMN w INT DEFAULT 7")
    started = time.monotonic()
    result = cli.run("stream")
    assert result.code == 1, result
    last = result.err.splitlines()[-1]
    assert last.startswith("error: ") and f"{table}.t" in last and "fresh sink.path" in last
    assert "Traceback" not in result.err and result.out == ""
    assert time.monotonic() - started < 120
