"""What goes wrong with a copy, and that ``verify`` finds it: which keys, in which columns, and since when."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from airflow_provider_cdc.config.selection import TableSelection
from airflow_provider_cdc.model.bucket_sums import BUCKET_COUNT, BucketSums
from airflow_provider_cdc.model.comparison import DIFFERENT, EXTRA, MISSING, TableComparison
from airflow_provider_cdc.model.errors import NotReadyError
from airflow_provider_cdc.model.offset import Position
from airflow_provider_cdc.mysql.chunks import chunk
from airflow_provider_cdc.mysql.client.throttle import Throttle
from airflow_provider_cdc.spark.tasks import SecretFreePickler
from airflow_provider_cdc.verify import compare as comparing
from airflow_provider_cdc.verify import last_changes, source_scan
from airflow_provider_cdc.verify import row_diff as same_rows
from airflow_provider_cdc.verify.run import verify_tables
from airflow_provider_cdc.verify.task import RowCollector, SinkScan
from tests.support.cli import Cli
from tests.support.delta import delta_table, put
from tests.support.servers import MySQLServer

#: A column of each type of the server, and a value of it.
TYPES = {
    "t_tinyint": ("TINYINT", "-7"),
    "t_smallint": ("SMALLINT UNSIGNED", "65535"),
    "t_mediumint": ("MEDIUMINT", "8388607"),
    "t_int": ("INT UNSIGNED", "4294967295"),
    "t_bigint": ("BIGINT", "-9223372036854775808"),
    "t_ubigint": ("BIGINT UNSIGNED", "18446744073709551615"),
    "t_decimal": ("DECIMAL(30,10)", "-12345678901234567890.0123456789"),
    "t_long": ("DECIMAL(65,30)", "1.000000000000000000000000000001"),
    "t_float": ("FLOAT", "0"),
    "t_double": ("DOUBLE", "0.1"),
    "t_bit": ("BIT(12)", "b'101010101010'"),
    "t_char": ("CHAR(9)", "'ä€😀'"),
    "t_varchar": ("VARCHAR(90)", "'plain'"),
    "t_text": ("MEDIUMTEXT", "REPEAT('x', 70000)"),
    "t_binary": ("BINARY(5)", "x'0001FF'"),
    "t_varbinary": ("VARBINARY(50)", "x'FFFE00'"),
    "t_blob": ("LONGBLOB", "REPEAT(x'00FF', 3000)"),
    "t_date": ("DATE", "'1582-10-10'"),
    "t_datetime": ("DATETIME(6)", "'9999-12-31 23:59:59.999999'"),
    "t_timestamp": ("TIMESTAMP(3) NULL", "'2024-02-29 01:02:03.004'"),
    "t_time": ("TIME(6)", "'-838:59:58.999999'"),
    "t_year": ("YEAR", "2026"),
    "t_enum": ("ENUM('a', 'b')", "'b'"),
    "t_set": ("SET('a', 'b', 'c')", "'a,c'"),
    "t_json": ("JSON", """'{"a": [1, 2.5, null]}'"""),
    "t_point": ("POINT", "ST_GeomFromText('POINT(1 2)')"),
    "t_vector": ("VECTOR(3)", "TO_VECTOR('[1,-0.5,3]')"),
}


def flipped(value: Any) -> Any:
    """The value with one bit changed, as far as its type lets: else with the least change."""
    if isinstance(value, int):
        return value ^ 1
    if isinstance(value, float):
        return struct.unpack("<d", struct.pack("<Q", struct.unpack("<Q", struct.pack("<d", value))[0] ^ (1 << 63)))[0]
    if isinstance(value, bytes):
        return value[:-1] + bytes([value[-1] ^ 1])
    if isinstance(value, str):
        return value[:-1] + chr(ord(value[-1]) ^ 1)
    if isinstance(value, Decimal):
        return value + Decimal(1).scaleb(-10 if value.as_tuple().exponent else 0) * (-1 if value > 10**19 else 1)
    if isinstance(value, datetime):
        return value - timedelta(microseconds=1)
    if isinstance(value, date):
        return value - timedelta(days=1)
    return [flipped(value[0]), *value[1:]]


def verdict(cli: Cli, table: str, **how: Any) -> TableComparison:
    return next(found for found in verify_tables(cli.context, **how) if found.table.endswith(f".{table}"))


def damage(cli: Cli, table: str, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> None:
    """Behind the project's back."""
    schema = next(t for t in cli.context.plans.require().tables if t.name == table)
    target = delta_table(cli.context, schema)
    rows = target.read_with_soft_deleted()
    listed = sorted(rows.to_pylist(), key=lambda row: str(row[schema.columns[0].name]))
    put(target, pa.Table.from_pylist(change(listed), schema=rows.schema), stat=schema.integer_key_column)


def test_a_bit_of_each_type(mysql_server: MySQLServer, database: str, tmp_path: Path) -> None:
    table = f"{database}.t"
    columns = ", ".join(f"{name} {kind}" for name, (kind, _) in TYPES.items())
    mysql_server.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY, {columns})")
    values = ", ".join(value for _, value in TYPES.values())
    for number in range(len(TYPES)):
        mysql_server.execute(f"INSERT INTO {table} VALUES ({number}, {values})")
    cli = Cli(tmp_path, mysql_server, table)
    cli.snapshot()
    cli.catch_up()
    assert verdict(cli, "t").is_equal

    def bits(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        by_id = {row["id"]: row for row in rows}
        for number, name in enumerate(TYPES):
            by_id[number][name] = flipped(by_id[number][name])
        return list(by_id.values())

    damage(cli, "t", bits)
    found = verdict(cli, "t")
    assert {d.key: d.columns for d in found.differences} == {(n,): (name,) for n, name in enumerate(TYPES)}
    assert {d.kind for d in found.differences} == {DIFFERENT} and found.columns == dict.fromkeys(TYPES, 1)

    damage(cli, "t", lambda rows: [{**row, "t_json": None} if row["id"] == 0 else row for row in rows])
    assert next(d.columns for d in verdict(cli, "t").differences if d.key == (0,)) == ("t_tinyint", "t_json")


@pytest.fixture
def cli(mysql_server: MySQLServer, database: str, tmp_path: Path) -> Cli:
    """A table with a key of text, in several chunks, and one without a key."""
    mysql_server.execute(
        f"CREATE TABLE {database}.t (k VARCHAR(20) COLLATE utf8mb4_0900_ai_ci PRIMARY KEY, v TEXT, w DATETIME)"
    )
    mysql_server.execute(f"CREATE TABLE {database}.bare (v INT, w VARCHAR(9))")
    for n in range(60):
        moment = f"'2026-01-01 {n % 24:02d}:00:00'"
        mysql_server.execute(f"INSERT INTO {database}.t VALUES ('key {n:02d}', 'value {n}', {moment})")
        mysql_server.execute(f"INSERT INTO {database}.bare VALUES ({n % 20}, 'w')")
    cli = Cli(tmp_path, mysql_server, f"{database}..*", snapshot={"chunk_rows": 10})
    cli.snapshot()
    cli.catch_up()
    return cli


def end(server: MySQLServer) -> str:
    return "{}:{}".format(*server.execute("SHOW BINARY LOG STATUS")[0][:2])


def test_lost_doubled_stale_truncated_and_shifted(
    cli: Cli, mysql_server: MySQLServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kind and columns of each, the range it lies in, and the transaction that touched it last."""
    ends = {}
    for n in (30, 31):
        mysql_server.execute(f"UPDATE {database}.t SET v = 'newer {n}' WHERE k = 'key {n}'")
        ends[n] = end(mysql_server)
        mysql_server.execute("FLUSH BINARY LOGS")
    cli.catch_up()

    def faults(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        found = {int(row["k"].split()[1]): row for row in rows}
        found[30]["v"] = "value 30"
        found[31]["v"] = "newer 3"
        found[5]["w"] += timedelta(hours=1)
        del found[7]
        return [*found.values(), dict(found[9]), {**found[9], "k": "key 99"}]

    damage(cli, "t", faults)
    found = verdict(cli, "t", show_values=True)

    def key(n: int) -> tuple[str]:
        return (f"key {n:02d}".encode().hex(),)

    told = {d.key: (d.kind, d.columns) for d in found.differences}
    assert told == {
        key(30): (DIFFERENT, ("v",)),
        key(31): (DIFFERENT, ("v",)),
        key(5): (DIFFERENT, ("w",)),
        key(7): (MISSING, ()),
        key(9): (EXTRA, ()),
        key(99): (EXTRA, ()),
    }
    assert (found.missing, found.extra, found.different) == (1, 2, 3) and found.columns == {"v": 2, "w": 1}
    assert 1 <= len(found.ranges) < 6 and all(r.group == 0 for r in found.ranges)
    touched = {d.key: d.last_change for d in found.differences}
    assert {n: str(t.position) for n in (30, 31) if (t := touched[key(n)])} == ends
    assert touched[key(5)] is not None and touched[key(99)] is None, "it was inserted; and it never was"
    shown = found.to_json(show_values=True)["differences"]
    assert {"kind": MISSING, "key": list(key(7)), "columns": []}.items() <= shown[0].items()
    hidden = str(found.to_json()) + repr(found)
    assert not any(key(n)[0] in hidden for n in (5, 7, 9, 30, 31, 99)), "values are shown to nobody who did not ask"
    monkeypatch.setattr(last_changes, "MAX_SEARCHED_BYTES", 1)
    older = verdict(cli, "t")
    assert all(d.last_change is None for d in older.differences) and older.searched is not None
    assert older.searched == Position(str(mysql_server.execute("SHOW BINARY LOG STATUS")[0][0]), 4)


def test_what_the_binlog_does_not_have(cli: Cli, mysql_server: MySQLServer, database: str) -> None:
    """Rows that were written with ``sql_log_bin=0``, in a table with a key and in one without."""
    statements = ("UPDATE t SET v = 'x' WHERE k = 'key 40'", "DELETE FROM t WHERE k = 'key 41'")
    more = (
        "DELETE FROM bare WHERE v = 3 LIMIT 1",
        "INSERT INTO bare VALUES (1, 'w')",
        "UPDATE bare SET w = 'y' LIMIT 1",
    )
    mysql_server.session(database, "SET sql_log_bin = 0", *statements, *more)
    found = verdict(cli, "t")
    assert {(d.kind, d.columns) for d in found.differences} == {(DIFFERENT, ("v",)), (EXTRA, ())}
    bare = verdict(cli, "bare", show_values=True)
    assert (bare.missing, bare.extra) == (2, 2) and bare.differences == ()
    assert "extra 1 of (3, 'w')" in bare.examples and "missing 1 of (1, 'w')" in bare.examples
    # What heals a row in the source heals the copy, too: the copy takes over rows, not changes.
    mysql_server.execute(f"UPDATE {database}.t SET v = 'z' WHERE k = 'key 40'")
    assert {d.kind for d in verdict(cli, "t").differences} == {EXTRA}


def test_a_cascade_that_the_binlog_does_not_show(tmp_path: Path) -> None:
    with MySQLServer(args=["--innodb-native-foreign-keys=ON"]) as server:
        server.execute("CREATE DATABASE d")
        server.execute("CREATE TABLE d.parent (id INT PRIMARY KEY)")
        link = "FOREIGN KEY (p) REFERENCES d.parent (id) ON DELETE CASCADE"
        server.execute(f"CREATE TABLE d.child (id INT PRIMARY KEY, p INT, {link})")
        server.execute("INSERT INTO d.parent VALUES (1), (2)")
        server.execute("INSERT INTO d.child VALUES (10, 1), (11, 1), (20, 2)")
        cli = Cli(tmp_path, server, "d..*")
        cli.snapshot()
        server.execute("DELETE FROM d.parent WHERE id = 1")
        cli.catch_up()
        assert verdict(cli, "parent").is_equal
        assert {(d.kind, d.key) for d in verdict(cli, "child").differences} == {(EXTRA, (10,)), (EXTRA, (11,))}


def test_scans_travel_to_tasks(cli: Cli) -> None:
    """And what they have gathered comes back: what a Spark task does, without Spark."""

    def run(work: Sequence[SinkScan]) -> list[RowCollector]:
        parcel = SecretFreePickler()
        return [pickle.loads(pickle.dumps(parcel.unpack(parcel.pack(one)).run())) for one in work]

    assert verdict(cli, "t", runner=run).is_equal
    damage(cli, "t", lambda rows: [{**row, "v": None} if row["k"] == "key 01" else row for row in rows])
    assert [d.columns for d in verdict(cli, "t", runner=run).differences] == [("v",)]


@contextmanager
def after_a_chunk(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None], times: int = 1) -> Iterator[None]:
    left = [times]

    def failpoint(name: str) -> None:
        if name == "chunk.after_hw" and left[0]:
            left[0] -= 1
            act()

    with monkeypatch.context() as patch:
        patch.setattr(chunk, "failpoint", failpoint)
        yield
    assert not left[0]


def test_equal_sums_are_believed(
    cli: Cli, mysql_server: MySQLServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is written before and while the source is read: nobody has to look at rows."""
    monkeypatch.setattr(comparing, "diff_by_key", lambda *_, **__: pytest.fail("rows are compared"))
    monkeypatch.setattr(comparing, "diff_by_count", lambda *_, **__: pytest.fail("rows are compared"))
    changes = [
        "UPDATE t SET v = CONCAT(v, '!') WHERE k < 'key 20'",
        "UPDATE t SET k = 'KEY 21' WHERE k = 'key 21'",
        "UPDATE t SET k = 'zero' WHERE k = 'key 22'",
        "DELETE FROM t WHERE k = 'key 23'",
        "INSERT INTO t VALUES ('aaa', 'first', NULL), ('zzz', 'last', NULL)",
        "DELETE FROM t WHERE k = 'aaa'",
        "UPDATE bare SET w = 'x' WHERE v = 7",
    ]
    for sql in changes:
        mysql_server.session(database, sql)
    again = [f"UPDATE t SET v = 'again' WHERE k IN ('key 0{n}', 'key 1{n}', 'key 5{n}', 'zzz')" for n in range(9)]
    with after_a_chunk(monkeypatch, lambda: mysql_server.session(database, again.pop()), times=5):
        assert verdict(cli, "t", selection=TableSelection.from_options([f"{database}.t"], today=1)).is_equal
    assert verdict(cli, "bare").is_equal


def test_what_differs_is_seen_in_rows_at_one_position(
    cli: Cli, mysql_server: MySQLServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rows are looked at, as if all sums differed: what writers do meanwhile is no difference, the fault is."""
    monkeypatch.setattr(BucketSums, "differing_buckets", lambda *_: np.arange(BUCKET_COUNT))
    damage(cli, "t", lambda rows: [{**row, "v": "stale"} if row["k"] == "key 33" else row for row in rows])
    mysql_server.session(database, "UPDATE t SET v = CONCAT(v, '!') WHERE k < 'key 20'", "DELETE FROM bare LIMIT 5")
    again = [f"UPDATE t SET v = 'again' WHERE k IN ('key 0{n}', 'key 1{n}', 'key 5{n}')" for n in range(9)]
    chosen = TableSelection.from_options([f"{database}.t"], today=1)
    with after_a_chunk(monkeypatch, lambda: mysql_server.session(database, again.pop()), times=9):
        found = verdict(cli, "t", selection=chosen)
    assert [(d.key, d.columns) for d in found.differences] == [((b"key 33".hex(),), ("v",))]
    assert verdict(cli, "bare").is_equal


def test_truncated_while_it_is_read(
    cli: Cli, mysql_server: MySQLServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two chunks, and behind all of them; then rows come again, of which the copy lacks some."""

    def truncate() -> None:
        mysql_server.execute(f"TRUNCATE {database}.t")
        mysql_server.execute(f"INSERT INTO {database}.t VALUES ('key 10', 'new', NULL), ('other', 'new', NULL)")

    with after_a_chunk(monkeypatch, truncate):
        assert verdict(cli, "t").is_equal
    with after_a_chunk(monkeypatch, truncate):
        assert verdict(cli, "t").is_equal
    cli.catch_up()
    assert verdict(cli, "t").is_equal and verdict(cli, "t").rows == 2


def test_rows_are_held_portion_by_portion(
    cli: Cli, mysql_server: MySQLServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much differs, few rows are held; and after so many nobody looks on."""
    mysql_server.session(database, "SET sql_log_bin = 0", "UPDATE t SET v = 'other'", "UPDATE bare SET w = 'other'")
    held: list[int] = []
    compare = same_rows.diff_by_key

    def by_key(table: Any, source: pa.Table, sink: pa.Table, **how: Any) -> Any:
        held.append(source.num_rows)
        return compare(table, source, sink, **how)

    monkeypatch.setattr(comparing, "diff_by_key", by_key)
    monkeypatch.setattr(comparing, "MAX_HELD_BYTES", 300)
    found = verdict(cli, "t")
    assert found.different == 60 and len(held) > 5 and max(held) < 30 and sum(held) == 60
    assert (verdict(cli, "bare").missing, verdict(cli, "bare").extra) == (60, 60)
    monkeypatch.setattr(comparing, "MAX_DIFFERENCES", 10)
    few = verdict(cli, "t")
    assert few.at_least and 10 <= few.different < 40 and "at least" in str(few) and not few.is_equal


def test_old_rows_that_are_not_whole(cli: Cli, mysql_server: MySQLServer, database: str) -> None:
    """Sums cannot take them out, so all rows are compared; keys are all that this needs."""
    images = (
        "SET binlog_row_image = 'NOBLOB'",
        "UPDATE t SET v = 'y' WHERE k = 'key 02'",
        "DELETE FROM t WHERE k = 'key 03'",
    )
    mysql_server.session(database, *images)
    assert verdict(cli, "t").is_equal


def test_chosen_tables_and_limits(cli: Cli, database: str) -> None:
    def tables(**how: Any) -> set[str]:
        return {
            found.table for found in verify_tables(cli.context, selection=TableSelection.from_options(**how, today=5))
        }

    assert tables(tables=[f"{database}.b.*"]) == {f"{database}.bare"}
    halves = [tables(sample="1/2", seed=seed) for seed in (0, 1)]
    assert halves[0] | halves[1] == {f"{database}.bare", f"{database}.t"} and not halves[0] & halves[1]
    with pytest.raises(NotReadyError, match="no table of p matches"):
        tables(tables=["nowhere.t"])
    cli.value["snapshot"]["max_rows_per_second"] = 400
    cli.write()
    results = [cli.call("verify", "--json", "--tables", f"{database}.t", *more) for more in ((), ("--sample", "1/1"))]
    assert [result.code for result in results] == [0, 0]
    for wrong in ("--sample=half", "--seed=1", "--max-rows-per-second=0", "--max-lag-seconds=-1", "--tables=x"):
        refused = cli.call("verify", wrong)
        assert refused.code == 2 and refused.problem


def test_rows_per_second(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the pipeline says, and what the command says, is what the readers are told, each its share."""
    told: list[float] = []
    throttle = Throttle

    def spied(connection: Any, limits: Any, said: Any) -> Any:
        told.append(limits.rows_per_second)
        return throttle(connection, limits, said)

    monkeypatch.setattr(source_scan, "Throttle", spied)
    cli.value["snapshot"]["max_rows_per_second"] = 8000
    cli.write()
    verdict(cli, "t")
    assert sorted(told) == [4000, 4000, 8000], "one reader for the table without a key"
    told.clear()
    verdict(cli, "t", selection=TableSelection.from_options(max_rows_per_second=3000, today=1))
    assert sorted(told) == [1500, 1500, 3000]
