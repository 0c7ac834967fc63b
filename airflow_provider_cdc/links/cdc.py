"""Links that the UI shows beside a task."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import BaseOperatorLink
from airflow.sdk.execution_time.xcom import XCom

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey


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
