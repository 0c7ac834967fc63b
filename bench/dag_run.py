"""A run of the demo's DAG, as one follows it in Airflow's UI, and the page, as a browser asks it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from typing import Any

import httpx

from airflow_provider_cdc.snapshot.task_groups import format_numbers
from airflow_provider_cdc.state.models import ChunkGroupRow
from airflow_provider_cdc.system.processes import session_members
from bench.screen import PATIENCE, PAUSE, DemoFailed
from bench.shop import Shop, lag
from tests.support.airflow_client import ENDED, ApiError, TaskInstance
from tests.support.airflow_processes import Airflow

#: The DAG of ``demo_dag.py``, the name of its pipeline, and the tasks of interest.
DAG, NAME = "cdc_demo", "shop"
PLAN, SNAPSHOT, STREAM = f"{NAME}.plan_chunks", f"{NAME}.snapshot", f"{NAME}.stream"
#: States that are worth a line, and seconds between two lines about chunks and batches.
SHOWN, OFTEN = ENDED | {"running", "deferred", "up_for_retry"}, 3.0
#: The error in the log of a task that Airflow does not retry.
_ERROR = re.compile(r"^\s*AirflowFailException: (.+)$", re.MULTILINE)


class Page:
    """The page of an Airflow."""

    def __init__(self, airflow: Airflow) -> None:
        self._airflow = airflow

    def knows_pipeline(self) -> bool:
        """Whether the list of pipelines has the one of the demo, with its state database."""
        return self._database_key() is not None

    def retry_group(self, group: int, *, dry_run: bool) -> dict[str, Any]:
        """Press *Retry* of a chunk group.

        :param dry_run: only ask what this would do, as the page does before the user confirms.
        :raises ApiError: when the page refuses.
        """
        act = {"group": group, "dry_run": dry_run}
        return dict(self._ask("POST", f"/{self._database_key()}/{NAME}/acts/retry", act))

    def _database_key(self) -> str | None:
        lines = self._ask("GET", "")["pipelines"]
        return next((line["book"] for line in lines if line["name"] == NAME), None)

    def _ask(self, method: str, path: str, body: object = None) -> Any:
        url = self._airflow.url
        headers = {"Authorization": f"Bearer {self._airflow.client.token}", "X-CDC-Page": "1", "Origin": url}
        address = f"{url}/cdc/api/pipelines{path}"
        answer = httpx.request(method, address, json=body, headers=headers, timeout=60, trust_env=False)
        if answer.is_error:
            raise ApiError(f"{method} {path}: {answer.status_code} {answer.text[:2000]}")
        return answer.json()


class Run:
    """A run of the DAG: its tasks, the chunks that are read, and the batches."""

    def __init__(self, shop: Shop, airflow: Airflow) -> None:
        self._shop, self._client, self._page = shop, airflow.client, Page(airflow)
        self._tasks: dict[tuple[str, int], TaskInstance] = {}
        self._chunks, self._batch, self._said = 0, (0, -1), 0.0
        self._id = self._client.trigger(DAG)

    def look(self, seconds: float = OFTEN) -> None:
        """Say what is new.

        :param seconds: how long it takes at least from one line about chunks or batches to the next.
        """
        with suppress(ApiError, httpx.TransportError):  # it may be slow now and then
            old, tasks = self._tasks, self._client.task_instances(DAG, self._id)
            self._tasks = {(task.task_id, task.map_index): task for task in tasks}
            for key, task in self._tasks.items():
                if task.state in SHOWN and (key not in old or task.state != old[key].state):
                    self._say(f"{_task_label(task)}: {task.state}")
        if self.state(PLAN) == "success" and time.monotonic() - self._said > seconds:
            self._look_at_books()

    def state(self, task: str) -> str | None:
        """State of a task that is not mapped, when it was looked at last."""
        found = self._tasks.get((task, -1))
        return found.state if found else None

    def wait(self, reached: Callable[[], bool], *, may_fail: str | None = None) -> None:
        """Look until something is reached.

        :param may_fail: a task whose failure does not matter.
        :raises DemoFailed: when a task fails, the stream's ends before, or nothing new happens for too long.
        """
        begun = time.monotonic()
        while not reached():
            self.look()
            for task in self._tasks.values():
                if task.state in ("failed", "upstream_failed") and task.task_id != may_fail:
                    raise DemoFailed(
                        f"task {_task_label(task)} is {task.state}; the end of its log:\n{self._task_log(task)[-3000:]}"
                    )
            if self.state(STREAM) in ENDED:
                raise DemoFailed(f"the stream's task is {self.state(STREAM)}: it was stopped from outside")
            if time.monotonic() > max(begun, self._said) + PATIENCE:
                states = {_task_label(task): task.state for task in self._tasks.values()}
                raise DemoFailed(f"nothing new in {PATIENCE:g} s; the tasks are {states}")
            time.sleep(PAUSE)

    def follow(self, seconds: float) -> None:
        """Look for a while."""
        until = time.monotonic() + seconds
        self.wait(lambda: time.monotonic() > until)

    def catch_up(self) -> None:
        """Wait until the lake has everything that the server has now."""
        end = self._shop.end()
        self.wait(lambda: self._shop.applied(end))

    # -- a chunk group that fails

    def show_plan(self) -> None:
        """Say which tasks the plan has.

        :raises DemoFailed: when there are not several.
        """
        self.wait(lambda: self.state(PLAN) == "success")
        tasks = self._client.xcom(DAG, self._id, PLAN)
        groups = sum(len(task["groups"]) for task in tasks)
        if len(tasks) < 2 or groups <= len(tasks):
            raise DemoFailed(
                f"the plan has {groups} chunk groups in {len(tasks)} tasks, and should have several in each"
            )
        labels = "; ".join(task["label"] for task in tasks)
        self._shop.screen.say(f"The plan: {groups} chunk groups, read by {len(tasks)} mapped tasks ({labels})")

    def wait_failed_group(self) -> ChunkGroupRow:
        """Wait until all mapped tasks have ended, and say why one of them has failed.

        :returns: the chunk group that is not published.
        :raises DemoFailed: unless it is one, and all others are published.
        """
        self.wait(
            lambda: bool(mapped := self._mapped_tasks()) and all(t.state in ENDED for t in mapped), may_fail=SNAPSHOT
        )
        group = find_failed_group(self._chunk_groups())
        failed = [task for task in self._mapped_tasks() if task.state == "failed"]
        errors = [error for task in failed for error in _ERROR.findall(self._task_log(task))]
        if len(errors) != 1:
            raise DemoFailed(
                f"{len(failed)} mapped tasks have failed, and their logs have {len(errors)} errors, not one"
            )
        self._shop.screen.say(f"The log of {_task_label(failed[0])} says: {errors[0]}", "yellow")
        return group

    def retry(self, failed: ChunkGroupRow) -> None:
        """Retry a chunk group on the page, and wait until the snapshot is complete.

        :raises DemoFailed: when another group was read again, or this one was not.
        """
        before = {group.group_no: group.attempt for group in self._chunk_groups()}
        self.wait(self._page.knows_pipeline, may_fail=SNAPSHOT)
        says = self._page.retry_group(failed.group_no, dry_run=True)
        self._shop.screen.say(f"Retry on the page: {says['says'] or says['why_not']}")
        self._page.retry_group(failed.group_no, dry_run=False)
        self._tasks = {key: task for key, task in self._tasks.items() if task.state != "failed"}  # it is cleared
        self.wait(lambda: all(group.state == "done" for group in self._chunk_groups()))
        check_read_again(before, self._chunk_groups(), failed.group_no)
        once = format_numbers(set(before) - {failed.group_no})
        self._shop.screen.say(
            f"Chunk group {failed.group_no} is published; of the others ({once}), none was read again"
        )

    def _mapped_tasks(self) -> list[TaskInstance]:
        return [task for (name, index), task in self._tasks.items() if name == SNAPSHOT and index >= 0]

    def _task_log(self, task: TaskInstance) -> str:
        return self._client.log(DAG, self._id, task.task_id, map_index=task.map_index)

    def _chunk_groups(self) -> list[ChunkGroupRow]:
        with closing(self._shop.store()) as store:
            snapshot = store.snapshot(NAME)
            return store.groups(NAME, snapshot.generation) if snapshot else []

    # -- the end

    def stop(self) -> None:
        """Mark the stream's task as successful, as one does in the UI, and wait until the stream has ended.

        :raises AssertionError: if the run does not end well.
        """
        self._client.pause(DAG)  # another queued run would continue the stream
        self._client.mark(DAG, self._id, STREAM, "success")
        deadline, asked = time.monotonic() + PATIENCE, False
        while (run := self._stream()).state == "running" or session_members(run.pid):
            self.look()
            if run.desired_state == "stop" and not asked:
                asked = True
                self._say("the trigger has seen it and asks the stream to stop")
            if time.monotonic() > deadline:
                raise DemoFailed(f"the stream did not end: process {run.pid} on {run.host} is {run.state}")
            time.sleep(PAUSE)
        self._say(f"the stream has {run.state}, and its process has ended")
        if run.state != "stopped":
            raise DemoFailed(f"the stream ended as {run.state}: {run.error}")
        self._client.wait_run(DAG, self._id)

    def _stream(self) -> Any:
        with closing(self._shop.store()) as store:
            run = store.newest_epoch(NAME)
        if run is None:
            raise DemoFailed("there is no stream")
        return run

    def _look_at_books(self) -> None:
        with closing(self._shop.store()) as store:
            snapshot = store.snapshot(NAME)
            tables = store.table_progress(NAME, snapshot.generation) if snapshot else []
            new = [b for b in store.last_batches(NAME, 1000) if (b.epoch, b.batch_id) > self._batch]
        done = sum(table.done for table in tables)
        if done != self._chunks:
            self._chunks = done
            total, rows = sum(table.chunks for table in tables), sum(table.rows for table in tables)
            self._say(f"snapshot: {done} of {total} chunks, {rows:,} rows")
        if changes := sum(batch.changes for batch in new):
            self._batch = (new[0].epoch, new[0].batch_id)
            self._say(f"stream: {changes:,} changes in {len(new)} batches, lag {lag([b for b in new if b.changes])}")

    def _say(self, text: str) -> None:
        self._said = time.monotonic()
        self._shop.screen.say(f"| {text}", "dim")


def find_failed_group(groups: Sequence[ChunkGroupRow]) -> ChunkGroupRow:
    """The chunk group that is not published, when all tasks have ended.

    :raises DemoFailed: unless it is exactly one.
    """
    failed = [group for group in groups if group.state != "done"]
    if len(failed) != 1:
        raise DemoFailed(f"chunk groups that are not published: {[g.group_no for g in failed]}, and not exactly one")
    return failed[0]


def check_read_again(before: Mapping[int, int], groups: Sequence[ChunkGroupRow], failed: int) -> None:
    """See that no chunk group was read again but one.

    :param before: the attempt of each, by its number, before this one was retried.
    :param groups: what they are now.
    :raises DemoFailed: if another one was read again, or this one was not.
    """
    again = [group.group_no for group in groups if group.attempt != before[group.group_no]]
    if again != [failed]:
        raise DemoFailed(f"chunk groups that were read again: {again}, and not {failed} alone")


def _task_label(task: TaskInstance) -> str:
    if task.map_index < 0:
        return task.task_id
    return f"{task.task_id} [{task.rendered_map_index or task.map_index}]"
