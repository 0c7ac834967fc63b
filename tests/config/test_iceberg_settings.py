"""Settings of a sink of kind iceberg: what is wrong is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_cdc.config import Sink
from airflow_provider_cdc.model.errors import NotReadyError


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"table_properties": {"format-version": 2}}, "format-version cannot be set: sink.merge decides it"),
        ({"table_properties": {"write.data.path": "/x"}}, "write.data.path cannot be set: the files of a table are in"),
        ({"table_properties": {"delta.logRetentionDuration": "interval 7 days"}}, "is a property of Delta tables"),
        ({"table_properties": {"airflow-cdc.pipeline": "x"}}, "airflow-cdc.pipeline is not a property"),
        ({"partition_by": {"a.b": [{"minute": "at"}]}}, "parts of dates, such as {month: created_at}"),
        ({"partition_by": {"a.b": [{"bucket[0]": "id"}]}}, "year, month, day, hour, bucket[n], truncate[n]"),
        ({"partition_by": {"a.b": [{"bucket[n]": "id"}]}}, "year, month, day, hour, bucket[n], truncate[n]"),
        ({"partition_by": {"a.b": [{"bucket": "id"}]}}, "year, month, day, hour, bucket[n], truncate[n]"),
        ({"merge": "equality_deletes"}, "sink.merge is 'equality_deletes'. It must be one of deletion_vectors"),
        ({"path": "s3://lake/shop"}, "catalog"),
    ],
)
def test_what_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(NotReadyError) as error:
        Sink(**{"path": "/lake", "kind": "iceberg", **settings})
    assert message in str(error.value)


def test_defaults() -> None:
    sink = Sink("/lake/50%", kind="iceberg", table_properties={"write.parquet.compression-codec": "zstd"})
    assert sink.merge == "deletion_vectors" and sink.has_catalog
