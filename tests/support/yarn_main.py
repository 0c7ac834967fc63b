"""A ResourceManager and a NodeManager in this process, until it is killed.

``python -P yarn_main.py <class path> <folder for clients' configuration> <folder to work in> [hdfs]``
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

#: The cluster's own settings; everything listens on loopback.
SETTINGS = {
    "fs.defaultFS": "file:///",
    "yarn.resourcemanager.hostname": "127.0.0.1",
    "yarn.nodemanager.hostname": "127.0.0.1",
    "yarn.resourcemanager.bind-host": "127.0.0.1",
    "yarn.nodemanager.bind-host": "127.0.0.1",
    "yarn.nodemanager.vmem-check-enabled": "false",
    "yarn.nodemanager.pmem-check-enabled": "false",
    "yarn.minicluster.yarn.nodemanager.resource.memory-mb": "6144",
    "yarn.nodemanager.resource.memory-mb": "6144",
    "yarn.nodemanager.resource.cpu-vcores": "8",
    "yarn.scheduler.minimum-allocation-mb": "256",
    "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "99.5",
    "yarn.nodemanager.delete.debug-delay-sec": "3600",  # so that tests can search what containers have left
    "yarn.log-aggregation-enable": "false",
}


def main() -> None:
    """Start them, and say where the ResourceManager's web application is."""
    import jpype

    class_path, conf_folder, work_folder, *more = sys.argv[1:]
    jpype.startJVM("-Xmx400m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", classpath=class_path.split(":"))
    java: Any = jpype.JClass
    conf = java("org.apache.hadoop.yarn.conf.YarnConfiguration")()
    for name, value in SETTINGS.items():
        conf.set(name, value)
    conf.set("hadoop.tmp.dir", work_folder)
    if more == ["hdfs"]:
        own = java("org.apache.hadoop.conf.Configuration")(conf)  # it sets what clients must not have
        own.set("hdfs.minidfs.basedir", f"{work_folder}/hdfs")
        own.set("dfs.permissions.enabled", "false")  # the clients are not the user that it belongs to
        files = java("org.apache.hadoop.hdfs.MiniDFSCluster$Builder")(own).numDataNodes(1).build()
        files.waitActive()
        conf.set("fs.defaultFS", str(files.getURI().toString()))
    cluster = java("org.apache.hadoop.yarn.server.MiniYARNCluster")("cdc", 1, 1, 1)
    cluster.init(conf)
    cluster.start()
    running = cluster.getResourceManager().getConfig()
    writer = java("java.io.StringWriter")()
    running.writeXml(writer)
    Path(conf_folder, "yarn-site.xml").write_text(str(writer.toString()))
    Path(conf_folder, "core-site.xml").write_text(
        "<configuration><property><name>fs.defaultFS</name>"
        f"<value>{running.get('fs.defaultFS')}</value></property></configuration>"
    )
    print("ready", running.get("yarn.resourcemanager.webapp.address"), flush=True)
    # What guards the processes of a test that was killed sends this. Containers have sessions of their own.
    signal.signal(signal.SIGINT, lambda *_: kill_containers(work_folder))
    threading.Event().wait()


def kill_containers(work_folder: str) -> None:
    """Kill all containers, and end."""
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            environment = (entry / "environ").read_bytes() if entry.name.isdigit() else b""
            if work_folder.encode() in environment and b"CONTAINER_ID=" in environment:
                os.kill(int(entry.name), signal.SIGKILL)
    os._exit(0)


if __name__ == "__main__":
    try:
        main()
    except BaseException:
        import traceback

        traceback.print_exc()
        os._exit(1)  # threads of Java would go on
