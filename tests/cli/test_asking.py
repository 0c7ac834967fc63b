"""Commands that ask something of a running stream: what they say, and their exit codes."""

from __future__ import annotations

import contextlib
import getpass
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_cdc.runtime.request_inbox import RequestInbox
from airflow_provider_cdc.stream import control as asking
from tests.support.cli import Cli
from tests.support.processes import wait_for
from tests.support.servers import MySQLServer
from tests.support.three_tables import run, three_tables


@pytest.fixture(scope="module")
def shared(mysql_server: MySQLServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    with three_tables(mysql_server):
        cli = Cli(tmp_path_factory.mktemp("asking"), mysql_server, r"d\..*", stream={"on_table_error": "suspend"})
        cli.snapshot()
        run(mysql_server, "UPDATE quiet SET v = 'on' WHERE id = 1")
        cli.catch_up()
        yield cli


def done(cli: Cli, command: str, *args: str) -> str:
    result = cli.call(command, *args)
    assert result.code == 0 and "error" not in result.err, result
    return result.out.rstrip("\n")


def test_where_no_stream_runs(shared: Cli) -> None:
    assert done(shared, "stop") == "no stream is running, and one that is starting will not begin"
    assert done(shared, "pause") == "no stream is running"
    assert done(shared, "resume") == "no stream is running, and none is paused"
    said = done(shared, "suspend", "--table", "d.plain", "--by", "ann")
    assert said.startswith("no stream is running: the next one will handle it (request ")
    with shared.opened() as (_, store):
        (row,) = store.last_requests("p")
        assert (row.kind, row.table, row.by, row.state) == ("suspend", "d.plain", "ann", "open")
        assert store.withdraw_request("p", row.id, "ann")


def test_where_one_runs(shared: Cli) -> None:
    with shared.streaming() as epoch:
        said = done(shared, "suspend", "--table", "d.plain")
        user = getpass.getuser()
        assert said.startswith("table d.plain is suspended at ") and f"{user} asked for it" in said
        assert said.endswith("airflow-cdc resume --table d.plain")
        (line,) = [line for line in done(shared, "status").splitlines() if "suspended: " in line]
        assert line.strip().startswith("suspended: d.plain since ") and line.endswith(f"{user} asked for it")

        assert done(shared, "pause", "--by", "ann") == f"epoch {epoch.number} was asked to pause"
        wait_for("the pause", lambda: epoch.inbox.paused)
        assert "    paused: ann asked for it. To resume it: airflow-cdc resume" in done(shared, "status")
        said = done(shared, "resume", "--table", "d.plain")
        assert said.startswith("the stream is paused (ann asked for it): it re-snapshots the table when it is resumed")
        assert done(shared, "resume") == f"epoch {epoch.number} resumes"
        assert "paused" not in done(shared, "status")
        said = done(shared, "resume", "--table", "d.plain")  # the same request, if it still waits
        assert said.startswith("d.plain was re-snapshotted and is part of the stream from ")
        assert done(shared, "stop", "--by", "bob") == f"epoch {epoch.number} was asked to stop"
        wait_for("its end", epoch.stop.is_set)
    with shared.opened() as (_, store):
        others = ("group_published", "request_withdrawn", "stream_stopped")
        events = [one for one in reversed(store.last_events("p", 20)) if one.by and one.kind not in others]
    found = [(event.kind, event.by) for event in events]
    # That no stream begins, in the test above, was asked for first.
    named = (
        ("stream_stop", user),
        ("table_suspended", user),
        ("stream_paused", "ann"),
        ("stream_resumed", user),
        ("table_rejoined", user),
    )
    # It is read twice if the stream had begun with the first request when the second one came.
    assert [*dict.fromkeys(found)] == [*named, ("stream_stop", "bob")], found


def test_a_stream_that_hears_nothing(shared: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits is told so, and the request stays for the next one."""
    monkeypatch.setattr(RequestInbox, "receive_reply", lambda *_: None)
    monkeypatch.setattr(asking, "_WARN_AFTER_SECONDS", 0.2)

    with shared.opened() as (_, store), shared.streaming() as epoch:
        impatient = threading.Timer(
            2.5, lambda: [store.withdraw_request("p", row.id, "ann") for row in store.last_requests("p")]
        )
        impatient.start()
        result = shared.call("suspend", "--table", "d.plain")
        impatient.join()
    said = result.out + result.err
    assert result.code == 2 and said.count(f"epoch {epoch.number} of the stream has not picked it up yet") == 1, said


def test_what_is_refused(shared: Cli, mysql_server: MySQLServer) -> None:
    for command in ("suspend", "resume"):
        result = shared.call(command, "--table", "d.other")
        assert result.code == 2 and "copies no table d.other. It copies d.keyed, d.plain, d.quiet" in result.problem
    assert shared.call("suspend").code == 2
    run(mysql_server, "RENAME TABLE keyed TO elsewhere")
    with contextlib.suppress(Exception):
        shared.catch_up()
    with shared.streaming():
        result = shared.call("resume", "--table", "d.keyed")
    assert result.code == 2 and "the stream has refused it: table d.keyed no longer exists" in result.err


def test_a_pipeline_without_a_plan(mysql_server: MySQLServer, tmp_path: Path) -> None:
    cli = Cli(tmp_path, mysql_server, r"d\..*")
    for command, *args in (("pause",), ("resume",), ("suspend", "--table", "d.t")):
        result = cli.call(command, *args)
        assert result.code == 2 and "airflow-cdc snapshot" in result.problem
    assert not cli.sink.exists()


def test_a_container_without_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.getuid", lambda: 987_654)
    assert asking.os_user() == "user 987654"
