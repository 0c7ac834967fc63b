"""``sink.deletes`` by table."""

from __future__ import annotations

import pytest

from airflow_provider_cdc.config.delete_policy import DeletePolicy
from airflow_provider_cdc.model.errors import NotReadyError
from airflow_provider_cdc.model.schema import Column, TableSchema

ID = Column("id", "int", "int", nullable=False)


def table(name: str, key: tuple[str, ...] = ("id",)) -> TableSchema:
    return TableSchema("shop", name, (ID,), key)


def test_it_is_told_by_table() -> None:
    deletes = DeletePolicy(soft=("shop.order_.*",), ignore=("shop.customer",))
    assert [deletes.mode_of(table(name)) for name in ("order_line", "customer", "item")] == ["soft", "ignore", "hard"]
    assert [deletes.keeps_deleted_rows(table(name)) for name in ("order_line", "customer", "item")] == [
        True,
        True,
        False,
    ]


def test_not_two_at_once() -> None:
    with pytest.raises(NotReadyError, match=r"shop.a matches sink.deletes.soft and sink.deletes.ignore"):
        DeletePolicy(soft=("shop.a",), ignore=("shop..*",)).mode_of(table("a"))


@pytest.mark.parametrize("how", ["soft", "ignore"])
def test_not_without_a_key(how: str) -> None:
    with pytest.raises(NotReadyError, match=f"shop.log has no usable key, and sink.deletes is {how} for it"):
        DeletePolicy(**{how: ("shop.log",)}).mode_of(table("log", ()))
    assert DeletePolicy().mode_of(table("log", ())) == "hard"
