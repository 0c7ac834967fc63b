"""A real YARN for the tests: a ResourceManager and a NodeManager in one process, which start containers as processes.

Its jars are kept in the user's cache folder. ``python -m tests.support.yarn`` fetches them (65 MB).
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Any

from airflow_provider_cdc.spark.java import ensure_java_home
from airflow_provider_cdc.spark.resource_manager import ResourceManager
from tests import ROOT
from tests.support.jvm import SHORT_LIVED
from tests.support.maven import maven_jars
from tests.support.packages import cache_folder
from tests.support.processes import Session, StartedProcesses, remove_folder, tail, temporary_folder, wait_for

_BOUNCY = "1.82"
_QUEUES = """<configuration>
<property><name>yarn.scheduler.capacity.root.queues</name><value>default,full,stopped</value></property>
<property><name>yarn.scheduler.capacity.root.default.capacity</name><value>90</value></property>
<property><name>yarn.scheduler.capacity.root.full.capacity</name><value>5</value></property>
<property><name>yarn.scheduler.capacity.root.full.maximum-capacity</name><value>5</value></property>
<property><name>yarn.scheduler.capacity.root.stopped.capacity</name><value>5</value></property>
<property><name>yarn.scheduler.capacity.root.stopped.state</name><value>STOPPED</value></property>
<property><name>yarn.scheduler.capacity.maximum-am-resource-percent</name><value>1.0</value></property>
</configuration>
"""


def yarn_jars() -> str:
    """Return the class path of the cluster, which is fetched the first time."""
    spark_jars = Path(str(files("pyspark"))) / "jars"
    (client,) = spark_jars.glob("hadoop-client-api-*.jar")
    version = client.stem.removeprefix("hadoop-client-api-")
    folder = maven_jars(
        f"yarn-{version}",
        (
            f"org.apache.hadoop:hadoop-client-minicluster:{version}",
            "org.junit.jupiter:junit-jupiter-api:5.12.2",
            *(f"org.bouncycastle:bc{part}-jdk18on:{_BOUNCY}" for part in ("prov", "pkix", "util")),
        ),
    )
    names = ("hadoop-client-api-*", "hadoop-client-runtime-*", "slf4j-api-*", "log4j-*", "jcl-over-slf4j-*")
    spark = [path for name in names for path in sorted(spark_jars.glob(f"{name}.jar"))]
    return os.pathsep.join(map(str, [*sorted(folder.glob("*.jar")), *spark]))


def yarn_class_path(conf: Path) -> str:
    """Return the class path, with a folder of configuration first."""
    return f"{conf}{os.pathsep}{yarn_jars()}"


class Yarn(StartedProcesses):
    """A cluster with the queues ``default``, ``full``, which has no room for a driver, and ``stopped``.

    :param hdfs: whether its default file system is an HDFS of its own, with one DataNode.
    """

    def __init__(self, *, hdfs: bool = False) -> None:
        self._hdfs = hdfs
        self._session: Session | None = None
        self.folder = Path()
        self.address = ""

    def _begin(self) -> None:
        self.folder = temporary_folder("cdc-yarn-")
        for name in ("conf", "work"):
            (self.folder / name).mkdir()
        (self.folder / "conf" / "capacity-scheduler.xml").write_text(_QUEUES)
        main = ROOT / "tests" / "support" / "yarn_main.py"
        command: list[str | Path] = [sys.executable, "-P", main, yarn_class_path(self.conf), self.conf, self.work]
        command += ["hdfs"] if self._hdfs else []
        env = {**os.environ, "JAVA_HOME": ensure_java_home(), "HADOOP_USER_NAME": "cdc"}
        self._session = Session(command, self.folder / "log", env=env, cwd=self.work)
        session = self._session

        def ready() -> bool:
            assert session.alive, f"YARN has ended:\n{tail(session.log, 60)}"
            return "ready " in session.log.read_text(errors="replace")

        wait_for("YARN", ready, 300)
        match = re.search(r"^ready (\S+)$", session.log.read_text(errors="replace"), re.M)
        assert match is not None
        self.address = f"http://{match[1]}"
        self.manager = ResourceManager(self.address)

    def close(self) -> None:
        """End the cluster, and all containers."""
        if self._session is not None:
            for app in self.applications():
                if app["state"] not in ("FINISHED", "FAILED", "KILLED"):
                    self.manager.kill(app["id"])
            wait_for("containers end", lambda: not self.container_processes(), 60)
            self._session.kill_all()
            self._session = None
        if self.folder != Path():
            remove_folder(self.folder)
            self.folder = Path()

    @property
    def conf(self) -> Path:
        """Folder for ``HADOOP_CONF_DIR``."""
        return self.folder / "conf"

    @property
    def work(self) -> Path:
        """Folder with everything that the cluster writes."""
        return self.folder / "work"

    @property
    def settings(self) -> dict[str, str]:
        """Spark settings for small drivers on loopback, which find the machine code of the tests."""
        cache = str(cache_folder().parent)
        environment = {"SPARK_LOCAL_IP": "127.0.0.1", "XDG_CACHE_HOME": cache, "PYTHONPATH": str(ROOT)}
        found = {
            f"spark.{kind}.{name}": value
            for kind in ("yarn.appMasterEnv", "executorEnv")
            for name, value in environment.items()
        }
        return found | {
            "spark.driver.memory": "512m",
            "spark.executor.memory": "512m",
            "spark.executor.instances": "1",
            "spark.executor.cores": "2",
            "spark.driver.defaultJavaOptions": SHORT_LIVED,
            "spark.executor.defaultJavaOptions": SHORT_LIVED,
            **({} if self._hdfs else {"spark.yarn.stagingDir": f"file://{self.work}/staging"}),
        }

    def put(self, file: Path, name: str) -> str:
        """Copy a file into the default file system, where everyone may read it, and return its address."""
        program = ROOT / "tests" / "support" / "hdfs_put.py"
        command: list[str | Path] = [sys.executable, "-P", program, yarn_class_path(self.conf), file, name]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return done.stdout.split()[-1]

    def connection(self, **extra: str) -> str:
        """Return a Spark connection with cluster mode, as JSON."""
        values = {"deploy-mode": "cluster", "yarn_resourcemanager_webapp_address": self.address, **extra}
        return json.dumps({"conn_type": "spark", "host": "yarn", "extra": values})

    def applications(self) -> list[dict[str, Any]]:
        """Return all applications, the oldest first."""
        with urllib.request.urlopen(f"{self.address}/ws/v1/cluster/apps", timeout=10) as response:
            found = (json.loads(response.read()).get("apps") or {}).get("app") or []
        return sorted(found, key=lambda app: str(app["id"]))

    def container_processes(self, words: str = "") -> list[int]:
        """Return the processes of containers, whose command lines contain some words."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    environment = (entry / "environ").read_bytes()
                except OSError:
                    continue
                if str(self.work).encode() in environment and b"CONTAINER_ID=" in environment and words in command:
                    found.append(int(entry.name))
        return found

    def kill_driver(self, words: str = "") -> None:
        """SIGKILL to what is in the containers of drivers: everything, or that whose command lines contain words."""
        found = {*self.container_processes("ApplicationMaster"), *self.container_processes("airflow_cdc_driver")}
        for pid in found & {*self.container_processes(words)}:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    yarn_jars()
