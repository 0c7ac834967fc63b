"""Folders of slices, in a table that several source tables are copied into."""

from __future__ import annotations

import pytest

from airflow_provider_cdc.config.table_paths import url_escaped_characters
from airflow_provider_cdc.sinks.files.layout import slices_folder

#: Longest after percent signs were escaped.
LONG = f"{'%' * 51}.{'%' * 51}"


@pytest.mark.parametrize(
    "source",
    ["shop.orders", "a/b.c%2F", "#1.?", "größe.täble", "x y.z", ".a.b", "a.." + "b" * 62, LONG],
)
def test_names(source: str) -> None:
    start, name = slices_folder(source).split("/")
    assert start == "snapshot" and "." in name.removeprefix(".") and not name.isdigit()
    assert len(name.encode()) <= 240 and not url_escaped_characters(name) and name not in (".", "..")


def test_each_source_has_its_own() -> None:
    sources = [
        "a.b",
        "A.b",
        "a.b.c",
        "#.a",
        "?.a",
        "a.#",
        f"{'d' * 64}.{'t' * 64}",
        LONG,
        "数.表",
    ]
    assert len({slices_folder(source) for source in sources}) == len(sources)
    assert slices_folder("shop.orders") == "snapshot/shop.orders" and slices_folder(None) == "snapshot"
