"""Delta tables that something else has made become copies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from airflow_provider_cdc.config.delete_policy import DeletePolicy
from airflow_provider_cdc.config.table_properties import DELETED_FILE_RETENTION as KEPT
from airflow_provider_cdc.config.table_properties import LOG_RETENTION, TableProperties
from airflow_provider_cdc.model.errors import NotReadyError, TerminalError
from airflow_provider_cdc.model.schema import DELETED_COLUMN, Column, TableSchema
from airflow_provider_cdc.sinks.delta.sink import DeltaSink
from airflow_provider_cdc.sinks.delta.table import DeltaSinkTable
from airflow_provider_cdc.sinks.protocol import Fence, PublishSlices

TABLE = TableSchema(
    "shop",
    "t",
    (
        Column("id", "int", "int", nullable=False),
        Column("v", "varchar", "varchar(9)", True, charset="utf8mb4"),
        Column("at", "datetime", "datetime", True, fsp=6),
    ),
    ("id",),
    comments=(("v", "ours"),),
)
THEIRS = pa.schema(
    [
        pa.field("at", pa.timestamp("us")),
        pa.field("id", pa.int32(), nullable=False),
        pa.field("v", pa.string(), metadata={"comment": "theirs", "tag": "x"}),
    ]
)
FENCE = Fence("epoch", 1)


def write(folder: Path, schema: pa.Schema = THEIRS, **how: Any) -> DeltaTable:
    rows = {"id": 1, "v": "old", "at": None, "_cdc_seq": None, "more": 2}
    table = pa.Table.from_pylist([{name: rows[name] for name in schema.names}], schema)
    write_deltalake(str(folder / "shop" / "t"), table, **how)
    return DeltaTable(str(folder / "shop" / "t"))


def sink(folder: Path, *, adopt: bool = True, **how: Any) -> DeltaSinkTable:
    return DeltaSink(str(folder), "p", adopt=adopt, **how).table(TABLE)


def publish(target: DeltaSinkTable) -> None:
    row = {"id": 2, "v": "new", "at": None, "_cdc_seq": 1, "_cdc_op": "r", "_cdc_ts": 0}
    file = target.stage("1/0/1/slice", [pa.Table.from_pylist([row], TABLE.sink_schema)])
    assert target.commit(lambda _: PublishSlices([file]), {"group": 1}, FENCE)


@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize("deletes", [DeletePolicy(), DeletePolicy(soft=("shop.t",))])
def test_it_is_adopted(tmp_path: Path, copies: bool, deletes: DeletePolicy) -> None:
    """In one commit it has an owner and no rows; what was there is an older version."""
    theirs = write(
        tmp_path, description="orders of the shop", configuration={"delta.logRetentionDuration": "interval 9 days"}
    )
    before = theirs.metadata()
    target = sink(tmp_path, copy_on_write_tables=("shop..*",) if copies else (), deletes=deletes)
    assert target.will_adopt("p")
    target.create("p")
    assert target.load_log().version == theirs.version() + 1
    publish(target)
    target.create("p")
    assert not target.will_adopt("p")
    assert [row["v"] for row in target.read_with_soft_deleted().to_pylist()] == ["new"]
    assert DeltaTable(str(tmp_path / "shop" / "t"), version=0).to_pyarrow_table()["v"].to_pylist() == ["old"]
    log = target.load_log()
    assert log.metadata["id"] == str(before.id) and log.metadata["description"] == "airflow-cdc pipeline p"
    names = [*TABLE.sink_schema.names, *([DELETED_COLUMN] if deletes.soft else [])]
    columns = {c["name"]: c for c in json.loads(log.metadata["schemaString"])["fields"]}
    assert list(columns) == names and all(c["nullable"] for c in columns.values())
    assert columns["v"]["metadata"] == {"comment": "ours", "tag": "x", "airflow-cdc.type": "varchar(9)"}
    assert ("delta.enableDeletionVectors" in log.properties) is not copies
    assert log.properties["delta.checkpointInterval"] == "100"
    if copies:
        assert DeltaTable(str(tmp_path / "shop" / "t")).to_pyarrow_table()["id"].to_pylist() == [2]


@pytest.mark.parametrize("theirs", [{}, {LOG_RETENTION: "interval 60 days"}, {KEPT: "interval 1 second"}])
@pytest.mark.parametrize("asked", [None, "interval 3 days"])
def test_its_retentions_stay_unless_longer_ones_are_asked_for(
    tmp_path: Path, theirs: dict[str, str], asked: str | None
) -> None:
    """One that says nothing keeps its files for a week, and its log for a month."""
    write(tmp_path, configuration=theirs)
    properties = TableProperties.parse({KEPT: asked} if asked else {})
    target = sink(tmp_path, table_properties=properties)
    target.create("p")
    publish(target)
    longer = {KEPT: asked} if asked and KEPT in theirs else {}
    usual = {KEPT: "interval 2 hours"} if not asked and KEPT in theirs else {}
    expected = {**theirs, **longer, **usual}
    found = target.load_log().properties
    assert {k: v for k, v in found.items() if k.endswith("RetentionDuration")} == expected


def test_only_on_request(tmp_path: Path) -> None:
    write(tmp_path)
    target = sink(tmp_path, adopt=False)
    assert not target.will_adopt("p")
    with pytest.raises(TerminalError, match="was not created by pipeline p"):
        target.create("p")
    assert target.load_log().version == 0


def test_not_from_another_pipeline(tmp_path: Path) -> None:
    other = DeltaSink(str(tmp_path), "other").table(TABLE)
    other.create("other")
    with pytest.raises(NotReadyError, match="cannot be adopted: it belongs to airflow-cdc pipeline other"):
        sink(tmp_path).create("p")


def test_not_from_a_writer(tmp_path: Path) -> None:
    write(tmp_path, commit_properties=CommitProperties(app_transactions=[Transaction("stream-7", 1)]))
    with pytest.raises(NotReadyError, match="cannot be adopted: it has a writer: stream-7"):
        sink(tmp_path).create("p")


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (pa.schema([THEIRS.field(0), THEIRS.field(1)]), ["it lacks column v (string)"]),
        (THEIRS.set(1, pa.field("id", pa.int64())), ["column id is long, and not integer"]),
        (THEIRS.append(pa.field("more", pa.int32())), ["it has column more, which the source does not have"]),
        (THEIRS.set(2, pa.field("v", pa.string(), nullable=False)), ["column v is NOT NULL, and may be NULL"]),
        (THEIRS.append(pa.field("_cdc_seq", pa.string())), ["column _cdc_seq is string, and not long"]),
        (
            pa.schema([pa.field("id", pa.int64()), pa.field("more", pa.int32())]),
            ["column id is long", "it lacks column v (string)", "it lacks column at", "it has column more"],
        ),
    ],
)  # fmt: skip
def test_all_differences_are_told(tmp_path: Path, schema: pa.Schema, why: list[str]) -> None:
    write(tmp_path, schema)
    with pytest.raises(NotReadyError, match="cannot be adopted") as error:
        sink(tmp_path).create("p")
    assert all(part in str(error.value) for part in why)
    assert sink(tmp_path, adopt=False).load_log().version == 0


def test_not_one_that_is_partitioned_otherwise(tmp_path: Path) -> None:
    write(tmp_path, partition_by=["id"])
    with pytest.raises(NotReadyError, match="it is partitioned by id, and not by nothing"):
        sink(tmp_path).create("p")


def test_somebody_writes_at_the_same_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was adopted is what was looked at: a column that comes in between is seen."""
    write(tmp_path)
    target, real = sink(tmp_path), DeltaSinkTable.will_adopt
    rows = pa.table({"id": pa.array([3], pa.int32()), "more": pa.array([1], pa.int32())})

    def adopts(self: DeltaSinkTable, pipeline: str) -> bool:
        found = real(self, pipeline)
        monkeypatch.setattr(DeltaSinkTable, "will_adopt", real)
        write_deltalake(str(tmp_path / "shop" / "t"), rows, mode="append", schema_mode="merge")
        return found

    monkeypatch.setattr(DeltaSinkTable, "will_adopt", adopts)
    with pytest.raises(NotReadyError, match="it has column more"):
        target.create("p")
    assert sink(tmp_path, adopt=False).load_log().version == 1
