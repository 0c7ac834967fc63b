"""DDL by chance of every kind that suspends a table, and some that are followed; changes that fit what came out; and
threads that do both.

What a statement is about is looked up in the catalog when it is made. What the server refuses is passed over.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from tests.support.altering import Alterations, Seen, quoted, seen
from tests.support.chance import Threads, roll_back_xa
from tests.support.mariadb import MariaDBServer
from tests.support.servers import MySQLServer

#: Captured tables: how they are made at first.
TABLES = {
    "alpha": "(id INT NOT NULL PRIMARY KEY, v VARCHAR(20), n INT NOT NULL)",
    "be`ta": "(a SMALLINT NOT NULL, b VARCHAR(8) NOT NULL, v VARCHAR(20), e ENUM('x','y'), PRIMARY KEY (b, a))",
    "gamma": "(n INT, v VARCHAR(9), t DATETIME(3))",
    "delta": "(k BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY, v TEXT, d DECIMAL(12,3))",
}
#: Tables beside them that nobody captures.
BESIDE = ("away", "away 2", "_new")
_NAMES = (*("c1", "c2", "c3", "c4", "x y", "t`ick", "grüße", "semi;colon", "UPPER", "id", "v", "n", "k"),)
#: Types of columns in which rows that are there get a value.
_FILLED = (
    *("INT NOT NULL DEFAULT 7", "BIGINT NULL DEFAULT 5", "VARCHAR(20) NOT NULL DEFAULT 'it''s'", "VARCHAR(9) NOT NULL"),
    *("DECIMAL(10,2) NOT NULL DEFAULT 1.50", "DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6)", "TEXT NOT NULL"),
    *("ENUM('a','b') NOT NULL", "TINYINT UNSIGNED NOT NULL", "BIT(9) NOT NULL DEFAULT b'101'", "BINARY(3) NOT NULL"),
    *("TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP", "DOUBLE NOT NULL DEFAULT 2.5"),
    *("INT GENERATED ALWAYS AS (1 + 2) STORED", "BIGINT NOT NULL AUTO_INCREMENT UNIQUE", "INT UNIQUE"),
)
_PLAIN = ("INT", "VARCHAR(30)", "DATE", "DATETIME(6)", "JSON", "BLOB", "DECIMAL(20,4)", "TIME(3)", "GEOMETRY", "YEAR")
_OTHER = {
    "integer": ("BIGINT", "SMALLINT", "TINYINT UNSIGNED", "INT UNSIGNED", "VARCHAR(30)", "DECIMAL(20,3)", "DOUBLE"),
    "text": ("VARCHAR(60)", "VARCHAR(3)", "TEXT", "LONGTEXT", "VARBINARY(80)", "CHAR(12)", "BLOB"),
    "number": ("DECIMAL(30,5)", "DECIMAL(6,1)", "DOUBLE", "VARCHAR(60)", "BIGINT"),
    "binary": ("BLOB", "VARBINARY(200)", "LONGBLOB", "BINARY(4)"),
    "time": ("VARCHAR(40)", "DATETIME(6)", "DATETIME", "TEXT"),
    "member": ("ENUM('y','x','z')", "VARCHAR(20)", "ENUM('x','y','a','b')"),
}
_KINDS = {
    **dict.fromkeys(("tinyint", "smallint", "mediumint", "int", "bigint"), "integer"),
    **dict.fromkeys(("varchar", "char", "text", "longtext", "tinytext", "mediumtext"), "text"),
    **dict.fromkeys(("decimal", "double", "float"), "number"),
    **dict.fromkeys(("varbinary", "binary", "blob", "longblob", "tinyblob"), "binary"),
    **dict.fromkeys(("datetime", "timestamp", "date"), "time"),
    "enum": "member",
}
#: A date that is NOT NULL could become zero, which is refused.
_NO_ZERO = "'STRICT_TRANS_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE'"


def literal(draw: random.Random, column: Seen) -> str:
    """A value, often one that other rows have."""
    kind = _KINDS.get(column.kind)
    if kind == "integer" and draw.random() < 0.8:
        return str(draw.randint(0, 30))
    if kind == "text" and draw.random() < 0.6:
        return draw.choice(("'a'", "'A'", "'b'", "''", "'zz'"))
    return column.literal(draw)


def change(draw: random.Random, table: str, columns: Sequence[Seen]) -> str:
    """A statement that changes rows of a table, whatever its columns are."""
    name = quoted(table)
    some = [c for c in columns if not c.nullable or draw.random() < 0.8] or list(columns)
    listed = ", ".join(quoted(c.name) for c in some)
    inserted = f"{name} ({listed}) VALUES ({', '.join(literal(draw, c) for c in some)})"
    picked = draw.sample(list(columns), draw.randint(1, min(3, len(columns))))
    sets = ", ".join(f"{quoted(c.name)} = {literal(draw, c)}" for c in picked)
    where = draw.choice(columns)
    roll = draw.random()
    if roll < 0.3:
        return f"INSERT IGNORE INTO {inserted}"
    if roll < 0.4:
        return f"REPLACE INTO {inserted}"
    if roll < 0.5:
        return f"INSERT INTO {inserted} ON DUPLICATE KEY UPDATE {sets}"
    if roll < 0.7:
        return f"UPDATE IGNORE {name} SET {sets} WHERE {quoted(where.name)} <=> {literal(draw, where)} LIMIT 5"
    if roll < 0.85:
        return f"UPDATE IGNORE {name} SET {sets} LIMIT {draw.randint(1, 9)}"
    if roll < 0.93:
        return f"DELETE FROM {name} WHERE {quoted(where.name)} <=> {literal(draw, where)} LIMIT 3"
    return f"DELETE FROM {name} LIMIT {draw.randint(1, 5)}"


class Redefinitions:
    """Sequences of statements that give tables other definitions."""

    def __init__(self, server: MySQLServer, draw: random.Random, database: str) -> None:
        self.draw, self.database, self.mariadb = draw, database, isinstance(server, MariaDBServer)
        self._followed = Alterations(server, draw)

    def of(self, cursor: Any, number: int) -> list[str]:
        """Statements of one session, in their order.

        :param number: makes names differ.
        """
        self._followed.number = number * 10
        table = self.draw.choice([*TABLES])
        columns = seen(cursor, self.database, table)
        if not columns:
            return self._made(table) if self.draw.random() < 0.6 else [f"RENAME TABLE `away` TO {quoted(table)}"]
        kinds: list[Callable[[str, list[Seen]], list[str]]] = [
            *(self._add, self._add, self._drop, self._rename_column, self._change, self._type, self._type, self._null),
            *(self._convert, self._key, self._key, self._emptied, self._anew, self._swap, self._away, self._ghost),
            *(self._percona, self._partitions, self._beside, self._several),
        ]
        statements = self.draw.choice(kinds)(table, columns)
        if self.draw.random() < 0.3:
            try:
                statements = [self._followed.of(cursor, self.database, table)]
            except IndexError:  # no column that it could be about
                statements = [f"ALTER TABLE {quoted(table)} COMMENT 'number {number}'"]
        strict = any(word in s.upper() for s in statements for word in ("DATE", "TIME"))
        return [f"SET SESSION sql_mode = {_NO_ZERO if strict else repr('')}", *statements]

    def _name(self, columns: list[Seen]) -> str:
        taken = {c.name.lower() for c in columns}
        return quoted(self.draw.choice([n for n in _NAMES if n.lower() not in taken] or ["another"]))

    def _place(self, columns: list[Seen]) -> str:
        return self.draw.choice(["", "", " FIRST", f" AFTER {quoted(self.draw.choice(columns).name)}"])

    def _alter(self, table: str, *clauses: str) -> list[str]:
        return [f"ALTER TABLE {quoted(table)} {', '.join(clauses)}"]

    def _add(self, table: str, columns: list[Seen]) -> list[str]:
        if len(columns) > 12:
            return self._drop(table, columns)
        kind = self.draw.choice(_FILLED)
        # Nobody may write to a column that is generated: its name says so to the writers.
        name = "`generated`" if "GENERATED" in kind else self._name(columns)
        return self._alter(table, f"ADD COLUMN {name} {kind}{self._place(columns)}")

    def _drop(self, table: str, columns: list[Seen]) -> list[str]:
        gone = self.draw.sample(columns, min(len(columns) - 1, self.draw.choice((1, 1, 2))))
        if not gone:
            return self._alter(table, "ADD COLUMN c1 INT NOT NULL DEFAULT 3")
        return self._alter(table, *(f"DROP COLUMN {quoted(c.name)}" for c in gone))

    def _rename_column(self, table: str, columns: list[Seen]) -> list[str]:
        if len(columns) > 2 and self.draw.random() < 0.3:
            one, other = (quoted(c.name) for c in self.draw.sample(columns, 2))
            return self._alter(table, f"RENAME COLUMN {one} TO {other}", f"RENAME COLUMN {other} TO {one}")
        return self._alter(table, f"RENAME COLUMN {quoted(self.draw.choice(columns).name)} TO {self._name(columns)}")

    def _retyped(self, column: Seen) -> str:
        kinds = _OTHER[_KINDS[column.kind]] if column.kind in _KINDS else (column.shown,)
        return self.draw.choice(kinds) + ("" if column.nullable else " NOT NULL")

    def _change(self, table: str, columns: list[Seen]) -> list[str]:
        column = self.draw.choice(columns)
        return self._alter(
            table, f"CHANGE {quoted(column.name)} {self._name(columns)} {self._retyped(column)}{self._place(columns)}"
        )

    def _type(self, table: str, columns: list[Seen]) -> list[str]:
        column = self.draw.choice(columns)
        return self._alter(table, f"MODIFY {quoted(column.name)} {self._retyped(column)}{self._place(columns)}")

    def _null(self, table: str, columns: list[Seen]) -> list[str]:
        fit = [c for c in columns if _KINDS.get(c.kind) in ("integer", "text", "number", "binary", "member")]
        if not fit:
            return self._add(table, columns)
        column = self.draw.choice(fit)
        said = f"{quoted(column.name)} {column.as_said(self.draw, null=not column.nullable)}"
        return self._alter(table, f"MODIFY {said}")

    def _convert(self, table: str, columns: list[Seen]) -> list[str]:
        # Of an ENUM that is converted to it, the servers make one whose members are no text.
        wide = () if any(c.kind == "enum" for c in columns) else ("ucs2",)
        charset = self.draw.choice(("latin1", "utf8mb4", "utf8mb4 COLLATE utf8mb4_bin", *wide))
        return self._alter(table, f"CONVERT TO CHARACTER SET {charset}")

    def _key(self, table: str, columns: list[Seen]) -> list[str]:
        how = self.draw.random()
        if how < 0.25:
            return self._alter(table, "DROP PRIMARY KEY")
        if how < 0.5:
            return self._alter(
                table,
                *(["DROP PRIMARY KEY"] if self.draw.random() < 0.6 else []),
                f"ADD COLUMN {self._name(columns)} BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY FIRST",
            )
        fit = [c for c in columns if _KINDS.get(c.kind) in ("integer", "number", "time") or c.kind == "varchar"]
        parts = ", ".join(quoted(c.name) for c in self.draw.sample(fit, min(len(fit), self.draw.randint(1, 3))))
        if how < 0.7:
            return self._alter(table, f"ADD UNIQUE KEY ({parts})")
        drop = ["DROP PRIMARY KEY"] if self.draw.random() < 0.7 else []
        return [f"DELETE FROM {quoted(table)}", *self._alter(table, *drop, f"ADD PRIMARY KEY ({parts})")]

    def _emptied(self, table: str, columns: list[Seen]) -> list[str]:
        return [f"TRUNCATE TABLE {quoted(table)}"]

    def _made(self, table: str) -> list[str]:
        """A table that is not there, made by chance, and with rows in it."""
        draw = self.draw
        if draw.random() < 0.2:
            return [f"CREATE TABLE {quoted(table)} AS SELECT * FROM {quoted(draw.choice([*TABLES]))}"]
        if draw.random() < 0.3:
            return [f"CREATE TABLE {quoted(table)} {TABLES[table]}"]
        names = draw.sample([n for n in _NAMES if n not in ("id", "v")], draw.randint(1, 4))
        columns = [f"{quoted(n)} {draw.choice([*_PLAIN, 'INT NOT NULL DEFAULT 3'])}" for n in names]
        first = draw.choice(
            ("id INT NOT NULL AUTO_INCREMENT PRIMARY KEY", "id VARCHAR(9) NOT NULL PRIMARY KEY", "id INT")
        )
        return [
            f"CREATE TABLE {quoted(table)} ({', '.join([first, *columns])})",
            f"INSERT IGNORE INTO {quoted(table)} (id) VALUES (1), (2), (3), (17)",
        ]

    def _anew(self, table: str, columns: list[Seen]) -> list[str]:
        made = self._made(table)
        if self.mariadb and self.draw.random() < 0.4:
            return [made[0].replace("CREATE TABLE", "CREATE OR REPLACE TABLE", 1), *made[1:]]
        return [f"DROP TABLE {quoted(table)}", *made]

    def _swap(self, table: str, columns: list[Seen]) -> list[str]:
        one, other = quoted(table), quoted(self.draw.choice([n for n in TABLES if n != table]))
        if self.draw.random() < 0.6:
            return [f"RENAME TABLE {one} TO `swap`, {other} TO {one}, `swap` TO {other}"]
        return [
            f"RENAME TABLE {one} TO `swap`",
            f"ALTER TABLE {other} RENAME TO {one}",
            f"RENAME TABLE `swap` TO {other}",
        ]

    def _away(self, table: str, columns: list[Seen]) -> list[str]:
        if self.draw.random() < 0.3:
            return [f"DROP TABLE {quoted(table)}"]
        return ["DROP TABLE IF EXISTS `away`", f"RENAME TABLE {quoted(table)} TO `away`"]

    def _new(self, table: str, columns: list[Seen]) -> list[str]:
        """A table beside another one, altered and filled, as the tools do it."""
        altered = self.draw.choice((self._add, self._type, self._convert, self._drop))("_new", columns)
        listed = ", ".join(quoted(c.name) for c in columns if f"DROP COLUMN {quoted(c.name)}" not in altered[0])
        return [
            "DROP TABLE IF EXISTS `_new`, `_old`",
            f"CREATE TABLE `_new` LIKE {quoted(table)}",
            *altered,
            f"INSERT IGNORE INTO `_new` ({listed}) SELECT {listed} FROM {quoted(table)} LOCK IN SHARE MODE",
        ]

    def _ghost(self, table: str, columns: list[Seen]) -> list[str]:
        return [
            *self._new(table, columns),
            "CREATE TABLE `_old` (id INT) COMMENT 'ghost-cut-over-sentry'",
            "DROP TABLE `_old`",
            f"RENAME TABLE {quoted(table)} TO `_old`, `_new` TO {quoted(table)}",
            "DROP TABLE IF EXISTS `_old`, `_new`",
        ]

    def _percona(self, table: str, columns: list[Seen]) -> list[str]:
        name, made = quoted(table), self._new(table, columns)
        mine = quoted(columns[0].name)
        return [
            *made[:3],
            f"CREATE TRIGGER pt_ins AFTER INSERT ON {name} FOR EACH ROW "
            f"REPLACE INTO `_new` ({mine}) VALUES (NEW.{mine})",
            made[3],
            f"RENAME TABLE {name} TO `_old`, `_new` TO {name}",
            "DROP TABLE IF EXISTS `_old`",
            "DROP TRIGGER IF EXISTS pt_ins",
        ]

    def _partitions(self, table: str, columns: list[Seen]) -> list[str]:
        return (
            self._alter(table, self.draw.choice(("REMOVE PARTITIONING", "REMOVE PARTITIONING")))
            if (self.draw.random() < 0.3)
            else [f"ALTER TABLE {quoted(table)} PARTITION BY KEY () PARTITIONS 2"]
        )

    def _beside(self, table: str, columns: list[Seen]) -> list[str]:
        return self.draw.choice(
            (
                ["CREATE TABLE IF NOT EXISTS `away` (id INT PRIMARY KEY, v INT DEFAULT 7)"],
                ["ALTER TABLE `away` DROP COLUMN v", "RENAME TABLE `away` TO `away 2`"],
                ["DROP TABLE IF EXISTS `away 2`"],
                [
                    f"CREATE TEMPORARY TABLE {quoted(table)} (x INT)",
                    f"ALTER TABLE {quoted(table)} ADD y INT",
                    f"DROP TEMPORARY TABLE {quoted(table)}",
                ],
            )
        )

    def _several(self, table: str, columns: list[Seen]) -> list[str]:
        other = self.draw.choice([n for n in TABLES if n != table])
        return [f"DROP TABLE {quoted(table)}, {quoted(other)}", *self._made(table), *self._made(other)]


class Load(Threads):
    """Threads that write, and one that alters."""

    def __init__(self, server: MySQLServer, seed: int, database: str) -> None:
        super().__init__(server, seed, database, [self._write, self._write, self._alter], "sql_mode = ''")

    def _write(self, draw: random.Random, number: int, cursor: Any) -> None:
        """One transaction."""
        tables = draw.choices([*TABLES], k=draw.choice((1, 1, 2, 4)))
        listed = [(name, self.columns(cursor, name)) for name in tables]
        changes = [change(draw, name, columns) for name, columns in listed if columns]
        xid, xa = f"'{self.database}{number}'", draw.random() < 0.1
        end = "ROLLBACK" if draw.random() < 0.1 else "COMMIT"
        if xa:
            statements = [f"XA START {xid}", *changes, f"XA END {xid}", f"XA PREPARE {xid}", f"XA {end} {xid}"]
        else:
            statements = ["BEGIN", *changes, end]
        for statement in statements:
            if not self.executed(cursor, statement) and xa:
                roll_back_xa(cursor, xid)
                return
        if not xa:
            cursor.execute("COMMIT")

    def _alter(self, draw: random.Random, number: int, cursor: Any) -> None:
        """One sequence of DDL, or rows that are changed by statement."""
        if not self.alters.acquire(blocking=False):
            return
        statements = Redefinitions(self.server, draw, self.database).of(cursor, len(self.said))
        if draw.random() < 0.08 and (columns := self.columns(cursor, name := draw.choice([*TABLES]))):
            sql = change(draw, name, columns)
            statements = ["SET SESSION binlog_format = STATEMENT", sql, "SET SESSION binlog_format = ROW"]
            self.done["by statement"] += 1
        for statement in statements:
            self.executed(cursor, statement, ddl=True)
        cursor.execute("COMMIT")
        self.over.wait(draw.choice((0, 0.05, 0.2)))

    def columns(self, cursor: Any, name: str) -> list[Any]:
        """Columns that may be written to."""
        return [column for column in seen(cursor, self.database, name) if column.name != "generated"]
