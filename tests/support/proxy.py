"""A way between a client and a server on which things go wrong."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
import time


class Proxy:
    """Passes bytes on to a server on this host.

    :param port: of the server.
    """

    def __init__(self, port: int) -> None:
        self._to, self._listener = port, socket.create_server(("127.0.0.1", 0))
        self.port, self.accepted, self.cuts = self._listener.getsockname()[1], 0, 0
        self._open: list[socket.socket] = []
        self._silent, self._changing = threading.Event(), threading.Lock()
        self._wanted, self._instead, self._times = b"", b"", 0
        self._draw: random.Random | None = None
        self._most = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        for one in self._open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)  # a thread that reads from it would keep it open
            one.close()

    def down(self) -> None:
        """Be away, as a server that is stopped: end what is open, and let nobody in until :meth:`up`."""
        # Not close() alone: the thread that accepts would still let one in.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for one in self._open:
            self._end(one, one, "end")
        self._open = []

    def up(self) -> None:
        """Be back, at the same port."""
        self._listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, daemon=True).start()

    def silence(self) -> None:
        """Pass nothing on any more for the connections that are open, and close nothing; new ones work."""
        self._silent.set()
        self._silent = threading.Event()

    def replace(self, wanted: bytes, instead: bytes, times: int) -> None:
        """Change what the server says: so often, where it stands in what comes at once."""
        self._wanted, self._instead, self._times = wanted, instead, times

    def disturb(self, draw: random.Random | None, most: int = 0) -> None:
        """From now on a new connection lasts for a random number of bytes, then it is cut, or falls silent.

        :param draw: where the dice come from; ``None`` for connections that last.
        :param most: bytes that it lasts at most.
        """
        self._draw, self._most = draw, most

    def _accept(self) -> None:
        listener = self._listener
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                self.accepted += 1
                server = socket.create_connection(("127.0.0.1", self._to))
                self._open += [client, server]
                for source, target in ((client, server), (server, client)):
                    left, how = -1, "last"
                    if self._draw is not None and source is server:
                        # Small numbers as often as large ones: the handshake and the first answers count, too.
                        left = int(self._most ** self._draw.random())
                        how = self._draw.choice(("end", "reset", "end", "reset", "silent", "last"))
                    passing = self._pass_on, (source, target, self._silent, left, how)
                    threading.Thread(target=passing[0], args=passing[1], daemon=True).start()

    def _pass_on(
        self, source: socket.socket, target: socket.socket, silent: threading.Event, left: int, how: str
    ) -> None:
        with contextlib.suppress(OSError):
            while (data := source.recv(1 << 16)) and not silent.is_set():
                with self._changing:
                    if self._times and self._wanted in data:
                        self._times -= 1
                        data = data.replace(self._wanted, self._instead)
                if how != "last" and len(data) >= left:
                    target.sendall(data[:left])
                    self.cuts += 1
                    self._end(source, target, how)
                    return
                left -= len(data)
                if self._draw is not None and self._draw.random() < 0.02:
                    time.sleep(0.1)
                target.sendall(data)
        if not silent.is_set():  # one has closed: so does the other
            self._end(source, target, "end")

    @staticmethod
    def _end(source: socket.socket, target: socket.socket, how: str) -> None:
        if how == "silent":
            return
        for one in (source, target):
            with contextlib.suppress(OSError):
                if how == "reset":
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    one.close()
                else:
                    one.shutdown(socket.SHUT_RDWR)
