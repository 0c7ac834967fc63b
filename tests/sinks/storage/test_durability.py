"""What is on disk when a write has returned, and what a full disk is called."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_cdc.model.errors import NoRoomError, TransientError
from airflow_provider_cdc.sinks.delta.maintenance import vacuum_files
from airflow_provider_cdc.sinks.files.parquet import ChangeFileWriter, write_file
from airflow_provider_cdc.sinks.storage.disk import translate_disk_full
from airflow_provider_cdc.sinks.storage.local_storage import LocalStorage
from tests.sinks.delta.test_table import create_table, held, opened, upsert

ROWS = pa.table({"n": pa.array(range(200_000), pa.int64())})


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What is asked of the system, and of which file or folder."""
    found: list[tuple[str, str]] = []
    real = {name: getattr(os, name) for name in ("fsync", "link", "replace")}

    def fsync(fd: int) -> None:
        found.append(("fsync", Path(os.readlink(f"/proc/self/fd/{fd}")).name))
        real["fsync"](fd)

    def named(call: str, source: Path, target: Path) -> None:
        found.append((call, Path(target).name))
        real[call](source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    for call in ("link", "replace"):
        monkeypatch.setattr(os, call, lambda source, target, call=call: named(call, source, target))
    return found


@pytest.mark.parametrize("once", [True, False])
def test_a_file_is_on_disk_before_it_has_its_name_and_the_name_before_the_write_returns(
    tmp_path: Path, calls: list[tuple[str, str]], once: bool
) -> None:
    store = LocalStorage(tmp_path)
    for name in ("deep/down/x", "deep/down/x"):
        calls.clear()
        first = not (tmp_path / name).exists()
        if once:
            assert store.write_once(name, b"data") is first
        else:
            store.write(name, b"data")
        made = [("fsync", tmp_path.name), ("fsync", "deep")] if first else []
        (*folders, (_, content), linked, folder) = calls
        assert folders == made and content.endswith(".tmp")
        assert linked == ("link" if once else "replace", "x") and folder == ("fsync", "down")


def test_so_is_a_file_that_was_written_in_pieces(tmp_path: Path, calls: list[tuple[str, str]]) -> None:
    store = LocalStorage(tmp_path / "t")
    write_file(store, "a/b.parquet", ROWS.schema, [ROWS], None)
    assert calls[-2:] == [("fsync", "b.parquet"), ("fsync", "a")]
    changes = ChangeFileWriter(store, "c.parquet", ROWS.schema)
    changes.add(ROWS.to_batches()[0])
    changes.close()
    assert calls[-2:] == [("fsync", "c.parquet"), ("fsync", "t")]


def test_all_that_a_commit_names_is_on_disk_before_it(tmp_path: Path, calls: list[tuple[str, str]]) -> None:
    target = create_table(tmp_path)
    upsert(target, (1, "a", 1, "c"), (2, "a", 1, "c"))
    calls.clear()
    upsert(target, (1, "b", 2, "u"))
    commit = calls.index(("link", f"{target.load_log().version:020d}.json"))
    synced = {name for call, name in calls[:commit] if call in ("fsync", "replace")}
    vectors = {
        Path(f.deletion_vector.file_name).name
        for f in target.load_log().files.values()
        if f.deletion_vector and f.deletion_vector.file_name
    }
    assert vectors and vectors <= synced and {Path(name).name for name in target.load_log().files} & synced
    assert calls[commit + 1] == ("fsync", "_delta_log")


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP, errno.EIO])
def test_a_file_system_that_cannot_sync_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    real = os.fsync

    def fsync(fd: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{fd}"):
            raise OSError(number, os.strerror(number))
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    if number == errno.EIO:
        with pytest.raises(OSError, match="Input/output error"):
            LocalStorage(tmp_path).write("x", b"data")
    else:
        LocalStorage(tmp_path).write("x", b"data")
        assert LocalStorage(tmp_path).read("x") == b"data"


# ---------------------------------------------------------------- a full disk


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A disk of a megabyte."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m,nr_inodes=200", "tmpfs", str(folder)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("no file system may be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_disk_that_is_full_is_called_so(small: Path) -> None:
    store = LocalStorage(small)

    def changes() -> Any:
        file = ChangeFileWriter(store, "changes/c.parquet", ROWS.schema)
        file.add(ROWS.to_batches()[0])
        file.close()

    (small / "filler").write_bytes(bytes(1000 << 10))
    ways = [
        lambda: store.write("note", bytes(1 << 20)),
        lambda: store.write_once("note", bytes(1 << 20)),
        lambda: write_file(store, "part-0.parquet", ROWS.schema, [ROWS], None),
        changes,
    ]
    for write in ways:
        with pytest.raises(NoRoomError, match="not be written: No space left on device. Make room on the disk of"):
            write()
    assert store.read("note") is None
    assert not [name for name in os.listdir(small) if name.endswith(".tmp")]


def test_a_commit_on_a_disk_that_is_full(small: Path) -> None:
    """It stands later; and what nobody needs can be deleted."""
    target = create_table(small)
    upsert(target, (1, "a", 1, "c"))
    upsert(target, (1, "b", 2, "u"))
    for path in small.rglob("*"):
        os.utime(path, (0, os.stat(path).st_mtime - 3 * 3600))
    upsert(target, (2, "c", 2, "u"))
    filler = small / "filler"
    with pytest.raises(OSError), filler.open("wb") as file:
        while True:
            file.write(bytes(4096))
            file.flush()
    with pytest.raises(TransientError, match="No space left on device.*Make room on the disk of"):
        target.load_log().commit([], "TEST")
    with pytest.raises(TransientError, match="No space left on device.*Make room on the disk of"):
        upsert(target, (2, "d", 3, "u"))
    empty = small / "empty"
    empty.mkdir()
    with pytest.raises(OSError):  # nor is there room for a file without content
        for number in range(200):
            (empty / str(number)).touch()
    parts = {*small.glob("t/part-*")}
    vacuum_files(target.load_log())
    assert len(parts - {*small.glob("t/part-*")}) == 1, "that of the first row"
    filler.unlink()
    shutil.rmtree(empty)
    upsert(target, (2, "d", 3, "u"))
    assert held(opened(small)) == {1: ("b", 2), 2: ("d", 3)}


def test_an_error_of_another_kind_stays_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(PermissionError), translate_disk_full(tmp_path):
        raise PermissionError(errno.EACCES, "no")
