"""Tables that are written to and altered at random: statements that fit what the catalog says at the moment.

Every ALTER is of a kind that docs/schema_changes.md names as followed; so a stream that stops at one has stopped
without need. What the server refuses is passed over.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.support.mariadb import MariaDBServer
from tests.support.servers import MySQLServer

#: Captured tables: how they are made. All begin with the columns of their key, and have a column ``v``.
TABLES = {
    "num`bers": "(id INT NOT NULL PRIMARY KEY, v VARCHAR(10), n INT NOT NULL, KEY by_v (v))",
    "pairs": (
        "(a SMALLINT UNSIGNED NOT NULL, b VARCHAR(8) CHARACTER SET latin1 COLLATE latin1_swedish_ci NOT NULL, "
        "v VARCHAR(20) CHARACTER SET latin1 COLLATE latin1_bin, e ENUM('x','y'), PRIMARY KEY (b, a)) "
        "DEFAULT CHARACTER SET latin1"
    ),
    "Folded names": (
        "(k VARCHAR(12) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci NOT NULL, v TEXT, s SET('p','q'), "
        "b VARBINARY(5) NOT NULL, d DECIMAL(12,3), PRIMARY KEY (k))"
    ),
    "loose": "(n INT, v VARCHAR(9), t DATETIME(3))",
}
#: How many columns of each table tell its rows apart, or do so mostly.
KEYS = {"num`bers": 1, "pairs": 2, "Folded names": 1, "loose": 2}
#: Tables beside them that nobody captures.
BESIDE = ("beside", "be`side 2")
NAMES = (
    *("w", "x y", "t`ick", "select", "grüße", "dot.ted", "a,b", "semi;colon", "quo'te", 'dou"ble', "back\\slash"),
    *("-- dash", "/* c */", "日本", "UPPER", "first", "100%", "k=v", "(b)", "add column", "comment", "c1", "c2", "c3"),
)
_TYPES = (
    *("INT", "INT UNSIGNED", "BIGINT UNSIGNED", "BIGINT", "TINYINT(1)", "BOOL", "SMALLINT", "MEDIUMINT UNSIGNED"),
    *(
        "DECIMAL(9,2)",
        "DECIMAL(65,30)",
        "DECIMAL(20)",
        "NUMERIC(38,10) UNSIGNED",
        "FLOAT",
        "DOUBLE",
        "DOUBLE PRECISION",
    ),
    *("BIT(1)", "BIT(33)", "YEAR", "DATE", "TIME", "TIME(6)", "DATETIME", "DATETIME(6)", "TIMESTAMP(3) NULL"),
    *("CHAR(3)", "CHAR(0)", "VARCHAR(1)", "VARCHAR(40)", "VARCHAR(300)", "TEXT", "TINYTEXT", "MEDIUMTEXT", "LONGTEXT"),
    *("BINARY(4)", "VARBINARY(20)", "BLOB", "TINYBLOB", "JSON", "GEOMETRY"),
    *("ENUM('a','b')", "ENUM('it''s','ä','€')", "SET('a','bc','def')", "INT(5) ZEROFILL", "INT8", "DEC(5)"),
)
_CHARSETS = (
    *(
        " CHARACTER SET latin1 COLLATE latin1_bin",
        " COLLATE utf8mb4_bin",
        " CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci",
    ),
    *(" CHARACTER SET utf16 COLLATE utf16_bin", " CHARACTER SET ucs2 COLLATE ucs2_general_ci"),
)
_TEXTUAL = ("CHAR", "VARCHAR", "TEXT", "TINYTEXT", "MEDIUMTEXT", "ENUM", "SET")
_LETTERS = "aAáßsS zZ09_%'\"\\\t\n,;`~€"
_WIDE = "😀𝔘日本"
_INTEGERS = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}


def quoted(name: str, mark: str = "`") -> str:
    """A name in a statement."""
    return mark + name.replace(mark, mark * 2) + mark


def _hex(text: str) -> str:
    """A text as a literal that no session's quoting changes."""
    return f"_utf8mb4 x'{text.encode().hex()}'" if text else "''"


@dataclass(frozen=True)
class Seen:
    """A column as the catalog shows it at the moment."""

    name: str
    kind: str
    shown: str
    nullable: bool
    length: int
    precision: int
    scale: int
    charset: str | None
    collation: str | None

    def literal(self, draw: random.Random) -> str:
        """A value of any kind that it takes."""
        if self.nullable and draw.random() < 0.2:
            return "NULL"
        if self.kind in _INTEGERS:
            bits, unsigned = _INTEGERS[self.kind], "unsigned" in self.shown
            low, high = (0, 2**bits - 1) if unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
            return str(draw.choice([low, high, 0, 1, draw.randint(low, high), draw.randint(0, 100)]))
        if self.kind == "decimal":
            digits = "".join(draw.choice("0123456789") for _ in range(draw.randint(1, self.precision))).rjust(1, "0")
            whole, part = digits[: self.precision - self.scale], digits[: self.scale]
            sign = "" if "unsigned" in self.shown else draw.choice(["", "-"])
            return f"{sign}{whole or '0'}{'.' + part if part else ''}"
        if self.kind in ("float", "double"):
            return draw.choice(["0", "-0e0", "1.5", "1e30", f"{draw.uniform(-1e9, 1e9)!r}"])
        if self.kind == "bit":
            return str(draw.choice([0, 1, 2**self.precision - 1, draw.getrandbits(self.precision)]))
        if self.kind in ("enum", "set"):
            members = self.shown.count("','") + 1
            return str(draw.randint(1, members) if self.kind == "enum" else draw.getrandbits(members))
        if self.kind == "year":
            return str(draw.choice([0, 1901, 2155, 2024]))
        if self.kind == "date":
            return draw.choice(["'1000-01-01'", "'9999-12-31'", "'2024-02-29'", "'1582-10-10'"])
        if self.kind == "datetime":
            return draw.choice(["'1000-01-01'", "'9999-12-31 23:59:59'", "'2024-02-29 12:00:00.123456'"])
        if self.kind == "timestamp":
            return draw.choice(["'1970-01-02'", "'2037-12-31 23:59:59'", "'2024-02-29 12:00:00.123456'"])
        if self.kind == "time":
            return draw.choice(["'-838:59:59'", "'838:59:59'", "'00:00:00'", "'12:13:14.123456'"])
        if self.kind.endswith(("binary", "blob")):
            return f"x'{draw.randbytes(draw.choice([0, 1, min(self.length, 30)]) if self.length else 0).hex()}'"
        if self.kind == "json" or (self.kind == "longtext" and self.collation == "utf8mb4_bin"):
            return draw.choice(["'{}'", "'[]'", "'null'", '\'{"a": [1, 2.5, "x😀"]}\'', "'\"\"'"])
        if self.kind == "uuid":
            return "UUID()"
        if self.kind == "geometry":
            return draw.choice(["ST_GeomFromText('POINT(1 2)')", "ST_GeomFromText('LINESTRING(0 0, 1 -1.5)')"])
        alphabet = _LETTERS + (_WIDE if self.charset in ("utf8mb4", "utf16") else "")
        size = min(self.length, draw.choice([0, 1, 3, 12, 100]))
        return _hex("".join(draw.choice(alphabet) for _ in range(size)))

    def as_said(self, draw: random.Random, kind: str | None = None, *, null: bool | None = None) -> str:
        """A definition of the same column, for MODIFY."""
        text = kind or self.shown
        if self.charset and self.kind != "json":
            text += f" CHARACTER SET {self.charset} COLLATE {self.collation}"
        text += " NULL" if (self.nullable if null is None else null) else " NOT NULL"
        return text + draw.choice(["", "", " COMMENT 'said; once, more'", " COMMENT ''"])


def seen(cursor: Any, database: str, table: str) -> list[Seen]:
    """The columns of a table, as they are now."""
    cursor.execute(
        "SELECT column_name, data_type, column_type, is_nullable, COALESCE(character_maximum_length, 0), "
        "COALESCE(numeric_precision, 0), COALESCE(numeric_scale, 0), character_set_name, collation_name "
        "FROM information_schema.columns WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position",
        (database, table),
    )
    return [
        Seen(
            n,
            k,
            t.decode() if isinstance(t, bytes) else t,
            null == "YES",
            int(size),
            int(p),
            int(s),
            charset,
            collation,
        )
        for n, k, t, null, size, p, s, charset, collation in cursor.fetchall()
    ]


def _key_values(table: str, draw: random.Random) -> list[str]:
    if table == "pairs":
        return [str(draw.choice([0, 1, 65535])), draw.choice(["''", "'a'", "'A'", "'b'", "'\\xe9'", "'zz'"])]
    if table == "Folded names":
        return [draw.choice([*map(_hex, ("a", "A", "á", "b", "", " ", "ß", "S", "😀", "𝔘", "tail  ", "ab"))])]
    if table == "loose":
        return [draw.choice(["1", "2", "NULL"]), draw.choice(["'a'", "'A'", "NULL", "''"])]
    return [str(draw.choice([*range(25), -2147483648, 2147483647]))]


def change(draw: random.Random, table: str, columns: Sequence[Seen]) -> str:
    """A statement that changes rows of a table."""
    size, name, values = KEYS[table], quoted(table), _key_values(table, draw)
    names = {column.name.lower() for column in columns}
    first = ["a", "b"] if table == "pairs" else ["n", "v"] if table == "loose" else ["k" if "k" in names else "id"]
    keys, others = first[:size], [c for c in columns if c.name not in first[:size]]
    where = " AND ".join(f"{quoted(k)} <=> {v}" for k, v in zip(keys, values, strict=True))
    some = [c for c in others if not c.nullable or draw.random() < 0.7]
    sets = [f"{quoted(c.name)} = {c.literal(draw)}" for c in draw.sample(others, min(len(others), draw.randint(1, 4)))]
    listed = ", ".join(quoted(n) for n in [*keys, *(c.name for c in some)])
    inserted = f"{name} ({listed}) VALUES ({', '.join([*values, *(c.literal(draw) for c in some)])})"
    roll = draw.random()
    if roll < 0.3:
        return f"INSERT INTO {inserted} ON DUPLICATE KEY UPDATE {', '.join(sets)}"
    if roll < 0.4:
        return f"REPLACE INTO {inserted}"
    if roll < 0.5:
        return f"INSERT IGNORE INTO {inserted}"
    if roll < 0.7:
        return f"UPDATE {name} SET {', '.join(sets)} WHERE {where}"
    if roll < 0.8:
        return f"UPDATE {name} SET {', '.join(sets)} LIMIT {draw.randint(1, 12)}"
    if roll < 0.85:
        moved = ", ".join(f"{quoted(k)} = {v}" for k, v in zip(keys, _key_values(table, draw), strict=True))
        return f"UPDATE IGNORE {name} SET {moved} WHERE {where} LIMIT 1"
    if roll < 0.97:
        return f"DELETE FROM {name} WHERE {where}"
    return f"DELETE FROM {name} LIMIT {draw.randint(1, 5)}"


class Alterations:
    """Random ALTER statements that are followed.

    :param number: makes the names of indexes and constraints differ.
    :param fixed: columns that are neither dropped nor renamed, by table; without it, no columns are.
    """

    def __init__(
        self, server: MySQLServer, draw: random.Random, fixed: Mapping[str, Collection[str]] | None = None
    ) -> None:
        self.mariadb, self.draw, self.number = isinstance(server, MariaDBServer), draw, 0
        self.fixed = fixed

    def of(self, cursor: Any, database: str, table: str) -> str:
        """One of a table, as it is now."""
        draw, columns = self.draw, seen(cursor, database, table)
        self.number += 1
        makers = [self._add] * 4 + [self._index, self._drop_index, self._rename_index, self._longer, self._members]
        makers += [self._default, self._again, self._comment, self._options, self._check, self._null]
        if self.fixed is not None:
            makers += [self._drop, self._rename, self._rename]
        clauses = draw.choice(makers)(cursor, database, table, columns)
        if not clauses:
            clauses = self._options(cursor, database, table, columns)
        if clauses[0].startswith("CREATE INDEX"):
            return clauses[0]
        how = draw.choice([[], [], ["ALGORITHM=INSTANT"], ["ALGORITHM=INPLACE"], ["ALGORITHM=COPY"], ["LOCK=SHARED"]])
        ignored = "ONLINE " if self.mariadb and not how and draw.random() < 0.1 else ""
        where = quoted(table) if draw.random() < 0.7 else f"{quoted(database)} . {quoted(table)}"
        gap = draw.choice([" ", " ", "\n", " /* a; comment */ "])
        return f"{draw.choice(['ALTER', 'alter'])} {ignored}TABLE{gap}{where} {', '.join([*clauses, *how])}"

    def _add(self, cursor: Any, database: str, table: str, columns: list[Seen]) -> list[str]:
        draw, taken = self.draw, {c.name.lower() for c in columns}
        free = [n for n in NAMES if n.lower() not in taken]
        if len(columns) > 22 or len(free) < 4:
            return []
        names = draw.sample(free, draw.choice([1, 1, 1, 2, 3]))
        if len(names) > 1 and draw.random() < 0.4:
            return [f"ADD {draw.choice(['', 'COLUMN '])}({', '.join(self._defined(n) for n in names)})"]
        places, found = [c.name for c in columns], []
        for name in names:
            unless = "IF NOT EXISTS " if self.mariadb and draw.random() < 0.2 else ""
            place = draw.choice(["", " FIRST", f" AFTER {quoted(draw.choice(places))}"])
            found.append(f"ADD {draw.choice(['', 'COLUMN '])}{unless}{self._defined(name)}{place}")
            places.append(name)
        return found

    def _movable(self, table: str, columns: list[Seen]) -> list[str]:
        fixed = (self.fixed or {}).get(table, ())
        return [column.name for column in columns if column.name not in fixed]

    def _drop(self, cursor: Any, database: str, table: str, columns: list[Seen]) -> list[str]:
        movable = self._movable(table, columns)
        return [f"DROP COLUMN {quoted(self.draw.choice(movable))}"] if movable else []

    def _rename(self, cursor: Any, database: str, table: str, columns: list[Seen]) -> list[str]:
        movable, taken = self._movable(table, columns), {column.name.lower() for column in columns}
        free = [name for name in NAMES if name.lower() not in taken]
        if not movable or not free:
            return []
        return [f"RENAME COLUMN {quoted(self.draw.choice(movable))} TO {quoted(self.draw.choice(free))}"]

    def _defined(self, name: str) -> str:
        draw, kind = self.draw, self.draw.choice([*_TYPES, *(["UUID"] if self.mariadb else [])])
        if kind.split("(")[0] in _TEXTUAL and "ä" not in kind and draw.random() < 0.5:
            kind += draw.choice(_CHARSETS if draw.random() < 0.9 or self.mariadb else [" CHARACTER SET utf8mb4"])
        if "ä" in kind:
            kind += " CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
        if "NULL" not in kind:
            kind += draw.choice(["", "", " NULL", " DEFAULT NULL"])
        return (
            quoted(name) + " " + kind + draw.choice(["", "", "", " COMMENT 'it''s \\\\ new, (really)'", " INVISIBLE"])
        )

    def _index(self, cursor: Any, database: str, table: str, columns: list[Seen]) -> list[str]:
        draw, fit = self.draw, [c for c in columns if c.kind in _INTEGERS or c.kind in ("varchar", "date", "text")]
        parts = ", ".join(
            quoted(c.name) + ("(3)" if c.kind == "text" or (c.kind == "varchar" and c.length > 50) else "")
            for c in draw.sample(fit, min(len(fit), draw.randint(1, 2)))
        )
        name = quoted(f"i {self.number}")
        if draw.random() < 0.3:
            return [f"CREATE INDEX {name} ON {quoted(table)} ({parts})"]
        return [f"ADD {draw.choice(['INDEX', 'KEY'])} {name} ({parts})"]

    def _indexes(self, cursor: Any, database: str, table: str) -> list[str]:
        cursor.execute(
            "SELECT DISTINCT index_name FROM information_schema.statistics "
            "WHERE table_schema = %s AND table_name = %s AND index_name <> 'PRIMARY'",
            (database, table),
        )
        return [name for (name,) in cursor.fetchall()]

    def _drop_index(self, cursor: Any, database: str, table: str, columns: list[Seen]) -> list[str]:
        there = self._indexes(cursor, database, table)
        return [f"DROP {self.draw.choice(['INDEX', 'KEY'])} {quoted(self.draw.choice(there))}"] if there else []

    def _rename_index(self, cursor: Any, database: str, table: str, columns: list[Seen]) -> list[str]:
        there = self._indexes(cursor, database, table)
        return [f"RENAME INDEX {quoted(self.draw.choice(there))} TO `r {self.number}`"] if there else []

    def _longer(self, cursor: Any, database: str, table: str, columns: list[Seen]) -> list[str]:
        draw, key = self.draw, {"a", "b", "k", "id"}
        fit = [c for c in columns if c.kind in ("varchar", "varbinary") and c.length < 400 and c.name not in key]
        if not fit:
            return []
        column = draw.choice(fit)
        kind = f"{column.kind}({column.length + draw.choice([1, 5, 60, 200])})"
        return [self._modify(column, column.as_said(draw, kind))]

    def _members(self, cursor: Any, database: str, table: str, columns: list[Seen]) -> list[str]:
        fit = [c for c in columns if c.kind in ("enum", "set") and c.shown.count("','") < 12]
        if not fit:
            return []
        column = self.draw.choice(fit)
        kind = column.shown[:-1] + f",'m{self.number}','n{self.number}')"
        return [self._modify(column, column.as_said(self.draw, kind))]

    def _modify(self, column: Seen, said: str) -> str:
        name = quoted(column.name)
        return self.draw.choice(
            [f"MODIFY {name} {said}", f"MODIFY COLUMN {name} {said}", f"CHANGE {name} {name} {said}"]
        )

    def _default(self, cursor: Any, database: str, table: str, columns: list[Seen]) -> list[str]:
        column = self.draw.choice([c for c in columns if c.kind in _INTEGERS or c.kind == "varchar"])
        name, value = quoted(column.name), "1" if column.kind in _INTEGERS else "'d'"
        return [
            f"ALTER {name} SET DEFAULT {value}" if self.draw.random() < 0.7 else f"ALTER COLUMN {name} DROP DEFAULT"
        ]

    def _again(self, cursor: Any, database: str, table: str, columns: list[Seen]) -> list[str]:
        column = self.draw.choice(columns)
        return [self._modify(column, column.as_said(self.draw))]

    def _comment(self, cursor: Any, database: str, table: str, columns: list[Seen]) -> list[str]:
        return [f"COMMENT = 'number {self.number}; of it'"]

    def _options(self, cursor: Any, database: str, table: str, columns: list[Seen]) -> list[str]:
        listed = ["FORCE", "ENGINE=InnoDB", "ROW_FORMAT=DYNAMIC", "STATS_PERSISTENT=1", "AUTO_INCREMENT=7"]
        listed += [
            "DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
            "DEFAULT CHARACTER SET latin1 COLLATE latin1_bin",
        ]
        return [self.draw.choice(listed)]

    def _check(self, cursor: Any, database: str, table: str, columns: list[Seen]) -> list[str]:
        return [f"ADD CONSTRAINT `c {self.number}` CHECK (1 = 1)"]

    def _null(self, cursor: Any, database: str, table: str, columns: list[Seen]) -> list[str]:
        fit = [c for c in columns if not c.nullable and c.name in ("n", "b") and table in ("num`bers", "Folded names")]
        return [self._modify(c, c.as_said(self.draw, null=True)) for c in fit[:1]]
