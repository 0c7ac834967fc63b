"""The change data feed: what Spark reads of it is what the source did, commit by commit, net."""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_provider_cdc.config.delete_policy import HARD, IGNORE, SOFT, DeletePolicy
from airflow_provider_cdc.config.table_properties import TableProperties
from airflow_provider_cdc.model.changes import last_changes
from airflow_provider_cdc.model.errors import NotReadyError, TerminalError
from airflow_provider_cdc.model.multiset import net_change
from airflow_provider_cdc.model.schema import DELETED_COLUMN, OP_COLUMN, SEQ_COLUMN, TS_COLUMN, Column, TableSchema
from airflow_provider_cdc.sinks.delta import maintenance, table_metadata
from airflow_provider_cdc.sinks.delta.log import features
from airflow_provider_cdc.sinks.delta.log.retention import file_retention, log_retention
from airflow_provider_cdc.sinks.delta.sink import DeltaSink
from airflow_provider_cdc.sinks.delta.table import DeltaSinkTable
from airflow_provider_cdc.sinks.lake import compaction
from airflow_provider_cdc.sinks.protocol import (
    Change,
    Fence,
    MultisetChange,
    OverwriteRange,
    PublishSlices,
    Truncate,
    Upsert,
)
from tests.sinks.conformance import nullable
from tests.sinks.delta.test_maintenance import age, needed, present
from tests.support.object_store import access
from tests.support.s3 import S3
from tests.support.spark_delta import SparkDelta, spark_delta

ID = Column("id", "bigint", "bigint", nullable=False)
PLACE = nullable("pl.ace", "varchar", "varchar(9)", charset="utf8mb4")
MADE = nullable("made", "date")
VALUE = nullable("v", "int")
TABLE = TableSchema("shop", "t", (ID, PLACE, MADE, VALUE), ("id",))
NAMED = TableSchema("shop", "t", (ID, PLACE, MADE, VALUE), ("pl.ace", "id"))
KEYLESS = TableSchema("shop", "t", TABLE.columns, ())
FENCE = Fence("epoch", 1)
FEED, RETENTION = "delta.enableChangeDataFeed", "delta.deletedFileRetentionDuration"
PLACES = ("AT", "DE", "a b/é", None)

#: The columns of the source.
Row = tuple[int, str | None, str | None, int | None]
#: Version, kind of change, and the row as it is in the table; without ``_cdc_ts``.
Said = tuple[Any, ...]


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkDelta]:
    with spark_delta(quick=True) as run:
        yield run


def changes(*listed: tuple[Row, int, str]) -> pa.Table:
    names, moment = TABLE.sink_schema.names, datetime(2026, 1, 1, tzinfo=UTC)
    data = [
        dict(zip(names, (*r[:2], r[2] and datetime.fromisoformat(r[2]).date(), r[3], seq, op, moment), strict=True))
        for r, seq, op in listed
    ]
    return pa.Table.from_pylist(data, TABLE.sink_schema)


@dataclass
class Case:
    """A table with a feed."""

    folder: Path
    merge: str = "vectors"
    deletes: str = HARD
    parts: bool = False
    table: TableSchema = TABLE
    #: What the settings say of it; ``None`` for nothing.
    on: bool | None = True
    retention: str | None = None
    adopt: bool = False
    seq: int = 0
    group: int = 0
    batches: int = 0
    #: The key of each row -> its values, ``_cdc_seq``, ``_cdc_op``, and ``_cdc_deleted`` where it is kept.
    rows: dict[Any, tuple[Any, ...]] = field(default_factory=dict)
    said: Counter[Said] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.target = self.opened()
        self.target.create("p")

    @property
    def sink(self) -> DeltaSink:
        properties = {FEED: self.on, RETENTION: self.retention}
        return DeltaSink(
            str(self.folder),
            "p",
            ("shop..*",) if self.merge == "copies" else (),
            deletes=DeletePolicy(**({} if self.deletes == HARD else {self.deletes: ("shop..*",)})),
            table_properties=TableProperties.parse(
                {name: value for name, value in properties.items() if value is not None}
            ),
            adopt=self.adopt,
            partition_by=(("shop..*", (("pl.ace", None), ("made", "month"))),) if self.parts else (),
        )

    def opened(self) -> DeltaSinkTable:
        return self.sink.table(self.table)

    @property
    def path(self) -> Path:
        return self.folder / "shop" / "t"

    @property
    def version(self) -> int:
        return self.target.load_log().version

    def key(self, row: Row) -> Any:
        return (row[1], row[0]) if self.table is NAMED else row[0]

    # ------------------------------------------------------------ what is done, and what it comes to

    def do(self, change: Change, after: dict[Any, tuple[Any, ...]]) -> bool:
        """Commit a change.

        :param after: the rows that are there then, as the source has it.
        """
        before = self.version
        stood = self.target.commit(lambda _: change, {}, FENCE)
        assert self.version == before + stood
        self.expect(before + 1, after)
        return stood

    def expect(self, version: int, after: dict[Any, tuple[Any, ...]]) -> None:
        """Take note of what a version does."""
        for key in {*self.rows, *after}:
            old, new = self.rows.get(key), after.get(key)
            if old is None:
                self.said[(version, "insert", *after[key])] += 1
            elif new is None:
                self.said[(version, "delete", *old)] += 1
            elif old != new:
                self.said[(version, "update_preimage", *old)] += 1
                self.said[(version, "update_postimage", *new)] += 1
        self.rows = after

    def kept(self, row: Row, seq: int, op: str) -> tuple[Any, ...]:
        return (*row, seq, op, *([op == "d"] if self.deletes == SOFT else []))

    def publish(self, *listed: Row) -> bool:
        self.group += 1
        file = self.target.stage(f"1/{self.group}/1/s", [changes(*((row, self.seq, "r") for row in listed))])
        return self.do(
            PublishSlices([file]), self.rows | {self.key(row): self.kept(row, self.seq, "r") for row in listed}
        )

    def batch(self, *listed: tuple[Row, str], stale: bool = False) -> bool:
        """Changes of rows in binlog order, as tasks stage them: each a transaction of its own.

        :param stale: they are older than all rows.
        """
        self.batches += 1
        name, staging = f"epoch-1/{self.batches}", self.sink.change_staging()
        numbered = [(row, 0 if stale else self.seq + at + 1, op) for at, (row, op) in enumerate(listed)]
        self.seq += len(listed)
        writer = staging.open_writer(self.table, name)
        for at in range(0, len(numbered), 3):
            writer.add(changes(*numbered[at : at + 3]).combine_chunks().to_batches()[0])
        writer.close()
        after = dict(self.rows)
        for row, seq, op in numbered:  # the last one of each key counts, and only against the row as it was before
            key = self.key(row)
            if self.deletes == IGNORE and op == "d":
                continue
            if key in self.rows and self.rows[key][4] >= seq:
                continue
            if op == "d" and self.deletes == HARD:
                after.pop(key, None)
            else:
                after[key] = self.kept(row, seq, op)
        found = last_changes(staging.read_for_apply(self.table, [name]), self.table.key)
        stood = self.do(Upsert(found), after)
        staging.discard_applied(self.table, [name])
        return stood

    def truncate(self) -> bool:
        self.seq += 1
        after = dict(self.rows)
        for key, row in self.rows.items():
            if row[4] >= self.seq or self.deletes == IGNORE:
                continue
            if self.deletes == HARD:
                del after[key]
            elif not row[6]:
                after[key] = (*row[:4], self.seq, "d", True)
        return self.do(Truncate(self.seq, 5), after)

    def reread(self, below: int, *listed: Row) -> bool:
        """All rows with such keys are read again."""
        self.seq += 1
        file = self.target.stage(f"1/1/{self.seq + 1}/s", [changes(*((row, self.seq, "r") for row in listed))])
        found = {self.key(row): self.kept(row, self.seq, "r") for row in listed}
        after = self.rows | found
        for key, row in self.rows.items():
            if row[0] < below and key not in found:
                if self.deletes == HARD:
                    del after[key]
                elif self.deletes == SOFT and not row[6]:
                    after[key] = (*row[:5], "d", True)

        def owned(keys: pa.Table) -> pa.Array:
            return pa.array([key < below for key in keys["id"].to_pylist()], pa.bool_())

        return self.do(OverwriteRange([file], (1, 1), owned, (0, below - 1)), after)

    def count(self, gone: Sequence[Row], added: Sequence[Row], since: int = 0) -> bool:
        """Changes of a table without a key; what they come to is told by the rows before and after."""
        self.seq += 1
        before, version = self.held(), self.version
        listed = [*((row, self.seq, "d") for row in gone), *((row, self.seq, "c") for row in added)]
        change = net_change(changes(*listed), [c.name for c in TABLE.columns])
        stood = self.target.commit(lambda _: MultisetChange(change, since), {}, FENCE)
        after = self.held()
        for row, count in (before - after).items():
            self.said[(version + 1, "delete", *row)] += count
        for row, count in (after - before).items():
            self.said[(version + 1, "insert", *row)] += count
        return stood

    def compact(self) -> bool:
        """It changes no row, so the feed says nothing."""
        self.target.load_log()
        return self.target.commit_compactions([(work, work.run()) for work in self.target.plan_compactions()]) > 0

    # ------------------------------------------------------------ what is there

    def held(self) -> Counter[tuple[Any, ...]]:
        return Counter(
            _plain(row) for row in self.opened().read_with_soft_deleted().drop_columns([TS_COLUMN]).to_pylist()
        )

    def cdc(self, version: int) -> list[dict[str, Any]]:
        """Actions of a commit for the feed."""
        lines = (self.path / "_delta_log" / f"{version:020d}.json").read_text().splitlines()
        return [action["cdc"] for line in lines if "cdc" in (action := json.loads(line))]

    def recorded(self, version: int) -> set[tuple[str, int, int]]:
        """What the files of a commit say: kind of change, key and value."""
        found = [pq.read_table(self.path / unquote(action["path"]), partitioning=None) for action in self.cdc(version)]
        listed = [(r["_change_type"], r["id"], r["v"]) for table in found for r in table.to_pylist()]
        assert len({*listed}) == len(listed)
        return {*listed}

    def feed(self, spark: SparkDelta, since: int = 0) -> Counter[Said]:
        """The feed as Spark reads it."""
        columns = (
            [c.name for c in TABLE.columns]
            + [SEQ_COLUMN, OP_COLUMN]
            + ([DELETED_COLUMN] if self.deletes == SOFT else [])
        )
        listed = ", ".join(f"`{name}`" for name in columns)
        query = f"SELECT _commit_version, _change_type, {listed} FROM table_changes('delta.`{self.path}`', {since})"
        return Counter(_plain(dict(zip(["version", "type", *columns], row, strict=True))) for row in spark(query))


def _plain(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(value.isoformat() if name == "made" and value else value for name, value in row.items())


MERGES = pytest.mark.parametrize("merge", ["vectors", "copies"])


def row(key: int, value: int | None = 0, place: str | None = "AT", made: str | None = "2026-01-31") -> Row:
    return (key, place, made, value)


# ---------------------------------------------------------------- histories


def history(case: Case, seed: int, steps: int = 14, places: Sequence[str | None] = PLACES) -> None:
    """Do something at random, several times."""
    rng = random.Random(seed)

    def some(key: int) -> Row:
        made = rng.choice(["2026-01-31", "2026-02-01", None])
        place = f"k{key % 3}" if case.table is NAMED else rng.choice(places)
        return (key, place, made, rng.choice([None, *range(5)]))

    case.publish(*(some(key) for key in range(10)))
    case.publish(*(some(key) for key in range(100, 110)))
    for _ in range(steps):
        what = rng.choices(["batch", "truncate", "reread", "compact", "stale", "fence"], [9, 1, 2, 2, 1, 1])[0]
        if what in ("batch", "stale"):
            keys = [*range(12), *range(100, 112)]
            found = [(some(rng.choice(keys[: rng.choice([3, 24])])), rng.choice("ccuuud")) for _ in range(9)]
            case.batch(*found[: rng.randint(1, 9)], stale=what == "stale")
        elif what == "truncate":
            case.truncate()
        elif what == "reread":
            case.reread(50, *(some(key) for key in sorted(rng.sample(range(12), rng.randint(1, 9)))))
        elif what == "compact":
            case.compact()
        else:
            case.target.raise_fence(Fence("epoch", 1))


CASES = [
    (HARD, False, "integer"),
    (HARD, True, "integer"),
    (SOFT, False, "text"),
    (SOFT, True, "integer"),
    (IGNORE, True, "text"),
]
HISTORIES = [
    pytest.param(merge, *case, marks=[pytest.mark.long] if merge == "copies" and case != CASES[1] else [])
    for merge in ("vectors", "copies")
    for case in CASES
]


@pytest.mark.spark
@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.long) for n in range(2, 9))])
@pytest.mark.parametrize(("merge", "deletes", "parts", "key"), HISTORIES, ids=lambda value: str(value))
def test_what_spark_reads_is_what_the_source_did(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    spark: SparkDelta,
    merge: str,
    deletes: str,
    parts: bool,
    key: str,
    seed: int,
) -> None:
    monkeypatch.setattr(compaction, "FANOUT", 2)
    monkeypatch.setattr(compaction, "MIN_FANOUT", 2)
    case = Case(tmp_path, merge, deletes, parts, TABLE if key == "integer" else NAMED)
    history(case, seed)
    assert case.feed(spark) == case.said
    # The other way round: applied to nothing, the feed is the table.
    state: Counter[Any] = Counter()
    for (_, kind, *values), count in case.said.items():
        state[tuple(values)] += count * (1 if kind in ("insert", "update_postimage") else -1)
    assert +state == case.held() and min(state.values()) >= 0


@pytest.mark.parametrize("parts", [False, True])
@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.long) for n in range(2, 6))])
def test_what_delta_rs_reads_is_what_the_source_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, parts: bool
) -> None:
    """Where there are no deletion vectors; in partitions whose folders have plain names."""
    monkeypatch.setattr(compaction, "FANOUT", 2)
    monkeypatch.setattr(compaction, "MIN_FANOUT", 2)
    case = Case(tmp_path, "copies", HARD, parts)
    history(case, seed, places=("AT", "DE", None))
    read = pa.table(DeltaTable(str(case.path)).load_cdf(starting_version=0).read_all())
    columns = ["_commit_version", "_change_type", *(c.name for c in TABLE.columns), SEQ_COLUMN, OP_COLUMN]
    assert Counter(map(_plain, read.select(columns).to_pylist())) == case.said


@MERGES
def test_a_row_dies_once(tmp_path: Path, merge: str) -> None:
    """What was dead before is not deleted again with the file that it is in."""
    case = Case(tmp_path, merge)
    case.publish(row(1), row(2), row(3))
    case.batch((row(1), "d"))
    case.reread(50, row(2, 5), row(4))
    assert case.recorded(case.version) == {
        *(("update_preimage", 2, 0), ("update_postimage", 2, 5)),
        *(("delete", 3, 0), ("insert", 4, 0)),
    }


@pytest.mark.spark
@pytest.mark.parametrize("parts", [False, True])
@MERGES
def test_a_table_without_a_key(tmp_path: Path, spark: SparkDelta, merge: str, parts: bool) -> None:
    """Rows come and go: nothing says which of them was another one before."""
    case = Case(tmp_path, merge, parts=parts, table=KEYLESS)
    case.count([], [row(1), row(1), row(2), row(3, place=None)])
    case.count([row(1), row(3, place=None)], [row(1, 5), row(2, place="DE")])
    case.count([row(2, place="DE")], [], since=0)
    case.count([], [row(9)], since=case.seq + 1)  # after a TRUNCATE
    assert case.feed(spark) == case.said
    assert {kind for _, kind, *_ in case.said} == {"insert", "delete"}


@MERGES
def test_rows_without_a_key_are_never_updated(tmp_path: Path, merge: str) -> None:
    case = Case(tmp_path, merge, table=KEYLESS)
    case.count([], [row(1), row(2)])
    case.count([row(1)], [row(1, 5)])
    assert case.recorded(case.version) == {("delete", 1, 0), ("insert", 1, 5)}
    case.count([], [row(2), row(3)], since=case.seq + 1)  # after a TRUNCATE, an equal one
    assert case.recorded(case.version) == {
        *(("delete", 1, 5), ("delete", 2, 0)),
        *(("insert", 2, 0), ("insert", 3, 0)),
    }


@MERGES
def test_what_a_commit_says_itself_is_not_written(tmp_path: Path, merge: str) -> None:
    """What is only added, and what only goes as whole files; and what changes no row."""
    case = Case(tmp_path, merge)
    case.publish(row(1), row(2))
    case.publish(row(3))
    assert case.cdc(case.version) == []
    case.batch((row(4), "c"))
    assert bool(case.cdc(case.version)) == (merge == "copies"), "a small file was written anew with it"
    case.batch((row(1, 7), "u"))
    assert case.cdc(case.version)
    case.truncate()
    assert case.cdc(case.version) == [] and not case.held()
    case.target.raise_fence(Fence("epoch", 1))
    assert case.cdc(case.version) == []


@MERGES
def test_nothing_is_written_where_it_is_off(tmp_path: Path, merge: str) -> None:
    case = Case(tmp_path, merge, on=False)
    history(case, 1)
    assert not (case.path / "_change_data").exists()
    log = case.target.load_log()
    assert all(not case.cdc(version) for version in range(log.version + 1))
    assert "changeDataFeed" not in json.dumps(log.protocol)


@pytest.mark.spark
@MERGES
def test_changes_of_one_key_in_a_batch_are_one(tmp_path: Path, spark: SparkDelta, merge: str) -> None:
    case = Case(tmp_path, merge)
    case.publish(row(1), row(2), row(3))
    case.batch(
        *((row(1, 5), "u"), (row(1, 6), "u")),
        *((row(2), "d"), (row(2, 7), "c")),
        *((row(3, 8), "u"), (row(3, 8), "d")),
        *((row(4), "c"), (row(4), "d")),
        *((row(5), "c"), (row(5, 9), "u")),
    )
    kinds = {(kind, key, value) for version, kind, key, _, _, value, *_ in case.feed(spark) if version == case.version}
    assert kinds == case.recorded(case.version)
    assert kinds == {
        *(("update_preimage", 1, 0), ("update_postimage", 1, 6)),
        *(("update_preimage", 2, 0), ("update_postimage", 2, 7)),
        ("delete", 3, 0),
        ("insert", 5, 9),
    }


@MERGES
def test_a_commit_that_came_too_late_leaves_nothing(tmp_path: Path, merge: str) -> None:
    """It is decided again, and read again: the row that dies is another one then."""
    case = Case(tmp_path, merge)
    case.publish(row(1), row(2))
    other = beside(case)
    asked: list[int] = []

    def decide(_: object) -> Change:
        asked.append(case.target.load_log().version)
        if len(asked) == 1:
            other.batch((row(1, 5), "u"))
        return Upsert(changes((row(1, 6), 50, "u"), (row(3), 51, "c")))

    assert case.target.commit(decide, {}, FENCE)
    assert len(asked) == 2
    assert case.recorded(case.version - 1) == {("update_preimage", 1, 0), ("update_postimage", 1, 5)}
    assert case.recorded(case.version) == {
        *(("update_preimage", 1, 5), ("update_postimage", 1, 6)),
        ("insert", 3, 0),
    }
    named = {action["path"] for version in range(case.version + 1) for action in case.cdc(version)}
    assert {p.relative_to(case.path).as_posix() for p in case.path.glob("_change_data/**/*.parquet")} == named


def test_a_file_that_only_an_old_version_has_was_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit would have come too late, and does so before it is made."""
    monkeypatch.setattr(compaction, "FANOUT", 2)
    monkeypatch.setattr(compaction, "MIN_FANOUT", 2)
    case = Case(tmp_path)
    case.publish(row(1), row(2))
    case.publish(row(3))
    case.batch((row(1, 5), "u"))
    before = {*case.target.load_log().files}
    assert beside(case).compact()
    for name in before:
        (case.path / name).unlink()
    assert case.target.commit(lambda _: Upsert(changes((row(1, 6), 50, "u"))), {}, FENCE)
    assert case.recorded(case.version) == {("update_preimage", 1, 5), ("update_postimage", 1, 6)}


def beside(case: Case) -> Case:
    """The same table, as another process has it."""
    other = Case(case.folder, case.merge, case.deletes, case.parts, case.table)
    other.seq, other.group, other.batches = case.seq, case.group, case.batches + 10
    other.rows, other.said = dict(case.rows), Counter(case.said)
    return other


# ---------------------------------------------------------------- it begins, and ends


@pytest.mark.parametrize("who", ["settings", "somebody"])
@MERGES
def test_the_table_says_whether_there_is_one(tmp_path: Path, merge: str, who: str) -> None:
    case = Case(tmp_path, merge, on=None)
    case.publish(row(1), row(2))
    if who == "settings":
        case.on = True
        case.target = case.opened()
    else:
        log = case.target.load_log()
        wanted = {**log.metadata, "configuration": {**log.properties, FEED: "true"}}
        assert log.commit(features.reconfigure_actions(log.protocol, log.metadata, wanted), "SET TBLPROPERTIES")
    case.batch((row(1, 6), "u"))
    assert case.recorded(case.version) == {("update_preimage", 1, 0), ("update_postimage", 1, 6)}
    assert "changeDataFeed" in case.target.load_log().protocol["writerFeatures"]
    case.on = False
    case.target = case.opened()
    case.batch((row(1, 7), "u"))
    assert case.recorded(case.version) == set()


@pytest.mark.spark
@pytest.mark.parametrize("who", ["settings", "somebody"])
@MERGES
def test_it_begins_later(tmp_path: Path, spark: SparkDelta, merge: str, who: str) -> None:
    """By the settings, or behind our back: from the commit on that says so, the feed is right."""
    case = Case(tmp_path, merge, on=False)
    case.publish(row(1), row(2), row(3))
    case.batch((row(1, 5), "u"))
    if who == "settings":
        case.on = True
        case.target = case.opened()
        since = case.version + 1
    else:
        case.on = None
        spark(f"ALTER TABLE delta.`{case.path}` SET TBLPROPERTIES ('{FEED}' = 'true')")
        since = case.version
        case.target = case.opened()
    case.said.clear()
    case.batch((row(1, 6), "u"), (row(2), "d"), (row(4), "c"))
    case.batch((row(4, 1), "u"))
    case.compact()
    assert case.feed(spark, since) == case.said


@MERGES
def test_vectors_begin_and_end_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, merge: str) -> None:
    """Whoever changes the protocol of the table leaves it the feed."""
    monkeypatch.setattr(compaction, "FANOUT", 2)
    monkeypatch.setattr(compaction, "MIN_FANOUT", 2)
    case = Case(tmp_path, merge)
    case.publish(row(1), row(2), row(3))
    case.batch((row(1, 5), "u"))
    case.merge = "copies" if merge == "vectors" else "vectors"
    case.target = case.opened()
    case.batch((row(2, 5), "u"))
    assert may_have_it(case)
    case.compact()
    case.target.clean_up()
    assert may_have_it(case)
    assert ("deletionVectors" in case.target.load_log().protocol["writerFeatures"]) == (case.merge == "vectors")
    case.batch((row(3, 5), "u"))
    assert case.recorded(case.version) == {("update_preimage", 3, 0), ("update_postimage", 3, 5)}


def may_have_it(case: Case) -> bool:
    """Whether the protocol of the table, as it stands, lets it have a feed."""
    protocol = case.target.load_log().protocol
    return "changeDataFeed" in (protocol.get("writerFeatures") or ()) or 4 <= protocol["minWriterVersion"] < 7


def adopted(folder: Path, merge: str, wanted: bool) -> Case:
    """A table with a feed that delta-rs has made, and its row that went then."""
    theirs = changes((row(1), 0, "r")).select([c.name for c in TABLE.columns])
    write_deltalake(str(folder / "shop" / "t"), theirs, configuration={FEED: "true"})
    case = Case(folder, merge, on=wanted or None, adopt=True)
    assert may_have_it(case)
    case.said[(case.version, "delete", *row(1), None, None)] += 1
    case.publish(row(1), row(2))
    case.batch((row(1, 5), "u"), (row(2), "d"))
    return case


WANTED = pytest.mark.parametrize("wanted", [True, False], ids=["asked for", "theirs"])


@WANTED
@MERGES
def test_a_table_that_is_adopted_keeps_it(tmp_path: Path, merge: str, wanted: bool) -> None:
    case = adopted(tmp_path, merge, wanted)
    assert case.recorded(case.version) == {
        *(("update_preimage", 1, 0), ("update_postimage", 1, 5)),
        ("delete", 2, 0),
    }


@MERGES
def test_an_adopted_table_whose_protocol_lacks_its_feed(tmp_path: Path, merge: str) -> None:
    """Somebody has set the property and left the protocol as it was."""
    write_deltalake(str(tmp_path / "shop" / "t"), changes((row(1), 0, "r")).select([c.name for c in TABLE.columns]))
    log = tmp_path / "shop" / "t" / "_delta_log"
    created = [json.loads(line) for line in (log / f"{0:020}.json").read_text().splitlines()]
    (metadata,) = (action["metaData"] for action in created if "metaData" in action)
    metadata["configuration"][FEED] = "true"
    (log / f"{1:020}.json").write_text(json.dumps({"metaData": metadata}) + "\n")
    assert may_have_it(Case(tmp_path, merge, on=None, adopt=True))


@pytest.mark.spark
@WANTED
@MERGES
def test_the_feed_of_a_table_that_is_adopted(tmp_path: Path, spark: SparkDelta, merge: str, wanted: bool) -> None:
    """Its rows go, which the feed says; and goes on."""
    case = adopted(tmp_path, merge, wanted)
    assert case.feed(spark, 1) == case.said


@pytest.mark.spark
def test_a_table_that_begins_anew(tmp_path: Path, spark: SparkDelta) -> None:
    """Another snapshot: all rows go, then others come."""
    case = Case(tmp_path)
    case.publish(row(1), row(2))
    case.batch((row(1, 5), "u"))
    case.target.reset("p", Fence("generation", 2), [])
    case.expect(case.version, {})
    case.publish(row(1, 5), row(3))
    case.batch((row(3, 5), "u"))
    assert case.feed(spark) == case.said


@pytest.mark.parametrize("merge", ["vectors", "copies"])
def test_columns_that_readers_of_a_feed_take_for_theirs(tmp_path: Path, merge: str) -> None:
    taken = TableSchema("shop", "t", (ID, nullable("_Change_Type", "int")), ("id",))
    with pytest.raises(NotReadyError, match=r"table shop.t has a column _Change_Type.*exclude_columns"):
        Case(tmp_path, merge, table=taken)
    case = Case(tmp_path, merge, table=taken, on=False)
    log = case.target.load_log()
    assert log.commit([{"metaData": {**log.metadata, "configuration": {**log.properties, FEED: "true"}}}], "SET")
    with pytest.raises(TerminalError, match="uses changeDataFeed, which hides its columns _Change_Type"):
        case.opened().load_log()


# ---------------------------------------------------------------- what it costs


def test_only_the_row_groups_of_rows_that_die_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So it costs what changes, and hardly what the table holds."""
    monkeypatch.setattr(table_metadata, "_FEED_ROW_GROUP_SIZE", 10)
    case = Case(tmp_path)
    case.publish(*(row(key, key) for key in range(1000)))
    case.batch((row(5, 1), "u"))  # the index is made
    (path,) = case.path.glob("snapshot/**/*.parquet")
    about = pq.ParquetFile(path).metadata
    assert about.num_row_groups == 100
    data = bytearray(path.read_bytes())
    for number in {*range(100)} - {0, 42, 99}:
        group = about.row_group(number)
        for column in range(group.num_columns):
            chunk = group.column(column)
            begin = chunk.dictionary_page_offset or chunk.data_page_offset
            data[begin : begin + chunk.total_compressed_size] = bytes(chunk.total_compressed_size)
    path.write_bytes(data)
    case.batch((row(7, 1), "u"), (row(427), "d"), (row(999, 1), "u"), (row(2000), "c"))
    assert case.recorded(case.version) == {
        *(("update_preimage", 7, 7), ("update_postimage", 7, 1), ("delete", 427, 427)),
        *(("update_preimage", 999, 999), ("update_postimage", 999, 1), ("insert", 2000, 0)),
    }


# ---------------------------------------------------------------- for how long it is kept

HOUR = 3600.0


@pytest.mark.parametrize("retention", [None, "interval 3 days"])
@MERGES
def test_it_is_kept_for_as_long_as_the_table_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, merge: str, retention: str | None
) -> None:
    """Also what commits say by data files that are gone by now."""
    monkeypatch.setattr(compaction, "FANOUT", 2)
    monkeypatch.setattr(compaction, "MIN_FANOUT", 2)
    case = Case(tmp_path, merge, retention=retention)
    history(case, 3)
    DeltaTable(str(case.path)).create_checkpoint()  # a run that begins then knows from it what was removed
    hours = 24.0 if retention is None else 72.0
    assert case.target.load_log().properties[RETENTION] == (retention or "interval 1 days")
    before = present(case.path)
    monkeypatch.setattr(maintenance, "feed_file_time", lambda name: 0.0)  # that of the writer, which has not moved
    for later, kept in ((hours - 0.1, True), (0.2, False)):
        age(case.path, later)
        case.opened().clean_up()
        if kept:
            assert present(case.path) == before
    assert present(case.path) == needed(case.target.load_log())
    assert case.opened().read()[0].num_rows == case.held().total()


def test_files_of_others_go_by_the_time_at_which_they_were_written(tmp_path: Path) -> None:
    """And none before the retention, whatever its name says."""
    case = Case(tmp_path)
    case.publish(row(1))
    case.batch((row(1, 5), "u"))
    (ours,) = (action["path"] for action in case.cdc(case.version))
    old = f"_change_data/cdc-1000000000-{'0' * 32}-0.parquet"
    theirs = {"_change_data/cdc-00000-new.c000.parquet": 1.0, "_change_data/cdc-00000-old.c000.parquet": 25.0, old: 1.0}
    for name, hours in theirs.items():
        (case.path / name).write_bytes(b"x")
        os.utime(case.path / name, (0, time.time() - hours * HOUR))
    case.target.clean_up()
    left = {name for name in present(case.path) if name.startswith("_change_data/")}
    assert left == {ours, "_change_data/cdc-00000-new.c000.parquet", old}


def test_a_retention_that_is_not_understood(tmp_path: Path) -> None:
    case = Case(tmp_path)
    case.publish(row(1))
    log = case.target.load_log()
    wanted = {**log.properties, RETENTION: "a while"}
    assert log.commit([{"metaData": {**log.metadata, "configuration": wanted}}], "SET TBLPROPERTIES")
    with pytest.raises(TerminalError, match="no old files.*'a while', which this version does not understand.*ALTER"):
        case.opened().clean_up()
    case.on = False
    case.target = case.opened()
    case.batch((row(2), "c"))
    with pytest.raises(TerminalError, match="no old files.*'a while'"):
        case.target.clean_up()
    assert file_retention({RETENTION: "interval 1 week 2 days 3 HOURS"}) == 219 * HOUR
    assert file_retention({RETENTION: "90 seconds 500 milliseconds"}) == 90.5
    assert file_retention({}) == 7 * 24 * HOUR and log_retention({}) == 30 * 24 * HOUR


@pytest.mark.spark
@pytest.mark.parametrize("program", ["Spark", pytest.param("delta-rs", marks=pytest.mark.long), "delta-rs, full"])
@MERGES
def test_a_vacuum_of_others_leaves_it_alone(tmp_path: Path, spark: SparkDelta, merge: str, program: str) -> None:
    case = Case(tmp_path, merge)
    case.publish(row(1), row(2))
    case.batch((row(1, 5), "u"), (row(2), "d"))
    case.batch((row(1, 6), "u"), (row(3), "c"))
    if program == "Spark":
        spark(f"VACUUM delta.`{case.path}`")
    else:
        DeltaTable(str(case.path)).vacuum(24, dry_run=False, full=program.endswith("full"))
    assert case.feed(spark) == case.said
    case.batch((row(3, 6), "u"))
    assert case.feed(spark) == case.said


# ---------------------------------------------------------------- elsewhere


@MERGES
def test_in_an_object_store(s3: S3, merge: str) -> None:
    """As delta-rs reads it, from the store."""
    properties = TableProperties.parse({FEED: True})
    copies = ("shop..*",) if merge == "copies" else ()
    sink = DeltaSink(s3.uri("lake"), "p", copies, table_properties=properties, access=access(s3))
    target = sink.table(TABLE)
    target.create("p")
    file = target.stage("1/1/1/s", [changes((row(1), 1, "r"), (row(2), 1, "r"), (row(3), 1, "r"))])
    assert target.commit(lambda _: PublishSlices([file]), {}, FENCE)
    change = Upsert(changes((row(1, 5), 2, "u"), (row(2), 3, "d"), (row(4), 4, "c")))
    assert target.commit(lambda _: change, {}, FENCE)
    target.clean_up()
    table = DeltaTable(s3.uri("lake/shop/t"), storage_options=s3.options)
    read = pa.table(table.load_cdf(starting_version=2).read_all()).to_pylist()
    assert sorted((r["_change_type"], r["id"], r["v"]) for r in read) == [
        ("delete", 2, 0),
        ("insert", 4, 0),
        ("update_postimage", 1, 5),
        ("update_preimage", 1, 0),
    ]
