"""A stream goes on at another MariaDB server: by the newest GTID of each domain, whose order all servers share."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from airflow_provider_cdc.model.errors import NotReadyError, TerminalError, TransientError
from airflow_provider_cdc.model.schema import SEQ_COLUMN
from airflow_provider_cdc.stream.run import begin_epoch
from tests.stream.test_failover import Pair, epoch
from tests.support.binlog.budget import set_byte_budget
from tests.support.epochs import run_epoch_in_process
from tests.support.mariadb import MariaDBServer
from tests.support.servers import MySQLServer


@dataclass
class Domains(Pair):
    """Two servers that run the same transactions of each domain in the same order."""

    numbers: dict[int, int] = field(default_factory=dict)

    def next(self, domain: int = 0, server: int = 1) -> str:
        """The next GTID of a domain."""
        self.numbers[domain] = self.numbers.get(domain, 0) + 1
        return f"{domain}-{server}-{self.numbers[domain]}"

    def run(self, *sql: str, gtid: str = "", on: Sequence[MySQLServer] = ()) -> str:
        gtid = gtid or self.next()
        domain, source, number = gtid.split("-")
        for server in on or (self.old, self.new):
            with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
                cursor.execute(f"SET gtid_domain_id = {domain}, server_id = {source}")
                cursor.execute(f"SET gtid_seq_no = {number}")  # which is checked against these
                for statement in sql if len(sql) == 1 else ("BEGIN", *sql, "COMMIT"):
                    cursor.execute(statement)
        return gtid


@contextlib.contextmanager
def two_servers() -> Iterator[tuple[MySQLServer, MySQLServer]]:
    with (
        MariaDBServer({"gtid_strict_mode": "ON"}) as old,
        MariaDBServer({"gtid_strict_mode": "ON", "server_id": 2}) as new,
    ):
        yield old, new


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[MySQLServer, MySQLServer]]:
    with two_servers() as found:
        yield found


@pytest.fixture
def pair(servers: tuple[MySQLServer, MySQLServer], tmp_path: Path) -> Iterator[Domains]:
    for server in servers:
        server.execute("DROP DATABASE IF EXISTS d")
        server.execute("RESET MASTER")
    for _ in range(5):  # positions of the two have nothing to do with each other
        servers[1].execute("FLUSH BINARY LOGS")
    yield Domains(*servers, "d", tmp_path)


def test_there_and_back(pair: Domains) -> None:
    pair.cli.snapshot()
    pair.run("INSERT INTO d.plain VALUES (1), (1)")
    pair.copy(pair.old)
    highest = []
    for number, server in enumerate((pair.new, pair.old, pair.new), 10):
        source = 1 + (server is pair.new)
        pair.run(
            f"INSERT INTO d.keyed VALUES ({number}, 1)",
            "UPDATE d.keyed SET v = v + 1 WHERE id = 1",
            gtid=pair.next(server=source),
        )
        pair.new.execute("FLUSH BINARY LOGS")
        sql = "DELETE FROM d.plain WHERE v = 1 LIMIT 1", f"INSERT INTO d.plain VALUES ({number}), (1)"
        pair.run(*sql, gtid=pair.next(server=source))
        pair.copy(server)
        assert pair.differences(server) == []
        highest.append(max(pair.cli.rows("d", "keyed")[SEQ_COLUMN].to_pylist()))
        assert pair.cli.call("verify").code == 0
    assert highest == sorted(set(highest))


def transactions(draw: random.Random, domain: int) -> list[tuple[str, ...]]:
    """Those of one domain, which nothing of another one touches; their order matters."""
    found: list[tuple[str, ...]] = []
    for number in range(15):
        key, value, kind = 1000 * domain + draw.randrange(4), draw.randrange(1000), draw.randrange(5)
        upsert = f"INSERT INTO d.keyed VALUES ({key}, {value}) ON DUPLICATE KEY UPDATE v = {value}"
        if kind < 2:
            found.append((upsert,))
        elif kind == 2:
            found.append((f"DELETE FROM d.keyed WHERE id = {key}",))
        elif kind == 3:
            found.append((upsert, f"INSERT INTO d.plain VALUES ({domain})"))
        else:
            found.append((f"UPDATE d.plain SET v = {1000 * domain + number} WHERE v = {domain}",))
    return found


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[] if seed in (0, 1, 2, 5) else pytest.mark.long) for seed in range(20)]
)
def test_domains_in_another_order(pair: Domains, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three domains, which each server has mixed in its own way, when the stream comes over at any moment."""
    draw = random.Random(seed)
    if seed % 2:  # changes are staged in small parts, some of which are due in the middle of a transaction
        monkeypatch.setattr("airflow_provider_cdc.mysql.binlog.walk.changes.MAX_HELD_BYTES", 100)
        set_byte_budget(monkeypatch, 100)
    pair.cli.snapshot()
    listed = {domain: [(sql, pair.next(domain)) for sql in transactions(draw, domain)] for domain in (1, 2, 3)}
    copied = draw.randrange(5, 40)
    for server in (pair.old, pair.new):
        order = [domain for domain, all_of_it in listed.items() for _ in all_of_it]
        draw.shuffle(order)
        left = {domain: iter(all_of_it) for domain, all_of_it in listed.items()}
        for done, domain in enumerate(order):
            if server is pair.old and done == copied:
                pair.copy(pair.old)
            if server is pair.new and draw.randrange(9) == 0:
                server.execute("FLUSH BINARY LOGS")
            sql, gtid = next(left[domain])
            pair.run(*sql, gtid=gtid, on=[server])
    pair.run("INSERT INTO d.keyed VALUES (101, 1)", on=[pair.new])
    with epoch(pair, pair.new, batch_bytes=draw.choice((1, 2000, 1 << 28))) as found:
        assert found.section_start.already_applied or seed > 2  # else the orders agree up to there, by chance
        run_epoch_in_process(found)
        assert not found.applier.offset.already_applied
    assert pair.differences(pair.new) == []
    pair.run("UPDATE d.keyed SET v = -1", gtid=pair.next(2, server=2), on=[pair.new])
    pair.copy(pair.new)
    assert pair.differences(pair.new) == []


def test_a_server_that_is_behind(pair: Domains, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_provider_cdc.mysql.client.gtids.WAIT_SECONDS", 0.5)
    pair.cli.snapshot()
    late = pair.run("INSERT INTO d.keyed VALUES (9, 9)", on=[pair.old])
    pair.copy(pair.old)
    pair.refused(TransientError, rf"whose binlog ends at 0-1-\d+, but the copy at {late}")
    pair.run("INSERT INTO d.keyed VALUES (9, 9)", gtid=late, on=[pair.new])
    pair.copy(pair.new)
    assert pair.differences(pair.new) == []


def test_a_server_that_has_purged_what_comes_next(pair: Domains) -> None:
    pair.cli.snapshot()
    pair.run("INSERT INTO d.keyed VALUES (8, 8)")
    pair.copy(pair.old)
    gap = pair.run("INSERT INTO d.keyed VALUES (9, 9)")
    pair.new.purge()
    pair.refused(TerminalError, rf"whose binlog begins after {gap}; the copy ends at 0-1-\d+, and the transactions in")


@pytest.mark.parametrize("more", [0, 2], ids=["the same number", "others behind it"])
def test_a_server_that_went_another_way(pair: Domains, more: int) -> None:
    """The old one had committed what no replica had got when it died."""
    pair.cli.snapshot()
    pair.run("INSERT INTO d.keyed VALUES (8, 8)")
    lost = pair.run("INSERT INTO d.keyed VALUES (9, 9)", on=[pair.old])
    other = lost.replace("-1-", "-2-")
    pair.run("INSERT INTO d.keyed VALUES (10, 10)", gtid=other, on=[pair.new])
    for number in range(more):
        pair.run(f"DELETE FROM d.keyed WHERE id = {number}", gtid=pair.next(server=2), on=[pair.new])
    pair.copy(pair.old)
    pair.refused(TerminalError, rf"which ran {other}, but never {lost}, which the copy holds")


def test_a_file_that_begins_with_another_way(pair: Domains) -> None:
    """The same, but what tells it is the head of the file alone."""
    pair.cli.snapshot()
    lost = pair.run("INSERT INTO d.keyed VALUES (9, 9)", on=[pair.old])
    other = lost.replace("-1-", "-2-")
    pair.run("INSERT INTO d.keyed VALUES (10, 10)", gtid=other, on=[pair.new])
    pair.new.purge()
    pair.copy(pair.old)
    pair.refused(TerminalError, rf"which ran {other}, but never {lost}, which the copy holds")


def test_a_server_whose_order_is_not_known(pair: Domains) -> None:
    """Somebody wrote to the replica itself, with the number of a transaction that came after that from its source."""
    pair.cli.snapshot()
    pair.new.execute("SET GLOBAL gtid_strict_mode = OFF")
    own = f"0-2-{pair.numbers[0] + 1}"
    pair.run("INSERT INTO d.keyed VALUES (70, 70)", gtid=own, on=[pair.new])
    first = pair.run("INSERT INTO d.keyed VALUES (8, 8)")
    pair.run("INSERT INTO d.keyed VALUES (9, 9)")
    pair.copy(pair.old)
    pair.refused(TerminalError, "where gtid_strict_mode is OFF: nothing proves")
    pair.new.execute("SET GLOBAL gtid_strict_mode = ON")
    pair.refused(TerminalError, rf"where {first} comes after {own}, at binlog\.\d+:\d+")


def test_a_server_of_the_other_kind(pair: Domains, mysql_server: MySQLServer) -> None:
    pair.cli.snapshot()
    pair.run("INSERT INTO d.keyed VALUES (8, 8)")
    pair.copy(pair.old)
    pair.refused(TerminalError, "the connection reaches server .*, but this pipeline began on mariadb:1:", mysql_server)


def test_an_open_xa_transaction(pair: Domains) -> None:
    pair.cli.snapshot()
    pair.run("INSERT INTO d.keyed VALUES (8, 8)")
    pair.old.session("d", "XA START 'open'", "INSERT INTO keyed VALUES (9, 9)", "XA END 'open'", "XA PREPARE 'open'")
    try:
        pair.copy(pair.old)
        pair.refused(TerminalError, r"XA transaction \S+ is open, and only the binlog of server mariadb:1:")
    finally:
        pair.old.execute("XA ROLLBACK 'open'")


def test_a_replica_that_was_promoted(pair: Domains) -> None:
    """It is no replica any more, and still lacks what it has left out. To see that, the user needs a grant."""
    pair.cli.snapshot()
    pair.run("INSERT INTO d.keyed VALUES (8, 8)")
    pair.copy(pair.old)
    pair.new.execute("SET GLOBAL replicate_ignore_table = 'd.plain'")
    user = pair.new.create_cdc_user("low")
    try:
        pair.refused(TerminalError, r"leaves out changes of d.plain \(Replicate_Ignore_Table\), or was one")
        pair.cli.env["AIRFLOW_CONN_CDC_SOURCE"] = pair.new.uri(**user)
        result = pair.cli.call("check")
        assert "a stream cannot continue on another server" in result.out
        assert "GRANT REPLICA MONITOR ON *.*" in result.out
        with pair.cli.opened() as (context, store), pytest.raises(NotReadyError, match="may not see") as denied:
            begin_epoch(context, store, catch_up=True)
        assert "GRANT REPLICA MONITOR ON *.*" in denied.value.remedy
    finally:
        pair.new.execute("SET GLOBAL replicate_ignore_table = ''")
        pair.new.execute("DROP USER low")
    pair.copy(pair.new)
    assert pair.differences(pair.new) == []
