"""Change data capture from MySQL into a lakehouse, with Airflow and Spark."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_provider_cdc.airflow.assets import cdc_asset, cdc_assets
    from airflow_provider_cdc.airflow.operators.cdc import (
        CdcMaintainOperator,
        CdcPlanChunksOperator,
        CdcPreflightOperator,
        CdcResnapshotOperator,
        CdcSnapshotOperator,
        CdcVerifyOperator,
    )
    from airflow_provider_cdc.airflow.operators.control import CdcStatusOperator, CdcStopOperator
    from airflow_provider_cdc.airflow.operators.stream import CdcStreamOperator
    from airflow_provider_cdc.airflow.sensors.cdc import CdcSnapshotSensor
    from airflow_provider_cdc.airflow.task_group import cdc_pipeline
    from airflow_provider_cdc.config import Pipeline, Sink, Snapshot, Source, Spark, State, Stream, Transforms

__version__ = "0.1.0"

#: The module of each public name. Modules are imported on first use, because Airflow parses DAG files frequently.
_HOMES = {
    "config": ("Pipeline", "Source", "Snapshot", "Stream", "Sink", "State", "Spark", "Alerts", "Transforms"),
    "airflow.operators.cdc": (
        "CdcPreflightOperator",
        "CdcPlanChunksOperator",
        "CdcSnapshotOperator",
        "CdcVerifyOperator",
        "CdcMaintainOperator",
        "CdcResnapshotOperator",
    ),
    "airflow.operators.stream": ("CdcStreamOperator",),
    "airflow.operators.control": ("CdcStopOperator", "CdcStatusOperator"),
    "airflow.sensors.cdc": ("CdcSnapshotSensor",),
    "airflow.task_group": ("cdc_pipeline",),
    "airflow.assets": ("cdc_asset", "cdc_assets"),
}
__all__ = [
    "Alerts",
    "CdcMaintainOperator",
    "CdcPlanChunksOperator",
    "CdcPreflightOperator",
    "CdcResnapshotOperator",
    "CdcSnapshotOperator",
    "CdcSnapshotSensor",
    "CdcStatusOperator",
    "CdcStopOperator",
    "CdcStreamOperator",
    "CdcVerifyOperator",
    "Pipeline",
    "Sink",
    "Snapshot",
    "Source",
    "Spark",
    "State",
    "Stream",
    "Transforms",
    "cdc_asset",
    "cdc_assets",
    "cdc_pipeline",
]


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
