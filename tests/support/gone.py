"""What tables have lost, written down by triggers in the transactions that delete it.

Of a table of which some rows are copied, that is also what no longer satisfies the condition, and only what did.

The oracle compares with it the rows that stay in a copy although they are deleted in the source.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import pymysql

#: Columns of what is written down, before those of the table: its order, and when it was, in UTC.
NUMBER, MOMENT = "gone_no", "gone_at"


class Gone:
    """A database beside another one, with a table for each of some of its tables. A context manager.

    :param args: how to connect.
    :param tables: their names; all have a primary key.
    :param conditions: which rows are copied, by table; ``{r}`` stands for what is written before a column.
    """

    def __init__(
        self, args: dict[str, Any], database: str, tables: Sequence[str], conditions: Mapping[str, str] | None = None
    ) -> None:
        self._args, self._of, self.tables, self._conditions = args, database, tables, conditions or {}
        self.database, self._moment = f"{database}_gone", "UTC_TIMESTAMP(6)"

    def __enter__(self) -> Self:
        if "MariaDB" in self._value("SELECT VERSION()"):
            self._moment = "UTC_TIMESTAMP()"  # its binlog has whole seconds
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
        written = f"INSERT INTO {log} ({MOMENT}, {names}) VALUES ({self._moment}, {old})"
        # Another key to the copy, which is one of other bytes.
        other = " OR ".join(f"CAST(OLD.`{n}` AS BINARY) <> CAST(NEW.`{n}` AS BINARY)" for n, key in columns if key)
        before, after = (self._condition(table, row) for row in ("OLD.", "NEW."))
        return [
            f"CREATE TABLE {log} LIKE {source}",
            f"ALTER TABLE {log} DROP PRIMARY KEY, ADD {MOMENT} DATETIME(6) FIRST, "
            f"ADD {NUMBER} BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY FIRST",
            f"CREATE TRIGGER `{self._of}`.`{table}_deleted` AFTER DELETE ON {source} FOR EACH ROW "
            f"BEGIN IF {before} THEN {written}; END IF; END",
            f"CREATE TRIGGER `{self._of}`.`{table}_moved` AFTER UPDATE ON {source} FOR EACH ROW "
            f"BEGIN IF {before} AND ({other} OR NOT IFNULL({after}, FALSE)) THEN {written}; END IF; END",
        ]

    def _condition(self, table: str, row: str = "") -> str:
        return f"({self._conditions.get(table, 'TRUE').format(r=row)})"

    def truncate(self, connection: Any, table: str) -> None:
        """Empty a table, which no trigger sees; nobody writes to it in between."""
        source, log = f"`{self._of}`.`{table}`", f"`{self.database}`.`{table}`"
        with connection.cursor() as cursor:
            if table not in self.tables:
                cursor.execute(f"TRUNCATE TABLE {source}")
                return
            cursor.execute(f"LOCK TABLES {source} WRITE, {log} WRITE")
            try:
                cursor.execute(
                    f"INSERT INTO {log} SELECT NULL, {self._moment}, {source}.* FROM {source} "
                    f"WHERE {self._condition(table)}"
                )
                connection.commit()
                cursor.execute(f"TRUNCATE TABLE {source}")
            finally:
                cursor.execute("UNLOCK TABLES")

    def now(self) -> str:
        """The server's time, in UTC."""
        return self._value(f"SELECT CAST({self._moment} AS CHAR)")

    def _value(self, query: str) -> str:
        with pymysql.connect(**self._args) as connection, connection.cursor() as cursor:
            cursor.execute(query)
            return str(cursor.fetchone()[0])
