"""Plan a table again that is altered while its snapshot is running, and read it again under its new definition.

Only this table, and only as long as no part of it is published: then all of its watermarks come after the DDL, and
earlier changes in the binlog are ignored. docs/correctness.md has the proof.
"""

from __future__ import annotations

from contextlib import closing
from functools import partial

from airflow_provider_cdc.chunk_groups.chunk_group import group_marker, open_sink_tables, read_coverage
from airflow_provider_cdc.model.errors import TableAlteredError, TransientError
from airflow_provider_cdc.model.plan import Plan
from airflow_provider_cdc.mysql.chunks.planner import make_replan_amendment
from airflow_provider_cdc.mysql.client.session import connect
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.sinks.protocol import Feature
from airflow_provider_cdc.sinks.storage.storage import write_json_once
from airflow_provider_cdc.transforms.sealed_bounds import seal_replan


def replan_table(context: RunContext, plan: Plan, error: TableAlteredError) -> None:
    """Plan the table again that an error names, unless another process has already done so.

    :param plan: the plan with which it was read.
    :raises TableAlteredError: the error, with the reason, if that is not possible.
    :raises NotReadyError: if the table no longer exists, or can no longer be copied.
    """
    index = next((i for i, t in enumerate(plan.tables) if t.label == error.table), None)
    newest = context.plans.require()
    if index is None or newest.generation != plan.generation:
        raise error
    table, revision, policy = plan.tables[index], plan.revision_of(index), context.schema_policy
    if newest.revision_of(index) > revision:
        return
    markers = context.sink.table(table).markers()
    complete = read_coverage(context, newest, open_sink_tables(context, newest)) is not None
    if complete and context.pipeline.stream.follows_ddl:  # else no stream can follow the DDL
        raise TransientError(
            f"{error.message}, and the stream has not followed that yet",
            "Run again after it has. If it stops, it reports why",
        )
    if any(markers.get(group_marker(plan, group)) is not None for group in plan.groups_of(index)):
        raise TableAlteredError(f"{error.message}, after a part of it was published", error.remedy, **error.facts)
    context.require_feature(Feature.RESNAPSHOT, error.message)
    with closing(connect(context.connect_args)) as connection:
        amendment = make_replan_amendment(
            connection,
            plan,
            index,
            partial(context.copy_rules.apply_to_altered, before=plan.tables[index]),
            lambda found: policy.decide_definition(table, found, is_requested=True),
        )
    name = context.layout.amendment(plan.generation, index, revision + 1)
    sealed = seal_replan(amendment, amendment.definitions.newest, context.hash_key)
    if write_json_once(context.storage, name, sealed.to_json()):
        context.reporter.line(f"{error.message}: the table is read again under its new definition")
