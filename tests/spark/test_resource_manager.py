"""ResourceManagers and NodeManagers, played by servers of this test; tests/driver/test_yarn.py has real ones."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from airflow_provider_cdc.model.errors import NotReadyError, TransientError
from airflow_provider_cdc.spark.resource_manager import ResourceManager, tail_driver_log
from tests.support.processes import free_port

#: Status, headers and text.
Answer = tuple[int, dict[str, str], str]
APP = "application_1_0001"


class Hadoop:
    """A server that records requests: method, path, user and body.

    :param respond: gives the answer to a path.
    """

    def __init__(self, respond: Callable[[str], Answer]) -> None:
        self.requests: list[tuple[str, str, str | None, str]] = []
        requests = self.requests

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
                user = parse_qs(parts.query).get("user.name", [None])[0]
                requests.append((self.command, parts.path, user, body))
                status, headers, text = respond(self.path)
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(text.encode())

            do_PUT = do_GET

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}"

    @contextmanager
    def serve(self) -> Iterator[Hadoop]:
        """Answer requests meanwhile."""
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()


@pytest.fixture
def serve() -> Iterator[Callable[[Callable[[str], Answer]], Hadoop]]:
    with ExitStack() as stack:
        yield lambda respond: stack.enter_context(Hadoop(respond).serve())


def active(path: str) -> Answer:
    app = {"id": APP, "state": "RUNNING", "finalStatus": "UNDEFINED"}
    return 200, {}, json.dumps({"apps": {"app": [app]}} if "/apps?" in path else {"state": "KILLED"})


Serve = Callable[[Callable[[str], Answer]], Hadoop]


@pytest.fixture(autouse=True)
def user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HADOOP_USER_NAME", "etl")


def test_a_standby_points_to_the_active_one(serve: Serve) -> None:
    """A kill is repeated there, as a kill."""
    chosen = serve(active)
    standby = serve(lambda path: (307, {"Location": chosen.address + path}, "This is standby RM."))
    manager = ResourceManager(standby.address)
    found = manager.find_job("d")
    assert found is not None and found.id == APP
    manager.kill(APP)
    kill = ("PUT", f"/ws/v1/cluster/apps/{APP}/state", "etl", '{"state": "KILLED"}')
    assert standby.requests[-1] == chosen.requests[-1] == kill and len(chosen.requests) == 2


@pytest.mark.parametrize("target", ["ftp://127.0.0.1/x", "file:///etc/hostname", ""])
def test_a_standby_that_names_no_active_one(serve: Serve, target: str) -> None:
    """Without a Location, it asks a browser to try again."""
    headers = {"Location": target} if target else {"Refresh": "1;url=/ws/v1/cluster/apps"}
    standby = serve(lambda _: (307, headers, "There is no active RM right now."))
    for ask in (lambda m: m.find_job("d"), lambda m: m.kill(APP)):
        with pytest.raises(TransientError, match=r"is on standby, and names no active one \(307\)"):
            ask(ResourceManager(standby.address))


def test_a_standby_that_points_back(serve: Serve) -> None:
    first = serve(lambda path: (307, {"Location": path}, ""))
    with pytest.raises(TransientError, match="on standby"):
        ResourceManager(first.address).kill(APP)
    assert len(first.requests) < 6


def test_an_answer_that_is_a_page(serve: Serve) -> None:
    page = serve(lambda _: (200, {"Refresh": "1"}, "There is no active\nRM right now."))
    with pytest.raises(TransientError, match=r"unknown answer \(There is no active RM right now\.\)\. Check"):
        ResourceManager(page.address).find_job("d")


def test_several_addresses(serve: Serve) -> None:
    """Each is asked in turn, and the one that has answered is asked first from then on."""
    dead, alive = f"http://127.0.0.1:{free_port()}", serve(active)
    manager = ResourceManager(f"{dead},{alive.address}")
    found = manager.find_job("d")
    assert found is not None and found.link == f"{alive.address}/proxy/{APP}/" and manager.address == alive.address
    with pytest.raises(TransientError) as failed:
        ResourceManager(f"{dead},{dead}").find_job("d")
    assert failed.value.message.count("does not answer") == 2


def test_a_kill_that_is_refused_is_told(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    strict = serve(lambda _: (403, {}, ""))
    with caplog.at_level(logging.WARNING), pytest.raises(NotReadyError, match="refuses PUT apps/"):
        ResourceManager(strict.address).kill(APP)
    (line,) = caplog.messages
    assert line.startswith(
        f"YARN has not killed {APP}, which may go on: YARN's ResourceManager at {strict.address} refuses"
    )
    assert line.endswith(f"To kill it by hand: yarn application -kill {APP}")


@pytest.mark.parametrize(
    ("out", "err", "said"),
    [("a\nb\n\n", "noise", ["a", "b"]), ("", "/nowhere/bin/java: No such file\n", ["/nowhere/bin/java: No such file"])],
)
def test_the_end_of_a_log(serve: Serve, out: str, err: str, said: list[str]) -> None:
    """If Java has not started, only its standard error says why."""

    def respond(path: str) -> Answer:
        name = urlsplit(path).path.rpartition("/")[2]
        text = {"stdout": out, "stderr": err}[name]
        return 200, {}, f"LogAggregationType: LOCAL\nLogType:{name}\nLogContents:\n{text}End of LogType:{name}\n"

    node = serve(respond)
    assert tail_driver_log(f"{node.address}/node/containerlogs/container_1_0001_01_000001/etl", 9) == said
    assert {user for _, _, user, _ in node.requests} == {"etl"}
