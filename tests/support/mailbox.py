"""A mail server that keeps what it is sent."""

from __future__ import annotations

import email
import socketserver
import threading
from email.message import Message
from types import TracebackType
from typing import Self


class Mailbox:
    """Takes every mail, without encryption. A context manager."""

    def __init__(self) -> None:
        mails = self.mails = list[Message]()

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                self.say("220 ready")
                while line := self.rfile.readline():
                    word = line[:4].strip().upper()
                    if word == b"DATA":
                        self.say("354 go on")
                        body = b"".join(iter(self.rfile.readline, b".\r\n"))
                        mails.append(email.message_from_bytes(body))
                    self.say("221 bye" if word == b"QUIT" else "250 ok")
                    if word == b"QUIT":
                        return

            def say(self, text: str) -> None:
                self.wfile.write(f"{text}\r\n".encode())

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]

    @property
    def uri(self) -> str:
        """Airflow's connection to it."""
        return f"smtp://127.0.0.1:{self.port}/?disable_ssl=true&disable_tls=true"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
