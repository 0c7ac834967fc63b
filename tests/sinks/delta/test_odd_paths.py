"""Folders and partitions whose names are written in another way in a URL, and who reads them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_cdc.config.table_paths import url_escaped_characters
from airflow_provider_cdc.sinks.delta.table import DeltaSinkTable
from airflow_provider_cdc.sinks.delta.table_metadata import DeltaTableOptions
from airflow_provider_cdc.sinks.lake.merge.partitions import PartitionField
from airflow_provider_cdc.sinks.protocol import PublishSlices, Upsert
from airflow_provider_cdc.sinks.storage.local_storage import LocalStorage
from tests.sinks.delta.test_table import FENCE, SCHEMA, held, opened, upsert
from tests.sinks.delta.test_table import rows as of
from tests.support.readers import Reader, readers, without_spark

#: Those that take the path of a table for a URL.
BY_URL = ("Polars", "Daft")
ODD = ["a b", "\u00e4", "a#b", "a?b", 'a"b', "a{b", "a}b", "a<b", "a>b", "a`b"]
PLAIN = ["a.b", "a-b", "a_b", "a~b", "a+b", "a=b", "a&b", "a@b", "a,b", "a^b"]


def found(reader: Reader, folder: Path) -> Any:
    try:
        rows = reader.read(str(folder))
    except Exception:
        return "refuses"
    return {row["id"]: row["v.w"] for row in rows.to_pylist()} if isinstance(rows, pa.Table) else rows


def table(folder: Path) -> dict[int, str]:
    target = opened(folder, vectors=False)
    target.create("p")
    upsert(target, (1, "a", 1, "c"), (2, "a", 1, "c"))
    upsert(target, (1, "b", 2, "u"))
    return {key: value for key, (value, _) in held(opened(folder, vectors=False)).items()}


@pytest.mark.parametrize("name", [*ODD, *PLAIN])
def test_who_reads_a_folder_with_such_a_name(tmp_path: Path, name: str) -> None:
    """As docs/readers.md says it."""
    rows = table(tmp_path / name)
    assert rows == {1: "b", 2: "a"} and url_escaped_characters(name) == ("" if name in PLAIN else name.strip("ab"))
    for reader in without_spark():
        if reader.name != "delta-rs, `count()`":
            refuses = name in ODD and reader.name in BY_URL
            assert found(reader, tmp_path / name / "t") == ("refuses" if refuses else rows), reader.name


@pytest.fixture(scope="module")
def listed() -> Iterator[list[Reader]]:
    with readers() as found_readers:
        yield found_readers


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in ODD if "`" not in name])  # SQL would need it twice
def test_what_spark_and_daft_read_of_it(tmp_path: Path, listed: list[Reader], name: str) -> None:
    rows = table(tmp_path / name)
    for reader in listed:
        if reader.name in ("Spark", "Daft"):
            assert found(reader, tmp_path / name / "t") == ("refuses" if reader.name in BY_URL else rows), reader.name


@pytest.mark.parametrize("vectors", [True, False])
def test_partitions_whose_values_have_blanks_at_their_ends(tmp_path: Path, vectors: bool) -> None:
    """No reader takes them away, and `DE` and `DE ` stay two values."""
    texts = ("DE", "DE ", " DE", "D E", "DE\t", " ")
    target = DeltaSinkTable(
        LocalStorage(tmp_path / "t"),
        SCHEMA,
        ["id"],
        "id",
        DeltaTableOptions(vectors, partitioned_by=(PartitionField("v.w"),)),
    )
    target.create("p")
    rows = dict(enumerate(texts))
    file = target.stage("1/0/1/slice", [of(*((n, text, 1, "r") for n, text in rows.items()))])
    assert target.commit(lambda _: PublishSlices([file]), {"group": 1}, FENCE)
    target.commit(lambda _: Upsert(of((1, "DE ", 2, "u"))), {}, FENCE)
    for reader in without_spark():
        if "count" not in reader.name and (read := found(reader, tmp_path / "t")) != "refuses":
            assert read == rows, reader.name
