"""Links that the UI shows beside a task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperatorLink
from airflow.sdk.execution_time.xcom import XCom

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context
    from airflow.sdk.types import TaskInstanceKey


def push_spark_ui_link(context: Context, address: str, log: Any) -> None:
    """Make the link lead to an address from now on. Where that fails there is no link, and the work goes on."""
    try:
        context["ti"].xcom_push(SparkUiLink().xcom_key, address)
    except Exception as error:
        log.warning("there is no link to Spark's page, %s, because Airflow rejected it: %s", address, error)


class SparkUiLink(BaseOperatorLink):
    """Spark's own page of the driver that works for the task, while that runs."""

    name = "Spark UI"

    @property
    def xcom_key(self) -> str:
        """XCom that holds the address."""
        return "spark_ui"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """The address that the task has pushed, empty before."""
        value = XCom.get_value(ti_key=ti_key, key=self.xcom_key)
        return str(value) if value else ""
