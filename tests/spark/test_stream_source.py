"""The stream's source as Spark calls it: 4.2 and newer say where a batch begins, older ones do not."""

from __future__ import annotations

from typing import Any, cast

from airflow_provider_cdc.core.offset import Offset, Position
from airflow_provider_cdc.jobs.batches import StreamJob
from airflow_provider_cdc.spark.stream_source import BinlogReader, _encode


def at(position: int) -> Offset:
    return Offset("server", Position("binlog.000001", position), "")


class Job:
    """A batch is ten bytes of binlog in two pieces; nothing is new behind 40."""

    def open_planner(self) -> tuple[object, dict[str, int]]:
        return object(), {"get": 1}

    def pieces(self, planner: object, start: Offset) -> list[Offset]:
        begin = start.at.position
        return [at(begin + 5), at(begin + 10)] if begin < 40 else [start]


def test_spark_need_not_say_where_a_batch_begins() -> None:
    def run(*, told: bool) -> list[tuple[dict[str, Any], list[tuple[int, int]]]]:
        reader = BinlogReader(cast(StreamJob, Job()), at(20))
        start, batches = reader.initialOffset(), []
        for _ in range(4):
            end = reader.latestOffset(start, None) if told else reader.latestOffset()
            ranges = [cast(Any, part) for part in reader.partitions(start, end)]
            batches.append((end, [(part.start.at.position, part.end.at.position) for part in ranges]))
            start = end
        return batches

    assert run(told=False) == run(told=True)
    assert [parts for _, parts in run(told=False)] == [[(20, 25), (25, 30)], [(30, 35), (35, 40)], [], []]


def test_what_planning_has_asked_of_a_store_is_told_once() -> None:
    """By the first piece of the next batch."""
    reader = BinlogReader(cast(StreamJob, Job()), at(20))
    told: list[tuple[list[dict[str, int]], ...]] = [([{"get": 1}], []), ([], [])]
    for expected in told:
        start = reader._pieces[-1] if reader._pieces else at(20)
        end = reader.latestOffset()
        parts = [cast(Any, part) for part in reader.partitions(_encode(start), end)]
        assert tuple(part.asked for part in parts) == expected
