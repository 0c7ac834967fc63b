"""Samples, states of tables and acknowledged events, on each kind of database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import URL, event, select

from airflow_provider_cdc.state import StateDatabase, TableStatus, utc_now
from airflow_provider_cdc.state.events import EventFilter
from airflow_provider_cdc.state.models import LagSampleRow
from airflow_provider_cdc.state.pruning import KEPT_SAMPLES
from airflow_provider_cdc.state.values import LastCompaction

P = "shop"
SIZE = {"files": 3, "bytes": 900, "rows": 7, "dead_rows": 1, "compactions": 6}
STATE = TableStatus("d", "T", "streaming", "binlog.000001:4", definitions=[{"since": None, "columns": {"id": "int"}}])


@pytest.fixture
def store(url: URL) -> Iterator[StateDatabase]:
    with closing(StateDatabase.open(url, migrate=True)) as opened:
        yield opened


def samples_since(store: StateDatabase, pipeline: str, since: datetime) -> list[LagSampleRow]:
    """The oldest first."""
    query = select(LagSampleRow).where(LagSampleRow.pipeline == pipeline, LagSampleRow.at >= since)
    with store._read_session() as session:
        return list(session.scalars(query.order_by(LagSampleRow.at)))


def test_samples_go_after_a_week(store: StateDatabase) -> None:
    def sample(lag: float | None) -> None:
        store.record_sample(P, 1, lag_seconds=lag, lag_bytes=10, purge_hours=None, unknown="a\0b")

    assert store.last_sample(P) is None
    sample(1.5)
    sample(None)
    old = utc_now() - KEPT_SAMPLES
    with store._write_session() as session:
        session.add_all(
            [
                LagSampleRow(pipeline=P, at=old - timedelta(seconds=1), lag_seconds=9.0),
                LagSampleRow(pipeline=P, at=old + timedelta(hours=1), lag_seconds=8.0),
                LagSampleRow(pipeline="other", at=old - timedelta(days=1), lag_seconds=7.0),
            ]
        )
    sample(2.5)
    found = samples_since(store, P, datetime(2000, 1, 1, tzinfo=UTC))
    assert [row.lag_seconds for row in found] == [8.0, 1.5, None, 2.5]
    assert [row.lag_seconds for row in samples_since(store, P, utc_now() - timedelta(hours=1))] == [1.5, None, 2.5]
    assert len(samples_since(store, "other", datetime(2000, 1, 1, tzinfo=UTC))) == 1
    last = store.last_sample(P)
    assert last is not None and (last.lag_seconds, last.unknown) == (2.5, "ab")


def test_states_of_tables(store: StateDatabase) -> None:
    store.write_table_states(P, [STATE, STATE._replace(name="t")], sizes={("d", "T"): SIZE}, delete_others=True)
    first, second = store.table_states(P)
    assert (first.name, second.name) == ("T", "t"), "case counts"
    assert (first.rows, first.dead_rows, second.rows) == (7, 1, None)
    moment = datetime(2026, 2, 28, tzinfo=UTC)
    store.write_table_states(P, [STATE], last_compactions={("d", "T"): LastCompaction(moment, 2.5)})
    writes: list[str] = []
    event.listen(store._engine, "before_cursor_execute", lambda *args: writes.append(args[2]))
    # A place alone is no change.
    store.write_table_states(P, [STATE._replace(position="binlog.000001:99")], sizes={("d", "T"): SIZE})
    assert writes and not [sql for sql in writes if sql.startswith(("UPDATE", "INSERT", "DELETE"))]
    store.write_table_states(P, [STATE._replace(position="binlog.000001:99")], applied_counts={("d", "T"): [3, 2, 0]})
    store.write_table_states(P, [STATE._replace(position="binlog.000002:4")], applied_counts={("d", "T"): [1, 0, 4]})
    again, other = store.table_states(P)
    assert (again.inserts, again.updates, again.deletes) == (4, 2, 4)
    assert (again.position, again.since, again.files) == ("binlog.000002:4", first.since, 3)
    assert (again.compactions, again.compacted_at, again.compaction_seconds) == (6, moment, 2.5)
    assert again.updated_at > first.updated_at and other.updated_at == second.updated_at

    since = datetime(2024, 2, 29, 12, tzinfo=UTC)
    gone = STATE._replace(state="suspended", since=since, kind="E" * 80, reason="why \0", remedy="what to do")
    store.write_table_states(P, [gone])
    row = store.table_states(P)[0]
    assert (row.state, row.since, row.kind, row.reason) == ("suspended", since, "E" * 64, "why ")
    store.write_table_states(P, [STATE])
    row = store.table_states(P)[0]
    assert row.state == "streaming" and row.since > since and row.reason is None and row.inserts == 4

    store.record_verification(P, {("d", "T"): {"equal": True}, ("d", "nobody"): {"equal": False}})
    row = store.table_states(P)[0]
    assert row.last_verified == {"equal": True} and row.last_verified_at is not None
    store.write_table_states(P, [STATE], delete_others=True)
    assert [row.name for row in store.table_states(P)] == ["T"]
    assert store.table_states("other") == []


def test_who_has_taken_care(store: StateDatabase) -> None:
    store.add_event(P, "table_suspended", "what", table="d.t", remedy="do it", by="somebody")
    store.add_event(P, "schema_change", "more")
    more, found = store.last_events(P, 2)
    assert (found.table, found.remedy, found.by, found.acknowledged_by) == ("d.t", "do it", "somebody", None)
    assert (more.table, more.remedy, more.by) == (None, None, None)
    assert not store.acknowledge_event("other", found.id, "ann")
    assert store.acknowledge_event(P, found.id, "ann")
    assert not store.acknowledge_event(P, found.id, "bob"), "the first one stays"
    assert not store.acknowledge_event(P, more.id, "ann"), "it needs nobody"
    found = store.last_events(P, 2)[1]
    assert found.acknowledged_by == "ann" and found.acknowledged_at is not None


def test_names_of_pipelines(store: StateDatabase) -> None:
    for name in ("b", "a"):
        store.register_pipeline(name, "server")
    assert store.pipeline_names() == ["a", "b"]


def test_who_has_to_look(store: StateDatabase) -> None:
    """An event needs attention until it is acknowledged, or its problem is over."""

    def needed() -> list[str]:
        return [one.detail for one in store.filter_events(P, EventFilter(needs_attention=True), 10)]

    store.add_event(P, "table_suspended", "one", table="d.one")
    store.add_event(P, "table_suspended", "two", table="d.two")
    store.add_event(P, "table_suspended", "three", table="d.three", level="info")
    store.add_event("other", "table_suspended", "elsewhere", table="d.one")
    assert needed() == ["two", "one"]
    store.add_event(P, "table_rejoined", "again", table="d.one")
    assert needed() == ["two"]
    assert [one.detail for one in store.filter_events(P, EventFilter(table="d.one"), 10)] == ["again", "one"]
    assert [one.detail for one in store.filter_events(P, EventFilter(levels=["info"]), 10)] == ["again", "three"]
    first = store.last_events(P, 9)[-1]
    assert store.filter_events(P, EventFilter(before=first.id + 1), 9)[0].id == first.id
    store.write_table_states(P, [TableStatus("d", "one", "streaming"), TableStatus("d", "two", "streaming")])
    store.record_verification(P, {("d", "one"): {"equal": True}, ("d", "two"): {"equal": False}})
    assert needed()[0] == "source and copy differ in d.two; 2 tables were compared"
    store.record_verification(P, {("d", "one"): {"equal": True}})
    assert needed()[0].startswith("source and copy differ"), "another table is equal"
    store.record_verification(P, {("d", "two"): {"equal": True}})
    assert needed() == ["two"]
    with pytest.raises(ValueError, match="no kind of event 'unheard_of'"):
        store.add_event(P, "unheard_of", "what")


def test_compactions_are_one_event_an_hour(store: StateDatabase) -> None:
    states = [TableStatus("d", name, "streaming") for name in "abcdefg"]
    for _ in range(3):
        done = {("d", name): LastCompaction(utc_now(), 1.0) for name in "abcdefg"}
        store.write_table_states(P, states, last_compactions=done)
    [event] = store.last_events(P, 9, ["compacted"])
    assert event.detail == "files of d.a, d.b, d.c, d.d, d.e and 2 more were compacted"
