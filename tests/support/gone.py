"""What tables have lost, written down by triggers in the transactions that delete it.

The oracle compares with it the rows that stay in a copy although they are deleted in the source.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import pymysql

#: Columns of what is written down, before those of the table: its order, and when it was, in UTC.
NUMBER, MOMENT = "gone_no", "gone_at"


class Gone:
    """A database beside another one, with a table for each of some of its tables. A context manager.

    :param args: how to connect.
    :param tables: their names; all have a primary key.
    """

    def __init__(self, args: dict[str, Any], database: str, tables: Sequence[str]) -> None:
        self._args, self._of, self.tables = args, database, tables
        self.database = f"{database}_gone"

    def __enter__(self) -> Self:
        self._execute(f"DROP DATABASE IF EXISTS {self.database}", f"CREATE DATABASE {self.database}")
        for table in self.tables:
            self._execute(*self._made(table))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._execute(f"DROP DATABASE {self.database}")

    def _execute(self, *statements: str) -> None:
        with pymysql.connect(**self._args, autocommit=True) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def _made(self, table: str) -> list[str]:
        source, log = f"`{self._of}`.`{table}`", f"`{self.database}`.`{table}`"
        with pymysql.connect(**self._args) as connection, connection.cursor() as cursor:
            cursor.execute(f"SHOW COLUMNS FROM {source}")
            columns = [(row[0], row[3] == "PRI") for row in cursor.fetchall()]
        names = ", ".join(f"`{name}`" for name, _ in columns)
        old = ", ".join(f"OLD.`{name}`" for name, _ in columns)
        written = f"INSERT INTO {log} ({MOMENT}, {names}) VALUES (UTC_TIMESTAMP(6), {old})"
        # Another key to the copy, which is one of other bytes.
        other = " OR ".join(f"CAST(OLD.`{n}` AS BINARY) <> CAST(NEW.`{n}` AS BINARY)" for n, key in columns if key)
        return [
            f"CREATE TABLE {log} LIKE {source}",
            f"ALTER TABLE {log} DROP PRIMARY KEY, ADD {MOMENT} DATETIME(6) FIRST, "
            f"ADD {NUMBER} BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY FIRST",
            f"CREATE TRIGGER `{self._of}`.`{table}_deleted` AFTER DELETE ON {source} FOR EACH ROW {written}",
            f"CREATE TRIGGER `{self._of}`.`{table}_moved` AFTER UPDATE ON {source} FOR EACH ROW "
            f"BEGIN IF {other} THEN {written}; END IF; END",
        ]

    def truncate(self, connection: Any, table: str) -> None:
        """Empty a table, which no trigger sees; nobody writes to it in between."""
        source, log = f"`{self._of}`.`{table}`", f"`{self.database}`.`{table}`"
        with connection.cursor() as cursor:
            if table not in self.tables:
                cursor.execute(f"TRUNCATE TABLE {source}")
                return
            cursor.execute(f"LOCK TABLES {source} WRITE, {log} WRITE")
            try:
                cursor.execute(f"INSERT INTO {log} SELECT NULL, UTC_TIMESTAMP(6), {source}.* FROM {source}")
                connection.commit()
                cursor.execute(f"TRUNCATE TABLE {source}")
            finally:
                cursor.execute("UNLOCK TABLES")

    def now(self) -> str:
        """The server's time, in UTC."""
        with pymysql.connect(**self._args) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT CAST(UTC_TIMESTAMP(6) AS CHAR)")
            return str(cursor.fetchone()[0])
