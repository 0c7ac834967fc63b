"""What a driver is asked to do: one line of JSON, with the connections."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from typing import Any

#: First word of the description of a request for a stream.
STREAM = "stream"
#: Size in bytes at which a stream's log is rotated.
_LOG_BYTES = 16 << 20


@dataclass(frozen=True)
class DriverRequest:
    """What a driver is to do: one of ``groups``, ``maintain``, ``reread`` and ``verify``, or, by default, the stream.

    :param pipeline: :meth:`Pipeline.to_dict`.
    :param connections: :meth:`ResolvedConnection.to_json` by connection id; they contain the secrets.
    :param result: file for the result: ``{"outcome": ...}`` or ``{"error": {kind, message, remedy}}``.
    :param groups: numbers of the chunk groups to read, one after the other.
    :param maintain: whether to compact and clean up the sink's tables.
    :param purge: with ``maintain``, whether to remove all deleted rows and merge all small files.
    :param reread: the table to re-snapshot, ``database.table``.
    :param where_key: with ``reread``, a condition that limits it to a range of keys.
    :param verify: compare source and sink: ``show_values``, ``repair``, and the keyword arguments of
        :class:`~airflow_provider_cdc.config.selection.TableSelection`.
    :param holder: with ``groups``, human-readable name of the process that reads them.
    :param task: identity of the requesting task, except for the stream; see
        :class:`~airflow_provider_cdc.chunk_groups.chunk_group.TaskRequest`.
    :param task_request: number of the task's request. It changes when the task is cleared, so that a cleared task does
        not continue with a driver that began before.
    :param catch_up: whether the stream ends at the source's current position.
    :param log: file that a stream's driver writes to.
    :param log_bytes: size at which this file is rotated.
    :param log_level: name of the lowest level of the lines that the driver writes.
    :param lease: seconds for which a stream continues without a task that supervises it; ``None`` for ever.
    """

    pipeline: dict[str, Any]
    connections: dict[str, dict[str, Any]] = field(repr=False)
    result: str = ""
    groups: list[int] | None = None
    maintain: bool = False
    purge: bool = False
    reread: str | None = None
    where_key: str | None = None
    verify: dict[str, Any] | None = None
    holder: str = ""
    task: str = ""
    task_request: int = 0
    catch_up: bool = False
    log: str | None = None
    log_bytes: int = _LOG_BYTES
    log_level: str = "INFO"
    lease: float | None = None

    @property
    def is_stream(self) -> bool:
        """Whether it asks for a stream."""
        return not (self.maintain or self.reread or self.verify) and self.groups is None

    @property
    def description(self) -> str:
        """What is asked for, with a digest of the settings. Requests of tries of one task have the same description,
        unless the task was cleared between them.

        It does not name chunk groups: a later try asks only for those that are not published yet.
        """
        kinds = {"chunk groups": self.groups, "maintenance": self.maintain, "re-snapshot": self.reread}
        kind = next((name for name, asked in kinds.items() if asked), "verification" if self.verify else STREAM)
        omitted = ("connections", "result", "groups", "holder", "log", "log_bytes", "log_level")
        values = {name: value for name, value in asdict(self).items() if name not in omitted}
        digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]
        return f"{kind} {digest}"

    def to_line(self) -> str:
        """Return the request as one line of JSON."""
        return json.dumps(asdict(self)) + "\n"

    @classmethod
    def from_line(cls, line: str) -> DriverRequest:
        """Return the request from a line of :meth:`to_line`."""
        return cls(**json.loads(line))
