from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.support.gone import Gone
from tests.support.oracle import Kept, check_ledger, compare, compare_all
from tests.support.servers import MySQLServer
from tests.support.workload import make_foreign

UTC = datetime.UTC


def sink_type(kind: str, column_type: str, precision: int | None, scale: int | None) -> pa.DataType:
    signed = {"tinyint": "int8", "smallint": "int16", "mediumint": "int32", "int": "int32", "bigint": "int64"}
    wider = {"tinyint": "int16", "smallint": "int32", "mediumint": "int32", "int": "int64"}
    if column_type == "bigint unsigned":
        return pa.decimal128(20, 0)
    if kind == "decimal":
        return pa.decimal128(precision or 10, scale or 0) if (precision or 10) <= 38 else pa.string()
    if kind in signed:
        return pa.type_for_alias(wider[kind] if "unsigned" in column_type else signed[kind])
    if "binary" in kind or "blob" in kind:
        return pa.binary()
    others = {
        "float": pa.float32(),
        "double": pa.float64(),
        "date": pa.date32(),
        "datetime": pa.timestamp("us"),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "time": pa.int64(),
        "year": pa.int16(),
    }
    return others.get(kind, pa.string())


def to_sink(value: Any, kind: str, type_: pa.DataType) -> Any:
    """A value as PyMySQL gives it, for the sink."""
    if isinstance(value, datetime.timedelta):
        return (value.days * 86400 + value.seconds) * 1_000_000 + value.microseconds
    if isinstance(value, datetime.datetime) and kind == "timestamp":
        return value.replace(tzinfo=UTC)
    if pa.types.is_decimal(type_) and value is not None:
        return decimal.Decimal(value)
    if isinstance(value, decimal.Decimal):
        return f"{value:f}"
    return value


def read(conn: Any, database: str, table: str) -> pa.Table:
    """The table by ordinary means (PyMySQL's own conversions), as a sink would hold it."""
    with conn.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00'")
        cursor.execute(
            "SELECT column_name, data_type, column_type, numeric_precision, numeric_scale "
            "FROM information_schema.columns "
            "WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position",
            (database, table),
        )
        described = cursor.fetchall()
        names = ", ".join(f"`{c[0]}` * 1e0" if c[1] == "float" else f"`{c[0]}`" for c in described)
        cursor.execute(f"SELECT {names} FROM `{database}`.`{table}`")
        rows = cursor.fetchall()
    arrays = []
    for i, (_, kind, column_type, precision, scale) in enumerate(described):
        type_ = sink_type(kind, column_type, precision, scale)
        arrays.append(pa.array([to_sink(row[i], kind, type_) for row in rows], type_))
    arrays.append(pa.array([7] * len(rows), pa.int64()))
    return pa.table(arrays, names=[*(c[0] for c in described), "_cdc_seq"])


def copy(conn: Any, database: str, lake: Path | str) -> None:
    with conn.cursor() as cursor:
        cursor.execute("SELECT table_name FROM information_schema.tables WHERE table_schema = %s", (database,))
        tables = [name for (name,) in cursor.fetchall()]
    for table in tables:
        write_deltalake(f"{lake}/{database}/{table}", read(conn, database, table), mode="overwrite")


@pytest.fixture(scope="module")
def conn(mysql_server: MySQLServer) -> Any:
    with mysql_server.connect() as conn:
        yield conn


@pytest.fixture(scope="module")
def foreign(conn: Any) -> Any:
    """Every type with every special value in a few hundred rows."""
    make_foreign(conn, "oracle_foreign", scale=0.01)
    yield "oracle_foreign"
    conn.cursor().execute("DROP DATABASE oracle_foreign")


def test_equal_tables_are_equal(conn: Any, foreign: str, tmp_path: Path) -> None:
    copy(conn, foreign, tmp_path)
    assert compare_all(conn, foreign, tmp_path) == []


def test_the_session_is_left_as_it_was(conn: Any, foreign: str, tmp_path: Path) -> None:
    copy(conn, foreign, tmp_path)
    with conn.cursor() as cursor:
        cursor.execute("SET SESSION time_zone = '+05:30', sql_mode = 'PAD_CHAR_TO_FULL_LENGTH'")
        try:
            assert compare(conn, foreign, "trio", tmp_path / foreign / "trio") is None
            cursor.execute("SELECT @@SESSION.time_zone, @@SESSION.sql_mode")
            assert cursor.fetchone() == ("+05:30", "PAD_CHAR_TO_FULL_LENGTH")
        finally:
            cursor.execute("SET SESSION time_zone = '+00:00', sql_mode = DEFAULT")


def other(value: Any, type_: pa.DataType) -> Any:
    """The nearest value that is not the same."""
    if pa.types.is_floating(type_):
        return -value if value == 0 else value * 1.000001
    if pa.types.is_integer(type_):
        return value - 1 if value > 0 else value + 1
    if pa.types.is_decimal(type_):
        step = decimal.Decimal(1).scaleb(-type_.scale)
        return value - step if value > 0 else value + step
    if pa.types.is_temporal(type_):
        unit = datetime.timedelta(days=1) if pa.types.is_date(type_) else datetime.timedelta(microseconds=1)
        return value - unit if value.year > 2000 else value + unit
    return value + (b"\0" if isinstance(value, bytes) else " ")


def changed(table: pa.Table, row: int, name: str, value: Any) -> pa.Table:
    values = table.column(name).to_pylist()
    values[row] = value
    at = table.schema.get_field_index(name)
    return table.set_column(at, table.schema.field(at), pa.array(values, table.schema.field(at).type))


def test_one_changed_value_of_every_type_is_found(conn: Any, foreign: str, tmp_path: Path) -> None:
    original = read(conn, foreign, "trio")
    names = [n for n in original.column_names if n not in {"a", "b", "c", "_cdc_seq"}]
    assert len(names) > 30
    for name in names:
        type_ = original.schema.field(name).type
        values = original.column(name).to_pylist()
        row = next(i for i, v in enumerate(values) if v is not None)
        empty = next(i for i, v in enumerate(values) if v is None)
        # Another value, NULL for a value, and a value for NULL.
        table = changed(original, row, name, other(values[row], type_))
        write_deltalake(tmp_path / name, changed(table, empty, name, values[row]))
        found = compare(conn, foreign, "trio", tmp_path / name)
        assert found and (found.different, found.missing, found.extra, found.doubled) == (2, 0, 0, 0), name
        assert all(f"{name}: source" in line and line.count("source") == 1 for line in found.examples), found


@pytest.fixture
def small(conn: Any, database: str, tmp_path: Path) -> Any:
    """A table of three rows with the traps in it, and a function that compares a changed copy of it."""
    with conn.cursor() as cursor:
        cursor.execute(
            f"CREATE TABLE `{database}`.t (k varchar(9), n int, d double, f float, v varchar(9), PRIMARY KEY (k, n))"
        )
        cursor.execute(
            f"INSERT INTO `{database}`.t VALUES ('a', 1, 0, 0, 'a'), ('a ', 1, -0e0, -0e0, ''), ('b', 2, 1, 1, NULL)"
        )

    def check(change: Callable[[pa.Table], pa.Table]) -> Any:
        path = tmp_path / database / "t"
        write_deltalake(path, change(read(conn, database, "t")), mode="overwrite", schema_mode="overwrite")
        return compare(conn, database, "t", path)

    return check


def test_missing_extra_and_doubled_rows(small: Any) -> None:
    assert small(lambda t: t) is None
    found = small(lambda t: t.slice(1))
    assert (found.missing, found.extra, found.doubled, found.different) == (1, 0, 0, 0)
    assert found.examples == ["missing: k='a', n=1"]
    found = small(lambda t: pa.concat_tables([t, changed(t.slice(2), 0, "k", "c")]))
    assert (found.missing, found.extra, found.doubled, found.different) == (0, 1, 0, 0)
    assert found.examples == ["extra: k='c', n=2"]
    found = small(lambda t: pa.concat_tables([t, t.slice(2)]))
    assert (found.missing, found.extra, found.doubled, found.different) == (0, 0, 1, 0)
    assert found.examples == ["doubled: k='b', n=2"]
    found = small(lambda t: t.slice(0, 0))
    assert (found.source_rows, found.sink_rows, found.missing) == (3, 0, 3)


def test_traps_of_equality(small: Any) -> None:
    for name, row, value in (
        ("d", 0, -0.0),
        ("d", 1, 0.0),
        ("f", 0, -0.0),
        ("f", 1, 0.0),
        ("v", 0, "a "),
        ("v", 0, "A"),
        ("v", 1, None),
        ("v", 2, ""),
    ):
        found = small(lambda t, n=name, r=row, x=value: changed(t, r, n, x))
        assert found and found.different == 1, (name, value)
    for key in ("A", "á", "b  "):
        found = small(lambda t, x=key: changed(t, 2, "k", x))
        assert (found.missing, found.extra, found.doubled) == (1, 1, 0), key


def test_other_columns_and_types_are_differences(small: Any) -> None:
    assert "columns" in str(small(lambda t: t.drop_columns(["v"])))
    assert "column d" in str(small(lambda t: t.set_column(2, "d", t.column("d").cast(pa.string()))))


def test_a_table_that_is_not_there(conn: Any, foreign: str, tmp_path: Path) -> None:
    found = compare_all(conn, foreign, tmp_path, ["one"])
    assert len(found) == 1
    assert "there is no table at" in str(found[0])


def test_doubles_are_read_whole(conn: Any, database: str, tmp_path: Path) -> None:
    values = [-2.2250738585072014e-308, 1.7976931348623157e308, -2.8926721466842832e-28, 0.1, 1 / 3, 5e-324]
    with conn.cursor() as cursor:
        cursor.execute(f"CREATE TABLE `{database}`.t (k int PRIMARY KEY, d double)")
        cursor.executemany(f"INSERT INTO `{database}`.t VALUES (%s, %s)", list(enumerate(values)))
    table = pa.table({"k": pa.array(range(len(values)), pa.int32()), "d": values})
    write_deltalake(tmp_path / "t", table)
    assert compare(conn, database, "t", tmp_path / "t") is None


def test_ledger(conn: Any, database: str, tmp_path: Path) -> None:
    def problems(rows: list[tuple[int, int]]) -> list[str]:
        table = pa.table(
            {"writer": pa.array([w for w, _ in rows], pa.int32()), "n": pa.array([n for _, n in rows], pa.int64())}
        )
        write_deltalake(tmp_path / "shop/ledger", table, mode="overwrite")
        return check_ledger(tmp_path)

    assert problems([]) == []
    assert problems([(2, 2), (1, 1), (2, 1), (2, 3)]) == []
    assert problems([(1, 1), (2, 1), (2, 2), (2, 2)]) == ["writer 2: 2 is doubled"]
    assert problems([(1, 1), (1, 2), (1, 5)]) == ["writer 1: 3 to 4 are missing"]
    assert problems([(3, 2)]) == ["writer 3: 1 to 1 are missing"]
    assert problems([(3, 0), (3, 1)]) != []


def test_tables_without_a_key_are_counted(conn: Any, database: str, tmp_path: Path) -> None:
    values: list[tuple[float | None, str | None]] = [(1.0, "a"), (1.0, "a"), (0.0, None), (None, ""), (None, None)]
    with conn.cursor() as cursor:
        cursor.execute(f"CREATE TABLE `{database}`.t (d double, s varchar(9))")
        cursor.executemany(f"INSERT INTO `{database}`.t VALUES (%s, %s)", values)

    def difference(rows: list[tuple[float | None, str | None]]) -> tuple[int, int] | None:
        sink = pa.table({"d": pa.array([d for d, _ in rows], pa.float64()), "s": [s for _, s in rows]})
        write_deltalake(tmp_path / "t", sink, mode="overwrite")
        found = compare(conn, database, "t", tmp_path / "t")
        return None if found is None else (found.missing, found.extra)

    assert difference(values[::-1]) is None
    assert difference(values[1:]) == (1, 0)
    assert difference([values[0], *values]) == (0, 1)
    for wrong in [(1.0, "A"), (-0.0, None), (0.0, ""), (None, "NULL")]:
        assert difference([wrong, *values[1:]]) == (1, 1)
    with pytest.raises(ValueError, match="not in the source"):
        compare(conn, database, "absent", tmp_path / "t")


# ---------------------------------------------------------------- rows that stay


_KEPT_SCHEMA = pa.schema(
    [
        ("id", pa.int32()),
        ("p", pa.string()),
        ("at", pa.timestamp("us")),
        ("_cdc_op", pa.string()),
        ("_cdc_ts", pa.timestamp("us", tz="UTC")),
        ("_cdc_deleted", pa.bool_()),
        ("at_month", pa.string()),
    ]
)
_AT = datetime.datetime(2024, 2, 29)
_LATE, _EARLY = datetime.datetime(2200, 1, 1, tzinfo=UTC), datetime.datetime(2000, 1, 1, tzinfo=UTC)


def _rows(**changed: dict[str, Any] | None) -> list[dict[str, Any]]:
    """What a soft copy holds of the table below, but for some rows, by ``r<id>``."""
    about = {"at": _AT, "_cdc_op": "c", "_cdc_ts": _LATE, "_cdc_deleted": False, "at_month": "2024-02"}
    gone = {**about, "_cdc_op": "d", "_cdc_deleted": True}
    parts = {1: "x", 2: "y z", 3: "x", 4: None, 5: "y z", 6: "x"}
    found = {f"r{n}": {"id": n, "p": p, **(gone if n in (1, 2, 6) else about)} for n, p in parts.items()}
    return [{**found.get(name, {}), **row} for name in found | changed if (row := changed.get(name, {})) is not None]


@pytest.mark.parametrize(
    ("changed", "since", "said"),
    [
        ({}, "1970-01-01", None),
        ({"r1": None}, "2199-01-01", None),
        ({"r1": None}, "1970-01-01", "missing 1"),
        ({"r2": None}, "1970-01-01", "missing 1"),  # its key was changed
        ({"r6": None}, "1970-01-01", "missing 1"),  # it was deleted twice
        ({"r6": {"p": None}}, "1970-01-01", "different 1"),  # the first time it was another row
        ({"r3": None}, "2199-01-01", "missing 1"),
        ({"r1": {"_cdc_deleted": False}}, "1970-01-01", "different 1"),
        ({"r3": {"_cdc_deleted": True}}, "1970-01-01", "different 1"),
        ({"r1": {"_cdc_op": "u"}}, "1970-01-01", "different 1"),
        ({"r1": {"_cdc_ts": _EARLY}}, "1970-01-01", "different 1"),
        ({"r3": {"_cdc_ts": _EARLY}}, "1970-01-01", None),
        ({"r7": {**_rows()[0], "id": 7}}, "1970-01-01", "extra 1"),
        ({"r4": {"at_month": "2024-03"}}, "1970-01-01", "at_month of a row of 2024-02 is 2024-03"),
    ],
)
def test_rows_that_stay(
    mysql_server: MySQLServer, database: str, tmp_path: Path, changed: Any, since: str, said: str | None
) -> None:
    mysql_server.session(
        database,
        "CREATE TABLE t (id INT PRIMARY KEY, p VARCHAR(9), at DATETIME)",
        "INSERT INTO t VALUES (1, 'x', '2024-02-29'), (2, 'y z', '2024-02-29'), (6, NULL, '2024-02-29')",
    )
    with Gone(mysql_server.connect_args(), database, ["t"]) as gone, mysql_server.connect() as conn:
        mysql_server.session(database, "DELETE FROM t WHERE id = 6", "INSERT INTO t VALUES (6, 'x', '2024-02-29')")
        mysql_server.session(database, "UPDATE t SET id = 5 WHERE id = 2", "DELETE FROM t WHERE id = 1")
        with mysql_server.connect(database=database) as other:
            if changed != {"r2": None}:
                mysql_server.session(database, "DELETE FROM t WHERE id = 5")
                gone.truncate(other, "t")
            else:
                mysql_server.session(database, "DELETE FROM t WHERE id IN (5, 6)")
        rows = "(3, 'x', '2024-02-29'), (4, NULL, '2024-02-29'), (5, 'y z', '2024-02-29')"
        mysql_server.session(database, f"INSERT INTO t VALUES {rows}")
        write_deltalake(
            str(tmp_path / "t"),
            pa.Table.from_pylist(_rows(**changed), _KEPT_SCHEMA),
            partition_by=["p", "at_month"],
        )
        found = compare(conn, database, "t", tmp_path / "t", kept=Kept(gone.database, since, marked=True))
        assert (found is None) if said is None else (said in str(found)), found
        log = tmp_path / "t" / "_delta_log" / f"{0:020}.json"
        (tmp_path / "t" / "p=x").rename(tmp_path / "t" / "p=w")
        log.write_text(log.read_text().replace('"path":"p=x/', '"path":"p=w/'))
        found = compare(conn, database, "t", tmp_path / "t", kept=Kept(gone.database, since, marked=True))
        assert "p=w/" in str(found) and "has rows of {'p': 'x'" in str(found)
