"""Partitioned tables: a row is in the file of its partition, and in no other, wherever its key was before."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from airflow_provider_cdc.config import Sink
from airflow_provider_cdc.config.delta_settings import DELTA_PARTITION_UNITS
from airflow_provider_cdc.model.changes import last_changes
from airflow_provider_cdc.model.errors import CdcError, NotReadyError, TerminalError
from airflow_provider_cdc.model.multiset import net_change
from airflow_provider_cdc.model.schema import OP_COLUMN, SEQ_COLUMN, TS_COLUMN, Column, TableSchema
from airflow_provider_cdc.sinks.delta import maintenance
from airflow_provider_cdc.sinks.delta.log.delta_log import DeltaLog
from airflow_provider_cdc.sinks.delta.log.live_file import DeltaLiveFile
from airflow_provider_cdc.sinks.delta.sink import DeltaSink
from airflow_provider_cdc.sinks.delta.table import DeltaSinkTable
from airflow_provider_cdc.sinks.delta.table_format import DeltaTableFormat
from airflow_provider_cdc.sinks.files.parquet import DataFile, open_parquet
from airflow_provider_cdc.sinks.lake import compaction
from airflow_provider_cdc.sinks.lake.merge import partitions
from airflow_provider_cdc.sinks.protocol import Fence, MultisetChange, OverwriteRange, PublishSlices, Truncate, Upsert
from tests.sinks.conformance import VALUES, nullable

ID = Column("id", "bigint", "bigint", nullable=False)
COUNTRY = nullable("country", "varchar", "varchar(99)", charset="utf8mb4")
MADE = nullable("made", "datetime")
TABLE = TableSchema("shop", "orders", (ID, COUNTRY, MADE, nullable("v", "int")), ("id",))
KEYLESS = TableSchema("shop", "log", TABLE.columns, ())
FENCE = Fence("epoch", 1)
BY = (("country", None), ("made", "month"))
Parts = tuple[tuple[str, str | None], ...]
#: id, country, made, v, seq, op
Row = tuple[int, str | None, datetime | None, int | None, int, str]
JANUARY, MARCH = datetime(2024, 1, 31, 23, 59, 59, 999999), datetime(2024, 3, 1)


@pytest.fixture(params=[True, False], ids=["vectors", "copies"])
def vectors(request: pytest.FixtureRequest) -> bool:
    found: bool = request.param
    return found


def sink_at(folder: Path, by: Parts = BY, *, vectors: bool = True) -> DeltaSink:
    return DeltaSink(str(folder), "p", () if vectors else (".*[.].*",), partition_by=((".*[.].*", by),))


def create_table(sink: DeltaSink, table: TableSchema = TABLE) -> DeltaSinkTable:
    target = sink.table(table)
    target.create("p")
    return target


def rows(*listed: Row, table: TableSchema = TABLE) -> pa.Table:
    names = table.sink_schema.names
    return pa.Table.from_pylist([dict(zip(names, (*row, 0), strict=True)) for row in listed], table.sink_schema)


def upsert(target: DeltaSinkTable, *listed: Row) -> None:
    assert target.commit(lambda _: Upsert(rows(*listed)), {}, FENCE)


def stage(sink: DeltaSink, name: str, *batches: Sequence[Row]) -> None:
    """As a task writes changes."""
    writer = sink.change_staging().open_writer(TABLE, name)
    for batch in batches:
        writer.add(rows(*batch).to_batches()[0])
    writer.close()


def apply(sink: DeltaSink, target: DeltaSinkTable, *names: str) -> None:
    changes = sink.change_staging().read_for_apply(TABLE, names)
    target.commit(lambda _: Upsert(last_changes(changes, TABLE.key)), {}, FENCE)
    sink.change_staging().discard_applied(TABLE, names)


def held(target: DeltaSinkTable) -> list[tuple[Any, ...]]:
    """Rows as the project reads them, without those of its own columns but ``_cdc_seq``."""
    found = target.read()[0]
    assert found.schema == target.schema
    return sorted((tuple(row.values())[:-2] for row in found.to_pylist()), key=repr)


def partitions_of(target: DeltaSinkTable) -> set[tuple[str | None, ...]]:
    """Partitions with living rows, each file of which has its values in its path and not inside."""
    found = set()
    log = target.load_log()
    for file in log.files.values():
        values = tuple(file.partition.values())
        folders = [part.partition("=")[2] for part in file.path.split("/")[:-1] if "=" in part]
        assert [None if f == "__HIVE_DEFAULT_PARTITION__" else unquote(f) for f in folders] == list(values)
        found.add(values)
    return found


def by_delta_rs(path: Path) -> pa.Table:
    return pa.table(QueryBuilder().register("t", DeltaTable(path)).execute("SELECT * FROM t"))


def by_polars(path: Path) -> pa.Table:
    return pl.read_delta(str(path)).to_arrow()


def by_duckdb(path: Path) -> pa.Table:
    package = Path(str(import_module("duckdb_extension_delta").__file__)).parent
    extension = next(package.rglob("*.duckdb_extension"))
    connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    connection.execute(f"LOAD '{extension}'")
    connection.execute("SET TimeZone = 'UTC'")
    return connection.sql(f"SELECT * FROM delta_scan('{path}')").to_arrow_table()


READERS: dict[str, Callable[[Path], pa.Table]] = {"delta-rs": by_delta_rs, "Polars": by_polars, "DuckDB": by_duckdb}


def read_by_all(target: DeltaSinkTable, names: Sequence[str]) -> list[tuple[Any, ...]]:
    """The rows, which all readers see alike."""
    seen = {}
    for reader, read in READERS.items():
        found = read(Path(target.storage.location())).select(names).to_pylist()
        seen[reader] = sorted((tuple(row.values()) for row in found), key=repr)
    first = seen["delta-rs"]
    assert seen == dict.fromkeys(READERS, first)
    return first


# ---------------------------------------------------------------- what stands where


def test_columns_of_partitions_are_in_no_file(tmp_path: Path) -> None:
    target = create_table(sink_at(tmp_path))
    upsert(target, (1, "DE", JANUARY, 1, 1, "c"), (2, "DE", MARCH, 2, 1, "c"), (3, None, None, 3, 1, "c"))
    assert partitions_of(target) == {("DE", "2024-01"), ("DE", "2024-03"), (None, None)}
    for file in target.load_log().files.values():
        with open_parquet(target.storage, file.path) as opened:
            assert opened.schema_arrow.names == ["id", "made", "v", SEQ_COLUMN, OP_COLUMN, TS_COLUMN]
    table = DeltaTable(target.storage.location())
    assert table.metadata().partition_columns == ["country", "made_month"]
    assert [f.name for f in table.schema().fields] == [*TABLE.sink_schema.names, "made_month"]
    names = ["id", "country", "made", "v", "made_month"]
    assert read_by_all(target, names) == [
        (1, "DE", JANUARY, 1, "2024-01"),
        (2, "DE", MARCH, 2, "2024-03"),
        (3, None, None, 3, None),
    ]
    assert held(target) == [(1, "DE", JANUARY, 1, 1), (2, "DE", MARCH, 2, 1), (3, None, None, 3, 1)]


ODD = (
    *("a/b", "a=b", "100%", "a:b", "a b", " ", "ä", "日本", "a\\b", "a#b?c", "%41", "+", "NULL", "null", "\t", "\n"),
    *("'", '"', "..", ".", "A", "a", "x,y", "{a}", "~", "1", "true", "2020-01-01", "*", "\U0001f600", "\x01"),
)


def test_text_of_any_kind(tmp_path: Path) -> None:
    """Also what means something in a path, or in the address of a file."""
    target = create_table(sink_at(tmp_path, (("country", None),)))
    upsert(target, *((n, text, None, n, 1, "c") for n, text in enumerate(ODD)), (99, None, None, 99, 1, "c"))
    expected = sorted([*((n, text, n) for n, text in enumerate(ODD)), (99, None, 99)], key=repr)
    assert read_by_all(target, ["id", "country", "v"]) == expected
    assert partitions_of(target) == {(text,) for text in (*ODD, None)}
    upsert(target, *((n, text, None, -n, 2, "u") for n, text in enumerate(ODD)))
    assert held(target) == sorted(
        [*((n, t, None, -n, 2) for n, t in enumerate(ODD)), (99, None, None, 99, 1)], key=repr
    )


@pytest.mark.parametrize(
    ("text", "what"),
    [("", "an empty text"), ("__HIVE_DEFAULT_PARTITION__", "__HIVE_"), ("ä" * 50, "too long for the name of a folder")],
    ids=["empty", "that of NULL", "long"],
)
@pytest.mark.parametrize("how", ["slice", "piece", "merge"])
def test_text_that_readers_would_take_for_something_else(tmp_path: Path, text: str, what: str, how: str) -> None:
    """It stops; nothing is left behind."""
    sink = sink_at(tmp_path, (("country", None),))
    target = create_table(sink)
    row: Row = (1, text, None, 1, 1, "c")
    with pytest.raises(TerminalError, match=what) as caught:
        if how == "slice":
            target.stage("1/0/1/slice", [rows((2, "DE", None, 1, 1, "c")), rows(row)])
        elif how == "piece":
            stage(sink, "epoch-1/a", [row])
        else:
            upsert(target, row)
    assert "fresh sink.path" in caught.value.remedy
    assert held(target) == [] and not list(target.storage.list("snapshot"))


FIT = ("tinyint", "smallint", "int", "bigint", "decimal", "varchar", "date", "year")


@pytest.mark.parametrize("column", [c for c, _, _ in VALUES], ids=lambda c: c.name)
def test_values_of_all_types(tmp_path: Path, column: Column) -> None:
    """Those that can be partitioned by come back as they were, from each reader; the others are refused by name."""
    ends = next(ends for c, *ends in VALUES if c is column)
    table = TableSchema("shop", "t", (ID, column), ("id",))
    sink = sink_at(tmp_path, ((column.name, None),))
    if column.data_type not in FIT:
        with pytest.raises(NotReadyError, match=rf"shop\.t cannot be partitioned by {column.name}: "):
            sink.table(table)
        return
    values = [*(value for value in ends if value not in ("", ends[1] if column.name == "text" else None)), None]
    target = create_table(sink, table)
    data = [
        {"id": n, column.name: value, SEQ_COLUMN: 1, OP_COLUMN: "c", TS_COLUMN: 0} for n, value in enumerate(values)
    ]
    change = Upsert(pa.Table.from_pylist(data, table.sink_schema))
    target.commit(lambda _: change, {}, FENCE)
    assert read_by_all(target, ["id", column.name]) == sorted(enumerate(values), key=repr)
    assert target.read()[0].sort_by("id")[column.name].to_pylist() == values


@pytest.mark.parametrize(
    ("unit", "expected"),
    [
        ("year", [1, 1969, 2024, 9999, None]),
        ("month", ["0001-01", "1969-12", "2024-02", "9999-12", None]),
        ("day", [date(1, 1, 1), date(1969, 12, 31), date(2024, 2, 29), date(9999, 12, 31), None]),
        ("hour", ["0001-01-01-00", "1969-12-31-23", "2024-02-29-12", "9999-12-31-23", None]),
    ],
)
@pytest.mark.parametrize("kind", ["date", "datetime", "timestamp"])
def test_parts_of_dates(
    tmp_path: Path, kind: str, unit: str, expected: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a DATE, Spark is told how they follow; of times it would depend on its time zone, or prune nothing."""
    table = TableSchema("shop", "t", (ID, nullable("at", kind, fsp=6)), ("id",))
    sink = sink_at(tmp_path, (("at", unit),))
    if (kind, unit) == ("date", "hour"):
        with pytest.raises(NotReadyError, match=r"a DATE has no hour. Write \{day: at\}"):
            sink.table(table)
        return
    times: list[Any] = [
        datetime(1, 1, 1),
        datetime(1969, 12, 31, 23, 59, 59, 999999),
        datetime(2024, 2, 29, 12, 30),
        datetime(9999, 12, 31, 23, 59, 59),
        None,
    ]
    if kind == "date":
        times = [at and at.date() for at in times]
    elif kind == "timestamp":
        times = [at and at.replace(tzinfo=UTC) for at in times]
    target = create_table(sink, table)
    monkeypatch.setattr(maintenance, "_CHECKPOINT_INTERVAL", 1)
    data = [{"id": n, "at": at, SEQ_COLUMN: 1, OP_COLUMN: "c", TS_COLUMN: 0} for n, at in enumerate(times)]
    change = Upsert(pa.Table.from_pylist(data, table.sink_schema))
    target.commit(lambda _: change, {}, FENCE)
    assert read_by_all(target, ["id", f"at_{unit}"]) == list(enumerate(expected))
    expressions = {"year": "YEAR(`at`)", "month": "DATE_FORMAT(`at`, 'yyyy-MM')", "day": "CAST(`at` AS DATE)"}
    log = target.load_log()
    (about,) = (f["metadata"] for f in json.loads(log.metadata["schemaString"])["fields"] if f["name"] == f"at_{unit}")
    assert about == ({"delta.generationExpression": expressions[unit]} if kind == "date" else {})
    assert ("generatedColumns" in log.protocol.get("writerFeatures", ())) == (kind == "date")
    maintenance.write_checkpoint_if_due(log)
    again = sink_at(tmp_path, (("at", unit),)).table(table)
    again.create("p")
    assert target.read()[0].sort_by("id")["at"].to_pylist() == times


# ---------------------------------------------------------------- keys that move


@pytest.mark.parametrize("how", ["staged", "written"])
def test_a_key_moves_to_another_partition(tmp_path: Path, vectors: bool, how: str) -> None:
    """And back, also within one batch: the last change counts."""
    sink = sink_at(tmp_path, vectors=vectors)
    target = create_table(sink)

    def change(name: str, *listed: Row) -> None:
        if how == "staged":
            stage(sink, f"epoch-1/{name}", *([row] for row in listed))
            apply(sink, target, f"epoch-1/{name}")
        else:
            target.commit(lambda _: Upsert(last_changes(rows(*listed), ["id"])), {}, FENCE)

    change("a", (1, "DE", JANUARY, 1, 1, "c"), (2, "FR", JANUARY, 1, 1, "c"), (3, "DE", MARCH, 1, 1, "c"))
    change("b", (1, "FR", JANUARY, 2, 2, "u"), (2, "FR", MARCH, 2, 2, "u"), (3, None, MARCH, 2, 2, "u"))
    assert held(target) == [(1, "FR", JANUARY, 2, 2), (2, "FR", MARCH, 2, 2), (3, None, MARCH, 2, 2)]
    assert partitions_of(target) == {("FR", "2024-01"), ("FR", "2024-03"), (None, "2024-03")}
    change(
        "c",
        *((1, "DE", MARCH, 3, 3, "u"), (1, "FR", JANUARY, 4, 3, "u"), (1, "IT", MARCH, 5, 3, "u")),
        *((2, "DE", MARCH, 3, 3, "u"), (2, "DE", MARCH, 3, 3, "d")),
        *((3, "DE", MARCH, 3, 3, "u"), (3, "DE", MARCH, 3, 3, "d"), (3, "AT", None, 6, 3, "c")),
    )
    expected = [(1, "IT", MARCH, 5, 3), (3, "AT", None, 6, 3)]
    assert held(target) == expected and partitions_of(target) == {("IT", "2024-03"), ("AT", None)}
    assert read_by_all(target, ["id", "country", "made", "v", SEQ_COLUMN]) == expected
    change("d", (1, "DE", MARCH, 9, 2, "u"), (3, "DE", MARCH, 9, 3, "d"))  # older ones, of other partitions
    assert held(target) == expected


@pytest.mark.parametrize("seed", range(3))
def test_keys_move_at_random(tmp_path: Path, vectors: bool, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices, pieces, merges and compactions, by objects that come and go."""
    monkeypatch.setattr(compaction, "FANOUT", 2)
    monkeypatch.setattr(compaction, "MIN_FANOUT", 2)
    chance = random.Random(seed)
    expected: dict[int, tuple[Any, ...]] = {}
    countries, months = ["DE", "FR", "a/b", None], [JANUARY, MARCH, None]

    def row(key: int, seq: int, op: str = "c") -> Row:
        return key, chance.choice(countries), chance.choice(months), chance.randrange(100), seq, op

    sink = sink_at(tmp_path, vectors=vectors)
    target = create_table(sink)
    first = [row(n, 1, "r") for n in range(40)]
    slices = [target.stage("1/0/1/slice", [rows(*first[:25]), rows(*first[25:])])]
    target.commit(lambda _: PublishSlices(slices), {}, FENCE)
    expected = {r[0]: r[:-1] for r in first}
    for seq in range(2, 14):
        if chance.random() < 0.3:
            target = sink.table(TABLE)
        batch = [row(chance.randrange(60), seq, chance.choice("uuud")) for _ in range(chance.randrange(1, 30))]
        for change in batch:
            expected.pop(change[0], None)
            if change[-1] != "d":
                expected[change[0]] = change[:-1]
        if chance.random() < 0.7:
            cut = chance.randrange(len(batch) + 1)
            parts = {f"epoch-1/{seq}-{n}": part for n, part in enumerate((batch[:cut], batch[cut:])) if part}
            for name, part in parts.items():
                stage(sink, name, part[:7], *([part[7:]] if part[7:] else []))
            apply(sink, target, *parts)
        else:
            target.commit(lambda _, batch=batch: Upsert(last_changes(rows(*batch), ["id"])), {}, FENCE)  # type: ignore[misc]
        if chance.random() < 0.5:
            work = target.plan_compactions()
            if chance.random() < 0.5:
                done = [(c, c.run()) for c in work]
                assert not done or target.commit_compactions(done)
            target.clean_up()
        assert held(target) == sorted(expected.values(), key=repr)
    partitions_of(target)
    assert read_by_all(target, ["id", "country", "made", "v", SEQ_COLUMN]) == sorted(expected.values(), key=repr)
    assert not [
        name
        for name, _ in target.storage.list("changes")
        if name not in target.load_log().files | target.load_log().tombstones
    ]


def test_the_order_of_changes_in_several_files(tmp_path: Path) -> None:
    """It is that of the binlog, whichever files they are in."""
    sink = sink_at(tmp_path, (("country", None),))
    target = create_table(sink)
    stage(sink, "epoch-1/a", [(1, "DE", None, 1, 5, "u"), (1, "FR", None, 2, 5, "u")], [(1, "DE", None, 3, 5, "u")])
    stage(sink, "epoch-1/b", [(2, "FR", None, 4, 6, "u"), (1, "FR", None, 5, 6, "u"), (2, "DE", None, 6, 6, "u")])
    names = ["epoch-1/a", "epoch-1/b"]
    found = sink.change_staging().read_changes(TABLE, names)
    assert found["v"].to_pylist() == [1, 2, 3, 4, 5, 6]
    assert found["country"].to_pylist() == ["DE", "FR", "DE", "FR", "FR", "DE"]
    changes = sink.change_staging().read_for_apply(TABLE, names)
    assert changes["id"].to_pylist() == [1, 1, 1, 2, 1, 2] and changes[SEQ_COLUMN].to_pylist() == [5, 5, 5, 6, 6, 6]
    assert sink.change_staging().read_changes(TABLE, names[::-1])["v"].to_pylist() == [4, 5, 6, 1, 2, 3]
    apply(sink, target, *names)
    assert held(target) == [(1, "FR", None, 5, 6), (2, "DE", None, 6, 6)]


def test_what_a_piece_has_left(tmp_path: Path) -> None:
    sink = sink_at(tmp_path, (("country", None),))
    target = create_table(sink)

    def left() -> list[str]:
        return [name for name, _ in target.storage.list("changes")]

    stage(sink, "epoch-1/a", [(1, "DE", None, 1, 5, "u"), (2, "FR", None, 2, 5, "u")])
    assert len(left()) == 3
    for _ in range(2):
        sink.change_staging().discard(TABLE, ["epoch-1/a"])
        assert left() == []
    stage(sink, "epoch-1/b", [(1, "DE", None, 1, 5, "u"), (2, "FR", None, 2, 5, "u")])
    apply(sink, target, "epoch-1/b")
    assert sorted(left()) == sorted(target.load_log().files) and len(left()) == 2
    writer = sink.change_staging().open_writer(TABLE, "epoch-1/killed")
    writer.add(rows((3, "IT", None, 1, 6, "c")).to_batches()[0])
    stage(sink, "epoch-1/c", [(1, "DE", None, 1, 5, "u")])
    sink.change_staging().clear_older_epochs([TABLE], 2)
    assert sorted(left()) == sorted(target.load_log().files)


def test_rows_of_escaped_partitions_die_for_all_readers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Polars does not find the vectors of such files, so these are written anew; the others are not."""
    monkeypatch.setattr(compaction, "FANOUT", 2)
    monkeypatch.setattr(compaction, "MIN_FANOUT", 2)
    sink = sink_at(tmp_path, (("country", None),))
    target = create_table(sink)
    countries = ["DE", "United Kingdom", "C\u00f4te", "a+b", None]
    batch: list[Row] = [(10 * k + n, c, None, 1, 1, "c") for k, c in enumerate(countries) for n in range(4)]
    upsert(target, *batch)
    expected: dict[int, tuple[str | None, int | None]] = {row[0]: (row[1], 1) for row in batch}

    def check() -> None:
        seen = [(key, *values) for key, values in sorted(expected.items(), key=repr)]
        assert sorted(read_by_all(target, ["id", "country", "v"]), key=repr) == sorted(seen, key=repr)
        with_vectors = {file.partition["country"] for file in target.load_log().files.values() if file.deletion_vector}
        assert with_vectors <= {"DE", None}

    changed: list[Row] = [(10 * k, c, None, 2, 2, "u") for k, c in enumerate(countries)]
    changed += [(10 * k + 1, c, None, 3, 2, "u") for k, c in enumerate(countries)]
    changed += [(10 * k + 1, countries[k - 1], None, 4, 2, "u") for k in range(5)]
    stage(sink, "epoch-1/a", changed)
    apply(sink, target, "epoch-1/a")
    expected |= {row[0]: (row[1], row[3]) for row in changed}
    check()
    assert {file.partition["country"] for file in target.load_log().files.values() if file.deletion_vector} == {
        "DE",
        None,
    }
    kept = target.storage.list("changes")
    assert all(name in target.load_log().files for name, _ in kept), "what was written anew is not left behind"
    more: list[Row] = [(90 + n, "a+b", None, 1, 1, "r") for n in range(4)]
    slices = [target.stage(f"1/0/1/{n}", [rows(*more[2 * n : 2 * n + 2])]) for n in range(2)]
    target.commit(lambda _: PublishSlices(slices), {}, FENCE)
    expected |= {row[0]: (row[1], 1) for row in more}
    work = [c for c in target.plan_compactions() if c.partition["country"] == "a+b"]
    done = [(c, c.run()) for c in work]
    with monkeypatch.context() as patch:  # as another writer does it
        patch.setattr(DeltaTableFormat, "supports_vectors", lambda *_: True)
        upsert(target, (90, "DE", None, 5, 3, "u"))
    expected[90] = ("DE", 5)
    assert work and not target.commit_compactions(done)
    work = target.plan_compactions()
    assert target.commit_compactions([(c, c.run()) for c in work])
    check()
    target.commit(lambda _: Truncate(3), {}, FENCE)
    expected = {key: value for key, value in expected.items() if value[1] == 5}
    check()


# ---------------------------------------------------------------- slices of the snapshot


def test_a_slice_has_files_of_many_partitions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows wait in memory for the end, and what is written says so."""
    target = create_table(sink_at(tmp_path, (("country", None),)))
    waiting = list[int]()
    real = partitions.PartitionedWriter._write_largest

    def limit(self: partitions.PartitionedWriter, size: int) -> None:
        real(self, size)
        waiting.append(sum(rows.nbytes for held in self._waiting.values() for rows in held))

    monkeypatch.setattr(partitions.PartitionedWriter, "_write_largest", limit)
    monkeypatch.setattr(partitions, "BUFFER_BYTES", 20_000)
    monkeypatch.setattr("airflow_provider_cdc.sinks.files.parquet._ROW_GROUP_BYTES", 5_000)
    listed: list[Row] = [(n, f"c{n % 7}" if n % 3 else None, None, n, 5 + n % 2, "r") for n in range(3000)]
    slice_ = target.stage("1/0/1/slice", (rows(*listed[n : n + 50]) for n in range(0, 3000, 50)))
    assert max(waiting) <= 20_000 and len(waiting) > 10 and 8 < len(slice_.parts) < 60
    assert (slice_.rows, slice_.low, slice_.high, slice_.oldest, slice_.newest) == (3000, 0, 2999, 5, 6)
    assert slice_ == DataFile.from_json(slice_.to_json()) and target.is_staged(slice_)
    staged = pa.concat_tables(target.read_staged(slice_))
    assert sorted(staged["v"].to_pylist()) == list(range(3000)) and staged.schema == TABLE.sink_schema
    target.commit(lambda _: PublishSlices([slice_]), {}, FENCE)
    assert held(target) == sorted((row[:-1] for row in listed), key=repr)
    upsert(target, (0, "c1", None, -1, 9, "u"))
    assert [row for row in held(target) if row[0] == 0] == [(0, "c1", None, -1, 9)]


def test_a_slice_is_whole_or_not(tmp_path: Path) -> None:
    target = create_table(sink_at(tmp_path, (("country", None),)))
    slice_ = target.stage("1/0/1/slice", [rows((1, "DE", None, 1, 1, "r"), (2, "FR", None, 2, 1, "r"))])
    target.storage.delete(slice_.parts[1].path)
    assert not target.is_staged(slice_)
    target.discard_staged(slice_)
    assert not list(target.storage.list("snapshot"))
    nothing = target.stage("1/0/1/nothing", [rows()])
    assert target.is_staged(nothing) and nothing.rows == 0 and not nothing.parts
    assert pa.concat_tables(target.read_staged(nothing)).schema == TABLE.sink_schema
    target.commit(lambda _: PublishSlices([nothing]), {}, FENCE)
    assert held(target) == []


def test_a_slice_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = create_table(sink_at(tmp_path, (("country", None),)))
    monkeypatch.setattr(partitions, "BUFFER_BYTES", 0)
    monkeypatch.setattr("airflow_provider_cdc.sinks.files.parquet._ROW_GROUP_BYTES", 0)

    def failing() -> Any:
        for n in range(3):
            yield rows((n, "DE", None, 1, 1, "r"))
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError):
        target.stage("1/0/1/slice", failing())
    assert not list(target.storage.list("snapshot"))


def test_a_group_is_read_again(tmp_path: Path, vectors: bool) -> None:
    """Its rows go, in whichever partition they are; also where the key is in no file."""
    target = create_table(sink_at(tmp_path, (("id", None), ("country", None)), vectors=vectors))
    first = target.stage("1/0/1/slice", [rows((1, "DE", None, 1, 1, "r"), (2, "FR", None, 2, 1, "r"))])
    other = target.stage("1/1/1/slice", [rows((11, "DE", None, 1, 1, "r"))])
    target.commit(lambda _: PublishSlices([first, other]), {}, FENCE)
    upsert(target, (1, "IT", None, 3, 2, "u"), (3, "DE", None, 4, 2, "c"), (12, "DE", None, 4, 2, "c"))
    again = target.stage("1/0/2/slice", [rows((2, "AT", None, 5, 3, "r"), (4, "DE", None, 5, 3, "r"))])

    def owned(keys: pa.Table) -> pa.Array:
        assert keys.column_names == ["id"]
        return pa.array([key < 10 for key in keys["id"].to_pylist()], pa.bool_())

    target.commit(lambda _: OverwriteRange([again], (1, 0), owned, (0, 9)), {}, FENCE)
    assert held(target) == [
        (11, "DE", None, 1, 1),
        (12, "DE", None, 4, 2),
        (2, "AT", None, 5, 3),
        (4, "DE", None, 5, 3),
    ]


# ---------------------------------------------------------------- other changes


def test_rows_without_a_key(tmp_path: Path, vectors: bool) -> None:
    """They are told apart by values that are in no file, too."""
    target = create_table(sink_at(tmp_path, vectors=vectors), KEYLESS)
    x, y, z = ((1, "DE", JANUARY, 1), (1, "FR", JANUARY, 1), (1, None, JANUARY, 1))
    slice_ = target.stage("1/0/1/slice", [rows((*x, 1, "r"), (*x, 1, "r"), (*y, 1, "r"), (*z, 1, "r"))])
    target.commit(lambda _: PublishSlices([slice_]), {}, FENCE)
    change = net_change(rows((*x, 2, "d"), (*z, 2, "d"), (*y, 2, "c")), [c.name for c in KEYLESS.columns])
    target.commit(lambda _: MultisetChange(change), {}, FENCE)
    assert held(target) == [(*x, 1), (*y, 1), (*y, 2)]
    change = net_change(rows((*y, 3, "d"), (*y, 3, "d"), (*z, 3, "c")), [c.name for c in KEYLESS.columns])
    target.commit(lambda _: MultisetChange(change), {}, FENCE)
    assert sorted(held(target), key=repr) == sorted([(*x, 1), (*z, 3)], key=repr)
    assert partitions_of(target) == {("DE", "2024-01"), (None, "2024-01")}


def test_a_truncated_table(tmp_path: Path, vectors: bool) -> None:
    sink = sink_at(tmp_path, vectors=vectors)
    target = create_table(sink)
    upsert(target, (1, "DE", JANUARY, 1, 1, "c"), (2, "FR", JANUARY, 1, 1, "c"))
    upsert(target, (3, "DE", JANUARY, 1, 5, "c"))
    target.commit(lambda _: Truncate(4), {}, FENCE)
    assert held(target) == [(3, "DE", JANUARY, 1, 5)]
    writer = sink.change_staging().open_writer(TABLE, "epoch-1/a")
    writer.add(rows((4, "FR", JANUARY, 1, 6, "c"), (5, "XX", JANUARY, 1, 6, "c")).to_batches()[0])
    writer.truncate()
    writer.add(rows((6, "FR", None, 1, 7, "c")).to_batches()[0])
    writer.close()
    assert sink.change_staging().read_changes(TABLE, ["epoch-1/a"])["id"].to_pylist() == [6]
    target.commit(lambda _: Truncate(7), {}, FENCE)
    apply(sink, target, "epoch-1/a")
    assert held(target) == [(6, "FR", None, 1, 7)]


def test_it_begins_anew(tmp_path: Path) -> None:
    target = create_table(sink_at(tmp_path))
    upsert(target, (1, "DE", JANUARY, 1, 1, "c"))
    target.reset("p", Fence("generation", 2), [])
    assert held(target) == []
    upsert(target, (1, "FR", JANUARY, 1, 1, "c"))
    assert partitions_of(target) == {("FR", "2024-01")}


def test_what_a_checkpoint_says(tmp_path: Path, vectors: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values of partitions, those that are NULL too, are as in commits."""
    monkeypatch.setattr(maintenance, "_CHECKPOINT_INTERVAL", 1)
    sink = sink_at(tmp_path, vectors=vectors)
    target = create_table(sink)
    upsert(target, (1, "a/b", JANUARY, 1, 1, "c"), (2, None, None, 1, 1, "c"), (3, None, None, 1, 1, "c"))
    upsert(target, (3, "FR", None, 1, 2, "u"))
    before = {path: dict(file.partition) for path, file in target.load_log().files.items()}
    target.clean_up()
    log = DeltaLog(target.storage)
    log.refresh()
    assert log.checkpoint_version and {path: dict(file.partition) for path, file in log.files.items()} == before
    again = sink.table(TABLE)
    upsert(again, (2, "DE", MARCH, 2, 3, "u"))
    assert held(again) == [(1, "a/b", JANUARY, 1, 1), (2, "DE", MARCH, 2, 3), (3, "FR", None, 1, 2)]
    assert read_by_all(again, ["id", "country", "v"]) == [(1, "a/b", 1), (2, "DE", 2), (3, "FR", 1)]


def test_another_writer_compacts(tmp_path: Path) -> None:
    target = create_table(sink_at(tmp_path, vectors=False))
    for n in range(4):
        upsert(target, (n, "a/b", JANUARY, 1, 1 + n, "c"), (10 + n, None, None, 1, 1 + n, "c"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("airflow_provider_cdc.sinks.lake.merge.table_edit.SMALL_FILE_BYTES", 0)
        for n in range(4, 8):
            upsert(target, (n, "a/b", JANUARY, 1, 1 + n, "c"), (10 + n, None, None, 1, 1 + n, "c"))
    assert DeltaTable(target.storage.location()).optimize.compact()["numFilesRemoved"] > 2
    upsert(target, (1, None, None, 2, 20, "u"), (12, "a/b", JANUARY, 2, 20, "u"), (13, None, None, None, 20, "d"))
    found = {row[0]: row[1] for row in held(target)}
    assert found == {**dict.fromkeys([0, *range(2, 8), 12], "a/b"), **dict.fromkeys([1, 10, 11, *range(14, 18)])}


# ---------------------------------------------------------------- compaction


def file(name: str, partition: str | None, size: int, dead: int = 0) -> DeltaLiveFile:
    found: dict[str, Any] = {"path": name, "size": size, "stats": '{"numRecords": 100}'}
    found["partitionValues"] = {"country": partition}
    if dead:
        found["deletionVector"] = {
            "storageType": "u", "pathOrInlineDv": "p", "offset": 1, "sizeInBytes": 1, "cardinality": dead
        }  # fmt: skip
    return DeltaLiveFile(found)


def groups(listed: list[DeltaLiveFile]) -> list[list[str]]:
    return [[f.path for f in group] for group in compaction.choose_file_groups(listed, lambda _: 100)]


MB = 1 << 20


def test_only_files_of_one_partition_are_put_together() -> None:
    listed = [file(f"{p}{n}", p, MB) for n in range(8) for p in ("a", "b")]
    assert groups(listed) == [[f"a{n}" for n in range(8)], [f"b{n}" for n in range(8)]]
    assert groups(listed[:-2]) == []
    assert groups([file("a", "a", 50 * MB, 30), file("b", None, 50 * MB, 10)]) == [["a"]]


def test_files_stay_few_whatever_the_number_of_partitions() -> None:
    """Of a tier fewer than eight, or than four if partitions are many; above 400 in all, one beside the large one."""
    for parts, most in ((10, 8), (40, 5), (50, 4), (1000, 4)):
        listed = [file(f"{p}-{n}", str(p), MB) for p in range(parts) for n in range(most)]
        found = groups(listed)
        assert len(found) == parts and all(len(group) == most for group in found), parts
    few = [file(f"{p}-{n}", str(p), MB) for p in range(50) for n in range(3)]
    assert groups(few) == []
    cold = [file(f"{p}-{n}", str(p), (9 * n + 1) * MB) for p in range(250) for n in range(2)]
    assert groups(cold) == [], "a large file is not written again for a small one"
    even = [file(f"{p}-{n}", str(p), MB + n) for p in range(250) for n in range(2)]
    assert groups(even) == [[f"{p}-0", f"{p}-1"] for p in range(250)]


def test_compacted_files_stay_in_their_partition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that move meanwhile are dead in the new file."""
    monkeypatch.setattr(compaction, "FANOUT", 2)
    monkeypatch.setattr(compaction, "MIN_FANOUT", 2)
    target = create_table(sink_at(tmp_path))
    for n in range(0, 6, 2):
        upsert(target, *((k, "DE", JANUARY, 1, 1 + n, "c") for k in (n, n + 1)), (10 + n, None, None, 1, 1 + n, "c"))
        upsert(target, (11 + n, None, None, 1, 1 + n, "c"), (20 + n, "DE", JANUARY, 1, 1 + n, "c"))
    work = target.plan_compactions()
    assert len(work) == 2
    done = [(c, c.run()) for c in work]
    upsert(target, (1, None, None, 2, 9, "u"))
    assert target.commit_compactions(done)
    assert partitions_of(target) == {("DE", "2024-01"), (None, None)} and len(target.load_log().files) == 3
    assert {row[0]: row[1] for row in held(target)} == {
        **dict.fromkeys([0, 2, 3, 4, 5, 20, 22, 24], "DE"),
        **dict.fromkeys([1, *range(10, 16)]),
    }
    upsert(target, (0, "IT", None, 2, 10, "u"), (10, "IT", None, 2, 10, "u"))
    assert len(held(target)) == 15 and len(read_by_all(target, ["id"])) == 15


def test_files_that_somebody_left_in_a_partition_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = create_table(sink_at(tmp_path, (("country", None),)))
    upsert(target, (1, "DE", None, 1, 1, "c"))
    left = "country=DE/part-" + 32 * "0" + ".parquet"
    target.storage.write(left, b"")
    maintenance.vacuum_files(target.load_log())
    assert target.storage.size(left) == 0
    monkeypatch.setattr(maintenance, "ABANDONED_HOURS", -1)
    maintenance.vacuum_files(target.load_log(), retention=-3600)
    assert target.storage.size(left) is None and len(held(target)) == 1


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("by", "said"),
    [
        (
            (("Country", None),),
            "cannot be partitioned by Country: it has no column Country that is copied. Its columns",
        ),
        ((("secret", None),), "it has no column secret that is copied"),
        ((("f", None),), "cannot be partitioned by f: values of type float cannot form partitions"),
        ((("b", None),), "values of type varbinary cannot form partitions"),
        ((("note", None),), "values of type text cannot form partitions"),
        ((("at", None),), r"only a part of a datetime can be used. Write {day: at}, or year"),
        ((("id", "day"),), "cannot be partitioned by day of id: the column is bigint. Use a part of a DATE"),
        ((("at", "year"),), "the table has a column at_year of its own"),
        ((("a/b", None),), "the column name cannot be a folder name"),
        ((("id", None), ("id", None)), "by a column twice"),
    ],
    ids=["case", "left out", "float", "bytes", "text", "time", "part", "taken", "path", "twice"],
)
def test_what_cannot_make_partitions(tmp_path: Path, by: Parts, said: str) -> None:
    table = TableSchema(
        "shop",
        "t",
        (
            *(
                ID,
                nullable("secret", "int"),
                nullable("f", "float"),
                nullable("b", "varbinary"),
                nullable("at", "datetime"),
            ),
            *(nullable("note", "text", charset="utf8mb4"), nullable("AT_YEAR", "int"), nullable("a/b", "int")),
        ),
        ("id",),
        excluded=("secret",),
    )
    with pytest.raises(NotReadyError) as caught:
        sink_at(tmp_path, by).table(table)
    assert said.replace("at_year", "at_year") in str(caught.value)


def test_all_columns(tmp_path: Path) -> None:
    table = TableSchema("shop", "t", (ID, COUNTRY), ("id",))
    with pytest.raises(NotReadyError, match="all of its columns"):
        sink_at(tmp_path, (("id", None), ("country", None))).table(table)
    sink_at(tmp_path, (("id", None),)).table(table)


def test_the_first_pattern_counts(tmp_path: Path) -> None:
    by = (("shop[.]orders", (("country", None),)), ("shop[.].*", (("made", "day"),)))
    sink = DeltaSink(str(tmp_path), "p", partition_by=by)
    assert sink.table(TABLE).options.partitioned_by == (partitions.PartitionField("country"),)
    assert sink.table(KEYLESS).options.partitioned_by == (partitions.PartitionField("made", "day"),)
    assert DeltaSink(str(tmp_path), "p", partition_by=by[:1]).table(KEYLESS).options.partitioned_by == ()
    settings = Sink("/data", partition_by={"shop[.]orders": ["country"], "shop[.].*": [{"day": "made"}]})
    assert DeltaSink.from_settings(settings, "p", None).partition_by == by
    assert set(DELTA_PARTITION_UNITS) == set(partitions.DATE_UNITS)


@pytest.mark.parametrize("before", [BY, ()])
@pytest.mark.parametrize("write", ["create", "commit", "fence", "compact", "markers"])
def test_a_changed_setting_is_refused(tmp_path: Path, before: Parts, write: str) -> None:
    """What stands is left as it is."""
    old = create_table(sink_at(tmp_path, before))
    upsert(old, (1, "DE", JANUARY, 1, 1, "c"))
    other: Parts = (("country", None),)
    target = sink_at(tmp_path, other).table(TABLE)
    writes: dict[str, Callable[[], Any]] = {
        "create": lambda: target.create("p"),
        "commit": lambda: upsert(target, (2, "FR", JANUARY, 1, 2, "c")),
        "fence": lambda: target.raise_fence(Fence("epoch", 2)),
        "compact": target.plan_compactions,
        "markers": target.markers,
    }
    said = "country, made_month" if before else "nothing"
    for _ in range(2):
        with pytest.raises(CdcError, match=f"is partitioned by {said}, but sink.partition_by says country") as caught:
            writes[write]()
        assert "\n" not in str(caught.value) and "fresh sink.path" in caught.value.remedy
    assert held(old) == [(1, "DE", JANUARY, 1, 1)]


def test_decimals_of_partitions_are_exact(tmp_path: Path) -> None:
    column = nullable("d", "decimal", "decimal(38,10)", precision=38, scale=10)
    table = TableSchema("shop", "t", (ID, column), ("id",))
    target = create_table(sink_at(tmp_path, (("d", None),)), table)
    values = [
        Decimal("1.5"),
        Decimal("-0.0000000001"),
        Decimal("0"),
        Decimal("1234567890123456789012345678.0123456789"),
    ]
    data = [{"id": n, "d": value, SEQ_COLUMN: 1, OP_COLUMN: "c", TS_COLUMN: 0} for n, value in enumerate(values)]
    change = Upsert(pa.Table.from_pylist(data, table.sink_schema))
    target.commit(lambda _: change, {}, FENCE)
    assert read_by_all(target, ["id", "d"]) == list(enumerate(values))
    assert target.read()[0].sort_by("id")["d"].to_pylist() == values
