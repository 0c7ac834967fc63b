"""A proxy that has TLS for a server that has none, as people put one in front of it."""

from __future__ import annotations

import socket
import ssl
import threading
from contextlib import suppress
from typing import Self

from tests.support.rogue import Certificate


class TlsProxy:
    """Passes what comes by TLS on to a port of this host, in the clear; a context manager.

    :param port: of the server.
    :param protocols: what is agreed on by ALPN.
    """

    def __init__(self, certificate: Certificate, port: int, *protocols: str) -> None:
        self._context, self._target = certificate.context(), port
        if protocols:
            self._context.set_alpn_protocols(list(protocols))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.connections = 0

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError), self._context.wrap_socket(client, server_side=True) as secure:
            self.connections += 1
            with socket.create_connection(("127.0.0.1", self._target)) as server:
                back = threading.Thread(target=_copy, args=(server, secure), daemon=True)
                back.start()
                _copy(secure, server)
                back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError, ssl.SSLError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)
