"""Assets of tables: what they are called, and windows that neither overlap nor leave anything out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from airflow.sdk import Asset, AssetAlias

from airflow_provider_cdc import (
    CdcSnapshotSensor,
    CdcStreamOperator,
    CdcVerifyOperator,
    Pipeline,
    Sink,
    Source,
    State,
    Stream,
    cdc_asset,
    cdc_assets,
)
from airflow_provider_cdc.airflow.triggers import asset_windows
from airflow_provider_cdc.airflow.triggers.asset_windows import CdcTableTrigger
from airflow_provider_cdc.model.errors import NotReadyError
from airflow_provider_cdc.observe.asset_windows import (
    is_window_empty,
    take_catch_up_windows,
    take_new_snapshots,
    window_between,
)
from airflow_provider_cdc.sinks.files.layout import LocalFiles
from airflow_provider_cdc.state import StateDatabase, TableStatus

T = ("shop", "t")


def pipeline(path: str = "/data/lake", **more: Any) -> Pipeline:
    return Pipeline(name="shop", source=Source("cdc_source", ("shop..*",)), sink=Sink(path, **more))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StateDatabase]:
    file = LocalFiles.for_pipeline(tmp_path, "shop").state_database
    with closing(StateDatabase.open(f"sqlite:///{file}", migrate=True)) as opened:
        opened.register_pipeline("shop", "server")
        yield opened


def applied(store: StateDatabase, inserts: int = 0, updates: int = 0, deletes: int = 0, at: str = "b.1:4") -> None:
    """As the driver of a stream writes it down."""
    standing = TableStatus(*T, "streaming", position=at)
    store.write_table_states("shop", [standing], applied_counts={T: [inserts, updates, deletes]})


@pytest.mark.parametrize(
    ("sink", "uri"),
    [
        (Sink("/data/lake"), "file:///data/lake/shop/orders"),
        (Sink("file:///data/lake/"), "file:///data/lake/shop/orders"),
        (Sink("/data/la ke#1"), "file:///data/la%20ke%231/shop/orders"),
        (Sink("/data/lake", table_path="bronze/{database}_{table}"), "file:///data/lake/bronze/shop_orders"),
        (
            Sink("/data/lake", routes=[{"match": "(sh)op.(o.*)s", "table_path": "$1/${2}_{table}"}]),
            "file:///data/lake/sh/order_orders",
        ),
        (Sink("s3://bucket/lake"), "s3://bucket/lake/shop/orders"),
        (Sink("s3a://bucket"), "s3://bucket/shop/orders"),
        (Sink("gs://bucket/lake"), "gs://bucket/lake/shop/orders"),
        (
            Sink("abfss://c0ntainer@account.dfs.core.windows.net/lake"),
            "abfss://c0ntainer@account.dfs.core.windows.net/lake/shop/orders",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_uri_of_an_asset_is_the_place_of_the_copy(sink: Sink, uri: str) -> None:
    found = cdc_asset(Pipeline(name="shop", source=Source("cdc_source", ("shop..*",)), sink=sink), "shop.orders")
    assert found.uri == uri == found.name, "who knows the place can name the asset without this package"
    assert Asset(uri).uri == uri and urlsplit(uri).scheme != "airflow"
    assert cdc_asset(Pipeline(name="shop", source=Source("c", ("shop..*",)), sink=sink), "shop.Größe").uri.isascii()


def test_a_table_that_is_not_copied_is_refused() -> None:
    with pytest.raises(NotReadyError, match=r"pipeline shop copies no table crm\.lead"):
        cdc_asset(pipeline(), "crm.lead")
    with pytest.raises(NotReadyError, match="copies no table orders"):
        cdc_asset(pipeline(), "orders")


def test_who_tells_of_changes() -> None:
    """A stream that never ends is watched; what a catch-up has applied, its task tells."""
    (watcher,) = cdc_asset(pipeline(), "shop.orders").watchers
    path, arguments = watcher.trigger.serialize()
    assert path == "airflow_provider_cdc.airflow.triggers.asset_windows.CdcTableTrigger"
    assert CdcTableTrigger(**arguments).serialize() == (path, arguments)
    catch_up = Pipeline(
        name="shop", source=Source("c", ("shop..*",)), sink=Sink("/lake"), stream=Stream(mode="catch_up")
    )
    assert cdc_asset(catch_up, "shop.orders").watchers == []
    assert cdc_asset(pipeline(), "shop.orders", watch=False).watchers == []


@pytest.mark.parametrize("operator", [CdcSnapshotSensor, CdcStreamOperator, CdcVerifyOperator])
def test_tasks_name_the_alias(operator: type[Any]) -> None:
    own = AssetAlias("mine")
    assert operator(task_id="t", pipeline=pipeline(), outlets=[own]).outlets == [own, cdc_assets(pipeline())]
    assert operator(task_id="t", pipeline=pipeline(), assets=False).outlets == []
    templated = {**pipeline().to_dict(), "name": "{{ var.value.name }}"}
    assert operator(task_id="t", pipeline=templated).outlets == [], "it is known when the task runs"
    assert operator(task_id="t", pipeline="shop.yaml").outlets == []


def counts(found: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(found[name] for name in ("inserts", "updates", "deletes", "start", "end"))


def test_each_catch_up_tells_what_the_one_before_has_not(store: StateDatabase) -> None:
    applied(store, 5, 1, 0, "b.1:100")
    assert counts(take_catch_up_windows(store, "shop", "run 1")[T]) == (5, 1, 0, None, "b.1:100")
    applied(store, 0, 2, 3, "b.1:200")
    second = (0, 2, 3, "b.1:100", "b.1:200")
    assert counts(take_catch_up_windows(store, "shop", "run 2")[T]) == second
    assert counts(take_catch_up_windows(store, "shop", "run 2")[T]) == second, (
        "the same task again: what it told may have been lost"
    )
    assert is_window_empty(take_catch_up_windows(store, "shop", "run 3")[T])


def test_rows_that_were_exchanged_are_news(store: StateDatabase) -> None:
    applied(store, 1)
    take_catch_up_windows(store, "shop", "run 1")
    store.add_event("shop", "table_rejoined", "it was read again", table="shop.other")
    assert is_window_empty(take_catch_up_windows(store, "shop", "run 2")[T])
    store.add_event("shop", "table_rejoined", "it was read again", table="shop.t")
    assert take_catch_up_windows(store, "shop", "run 3")[T]["reread"]
    assert is_window_empty(take_catch_up_windows(store, "shop", "run 4")[T])


def test_a_bookkeeping_that_was_made_anew_counts_from_its_beginning() -> None:
    def mark(count: int) -> dict[str, Any]:
        return {"inserts": count, "updates": 0, "deletes": 0, "reread": 0, "position": "p", "time": "t"}

    assert window_between(mark(7), mark(2))["inserts"] == 2
    assert window_between(mark(2), mark(7))["inserts"] == 5


def test_a_snapshot_is_told_once(store: StateDatabase) -> None:
    def told(generation: int, by: str) -> Sequence[tuple[str, str]]:
        return take_new_snapshots(store, "shop", generation, [T], by)

    assert told(1, "run 1") == [T] == told(1, "run 1"), "a retry tells it again"
    assert told(1, "run 2") == [] == told(1, "run 1")
    assert told(2, "run 3") == [T], "a new snapshot took its place"


class Memory:
    """As an asset's own store in Airflow 3.3."""

    def __init__(self) -> None:
        self.kept: dict[str, Any] = {}

    async def aget(self, key: str) -> Any:
        return self.kept.get(key)

    async def aset(self, key: str, value: Any) -> None:
        self.kept[key] = value


@pytest.mark.parametrize("own", [False, True], ids=["bookkeeping", "asset's store"])
def test_a_watcher_goes_on_where_the_last_one_was(
    store: StateDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: bool
) -> None:
    """Triggers that are ended and begun anew: windows join, and their sum is what was applied."""
    monkeypatch.setattr(asset_windows, "_POLL_SECONDS", 0.02)
    monkeypatch.setattr(asset_windows, "_WRITE_SECONDS", 0.0)
    memory = Memory() if own else None

    async def told(changes: Sequence[int]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        trigger = CdcTableTrigger(
            pipeline="shop",
            database="shop",
            table="t",
            state_conn_id=None,
            sink_path=str(tmp_path),
            min_seconds=0.05,
        )
        trigger.asset_state_store = memory  # type: ignore[assignment]

        async def hear() -> None:
            async for event in trigger.run():
                found.append(event.payload)

        task = asyncio.create_task(hear())
        for n, number in enumerate(changes, 1):
            applied(store, number, at=f"b.1:{number}")
            for _ in range(400):
                await asyncio.sleep(0.05)
                if sum(one["inserts"] for one in found) == sum(changes[:n]):
                    break
        await asyncio.sleep(0.3)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        return found

    first, second, third = (asyncio.run(told(changes)) for changes in ([1, 2, 4], [], [8, 16]))
    assert second == [], "nothing is told twice"
    every = first + third
    assert sum(one["inserts"] for one in every) == 31
    assert [one["start"] for one in every] == [None, *(one["end"] for one in every[:-1])]
    assert {(one["pipeline"], one["table"], one["kind"]) for one in every} == {("shop", "shop.t", "changes")}


def test_a_watcher_that_is_killed_before_its_note_tells_the_window_again(
    store: StateDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asset_windows, "_POLL_SECONDS", 0.02)
    applied(store, 1)

    async def first() -> Any:
        trigger = CdcTableTrigger(
            pipeline="shop", database="shop", table="t", state_conn_id=None, sink_path=str(tmp_path)
        )
        async with asyncio.timeout(30):
            return (await anext(trigger.run())).payload

    assert asyncio.run(first()) == asyncio.run(first())


def test_no_more_than_one_event_in_so_many_seconds(
    store: StateDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often something happens; and nothing of it is left out."""
    monkeypatch.setattr(asset_windows, "_POLL_SECONDS", 0.02)
    monkeypatch.setattr(asset_windows, "_WRITE_SECONDS", 0.0)
    trigger = CdcTableTrigger(
        pipeline="shop", database="shop", table="t", state_conn_id=None, sink_path=str(tmp_path), min_seconds=0.5
    )

    async def heard() -> tuple[list[float], int]:
        times, rows, events = list[float](), 0, trigger.run()
        for _ in range(3):
            applied(store, 1, at=f"b.1:{rows}")
            rows += (await anext(events)).payload["inserts"]
            times.append(time.monotonic())
        return times, rows

    times, rows = asyncio.run(heard())
    assert rows == 3 and all(later - before >= 0.4 for before, later in pairwise(times))


def test_the_asset_of_a_shared_bookkeeping() -> None:
    known = Pipeline(name="shop", source=Source("c", ("shop..*",)), sink=Sink("/lake"), state=State(conn_id="books"))
    (watcher,) = cdc_asset(known, "shop.t", min_seconds=300).watchers
    assert watcher.trigger.serialize()[1] == {
        "pipeline": "shop",
        "database": "shop",
        "table": "t",
        "state_conn_id": "books",
        "sink_path": "/lake",
        "min_seconds": 300,
    }
