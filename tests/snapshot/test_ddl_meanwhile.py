"""DDL and TRUNCATE in the middle of a snapshot: read again under the new definition, exact, or a clear stop."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.chunk_groups import chunk_group
from airflow_provider_cdc.model.errors import CdcError, TableAlteredError, TerminalError
from airflow_provider_cdc.mysql.chunks import chunk as chunk_module
from airflow_provider_cdc.verify.run import verify_tables
from tests.support.cli import Cli
from tests.support.mariadb import MariaDBServer
from tests.support.oracle import compare_all, compare_database
from tests.support.servers import MySQLServer

# The servers have their turn: each test with each of them would be a product.
pytestmark = pytest.mark.one_of("server")

#: What happens to table ``t`` (60 rows, 20 chunks). Tables ``spare`` and ``part`` have other rows.
STATEMENTS: dict[str, tuple[str, ...]] = {
    "truncate": ("TRUNCATE TABLE t",),
    "truncate, then rows": (
        "UPDATE t SET v = 'late' WHERE id = 31",
        "TRUNCATE t",
        "INSERT INTO t VALUES (31, 'after'), (5, 'after'), (900, 'after')",
        "UPDATE t SET v = 'again' WHERE id = 5",
    ),
    "truncate twice": (
        "TRUNCATE t",
        "INSERT INTO t VALUES (7, 'x'), (8, 'x')",
        "TRUNCATE t",
        "INSERT INTO t VALUES (8, 'y')",
    ),
    "add column": ("ALTER TABLE t ADD COLUMN w INT DEFAULT 7 FIRST", "INSERT INTO t VALUES (1, 901, 'new')"),
    "drop column": ("ALTER TABLE t DROP COLUMN v", "INSERT INTO t VALUES (901)"),
    "other type": ("ALTER TABLE t MODIFY v VARBINARY(40)", "UPDATE t SET v = x'00ff' WHERE id = 31"),
    "add index": ("ALTER TABLE t ADD INDEX (v)", "UPDATE t SET v = 'late' WHERE id IN (5, 31)"),
    "drop and create": (
        "DROP TABLE t",
        "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(40))",
        "INSERT INTO t VALUES (-5, 'new'), (31, 'new'), (950, 'new')",
    ),
    "rename": ("RENAME TABLE t TO gone, spare TO t", "DELETE FROM t WHERE id = 31"),
    "online": (
        "ALTER TABLE t ADD COLUMN w INT, ALGORITHM=INPLACE, LOCK=NONE",
        "ALTER TABLE t MODIFY COLUMN w BIGINT, ALGORITHM=COPY, LOCK=SHARED",
        "UPDATE t SET w = 7 WHERE id = 31",
    ),
    "two alters": ("ALTER TABLE t ADD COLUMN w INT", "UPDATE t SET w = id", "ALTER TABLE t DROP COLUMN v"),
    "there and back": ("ALTER TABLE t DROP COLUMN v", "ALTER TABLE t ADD COLUMN v VARCHAR(40) DEFAULT 'back'"),
    "exchange partition": ("ALTER TABLE t EXCHANGE PARTITION p0 WITH TABLE part",),
    "drop partition": ("ALTER TABLE t DROP PARTITION p0",),
}
#: Those that stay what they were, so that nothing but the binlog tells of them.
UNSEEN = {"add index", "drop and create", "rename", "there and back", "exchange partition", "drop partition"}


@pytest.fixture
def database(server: MySQLServer) -> Iterator[str]:
    with server.fresh_database("d") as name:
        yield name


def make(cursor: Any, partitioned: bool) -> None:
    cursor.execute("SET SESSION lock_wait_timeout = 5")
    cursor.execute("CREATE TABLE part (id INT PRIMARY KEY, v VARCHAR(40))")
    cursor.execute("CREATE TABLE spare LIKE part")
    cursor.execute("CREATE TABLE t LIKE part")
    cursor.execute("CREATE TABLE quiet LIKE part")
    if partitioned:
        parts = "PARTITION p0 VALUES LESS THAN (30), PARTITION p1 VALUES LESS THAN MAXVALUE"
        cursor.execute(f"ALTER TABLE t PARTITION BY RANGE (id) ({parts})")
    for table, first in (("t", 1), ("quiet", 1), ("spare", -20), ("part", 3)):
        listed = ", ".join(f"({first + n}, '{table} {n}')" for n in range(60 if table != "part" else 9))
        cursor.execute(f"INSERT INTO {table} VALUES {listed}")
    cursor.execute("ANALYZE TABLE t, quiet")  # the number of chunks hangs on the server's estimate


def run(
    server: MySQLServer, folder: Path, monkeypatch: pytest.MonkeyPatch, moment: str, *sql: str, early: bool = False
) -> Cli:
    """A snapshot in the middle of which statements are run, and the stream after it.

    :param moment: failpoint of ``t``'s last chunk but one, at which they are run.
    :param early: at that of its first chunk.
    """
    with contextlib.closing(server.connect(database="d")) as connection, connection.cursor() as cursor:
        make(cursor, partitioned=any("PARTITION" in s for s in sql))
        cli = Cli(folder, server, r"d\.(t|quiet)", snapshot={"chunk_rows": 3, "group_rows": 1000, "parallelism": 1})
        with cli.opened() as (context, store):
            chunks = context.plans.ensure(store).chunks
        assert [c.table for c in chunks].index(1) + 16 < len(chunks) - 2  # the file of t's first 16 chunks is finished
        # Behind P0, outside of all chunks: only the stream brings these rows.
        cursor.execute("INSERT INTO t VALUES (800, 'beyond')")
        left = [[c.table for c in chunks].index(1) + 1 if early else len(chunks) - 1]

        def failpoint(name: str) -> None:
            if name == moment:
                left[0] -= 1
                if left[0] == 0:
                    for statement in sql:
                        cursor.execute(statement)

        monkeypatch.setattr(chunk_module, "failpoint", failpoint)
        cli.snapshot()
        assert left[0] <= 0
        monkeypatch.undo()
        cursor.execute("DELETE FROM t WHERE id = 800")
        cursor.execute("INSERT INTO t (id) VALUES (801)")
        cli.catch_up()
    return cli


@pytest.mark.one_of("server", "moment")
@pytest.mark.parametrize("moment", ["chunk.before_lw", "chunk.after_lw", "chunk.after_select", "chunk.after_hw"])
@pytest.mark.parametrize("kind", STATEMENTS)
def test_in_the_middle_of_a_snapshot(
    server: MySQLServer, database: str, kind: str, moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if isinstance(server, MariaDBServer) and moment == "chunk.after_select":
        pytest.skip("its SELECT is in a transaction up to the high watermark: a DDL waits for it")
    try:
        cli = run(server, tmp_path, monkeypatch, moment, *STATEMENTS[kind])
    except CdcError as error:
        # On MariaDB the read view is older than a DDL that comes behind the low watermark.
        outside = ("chunk.before_lw", "chunk.after_hw", *["chunk.after_lw"] * isinstance(server, MariaDBServer))
        assert kind in UNSEEN and moment in outside, error
        assert "d.t" in error.message and "binlog." in error.message and error.remedy
        return
    assert compare_database(server, "d", cli.sink, ["t", "quiet"]) == []
    assert all(v.is_equal for v in verify_tables(cli.context))


def test_a_part_that_is_published_stops(
    server: MySQLServer, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows under the old definition are in the sink: they are never mixed with others."""
    with contextlib.closing(server.connect(database="d")) as connection, connection.cursor() as cursor:
        make(cursor, partitioned=False)
        cli = Cli(tmp_path, server, r"d\.t", snapshot={"chunk_rows": 10, "group_rows": 20, "parallelism": 1})
        done = [0]

        def failpoint(name: str) -> None:
            done[0] += name == "group.after_commit"
            if done[0] == 1 and name == "group.after_commit":
                cursor.execute("ALTER TABLE t ADD COLUMN w INT")

        monkeypatch.setattr(chunk_group, "failpoint", failpoint)
        for _ in range(2):
            with pytest.raises(TableAlteredError, match=r"table d\.t was altered.*at .*binlog\..*published") as caught:
                cli.snapshot()
            assert "fresh sink.path" in caught.value.remedy
    assert cli.rows("d", "t").column_names[:2] == ["id", "v"]


def test_a_key_that_is_altered_stops(
    server: MySQLServer, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chunks are ranges of the old key."""
    sql = "ALTER TABLE t MODIFY id BIGINT"
    with pytest.raises(TerminalError, match=r"the key of d\.t was altered while it was read, before binlog\."):
        run(server, tmp_path, monkeypatch, "chunk.before_lw", sql)


def test_rows_that_were_read_after_a_truncate_stay(
    server: MySQLServer, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream meets a TRUNCATE after which chunks were read."""
    cli = run(server, tmp_path, monkeypatch, "chunk.before_lw", *STATEMENTS["truncate twice"], early=True)
    assert compare_database(server, "d", cli.sink, ["t", "quiet"]) == []


def test_truncate_while_the_stream_follows(server: MySQLServer, database: str, tmp_path: Path) -> None:
    """In one batch with changes before and after it, applied twice, and alone."""
    with contextlib.closing(server.connect(database="d")) as connection, connection.cursor() as cursor:
        make(cursor, partitioned=False)
        cli = Cli(tmp_path, server, r"d\.(t|quiet)")
        cli.snapshot()
        cursor.execute("INSERT INTO t VALUES (500, 'before')")
        cursor.execute("TRUNCATE t")
        cursor.execute("INSERT INTO t VALUES (3, 'after')")
        cli.catch_up()
        assert compare_all(connection, "d", cli.sink, ["t", "quiet"]) == []
        assert cli.rows("d", "t")["v"].to_pylist() == ["after"]
        cursor.execute("TRUNCATE t")
        cli.catch_up()
        assert cli.rows("d", "t").num_rows == 0 and cli.rows("d", "quiet").num_rows == 60
        cursor.execute("INSERT INTO t VALUES (3, 'last')")
        cli.catch_up()
        assert compare_all(connection, "d", cli.sink, ["t", "quiet"]) == []
        cursor.execute("TRUNCATE t")
        assert all(v.is_equal for v in verify_tables(cli.context))  # brings both sides behind it
