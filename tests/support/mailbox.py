"""A mail server that keeps what it is sent."""

from __future__ import annotations

import email
import socketserver
from email.message import Message

from tests.support.served_meanwhile import ServedMeanwhile


class Mailbox(ServedMeanwhile):
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

        server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        super().__init__(server)

    @property
    def uri(self) -> str:
        """Airflow's connection to it."""
        return f"smtp://127.0.0.1:{self.port}/?disable_ssl=true&disable_tls=true"
