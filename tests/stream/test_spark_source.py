"""The stream's source as Spark calls it: 4.2 and newer say where a batch begins, older ones do not."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from airflow_provider_cdc.apply.task import StreamJob
from airflow_provider_cdc.model.errors import TerminalError
from airflow_provider_cdc.model.offset import Offset
from airflow_provider_cdc.stream.spark_source import BatchRange, BinlogStreamReader, SectionOffset


def at(position: int) -> Offset:
    return Offset("server", "binlog.000001", position, "")


@dataclass
class Job:
    """A batch is ten bytes of binlog in two pieces; nothing is new behind 40."""

    section: int = 0
    has_backlog: bool = False
    error: TerminalError | None = None

    def close(self) -> None:
        """It has no connection."""

    def make_counted_planner(self) -> tuple[Job, dict[str, int]]:
        return self, {"get": 1}

    def wait_for_changes(self, start: Offset, seconds: float) -> bool:
        return start.at.position < 40

    def stage_range(self, *_: object) -> dict[str, Any]:
        raise self.error or AssertionError

    def find_range_ends(self, planner: object, start: Offset) -> list[Offset]:
        begin = start.at.position
        if self.error and begin == 20:
            raise self.error
        return [at(begin + 5), at(begin + 10)] if begin < 40 else [start]


def test_spark_need_not_say_where_a_batch_begins(tmp_path: Path) -> None:
    def run(*, told: bool) -> list[tuple[dict[str, Any], list[tuple[int, int]]]]:
        reader = BinlogStreamReader(cast(StreamJob, Job()), at(20), tmp_path / "section")
        start, batches = reader.initialOffset(), []
        for _ in range(4):
            end = reader.latestOffset(start, None) if told else reader.latestOffset()
            ranges = [cast(Any, part) for part in reader.partitions(start, end)]
            batches.append((end, [(part.start.at.position, part.end.at.position) for part in ranges]))
            start = end
        return batches

    assert run(told=False) == run(told=True)
    assert [parts for _, parts in run(told=False)] == [[(20, 25), (25, 30)], [(30, 35), (35, 40)], [], []]


@pytest.mark.parametrize("told", [True, False])
def test_the_next_section_begins_where_the_driver_says(told: bool, tmp_path: Path) -> None:
    """Behind what was read of the one before, or before it."""
    file = tmp_path / "section"
    reader = BinlogStreamReader(cast(StreamJob, Job()), at(10), file)
    start = first = reader.initialOffset()
    seen = []
    for section in (0, 0, 1, 1, 1, 2):
        if section:
            SectionOffset(section, at(10 if section == 1 else 30)).write(file)
        end = reader.latestOffset(start) if told else reader.latestOffset()
        seen.append(
            [
                (p.section, p.start.at.position, p.end.at.position)
                for p in cast(list[Any], reader.partitions(start, end))
            ]
        )
        start = end
    assert reader.initialOffset() == first, "Spark asks again"
    assert seen == [
        [(0, 10, 15), (0, 15, 20)],
        [(0, 20, 25), (0, 25, 30)],
        [(1, 10, 15), (1, 15, 20)],
        [(1, 20, 25), (1, 25, 30)],
        [(1, 30, 35), (1, 35, 40)],
        [(2, 30, 35), (2, 35, 40)],
    ]


@pytest.mark.parametrize("told", [True, False])
def test_an_error_of_one_table_is_a_batch(told: bool, tmp_path: Path) -> None:
    """Behind what could be read. Nothing is read behind it until the driver has decided."""
    file = tmp_path / "section"
    error = TerminalError("it is damaged", "Mend it", table="d.t")
    reader = BinlogStreamReader(cast(StreamJob, Job(error=error)), at(10), file)
    start, parts = reader.initialOffset(), list[Any]()
    for section in (0, 0, 0, 1, 1):
        if section:
            SectionOffset(section, at(30)).write(file)
        end = reader.latestOffset(start) if told else reader.latestOffset()
        parts.append(reader.partitions(start, end) if start != end else None)
        start = end
    assert [None if part is None else len(part) for part in parts] == [2, 1, None, 2, None]
    for part in (parts[0][1], parts[1][0]):  # found where a piece is staged, and where the batch is planned
        [batch] = reader.read(part)
        manifest = json.loads(batch["manifest"][0].as_py())
        assert manifest == {"error": error.to_json(), "section": 0}


def test_any_other_error_ends_the_query(tmp_path: Path) -> None:
    reader = BinlogStreamReader(cast(StreamJob, Job(error=TerminalError("all is lost"))), at(20), tmp_path / "section")
    with pytest.raises(RuntimeError, match="all is lost"):
        reader.latestOffset(reader.initialOffset())
    with pytest.raises(RuntimeError, match="all is lost"):
        list(reader.read(BatchRange(0, at(10), at(20), 0, [])))


def test_what_planning_has_asked_of_a_store_is_told_once(tmp_path: Path) -> None:
    """By the first piece of the next batch."""
    reader = BinlogStreamReader(cast(StreamJob, Job()), at(20), tmp_path / "section")
    told: list[tuple[list[dict[str, int]], ...]] = [([{"get": 1}], []), ([], [])]
    for expected in told:
        start = reader._range_ends[-1] if reader._range_ends else at(20)
        end = reader.latestOffset()
        parts = [cast(Any, part) for part in reader.partitions(SectionOffset(0, start).encode(), end)]
        assert tuple(part.requests for part in parts) == expected
