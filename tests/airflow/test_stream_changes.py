"""A stream that was started with other settings than the pipeline has now."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.airflow.operators.stream_epoch import apply_changed_settings
from airflow_provider_cdc.config import Alerts, Pipeline, Sink, Snapshot, Source, Stream
from airflow_provider_cdc.config.fingerprint import changed_settings, settings_fingerprint
from airflow_provider_cdc.state import EpochRow
from tests.support.cli import Cli
from tests.support.servers import MySQLServer
from tests.support.three_tables import three_tables

PIPELINE = Pipeline(name="n", source=Source("c", ("shop.t",)), sink=Sink("/lake"))


class Said:
    """A logger."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, text: str, *args: object) -> None:
        self.lines.append(text % args)

    warning = info


@pytest.mark.parametrize(
    ("other", "keys"),
    [
        (replace(PIPELINE, stream=Stream(trigger_seconds=2)), ["stream.trigger_seconds"]),
        (replace(PIPELINE, source=Source("d", ("shop.t", "shop.u"))), ["source.conn_id", "source.tables"]),
        (replace(PIPELINE, sink=Sink("/lake", partition_by={"shop.t": [{"day": "at"}]})), ["sink.partition_by"]),
        (replace(PIPELINE, alerts=Alerts(lag_seconds=3)), []),
        (replace(PIPELINE, stream=Stream(mode="catch_up"), snapshot=Snapshot(group_rows=10_000)), []),
        (Pipeline.from_yaml(PIPELINE.to_yaml()), []),
    ],
)
def test_what_differs(other: Pipeline, keys: list[str]) -> None:
    assert changed_settings(settings_fingerprint(PIPELINE), settings_fingerprint(other)) == keys
    assert "shop" not in str(settings_fingerprint(other))


def test_what_only_one_version_knows() -> None:
    older = settings_fingerprint(PIPELINE)
    del older["sink.adopt"]
    assert changed_settings({**older, "sink.gone": "x"}, settings_fingerprint(PIPELINE)) == []


@pytest.fixture
def cli(mysql_server: MySQLServer, tmp_path: Path) -> Iterator[Cli]:
    with three_tables(mysql_server):
        cli = Cli(tmp_path, mysql_server, r"d\.(keyed|quiet)")
        cli.snapshot()
        yield cli


def applied(cli: Cli, run: EpochRow, *, log: str | None = "/x.log") -> tuple[bool, list[str]]:
    run.log = log
    said: Any = Said()
    with cli.opened() as (work, store):
        return apply_changed_settings(work, store, run, "a task", said), said.lines


def test_a_running_stream_gets_what_has_changed(cli: Cli) -> None:
    with cli.streaming() as epoch:

        def current() -> EpochRow:
            with cli.opened() as (_, store):
                found = store.newest_epoch("p")
                assert found is not None
                return found

        assert applied(cli, current()) == (False, [])

        # Other tables: it takes them over while it runs, and that is not done twice.
        cli.value["source"]["tables"] = [r"d\.(keyed|plain)"]
        cli.write()
        asked, said = applied(cli, current())
        assert not asked and said[0].endswith("began: source.tables. The stream adopts these while it runs")
        assert said[1] == "added: d.plain; removed: d.quiet"
        assert applied(cli, current()) == (False, []) and epoch.plan.tables[-1].label == "d.plain"

        # All else: the next epoch has it. One of somebody's terminal is left alone.
        cli.value["stream"]["max_batch_rows"] = 2000
        cli.write()
        asked, (line,) = applied(cli, current(), log=None)
        assert not asked and "stream.max_batch_rows" in line and "keeps its old settings" in line
        assert current().desired_state == "run"
        asked, (line,) = applied(cli, current())
        assert asked and line.endswith("Asking the stream to stop; the next epoch begins with the new settings")
        assert (current().desired_state, current().stop_by) == ("stop", "a task")


def test_a_stream_of_an_older_version_is_left_alone(cli: Cli) -> None:
    with cli.streaming(), cli.opened() as (_, store):
        run = store.newest_epoch("p")
        assert run is not None and run.settings
        run.settings = None
        cli.value["stream"]["max_batch_rows"] = 2000
        cli.write()
        assert applied(cli, run) == (False, [])
