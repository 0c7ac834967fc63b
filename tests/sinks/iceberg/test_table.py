"""One Iceberg table: other writers, lost responses, expired snapshots, row ids, partitions, and changed columns."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog as PyicebergCatalog
from pyiceberg.table import StaticTable
from pyroaring import BitMap

from airflow_provider_cdc.config.delete_policy import DeletePolicy
from airflow_provider_cdc.model.errors import CdcError, NotReadyError, TerminalError, TransientError
from airflow_provider_cdc.model.schema import OP_COLUMN, SEQ_COLUMN, TS_COLUMN, TableSchema
from airflow_provider_cdc.sinks.iceberg import commit_encoder, snapshot_expiry, upkeep
from airflow_provider_cdc.sinks.iceberg.catalogs.protocol import CommitOutcome
from airflow_provider_cdc.sinks.iceberg.catalogs.sql_catalog import SqlCatalog
from airflow_provider_cdc.sinks.iceberg.format import table_updates
from airflow_provider_cdc.sinks.iceberg.format.manifest_list import ManifestContent, ManifestFile
from airflow_provider_cdc.sinks.iceberg.format.manifests import (
    ContentFile,
    EntryStatus,
    FileContent,
    ManifestEntry,
    ManifestHeader,
    write_manifest,
)
from airflow_provider_cdc.sinks.iceberg.format.schema_changes import SchemaEditor
from airflow_provider_cdc.sinks.iceberg.format.snapshots import make_snapshot, new_snapshot_id
from airflow_provider_cdc.sinks.iceberg.format.table_metadata import TableMetadata
from airflow_provider_cdc.sinks.iceberg.log.retained_files import find_paths
from airflow_provider_cdc.sinks.iceberg.log.table_markers import marker_properties, parse_markers
from airflow_provider_cdc.sinks.iceberg.sink import IcebergSink
from airflow_provider_cdc.sinks.iceberg.table import IcebergSinkTable
from airflow_provider_cdc.sinks.lake import compaction
from airflow_provider_cdc.sinks.protocol import Fence, PublishSlices, Upsert
from tests.sinks.conformance import INT, KEYED, TEXT, nullable
from tests.support.iceberg import read_with_duckdb, read_with_polars, read_with_pyiceberg
from tests.support.iceberg_catalogs import CatalogFolderTable
from tests.support.iceberg_sink import catalog_file, catalog_of, loaded_table, metadata_file

FENCE = Fence("epoch", 1)
READERS = (read_with_pyiceberg, read_with_duckdb, read_with_polars)


def open_sink(folder: Path, **options: Any) -> IcebergSink:
    return IcebergSink(str(folder), "p", catalog=catalog_file(folder), **options)


def make_table(folder: Path, table: TableSchema = KEYED, **options: Any) -> IcebergSinkTable:
    target = open_sink(folder, **options).table(table)
    target.create("p")
    return target


def rows(*listed: tuple[int, str | None, int, str]) -> pa.Table:
    names = KEYED.sink_schema.names
    return pa.Table.from_pylist([dict(zip(names, (*row, 0), strict=True)) for row in listed], KEYED.sink_schema)


def upsert(target: IcebergSinkTable, seq: int, *keys: int, op: str = "u") -> None:
    changes = rows(*((key, f"v{seq}", seq, op) for key in keys))
    assert target.commit(lambda _: Upsert(changes), {"stream": seq}, FENCE)


def held(target: IcebergSinkTable) -> dict[int, int]:
    """The ``_cdc_seq`` of each key: as the table itself says, and as other readers do."""
    found = [target.read()[0], *(read(metadata_file(target)) for read in READERS)]
    listed = [sorted(zip(r["id"].to_pylist(), r[SEQ_COLUMN].to_pylist(), strict=True)) for r in found]
    assert all(rows == listed[0] for rows in listed) and len(dict(listed[0])) == len(listed[0])
    return dict(listed[0])


def other_writer(target: IcebergSinkTable) -> CatalogFolderTable:
    """Another writer of the table, at its newest version."""
    return CatalogFolderTable.of(catalog_of(target), loaded_table(target), target.identifier)


def test_a_vector_is_read_as_that_of_its_own_file(tmp_path: Path) -> None:
    """DuckDB's cache of files mixes up neighbours in a Puffin file that it reads in the order of their offsets."""
    target = make_table(tmp_path)
    chance = random.Random(1)
    upsert(target, 1, *range(5000))
    upsert(target, 2, *chance.sample(range(5000), 300))
    assert target.commit_compactions([(c, c.run()) for c in target.plan_compactions(purge=True)])
    for seq in range(3, 8):
        upsert(target, seq, *chance.sample(range(5000), 300))
        assert len(held(target)) == 5000


# ---------------------------------------------------------------- other writers


def test_what_others_write_is_seen(tmp_path: Path) -> None:
    """Files, and rows that die in files whose keys are in the index; markers stay."""
    target = make_table(tmp_path)
    upsert(target, 1, 1, 2, 3)
    upsert(target, 2, 2)
    other = other_writer(target)
    (first,) = [f for f in target._log.files.values() if f.row_count == 3]
    other.dead = {first.entry.file.file_path: target._log.dead_rows(first.path)}
    added = other.write_rows(rows((9, "theirs", 1, "c")))
    other.commit(added, {first.entry.file.file_path: BitMap([0])})
    assert other.outcome is CommitOutcome.DONE
    assert held(target) == {2: 2, 3: 1, 9: 1} and target.markers().get("stream") == 2
    upsert(target, 3, 1, 9)
    assert held(target) == {1: 3, 2: 2, 3: 1, 9: 3}


def test_a_branch_that_was_rolled_back_stops_the_table(tmp_path: Path) -> None:
    """Markers do not roll back with it; after the remedy it goes on."""
    target = make_table(tmp_path)
    for seq in (1, 2, 3):
        upsert(target, seq, seq)
    snapshots = [*other_writer(target).metadata.snapshots]
    other_writer(target).update([table_updates.set_snapshot_ref(snapshots[1])])
    other = other_writer(target)
    for again in (target, open_sink(tmp_path).table(KEYED)):
        with pytest.raises(TerminalError, match=f"not based on snapshot {snapshots[2]}"):
            again.markers()
    other.commit(other.write_rows(rows((9, "theirs", 1, "c"))))  # and when another writer has continued from there
    with pytest.raises(TerminalError, match="rolled back or replaced"):
        open_sink(tmp_path).table(KEYED).raise_fence(Fence("epoch", 2))
    other_writer(target).update([table_updates.set_snapshot_ref(snapshots[2])])
    upsert(target, 4, 4)
    assert held(target) == {seq: seq for seq in (1, 2, 3, 4)}


def test_a_table_that_was_replaced_stops(tmp_path: Path) -> None:
    target = make_table(tmp_path)
    upsert(target, 1, 1)
    catalog = catalog_of(target)
    catalog.drop_table(target.identifier)
    shutil.rmtree(target.storage.location())
    make_table(tmp_path)
    with pytest.raises(TerminalError, match="replaced by another one"):
        upsert(target, 2, 1)
    catalog.drop_table(target.identifier)
    with pytest.raises(TerminalError, match="is missing"):
        target.markers()


@pytest.mark.parametrize("content", [FileContent.POSITION_DELETES, FileContent.EQUALITY_DELETES])
def test_other_deletes_are_refused(tmp_path: Path, content: FileContent) -> None:
    target = make_table(tmp_path, copy_on_write_tables=(".*[.].*",))
    upsert(target, 1, 1)
    other = other_writer(target)
    metadata, location = other.metadata, f"{other.metadata.location}/metadata/theirs.avro"
    file = ContentFile(f"{metadata.location}/d.parquet", 1, 10, content, equality_ids=[1] if content == 2 else None)
    header = ManifestHeader(2, ManifestContent.DELETES, metadata.default_spec, metadata.current_schema)
    data, manifest = write_manifest(header, [ManifestEntry(EntryStatus.ADDED, file, 7)], location, 7)
    other.store("metadata/theirs.avro", data)
    before: Callable[[], list[ManifestFile]] = other.manifests
    other.manifests = lambda: [*before(), manifest]  # type: ignore[method-assign]
    other.commit()
    kind = "equality" if content == FileContent.EQUALITY_DELETES else "position"
    with pytest.raises(TerminalError, match=f"has a file of {kind} deletes"):
        upsert(target, 2, 2)


def test_a_column_that_others_have_dropped_and_added_again(tmp_path: Path) -> None:
    """Its files have the old values under the same name."""
    target = make_table(tmp_path)
    upsert(target, 1, 1)
    other = other_writer(target)
    metadata = other.metadata
    editor = SchemaEditor(metadata.current_schema, metadata.last_column_id, 3)
    editor.drop_column("v.w")
    editor.add_column("v.w", pa.string())
    editor.order_columns([*metadata.current_schema.columns])
    schema = editor.build_schema(1)
    other.update([table_updates.add_schema(schema, editor.last_column_id), table_updates.set_current_schema()])
    for again in (target, open_sink(tmp_path).table(KEYED)):
        with pytest.raises(TerminalError, match="other columns"):
            upsert(again, 2, 2)


def test_a_version_that_lacks_vectors_is_refused_by_name(tmp_path: Path) -> None:
    make_table(tmp_path, copy_on_write_tables=(".*[.].*",))
    with pytest.raises(NotReadyError, match="has format version 2, which has no deletion vectors"):
        open_sink(tmp_path).table(KEYED).create("p")


# ---------------------------------------------------------------- responses that are lost


def test_what_a_commit_requires(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Markers alone are no less compared than rows: each makes a snapshot, on the one that it was decided on."""
    target, real = make_table(tmp_path), SqlCatalog.commit_table
    commits: list[tuple[set[str], list[str]]] = []

    def commit_table(*arguments: Any) -> Any:
        *_, requirements, updates = arguments
        commits.append(({r["type"] for r in requirements}, [u["action"] for u in updates]))
        return real(*arguments)

    monkeypatch.setattr(SqlCatalog, "commit_table", commit_table)
    target.raise_fence(FENCE)
    upsert(target, 1, 1)
    assert open_sink(tmp_path).table(KEYED.replace(columns=(INT,))).alter(KEYED, {"ddl": 1}, FENCE)
    always = {"assert-table-uuid", "assert-ref-snapshot-id"}
    of_rows = {"assert-current-schema-id", "assert-default-spec-id"}
    of_definitions = {"assert-last-assigned-field-id", "assert-last-assigned-partition-id"}
    schema_only = ({"assert-table-uuid", "assert-last-assigned-field-id"}, ["add-schema"])
    assert commits.pop(2) == schema_only, "it is not the current one, so no snapshot is missed"
    assert [required for required, _ in commits] == [always, always | of_rows, always | of_rows | of_definitions]
    for _, actions in commits:
        assert {"add-snapshot", "set-snapshot-ref", "set-properties"} <= {*actions}


@pytest.mark.parametrize("outcome", [CommitOutcome.UNKNOWN, CommitOutcome.CONFLICT])
def test_a_commit_whose_response_was_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcome: CommitOutcome
) -> None:
    """It is found in the table: even if a repeated request has found that it was made."""
    target, real = make_table(tmp_path), SqlCatalog.commit_table
    upsert(target, 1, 1, 2)

    def lost(*arguments: Any) -> Any:
        assert real(*arguments)[0] is CommitOutcome.DONE
        return outcome, None

    with monkeypatch.context() as patch:
        patch.setattr(SqlCatalog, "commit_table", lost)
        upsert(target, 2, 2, 3)
    upsert(target, 3, 1)
    assert held(target) == {1: 3, 2: 2, 3: 2}


def test_files_of_an_unknown_commit_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be made later."""
    target, real = make_table(tmp_path), SqlCatalog.commit_table
    upsert(target, 1, 1, 2)
    requests: list[Any] = []

    def delayed(*arguments: Any) -> Any:
        requests.append(arguments)
        return CommitOutcome.UNKNOWN, None

    with monkeypatch.context() as patch:
        patch.setattr(SqlCatalog, "commit_table", delayed)
        with pytest.raises(TransientError, match="it is unknown whether snapshot"):
            upsert(target, 2, 2)
    target.clean_up()
    assert real(*requests[0])[0] is CommitOutcome.DONE
    assert held(target) == {1: 1, 2: 2} and target.markers().get("stream") == 2


def test_an_error_of_the_commit_deletes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = make_table(tmp_path)
    upsert(target, 1, 1, 2)
    before = {name for name, _ in target.storage.list("")}

    def broken(*_: Any) -> Any:
        raise TransientError("the connection broke", "Run again")

    with monkeypatch.context() as patch, pytest.raises(TransientError):
        patch.setattr(SqlCatalog, "commit_table", broken)
        upsert(target, 2, 1)
    written = {name for name, _ in target.storage.list("")} - before
    assert {name.rpartition(".")[2] for name in written} == {"parquet", "puffin", "avro"} and len(written) == 5


# ---------------------------------------------------------------- upkeep


def read_all_snapshots(target: IcebergSinkTable) -> int:
    """Read every snapshot by pyiceberg; how many there are."""
    table = StaticTable.from_metadata(metadata_file(target).as_uri())
    for snapshot in table.snapshots():
        table.scan(snapshot_id=snapshot.snapshot_id).to_arrow()
    return len(table.snapshots())


def test_snapshots_expire_in_the_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Metadata stays small. Snapshots of branches and tags stay, whatever their age."""
    monkeypatch.setattr(snapshot_expiry, "MAX_SNAPSHOTS", 5)
    monkeypatch.setattr(snapshot_expiry, "EXPIRY_BATCH", 1)
    target = make_table(tmp_path)
    upsert(target, 1, 1, 2, 3)
    tagged = next(iter(other_writer(target).metadata.snapshots))
    other_writer(target).update([{**table_updates.set_snapshot_ref(tagged, "theirs"), "type": "tag"}])
    sizes = []
    for seq in range(2, 40):
        upsert(target, seq, seq % 3 + 1)
        sizes.append(metadata_file(target).stat().st_size)
    metadata = other_writer(target).metadata
    assert len(metadata.snapshots) == 6 and tagged in metadata.snapshots
    assert max(sizes[-10:]) < 1.1 * max(sizes[20:30])
    monkeypatch.setattr(upkeep, "RETENTION_SECONDS", -3600)
    target.clean_up()
    assert read_all_snapshots(target) == 6
    upsert(target, 50, 2)


def test_files_of_expired_snapshots_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an hour: what a snapshot needs stays, and what waits to be published."""
    monkeypatch.setattr(snapshot_expiry, "MAX_SNAPSHOTS", 3)
    monkeypatch.setattr(snapshot_expiry, "EXPIRY_BATCH", 1)
    monkeypatch.setattr(commit_encoder, "MERGED_MANIFESTS", 2)
    monkeypatch.setattr(compaction, "FANOUT", 3)
    target = make_table(tmp_path)
    for seq in range(1, 12):
        upsert(target, seq, seq % 4, seq % 4 + 10)
        if work := target.plan_compactions(purge=seq % 3 == 0):
            target.commit_compactions([(c, c.run()) for c in work])
    for seq in range(12, 17):  # their files stay, in other manifests
        upsert(target, seq, 100 + seq)
    expected = held(target)
    waiting = target.stage("1/0/1/slice", [rows((99, "staged", 1, "r"))])
    before = {name for name, _ in target.storage.list("")}
    target.clean_up()
    assert {name for name, _ in target.storage.list("")} == before, "readers of an expired snapshot may be at work"
    monkeypatch.setattr(upkeep, "RETENTION_SECONDS", -3600)
    other = open_sink(tmp_path).table(KEYED)  # another process, which knows nothing of what was removed
    other.clean_up()
    left = {name for name, _ in target.storage.list("")}
    assert len(left) < len(before) / 2 and target.is_staged(waiting)
    lists = {name for name in left if name.startswith("metadata/snap-")}
    assert read_all_snapshots(target) == len(lists) == 3 and held(target) == expected
    other.clean_up()
    assert {name for name, _ in target.storage.list("")} == left
    target.commit(lambda _: PublishSlices([waiting]), {}, FENCE)
    assert held(target) == {**expected, 99: 1}


def test_old_files_go_although_others_have_deleted_a_manifest_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Spark does with snapshots that it lets expire: what is older is found as files that nobody needs."""
    monkeypatch.setattr(snapshot_expiry, "MAX_SNAPSHOTS", 3)
    monkeypatch.setattr(snapshot_expiry, "EXPIRY_BATCH", 1)
    target = make_table(tmp_path)
    lists = []
    for seq in range(1, 12):
        upsert(target, seq, seq % 3)
        snapshot = target._log.metadata.current_snapshot
        assert snapshot is not None
        lists.append(target._log.location.path_of(snapshot.manifest_list))
    expected = held(target)
    target.storage.delete(lists[5])
    monkeypatch.setattr(upkeep, "RETENTION_SECONDS", -3600)
    target.clean_up()
    assert {name for name in lists if target.storage.size(name)} == {*lists[:5], *lists[8:]}
    monkeypatch.setattr(upkeep, "ABANDONED_HOURS", -1)
    target.clean_up()
    names = {name for name, _ in target.storage.list("") if name.endswith((".avro", ".parquet", ".puffin"))}
    assert names == needed_files(target) and held(target) == expected and read_all_snapshots(target) == 3


def needed_files(target: IcebergSinkTable) -> set[str]:
    """Data files, deletion vectors, manifests and manifest lists of all snapshots in the metadata."""
    log, found = target.load_log(), set[str]()
    for snapshot in log.metadata.snapshots.values():
        manifests = log.reader.read_list(snapshot.manifest_list)
        found.add(log.location.path_of(snapshot.manifest_list))
        found |= {log.location.path_of(manifest.manifest_path) for manifest in manifests}
        found |= find_paths(log.reader, manifests)
    return found


def test_a_compacted_file_whose_rows_stay_is_not_written_again(tmp_path: Path) -> None:
    """Rows in it have their row ids, in columns that the table does not have."""
    target = make_table(tmp_path, deletes=DeletePolicy(ignore=(".*[.].*",)))
    for seq in range(1, 4):
        upsert(target, seq, seq)
    work = target.plan_compactions(purge=True)
    assert target.commit_compactions([(c, c.run()) for c in work]) == 1
    before, ids = {*target.load_log().files}, lineage(target)
    for generation in (2, 3):
        slices = [target.stage(f"{generation}/0/1/slice", [rows((9, "read", 5 * generation, "r"))])]
        assert target.overwrite(slices, {"anew": generation}, FENCE, keep_deleted_to=5 * generation)
        assert before < {*target.load_log().files} and len(target.load_log().files) == 2
    now = lineage(target)
    assert {key: now[key] for key in ids} == ids and len(now) == 4


def test_what_older_snapshots_have_is_not_cleared(tmp_path: Path) -> None:
    """Changes of an earlier epoch that a compaction has replaced are read by readers of older snapshots."""
    sink, target = open_sink(tmp_path), make_table(tmp_path)
    for number in (1, 2, 3):
        writer = sink.change_staging().open_writer(KEYED, f"epoch-1/{number}")
        writer.add(rows((number, "a", number, "c")).to_batches()[0])
        writer.close()
        changes = sink.change_staging().read_for_apply(KEYED, [f"epoch-1/{number}"])
        assert target.commit(lambda _: Upsert(changes), {}, FENCE)  # noqa: B023
    work = target.plan_compactions(purge=True)
    assert target.commit_compactions([(c, c.run()) for c in work]) == 1
    abandoned = sink.change_staging().open_writer(KEYED, "epoch-1/abandoned")
    abandoned.close()
    sink.change_staging().clear_older_epochs([KEYED], 2)
    names = {name for name, _ in target.storage.list("changes")}
    assert names == {f"changes/epoch-1/{number}.parquet" for number in (1, 2, 3)}
    assert read_all_snapshots(target) == 4


def test_manifests_are_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They stay few; no row gets another row id by that."""
    monkeypatch.setattr(commit_encoder, "MERGED_MANIFESTS", 4)
    target, row_ids = make_table(tmp_path), dict[str, int | None]()
    for seq in range(1, 20):
        upsert(target, seq, seq)
        assert sum(m.is_data for m in target._log.manifests.values()) <= 5
        for path, file in open_sink(tmp_path).table(KEYED).load_log().files.items():
            assert row_ids.setdefault(path, file.entry.file.first_row_id) == file.entry.file.first_row_id
    assert held(target) == {seq: seq for seq in range(1, 20)}
    assert len({*row_ids.values()}) == 19


def test_a_warm_log_is_as_a_cold_one(tmp_path: Path) -> None:
    """What an own commit leads to in memory is what the files say."""
    target = make_table(tmp_path)
    upsert(target, 1, *range(20))
    for seq in range(2, 7):
        upsert(target, seq, seq, seq + 5, 1)
        cold = open_sink(tmp_path).table(KEYED).load_log()
        warm = target._log
        assert {p: (f.entry, f.vector) for p, f in warm.files.items()} == {
            p: (f.entry, f.vector) for p, f in cold.files.items()
        }
        assert all(warm.dead_rows(path) == cold.dead_rows(path) for path in cold.files)
        assert warm.manifests.keys() == cold.manifests.keys() and warm.markers == cold.markers
        vectors = [e for m in cold.manifests.values() if not m.is_data for e in m.entries]
        assert len(vectors) == sum(f.vector is not None for f in cold.files.values()), "one for each file"
    target._log.cross_check_files()


def lineage(target: IcebergSinkTable) -> dict[int, tuple[int, int]]:
    """Row id of each key, and the number of the commit that changed it last, as DuckDB reads them."""
    columns = "id, _row_id, _last_updated_sequence_number AS seq"
    read = read_with_duckdb(metadata_file(target), columns).to_pylist()
    return {row["id"]: (row["_row_id"], row["seq"]) for row in read}


@pytest.mark.parametrize("copies", [(), (".*[.].*",)], ids=["vectors", "copies"])
def test_rows_keep_their_ids_in_other_files(tmp_path: Path, copies: tuple[str, ...]) -> None:
    """By compaction, twice, and by copies in a table of version 3; rows that die meanwhile are dead."""
    target = make_table(tmp_path)
    for seq in range(1, 5):
        upsert(target, seq, *range(seq, 10 * seq, seq))
    before = lineage(target)
    target = open_sink(tmp_path, copy_on_write_tables=copies).table(KEYED)
    for number in range(2):
        work = target.plan_compactions(purge=True)
        results = [(c, c.run()) for c in work]
        if not copies:
            upsert(target, 100 + number, 7, op="d")
            before.pop(7, None)
        assert target.commit_compactions(results) == len(results)
        assert lineage(target) == before
        upsert(target, 101 + number, 5)
        after = lineage(target)
        assert after.pop(5) != before.pop(5) and after == before
        before = lineage(target)


# ---------------------------------------------------------------- partitions and columns

EVENTS = TableSchema(
    "shop",
    "events",
    (INT, nullable("day", "date"), nullable("at", "datetime", fsp=6), nullable("n", "tinyint"), TEXT),
    ("id",),
)


@pytest.mark.parametrize(
    "parts",
    [
        (("day", "day"),),
        (("at", "hour"),),
        (("at", "month"), ("n", None)),
        (("day", "year"), ("v.w", None)),
        (("day", None),),
    ],
    ids=str,
)
def test_partitions(tmp_path: Path, parts: tuple[tuple[str, str | None], ...]) -> None:
    """Others find the rows by any value of any partition column."""
    target = make_table(tmp_path, EVENTS, partition_by=(("shop[.]events", parts),))
    days = [date(1960, 2, 29), date(2026, 11, 28), None, date(2026, 12, 1)]
    listed = [
        {
            "id": n,
            "day": (day := days[n % 4]),
            "at": datetime(day.year, day.month, day.day, n, 59) if day else None,
            "n": n % 3 - 1 if n % 5 else None,
            "v.w": ("", "a/b", "ä", None)[n % 4],
            SEQ_COLUMN: 1,
            OP_COLUMN: "c",
            TS_COLUMN: 0,
        }
        for n in range(20)
    ]
    files = [target.stage("1/0/1/slice", [pa.Table.from_pylist(listed[:10], EVENTS.sink_schema)])]
    target.commit(lambda _: PublishSlices(files), {}, FENCE)
    changes = pa.Table.from_pylist([{**row, SEQ_COLUMN: 2} for row in listed[5:]], EVENTS.sink_schema)
    target.commit(lambda _: Upsert(changes), {}, FENCE)
    cold = open_sink(tmp_path, partition_by=(("shop[.]events", parts),)).table(EVENTS)
    assert cold.commit_compactions([(c, c.run()) for c in cold.plan_compactions(purge=True)]) >= 1
    table = StaticTable.from_metadata(metadata_file(target).as_uri())
    rows_read = sorted(table.scan().to_arrow().to_pylist(), key=lambda row: int(row["id"]))
    assert [row["id"] for row in rows_read] == [*range(20)] == sorted(target.read()[0]["id"].to_pylist())
    for column in {name for name, _ in parts} - {"v.w"}:  # a dot is a path in a filter
        for value in {row[column] for row in listed}:
            wanted = {row["id"] for row in listed if row[column] == value}
            text = value.isoformat() if isinstance(value, date) else value
            if value is None:
                found = table.scan(row_filter=f'"{column}" IS NULL')
            else:
                found = table.scan(row_filter=f'"{column}" = {text!r}')
            assert {*found.to_arrow()["id"].to_pylist()} == wanted, (column, value)
    names = [part.name for part in table.spec().fields]
    assert names == [f"{name}_{unit}" if unit else name for name, unit in parts]
    assert len({str(f.file.partition) for f in table.scan().plan_files()}) > 2


def test_changes_that_are_staged_beside_others(tmp_path: Path) -> None:
    """A table may have two in one batch range, as when rows that stay are marked by a TRUNCATE."""
    sink = open_sink(tmp_path, partition_by=((".*[.].*", (("v.w", None),)),))
    staging, names = sink.change_staging(), ["epoch-1/7-0-5", "epoch-1/7-0-5-1", "epoch-1/7-0-5-2"]
    sink.table(KEYED).create("p")
    for number, name in enumerate(names):
        writer = staging.open_writer(KEYED, name)
        writer.add(rows(*((10 * number + n, f"v{n}", 1, "c") for n in range(4))).to_batches()[0])
        writer.close()
    for read in (staging.read_changes, staging.read_for_apply):
        assert sorted(read(KEYED, names)["id"].to_pylist()) == [10 * k + n for k in range(3) for n in range(4)]


def test_other_partitions_are_refused(tmp_path: Path) -> None:
    make_table(tmp_path, EVENTS, partition_by=(("shop[.]events", (("day", "month"),)),))
    with pytest.raises(TerminalError, match="is partitioned by day_month, but sink.partition_by says day_year"):
        open_sink(tmp_path, partition_by=(("shop[.]events", (("day", "year"),)),)).table(EVENTS).create("p")


def test_columns_change_without_another_file(tmp_path: Path) -> None:
    """One becomes wider, one goes, and one comes."""
    narrow = (INT, nullable("n", "int"), nullable("x", "float"), nullable("d", "decimal", precision=5, scale=2))
    table = TableSchema("shop", "t", narrow, ("id",))
    wide = table.replace(
        columns=(
            INT.replace(data_type="bigint", column_type="bigint"),
            nullable("new", "int"),
            nullable("x", "double"),
            nullable("d", "decimal", precision=30, scale=2),
        )
    )
    target = make_table(tmp_path, table)
    listed = [{"id": n, "n": n, "x": n / 2, SEQ_COLUMN: n, OP_COLUMN: "c", TS_COLUMN: 0} for n in range(1, 4)]
    for row in listed:
        one = pa.Table.from_pylist([row], table.sink_schema)
        assert target.commit(lambda _: Upsert(one), {}, FENCE)  # noqa: B023
    before = {name: target.storage.read(name) for name, _ in target.storage.list("") if name.endswith(".parquet")}
    altered = open_sink(tmp_path).table(wide)
    assert altered.alter(table, {"ddl": 1}, FENCE)
    more = pa.Table.from_pylist(
        [{"id": 2**40, "new": 7, "x": 0.1, SEQ_COLUMN: 9, OP_COLUMN: "c", TS_COLUMN: 0}, {**listed[1], SEQ_COLUMN: 9}],
        wide.sink_schema,
    )
    assert altered.commit(lambda _: Upsert(more), {}, FENCE)
    assert before.items() <= {n: target.storage.read(n) for n, _ in target.storage.list("")}.items()
    for read in (
        altered.read()[0],
        read_with_pyiceberg(metadata_file(altered)),
        read_with_duckdb(metadata_file(altered)),
    ):
        found = Counter((row["id"], row["new"], row["x"], row[SEQ_COLUMN]) for row in read.to_pylist())
        assert found == Counter([(1, None, 0.5, 1), (2, None, 1.0, 9), (3, None, 1.5, 3), (2**40, 7, 0.1, 9)])
        assert "n" not in read.column_names


def test_files_from_before_a_column_came_back(tmp_path: Path) -> None:
    """It has another field id now, by which no reader would find their values."""
    target = make_table(tmp_path)
    waiting = target.stage("1/0/1/slice", [rows((1, "a", 1, "r"))])
    less = KEYED.replace(columns=(INT,))
    assert open_sink(tmp_path).table(less).alter(KEYED, {"ddl": 1}, FENCE)
    again = open_sink(tmp_path).table(KEYED)
    assert again.alter(less, {"ddl": 2}, FENCE)
    with pytest.raises(TransientError, match="was written with schema 0 of the Iceberg table"):
        again.commit(lambda _: PublishSlices([waiting]), {}, FENCE)
    files = [again.stage("1/0/2/slice", [rows((1, "a", 1, "r"))])]
    assert again.commit(lambda _: PublishSlices(files), {}, FENCE) and held(again) == {1: 1}


def test_a_slice_from_before_the_table_was_created(tmp_path: Path) -> None:
    """Its field ids are those of the new table, also after that was altered; but not those of a column that is back."""
    early = open_sink(tmp_path).table(KEYED)
    slices = [early.stage(f"1/0/{n}/slice", [rows((n, f"v{n}", 1, "r"))]) for n in range(3)]
    make_table(tmp_path)
    more = KEYED.replace(columns=(INT, nullable("n", "int"), TEXT))
    altered = open_sink(tmp_path).table(more)
    assert altered.alter(KEYED, {"ddl": 1}, FENCE)
    assert altered.commit(lambda _: PublishSlices(slices[:1]), {}, FENCE)
    expected = [{"id": 0, "n": None, "v.w": "v0"}]
    for read in (altered.read()[0], *(read(metadata_file(altered)) for read in READERS)):
        assert read.select(["id", "n", "v.w"]).to_pylist() == expected
    less, again = more.replace(columns=(INT, nullable("n", "int"))), open_sink(tmp_path).table(more)
    assert open_sink(tmp_path).table(less).alter(more, {"ddl": 2}, FENCE)
    assert again.alter(less, {"ddl": 3}, FENCE)
    with pytest.raises(TransientError, match="was written with schema -1 of the Iceberg table"):
        again.commit(lambda _: PublishSlices(slices[1:2]), {}, FENCE)


def test_an_overwrite_takes_over_comments(tmp_path: Path) -> None:
    """Those of columns that are otherwise the same, and stay the same for readers."""
    target = make_table(tmp_path, KEYED.replace(comments=(("v.w", "old"),)))
    ids = [nested.id for nested in target.load_log().metadata.current_schema.fields]
    target = open_sink(tmp_path).table(KEYED.replace(comments=(("v.w", "new"), ("id", "key"))))
    slices = [target.stage("1/0/1/slice", [rows((1, "a", 0, "r"))])]
    assert target.overwrite(slices, {"read": 1}, FENCE)
    schema = target.load_log().metadata.current_schema
    assert [(nested.name, nested.doc) for nested in schema.fields if nested.doc] == [("id", "key"), ("v.w", "new")]
    assert [nested.id for nested in schema.fields] == ids


def test_slices_from_before_and_after_the_table_was_created(tmp_path: Path) -> None:
    early = open_sink(tmp_path).table(KEYED)
    slices = [early.stage("1/0/1/slice", [rows((1, "v1", 1, "r"))])]
    target = make_table(tmp_path)
    slices.append(target.stage("1/0/2/slice", [rows((2, "v2", 1, "r"))]))
    assert [file.schema_id for file in slices] == [-1, 0]
    assert target.overwrite(slices, {"read": 1}, FENCE) and held(target) == {1: 1, 2: 1}


@pytest.mark.parametrize("at", ["add-schema", "set-current-schema", ""], ids=["adding", "setting", "both"])
@pytest.mark.parametrize("with_ids", [False, True])
def test_a_schema_that_others_add_while_the_table_is_altered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_ids: bool, at: str
) -> None:
    """It has the number, and perhaps the field id, that ours would have had."""
    target, real = make_table(tmp_path), SqlCatalog.commit_table
    upsert(target, 1, 1)
    interfered = list[int]()

    def commit_table(self: SqlCatalog, identifier: Any, base: Any, requirements: Any, updates: Any) -> Any:
        actions = [u["action"] for u in updates]
        if len(interfered) < 4 and (at in actions if at else {"add-schema", "set-current-schema"} & {*actions}):
            now = self.load_table(identifier)
            assert now is not None
            editor = SchemaEditor(now.metadata.current_schema, now.metadata.last_column_id, 3)
            editor.set_doc("v.w", f"theirs {len(interfered)}")
            if with_ids:
                editor.add_column("theirs", pa.string())
            interfered.append(editor.last_column_id)
            theirs = table_updates.add_schema(editor.build_schema(0), editor.last_column_id)
            assert real(self, identifier, now, [], [theirs])[0] is CommitOutcome.DONE
        return real(self, identifier, base, requirements, updates)

    monkeypatch.setattr(SqlCatalog, "commit_table", commit_table)
    altered = open_sink(tmp_path).table(KEYED.replace(columns=(INT, TEXT, nullable("n", "int"))))
    assert altered.alter(KEYED, {"ddl": 1}, FENCE) and interfered
    metadata = loaded_table(altered).metadata
    assert metadata.current_snapshot is not None
    assert metadata.current_snapshot.json["schema-id"] == metadata.json["current-schema-id"]
    assert [*metadata.current_schema.columns] == altered.schema.names
    others = {f.id for s in metadata.schemas.values() for f in s.fields if f.name == "theirs"}
    assert metadata.current_schema.columns["n"].id not in others and bool(others) == with_ids
    changes = pa.Table.from_pylist(
        [{"id": 1, "v.w": "x", "n": 7, SEQ_COLUMN: 2, OP_COLUMN: "u", TS_COLUMN: 0}], altered.schema
    )
    assert altered.commit(lambda _: Upsert(changes), {}, FENCE)
    for read in (altered.read()[0], *(read(metadata_file(altered)) for read in READERS)):
        assert read["n"].to_pylist() == [7]


def test_files_elsewhere_are_refused(tmp_path: Path) -> None:
    target = make_table(tmp_path)
    upsert(target, 1, 1)
    other = other_writer(target)
    other.commit([ContentFile(f"{tmp_path.as_uri()}/elsewhere.parquet", 1, 10)])
    with pytest.raises(TerminalError, match="has a file outside of its folder"):
        upsert(target, 2, 2)


def test_files_have_field_ids(tmp_path: Path) -> None:
    """Those of slices, of changes that are staged, and of compacted ones."""
    sink, target = open_sink(tmp_path), make_table(tmp_path)
    slices = [target.stage("1/0/1/slice", [rows((1, "a", 1, "r"))])]
    target.commit(lambda _: PublishSlices(slices), {}, FENCE)
    writer = sink.change_staging().open_writer(KEYED, "epoch-1/one")
    writer.add(rows((2, "b", 2, "c")).to_batches()[0])
    writer.close()
    changes = sink.change_staging().read_for_apply(KEYED, ["epoch-1/one"])
    target.commit(lambda _: Upsert(changes), {}, FENCE)
    work = target.plan_compactions(purge=True)
    assert target.commit_compactions([(c, c.run()) for c in work]) == 1
    names = [name for name, _ in target.storage.list("") if name.endswith(".parquet")]
    assert len(names) == 3
    wanted = {f.name: str(f.id).encode() for f in target._log.metadata.current_schema.fields}
    for name in names:
        schema = pq.read_schema(Path(target.storage.location(name)))
        ids = {field.name: field.metadata[b"PARQUET:field_id"] for field in schema}
        assert wanted.items() <= ids.items() and ids.keys() - wanted.keys() <= {
            "_row_id",
            "_last_updated_sequence_number",
        }


# ---------------------------------------------------------------- adoption


def test_a_table_of_others_is_adopted(tmp_path: Path) -> None:
    """One that pyiceberg has made, of version 2: it is not upgraded, and its rows go."""
    catalog = PyicebergCatalog("iceberg", uri=f"sqlite:///{tmp_path}/iceberg_catalog.db", warehouse=tmp_path.as_uri())
    catalog.create_namespace("shop")
    columns = pa.schema([pa.field("v.w", pa.string()), pa.field("id", pa.int32(), nullable=False)])
    theirs = catalog.create_table("shop.orders", columns, f"file://{tmp_path}/shop/orders")
    theirs.append(pa.table({"v.w": ["x"], "id": pa.array([5], pa.int32())}, schema=columns))
    with pytest.raises(NotReadyError, match="which has no deletion vectors"):
        open_sink(tmp_path, adopt=True).table(KEYED).create("p")
    options = {"adopt": True, "copy_on_write_tables": (".*[.].*",)}
    with pytest.raises(NotReadyError, match="it lacks column more"):
        open_sink(tmp_path, **options).table(KEYED.replace(columns=(INT, TEXT, nullable("more", "int")))).create("p")
    with pytest.raises(TerminalError, match="was not created by pipeline p"):
        open_sink(tmp_path, copy_on_write_tables=(".*[.].*",)).table(KEYED).create("p")
    target = open_sink(tmp_path, **options).table(KEYED)
    assert target.will_adopt("p")
    target.create("p")
    assert not target.will_adopt("p") and held(target) == {}
    upsert(target, 1, 1, 2)
    assert held(target) == {1: 1, 2: 1} and theirs.refresh().metadata.format_version == 2
    with pytest.raises(CdcError, match="it belongs to pipeline p"):
        open_sink(tmp_path, **options).table(KEYED).will_adopt("q")


# ---------------------------------------------------------------- markers


def test_markers_of_chunk_groups_take_little_room() -> None:
    markers = {f"cdc/p/1/group/{n}": 1 for n in range(5000)} | {"cdc/p/1/group/77": 2, "cdc/p/group/x": -3, "a/": 1}
    properties: dict[str, str] = {}
    for name, value in markers.items():
        properties |= marker_properties(parse_markers(properties) if "group/x" in name else {}, {name: value})
    properties = marker_properties({}, markers)
    assert parse_markers(properties) == markers and len(str(properties)) < 300
    changed = marker_properties(markers, {"cdc/p/1/group/78": 3, "cdc/p/group/x": 4})
    assert parse_markers({**properties, **changed}) == {**markers, "cdc/p/1/group/78": 3, "cdc/p/group/x": 4}
    assert marker_properties(markers, {"a/": 2}) == {"airflow-cdc.marker.a/": "2"}
    assert parse_markers(marker_properties({"g/7": 1}, {"g/07": 2, "g/8": 1})) == {"g/7": 1, "g/8": 1, "g/07": 2}
    with pytest.raises(TerminalError, match=r"airflow-cdc.markers.g/ has the value '1-x:1'"):
        parse_markers({"airflow-cdc.markers.g/": "1-x:1"})


# ---------------------------------------------------------------- definitions that come back, and old files


def test_a_partition_column_that_changes_its_type_and_back(tmp_path: Path) -> None:
    """A spec that the table has had before keeps its id; files of older specs are removed by their own columns."""
    numbers, texts = nullable("a", "int"), nullable("a", "varchar", "varchar(9)", charset="utf8mb4")
    tables = {
        kind: TableSchema("shop", "orders", (INT, column), ("id",)) for kind, column in ((1, numbers), (2, texts))
    }
    partition_by = ((".*[.].*", (("a", None),)),)
    make_table(tmp_path, tables[1], partition_by=partition_by)
    for step, (kind, value) in enumerate(((2, None), (1, 7), (2, "x"), (1, 8)), 1):
        target = open_sink(tmp_path, partition_by=partition_by).table(tables[kind])
        listed = [] if value is None else [dict(zip(target.schema.names, (1, value, 9, "r", None), strict=False))]
        staged = target.stage(f"1/{step}/1/s", [pa.Table.from_pylist(listed, target.schema)])
        assert target.overwrite([staged], {"step": step}, FENCE)
        log = target.open_log()
        log.refresh()
        partitions = [[*file.partition.values()] for file in log.files.values()]
        assert partitions == ([[str(value)]] if value else [])
        for read in (read_with_pyiceberg, read_with_duckdb):
            assert read(metadata_file(target)).column("a").to_pylist() == ([value] if value else [])
    assert len(loaded_table(target).metadata.partition_specs) == 2


def test_a_branch_in_place_of_main_is_noticed_although_its_base_has_expired(tmp_path: Path) -> None:
    target = make_table(tmp_path)
    upsert(target, 1, 1)
    base = loaded_table(target).metadata.current_snapshot
    assert base is not None
    other_writer(target).update([table_updates.set_snapshot_ref(base.snapshot_id, "audit")])
    target = open_sink(tmp_path).table(KEYED)
    upsert(target, 2, 2)
    other = other_writer(target)
    known, number = other.metadata, new_snapshot_id(other.metadata.snapshots)
    snapshot = make_snapshot(
        number,
        base.snapshot_id,
        known.last_sequence_number + 1,
        known.last_updated_ms + 1,
        base.manifest_list,
        "append",
        0,
        first_row_id=known.next_row_id,
        added_rows=0,
    )
    other.update([table_updates.add_snapshot(snapshot), table_updates.set_snapshot_ref(number, "audit")])
    other_writer(target).update([table_updates.set_snapshot_ref(number)])
    other_writer(target).update([table_updates.remove_snapshots([base.snapshot_id])])
    with pytest.raises(TerminalError, match="rolled back or replaced"):
        open_sink(tmp_path).table(KEYED).read()


def test_what_others_say_about_retention_stays(tmp_path: Path) -> None:
    """That of the main branch is part of each commit; with ``gc.enabled = false``, nothing expires or is deleted."""
    target = make_table(tmp_path)
    upsert(target, 1, 1)
    current = loaded_table(target).metadata.current_snapshot
    assert current is not None
    other_writer(target).update(
        [
            table_updates.set_snapshot_ref(current.snapshot_id, max_snapshot_age_ms=604_800_000),
            table_updates.set_properties({"gc.enabled": "false", "history.expire.max-snapshot-age-ms": "1"}),
        ]
    )
    target = open_sink(tmp_path).table(KEYED)
    for seq in (2, 3):
        upsert(target, seq, 1)
    metadata = loaded_table(target).metadata
    assert metadata.refs["main"]["max-snapshot-age-ms"] == 604_800_000
    other_writer(target).update([table_updates.set_snapshot_ref(metadata.refs["main"]["snapshot-id"])])
    target = open_sink(tmp_path).table(KEYED)
    upsert(target, 4, 1)
    assert len(loaded_table(target).metadata.snapshots) == 4


def test_rows_of_an_upgraded_table_keep_their_ids(tmp_path: Path) -> None:
    """From the first commit after the upgrade on, in the manifest list and for this writer."""
    target = make_table(tmp_path, copy_on_write_tables=(".*[.].*",))
    staged = target.stage("1/0/1/s", [rows((1, "a", 1, "r"), (2, "a", 1, "r"))])
    assert target.commit(lambda _: PublishSlices([staged]), {"g": 1}, FENCE)
    table, catalog = loaded_table(target), catalog_of(target)
    assert isinstance(catalog, SqlCatalog)
    upgraded = TableMetadata({**table.metadata.json, "format-version": 3, "next-row-id": 0})
    location = catalog._write_metadata(upgraded, table.metadata_location)
    with closing(sqlite3.connect(tmp_path / "iceberg_catalog.db")) as connection:
        connection.execute("UPDATE iceberg_tables SET metadata_location = ?", (location,))
        connection.commit()
    target = open_sink(tmp_path).table(KEYED)
    first_ids = set()
    for seq in (2, 3, 4):
        upsert(target, seq, 10 + seq)
        log = target.open_log()
        log.refresh()
        (path,) = (file.path for file in staged.files)
        first_ids |= {log.files[path].entry.file.first_row_id, target.load_log().files[path].entry.file.first_row_id}
    assert len(first_ids) == 1 and None not in first_ids
