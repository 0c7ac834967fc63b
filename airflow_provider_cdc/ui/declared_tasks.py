"""The pipelines that the DAGs of this Airflow declare, from Airflow's stored DAGs. No DAG file is read or run."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from airflow.models.dag import DagModel
from airflow.models.dag_version import DagVersion
from airflow.models.dagrun import DagRun
from airflow.models.renderedtifields import RenderedTaskInstanceFields as Rendered
from airflow.models.serialized_dag import SerializedDagModel as Kept
from airflow.utils.session import create_session
from sqlalchemy import func, select

from airflow_provider_cdc.airflow.operators.base import is_file_name
from airflow_provider_cdc.config import Pipeline
from airflow_provider_cdc.model.errors import CdcError
from airflow_provider_cdc.sinks.files.layout import LocalFiles

#: Seconds for which an answer is reused. A new DAG appears after this time at the latest.
_FRESH_SECONDS = 10.0
_PACKAGE_PREFIX = "airflow_provider_cdc."
#: Classes of the operators that read chunk groups, and that supervise the stream.
SNAPSHOT_OPERATOR, STREAM_OPERATOR = "CdcSnapshotOperator", "CdcStreamOperator"


@dataclass(frozen=True)
class DeclaredTask:
    """A task and the pipeline that it works on.

    :param dag_id: id of the DAG.
    :param task_id: id of the task.
    :param operator_name: name of the operator's class.
    :param repair: whether the task is a comparison that repairs.
    :param groups: for a task that reads chunk groups, the groups of each of its instances, or the id of the task that
        returns them.
    :param pipeline: the pipeline as Airflow stores it, unparsed.
    :param pipeline_name: name of the pipeline, or empty if it is unknown.
    :param conn_id: ``state.conn_id``, or ``None``.
    :param state_file: the SQLite file that is the state database if there is no ``conn_id``.
    :param dag_has_stream: whether the DAG has a stream, of any pipeline.
    :param file: path of the DAG file on the host of the DAG processor.
    :param dag_is_paused: whether the DAG is paused, so that none of its tasks begins.
    """

    dag_id: str
    task_id: str
    operator_name: str
    repair: bool
    groups: tuple[Any, ...] | str | None
    pipeline: Any = field(compare=False, repr=False)
    pipeline_name: str = ""
    conn_id: str | None = None
    state_file: str | None = None
    dag_has_stream: bool = False
    file: str | None = None
    dag_is_paused: bool = False

    @property
    def is_templated(self) -> bool:
        """Whether the pipeline is known only in a run of the DAG."""
        return "{{" in str(self.pipeline) or "{%" in str(self.pipeline)


class DeclaredTasks:
    """All declared tasks, cached until a DAG changes. One instance per process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._dags: dict[str, tuple[object, tuple[DeclaredTask, ...]]] = {}
        self._declared: list[DeclaredTask] = []
        self._expires_at = 0.0

    def list_all(self) -> list[DeclaredTask]:
        """Return the declared tasks of all DAGs. Those whose pipeline is unknown have no pipeline name."""
        with self._lock:
            if time.monotonic() >= self._expires_at:
                with create_session(scoped=False) as session:
                    self._refresh(session)
                    self._declared = [one for _, tasks in self._dags.values() for one in _add_pipelines(session, tasks)]
                self._expires_at = time.monotonic() + _FRESH_SECONDS
            return self._declared

    def list_of_run(self, dag: str, run: str) -> list[DeclaredTask]:
        """Return the declared tasks of one DAG. Pipelines that depend on the run are those of the given run."""
        self.list_all()
        with create_session(scoped=False) as session:
            return list(_add_pipelines(session, self._dags.get(dag, ((), ()))[1], run))

    def _refresh(self, session: Any) -> None:
        """Read the DAGs that have changed."""
        newest = select(DagVersion.dag_id, func.max(DagVersion.version_number).label("number"))
        top = newest.group_by(DagVersion.dag_id).subquery()
        query = (
            select(Kept.dag_id, Kept.id, Kept.dag_hash, DagModel.fileloc, DagModel.is_paused)
            .join(DagVersion, DagVersion.id == Kept.dag_version_id)
            .join(top, (top.c.dag_id == DagVersion.dag_id) & (top.c.number == DagVersion.version_number))
            .join(DagModel, DagModel.dag_id == Kept.dag_id)
            .where(DagModel.is_stale.is_(False))
        )
        now = {dag: tuple(version) for dag, *version in session.execute(query)}
        self._dags = {dag: cached for dag, cached in self._dags.items() if cached[0] == now.get(dag)}
        for dag, version in now.items():
            if dag not in self._dags:
                row = session.get(Kept, version[0])
                tasks = _find_own_tasks(dag, row.data if row is not None else None)
                place = {"file": version[2], "dag_is_paused": version[3]}
                self._dags[dag] = version, tuple(replace(task, **place) for task in tasks)


def _find_own_tasks(dag: str, data: Mapping[str, Any] | None) -> Iterator[DeclaredTask]:
    """Yield the tasks of this package in a DAG as Airflow stores it, without their pipelines."""
    for encoded in ((data or {}).get("dag") or {}).get("tasks", ()):
        task = encoded.get("__var", encoded)
        if str(task.get("_task_module", "")).startswith(_PACKAGE_PREFIX):
            arguments = {**_unwrap(task.get("partial_kwargs", {})), **task}
            operator_name, repair = str(task.get("task_type", "")), bool(arguments.get("repair", False))
            pipeline = _unwrap(arguments.get("pipeline"))
            yield DeclaredTask(dag, str(task["task_id"]), operator_name, repair, _groups_of_task(task), pipeline)


def _groups_of_task(task: Mapping[str, Any]) -> tuple[Any, ...] | str | None:
    """Return the chunk groups of each instance of a task: those that it is mapped over, or those of its only one."""
    mapped = _unwrap(task.get("expand_input", {})).get("value")
    is_mapped = isinstance(mapped, Mapping) and "groups" in mapped
    groups = mapped["groups"] if is_mapped else _unwrap(task.get("groups"))
    if isinstance(groups, Mapping) and set(groups) == {"task_id", "key"}:  # what another task returns
        return str(groups["task_id"])
    return tuple(groups) if is_mapped else None if groups is None else (groups,)


def _unwrap(value: Any) -> Any:
    """Remove the type information that Airflow adds to containers."""
    if isinstance(value, Mapping):
        if set(value) == {"__type", "__var"}:
            return _unwrap(value["__var"])
        return {key: _unwrap(item) for key, item in value.items()}
    return [_unwrap(item) for item in value] if isinstance(value, list) else value


def _add_pipelines(session: Any, tasks: Sequence[DeclaredTask], run: str | None = None) -> Iterator[DeclaredTask]:
    """Yield the tasks of a DAG with their pipelines. Those that are known only at run time are of the newest run.

    :param run: the run to use instead of the newest one.
    """
    dag_has_stream = any(task.operator_name == STREAM_OPERATOR for task in tasks)
    found = [
        _parse_pipeline(task.pipeline) or _parse_pipeline(_find_rendered_pipeline(session, task, run)) for task in tasks
    ]
    # If one task of a file has run, the pipeline of the others is known, too.
    by_file = {
        str(task.pipeline): one
        for task, one in zip(tasks, found, strict=True)
        if one and is_file_name(task.pipeline) and "{" not in str(task.pipeline)
    }
    for task, one in zip(tasks, found, strict=True):
        name, conn_id, state_file = one or by_file.get(str(task.pipeline)) or ("", None, None)
        yield replace(task, pipeline_name=name, conn_id=conn_id, state_file=state_file, dag_has_stream=dag_has_stream)


def _parse_pipeline(value: Any) -> tuple[str, str | None, str | None] | None:
    """Return name, ``state.conn_id`` and state file of a pipeline.

    Return ``None`` if that is unknown: for a template, a file name, or a text that was cut off.
    """
    if value is None or is_file_name(value) or "{{" in str(value) or "{%" in str(value):
        return None
    try:
        pipeline = Pipeline.from_dict(value) if isinstance(value, Mapping) else Pipeline.from_yaml(str(value))
    except (CdcError, TypeError, ValueError):
        return None
    if pipeline.state.conn_id:
        return pipeline.name, pipeline.state.conn_id, None
    return pipeline.name, None, str(LocalFiles.for_pipeline(pipeline.sink.path, pipeline.name).state_database)


def _find_rendered_pipeline(session: Any, task: DeclaredTask, run: str | None) -> Any:
    query = (
        select(Rendered.rendered_fields)
        .join(DagRun, (DagRun.dag_id == Rendered.dag_id) & (DagRun.run_id == Rendered.run_id))
        .where(Rendered.dag_id == task.dag_id, Rendered.task_id == task.task_id)
        .where(*([] if run is None else [Rendered.run_id == run]))
        .order_by(DagRun.id.desc())
    )
    fields = session.scalar(query.limit(1))
    return fields.get("pipeline") if isinstance(fields, Mapping) else None
