"""The Spark Connect server that a connection names."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from airflow_provider_cdc.model.errors import NotReadyError
from airflow_provider_cdc.model.value_checks import invalid_value

#: Type of the connection, as Airflow's Spark provider calls it.
CONNECT_TYPE = "spark_connect"
_DEFAULT_PORT = 15002
_HOST = re.compile(r"[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\]")
_TLS_REMEDY = (
    "Set the extra use_ssl to true. The server itself has no TLS: put a proxy in front of it that does "
    "(docs/deployment.md)"
)

#: Why a stream cannot run on such a server, and what to do.
STREAM_REFUSED = (
    "the stream cannot run on a Spark Connect server: its batches are applied in the process that holds the key index "
    "and the fence, and a server would move that into a worker of its own",
    "Set spark.master as well, such as local[2]: the stream then runs there, and all other jobs on the server",
)


@dataclass(frozen=True)
class ConnectServer:
    """A Spark Connect server.

    :param host: name or address.
    :param port: its port.
    :param user: the user that the server sees; ``None`` for that of this process.
    :param token: what the server asks for, or a proxy in front of it; ``None`` for nothing.
    :param use_ssl: whether it is reached by TLS.
    """

    host: str
    port: int = _DEFAULT_PORT
    user: str | None = None
    token: str | None = field(default=None, repr=False)
    use_ssl: bool = False

    @property
    def address(self) -> str:
        """Address for messages, without the token."""
        return f"sc://{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """Address for the client, with the token.

        The client sends a token without TLS to a host of this name only, whatever its address.
        """
        host = "localhost" if self.is_loopback and self.token and not self.use_ssl else self.host
        values = {"user_id": self.user, "token": self.token, "use_ssl": "true" if self.use_ssl else None}
        parameters = [f"{name}={quote(value, safe='')}" for name, value in values.items() if value]
        return f"sc://{host}:{self.port}/{''.join(f';{one}' for one in parameters)}"

    @property
    def is_loopback(self) -> bool:
        """Whether it is reached without leaving the host."""
        try:
            return ipaddress.ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return self.host == "localhost"


def parse_connect_server(
    conn_id: str, host: str | None, port: int | None, login: str | None, password: str | None, extra: Mapping[str, Any]
) -> ConnectServer:
    """Return the server that a connection names, read as the hook of Airflow's Spark provider does.

    :param login: the user's name there.
    :param password: the token.
    :param extra: ``use_ssl``.
    :raises NotReadyError: if a value is not valid, or tasks with passwords would travel in clear text.
    """
    what = f"connection {conn_id}"
    name = (host or "").removeprefix("sc://")
    if not _HOST.fullmatch(name):
        raise NotReadyError(f"{what} names no host of a Spark Connect server", "Write host and port, without a path")
    if unknown := sorted(extra.keys() - {"use_ssl"}):
        raise NotReadyError(f"{what}: extra {unknown[0]!r} is not known", "Use only use_ssl")
    use_ssl = {True: True, False: False, "true": True, "false": False, "": False, None: False}.get(
        value.lower() if isinstance(value := extra.get("use_ssl"), str) else value
    )
    if use_ssl is None:
        raise invalid_value(f"{what}: extra 'use_ssl'", value, "true or false")
    server = ConnectServer(name, port or _DEFAULT_PORT, login or None, password or None, use_ssl)
    if not use_ssl and not server.is_loopback:
        raise NotReadyError(
            f"{what}: tasks, which contain passwords, would travel to {server.address} in clear text", _TLS_REMEDY
        )
    return server
