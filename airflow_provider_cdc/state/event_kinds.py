"""Kinds of events: what each is called, how severe it is, and whether it needs the attention of a user."""

from __future__ import annotations

from typing import NamedTuple

#: Severity levels of events, most severe first.
FAILED, WARNING, INFO = EVENT_LEVELS = ("failed", "warning", "info")
#: Maximum number of groups of a snapshot for which each published group is an event.
MAX_GROUP_EVENTS = 100
#: Maximum number of failed chunk groups of a pipeline that ask for attention at the same time.
MAX_FAILED_GROUPS = 20
#: Minimum seconds between two events about compactions of a pipeline.
COMPACTION_EVENT_SECONDS = 3600.0


class EventKind(NamedTuple):
    """A kind of event.

    :param label: human-readable name.
    :param level: severity, unless the event itself has another one.
    :param needs_attention: whether a user has to look at it, unless its level is ``info``.
    :param resolves: kinds of earlier events that no longer need attention. If the new event is about a table, only
        events about this table.
    """

    label: str
    level: str = INFO
    needs_attention: bool = False
    resolves: tuple[str, ...] = ()


_TABLE_PROBLEMS = ("table_suspended", "table_refused", "reread_given_up", "reread_dropped")
_STREAM_PROBLEMS = ("stream_failed", "stream_lost")

EVENT_KINDS = {
    "snapshot_planned": EventKind("Snapshot planned"),
    "group_published": EventKind("Chunk group published"),
    "group_failed": EventKind("Chunk group failed", FAILED, needs_attention=True),
    "snapshot_finished": EventKind("Snapshot finished", resolves=("group_failed",)),
    "stream_started": EventKind("Stream started", resolves=_STREAM_PROBLEMS),
    "stream_restarted": EventKind("Stream restarted", WARNING, resolves=_STREAM_PROBLEMS),
    "stream_stop": EventKind("Stop requested"),
    "stream_stopped": EventKind("Stream stopped"),
    "stream_paused": EventKind("Stream paused"),
    "stream_resumed": EventKind("Stream resumed"),
    "stream_failed": EventKind("Stream failed", FAILED, needs_attention=True),
    "stream_lost": EventKind("Stream lost", FAILED, needs_attention=True),
    "failover": EventKind("Failover", WARNING),
    "server": EventKind("Another server is read", WARNING),
    "restart": EventKind("Server restarted", WARNING, needs_attention=True),
    "schema_change": EventKind("DDL followed"),
    "table_suspended": EventKind("Table suspended", FAILED, needs_attention=True),
    "table_rejoined": EventKind("Table rejoined", resolves=_TABLE_PROBLEMS),
    "table_added": EventKind("Table added", resolves=_TABLE_PROBLEMS),
    "table_removed": EventKind("Table removed", resolves=_TABLE_PROBLEMS),
    "table_dropped": EventKind("Table dropped", WARNING, resolves=_TABLE_PROBLEMS),
    "table_emptied": EventKind("Table dropped, copy emptied", WARNING, resolves=_TABLE_PROBLEMS),
    "table_refused": EventKind("Table refused", WARNING, needs_attention=True),
    "reread": EventKind("All tables re-snapshotted", WARNING),
    "part_reread": EventKind("Keys re-snapshotted", resolves=("reread_dropped",)),
    "reread_dropped": EventKind("Re-snapshot discarded", WARNING, needs_attention=True),
    "reread_given_up": EventKind("Re-snapshot given up", FAILED, needs_attention=True),
    "verified": EventKind("Verified: equal"),
    "verify_differs": EventKind("Verified: different", FAILED, needs_attention=True),
    "verify_incomplete": EventKind("Verified: incomplete", WARNING),
    "compacted": EventKind("Compacted"),
    "request_withdrawn": EventKind("Request withdrawn"),
    "group_retried": EventKind("Retry requested"),
    "stream_start": EventKind("Start requested"),
    "verify": EventKind("Comparison requested"),
    "repair": EventKind("Repair requested"),
    "request": EventKind("Control request"),
}


def event_label(kind: str) -> str:
    """Return the human-readable name of a kind, also of one that a newer version has recorded."""
    return EVENT_KINDS[kind].label if kind in EVENT_KINDS else kind.replace("_", " ").capitalize()
