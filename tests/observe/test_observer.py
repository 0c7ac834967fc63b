"""What drivers write down for people: samples of the lag, and how each table stands."""

from __future__ import annotations

import sqlite3
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.model.errors import TableSuspendedError
from airflow_provider_cdc.observe import observer as observing
from airflow_provider_cdc.state import TableStateRow, utc_now
from tests.state.test_observations import samples_since
from tests.support.cli import Cli
from tests.support.servers import MySQLServer
from tests.support.three_tables import SUSPENDS, run, three_tables_database

pytestmark = pytest.mark.one_of("server")
database = three_tables_database


def pipeline(server: MySQLServer, folder: Path, **stream: Any) -> Cli:
    return Cli(folder, server, r"d\..*", snapshot={"chunk_rows": 5, "group_rows": 10}, stream={**SUSPENDS, **stream})


def states(cli: Cli) -> dict[str, TableStateRow]:
    with cli.opened() as (_, store):
        return {row.name: row for row in store.table_states("p")}


def test_how_tables_stand(server: MySQLServer, database: str, tmp_path: Path) -> None:
    cli = pipeline(server, tmp_path)
    cli.snapshot()
    found = states(cli)
    assert {row.state for row in found.values()} == {"copied"}
    keyed = found["keyed"]
    assert keyed.chunks_done == keyed.chunks_total > 1 and keyed.position is None
    assert keyed.files and keyed.bytes and (keyed.rows, keyed.dead_rows) == (30, 0)
    assert (keyed.inserts, keyed.updates, keyed.deletes) == (0, 0, 0)
    (definition,) = keyed.definitions
    assert definition["key"] == ["id"] and definition["columns"]["v"] == "varchar(40)"
    quiet = found["quiet"]

    run(
        server,
        "INSERT INTO keyed VALUES (901, 'x'), (902, 'y')",
        "UPDATE keyed SET v = 'z' WHERE id IN (1, 2, 3)",
        "DELETE FROM keyed WHERE id = 5",
        "UPDATE keyed SET id = 903 WHERE id = 902",
        "ALTER TABLE keyed ADD COLUMN w INT",
        "UPDATE keyed SET w = 1 WHERE id = 1",
    )
    cli.catch_up()
    found = states(cli)
    keyed = found["keyed"]
    assert keyed.state == "stopped" and keyed.since > found["quiet"].since - timedelta(minutes=1)
    assert (keyed.inserts, keyed.updates, keyed.deletes) == (2, 5, 2), "a change of the key is a delete and an update"
    assert keyed.rows == 31 and keyed.dead_rows is not None
    assert keyed.position is not None and keyed.position.count(":") == 1
    assert [step["changed"] for step in keyed.definitions] == ["", "new columns: w"]
    assert found["quiet"].files == quiet.files, "nobody has looked there again"

    run(server, "ALTER TABLE keyed DROP COLUMN v, ORDER BY id", "INSERT INTO quiet VALUES (77, 'x')")
    with pytest.raises(TableSuspendedError):
        cli.catch_up()
    found = states(cli)
    keyed = found["keyed"]
    assert (keyed.state, keyed.kind) == ("suspended", "NotFollowedError")
    assert keyed.reason and "ORDER is not followed" in keyed.reason
    assert keyed.remedy == "Re-snapshot it: airflow-cdc resume --table d.keyed"
    assert (found["quiet"].state, found["quiet"].inserts) == ("stopped", 1)
    with cli.opened() as (_, store):
        (event,) = store.last_events("p", 1, ["table_suspended"])
        assert (event.table, event.remedy) == ("d.keyed", keyed.remedy)

    assert cli.resnapshot("d.keyed") == "staged"
    cli.value["source"]["exclude"] = [r"d\.quiet"]
    cli.write()
    cli.catch_up()
    found = states(cli)
    keyed = found["keyed"]
    assert (keyed.state, keyed.kind, keyed.reason, keyed.remedy) == ("stopped", None, None, None)
    assert (found["quiet"].state, found["quiet"].kind) == ("removed", "removed")


def test_a_running_stream(server: MySQLServer, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It writes samples, what it does not lose while the bookkeeping is away, and how tables stand, soon."""
    monkeypatch.setattr(observing, "_FIRST_SAMPLE_SECONDS", 0.2)
    monkeypatch.setattr(observing, "_INTERVAL_SECONDS", 0.2)
    cli = pipeline(server, tmp_path)
    cli.snapshot()
    with cli.streaming() as epoch, cli.opened() as (_, store):

        def until(seen: Any) -> Any:
            end = time.monotonic() + 60
            while not (found := seen()):
                assert time.monotonic() < end
                time.sleep(0.05)
            return found

        until(lambda: {row.state for row in store.table_states("p")} == {"streaming"})
        sample = until(lambda: (last := store.last_sample("p")) is not None and last.epoch is not None and last)
        assert (sample.epoch, sample.lag_bytes, sample.lag_seconds, sample.unknown) == (epoch.number, 0, 0.0, None)
        expire = 3600 * (sample.purge_hours or 0)
        assert expire == int(server.execute("SELECT @@binlog_expire_logs_seconds")[0][0])
        lock = sqlite3.connect(cli.folder / "lake" / "_cdc" / "p" / "bookkeeping.db", isolation_level=None)
        lock.execute("ALTER TABLE table_states RENAME TO away")
        run(server, "INSERT INTO keyed VALUES (901, 'x')")
        until(lambda: store.batch_totals("p").changes)
        time.sleep(1)
        lock.execute("ALTER TABLE away RENAME TO table_states")
        lock.close()
        until(lambda: [row.inserts for row in store.table_states("p") if row.name == "keyed"] == [1])
        run(server, "ALTER TABLE keyed DROP COLUMN v, ORDER BY id")
        until(lambda: "suspended" in {row.state for row in store.table_states("p")})
        assert len(samples_since(store, "p", utc_now() - timedelta(hours=1))) > 2
        epoch.context.pipeline = cli.context.pipeline  # nothing else changes
        with pytest.MonkeyPatch.context() as quiet:
            quiet.setattr("airflow_provider_cdc.stream.run.check_none_suspended", lambda *_: None)
            epoch.stop.set()
            until(lambda: {row.state for row in store.table_states("p")} == {"suspended", "stopped"})


def test_verified(server: MySQLServer, database: str, tmp_path: Path) -> None:
    """Where there is a bookkeeping the result is in it, without a value of a row; where there is none, none is made."""
    cli = pipeline(server, tmp_path)
    cli.snapshot()
    assert states(cli)["keyed"].last_verified_at is None
    run(server, "SET SESSION sql_log_bin = 0", "UPDATE keyed SET v = 'never logged' WHERE id = 7")
    result = cli.call("verify", "--show-values")
    assert result.code == 1 and "1 different" in result.err
    found = states(cli)
    keyed, quiet = found["keyed"].last_verified, found["quiet"].last_verified
    assert keyed and quiet
    assert (keyed["equal"], keyed["different"], quiet["equal"], quiet["rows"]) == (False, 1, True, 30)
    assert "examples" not in keyed and found["keyed"].last_verified_at is not None

    books = tmp_path / "lake" / "_cdc" / "p" / "bookkeeping.db"
    for file in books.parent.glob("bookkeeping.db*"):
        file.unlink()
    again = cli.call("verify")
    assert again.code == 1 and "1 different" in again.err
    assert "the result was not recorded in the state database: there is no state database file" in again.out + again.err
    assert not books.exists()
