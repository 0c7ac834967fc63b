"""Iceberg's own REST catalog, the one that its clients are tested with; and a way to it on which things go wrong.

Its jars are kept in the user's cache folder. ``python -m tests.support.iceberg_rest`` fetches them (150 MB).
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import sqlite3
import struct
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Literal

from airflow_provider_cdc.spark.java import ensure_java_home
from tests.support.jvm import SHORT_LIVED
from tests.support.maven import maven_jars
from tests.support.processes import Session, free_port, remove_folder, tail, temporary_folder, wait_for
from tests.support.s3 import REGION, S3
from tests.support.served_meanwhile import ServedMeanwhile

#: 1.12.0 of the server is in no repository.
VERSION = "1.11.0"
_JETTY, _HADOOP = "12.1.12", "3.4.1"
_JARS = (
    f"org.apache.iceberg:iceberg-open-api:{VERSION}:test-fixtures",
    f"org.apache.iceberg:iceberg-core:{VERSION}:tests",
    *(f"org.apache.iceberg:iceberg-{name}:{VERSION}" for name in ("api", "bundled-guava", "common", "core")),
    *(f"org.eclipse.jetty:jetty-{name}:{_JETTY}" for name in ("http", "io", "security", "server", "session", "util")),
    *(f"org.eclipse.jetty.compression:jetty-compression-{name}:{_JETTY}" for name in ("common", "gzip", "server")),
    f"org.eclipse.jetty.ee10:jetty-ee10-servlet:{_JETTY}",
    f"org.apache.hadoop:hadoop-client-api:{_HADOOP}",
    f"org.apache.hadoop:hadoop-client-runtime:{_HADOOP}",
    *("com.fasterxml.jackson.core:jackson-annotations:2.21", "com.fasterxml.jackson.core:jackson-core:2.21.3"),
    *("com.fasterxml.jackson.core:jackson-databind:2.21.3", "com.github.ben-manes.caffeine:caffeine:2.9.3"),
    *("commons-logging:commons-logging:1.2", "jakarta.servlet:jakarta.servlet-api:6.0.0"),
    *("io.airlift:aircompressor:2.0.3", "org.apache.avro:avro:1.12.1", "org.roaringbitmap:RoaringBitmap:1.6.14"),
    *("org.apache.httpcomponents.client5:httpclient5:5.6.1", "org.apache.httpcomponents.core5:httpcore5:5.4"),
    *("org.apache.httpcomponents.core5:httpcore5-h2:5.4", "org.slf4j:slf4j-api:2.0.17"),
    "org.xerial:sqlite-jdbc:3.50.3.0",
)
#: For tables in an object store, in whose folders the catalog writes metadata files.
_S3_JARS = (
    *(f"org.apache.iceberg:iceberg-{name}:{VERSION}" for name in ("aws", "aws-bundle")),
    "dev.failsafe:failsafe:3.3.2",
)


class IcebergRest:
    """A running catalog.

    :param port: where it listens.
    :param database: its SQLite file.
    """

    def __init__(self, port: int, database: Path) -> None:
        self.port, self.uri, self._database = port, f"http://127.0.0.1:{port}", database

    def forget_all(self) -> None:
        """Remove all tables and namespaces."""
        with closing(sqlite3.connect(self._database, isolation_level=None)) as connection:
            for table in ("iceberg_tables", "iceberg_namespace_properties"):
                connection.execute(f"DELETE FROM {table}")


@contextmanager
def running_rest_catalog(store: S3 | None = None) -> Iterator[IcebergRest]:
    """Start a catalog, whose tables are in SQLite; it takes the locations that clients give.

    :param store: the object store that these locations are in, if they are in one.
    """
    jars = [f"{maven_jars(f'iceberg-rest-{VERSION}', _JARS)}/*"]
    if store is not None:
        jars.append(f"{maven_jars(f'iceberg-aws-{VERSION}', _S3_JARS)}/*")
    folder, port = temporary_folder("cdc-iceberg-rest-"), free_port()
    java = Path(ensure_java_home()) / "bin" / "java"
    environment = {
        **os.environ,
        "CATALOG_URI": f"jdbc:sqlite:{folder}/catalog.db",
        "CATALOG_WAREHOUSE": f"file://{folder}/warehouse",
        "CATALOG_REST_PORT": str(port),
        "CATALOG_JDBC_STRICT__MODE": "true",  # tables need a namespace, as in most catalogs
        **(_store_properties(store) if store else {}),
    }
    command: list[str | Path] = [
        java,
        "-Xmx256m",
        *SHORT_LIVED.split(),
        "-cp",
        os.pathsep.join(jars),
        "org.apache.iceberg.rest.RESTCatalogServer",
    ]
    session = Session(command, folder / "log", env=environment, cwd=folder)
    server = IcebergRest(port, folder / "catalog.db")

    def answers() -> bool:
        assert session.alive, f"Iceberg's REST catalog has ended:\n{tail(session.log)}"
        with suppress(OSError):
            urllib.request.urlopen(f"{server.uri}/v1/config", timeout=5).close()
            return True
        return False

    try:
        wait_for("Iceberg's REST catalog answers", answers)
        yield server
    finally:
        session.kill_all()
        remove_folder(folder)


def _store_properties(store: S3) -> dict[str, str]:
    return {
        "CATALOG_IO__IMPL": "org.apache.iceberg.aws.s3.S3FileIO",
        "CATALOG_S3_ENDPOINT": store.endpoint,
        "CATALOG_S3_PATH__STYLE__ACCESS": "true",
        "CATALOG_S3_ACCESS__KEY__ID": store.key,
        "CATALOG_S3_SECRET__ACCESS__KEY": store.secret,
        "CATALOG_CLIENT_REGION": REGION,
    }


RestFault = Literal[
    "refused",  # 500, and the catalog has done nothing
    "denied",  # the catalog has done it, and says 500
    "unavailable",  # 503, and the catalog has done nothing
    "gateway",  # 504 with a page of a gateway, and the catalog does it later
    "lost",  # the catalog has done it, and the connection ends
    "cut",  # the connection ends, and the catalog has heard nothing
    "short",  # the catalog has done it, and the connection ends in the middle of the answer
    "slow",  # the catalog has done it, and the answer takes its time
    "page",  # the catalog has done it, and a page of HTML comes back
    "expired",  # 401
    "forbidden",  # 403
    "busy",  # 429
    "invalid",  # 400
    "older",  # the catalog answers, and says 400 where it means 409, as those before 1.10 do of wrong numbers
]
_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "content-encoding"}
#: Faults after which the catalog does what it was asked for.
_DONE = {"denied", "lost", "short", "slow", "page", "older"}
_STATUSES = {
    "refused": 500,
    "denied": 500,
    "unavailable": 503,
    "gateway": 504,
    "expired": 401,
    "forbidden": 403,
    "busy": 429,
    "invalid": 400,
}


class RestProxy(ServedMeanwhile):
    """A proxy before a catalog, which also asks for tokens if it is told so; a context manager.

    :param upstream: the catalog.
    :ivar slow_seconds: how long an answer takes that is slow.
    """

    def __init__(self, upstream: IcebergRest) -> None:
        self.upstream_port, self.slow_seconds = upstream.port, 3.0
        self._faults: list[tuple[str, str, RestFault]] = []
        self._lock = threading.Lock()
        #: Method and path of each request.
        self.requests: list[tuple[str, str]] = []
        #: Headers of the last request.
        self.headers: dict[str, str] = {}
        #: Client id and secret that are required, and the tokens that are valid.
        self.credential: tuple[str, str] | None = None
        self.tokens: set[str] = set()
        #: Those that clients have opened; for the handler.
        self.connections: list[socket.socket] = []
        super().__init__(_RestServer(("127.0.0.1", 0), _handler_of(self)))
        self.uri = f"http://127.0.0.1:{self.port}"

    def meet(self, fault: RestFault, method: str = "POST", times: int = 1, path: str = "") -> None:
        """Let the next requests with a method, and a path that ends so, meet a fault."""
        with self._lock:
            self._faults += [(method, path, fault)] * times

    def stop(self) -> None:
        """Be away, as a server that is stopped."""
        self.__exit__(None, None, None)
        for connection in self.connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def take_fault(self, method: str, path: str) -> RestFault | None:
        """What befalls a request; for the handler."""
        with self._lock:
            self.requests.append((method, path))
            for awaited in self._faults:
                meets = awaited[0] == method and path.endswith(awaited[1])
                if meets and not path.endswith(("/config", "/tokens")):
                    self._faults.remove(awaited)
                    return awaited[2]
        return None


class _RestServer(ThreadingHTTPServer):
    daemon_threads = True
    disable_nagle_algorithm = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that is gone is no news."""


def _handler_of(proxy: RestProxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            super().setup()
            proxy.connections.append(self.connection)

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            proxy.headers = dict(self.headers.items())
            fault = proxy.take_fault(self.command, self.path)
            if self.path.endswith("/oauth/tokens"):
                self._give_token(body)
            elif proxy.credential and self._token not in proxy.tokens:
                self._answer_error(401, "NotAuthorizedException")
            elif fault is None or fault in _DONE:
                status, headers, answer = self._ask(body)
                self._answer_with_fault(fault, status, headers, answer)
            elif fault == "cut":
                self._cut()
            else:
                if fault == "gateway":
                    threading.Timer(0.5, self._ask, [body]).start()
                self._answer_error(_STATUSES[fault], "ByTheProxy", page=fault == "gateway")

        do_HEAD = do_POST = do_DELETE = do_GET

        @property
        def _token(self) -> str:
            return self.headers.get("Authorization", "").removeprefix("Bearer ")

        def _give_token(self, body: bytes) -> None:
            identity = "client_id={}&client_secret={}".format(*(proxy.credential or ("", "")))
            if identity not in body.decode():
                self._answer(401, [], b'{"error": "invalid_client", "error_description": "no such client"}')
                return
            token = f"token-{len(proxy.requests)}"
            proxy.tokens.add(token)
            answer = {"access_token": token, "token_type": "bearer", "expires_in": 3600}
            self._answer(200, [], json.dumps(answer).encode())

        def _ask(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
            connection = http.client.HTTPConnection("127.0.0.1", proxy.upstream_port, timeout=60)
            try:
                hidden = {"connection", "accept-encoding", "authorization"}
                headers = {n: value for n, value in self.headers.items() if n.lower() not in hidden}
                connection.request(self.command, self.path, body or None, headers)
                answer = connection.getresponse()
                return answer.status, answer.getheaders(), answer.read()
            finally:
                connection.close()

        def _answer_with_fault(
            self, fault: RestFault | None, status: int, headers: list[tuple[str, str]], answer: bytes
        ) -> None:
            if fault == "lost":
                self._cut()
            elif fault == "denied":
                self._answer_error(500, "ByTheProxy")
            elif fault == "page":
                self._answer(200, [], b"<html>Sign in</html>")
            else:
                if fault == "slow":
                    time.sleep(proxy.slow_seconds)
                if fault == "older" and status == 409:
                    status = 400
                self._answer(status, headers, answer, short=fault == "short")

        def _answer_error(self, status: int, kind: str, *, page: bool = False) -> None:
            error = {"error": {"message": "by the proxy", "type": kind, "code": status}}
            self._answer(status, [], b"<html>Gateway</html>" if page else json.dumps(error).encode())

        def _answer(self, status: int, headers: list[tuple[str, str]], answer: bytes, *, short: bool = False) -> None:
            self.send_response_only(status)
            for name, value in headers:
                if name.lower() not in _HOP_BY_HOP:
                    self.send_header(name, value)
            if status != 204:
                self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer[: len(answer) // 2] if short else answer)
                self.wfile.flush()
            if short:
                self.close_connection = True

        def _cut(self) -> None:
            self.close_connection = True
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler


if __name__ == "__main__":
    print(f"Iceberg's REST catalog: {maven_jars(f'iceberg-rest-{VERSION}', _JARS)}")
    maven_jars(f"iceberg-aws-{VERSION}", _S3_JARS)
