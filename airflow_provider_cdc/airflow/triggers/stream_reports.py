"""Reports about a stream while its task waits: a log line and an XCom at intervals, and the driver's log."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_cdc.observe.log_lines import parse_log_line
from airflow_provider_cdc.observe.stream_summary import behind_text, summary_prefix
from airflow_provider_cdc.system.processes import tail_log

if TYPE_CHECKING:
    from airflow_provider_cdc.state import EpochRow, StateDatabase

#: Key of the XCom.
LAG_XCOM_KEY = "lag"
#: Lines of the driver's log to show at first, and bytes of it to read for one report.
_FIRST_LINES, _MAX_BYTES = 10, 20_000


class StreamReporter:
    """Reports of one process that watches a stream.

    :param seconds: seconds between two reports.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._reported_at = float("-inf")
        self._driver_log = DriverLogReader()
        self._push_failed = False

    @property
    def is_due(self) -> bool:
        """Whether the next report is due."""
        return time.monotonic() - self._reported_at >= self._seconds

    def make_report(self, store: StateDatabase, run: EpochRow) -> tuple[dict[str, Any], list[str]]:
        """Report the progress of a run.

        :returns: values for the XCom, and lines for the log. One line at least is a summary: the driver's own, or one
            from the state database if the driver's log has none since the last report, or cannot be read here.
        """
        self._reported_at = time.monotonic()
        values, new_lines = report_values(store, run), self._driver_log.read_new_lines(run.log, run.host)
        prefix = summary_prefix(run.epoch)
        has_summary = any(parse_log_line(line)[1].startswith(prefix) for line in new_lines)
        return values, new_lines if has_summary else [report_text(values), *new_lines]

    def push_xcom(self, values: dict[str, Any], ti: Any, log: Any) -> None:
        """Write the XCom. Errors of Airflow or of an XCom backend are logged and do not affect the stream.

        :param ti: the task instance, or ``None`` if there is none.
        """
        from airflow.sdk.execution_time.xcom import XCom

        if ti is None:
            return
        key = {"dag_id": ti.dag_id, "task_id": ti.task_id, "run_id": ti.run_id}
        try:
            XCom.set(LAG_XCOM_KEY, values, **key, map_index=-1 if ti.map_index is None else ti.map_index)
            self._push_failed = False
        except Exception as error:
            if not self._push_failed:
                log.warning("cannot write the XCom %s: %s", LAG_XCOM_KEY, error)
            self._push_failed = True


def report_values(store: StateDatabase, run: EpochRow) -> dict[str, Any]:
    """Return the progress of a run as plain values. Unknown values are ``None``."""
    sample, end = store.last_sample(run.pipeline), run.end_offset or {}
    run_sample = sample if sample is not None and sample.epoch == run.epoch else None
    return {
        "epoch": run.epoch,
        "at": None if run_sample is None else run_sample.at.isoformat(timespec="seconds"),
        "lag_seconds": run_sample and run_sample.lag_seconds,
        "lag_bytes": run_sample and run_sample.lag_bytes,
        "hours_to_purge": run_sample and run_sample.purge_hours,
        "unknown": run_sample and run_sample.unknown,
        "file": end.get("file"),
        "position": end.get("position"),
        "batches": run.batches,
        "changes": run.changes,
    }


def report_text(values: dict[str, Any]) -> str:
    """Return the report as one line."""
    behind = behind_text(*(values[name] for name in ("lag_seconds", "lag_bytes", "hours_to_purge", "unknown")))
    at = f"{values['file']}:{values['position']}" if values["file"] else "no batch yet"
    work = f"{values['batches']:,} batches, {values['changes']:,} changes"
    return f"{summary_prefix(values['epoch'])}{behind}; at {at}; {work}"


class DriverLogReader:
    """Reads what was appended to a driver's log since the last read."""

    def __init__(self) -> None:
        self._path = ""
        self._read_up_to = 0

    def read_new_lines(self, path: str | None, host: str) -> list[str]:
        """Return the lines since the last call, or at first the last lines of the log.

        If the file cannot be read here, the first call returns a line that says where it is.

        :param path: path of the file, or ``None`` if the driver writes to a terminal.
        :param host: host on which the driver runs.
        """
        first = self._path != (path or host)
        self._path = path or host
        if path is None:
            return [f"the stream was started on {host} from the command line, and logs there"] if first else []
        try:
            size = Path(path).stat().st_size
            with open(path, "rb") as file:
                if first:
                    self._read_up_to = size
                    return [f"the driver's log {path}:", *tail_log(path, _FIRST_LINES)]
                file.seek(
                    self._read_up_to if size >= self._read_up_to else 0
                )  # smaller than before: the log was rotated
                skipped = max(0, size - file.tell() - _MAX_BYTES)
                file.seek(skipped, 1)
                data = file.read(_MAX_BYTES)
                complete_bytes = data.rfind(b"\n") + 1
                self._read_up_to = file.tell() - len(data) + complete_bytes
        except OSError:
            return [f"the driver's log is {path} on {host}, which cannot be read from here"] if first else []
        new_lines = data[:complete_bytes].decode(errors="replace").splitlines()
        return [f"... {skipped:,} bytes of the driver's log omitted", *new_lines[1:]] if skipped else new_lines
