"""Links that the Airflow UI shows for a task."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

from airflow.configuration import conf
from airflow.sdk import BaseOperatorLink
from airflow.sdk.execution_time.xcom import XCom

from airflow_provider_cdc.config.spark_conf import reachable_url

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context
    from airflow.sdk.types import TaskInstanceKey


#: Modules that define operators and sensors, and the prefix of their classes.
_MODULES = ("operators.cdc", "operators.stream", "operators.control", "sensors.cdc")
_CLASS_PREFIX = "Cdc"


def push_spark_ui_link(context: Context, address: str, log: Any) -> None:
    """Set the address of the link. If that fails there is no link, and the task continues.

    There is no link to an address that a browser on another host cannot open either.
    """
    if reachable_url(address) is None:
        return
    try:
        context["ti"].xcom_push(SparkUiLink().xcom_key, address)
    except Exception as error:
        log.warning("there is no link to the Spark UI, %s, because Airflow rejected it: %s", address, error)


class CdcPageLink(BaseOperatorLink):
    """Link to the pipeline of a task on the page. It needs nothing from the task, so it works before the task has run.

    The plugin adds it to the operators, and the API server calls it.
    """

    name = "CDC page"

    @property
    def operators(self) -> list[type[BaseOperator]]:  # type: ignore[override]
        """All operators and sensors of this package."""
        modules = [import_module(f"airflow_provider_cdc.airflow.{name}") for name in _MODULES]
        return [
            value
            for module in modules
            for name, value in vars(module).items()
            if name.startswith(_CLASS_PREFIX) and isinstance(value, type) and value.__module__ == module.__name__
        ]

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return the address, without a host: it is the API server's own, by whatever name the browser knows it."""
        base_path = urlsplit(conf.get("api", "base_url", fallback="") or "").path.rstrip("/")
        target = {"dag_id": ti_key.dag_id, "run_id": ti_key.run_id, "task_id": ti_key.task_id}
        return f"{base_path}/cdc/?{urlencode({**target, 'map_index': ti_key.map_index})}"


class SparkUiLink(BaseOperatorLink):
    """Link to the Spark UI of the task's driver, while the driver runs."""

    name = "Spark UI"

    @property
    def xcom_key(self) -> str:
        """Key of the XCom that has the address."""
        return "spark_ui"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return the address that the task has pushed, or an empty string before that."""
        value = XCom.get_value(ti_key=ti_key, key=self.xcom_key)
        return str(value) if value else ""
