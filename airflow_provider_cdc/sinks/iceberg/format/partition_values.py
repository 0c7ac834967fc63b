"""Partition values as text, by which files of one partition are recognized before a manifest lists them."""

from __future__ import annotations

from decimal import Decimal
from functools import lru_cache
from typing import Any

import pyarrow as pa

from airflow_provider_cdc.model.errors import TerminalError
from airflow_provider_cdc.sinks.iceberg.format.types import PrimitiveType, arrow_type_of
from airflow_provider_cdc.sinks.iceberg.format.values import values_of_array


def value_name(name: str) -> str:
    """Return the name of a partition value, which is never that of a column.

    :param name: name of the partition field.
    """
    return f"{name} "


def parse_partition_value(kind: PrimitiveType, text: str | None) -> Any:
    """Return a partition value, in the form of :mod:`~airflow_provider_cdc.sinks.iceberg.format.values`."""
    if text is None:
        return None
    (value,) = values_of_array(pa.array([text], pa.string()).cast(arrow_type_of("partition", kind)))
    return value


@lru_cache(maxsize=65536)
def partition_value_text(kind: PrimitiveType, value: Any) -> str | None:
    """Return the text of a partition value: that of the same value in rows.

    :raises TerminalError: if the type is not supported.
    """
    if value is None:
        return None
    arrow_type = arrow_type_of("partition", kind)
    if digits := kind.decimal_digits:
        digits_of_value = tuple(map(int, str(abs(value))))
        array = pa.array([Decimal((int(value < 0), digits_of_value, -digits[1]))], arrow_type)
    elif pa.types.is_date32(arrow_type):
        array = pa.array([value], pa.int32()).cast(arrow_type)
    elif pa.types.is_timestamp(arrow_type) or pa.types.is_time(arrow_type):
        array = pa.array([value], pa.int64()).cast(arrow_type)
    else:
        array = pa.array([value], arrow_type)
    try:
        return str(array.cast(pa.string())[0].as_py())
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        raise TerminalError(
            f"the Iceberg table is partitioned by values of type {kind}, which this version does not support",
            "Other software has partitioned the table: start with a fresh table",
        ) from None
