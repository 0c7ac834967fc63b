"""The change data feed: what Spark reads of it is what the source did, commit by commit, net."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_cdc.core.changes import last_changes
from airflow_provider_cdc.core.deletes import HARD, IGNORE, SOFT, Deletes
from airflow_provider_cdc.core.multiset import net
from airflow_provider_cdc.core.schema import DELETED, OP, SEQ, TS, Column, TableSchema
from airflow_provider_cdc.core.table_properties import TableProperties
from airflow_provider_cdc.sinks.delta import compaction
from airflow_provider_cdc.sinks.delta.sink import DeltaSink
from airflow_provider_cdc.sinks.delta.table import DeltaTarget
from airflow_provider_cdc.sinks.protocol import Change, Counted, Emptied, Fence, Published, Replaced, Upserted
from tests.sinks.conformance import nullable
from tests.support.spark_delta import SparkDelta, spark_delta

ID = Column("id", "bigint", "bigint", nullable=False)
PLACE = nullable("pl.ace", "varchar", "varchar(9)", charset="utf8mb4")
MADE = nullable("made", "date")
VALUE = nullable("v", "int")
TABLE = TableSchema("shop", "t", (ID, PLACE, MADE, VALUE), ("id",))
NAMED = TableSchema("shop", "t", (ID, PLACE, MADE, VALUE), ("pl.ace", "id"))
KEYLESS = TableSchema("shop", "t", TABLE.columns, ())
FENCE = Fence("epoch", 1)
FEED = "delta.enableChangeDataFeed"
PLACES = ("AT", "DE", "a b/é", None)

#: The columns of the source.
Row = tuple[int, str | None, str | None, int | None]
#: Version, kind of change, and the row as it is in the table; without ``_cdc_ts``.
Said = tuple[Any, ...]


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkDelta]:
    with spark_delta(quick=True) as run:
        yield run


@dataclass
class Case:
    """A table with a feed."""

    folder: Path
    merge: str = "vectors"
    deletes: str = HARD
    parts: bool = False
    table: TableSchema = TABLE
    on: bool = True
    seq: int = 0
    group: int = 0
    changes: int = 0
    #: The key of each row -> its values, ``_cdc_seq``, ``_cdc_op``, and ``_cdc_deleted`` where it is kept.
    rows: dict[Any, tuple[Any, ...]] = field(default_factory=dict)
    said: Counter[Said] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.target = self.opened()
        self.target.create("p")

    @property
    def sink(self) -> DeltaSink:
        return DeltaSink(
            str(self.folder),
            "p",
            ("shop..*",) if self.merge == "copies" else (),
            deletes=Deletes(**({} if self.deletes == HARD else {self.deletes: ("shop..*",)})),
            table_properties=TableProperties.parse({FEED: self.on}),
            partition_by=(("shop..*", (("pl.ace", None), ("made", "month"))),) if self.parts else (),
        )

    def opened(self) -> DeltaTarget:
        return self.sink.table(self.table)

    @property
    def path(self) -> Path:
        return self.folder / "shop" / "t"

    @property
    def version(self) -> int:
        return self.target.load().version

    def key(self, row: Row) -> Any:
        return (row[1], row[0]) if self.table is NAMED else row[0]

    def arrow(self, *listed: tuple[Row, int, str]) -> pa.Table:
        names, moment = TABLE.sink_schema.names, datetime(2026, 1, 1, tzinfo=UTC)
        data = [
            dict(zip(names, (*r[:2], r[2] and datetime.fromisoformat(r[2]).date(), r[3], seq, op, moment), strict=True))
            for r, seq, op in listed
        ]
        return pa.Table.from_pylist(data, TABLE.sink_schema)

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
        file = self.target.stage(f"1/{self.group}/1/s", [self.arrow(*((row, self.seq, "r") for row in listed))])
        return self.do(Published([file]), self.rows | {self.key(row): self.kept(row, self.seq, "r") for row in listed})

    def batch(self, *listed: tuple[Row, str], stale: bool = False) -> bool:
        """Changes of rows in binlog order, as tasks stage them: each a transaction of its own.

        :param stale: they are older than all rows.
        """
        self.changes += 1
        name, staging = f"epoch-1/{self.changes}", self.sink.staging()
        numbered = [(row, 0 if stale else self.seq + at + 1, op) for at, (row, op) in enumerate(listed)]
        self.seq += len(listed)
        writer = staging.writer(self.table, name)
        for at in range(0, len(numbered), 3):
            writer.add(self.arrow(*numbered[at : at + 3]).combine_chunks().to_batches()[0])
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
        changes = staging.changes(self.table, [name])
        stood = self.do(Upserted(last_changes(changes, self.table.key)), after)
        staging.applied(self.table, [name])
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
        return self.do(Emptied(self.seq, 5), after)

    def reread(self, below: int, *listed: Row) -> bool:
        """All rows with such keys are read again."""
        self.seq += 1
        file = self.target.stage(f"1/1/{self.seq + 1}/s", [self.arrow(*((row, self.seq, "r") for row in listed))])
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

        return self.do(Replaced([file], (1, 1), owned, (0, below - 1)), after)

    def count(self, gone: Sequence[Row], added: Sequence[Row], since: int = 0) -> bool:
        """Changes of a table without a key; what they come to is told by the rows before and after."""
        self.seq += 1
        before, version = self.held(), self.version
        listed = [*((row, self.seq, "d") for row in gone), *((row, self.seq, "c") for row in added)]
        change = net(self.arrow(*listed), [c.name for c in TABLE.columns])
        stood = self.target.commit(lambda _: Counted(change, since), {}, FENCE)
        after = self.held()
        for row, count in (before - after).items():
            self.said[(version + 1, "delete", *row)] += count
        for row, count in (after - before).items():
            self.said[(version + 1, "insert", *row)] += count
        return stood

    def compact(self) -> bool:
        """It changes no row, so the feed says nothing."""
        self.target.load()
        return self.target.compacted([(work, work.run()) for work in self.target.compactions()])

    # ------------------------------------------------------------ what is there

    def held(self) -> Counter[tuple[Any, ...]]:
        return Counter(_plain(row) for row in self.opened().to_arrow().drop_columns([TS]).to_pylist())

    def cdc(self, version: int) -> list[dict[str, Any]]:
        """Actions of a commit for the feed."""
        lines = (self.path / "_delta_log" / f"{version:020d}.json").read_text().splitlines()
        return [action["cdc"] for line in lines if "cdc" in (action := json.loads(line))]

    def feed(self, spark: SparkDelta, since: int = 0) -> Counter[Said]:
        """The feed as Spark reads it."""
        columns = [c.name for c in TABLE.columns] + [SEQ, OP] + ([DELETED] if self.deletes == SOFT else [])
        listed = ", ".join(f"`{name}`" for name in columns)
        query = f"SELECT _commit_version, _change_type, {listed} FROM table_changes('delta.`{self.path}`', {since})"
        return Counter(_plain(dict(zip(["version", "type", *columns], row, strict=True))) for row in spark(query))


def _plain(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(value.isoformat() if name == "made" and value else value for name, value in row.items())


MERGES = pytest.mark.parametrize("merge", ["vectors", "copies"])


def row(key: int, value: int | None = 0, place: str | None = "AT", made: str | None = "2026-01-31") -> Row:
    return (key, place, made, value)


# ---------------------------------------------------------------- histories


def history(case: Case, seed: int, steps: int = 14) -> None:
    """Do something at random, several times."""
    rng = random.Random(seed)

    def some(key: int) -> Row:
        made = rng.choice(["2026-01-31", "2026-02-01", None])
        place = f"k{key % 3}" if case.table is NAMED else rng.choice(PLACES)
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


HISTORIES = [
    (merge, deletes, parts, name)
    for merge in ("vectors", "copies")
    for deletes, parts, name in (
        (HARD, False, "integer"),
        (HARD, True, "integer"),
        (SOFT, False, "text"),
        (SOFT, True, "integer"),
        (IGNORE, True, "text"),
    )
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
    monkeypatch.setattr(compaction, "SMALLS", 2)
    case = Case(tmp_path, merge, deletes, parts, TABLE if key == "integer" else NAMED)
    history(case, seed)
    assert case.feed(spark) == case.said
    # The other way round: applied to nothing, the feed is the table.
    state: Counter[Any] = Counter()
    for (_, kind, *values), count in case.said.items():
        state[tuple(values)] += count * (1 if kind in ("insert", "update_postimage") else -1)
    assert +state == case.held() and min(state.values()) >= 0
