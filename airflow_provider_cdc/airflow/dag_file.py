"""The pipelines of a DAG file, for the command line. Airflow's own loader runs the file, as the DAG processor does."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from airflow_provider_cdc.airflow.hooks.connections import resolve_connection
from airflow_provider_cdc.airflow.operators.base import is_file_name, load_pipeline
from airflow_provider_cdc.config import Pipeline
from airflow_provider_cdc.config.connections import ResolvedConnection
from airflow_provider_cdc.model.errors import CdcError, NotReadyError

_PACKAGE_PREFIX = "airflow_provider_cdc."


def load_dag_file(path: str, name: str | None = None) -> Pipeline:
    """Return the pipeline of a DAG file.

    :param path: the file, which is run.
    :param name: name of the pipeline, if the file has several.
    :raises NotReadyError: if the file cannot be imported, or has no such pipeline, several, or one that is a template.
    """
    dags = _load_dags(path)
    pipelines, templated = dict[str, tuple[Pipeline, str]](), list[str]()
    for label, value, folder in _find_pipelines(dags):
        if "{{" in str(value) or "{%" in str(value):
            templated.append(label)
            continue
        pipeline = _load_value(value, folder, label)
        known, first_label = pipelines.setdefault(pipeline.name, (pipeline, label))
        if known != pipeline:
            raise NotReadyError(
                f"{path}: tasks {first_label} and {label} have different settings for pipeline {pipeline.name}",
                "Use one Pipeline object for both",
            )
    if name is not None and name in pipelines:
        return pipelines[name][0]
    if name is None and len(pipelines) == 1 and not templated:
        return next(iter(pipelines.values()))[0]
    raise _selection_error(path, sorted(pipelines), templated, name)


def _selection_error(path: str, names: list[str], templated: list[str], name: str | None) -> NotReadyError:
    listed = ", ".join(names)
    if name is None and names:
        also = f", and tasks whose pipeline is a template ({_abbreviate(templated)})" if templated else ""
        return NotReadyError(f"{path} has the pipelines {listed}{also}", "Choose one with --pipeline NAME")
    what = f"{path} has no pipeline" + (f" {name}" if name is not None and names else "")
    others = f", but {listed}" if names else ""
    if templated:
        return NotReadyError(
            f"{what}{others}; the pipeline of {_abbreviate(templated)} is a template, which only a DAG run can render",
            "Write this pipeline to a YAML file, with the rendered values, and use that file",
        )
    if names:
        return NotReadyError(what, f"It has {listed}: choose one of them with --pipeline")
    return NotReadyError(what, "Give a DAG file with a task of this package, or the pipeline's YAML file")


def _abbreviate(labels: list[str]) -> str:
    """Return the first task labels as text."""
    return ", ".join(labels[:2]) + (f" and {len(labels) - 2} more" if len(labels) > 2 else "")


def _load_dags(path: str) -> dict[str, Any]:
    """Import a DAG file.

    :returns: the DAGs by id.
    :raises NotReadyError: if the file cannot be imported.
    """
    try:
        from airflow.dag_processing.dagbag import DagBag
    except ImportError:  # Airflow before 3.2
        from airflow.models.dagbag import DagBag  # type: ignore[no-redef]

    if not Path(path).read_text(encoding="utf-8", errors="replace").strip():
        raise NotReadyError(f"{path} is empty", "Give a DAG file or the pipeline's YAML file")
    with _quiet():
        bag = DagBag(str(Path(path).absolute()), safe_mode=False)
    if bag.import_errors:
        (text, *_) = bag.import_errors.values()
        line = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "unknown error")
        raise NotReadyError(f"{path} cannot be imported: {line}", f"Correct the file: python {path} shows where")
    return dict(bag.dags)


def find_connection(conn_id: str) -> ResolvedConnection:
    """Find a connection as Airflow's own commands do: in the environment, a secrets backend or Airflow's database.

    :raises NotReadyError: if Airflow has no connection with that id, or it is invalid.
    """
    from airflow.models.connection import Connection

    with _quiet():
        return resolve_connection(conn_id, Connection.get_connection_from_secrets)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep what a DAG file prints from the results of a command, and Airflow's logs from its one line of error."""
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.disable(logging.NOTSET)


def _find_pipelines(dags: dict[str, Any]) -> Iterator[tuple[str, Any, str]]:
    """Yield label, pipeline and DAG folder of each task of this package."""
    for dag_id, dag in sorted(dags.items()):
        for task in dag.tasks:
            arguments = getattr(task, "partial_kwargs", {})
            operator = getattr(task, "operator_class", None) or type(task)
            if not any(cls.__module__.startswith(_PACKAGE_PREFIX) for cls in getattr(operator, "__mro__", ())):
                continue
            folders = dag.template_searchpath or [str(Path(dag.fileloc).parent)]
            folders = [folders] if isinstance(folders, str) else list(folders)
            label = f"{dag_id}.{task.task_id}"
            mapped = getattr(getattr(task, "expand_input", None), "value", None)
            if isinstance(mapped, dict) and isinstance(mapped.get("pipeline"), list):
                for value in mapped["pipeline"]:
                    yield label, value, folders[0]
            elif (value := arguments.get("pipeline", getattr(task, "pipeline", None))) is not None:
                yield label, value, folders[0]


def _load_value(value: Any, folder: str, label: str) -> Pipeline:
    """Return the pipeline of a task, from a file if it is a file name."""
    try:
        if isinstance(value, Pipeline):
            return value
        return load_pipeline(str(Path(folder, value)) if is_file_name(value) else value)
    except CdcError as error:
        raise NotReadyError(f"the pipeline of task {label}: {error.message}", error.remedy) from None
