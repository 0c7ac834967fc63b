"""Steps of tables that nothing goes by any more are removed: else each start would read all that ever happened.

When a table has rejoined, what was written down of its revisions before says nothing about it. The last revision before
stays as well: whoever lists the steps at this moment may miss a file that has just come, and must not miss both.
"""

from __future__ import annotations

from airflow_provider_cdc.core.plan import Plan
from airflow_provider_cdc.core.steps import Step
from airflow_provider_cdc.sinks.layout import Layout, step_name
from airflow_provider_cdc.sinks.storage import Storage


def remove_superseded_steps(storage: Storage, layout: Layout, plan: Plan) -> None:
    """Remove the files of steps of all but the last two revisions of each table. Only the stream's driver calls it.

    :param storage: that of the sink.
    """
    gone = [step_name(layout, plan.generation, step) for step in plan.steps if _is_superseded(plan, step)]
    if gone:
        storage.delete(*gone)


def _is_superseded(plan: Plan, step: Step) -> bool:
    """Whether two revisions have followed that of a step. What adds a table to the plan is needed for good."""
    return step.revision < plan.revision(step.table) - 1 and not plan.is_addition(step)
