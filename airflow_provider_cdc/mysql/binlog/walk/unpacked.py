"""The events inside of a compressed transaction as a block of bytes, which the machine code walks."""

from __future__ import annotations

from typing import Any

import numpy as np
import zstandard

from airflow_provider_cdc.machine.primitives import SLACK
from airflow_provider_cdc.mysql.binlog.events.event import Event
from airflow_provider_cdc.mysql.binlog.events.payload import HEADER, damaged, unpack
from airflow_provider_cdc.mysql.binlog.kernels import walk_state

#: Bytes to begin with: most transactions are small. A large one is unpacked bit by bit.
_BLOCK, _LARGE_BLOCK = 4 << 10, 1 << 20


class Unpacked:
    """The events one after the other, as many as are asked for.

    :param event: the outer event.
    :param state: of the machine code; it says how far that has walked.
    :param decompressor: not in use elsewhere at the same time.
    :raises TerminalError: if the payload is damaged or its compression unknown.
    """

    def __init__(self, event: Event, state: Any, decompressor: zstandard.ZstdDecompressor) -> None:
        self._event, self._state = event, state
        self._source, self._expected = unpack(event, decompressor)
        self.data: Any = np.empty(min(self._expected or 0, _LARGE_BLOCK) + _BLOCK + SLACK, np.uint8)
        self.end = self._total = 0

    def fill(self) -> bool:
        """Unpack more; ``False`` at the end.

        :raises TerminalError: if it is damaged.
        """
        at, room = int(self._state[walk_state.AT]), len(self.data) - SLACK
        left = self.end - at
        data: Any = self.data if left < room // 2 else np.empty(2 * room + SLACK, np.uint8)
        data[:left] = self.data[at : self.end].copy()
        self.data, self.end, self._state[walk_state.AT] = data, left, 0
        try:
            got = self._source.readinto(memoryview(data)[left : len(data) - SLACK])  # type: ignore[attr-defined]
        except zstandard.ZstdError:
            raise damaged(self._event) from None
        self.end += got
        self._total += got
        if not got and (left or self._expected not in (None, self._total)):
            raise damaged(self._event)
        return bool(got)

    def take(self) -> Event:
        """The next event, for the plain code."""
        header = HEADER.unpack(self._bytes(HEADER.size))
        timestamp, kind, server_id, size, _, flags = header
        if size < HEADER.size:
            raise damaged(self._event)
        body, outer = memoryview(self._bytes(size))[HEADER.size :], self._event
        self._state[walk_state.AT] += size
        return Event(kind, timestamp, body, outer.file, outer.position, outer.start, server_id, flags)

    def _bytes(self, size: int) -> bytes:
        while self.end - int(self._state[walk_state.AT]) < size:
            if not self.fill():
                raise damaged(self._event)
        at = int(self._state[walk_state.AT])
        return bytes(self.data[at : at + size])
