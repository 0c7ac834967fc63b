"""Unpack the events of compressed transactions into bytes for the walk kernel.

All small transactions of a block are unpacked ahead, so that the kernel proceeds from one to the next without Python.
A transaction that is large or packed in an unusual way is unpacked incrementally when the walk reaches it.
"""

from __future__ import annotations

import contextlib
import io
from typing import IO, Any

import numpy as np
from zstandard import ZstdDecompressor, ZstdError

from airflow_provider_cdc.model.errors import TerminalError
from airflow_provider_cdc.mysql.binlog.events.event import BinlogEvent
from airflow_provider_cdc.mysql.binlog.events.payload import EVENT_HEADER, damaged_payload_error, open_payload
from airflow_provider_cdc.mysql.binlog.kernels import walk_state
from airflow_provider_cdc.mysql.binlog.kernels.payloads import find_payloads
from airflow_provider_cdc.mysql.binlog.walk.blocks import BlockBuffer
from airflow_provider_cdc.native.primitives import PADDING

#: Initial buffer sizes for unpacking a transaction incrementally.
_BLOCK, _LARGE_BLOCK = 4 << 10, 1 << 20
#: Limits on what is unpacked ahead. Larger claimed sizes are not trusted.
_MAX_AHEAD_BYTES, _MAX_AHEAD_PAYLOADS = 1 << 20, 4096


class PayloadUnpacker:
    """Unpacks compressed transactions; ``data`` and ``ahead_lines`` are arguments of the walk kernel.

    :param blocks: the packets.
    :param state: state of the kernel, including how far it has walked.
    """

    def __init__(self, blocks: BlockBuffer, state: Any) -> None:
        self._blocks, self._state = blocks, state
        self._decompressor = ZstdDecompressor()
        self._source: IO[bytes] = io.BytesIO()
        self._expected: int | None = None
        self._total = 0
        self.data: Any = np.zeros(PADDING, np.uint8)
        self.ahead_lines: Any = np.zeros((_MAX_AHEAD_PAYLOADS, walk_state.AHEAD_FIELDS), np.int64)

    def unpack_ahead(self) -> bool:
        """Unpack the next transactions of the block; return ``False`` if the first one must be streamed.

        A damaged transaction ends the list; its error is raised when the walk reaches it.
        """
        state, blocks = self._state, self._blocks
        count = find_payloads(blocks.data, blocks.end, state, _MAX_AHEAD_BYTES, self.ahead_lines)
        block, decompress, contents = memoryview(blocks.data), self._decompressor.decompress, list[bytes]()
        with contextlib.suppress(ZstdError):
            for _, frame, frame_end, first, end in self.ahead_lines[:count].tolist():
                data = decompress(block[frame:frame_end], end - first, allow_extra_data=False)
                if len(data) != end - first:
                    break
                contents.append(data)
        if contents:
            self.data = np.frombuffer(bytearray().join((*contents, bytes(PADDING))), np.uint8)
        state[walk_state.UNPACKED_COUNT], state[walk_state.UNPACKED_USED] = len(contents), 0
        return bool(contents)

    def begin_streaming(self, event: BinlogEvent) -> None:
        """Start to unpack one transaction incrementally.

        :param event: the outer event.
        :raises TerminalError: if the payload is damaged or its compression is unknown.
        """
        self._source, self._expected = open_payload(event, self._decompressor)
        self._total = 0
        self.data = np.empty(min(self._expected or 0, _LARGE_BLOCK) + _BLOCK + PADDING, np.uint8)
        state = self._state
        state[walk_state.UNPACKED_COUNT] = state[walk_state.PAYLOAD_AT] = state[walk_state.PAYLOAD_END] = 0
        state[walk_state.PAYLOAD_MODE], state[walk_state.PAYLOAD_POSITION] = walk_state.STREAMED, event.start
        self.fill()

    def end_streaming(self) -> None:
        """Leave the transaction and free its buffer."""
        self._source, self._state[walk_state.PAYLOAD_MODE] = io.BytesIO(), 0
        self.data = np.zeros(PADDING, np.uint8)  # the old buffer may be large

    def fill(self) -> bool:
        """Unpack more of the transaction; return ``False`` at its end.

        :raises TerminalError: if it is damaged.
        """
        state = self._state
        at, end = int(state[walk_state.PAYLOAD_AT]), int(state[walk_state.PAYLOAD_END])
        left, room = end - at, len(self.data) - PADDING
        if state[walk_state.PAYLOAD_MODE] == walk_state.WHOLE:
            if left:
                raise self._damaged_error()
            return False
        data: Any = self.data if left < room // 2 else np.empty(2 * room + PADDING, np.uint8)
        data[:left] = self.data[at:end].copy()
        try:
            got = self._source.readinto(memoryview(data)[left : len(data) - PADDING])  # type: ignore[attr-defined]
        except ZstdError:
            raise self._damaged_error() from None
        self.data, state[walk_state.PAYLOAD_AT], state[walk_state.PAYLOAD_END] = data, 0, left + got
        self._total += got
        if not got and (left or self._expected not in (None, self._total)):
            raise self._damaged_error()
        return bool(got)

    def next_event(self) -> BinlogEvent:
        """Return the next event, for the Python code.

        :raises TerminalError: if it is damaged.
        """
        timestamp, kind, server_id, size, _, flags = EVENT_HEADER.unpack(self._read_bytes(EVENT_HEADER.size))
        if size < EVENT_HEADER.size:
            raise self._damaged_error()
        body, state = memoryview(self._read_bytes(size))[EVENT_HEADER.size :], self._state
        state[walk_state.PAYLOAD_AT] += size
        position, start = int(state[walk_state.POSITION]), int(state[walk_state.PAYLOAD_POSITION])
        return BinlogEvent(kind, timestamp, body, self._blocks.file, position, start, server_id, flags)

    def _read_bytes(self, size: int) -> bytes:
        state = self._state
        while state[walk_state.PAYLOAD_END] - state[walk_state.PAYLOAD_AT] < size:
            if not self.fill():
                raise self._damaged_error()
        at = int(state[walk_state.PAYLOAD_AT])
        return bytes(self.data[at : at + size])

    def _damaged_error(self) -> TerminalError:
        return damaged_payload_error(f"{self._blocks.file}:{int(self._state[walk_state.PAYLOAD_POSITION])}")
