"""A year of short runs: what a start reads, what lies in the sink and in the bookkeeping, and what a process holds, do
not grow with the number of runs, batches and re-reads.

Time is moved: it begins a year ago, and each run is a while after the one before. Nothing is measured in seconds.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from airflow_provider_cdc.apply.applier import ended_epoch_fence, epoch_fence, highest_epoch
from airflow_provider_cdc.apply.fencing import claim_epoch, raise_fences
from airflow_provider_cdc.maintenance.table_maintenance import compact_table
from airflow_provider_cdc.maintenance.task import run_compactions_in_threads
from airflow_provider_cdc.model.definition_history import DefinitionHistory
from airflow_provider_cdc.model.offset import Offset, Position, Timeline
from airflow_provider_cdc.model.plan import Plan
from airflow_provider_cdc.model.plan_history import FollowedDdl, Rejoin, Suspension
from airflow_provider_cdc.model.schema import OP_COLUMN, SEQ_COLUMN, TS_COLUMN, Column, TableSchema
from airflow_provider_cdc.mysql.binlog.events.table_map import TableMap
from airflow_provider_cdc.mysql.binlog.events.wire_types import LONG, WireColumn
from airflow_provider_cdc.mysql.binlog.kernels import walk_state
from airflow_provider_cdc.mysql.binlog.walk import change_buffers as walk_tables
from airflow_provider_cdc.mysql.client.charsets import UNICODE_DECODERS
from airflow_provider_cdc.resnapshot.superseded_files import remove_superseded_amendments
from airflow_provider_cdc.sinks.delta import maintenance
from airflow_provider_cdc.sinks.delta import table as delta_table
from airflow_provider_cdc.sinks.delta.log import delta_log as delta_log
from airflow_provider_cdc.sinks.delta.log.delta_log import DeltaLog
from airflow_provider_cdc.sinks.delta.sink import DeltaSink
from airflow_provider_cdc.sinks.files.layout import Layout, amendment_file, read_plan
from airflow_provider_cdc.sinks.protocol import Upsert
from airflow_provider_cdc.sinks.storage.local_storage import LocalStorage
from airflow_provider_cdc.sinks.storage.storage import write_json, write_json_once
from airflow_provider_cdc.state import StateDatabase, pruning

YEAR = 365 * 86400.0
COLUMNS = (Column("id", "int", "int", nullable=False), Column("v", "int", "int", nullable=True))
BUSY, STILL = (TableSchema("shop", name, COLUMNS, ("id",)) for name in ("busy", "still"))
LINEAGE = Timeline("server", "binlog.000001")
P = "p"


def _upserted(changes: pa.Table, _: object) -> Upsert:
    return Upsert(changes)


class Clock:
    """The time of this process: a year ago at first. Files that were written since are of that time, too."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._real, self._now = time.time, time.time() - YEAR
        monkeypatch.setattr(time, "time", lambda: self._now)
        monkeypatch.setattr(time, "monotonic", lambda: self._now)
        for module in ("streams", "observations", "control_requests", "events", "snapshots"):
            monkeypatch.setattr(f"airflow_provider_cdc.state.{module}.utc_now", self.moment)

    def moment(self) -> datetime:
        return datetime.fromtimestamp(self._now, UTC)

    def move(self, seconds: float, folder: Path) -> None:
        """Let time pass. Delta's own library goes by the real time, and so by that of the files."""
        for parent, _, names in os.walk(folder):
            for name in names:
                path = os.path.join(parent, name)
                if os.stat(path).st_mtime > self._now + 1:
                    os.utime(path, (self._now, self._now))
        self._now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def files_of(folder: Path) -> Counter[str]:
    """Files and folders, by the folder that they are in; what has a number in its name is one."""
    return Counter(
        "/".join(part for part in path.relative_to(folder).parts[:-1] if not part.rpartition("-")[2].isdigit())
        for path in folder.rglob("*")
    )


@dataclass
class Pipeline:
    """The sink and the bookkeeping of a pipeline, and runs of it as short as can be."""

    folder: Path
    clock: Clock
    seconds: float
    seq: int = 1 << 41
    most: Counter[str] = field(default_factory=Counter)

    @property
    def lake(self) -> Path:
        return self.folder / "lake"

    def make(self) -> None:
        sink = DeltaSink(str(self.lake), P)
        for table in (BUSY, STILL):
            sink.table(table).create(P)
        with closing(StateDatabase.open(f"sqlite:///{self.folder}/books.db", migrate=True)) as store:
            store.register_pipeline(P, "server")

    def run(self, *, batches: int, is_killed: bool) -> None:
        """What a run of the stream does with sink and bookkeeping: it takes over, applies batches, tidies and ends."""
        sink = DeltaSink(str(self.lake), P)
        tables, progress = dict(enumerate(map(sink.table, (BUSY, STILL)))), sink.resume_point()
        progress.create()
        with closing(StateDatabase.open(f"sqlite:///{self.folder}/books.db", migrate=False)) as store:
            known = {index: table.markers() for index, table in tables.items()}
            number = store.begin_epoch(P, highest_epoch(P, [*known.values(), progress.markers()]), "host", 1, 1.0)
            fence = epoch_fence(P, number)
            all_over = claim_epoch(P, progress, fence)
            raise_fences(P, fence, tables, known, older_epochs_ended=all_over)
            sink.change_staging().clear_older_epochs((BUSY, STILL), number)
            for batch in range(batches):
                self.seq += 100
                file = f"epoch-{number}/{self.seq}"
                with closing(sink.change_staging().open_writer(BUSY, file)) as writer:
                    writer.add(self._changes().to_batches()[0])
                changes = sink.change_staging().read_for_apply(BUSY, [file])
                tables[0].commit(partial(_upserted, changes), {f"cdc/{P}/stream": self.seq}, fence)
                offset = Offset("server", "binlog.000001", self.seq & ((1 << 41) - 1), "")
                progress.write(offset, LINEAGE, fence)
                at = offset.to_json()
                store.record_batch(P, number, batch, start_offset=at, end_offset=at, changes=1, bytes=100, seconds=0.1)
            if is_killed:
                return
            store.record_sample(P, number, lag_seconds=0.0, lag_bytes=0, purge_hours=None)
            for number_of_event in range(3):  # more than are kept, within half of the time
                store.add_event(P, "verify", f"event {number_of_event} of epoch {number}")
            request = store.add_request(P, "reread", "shop.busy", "somebody")
            store.take_request(request)
            store.end_request(request, "done", "it was")
            if batches:
                looked_after = DeltaSink(str(self.lake), P).table(BUSY)
                compact_table(looked_after, run_compactions_in_threads)
                looked_after.clean_up()
                assert not looked_after.load_log().revived_files
            progress.raise_fence(ended_epoch_fence(P, number))
            store.end_epoch(P, number, "caught_up")

    def _changes(self) -> pa.Table:
        row = {"id": self.seq // 100 % 50, "v": self.seq & 0xFFFF, SEQ_COLUMN: self.seq, OP_COLUMN: "u", TS_COLUMN: 0}
        return pa.Table.from_pylist([row], schema=BUSY.sink_schema)

    def live(self, runs: int, batches: int) -> None:
        """So many runs. One of five is killed, and one of ten has nothing to do; what is most is noted.

        Each call draws the same, and measures after the same of its runs: what differs has grown.
        """
        draw = random.Random(5)
        for number in range(1, runs + 1):
            self.run(batches=0 if draw.random() < 0.1 else batches, is_killed=draw.random() < 0.2)
            self.clock.move(self.seconds, self.lake)
            if number % 7 == 0:
                self.most |= Counter(self.measure())

    def measure(self) -> dict[str, int]:
        """What a start has to read, and what there is."""
        found: dict[str, int] = {}
        for name in ("shop/busy", "shop/still", f"_cdc_progress/{P}"):
            log = DeltaLog(LocalStorage(self.lake / name))
            log.refresh()
            found[f"commits of {name}"] = log.version - (log.checkpoint_version or 0)
            found[f"live files of {name}"] = len(log.files)
            found[f"tombstones of {name}"] = len(log.tombstones)
        found |= {f"files in {name}": count for name, count in files_of(self.lake).items()}
        with closing(StateDatabase.open(f"sqlite:///{self.folder}/books.db", migrate=False)) as store:
            found |= {f"rows of {name}": count for name, count in store.count_rows_by_table(P).items()}
        return found


def is_flat(before: Counter[str], after: Counter[str]) -> list[str]:
    """What is more in the second half of a time than in the first one, but for what differs by chance."""
    return [f"{name}: {before[name]} -> {count}" for name, count in after.items() if count > before[name] * 1.25 + 5]


def check_year(folder: Path, clock: Clock, runs: int, batches: int) -> None:
    pipeline = Pipeline(folder, clock, YEAR / runs)
    pipeline.make()
    pipeline.live(runs // 2, batches)
    first, pipeline.most = pipeline.most, Counter()
    pipeline.live(runs - runs // 2, batches)
    assert is_flat(first, pipeline.most) == []
    assert first["rows of streams"] > 1 and first["commits of shop/still"] > 1, "it is looked at"
    with closing(StateDatabase.open(f"sqlite:///{folder}/books.db", migrate=False)) as store:
        assert store.batch_totals(P).batches > runs * batches * 0.8, "nothing of the sums is forgotten"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Bounds that a short time gets to."""
    for module, name, value in (
        (maintenance, "_CHECKPOINT_INTERVAL", 10),
        (maintenance, "OVERDUE_COMMITS", 20),
        (delta_table, "OVERDUE_COMMITS", 20),
        (delta_log, "_FORGET_EVERY", 20),
        (pruning, "KEPT_RUNS", 20),
        (pruning, "KEPT_EVENTS", 30),
        (pruning, "KEPT_BATCHES", 40),
    ):
        monkeypatch.setattr(module, name, value)
    yield


def test_short_runs(small: None, tmp_path: Path, clock: Clock) -> None:
    check_year(tmp_path, clock, runs=100, batches=2)


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(("runs", "batches"), [(10_000, 3), (2_500, 45)])
def test_a_year_of_short_runs(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, runs: int, batches: int
) -> None:
    """With the bounds as they are: 10,000 runs, and 100,000 batches. (2,500 runs do not reach the bound of events.)"""
    if runs < 10_000:
        monkeypatch.setattr(pruning, "KEPT_EVENTS", 2000)
    check_year(tmp_path, clock, runs, batches)


# ---------------------------------------------------------------- what happens to tables


@pytest.mark.parametrize("times", [30, pytest.param(1000, marks=pytest.mark.long)])
def test_a_table_that_is_read_again_and_again(tmp_path: Path, times: int) -> None:
    """Each time it was altered, suspended, read again and rejoined."""
    storage, layout = LocalStorage(tmp_path), Layout(P)
    offset = Offset("server", "binlog.000001", 4, "")
    plan = Plan(P, 1, offset, LINEAGE, (("shop.*",), ()), tuple(map(DefinitionHistory.from_single, (BUSY, STILL))), ())
    write_json(storage, layout.plan, plan.to_json())
    sizes = list[int]()
    added = STILL.replace(name="late")
    step = Suspension(2, 0, LINEAGE.seq(offset.at), "", "", "Added", "", "", schema=added)
    write_json_once(storage, layout.addition(1, 2), step.to_json())
    for number in range(times):
        at = LINEAGE.seq(Position("binlog.000001", 1000 * (number + 1)))
        steps = (
            FollowedDdl(0, number, at, BUSY),
            Suspension(0, number, at + 1, "", "", "Some", "", ""),
            Suspension(2, number, at + 1, "", "", "Some", "", "") if number else None,
            Rejoin(0, number + 1, at + 2, BUSY, ({"path": "x"},), number),
            Rejoin(2, number + 1, at + 2, added, ({"path": "x"},), number),
        )
        for one in (step for step in steps if step is not None):
            assert write_json_once(storage, amendment_file(layout, 1, one), one.to_json())
        found = read_plan(storage, layout)
        assert found is not None
        remove_superseded_amendments(storage, layout, found)
        again = read_plan(storage, layout)
        assert again is not None and again.tables == (BUSY, STILL, added) and again.active_tables == (0, 1, 2)
        for index in range(3):
            assert again.revision_of(index) == found.revision_of(index)
            assert again.definitions_for(LINEAGE)[index] == found.definitions_for(LINEAGE)[index]
            assert again.start_seq(index) == found.start_seq(index)
        kept = [step.revision for step in again.amendments if isinstance(step, Rejoin) and step.table == 0]
        assert kept == [number, number + 1][-len(kept) :] and len(kept) == min(2, number + 1), "and the one before"
        sizes.append(len(again.amendments) + sum(files_of(tmp_path).values()))
    assert max(sizes) == max(sizes[:5]), sizes


def test_a_step_that_is_removed_while_the_plan_is_read(tmp_path: Path) -> None:
    """Since it was listed the table has rejoined twice: the plan is the newest one, and none of before."""
    layout, offset = Layout(P), Offset("server", "binlog.000001", 4, "")
    storage = LocalStorage(tmp_path)

    def rejoin(number: int) -> None:
        step = Rejoin(0, number, LINEAGE.seq(Position("binlog.000001", 1000 * number)), BUSY)
        write_json_once(storage, amendment_file(layout, 1, step), step.to_json())
        found = read_plan(storage, layout)
        assert found is not None
        remove_superseded_amendments(storage, layout, found)

    class Slow(LocalStorage):
        def list(self, folder: str) -> Iterator[tuple[str, int]]:
            yield from [*super().list(folder)]
            if folder == layout.amendments_folder(1) and not removed:
                removed.append(True)
                rejoin(2)
                rejoin(3)

    removed = list[bool]()
    plan = Plan(P, 1, offset, LINEAGE, (("shop.*",), ()), (DefinitionHistory.from_single(BUSY),), ())
    write_json(storage, layout.plan, plan.to_json())
    rejoin(1)
    again = read_plan(Slow(tmp_path), layout)
    assert again is not None and again.revision_of(0) == 3 and removed


# ---------------------------------------------------------------- processes that live long


@pytest.mark.parametrize("times", [12_000, pytest.param(1_000_000, marks=pytest.mark.long)])
def test_table_ids_without_end(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """A server gives a table another id each time that it opens it. Those of one statement are all known, always."""
    monkeypatch.setattr(walk_tables, "_MAX_TABLE_IDS", 1000)
    state: Any = np.zeros(walk_state.STATE_SIZE, np.int64)
    tables = walk_tables.ChangeBuffers(state, UNICODE_DECODERS, count_only=False)
    table = TableMap(BUSY, (WireColumn(LONG), WireColumn(LONG)), {}, "here")
    body: Any = np.zeros(64, np.uint8)
    most = 0
    for table_id in range(times):
        if table_id % 3 == 0:
            state[walk_state.STATEMENT_NUMBER] += 1
        tables.announce_table_map(table_id, body, table if table_id % 2 else None)
        most = max(most, len(tables.map_lines))
        if table_id % 1000 < 10 or len(tables.map_lines) == 64:
            said = dict.fromkeys((table_id,), None if table_id % 2 == 0 else table)
            ids = range(table_id - table_id % 3, table_id + 1)
            said = {known: table if known % 2 else None for known in ids}
            assert tables.announced_table_maps() == said
    assert most <= 8 * 1000


def test_an_object_that_writes_for_long(small: None, tmp_path: Path, clock: Clock) -> None:
    """A stream that never ends, and what looks after its tables."""
    pipeline = Pipeline(tmp_path, clock, 3600.0)
    pipeline.make()
    sink = DeltaSink(str(pipeline.lake), P)
    table, beside, fence = sink.table(BUSY), sink.table(BUSY), epoch_fence(P, 1)
    held = list[int]()
    for number in range(240):
        pipeline.seq += 100
        with closing(sink.change_staging().open_writer(BUSY, f"epoch-1/{number}")) as writer:
            writer.add(pipeline._changes().to_batches()[0])
        changes = sink.change_staging().read_for_apply(BUSY, [f"epoch-1/{number}"])
        table.commit(partial(_upserted, changes), {"stream": pipeline.seq}, fence)
        if number % 3 == 2:
            compact_table(beside, run_compactions_in_threads)
            beside.clean_up()
            clock.move(86400.0, pipeline.lake)
        logs = table._log, beside._log
        held.append(
            sum(len(log.files) + len(log.tombstones) + len(log._dead_rows) + len(log.revived_files) for log in logs)
        )
    assert max(held[150:]) <= max(held[:150]) * 1.1
