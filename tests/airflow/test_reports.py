"""What a task says of its stream while it waits."""

from __future__ import annotations

import asyncio
from contextlib import closing, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from airflow_provider_cdc.airflow.triggers.cdc import CdcStreamTrigger
from airflow_provider_cdc.airflow.triggers.stream_reports import DriverLogReader, report_text, report_values
from airflow_provider_cdc.state import StateDatabase


def test_a_log_is_followed(tmp_path: Path) -> None:
    file, log = tmp_path / "stream.log", DriverLogReader()
    assert log.read_new_lines(str(file), "far") == [
        f"the driver's log is {file} on far, which cannot be read from here"
    ]
    assert log.read_new_lines(str(file), "far") == []
    file.write_text("".join(f"line {n}\n" for n in range(30)))
    log = DriverLogReader()
    assert log.read_new_lines(str(file), "far") == [f"the driver's log {file}:", *(f"line {n}" for n in range(20, 30))]
    assert log.read_new_lines(str(file), "far") == []
    with file.open("a") as writer:
        writer.write("one\nhalf of ")
        writer.flush()
        assert log.read_new_lines(str(file), "far") == ["one"]
        writer.write("two\n")
    assert log.read_new_lines(str(file), "far") == ["half of two"]
    file.write_text("anew\n")  # its older part was put aside
    assert log.read_new_lines(str(file), "far") == ["anew"]
    with file.open("a") as writer:
        writer.writelines(f"{n:05} {'x' * 93}\n" for n in range(1000))
    first, *rest = log.read_new_lines(str(file), "far")
    assert first == "... 80,000 bytes of the driver's log omitted" and rest[-1].startswith("00999 ")
    assert len(rest) <= 200


def test_a_stream_of_a_terminal() -> None:
    log = DriverLogReader()
    assert log.read_new_lines(None, "far") == ["the stream was started on far from the command line, and logs there"]
    assert log.read_new_lines(None, "far") == []


def test_a_trigger_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Now and then; a report that Airflow does not take ends no watch."""
    said: list[str] = []
    (tmp_path / "stream.log").write_text("a line of the driver\n")
    with closing(StateDatabase.open(f"sqlite:///{tmp_path}/books.db", migrate=True)) as store:
        store.register_pipeline("p", "server")
        details = {"log": f"{tmp_path}/stream.log"}
        epoch = store.begin_epoch("p", 0, "h", 1, 1.0, details=details)
        trigger = CdcStreamTrigger(
            pipeline="p",
            epoch=epoch,
            found=False,
            state_conn_id=None,
            state_path=f"{tmp_path}/books.db",
            supervisor="a task",
            poll_seconds=0.05,
            report_seconds=0.5,
        )
        trigger.task_instance = SimpleNamespace(dag_id="d", run_id="r", task_id="t", map_index=None)  # type: ignore[assignment]
        monkeypatch.setattr(trigger.log, "log", lambda level, text, *args: said.append(text % args))
        monkeypatch.setattr(trigger.log, "warning", lambda text, *args: said.append(text % args))

        async def main() -> None:
            with suppress(TimeoutError):
                async with asyncio.timeout(2.2):
                    async for event in trigger.run():
                        said.append(str(event))

        asyncio.run(main())
    reports = [line for line in said if line.startswith(f"epoch {epoch}: ")]
    assert 3 <= len(reports) <= 5 and said.count("a line of the driver") == 1
    assert len([line for line in said if line.startswith("cannot write the XCom lag")]) == 1
    assert len(said) == len(reports) + 3  # and where the driver's log is


@pytest.mark.parametrize("known", [True, False])
def test_the_numbers(tmp_path: Path, known: bool) -> None:
    with closing(StateDatabase.open(f"sqlite:///{tmp_path}/books.db", migrate=True)) as store:
        store.register_pipeline("p", "server")
        epoch = store.begin_epoch("p", 0, "h", 1, 1.0)
        if known:
            store.record_sample("p", epoch=epoch, lag_seconds=12, lag_bytes=3456, purge_hours=71.5)
            end = {"file": "binlog.000004", "position": 157}
            store.record_batch("p", epoch, 0, start_offset=end, end_offset=end, changes=7, bytes=1, seconds=1)
        run = store.newest_epoch("p")
        assert run is not None
        found = report_values(store, run)
    if known:
        assert report_text(found) == (
            "epoch 1: 12 s and 3,456 bytes behind the source, which keeps the needed binlogs for 71.5 h more; "
            "at binlog.000004:157; 1 batches, 7 changes"
        )
    else:
        assert report_text(found) == "epoch 1: lag unknown so far; at no batch yet; 0 batches, 0 changes"
