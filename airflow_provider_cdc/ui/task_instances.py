"""Task instances of a pipeline's tasks in Airflow's own database: finding and clearing them.

Clearing does what Airflow's own button and REST API do, so that Airflow's history shows it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from airflow.api.common.trigger_dag import trigger_dag
from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.models.renderedtifields import RenderedTaskInstanceFields as Rendered
from airflow.models.taskinstance import TaskInstance as Instance
from airflow.models.taskinstance import clear_task_instances
from airflow.models.xcom import XComModel
from airflow.utils.types import DagRunTriggeredByType
from sqlalchemy import func, select

from airflow_provider_cdc.ui.declared_tasks import DeclaredTask

#: Maximum number of runs of a DAG to search, newest first.
_MAX_RUNS = 50
#: States of a task that has ended, those in which it has run, and those from which it can be cleared.
_ENDED_STATES = ("success", "failed", "upstream_failed", "skipped", "removed")
_WORKED_STATES = ("success", "failed")
RETRIABLE_STATES = ("failed", "upstream_failed", "up_for_retry", "success", "skipped")


def find_newest_ended(session: Any, task: DeclaredTask) -> Any | None:
    """Return the instance of a task that ended in the newest run. Skipped instances do not count."""
    return _find_newest(session, task, Instance.state.in_(_WORKED_STATES))


def find_active(session: Any, task: DeclaredTask, *, include_waiting: bool = True) -> Any | None:
    """Return an instance of a task that is or will be active: it has not ended, and its run continues.

    :param include_waiting: whether to include instances that are not scheduled yet.
    """
    has_begun = Instance.state.not_in(_ENDED_STATES)
    is_wanted = has_begun | Instance.state.is_(None) if include_waiting else has_begun
    return _find_newest(session, task, is_wanted, DagRun.state.in_(("running", "queued")))


def find_group_instance(session: Any, task: DeclaredTask, group: int) -> tuple[Any, tuple[int, ...]] | None:
    """Return the instance of a task that holds a chunk group, in the newest run that has it, with all of its groups."""
    for instances in _instances_by_run(session, task):
        groups_by_index = _groups_of_instances(session, task, instances)
        for index, instance in instances.items():
            if group in groups_by_index.get(index, ()):
                return instance, groups_by_index[index]
    return None


def find_failed_groups(session: Any, task: DeclaredTask) -> dict[int, Any]:
    """Return the chunk groups whose instance has failed in the newest mapped run, each with its instance.

    Some of them may be published: an instance fails if one of its groups does.
    """
    for instances in _instances_by_run(session, task):
        failed = {i: one for i, one in instances.items() if one.state in ("failed", "upstream_failed")}
        groups_by_index = _groups_of_instances(session, task, instances) if failed else {}
        return {group: instance for i, instance in failed.items() for group in groups_by_index.get(i, ())}
    return {}


def _instances_by_run(session: Any, task: DeclaredTask) -> Iterator[dict[int, Any]]:
    """Yield the instances of a task that reads chunk groups, by map index, for each run that has any, newest first."""
    query = select(DagRun.run_id).where(DagRun.dag_id == task.dag_id).order_by(DagRun.id.desc()).limit(_MAX_RUNS)
    mapped = not (isinstance(task.groups, tuple) and len(task.groups) == 1)
    for run in session.scalars(query).all():
        instances_by_index = {
            one.map_index: one for one in session.scalars(_select_instances(task).where(Instance.run_id == run))
        }
        if any(index >= 0 for index in instances_by_index) or (instances_by_index and not mapped):
            yield instances_by_index


def _groups_of_instances(session: Any, task: DeclaredTask, instances: Mapping[int, Any]) -> dict[int, tuple[int, ...]]:
    """Return the groups that each instance of one run holds: those that it ran with, or else was mapped over."""
    run = next(iter(instances.values())).run_id
    mapped: Any = task.groups
    if isinstance(mapped, str):
        xcom_filter = XComModel.dag_id == task.dag_id, XComModel.task_id == mapped, XComModel.run_id == run
        row = session.scalars(select(XComModel).where(*xcom_filter, XComModel.key == "return_value").limit(1)).first()
        mapped = None if row is None else XComModel.deserialize_value(row)
    groups_by_index = {}
    if isinstance(mapped, list | tuple):
        groups_by_index = {index: _group_numbers(groups) for index, groups in enumerate(mapped)}
        if len(mapped) == 1:
            groups_by_index[-1] = groups_by_index[0]
    rendered_filter = Rendered.dag_id == task.dag_id, Rendered.task_id == task.task_id, Rendered.run_id == run
    for index, fields in session.execute(select(Rendered.map_index, Rendered.rendered_fields).where(*rendered_filter)):
        numbers = _group_numbers(fields.get("groups")) if isinstance(fields, Mapping) else ()
        groups_by_index |= {index: numbers} if numbers else {}
    return groups_by_index


def _group_numbers(value: Any) -> tuple[int, ...]:
    """Return the numbers of chunk groups as an operator accepts them; none if the value is something else."""
    numbers: Any = value.get("groups") if isinstance(value, Mapping) else value
    try:
        return tuple(int(number) for number in (numbers if isinstance(numbers, list | tuple) else [numbers]))
    except (TypeError, ValueError):
        return ()


def _find_newest(session: Any, task: DeclaredTask, *conditions: Any) -> Any | None:
    query = _select_instances(task).where(*conditions).order_by(DagRun.id.desc())
    return session.scalars(query.limit(1)).first()


def _select_instances(task: DeclaredTask) -> Any:
    same = (DagRun.dag_id == Instance.dag_id) & (DagRun.run_id == Instance.run_id)
    task_filter = Instance.dag_id == task.dag_id, Instance.task_id == task.task_id
    return select(Instance).join(DagRun, same).where(*task_filter)


def clear_instance(session: Any, instance: Any) -> bool:
    """Clear one task instance and nothing downstream, as Airflow's button does. A run that has ended continues.

    :returns: whether it was cleared. False if its state has changed in the meantime.
    """
    state, number = instance.state, instance.try_number
    # The scheduler locks the run while it checks whether all tasks have ended, and then ends it. Without this lock, a
    # task that is cleared in between stays in a run that has ended, and never runs.
    session.refresh(instance.dag_run, with_for_update={"of": DagRun})
    session.refresh(instance, with_for_update={"of": Instance})
    if (state, number) != (instance.state, instance.try_number):
        return False
    latest = False
    try:
        from airflow.api_fastapi.common.dagbag import resolve_run_on_latest_version
    except ImportError:  # Airflow before 3.3
        pass
    else:
        latest = resolve_run_on_latest_version(None, instance.dag_id, session)
    clear_task_instances([instance], session, run_on_latest_version=latest)
    return True


def trigger_run(session: Any, dag: str, by: str) -> Any:
    """Start a run of a DAG, as Airflow's button does, and return it."""
    return trigger_dag(dag, triggered_by=DagRunTriggeredByType.UI, triggering_user_name=by, session=session)


def find_obstacle(session: Any, dag: str, run: Any | None = None) -> tuple[str | None, str | None]:
    """Find out what keeps a DAG from running a task that is cleared or triggered.

    :param run: the run that would continue, or ``None`` for a new one.
    :returns: why the task cannot run, and why it may take long.
    """
    model = session.get(DagModel, dag)
    if model is None or model.is_stale:
        return f"Airflow no longer has the DAG {dag}", None
    if model.is_paused:
        return f"DAG {dag} is paused, so none of its tasks would begin: unpause it first", None
    if run is not None and str(run.state) in ("running", "queued"):
        return None, None
    active = session.scalar(select(func.count()).where(DagRun.dag_id == dag, DagRun.state == "running"))
    if model.max_active_runs and active >= model.max_active_runs:
        return None, f"It waits until one of the active runs of {dag} has ended (max_active_runs)"
    return None, None
