"""Commits that a catalog refuses, or says to refuse, and what other clients do at the same time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_cdc.config.catalog_settings import REST, CatalogSettings
from airflow_provider_cdc.model.errors import TransientError
from airflow_provider_cdc.model.schema import SEQ_COLUMN
from airflow_provider_cdc.sinks.iceberg import snapshot_expiry
from airflow_provider_cdc.sinks.iceberg.catalogs.protocol import CatalogTable, CommitOutcome
from airflow_provider_cdc.sinks.iceberg.catalogs.rest_catalog import RestCatalog
from airflow_provider_cdc.sinks.iceberg.catalogs.sql_catalog import SqlCatalog
from airflow_provider_cdc.sinks.iceberg.format import table_updates
from airflow_provider_cdc.sinks.iceberg.sink import IcebergSink
from airflow_provider_cdc.sinks.iceberg.table import IcebergSinkTable
from airflow_provider_cdc.sinks.lake import compaction, lake_table, transactional_table
from airflow_provider_cdc.sinks.protocol import Upsert
from tests.sinks.conformance import KEYED, preceded_by
from tests.sinks.iceberg.test_catalogs import empty_snapshot
from tests.sinks.iceberg.test_table import FENCE, held, make_table, other_writer, rows, upsert
from tests.support.iceberg_catalogs import CatalogFolderTable
from tests.support.iceberg_rest import IcebergRest, RestFault, RestProxy

COPIES = (".*[.].*",)


@pytest.fixture(params=[(), COPIES], ids=["vectors", "copies"])
def target(iceberg_rest: IcebergRest, tmp_path: Path, request: pytest.FixtureRequest) -> IcebergSinkTable:
    """A table in a REST catalog, with five commits."""
    iceberg_rest.forget_all()
    sink = IcebergSink(str(tmp_path), "p", request.param, catalog=CatalogSettings(REST, iceberg_rest.uri))
    found = sink.table(KEYED)
    found.create("p")
    for seq in range(1, 6):
        upsert(found, seq, seq)
    return found


@pytest.fixture
def other(target: IcebergSinkTable, iceberg_rest: IcebergRest) -> CatalogFolderTable:
    """Another client."""
    catalog = RestCatalog({"uri": iceberg_rest.uri})
    loaded = catalog.load_table(target.identifier)
    assert loaded is not None
    return CatalogFolderTable.of(catalog, loaded, target.identifier)


def sequence_numbers(target: IcebergSinkTable) -> dict[int, int]:
    found = target.read()[0]
    return dict(zip(found["id"].to_pylist(), found[SEQ_COLUMN].to_pylist(), strict=True))


def set_ref(other: CatalogFolderTable, name: str, snapshot_id: int, kind: str) -> None:
    other.update([{**table_updates.set_snapshot_ref(snapshot_id, name), "type": kind}])
    assert other.outcome is CommitOutcome.DONE


def commit_to_branch(other: CatalogFolderTable, name: str) -> None:
    """Add an empty snapshot to a branch, and leave `main` alone."""
    snapshot = empty_snapshot(other.metadata)
    location = other.store(f"metadata/{snapshot.snapshot_id}.avro", b"")
    added = type(snapshot)({**snapshot.json, "manifest-list": location})
    other.update([table_updates.add_snapshot(added), table_updates.set_snapshot_ref(added.snapshot_id, name)])
    assert other.outcome is CommitOutcome.DONE


def test_a_tag_that_is_made_meanwhile_stays(
    target: IcebergSinkTable, other: CatalogFolderTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log knows nothing of it: its metadata is younger than a minute."""
    monkeypatch.setattr(snapshot_expiry, "MAX_SNAPSHOTS", 3)
    monkeypatch.setattr(snapshot_expiry, "EXPIRY_BATCH", 1)
    oldest, newer, *_ = other.metadata.snapshots
    set_ref(other, "theirs", oldest, "tag")
    upsert(target, 6, 1)
    metadata = target.load_log().metadata
    assert metadata.refs["theirs"]["snapshot-id"] == oldest and oldest in metadata.snapshots
    assert newer not in metadata.snapshots and len(metadata.snapshots) == 4, "others have expired"


def test_a_branch_that_changes_while_snapshots_expire(
    target: IcebergSinkTable, other: CatalogFolderTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then they stay, until the next commit."""
    oldest, second, *_ = other.metadata.snapshots
    set_ref(other, "audit", oldest, "branch")
    target._log.refresh()
    monkeypatch.setattr(snapshot_expiry, "MAX_SNAPSHOTS", 3)
    monkeypatch.setattr(snapshot_expiry, "EXPIRY_BATCH", 1)
    real = RestCatalog.commit_table

    def meanwhile(*arguments: Any) -> Any:
        if arguments[-1][0]["action"] == "remove-snapshots" and other.catalog is not arguments[0]:
            other.metadata = target._log.metadata
            set_ref(other, "audit", second, "branch")
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(RestCatalog, "commit_table", meanwhile)
        upsert(target, 6, 1)
    metadata = target.load_log().metadata
    assert metadata.refs["audit"]["snapshot-id"] == second and len(metadata.snapshots) == 6
    upsert(target, 7, 1)
    metadata = target.load_log().metadata
    assert {oldest, second} < {*metadata.snapshots} and len(metadata.snapshots) == 5


def test_snapshots_expire_together(target: IcebergSinkTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few commits are made for that alone."""
    monkeypatch.setattr(snapshot_expiry, "MAX_SNAPSHOTS", 3)
    monkeypatch.setattr(snapshot_expiry, "EXPIRY_BATCH", 4)
    real, counts, removals = RestCatalog.commit_table, list[int](), list[int]()

    def counted(*arguments: Any) -> Any:
        removals.extend(len(u["snapshot-ids"]) for u in arguments[-1] if u["action"] == "remove-snapshots")
        return real(*arguments)

    monkeypatch.setattr(RestCatalog, "commit_table", counted)
    for seq in range(6, 16):
        upsert(target, seq, 1)
        counts.append(len(target._log.metadata.snapshots))
    assert counts == [6, 3, 4, 5, 6, 3, 4, 5, 6, 3] and removals == [4, 4, 4]


def test_a_catalog_that_fails_while_snapshots_expire(target: IcebergSinkTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit of the rows is made."""
    monkeypatch.setattr(snapshot_expiry, "MAX_SNAPSHOTS", 3)
    monkeypatch.setattr(snapshot_expiry, "EXPIRY_BATCH", 1)
    real = RestCatalog.commit_table

    def failing(*arguments: Any) -> Any:
        if arguments[-1][0]["action"] == "remove-snapshots":
            raise TransientError("the catalog is away", "Run again")
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(RestCatalog, "commit_table", failing)
        upsert(target, 6, 1)
        upsert(target, 7, 2)
    assert len(target.load_log().metadata.snapshots) == 7
    upsert(target, 8, 3)
    assert len(target.load_log().metadata.snapshots) == 3
    assert sequence_numbers(target) == {1: 6, 2: 7, 3: 8, 4: 4, 5: 5}


@pytest.mark.parametrize("fault", ["older", None])
def test_a_commit_to_another_branch_is_no_error(
    target: IcebergSinkTable, other: CatalogFolderTable, iceberg_rest: IcebergRest, fault: RestFault | None
) -> None:
    """The catalog has given the next sequence number to that one. It answers 409, or 400 if it is older."""
    with RestProxy(iceberg_rest) as proxy:
        sink = IcebergSink(
            target.storage.location("").removesuffix("/shop/orders"),
            "p",
            () if target.options.deletion_vectors else COPIES,
            catalog=CatalogSettings(REST, proxy.uri),
        )
        target = sink.table(KEYED)
        target._log.refresh()
        _commit_beside_a_branch(target, other, lambda: proxy.meet(fault) if fault else None)


def _commit_beside_a_branch(target: IcebergSinkTable, other: CatalogFolderTable, prepare: Callable[[], object]) -> None:
    set_ref(other, "audit", target._log.metadata.refs["main"]["snapshot-id"], "branch")
    for seq in range(6, 9):
        commit_to_branch(other, "audit")
        prepare()
        upsert(target, seq, 1)
        other.base = other.catalog.load_table(target.identifier) or other.base
        other.metadata = other.base.metadata
    assert sequence_numbers(target) == {1: 8, 2: 2, 3: 3, 4: 4, 5: 5}


def test_pyiceberg_commits_to_another_branch(iceberg_rest: IcebergRest, tmp_path: Path) -> None:
    from pyiceberg.catalog import load_catalog

    iceberg_rest.forget_all()
    found = IcebergSink(str(tmp_path), "p", COPIES, catalog=CatalogSettings(REST, iceberg_rest.uri)).table(KEYED)
    found.create("p")
    upsert(found, 1, 1)
    theirs = load_catalog("theirs", type="rest", uri=iceberg_rest.uri).load_table("shop.orders")
    current = theirs.current_snapshot()
    assert current is not None
    theirs.manage_snapshots().create_branch(current.snapshot_id, "audit").commit()
    columns = theirs.schema().as_arrow()
    added = rows((9, "theirs", 1, "c")).cast(pa.schema([columns.field(name) for name in columns.names]))
    theirs.append(added, branch="audit")
    upsert(found, 2, 2)
    assert sequence_numbers(found) == {1: 1, 2: 2}


# ---------------------------------------------------------------- answers that are wrong


@pytest.fixture
def lagging(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Let one commit be made and called a conflict, and the table be shown as it was before, so many times."""
    real_commit, real_load = SqlCatalog.commit_table, SqlCatalog.load_table
    bases: list[CatalogTable] = []
    counts = [0]

    def commit_table(catalog: Any, table: Any, base: CatalogTable, *more: Any) -> Any:
        outcome = real_commit(catalog, table, base, *more)
        if counts[0] and not bases:
            assert outcome[0] is CommitOutcome.DONE
            bases.append(base)
            return CommitOutcome.CONFLICT, None
        return outcome

    def load_table(*arguments: Any) -> Any:
        if bases and counts[0]:
            counts[0] -= 1
            return bases[0]
        return real_load(*arguments)

    def lag(times: int) -> None:
        counts[0] = times
        bases.clear()

    monkeypatch.setattr(SqlCatalog, "commit_table", commit_table)
    monkeypatch.setattr(SqlCatalog, "load_table", load_table)
    return lag


def commit_once(target: IcebergSinkTable, seq: int, *keys: int) -> bool:
    """As the stream does: not again, if it was made."""
    changes = rows(*((key, f"v{seq}", seq, "u") for key in keys))

    def decide(markers: Any) -> Upsert | None:
        return None if markers.get("stream", 0) >= seq else Upsert(changes)

    return target.commit(decide, {"stream": seq}, FENCE)


@pytest.mark.parametrize("copies", [(), COPIES], ids=["vectors", "copies"])
def test_a_commit_that_was_made_and_is_called_a_conflict(
    tmp_path: Path, lagging: Callable[[int], None], copies: tuple[str, ...]
) -> None:
    """By a catalog that has repeated it, and shows a table that is older than it: its files stay."""
    target = make_table(tmp_path, copy_on_write_tables=copies)
    upsert(target, 1, 1, 2, 3)
    for seq, times in ((2, 1), (3, 4)):
        lagging(times)
        assert not commit_once(target, seq, seq)
    assert held(target) == {1: 1, 2: 2, 3: 3}


def test_a_table_that_stays_old(
    tmp_path: Path, lagging: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactional_table, "COMMIT_TRIES", 3)
    target = make_table(tmp_path)
    upsert(target, 1, 1, 2)
    lagging(20)
    with pytest.raises(TransientError, match="could not be committed in 3 tries"):
        commit_once(target, 2, 2)
    lagging(0)
    assert held(target) == {1: 1, 2: 2}


@pytest.mark.parametrize("times", [1, 20])
def test_a_compaction_that_was_made_and_is_called_a_conflict(
    tmp_path: Path, lagging: Callable[[int], None], monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    monkeypatch.setattr(lake_table, "COMMIT_TRIES", 3)
    monkeypatch.setattr(compaction, "FANOUT", 3)
    target = make_table(tmp_path)
    for seq in range(1, 6):
        upsert(target, seq, seq, 10)
    expected = held(target)
    results = [(c, c.run()) for c in target.plan_compactions(purge=True)]
    assert results
    lagging(times)
    target.commit_compactions(results)
    lagging(0)
    assert held(target) == expected
    assert {f.path for _, files in results for f in files} <= target.load_log().files.keys()


def test_files_of_a_commit_that_another_was_faster_than_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once: the other has the number of its snapshot."""
    target = make_table(tmp_path)
    upsert(target, 1, 1, 2)
    other = other_writer(target)
    others_rows = other.write_rows(rows((9, "theirs", 1, "c")))
    with monkeypatch.context() as patch:
        work = [lambda: other.commit(others_rows)]
        patch.setattr(SqlCatalog, "commit_table", preceded_by(SqlCatalog.commit_table, lambda: work and work.pop()()))
        upsert(target, 2, 2)
    log = target.load_log()
    needed = {log.location.path_of(location) for location in log.manifests} | log.files.keys()
    for snapshot in log.metadata.snapshots.values():
        needed.add(log.location.path_of(snapshot.manifest_list))
        manifests = log.reader.read_list(snapshot.manifest_list)
        needed |= {log.location.path_of(manifest.manifest_path) for manifest in manifests}
    data = {name for name, _ in target.storage.list("") if name.endswith((".avro", ".parquet"))}
    assert data == needed and held(target) == {1: 1, 2: 2, 9: 1}


def test_first_snapshots_with_the_same_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, iceberg_rest: IcebergRest
) -> None:
    """Of a branch, and of `main`: REST catalogs accept both. The one of the branch says nothing about the other."""
    iceberg_rest.forget_all()
    target = IcebergSink(str(tmp_path), "p", catalog=CatalogSettings(REST, iceberg_rest.uri)).table(KEYED)
    target.create("p")
    catalog = RestCatalog({"uri": iceberg_rest.uri})
    loaded = catalog.load_table(target.identifier)
    assert loaded is not None
    other = CatalogFolderTable.of(catalog, loaded, target.identifier)
    real_commit, real_load = RestCatalog.commit_table, RestCatalog.load_table
    shown = list[CatalogTable]()

    def made(*arguments: Any) -> Any:
        commit_to_branch(other, "audit")
        shown.append(other.base)
        monkeypatch.setattr(RestCatalog, "commit_table", real_commit)
        assert real_commit(*arguments)[0] is CommitOutcome.DONE
        return CommitOutcome.CONFLICT, None

    monkeypatch.setattr(other, "update", partial(_update_by, other, real_commit))
    monkeypatch.setattr(RestCatalog, "commit_table", made)
    monkeypatch.setattr(RestCatalog, "load_table", lambda *a: shown.pop() if shown else real_load(*a))
    assert not commit_once(target, 1, 1, 2)
    metadata = target.load_log().metadata
    assert [snapshot.sequence_number for snapshot in metadata.snapshots.values()] == [1, 1]
    assert sequence_numbers(target) == {1: 1, 2: 1}


def _update_by(other: CatalogFolderTable, commit_table: Callable[..., Any], updates: Any) -> None:
    requirements = [table_updates.require_uuid(other.metadata)]
    other.outcome, result = commit_table(other.catalog, other.identifier, other.base, requirements, updates)
    assert result is not None
    other.base, other.metadata = result, result.metadata
