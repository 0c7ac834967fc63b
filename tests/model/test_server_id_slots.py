"""Replication slots: readers of one pipeline that may be at work at the same time never share one."""

from __future__ import annotations

from itertools import chain

import pytest

from airflow_provider_cdc.model import server_id_slots as slots

SINGLE = [slots.STREAM, slots.REPLAY, slots.VERIFY, slots.LAG, slots.PLAN, slots.EXPLAIN]


def worker_slots(group: int, attempt: int, parallelism: int) -> list[int]:
    return list(chain.from_iterable(slots.chunk_worker_slots(group, attempt, parallelism)))


def test_kinds_of_readers_share_none() -> None:
    guards = {slots.binlog_guard_slot(group) for group in range(1000)}
    batches = set(slots.batch_reader_slots(slots.MAX_PARALLELISM))
    workers = {s for group in range(1000) for attempt in range(1, 4) for s in worker_slots(group, attempt, 8)}
    kinds = [set(SINGLE), guards, batches, workers, set(slots.VERIFY_READERS)]
    assert len(set(SINGLE)) == len(SINGLE) and sum(map(len, kinds)) == len(set.union(*kinds))
    assert all(0 <= slot <= slots.LAST_SLOT for slot in set.union(*kinds))


@pytest.mark.parametrize("parallelism", [1, 2, 7, 32, slots.MAX_PARALLELISM])
def test_what_reads_one_group_shares_none(parallelism: int) -> None:
    """Its workers, the copies of each, and an attempt with the two before it."""
    assert len(set(slots.batch_reader_slots(parallelism))) == parallelism
    for group in (0, 1, 5, 999):
        for attempt in (1, 2, 3, 17):
            found = slots.chunk_worker_slots(group, attempt, parallelism)
            assert [len(copies) for copies in found] == [slots.MAX_TASK_COPIES] * parallelism
            attempts = [worker_slots(group, attempt + more, parallelism) for more in range(3)]
            assert len(set(chain.from_iterable(attempts))) == sum(map(len, attempts))


def test_groups_side_by_side_share_none() -> None:
    """As far as there are slots for one copy of each."""
    for count, parallelism in ((100, 2), (50, 4), (12, 16)):
        firsts = [copies[0] for group in range(count) for copies in slots.chunk_worker_slots(group, 1, parallelism)]
        assert len(set(firsts)) == count * parallelism <= 800
    assert len({slots.binlog_guard_slot(group) for group in range(90)}) == 90


@pytest.mark.parametrize("parallelism", [1, 4, 8])
def test_readings_share_none_with_each_other_nor_with_the_first_groups(parallelism: int) -> None:
    """As far as there are slots for one copy of each."""
    readings = [{copies[0] for copies in slots.resnapshot_worker_slots(place, parallelism)} for place in range(10)]
    groups = [
        {copies[0] for copies in slots.chunk_worker_slots(group, attempt, parallelism)}
        for group in range(8)
        for attempt in range(6)
    ]
    of_readings, of_groups = {*chain(*readings)}, {*chain(*groups)}
    assert len(of_readings) == 10 * parallelism and not of_readings & of_groups
    assert all(200 <= slot < 1000 for place in (0, 799, 10**12) for slot in slots.resnapshot_worker_slots(place, 1)[0])
