"""What people want of a stream, on each kind of database."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from unittest.mock import patch

import pytest
from sqlalchemy import URL, event

from airflow_provider_cdc.model.errors import NotReadyError
from airflow_provider_cdc.state import utc_now
from airflow_provider_cdc.state.pruning import KEPT_SAMPLES
from airflow_provider_cdc.state.reader import StateDatabaseReader

P = "shop"


@pytest.fixture(params=["sqlite", "postgres", "mysql"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> URL | str:
    from tests.state.conftest import server_url

    return f"sqlite:///{tmp_path}/b.db" if request.param == "sqlite" else server_url(request, request.param)


@pytest.fixture
def reader(address: URL | str) -> Iterator[StateDatabaseReader]:
    with closing(StateDatabaseReader.open(address, migrate=True)) as reader:
        reader.register_pipeline(P, "server")
        yield reader


def begin(reader: StateDatabaseReader) -> int:
    reader.allow_stream(P)
    return reader.begin_epoch(P, 0, "host", 1, 1.0)


def run(reader: StateDatabaseReader) -> tuple[str, str | None]:
    row = reader.newest_epoch(P)
    assert row is not None
    return row.desired_state, row.paused_by


def heard(reader: StateDatabaseReader, epoch: int) -> list[tuple[int, str]]:
    beat = reader.record_heartbeat(P, epoch, progress=False)
    assert beat is not None and beat.epoch_row.epoch == epoch
    return [(request.id, request.state) for request in beat.requests]


def told(reader: StateDatabaseReader, *kinds: str) -> list[tuple[str, str | None]]:
    of_runs = ("stream_started", "stream_restarted", "stream_stopped", "stream_failed", "stream_lost")
    events = reversed(reader.last_events(P, 100, kinds))
    return [(event.kind, event.by) for event in events if event.kind not in of_runs]


def test_the_life_of_a_request(reader: StateDatabaseReader) -> None:
    with pytest.raises(NotReadyError, match="not in the state database"):
        reader.add_request("nobody", "suspend", "d.t", "ann")
    first = reader.add_request(P, "suspend", "d.t", "ann\0")
    assert reader.add_request(P, "suspend", "d.t", "bob") == first, "it is wanted already"
    second = reader.add_request(P, "reread", "d.t", "bob", "id = 'é'")
    third = reader.add_request(P, "reread", "d.t", "bob")
    other = reader.add_request(P, "suspend", "d.T", "bob")
    assert len({first, second, third, other}) == 4
    reader.register_pipeline("other", "server")
    strange = reader.add_request("other", "suspend", "d.t", "eve")

    # The running stream hears of what is not done, with the very same query.
    epoch = begin(reader)
    statements: list[str] = []
    event.listen(reader._engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    assert heard(reader, epoch) == [(first, "open"), (second, "open"), (third, "open"), (other, "open")]
    assert len([said for said in statements if said.lstrip().startswith("SELECT") and "streams" in said]) == 1
    assert heard(reader, begin(reader))[0] == (first, "open")

    assert reader.take_request(first) and not reader.take_request(first)
    assert not reader.withdraw_request(P, first, "ann"), "it is taken"
    assert not reader.withdraw_request("other", second, "eve"), "it is another pipeline's"
    assert reader.withdraw_request(P, second, "ann") and not reader.withdraw_request(P, second, "ann")
    assert not reader.take_request(second)
    reader.end_request(third, "done", "not taken, so it cannot be done")
    assert heard(reader, 2) == [(first, "taken"), (third, "open"), (other, "open")]
    assert reader.take_request(third)
    reader.end_request(first, "done", "d.t is suspended")
    reader.end_request(third, "refused", "no such\0 table. Ask for another one")
    reader.end_request(third, "done", "it is over already")
    assert heard(reader, 2) == [(other, "open")]

    found = reader.last_requests(P)
    assert [row.id for row in found] == [other, third, second, first] and reader.last_requests(P, 1)[0].id == other
    assert [(row.state, row.by, row.condition, row.outcome) for row in found] == [
        ("open", "bob", None, None),
        ("refused", "bob", None, "no such table. Ask for another one"),
        ("withdrawn", "bob", "id = 'é'", "ann has withdrawn it"),
        ("done", "ann", None, "d.t is suspended"),
    ]
    assert [row.finished_at is not None for row in found] == [False, True, True, True]
    assert reader.request(P, first) is not None and reader.request(P, strange) is None
    assert told(reader) == [("request_withdrawn", "ann")]
    assert reader.add_request(P, "suspend", "d.t", "bob") != first, "what is done may be wanted again"


def test_what_is_taken_up_may_be_wanted_again(reader: StateDatabaseReader) -> None:
    """The stream may have read the rows before somebody has seen that they are wrong."""
    first = reader.add_request(P, "reread", "d.t", "ann")
    assert reader.add_request(P, "reread", "d.t", "bob") == first
    assert reader.take_request(first)
    assert reader.add_request(P, "reread", "d.t", "bob") != first


def test_old_requests_go(reader: StateDatabaseReader) -> None:
    """With old samples; what is not over stays, and so does what is of others."""
    reader.register_pipeline("other", "server")
    strange = reader.add_request("other", "suspend", "d.t", "ann")
    ids = [reader.add_request(P, "suspend", f"d.{name}", "ann") for name in "abcde"]
    with patch(
        "airflow_provider_cdc.state.control_requests.utc_now", lambda: utc_now() - KEPT_SAMPLES - timedelta(minutes=1)
    ):
        for id in (*ids[:3], strange):
            assert reader.take_request(id)
        reader.end_request(ids[0], "done", "d.a is suspended")
        reader.end_request(strange, "done", "d.t is suspended")
        assert reader.withdraw_request(P, ids[3], "ann")
    reader.end_request(ids[1], "refused", "just now")
    reader.record_sample(P, 1, lag_seconds=0.0, lag_bytes=0, purge_hours=None)
    assert [row.id for row in reader.last_requests(P)] == [ids[4], ids[2], ids[1]], "open, taken, and new"
    assert reader.request("other", strange) is not None


def test_what_cannot_be_wanted(reader: StateDatabaseReader) -> None:
    with pytest.raises(ValueError, match="no request 'drop'"):
        reader.add_request(P, "drop", "d.t", "ann")
    with pytest.raises(ValueError, match="with a condition"):
        reader.add_request(P, "suspend", "d.t", "ann", "id = 1")
    assert reader.last_requests(P) == []


def test_many_want_the_same(reader: StateDatabaseReader) -> None:
    with ThreadPoolExecutor(4) as pool:
        ids = set(pool.map(lambda n: reader.add_request(P, "reread", "d.t", f"user {n}"), range(8)))
    assert len(ids) == 1


def test_a_pause_lasts_until_somebody_ends_it(reader: StateDatabaseReader) -> None:
    assert not reader.pause_stream(P, "ann") and not reader.resume_stream(P, "ann") and not reader.stop_stream(P, "ann")
    begin(reader)
    assert reader.pause_stream(P, "ann") and reader.pause_stream(P, "bob")
    assert run(reader) == ("pause", "ann")
    begin(reader)  # the driver was lost
    assert run(reader) == ("pause", "ann")
    reader.request_stop(P, by="a task")  # it was cleared, or its lease is over: nobody has resumed the stream
    assert run(reader) == ("stop", "ann") and not reader.pause_stream(P, "bob")
    reader.end_epoch(P, 2, "stopped")
    assert not reader.pause_stream(P, "bob")
    begin(reader)
    assert run(reader) == ("pause", "ann")
    assert reader.resume_stream(P, "bob") and run(reader) == ("run", None)
    assert reader.resume_stream(P, "bob"), "it goes on already"

    # One that was lost is resumed for its next start.
    assert reader.pause_stream(P, "ann")
    reader.end_epoch(P, 3, "failed", "away")
    assert reader.resume_stream(P, "bob")
    epoch = begin(reader)
    assert run(reader) == ("run", None)

    # A person's stop ends it, also where a task has asked before.
    for by in (None, "a task"):
        assert reader.pause_stream(P, "ann")
        if by:
            reader.request_stop(P, by=by)
        assert reader.stop_stream(P, "carl") and run(reader) == ("stop", None)
        assert not reader.resume_stream(P, "bob"), "it is about to end"
        reader.end_epoch(P, epoch, "stopped")
        assert not reader.resume_stream(P, "bob") and not reader.stop_stream(P, "carl")
        epoch = begin(reader)
        assert run(reader) == ("run", None)
    assert told(reader) == [
        ("stream_stop", "ann"),
        ("stream_paused", "ann"),
        ("stream_resumed", "bob"),
        ("stream_paused", "ann"),
        ("stream_resumed", "bob"),
        *[("stream_paused", "ann"), ("stream_stop", "carl")] * 2,  # a repeated stop is no news
    ]
