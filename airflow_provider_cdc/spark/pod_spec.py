"""The pod of a driver, as the API server of Kubernetes wants it: the user's template, and what the driver needs."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Mapping
from typing import Any

import yaml

from airflow_provider_cdc.config.spark_conf import NAMESPACE
from airflow_provider_cdc.model.errors import NotReadyError
from airflow_provider_cdc.model.value_checks import invalid_value
from airflow_provider_cdc.spark.kubernetes_pods import PIPELINE_LABEL
from airflow_provider_cdc.spark.pod_status import CONTAINER_ANNOTATION, log_command, pod_name
from airflow_provider_cdc.spark.session import DRIVER_POD_VARIABLE

_TEMPLATE, _IMAGE = "spark.kubernetes.driver.podTemplateFile", "spark.kubernetes.container.image"
_CONTAINER = "spark.kubernetes.driver.podTemplateContainerName"
#: Folder in memory, and the pipe in it through which the driver gets its request.
_FOLDER = "/run/airflow-cdc"
REQUEST_PIPE = f"{_FOLDER}/request"
#: Seconds for a stream to end at a transaction boundary.
_GRACE_SECONDS = 120
_DEFAULT_CONTAINER = "driver"
#: Autoscalers must not move a driver: it would begin again.
_ANNOTATIONS = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false", "karpenter.sh/do-not-disrupt": "true"}
_SIZE = re.compile(r"([1-9][0-9]*)([kmgt]?)b?", re.IGNORECASE)
#: The program of the other end of the pipe. A line that was cut off is not passed on.
_HAND_OVER = f"""
import os, signal, sys, time
signal.alarm(25)
line = sys.stdin.readline()
while not os.path.exists("{REQUEST_PIPE}"):
    time.sleep(0.1)
if not line.endswith("\\n"):
    sys.exit(1)
with open("{REQUEST_PIPE}", "w") as pipe:
    pipe.write(line)
"""


def namespace_of(conf: Mapping[str, str]) -> str:
    """Return the namespace of the pods.

    :param conf: Spark settings.
    """
    return conf.get(NAMESPACE, "default")


def hand_over_command(conf: Mapping[str, str]) -> list[str]:
    """Return the command in a driver's pod that passes a line on to the driver."""
    return [_python(conf), "-I", "-c", _HAND_OVER]


def _python(conf: Mapping[str, str]) -> str:
    return conf.get("spark.pyspark.python", "python3")


def read_log_command(environment: Mapping[str, str]) -> str:
    """Return the command that shows the log of the pod in which this process runs.

    :raises NotReadyError: if it is not the pod of a driver.
    """
    if DRIVER_POD_VARIABLE not in environment:
        raise NotReadyError("this is not the pod of a driver", "Start drivers by their operators only")
    return log_command(*environment[DRIVER_POD_VARIABLE].split("/"))


def make_pod(pipeline: str, driver: str, what: str, conf: Mapping[str, str]) -> dict[str, Any]:
    """Return the pod of a driver. Nothing in it is secret.

    :param pipeline: name of the pipeline.
    :param driver: id of the driver.
    :param what: its work, in human-readable form.
    :param conf: Spark settings.
    :raises NotReadyError: if the template cannot be used, or there is no image.
    """
    pod = _read_template(conf[_TEMPLATE]) if _TEMPLATE in conf else {}
    metadata, spec = pod.setdefault("metadata", {}), pod.setdefault("spec", {})
    containers = spec.setdefault("containers", [{"name": conf.get(_CONTAINER, _DEFAULT_CONTAINER)}])
    container = _choose_container(containers, conf.get(_CONTAINER))
    namespace, name = namespace_of(conf), pod_name(driver)
    if metadata.get("namespace", namespace) != namespace:
        raise NotReadyError(
            f"the pod template is for namespace {metadata['namespace']}, and the pods are created in {namespace}",
            "Set the extra namespace of the Spark connection, and leave it out in the template",
        )
    metadata |= {"name": name, "namespace": namespace}
    metadata.pop("generateName", None)
    metadata["labels"] = {**(metadata.get("labels") or {}), PIPELINE_LABEL: pipeline_label(pipeline)}
    own = {CONTAINER_ANNOTATION: container["name"], "airflow-cdc/work": what, PIPELINE_LABEL: pipeline}
    metadata["annotations"] = {**_ANNOTATIONS, **(metadata.get("annotations") or {}), **own}
    spec["restartPolicy"] = "Never"  # the task decides whether a driver is started again
    spec.setdefault("terminationGracePeriodSeconds", _GRACE_SECONDS)
    spec.setdefault("automountServiceAccountToken", False)  # a driver does not need it
    spec["volumes"] = [
        *(spec.get("volumes") or []),
        {"name": "airflow-cdc-request", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
    ]
    _complete(container, conf, f"{namespace}/{name}")
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def pipeline_label(pipeline: str) -> str:
    """Return the name of a pipeline as the value of a label, which must end with a letter or a digit."""
    return pipeline.rstrip("_.-")


def _complete(container: dict[str, Any], conf: Mapping[str, str], pod: str) -> None:
    if image := conf.get(_IMAGE):
        container["image"] = image
    if not container.get("image"):
        raise NotReadyError(
            "the pods of drivers have no image",
            f"Set {_IMAGE} in spark.conf, or the image in the pod template; it must have this package, Java and Python",
        )
    container["command"] = [_python(conf), "-P", "-m", "airflow_provider_cdc.driver.pod_main"]
    container.pop("args", None)
    container["env"] = [
        *(container.get("env") or []),
        {"name": DRIVER_POD_VARIABLE, "value": f"{pod}/{container['name']}"},
    ]
    mounts = container.get("volumeMounts") or []
    container["volumeMounts"] = [*mounts, {"name": "airflow-cdc-request", "mountPath": _FOLDER}]
    if not container.get("resources"):
        container["resources"] = {"requests": {"cpu": conf.get("spark.driver.cores", "2"), "memory": _memory(conf)}}


def _memory(conf: Mapping[str, str]) -> str:
    """Return the memory that a pod requests: the heap, and as much again unless the settings say otherwise."""
    heap = _mebibytes("spark.driver.memory", conf.get("spark.driver.memory", "1g"))
    key = "spark.driver.memoryOverhead"
    return f"{heap + (_mebibytes(key, conf[key]) if key in conf else heap)}Mi"


def _mebibytes(key: str, text: str) -> int:
    match = _SIZE.fullmatch(text)
    if match is None:
        raise invalid_value(f"spark.conf: {key}", text, "a size such as 2g")
    factor = {"k": 1 / 1024, "m": 1, "g": 1024, "t": 1024**2, "": 1}[match[2].lower()]
    return max(1, int(int(match[1]) * factor))


def _choose_container(containers: list[dict[str, Any]], wanted: str | None) -> dict[str, Any]:
    if not isinstance(containers, list) or not containers or not all(isinstance(one, dict) for one in containers):
        raise NotReadyError("the pod template has no list of containers", "Correct it")
    if wanted is None:
        containers[0].setdefault("name", _DEFAULT_CONTAINER)
        return containers[0]
    found = next((one for one in containers if one.get("name") == wanted), None)
    if found is None:
        raise NotReadyError(f"the pod template has no container {wanted}", f"Correct {_CONTAINER} in spark.conf")
    return found


def _read_template(path: str) -> dict[str, Any]:
    if not os.path.isabs(path):
        raise NotReadyError(f"spark.conf: {_TEMPLATE} is not an absolute path: {path}", "Give the absolute path")
    try:
        with open(path, encoding="utf-8") as file:
            value = yaml.safe_load(file)
    except OSError as error:
        raise NotReadyError(
            f"the pod template {path} cannot be read: {error.strerror}",
            "Put it there on all workers of Airflow, for example in the image or in a ConfigMap",
        ) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1})" if mark is not None else ""
        raise NotReadyError(f"the pod template {path} is not YAML{where}", "Correct it") from None
    parts = {"metadata": dict, "spec": dict}
    if not isinstance(value, dict) or value.get("kind", "Pod") != "Pod":
        raise NotReadyError(f"the pod template {path} is not a pod", "It must begin with kind: Pod")
    if any(not isinstance(value.get(part, {}), kind) for part, kind in parts.items()):
        raise NotReadyError(f"the pod template {path} is not a pod", "metadata and spec must be mappings")
    return copy.deepcopy(value)
