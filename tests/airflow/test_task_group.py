"""Arguments of single tasks of the group, and the defaults that Airflow's configuration has."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk import DAG, Asset, TaskGroup

from airflow_provider_cdc import (
    CdcSnapshotSensor,
    CdcStreamOperator,
    Pipeline,
    Sink,
    Source,
    cdc_pipeline,
)
from airflow_provider_cdc.airflow.assets import pipeline_alias
from airflow_provider_cdc.model.errors import NotReadyError

PIPELINE = Pipeline(name="n", source=Source("c", ("shop.t",)), sink=Sink("/lake"))


def group(**kwargs: Any) -> TaskGroup:
    with DAG("d", schedule=None):
        return cdc_pipeline(PIPELINE, **kwargs)


def test_arguments_of_single_tasks() -> None:
    copied = Asset("lake://shop")
    found: Any = group(
        verify=True,
        deferrable=False,
        default_args={"retries": 1, "queue": "small"},
        preflight_args={"execution_timeout": timedelta(minutes=5)},
        plan_args={"priority_weight": 7},
        snapshot_args={"pool": "readers", "retries": 5, "queue": "large", "map_index_template": "{{ 1 }}"},
        sensor_args={"poke_interval": 3, "deferrable": True},
        stream_args={"poll_seconds": 2, "outlets": [copied], "restart_timeout": timedelta(hours=1)},
        verify_args={"sample": "1/7"},
    ).children
    assert found["n.preflight"].execution_timeout == timedelta(minutes=5)
    assert (found["n.plan_chunks"].priority_weight, found["n.plan_chunks"].retries) == (7, 1)
    mapped = found["n.snapshot"]
    assert (mapped.pool, mapped.retries, mapped.queue, mapped.map_index_template) == ("readers", 5, "large", "{{ 1 }}")
    assert (found["n.snapshot_complete"].poke_interval, found["n.snapshot_complete"].deferrable) == (3, True)
    stream = found["n.stream"]
    assert (stream.poll_seconds, stream.deferrable, stream.queue) == (2, False, "small")
    assert stream.outlets == [copied, pipeline_alias("n")]
    assert stream.restart_timeout == timedelta(hours=1)
    assert found["n.verify"].sample == "1/7"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"snapshot_args": {"pol": "x"}}, "CdcSnapshotOperator.partial.. got an unexpected keyword argument 'pol'"),
        ({"stream_args": {"pol": "x"}}, "Invalid arguments were passed to CdcStreamOperator"),
        ({"stream_args": {"task_id": "x"}}, "stream_args has task_id, which cdc_pipeline sets itself: omit it"),
        ({"snapshot_args": {"groups": 1}}, "snapshot_args has groups, which cdc_pipeline sets itself"),
        ({"snapshot_args": {"max_active_tis_per_dag": 1}}, "use its max_active_groups argument"),
        ({"stream_args": {"on_lag": print}}, "use its on_lag argument"),
        ({"verify_args": {"sample": "1/7"}}, "verify_args is set, but verify=False"),
        ({"stream_args": {"pool": "x"}, "stream": False}, "stream_args is set, but stream=False"),
        ({"plan_args": 3}, "plan_args is 3: give a mapping"),
    ],
)
def test_arguments_that_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(TypeError, match=said):
        group(**given)


def test_defaults_of_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    def stream(**kwargs: Any) -> CdcStreamOperator:
        return CdcStreamOperator(task_id="stream", pipeline=PIPELINE, **kwargs)

    plain = stream()
    assert (plain.poll_seconds, plain.restart_timeout, plain.lease_seconds) == (5, timedelta(days=1), None)
    assert plain.deferrable is None and CdcSnapshotSensor(task_id="s", pipeline=PIPELINE).deferrable
    for option, text in {
        "default_deferrable": "false",
        "poll_seconds": "2.5",
        "restart_timeout": "60",
        "lease_seconds": "30",
    }.items():
        monkeypatch.setenv(f"AIRFLOW__CDC__{option.upper()}", text)
    found = stream()
    assert (found.poll_seconds, found.restart_timeout, found.lease_seconds) == (2.5, timedelta(minutes=1), 30)
    assert found.deferrable is False and not CdcSnapshotSensor(task_id="s", pipeline=PIPELINE).deferrable
    own = stream(deferrable=True, poll_seconds=9, restart_timeout=timedelta(0), lease_seconds=0)
    assert (own.poll_seconds, own.restart_timeout, own.lease_seconds) == (9, timedelta(0), None)
    assert own.deferrable is True


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("default_deferrable", "Ture"),
        ("poll_seconds", "5s"),
        ("poll_seconds", "0"),
        ("restart_timeout", "1 day"),
        ("lease_seconds", "-1"),
        ("restart_timeout", "nan"),
        ("restart_timeout", "inf"),
    ],
)
def test_a_typo_in_the_configuration_is_named(monkeypatch: pytest.MonkeyPatch, option: str, text: str) -> None:
    monkeypatch.setenv(f"AIRFLOW__CDC__{option.upper()}", text)
    with pytest.raises(NotReadyError, match=rf"\[cdc\] {option} in Airflow's configuration is '{text}'.*AIRFLOW__CDC"):
        CdcStreamOperator(task_id="stream", pipeline=PIPELINE)
