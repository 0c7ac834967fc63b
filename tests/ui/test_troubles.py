"""What is wrong with a pipeline, from its bookkeeping: the level of each trouble, and when it becomes worse."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from sqlalchemy import update

from airflow_provider_cdc.config.spark_conf import reachable_url
from airflow_provider_cdc.model.errors import REQUESTED
from airflow_provider_cdc.state import TableStatus, utc_now
from airflow_provider_cdc.state.models import EpochRow
from airflow_provider_cdc.state.reader import StateDatabaseReader
from airflow_provider_cdc.ui.action_rules import ACTIONS, ActionTarget, offered_actions
from airflow_provider_cdc.ui.declared_tasks import DeclaredTask
from airflow_provider_cdc.ui.state_databases import ShownPipeline
from airflow_provider_cdc.ui.troubles import Trouble, find_paused_dags, find_troubles, pipeline_level, pipeline_phase
from tests.ui import books


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[StateDatabaseReader]:
    with closing(StateDatabaseReader.open(f"sqlite:///{tmp_path}/b.db", migrate=True)) as opened:
        groups = books.plan(opened, "p", tables={"t": 2}, per_group=2)
        for group in range(groups):
            books.read(opened, "p", group)
        opened.finish_snapshot("p", 1)
        yield opened


def shown_target(reader: StateDatabaseReader, is_alive: bool | None) -> ActionTarget:
    """A pipeline without a DAG, whose stream is alive, lost, or not known yet."""
    [overview] = reader.read_overview()
    database = SimpleNamespace(is_stream_alive=lambda _: is_alive, open_reader=lambda: reader)
    return ActionTarget(ShownPipeline(cast("Any", database), overview, ()), None)


def judged(reader: StateDatabaseReader, now: datetime, *, alive: bool | None = True) -> tuple[str, str, list[Trouble]]:
    """Phase, level and troubles."""
    [overview] = reader.read_overview()
    phase = pipeline_phase(overview, alive)
    troubles = find_troubles(overview, phase, 0, now)
    return phase, pipeline_level(phase, troubles), troubles


def test_a_stream_that_does_not_run(reader: StateDatabaseReader) -> None:
    """It is no trouble for a while if a user wants it so, then a warning; one that was lost is always one."""
    now, later = utc_now(), utc_now() + timedelta(minutes=16)
    epoch = books.stream(reader, "p", batches=2)
    assert judged(reader, now)[:2] == ("streaming", "working")
    assert judged(reader, now, alive=False)[:2] == ("lost", "failed")

    assert reader.pause_stream("p", "ann")
    assert judged(reader, now)[:2] == ("paused", "idle")
    phase, level, [trouble] = judged(reader, later)
    assert (phase, level, trouble.code, trouble.by) == ("paused", "warning", "stream_paused", "ann")
    assert trouble.since is not None and now - timedelta(seconds=60) < trouble.since < later
    assert reader.resume_stream("p", "ann")

    assert reader.stop_stream("p", "bob")
    assert judged(reader, now)[:2] == ("stopping", "working")
    reader.end_epoch("p", epoch, "stopped")
    assert judged(reader, now)[:2] == ("stopped", "idle")
    phase, level, [trouble] = judged(reader, later)
    assert (phase, level, trouble.code, trouble.by) == ("stopped", "warning", "stream_stopped", "bob")
    with reader._write_session() as session:
        session.execute(update(EpochRow).values(mode="catch_up"))
    assert judged(reader, later)[:2] == ("stopped", "idle")  # the next catch-up comes when it is due

    epoch = books.stream(reader, "p", batches=1)
    reader.end_epoch("p", epoch, "failed", "broken")
    phase, level, [trouble] = judged(reader, now)
    assert (phase, level, trouble.error) == ("failed", "failed", "broken")


def test_the_source_keeps_its_binlogs_for_a_while(reader: StateDatabaseReader) -> None:
    """The time that is left goes by although nobody measures it again."""
    epoch, now = books.stream(reader, "p", batches=1), utc_now()
    reader.record_sample("p", epoch, lag_seconds=0.0, lag_bytes=0, purge_hours=20.0)
    reader.end_epoch("p", epoch, "stopped")
    levels = []
    for hours in (0, 9, 21):
        _, _, troubles = judged(reader, now + timedelta(hours=hours))
        levels.append([(one.code, one.level) for one in troubles if one.code.startswith("purge")])
    assert levels == [[], [("purge_due", "warning")], [("purge_past", "failed")]]


@pytest.mark.parametrize(("is_paused", "act", "verb"), [(False, "start", "Start"), (True, "resume", "Resume")])
def test_what_helps_before_binlogs_are_gone(reader: StateDatabaseReader, is_paused: bool, act: str, verb: str) -> None:
    """The action that the state of the stream needs, in the text and as a button."""
    epoch, now = books.stream(reader, "p", batches=1), utc_now()
    reader.record_sample("p", epoch, lag_seconds=0.0, lag_bytes=0, purge_hours=5.0)
    if is_paused:
        reader.pause_stream("p", "ann")
    else:
        reader.end_epoch("p", epoch, "stopped")
    for hours, code, text in (
        (0, "purge_due", f"{verb} the stream, or make"),
        (9, "purge_past", f"{verb} the stream now"),
    ):
        _, _, troubles = judged(reader, now + timedelta(hours=hours))
        [trouble] = [one for one in troubles if one.code == code]
        assert trouble.remedy is not None and trouble.remedy.startswith(text)
        assert trouble.acts == (act,)


def test_the_actions_on_a_lost_stream(reader: StateDatabaseReader) -> None:
    """It is started, not paused or stopped: nobody would hear that. One that may live still hears it."""
    books.stream(reader, "p", batches=1)
    for is_alive, names in ((True, ["pause", "stop"]), (None, ["pause", "stop"]), (False, ["start"])):
        target = shown_target(reader, is_alive)
        assert offered_actions(target) == [*names, "verify", "repair"]
        says = ACTIONS["verify"].preview(target).description
        assert says.endswith("the next one does it" if is_alive is False else "while it continues")
    assert reader.pause_stream("p", "ann")
    for is_alive, names in ((True, ["resume", "stop"]), (False, ["resume", "start"])):
        target = shown_target(reader, is_alive)
        assert offered_actions(target) == [*names, "verify", "repair"]
        says = ACTIONS["resume"].preview(target).description
        assert ("start it, too" in says) == (is_alive is False)


def test_an_action_on_a_stream_whose_binlogs_may_be_gone_says_so(reader: StateDatabaseReader) -> None:
    epoch = books.stream(reader, "p", batches=1)
    assert reader.pause_stream("p", "ann")
    for hours, is_said in ((1.0, False), (-1.0, True)):
        reader.record_sample("p", epoch, lag_seconds=0.0, lag_bytes=0, purge_hours=hours)
        says = ACTIONS["resume"].preview(shown_target(reader, True)).description
        assert ("may have removed binlogs" in says) == is_said


def test_what_stops_the_whole_copy_comes_before_single_tables(reader: StateDatabaseReader) -> None:
    """Although a stopped stream is a warning, and a suspended table a failure. What is intended comes last."""
    epoch = books.stream(reader, "p", batches=1)
    reader.record_sample("p", epoch, lag_seconds=0.0, lag_bytes=0, purge_hours=5.0)
    states = [
        TableStatus("shop", name, "suspended", kind=kind) for name, kind in (("a", REQUESTED), ("b", "SchemaError"))
    ]
    reader.write_table_states("p", states)
    reader.end_epoch("p", epoch, "stopped")
    _, level, troubles = judged(reader, utc_now() + timedelta(minutes=16))
    assert level == "failed"
    codes = ["stream_stopped", "purge_due", "tables_suspended", "tables_suspended_on_request"]
    assert [one.code for one in troubles] == codes


def test_a_cause_is_named_once(reader: StateDatabaseReader) -> None:
    """A stream that has failed because binlogs are gone is not also told that they may be gone."""
    epoch = books.stream(reader, "p", batches=1)
    reader.record_sample("p", epoch, lag_seconds=0.0, lag_bytes=0, purge_hours=-1.0)
    reader.end_epoch("p", epoch, "failed", "binlog.000007 is gone", "PurgedError")
    _, _, troubles = judged(reader, utc_now())
    assert [one.code for one in troubles] == ["stream_failed"]


def test_tables(reader: StateDatabaseReader) -> None:
    """A table that a user has suspended, and one that the stream reads again, are no failures."""
    books.stream(reader, "p", batches=1)
    states = [TableStatus("shop", name, "streaming") for name in "abcd"]
    states[0] = states[0]._replace(state="suspended", kind=REQUESTED)
    states[1] = states[1]._replace(state="rereading", kind="NotFollowedError")
    reader.write_table_states("p", states)
    phase, level, troubles = judged(reader, utc_now())
    assert (phase, level) == ("streaming", "working")
    assert [(one.code, one.level) for one in troubles] == [("tables_suspended_on_request", "info")]
    states[2] = states[2]._replace(state="suspended", kind="SchemaError")
    reader.write_table_states("p", states)
    reader.record_verification("p", {("shop", "d"): {"equal": False}})
    _, level, troubles = judged(reader, utc_now())
    assert level == "failed"
    assert [one.code for one in troubles if one.level == "failed"] == ["tables_suspended", "tables_unequal"]


def test_events_that_need_attention(reader: StateDatabaseReader) -> None:
    """They are counted until they are acknowledged; what the state of a table shows is not counted again."""
    books.stream(reader, "p", batches=1)
    reader.add_event("p", "schema_change", "a column was added")
    reader.add_event("p", "table_suspended", "d.t: no key", table="d.t")
    assert judged(reader, utc_now())[1:] == ("working", [])
    reader.add_event("p", "restart", "without gtid_mode")
    _, level, [trouble] = judged(reader, utc_now())
    assert (level, trouble.text, trouble.error) == (
        "warning",
        "1 event needs attention: Server restarted",
        "without gtid_mode",
    )
    reader.add_event("p", "reread_given_up", "d.t: failed 5 times", table="d.t", remedy="Re-snapshot it")
    _, level, [trouble] = judged(reader, utc_now())
    assert (level, trouble.level, trouble.remedy) == ("failed", "failed", "Re-snapshot it")
    assert trouble.text == "2 events need attention, the newest: Re-snapshot given up"
    for event in reader.last_events("p", 2):
        assert reader.acknowledge_event("p", event.id, "ann")
    assert judged(reader, utc_now())[1:] == ("working", [])


@pytest.mark.parametrize(
    ("phase", "text"),
    [
        ("snapshot", "DAG reads is paused: no task of it begins"),
        ("streaming", "DAG follows is paused: its stream continues, but is not restarted when it ends"),
        ("lost", "DAG follows is paused: no task of it begins"),
        ("stopped", None),
    ],
)
def test_a_paused_dag(phase: str, text: str | None) -> None:
    """Only the DAG with the task that the pipeline needs now."""
    reads = DeclaredTask("reads", "r", "CdcSnapshotOperator", False, None, None, "p", dag_is_paused=True)
    follows = replace(reads, dag_id="follows", operator_name="CdcStreamOperator")
    runs = replace(follows, dag_id="runs", dag_is_paused=False)
    verifies = replace(reads, dag_id="verifies", operator_name="CdcVerifyOperator")
    found = find_paused_dags(phase, [reads, follows, runs, verifies])
    assert [one.text for one in found] == ([] if text is None else [text])


@pytest.mark.parametrize(
    ("address", "is_shown"),
    [
        ("http://spark.example.com:4040", True),
        ("http://10.0.0.7:4040", True),
        ("http://localhost:4040", False),
        ("http://127.0.0.1:4040", False),
        ("http://0.0.0.0:4040", False),
        ("http://3f2a9c1b7d5e:4040", False),
        ("http://worker.localdomain:4040", False),
        ("javascript:alert(1)", False),
        (None, False),
    ],
)
def test_addresses_that_another_machine_may_reach(address: str | None, is_shown: bool) -> None:
    assert reachable_url(address) == (address if is_shown else None)
