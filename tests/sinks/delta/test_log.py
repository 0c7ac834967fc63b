"""The log of a table: what is read from it, and that a version is written once."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyroaring import BitMap

from airflow_provider_cdc.model.errors import TerminalError, TransientError
from airflow_provider_cdc.sinks.delta import maintenance
from airflow_provider_cdc.sinks.delta.log import cross_check
from airflow_provider_cdc.sinks.delta.log import delta_log as module
from airflow_provider_cdc.sinks.delta.log.checkpoint import Checkpoint
from airflow_provider_cdc.sinks.delta.log.deletion_vectors import write_vectors
from airflow_provider_cdc.sinks.delta.log.delta_log import DeltaLog
from airflow_provider_cdc.sinks.delta.log.live_file import DeltaLiveFile, add_action
from airflow_provider_cdc.sinks.files.parquet import DataFile
from airflow_provider_cdc.sinks.lake.log.table_log import FRESH_SECONDS, excludes_span
from airflow_provider_cdc.sinks.storage.local_storage import LocalStorage
from airflow_provider_cdc.sinks.storage.storage import Storage
from tests.sinks.delta.test_table import add, create_table, folder_of, opened, rows, upsert
from tests.support.v2_checkpoints import as_v2


def state(log: DeltaLog) -> dict[str, Any]:
    """What a version holds; maps of a checkpoint may lack what has no value."""
    files = {path: (file.size, file.stats, file.deletion_vector, file.bounds("id")) for path, file in log.files.items()}
    dead = {path: log.dead_rows(file.path) for path, file in log.files.items()}
    return {
        "version": log.version,
        "files": files,
        "dead": dead,
        "markers": log.markers,
        "removed": {*log.tombstones},
    } | {
        "domains": log.domain_metadata,
        "protocol": {k: sorted(v) if isinstance(v, list) else v for k, v in log.protocol.items()},
        "metadata": {k: v for k, v in log.metadata.items() if v},
    }


def fresh(storage: Storage) -> DeltaLog:
    log = DeltaLog(storage)
    log.refresh()
    log.revived_files.clear()  # nothing was known of any row
    return log


def changed(folder: Path, commits: int = 12) -> DeltaLog:
    """A table with vectors, and with files and vectors that are removed."""
    target = create_table(folder)
    add(target, "a b%c=d", rows(*((n, "x", 1, "r") for n in range(20))), {"m": 7})
    for n in range(commits):
        upsert(target, (n % 10, "y", n + 2, "u"), (100 + n, "z", n + 2, "c"))
    return target.load_log()


# ---------------------------------------------------------------- reading


def in_one(folder: Path) -> None:
    DeltaTable(folder).create_checkpoint()


def in_parts(folder: Path) -> None:
    """As Spark writes those of large tables."""
    in_one(folder)
    [path] = folder.glob("_delta_log/*.checkpoint.parquet")
    whole = pq.read_table(path)
    gone = pc.is_valid(whole["remove"])  # of files that are live with another vector, in other parts than these
    whole = pa.concat_tables([whole.filter(pc.invert(gone)), whole.filter(gone)])
    for n in range(3):
        part = whole.slice(n * len(whole) // 3, (n + 1) * len(whole) // 3 - n * len(whole) // 3)
        pq.write_table(part, path.with_name(path.name.replace(".parquet", f".{n + 1:010}.{3:010}.parquet")))
    path.unlink()
    (folder / "_delta_log" / "_last_checkpoint").unlink()


def with_sidecars(folder: Path) -> None:
    """As Spark writes those of tables with ``delta.checkpointPolicy`` v2."""
    as_v2(folder)


def with_sidecars_in_parquet(folder: Path) -> None:
    as_v2(folder, form="parquet")


def with_sidecars_under_the_classic_name(folder: Path) -> None:
    """As Spark writes them before it cleans such a log up."""
    as_v2(folder, named=True)


def in_json(folder: Path) -> None:
    """All in the file with a number of its own."""
    as_v2(folder, sidecars=0)


def in_parquet(folder: Path) -> None:
    as_v2(folder, form="parquet", sidecars=0)


FORMS = [
    *(in_one, in_parts, with_sidecars, with_sidecars_in_parquet, with_sidecars_under_the_classic_name),
    *(in_json, in_parquet),
]


@pytest.mark.parametrize("form", FORMS)
def test_from_a_checkpoint(tmp_path: Path, form: Callable[[Path], None]) -> None:
    log = changed(tmp_path)
    form(folder_of(opened(tmp_path)))
    read = fresh(log.storage)
    assert read.checkpoint_version == log.version and state(read) == state(log)
    for version in range(log.version + 1):
        log.storage.delete(f"_delta_log/{version:020d}.json")  # as a cleaner does
    assert state(fresh(log.storage)) == state(log)
    target = opened(tmp_path)
    upsert(target, (1, "later", 99, "u"))
    assert state(fresh(log.storage)) == state(target.load_log()) and target.load_log().version == log.version + 1
    target.load_log().cross_check_files()


def test_delta_rs_that_is_not_answered_by_its_object_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so with an OSError, in a tree of lines, with colours: worth a retry, in one line."""
    target = create_table(tmp_path)

    def fails(*_: object, **__: object) -> None:
        raise OSError("Kernel error -> Generic S3 error\n  \x1b[31m\u21b3\x1b[0m Error performing GET http://x/t")

    monkeypatch.setattr(maintenance, "DeltaTable", fails)
    monkeypatch.setattr(cross_check, "DeltaTable", fails)
    with pytest.raises(TransientError, match="Generic S3 error Error performing GET http://x/t"):
        target.load_log().cross_check_files()
    with pytest.raises(TransientError, match="no checkpoint of .* could be written: .*Generic S3 error"):
        maintenance.write_checkpoint_if_due(target.load_log(), commits=0)


def test_a_file_with_several_tombstones(tmp_path: Path) -> None:
    """It has one for each of its vectors, and a checkpoint has them in any order. What they say of the time is that of
    another host: the checkpoint says nothing but that all of it was removed before."""
    target = create_table(tmp_path)
    add(target, "a", rows((1, "a", 1, "r"), (2, "a", 1, "r")))
    for key in (1, 2):
        upsert(target, (key, "b", 2, "u"))
    in_one(folder_of(target))
    [path] = folder_of(target).glob("_delta_log/*.checkpoint.parquet")
    whole, now = pq.read_table(path).to_pylist(), int(time.time() * 1000)
    gone = [row for row in whole if row["remove"] and row["remove"]["path"] == "snapshot/a.parquet"]
    assert len(gone) == 2, "without a vector, and with the first one"
    for order in (gone, gone[::-1]):
        order[0]["remove"]["deletionTimestamp"] = now - 2 * 3600 * 1000
        order[1]["remove"]["deletionTimestamp"] = now
        for listed in (whole, whole[::-1]):
            pq.write_table(pa.Table.from_pylist(listed, pq.read_schema(path)), path)
            log = fresh(target.storage)
            assert log.tombstones["snapshot/a.parquet"] == log.version


def test_a_log_that_is_followed_for_months_forgets_what_was_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_FORGET_EVERY", 5)
    target = create_table(tmp_path)
    add(target, "a", rows((1, "a", 1, "r")))
    log = target.load_log()
    begun = time.monotonic()
    for n, hours in enumerate((0, 25.9, 26.1)):
        monkeypatch.setattr(time, "monotonic", lambda hours=hours: begun + hours * 3600)
        for key in range(5):
            upsert(target, (1, "b", 10 * n + key + 2, "u"))
        assert target.load_log() is log
        assert ("snapshot/a.parquet" in log.tombstones) is (hours < 26)
    assert log.tombstones, "of the last versions"


def test_what_was_removed_is_forgotten_beside_another_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever versions are the other one's."""
    monkeypatch.setattr(module, "_FORGET_EVERY", 5)
    monkeypatch.setattr(DeltaLog, "newest_version_seen_before", lambda *_: 0)
    target, other = create_table(tmp_path), opened(tmp_path)
    log = target.load_log()
    log.tombstones["of yesterday"] = 0
    while log.version < 12:
        upsert(other if (log.version + 1) % 5 == 0 else target, (1, "b", log.version + 2, "u"))
        target.load_log()
    assert "of yesterday" not in log.tombstones


def test_a_checkpoint_that_lacks_a_part_is_none(tmp_path: Path) -> None:
    log = changed(tmp_path)
    in_parts(folder_of(opened(tmp_path)))
    next(iter(folder_of(opened(tmp_path)).glob("_delta_log/*.0000000002.0000000003.parquet"))).unlink()
    read = fresh(log.storage)
    assert read.checkpoint_version is None and state(read) == state(log)


def test_what_was_committed_since(tmp_path: Path) -> None:
    log = changed(tmp_path)
    older = fresh(log.storage)
    upsert(opened(tmp_path), (1, "later", 99, "u"))
    assert older.version == log.version
    older.refresh()
    assert state(older) == state(fresh(log.storage)) and older.version == log.version + 1


def test_a_version_that_is_missing(tmp_path: Path) -> None:
    log = changed(tmp_path)
    log.storage.delete(f"_delta_log/{5:020d}.json")
    with pytest.raises(TerminalError, match="lacks version 5"):
        DeltaLog(log.storage).refresh()


def test_a_log_that_is_cleaned_up_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = changed(tmp_path)
    in_one(folder_of(opened(tmp_path)))
    for n in range(3):
        upsert(opened(tmp_path), (n, "later", 99 + n, "u"))
    found, times = DeltaLog._find_checkpoint, 0

    def checkpoint(reader: DeltaLog) -> Checkpoint | None:
        nonlocal times
        before, times = found(reader), times + 1
        if times == 1:  # right behind the look at the folder
            in_one(folder_of(opened(tmp_path)))
            for version in range(log.version + 2):
                log.storage.delete(f"_delta_log/{version:020d}.json")
        return before

    monkeypatch.setattr(DeltaLog, "_find_checkpoint", checkpoint)
    read = fresh(log.storage)
    assert read.version == log.version + 3 and state(read) == state(fresh(log.storage))


def test_a_log_that_was_cleaned_up_behind_an_old_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever holds an old version would commit into a gap, and others would not see it."""
    old = changed(tmp_path)
    target = opened(tmp_path)
    for n in range(3):
        upsert(target, (n, "later", 99 + n, "u"))
    in_one(folder_of(target))
    for version in range(old.version + 3):
        old.storage.delete(f"_delta_log/{version:020d}.json")
    monkeypatch.setattr(module, "FRESH_SECONDS", -1)
    known = {*old.files}
    old.refresh()
    assert state(old) == state(target.load_log()) and old.revived_files >= known


@pytest.mark.parametrize("left", [b"", b"\n\n", b'{"commitInfo":{"ti', b"[]\n", b"\0" * 300])
def test_a_commit_that_is_damaged(tmp_path: Path, left: bytes) -> None:
    """As a host leaves it that lost power, whatever its file system promised; nobody commits after it either."""
    target = create_table(tmp_path)
    log = target.load_log()
    late = opened(tmp_path)
    late.load_log()
    upsert(target, (1, "x", 1, "c"))
    [path] = folder_of(target).glob(f"_delta_log/{log.version:020d}.json")
    path.write_bytes(left)
    for reads in (lambda: fresh(log.storage), lambda: upsert(late, (1, "y", 2, "u")), lambda: late.load_log()):
        with pytest.raises(TerminalError, match=rf"version {log.version} of the Delta .* is damaged: .*{path.name}"):
            reads()
    assert not [*path.parent.glob(f"{log.version + 1:020d}.json")]


def test_a_log_whose_commits_stay_for_a_moment_only(tmp_path: Path) -> None:
    """A look at it that is seconds old may be older than that: a commit into the gap would be lost, unseen."""
    target = create_table(tmp_path)
    log = target.load_log()
    wanted = {**log.properties, "delta.logRetentionDuration": "interval 0 seconds"}
    assert log.commit([{"metaData": {**log.metadata, "configuration": wanted}}], "SET TBLPROPERTIES")
    late = opened(tmp_path)
    late.load_log()
    for n in range(3):
        upsert(target, (n, "x", n + 1, "c"))
    in_one(folder_of(target))
    for version in range(log.version):
        log.storage.delete(f"_delta_log/{version:020d}.json")
    upsert(late, (0, "y", 9, "u"))
    read = fresh(log.storage)
    assert state(read) == state(late.load_log()) and read.version == log.version + 1


# ---------------------------------------------------------------- writing


class Losing(LocalStorage):
    """Loses answers."""

    answer: Any = None

    def write_once(self, name: str, data: bytes) -> bool:
        found = super().write_once(name, data)
        if isinstance(self.answer, Exception):
            raise self.answer
        return found if self.answer is None else bool(self.answer)


@pytest.mark.parametrize("answer", [OSError("reset"), False])
def test_a_commit_whose_answer_is_lost(tmp_path: Path, answer: Any) -> None:
    """It stands. That it does is seen by its own number in it, also after a client has sent it again."""
    before = changed(tmp_path)
    storage = Losing(before.storage.location())
    log = fresh(storage)
    storage.answer = answer
    assert log.commit([{"txn": {"appId": "m", "version": 8}}], "MERGE")
    assert log.version == before.version + 1 and log.markers["m"] == 8
    assert fresh(before.storage).markers["m"] == 8


def test_a_commit_of_somebody_else(tmp_path: Path) -> None:
    log, other = changed(tmp_path), opened(tmp_path).load_log()
    assert other.commit([{"txn": {"appId": "m", "version": 8}}], "MERGE")
    storage = Losing(log.storage.location())
    log.storage = storage
    assert not log.commit([{"txn": {"appId": "m", "version": 9}}], "MERGE")
    storage.answer = OSError("reset")
    with pytest.raises(TransientError, match="could not be committed: reset"):
        log.commit([{"txn": {"appId": "m", "version": 9}}], "MERGE")
    assert log.version + 1 == other.version and fresh(log.storage).markers["m"] == 8


class Deaf(Losing):
    """Loses the answer, and then cannot be asked what is there."""

    def read(self, name: str) -> bytes | None:
        if self.answer is not None:
            raise OSError("unreachable")
        return super().read(name)


@pytest.mark.parametrize("answer", [OSError("reset"), False])
def test_a_commit_of_which_nothing_is_known(tmp_path: Path, answer: Any) -> None:
    """Whoever took it for lost would delete what it has written."""
    before = changed(tmp_path)
    storage = Deaf(before.storage.location())
    log = fresh(storage)
    storage.answer = answer
    with pytest.raises(TransientError, match=r"could not be committed: (reset|unreachable)"):
        log.commit([{"txn": {"appId": "m", "version": 8}}], "MERGE")
    assert fresh(before.storage).markers["m"] == 8


def test_nobody_commits_into_a_log_that_was_cleaned_up(tmp_path: Path) -> None:
    """A process may stand still between its decision and its commit."""
    old = changed(tmp_path)
    for n in range(3):
        upsert(opened(tmp_path), (n, "later", 99 + n, "u"))
    in_one(folder_of(opened(tmp_path)))
    for version in range(old.version + 3):
        old.storage.delete(f"_delta_log/{version:020d}.json")
    old._refreshed_at -= FRESH_SECONDS + 1
    assert not old.commit([{"txn": {"appId": "m", "version": 8}}], "MERGE")
    old.refresh()
    assert state(old) == state(fresh(old.storage))
    assert old.commit([{"txn": {"appId": "m", "version": 8}}], "MERGE")
    assert fresh(old.storage).markers["m"] == 8


# ---------------------------------------------------------------- files


@pytest.mark.parametrize(
    ("path", "value", "nulls", "exact"),
    [
        ("snapshot/1/2/3/slice-00001.parquet", 1 << 60, {}, True),
        ("changes/epoch-1/a.parquet", 1 << 60, {}, True),
        ("part-" + 32 * "a" + ".parquet", 1 << 60, {}, True),
        ("part-00000-1234.snappy.parquet", 1 << 60, {"id": 0}, False),  # some writers keep them as floats
        ("part-00000-1234.snappy.parquet", 1 << 52, {"id": 0}, True),
        ("part-00000-1234.snappy.parquet", 1 << 52, {"id": 1}, False),
        ("part-00000-1234.snappy.parquet", 1 << 52, {}, False),
    ],
)
def test_bounds(path: str, value: int, nulls: dict[str, int], exact: bool) -> None:
    """Those of others count only as far as they are known to cover all values."""
    stats = {"numRecords": 3, "minValues": {"id": 1}, "maxValues": {"id": value}, "nullCount": nulls}
    file = DeltaLiveFile({"path": path, "size": 1, "stats": json.dumps(stats)})
    assert file.bounds("id") == ((1, value) if exact else None)
    assert file.bounds("other") is None
    assert excludes_span(file, "id", (value + 1, value + 2)) == exact
    assert not excludes_span(file, "id", (value, value + 2))
    assert excludes_span(file, "id", (-5, 0)) == exact and not excludes_span(file, "id", None)


def revive(log: DeltaLog, path: str, dead: BitMap) -> None:
    """As a RESTORE does: the file with a vector of an older version."""
    file, vectors = log.files[path], write_vectors(log.storage, {path: dead})
    new = {k: v for k, v in file.action.items() if k != "deletionVector"}
    again = file.vector_action(vectors[path], 20, data_change=True) if dead else {"add": new}
    assert log.commit([file.remove_action(data_change=True), again], "RESTORE")


@pytest.mark.parametrize("dead", [BitMap(), BitMap([0])])
def test_files_with_rows_that_came_back(tmp_path: Path, dead: BitMap) -> None:
    log = changed(tmp_path)
    path = next(path for path, file in log.files.items() if file.dead_row_count > 1)
    reader = fresh(log.storage)
    revive(log, path, dead)
    reader.refresh()
    assert reader.revived_files == {path}


def test_other_rows_are_dead_than_before(tmp_path: Path) -> None:
    """No fewer, as after a RESTORE to a version behind another RESTORE."""
    log = changed(tmp_path)
    path = next(path for path, file in log.files.items() if file.dead_row_count > 1)
    dead = log.dead_rows(path)
    reader = fresh(log.storage)
    alive = next(n for n in range(20) if n not in dead)
    revive(log, path, (dead - BitMap([dead[0]])) | BitMap([alive]))
    reader.refresh()
    assert reader.revived_files == {path}


def test_files_that_were_gone_and_came_back(tmp_path: Path) -> None:
    log = changed(tmp_path)
    reader = fresh(log.storage)
    file = next(iter(log.files.values()))
    assert log.commit([file.remove_action(data_change=True)], "DELETE") and log.commit(
        [{"add": file.action}], "RESTORE"
    )
    reader.refresh()
    assert file.path in reader.files and reader.revived_files == {file.path}


def test_no_row_comes_back_by_own_commits(tmp_path: Path) -> None:
    """Else the index would be made anew for each batch."""
    changed(tmp_path)
    target = opened(tmp_path)
    upsert(target, (14, "first", 98, "u"))
    log = target.load_log()
    log.revived_files.clear()
    upsert(target, (15, "later", 99, "u"))
    assert log.revived_files == set()


def test_an_added_file() -> None:
    file = DataFile("snapshot/a b.parquet", 10, 3, 1, 1 << 60, 5, 6)
    live = DeltaLiveFile(add_action(file, "id", None)["add"])
    assert (live.path, live.size, live.dead_row_count) == (file.path, 10, 0)
    assert (live.bounds("id"), live.bounds("_cdc_seq")) == ((1, 1 << 60), (5, 6))
    assert "tightBounds" not in live.stats


def test_statistics_of_a_file_with_dead_rows(tmp_path: Path) -> None:
    """They are those of all its rows, and say so."""
    vectors = write_vectors(LocalStorage(tmp_path), {"a": BitMap([1]), "b": BitMap([1, 2])})
    live = DeltaLiveFile(add_action(DataFile("part-a.parquet", 10, 3, 1, 5, 5, 6), "id", vectors["a"])["add"])
    again = DeltaLiveFile(live.vector_action(vectors["b"], 3, data_change=True)["add"])
    plain = DeltaLiveFile(add_action(DataFile("part-a.parquet", 10, 3, 1, 5, 5, 6), "id", None)["add"])
    first = DeltaLiveFile(plain.vector_action(vectors["a"], 3, data_change=True)["add"])
    for file, dead in ((live, 1), (again, 2), (first, 1)):
        assert (file.dead_row_count, file.stats["numRecords"], file.bounds("id")) == (dead, 3, (1, 5))
        assert file.stats["tightBounds"] is False


def test_a_file_that_gets_another_vector_stays(tmp_path: Path) -> None:
    """In whatever order a commit says so."""
    log = changed(tmp_path)
    reader, file = fresh(log.storage), next(file for file in log.files.values() if file.dead_row_count)
    total = log.dead_rows(file.path) | BitMap([19])
    vectors = write_vectors(log.storage, {file.path: total})
    actions = [file.vector_action(vectors[file.path], 20, data_change=True), file.remove_action(data_change=True)]
    assert log.commit(actions, "DELETE")
    reader.refresh()
    for read in (log, reader, fresh(log.storage)):
        assert read.dead_rows(file.path) == total and file.path not in read.tombstones
