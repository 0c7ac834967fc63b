"""The operators of a pipeline: preflight, plan, snapshot, verify. The stream's stands in :mod:`.stream`.

They are thin: each resolves the pipeline's connections, calls the phase of the same name, and returns a summary that a
person can read in the XCom tab.
"""

from __future__ import annotations

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
from airflow_provider_cdc.airflow.operators.stream import CdcStreamOperator
from airflow_provider_cdc.model.errors import NotReadyError

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_cdc.driver.launch import DriverProcess
    from airflow_provider_cdc.driver.main import DriverRequest
    from airflow_provider_cdc.model.plan import Plan

__all__ = [
    "CdcMaintainOperator",
    "CdcPlanChunksOperator",
    "CdcPreflightOperator",
    "CdcResnapshotOperator",
    "CdcSnapshotOperator",
    "CdcStreamOperator",
    "CdcVerifyOperator",
]


class CdcPreflightOperator(PipelineOperator):
    """Check server, grants, tables, sink and runtime before anything is written, and set up the bookkeeping.

    Fails, without a retry, at the first finding that is an error; warnings are logged.

    XCom: list of findings, each with ``level``, ``what`` and ``remedy``.

    :param pipeline: a :class:`~airflow_provider_cdc.Pipeline`, its plain values, or YAML: the name of a file of the
        DAG folder (``.yaml``, ``.yml``), its absolute path, or the text itself. (templated)
    """

    ui_color = "#e8f0fe"

    def execute(self, context: Context) -> list[dict[str, str]]:
        """Look at everything."""
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
    """Plan the snapshot: which key ranges are read, in which groups. The first plan of a pipeline stays.

    Planning again (a retry, a clear, another DAG run) returns the same groups and reads nothing; unless the server has
    purged binlogs that the stream still needs, and ``stream.on_purged`` is ``reread``: then it plans a new snapshot.

    XCom: list of groups to map :class:`CdcSnapshotOperator` over, each with ``group`` (its number), ``label``,
    ``tables``, ``chunks`` and ``rows`` (about). It is empty in a run that begins when all groups are published, so that
    its mapped tasks are skipped: a process for each of them would only find that there is nothing to read.

    :param pipeline: as in :class:`CdcPreflightOperator`. (templated)
    :param map_published: list the groups also in a run that begins when all of them are published.
    """

    ui_color = "#e6f4ea"

    def __init__(self, *, pipeline: PipelineLike, map_published: bool = False, **kwargs: Any) -> None:
        super().__init__(pipeline=pipeline, **kwargs)
        self.map_published = map_published

    def execute(self, context: Context) -> list[dict[str, Any]]:
        """Plan, or look up the plan that stands."""
        from airflow_provider_cdc.chunk_groups.chunk_group import open_sink_tables, published_attempts
        from airflow_provider_cdc.preflight.run import require_preflight
        from airflow_provider_cdc.resnapshot.purged_binlog import replan_if_purged
        from airflow_provider_cdc.snapshot.run import adopt_published_groups

        with map_task_errors(self.log):
            run_context = make_run_context(self.pipeline, self.log)
            require_preflight(run_context, spark=False)
            with closing(run_context.open_state_database()) as store:
                plan = replan_if_purged(run_context, store)
                adopt_published_groups(run_context, store, plan)
        self.log.info("P0 (the smallest low watermark, where the stream begins) is %s", plan.p0.at)
        rows = run_context.pipeline.snapshot.chunk_rows
        if self._has_mapped_tasks(context):  # a group of which nothing is left to read keeps its place
            return plan.group_summaries(rows, include_superseded=True)
        groups = plan.group_summaries(rows)
        if (
            not self.map_published
            and groups
            and published_attempts(plan, open_sink_tables(run_context, plan)) is not None
        ):
            self.log.info(
                "all %s groups are published: none is mapped, so the snapshot tasks of this run are skipped "
                "(map_published=True maps them)",
                len(groups),
            )
            return []
        return groups

    def _has_mapped_tasks(self, context: Context) -> bool:
        """Whether this run has mapped tasks: those must stay what they are when the planner is cleared."""
        ti = context["ti"]
        downstream_ids = sorted(self.get_flat_relative_ids(upstream=False))
        return (
            bool(downstream_ids)
            and ti.get_ti_count(ti.dag_id, map_index=0, task_ids=downstream_ids, run_ids=[ti.run_id]) > 0
        )


class CdcSnapshotOperator(OpenLineageMixin, PipelineOperator):
    """Read one chunk group with one Spark job and publish it. Map it over what :class:`CdcPlanChunksOperator` returns.

    A retry reads only what no earlier try has finished. A group that is published already is adopted: nothing is read.
    Clearing a task that has succeeded reads its group again, and no other: before the stream begins it replaces the
    rows itself, afterwards it hands them to the stream, which replaces them between two batches.

    Nothing is left to read of a group whose tables were all read again as a whole since, or are suspended: its task
    succeeds.

    XCom: ``group``, ``outcome`` (``published``, ``adopted``, ``replaced``, ``staged``, ``taken_over``), ``attempt``,
    ``tables``, ``rows``, ``chunks``, ``corrected``, ``seconds``, ``rows_per_second``, ``min_lw``, ``max_hw``.

    :param pipeline: as in :class:`CdcPreflightOperator`. (templated)
    :param group: number of the group, or one of the mappings that :class:`CdcPlanChunksOperator` returns. (templated)
    """

    template_fields: Sequence[str] = ("pipeline", "group")
    operator_extra_links = (SparkUiLink(),)
    ui_color = "#fef7e0"

    def __init__(self, *, pipeline: PipelineLike, group: int | Mapping[str, Any], **kwargs: Any) -> None:
        super().__init__(pipeline=pipeline, **kwargs)
        self.group = group
        self._driver: DriverProcess | None = None

    def execute(self, context: Context) -> dict[str, Any]:
        """Run the group's driver and relay what it says."""
        with map_task_errors(self.log):
            run_context = make_run_context(self.pipeline, self.log)
            request = make_driver_request(
                run_context.pipeline,
                group=self._group_number(),
                holder=task_label(context),
                task=task_identity(context),
                task_request=task_request_number(context),
            )
            self.task_result = _run_driver(self, request, context)
            return self.task_result

    def table_indexes(self, plan: Plan) -> set[int]:
        """Those with a chunk in the group."""
        groups = plan.groups() | plan.superseded_groups()
        return {chunk.table for chunk in groups.get(self._group_number(), ())}

    def on_kill(self) -> None:
        """End the driver: what it has finished is used again by the next try."""
        if self._driver is not None:
            self._driver.terminate()

    def _group_number(self) -> int:
        value = self.group["group"] if isinstance(self.group, Mapping) and "group" in self.group else self.group
        try:
            return int(value)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            raise NotReadyError(
                f"group is {value!r}", "Give the number of a chunk group, or what CdcPlanChunksOperator returns of it"
            ) from None


class CdcMaintainOperator(PipelineOperator):
    """Compact the sink's tables and delete files that nobody needs; a stream may run.

    The stream does that itself, unless ``sink.compaction`` is ``false``: for those who want it at night. The source is
    not asked.

    XCom: ``tables``, each with ``table`` and ``compactions``, how many there were.

    :param pipeline: as in :class:`CdcPreflightOperator`. (templated)
    :param purge: whether to write all files anew that have dead rows, and to join all small ones.
    """

    operator_extra_links = (SparkUiLink(),)
    ui_color = "#e0f2f1"

    def __init__(self, *, pipeline: PipelineLike, purge: bool = False, **kwargs: Any) -> None:
        super().__init__(pipeline=pipeline, **kwargs)
        self.purge = purge
        self._driver: DriverProcess | None = None

    def execute(self, context: Context) -> dict[str, Any]:
        """Run a driver and relay what it says."""
        with map_task_errors(self.log):
            run_context = make_run_context(self.pipeline, self.log)
            return _run_driver(
                self, make_driver_request(run_context.pipeline, maintain=True, purge=self.purge), context
            )

    def on_kill(self) -> None:
        """End the driver: nothing is lost but its work."""
        if self._driver is not None:
            self._driver.terminate()


class CdcResnapshotOperator(OpenLineageMixin, PipelineOperator):
    """Read a table again; a stream may run, and goes on with it then. A suspended table rejoins.

    While a stream runs, the task waits until it has exchanged the rows. Without one, the next stream does it.

    XCom: ``table`` and ``outcome``: ``rejoined`` (``replaced`` with ``where_key``), or ``staged``: the next stream
    exchanges the rows.

    :param pipeline: as in :class:`CdcPreflightOperator`. (templated)
    :param table: the table, as ``database.table``. (templated)
    :param where_key: only rows whose keys are as this condition says, such as ``id >= 100 AND id < 200``. (templated)
    """

    template_fields = (*PipelineOperator.template_fields, "table", "where_key")
    operator_extra_links = (SparkUiLink(),)
    ui_color = "#e8f0fe"

    def __init__(self, *, pipeline: PipelineLike, table: str, where_key: str | None = None, **kwargs: Any) -> None:
        super().__init__(pipeline=pipeline, **kwargs)
        self.table = table
        self.where_key = where_key
        self._driver: DriverProcess | None = None

    def execute(self, context: Context) -> dict[str, Any]:
        """Run a driver and relay what it says."""
        with map_task_errors(self.log):
            run_context = make_run_context(self.pipeline, self.log)
            request = make_driver_request(run_context.pipeline, reread=self.table, where_key=self.where_key)
            self.task_result = _run_driver(self, request, context)
            return self.task_result

    def table_indexes(self, plan: Plan) -> list[int]:
        """The one."""
        return [index for index, table in enumerate(plan.tables) if table.label == self.table]

    def on_kill(self) -> None:
        """End the driver: nobody has seen what it has read."""
        if self._driver is not None:
            self._driver.terminate()


class CdcVerifyOperator(OpenLineageMixin, PipelineOperator):
    """Compare source and sink, table by table, at one position while writers go on. A difference fails the task.

    So does a table that cannot be compared now, where no table differs: with a retry, if another try may do.

    XCom: list of tables, each with ``table``, ``verdict`` (``equal``, else the task fails), ``rows`` and how many of
    them are missing, extra or different.

    :param pipeline: as in :class:`CdcPreflightOperator`. (templated)
    :param show_values: also log, and give in ``examples``, keys of a few rows that differ; of a table without a key the
        whole rows. Whoever may read the task's log and XComs reads those values.
    :param tables: patterns ``database.table`` of the tables to compare; all by default. (templated)
    :param sample: a share of the tables such as ``1/7``. (templated)
    :param seed: which share that is; by default that of the day of the DAG run: so a run a day compares each table once
        in as many days.
    :param max_rows_per_second: rows that are read from the source in a second; the limits of the pipeline's snapshot
        are kept in any case.
    :param max_lag_seconds: age of the oldest commit that the copy lacks from which on nothing is compared: the stream
        has stopped, or is too slow. A day by default.
    :param repair: read the rows again that differ, have the stream exchange them, and compare once more: the task fails
        only if there is a difference then.
    :param assets: whether the tables' assets hear of a comparison that went well, and of a repair.
    """

    template_fields = (*PipelineOperator.template_fields, "tables", "sample")
    operator_extra_links = (SparkUiLink(),)
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
        self._driver: DriverProcess | None = None

    @classmethod
    def get_serialized_fields(cls) -> frozenset[str]:
        """What Airflow keeps of the task: the page tells those that repair from the others."""
        return frozenset(super().get_serialized_fields() | {"repair"})  # type: ignore[no-untyped-call]

    def execute(self, context: Context) -> list[dict[str, Any]]:
        """Run a driver and relay what it says."""
        from airflow_provider_cdc.config.selection import TableSelection

        with map_task_errors(self.log):
            run = context["dag_run"]
            day = (run.logical_date or run.run_after).toordinal()
            selection_args = (self.tables, self.sample, self.seed, self.max_rows_per_second, self.max_lag_seconds)
            selection = TableSelection.from_options(*selection_args, today=day)
            run_context = make_run_context(self.pipeline, self.log)
            what = {**asdict(selection), "show_values": self.show_values, "repair": self.repair}
            tables: list[dict[str, Any]] = _run_driver(
                self, make_driver_request(run_context.pipeline, verify=what), context
            )["tables"]
            events = {
                parse_table_label(run_context.pipeline, table_verdict["table"]): _asset_event(table_verdict)
                for table_verdict in tables
            }
            emit_asset_events(self, context, run_context.pipeline, events)
            self.task_result = {
                "tables": [
                    {name: table_verdict[name] for name in ("table", "rows", "repaired")} for table_verdict in tables
                ]
            }
            return tables

    def on_kill(self) -> None:
        """End the driver: it has written nothing."""
        if self._driver is not None:
            self._driver.terminate()


def _asset_event(table_verdict: Mapping[str, Any]) -> dict[str, Any]:
    """What the asset of a table hears of a comparison that has found no difference, or none any more."""
    common = {
        "rows": table_verdict["rows"],
        "end": table_verdict["at"],
        "until": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    common |= {"copy": table_verdict["copy"]}
    return (
        {"kind": REPAIR, "repaired": table_verdict["repaired"], **common}
        if table_verdict["repaired"]
        else {"kind": VERIFY, **common}
    )


def _run_driver(
    operator: CdcSnapshotOperator | CdcMaintainOperator | CdcResnapshotOperator | CdcVerifyOperator,
    request: DriverRequest,
    context: Context,
) -> dict[str, Any]:
    """Run a driver, relay what it says, and return how it ended."""
    from airflow_provider_cdc.driver.launch import start_attached
    from airflow_provider_cdc.driver.main import UI_LINE_PREFIX

    with start_attached(request) as driver:
        operator._driver = driver
        for line in driver.output_lines():
            operator.log.info("%s", line)
            if UI_LINE_PREFIX in line:
                push_spark_ui_link(context, line.partition(UI_LINE_PREFIX)[2], operator.log)
        return driver.wait_for_outcome()
