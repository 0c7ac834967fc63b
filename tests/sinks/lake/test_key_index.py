"""The key index against a dictionary: it finds every row, whatever was merged, forgotten or put onto disk."""

from __future__ import annotations

import random
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyroaring import BitMap

from airflow_provider_cdc.sinks.lake.merge import key_index as module
from airflow_provider_cdc.sinks.lake.merge.key_hashes import KeyHasher, KeyHashes
from airflow_provider_cdc.sinks.lake.merge.key_index import FileKeyHashes, KeyIndex

SCHEMA = {
    "integer": pa.schema([("id", pa.int64())]),
    "text": pa.schema([("id", pa.string())]),
}


class World:
    """Files with keys, and an index of them."""

    def __init__(self, kind: str, held: int) -> None:
        self.kind, self.index = kind, KeyIndex(held)
        self.worder = KeyHasher(["id"], SCHEMA[kind])
        self.files: dict[str, list[int]] = {}
        self.dead: dict[str, BitMap] = {}

    def words(self, keys: list[int]) -> KeyHashes:
        found = pa.array(keys, pa.int64())
        return self.worder(pa.table({"id": found if self.kind == "integer" else found.cast(pa.string())}))

    def add(self, path: str, keys: list[int], dead: Collection[int] = ()) -> None:
        """A file; its dead rows are not told to the index, as those of a staged file."""
        self.files[path], self.dead[path] = keys, BitMap(dead)
        rows = [row for row in range(len(keys)) if row not in dead]
        facts = FileKeyHashes(self.words([keys[row] for row in rows]), 1, np.array(rows, np.uint32) if dead else None)
        self.index.add_file(path, facts)

    def kill(self, path: str, row: int) -> None:
        self.dead[path] = self.dead[path] | BitMap([row])

    def remove(self, path: str) -> None:
        del self.files[path], self.dead[path]

    def follow(self) -> None:
        self.index.sync_live_files(self.files, self.dead.__getitem__)

    def find(self, keys: list[int]) -> set[tuple[int, str, int]]:
        """What is found alive: key, file and row."""
        found = self.index.find_keys(self.words(keys))
        listed = [
            (keys[asked], self.index.file_path(int(file)), int(row))
            for asked, file, row in zip(found.query_index, found.file_number, found.row_number, strict=True)
        ]
        living = [place for place in listed if place[2] not in self.dead[place[1]]]
        assert len(set(listed)) == len(listed), "a row was found twice"
        return set(living)

    def expected(self, keys: list[int]) -> set[tuple[int, str, int]]:
        return {
            (key, path, row)
            for path, listed in self.files.items()
            for row, key in enumerate(listed)
            if key in keys and row not in self.dead[path]
        }


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SEGMENTS_TO_MERGE", 3)
    monkeypatch.setattr(module, "_MAX_SEGMENT_ROWS", 200)
    monkeypatch.setattr(module, "_MAX_MERGE_FACTOR", 2)


@pytest.mark.parametrize("held", [0, 500, 1 << 20])
@pytest.mark.parametrize("kind", SCHEMA)
@pytest.mark.parametrize("seed", range(4))
def test_it_finds_every_living_row(small: None, kind: str, held: int, seed: int) -> None:
    chance = random.Random(f"{kind} {held} {seed}")
    world = World(kind, held)
    for step in range(150):
        what = chance.random()
        if what < 0.5 or not world.files:
            keys = [chance.randrange(-50, 50) for _ in range(chance.choice([0, 1, 5, 40]))]
            dead = {row for row in range(len(keys)) if chance.random() < 0.2} if chance.random() < 0.5 else set()
            world.add(f"f{step}", sorted(keys) if chance.random() < 0.5 else keys, dead)
        elif what < 0.8:
            path = chance.choice(list(world.files))
            for row in range(len(world.files[path])):
                if chance.random() < 0.3:
                    world.kill(path, row)
        elif what < 0.9:
            world.remove(chance.choice(list(world.files)))
        world.follow()
        asked = chance.sample(range(-50, 50), 20)
        assert world.find(asked) == world.expected(asked)


@pytest.mark.parametrize("key", [-(1 << 63), -1, 0, (1 << 63) - 1])
def test_keys_at_the_ends(key: int) -> None:
    world = World("integer", 1 << 20)
    world.add("a", [key])
    world.add("b", sorted({-(1 << 63), key, (1 << 63) - 1}))
    world.follow()
    asked = sorted({-(1 << 63), key, (1 << 63) - 1})
    assert world.find(asked) == world.expected(asked)


def test_small_segments_are_put_together(small: None) -> None:
    world = World("integer", 1 << 20)
    for n in range(100):
        world.add(f"f{n}", [n, 1000 + n])
        world.follow()
    assert len(world.index._segments) < 10
    assert world.find([5, 1005]) == {(5, "f5", 0), (1005, "f5", 1)}


def test_many_files_are_not_put_together_at_once(small: None) -> None:
    """As when the keys of a large table are read: that would take its time, and twice the memory."""
    world = World("integer", 1 << 20)
    for n in range(20):
        world.add(f"f{n}", [*range(100 * n, 100 * n + 100)])
    world.follow()
    assert max(len(s.hashes) for s in world.index._segments) == 400
    assert world.find([5, 1999]) == {(5, "f0", 5), (1999, "f19", 99)}


@pytest.mark.parametrize("kind", SCHEMA)
def test_files_are_read_ahead_while_others_are_looked_for(small: None, kind: str) -> None:
    """By several threads, which put segments together at the same time."""
    world = World(kind, 2_000)
    world.add("late", [*range(1000)], dead=range(0, 1000, 2))
    world.follow()
    facts = {f"f{n}": FileKeyHashes(world.words([*range(1000 + 20 * n, 1020 + 20 * n)]), 1) for n in range(200)}

    def ahead(paths: list[str]) -> None:
        for path in paths:
            world.index.add_file(path, facts[path])
            world.index.merge_and_spill()

    with ThreadPoolExecutor(4) as pool:
        work = [pool.submit(ahead, list(facts)[start:]) for start in (0, 0, 50, 150)]  # all of them more than once
        while not all(w.done() for w in work):
            assert world.find([1, 3, 999]) == {(key, "late", key) for key in (1, 3, 999)}
            world.index.sync_live_files({"late": 0, **facts}, lambda path: world.dead.get(path, BitMap()))
    for one in work:
        one.result()
    for path in facts:
        world.files[path], world.dead[path] = [*range(1000 + 20 * int(path[1:]), 1020 + 20 * int(path[1:]))], BitMap()
    asked = [*range(990, 5010)]
    assert world.find(asked) == world.expected(asked)


def test_what_is_forgotten_while_segments_are_put_together(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """By another thread: it stays forgotten, and what is read anew is there once."""
    world = World("integer", 1 << 20)
    for n in range(3):
        world.add(f"f{n}", [n])
    merged = KeyIndex._merge_segments

    def meanwhile(self: KeyIndex, segments: Any, dead: Any) -> Any:
        found = merged(self, segments, dead)
        monkeypatch.setattr(KeyIndex, "_merge_segments", merged)
        self.forget_files(["f1"])
        world.add("f1", [1])
        return found

    monkeypatch.setattr(KeyIndex, "_merge_segments", meanwhile)
    world.index.merge_and_spill()
    assert world.find([0, 1, 2]) == {(n, f"f{n}", 0) for n in range(3)}
    assert sum(len(s.hashes) for s in world.index._segments) == 3


def test_a_file_that_is_in_it_is_not_added_again(small: None) -> None:
    world = World("integer", 1 << 20)
    for _ in range(2):
        world.add("a", [1, 2])
    assert world.find([1, 2]) == {(1, "a", 0), (2, "a", 1)}
    world.remove("a")
    world.follow()
    assert len(world.index._segments) == 0, "and then it is forgotten"


def test_what_is_dead_is_dropped_when_segments_are_put_together(small: None) -> None:
    world = World("integer", 1 << 20)
    for n in range(9):
        world.add(f"f{n}", [*range(20)])
        for row in range(20):
            world.kill(f"f{n}", row)
        world.follow()
    assert world.index.bytes_used == (0, 0) or world.index.bytes_used[0] < 9 * 20 * 8 / 2


def test_a_file_with_rows_that_came_back_is_forgotten(small: None) -> None:
    """After a RESTORE. What was dropped as dead would not be found."""
    world = World("integer", 1 << 20)
    for n in range(9):
        world.add(f"f{n}", [n])
        world.kill(f"f{n}", 0)
    world.follow()
    assert world.find([*range(9)]) == set()
    world.index.forget_files(["f3", "never seen"])
    assert "f3" not in world.index and "f4" in world.index
    world.add("f3", [3])
    assert world.find([*range(9)]) == {(3, "f3", 0)}


def test_memory_is_bounded() -> None:
    """The largest segments go to files; they are found there."""
    world = World("text", 10_000)
    for n in range(20):
        world.add(f"f{n}", [*range(n * 1000, n * 1000 + 1000)])
        world.follow()
        memory, disk = world.index.bytes_used
        assert memory <= 10_000
    assert disk > 20 * 1000 * 16 - 10_000
    assert world.find([0, 19_999]) == {(0, "f0", 0), (19_999, "f19", 999)}


def test_words_that_meet_in_their_first_half() -> None:
    """Both words decide; those with the same first one stand side by side."""
    index = KeyIndex(1 << 20)
    first = np.array([7, 7, 7, 8], np.uint64)
    index.add_file("a", FileKeyHashes(KeyHashes(first, np.array([1, 2, 3, 1], np.uint64)), 1))

    def found(*words: tuple[int, int]) -> list[tuple[Any, ...]]:
        asked = KeyHashes(np.array([a for a, _ in words], np.uint64), np.array([b for _, b in words], np.uint64))
        hits = index.find_keys(asked)
        return sorted(zip(hits.query_index.tolist(), hits.row_number.tolist(), strict=True))

    assert found((7, 3), (8, 1), (8, 2)) == [(0, 2), (1, 3)]
    assert found((7, 1), (7, 2), (7, 4)) == [(0, 0), (1, 1)]
