"""What a copy must be, as views that the server itself computes: independent of the project's own code."""

from __future__ import annotations

from tests.support.servers import MySQLServer

#: Secret key of hashed columns, and the connection with it.
HASH_KEY, HASH_CONNECTION = "correct-horse-battery-staple", "pii_key"
HASH_ENV = {"AIRFLOW_CONN_PII_KEY": f"generic://:{HASH_KEY}@"}


def hmac_sql(text: str, key: str = HASH_KEY) -> str:
    """HMAC-SHA-256 of an SQL expression, as RFC 2104 defines it; the key is no longer than a block.

    :param text: expression of the message.
    """
    block = key.encode().ljust(64, b"\0")
    inner, outer = (bytes(byte ^ pad for byte in block).hex() for pad in (0x36, 0x5C))
    return f"SHA2(CONCAT(x'{outer}', UNHEX(SHA2(CONCAT(x'{inner}', CAST({text} AS BINARY)), 256))), 256)"


def mask_sql(column: str, shown: int = 0) -> str:
    """Text of which only the last characters stay, unless it is not longer than these."""
    long = f"CHAR_LENGTH({column}) > {shown}"
    hidden = f"REPEAT('*', CHAR_LENGTH({column}) - IF({long}, {shown}, 0))"
    return f"CONCAT({hidden}, IF({long}, RIGHT({column}, {shown}), ''))"


def null_sql(column: str) -> str:
    """NULL of the type of a column."""
    return f"CASE WHEN FALSE THEN {column} END"


def make_view(server: MySQLServer, database: str, view: str, table: str, condition: str, **columns: str) -> None:
    """Make the view of a table's copy.

    :param condition: which rows are copied, with exact comparisons of text.
    :param columns: expression of each column, by its name in the copy.
    """
    wanted = ", ".join(f"{expression} AS `{column}`" for column, expression in columns.items())
    server.session(database, f"CREATE OR REPLACE VIEW {view} AS SELECT {wanted} FROM {table} WHERE {condition}")
