"""moto's S3 in a process of its own: ``python -m tests.support.moto_server PORT``.

moto looks whether an object is there and puts it in two steps; here one request runs at a time, so that a
put-if-absent has one winner, as in a real store. It checks no signature. It lives in memory.
"""

from __future__ import annotations

import io
import logging
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import run_simple


class OneAtATime:
    """The application, for one request at a time: a body is read before, and an answer is whole when it is sent."""

    def __init__(self, application: Callable[..., Iterable[bytes]]) -> None:
        self._application, self._turn = application, threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        with self._turn:
            return list(self._application({**environ, "wsgi.input": io.BytesIO(body)}, start_response))


class Handler(MotoRequestHandler):
    """A handler that keeps connections open, as stores do."""

    protocol_version = "HTTP/1.1"


def main() -> None:
    """Serve until killed."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    application = OneAtATime(DomainDispatcherApplication(create_backend_app))
    run_simple("127.0.0.1", int(sys.argv[1]), application, threaded=True, request_handler=Handler)


if __name__ == "__main__":
    main()
