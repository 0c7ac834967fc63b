"""Conditions of going on at another server, with the two servers of :mod:`tests.stream.test_failover`."""

from __future__ import annotations

import contextlib

from airflow_provider_cdc.model.errors import TerminalError
from tests.stream.test_failover import Pair, epoch, kind, pair, servers

__all__ = ["kind", "pair", "servers"]


def in_the_snapshot(pair: Pair) -> None:
    """A stream that has begun, and has not passed all that the chunks hold."""
    d = pair.database
    with pair.cli.opened() as (context, store):
        context.plans.ensure(store)
    for number in (20, 21, 22):
        pair.run(f"INSERT INTO {d}.keyed VALUES ({number}, 1)", f"UPDATE {d}.keyed SET v = v + 1 WHERE id = 1")
    pair.cli.snapshot()
    with epoch(pair, pair.old) as found, contextlib.closing(found.job.make_planner()) as planner:
        first = planner.find_batch_end(found.section_start, 1)
        found.apply_batch(found.job.stage_range(found.section_start, first, "0"))


def test_before_the_stream_has_passed_the_snapshot(pair: Pair) -> None:
    """What the chunks hold is told by positions that the new server knows nothing of."""
    in_the_snapshot(pair)
    pair.refused(TerminalError, "the stream had not passed the snapshot of")


def test_a_failover_that_is_refused_suspends_nothing(pair: Pair) -> None:
    """A table that cannot go on at the new server goes on at the old one, to which the refusal sends people."""
    d = pair.database
    pair.cli.value["stream"] = {"on_table_error": "suspend"}
    pair.cli.write()
    in_the_snapshot(pair)
    pair.new.session(d, "SET sql_log_bin = 0", "DROP TABLE other")
    pair.refused(TerminalError, f"the stream had not passed the snapshot of {d}.keyed")
    assert pair.cli.context.plans.require().suspensions == ()
    pair.run(f"INSERT INTO {d}.other VALUES ('a', 1)", on=[pair.old])
    pair.copy(pair.old)
    assert pair.differences(pair.old) == []


def test_there_before_all_that_is_held_has_come(pair: Pair) -> None:
    """Back again: what was held behind the place at the second server is in the copy all the same."""
    d = pair.database
    pair.cli.snapshot()
    held = pair.run(f"INSERT INTO {d}.plain VALUES (1)", on=[pair.old])
    pair.copy(pair.old)
    late = pair.run(f"INSERT INTO {d}.plain VALUES (2)", on=[pair.new])
    pair.run(f"INSERT INTO {d}.plain VALUES (1)", gtid=held, on=[pair.new])
    with epoch(pair, pair.new) as found:
        assert found.section_start.already_applied == held
    pair.run(f"INSERT INTO {d}.plain VALUES (2)", gtid=late, on=[pair.old])
    pair.copy(pair.old)
    assert pair.differences(pair.old) == []
