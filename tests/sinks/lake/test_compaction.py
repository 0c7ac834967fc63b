"""Compaction: no row changes, whatever happens between reading and committing, and files stay few."""

from __future__ import annotations

import random
from itertools import chain
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyroaring import BitMap

from airflow_provider_cdc.sinks.delta.log.deletion_vectors import DeletionVector
from airflow_provider_cdc.sinks.delta.log.live_file import DeltaLiveFile
from airflow_provider_cdc.sinks.delta.table import DeltaSinkTable
from airflow_provider_cdc.sinks.delta.table_metadata import DeltaTableOptions
from airflow_provider_cdc.sinks.lake import compaction as module
from airflow_provider_cdc.sinks.lake.compaction import FileCompaction, choose_file_groups
from airflow_provider_cdc.sinks.protocol import Truncate
from airflow_provider_cdc.sinks.storage.local_storage import LocalStorage
from tests.sinks.delta.test_table import FENCE, SCHEMA, add, create_table, files, folder_of, held, opened, rows, upsert

MB = 1 << 20


def compact(target: DeltaSinkTable) -> int:
    """One round; how many compactions stand."""
    work = target.plan_compactions()
    return len(work) if work and target.commit_compactions([(c, c.run()) for c in work]) else 0


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two small files are too many, and one dead row in ten."""
    monkeypatch.setattr(module, "FANOUT", 2)
    monkeypatch.setattr(module, "MAX_DEAD_SHARE", 0.1)


# ---------------------------------------------------------------- what is compacted


def file(name: str, size: int, dead: int = 0, count: int = 100) -> DeltaLiveFile:
    vector = DeletionVector("u", "place", 1, dead, 1).to_json() if dead else None
    stats = f'{{"numRecords": {count}}}'
    return DeltaLiveFile({"path": name, "size": size, "stats": stats, **({"deletionVector": vector} if vector else {})})


def groups(listed: list[DeltaLiveFile], *, vectors: bool = True, purge: bool = False) -> list[list[str]]:
    found = choose_file_groups(listed, lambda f: f.stats["numRecords"], deletion_vectors=vectors, purge=purge)
    return [[f.path for f in group] for group in found]


def test_eight_files_of_a_tier_are_put_together() -> None:
    small = [file(f"s{n}", MB) for n in range(8)]
    assert groups([*small[:7], file("large", 100 * MB)]) == []
    assert groups([*small, file("large", 100 * MB)]) == [[f.path for f in small]]


def test_smaller_files_come_along_and_larger_ones_do_not() -> None:
    """Those of the tier above wait until they are eight: else they would be written again for each eight files."""
    tiers = [file(f"{size}-{n}", size * MB >> 10) for size in (4, 40, 300, 3000) for n in range(3)]
    assert groups(tiers) == []
    found = groups([*tiers, *(file(f"more-{n}", 300 * MB >> 10) for n in range(5))])
    assert [sorted({name.split("-")[0] for name in group}) for group in found] == [["300", "4", "40", "more"]]
    assert len(found[0]) == 14


def test_none_becomes_too_large() -> None:
    found = groups([file(f"s{n}", 3 * MB) for n in range(50)])
    assert [len(group) for group in found] == [5] * 10
    large = [file(f"l{n}", 100 * MB) for n in range(40)]  # files grow with the table
    assert [len(group) for group in groups([*large, *(file(f"s{n}", 3 * MB) for n in range(60))])] == [21, 21, 18]
    assert groups([file(f"s{n}", 9 * MB) for n in range(50)]) == [], "each is more than half of the largest"
    done = file("done", 20 * MB)  # of the same tier as the others, and more than half of the largest size
    young = [file(f"s{n}", 9 * MB) for n in range(10)]
    found = groups([*(file(f"l{n}", 105 * MB) for n in range(20)), done, *young])
    assert sorted(chain.from_iterable(found)) == sorted(f.path for f in young[:9]), found
    huge = [file(f"l{n}", 5000 * MB) for n in range(20)]
    found = groups([*huge, *(file(f"s{n}", 300 * MB) for n in range(8))])
    assert [len(group) for group in found] == [3, 3, 2], "at most a gigabyte"
    huge = [file(f"l{n}", 50_000 * MB) for n in range(20)]
    assert len(groups([*huge, *(file(f"s{n}", 300 * MB) for n in range(8))])) == 1, "unless there were too many of them"


@pytest.mark.parametrize("batch", [10 << 10, 200 << 10, 3 * MB])
def test_a_row_is_written_again_a_few_times(batch: int) -> None:
    """Without dead rows, once for each tier: whatever the size of the batches, and however long it goes on."""
    listed, written, most = list[DeltaLiveFile](), 0, 0
    for n in range(3000):
        listed.append(file(f"b{n}", batch))
        while found := groups(listed):
            for number, group in enumerate(found):
                whole = sum(f.size for f in listed if f.path in group)
                listed = [f for f in listed if f.path not in group] + [file(f"c{n}-{number}-{whole}", whole)]
                written += whole
        most = max(most, sum(f.size < 8 * MB for f in listed))
    assert written < 5 * 3000 * batch and most < 30


def test_files_with_dead_rows_are_written_anew() -> None:
    assert groups([file("a", 50 * MB, 15), file("b", 50 * MB, 16)]) == [["b"]]


def test_a_small_file_with_dead_rows_waits_for_others() -> None:
    assert groups([file("a", MB, 99)]) == []


def test_files_are_never_too_many() -> None:
    """Some readers hang above 510 files with vectors."""
    listed = [file(f"l{n}", 900 * MB + n, 1) for n in range(401)]
    assert sum(map(len, groups(listed))) > 300, "each is small beside its share"
    listed = [file(f"s{n}", 10**n * MB, 1) for n in range(3)] + [file(f"l{n}", 1000 * MB, 1) for n in range(398)]
    assert groups(listed[:400]) == [], "none is small beside its share but three that are not enough"
    found = groups(listed)
    assert sum(map(len, found)) >= 199 and found[0][0] == "s0" and len(found) < 60


def test_a_purge_leaves_neither_dead_rows_nor_small_files() -> None:
    listed = [file("a", 50 * MB, 1), file("b", 50 * MB), *(file(f"s{n}", MB << n, n) for n in range(3))]
    assert groups(listed) == []
    assert groups(listed, purge=True) == [["s0", "s1", "s2"], ["a"]]
    assert groups([file("b", 50 * MB), file("s", MB)], purge=True) == []


def test_to_end_the_use_of_vectors() -> None:
    listed = [file("small", MB, 1), file("large", 50 * MB, 1), file("other", 50 * MB)]
    assert groups(listed) == []
    assert sorted(chain.from_iterable(groups(listed, vectors=False))) == ["large", "small"]


def test_each_file_is_in_one_compaction() -> None:
    chance = random.Random(1)
    for _ in range(200):
        count = chance.choice([3, 40, 500])
        listed = [file(f"f{n}", chance.choice([1, 5, 20, 80]) * MB, chance.choice([0, 5, 50])) for n in range(count)]
        for vectors in (True, False):
            found = [*chain.from_iterable(groups(listed, vectors=vectors))]
            assert len(found) == len(set(found))


def test_a_table_that_is_compacted_needs_no_more(soon: None, tmp_path: Path) -> None:
    target = create_table(tmp_path)
    for n in range(5):
        upsert(target, (n, "a", n + 1, "c"))
    assert compact(target) == 1
    assert files(target) == 1 and not target.plan_compactions()
    upsert(target, (0, "b", 9, "u"))
    assert compact(target) == 1, "the one has a dead row, and is small"
    assert not target.plan_compactions() and held(target)[0] == ("b", 9)


# ---------------------------------------------------------------- what happens meanwhile


def test_rows_that_die_meanwhile_are_dead_in_the_new_file(soon: None, tmp_path: Path) -> None:
    target, other = create_table(tmp_path), opened(tmp_path)
    for n in range(6):
        upsert(target, *((10 * n + i, "a", n + 1, "c") for i in range(10)))
    upsert(target, (3, "", 8, "d"), (42, "b", 8, "u"))  # dead before: they are not copied
    [work] = other.plan_compactions()
    written = work.run()
    upsert(target, (7, "", 9, "d"), (45, "c", 9, "u"), (12, "d", 9, "u"))
    expected = held(target)
    assert other.commit_compactions([(work, written)])
    assert held(target) == held(opened(tmp_path)) == expected
    [new] = [f for f in other.load_log().files.values() if f.path == written[0].path]
    assert new.dead_row_count == 3
    upsert(target, (7, "e", 10, "c"), (45, "", 10, "d"))
    assert held(target) == held(opened(tmp_path)) == {**{k: v for k, v in expected.items() if k != 45}, 7: ("e", 10)}


def test_a_file_that_is_gone_makes_it_void(soon: None, tmp_path: Path) -> None:
    target, other = create_table(tmp_path), opened(tmp_path)
    for n in range(3):
        upsert(target, (n, "a", n + 1, "c"))
    [work] = other.plan_compactions()
    written = work.run()
    target.commit(lambda _: Truncate(3), {}, FENCE)
    assert not other.commit_compactions([(work, written)])
    assert held(opened(tmp_path)) == {2: ("a", 3)}
    assert not (folder_of(target) / written[0].path).exists(), "nobody would delete it for two days"


def test_of_several_those_stand_whose_files_are_there(soon: None, tmp_path: Path) -> None:
    """Files all of whose rows are changed again and again go at any moment: the others do not wait for them."""
    target, other = create_table(tmp_path), opened(tmp_path)
    for n in range(2):
        upsert(target, (n, "a", n + 1, "c"), (10 + n, "a", n + 1, "c"))
    [first] = other.plan_compactions()
    for n in range(2):
        upsert(target, (n + 20, "a", n + 3, "c"))
    paths = {path for path, _ in first.sources}
    [both] = other.plan_compactions()
    second = FileCompaction(both.storage, both.table_format, tuple((p, d) for p, d in both.sources if p not in paths))
    done = [(c, c.run()) for c in (first, second)]
    upsert(target, (0, "b", 9, "u"), (10, "b", 9, "u"))
    expected = held(target)
    assert other.commit_compactions(done) == 1
    assert held(target) == held(opened(tmp_path)) == expected
    live = other.load_log().files
    assert [file.path in live for _, [file] in done] == [False, True]
    assert not (folder_of(target) / done[0][1][0].path).exists()
    assert other.load_log().markers["airflow-cdc/compactions"] == 1


def test_two_of_one_file_do_not_both_stand(soon: None, tmp_path: Path) -> None:
    target = create_table(tmp_path)
    for n in range(2):
        upsert(target, (n, "a", n + 1, "c"))
    [work] = target.plan_compactions()
    assert target.commit_compactions([(work, work.run()), (work, work.run())]) == 1
    assert held(opened(tmp_path)) == {0: ("a", 1), 1: ("a", 2)} and len(target.read_with_soft_deleted()) == 2


def test_of_two_the_first_counts(soon: None, tmp_path: Path) -> None:
    target = create_table(tmp_path)
    for n in range(3):
        upsert(target, (n, "a", n + 1, "c"))
    one, other = opened(tmp_path), opened(tmp_path)
    first, second = one.plan_compactions(), other.plan_compactions()
    done = [(c, c.run()) for c in second]
    assert one.commit_compactions([(c, c.run()) for c in first])
    assert not other.commit_compactions(done)
    assert held(opened(tmp_path)) == {n: ("a", n + 1) for n in range(3)}


def test_a_task_that_was_given_up_goes_on(soon: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark runs a task again whose executor it has lost; that one may be alive, and end after the commit."""
    target = create_table(tmp_path)
    for n in range(3):
        upsert(target, (n, "a", n + 1, "c"))
    [work] = target.plan_compactions()
    assert target.commit_compactions([(work, work.run())])
    expected = {n: ("a", n + 1) for n in range(3)}
    work.run()
    assert held(opened(tmp_path)) == expected

    def full(*_: object, **__: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(pq.ParquetWriter, "write_table", full)
    with pytest.raises(OSError, match="no space"):
        work.run()
    assert held(opened(tmp_path)) == expected


def test_rows_that_came_back_make_it_void(soon: None, tmp_path: Path) -> None:
    """Somebody has restored an older version: what was dead when it was read is not in the new file."""
    target, other = create_table(tmp_path), opened(tmp_path)
    for n in range(3):
        upsert(target, (10 * n, "a", n + 1, "c"), (10 * n + 1, "a", n + 1, "c"))
    version = target.load_log().version
    upsert(target, (0, "", 9, "d"))
    [work] = other.plan_compactions()
    written = work.run()
    DeltaTable(folder_of(target)).restore(version)
    assert not other.commit_compactions([(work, written)])
    assert held(opened(tmp_path))[0] == ("a", 1)


def test_all_rows_die_meanwhile(soon: None, tmp_path: Path) -> None:
    target, other = create_table(tmp_path), opened(tmp_path)
    add(target, "a", rows((1, "a", 1, "r")))
    add(target, "b", rows((2, "a", 1, "r")))
    upsert(target, (3, "a", 2, "c"), (4, "a", 2, "c"))
    [work] = other.plan_compactions()
    written = work.run()
    upsert(target, *((key, "", 9, "d") for key in (1, 2, 3, 4)))
    assert not other.commit_compactions([(work, written)]), "the files went with their last rows"
    assert held(opened(tmp_path)) == {}


def test_a_row_that_dies_twice(soon: None, tmp_path: Path) -> None:
    """The index still knows the old place when the row is in the new file."""
    target, other = create_table(tmp_path), opened(tmp_path)
    upsert(target, (1, "a", 1, "c"), (2, "a", 1, "c"))
    upsert(target, (3, "a", 2, "c"))
    for seq in range(3, 30):
        work = other.plan_compactions()
        done = [(c, c.run()) for c in work]
        upsert(target, (seq % 3 + 1, "b", seq, "u"))
        other.commit_compactions(done)
        assert held(target)[seq % 3 + 1] == ("b", seq)
    assert held(opened(tmp_path)) == {1: ("b", 27), 2: ("b", 28), 3: ("b", 29)}


@pytest.mark.parametrize("seed", range(10))
def test_at_any_moment(soon: None, tmp_path: Path, seed: int) -> None:
    """Compactions are planned, run and committed whenever chance wants it."""
    chance = random.Random(seed)
    target, upkeep = create_table(tmp_path), opened(tmp_path)
    expected: dict[int, tuple[str, int]] = {}
    waiting = []
    for seq in range(1, 60):
        listed = []
        for key in chance.sample(range(30), chance.randrange(1, 6)):
            dies = chance.random() < 0.3
            listed.append((key, f"v{seq}", seq, "d" if dies else "u"))
            expected[key] = (f"v{seq}", seq)
            if dies:
                del expected[key]
        upsert(target, *listed)
        if chance.random() < 0.4:
            waiting += [(c, c.run()) for c in upkeep.plan_compactions()]
        if waiting and chance.random() < 0.5:
            done = chance.sample(waiting, chance.randrange(1, len(waiting) + 1))
            waiting = [w for w in waiting if w not in done]
            for work in done:
                upkeep.commit_compactions([work])
        if chance.random() < 0.1:
            target = opened(tmp_path)
        assert held(target) == expected
    assert held(opened(tmp_path)) == expected


# ---------------------------------------------------------------- the other way to merge


def test_from_vectors_to_copies_and_back(soon: None, tmp_path: Path) -> None:
    target = create_table(tmp_path)
    for n in range(4):
        upsert(target, (n, "a", n + 1, "c"), (0, "b", n + 1, "u"))
    assert any(f.deletion_vector for f in target.load_log().files.values())
    expected = held(target)
    copies = opened(tmp_path, vectors=False)
    copies.create("p")
    while compact(copies):
        pass
    copies.clean_up()
    log = copies.load_log()
    assert log.protocol == {"minReaderVersion": 1, "minWriterVersion": 2}
    assert "delta.enableDeletionVectors" not in log.properties and held(copies) == expected
    upsert(copies, (0, "c", 9, "u"))
    assert DeltaTable(folder_of(copies)).to_pyarrow_table().num_rows == 4
    again = opened(tmp_path)
    upsert(again, (1, "c", 10, "u"))
    assert any(f.deletion_vector for f in again.load_log().files.values())
    assert held(again) == {**expected, 0: ("c", 9), 1: ("c", 10)}


def test_rows_without_a_key(soon: None, tmp_path: Path) -> None:
    target = DeltaSinkTable(LocalStorage(tmp_path / "t"), SCHEMA, options=DeltaTableOptions())
    target.create("p")
    for n in range(3):
        add(target, f"f{n}", rows((1, "a", n + 1, "r"), (1, "a", n + 1, "r")))
    assert compact(target) == 1 and files(target) == 1
    assert target.read_with_soft_deleted().num_rows == 6


def test_what_is_read_is_what_was_planned(soon: None, tmp_path: Path) -> None:
    """A task may run long after the plan, and twice."""
    target = create_table(tmp_path)
    for n in range(3):
        upsert(target, (n, "a", n + 1, "c"), (n + 10, "a", n + 1, "c"))
    upsert(target, (10, "", 5, "d"))
    [work] = target.plan_compactions()
    upsert(target, (11, "", 6, "d"))
    [first], [second] = work.run(), work.run()
    assert first.rows == second.rows == 5
    assert [len(BitMap.deserialize(dead)) for _, dead in work.sources].count(1) == 1
