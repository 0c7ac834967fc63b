"""The hooks of a stream's task, with a real bookkeeping and a real notifier."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import BaseNotifier

from airflow_provider_cdc import Alerts, CdcStreamOperator, Pipeline, Sink, Source
from airflow_provider_cdc.airflow.operators.alerts import AlertHooks
from airflow_provider_cdc.airflow.triggers import cdc
from airflow_provider_cdc.airflow.triggers.cdc import CdcStreamTrigger
from airflow_provider_cdc.model.errors import NotReadyError, TerminalError
from airflow_provider_cdc.state import StateDatabase, TableStatus

PIPELINE = Pipeline(
    name="shop",
    source=Source("cdc_source", ("shop.t",)),
    sink=Sink(path="/nowhere"),
    alerts=Alerts(lag_seconds=100),
)
GONE = TableStatus("shop", "t", "suspended", reason="a DDL")
log = logging.getLogger(__name__)


class Note(BaseNotifier):
    """Writes down what it is told."""

    template_fields = ("text",)
    heard: list[tuple[str, str]] = []  # noqa: RUF012 (all that there are share it)

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name, self.text = name, "{{ cdc_alert.pipeline }} {{ cdc_alert.table }}: {{ cdc_alert.detail }}"

    def notify(self, context: Any) -> None:
        self.heard.append((self.name, self.text))


def heard() -> list[tuple[str, str]]:
    found, Note.heard[:] = list(Note.heard), []
    return found


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StateDatabase]:
    with closing(StateDatabase.open(f"sqlite:///{tmp_path / 'books.db'}", migrate=True)) as opened:
        opened.register_pipeline("shop", "server")
        opened.begin_epoch("shop", 0, "host", 1, 1.0)
        heard()
        yield opened


def all_hooks() -> AlertHooks:
    return AlertHooks(**{kind: Note(kind) for kind in ("suspended", "lag", "purge_risk", "failed", "recovered")})


def sample(store: StateDatabase, lag: float) -> None:
    store.record_sample("shop", 1, lag_seconds=lag, lag_bytes=0, purge_hours=1.0)


def test_one_message_for_each_change(store: StateDatabase) -> None:
    def tell() -> list[tuple[str, str]]:
        all_hooks().notify({}, store, PIPELINE, log)  # as a process that has just been started
        return heard()

    assert tell() == []
    sample(store, 101)
    late = "shop None: the oldest commit that was not read is 101 s old (limit: 100 s)"
    assert tell() == [("lag", late)]
    sample(store, 60)
    store.write_table_states("shop", [GONE])
    assert tell() == [("suspended", "shop shop.t: table shop.t is suspended: a DDL")]
    assert tell() == []
    sample(store, 3)
    store.write_table_states("shop", [GONE._replace(state="streaming")])
    assert tell() == [("recovered", late), ("recovered", "shop shop.t: table shop.t is suspended: a DDL")]
    assert tell() == [] and store.alerts("shop") == []
    sample(store, 102)
    assert [kind for kind, _ in tell()] == ["lag"], "and once more"


def test_nobody_hears_what_nobody_asked_for(store: StateDatabase) -> None:
    sample(store, 101)
    store.write_table_states("shop", [GONE])
    AlertHooks(suspended=[Note("one"), Note("two")]).notify({}, store, PIPELINE, log)
    assert [name for name, _ in heard()] == ["one", "two"]
    AlertHooks(recovered=Note("recovered")).notify({}, store, PIPELINE, log)
    assert heard() == []
    with pytest.raises(TypeError, match="on_lag is 'x': give a notifier"):
        CdcStreamOperator(task_id="t", pipeline=PIPELINE, on_lag="x")  # type: ignore[arg-type]


def test_a_hook_that_fails_and_one_that_dies(store: StateDatabase, caplog: pytest.LogCaptureFixture) -> None:
    sample(store, 101)

    def fails(context: Any) -> None:
        raise ValueError("no route")

    def dies(context: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        AlertHooks(lag=dies).notify({}, store, PIPELINE, log)
    AlertHooks(lag=[fails, Note("lag")]).notify({}, store, PIPELINE, log)
    assert [name for name, _ in heard()] == ["lag"], "nobody was told before"
    assert "a hook for lag failed" in caplog.text and "no route" in caplog.text


def test_a_stream_that_fails(store: StateDatabase) -> None:
    @contextmanager
    def opened() -> Iterator[tuple[Any, StateDatabase]]:
        yield type("Work", (), {"pipeline": PIPELINE}), store

    def fail(killed: bool = False) -> list[tuple[str, str]]:
        with pytest.raises(TerminalError), all_hooks().notify_on_error({}, opened, lambda: killed, log):
            raise TerminalError("a lost position", "look")
        return heard()

    assert fail(killed=True) == []
    assert fail() == [("failed", "shop None: a lost position. look")]
    store.end_epoch("shop", 1, "stopped")
    assert fail() == [], "a retry that fails again is no news"
    epoch = store.begin_epoch("shop", 1, "host", 1, 1.0)
    store.end_epoch("shop", epoch, "failed")
    assert fail() == [], "nor is one that fails in an epoch of its own"
    epoch = store.begin_epoch("shop", epoch, "host", 1, 1.0)
    all_hooks().notify({}, store, PIPELINE, log)
    assert heard() == [], "it has only begun"
    store.end_epoch("shop", epoch, "caught_up")
    all_hooks().notify({}, store, PIPELINE, log)
    assert heard() == [("recovered", "shop None: a lost position. look")]


def test_the_trigger_fires_when_there_is_news(
    store: StateDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cdc, "_SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(cdc, "STATS_SECONDS", 0.1)

    async def fires(seconds: float) -> dict[str, Any] | None:
        trigger = CdcStreamTrigger(
            pipeline="shop",
            epoch=1,
            found=False,
            state_conn_id=None,
            state_path=str(tmp_path / "books.db"),
            supervisor="task",
            poll_seconds=0.1,
            alerts=all_hooks().trigger_request(PIPELINE),
        )
        events = trigger.run()
        try:
            async with asyncio.timeout(seconds):
                payload: dict[str, Any] = (await anext(events)).payload
                return payload
        except TimeoutError:
            return None

    assert asyncio.run(fires(2)) is None
    sample(store, 101)
    assert asyncio.run(fires(60)) == {"epoch": 1, "found": False, "alerts": True}
    all_hooks().notify({}, store, PIPELINE, log)
    assert asyncio.run(fires(2)) is None


@pytest.mark.parametrize("value", [0, -1, True, "5", 1e9])
def test_limits_that_are_refused(value: Any) -> None:
    with pytest.raises(NotReadyError, match=r"alerts.lag_seconds .* a number above 0, or null"):
        Alerts(lag_seconds=value)
