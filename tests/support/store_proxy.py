"""A way to an object store on which things go wrong: like :mod:`tests.support.proxy`, but of requests, not of bytes.

Which request meets which fault follows from a seed: requests are of few kinds, and each kind has a sequence of faults
of its own, so that the n-th conditional PUT meets the same fault whatever goes on beside it. All requests are recorded.
"""

from __future__ import annotations

import http.client
import random
import re
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal, get_args
from urllib.parse import unquote, urlsplit

from airflow_provider_cdc.sinks.storage.object_files import PART_BYTES
from tests.support.s3 import S3
from tests.support.served_meanwhile import ServedMeanwhile

Fault = Literal[
    "delay",  # the store takes its time
    "cut",  # the connection ends, and the store has heard nothing
    "short",  # the connection ends in the middle of an answer
    "error",  # 500, and the store has done nothing
    "slow_down",  # 503, as a store that has too much to do
    "conflict",  # 409, as S3 answers one of two that put the same object at a time
    "lost",  # the store has done it, and nobody hears of it
    "late",  # the connection ends, and the store does it only then
    "denied",  # the store has done it, and says 500
]
FAULTS: tuple[Fault, ...] = get_args(Fault)
What = Literal["create", "put", "get", "head", "list", "delete", "multipart"]

_ANY: tuple[Fault, ...] = ("delay", "cut", "error", "slow_down")
#: What may befall a request of each kind.
_POSSIBLE: dict[What, tuple[Fault, ...]] = {
    # Twice what leaves the fate of a commit unknown: it is what matters most.
    "create": (*_ANY, "conflict", "lost", "lost", "late", "denied", "denied"),
    "put": (*_ANY, "lost", "denied"),
    "multipart": (*_ANY, "lost", "denied"),
    "delete": (*_ANY, "lost", "denied"),
    "get": (*_ANY, "short"),
    "list": (*_ANY, "short"),
    "head": _ANY,
}
_ANSWERS = {"error": (500, "InternalError"), "denied": (500, "InternalError"), "slow_down": (503, "SlowDown")}
_ANSWERS["conflict"] = (409, "ConditionalRequestConflict")
#: Seconds until what is late is done: those who ask at once whether it is do not find it.
LATE = 1.0
_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length"}


@dataclass(frozen=True)
class Request:
    """A request as the proxy has seen it.

    :param begin: seconds of a clock that only grows; ``end`` likewise.
    :param key: name of the object; of a listing what the names begin with.
    :param sent: bytes of its body; ``received`` those of the answer's.
    :param status: of the answer; 0 if there was none.
    """

    what: What
    key: str
    begin: float
    end: float
    sent: int
    received: int
    status: int
    fault: Fault | None
    method: str = ""


def in_a_row(requests: Iterable[Request]) -> int:
    """How many requests were made one after the other: the longest chain of which each began after the one before."""
    last, length = 0.0, 0
    for request in sorted(requests, key=lambda r: r.end):
        if request.begin >= last:
            last, length = request.end, length + 1
    return length


def counted_by(requests: Iterable[Request]) -> dict[str, int]:
    """What the project should have counted of them. Bytes are those of files.

    Of a large file the project asks for the whole, looks at its size, and then reads what it wants in ranges.
    """
    found: Counter[str] = Counter()
    for request in requests:
        kind = {"create": "put", "multipart": "put"}.get(request.what, str(request.what))
        found[kind] += 1
        if request.method == "PUT":
            found["bytes_sent"] += request.sent
        if kind == "get" and (request.status == 206 or (request.status == 200 and request.received <= PART_BYTES)):
            found["bytes_received"] += request.received
    sizes = {name: found.pop(name, 0) for name in ("bytes_sent", "bytes_received")}
    return {"requests": sum(found.values()), **found, **sizes}


class StoreProxy(ServedMeanwhile):
    """A proxy before a store; a context manager. Without :meth:`disturb` it only records.

    :param place: a bucket; :attr:`place` is the same one by way of the proxy.
    """

    def __init__(self, place: S3) -> None:
        upstream = urlsplit(place.endpoint)
        self._host, self._port, self._bucket = str(upstream.hostname), upstream.port or 80, place.bucket
        self._lock = threading.Lock()
        self._sequences: dict[What, Iterator[Fault | None]] = {}
        self._awaited: list[tuple[Fault, What, re.Pattern[str]]] = []
        self.requests: list[Request] = []
        #: How often each fault was met.
        self.met: Counter[Fault] = Counter()
        super().__init__(_Server(("127.0.0.1", 0), _handler_of(self)))
        self.behind = place.endpoint
        self.place = place.at(f"http://127.0.0.1:{self.port}")

    def disturb(self, seed: object, every: int = 12) -> None:
        """From now on, of the requests of each kind about one of ``every`` meets a fault."""
        with self._lock:
            self._sequences = {what: _sequence(random.Random(f"{seed}/{what}"), what, every) for what in _POSSIBLE}

    def calm(self) -> None:
        """No more faults by chance."""
        with self._lock:
            self._sequences = {}

    def meet(self, fault: Fault, what: What, key: str = "") -> None:
        """Let the next request of this kind meet a fault.

        :param key: a pattern that is found in the name of the object.
        """
        with self._lock:
            self._awaited.append((fault, what, re.compile(key)))

    @property
    def waiting(self) -> int:
        """How many faults of :meth:`meet` no request has met."""
        return len(self._awaited)

    def record(self, work: Callable[[], object]) -> list[Request]:
        """The requests that something makes."""
        with self._lock:
            first = len(self.requests)
        work()
        with self._lock:
            return self.requests[first:]

    # ---- for the handler

    def fault(self, what: What, key: str) -> Fault | None:
        """What befalls a request."""
        with self._lock:
            drawn = next(self._sequences[what]) if what in self._sequences else None
            for awaited in self._awaited:
                if awaited[1] == what and awaited[2].search(key):
                    self._awaited.remove(awaited)
                    drawn = awaited[0]
                    break
            if drawn:
                self.met[drawn] += 1
            return drawn

    def seen(self, request: Request) -> None:
        """Take note of a request that is over."""
        with self._lock:
            self.requests.append(request)

    def name(self, path: str) -> str:
        """Name of the object that a path and query name, or what the names of a listing begin with."""
        parts = urlsplit(path)
        prefix = re.search(r"(?:^|&)prefix=([^&]*)", parts.query)
        return unquote(prefix[1] if prefix else parts.path.removeprefix(f"/{self._bucket}").removeprefix("/"))

    def ask(
        self, method: str, path: str, headers: Iterable[tuple[str, str]], body: bytes
    ) -> tuple[int, str, list[tuple[str, str]], bytes]:
        """What the store answers: status, reason, headers and body."""
        # A connection for each request: of one that is used again it is not known whether the store has closed it.
        connection = http.client.HTTPConnection(self._host, self._port, timeout=120)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in headers:  # with the Host that the client has signed
                if name.lower() not in ("connection", "expect"):
                    connection.putheader(name, value)
            connection.endheaders(body or None)
            answer = connection.getresponse()
            return answer.status, answer.reason, answer.getheaders(), answer.read()
        finally:
            connection.close()


def _sequence(draw: random.Random, what: What, every: int) -> Iterator[Fault | None]:
    """The faults of all requests of a kind, each of the possible ones in turn before one comes again."""
    while True:
        for fault in draw.sample(_POSSIBLE[what], len(_POSSIBLE[what])):
            yield from [None] * draw.randint(0, 2 * every - 2)
            yield fault


def _what(method: str, path: str, conditional: bool) -> What:
    query = urlsplit(path).query
    if method == "PUT":
        if "uploadId=" in query:
            return "multipart"
        return "create" if conditional else "put"
    if method == "GET":
        return "list" if "list-type=" in query or "prefix=" in query else "get"
    if method == "POST":
        return "delete" if query.startswith("delete") else "multipart"
    return "head" if method == "HEAD" else "delete"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    disable_nagle_algorithm = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that is gone is no news."""


def _handler_of(proxy: StoreProxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def setup(self) -> None:
            super().setup()
            self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def do_GET(self) -> None:
            begin = time.monotonic()
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            what, key = _what(self.command, self.path, "If-None-Match" in self.headers), proxy.name(self.path)
            fault = proxy.fault(what, key)
            status, reason, headers, answer = 0, "", list[tuple[str, str]](), b""
            if fault == "delay":
                time.sleep(0.3)
            if fault in (None, "delay", "short", "lost", "denied"):
                status, reason, headers, answer = proxy.ask(self.command, self.path, self.headers.items(), body)
            if fault == "late":
                asked = (self.command, self.path, self.headers.items(), body)
                threading.Timer(LATE, proxy.ask, asked).start()
            if fault in _ANSWERS:
                status, reason = _ANSWERS[fault]
                answer = f"<Error><Code>{reason}</Code><Message>by the proxy</Message></Error>".encode()
                headers = [("Content-Type", "application/xml")]
                answer = b"" if self.command == "HEAD" else answer
            heard = fault not in ("cut", "lost", "late")
            end = time.monotonic()
            proxy.seen(
                Request(what, key, begin, end, len(body), len(answer), status if heard else 0, fault, self.command)
            )  # before it is answered: who waits for the answer finds it recorded
            if heard:
                self._answer(status, reason, headers, answer, fault == "short")
            if not heard or fault == "short":
                self._cut(fault == "cut")

        do_HEAD = do_PUT = do_POST = do_DELETE = do_GET

        def _answer(self, status: int, reason: str, headers: list[tuple[str, str]], answer: bytes, short: bool) -> None:
            self.send_response_only(status, reason)
            lengths = [value for name, value in headers if name.lower() == "content-length"]
            for name, value in headers:
                if name.lower() not in _HOP_BY_HOP:
                    self.send_header(name, value)
            length = lengths[0] if self.command == "HEAD" and lengths else str(len(answer))
            if status not in (204, 304):
                self.send_header("Content-Length", length)
            self.end_headers()
            self.wfile.write(answer[: len(answer) // 2] if short else answer)
            self.wfile.flush()

        def _cut(self, reset: bool) -> None:
            self.close_connection = True
            if reset:
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler
