"""The actions on the page: what each would do now, or why it is impossible.

If clearing a task achieves an action, that task is cleared. Otherwise the stream gets a control request through the
state database.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from airflow_provider_cdc.ddl.key_predicate import InvalidKeyPredicate, parse_key_predicate
from airflow_provider_cdc.snapshot.task_groups import format_numbers
from airflow_provider_cdc.state.models import PUBLISHED_STATES, EpochRow, TableStateRow
from airflow_provider_cdc.state.reader import StateDatabaseReader
from airflow_provider_cdc.ui import task_instances
from airflow_provider_cdc.ui.declared_tasks import SNAPSHOT_OPERATOR, STREAM_OPERATOR, DeclaredTask
from airflow_provider_cdc.ui.state_databases import ShownPipeline
from airflow_provider_cdc.ui.troubles import purge_time

_VERIFY_OPERATOR = "CdcVerifyOperator"


class ActionImpossible(Exception):
    """An action is impossible now. The text says why, and what to do."""


@dataclass(frozen=True)
class ActionTarget:
    """The object of an action.

    :param shown: the pipeline.
    :param session: a session of Airflow's own database.
    :param group: number of a chunk group.
    :param table: ``database.table``.
    :param condition: a condition on the table's key.
    :param id: id of an event or a control request.
    """

    shown: ShownPipeline
    session: Any = field(repr=False)
    group: int | None = None
    table: str | None = None
    condition: str | None = None
    id: int | None = None

    @property
    def name(self) -> str:
        """Name of the pipeline."""
        return self.shown.overview.name

    @cached_property
    def reader(self) -> StateDatabaseReader:
        """Its state database."""
        return self.shown.database.open_reader()

    @cached_property
    def stream_run(self) -> EpochRow | None:
        """The newest run of its stream, as recorded now."""
        return self.reader.newest_epoch(self.name)

    @property
    def stream_is_running(self) -> bool:
        """Whether there is a stream that can get a control request."""
        return (
            self.stream_run is not None
            and self.stream_run.state == "running"
            and self.stream_run.desired_state != "stop"
        )

    @cached_property
    def stream_is_lost(self) -> bool:
        """Whether the stream should run, and its driver gives no sign of life."""
        return self.stream_is_running and self.shown.database.is_stream_alive(self.shown.overview) is False

    @property
    def binlogs_may_be_purged(self) -> bool:
        """Whether the source may have removed binlogs that the stream needs."""
        due_at = purge_time(self.shown.overview)
        return due_at is not None and due_at <= datetime.now(UTC)

    def tasks_of_kind(self, kind: str, *, repair: bool = False) -> list[DeclaredTask]:
        """Return the pipeline's tasks of one kind."""
        return [one for one in self.shown.tasks if one.operator_name == kind and one.repair == repair]

    @property
    def stream_dags(self) -> tuple[str, ...]:
        """The DAGs that have the stream, or else all DAGs of the pipeline.

        Users who may edit tasks of one of them may send control requests to the stream.
        """
        return tuple(dict.fromkeys(one.dag_id for one in self.tasks_of_kind(STREAM_OPERATOR))) or self.shown.dags


@dataclass(frozen=True)
class ActionPreview:
    """What an action would do.

    :param description: human-readable description, shown before the user confirms.
    :param execute: performs the action in the name of a user, and returns whether it was performed.
    :param dags: users who may edit task instances of one of these DAGs may perform the action. If empty, users who may
        edit connections.
    :param starts_run: whether the action starts a run, which is a different right.
    :param instance: the task instance concerned.
    :param event: kind and text of the event to record, unless the state database does so itself.
    :param table: the table concerned.
    :param missing_input: label of the input that the user still has to type.
    """

    description: str
    execute: Callable[[str], object]
    dags: tuple[str, ...]
    starts_run: bool = False
    instance: Any = None
    event: tuple[str, str] | None = None
    table: str | None = None
    missing_input: str | None = None


@dataclass(frozen=True)
class ActionSpec:
    """An action.

    :param label: label of its button.
    :param preview: returns what the action would do. Raises :class:`ActionImpossible` if it is impossible now.
    :param label_for_all: label of the button that does it for all tables, if that needs another one.
    """

    label: str
    preview: Callable[[ActionTarget], ActionPreview]
    label_for_all: str | None = None


def offered_actions(target: ActionTarget) -> list[str]:
    """Return the actions that concern the whole pipeline and fit its state, possible or not."""
    paused = target.stream_run is not None and target.stream_run.paused_by is not None
    runs = target.stream_is_running and not target.stream_is_lost
    pause_actions = ["resume"] if paused else ["pause"] if runs else []
    return [*pause_actions, "stop" if runs else "start", "verify", "repair"]


# Actions that clear a task


def _preview_retry(target: ActionTarget) -> ActionPreview:
    if target.group is None:
        raise ActionImpossible("No chunk group is given")
    snapshot = target.shown.overview.snapshot
    groups = target.reader.groups(target.name, snapshot.generation) if snapshot else []
    group_row = next((group for group in groups if group.group_no == target.group), None)
    if group_row is None:
        raise ActionImpossible(f"There is no chunk group {target.group}")
    if group_row.state == "done":
        raise ActionImpossible(
            f"Group {target.group} is published: re-snapshot its tables, or some of their keys, instead"
        )
    tasks = target.tasks_of_kind(SNAPSHOT_OPERATOR)
    if not tasks:
        raise ActionImpossible("No DAG reads it. Run `airflow-cdc snapshot` to read what is missing")
    held = [one for task in tasks if (one := task_instances.find_group_instance(target.session, task, target.group))]
    if not held:
        raise ActionImpossible(f"No run has a task for it: start a run of {_dag_names(tasks)} to read what is missing")
    instance, numbers = max(held, key=lambda one: one[0].dag_run.id)
    what = f"group {target.group} is retried: {_instance_name(instance)} was cleared"
    published = {group.group_no for group in groups if group.state in PUBLISHED_STATES}
    return _preview_clear(target, instance, _describe_retry(instance, numbers, published), "group_retried", what)


def _describe_retry(instance: Any, numbers: Sequence[int], published: Collection[int]) -> str:
    """Return what a task instance reads after it is cleared.

    :param numbers: its chunk groups.
    :param published: chunk groups that are published, of any task.
    """
    if instance.state == "success":
        return f"It has succeeded, so it re-snapshots all of its groups ({format_numbers(numbers)})"
    missing, done = ([n for n in numbers if (n in published) == is_done] for is_done in (False, True))
    rest = f". Its other groups ({format_numbers(done)}) are published and are not read again" if done else ""
    return f"It reads what is missing in group{'s' if len(missing) > 1 else ''} {format_numbers(missing)}{rest}"


def _preview_start(target: ActionTarget) -> ActionPreview:
    tasks = target.tasks_of_kind(STREAM_OPERATOR)
    if target.stream_is_running and not target.stream_is_lost:
        raise ActionImpossible("The stream is running")
    if not tasks:
        raise ActionImpossible("No DAG has its stream. Run `airflow-cdc stream` on a host of your choice to start it")
    if busy := _newest_instance(task_instances.find_active, target, tasks):
        raise ActionImpossible(f"{_instance_name(busy)} is {_state_text(busy)}: it starts or supervises the stream")
    instance = _newest_instance(task_instances.find_newest_ended, target, tasks)
    if instance is None:
        raise ActionImpossible(f"The task of the stream has never run: start a run of {_dag_names(tasks)}")
    what = f"the stream is started: {_instance_name(instance)} was cleared"
    says = _join_sentences("The stream continues from where it stopped", _purge_hint(target))
    return _preview_clear(target, instance, says, "stream_start", what)


def _preview_verify(target: ActionTarget, *, repair: bool = False) -> ActionPreview:
    """Use the pipeline's task for it, which has the user's settings. Without one, or for one table, ask the stream."""
    kind, what = "repair" if repair else "verify", "source and copy are compared"
    description = "Source and copy are compared, table by table" + (
        "; rows that differ are re-snapshotted" if repair else ". Nothing is written"
    )
    if target.table:
        _find_table_row(target)
    tasks = [] if target.table else target.tasks_of_kind(_VERIFY_OPERATOR, repair=repair)
    if not tasks:
        return _preview_comparison_by_stream(target, kind, description)
    # A task downstream of a stream may wait forever.
    if busy := _newest_instance(
        lambda of, task: task_instances.find_active(of, task, include_waiting=not task.dag_has_stream), target, tasks
    ):
        raise ActionImpossible(f"{_instance_name(busy)} is {_state_text(busy)}: see its log in Airflow")
    instance = _newest_instance(task_instances.find_newest_ended, target, tasks)
    if instance is not None:
        return _preview_clear(target, instance, description, kind, f"{what}: {_instance_name(instance)} was cleared")
    dag = next((task.dag_id for task in tasks if not task.dag_has_stream), None)
    if dag is None:  # a run would also start a stream
        return _preview_comparison_by_stream(target, kind, description)
    obstacle, delay = task_instances.find_obstacle(target.session, dag)
    if obstacle:
        raise ActionImpossible(obstacle)
    return ActionPreview(
        _join_sentences(f"A run of DAG {dag} is started, with all of its tasks", description, delay),
        lambda by: task_instances.trigger_run(target.session, dag, by),
        (dag,),
        starts_run=True,
        event=(kind, f"{what}: a run of {dag} was started"),
    )


def _preview_clear(target: ActionTarget, instance: Any, description: str, kind: str, event_text: str) -> ActionPreview:
    if instance.state not in task_instances.RETRIABLE_STATES:
        raise ActionImpossible(f"{_instance_name(instance)} is {_state_text(instance)}: see its log in Airflow")
    obstacle, delay = task_instances.find_obstacle(target.session, instance.dag_id, instance.dag_run)
    if obstacle:
        raise ActionImpossible(obstacle)
    return ActionPreview(
        _join_sentences(f"{_instance_name(instance)} is cleared, and no other task", description, delay),
        lambda _: task_instances.clear_instance(target.session, instance),
        (instance.dag_id,),
        instance=instance,
        event=(kind, event_text),
    )


# Actions that send a control request


def _preview_stop(target: ActionTarget) -> ActionPreview:
    if not target.stream_is_running:
        raise ActionImpossible("No stream is running, or it was already asked to stop")
    says = (
        "The stream ends at the next transaction boundary. The task that supervises it succeeds, and the stream "
        "keeps its position until it is started again, or its DAG runs again"
    )
    return ActionPreview(says, lambda by: target.reader.stop_stream(target.name, by), target.stream_dags)


def _preview_pause(target: ActionTarget) -> ActionPreview:
    if not target.stream_is_running:
        raise ActionImpossible("No stream is running")
    says = (
        "The stream keeps its position and reads nothing more until it is resumed, even if it is restarted. "
        "Meanwhile the lag of the tables grows, and the source must keep its binlogs"
    )
    return ActionPreview(says, lambda by: target.reader.pause_stream(target.name, by), target.stream_dags)


def _preview_resume(target: ActionTarget) -> ActionPreview:
    if target.stream_run is None or target.stream_run.paused_by is None:
        raise ActionImpossible("The stream is not paused")
    says = "The stream continues from where it was paused"
    if not target.stream_is_running or target.stream_is_lost:
        says = "The stream is no longer paused. It does not run: start it, too"
    says = _join_sentences(says, _purge_hint(target))
    return ActionPreview(says, lambda by: target.reader.resume_stream(target.name, by), target.stream_dags)


def _purge_hint(target: ActionTarget) -> str | None:
    if not target.binlogs_may_be_purged:
        return None
    return "The source may have removed binlogs that it needs: then it fails, and its error says how to re-snapshot"


def _preview_suspend(target: ActionTarget) -> ActionPreview:
    if _find_table_row(target).state == "suspended":
        raise ActionImpossible(f"{target.table} is already suspended")
    says = (
        f"The stream continues without {target.table}. Its copy stays unchanged until the table is resumed, which "
        "re-snapshots the whole table"
    )
    return _preview_request(target, "suspend", says)


def _preview_resnapshot(target: ActionTarget) -> ActionPreview:
    table_row = _find_table_row(target)
    size = "" if table_row.rows is None else f" ({table_row.rows:,} rows)"
    says = f"All of {target.table}{size} is re-snapshotted, and one commit replaces its rows"
    if table_row.state == "suspended":
        says += ". The table then rejoins the stream"
    return _preview_request(target, "reread", says)


def _preview_resnapshot_keys(target: ActionTarget) -> ActionPreview:
    table_row, condition = _find_table_row(target), (target.condition or "").strip()
    key = table_row.definitions[-1]["key"] if table_row.definitions else []
    if table_row.state == "suspended":
        raise ActionImpossible(f"{target.table} is suspended: resume it instead, which re-snapshots all of it")
    if not key:
        raise ActionImpossible(f"{target.table} has no key: re-snapshot all of it instead")
    if condition:
        try:
            parse_key_predicate(condition, key)
        except InvalidKeyPredicate as error:
            raise ActionImpossible(str(error)) from None
    missing_input = None if condition else f"A condition on {', '.join(key)}"
    says = f"The rows of {target.table} whose keys meet the condition are re-snapshotted"
    return _preview_request(target, "reread", says, condition or None, missing_input=missing_input)


def _preview_request(
    target: ActionTarget, kind: str, description: str, condition: str | None = None, missing_input: str | None = None
) -> ActionPreview:
    table = str(target.table)
    wanted = "suspend it" if kind == "suspend" else "re-snapshot some of its keys" if condition else "re-snapshot it"
    return ActionPreview(
        _join_sentences(description, _describe_request_start(target)),
        lambda by: target.reader.add_request(target.name, kind, table, by, condition),
        target.stream_dags,
        event=("request", f"{table}: the stream was asked to {wanted}"),
        table=table,
        missing_input=missing_input,
    )


def _preview_comparison_by_stream(target: ActionTarget, kind: str, description: str) -> ActionPreview:
    table = target.table or ""
    if table:
        description = f"{table}: {description[0].lower()}{description[1:].replace(', table by table', '')}"
    wanted = "compare source and copy" + (", and to re-snapshot rows that differ" if kind == "repair" else "")
    return ActionPreview(
        _join_sentences(description, _describe_request_start(target)),
        lambda by: target.reader.add_request(target.name, kind, table, by),
        target.stream_dags,
        event=(kind, f"{table + ': ' if table else ''}the stream was asked to {wanted}"),
        table=target.table,
    )


def _describe_request_start(target: ActionTarget) -> str:
    if target.stream_is_lost or not target.stream_is_running:
        return "No stream is running now: the next one does it"
    run = target.stream_run
    if run is not None and run.paused_by:
        return "The stream is paused: nothing happens until it is resumed"
    return "The stream does it while it continues"


def _preview_withdraw(target: ActionTarget) -> ActionPreview:
    number = -1 if target.id is None else target.id
    request = target.reader.request(target.name, number)
    if request is None or request.state != "open":
        raise ActionImpossible("There is no such open request: the stream has picked it up, or it was withdrawn")
    says = f"The request of {request.by} for {request.table or 'all tables'} will not be carried out"
    return ActionPreview(says, lambda by: target.reader.withdraw_request(target.name, number, by), target.stream_dags)


def _preview_acknowledge(target: ActionTarget) -> ActionPreview:
    number = -1 if target.id is None else target.id
    event = target.reader.event(target.name, number)
    if event is None or not event.needs_attention:
        raise ActionImpossible("There is nothing to acknowledge: the event needs no action, or was acknowledged")
    says = (
        "Your name is recorded with this event, so that others can see that you are handling it. Nothing else changes"
    )
    return ActionPreview(says, lambda by: target.reader.acknowledge_event(target.name, number, by), target.shown.dags)


def _find_table_row(target: ActionTarget) -> TableStateRow:
    """Return the recorded state of the target's table.

    :raises ActionImpossible: if there is none.
    """
    database, _, name = (target.table or "").partition(".")
    row = target.reader.table_row(target.name, database, name)
    if row is not None:
        return row
    raise ActionImpossible(
        f"The pipeline has no table {target.table or 'without a name'}, or no driver has reported it yet"
    )


def _newest_instance(
    find: Callable[[Any, DeclaredTask], Any], target: ActionTarget, tasks: Sequence[DeclaredTask]
) -> Any | None:
    """Return the task instance in the newest run, among those of several tasks."""
    instances_found = [one for task in tasks if (one := find(target.session, task)) is not None]
    return max(instances_found, key=lambda one: one.dag_run.id, default=None)


def _dag_names(tasks: Sequence[DeclaredTask]) -> str:
    return ", ".join(dict.fromkeys(task.dag_id for task in tasks))


def _instance_name(instance: Any) -> str:
    index = f"[{instance.map_index}]" if instance.map_index >= 0 else ""
    return f"Task {instance.task_id}{index} of DAG {instance.dag_id}, run {instance.run_id},"


def _state_text(instance: Any) -> str:
    return str(instance.state or "waiting to be scheduled").replace("_", " ")


def _join_sentences(*sentences: str | None) -> str:
    return ". ".join(sentence for sentence in sentences if sentence)


ACTIONS: dict[str, ActionSpec] = {
    "retry": ActionSpec("Retry", _preview_retry),
    "start": ActionSpec("Start the stream", _preview_start),
    "stop": ActionSpec("Stop the stream", _preview_stop),
    "pause": ActionSpec("Pause the stream", _preview_pause),
    "resume": ActionSpec("Resume the stream", _preview_resume),
    "verify": ActionSpec("Verify now", _preview_verify),
    "repair": ActionSpec("Repair", lambda case: _preview_verify(case, repair=True), "Repair all tables"),
    "suspend": ActionSpec("Suspend", _preview_suspend),
    "reread": ActionSpec("Re-snapshot", _preview_resnapshot),
    "reread_keys": ActionSpec("Re-snapshot some keys", _preview_resnapshot_keys),
    "withdraw": ActionSpec("Withdraw", _preview_withdraw),
    "acknowledge": ActionSpec("Acknowledge", _preview_acknowledge),
}
