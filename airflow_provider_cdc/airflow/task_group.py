"""A pipeline as a task group."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from airflow.sdk import TaskGroup

from airflow_provider_cdc.airflow.operators.alerts import AlertHook
from airflow_provider_cdc.airflow.operators.base import PipelineLike, is_file_name, to_plain
from airflow_provider_cdc.airflow.operators.cdc import (
    CdcPlanChunksOperator,
    CdcPreflightOperator,
    CdcSnapshotOperator,
    CdcVerifyOperator,
)
from airflow_provider_cdc.airflow.operators.stream import CdcStreamOperator
from airflow_provider_cdc.airflow.sensors.cdc import CdcSnapshotSensor

#: Names a mapped task in the grid after its chunk groups.
MAP_INDEX_TEMPLATE = "{{ task.groups['label'] }}"

#: Arguments of the tasks, and the parameters of the group that set them.
_GROUP_ARGUMENTS = {
    "max_active_tis_per_dag": "max_active_groups",
    **{name: name for name in ("pipeline", "groups_per_task", "map_published", "catch_up", "on_suspended", "on_lag")},
    **{name: name for name in ("on_purge_risk", "on_failed", "on_recovered")},
}


def cdc_pipeline(
    pipeline: PipelineLike,
    *,
    group_id: str | None = None,
    stream: bool = True,
    catch_up: bool | None = None,
    verify: bool = False,
    deferrable: bool | None = None,
    groups_per_task: int | None = None,
    max_active_groups: int | None = None,
    map_published: bool = False,
    assets: bool = True,
    default_args: Mapping[str, Any] | None = None,
    preflight_args: Mapping[str, Any] | None = None,
    plan_args: Mapping[str, Any] | None = None,
    snapshot_args: Mapping[str, Any] | None = None,
    sensor_args: Mapping[str, Any] | None = None,
    stream_args: Mapping[str, Any] | None = None,
    verify_args: Mapping[str, Any] | None = None,
    on_suspended: AlertHook = None,
    on_lag: AlertHook = None,
    on_purge_risk: AlertHook = None,
    on_failed: AlertHook = None,
    on_recovered: AlertHook = None,
) -> TaskGroup:
    """Return a task group for a whole pipeline: preflight, plan, snapshot (mapped tasks, each with one or several chunk
    groups), sensor, stream.

    The sensor depends on the plan and not on the mapped tasks. A failed group therefore does not fail the downstream
    tasks, and clearing it does not affect the stream.

    :param pipeline: a :class:`~airflow_provider_cdc.Pipeline`, its plain values, or YAML.
    :param group_id: id of the task group. Default: the pipeline's name.
    :param stream: whether to include the stream. Without it, the stream can be in a separate DAG.
    :param catch_up: whether the stream ends at the source's position at the time it begins.
    :param verify: whether to compare source and sink after the stream (for a catch-up) or else after the snapshot.
    :param deferrable: whether the sensor and the stream wait in the triggerer. Default: the sensor does, and the stream
        does wherever its driver survives it (see
        :class:`~airflow_provider_cdc.airflow.operators.stream.CdcStreamOperator`).
    :param groups_per_task: number of chunk groups that one mapped task reads, one after the other. Default: as few as
        give at most 64 tasks.
    :param max_active_groups: maximum number of chunk groups that are read at the same time. Default: no specific limit.
    :param map_published: map the chunk groups even in a run that begins when all of them are published.
    :param assets: whether the tasks emit events of the tables' assets (:func:`~airflow_provider_cdc.cdc_asset`).
    :param default_args: default arguments of the tasks in this group, as for a DAG.
    :param preflight_args: arguments of the task ``preflight`` (all that its operator accepts), such as ``pool``,
        ``queue``, ``retries`` or ``outlets``. They take precedence over ``default_args`` and ``deferrable``.
    :param plan_args: likewise for the task ``plan_chunks``.
    :param snapshot_args: likewise for each of the mapped tasks ``snapshot``.
    :param sensor_args: likewise for the task ``snapshot_complete``.
    :param stream_args: likewise for the task ``stream``.
    :param verify_args: likewise for the task ``verify``.
    :param on_suspended: as in :class:`~airflow_provider_cdc.airflow.operators.stream.CdcStreamOperator`, like the other
        ``on_`` arguments.
    """
    args = _TaskArguments(
        preflight=preflight_args,
        plan=plan_args,
        snapshot=snapshot_args,
        sensor=sensor_args,
        stream=stream_args,
        verify=verify_args,
    )
    args.refuse_if_absent("stream", stream)
    args.refuse_if_absent("verify", verify)
    with TaskGroup(group_id or _group_id(pipeline), default_args=dict(default_args or {})) as group:  # type: ignore[arg-type]
        preflight = CdcPreflightOperator(**args.for_task("preflight", task_id="preflight", pipeline=pipeline))
        plan = CdcPlanChunksOperator(
            **args.for_task(
                "plan",
                task_id="plan_chunks",
                pipeline=pipeline,
                groups_per_task=groups_per_task,
                map_published=map_published,
            )
        )
        task_args = args.for_task(
            "snapshot",
            task_id="snapshot",
            pipeline=to_plain(pipeline),
            max_active_tis_per_dag=max_active_groups,
            groups=None,
        )
        task_args.pop("groups")  # the tasks are mapped over it
        snapshots = CdcSnapshotOperator.partial(**{"map_index_template": MAP_INDEX_TEMPLATE, **task_args})
        snapshot = snapshots.expand(groups=plan.output)
        waiting = {"deferrable": deferrable, "assets": assets}
        task_args = args.for_task("sensor", task_id="snapshot_complete", pipeline=pipeline)
        complete = CdcSnapshotSensor(**{**waiting, **task_args})
        preflight >> plan >> [snapshot, complete]
        upstream: Any = complete
        if stream:
            hooks = {
                "on_suspended": on_suspended,
                "on_lag": on_lag,
                "on_purge_risk": on_purge_risk,
                "on_failed": on_failed,
                "on_recovered": on_recovered,
            }
            task_args = args.for_task("stream", task_id="stream", pipeline=pipeline, catch_up=catch_up, **hooks)
            upstream = CdcStreamOperator(**{**waiting, **task_args})
            complete >> upstream
        if verify:
            task_args = args.for_task("verify", task_id="verify", pipeline=pipeline)
            upstream >> CdcVerifyOperator(**{"assets": assets, **task_args})
    return group


class _TaskArguments:
    """Arguments that a DAG's author passes to the tasks of the group.

    :param args_by_task: arguments by the name of the task, without ``_args``.
    :raises TypeError: if one is not a mapping.
    """

    def __init__(self, **args_by_task: Mapping[str, Any] | None) -> None:
        for name, value in args_by_task.items():
            if value is not None and not isinstance(value, Mapping):
                raise TypeError(f"{name}_args is {value!r}: give a mapping of arguments to values")
        self._args_by_task = args_by_task

    def for_task(self, name: str, **group_args: Any) -> dict[str, Any]:
        """Return all arguments of a task.

        :param group_args: arguments that the group sets.
        :raises TypeError: if the author passed one of these as well.
        """
        task_args = self._args_by_task[name] or {}
        for key in task_args:
            if key in group_args:
                remedy = f"use its {_GROUP_ARGUMENTS[key]} argument" if key in _GROUP_ARGUMENTS else "omit it"
                raise TypeError(f"{name}_args has {key}, which cdc_pipeline sets itself: {remedy}")
        return {**group_args, **task_args}

    def refuse_if_absent(self, name: str, included: bool) -> None:
        """Refuse arguments for a task that is not part of the group.

        :raises TypeError: if there are any.
        """
        if self._args_by_task[name] and not included:
            raise TypeError(f"{name}_args is set, but {name}=False: the group has no task {name}")


def _group_id(pipeline: PipelineLike) -> str:
    value = to_plain(pipeline)
    if isinstance(value, str):
        name = PurePath(value).stem if is_file_name(value) else "cdc"
    else:
        name = str(value.get("name", "cdc"))
    return re.sub(r"[^\w-]", "_", name)
