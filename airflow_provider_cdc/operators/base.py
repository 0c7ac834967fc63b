"""What the operators and the sensor share: the pipeline, its connections, and how errors become task states."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_cdc.exceptions import CdcError, TransientError
from airflow_provider_cdc.pipeline import Pipeline
from airflow_provider_cdc.progress_bar import Sparingly

if TYPE_CHECKING:
    from airflow.sdk import Context as AirflowContext

    from airflow_provider_cdc.core.progress import ChunkProgress
    from airflow_provider_cdc.driver import Request
    from airflow_provider_cdc.phases.context import Context

#: What an operator takes: the object, its plain values, or YAML (a file of the DAG folder, or the text itself).
PipelineLike = Pipeline | Mapping[str, Any] | str

#: Named once: the operators and the sensor template the same things.
TEMPLATE_EXT = (".yaml", ".yml")
RENDERERS = {"pipeline": "yaml", "group": "json"}


def plain(pipeline: PipelineLike) -> dict[str, Any] | str:
    """The pipeline as Airflow can template, serialise and show it."""
    if isinstance(pipeline, Pipeline):
        return pipeline.to_dict()
    return pipeline if isinstance(pipeline, str) else dict(pipeline)


def pipeline_of(value: Mapping[str, Any] | str) -> Pipeline:
    """The pipeline, after templates were rendered.

    :raises NotReadyError: if it is not usable.
    """
    if isinstance(value, Mapping):
        return Pipeline.from_dict(value)
    # A file of the DAG folder was already read by Airflow; an absolute path outside of it was not.
    if "\n" not in value and value.endswith(TEMPLATE_EXT):
        return Pipeline.load(Path(value))
    return Pipeline.from_yaml(value)


class PipelineOperator(BaseOperator):
    """Base of the operators: each works for one pipeline, which may hold templates.

    :param pipeline: a :class:`~airflow_provider_cdc.Pipeline`, its plain values, or YAML: the name of a file of the
        DAG folder (``.yaml``, ``.yml``) or the text itself. (templated)
    """

    template_fields: Sequence[str] = ("pipeline",)
    template_ext: Sequence[str] = TEMPLATE_EXT
    template_fields_renderers: ClassVar[dict[str, str]] = RENDERERS

    def __init__(self, *, pipeline: PipelineLike, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.pipeline = plain(pipeline)


class LogReporter:
    """Reporter that writes to the task's log.

    :param log: the task's logger.
    """

    def __init__(self, log: Any) -> None:
        self._log = log
        self._lines = Sparingly()

    def line(self, text: str) -> None:
        """One finished thing."""
        self._log.info("%s", text)

    def progress(self, progress: ChunkProgress) -> None:
        """A line now and then."""
        if self._lines.worth(progress):
            self._log.info("%s: %s", progress.label, progress)


def context_of(value: Mapping[str, Any] | str, log: Any) -> Context:
    """The pipeline with its connections, which Airflow resolves."""
    from airflow_provider_cdc.hooks.connections import resolve
    from airflow_provider_cdc.phases.context import Context

    return Context.of(pipeline_of(value), LogReporter(log), resolve)


def request_of(pipeline: Pipeline, **what: Any) -> Request:
    """Request for a driver, with the connections of the pipeline in it."""
    from airflow_provider_cdc.driver import Request
    from airflow_provider_cdc.hooks.connections import resolve

    wanted = {pipeline.source.conn_id, pipeline.state.conn_id, pipeline.spark.conn_id} - {None}
    known = {conn_id: resolve(conn_id).to_json() for conn_id in wanted if conn_id}
    return Request(pipeline.to_dict(), known, **what)


@contextmanager
def task_errors(log: Any) -> Iterator[None]:
    """Errors that a retry may mend go on as they are; those that need a person fail the task at once."""
    try:
        yield
    except TransientError as error:
        log.error("%s", error)
        raise
    except CdcError as error:
        log.error("%s", error)
        raise AirflowFailException(str(error)) from None


def task_identity(context: AirflowContext) -> str:
    """Identity of a task instance, the same for all its tries."""
    ti = context["ti"]
    return f"{ti.dag_id}/{ti.run_id}/{ti.task_id}/{ti.map_index}"


def task_request(context: AirflowContext) -> int:
    """Number of what a task instance is asked for: its retries have that of the first try, and a clear makes a new one.

    A clear gives a task instance all its retries again on top of the tries that it has had, so it raises ``max_tries``;
    nothing else does.
    """
    return int(context["ti"].max_tries)


def task_label(context: AirflowContext) -> str:
    """A try of a task instance, for people."""
    ti = context["ti"]
    index = f"[{ti.map_index}]" if ti.map_index is not None and ti.map_index >= 0 else ""
    return f"{ti.dag_id}.{ti.task_id}{index}, run {ti.run_id}, try {ti.try_number}"
