"""What is wrong with a pipeline: its phase, its troubles, and its level."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from airflow_provider_cdc.model.errors import REQUESTED, PurgedError
from airflow_provider_cdc.state.event_kinds import event_label
from airflow_provider_cdc.state.reader import PipelineOverview
from airflow_provider_cdc.ui.declared_tasks import SNAPSHOT_OPERATOR, STREAM_OPERATOR, DeclaredTask

#: Severity levels of pipelines and tables, most severe first. The page has a color for each.
FAILED, WARNING, WORKING, IDLE = LEVELS = ("failed", "warning", "working", "idle")
#: Level of troubles that need nobody. They do not change the level of a pipeline.
INFO = "info"
#: Seconds of lag, and time until the source purges needed binlogs, at which a pipeline is shown as a warning.
LAG_WARNING_SECONDS, PURGE_WARNING = 60.0, timedelta(hours=12)
#: How long a continuous stream may be stopped or paused before that is a warning.
STOPPED_WARNING = timedelta(minutes=15)
#: Kinds of events that the state of the stream, of a chunk group or of a table also shows, for as long as it lasts.
_KINDS_OF_STATES = frozenset({"stream_failed", "stream_lost", "group_failed", "table_suspended", "verify_differs"})
#: Code of the trouble that stands for events.
OPEN_EVENTS = "open_events"
#: Phases in which a process works on the pipeline.
WORKING_PHASES = ("planning", "snapshot", "streaming", "stopping")


class Trouble(NamedTuple):
    """Something that is wrong with a pipeline.

    :param code: stable name.
    :param level: ``failed``, ``warning`` or ``info``.
    :param text: one line.
    :param about: the view of the page that shows it, and what to show there.
    :param since: when it began, if known.
    :param by: who caused it: a user, or the name of a try of a task.
    :param due_at: when it becomes worse.
    :param acts: actions that may help.
    """

    code: str
    level: str
    text: str
    about: dict[str, Any]
    since: datetime | None = None
    by: str | None = None
    error: str | None = None
    remedy: str | None = None
    due_at: datetime | None = None
    acts: tuple[str, ...] = ()


def pipeline_phase(overview: PipelineOverview, is_alive: bool | None) -> str:
    """Return ``planning``, ``snapshot``, ``handover``, ``streaming``, ``paused``, ``stopping``, ``lost``, ``failed``,
    ``caught_up`` or ``stopped``.
    """
    run = overview.newest_epoch
    if run is not None and (run.state != "running" or overview.snapshot is None):
        return run.state
    if run is not None:
        if is_alive is False:
            return "lost"
        return {"pause": "paused", "stop": "stopping"}.get(run.desired_state, "streaming")
    if overview.snapshot is None:
        return "planning"
    return "handover" if overview.snapshot.state == "done" else "snapshot"


def pipeline_level(phase: str, troubles: Collection[Trouble]) -> str:
    """Return the level of a pipeline: that of its worst trouble, or whether it works."""
    for level in (FAILED, WARNING):
        if any(one.level == level for one in troubles):
            return level
    return WORKING if phase in WORKING_PHASES else IDLE


def find_troubles(
    overview: PipelineOverview, phase: str, lost: int, now: datetime, tasks: Iterable[DeclaredTask] = ()
) -> list[Trouble]:
    """Return the troubles of a pipeline: the ones that concern all of it first, those that need nobody last.

    :param lost: number of chunk groups that were begun and that no process reads any more.
    :param now: the current time.
    :param tasks: the tasks of the pipeline that the user may see.
    """
    troubles = [
        *_stream_troubles(overview, phase, now),
        *_source_troubles(overview, phase, now),
        *find_paused_dags(phase, tasks),
        *_snapshot_troubles(lost),
        *_table_troubles(overview),
        *_event_troubles(overview),
    ]
    return sorted(troubles, key=lambda one: one.level == INFO)


def purge_time(overview: PipelineOverview) -> datetime | None:
    """Return when the source may remove binlogs that are needed; ``None`` if never, or unknown."""
    sample = overview.last_sample
    return None if sample is None or sample.purge_hours is None else sample.at + timedelta(hours=sample.purge_hours)


def stream_lag(overview: PipelineOverview) -> float | None:
    """Return the lag of the stream in seconds: the higher of the last sample and the newest batches."""
    candidates = [overview.last_sample.lag_seconds if overview.last_sample is not None else None]
    p95 = None if overview.throughput is None else overview.throughput.lag_p95_ms
    candidates.append(None if p95 is None else round(p95 / 1000, 3))
    return max((lag for lag in candidates if lag is not None), default=None)


def _stream_troubles(overview: PipelineOverview, phase: str, now: datetime) -> list[Trouble]:
    run, about = overview.newest_epoch, {"view": "stream"}
    if run is None:
        return []
    ended_at = run.ended_at or run.heartbeat_at
    due_at = purge_time(overview)
    is_purged = due_at is not None and due_at <= now
    start = "Start it" + ("" if is_purged else ": it continues where it stopped")
    if phase == "failed":
        text = "The stream has failed"
        return [Trouble("stream_failed", FAILED, text, about, ended_at, error=run.error, acts=("start",))]
    if phase == "lost":
        text = "The stream has no heartbeat: its driver is lost"
        return [Trouble("stream_lost", FAILED, text, about, run.heartbeat_at, remedy=start, acts=("start",))]
    if phase == "stopped" and run.mode != "catch_up":
        level = WARNING if now - ended_at > STOPPED_WARNING else INFO
        by = run.stop_user or run.stop_by
        text = "The stream is stopped: changes in the source are not copied"
        return [Trouble("stream_stopped", level, text, about, ended_at, by, remedy=start, acts=("start",))]
    if phase == "paused":
        since = run.paused_at
        level = WARNING if since is not None and now - since > STOPPED_WARNING else INFO
        text = "The stream is paused: changes in the source are not copied"
        remedy = "Resume it" + ("" if is_purged else ": it continues where it was paused")
        return [Trouble("stream_paused", level, text, about, since, run.paused_by, remedy=remedy, acts=("resume",))]
    return []


def _snapshot_troubles(lost: int) -> list[Trouble]:
    if not lost:
        return []
    text = f"{_count_text(lost, 'chunk group')} without a reader"
    remedy = "See the log of the task, then retry"
    about = {"view": "groups", "state": "failed"}
    return [Trouble("groups_lost", FAILED, text, about, remedy=remedy, acts=("retry",))]


def _table_troubles(overview: PipelineOverview) -> list[Trouble]:
    counts = overview.table_counts
    suspended = sum(one.tables for one in counts if one.state == "suspended" and one.kind != REQUESTED)
    requested = sum(one.tables for one in counts if one.state == "suspended" and one.kind == REQUESTED)
    unequal = sum(one.tables for one in counts if one.verified_equal is False)
    about = {"view": "tables", "trouble": True}
    troubles = []
    if suspended:
        text = f"{_count_text(suspended, 'table')} suspended because of a problem"
        troubles.append(Trouble("tables_suspended", FAILED, text, about, acts=("reread",)))
    if unequal:
        text = f"{_count_text(unequal, 'copy', 'copies')} differed from the source in the last comparison"
        troubles.append(Trouble("tables_unequal", FAILED, text, about, acts=("repair",)))
    if requested:
        text = f"{_count_text(requested, 'table')} suspended on request"
        about = {"view": "tables", "state": "suspended"}
        troubles.append(Trouble("tables_suspended_on_request", INFO, text, about))
    return troubles


def _event_troubles(overview: PipelineOverview) -> list[Trouble]:
    open_events = [one for one in overview.open_events if one.newest.kind not in _KINDS_OF_STATES]
    if not open_events:
        return []
    n, newest = sum(one.events for one in open_events), max((one.newest for one in open_events), key=lambda one: one.id)
    text = f"{_count_text(n, 'event needs', 'events need')} attention{': ' if n == 1 else ', the newest: '}"
    text += event_label(newest.kind)
    level = FAILED if any(one.newest.level == FAILED for one in open_events) else WARNING
    about = {"view": "timeline", "attention": True}
    return [Trouble(OPEN_EVENTS, level, text, about, newest.at, error=newest.detail, remedy=newest.remedy)]


def find_paused_dags(phase: str, tasks: Iterable[DeclaredTask]) -> list[Trouble]:
    """Return a trouble for each paused DAG that has a part of the work of a pipeline.

    :param phase: its phase.
    :param tasks: its tasks that the user may see.
    """
    if phase in ("stopping", "stopped", "caught_up"):
        return []
    kind = SNAPSHOT_OPERATOR if phase in ("planning", "snapshot") else STREAM_OPERATOR
    paused = dict.fromkeys(one.dag_id for one in tasks if one.dag_is_paused and one.operator_name == kind)
    effect = (
        "its stream continues, but is not restarted when it ends" if phase == "streaming" else "no task of it begins"
    )
    return [
        Trouble("dag_paused", WARNING, f"DAG {dag} is paused: {effect}", {"dag": dag}, remedy="Unpause it in Airflow")
        for dag in paused
    ]


def _source_troubles(overview: PipelineOverview, phase: str, now: datetime) -> list[Trouble]:
    sample, about = overview.last_sample, {"view": "stream"}
    if sample is None:
        return []
    troubles, due_at = [], purge_time(overview)
    run = overview.newest_epoch
    if run is not None and run.error_kind == PurgedError.__name__:
        return []  # the stream has failed for that very reason
    start, acts = {"paused": ("Resume", ("resume",)), "streaming": ("", ())}.get(phase, ("Start", ("start",)))
    if due_at is not None and due_at <= now and phase != "streaming":
        text = "The source may have removed binlogs that the stream still needs"
        remedy = f"{start} the stream now. If they are gone, it fails, and its error says how to re-snapshot"
        troubles.append(Trouble("purge_past", FAILED, text, about, since=due_at, remedy=remedy, acts=acts))
    elif due_at is not None and due_at - now < PURGE_WARNING:
        text = "The source will remove binlogs that the stream still needs"
        longer = "ake the source keep its binlogs longer: SET GLOBAL binlog_expire_logs_seconds = 604800 (7 days)"
        remedy = f"{start} the stream, or m{longer}" if acts else f"M{longer}"
        troubles.append(Trouble("purge_due", WARNING, text, about, remedy=remedy, due_at=due_at, acts=acts))
    if phase != "streaming":
        return troubles
    lag = stream_lag(overview)
    if lag is not None and lag >= LAG_WARNING_SECONDS:
        text = f"The copy is {_duration_text(lag)} behind the source"
        troubles.append(Trouble("lag", WARNING, text, about, since=sample.at))
    if sample.unknown is not None:
        text = "The source cannot be reached, so the lag is unknown"
        remedy = (
            "Check that the server runs and that the stream's host can reach it. The stream tries again automatically"
        )
        troubles.append(Trouble("lag_unknown", WARNING, text, about, sample.at, error=sample.unknown, remedy=remedy))
    return troubles


def _duration_text(seconds: float) -> str:
    minutes = round(seconds / 60)
    if minutes < 2:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def _count_text(n: int, one: str, many: str | None = None) -> str:
    return f"{n} {one if n == 1 else many or one + 's'}"
