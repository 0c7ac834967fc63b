"""Open streams of a server's binlog. Nothing else opens one."""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_cdc.model.offset import Position
from airflow_provider_cdc.mysql.binlog.events.binlog_stream import BinlogStream

#: Opens a binlog stream at a position.
OpenStreamAt = Callable[[Position], BinlogStream]
#: Random replication server ids are in this range.
_LOWEST_ID, _HIGHEST_ID = 1 << 20, (1 << 32) - 1


@dataclass(frozen=True)
class BinlogSource:
    """The binlog of a server, for one reader: a server disconnects a reader when another one uses the same id.

    :param connect_args: pymysql.connect keyword arguments.
    :param server: expected identity of the server; ``None`` accepts any.
    :param replica: replication server id and UUID of the reader. By default each stream has random ones.
    """

    connect_args: Mapping[str, Any] = field(repr=False)
    server: str | None = None
    replica: tuple[int, str] | None = None

    def open(self, at: Position) -> BinlogStream:
        """Open a stream that waits for new events at the end of the binlog."""
        return self._open(at, blocking=True)

    def open_to_end(self, at: Position) -> BinlogStream:
        """Open a stream that ends where the binlog ends."""
        return self._open(at, blocking=False)

    def _open(self, at: Position, *, blocking: bool) -> BinlogStream:
        server_id, replica_uuid = self.replica or (
            _LOWEST_ID + secrets.randbelow(_HIGHEST_ID - _LOWEST_ID),
            str(uuid.uuid4()),
        )
        return BinlogStream(
            self.connect_args,
            server_id=server_id,
            replica_uuid=replica_uuid,
            file=at.file,
            position=at.position,
            blocking=blocking,
            server=self.server,
        )
