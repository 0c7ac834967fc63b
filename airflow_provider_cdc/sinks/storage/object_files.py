"""Files of an object store that are read, or written, in parts."""

from __future__ import annotations

import io
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

#: Size in bytes up to which a file is read at once, and size of the pieces of larger files.
PART_BYTES = 8 << 20
#: Minimum number of bytes to read: the columns of a row group are adjacent.
_MIN_READ_BYTES = 1 << 20


class ObjectReader:
    """A file that is read in parts, for :class:`pyarrow.PythonFile`.

    :param size: size in bytes.
    :param read_ranges: reads byte ranges, given as a list of starts and one of ends, in parallel.
    """

    closed = False

    def __init__(self, size: int, read_ranges: Callable[[list[int], list[int]], list[Any]]) -> None:
        self._size, self._read_ranges = size, read_ranges
        self._position = 0
        self._buffer, self._buffer_start = b"", 0

    def read(self, count: int = -1) -> bytes:
        """Return the next bytes."""
        end = self._size if count is None or count < 0 else min(self._position + count, self._size)
        if not self._buffer_start <= self._position <= end <= self._buffer_start + len(self._buffer):
            self._fetch(self._position, min(max(end, self._position + _MIN_READ_BYTES), self._size))
        start = self._position - self._buffer_start
        self._position = max(self._position, end)
        return self._buffer[start : end - self._buffer_start] if end > self._buffer_start + start else b""

    def _fetch(self, start: int, end: int) -> None:
        starts = list(range(start, end, PART_BYTES))
        ends = [min(s + PART_BYTES, end) for s in starts]
        parts = [bytes(part) for part in self._read_ranges(starts, ends)] if starts else []
        self._buffer, self._buffer_start = parts[0] if len(parts) == 1 else b"".join(parts), start

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to another position and return it."""
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        return self._position

    def tell(self) -> int:
        """Return the current position."""
        return self._position

    def close(self) -> None:
        """Close the file and free its buffer."""
        self.closed, self._buffer = True, b""


class _AbortedError(Exception):
    """Aborts an upload."""


#: Writes an object from bytes or an iterator of pieces; aborts the upload if the iterator raises an error.
PutObject = Callable[[bytes | Iterator[bytes]], None]


class _Sender:
    """Sends pieces in its own thread, which does not keep the :class:`UploadWriter` alive."""

    def __init__(self, put_object: PutObject) -> None:
        self._put_object = put_object
        self._pieces: queue.Queue[bytes | _AbortedError | None] = queue.Queue(2)
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="object-upload", daemon=True)
        self._thread.start()

    def send(self, piece: bytes | _AbortedError | None) -> None:
        """Pass on a piece, an abort, or the end (``None``); do nothing if the thread has ended."""
        while self._thread.is_alive():
            try:
                self._pieces.put(piece, timeout=0.1)
                return
            except queue.Full:
                continue

    def finish(self) -> None:
        """Wait until the upload has ended."""
        self.send(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            self._put_object(self._queued_pieces())
        except _AbortedError:
            pass
        except BaseException as error:
            self.error = error

    def _queued_pieces(self) -> Iterator[bytes]:
        while (piece := self._pieces.get()) is not None:
            if isinstance(piece, _AbortedError):
                raise piece
            yield piece


class UploadWriter:
    """A file that is written in pieces, in one request if it is small.

    The file exists once it is closed, and never partially: an upload that is aborted, or never closed, leaves only
    pieces that the store does not show.

    :param put_object: writes the object.
    """

    closed, mode = False, "wb"

    def __init__(self, put_object: PutObject) -> None:
        self._put_object = put_object
        self._buffer: list[bytes] = []
        self._buffered_bytes = self._bytes_written = 0
        self._sender: _Sender | None = None

    def write(self, data: Any) -> int:
        """Add bytes."""
        if self.closed:
            raise ValueError("the file is closed")
        self._buffer.append(bytes(data))
        self._buffered_bytes += len(data)
        self._bytes_written += len(data)
        if self._buffered_bytes >= PART_BYTES:
            if self._sender is None:
                self._sender = _Sender(self._put_object)
            self._send_buffer()
        return len(data)

    def tell(self) -> int:
        """Return the number of bytes written."""
        return self._bytes_written

    def flush(self) -> None:
        """Do nothing: the file does not exist before it is closed."""

    def close(self) -> None:
        """Write the remaining bytes and complete the file."""
        if self.closed:
            return
        if self._sender is None:
            self.closed = True
            self._put_object(b"".join(self._buffer))
            return
        self._send_buffer()
        self.closed = True
        self._sender.finish()
        if self._sender.error is not None:
            raise self._sender.error

    def abort(self) -> None:
        """Abort the upload, so that no file is created."""
        if not self.closed:
            self.closed, self._buffer = True, []
            if self._sender is not None:
                self._sender.send(_AbortedError())

    def __del__(self) -> None:
        self.abort()

    def _send_buffer(self) -> None:
        assert self._sender is not None
        if self._buffer:
            self._sender.send(b"".join(self._buffer))
            self._buffer, self._buffered_bytes = [], 0
        if self._sender.error is not None:
            self.closed = True
            raise self._sender.error


class ArrowUploadFile(pa.PythonFile):  # type: ignore[misc]  # pyarrow has no type information
    """An upload as an Arrow file. It is aborted if its ``with`` block raises an error.

    :param upload: the upload.
    """

    def __init__(self, upload: UploadWriter) -> None:
        self._upload = upload

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> None:
        if kind is not None:
            self._upload.abort()
        super().__exit__(kind, value, traceback)
