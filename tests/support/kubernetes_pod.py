"""A pod template whose container runs this environment, from folders of this host: there are no images here."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from airflow_provider_cdc.spark.java import ensure_java_home
from tests import ROOT
from tests.support.kubernetes_parts import HOST_IMAGE
from tests.support.packages import cache_folder

_SYSTEM = ("/usr", "/lib", "/lib64", "/bin")
#: Of ``/etc``: what Java and Python read. Java's own configuration is there, too.
_ETC = ("alternatives", "passwd", "group", "nsswitch.conf", "ld.so.cache", "ssl", "localtime", "java-*")


def host_pod(*writable: Path, memory: str = "3Gi", cpu: str = "100m") -> dict[str, Any]:
    """Return a pod as a user writes it into a template; its container, ``base``, has no command.

    :param writable: folders of this host that the container may write to; ``/tmp`` is a volume of its own.
    :param memory: its request and limit.
    """
    java = ensure_java_home()
    python = Path(sys.executable).resolve().parent.parent
    needed = {ROOT, Path(sys.prefix), Path(sys.base_prefix), python, Path(java).resolve(), Path(java)}
    covered = {Path(path) for path in _SYSTEM}
    folders = {path for path in needed if not any(other in path.parents for other in (needed | covered) - {path})}
    etc = {path for name in _ETC for path in Path("/etc").glob(name)}
    read_only = {path for path in (covered | folders | etc) if path.exists()}
    volumes: list[dict[str, Any]] = [{"name": "tmp", "emptyDir": {}}]
    mounts: list[dict[str, Any]] = [{"name": "tmp", "mountPath": "/tmp"}]
    for number, path in enumerate(sorted({*read_only, *writable, cache_folder()})):
        volumes.append({"name": f"host-{number}", "hostPath": {"path": str(path)}})
        mounts.append({"name": f"host-{number}", "mountPath": str(path), "readOnly": path in read_only})
    environment = {
        "HOME": "/tmp",
        "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
        "JAVA_HOME": java,
        "PYTHONPATH": str(ROOT),  # of a copy of this folder (tests/mutate.py), too
        "SPARK_LOCAL_IP": "127.0.0.1",
        "XDG_CACHE_HOME": str(cache_folder().parent),
    }
    if options := os.environ.get("SPARK_SUBMIT_OPTS"):
        environment["SPARK_SUBMIT_OPTS"] = options
    container = {
        "name": "base",
        "image": HOST_IMAGE,
        "env": [{"name": name, "value": value} for name, value in environment.items()],
        "resources": {"requests": {"memory": memory, "cpu": cpu}, "limits": {"memory": memory}},
        "volumeMounts": mounts,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "spec": {
            "hostNetwork": True,
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 30,
            "containers": [container],
            "volumes": volumes,
        },
    }
