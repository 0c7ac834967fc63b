"""A server of the standard library that answers in threads of the test's process."""

from __future__ import annotations

import threading
from socketserver import TCPServer
from types import TracebackType
from typing import Self


class ServedMeanwhile:
    """Answers as long as a ``with`` statement lasts."""

    def __init__(self, server: TCPServer) -> None:
        self._server, self.port = server, int(server.server_address[1])

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
