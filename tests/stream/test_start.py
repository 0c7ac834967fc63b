"""Streams that begin without a snapshot: exactly at the place that was asked for, or not at all."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.model.errors import DdlError, NotReadyError, TerminalError
from airflow_provider_cdc.model.gtid import GtidSet, MariadbGtidPosition
from airflow_provider_cdc.model.offset import Offset, Position
from airflow_provider_cdc.mysql.client import gtids
from airflow_provider_cdc.stream.run import begin_epoch
from airflow_provider_cdc.verify.run import verify_tables
from tests.observe.test_status import purge
from tests.support.cli import Cli
from tests.support.mariadb import MariaDBServer
from tests.support.servers import MySQLServer

# The servers have their turn: each test with each of them would be a product.
pytestmark = pytest.mark.one_of("history")

SERVERS: dict[str, type[MySQLServer]] = {"MySQL": MySQLServer, "MariaDB": MariaDBServer}


@dataclass
class History:
    """A server whose table ``d.t`` has taken four changes; each is noted with the place in front of it.

    1: row 1 is inserted. 2: row 2 is. 3 (in the next file, seconds later): row 1 is updated. 4: row 2 is deleted.
    """

    server: MySQLServer
    places: list[Position]
    gtids: list[str]
    moments: list[datetime]


#: Rows of d.t in a sink that has taken the changes from a number on, by that number; and what is left where row 1 was
#: not there to be updated, and row 2 not to be deleted.
AFTER = {1: {1: 10}, 2: {1: 10}, 3: {1: 10}, 4: {}, 5: {}}


def end(server: MySQLServer) -> Position:
    maria = isinstance(server, MariaDBServer)
    return Position(*server.execute("SHOW MASTER STATUS" if maria else "SHOW BINARY LOG STATUS")[0][:2])


def executed(server: MySQLServer) -> str:
    maria = isinstance(server, MariaDBServer)
    return str(server.execute(f"SELECT @@global.gtid_{'binlog_pos' if maria else 'executed'}")[0][0]).replace("\n", "")


def clock(server: MySQLServer) -> datetime:
    return datetime.fromtimestamp(float(server.execute("SELECT UNIX_TIMESTAMP(NOW(6))")[0][0]), UTC)


@pytest.fixture(scope="module", params=SERVERS)
def history(request: pytest.FixtureRequest) -> Iterator[History]:
    with SERVERS[request.param]() as server:
        server.execute("CREATE DATABASE d")
        server.execute("CREATE TABLE d.t (id INT PRIMARY KEY, v INT)")
        found = History(server, [Position("", 0)], [""], [datetime.now(UTC)])
        for number, sql in enumerate(
            (
                "INSERT INTO t VALUES (1, 1)",
                "INSERT INTO t VALUES (2, 2)",
                "UPDATE t SET v = 10 WHERE id = 1",
                "DELETE FROM t WHERE id = 2",
            )
        ):
            if number == 2:
                server.execute("FLUSH BINARY LOGS")
            found.places.append(end(server))
            found.gtids.append(executed(server))
            found.moments.append(clock(server))
            time.sleep(1.1)  # MariaDB tells whole seconds
            with contextlib.closing(server.connect(database="d")) as connection, connection.cursor() as cursor:
                cursor.execute(sql)
        found.places.append(end(server))
        found.gtids.append(executed(server))
        yield found


def pipeline(folder: Path, server: MySQLServer, start: Any, table: str = "d.t") -> Cli:
    return Cli(folder, server, table, name=f"p{secrets.token_hex(4)}", stream={"start": start})


def p0(cli: Cli) -> Offset:
    with cli.opened() as (context, _):
        return context.plans.make(1).p0


def rows(cli: Cli, table: str = "t") -> dict[int, int]:
    found = cli.rows("d", table).to_pylist()
    assert len({row["id"] for row in found}) == len(found)
    return {row["id"]: row["v"] for row in found}


def refusal(cli: Cli) -> str:
    with pytest.raises(NotReadyError) as error:
        cli.snapshot()
    assert "\n" not in str(error.value) and cli.context.storage.read(cli.context.layout.plan) is None
    return str(error.value)


def start_of(at: Position) -> dict[str, Any]:
    return {"file": at.file, "position": at.position}


def start_at(history: History, kind: str, number: int) -> Any:
    """The start that stands in front of a change."""
    return {
        "position": start_of(history.places[number]),
        "gtid_set": {"gtid_set": history.gtids[number]},
        "timestamp": {"timestamp": history.moments[number].isoformat()},
    }[kind]


@pytest.mark.parametrize("kind", ["position", "gtid_set", "timestamp"])
@pytest.mark.parametrize("number", [2, 3, 4])
def test_it_begins_in_front_of_the_change(history: History, kind: str, number: int, tmp_path: Path) -> None:
    cli = pipeline(tmp_path, history.server, start_at(history, kind, number))
    cli.snapshot()
    found = cli.context.plans.require()
    assert found.chunks == () and found.timeline.start_file == found.p0.at.file
    kinds = MariadbGtidPosition if isinstance(history.server, MariaDBServer) else GtidSet
    assert kinds.parse(found.p0.gtid_set) == kinds.parse(history.gtids[number]), "and no other transaction lies between"
    # In bytes it may be before or behind events that belong to no transaction.
    assert kind != "position" or found.p0.at == history.places[number]
    cli.catch_up()
    assert rows(cli) == AFTER[number], "an update inserts the row that is not there, a delete does nothing"
    cli.catch_up()  # resume: the GTIDs at the resume point are the server's own
    assert cli.reported_status()["lag_bytes"] == 0


def test_earliest(history: History, tmp_path: Path) -> None:
    """The CREATE TABLE of the table itself is in the binlog."""
    cli = pipeline(tmp_path, history.server, "earliest")
    cli.snapshot()
    first = history.server.execute("SHOW BINARY LOGS")[0][0]
    assert cli.context.plans.require().p0.at == Position(first, 4)
    cli.catch_up()
    assert rows(cli) == AFTER[1]
    with pytest.raises(NotReadyError, match="began without a snapshot"):
        verify_tables(cli.context)
    assert "no snapshot: earliest" in cli.call("status").out
    assert "no snapshot: the stream begins at P0, which is earliest" in cli.call("plan").out
    assert cli.call("check").code == 0
    cli.value["stream"]["start"] = "latest"
    cli.write()
    assert "stream.start of" in cli.call("status").problem


def test_latest(history: History, tmp_path: Path) -> None:
    cli = pipeline(tmp_path, history.server, "latest")
    cli.snapshot()
    assert cli.context.plans.require().p0.at == end(history.server)
    cli.catch_up()
    assert rows(cli) == {}


def test_a_moment_in_which_nothing_happened_since(history: History, tmp_path: Path) -> None:
    time.sleep(1.1)
    cli = pipeline(tmp_path, history.server, {"timestamp": clock(history.server).isoformat()})
    assert p0(cli).at == end(history.server)


def test_places_that_are_none(history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gtids, "WAIT_SECONDS", 0.5)
    at, server = history.places[2], history.server
    maria = isinstance(server, MariaDBServer)
    executed = history.gtids[5]
    for number, (start, words) in enumerate(
        [
            ({"file": at.file, "position": at.position + 1}, f"no transaction ends at {at.file}:{at.position + 1}"),
            ({"file": at.file, "position": 1 << 40}, "The last one before it ends at"),
            ({"file": "binlog.000999", "position": 4}, "binlog.000999 is not on the server"),
            ({"timestamp": (datetime.now(UTC) + timedelta(hours=2)).isoformat()}, "is in the future"),
            ({"gtid_set": "0-1-999999" if maria else executed.rpartition("-")[0] + "-99999"}, "the server "),
            ({"gtid_set": executed if not maria else "3E11FA47-71CA-11E1-9E33-C80AA9429562:1-5"}, ""),
        ][: 5 if not maria else 6]
    ):
        text = refusal(pipeline(tmp_path / str(number), server, start))
        assert words in text, text


def test_a_set_with_a_gap_is_refused(tmp_path: Path, mysql_server: MySQLServer, database: str) -> None:
    """What it lacks stands in front of what it has: there is no place to begin at."""
    mysql_server.execute(f"CREATE TABLE {database}.t (id INT PRIMARY KEY, v INT)")
    begun = executed(mysql_server)
    mysql_server.execute(f"INSERT INTO {database}.t VALUES (1, 1)")
    first = executed(mysql_server)
    mysql_server.execute(f"INSERT INTO {database}.t VALUES (2, 2)")
    (lacks,) = mysql_server.execute("SELECT GTID_SUBTRACT(%s, %s)", (first, begun))[0]
    (gapped,) = mysql_server.execute("SELECT GTID_SUBTRACT(@@global.gtid_executed, %s)", (lacks,))[0]
    text = refusal(pipeline(tmp_path, mysql_server, {"gtid_set": gapped}, f"{database}.t"))
    assert f"{lacks} is not in the set" in text


def test_an_xa_transaction_that_is_open_at_the_place(history: History, tmp_path: Path) -> None:
    """Its rows stand before the place, and become visible behind it."""
    server = history.server
    server.execute("CREATE TABLE d.x (id INT PRIMARY KEY, v INT)")
    with contextlib.closing(server.connect(database="d")) as session, session.cursor() as cursor:
        for sql in ("XA START 'x'", "INSERT INTO x VALUES (7, 7)", "XA END 'x'", "XA PREPARE 'x'"):
            cursor.execute(sql)
        at = end(server)
        cursor.execute("XA COMMIT 'x'")
    for place, wanted in ((at, {7: 7}), (end(server), {})):
        cli = pipeline(tmp_path / str(place.position), server, start_of(place), "d.x")
        assert bool(p0(cli).open_xa) == (place == at)
        cli.snapshot()
        cli.catch_up()
        assert rows(cli, "x") == wanted


@pytest.mark.parametrize("kind", SERVERS)
def test_what_was_purged(kind: str, tmp_path: Path) -> None:
    with SERVERS[kind]() as server:
        server.execute("CREATE DATABASE d")
        server.execute("CREATE TABLE d.t (id INT PRIMARY KEY, v INT)")
        began, set_, at = datetime.now(UTC) - timedelta(hours=1), executed(server), end(server)
        # Before the first file of a server that has never lost one there is nothing: that is the earliest place.
        assert p0(pipeline(tmp_path / "0", server, {"timestamp": began.isoformat()})).gtid_set == ""
        server.execute("INSERT INTO d.t VALUES (1, 1)")
        server.execute("FLUSH BINARY LOGS")
        server.execute("ALTER TABLE d.t ADD COLUMN w INT")
        purge(server)
        if kind == "MySQL":  # a server that was restored has GTIDs that were never in its binlog
            server.execute("SET GLOBAL gtid_purged = '+3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5'")
        server.execute("INSERT INTO d.t VALUES (2, 2, 2)")
        (first,) = [row[0] for row in server.execute("SHOW BINARY LOGS")]
        for number, start in enumerate(({"timestamp": began.isoformat()}, {"gtid_set": set_}, start_of(at)), 1):
            assert first in refusal(pipeline(tmp_path / str(number), server, start))
        cli = pipeline(tmp_path / "9", server, "earliest")
        cli.snapshot()
        cli.catch_up()
        assert rows(cli) == {2: 2}, "what was purged is not missed by resume"


def test_a_ddl_behind_the_place(tmp_path: Path, mysql_server: MySQLServer, database: str) -> None:
    """Events are read by the present definition: the stream stops at the first that another one made."""
    mysql_server.execute(f"CREATE TABLE {database}.t (id INT PRIMARY KEY)")
    at = end(mysql_server)
    mysql_server.execute(f"INSERT INTO {database}.t VALUES (1)")
    mysql_server.execute(f"ALTER TABLE {database}.t ADD COLUMN v INT")
    cli = pipeline(tmp_path, mysql_server, start_of(at), f"{database}.t")
    cli.snapshot()
    with pytest.raises(TerminalError, match=rf"{database}\.t"):
        cli.catch_up()
    behind = end(mysql_server)
    cli = pipeline(tmp_path / "b", mysql_server, start_of(behind), f"{database}.t")
    cli.snapshot()
    mysql_server.execute(f"ALTER TABLE {database}.t ADD COLUMN w INT DEFAULT 7")
    with pytest.raises(DdlError):
        cli.catch_up()


def test_a_table_without_a_key(tmp_path: Path, mysql_server: MySQLServer, database: str) -> None:
    mysql_server.execute(f"CREATE TABLE {database}.t (id INT)")
    assert f"{database}.t has no usable key" in refusal(pipeline(tmp_path, mysql_server, "latest", f"{database}.t"))


def test_the_stream_is_ready_at_once(tmp_path: Path, mysql_server: MySQLServer, database: str) -> None:
    """A snapshot of no groups is complete, and nothing is taken for covered."""
    mysql_server.execute(f"CREATE TABLE {database}.t (id INT PRIMARY KEY, v INT)")
    mysql_server.execute(f"INSERT INTO {database}.t VALUES (1, 1)")
    cli = pipeline(tmp_path, mysql_server, "latest", f"{database}.t")
    with cli.opened() as (context, store):
        context.plans.ensure(store)
    found = cli.reported_status()
    assert found["snapshot"]["complete"] and found["groups"] == [] and found["start"] == "latest"
    with cli.opened() as (context, store):
        epoch = begin_epoch(context, store, catch_up=True)
        assert epoch.section_start.at == epoch.plan.p0.at
