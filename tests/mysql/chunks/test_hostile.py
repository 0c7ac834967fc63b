"""A server whose defaults would cut, alter, lock or end what is read: the copy is exact all the same."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.mysql.client import session
from airflow_provider_cdc.mysql.client.session import connect, query_value
from tests.support.cli import Cli
from tests.support.mariadb import MariaDBServer
from tests.support.servers import MySQLServer

BOTH = {
    "wait_timeout": "2",
    "interactive_timeout": "2",
    "net_write_timeout": "1",
    "net_read_timeout": "1",
    "lock_wait_timeout": "1",
    "sql_select_limit": "3",
    "sql_big_selects": "0",
    "max_join_size": "5",
    "sql_safe_updates": "1",
    "completion_type": "'RELEASE'",
    "time_zone": "'-11:30'",
    "character_set_server": "latin1",
    "collation_server": "latin1_swedish_ci",
    "character_set_client": "cp932",
    "character_set_connection": "ucs2",
    "character_set_results": "cp1251",
    "max_sort_length": "8",
    "autocommit": "0",
    "div_precision_increment": "0",
    "lc_time_names": "'ja_JP'",
    "group_concat_max_len": "4",
    "transaction_isolation": "'SERIALIZABLE'",
    "innodb_lock_wait_timeout": "1",
}
HOSTILE = {
    MySQLServer: BOTH
    | {
        "max_execution_time": "1",
        "sql_mode": "'PAD_CHAR_TO_FULL_LENGTH,ANSI,NO_BACKSLASH_ESCAPES,HIGH_NOT_PRECEDENCE,REAL_AS_FLOAT'",
        "transaction_read_only": "0",
        "information_schema_stats_expiry": "86400",
    },
    MariaDBServer: BOTH
    | {
        "max_statement_time": "0.001",
        "sql_mode": "'PAD_CHAR_TO_FULL_LENGTH,ORACLE,EMPTY_STRING_IS_NULL,NO_BACKSLASH_ESCAPES'",
        "idle_transaction_timeout": "1",
        "idle_readonly_transaction_timeout": "1",
        "tx_isolation": "'SERIALIZABLE'",
    },
}
ROWS = 400


def fill(server: MySQLServer, connection: Any) -> None:
    """A table of values that a session's settings could alter; in a session with the usual settings."""
    with connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE d")
        cursor.execute(
            "CREATE TABLE d.t (k CHAR(12) COLLATE utf8mb4_bin PRIMARY KEY, c CHAR(9), e VARCHAR(9), "
            "at TIMESTAMP(6) NULL, f FLOAT, n DECIMAL(20, 6), long_one TEXT) CHARACTER SET utf8mb4"
        )
        cursor.execute("CREATE TABLE d.one (id INT PRIMARY KEY)")
        cursor.execute("INSERT INTO d.one VALUES (1)")
        for number in range(ROWS):
            cursor.execute(
                "INSERT INTO d.t VALUES (%s, %s, '', %s, %s, %s, %s)",
                (
                    f"samestart{number:03d}",
                    "Жó🎁 \\'",
                    f"2024-{1 + number % 12:02d}-10 02:30:00.123456",
                    number / 7,
                    f"{number}.123456",
                    "x" * 2000,
                ),
            )
    connection.commit()


@pytest.mark.parametrize("kind", HOSTILE, ids=lambda kind: kind.title)
def test_the_snapshot_is_exact(kind: type[MySQLServer], tmp_path: Path) -> None:
    with kind() as server:
        with closing(server.connect(charset="utf8mb4", init_command="SET time_zone='+00:00'")) as usual:
            fill(server, usual)
            with usual.cursor() as cursor:
                cursor.execute("SELECT * FROM d.t ORDER BY k")
                expected = cursor.fetchall()
                user = server.create_cdc_user()
                for name, setting in HOSTILE[kind].items():
                    if name == "transaction_isolation" and kind is MariaDBServer:
                        continue
                    cursor.execute(f"SET GLOBAL {name} = {setting}")
            with closing(connect(server.connect_args(**user))) as connection:
                # The server is as hostile as it says: a session without settings of its own would see three rows.
                assert query_value(connection, "SELECT @@global.sql_select_limit") == "3"
            # A reader that waits longer for its turn than the server's wait_timeout.
            slow = {"chunk_rows": 150, "max_rows_per_second": 100}
            cli = Cli(tmp_path, server, "d..*", user=user, snapshot=slow)
            cli.snapshot()
            with usual.cursor() as cursor:
                cursor.execute("SET time_zone='+00:00', sql_mode=''")
                cursor.execute("INSERT INTO d.one VALUES (2)")
            usual.commit()
            cli.catch_up()
        found = cli.rows("d", "t").sort_by("k").to_pylist()
        assert len(found) == len(expected) == ROWS
        for row, (k, c, e, at, f, n, long_one) in zip(found, expected, strict=True):
            assert (row["k"], row["c"], row["e"], row["long_one"]) == (k, c, e, long_one)
            assert row["at"].replace(tzinfo=None) == at and row["n"] == n
            assert f"{row['f']:.4g}" == f"{f:.4g}"
        assert sorted(cli.rows("d", "one")["id"].to_pylist()) == [1, 2]


@pytest.mark.parametrize("kind", HOSTILE, ids=lambda kind: kind.title)
def test_every_setting_of_the_session_arrives(kind: type[MySQLServer]) -> None:
    own = session._SETTINGS | (session._MYSQL_SETTINGS if kind is MySQLServer else session._MARIADB_SETTINGS)
    with kind() as server:
        with closing(server.connect()) as usual, usual.cursor() as cursor:
            for name, setting in HOSTILE[kind].items():
                if name in own:
                    cursor.execute(f"SET GLOBAL {name} = {setting}")
        with closing(connect(server.connect_args())) as connection:
            for name, setting in own.items():
                assert float_or_text(query_value(connection, f"SELECT @@session.{name}")) == float_or_text(setting), (
                    name
                )
            assert query_value(connection, "SELECT @@session.autocommit") == "1"
            assert query_value(connection, "SELECT @@session.character_set_results") == "utf8mb4"


def float_or_text(text: str | None) -> float | str:
    plain = (text or "").strip("'")
    try:
        return float(plain)
    except ValueError:
        return plain
