"""The operators for preflight, plan, snapshot, maintenance, re-snapshot and verify. The stream operator is in
:mod:`.stream`.

They are thin: each resolves the pipeline's connections, runs its phase, and returns a summary that is readable in the
XCom tab.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow_provider_cdc.airflow.assets import REPAIR, VERIFY, declare_outlets, emit_asset_events, parse_table_label
from airflow_provider_cdc.airflow.links.cdc import SparkUiLink, push_spark_ui_link
from airflow_provider_cdc.airflow.openlineage import OpenLineageMixin
from airflow_provider_cdc.airflow.operators.base import (
    PipelineLike,
    PipelineOperator,
    make_driver_request,
    make_run_context,
    map_task_errors,
    task_identity,
    task_label,
    task_request_number,
)
from airflow_provider_cdc.model.errors import NotReadyError, TransientError
from airflow_provider_cdc.observe.log_lines import relay_log_lines

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_cdc.config import Pipeline
    from airflow_provider_cdc.driver.launchers.launcher import Driver
    from airflow_provider_cdc.model.plan import Plan
    from airflow_provider_cdc.runtime.run_context import RunContext


class CdcPreflightOperator(PipelineOperator):
    """Check the server, grants, tables, sink and runtime before anything is written, and set up the state database.

    The first check result that is an error fails the task without a retry. Warnings are logged.

    XCom: list of check results, each with ``level``, ``what`` and ``remedy``.

    :param pipeline: a :class:`~airflow_provider_cdc.Pipeline`, its plain values, or YAML: the name of a file in the DAG
        folder (``.yaml``, ``.yml``), its absolute path, or the text itself. (templated)
    """

    ui_color = "#e8f0fe"

    def execute(self, context: Context) -> list[dict[str, str]]:
        """Run all checks."""
        from airflow_provider_cdc.preflight.run import run_preflight

        with map_task_errors(self.log):
            run_context = make_run_context(self.pipeline, self.log)
            findings = run_preflight(run_context)
            levels = {"ok": self.log.info, "warning": self.log.warning, "error": self.log.error}
            for result in sorted(findings, key=lambda f: ("error", "warning", "ok").index(f.level)):
                levels[result.level]("%s", result)
            for result in findings:
                if result.level == "error":
                    raise result.to_error()
            run_context.open_state_database().close()
        return [f.to_json() for f in findings]


class CdcPlanChunksOperator(PipelineOperator):
    """Plan the snapshot: divide the tables into key ranges and groups. The first plan of a pipeline is kept.

    Planning again (a retry, a clear, another DAG run) returns the same groups and reads nothing. The exception: if the
    server has purged binlogs that the stream still needs, and ``stream.on_purged`` is ``reread``, a new snapshot is
    planned.

    XCom: list to map :class:`CdcSnapshotOperator` over. Each element is the work of one task: ``groups`` (the numbers
    of its chunk groups), ``label``, ``tables``, ``chunks`` and ``rows`` (approximate). The list is empty in a run that
    begins when all groups are published. The mapped tasks are then skipped.

    :param pipeline: as in :class:`CdcPreflightOperator`. (templated)
    :param groups_per_task: number of chunk groups that one mapped task reads, one after the other. Default: as few as
        give at most 64 tasks.
    :param map_published: list the groups even in a run that begins when all of them are published.
    :raises ValueError: if ``groups_per_task`` is not a positive integer.
    """

    ui_color = "#e6f4ea"

    def __init__(
        self,
        *,
        pipeline: PipelineLike,
        groups_per_task: int | None = None,
        map_published: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(pipeline=pipeline, **kwargs)
        if groups_per_task is not None and (type(groups_per_task) is not int or groups_per_task < 1):
            raise ValueError(f"groups_per_task is {groups_per_task!r}: give a number of chunk groups, at least 1")
        self.groups_per_task = groups_per_task
        self.map_published = map_published

    def execute(self, context: Context) -> list[dict[str, Any]]:
        """Create the plan, or return the existing one."""
        from airflow_provider_cdc.chunk_groups.chunk_group import open_sink_tables, published_attempts
        from airflow_provider_cdc.preflight.run import require_preflight
        from airflow_provider_cdc.resnapshot.purged_binlog import replan_if_purged
        from airflow_provider_cdc.snapshot.run import adopt_published_groups
        from airflow_provider_cdc.snapshot.task_groups import divide_into_tasks

        with map_task_errors(self.log):
            run_context = make_run_context(self.pipeline, self.log)
            require_preflight(run_context, spark=False)
            with closing(run_context.open_state_database()) as store:
                plan = replan_if_purged(run_context, store)
                adopt_published_groups(run_context, store, plan)
        self.log.info("P0 (the lowest low watermark, where the stream begins) is %s", plan.p0.at)
        rows = run_context.pipeline.snapshot.chunk_rows
        if self._has_mapped_tasks(context):  # a superseded group keeps its map index
            return divide_into_tasks(plan, rows, self.groups_per_task, include_superseded=True)
        tasks = divide_into_tasks(plan, rows, self.groups_per_task)
        if (
            not self.map_published
            and tasks
            and published_attempts(plan, open_sink_tables(run_context, plan)) is not None
        ):
            self.log.info(
                "all %s groups are published, so the snapshot tasks of this run are skipped "
                "(map_published=True maps them)",
                len(plan.groups()),
            )
            return []
        return tasks

    def _has_mapped_tasks(self, context: Context) -> bool:
        """Return whether this run has mapped tasks, whose groups must not change when the planner is cleared."""
        ti = context["ti"]
        downstream_ids = sorted(self.get_flat_relative_ids(upstream=False))
        return (
            bool(downstream_ids)
            and ti.get_ti_count(ti.dag_id, map_index=0, task_ids=downstream_ids, run_ids=[ti.run_id]) > 0
        )


class DriverOperator(PipelineOperator):
    """Base class of the operators that run a driver for as long as their task runs, and relay its output."""

    operator_extra_links = (SparkUiLink(),)
    #: The task's result, for OpenLineage.
    task_result: Any = None
    _driver: Driver | None = None
    _killed = False

    @abstractmethod
    def request_arguments(self, context: Context) -> dict[str, Any]:
        """Return the fields of the driver request that say what to do."""

    def report_outcome(self, context: Context, pipeline: Pipeline, outcome: dict[str, Any]) -> Any:
        """Return the XCom for the driver's outcome."""
        self.task_result = outcome
        return outcome

    def execute(self, context: Context) -> Any:
        """Run the driver and relay its output."""
        with map_task_errors(self.log):
            run_context = make_run_context(self.pipeline, self.log)
            outcome = self._run_driver(context, run_context, self.request_arguments(context))
            return self.report_outcome(context, run_context.pipeline, outcome)

    def _run_driver(self, context: Context, run_context: RunContext, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Run a driver and relay its output.

        :param arguments: what :meth:`request_arguments` returns.
        :returns: its outcome.
        """
        from airflow_provider_cdc.driver.launchers.launcher import make_launcher
        from airflow_provider_cdc.driver.spark_session import UI_LINE_PREFIX

        requested_by = {"task": task_identity(context), "task_request": task_request_number(context)}
        request = make_driver_request(run_context.pipeline, **requested_by, **arguments)
        self.log.info("starting a Spark driver")
        with make_launcher(run_context).run(request, task_identity(context), lambda: self._killed) as self._driver:
            if self._killed:
                raise TransientError("the task was ended while it started a Spark driver", "Clear it to run it again")
            for line in self._driver.output_lines():
                relay_log_lines([line], self.log)
                if UI_LINE_PREFIX in line:
                    push_spark_ui_link(context, line.partition(UI_LINE_PREFIX)[2], self.log)
            return self._driver.wait_for_outcome()

    def on_kill(self) -> None:
        """Terminate the driver. Only its unfinished work is lost."""
        self._killed = True
        if self._driver is not None:
            self._driver.terminate()


class CdcSnapshotOperator(OpenLineageMixin, DriverOperator):
    """Read chunk groups, one after the other, and publish each separately. Map it over the result of
    :class:`CdcPlanChunksOperator`.

    Each group is read by one Spark job. If a group fails, the others are read and published before the task fails, and
    the error names the group. A retry reads only what no earlier try has finished, and so does clearing the task after
    it has failed. Groups that are already published are adopted without reading anything, and if nothing is left to
    read, no driver is started. Clearing a task that succeeded re-snapshots its groups and no others. Before the stream
    begins, the task replaces the rows itself. Afterwards it hands them to the stream, which replaces them between two
    batches.

    If all tables of a group are suspended, or have been re-snapshotted as a whole since, nothing is left to read of it.

    XCom: totals (``rows``, ``chunks``, ``corrected``, ``seconds``), and ``groups``: for each group ``group`` (its
    number), ``outcome`` (``published``, ``adopted``, ``replaced``, ``staged``, ``taken_over``), ``attempt``,
    ``tables``, ``rows``, ``chunks``, ``corrected``, ``seconds``, ``rows_per_second``, ``min_lw``, ``max_hw``.

    :param pipeline: as in :class:`CdcPreflightOperator`. (templated)
    :param groups: numbers of the groups, one number, or an element of what :class:`CdcPlanChunksOperator` returns.
        (templated)
    """

    template_fields: Sequence[str] = ("pipeline", "groups")
    ui_color = "#fef7e0"

    def __init__(
        self, *, pipeline: PipelineLike, groups: int | Sequence[int] | Mapping[str, Any], **kwargs: Any
    ) -> None:
        super().__init__(pipeline=pipeline, **kwargs)
        self.groups = groups

    def execute(self, context: Context) -> Any:
        """Adopt the groups that are published, and run the driver for the others, if any."""
        with map_task_errors(self.log):
            run_context = make_run_context(self.pipeline, self.log)
            arguments = self.request_arguments(context)
            results = self._adopt_groups(context, run_context, arguments["groups"])
            adopted = {result["group"] for result in results}
            arguments["groups"] = [number for number in arguments["groups"] if number not in adopted]
            if arguments["groups"]:
                read = self._run_driver(context, run_context, arguments)["groups"]
                # A driver that an earlier try has left in a cluster may have read some that are published now. It may
                # also lack some, if the groups of the task have changed.
                results += [result for result in read if result["group"] not in adopted]
                if missing := {*arguments["groups"]} - {result["group"] for result in read}:
                    raise TransientError(
                        f"the Spark driver that an earlier try had left was not asked for group {min(missing)}",
                        "Run the task again, to read it",
                    )
            return self.report_outcome(context, run_context.pipeline, _sum_results(results))

    def request_arguments(self, context: Context) -> dict[str, Any]:
        """Return the groups, and the try that reads them."""
        return {"groups": self._group_numbers(), "holder": task_label(context)}

    def table_indexes(self, plan: Plan) -> set[int]:
        """Return the indexes of the tables that have a chunk in the groups."""
        groups = plan.groups() | plan.superseded_groups()
        return {chunk.table for number in self._group_numbers() for chunk in groups.get(number, ())}

    def _adopt_groups(self, context: Context, run_context: RunContext, groups: Sequence[int]) -> list[dict[str, Any]]:
        """Return the results of the groups that need no driver."""
        from airflow_provider_cdc.chunk_groups.chunk_group import TaskRequest
        from airflow_provider_cdc.snapshot.run_groups import adopt_finished_groups

        request = TaskRequest(task_identity(context), task_request_number(context))
        with closing(run_context.open_state_database()) as store:
            plan = run_context.plans.ensure(store)
            results = adopt_finished_groups(run_context, store, plan, groups, request)
        return [result.to_json() for result in results]

    def _group_numbers(self) -> list[int]:
        """Return the numbers of the groups.

        :raises NotReadyError: if ``groups`` is something else.
        """
        value = self.groups["groups"] if isinstance(self.groups, Mapping) and "groups" in self.groups else self.groups
        try:
            numbers = [int(n) for n in value] if isinstance(value, list | tuple) else [int(value)]  # type: ignore[arg-type]
        except (TypeError, ValueError):
            numbers = []
        if not numbers:
            raise NotReadyError(
                f"groups is {value!r}",
                "Give the numbers of chunk groups, or an element of the result of CdcPlanChunksOperator",
            )
        return numbers


def _sum_results(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the results of groups, in order, with their totals."""
    totals = {name: sum(result[name] for result in results) for name in ("rows", "chunks", "corrected")}
    seconds = round(sum(result["seconds"] for result in results), 3)
    return {**totals, "seconds": seconds, "groups": sorted(results, key=lambda result: int(result["group"]))}


class CdcMaintainOperator(DriverOperator):
    """Compact the sink tables and delete unneeded files. A stream may run at the same time.

    The stream does this itself unless ``sink.compaction`` is ``false``, so this operator is for pipelines that compact
    on a schedule, for example at night. The source is not accessed.

    XCom: ``tables``, each with ``table`` and ``compactions`` (the number of compactions).

    :param pipeline: as in :class:`CdcPreflightOperator`. (templated)
    :param purge: rewrite every file that has deleted rows, and merge all small files.
    """

    ui_color = "#e0f2f1"

    def __init__(self, *, pipeline: PipelineLike, purge: bool = False, **kwargs: Any) -> None:
        super().__init__(pipeline=pipeline, **kwargs)
        self.purge = purge

    def request_arguments(self, context: Context) -> dict[str, Any]:
        """Return how to compact."""
        return {"maintain": True, "purge": self.purge}


class CdcResnapshotOperator(OpenLineageMixin, DriverOperator):
    """Re-snapshot a table, with or without a running stream. A suspended table then rejoins the stream.

    While a stream runs, the task waits until the stream has published the rows. Otherwise the next stream publishes
    them.

    XCom: ``table`` and ``outcome``: ``rejoined`` (``replaced`` with ``where_key``), or ``staged`` if the next stream
    publishes the rows.

    :param pipeline: as in :class:`CdcPreflightOperator`. (templated)
    :param table: the table, as ``database.table``. (templated)
    :param where_key: re-snapshot only rows whose key meets this condition, such as ``id >= 100 AND id < 200``.
        (templated)
    """

    template_fields = (*PipelineOperator.template_fields, "table", "where_key")
    ui_color = "#e8f0fe"

    def __init__(self, *, pipeline: PipelineLike, table: str, where_key: str | None = None, **kwargs: Any) -> None:
        super().__init__(pipeline=pipeline, **kwargs)
        self.table = table
        self.where_key = where_key

    def request_arguments(self, context: Context) -> dict[str, Any]:
        """Return what to re-snapshot."""
        return {"reread": self.table, "where_key": self.where_key}

    def table_indexes(self, plan: Plan) -> list[int]:
        """Return the index of the table, as a list."""
        return [index for index, table in enumerate(plan.tables) if table.label == self.table]


class CdcVerifyOperator(OpenLineageMixin, DriverOperator):
    """Compare source and sink, table by table, at one position while writes continue. A difference fails the task.

    If no table differs but some cannot be compared now, the task fails as well. It is retried if another try may
    succeed.

    XCom: list of tables, each with ``table``, ``verdict`` (``equal``, else the task fails), ``rows``, and the number of
    missing, extra and different rows.

    :param pipeline: as in :class:`CdcPreflightOperator`. (templated)
    :param show_values: also log the keys of a few differing rows, and return them in ``examples``. For a table without
        a key these are whole rows. The values are visible to everyone who can read the task's log and XComs.
    :param tables: patterns ``database.table`` of the tables to compare. Default: all. (templated)
    :param sample: a share of the tables, such as ``1/7``. (templated)
    :param seed: number that selects the share. Default: the day of the DAG run, so that a daily run with ``1/7``
        compares each table once in seven days.
    :param max_rows_per_second: rows read from the source per second. The limits of the pipeline's snapshot apply as
        well.
    :param max_lag_seconds: refuse to compare if the oldest commit missing from the copy is older than this, because the
        stream has stopped or is too slow. Default: one day.
    :param repair: re-snapshot the differing rows, have the stream publish them, and compare again. The task fails only
        if differences remain.
    :param assets: whether to emit asset events for a comparison without differences and for a repair.
    """

    template_fields = (*PipelineOperator.template_fields, "tables", "sample")
    ui_color = "#fce8e6"
    writes_copies = False

    def __init__(
        self,
        *,
        pipeline: PipelineLike,
        show_values: bool = False,
        tables: Sequence[str] = (),
        sample: str | None = None,
        seed: int | None = None,
        max_rows_per_second: int | None = None,
        max_lag_seconds: int | None = None,
        repair: bool = False,
        assets: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(pipeline=pipeline, **kwargs)
        self.show_values = show_values
        self.tables = tables
        self.sample = sample
        self.seed = seed
        self.max_rows_per_second = max_rows_per_second
        self.max_lag_seconds = max_lag_seconds
        self.repair = repair
        declare_outlets(self, assets)

    @classmethod
    def get_serialized_fields(cls) -> frozenset[str]:
        """Return the fields that Airflow stores. The page uses ``repair`` to recognize tasks that repair."""
        return frozenset(super().get_serialized_fields() | {"repair"})  # type: ignore[no-untyped-call]

    def request_arguments(self, context: Context) -> dict[str, Any]:
        """Return what to compare, and how."""
        from airflow_provider_cdc.config.selection import TableSelection

        run = context["dag_run"]
        day = (run.logical_date or run.run_after).toordinal()
        chosen = (self.tables, self.sample, self.seed, self.max_rows_per_second, self.max_lag_seconds)
        selection = TableSelection.from_options(*chosen, today=day)
        return {"verify": {**asdict(selection), "show_values": self.show_values, "repair": self.repair}}

    def report_outcome(self, context: Context, pipeline: Pipeline, outcome: dict[str, Any]) -> list[dict[str, Any]]:
        """Emit the asset events, and return the verdict on each table."""
        tables: list[dict[str, Any]] = outcome["tables"]
        events = {parse_table_label(pipeline, verdict["table"]): _asset_event(verdict) for verdict in tables}
        emit_asset_events(self, context, pipeline, events)
        names = ("table", "rows", "repaired")
        self.task_result = {"tables": [{name: verdict[name] for name in names} for verdict in tables]}
        return tables


def _asset_event(verdict: Mapping[str, Any]) -> dict[str, Any]:
    """Return the asset event of a table that has no difference, or none after the repair."""
    until = datetime.now(UTC).isoformat(timespec="seconds")
    event = {"rows": verdict["rows"], "end": verdict["at"], "until": until, "copy": verdict["copy"]}
    repaired = verdict["repaired"]
    return {"kind": REPAIR, "repaired": repaired, **event} if repaired else {"kind": VERIFY, **event}
