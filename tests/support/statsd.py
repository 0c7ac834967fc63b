"""A server of metrics by statsd's protocol over UDP, with tags as InfluxDB writes them."""

from __future__ import annotations

import socket
import threading
from types import TracebackType
from typing import Self


class Statsd:
    """Keeps the newest value of each gauge, by its name and tags. A context manager."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self._found: dict[tuple[str, frozenset[str]], float] = {}

    @property
    def environment(self) -> dict[str, str]:
        """Variables that make a process of Airflow send its stats here."""
        port = self._socket.getsockname()[1]
        settings = {"otel_on": False, "statsd_on": True, "statsd_host": "127.0.0.1", "statsd_port": port}
        settings["statsd_influxdb_enabled"] = True
        return {f"AIRFLOW__METRICS__{name.upper()}": str(value) for name, value in settings.items()}

    def __enter__(self) -> Self:
        threading.Thread(target=self._listen, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._socket.sendto(b"", self._socket.getsockname())  # the thread would wait for ever

    def _listen(self) -> None:
        with self._socket:
            while packet := self._socket.recv(65536):
                for line in packet.decode().splitlines():
                    names, _, value = line.rpartition(":")
                    number, _, kind = value.partition("|")
                    if kind == "g":
                        name, *tags = names.split(",")
                        self._found[name, frozenset(tags)] = float(number)

    def of(self, **tags: str) -> dict[str, float]:
        """The newest values of gauges with exactly these tags, by their names."""
        wanted = frozenset(f"{name}={value}" for name, value in tags.items())
        return {name: value for (name, found), value in list(self._found.items()) if found == wanted}
