"""Names of tasks and DAGs in the page's data: with what leads to their logs, and hidden from users who may not read
the DAG.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, NamedTuple

from airflow_provider_cdc.ui.declared_tasks import DeclaredTask

#: What users see instead of a task, or a DAG, that they may not read.
HIDDEN_TASK, HIDDEN_DAG = "a task of another DAG", "another DAG"
_NO_LINK: dict[str, Any] = dict.fromkeys(("dag_id", "run_id", "task_id", "map_index", "try_number"))
#: Events about actions on the page. After a colon, their texts name the task or the run.
_ACTION_EVENTS = ("group_retried", "stream_start", "verify", "repair")
#: ``<dag>.<task>[<map index>], run <run id>, try <number>``.
_LABEL = re.compile(r"(?P<task>[^\s,\[]+)(?:\[(?P<index>\d+)\])?(?:, run (?P<run>[^,]+))?, try (?P<number>\d+)")


class TaskLabel(NamedTuple):
    """A try of a task instance.

    :param task: ids of the DAG and the task, with a dot in between. Both may have dots.
    :param run_id: id of the DAG run, if known.
    :param map_index: -1 if the task is not mapped.
    :param try_number: from 1.
    """

    task: str
    run_id: str | None
    map_index: int
    try_number: int

    def __str__(self) -> str:
        index = f"[{self.map_index}]" if self.map_index >= 0 else ""
        run = f", run {self.run_id}" if self.run_id is not None else ""
        return f"{self.task}{index}{run}, try {self.try_number}"


def parse_task_label(text: str) -> TaskLabel | None:
    """Return the try that a text names; ``None`` if the text is anything else, such as the name of a user."""
    match = _LABEL.fullmatch(text)
    if match is None:
        return None
    index = -1 if match["index"] is None else int(match["index"])
    return TaskLabel(match["task"], match["run"], index, int(match["number"]))


def find_task_labels(text: str) -> list[str]:
    """Return the names of tries that a text contains."""
    return [match[0] for match in _LABEL.finditer(text)]


@dataclass(frozen=True)
class TaskNames:
    """What a user may see of the tasks of a pipeline.

    :param tasks: its declared tasks.
    :param readable: ids of the DAGs that the user may read.
    """

    tasks: Collection[DeclaredTask]
    readable: Collection[str]

    def describe_task(self, name: str | None) -> dict[str, Any] | None:
        """Return who did something: its label and, for a task that the user may read, what leads to its log."""
        if name is None:
            return None
        label = parse_task_label(name)
        if label is None:  # a user, or the command line
            return {"label": name, **_NO_LINK}
        ids = self._find_ids(label)
        if ids is None:
            return {"label": HIDDEN_TASK, **_NO_LINK}
        link = {"dag_id": ids[0], "run_id": label.run_id, "task_id": ids[1]}
        return {
            "label": str(label._replace(run_id=None)),
            **(link if label.run_id else dict.fromkeys(link)),
            "map_index": label.map_index,
            "try_number": label.try_number,
        }

    def mask_text(self, text: str | None) -> str | None:
        """Return a text without tasks that the user may not read."""
        for name in find_task_labels(text or ""):
            label = parse_task_label(name)
            if text and label is not None and self._find_ids(label) is None:
                text = text.replace(name, HIDDEN_TASK)
        return text

    def mask_event(self, kind: str, text: str) -> str:
        """Return the text of an event without tasks and DAGs that the user may not read."""
        if kind in _ACTION_EVENTS and self._hidden_dags:
            text = text.partition(":")[0]
        return self.mask_text(text) or ""

    def mask_action(self, text: str | None) -> str | None:
        """Return the description of an action, or why it is impossible, without DAGs that the user may not read."""
        text = self.mask_text(text)
        for dag in self._hidden_dags:
            name = re.escape(dag)
            text = text and re.sub(rf"Task \S+ of DAG {name}, run \S+,", f"A task of {HIDDEN_DAG}", text)
            text = text and re.sub(rf"(?<![\w.-]){name}(?![\w-]|\.\w)", HIDDEN_DAG, text)
            text = text and text.replace(f"DAG {HIDDEN_DAG}", HIDDEN_DAG)
        return text

    @property
    def _hidden_dags(self) -> list[str]:
        return sorted({one.dag_id for one in self.tasks}.difference(self.readable), key=len, reverse=True)

    def _find_ids(self, label: TaskLabel) -> tuple[str, str] | None:
        """Return DAG and task of a try; ``None`` if the user may not read the DAG, or it is not known."""
        for one in self.tasks:
            if f"{one.dag_id}.{one.task_id}" == label.task:
                return (one.dag_id, one.task_id) if one.dag_id in self.readable else None
        prefixes = [dag for dag in self.readable if label.task.startswith(f"{dag}.")]
        dag = max(prefixes, key=len, default=None)
        return None if dag is None else (dag, label.task[len(dag) + 1 :])
