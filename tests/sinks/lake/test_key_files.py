"""Reading keys into the index: which files, in which order, and beside a stream that goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_cdc.sinks.delta.table import DeltaSinkTable
from airflow_provider_cdc.sinks.files.parquet import read_row_groups, write_file
from airflow_provider_cdc.sinks.lake.merge import key_lookup as module
from airflow_provider_cdc.sinks.lake.merge.key_index import KeyIndex
from airflow_provider_cdc.sinks.protocol import PublishSlices, Upsert
from airflow_provider_cdc.sinks.storage.local_storage import LocalStorage
from tests.sinks.delta.test_table import FENCE, SCHEMA, create_table, held, opened, rows, upsert

#: Room for everything.
ROOM = 1 << 30


def go_on() -> bool:
    return False


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files whose keys are read."""
    found: list[str] = []

    def noted(storage: Any, name: str, *rest: Any) -> Any:
        found.append(name)
        return read_row_groups(storage, name, *rest)

    monkeypatch.setattr(module, "read_row_groups", noted)
    return found


def in_files(folder: Path, count: int, schema: pa.Schema = SCHEMA, **options: Any) -> DeltaSinkTable:
    """A table with so many files of the snapshot, each with ten rows; opened anew."""
    target = create_table(folder, **options)
    files = [
        write_file(
            target.storage,
            f"snapshot/1/0/1/slice-{n}.parquet",
            SCHEMA,
            [rows(*((10 * n + i, f"{n}", 1, "r") for i in range(10)))],
            "id",
        )
        for n in range(count)
    ]
    target.commit(lambda _: PublishSlices(files), {}, FENCE)
    return again(folder)


def again(folder: Path) -> DeltaSinkTable:
    target = opened(folder)
    target.load_log()
    return target


def test_a_new_table_is_read_from_its_newest_file_on(tmp_path: Path, read: list[str]) -> None:
    target = in_files(tmp_path, 3)
    assert target.prefetcher()(ROOM, go_on) == sum(target.index_bytes_used) > 30 * 8 - 1
    assert sorted(read) == [f"snapshot/1/0/1/slice-{n}.parquet" for n in range(3)]
    upsert(target, (5, "new", 2, "u"), (25, "new", 2, "u"))
    assert len(read) == 3, "a batch reads nothing again"
    assert held(target)[5] == held(target)[25] == ("new", 2) and len(held(target)) == 30


def test_what_changes_have_hit_is_read_of_a_table_that_has_changed(tmp_path: Path, read: list[str]) -> None:
    """Not the rest: of a table to which rows are only added nothing is looked for."""
    upsert(in_files(tmp_path, 3), (15, "new", 2, "u"), (99, "new", 2, "c"))
    read.clear()
    target = again(tmp_path)
    assert target.prefetcher()(0, go_on) == 0, "memory for what nothing speaks for is not needed"
    assert read == ["snapshot/1/0/1/slice-1.parquet"]
    assert target.prefetcher()(ROOM, go_on) == 0 and len(read) == 1
    upsert(target, (15, "newer", 3, "u"))
    assert read.count("snapshot/1/0/1/slice-1.parquet") == 1 and held(target)[15] == ("newer", 3)


def test_there_is_no_room(tmp_path: Path, read: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is looked at after each portion, and the next one is not begun before."""
    monkeypatch.setattr(module, "_FILES_PER_PORTION", 2)
    target = in_files(tmp_path, 40)
    assert target.prefetcher()(0, go_on) == 0 and not read
    assert target.prefetcher()(200, go_on) == 4 * (10 * 8 + 4)  # words, and the number of the file
    assert sorted(read) == [f"snapshot/1/0/1/slice-{n}.parquet" for n in (36, 37, 38, 39)]


@pytest.mark.parametrize("changed", [False, True])
def test_it_ends_when_it_is_told(
    tmp_path: Path, read: list[str], monkeypatch: pytest.MonkeyPatch, changed: bool
) -> None:
    monkeypatch.setattr(module, "_FILES_PER_PORTION", 2)
    target = in_files(tmp_path, 40)
    if changed:
        upsert(target, *((10 * n, "new", 2, "u") for n in range(40)))
        read.clear()
        target = again(tmp_path)
    target.prefetcher()(ROOM, lambda: True)
    assert len(read) == 2


def test_what_a_batch_waits_for_is_read_first(tmp_path: Path, read: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    target = in_files(tmp_path, 6)
    reading, go = threading.Event(), threading.Event()
    facts = module.KeyLookup._read_key_hashes

    def slow(self: Any, file: Any, schema: Any) -> Any:
        if file.path.endswith("slice-2.parquet"):
            reading.set()
            go.wait(60)
        return facts(self, file, schema)

    monkeypatch.setattr(module.KeyLookup, "_read_key_hashes", slow)
    batch = threading.Thread(target=upsert, args=(target, (25, "new", 2, "u")))
    ahead = threading.Thread(target=target.prefetcher(), args=(ROOM, go_on))
    batch.start()
    assert reading.wait(60)
    ahead.start()
    ahead.join(0.5)
    assert not read and ahead.is_alive(), "nothing else is read meanwhile"
    go.set()
    batch.join(60)
    ahead.join(60)
    assert sorted(read) == [f"snapshot/1/0/1/slice-{n}.parquet" for n in range(6)]
    assert held(target)[25] == ("new", 2)


def test_a_file_that_is_gone_when_it_was_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two steps of a batch: its rows are those of no file any more."""
    target = in_files(tmp_path, 2)
    ahead = target.prefetcher()
    other = opened(tmp_path, vectors=False)  # writes the first file anew
    upsert(other, (5, "copied", 2, "u"))
    target.load_log()
    follow = KeyIndex.sync_live_files

    def late(self: KeyIndex, live: Any, dead: Callable[[str], Any]) -> None:
        follow(self, live, dead)
        if self is target._key_index:
            ahead(ROOM, go_on)

    monkeypatch.setattr(KeyIndex, "sync_live_files", late)
    upsert(target, (5, "new", 3, "u"), (6, "new", 3, "u"))
    assert "snapshot/1/0/1/slice-0.parquet" in target._key_index, "or this tests nothing"
    assert held(target)[5] == held(target)[6] == ("new", 3) and len(held(target)) == 20
    upsert(target, (7, "newer", 4, "u"))
    assert held(target)[7] == ("newer", 4) and len(held(target)) == 20


def test_a_table_without_a_key_is_not_read_as_a_whole(tmp_path: Path, read: list[str]) -> None:
    """All of its values would be."""
    in_files(tmp_path, 2)
    target = DeltaSinkTable(LocalStorage(tmp_path / "t"), SCHEMA)
    target.load_log()
    assert target.prefetcher()(ROOM, go_on) == 0 and not read


def test_statistics_exclude_files_one_by_one(tmp_path: Path, read: list[str]) -> None:
    """Not by the smallest and the largest key of a batch; and at the very bounds of a file nothing is left out."""
    target = in_files(tmp_path, 10)
    upsert(target, (-1, "new", 2, "c"), (39, "new", 2, "u"), (60, "new", 2, "u"), (100, "new", 2, "c"))
    assert sorted(read) == ["snapshot/1/0/1/slice-3.parquet", "snapshot/1/0/1/slice-6.parquet"]
    assert held(target)[39] == held(target)[60] == ("new", 2) and len(held(target)) == 102


@pytest.mark.parametrize("top", [0, 2**63])
def test_keys_of_which_hashes_are_kept(tmp_path: Path, top: int) -> None:
    """BIGINT UNSIGNED is no integer of 64 bits in a lake; its statistics, which are numbers, say nothing of hashes."""
    schema = SCHEMA.set(0, pa.field("id", pa.decimal128(20, 0)))

    def numbered(*listed: tuple[int, str, int, str]) -> pa.Table:
        found = rows(*listed)
        return found.set_column(0, schema[0], pa.array([Decimal(top + row[0]) for row in listed], schema[0].type))

    def open_anew() -> DeltaSinkTable:
        return DeltaSinkTable(LocalStorage(tmp_path / "t"), schema, ["id"], "id")

    target = open_anew()
    target.create("p")
    files = []
    for n in range(3):
        listed = [(10 * n + i, "old", 1, "r") for i in range(10)]
        written = write_file(target.storage, f"snapshot/1/0/1/slice-{n}.parquet", schema, [numbered(*listed)], "id")
        assert (written.low, written.high) == (top + 10 * n, top + 10 * n + 9)
        files.append(written)
    target.commit(lambda _: PublishSlices(files), {}, FENCE)
    target = open_anew()
    changed = (0, 9, 15, 29)
    target.commit(lambda _: Upsert(numbered(*((n, "new", 2, "u") for n in changed))), {}, FENCE)
    found = {int(row["id"]) - top: row["v.w"] for row in target.read_with_soft_deleted().to_pylist()}
    assert target.read_with_soft_deleted().num_rows == len(found) == 30, "a key is there twice"
    assert {n for n, value in found.items() if value == "new"} == set(changed)
