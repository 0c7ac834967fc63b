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
        self._swallows, self._rate, self._delay = False, 0.0, 0.0
        self._stalls: tuple[random.Random, float] | None = None
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

    def lead_to(self, port: int) -> None:
        """Pass bytes of new connections on to another server."""
        self._to = port

    def silence(self) -> None:
        """Pass nothing on any more for the connections that are open, and close nothing; new ones work."""
        self._silent.set()
        self._silent = threading.Event()

    def swallow(self) -> None:
        """Pass nothing on any more, also for new connections, and close nothing: until :meth:`heal`."""
        self._swallows = True
        self._silent.set()

    def slow_down(self, bytes_per_second: float, delay: float) -> None:
        """Pass everything on, each piece after a delay and so many bytes a second: until :meth:`heal`."""
        self._rate, self._delay = bytes_per_second, delay

    def stall(self, draw: random.Random, most: float) -> None:
        """Let pieces wait now and then, as packets that are lost and sent again do: until :meth:`heal`.

        :param most: seconds that one waits at most.
        """
        self._stalls = draw, most

    def heal(self) -> None:
        """Be a good way again. What was swallowed stays so."""
        self._swallows, self._rate, self._delay, self._stalls = False, 0.0, 0.0, None
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
                if self._swallows:
                    self._open.append(client)
                    continue
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
                self._hold_up(len(data))
                if silent.is_set():
                    break
                target.sendall(data)
        if not silent.is_set():  # one has closed: so does the other
            self._end(source, target, "end")

    def _hold_up(self, size: int) -> None:
        seconds = self._delay + (size / self._rate if self._rate else 0.0)
        if (stalls := self._stalls) is not None and stalls[0].random() < 0.05:
            seconds += stalls[0].uniform(0, stalls[1])
        if seconds:
            time.sleep(seconds)

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
