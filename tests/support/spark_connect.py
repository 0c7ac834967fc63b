"""A real Spark Connect server, from the jars of the pyspark package."""

from __future__ import annotations

import os
import socket
import sys
import time
from importlib.util import find_spec
from pathlib import Path

from airflow_provider_cdc.spark.java import ensure_java_home
from tests import ROOT
from tests.support.processes import Session, StartedProcesses, free_port, remove_folder, tail, temporary_folder

_SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"


class ConnectServerProcess(StartedProcesses):
    """A server on loopback that runs its tasks in itself; a context manager.

    :param cores: how many tasks run at a time.
    :param token: what clients must know; none if it is empty.
    :param conf: further settings.
    """

    def __init__(self, cores: int = 2, token: str = "", **conf: str) -> None:
        self.port, self.token = free_port(), token
        self._cores, self._conf = cores, conf
        self._session: Session | None = None
        self.folder = Path()

    def _begin(self) -> None:
        self.folder = temporary_folder("cdc-connect-")
        self.serve()

    def serve(self) -> None:
        """Start the server, for the first time or after it was killed, at the same port."""
        package = find_spec("pyspark")
        assert package is not None and package.origin is not None
        home = Path(package.origin).parent
        settings = {
            "spark.master": f"local[{self._cores}]",
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(self.port),
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": str(self.folder),
            **{name.replace("_", "."): value for name, value in self._conf.items()},
        }
        options = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
        env = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW_")}
        env |= {
            "JAVA_HOME": str(ensure_java_home()),
            "SPARK_HOME": str(home),
            "PYTHONPATH": str(ROOT),
            "PYTHONSAFEPATH": "1",
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_DIRS": str(self.folder / "local"),
        }
        if self.token:
            env["SPARK_CONNECT_AUTHENTICATE_TOKEN"] = self.token
        command = [str(home / "bin" / "spark-submit"), "--class", _SERVER, *options, "spark-internal"]
        self._session = Session(command, self.folder / "server.log", env=env, cwd=self.folder)
        deadline = time.monotonic() + 180
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.3)
        raise AssertionError(f"the server did not start: {tail(self.folder / 'server.log')}")

    def kill(self) -> None:
        """SIGKILL to the server and its workers."""
        assert self._session is not None
        self._session.kill_all()
        self._session = None

    def close(self) -> None:
        """End it and remove its folder."""
        if self._session is not None:
            self._session.end()
            self._session = None
        if self.folder != Path():
            remove_folder(self.folder)
            self.folder = Path()

    @property
    def uri(self) -> str:
        """URI of the connection, as Airflow writes it."""
        login = f":{self.token}@" if self.token else ""
        return f"spark-connect://{login}127.0.0.1:{self.port}"
