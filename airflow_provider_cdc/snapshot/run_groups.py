"""The chunk groups of one task: some are published already, and the others are read one after the other.

Each group is claimed, read and published separately (:mod:`airflow_provider_cdc.snapshot.run`). A group that fails does
not keep the task from reading the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing

from airflow_provider_cdc.chunk_groups.chunk_group import ChunkGroup, TaskRequest, open_sink_tables
from airflow_provider_cdc.chunk_groups.task import JobRunner
from airflow_provider_cdc.model.errors import (
    CdcError,
    FencedError,
    GroupsFailedError,
    GroupsUnfinishedError,
    NoRoomError,
    OtherHistoryError,
    OtherServerError,
    PurgedError,
    RetentionError,
    TransientError,
)
from airflow_provider_cdc.model.plan import Plan
from airflow_provider_cdc.mysql.client.identity import check_same_server, server_identity
from airflow_provider_cdc.mysql.client.session import connect
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.snapshot.claims import is_left_to_read
from airflow_provider_cdc.snapshot.group_result import GroupResult
from airflow_provider_cdc.snapshot.progress import table_totals
from airflow_provider_cdc.snapshot.run import adopt_group, run_group, taken_over_result
from airflow_provider_cdc.snapshot.snapshot_observer import NullObserver, SnapshotObserver
from airflow_provider_cdc.snapshot.task_groups import format_numbers
from airflow_provider_cdc.state import StateDatabase

#: Errors that every group would get.
_ERRORS_OF_ALL_GROUPS = (FencedError, NoRoomError, OtherHistoryError, OtherServerError, PurgedError, RetentionError)


def adopt_finished_groups(
    context: RunContext, store: StateDatabase, plan: Plan, numbers: Sequence[int], requested_by: TaskRequest
) -> list[GroupResult]:
    """Return the results of those groups of a task that need no reading. Nothing is waited for.

    :param numbers: numbers of the task's groups.
    :param requested_by: the request of the task.
    :raises NotReadyError: if the plan never had one of the groups.
    """
    planned, open_tables = plan.groups(), open_sink_tables(context, plan)
    groups = [ChunkGroup(context, plan, number, open_tables) for number in numbers if number in planned]
    _continue_unfinished_request(groups, requested_by)
    results = [taken_over_result(context, store, plan, number) for number in numbers if number not in planned]
    for group in groups:
        if not is_left_to_read(group, store, requested_by):
            results.append(adopt_group(group, store, requested_by))
            _report_result(context, plan, results[-1])
    if results:
        store.finish_snapshot(plan.pipeline, plan.generation)
    if any(result.outcome == "adopted" for result in results):
        context.reporter.line("To re-snapshot published groups, clear their task after it has succeeded")
    return results


def _continue_unfinished_request(groups: Sequence[ChunkGroup], request: TaskRequest) -> None:
    """Let a task that is cleared after it has failed read what it has not finished, and nothing else.

    It had finished some groups for its last request, and not the others: these groups count as finished for the new
    request too. If it had finished all of them, the clear means that all are read again.
    """
    finished = [group.finished_request(request.task) for group in groups]
    last_request = max((number for number in finished if number is not None), default=request.number)
    if last_request != request.number and len(set(finished)) > 1:
        for group, number in zip(groups, finished, strict=True):
            if number == last_request:
                group.record_finished(request)


def run_groups(
    context: RunContext,
    store: StateDatabase,
    plan: Plan,
    numbers: Sequence[int],
    runner: JobRunner,
    *,
    holder: str,
    requested_by: TaskRequest | None = None,
    observe: Callable[..., SnapshotObserver] = NullObserver,
    require_runner: Callable[[], None] = lambda: None,
) -> list[GroupResult]:
    """Read several groups, one after the other, and publish each separately.

    If a group fails, the next ones are read nevertheless, unless none can be read now. See
    :func:`~airflow_provider_cdc.snapshot.run.run_group` for the other parameters and errors.

    :param numbers: numbers of the groups.
    :param require_runner: raises an error if the runner cannot run any job now.
    :raises GroupsFailedError: if some of several groups failed; a retry would not help any of them.
    :raises GroupsUnfinishedError: if some of several groups failed, or were not begun, and a retry may help.
    """
    results: list[GroupResult] = []
    failures: dict[int, CdcError] = {}
    open_tables = open_sink_tables(context, plan)
    for index, number in enumerate(numbers):
        try:
            newest = context.plans.refresh(plan)
            if newest is not plan:
                plan, open_tables = newest, open_sink_tables(context, newest)
            result = run_group(
                context,
                store,
                plan,
                number,
                runner,
                holder=holder,
                requested_by=requested_by,
                open_tables=open_tables,
                observe=observe,
            )
        except CdcError as error:
            if len(numbers) == 1:
                raise
            failures[number] = error
            if (cause := _find_common_cause(context, store, plan, error, require_runner)) is not None:
                raise _failure(failures, numbers, unread=numbers[index + 1 :], cause=cause) from None
            context.warn(f"group {number} failed: {error}. The other groups of the task are read")
            continue
        _report_result(context, context.plans.refresh(plan), result)
        results.append(result)
    if failures:
        raise _failure(failures, numbers)
    return results


def _find_common_cause(
    context: RunContext, store: StateDatabase, plan: Plan, error: CdcError, require_runner: Callable[[], None]
) -> CdcError | None:
    """Return why no group can be read now, after one has failed; ``None`` if the others may succeed."""
    if isinstance(error, _ERRORS_OF_ALL_GROUPS):
        return error
    try:
        require_runner()
        store.snapshot(plan.pipeline, plan.generation)
        timeline = context.resume_state(plan)[1]
        with closing(connect(context.connect_args)) as connection:
            check_same_server(server_identity(connection), timeline.server)
    except CdcError as cause:
        return cause
    return None


def _failure(
    failures: Mapping[int, CdcError], numbers: Sequence[int], unread: Sequence[int] = (), cause: CdcError | None = None
) -> CdcError:
    """Return the error that names the groups that failed, and those that were not begun because of a common cause.

    :param numbers: all groups of the task.
    """
    listed = "; ".join(f"group {number}: {error.message}" for number, error in failures.items())
    message = f"{len(failures)} of {len(numbers)} chunk groups failed: {listed}"
    if unread:
        message += f"; not begun, since no group can be read now: {format_numbers(unread)}"
    remedies = dict.fromkeys(error.remedy for error in ([cause] if cause else failures.values()) if error.remedy)
    is_transient = isinstance(cause, TransientError)
    if cause is None:
        is_transient = any(isinstance(error, TransientError) for error in failures.values())
    then = "A retry" if is_transient else "Then clear this task: it"
    remedy = ". ".join([*remedies, f"{then} reads only the groups that are not published"])
    error_class = GroupsUnfinishedError if is_transient else GroupsFailedError
    return error_class(message, remedy, groups=format_numbers([*failures, *unread]))


def _report_result(context: RunContext, plan: Plan, result: GroupResult) -> None:
    number = result.group
    for totals in table_totals(context, plan, [number] if number in plan.groups() else []):
        context.reporter.line(f"group {number} {result.outcome}: {totals}")
    if result.outcome == "adopted":
        context.reporter.line(f"attempt {result.attempt} of group {number} was already published")
