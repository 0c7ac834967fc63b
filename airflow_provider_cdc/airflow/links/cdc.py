"""Links that the Airflow UI shows for a task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperatorLink
from airflow.sdk.execution_time.xcom import XCom

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context
    from airflow.sdk.types import TaskInstanceKey


def push_spark_ui_link(context: Context, address: str, log: Any) -> None:
    """Set the address of the link. If that fails there is no link, and the task continues."""
    try:
        context["ti"].xcom_push(SparkUiLink().xcom_key, address)
    except Exception as error:
        log.warning("there is no link to the Spark UI, %s, because Airflow rejected it: %s", address, error)


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
