"""What a person does in Airflow's UI, over its public REST API: trigger, look, clear, mark, read logs."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import quote

import httpx

__all__ = ["ApiError", "Client", "TaskInstance"]

#: Seconds that anything may take where the machine is busy with other tests: what works does not take a tenth of it.
PATIENCE = 480
#: States in which nothing more happens by itself.
ENDED = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})


class ApiError(Exception):
    """Airflow refused a request; with its answer."""


@dataclass(frozen=True)
class TaskInstance:
    """One task of one run, or one index of a mapped task.

    :ivar map_index: -1 for a task that is not mapped.
    :ivar state: None before it is scheduled.
    :ivar try_number: 0 before the first try.
    :ivar raw: all that Airflow says of it.
    """

    task_id: str
    map_index: int
    state: str | None
    try_number: int
    rendered_map_index: str | None
    raw: Mapping[str, Any]

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> TaskInstance:
        return cls(
            task_id=raw["task_id"],
            map_index=raw["map_index"],
            state=raw["state"],
            try_number=raw["try_number"],
            rendered_map_index=raw["rendered_map_index"],
            raw=raw,
        )


class Client:
    """A client of one Airflow.

    :param url: address of the api-server.
    :param login: name and password of an administrator; none where everybody is one.
    :param timeout: seconds for one request.
    """

    def __init__(self, url: str, login: tuple[str, str] | None = None, timeout: float = 120) -> None:
        self._login = login
        self._http = httpx.Client(base_url=url, timeout=timeout, trust_env=False)

    def close(self) -> None:
        """Close the connections; they are opened again when needed."""
        self._http.close()
        self._http = httpx.Client(base_url=self._http.base_url, timeout=self._http.timeout, trust_env=False)

    @property
    def token(self) -> str:
        """A browser's cookie ``_token``; where all are administrators, only Airflow 3.1 asks for it."""
        self.get("/version")
        return str(self._http.headers["Authorization"].removeprefix("Bearer "))

    # -- requests

    def request(self, method: str, path: str, body: object = None, **query: object) -> Any:
        """Send one request to ``/api/v2`` and return the answer's JSON (None where there is none).

        :param query: parameters; those that are None are left out.
        :raise ApiError: when Airflow refuses it.
        :raise httpx.TransportError: when the api-server cannot be reached.
        """
        params: dict[str, Any] = {name: value for name, value in query.items() if value is not None}
        for attempt in (1, 2):
            if "Authorization" not in self._http.headers:
                if self._login is None:
                    token = self._http.get("/auth/token")
                else:
                    user = dict(zip(("username", "password"), self._login, strict=True))
                    token = self._http.post("/auth/token", json=user)
                if token.is_error:
                    raise ApiError(f"/auth/token: {token.status_code} {token.text[:2000]}")
                self._http.headers["Authorization"] = f"Bearer {token.json()['access_token']}"
            answer = self._http.request(method, f"/api/v2{path}", json=body, params=params)
            if answer.status_code != 401 or attempt == 2:
                break
            del self._http.headers["Authorization"]
        if answer.is_error:
            raise ApiError(f"{method} {path}: {answer.status_code} {answer.text[:2000]}")
        return answer.json() if answer.content else None

    def get(self, path: str, **query: object) -> Any:
        """Send a GET request (see :meth:`request`)."""
        return self.request("GET", path, **query)

    def try_get(self, path: str, **query: object) -> Any:
        """As :meth:`get`, but None while the api-server or its database is away."""
        try:
            return self.get(path, **query)
        except (httpx.TransportError, ApiError):
            return None

    # -- DAGs

    def import_errors(self) -> dict[str, str]:
        """Return the traceback of each DAG file that could not be read, by file."""
        return {e["filename"]: e["stack_trace"] for e in self.get("/importErrors", limit=100)["import_errors"]}

    def wait_for_dag(self, dag_id: str, seconds: float = PATIENCE) -> None:
        """Wait until a DAG has been read.

        :raise AssertionError: when it was not, with the errors of the files that could not be read.
        """
        deadline = time.monotonic() + seconds
        while self.try_get(f"/dags/{dag_id}") is None:
            if time.monotonic() > deadline:
                errors = "\n".join(f"{file}:\n{text}" for file, text in self.import_errors().items())
                raise AssertionError(f"no DAG {dag_id} after {seconds:.0f} s\n{errors}")
            time.sleep(0.2)

    def unpause(self, dag_id: str) -> None:
        """Let the scheduler run a DAG."""
        self.request("PATCH", f"/dags/{dag_id}", {"is_paused": False})

    def watch(self, dag_id: str) -> None:
        """Let the scheduler run a DAG that waits for assets, and the triggerer watch these.

        Airflow finds watchers where it reads the file of a DAG that is not paused; here it does so every ten minutes.
        """
        self.wait_for_dag(dag_id)
        self.unpause(dag_id)
        self.request("PUT", f"/parseDagFile/{self.get(f'/dags/{dag_id}')['file_token']}")

    def pause(self, dag_id: str) -> None:
        """Let the scheduler start nothing more of a DAG."""
        self.request("PATCH", f"/dags/{dag_id}", {"is_paused": True})

    def pause_between_runs(self, dag_id: str) -> None:
        """Pause a scheduled DAG when it has no active run. If its schedule has just started one, that run ends first.

        :raise AssertionError: if that run does not succeed.
        """
        while True:
            self.pause(dag_id)
            active = [run for run, state in self.runs(dag_id).items() if state not in ENDED]
            if not active:
                return
            self.unpause(dag_id)  # the tasks of a paused DAG would not be scheduled
            for run in active:
                self.wait_run(dag_id, run)

    # -- runs

    def trigger(self, dag_id: str, conf: Mapping[str, Any] | None = None, run_id: str | None = None) -> str:
        """Wait for the DAG, unpause it, start a run and return the run's id."""
        self.wait_for_dag(dag_id)
        self.unpause(dag_id)
        body = {"logical_date": None, "conf": dict(conf or {}), "dag_run_id": run_id}
        return str(self.request("POST", f"/dags/{dag_id}/dagRuns", body)["dag_run_id"])

    def runs(self, dag_id: str) -> dict[str, str]:
        """Return the state of each run, by its id, the oldest first."""
        runs = self.get(f"/dags/{dag_id}/dagRuns", order_by="id", limit=100)["dag_runs"]
        return {run["dag_run_id"]: run["state"] for run in runs}

    def run_state(self, dag_id: str, run_id: str) -> str:
        """Return the state of a run: queued, running, success or failed."""
        return str(self.get(_run(dag_id, run_id))["state"])

    def mark_run(self, dag_id: str, run_id: str, state: str) -> None:
        """Mark a run ``success``, ``failed`` or ``queued``."""
        self.request("PATCH", _run(dag_id, run_id), {"state": state})

    def wait_run(self, dag_id: str, run_id: str, state: str = "success", seconds: float = PATIENCE) -> None:
        """Wait until a run has a state.

        :raise AssertionError: when it ended otherwise, or time is up: with its tasks and the logs of those that failed.
        """
        deadline = time.monotonic() + seconds
        while (found := (self.try_get(_run(dag_id, run_id)) or {}).get("state")) != state:
            ended = found in ENDED and state in ENDED
            if ended or time.monotonic() > deadline:
                raise AssertionError(f"run {run_id} of {dag_id} is {found}, not {state}\n{self._story(dag_id, run_id)}")
            time.sleep(0.3)

    # -- task instances

    def task_instances(self, dag_id: str, run_id: str, task_id: str | None = None) -> list[TaskInstance]:
        """Return the tasks of a run, in order of name and map index; of one task with `task_id`."""
        found: list[TaskInstance] = []
        while True:  # a page holds 100
            page = self.get(f"{_run(dag_id, run_id)}/taskInstances", task_id=task_id, limit=100, offset=len(found))
            found += map(TaskInstance.of, page["task_instances"])
            if len(found) >= page["total_entries"] or not page["task_instances"]:
                return sorted(found, key=lambda task: (task.task_id, task.map_index))

    def task_instance(self, dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> TaskInstance:
        """Return one task of a run, or one index of a mapped one."""
        return TaskInstance.of(self.get(f"{_task(dag_id, run_id, task_id)}/{map_index}"))

    def wait_state(
        self,
        dag_id: str,
        run_id: str,
        task_id: str,
        state: str | Collection[str] = "success",
        *,
        map_index: int = -1,
        min_try: int = 1,
        seconds: float = PATIENCE,
    ) -> TaskInstance:
        """Wait until a task is in one of the states, in try `min_try` or a later one.

        :raise AssertionError: when it ended otherwise, or time is up: with the end of its log.
        """
        wanted = {state} if isinstance(state, str) else set(state)
        path, deadline = f"{_task(dag_id, run_id, task_id)}/{map_index}", time.monotonic() + seconds
        while True:
            raw = self.try_get(path)
            if raw is not None and raw["try_number"] >= min_try and raw["state"] in wanted:
                return TaskInstance.of(raw)
            ended = raw is not None and raw["try_number"] >= min_try and raw["state"] in ENDED and wanted <= ENDED
            if ended or time.monotonic() > deadline:
                what = "unknown" if raw is None else f"{raw['state']} in try {raw['try_number']}"
                story = self._story(dag_id, run_id, task_id, map_index)
                name = f"{dag_id}.{task_id}[{map_index}]"
                raise AssertionError(f"{name} is {what}, not {'/'.join(sorted(wanted))} in try {min_try}+\n{story}")
            time.sleep(0.2)

    def clear(
        self,
        dag_id: str,
        run_id: str,
        task_id: str,
        map_index: int | None = None,
        *,
        only_failed: bool = False,
        downstream: bool = False,
    ) -> list[TaskInstance]:
        """Clear a task, or one index of it, so that it runs again. Unlike Airflow's own defaults, it really does.

        :param only_failed: leave alone what has not failed.
        :param downstream: also clear what comes after it.
        :return: what was cleared.
        """
        body = {
            "dag_run_id": run_id,
            "task_ids": [task_id if map_index is None else [task_id, map_index]],
            "dry_run": False,
            "only_failed": only_failed,
            "include_downstream": downstream,
        }
        answer = self.request("POST", f"/dags/{dag_id}/clearTaskInstances", body)
        return [TaskInstance.of(raw) for raw in answer["task_instances"]]

    def mark(self, dag_id: str, run_id: str, task_id: str, state: str, map_index: int = -1) -> None:
        """Mark a task ``success``, ``failed`` or ``skipped``."""
        self.request("PATCH", f"{_task(dag_id, run_id, task_id)}/{map_index}", {"new_state": state})

    def xcom(self, dag_id: str, run_id: str, task_id: str, key: str = "return_value", map_index: int = -1) -> Any:
        """Return a value that a task has pushed.

        :raise ApiError: when there is none.
        """
        path = f"{_task(dag_id, run_id, task_id)}/xcomEntries/{quote(key, safe='')}"
        return self.get(path, map_index=map_index, deserialize=False)["value"]

    def log(self, dag_id: str, run_id: str, task_id: str, try_number: int | None = None, map_index: int = -1) -> str:
        """Return the text of a task's log, one line an event; by default of its present try."""
        if try_number is None:
            try_number = self.task_instance(dag_id, run_id, task_id, map_index).try_number
        path = f"{_task(dag_id, run_id, task_id)}/logs/{try_number}"
        content = self.get(path, map_index=map_index, full_content=True)["content"]
        return "\n".join(map(_line, content))

    def extra_links(self, dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> dict[str, str | None]:
        """Return the links that the UI shows beside a task: address by name."""
        links = self.get(f"{_task(dag_id, run_id, task_id)}/links", map_index=map_index)["extra_links"]
        return dict(links)

    # -- connections

    def set_connection(self, conn_id: str, conn_type: str, **fields: object) -> None:
        """Make or replace a connection in Airflow's database; `fields` as in the UI: host, port, login, ..."""
        self.delete_connection(conn_id)
        self.request("POST", "/connections", {"connection_id": conn_id, "conn_type": conn_type, **fields})

    def delete_connection(self, conn_id: str) -> None:
        """Remove a connection, if there is one."""
        try:
            self.request("DELETE", f"/connections/{quote(conn_id, safe='')}")
        except ApiError as error:
            if ": 404 " not in str(error):
                raise

    def test_connection(self, conn_type: str, conn_id: str = "tested", **fields: object) -> tuple[bool, str]:
        """Press the UI's "Test" button: whether it went well, and the message."""
        body = {"connection_id": conn_id, "conn_type": conn_type, **fields}
        answer = self.request("POST", "/connections/test", body)
        return bool(answer["status"]), str(answer["message"])

    # -- backfills

    def create_backfill(self, dag_id: str, start: datetime, end: datetime, reprocess: str = "none") -> int:
        """Start a backfill of the runs from `start` to `end` (aware) and return its id.

        :param reprocess: which runs are run again: none, failed, completed.
        """
        body = {
            "dag_id": dag_id,
            "from_date": start.isoformat(),
            "to_date": end.isoformat(),
            "reprocess_behavior": reprocess,
        }
        return int(self.request("POST", "/backfills", body)["id"])

    def backfill_completed(self, backfill_id: int) -> bool:
        """Say whether all runs of a backfill have ended."""
        return self.get(f"/backfills/{backfill_id}")["completed_at"] is not None

    # -- for error messages

    def stories(self) -> str:
        """Return what the DAG runs that have not ended are at, with the ends of their logs."""
        runs = (self.try_get("/dags/~/dagRuns", state="running", limit=100) or {"dag_runs": []})["dag_runs"]
        known = [(run["dag_id"], run["dag_run_id"]) for run in runs]
        return "\n".join(f"--- {dag_id} {run_id}\n{self._story(dag_id, run_id)}" for dag_id, run_id in known)

    def _story(self, dag_id: str, run_id: str, task_id: str | None = None, map_index: int | None = None) -> str:
        """Return the tasks of a run, and the end of the logs of the one named and of those that failed."""
        try:
            tasks = self.task_instances(dag_id, run_id)
        except (ApiError, httpx.TransportError) as error:
            return f"(nothing more is known: {error})"
        lines = [f"  {task.task_id}[{task.map_index}] {task.state} (try {task.try_number})" for task in tasks]
        for task in tasks:
            named = (task.task_id, task.map_index) == (task_id, map_index)
            if task.try_number and (named or task.state not in ("success", "skipped", None)):
                try:
                    text = self.log(dag_id, run_id, task.task_id, task.try_number, task.map_index)
                except (ApiError, httpx.TransportError) as error:
                    text = str(error)
                lines += [f"--- log of {task.task_id}[{task.map_index}]", *text.splitlines()[-30:]]
        return "\n".join(lines)


def _run(dag_id: str, run_id: str) -> str:
    return f"/dags/{dag_id}/dagRuns/{quote(run_id, safe='')}"


def _task(dag_id: str, run_id: str, task_id: str) -> str:
    return f"{_run(dag_id, run_id)}/taskInstances/{task_id}"


def _line(event: Mapping[str, Any] | str) -> str:
    """One event of a log as text: time, level, message, further values, the error's trace."""
    if isinstance(event, str):
        return event
    known = {"timestamp", "level", "event", "error_detail", "logger", "filename", "lineno"}
    words = [str(event.get("timestamp", "")), str(event.get("level", "")).upper(), event["event"]]
    words += [f"{name}={value!r}" for name, value in event.items() if name not in known]
    for error in event.get("error_detail") or []:
        words.append(f"\n  {error.get('exc_type')}: {error.get('exc_value')}")
    return " ".join(filter(None, words))
