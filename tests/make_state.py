"""Makes ``tests/fixtures/state-<version>``: what this version leaves behind, for the versions after it to go on with.

``python -m tests.make_state`` copies a small database with this version, stops in the middle of it, and keeps all that
a newer version finds: the lake with plan, manifests, notes and Delta tables, the bookkeeping in SQLite, and of the
server its identity, its binlogs and the statements that made its rows. ``tests/project/test_upgrade.py`` goes on from
there. RELEASING.md says when it is run. The fixture of a version that was released is never made anew.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from airflow_provider_cdc import Pipeline, Sink, Source, __version__
from airflow_provider_cdc.config import Snapshot
from airflow_provider_cdc.observe.status import read_status
from airflow_provider_cdc.runtime.run_context import RunContext
from tests import ROOT
from tests.support import harness
from tests.support.servers import MySQLServer

FIXTURES = ROOT / "tests" / "fixtures"
CONNECTION = "STATE_SOURCE"

#: Before the copy, during it, and after it has stopped: the last ones are for the newer version to apply.
BEFORE = [
    "CREATE DATABASE shop",
    "CREATE TABLE shop.customer (id INT PRIMARY KEY, name VARCHAR(40) NOT NULL, balance DECIMAL(12,2), born DATE, "
    "seen DATETIME(3), size ENUM('S','M','L'), flags SET('a','b'), note JSON, photo VARBINARY(20), at TIMESTAMP(6))",
    "CREATE TABLE shop.line (day DATE, pos SMALLINT UNSIGNED, code CHAR(3), PRIMARY KEY (day, pos))",
    "CREATE TABLE shop.visit (page VARCHAR(20), seconds DOUBLE)",  # without a key
    "CREATE TABLE shop.nobody (id BIGINT PRIMARY KEY)",
    *(
        f"INSERT INTO shop.customer VALUES ({i}, 'Ñame {i}', {i * 1.25}, '19{i:02}-02-03', "
        f"'2026-01-01 00:00:{i:02}.125', {i % 3 + 1}, {i % 4}, "
        f"'{{\"n\": {i}}}', x'00FF{i:02}', '2026-01-02 03:04:05.{i:06}')"
        for i in range(40)
    ),
    *(f"INSERT INTO shop.line VALUES ('2026-02-{1 + i % 9:02}', {i}, 'x{i}')" for i in range(30)),
    *(f"INSERT INTO shop.visit VALUES ('page {i % 3}', {i / 8})" for i in range(12)),
]
DURING = [
    "UPDATE shop.customer SET balance = balance + 1 WHERE id < 10",
    "DELETE FROM shop.line WHERE pos < 4",
    "INSERT INTO shop.visit VALUES ('page 0', 0)",
    "UPDATE shop.customer SET id = 100 WHERE id = 39",
]
AFTER = [
    "DELETE FROM shop.customer WHERE id = 100",
    "UPDATE shop.line SET code = 'neu' WHERE pos > 20",
    "DELETE FROM shop.visit WHERE page = 'page 1' AND seconds < 1",
    "INSERT INTO shop.nobody VALUES (1)",
]


def pipeline(path: Path) -> Pipeline:
    """The pipeline of the fixture, with its lake at a path."""
    return Pipeline(
        name="shop",
        source=Source(conn_id=CONNECTION.lower(), tables=(r"shop\..*",)),
        sink=Sink(str(path)),
        snapshot=Snapshot(chunk_rows=10),
    )


def make(folder: Path) -> None:
    """Make the state in an empty folder."""
    with MySQLServer() as server, tempfile.TemporaryDirectory() as work:
        os.environ[f"AIRFLOW_CONN_{CONNECTION}"] = server.uri()
        found = pipeline(Path(work) / "lake")
        file = Path(work) / "pipeline.yaml"
        file.write_text(found.to_yaml())
        for sql in BEFORE:
            server.execute(sql)
        harness.run(file)
        for sql in DURING:
            server.execute(sql)
        harness.run(file, only="stream")
        for sql in AFTER:
            server.execute(sql)
        said = read_status(RunContext.for_pipeline(found))
        shutil.copytree(Path(work) / "lake", folder / "lake", ignore=shutil.ignore_patterns("logs", "*.lock"))
        for log in (folder / "lake").rglob("_delta_log/*.json"):  # Delta notes where a table was made, and never looks
            log.write_text(log.read_text().replace(work, "/somewhere"))
        data = server.data_folder
        (folder / "server").mkdir()
        for part in sorted([*data.glob("binlog.*"), data / "auto.cnf"]):
            shutil.copy(part, folder / "server")
    (folder / "statements.json").write_text(json.dumps([*BEFORE, *DURING, *AFTER], indent=1, ensure_ascii=False))
    kept = {name: said[name] for name in ("pipeline", "phase", "generation", "start", "tables", "offset")}
    (folder / "status.json").write_text(json.dumps(kept, indent=1))
    for database in folder.rglob("*.db"):
        with closing(sqlite3.connect(database)) as connection:
            connection.executescript(  # nothing of the machine that it was made on
                "UPDATE streams SET host = 'host', machine = NULL, log = NULL, ui = NULL; UPDATE chunk_groups SET "
                "holder = 'host'; PRAGMA journal_mode = DELETE; VACUUM;"
            )


def main() -> int:
    """Make the fixture of this version, unless there is one."""
    folder = FIXTURES / f"state-{__version__}"
    if folder.exists():
        print(f"{folder} is there: remove it if this version was not released", file=sys.stderr)
        return 1
    folder.mkdir(parents=True)
    make(folder)
    print(folder, sum(part.stat().st_size for part in folder.rglob("*") if part.is_file()), "bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
