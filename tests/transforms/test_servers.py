"""The hash of a value is the one that the server itself computes from the documented text of the value."""

from __future__ import annotations

import contextlib
import secrets

from airflow_provider_cdc.model.column_policy import ColumnPolicy
from airflow_provider_cdc.model.schema import BINARY_TYPES
from airflow_provider_cdc.mysql.chunks.chunk import select_rows
from airflow_provider_cdc.mysql.client.catalog import read_schema
from airflow_provider_cdc.mysql.client.session import connect
from airflow_provider_cdc.transforms.column_values import apply_policy
from tests.support.mariadb import MariaDBServer
from tests.support.servers import MySQLServer

KEY = b"0123456789abcdef0123456789abcdef"
#: How the canonical text of a column is written in SQL, by type; of others, the column itself.
DECIMAL = "TRIM(TRAILING '.' FROM TRIM(TRAILING '0' FROM CAST({0} AS CHAR)))"
SECONDS = "DATE_FORMAT({0}, '%Y-%m-%d %H:%i:%s.%f')"
TEXTS = {"decimal": DECIMAL, "datetime": SECONDS, "timestamp": SECONDS, "year": "{0} + 0", "int": "{0} + 0"}
COLUMNS = {
    "TINYINT": (-128, 127),
    "INT UNSIGNED ZEROFILL": (0, 4294967295),
    "BIGINT": (-(2**63), 10),
    "BIGINT UNSIGNED": (0, 2**64 - 1),
    "DECIMAL(12,4)": ("-1.5000", "0.0001", "100", "0"),
    "DECIMAL(38,30)": ("0.000000000000000000000000000001", "-7.25"),
    "DECIMAL(65,30)": ("-0.000000000000000000000000000001", "99999999999999999999999999999999999.5"),
    "DATE": ("1000-01-01", "9999-12-31"),
    "DATETIME": ("2024-01-31 08:15:00",),
    "DATETIME(6)": ("2024-01-31 08:15:00.000001", "1000-01-01 00:00:00"),
    "TIMESTAMP(3) NULL": ("2024-03-31 01:30:00.120", "2038-01-19 03:14:07.999"),
    "YEAR": (1901, 2155, 0),
    "VARCHAR(200) CHARACTER SET utf8mb4": ("", "Häß ", "𝄞€", "x" * 200),
    "VARCHAR(20) CHARACTER SET latin1": ("Häß€", "a"),
    "CHAR(10) CHARACTER SET utf16": ("ab  ", "𝄞"),
    "ENUM('red','grün') CHARACTER SET utf8mb4": ("grün",),
    "SET('a','b','c') CHARACTER SET utf8mb4": ("c,a", ""),
    "BINARY(5)": ("a", "abcde"),
    "BLOB": ("\0\t", "y" * 300),
}


def in_sql(kind: str, column: str) -> str:
    """The canonical bytes of a column as an expression."""
    text = TEXTS.get(kind, "{0}").format(column)
    return f"CAST({text if kind in BINARY_TYPES else f'CONVERT({text} USING utf8mb4)'} AS BINARY)"


def hmac_in_sql(value: str) -> str:
    """HMAC-SHA-256 as MySQL can compute it, which has no function for it."""
    inner, outer = (bytes(byte ^ pad for byte in KEY.ljust(64, b"\0")).hex() for pad in (0x36, 0x5C))
    return f"CAST(SHA2(CONCAT(x'{outer}', UNHEX(SHA2(CONCAT(x'{inner}', {value}), 256))), 256) AS CHAR)"


def _texts(values: tuple[str | bytes | None, ...]) -> list[str | None]:
    """Hashes as text: a server may send them as bytes."""
    return [value.decode() if isinstance(value, bytes | bytearray) else value for value in values]


def test_the_server_computes_the_same(server: MySQLServer) -> None:
    kinds = [*COLUMNS, *(["UUID", "INET6"] if isinstance(server, MariaDBServer) else [])]
    values = {**COLUMNS, "UUID": ("00112233-4455-6677-8899-aabbccddeeff",), "INET6": ("2001:db8::ff", "::")}
    name = f"t_{secrets.token_hex(6)}"
    server.execute(f"CREATE DATABASE {name}")
    try:
        columns = ", ".join(f"c{at} {kind}" for at, kind in enumerate(kinds))
        server.execute(f"CREATE TABLE {name}.t (id INT AUTO_INCREMENT PRIMARY KEY, {columns})")
        with contextlib.closing(server.connect(database=name)) as connection, connection.cursor() as cursor:
            cursor.execute("SET time_zone = '+00:00'")
            for at, kind in enumerate(kinds):
                cursor.executemany(f"INSERT INTO t (c{at}) VALUES (%s)", [(value,) for value in values[kind]])
        with contextlib.closing(connect(server.connect_args())) as connection:
            table = read_schema(connection, name, "t")
            sources = [column for column in table.columns if column.name != "id"]
            rows = select_rows(connection, table, "TRUE")[1:]
            with connection.cursor() as cursor:
                said = [hmac_in_sql(in_sql(column.data_type, column.name)) for column in sources]
                cursor.execute(f"SELECT {', '.join(said)} FROM {name}.t ORDER BY id")
                expected = [_texts(column) for column in zip(*cursor.fetchall(), strict=True)]
        for column, values_read, theirs in zip(sources, rows, expected, strict=True):
            ours = apply_policy(values_read, column, ColumnPolicy(column.name, "hash"), KEY).to_pylist()
            assert ours == theirs, column
            assert len([hash_ for hash_ in ours if hash_]) == len(values[kinds[int(column.name[1:])]])
    finally:
        server.execute(f"DROP DATABASE {name}")
