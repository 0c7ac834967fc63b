"""Blocks of the binlog protocol as received from the socket, ready for the kernels to walk."""

from __future__ import annotations

from typing import Any

import numpy as np

from airflow_provider_cdc.model.errors import DamageError
from airflow_provider_cdc.mysql.binlog.events.binlog_stream import BinlogStream
from airflow_provider_cdc.mysql.binlog.kernels import walk_state
from airflow_provider_cdc.native.primitives import PADDING

_BLOCK = 1 << 20
_LARGEST_PACKET = 0xFF_FFFF


class BlockBuffer:
    """Bytes that have been received but not walked yet.

    :param stream: the stream to receive from.
    :param state: state of the kernel, including how far it has walked.
    """

    def __init__(self, stream: BinlogStream, state: Any) -> None:
        self._stream, self._state = stream, state
        self.data: Any = np.empty(_BLOCK + PADDING, np.uint8)
        self.end = 0
        state[walk_state.PACKET_NUMBER] = stream.start_raw_reading()

    @property
    def file(self) -> str:
        """Name of the current binlog file."""
        return self._stream.file

    def next_packet(self) -> bytes | None:
        """Return the next packet without headers; ``None`` if the stream was closed."""
        pieces, state = [], self._state
        while True:
            if not self._ensure(4):
                return None
            at = int(state[walk_state.BLOCK_AT])
            size = int.from_bytes(self.data[at : at + 3].tobytes(), "little")
            if self.data[at + 3] != state[walk_state.PACKET_NUMBER]:
                where = f"{self._stream.file}:{state[walk_state.POSITION]}"
                raise DamageError(f"packets out of order in the binlog stream at {where}", place=where)
            if not self._ensure(4 + size):
                return None
            at = int(state[walk_state.BLOCK_AT])
            pieces.append(self.data[at + 4 : at + 4 + size].tobytes())
            state[walk_state.BLOCK_AT] = at + 4 + size
            state[walk_state.PACKET_NUMBER] = (state[walk_state.PACKET_NUMBER] + 1) & 255
            if size < _LARGEST_PACKET:
                return b"".join(pieces)

    def _ensure(self, size: int) -> bool:
        while self.end - int(self._state[walk_state.BLOCK_AT]) < size:
            if not self.fill(size):
                return False
        return True

    def fill(self, size: int) -> bool:
        """Receive available bytes, with room for at least ``size`` unwalked ones; return ``False`` at the end."""
        at = int(self._state[walk_state.BLOCK_AT])
        left = self.end - at
        self._state[walk_state.UNPACKED_COUNT] = 0  # unpacked payloads are found by their place in the block
        if at and (not left or at + max(size, _BLOCK >> 2) > len(self.data) - PADDING):
            self.data[:left] = self.data[at : self.end].copy()
            self._state[walk_state.BLOCK_AT], self.end, at = 0, left, 0
        if at + size > len(self.data) - PADDING:
            larger: Any = np.empty(size + _BLOCK + PADDING, np.uint8)
            larger[: self.end] = self.data[: self.end]
            self.data = larger
        self._stream.position = int(self._state[walk_state.POSITION])  # for error messages
        got = self._stream.receive(memoryview(self.data)[self.end : len(self.data) - PADDING])
        self.end += got
        return got > 0
