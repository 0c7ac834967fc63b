"""Code shared by the operators and the sensor: the pipeline, its connections, and how errors map to task states."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeGuard

from airflow.providers.common.compat.sdk import AirflowFailException, conf
from airflow.sdk import BaseOperator

from airflow_provider_cdc.config import Pipeline
from airflow_provider_cdc.model.errors import CdcError, NotReadyError, TransientError
from airflow_provider_cdc.observe.log_lines import FINAL_ERROR_PREFIX, parse_log_line
from airflow_provider_cdc.observe.reporters import LogReporter

if TYPE_CHECKING:
    from airflow.sdk import Context as AirflowContext
    from jinja2 import Environment

    from airflow_provider_cdc.driver.request import DriverRequest
    from airflow_provider_cdc.runtime.run_context import RunContext

#: A pipeline as an operator accepts it: the object, its plain values, or YAML (a file name, or the text itself).
PipelineLike = Pipeline | Mapping[str, Any] | str

_YAML_SUFFIXES = (".yaml", ".yml")
_TAIL_LINES = 40


class _CheckedPipeline(dict[str, Any]):
    """Values of a :class:`Pipeline` that was validated when the DAG was parsed, so none of its texts is a template."""


def to_plain(pipeline: PipelineLike) -> dict[str, Any] | str:
    """Return the pipeline in a form that Airflow can template, serialize and show."""
    if isinstance(pipeline, Pipeline):
        return _CheckedPipeline(pipeline.to_dict())
    return pipeline if isinstance(pipeline, str | _CheckedPipeline) else dict(pipeline)


def is_file_name(value: object) -> TypeGuard[str]:
    """Return whether a pipeline is given as a file name."""
    return isinstance(value, str) and "\n" not in value and value.endswith(_YAML_SUFFIXES)


def load_pipeline(value: Mapping[str, Any] | str) -> Pipeline:
    """Return the pipeline, after its templates have been rendered.

    :raises NotReadyError: if it is invalid.
    """
    if isinstance(value, Mapping):
        return Pipeline.from_dict(value)
    return Pipeline.load(value) if is_file_name(value) else Pipeline.from_yaml(value)


class PipelineTemplateMixin(BaseOperator if TYPE_CHECKING else object):  # type: ignore[misc]
    """Renders ``pipeline`` for operators and the sensor.

    Airflow's own ``template_ext`` would treat any text in a mapping that ends in ``.yaml`` as the name of a template.
    """

    template_fields: Collection[str] = ("pipeline",)
    template_fields_renderers: ClassVar[dict[str, str]] = {"pipeline": "yaml", "groups": "json"}
    pipeline: dict[str, Any] | str

    def render_template(
        self, content: Any, context: Any, jinja_env: Environment | None = None, seen_oids: set[int] | None = None
    ) -> Any:
        """Render a field, or a text within one. For a file name, render the content of the file.

        :raises NotReadyError: if the file does not exist.
        """
        if isinstance(content, _CheckedPipeline):
            return content
        if content is self.pipeline and is_file_name(content) and "{{" not in content:
            content = _read_pipeline_file(content, jinja_env or self.get_template_env())
        return super().render_template(content, context, jinja_env, seen_oids)


def _read_pipeline_file(name: str, jinja_env: Environment) -> str:
    folders = getattr(jinja_env.loader, "searchpath", ["."])
    # For an absolute name, Path(folder, name) is the name itself.
    path = next((candidate for folder in folders if (candidate := Path(folder, name)).is_file()), None)
    if path is None:
        raise NotReadyError(
            f"there is no pipeline file {name}" + ("" if Path(name).is_absolute() else f" in {', '.join(folders)}"),
            "Put it into the DAG file's folder or into template_searchpath, or give its absolute path",
        )
    return path.read_text(encoding="utf-8-sig")


class PipelineOperator(PipelineTemplateMixin, BaseOperator):
    """Base class of the operators. Each works on one pipeline, which may contain templates.

    :param pipeline: a :class:`~airflow_provider_cdc.Pipeline`, its plain values, or YAML: the name of a file in the DAG
        folder (``.yaml``, ``.yml``), its absolute path, or the text itself. (templated)
    """

    def __init__(self, *, pipeline: PipelineLike, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.pipeline = to_plain(pipeline)


def make_run_context(value: Mapping[str, Any] | str, log: Any) -> RunContext:
    """Return the run context of a pipeline, with connections resolved by Airflow."""
    from airflow_provider_cdc.airflow.hooks.connections import resolve_connection
    from airflow_provider_cdc.runtime.run_context import RunContext

    return RunContext.for_pipeline(load_pipeline(value), LogReporter(log), resolve_connection)


def make_driver_request(pipeline: Pipeline, **what: Any) -> DriverRequest:
    """Return a driver request that includes the pipeline's connections."""
    from airflow_provider_cdc.airflow.hooks.connections import resolve_connection
    from airflow_provider_cdc.driver.request import DriverRequest

    connections = {conn_id: resolve_connection(conn_id).to_json() for conn_id in pipeline.connection_ids}
    log_level = conf.get("logging", "logging_level", fallback="INFO").upper()
    return DriverRequest(pipeline.to_dict(), connections, log_level=log_level, **what)


def log_driver_tail(run_context: RunContext, log: Any, path: str | None) -> None:
    """Copy the last lines of a driver's log to the task's log, but not the error that the task raises."""
    from airflow_provider_cdc.driver.launchers.launcher import tail_log

    lines = [line for line in tail_log(run_context, path, _TAIL_LINES) if FINAL_ERROR_PREFIX not in line]
    if lines:
        log.info("the end of the driver's log %s:\n%s", path, "\n".join(parse_log_line(line)[1] for line in lines))


@contextmanager
def map_task_errors(log: Any) -> Iterator[None]:
    """Map errors to task states: pass transient errors unchanged, and fail the task without a retry for all others.

    Airflow logs the exception itself, but not why there is no retry.
    """
    try:
        yield
    except TransientError:
        raise
    except CdcError as error:
        log.info("the task is not retried, because this error needs a decision or a fix")
        raise AirflowFailException(str(error)) from None


def task_identity(context: AirflowContext) -> str:
    """Return the identity of a task instance, which is the same for all its tries."""
    ti = context["ti"]
    return f"{ti.dag_id}/{ti.run_id}/{ti.task_id}/{ti.map_index}"


def task_request_number(context: AirflowContext) -> int:
    """Return a number that retries of a task instance share, and that changes when it is cleared.

    Clearing gives a task instance all its retries again in addition to the tries it has had, so it raises
    ``max_tries``. Nothing else does.
    """
    return int(context["ti"].max_tries)


def task_label(context: AirflowContext) -> str:
    """Return a human-readable name for a try of a task instance."""
    ti = context["ti"]
    index = f"[{ti.map_index}]" if ti.map_index is not None and ti.map_index >= 0 else ""
    return f"{ti.dag_id}.{ti.task_id}{index}, run {ti.run_id}, try {ti.try_number}"
