"""Features of the Delta protocol that others have given a table: they stay, and count where something uses them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from airflow_provider_cdc.model.errors import TerminalError
from airflow_provider_cdc.sinks.delta import maintenance
from airflow_provider_cdc.sinks.delta.log.commit_actions import _read_statistics, clustering_columns
from airflow_provider_cdc.sinks.delta.log.delta_log import DeltaLog
from airflow_provider_cdc.sinks.delta.log.features import (
    check_protocol,
    features_of,
    merge_protocols,
    protocol_with_feed,
    protocol_with_vectors,
)
from airflow_provider_cdc.sinks.delta.table import DeltaSinkTable
from airflow_provider_cdc.sinks.lake import compaction
from airflow_provider_cdc.sinks.protocol import Fence
from airflow_provider_cdc.sinks.storage.local_storage import LocalStorage
from tests.sinks.delta import test_definition_changes as altering
from tests.sinks.delta.test_log import fresh
from tests.sinks.delta.test_table import SCHEMA, add, create_table, folder_of, opened, rows, upsert

BASIC = ["appendOnly", "invariants"]
OTHERS = ["clustering", "domainMetadata", "rowTracking"]


def named(readers: list[str], writers: list[str]) -> dict[str, Any]:
    found = {"minReaderVersion": 3 if readers else 1, "minWriterVersion": 7, "writerFeatures": sorted(writers)}
    return found | ({"readerFeatures": sorted(readers)} if readers else {})


def old(reader: int, writer: int) -> dict[str, Any]:
    return {"minReaderVersion": reader, "minWriterVersion": writer}


VECTORS = "deletionVectors"
TO_4 = [*BASIC, "changeDataFeed", "checkConstraints", "generatedColumns"]
PROTOCOLS = [
    *(old(1, 1), old(1, 2), old(1, 4), old(1, 6), old(2, 5), old(2, 2)),
    named([], ["appendOnly"]),
    named([], [*BASIC, *OTHERS]),
    named([VECTORS, "v2Checkpoint"], [VECTORS, "v2Checkpoint", *BASIC, *OTHERS]),
]


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=str)
def test_a_protocol_is_only_ever_extended(protocol: Mapping[str, Any]) -> None:
    readers, writers = features_of(protocol)
    needed = named([VECTORS, "timestampNtz"], [VECTORS, "timestampNtz", *BASIC])
    feed = {"delta.enableChangeDataFeed": "true"}
    more = (
        merge_protocols(protocol, needed),
        protocol_with_vectors(protocol, vectors=True),
        protocol_with_feed(protocol, feed),
    )
    for found in more:
        assert features_of(found)[0] >= readers and features_of(found)[1] >= writers
        assert merge_protocols(found, found) is found and merge_protocols(found, protocol) is found
    assert features_of(more[0])[0] >= {VECTORS, "timestampNtz"} and features_of(more[1])[1] >= {VECTORS}
    assert "changeDataFeed" in features_of(more[2])[1] and protocol_with_feed(protocol, {}) is protocol
    without = protocol_with_vectors(more[1], vectors=False)
    assert features_of(without)[0] == readers - {VECTORS}
    assert features_of(without)[1] | {*BASIC} == (writers - {VECTORS}) | {*BASIC}


def test_features_that_a_protocol_does_not_name() -> None:
    assert merge_protocols(old(1, 4), named([VECTORS], [VECTORS, *BASIC])) == named([VECTORS], [VECTORS, *TO_4])
    mapped = merge_protocols(old(2, 5), named([VECTORS], [VECTORS, *BASIC]))
    assert mapped == named([VECTORS, "columnMapping"], [VECTORS, "columnMapping", *TO_4])
    assert features_of(old(1, 6))[1] == {*TO_4, "identityColumns"}, "readers would have to know columnMapping"


def given(target: DeltaSinkTable, *features: str, reader: bool = False, **properties: str) -> None:
    """Let somebody else add features, and properties whose names begin with ``delta.``."""
    log = target.load_log()
    configuration = {**log.properties, **{f"delta.{k}": v for k, v in properties.items()}}
    needed = merge_protocols(log.protocol, named([*features] if reader else [], [*features, *BASIC]))
    assert log.commit([{"protocol": needed}, {"metaData": {**log.metadata, "configuration": configuration}}], "SET")


def test_a_table_that_is_begun_again_keeps_the_features_of_others(tmp_path: Path) -> None:
    target = create_table(tmp_path)
    given(target, *OTHERS)
    schema = pa.schema([*SCHEMA, ("at", pa.timestamp("us"))])
    again = DeltaSinkTable(target.storage, schema, ["id"], "id")
    again.reset("p", Fence("generation", 2), [])
    readers, writers = features_of(again.load_log().protocol)
    assert readers == {VECTORS, "timestampNtz"} and writers == {*readers, *BASIC, *OTHERS}


@pytest.mark.parametrize(
    ("protocol", "configuration", "column", "said"),
    [
        (named(["variantType"], ["variantType"]), {}, {}, None),
        (named(["typeWidening"], ["typeWidening"]), {"delta.enableTypeWidening": "false"}, {}, None),
        (named(["typeWidening"], ["typeWidening"]), {}, {"metadata": {"delta.typeChanges": []}}, "uses typeWidening"),
        (named(["columnMapping"], ["columnMapping"]), {}, {}, None),
        (named([], ["icebergCompatV2", "identityColumns", "checkConstraints"]), {}, {}, None),
        (named(["variantType"], ["variantType"]), {}, {"type": "variant"}, "uses variantType"),
        (
            named([], ["icebergCompatV3"]),
            {"delta.enableIcebergCompatV3": "true"},
            {},
            r"uses icebergCompatV3.*ALTER TABLE t SET TBLPROPERTIES \('delta.enableIcebergCompatV3' = 'false'\)",
        ),
        (named([], ["catalogManaged"]), {}, {}, "uses catalogManaged.*ALTER TABLE t DROP FEATURE catalogManaged"),
        (old(1, 3), {"delta.constraints.c": "1 = 1"}, {}, "uses checkConstraints.*ALTER TABLE t DROP CONSTRAINT c"),
        (
            old(2, 5),
            {"delta.columnMapping.mode": "name"},
            {},
            r"uses columnMapping.*'delta.columnMapping.mode' = 'none'",
        ),
    ],
)
def test_a_feature_counts_where_something_uses_it(
    protocol: dict[str, Any], configuration: dict[str, str], column: dict[str, Any], said: str | None
) -> None:
    fields = [{"name": "c", "type": "long", "nullable": True, "metadata": {}, **column}]
    metadata = {"configuration": configuration, "schemaString": json.dumps({"type": "struct", "fields": fields})}
    if said is None:
        check_protocol("table", protocol, metadata)
        return
    with pytest.raises(TerminalError, match=said):
        check_protocol("table", protocol, metadata)


# ---------------------------------------------------------------- row tracking


def row_ids(log: DeltaLog) -> set[int]:
    """The row ids of all rows of the files, of which no two are the same."""
    found = set[int]()
    for file in log.files.values():
        ids = {*range(file.action["baseRowId"], file.action["baseRowId"] + file.stats["numRecords"])}
        assert not found & ids and 0 < file.action["defaultRowCommitVersion"] <= log.version
        found |= ids
    return found


@pytest.mark.parametrize("vectors", [True, False])
def test_rows_get_ids_where_row_tracking_is_supported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vectors: bool
) -> None:
    monkeypatch.setattr(compaction, "FANOUT", 2)
    target = create_table(tmp_path, vectors=vectors)
    given(target, "rowTracking", "domainMetadata", enableRowTracking="false")
    add(target, "a", rows(*((n, "x", 1, "r") for n in range(20))))
    used = row_ids(target.load_log())
    assert used == {*range(20)}
    for n in range(4):
        upsert(target, (n, "y", n + 2, "u"), (100 + n, "z", n + 2, "c"))
        known = {
            path: file.action["baseRowId"] for path, file in target.load_log().files.items() if file.dead_row_count
        }
        used |= row_ids(target.load_log())
        assert known.get("snapshot/a.parquet", 0) == 0, "a file that gets another vector keeps its ids"
    for one in target.plan_compactions():
        target.commit_compactions([(one, one.run())])
    log = target.load_log()
    used |= row_ids(log)
    assert json.loads(log.domain_metadata["delta.rowTracking"])["rowIdHighWaterMark"] == max(used)
    DeltaTable(folder_of(target)).create_checkpoint()
    again = fresh(log.storage)
    assert (
        again.checkpoint_version == log.version
        and row_ids(again) == row_ids(log)
        and again.domain_metadata == log.domain_metadata
    )


def test_no_row_gets_an_id_otherwise(tmp_path: Path) -> None:
    target = create_table(tmp_path)
    given(target, "rowTracking", "domainMetadata", rowTrackingSuspended="true")
    add(target, "a", rows((1, "x", 1, "r")))
    add(create_table(tmp_path / "plain"), "a", rows((1, "x", 1, "r")))
    for found in (target, opened(tmp_path / "plain")):
        assert (
            not any("baseRowId" in file.action for file in found.load_log().files.values())
            and not found.load_log().domain_metadata
        )


# ---------------------------------------------------------------- clustering


def clustered(target: DeltaSinkTable, *columns: str) -> None:
    """Let somebody else cluster a table, as Spark does."""
    given(target, "clustering", "domainMetadata")
    said = {"clusteringColumns": [[name] for name in columns], "domainName": "delta.clustering"}
    noted = {"domain": "delta.clustering", "configuration": json.dumps(said), "removed": False}
    assert target.load_log().commit([{"domainMetadata": noted}], "CLUSTER BY")


@pytest.mark.parametrize("vectors", [True, False])
def test_files_have_statistics_of_the_columns_that_a_table_is_clustered_by(tmp_path: Path, vectors: bool) -> None:
    target = create_table(tmp_path, vectors=vectors)
    add(target, "older", rows((50, "before", 1, "r"), (51, "before", 1, "r")))
    clustered(target, "v.w", "id")
    add(target, "a", rows((1, "b", 1, "r"), (2, "c", 1, "r")))
    upsert(target, (50, "y" * 40, 2, "u"))
    for file in target.load_log().files.values():
        values = {r["v.w"] for r in pq.read_table(folder_of(target) / file.path).to_pylist()}
        assert (file.stats["nullCount"]["v.w"] == 0 and file.stats["numRecords"] == len(values)) or len(values) == 1
        assert file.stats["minValues"]["v.w"] <= min(values) and file.stats["maxValues"]["v.w"] >= max(values)
        assert len(file.stats["maxValues"]["v.w"]) <= 33 and {"id", "_cdc_seq"} <= {*file.stats["minValues"]}
    found = DeltaTable(folder_of(target)).scan(predicate='"v.w" = \'' + "y" * 40 + "'")
    assert [row["id"] for row in pa.table(found.read_all()).to_pylist() if row["v.w"][0] == "y"] == [50]


AT = datetime(2026, 1, 2, 3, 4, 5, 678901)


@pytest.mark.parametrize(
    ("values", "kind", "bounds"),
    [
        ([2, None, 1], pa.int64(), (1, 2)),
        ([None, None], pa.int64(), None),
        (["ä" * 40, "a"], pa.string(), ("a", "ä" * 32 + "\U0010ffff")),
        ([AT, AT], pa.timestamp("us"), ("2026-01-02T03:04:05.678", "2026-01-02T03:04:05.679")),
        ([AT.replace(tzinfo=UTC)], pa.timestamp("us", "UTC"), ("2026-01-02T03:04:05.678Z", "2026-01-02T03:04:05.679Z")),
        ([datetime(9999, 12, 31, 23, 59, 59, 999999)], pa.timestamp("us"), None),
        ([date(2026, 1, 2), date(1, 1, 1)], pa.date32(), ("0001-01-01", "2026-01-02")),
        ([1.5, float("nan")], pa.float64(), None),
        ([Decimal("1.5")], pa.decimal128(5, 2), None),
        ([True, False], pa.bool_(), None),
        ([b"x"], pa.binary(), None),
    ],
    ids=str,
)
def test_statistics(tmp_path: Path, values: list[Any], kind: pa.DataType, bounds: tuple[Any, Any] | None) -> None:
    pq.write_table(pa.table({"c": pa.array(values, kind)}), tmp_path / "f.parquet", row_group_size=1)
    found = _read_statistics(LocalStorage(tmp_path), "f.parquet", ["c", "newer"])
    assert found["nullCount"] == {"c": values.count(None), "newer": len(values)}
    low, high = bounds or (None, None)
    assert (found["minValues"].get("c"), found["maxValues"].get("c")) == (low, high)


@pytest.mark.parametrize("exchange", [False, True])
def test_a_column_that_goes_is_no_longer_what_a_table_is_clustered_by(tmp_path: Path, exchange: bool) -> None:
    where = altering.sink(tmp_path)
    before, after = altering.PLAIN, altering.more(altering.PLAIN)
    target = where.table(after)
    target.create("p")
    clustered(target, "n", "id")
    assert clustering_columns(target.load_log().domain_metadata) == ["n", "id"]
    gone = where.table(before)
    if exchange:
        assert gone.overwrite([], {"m": 1}, altering.FENCE)
    else:
        assert gone.alter(after, {"m": 1}, altering.FENCE)
    log = gone.load_log()
    assert clustering_columns(log.domain_metadata) == ["id"]
    assert json.loads(log.domain_metadata["delta.clustering"])["domainName"] == "delta.clustering"
    version = log.version
    DeltaTable(log.storage.location()).create_checkpoint()
    for n in range(version + 1):
        log.storage.delete(f"_delta_log/{n:020d}.json")
    assert fresh(log.storage).domain_metadata == log.domain_metadata


# ---------------------------------------------------------------- a feature that somebody has taken out


def test_commits_before_a_feature_was_taken_out_go_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "_CHECKPOINT_INTERVAL", 1)
    target = create_table(tmp_path)
    for n in range(4):
        add(target, f"{n}", rows((n, "x", 1, "r")))
    target.clean_up()  # with a checkpoint, before which nothing is needed
    given(target, "checkpointProtection", requireCheckpointProtectionBeforeVersion="4")
    log = folder_of(target) / "_delta_log"

    def age(until: int) -> set[int]:
        for path in log.iterdir():
            if path.name[:20].isdecimal() and int(path.name[:20]) <= until:
                os.utime(path, times=(time.time() - 10 * 86400,) * 2)
        add(target, f"after{until}", rows((100 + until, "x", 1, "r")))
        target.clean_up()
        return {int(path.name[:20]) for path in log.glob("*.json") if path.name[20] == "."}

    assert age(3) >= {*range(5)}
    assert not age(6) & {*range(4)}
