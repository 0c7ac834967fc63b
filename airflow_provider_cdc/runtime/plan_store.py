"""The plan of a pipeline: made from the source, stored in the sink, checked against the settings, and mirrored."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING, Any

from airflow_provider_cdc.model import server_id_slots as slots
from airflow_provider_cdc.model.errors import NotReadyError
from airflow_provider_cdc.model.plan import Plan
from airflow_provider_cdc.model.start_mode import SNAPSHOT, format_start
from airflow_provider_cdc.mysql.chunks.planner import make_plan
from airflow_provider_cdc.mysql.client.catalog import find_tables, list_columns
from airflow_provider_cdc.mysql.client.session import connect
from airflow_provider_cdc.mysql.positions.binlog_files import with_file_start_time
from airflow_provider_cdc.mysql.positions.start import plan_without_snapshot
from airflow_provider_cdc.sinks.files.layout import amendment_file, list_amendments, read_plan
from airflow_provider_cdc.sinks.protocol import Adoptable, Feature, InFolder
from airflow_provider_cdc.sinks.storage.storage import write_json_once
from airflow_provider_cdc.system.failpoints import failpoint
from airflow_provider_cdc.transforms.copy_rules import column_names
from airflow_provider_cdc.transforms.sealed_bounds import open_plan, seal_plan
from airflow_provider_cdc.transforms.shared_copies import check_shared_copies

if TYPE_CHECKING:
    from airflow_provider_cdc.runtime.resolved_pipeline import ResolvedPipeline
    from airflow_provider_cdc.state import StateDatabase


class PlanStore:
    """The plan of a pipeline. The copy in the sink is the authoritative one."""

    def __init__(self, resolved: ResolvedPipeline) -> None:
        self._resolved, self._pipeline = resolved, resolved.pipeline

    @property
    def _patterns(self) -> tuple[tuple[str, ...], ...]:
        """What determines which tables are captured, and what their copies have of them."""
        rules = self._resolved.copy_rules.fingerprint
        return (*self._pipeline.source.patterns.values(), *([(rules,)] if rules else []))

    def load(self) -> Plan | None:
        """Load the plan from the sink, which is the authoritative copy; ``None`` if there is none yet.

        :raises NotReadyError: if the pipeline's settings no longer match those that it was planned with.
        """
        stored_plan = read_plan(self._resolved.storage, self._resolved.layout)
        if stored_plan is None:
            return None
        self._refuse_other_kind(stored_plan)
        plan = open_plan(stored_plan, self._resolved.hash_key).with_zero_dates(self._pipeline.source.zero_dates)
        if plan.patterns[2:] != self._patterns[2:]:
            changed_columns = self.find_changed_rules(plan)
            if changed_columns and self._resolved.sink.resume_point().read_with_timeline() is None:
                raise NotReadyError(
                    next(iter(changed_columns.values())),
                    "A table cannot be re-snapshotted before the stream has begun: undo the change until then, or "
                    "start with a fresh sink.path",
                )
        paths = self._pipeline.sink.table_paths
        for name, configured, planned in (
            ("table_path", paths.template, plan.table_path),
            ("lower_case", paths.lower_case, plan.lower_case),
            ("routes", paths.stored_routes, plan.routes),
        ):
            if configured != planned:
                shown = {route[0]: ", ".join(route[1:]) for route in plan.routes} if name == "routes" else planned
                raise NotReadyError(
                    f"sink.{name} of {plan.pipeline} changed since its snapshot (it was {shown})",
                    "The tables would not be found: undo the change, or start with a fresh sink.path",
                )
        if plan.start != self._pipeline.stream.start:
            configured = format_start(self._pipeline.stream.start)
            raise NotReadyError(
                f"stream.start of {plan.pipeline} is {configured}, but it began with {format_start(plan.start)}",
                "A pipeline can begin only once: undo the change, or start with a fresh sink.path",
            )
        return plan

    def _refuse_other_kind(self, plan: Plan) -> None:
        """Refuse a plan of a sink of another kind, before anything asks the sink. An older plan does not tell."""
        if plan.sink_kind and plan.sink_kind != self._pipeline.sink.kind:
            raise NotReadyError(
                f"sink.kind of {plan.pipeline} is {self._pipeline.sink.kind}, but its tables are of kind "
                f"{plan.sink_kind}",
                "Set it back; or, to copy into another kind of sink, use another name and a fresh sink.path",
            )

    def find_changed_rules(self, plan: Plan) -> dict[int, str]:
        """Find tables whose copies were made by other rules than the pipeline has now. A stream re-snapshots them.

        :returns: a description of the difference for each such table, by index.
        """
        rules, captures = self._resolved.copy_rules, self._pipeline.captures
        captured = (index for index in plan.active_tables if captures(*plan.tables[index].id))
        differences = ((index, rules.describe_difference(plan.tables[index])) for index in captured)
        return {index: difference for index, difference in differences if difference is not None}

    def refuse_unmatched_rules(self, plan: Plan) -> None:
        """Refuse rules that were changed after planning and have never matched a column, or a table.

        :raises NotReadyError: for the first one.
        """
        if plan.patterns[2:] == self._patterns[2:] or not self._resolved.copy_rules.fingerprint:
            return
        with closing(connect(self._resolved.connect_args)) as connection:
            tables = {(database, name) for database, name, _ in find_tables(connection, self._pipeline.captures)}
            columns = [*list_columns(connection, tables), *column_names(plan.all_definitions)]
        self._resolved.copy_rules.refuse_unmatched(columns)

    def refresh(self, plan: Plan) -> Plan:
        """Return the current plan: the given one, unless amendments were stored since it was loaded."""
        layout, generation = self._resolved.layout, plan.generation
        known_files = {amendment_file(layout, generation, step) for step in plan.amendments}
        for table in range(len(plan.definitions)):
            known_files |= {
                layout.amendment(generation, table, number + 1) for number in range(plan.revision_of(table))
            }
        stored_files = list_amendments(self._resolved.storage, layout, generation)
        # The stored files may be fewer: superseded ones are removed.
        return plan if known_files.issuperset(stored_files) else self.require()

    def require(self) -> Plan:
        """Load the plan from the sink.

        :raises NotReadyError: if there is none.
        """
        plan = self.load()
        if plan is None:
            storage, layout = self._resolved.storage, self._resolved.layout
            if next(iter(storage.list(layout.all_groups_folder)), None) is not None:
                raise NotReadyError(
                    f"pipeline {self._pipeline.name} has chunk groups, but no plan at {storage.location(layout.plan)}",
                    "Restore the plan, or start with a fresh sink.path",
                )
            raise NotReadyError(
                f"pipeline {self._pipeline.name} has no snapshot in {storage.location()}",
                "Run `airflow-cdc snapshot` (or `airflow-cdc run`) first",
            )
        return plan

    def make(self, generation: int) -> Plan:
        """Make a plan from the source as it is now. Nothing is written."""
        pipeline, settings = self._pipeline, self._pipeline.snapshot
        open_at = self._resolved.binlog_opener(slots.PLAN)
        plan_options: dict[str, Any] = {
            "patterns": self._patterns,
            "apply_rules": self._resolved.copy_rules.apply,
            "generation": generation,
            "open_at": open_at,
        }
        with closing(connect(self._resolved.connect_args)) as connection:
            if pipeline.stream.start != SNAPSHOT:
                start = pipeline.stream.start
                plan = plan_without_snapshot(connection, pipeline.name, pipeline.captures, start=start, **plan_options)
            else:
                plan_options |= {"chunk_rows": settings.chunk_rows, "group_rows": settings.group_rows}
                plan = make_plan(connection, pipeline.name, pipeline.captures, **plan_options)
            self._resolved.copy_rules.refuse_unmatched(column_names(plan.tables))
            paths = pipeline.sink.table_paths
            pipeline.sink.check_distinct_tables(table.id for table in plan.tables)
            for table in plan.tables:
                pipeline.sink.delete_policy.mode_of(table)  # refuses a mode that the table cannot have
            check_shared_copies(pipeline.sink, plan.tables)
            plan = plan.replace(table_path=paths.template, lower_case=paths.lower_case, routes=paths.stored_routes)
            plan = plan.replace(sink_kind=pipeline.sink.kind)
            return plan.replace(p0=with_file_start_time(plan.p0, open_at))

    def ensure(self, state_database: StateDatabase) -> Plan:
        """Return the plan in the sink, made now if there is none, and mirror it into the state database if needed."""
        plan = self.load()
        if plan is None:
            newest = state_database.snapshot(self._pipeline.name)
            plan = self.make(1 if newest is None else newest.generation + 1)
            for table in plan.tables:
                if not table.key:
                    self._resolved.require_feature(Feature.KEYLESS, f"table {table.label} has no usable key")
            self._refuse_lost_plan(plan)
            storage, layout = self._resolved.storage, self._resolved.layout
            storage.deny_others(layout.pipeline_folder)  # it contains key values of rows
            if not write_json_once(storage, layout.plan, seal_plan(plan, self._resolved.hash_key).to_json()):
                return self.ensure(state_database)  # another process was faster: its plan counts
            summary = f"{len(plan.chunks)} chunks in {len(plan.groups())} groups"
            summary = summary if plan.start == SNAPSHOT else f"no snapshot, start at {format_start(plan.start)}"
            self._resolved.reporter.line(f"planned {len(plan.tables)} tables: {summary}, P0 at {plan.p0.at}")
            failpoint("plan.after_write")
        mirror_plan(state_database, plan, self._pipeline.snapshot.chunk_rows)
        state_database.record_source(plan.pipeline, self._resolved.describe_source())
        return plan

    def _refuse_lost_plan(self, plan: Plan) -> None:
        """Refuse sink tables that exist without a plan: tables are created after it, so their rows are unknown.

        So are folders that have a table which is not that of this sink.
        """
        sink, storage = self._resolved.sink, self._resolved.storage
        for table in plan.tables:
            target = sink.table(table)
            if isinstance(target, InFolder) and not target.exists():
                target.check_folder_is_free()
            # Check again: a process that started at the same time may have written the plan and then created the table.
            if target.exists() and storage.read(self._resolved.layout.plan) is None:
                if isinstance(target, Adoptable) and target.will_adopt(plan.pipeline):
                    continue
                raise NotReadyError(
                    f"there is a {target.name}, but no plan at {storage.location(self._resolved.layout.plan)}",
                    "Restore the plan, or start with a fresh sink.path (or remove the table). A table that something "
                    "else has made is taken over with sink.adopt: true",
                )


def mirror_plan(state_database: StateDatabase, plan: Plan, chunk_rows: int) -> bool:
    """Mirror a plan into the state database.

    :returns: whether the plan was not there before.
    """
    state_database.register_pipeline(plan.pipeline, plan.p0.server)
    if state_database.snapshot(plan.pipeline, plan.generation) is not None:
        return False
    names = [list(t.id) for t in plan.tables]
    per_table = Counter(c.table for c in plan.chunks)
    state_database.write_plan(
        plan.pipeline,
        plan.generation,
        [
            {"database": t.database, "name": t.name, "rows_estimate": per_table[i] * chunk_rows}
            for i, t in enumerate(plan.tables)
        ],
        [
            {"group_no": no, "tables": [names[i] for i in sorted({c.table for c in chunks})]}
            for no, chunks in plan.groups().items()
        ],
        (
            {
                "chunk_no": c.number,
                "group_no": c.group,
                "database": names[c.table][0],
                "table_name": names[c.table][1],
            }
            for c in plan.chunks
        ),
    )
    return True
