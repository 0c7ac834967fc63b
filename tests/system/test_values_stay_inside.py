"""The canary of values: what a copy does not have is in no file, no log and no database, in no form."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import pytest

from tests.support.oracle import open_copy
from tests.support.servers import MySQLServer
from tests.support.sink_kinds import DELTA, ICEBERG
from tests.support.transforms import HASH_CONNECTION
from tests.system.test_secrets import PASSWORD, Canary, _kept, leaks

pytestmark = pytest.mark.spark

KEY = "K3y/%s:@" + secrets.token_hex(12)
#: Part of each value that is to be found nowhere, after what stays of a text that is cut.
MARK = "C4n4ry" + secrets.token_hex(12)


def new() -> str:
    """A value that nobody else has."""
    return f"same{MARK}{secrets.token_hex(4)}"


def row(decides: str = "in") -> str:
    """Values of all columns but the key."""
    return ", ".join(repr(text) for text in [*(new() for _ in range(5)), decides])


def outside() -> str:
    """Values of a row that is left out, which the value of a column shows that is not copied, either."""
    return row(f"out{MARK}")


@pytest.mark.parametrize("kind", [DELTA, pytest.param(ICEBERG, marks=pytest.mark.long)])
def test_a_whole_run(mysql_server: MySQLServer, database: str, tmp_path: Path, kind: str) -> None:
    text = "VARCHAR(60)"
    mysql_server.session(
        database,
        f"CREATE TABLE t (id INT PRIMARY KEY, hashed {text}, masked {text}, cut TEXT, nulled {text}, excluded {text}, "
        "decides VARCHAR(60))",
        f"CREATE TABLE log (hashed {text}, masked {text}, cut TEXT, nulled {text}, excluded {text}, decides {text})",
    )
    mysql_server.session(
        database,
        f"INSERT INTO t VALUES (1, {row()}), (2, {row()}), (3, {row()})",
        f"INSERT INTO t VALUES (4, {outside()}), (5, {row()})",
        f"INSERT INTO log VALUES ({row()}), ({outside()})",
    )
    canary = Canary(tmp_path, mysql_server, database, PASSWORD)
    cli = canary.cli
    cli.value["sink"]["kind"] = kind
    cli.value["transforms"] = {
        "hash_key_conn_id": HASH_CONNECTION,
        "columns": {
            rf"{database}\..*\.hashed": "hash",
            rf"{database}\..*\.masked": "mask",
            rf"{database}\..*\.cut": {"truncate": 4},
            rf"{database}\..*\.nulled": "null",
            rf"{database}\..*\.(excluded|decides)": "exclude",
        },
        "where": {rf"{database}\..*": "decides = 'in'"},
    }
    # What Spark writes down of its jobs.
    events = tmp_path / "spark" / "events"
    events.mkdir(parents=True, exist_ok=True)
    cli.value["spark"] = {
        **cli.value.get("spark", {}),
        "conf": {"spark.eventLog.enabled": "true", "spark.eventLog.dir": f"file://{events}"},
    }
    cli.write()
    cli.env["AIRFLOW_CONN_PII_KEY"] = f'{{"conn_type": "generic", "password": "{KEY}"}}'
    said = ""
    with _kept(tmp_path, KEY) as key_in_files, _kept(tmp_path, MARK) as values_in_files:
        for number in range(2):
            if number:
                mysql_server.session(
                    database,
                    f"UPDATE t SET hashed = '{new()}', masked = '{new()}' WHERE id = 2",
                    f"UPDATE t SET excluded = '{new()}'",
                    f"UPDATE t SET decides = 'out{MARK}' WHERE id = 5",
                    "DELETE FROM t WHERE id = 3",
                    f"REPLACE INTO t VALUES (6, {row()}), (7, {outside()})",
                    "UPDATE log SET nulled = NULL, hashed = 'plain' LIMIT 1",
                    "DELETE FROM log LIMIT 1",
                )
            process = canary.start("run", "--catch-up")
            out, err = process.communicate(timeout=300)
            assert process.returncode == 0, err
            said += out + err
    for command in (["verify"], ["explain", "--table", f"{database}.t", "2"], ["status"], ["check"], ["plan"]):
        result = cli.call(*command)
        said += result.out + result.err
    assert any(os.scandir(events)), "Spark wrote its events down"
    found = []
    for secret in (MARK, KEY):
        found += leaks("what was said", said.encode(), secret)
        for path in tmp_path.rglob("*"):
            if path.is_file():
                found += leaks(str(path.relative_to(tmp_path)), path.read_bytes(), secret)
    assert found == []
    for seen in (key_in_files, values_in_files):
        assert seen.found == set() and {"spark", "tmp", "work"} <= seen.folders
    copy = open_copy(cli.sink / database / "t")
    assert copy is not None
    rows = {one["id"]: one for one in copy.read(copy.columns).to_pylist()}
    assert sorted(rows) == [1, 2, 6] and {one["cut"] for one in rows.values()} == {"same"}
