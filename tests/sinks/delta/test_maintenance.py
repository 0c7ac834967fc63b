"""What is deleted of a table's folder, and when; and checkpoints of its log."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from deltalake import DeltaTable

from airflow_provider_cdc.model.errors import TransientError
from airflow_provider_cdc.sinks.delta import maintenance as module
from airflow_provider_cdc.sinks.delta.log.delta_log import DeltaLog
from airflow_provider_cdc.sinks.delta.maintenance import vacuum_files
from airflow_provider_cdc.sinks.lake import compaction
from tests.sinks.delta.test_table import add, create_table, folder_of, held, opened, rows, upsert

HOUR = 3600.0
#: For which files of a table stay.
HOURS = 2.0


def present(folder: Path) -> set[str]:
    """Files of a table but for its log."""
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file() and "_delta_log" not in p.parts}


def needed(log: DeltaLog) -> set[str]:
    return {*log.files} | {
        f.deletion_vector.file_name for f in log.files.values() if f.deletion_vector and f.deletion_vector.file_name
    }


def age(folder: Path, hours: float) -> None:
    """Let all files of a table have been written earlier."""
    for path in folder.rglob("*"):
        if path.is_file():
            written = path.stat().st_mtime - hours * HOUR
            os.utime(path, (written, written))


def configure(log: DeltaLog, **properties: str | None) -> None:
    """As ALTER TABLE does."""
    wanted = {**log.properties, **{name.replace("_", "."): value for name, value in properties.items()}}
    wanted = {name: value for name, value in wanted.items() if value is not None}
    assert log.commit([{"metaData": {**log.metadata, "configuration": wanted}}], "SET TBLPROPERTIES")


def test_files_are_kept_for_readers_of_old_versions(tmp_path: Path) -> None:
    target = create_table(tmp_path)
    add(target, "a", rows(*((n, "a", 1, "r") for n in range(10))))
    for n in range(4):
        upsert(target, (n, "b", n + 2, "u"))
    folder, log = folder_of(target), target.load_log()
    before = present(folder)
    assert needed(log) < before, "older vectors"
    age(folder, HOURS - 0.1)
    vacuum_files(log)
    assert present(folder) == before
    age(folder, 0.2)
    vacuum_files(log)
    assert present(folder) == needed(log) and not log.tombstones
    assert held(opened(tmp_path)) == {n: ("b", n + 2) if n < 4 else ("a", 1) for n in range(10)}
    vacuum_files(log)
    assert present(folder) == needed(log)


def test_a_fresh_log_knows_what_was_removed(tmp_path: Path) -> None:
    """Also from a checkpoint, which does not say by which version."""
    target = create_table(tmp_path)
    folder = folder_of(target)
    for n in range(4):
        upsert(target, (0, "b", n + 2, "u"))
        age(folder, 1.0)
    DeltaTable(folder).create_checkpoint()
    upsert(target, (0, "b", 9, "u"))
    before, counts = present(folder), []
    for hours in (0.0, 0.5, 1.0, HOURS):
        age(folder, hours)
        log = opened(tmp_path).load_log()
        vacuum_files(log)
        counts.append(len(before - present(folder)))
        assert needed(log) <= present(folder)
    assert present(folder) == needed(log) and counts == [2, 2, 3, 4]


@pytest.mark.parametrize("clock", [-30 * 24 * HOUR, 0.0, 30 * 24 * HOUR])
@pytest.mark.parametrize("checkpoint", [False, True])
def test_the_clock_of_another_host_decides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: float, checkpoint: bool
) -> None:
    """Neither that of a writer, nor that of whoever deletes old files: only that of the storage counts."""
    target, now = create_table(tmp_path), time.time()
    folder = folder_of(target)
    with monkeypatch.context() as other:
        other.setattr(time, "time", lambda: now + clock)
        for n in range(3):
            upsert(target, (0, "b", n + 2, "u"))
    if checkpoint:
        DeltaTable(folder).create_checkpoint()
    before = present(folder)
    for mine in (-30 * 24 * HOUR, 30 * 24 * HOUR):
        with monkeypatch.context() as other:
            other.setattr(time, "time", lambda mine=mine: now + mine)
            vacuum_files(opened(tmp_path).load_log())
        assert present(folder) == before, "just removed"
    age(folder, 49.0)
    with monkeypatch.context() as other:
        other.setattr(time, "time", lambda: now - 30 * 24 * HOUR)
        vacuum_files(opened(tmp_path).load_log())
    assert present(folder) == needed(target.load_log())


@pytest.mark.parametrize(("said", "hours"), [("interval 30 days", 720.0), ("interval 60 seconds", 1.0), (None, 168.0)])
def test_files_are_kept_for_as_long_as_the_table_says(tmp_path: Path, said: str | None, hours: float) -> None:
    """An owner who has set it wants to read old versions, or has cloned the table. And never below an hour."""
    target = create_table(tmp_path)
    folder = folder_of(target)
    upsert(target, (0, "b", 2, "u"))
    configure(target.load_log(), delta_deletedFileRetentionDuration=said)
    upsert(target, (0, "b", 3, "u"))
    before = present(folder)
    age(folder, hours - 0.1)
    for log in (target.load_log(), opened(tmp_path).load_log()):
        vacuum_files(log)
        assert present(folder) == before
    age(folder, 0.2)
    vacuum_files(opened(tmp_path).load_log())
    assert present(folder) == needed(target.load_log())


def test_what_the_log_does_not_reach_back_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that are to stay for longer than commits do: a process that has run for so long knows when they went."""
    target, begun = create_table(tmp_path), time.monotonic()
    folder = folder_of(target)
    upsert(target, (0, "b", 2, "u"))
    configure(target.load_log(), delta_deletedFileRetentionDuration="interval 30 days")
    upsert(target, (0, "b", 3, "u"))
    log, before = target.load_log(), present(folder)
    for days in (0, 29, 31):
        monkeypatch.setattr(time, "monotonic", lambda days=days: begun + days * 24 * HOUR)
        vacuum_files(log)
        assert present(folder) == (before if days < 30 else needed(log))


def test_what_somebody_has_left_goes_after_two_days(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = create_table(tmp_path)
    upsert(target, (0, "b", 2, "u"))
    folder = folder_of(target)
    left = {"changes/epoch-1/a.parquet", "_dv/deletion_vector_x.bin", "part-0.parquet"}
    others = {"snapshot/1/1/1/slice-00001.parquet", "snapshot/1/1/1/slice-00001.json", "_readme.txt"}
    for name in left | others:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x")
    for hours, expected in ((47.0, left | others), (49.0, others)):
        for name in left | others:
            os.utime(folder / name, (0, time.time() - hours * HOUR))
        vacuum_files(target.load_log())
        assert present(folder) == expected | needed(target.load_log())


def test_a_file_that_only_the_newest_commit_knows(tmp_path: Path) -> None:
    """It was written long before it was committed."""
    target, other = create_table(tmp_path), opened(tmp_path)
    other.load_log()
    upsert(target, (0, "b", 2, "u"))
    for path in folder_of(target).glob("part-*"):
        os.utime(path, (0, 0))
    other.clean_up()
    assert held(opened(tmp_path)) == {0: ("b", 2)}


def test_what_cannot_be_deleted_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = create_table(tmp_path)
    upsert(target, (0, "b", 2, "u"))
    upsert(target, (0, "b", 3, "u"))
    log = target.load_log()

    def fails(*_: str) -> None:
        raise PermissionError("not yours")

    monkeypatch.setattr(log.storage, "delete", fails)
    age(folder_of(target), HOURS + 0.1)
    with pytest.raises(TransientError, match="old files of the Delta table .* could not be deleted: not yours"):
        vacuum_files(log)
    assert log.tombstones, "it is tried again"


# ---------------------------------------------------------------- checkpoints


def test_a_checkpoint_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHECKPOINT_INTERVAL", 5)
    target = create_table(tmp_path)
    folder = folder_of(target) / "_delta_log"
    for n in range(12):
        upsert(target, (n, "b", n + 2, "c"))
        target.clean_up()
    assert [int(p.name[:20]) for p in sorted(folder.glob("*.checkpoint.parquet"))] == [5, 10]
    assert held(opened(tmp_path)) == {n: ("b", n + 2) for n in range(12)}
    assert opened(tmp_path).load_log().checkpoint_version == 10
    opened(tmp_path).clean_up()
    assert len([*folder.glob("*.checkpoint.parquet")]) == 2


def test_a_compaction_writes_the_checkpoint_that_is_due(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Old files are looked for every ten minutes only: by then readers would have hundreds of commits to read."""
    monkeypatch.setattr(module, "_CHECKPOINT_INTERVAL", 5)
    target = create_table(tmp_path)
    for n in range(compaction.FANOUT):
        upsert(target, (n, "b", n + 2, "c"))
    folder = folder_of(target) / "_delta_log"
    assert not [*folder.glob("*.checkpoint.parquet")]
    assert target.commit_compactions([(c, c.run()) for c in target.plan_compactions()])
    assert [int(p.name[:20]) for p in folder.glob("*.checkpoint.parquet")] == [target.load_log().version]
    assert held(opened(tmp_path)) == held(target)


def test_old_parts_of_the_log_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHECKPOINT_INTERVAL", 5)
    target = create_table(tmp_path)
    folder = folder_of(target) / "_delta_log"
    for n in range(5):
        upsert(target, (n, "b", n + 2, "c"))
    for path in folder.glob("*.json"):
        os.utime(path, (0, time.time() - 25 * HOUR))
    target.clean_up()
    assert {int(p.name[:20]) for p in folder.glob("0*.json")} <= {5}
    upsert(target, (0, "c", 99, "u"))
    assert held(opened(tmp_path)) == held(target) == {**{n: ("b", n + 2) for n in range(5)}, 0: ("c", 99)}
