"""A pipeline as one task group."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from airflow.sdk import TaskGroup

from airflow_provider_cdc.operators.alerts import Hook
from airflow_provider_cdc.operators.base import PipelineLike, names_file, plain
from airflow_provider_cdc.operators.cdc import (
    CdcPlanChunksOperator,
    CdcPreflightOperator,
    CdcSnapshotOperator,
    CdcVerifyOperator,
)
from airflow_provider_cdc.operators.stream import CdcStreamOperator
from airflow_provider_cdc.sensors.cdc import CdcSnapshotSensor

#: Names a mapped task in the grid by what its group holds.
MAP_INDEX_TEMPLATE = "{{ task.group['label'] }}"


def cdc_pipeline(
    pipeline: PipelineLike,
    *,
    group_id: str | None = None,
    stream: bool = True,
    catch_up: bool | None = None,
    verify: bool = False,
    deferrable: bool | None = None,
    max_active_groups: int | None = None,
    map_published: bool = False,
    default_args: Mapping[str, Any] | None = None,
    on_suspended: Hook = None,
    on_lag: Hook = None,
    on_purge_risk: Hook = None,
    on_failed: Hook = None,
    on_recovered: Hook = None,
) -> TaskGroup:
    """A whole pipeline: preflight, plan, snapshot (one mapped task per chunk group), sensor, stream.

    The sensor depends on the plan and not on the mapped tasks, so a failed group does not fail the tasks downstream,
    and clearing it does not touch the stream.

    :param pipeline: a :class:`~airflow_provider_cdc.Pipeline`, its plain values, or YAML.
    :param group_id: id of the task group; by default the pipeline's name.
    :param stream: whether the stream is part of it; without it, it may live in a DAG of its own.
    :param catch_up: whether the stream ends at the position that the source has when it begins.
    :param verify: compare source and sink after the stream (a catch-up) or else after the snapshot.
    :param deferrable: whether sensor and stream wait in the triggerer; by default the sensor does, and the stream
        wherever its driver outlives that (see :class:`~airflow_provider_cdc.operators.stream.CdcStreamOperator`).
    :param max_active_groups: chunk groups that are read at the same time; no limit of its own by default.
    :param map_published: map the chunk groups also in a run that begins when all of them are published.
    :param default_args: as of a DAG, for the tasks of this group.
    :param on_suspended: as of :class:`~airflow_provider_cdc.operators.stream.CdcStreamOperator`, and so are the others.
    """
    with TaskGroup(group_id or _group_id(pipeline), default_args=dict(default_args or {})) as group:  # type: ignore[arg-type]
        preflight = CdcPreflightOperator(task_id="preflight", pipeline=pipeline)
        plan = CdcPlanChunksOperator(task_id="plan_chunks", pipeline=pipeline, map_published=map_published)
        snapshot = CdcSnapshotOperator.partial(
            task_id="snapshot",
            pipeline=plain(pipeline),
            map_index_template=MAP_INDEX_TEMPLATE,
            max_active_tis_per_dag=max_active_groups,
        ).expand(group=plan.output)
        complete = CdcSnapshotSensor(task_id="snapshot_complete", pipeline=pipeline, deferrable=deferrable is not False)
        preflight >> plan >> [snapshot, complete]
        last: Any = complete
        if stream:
            last = CdcStreamOperator(
                task_id="stream",
                pipeline=pipeline,
                catch_up=catch_up,
                deferrable=deferrable,
                on_suspended=on_suspended,
                on_lag=on_lag,
                on_purge_risk=on_purge_risk,
                on_failed=on_failed,
                on_recovered=on_recovered,
            )
            complete >> last
        if verify:
            last >> CdcVerifyOperator(task_id="verify", pipeline=pipeline)
    return group


def _group_id(pipeline: PipelineLike) -> str:
    value = plain(pipeline)
    if isinstance(value, str):
        name = PurePath(value).stem if names_file(value) else "cdc"
    else:
        name = str(value.get("name", "cdc"))
    return re.sub(r"[^\w-]", "_", name)
