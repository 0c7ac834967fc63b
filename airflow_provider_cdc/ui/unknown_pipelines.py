"""Tasks whose pipeline is not known yet, grouped so that each pipeline is one line."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePath
from typing import Any

from airflow_provider_cdc.airflow.operators.base import is_file_name
from airflow_provider_cdc.ui.declared_tasks import DeclaredTask
from airflow_provider_cdc.ui.state_databases import NotRunPipeline


def group_unknown(declared: Iterable[DeclaredTask]) -> tuple[list[NotRunPipeline], list[dict[str, Any]]]:
    """Group the tasks whose pipeline is unknown by DAG and pipeline.

    :returns: pipelines in files, which become known when a task has run; and the others, with ``dag`` and ``tasks``.
    """
    tasks_by_pipeline: dict[tuple[str, str], list[DeclaredTask]] = {}
    for one in declared:
        if not one.pipeline_name:
            tasks_by_pipeline.setdefault((one.dag_id, str(one.pipeline)), []).append(one)
    files, unknown = [], []
    for (dag_id, text), tasks in tasks_by_pipeline.items():
        if is_file_name(tasks[0].pipeline) and "{" not in text:
            files.append(NotRunPipeline(PurePath(text).stem, None, (dag_id,)))
        else:
            unknown.append({"dag": dag_id, "tasks": [one.task_id for one in tasks]})
    return files, unknown
