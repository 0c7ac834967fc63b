"""What is deleted of a table's folder, and when; and checkpoints of its log."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from deltalake import DeltaTable

from airflow_provider_cdc.exceptions import TransientError
from airflow_provider_cdc.sinks.delta import compaction
from airflow_provider_cdc.sinks.delta import upkeep as module
from airflow_provider_cdc.sinks.delta.log import Log
from airflow_provider_cdc.sinks.delta.upkeep import KEEP_HOURS, sweep
from tests.sinks.delta.test_table import add, folder_of, held, made, opened, rows, upsert

HOUR = 3600.0


def present(folder: Path) -> set[str]:
    """Files of a table but for its log."""
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file() and "_delta_log" not in p.parts}


def needed(log: Log) -> set[str]:
    return {*log.files} | {f.vector.file for f in log.files.values() if f.vector and f.vector.file}


def at(hours: float, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + hours * HOUR)


def test_files_are_kept_for_readers_of_old_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = made(tmp_path)
    add(target, "a", rows(*((n, "a", 1, "r") for n in range(10))))
    for n in range(4):
        upsert(target, (n, "b", n + 2, "u"))
    folder, log = folder_of(target), target.load()
    before = present(folder)
    assert needed(log) < before, "older vectors"
    at(KEEP_HOURS - 0.1, monkeypatch)
    sweep(log)
    assert present(folder) == before
    at(KEEP_HOURS + 0.1, monkeypatch)
    sweep(log)
    assert present(folder) == needed(log) and not log.removed
    assert held(opened(tmp_path)) == {n: ("b", n + 2) if n < 4 else ("a", 1) for n in range(10)}
    sweep(log)
    assert present(folder) == needed(log)


def test_a_fresh_log_knows_what_was_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also from a checkpoint."""
    target = made(tmp_path)
    for n in range(4):
        upsert(target, (0, "b", n + 2, "u"))
    DeltaTable(folder_of(target)).create_checkpoint()
    upsert(target, (0, "b", 9, "u"))
    at(KEEP_HOURS + 0.1, monkeypatch)
    log = opened(tmp_path).load()
    sweep(log)
    assert present(folder_of(target)) == needed(log)


def test_what_somebody_has_left_goes_after_two_days(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = made(tmp_path)
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
        sweep(target.load())
        assert present(folder) == expected | needed(target.load())


def test_a_file_that_only_the_newest_commit_knows(tmp_path: Path) -> None:
    """It was written long before it was committed."""
    target, other = made(tmp_path), opened(tmp_path)
    other.load()
    upsert(target, (0, "b", 2, "u"))
    for path in folder_of(target).glob("part-*"):
        os.utime(path, (0, 0))
    other.tidy()
    assert held(opened(tmp_path)) == {0: ("b", 2)}


def test_what_cannot_be_deleted_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = made(tmp_path)
    upsert(target, (0, "b", 2, "u"))
    upsert(target, (0, "b", 3, "u"))
    log = target.load()

    def fails(*_: str) -> None:
        raise PermissionError("not yours")

    monkeypatch.setattr(log.storage, "delete", fails)
    with pytest.raises(TransientError, match="old files of the Delta table .* could not be deleted: not yours"):
        sweep(log, 0)
    assert log.removed, "it is tried again"


# ---------------------------------------------------------------- checkpoints


def test_a_checkpoint_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_EVERY", 5)
    target = made(tmp_path)
    folder = folder_of(target) / "_delta_log"
    for n in range(12):
        upsert(target, (n, "b", n + 2, "c"))
        target.tidy()
    assert [int(p.name[:20]) for p in sorted(folder.glob("*.checkpoint.parquet"))] == [5, 10]
    assert held(opened(tmp_path)) == {n: ("b", n + 2) for n in range(12)}
    assert opened(tmp_path).load().checkpointed == 10
    opened(tmp_path).tidy()
    assert len([*folder.glob("*.checkpoint.parquet")]) == 2


def test_a_compaction_writes_the_checkpoint_that_is_due(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Old files are looked for every ten minutes only: by then readers would have hundreds of commits to read."""
    monkeypatch.setattr(module, "_EVERY", 5)
    target = made(tmp_path)
    for n in range(compaction.FANOUT):
        upsert(target, (n, "b", n + 2, "c"))
    folder = folder_of(target) / "_delta_log"
    assert not [*folder.glob("*.checkpoint.parquet")]
    assert target.compacted([(c, c.run()) for c in target.compactions()])
    assert [int(p.name[:20]) for p in folder.glob("*.checkpoint.parquet")] == [target.load().version]
    assert held(opened(tmp_path)) == held(target)


def test_old_parts_of_the_log_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_EVERY", 5)
    target = made(tmp_path)
    folder = folder_of(target) / "_delta_log"
    for n in range(5):
        upsert(target, (n, "b", n + 2, "c"))
    for path in folder.glob("*.json"):
        os.utime(path, (0, time.time() - 25 * HOUR))
    target.tidy()
    assert {int(p.name[:20]) for p in folder.glob("0*.json")} <= {5}
    upsert(target, (0, "c", 99, "u"))
    assert held(opened(tmp_path)) == held(target) == {**{n: ("b", n + 2) for n in range(5)}, 0: ("c", 99)}
