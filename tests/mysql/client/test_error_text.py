"""What people read of an error of the driver."""

from __future__ import annotations

import pytest

from airflow_provider_cdc.mysql.client.error_text import mysql_error_text


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ((1045, "Access denied for user 'u'"), "MySQL error 1045: Access denied for user 'u'"),
        ((2013,), "MySQL error 2013: RuntimeError"),
        ((0, "the connection is closed"), "the connection is closed"),
        ((0, ""), "RuntimeError"),
        (("Packet sequence number wrong",), "Packet sequence number wrong"),
        ((), "RuntimeError"),
    ],
)
def test_error_texts(args: tuple[object, ...], text: str) -> None:
    assert mysql_error_text(RuntimeError(*args)) == text
