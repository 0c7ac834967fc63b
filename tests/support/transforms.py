"""What a copy must be, as views that the server itself computes: independent of the project's own code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

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


#: Rules for the tables of schedules: the condition, and the policies of columns.
_RULES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "hot": ("part IS NOT NULL AND v BETWEEN 1 AND 700", {"v": {"hash": "hex", "rename": "v_hash"}}),
    "heap": ("a = 1 OR v = 'X'", {"v": {"mask": 0, "rename": "masked"}, "twice": "null"}),
}


def schedule_rules(database: str, tables: Iterable[str]) -> dict[str, Any]:
    """The section ``transforms`` of a schedule's pipeline, for tables of tests/support/hot.py and heap.py."""
    rules = {table: _RULES.get(table, _RULES["hot"]) for table in tables}
    columns = {rf"{database}\.{t}\.{name}": policy for t, (_, by) in rules.items() for name, policy in by.items()}
    where = {rf"{database}\.{table}": condition for table, (condition, _) in rules.items()}
    key = {"hash_key_conn_id": HASH_CONNECTION} if any("hash" in policy for policy in columns.values()) else {}
    return {**key, "columns": columns, "where": where}


def make_schedule_views(
    server: MySQLServer, database: str, tables: Iterable[str]
) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Make the views of what the copies of these tables must be: name and key of each, by table."""
    found: dict[str, tuple[str, tuple[str, ...]]] = {}
    for table in tables:
        view = f"copy of {table}"
        if table == "heap":
            key: tuple[str, ...] = ()
            condition = "a = 1 OR CAST(v AS BINARY) = CAST('X' AS BINARY)"
            columns = {"a": "a", "masked": mask_sql("v"), "f": "f", "twice": null_sql("twice")}
        else:
            condition, key = _RULES["hot"][0], ("k", "n")
            columns = {name: name for name in ("k", "n", "part", "at")} | {"v_hash": hmac_sql("v")}
        make_view(server, database, f"`{view}`", f"`{table}`", condition, **columns)
        found[table] = view, key
    return found
