from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT
from tests.support.processes import wait_for
from tests.support.servers import MySQLServer
from tests.support.workload import Counters, Writers, make_foreign, make_shop

SHOP = ("customer", "customer_address", "orders", "ledger")


def rows(server: MySQLServer, query: str) -> Any:
    return server.execute(query)


def checksums(server: MySQLServer, database: str) -> dict[str, int]:
    tables = [name for (name,) in rows(server, f"SHOW TABLES FROM `{database}`")]
    return {t: rows(server, f"CHECKSUM TABLE `{database}`.`{t}`")[0][1] for t in tables}


def small_shop(server: MySQLServer, database: str, seed: int = 1) -> None:
    with server.connect() as conn:
        make_shop(conn, database, customers=3000, seed=seed, addresses=600, orders=1200)


def test_the_shop_is_the_same_each_time_for_a_seed(mysql_server: MySQLServer, database: str) -> None:
    small_shop(mysql_server, database)
    first = checksums(mysql_server, database)
    assert set(first) == set(SHOP)
    small_shop(mysql_server, database)
    assert checksums(mysql_server, database) == first
    small_shop(mysql_server, database, seed=2)
    assert checksums(mysql_server, database)["customer"] != first["customer"]
    [(count, low, high)] = rows(
        mysql_server, f"SELECT COUNT(*), MIN(c_customer_sk), MAX(c_customer_sk) FROM `{database}`.customer"
    )
    assert (count, low, high) == (3000, 1, 3000)
    columns = rows(
        mysql_server,
        "SELECT COUNT(*) FROM information_schema.columns "
        f"WHERE table_schema = '{database}' AND table_name = 'customer'",
    )
    assert columns == ((18,),)


def test_the_foreign_tables_are_awkward(mysql_server: MySQLServer, database: str) -> None:
    with mysql_server.connect() as conn:
        make_foreign(conn, database, scale=0.02)

    def one(query: str) -> Any:
        return rows(mysql_server, query.format(f"`{database}`"))[0]

    assert one("SELECT COUNT(*), SUM(id > 1 << 63) > 1000, SUM(id < 1 << 20) > 1000 FROM {}.big") == (6000, 1, 1)
    assert one("SELECT COUNT(*), SUM(a = 7) / COUNT(*) > 0.6 FROM {}.trio") == (400, 1)
    assert one("SELECT COUNT(*) FROM {}.words") == (1200,)
    assert one("SELECT (SELECT COUNT(*) FROM {0}.nothing), (SELECT COUNT(*) FROM {0}.one)") == (0, 1)
    # The special values and NULL are there.
    assert one("SELECT MIN(time_6) < '-838:00:00', SUM(year_ = 0) > 0, SUM(int_signed IS NULL) > 0 FROM {}.trio") == (
        1,
        1,
        1,
    )


def ledger_is_whole(server: MySQLServer, database: str) -> int:
    found = rows(server, f"SELECT writer, COUNT(*), MIN(n), MAX(n) FROM `{database}`.ledger GROUP BY writer")
    assert all(low == 1 and count == high for _, count, low, high in found), found
    return len(found)


def test_writers_change_everything_and_keep_the_ledger(mysql_server: MySQLServer, database: str) -> None:
    small_shop(mysql_server, database)
    before = checksums(mysql_server, database)
    ends = f"SELECT SUM(c_customer_sk < 1), SUM(c_customer_sk > 3000) FROM `{database}`.customer"
    with Writers(mysql_server.connect_args(), database=database, writers=2, rate=200) as writers:
        for pid in writers.pids:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            assert not mysql_server.password or mysql_server.password.encode() not in command
        began = time.monotonic()
        while True:  # for as long as this machine needs
            time.sleep(5)
            [(below, above)] = rows(mysql_server, ends)
            seconds = time.monotonic() - began
            if seconds > 60 or (below > 0 and above > 0):
                break
        counters = writers.stop()
    assert counters.transactions > 100
    assert counters.rows > counters.transactions
    assert counters.rollbacks > 5
    assert counters.transactions + counters.rollbacks + counters.errors < 200 * (seconds + 3)
    after = checksums(mysql_server, database)
    assert all(after[table] != before[table] for table in SHOP)
    assert ledger_is_whole(mysql_server, database) == 2
    assert below > 0 and above > 0
    # A second run goes on where the ledger ended.
    with Writers(mysql_server.connect_args(), database=database, only=["ledger"], writers=1, rate=100) as writers:
        time.sleep(2)
    assert writers.counters and writers.counters.transactions > 20
    assert checksums(mysql_server, database)["customer"] == after["customer"]
    assert ledger_is_whole(mysql_server, database) == 2


def test_writers_on_foreign_tables(mysql_server: MySQLServer, database: str) -> None:
    with mysql_server.connect() as conn:
        make_foreign(conn, database, scale=0.02)
    before = checksums(mysql_server, database)
    highest = f"SELECT MAX(id), (SELECT COUNT(*) FROM `{database}`.words WHERE word > '龘') FROM `{database}`.big"
    [(top, above)] = rows(mysql_server, highest)
    assert above == 0
    left_alone, new_top = {"big", "words", "trio", "nothing"}, top
    with Writers(mysql_server.connect_args(), "foreign", database=database, writers=2, rate=250, seed=3) as writers:
        deadline = time.monotonic() + 120
        # For as long as this machine needs: they choose tables and keys by chance.
        while time.monotonic() < deadline and not (not left_alone and new_top > top and above > 0):
            time.sleep(2)
            after = checksums(mysql_server, database)
            left_alone = {table for table in left_alone if after[table] == before[table]}
            [(new_top, above)] = rows(mysql_server, highest)
    assert writers.counters and writers.counters.transactions > 100
    assert left_alone == set()
    assert new_top > top and above > 0


def test_writers_die_with_their_parent(mysql_server: MySQLServer, database: str) -> None:
    small_shop(mysql_server, database)
    program = (
        "import json, sys, time; from tests.support.workload import Writers\n"
        "arguments, database = json.loads(sys.stdin.readline())\n"
        "with Writers(arguments, database=database, rate=20) as writers:\n"
        "    print(*writers.pids, flush=True); time.sleep(60)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert parent.stdin and parent.stdout
    parent.stdin.write(json.dumps([mysql_server.connect_args(), database]) + "\n")
    parent.stdin.flush()
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 2
    time.sleep(1)
    os.kill(parent.pid, signal.SIGKILL)
    parent.communicate()

    def alive(pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
        except OSError:
            return False

    wait_for("the end of the writers", lambda: not any(map(alive, pids)), 10)


def test_a_writer_that_fails_is_reported(mysql_server: MySQLServer) -> None:
    with (
        pytest.raises(RuntimeError, match="2 of 2 writers failed"),
        Writers({**mysql_server.connect_args(), "password": "wrong"}),
    ):
        time.sleep(2)


def test_counters_add_up() -> None:
    assert Counters(1, 2, 3, 4, 5) + Counters(1, 1, 1, 1, 1) == Counters(2, 3, 4, 5, 6)
