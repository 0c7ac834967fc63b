"""Copies of filtered and masked tables, whichever way rows get into them; the server itself says what they must be."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.verify.run import verify_tables
from tests.support.cli import Cli
from tests.support.oracle import compare
from tests.support.servers import MySQLServer
from tests.support.sink_kinds import DELTA, ICEBERG
from tests.support.transforms import HASH_CONNECTION, HASH_ENV, hmac_sql, make_view, mask_sql, null_sql

pytestmark = pytest.mark.one_of("server")

TABLES = (
    "CREATE TABLE customer (id BIGINT PRIMARY KEY, tenant INT, region VARCHAR(5) COLLATE utf8mb4_general_ci NOT NULL, "
    "status VARCHAR(10) COLLATE utf8mb4_general_ci, email VARCHAR(60), phone VARCHAR(20), notes TEXT, "
    "born DATE NOT NULL, secret VARBINARY(20), number DECIMAL(12, 2))",
    # Without a key; its rows are counted.
    "CREATE TABLE visit (tenant INT, ip VARCHAR(15), note VARCHAR(20) COLLATE utf8mb4_general_ci, n INT)",
    # The server decides which keys are equal; the copy has another name for them.
    "CREATE TABLE country (code VARCHAR(8) COLLATE utf8mb4_general_ci, half INT, name VARCHAR(20), "
    "PRIMARY KEY (code, half))",
    # Hashed keys: the server finds texts equal that have different hashes.
    "CREATE TABLE account (mail VARCHAR(30) COLLATE utf8mb4_general_ci PRIMARY KEY, tenant INT, n INT)",
    "CREATE TABLE device (id INT, part SMALLINT, n INT, PRIMARY KEY (id, part))",
)
CONDITIONS = {
    "customer": "tenant IN (1, 2) AND NOT status = 'draft' AND region <> 'x'",
    "visit": "tenant = 1 OR note LIKE 'vip%'",
    "country": "name IS NOT NULL AND half BETWEEN 0 AND 50",
    "account": "tenant = 1",
}
COLUMNS = {
    "customer.email": {"hash": "hex", "rename": "email_hash"},
    "customer.phone": {"mask": 4},
    "customer.notes": {"truncate": 5},
    "customer.born": "null",
    "customer.region": "exclude",
    "customer.secret": {"hash": "binary"},
    "customer.number": "hash",
    "visit.ip": "hash",
    "visit.tenant": "exclude",
    "country.code": {"rename": "country_code"},
    "country.name": "mask",
    "account.mail": {"hash": "binary", "rename": "mail_hash"},
    "device.id": "hash",
}


def make_views(server: MySQLServer, database: str) -> None:
    """What the copies must be."""
    make_view(
        server,
        database,
        "customer_copy",
        "customer",
        "tenant IN (1, 2) AND CAST(status AS BINARY) <> CAST('draft' AS BINARY) AND "
        "CAST(region AS BINARY) <> CAST('x' AS BINARY)",
        id="id",
        tenant="tenant",
        status="status",
        email_hash=hmac_sql("email"),
        phone=mask_sql("phone", 4),
        notes="LEFT(notes, 5)",
        born=null_sql("born"),
        secret=f"UNHEX({hmac_sql('secret')})",
        number=hmac_sql("TRIM(TRAILING '.' FROM TRIM(TRAILING '0' FROM CAST(number AS CHAR)))"),
    )
    make_view(
        server,
        database,
        "visit_copy",
        "visit",
        "tenant = 1 OR CAST(note AS BINARY) LIKE CAST('vip%' AS BINARY)",
        ip=hmac_sql("ip"),
        note="note",
        n="n",
    )
    make_view(
        server,
        database,
        "country_copy",
        "country",
        "name IS NOT NULL AND half BETWEEN 0 AND 50",
        country_code="code",
        half="half",
        name=mask_sql("name"),
    )
    make_view(
        server,
        database,
        "account_copy",
        "account",
        "tenant = 1",
        mail_hash=f"UNHEX({hmac_sql('mail')})",
        tenant="tenant",
        n="n",
    )
    make_view(server, database, "device_copy", "device", "TRUE", id=hmac_sql("id"), part="part", n="n")


VIEWS = {
    "customer": ["id"],
    "visit": [],
    "country": ["country_code", "half"],
    "account": ["mail_hash"],
    "device": ["id", "part"],
}


class Writer:
    """Changes the tables by chance: rows enter and leave what is copied."""

    def __init__(self, server: MySQLServer, database: str, seed: int) -> None:
        self.server, self.database, self.draw = server, database, random.Random(seed)
        self.next_id = 1

    def customer(self) -> str:
        """Values of a row, after its key."""
        draw, empty = self.draw, "x''"
        email = draw.choice(("NULL", f"'user{draw.randrange(20)}@example.com'", "'Größe@example.com'", "''"))
        phone = draw.choice(("NULL", "'123'", "'1234'", "'+49 170 1234567'", "'☎☎☎☎☎'"))
        return (
            f"{draw.choice((1, 2, 3, 'NULL'))}, '{draw.choice(('a', 'x', 'X', 'x '))}', {self.status()}, {email}, "
            f"{phone}, {draw.choice(('NULL', repr('abcdefg'), repr('äöü'), repr('ab☎☎cde')))}, '2001-02-03', "
            f"{draw.choice(('NULL', '0x00FF', empty))}, {draw.choice(('NULL', '1.50', '-0.01', '1234567890.99'))}"
        )

    def status(self) -> str:
        return self.draw.choice(("NULL", "'open'", "'draft'", "'Draft'", "'draft '"))

    def code(self) -> str:
        return self.draw.choice(("a", "A", "b", "ß", "ss", "é", "e", "cc", "CC", "d")) + self.draw.choice(("", "1"))

    def visit(self) -> str:
        draw = self.draw
        ip, note = (
            draw.choice(("NULL", "'10.0.0.1'", "'::1'")),
            draw.choice(("NULL", "'vip'", "'VIP1'", "'vip2'", "''")),
        )
        return f"{draw.choice((1, 2, 'NULL'))}, {ip}, {note}, {draw.randrange(3)}"

    def statement(self) -> str:
        draw, some = self.draw, self.draw.randrange(1, self.next_id + 1)
        kind = draw.randrange(20)
        if kind > 13:
            return self.hashed_key(kind)
        if kind < 3:
            self.next_id += 1
            return f"INSERT INTO customer VALUES ({self.next_id}, {self.customer()})"
        if kind == 3:
            return f"REPLACE INTO customer VALUES ({some}, {self.customer()})"
        if kind < 6:
            column = draw.choice((f"tenant = {draw.randrange(1, 4)}", f"status = {self.status()}", "phone = '98765'"))
            return f"UPDATE customer SET {column} WHERE id BETWEEN {some} AND {some + draw.randrange(10)}"
        if kind == 6:
            return (
                f"UPDATE IGNORE customer SET id = {draw.randrange(1, self.next_id + 1)}, tenant = 1 WHERE id = {some}"
            )
        if kind == 7:
            return f"DELETE FROM customer WHERE id BETWEEN {some} AND {some + draw.randrange(3)}"
        if kind < 10:
            return f"INSERT INTO visit VALUES ({self.visit()}), ({self.visit()})"
        if kind == 10:
            return f"UPDATE visit SET tenant = {draw.randrange(1, 3)} WHERE n = {draw.randrange(3)} LIMIT 2"
        if kind == 11:
            return draw.choice(
                (f"DELETE FROM visit WHERE n = {draw.randrange(3)} LIMIT 2", "DELETE FROM visit LIMIT 1")
            )
        name = draw.choice(("NULL", "'Ä'", "'land'"))
        if kind == 12:
            return f"REPLACE INTO country VALUES ('{self.code()}', {draw.randrange(-9, 60)}, {name})"
        return draw.choice(
            (
                f"UPDATE IGNORE country SET code = '{self.code()}', name = {name} WHERE half < {draw.randrange(60)} "
                "LIMIT 2",
                f"DELETE FROM country WHERE half = {draw.randrange(60)}",
                f"UPDATE country SET half = half + 1, name = {name} WHERE half % 7 = 3 LIMIT 1",
            )
        )

    def hashed_key(self, kind: int) -> str:
        """A change of a row whose key is hashed in the copy."""
        draw = self.draw
        mail, tenant = f"'{draw.choice('aAbBcCdDeEfF')}{draw.randrange(8)}'", draw.choice((1, 1, 2, "NULL"))
        return {
            14: f"REPLACE INTO account VALUES ({mail}, {tenant}, {draw.randrange(99)})",
            15: f"INSERT IGNORE INTO account VALUES ({mail}, {tenant}, {draw.randrange(99)})",
            16: f"UPDATE IGNORE account SET mail = {mail}, n = n + 1 WHERE n % 5 = {draw.randrange(5)} LIMIT 1",
            17: f"DELETE FROM account WHERE mail = {mail}",
            18: f"REPLACE INTO device VALUES ({draw.randrange(40)}, {draw.randrange(2)}, {draw.randrange(9)})",
            19: draw.choice(
                (
                    f"DELETE FROM device WHERE id = {draw.randrange(40)}",
                    f"UPDATE IGNORE device SET id = {draw.randrange(40)} WHERE id = {draw.randrange(40)} LIMIT 1",
                )
            ),
        }[kind]

    def write(self, count: int) -> None:
        with closing(self.server.connect(database=self.database, autocommit=False)) as connection:
            for _ in range(count):
                with connection.cursor() as cursor:
                    for _ in range(self.draw.choice((1, 1, 2, 4))):
                        try:
                            cursor.execute(self.statement())
                        except Exception as error:
                            if error.args[0] not in (1062, 1205, 1213):  # a duplicate key, a lock
                                raise
                (connection.rollback if self.draw.random() < 0.05 else connection.commit)()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Meanwhile, in a thread."""
        stop = threading.Event()

        def run() -> None:
            while not stop.is_set():
                self.write(5)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


def transforms(database: str) -> dict[str, Any]:
    return {
        "hash_key_conn_id": HASH_CONNECTION,
        "columns": {rf"{database}\.{name}": value for name, value in COLUMNS.items()},
        "where": {rf"{database}\.{name}": text for name, text in CONDITIONS.items()},
    }


@pytest.fixture(params=[DELTA, ICEBERG])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def database(server: MySQLServer) -> Iterator[str]:
    with server.fresh_database() as name:
        server.session(name, *TABLES)
        make_views(server, name)
        yield name


@pytest.fixture
def cli(server: MySQLServer, database: str, tmp_path: Path, kind: str) -> Cli:
    made = Cli(
        tmp_path,
        server,
        *(rf"{database}\.{name}" for name in VIEWS),
        name=database,
        snapshot={"chunk_rows": 8, "parallelism": 2},
        sink={"kind": kind},
        transforms=transforms(database),
    )
    made.env |= HASH_ENV
    return made


def check(cli: Cli, server: MySQLServer, database: str) -> None:
    with closing(server.connect(database=database)) as connection:
        for table, key in VIEWS.items():
            view = f"{table}_copy", key
            difference = compare(connection, database, table, cli.sink / database / table, view=view)
            assert difference is None, difference


WHOLE_AND_PARTS = (
    *(("customer", None), ("country", None), ("customer", "id < 40"), ("visit", None)),
    *(("account", None), ("device", None)),
)


def verdicts(cli: Cli) -> dict[str, str]:
    with cli.opened() as (context, _):
        return {verdict.table.partition(".")[2]: verdict.verdict for verdict in verify_tables(context)}


@pytest.mark.parametrize("seed", range(2))
def test_by_chance(cli: Cli, server: MySQLServer, database: str, seed: int) -> None:
    """Snapshot, stream, re-snapshots and comparisons, while writers continue."""
    writer = Writer(server, database, seed)
    writer.write(150)
    with writer.writing():
        cli.snapshot()
    cli.catch_up()
    check(cli, server, database)
    for _ in range(3):
        writer.write(60)
        cli.catch_up()
        check(cli, server, database)
        assert verdicts(cli) == dict.fromkeys(VIEWS, "equal")
    with cli.streaming(), writer.writing():
        for table, where in WHOLE_AND_PARTS:
            assert cli.resnapshot(f"{database}.{table}", where) == ("rejoined" if where is None else "replaced")
    cli.catch_up()
    check(cli, server, database)
    assert verdicts(cli) == dict.fromkeys(VIEWS, "equal")
