"""What a server says when it refuses or gives up: worth another try, or for a person; on real servers of both kinds."""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pymysql
import pytest
from pymysql import Connection

from airflow_provider_cdc.model.errors import (
    CdcError,
    NotReadyError,
    TerminalError,
    TransientError,
)
from airflow_provider_cdc.mysql.binlog.events.binlog_stream import BinlogStream
from airflow_provider_cdc.mysql.client.identity import binlog_status, is_mariadb
from airflow_provider_cdc.mysql.client.session import connect, query_bytes, translate_errors
from airflow_provider_cdc.mysql.resultset.reader import query_arrow
from tests.support.proxy import Proxy
from tests.support.servers import MySQLServer

#: Takes for ever, and looks at its clock all the time.
HEAVY = "SELECT COUNT(*) FROM information_schema.columns a, information_schema.columns b, information_schema.columns c"


@pytest.fixture
def user(server: MySQLServer) -> Iterator[dict[str, str]]:
    made = server.create_cdc_user(f"u_{secrets.token_hex(4)}")
    yield made
    server.execute(f"DROP USER '{made['user']}'@'%'")


def refused(server: MySQLServer, user: dict[str, str], kind: type[CdcError], code: int, **args: Any) -> None:
    """Connecting fails alike for statements and for the binlog."""
    given = {**server.connect_args(), **user, **args}
    with pytest.raises(kind, match=f"connecting to .*MySQL error {code}: "):
        connect(given).close()
    with contextlib.closing(connect(server.connect_args())) as connection:
        at = binlog_status(connection)[0]
    with pytest.raises(kind) as found:
        BinlogStream(given, server_id=77_002, replica_uuid=str(uuid4()), file=at.file, position=at.position).close()
    assert type(found.value) is kind


@contextlib.contextmanager
def set_global(server: MySQLServer, name: str, value: str) -> Iterator[None]:
    ((_, before),) = server.execute(f"SHOW GLOBAL VARIABLES LIKE '{name}'")
    server.execute(f"SET GLOBAL {name} = {value}")
    try:
        yield
    finally:
        server.execute(f"SET GLOBAL {name} = {before}")


def test_offline_mode(mysql_server: MySQLServer, cdc_user: dict[str, str]) -> None:
    with set_global(mysql_server, "offline_mode", "ON"):
        refused(mysql_server, cdc_user, TransientError, 3032)


def test_too_many_connections_of_a_user(server: MySQLServer, user: dict[str, str]) -> None:
    server.execute(f"ALTER USER '{user['user']}'@'%' WITH MAX_USER_CONNECTIONS 1")
    with contextlib.closing(connect({**server.connect_args(), **user})):
        refused(server, user, TransientError, 1226)


def test_too_many_connections_of_any_user(mysql_server: MySQLServer, cdc_user: dict[str, str]) -> None:
    """MariaDB can only be told so when it begins."""
    with set_global(mysql_server, "max_user_connections", "1"):
        with contextlib.closing(connect({**mysql_server.connect_args(), **cdc_user})):
            refused(mysql_server, cdc_user, TransientError, 1203)


def test_an_expired_password(server: MySQLServer, user: dict[str, str]) -> None:
    server.execute(f"ALTER USER '{user['user']}'@'%' PASSWORD EXPIRE")
    with contextlib.closing(connect(server.connect_args())) as connection:
        if not is_mariadb(connection):  # which refuses at the login whoever does not know of expired passwords
            return refused(server, user, NotReadyError, 1862)
    with set_global(server, "disconnect_on_expired_password", "ON"):
        refused(server, user, NotReadyError, 1862)
    with set_global(server, "disconnect_on_expired_password", "OFF"):
        with contextlib.closing(connect({**server.connect_args(), **user})) as connection:
            with pytest.raises(NotReadyError, match="1820"):
                query_bytes(connection, "SELECT 1")


def test_an_account_that_is_locked(server: MySQLServer, user: dict[str, str]) -> None:
    server.execute(f"ALTER USER '{user['user']}'@'%' ACCOUNT LOCK")
    with contextlib.closing(connect(server.connect_args())) as connection:
        refused(server, user, NotReadyError, 4151 if is_mariadb(connection) else 3118)


def test_tls_is_demanded(mysql_server: MySQLServer, cdc_user: dict[str, str]) -> None:
    with set_global(mysql_server, "require_secure_transport", "ON"):
        refused(mysql_server, cdc_user, NotReadyError, 3159, ssl_disabled=True)


@pytest.mark.parametrize("what", ["KILL QUERY {}", "KILL {}"])
def test_a_statement_that_is_killed(server: MySQLServer, what: str) -> None:
    with contextlib.closing(connect(server.connect_args())) as connection:
        thread = connection.thread_id()

        def kill() -> None:
            time.sleep(0.5)
            server.execute(what.format(thread))

        killer = threading.Thread(target=kill)
        killer.start()
        with pytest.raises(TransientError):
            query_bytes(connection, HEAVY)
        killer.join()


def test_a_statement_that_takes_longer_than_it_may(server: MySQLServer) -> None:
    with contextlib.closing(connect(server.connect_args())) as connection:
        limit, code = (
            ("max_statement_time = 0.2", 1969) if is_mariadb(connection) else ("max_execution_time = 200", 3024)
        )
        query_bytes(connection, f"SET SESSION {limit}")
        with pytest.raises(TransientError, match=str(code)):
            query_bytes(connection, HEAVY)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        *((code, TransientError) for code in (1135, 1152, 1184, 1203, 1927, 3168, 3169)),
        *((code, NotReadyError) for code in (1130, 1820, 3955)),
        *((code, TerminalError) for code in (1054, 1146)),
    ],
)
def test_those_that_are_hard_to_bring_about(code: int, kind: type[CdcError]) -> None:
    with pytest.raises(CdcError) as found, translate_errors("reading"):
        raise pymysql.err.OperationalError(code, "words")
    assert type(found.value) is kind


def read_rows(connection: Connection[Any], sql: str) -> list[tuple[bytes, bytes]]:
    """As chunks are read."""
    table = query_arrow(connection, sql, pa.schema([("a", pa.string()), ("b", pa.string())]))
    return [(row["a"].encode(), row["b"].encode()) for row in table.to_pylist()]


@pytest.mark.parametrize(
    ("read", "wanted"),
    [
        *((query_bytes, wanted) for wanted in (b"needle", b"\xfe\x00\x00\x02\x00", b"def")),
        *((read_rows, wanted) for wanted in (b"needle", b"def")),
    ],
    ids=["data", "end of a result", "column", "data of a chunk", "column of a chunk"],
)
def test_an_answer_that_is_damaged(
    server: MySQLServer, read: Callable[[Connection[Any], str], Sequence[Any]], wanted: bytes
) -> None:
    """Where a packet is doubled nothing is understood any more; what was damaged inside of a value nobody can see."""
    sql = "SELECT CONCAT('nee', 'dle') AS a, '2' AS b"  # the statement is not damaged
    with Proxy(server.port) as proxy:
        given = {**server.connect_args(), "host": "127.0.0.1", "port": proxy.port, "ssl_disabled": True}
        with contextlib.closing(connect({**given, "read_timeout": 3})) as connection:
            proxy.replace(wanted, wanted[:-1] + b"\xff\xff\xff" + wanted, 1)
            with pytest.raises(TransientError):
                for _ in range(3):
                    read(connection, sql)
        with contextlib.closing(connect(given)) as connection:
            assert [*read(connection, sql)] == [(b"needle", b"2")]
