"""Every fact that a table map carries is compared with the definition by which its rows are read.

A table is changed where the binlog does not say so (``sql_log_bin=0``): what the next table map says is all that shows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from airflow_provider_cdc.model.errors import TerminalError
from airflow_provider_cdc.model.schema import TableSchema
from airflow_provider_cdc.mysql.client.charsets import load_decoders
from airflow_provider_cdc.mysql.client.collations import Collations
from airflow_provider_cdc.mysql.client.identity import binlog_end
from airflow_provider_cdc.mysql.client.session import connect
from tests.support.binlog import reading
from tests.support.binlog.reading import capture, events_since
from tests.support.binlog.row_decoder import decode_rows
from tests.support.mariadb import MariaDBServer
from tests.support.servers import MySQLServer


@dataclass
class World:
    """A server, and a database in it."""

    server: MySQLServer
    database: str

    @property
    def maria(self) -> bool:
        return isinstance(self.server, MariaDBServer)

    def run(self, *statements: str) -> None:
        with contextlib.closing(self.server.connect(database=self.database)) as connection:
            for statement in statements:
                connection.cursor().execute(statement)

    def here(self) -> tuple[str, int]:
        with contextlib.closing(connect(self.server.connect_args())) as connection:
            at = binlog_end(connection)
        return at.file, at.position

    def table(self, columns: str) -> TableSchema:
        self.run("DROP TABLE IF EXISTS t", f"CREATE TABLE t ({columns})")
        (found,) = capture(self.server, self.database, "t").values()
        return found

    def read(self, table: TableSchema, *statements: str) -> list[Any]:
        """The changes that statements make, by a definition of the table."""
        start = self.here()
        self.run(*statements)
        found = [rows for one in reading.transactions(self.server, start, {table.id: table}) for rows in one.rows]
        with contextlib.closing(connect(self.server.connect_args())) as connection:
            texts = load_decoders(lambda: contextlib.nullcontext(connection), [table])
        return [change for rows in found for change in decode_rows(rows, texts)]


@pytest.fixture(scope="module")
def world(server: MySQLServer) -> Iterator[World]:
    with server.fresh_database(options="CHARACTER SET utf8mb4") as name:
        yield World(server, name)
    server.execute("SET GLOBAL binlog_row_metadata = FULL")


@pytest.fixture(params=["FULL", "MINIMAL"])
def metadata(request: pytest.FixtureRequest, world: World) -> str:
    world.server.execute(f"SET GLOBAL binlog_row_metadata = {request.param}")
    return str(request.param)


@dataclass(frozen=True)
class Silent:
    """A change of a table that the binlog does not have.

    :param columns: what the table is like before.
    :param change: what is done to it.
    :param says: what the error says.
    :param always: whether table maps say it also without ``binlog_row_metadata=FULL``.
    :param only: the only server that has it, or whose table maps say it.
    :param value: what is written into all columns but the first one.
    """

    columns: str
    change: str
    says: str
    always: bool = True
    only: str = ""
    value: str = "NULL"


LATIN = "id INT PRIMARY KEY, v VARCHAR(20) CHARACTER SET latin1"
SILENT = {
    "charset": Silent(
        LATIN,
        "MODIFY v VARCHAR(5) CHARACTER SET utf8mb4",
        "column v in character set utf8mb4 in the binlog and latin1 in the catalog",
    ),
    "charset of one of many": Silent(
        "id INT PRIMARY KEY, a CHAR(3), b BLOB, c TEXT CHARACTER SET latin1, d TEXT CHARACTER SET ucs2, g POINT",
        "MODIFY c TEXT CHARACTER SET cp1251",
        "column c in character set cp1251 in the binlog and latin1 in the catalog",
    ),
    "the default charset": Silent(
        "id INT PRIMARY KEY, a CHAR(3), b CHAR(2), c TEXT CHARACTER SET latin1",
        "MODIFY a CHAR(12) CHARACTER SET latin2, MODIFY b CHAR(8) CHARACTER SET latin2",
        "column a in character set latin2 in the binlog and utf8mb4 in the catalog",
    ),
    "text that becomes bytes": Silent(
        LATIN, "MODIFY v VARBINARY(20)", "column v in character set binary in the binlog and latin1 in the catalog"
    ),
    "bytes that become text": Silent(
        "id INT PRIMARY KEY, v BLOB",
        "MODIFY v TEXT CHARACTER SET latin1",
        "column v in character set latin1 in the binlog and binary in the catalog",
    ),
    "compressed text": Silent(
        "id INT PRIMARY KEY, g POINT, v TEXT COMPRESSED CHARACTER SET latin1",
        "MODIFY v TEXT COMPRESSED CHARACTER SET utf8mb4",
        "column v in character set utf8mb4 in the binlog and latin1 in the catalog",
        only="MariaDB",
    ),
    "charset of members": Silent(
        "id INT PRIMARY KEY, e ENUM('a', 'b') CHARACTER SET latin1",
        "MODIFY e ENUM('a', 'b') CHARACTER SET utf8mb4",
        "column e in character set utf8mb4 in the binlog and latin1 in the catalog",
        always=False,
    ),
    "members": Silent(
        "id INT PRIMARY KEY, e SET('a', 'b')",
        "MODIFY e SET('b', 'a')",
        r"other SET members in the binlog for column e: \(b, a\), and \(a, b\) in the catalog",
        always=False,
    ),
    "sign of an integer": Silent(
        "id INT PRIMARY KEY, n INT", "MODIFY n INT UNSIGNED", "column n as unsigned in the binlog and signed in the"
    ),
    "sign of a decimal": Silent(
        "id INT PRIMARY KEY, n DECIMAL(5, 1) UNSIGNED",
        "MODIFY n DECIMAL(5, 1)",
        "column n as signed in the binlog and unsigned in the catalog",
    ),
    "sign of a double": Silent(
        "id INT PRIMARY KEY, n DOUBLE", "MODIFY n DOUBLE UNSIGNED", "column n as unsigned in the binlog and signed"
    ),
    "name": Silent(
        "id INT PRIMARY KEY, n INT", "RENAME COLUMN n TO m", "column n under the name m in the binlog", always=False
    ),
    "another key": Silent(
        "id INT PRIMARY KEY, n INT NOT NULL",
        "DROP PRIMARY KEY, ADD PRIMARY KEY (id, n)",
        r"the primary key \(id, n\) in the binlog and \(id\) in the catalog",
        always=False,
        value="7",
    ),
    "a key that is gone": Silent(
        "id INT PRIMARY KEY, n INT",
        "DROP PRIMARY KEY",
        r"the primary key \(\) in the binlog and \(id\) in the catalog",
        always=False,
    ),
    "a key of a prefix": Silent(
        "id VARCHAR(9) PRIMARY KEY",
        "DROP PRIMARY KEY, ADD PRIMARY KEY (id(3))",
        r"the primary key \(id\(3\)\) in the binlog and \(id\) in the catalog",
        always=False,
    ),
    "type of geometry": Silent(
        "id INT PRIMARY KEY, g POINT, h GEOMETRY",
        "MODIFY h POLYGON",
        "column h as polygon in the binlog and geometry in the catalog",
    ),
    "dimension": Silent(
        "id INT PRIMARY KEY, v VECTOR(3)",
        "MODIFY v VECTOR(4)",
        r"column v as vector\(4\) in the binlog and vector\(3\) in the catalog",
        only="MySQL",
    ),
}


@pytest.mark.parametrize("kind", SILENT)
def test_a_change_that_the_binlog_does_not_have(world: World, metadata: str, kind: str) -> None:
    silent = SILENT[kind]
    if silent.only and (silent.only == "MariaDB") != world.maria:
        pytest.skip(f"only {silent.only} has it")
    table = world.table(silent.columns)
    write = f"INSERT INTO t VALUES (%s{', DEFAULT' * (len(table.columns) - 1)})".replace("DEFAULT", silent.value)
    assert len(world.read(table, write % 1)) == 1
    statements = ["SET sql_log_bin = 0", f"ALTER TABLE t {silent.change}", "SET sql_log_bin = 1"]
    if silent.always or metadata == "FULL":
        with pytest.raises(TerminalError, match=silent.says) as stopped:
            world.read(table, *statements, write % 2)
        assert stopped.value.table == table.label
    else:  # no table map says it, as docs/limits.md has it
        assert len(world.read(table, *statements, write % 2)) == 1


def test_what_changes_nothing_of_a_row(world: World, metadata: str) -> None:
    """Whether a column is visible, and which columns may be NULL."""
    table = world.table("id INT PRIMARY KEY, n INT")
    change = "ALTER TABLE t MODIFY n INT NOT NULL" + (" DEFAULT 0 INVISIBLE" if world.maria else " INVISIBLE DEFAULT 0")
    statements = ("SET sql_log_bin = 0", change, "SET sql_log_bin = 1", "INSERT INTO t (id) VALUES (1)")
    assert world.read(table, *statements) == [(None, (1, 0))]


#: Columns of all kinds that a table map lists with a collation, or does not.
ALL = (
    "id INT PRIMARY KEY, a VARCHAR(5) CHARACTER SET latin1, b CHAR(3), c BLOB, d TEXT CHARACTER SET ucs2, "
    "e ENUM('x') CHARACTER SET latin1, f SET('y'), g VARBINARY(4), h BINARY(3), i JSON, j POINT, k BIT(9), l TINYBLOB, "
    "m DECIMAL(4,1) UNSIGNED, n DATE, o GEOMETRY, p GEOMETRYCOLLECTION, q YEAR, r FLOAT UNSIGNED, "
    "s LONGTEXT CHARACTER SET utf8mb3, t INT(5) UNSIGNED ZEROFILL"
)
OF_ONE = {
    "MySQL": "v VECTOR(3), w INT INVISIBLE, x VARCHAR(9) COLLATE utf8mb4_ja_0900_as_cs_ks",
    "MariaDB": "v UUID, w INET6, x VARCHAR(9) COMPRESSED, y TEXT COMPRESSED, z TEXT COLLATE utf8mb4_croatian_ci UNIQUE",
}


def test_tables_that_were_not_changed(world: World, metadata: str) -> None:
    name = "MariaDB" if world.maria else "MySQL"
    tables = {
        f"{ALL}, {OF_ONE[name]}": "(id) VALUES (1)",
        "a VARCHAR(3), b INT, PRIMARY KEY (b, a)": "VALUES ('x', 1)",
        "a FLOAT PRIMARY KEY, id INT NOT NULL UNIQUE": "VALUES (1, 1)",
        "id INT, n INT NOT NULL UNIQUE": "VALUES (1, 1)",
        "id INT, n INT": "VALUES (1, 1)",
    }
    if world.maria:
        tables["id INT PRIMARY KEY, v TEXT COLLATE utf8mb4_uca1400_swedish_nopad_as_cs"] = "VALUES (1, 'x')"
    else:
        tables["id INT NOT NULL, n INT AS (id + 1) VIRTUAL NOT NULL UNIQUE"] = "(id) VALUES (1)"
    for columns, row in tables.items():
        assert len(world.read(world.table(columns), f"INSERT INTO t {row}")) == 1, columns


def test_a_collation_that_is_not_known(world: World) -> None:
    """Of a server that has said nothing of it: nothing is taken for granted."""
    table = world.table(LATIN)
    start = world.here()
    world.run("INSERT INTO t (id) VALUES (1)")
    events = events_since(world.server, start)
    known = reading.collations()
    reading._asked[:] = [Collations({n: c for n, c in known.charsets.items() if c != "latin1"}, known.mariadb)]
    with pytest.raises(TerminalError, match="in character set that of collation 8, which is not known in the binlog"):
        reading.read(events, {table.id: table})
    reading._asked[:] = [known]


def test_two_names_of_one_character_set(world: World) -> None:
    table = world.table("id INT PRIMARY KEY, v VARCHAR(20) CHARACTER SET utf8mb3")
    columns = (table.columns[0], table.columns[1].replace(charset="utf8"))
    assert world.read(table.replace(columns=columns), "INSERT INTO t VALUES (1, 'x')") == [(None, (1, "x"))]
