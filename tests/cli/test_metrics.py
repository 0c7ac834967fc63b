"""``airflow-cdc metrics`` on a bookkeeping as drivers leave it."""

from __future__ import annotations

import re
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from unittest.mock import patch

import pytest
from sqlalchemy import delete

from airflow_provider_cdc.observe.metrics import Measurement, measure_pipeline
from airflow_provider_cdc.observe.prometheus import write_metrics_file
from airflow_provider_cdc.state import StateDatabase, TableStatus, observations, utc_now
from airflow_provider_cdc.state.models import LagSampleRow
from tests.support.cli import Cli
from tests.support.servers import MySQLServer

pytestmark = pytest.mark.one_of("server")
SIZE = {"files": 3, "bytes": 900, "rows": 7, "dead_rows": 1, "compactions": 4}


class Nowhere(MySQLServer):
    """No server: nobody asks it."""

    def __init__(self) -> None: ...

    def uri(self, user: str | None = None, password: str | None = None) -> str:
        return "mysql://nobody:nothing-at-all@127.0.0.1:1/"


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    found = Cli(tmp_path, Nowhere(), "d.t", name="shop")
    yield found


def filled(cli: Cli) -> StateDatabase:
    with cli.opened() as (context, store):
        for name in ("shop", "other"):
            store.register_pipeline(name, "server")
            epoch = store.begin_epoch(name, 0, "host", 1, 1.0)
            store.record_batch(
                name, epoch, 0, start_offset=None, end_offset=None, changes=9, bytes=1, seconds=0.5, lag_p95_ms=1500.0
            )
        store.record_sample("shop", epoch, lag_seconds=2.5, lag_bytes=10, purge_hours=None)
        tables = [TableStatus("d", "t", "streaming"), TableStatus("d", "u", "suspended")]
        tables += [TableStatus("d", "gone", "removed"), TableStatus("d", "new", "waiting")]
        store.write_table_states("shop", tables, sizes={("d", "t"): SIZE}, applied_counts={("d", "t"): [4, 3, 2]})
        store.record_verification("shop", {("d", "t"): {"equal": False}})
    return context.open_state_database()


def numbers(text: str) -> dict[str, float]:
    return {name: float(value) for name, value in re.findall(r"^(cdc_\w+\{.*\}) (\S+)$", text, re.MULTILINE)}


def test_what_is_printed(cli: Cli, tmp_path: Path) -> None:
    refused = cli.call("metrics")
    assert refused.code == 2 and "there is no state database file" in refused.problem
    assert not (tmp_path / "lake").exists(), "nothing is made"
    with closing(filled(cli)) as store:
        found = numbers(cli.call("metrics").out)
        of = '{pipeline="shop"}'
        t, u = '{pipeline="shop",table="d.t"}', '{pipeline="shop",table="d.u"}'
        assert {name: value for name, value in found.items() if "_age_" not in name and of in name} == {
            f"cdc_{name}{of}": value
            for name, value in {
                "running": 1,
                "paused": 0,
                "failed": 0,
                "lag_seconds": 2.5,
                "bytes_behind": 10,
                "change_lag_seconds": 1.5,
                "merge_seconds": 0.5,
                "changes_total": 9,
                "batches_total": 1,
                "tables": 3,
                "suspended_tables": 1,
            }.items()
        }
        assert (found[f"cdc_suspended{t}"], found[f"cdc_suspended{u}"]) == (0, 1)
        assert (found[f"cdc_table_rows{t}"], found[f"cdc_dead_rows{t}"]) == (7, 1) and f"cdc_table_rows{u}" not in found
        totals = ("inserts", "updates", "deletes", "compactions")
        assert [found[f"cdc_{name}_total{t}"] for name in totals] == [4, 3, 2, 4]
        assert found[f"cdc_verified_equal{t}"] == 0 and f"cdc_verified_equal{u}" not in found
        assert not any("gone" in name or "other" in name for name in found)
        assert {'cdc_running{pipeline="shop"}', 'cdc_running{pipeline="other"}'} <= set(
            numbers(cli.call("metrics", "--all").out)
        )
        # A sample from long ago says nothing of now, and a stream that says nothing does not run.
        with patch.object(observations, "utc_now", lambda: utc_now() - timedelta(minutes=6)):
            with store._write_session() as session:
                session.execute(delete(LagSampleRow))
            store.record_sample("shop", 1, lag_seconds=0.0, lag_bytes=0, purge_hours=9.0)
        with patch("airflow_provider_cdc.state.streams.utc_now", lambda: utc_now() - timedelta(minutes=2)):
            store.record_heartbeat("shop", 1, False)
        later = {one.name: one.value for one in measure_pipeline(store, "shop")}
        assert later["running"] == 0 and later["heartbeat_age_seconds"] > 119
        assert not {"lag_seconds", "bytes_behind", "hours_to_purge"} & set(later)


def test_into_a_file(cli: Cli, tmp_path: Path) -> None:
    with closing(filled(cli)):
        file = tmp_path / "shop.prom"
        assert cli.call("metrics", "--output", str(file)).code == 0
        assert numbers(file.read_text()) and [p.name for p in tmp_path.glob("*.prom*")] == ["shop.prom"]
        refused = cli.call("metrics", "--output", str(tmp_path / "nowhere" / "shop.prom"))
        assert refused.code == 2 and "cannot be written: No such file or directory" in refused.problem
        for wrong in ("9108", "127.0.0.1:", "127.0.0.1:99999"):
            assert "is not host:port" in cli.call("metrics", "--listen", wrong).problem
        both = cli.call("metrics", "--listen", "127.0.0.1:0", "--output", "x")
        assert both.code == 2 and "mutually exclusive" in both.problem


def test_nothing_is_left_of_a_file_that_was_not_finished(tmp_path: Path) -> None:
    """The process is ended while it waits for the state database."""

    def measure() -> list[Measurement]:
        assert not [*tmp_path.iterdir()]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_metrics_file(measure, str(tmp_path / "shop.prom"))
    assert not [*tmp_path.iterdir()]


def test_by_http(cli: Cli, tmp_path: Path) -> None:
    filled(cli).close()
    with cli.start("metrics", "--listen", "127.0.0.1:0") as process:
        try:
            assert process.stderr is not None
            found = re.search(r"http://\S+/metrics", process.stderr.readline())
            assert found
            with urllib.request.urlopen(f"{found[0]}?name[]=cdc_lag_seconds", timeout=30) as answer:
                assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
                assert numbers(answer.read().decode())['cdc_running{pipeline="shop"}'] == 1
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(found[0].replace("/metrics", "/"), timeout=30)
            for part in (tmp_path / "lake" / "_cdc" / "shop").glob("bookkeeping.db*"):
                part.unlink()
            with pytest.raises(urllib.error.HTTPError, match="503"):
                urllib.request.urlopen(found[0], timeout=30)
        finally:
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate(timeout=60)
    assert process.returncode == 0 and "there is no state database file" in err and "Traceback" not in err
