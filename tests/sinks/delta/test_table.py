"""Commits to Delta tables: markers, fences, and what happens when somebody else was quicker."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_cdc.config.table_paths import folder_name
from airflow_provider_cdc.model.changes import last_changes
from airflow_provider_cdc.model.errors import FencedError, TerminalError, TransientError
from airflow_provider_cdc.model.schema import OP_COLUMN, SEQ_COLUMN, TS_COLUMN, Column, TableSchema
from airflow_provider_cdc.sinks.delta.log.delta_log import DeltaLog
from airflow_provider_cdc.sinks.delta.log.live_file import add_action
from airflow_provider_cdc.sinks.delta.table import DeltaSinkTable
from airflow_provider_cdc.sinks.delta.table_metadata import DeltaTableOptions
from airflow_provider_cdc.sinks.files.change_staging import FileChangeStaging
from airflow_provider_cdc.sinks.files.parquet import read_row_groups, write_file
from airflow_provider_cdc.sinks.lake import transactional_table
from airflow_provider_cdc.sinks.lake.change_staging import TableChangeStaging
from airflow_provider_cdc.sinks.lake.merge import key_index, key_lookup
from airflow_provider_cdc.sinks.lake.merge import table_edit as by
from airflow_provider_cdc.sinks.lake.merge.table_edit import TableEdit
from airflow_provider_cdc.sinks.protocol import Change, Fence, Markers, OverwriteRange, PublishSlices, Truncate, Upsert
from airflow_provider_cdc.sinks.storage.local_storage import LocalStorage
from airflow_provider_cdc.sinks.storage.storage import Storage

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("v.w", pa.string()),  # a dot must not be taken for a path into a struct
        (SEQ_COLUMN, pa.int64()),
        (OP_COLUMN, pa.string()),
        (TS_COLUMN, pa.timestamp("us", tz="UTC")),
    ]
)
TABLE = TableSchema(
    "shop",
    "t",
    (Column("id", "bigint", "bigint", nullable=False), Column("v.w", "varchar", "varchar(9)", True, charset="utf8mb4")),
    ("id",),
)
FENCE = Fence("epoch", 1)


def folder_of(target: DeltaSinkTable) -> Path:
    return Path(target.storage.location())


def rows(*listed: tuple[int, str, int, str]) -> pa.Table:
    data = [dict(zip(SCHEMA.names, (*row, 0), strict=True)) for row in listed]
    return pa.Table.from_pylist(data, schema=SCHEMA)


def opened(folder: Path, stat: str | None = "id", *, vectors: bool = True) -> DeltaSinkTable:
    return DeltaSinkTable(LocalStorage(folder / "t"), SCHEMA, ["id"], stat, DeltaTableOptions(vectors))


def create_table(folder: Path, stat: str | None = "id", *, vectors: bool = True) -> DeltaSinkTable:
    target = opened(folder, stat, vectors=vectors)
    target.create("p")
    return target


def add(target: DeltaSinkTable, name: str, table: pa.Table, marker: dict[str, int] | None = None) -> bool:
    """Add a file, as a chunk group does."""
    file = write_file(target.storage, f"snapshot/{name}.parquet", table.schema, [table], "id")
    return target.commit(lambda _: PublishSlices([file]), marker or {}, FENCE)


def upsert(target: DeltaSinkTable, *listed: tuple[int, str, int, str], fence: Fence = FENCE) -> None:
    target.commit(lambda _: Upsert(rows(*listed)), {}, fence)


def staging(target: DeltaSinkTable) -> TableChangeStaging:
    return TableChangeStaging(
        lambda _: target.storage, lambda _: target.open_log(), FileChangeStaging(target.storage, "aside")
    )


def staged(target: DeltaSinkTable, name: str, *listed: tuple[int, str, int, str]) -> pa.Table:
    """Changes that a task has written."""
    writer = staging(target).open_writer(TABLE, name)
    writer.add(rows(*listed).to_batches()[0])
    writer.close()
    return staging(target).read_for_apply(TABLE, [name])


def apply(target: DeltaSinkTable, changes: pa.Table, key: Sequence[str] = TABLE.key) -> None:
    target.commit(lambda _: Upsert(last_changes(changes, key)), {}, FENCE)


def held(target: DeltaSinkTable) -> dict[int, tuple[str, int]]:
    found = target.read_with_soft_deleted()
    values = {r["id"]: (r["v.w"], r[SEQ_COLUMN]) for r in found.to_pylist()}
    assert len(values) == found.num_rows, "a key is there twice"
    return values


def files(target: DeltaSinkTable) -> int:
    return len(target.load_log().files)


def vector_files(target: DeltaSinkTable) -> set[str]:
    return {name for name, _ in target.storage.list("_dv")}


# ---------------------------------------------------------------- markers and fences


def test_a_marker_stands_in_the_same_transaction(tmp_path: Path) -> None:
    target = create_table(tmp_path)
    assert target.markers().get("m") is None
    version = target.load_log().version
    assert add(target, "a", rows((1, "a", 1, "r")), {"m": 7, "n": 2**62})
    assert target.load_log().version == version + 1
    again = DeltaSinkTable(target.storage, SCHEMA, ["id"], "id")
    assert (again.markers().get("m"), again.markers().get("n"), held(again)) == (7, 2**62, {1: ("a", 1)})


def test_deciding_for_nothing_commits_nothing(tmp_path: Path) -> None:
    target = create_table(tmp_path)
    version = target.load_log().version
    assert not target.commit(lambda _: None, {"m": 1}, FENCE)
    assert target.load_log().version == version and target.markers().get("m") is None


def test_an_older_writer_cannot_commit(tmp_path: Path) -> None:
    old, new = create_table(tmp_path), create_table(tmp_path)
    upsert(old, (1, "old", 1, "c"))
    new.raise_fence(Fence("epoch", 2))
    with pytest.raises(FencedError):  # that there is nothing to do, an old version does not tell
        old.commit(lambda _: None, {}, FENCE)
    with pytest.raises(FencedError, match="stands at 2 in .*, this run has 1"):
        upsert(old, (2, "late", 2, "c"))
    upsert(new, (3, "new", 3, "c"), fence=Fence("epoch", 2))
    assert set(held(new)) == {1, 3}


def test_a_fence_that_is_raised_between_decision_and_commit(tmp_path: Path) -> None:
    """The decision was made with the old fence: the commit must not go through."""
    old, new = create_table(tmp_path), create_table(tmp_path)

    def decide(_: Markers) -> Upsert:
        new.raise_fence(Fence("epoch", 2))
        return Upsert(rows((1, "late", 1, "c")))

    with pytest.raises(FencedError):
        old.commit(decide, {}, FENCE)
    assert held(new) == {}


def test_fences_of_different_names_do_not_meet(tmp_path: Path) -> None:
    target = create_table(tmp_path)
    target.raise_fence(Fence("epoch", 5))
    target.raise_fence(Fence("generation", 1))
    upsert(target, (1, "a", 1, "c"), fence=Fence("generation", 1))
    assert target.markers().get("epoch") == 5


def test_of_two_attempts_the_first_wins(tmp_path: Path) -> None:
    """Both have seen the table without a marker; the second must decide again and find it."""
    one, two = create_table(tmp_path), create_table(tmp_path)
    asked: list[int | None] = []

    def decide(markers: Markers) -> PublishSlices | None:
        asked.append(markers.get("group"))
        if asked[-1] is not None:
            return None
        if len(asked) == 1:
            assert add(one, "first", rows((1, "first", 1, "r")), {"group": 1})
        second = rows((1, "second", 1, "r"))
        return PublishSlices([write_file(two.storage, "snapshot/second.parquet", second.schema, [second], "id")])

    assert not two.commit(decide, {"group": 2}, FENCE)
    assert asked == [None, 1]
    assert (two.markers().get("group"), held(two)) == (1, {1: ("first", 1)})


def test_a_table_is_begun_anew_once(tmp_path: Path) -> None:
    """Without rows and under a higher fence; who comes second leaves what has been written since."""
    target = create_table(tmp_path)
    add(target, "a", rows((1, "a", 1, "r")))
    target.reset("p", Fence("generation", 2), ["group"])
    assert held(target) == {} and target.markers().get("generation") == 2
    upsert(target, (2, "b", 2, "c"))
    for value in (1, 2):
        target.reset("p", Fence("generation", value), ["group"])
        assert held(target) == {2: ("b", 2)} and target.markers().get("generation") == 2


def test_a_table_with_published_rows_is_not_begun_anew(tmp_path: Path) -> None:
    target = create_table(tmp_path)
    add(target, "a", rows((1, "a", 1, "r")), {"group": 1})
    with pytest.raises(TerminalError, match=r"an older definition of its source were published .* fresh sink\.path"):
        target.reset("p", Fence("generation", 2), ["other", "group"])
    assert held(target) == {1: ("a", 1)}


def test_new_columns_may_need_a_feature(tmp_path: Path) -> None:
    target = create_table(tmp_path)
    schema = SCHEMA.append(pa.field("at", pa.timestamp("us")))
    DeltaSinkTable(target.storage, schema, ["id"], "id").reset("p", Fence("generation", 2), [])
    assert set(target.load_log().protocol["readerFeatures"]) == {"deletionVectors", "timestampNtz"}


# ---------------------------------------------------------------- upserts


def test_a_change_wins_only_with_a_greater_seq(tmp_path: Path) -> None:
    target = create_table(tmp_path)
    add(target, "a", rows((1, "a", 10, "r"), (2, "b", 10, "r"), (3, "c", 10, "r")))
    upsert(target, (1, "same", 10, "u"), (2, "older", 9, "u"), (3, "newer", 11, "u"))
    assert held(target) == {1: ("a", 10), 2: ("b", 10), 3: ("newer", 11)}
    upsert(target, (3, "same", 11, "u"))
    assert held(target)[3] == ("newer", 11)
    upsert(target, (1, "", 10, "d"), (2, "", 11, "d"), (9, "", 99, "d"))
    assert held(target) == {1: ("a", 10), 3: ("newer", 11)}


@pytest.mark.parametrize("how", ["published", "without statistics", "merged", "staged"])
def test_an_older_change_of_a_file_with_newer_rows(tmp_path: Path, how: str) -> None:
    """Rows need not be read if all of them are older than the batch; here one is not."""
    target, listed = create_table(tmp_path), ((1, "a", 5, "c"), (2, "b", 9, "c"))
    match how:
        case "published":
            add(target, "a", rows(*listed))
        case "without statistics":
            action = add_action(write_file(target.storage, "other.parquet", SCHEMA, [rows(*listed)], "id"), None, None)
            assert target.load_log().commit([{"add": {**action["add"], "stats": None}}], "WRITE")
        case "merged":
            upsert(target, *listed)
        case "staged":
            apply(target, staged(target, "one", *listed))
    upsert(target, (1, "newer", 7, "u"), (2, "older", 7, "u"))
    assert held(target) == {1: ("newer", 7), 2: ("b", 9)}


def test_what_is_dead_stays_dead(tmp_path: Path) -> None:
    target = create_table(tmp_path)
    add(target, "a", rows(*((n, "a", 1, "r") for n in range(4))))
    for n in range(3):
        upsert(target, (n, "", n + 2, "d"))
        assert {*held(target)} == {*held(opened(tmp_path))} == {*range(n + 1, 4)}
    [file] = target.load_log().files.values()
    assert file.dead_row_count == 3


def test_the_old_row_dies_with_the_commit_of_the_new_one(tmp_path: Path) -> None:
    target = create_table(tmp_path)
    add(target, "a", rows((1, "a", 1, "r"), (2, "b", 1, "r")))
    version = target.load_log().version
    upsert(target, (1, "new", 2, "u"))
    assert target.load_log().version == version + 1 and held(target) == {1: ("new", 2), 2: ("b", 1)}


def test_a_truncate_takes_what_is_older(tmp_path: Path) -> None:
    """At 10: rows of a chunk that was read later stay, in a file of their own and beside older ones."""
    target = create_table(tmp_path)
    add(target, "old", rows((1, "a", 8, "r"), (2, "b", 9, "r")))
    add(target, "both", rows((3, "c", 9, "r"), (4, "d", 10, "r"), (5, "e", 11, "r")))
    add(target, "new", rows((6, "f", 10, "r")))
    assert target.commit(lambda _: Truncate(10), {}, FENCE)
    assert held(target) == {4: ("d", 10), 5: ("e", 11), 6: ("f", 10)}
    assert "snapshot/new.parquet" in target.load_log().files
    assert not target.commit(lambda _: Truncate(10), {"m": 1}, FENCE)  # done twice it does nothing more


@settings(max_examples=15, deadline=None)
@given(
    batches=st.lists(
        st.dictionaries(st.integers(0, 12), st.tuples(st.sampled_from("cud"), st.booleans()), min_size=1, max_size=8),
        max_size=5,
    ),
    stat=st.sampled_from(["id", None]),
    vectors=st.booleans(),
)
def test_upserts_against_a_dictionary(
    tmp_path_factory: pytest.TempPathFactory,
    batches: list[dict[int, tuple[str, bool]]],
    stat: str | None,
    vectors: bool,
) -> None:
    target = create_table(tmp_path_factory.mktemp("d"), stat, vectors=vectors)
    add(target, "low", rows(*((i, "r", 100, "r") for i in range(5))))
    add(target, "high", rows(*((i, "r", 100, "r") for i in range(7, 10))))
    expected = dict.fromkeys((0, 1, 2, 3, 4, 7, 8, 9), ("r", 100))
    for n, batch in enumerate(batches, 101):
        # Some changes are older than the row that stands: those of a batch that comes a second time.
        listed = [(i, f"v{n}", n if new else 100, op) for i, (op, new) in batch.items()]
        for i, v, seq, op in listed:
            if i in expected and seq <= expected[i][1]:
                continue
            if op == "d":
                expected.pop(i, None)
            else:
                expected[i] = (v, seq)
        upsert(target, *listed)
        assert held(target) == expected


def test_files_whose_keys_lie_elsewhere_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = create_table(tmp_path)
    add(target, "low", rows((1, "a", 1, "r"), (5, "b", 1, "r")))
    add(target, "high", rows((10, "c", 1, "r"), (15, "d", 1, "r")))
    read: list[str] = []

    def noted(storage: Storage, name: str, *rest: Any) -> Any:
        read.append(name)
        return read_row_groups(storage, name, *rest)

    monkeypatch.setattr(key_lookup, "read_row_groups", noted)
    upsert(target, (0, "new", 2, "c"), (7, "new", 2, "c"), (12, "new", 2, "c"))
    assert read == ["snapshot/high.parquet"], "of several keys none lies within the other file"
    for key in (1, 5):  # its smallest and its largest key
        upsert(target, (key, "newer", 3, "u"))
        assert held(target)[key] == ("newer", 3)
    assert read == ["snapshot/high.parquet", "snapshot/low.parquet"], "no file is read twice"


def test_files_that_touch_an_overwritten_range_are_read(tmp_path: Path) -> None:
    target = create_table(tmp_path)
    add(target, "low", rows((1, "a", 1, "r"), (5, "b", 1, "r")))
    add(target, "high", rows((10, "c", 1, "r"), (15, "d", 1, "r")))
    owned = OverwriteRange([], None, lambda keys: pc.is_in(keys["id"], value_set=pa.array([5, 10])), (5, 10))
    target.commit(lambda _: owned, {}, FENCE)
    assert held(target) == {1: ("a", 1), 15: ("d", 1)}


def test_copies_do_not_pile_up(tmp_path: Path) -> None:
    target = create_table(tmp_path, vectors=False)
    for n in range(20):
        upsert(target, (n, "x", n + 1, "c"))
    assert files(target) == 1 and len(held(target)) == 20


def test_large_files_are_not_copied_for_new_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by, "SMALL_FILE_BYTES", 0)
    target = create_table(tmp_path, vectors=False)
    add(target, "a", rows((1, "a", 1, "r")))
    upsert(target, (2, "b", 2, "c"))
    assert files(target) == 2
    upsert(target, (1, "", 3, "d"))
    assert files(target) == 1 and set(held(target)) == {2}


# ---------------------------------------------------------------- changes that tasks have written


@pytest.mark.parametrize("vectors", [True, False])
def test_a_row_is_written_once(tmp_path: Path, vectors: bool) -> None:
    """The file of a task becomes part of the table. What does not count is dead in it from the start."""
    target = create_table(tmp_path, vectors=vectors)
    upsert(target, (3, "newer", 50, "c"), (4, "x", 1, "c"))
    changes = staged(
        target,
        "one",
        *((1, "a", 10, "c"), (2, "b", 10, "c"), (1, "c", 11, "u")),  # outdated by a later one of the batch
        *((2, "", 12, "d"), (3, "older", 13, "u"), (4, "y", 14, "u")),
    )
    apply(target, changes)
    assert held(target) == held(opened(tmp_path)) == {1: ("c", 11), 3: ("newer", 50), 4: ("y", 14)}
    assert [f.dead_row_count for p, f in target.load_log().files.items() if p == "changes/one.parquet"] == (
        [4] if vectors else []
    )
    upsert(target, (1, "", 15, "d"), (4, "z", 15, "u"))
    assert held(target) == held(opened(tmp_path)) == {3: ("newer", 50), 4: ("z", 15)}


def test_a_file_of_somebody_else_gets_a_vector(tmp_path: Path) -> None:
    """It may lack statistics; one with a vector must say how many rows it has."""
    target = create_table(tmp_path)
    made_by_others = write_file(target.storage, "x.parquet", SCHEMA, [rows((1, "a", 1, "r"), (2, "a", 1, "r"))], None)
    add = {"path": "x.parquet", "size": made_by_others.size, "partitionValues": {}, "dataChange": True}
    assert target.load_log().commit([{"add": {**add, "modificationTime": 1}}], "WRITE")
    upsert(target, (1, "b", 2, "u"))
    assert held(opened(tmp_path)) == {1: ("b", 2), 2: ("a", 1)}
    found = opened(tmp_path).load_log().files["x.parquet"]
    assert found.dead_row_count == 1 and found.stats["numRecords"] == 2


@pytest.mark.parametrize("how", ["published", "replaced"])
def test_a_slice_that_is_not_there_any_more(tmp_path: Path, how: str) -> None:
    """Reading a group may take hours, and a vacuum of somebody else deletes what no version lists."""
    target = create_table(tmp_path)
    add(target, "a", rows((1, "a", 1, "r")))
    files = [target.stage(f"1/2/3/{n}", [rows((n, "a", 1, "r"))]) for n in (2, 3)]
    (folder_of(target) / files[1].path).unlink()
    change: dict[str, Change] = {
        "published": PublishSlices(files),
        "replaced": OverwriteRange(files, (1, 1), lambda keys: pc.less(keys["id"], 2)),
    }
    with pytest.raises(TransientError, match=r"1/2/3/3.parquet.* is missing or incomplete"):
        target.commit(lambda _: change[how], {"m": 1}, FENCE)
    assert held(opened(tmp_path)) == {1: ("a", 1)} and target.markers().get("m") is None


@pytest.mark.parametrize("name", ["__row", "__file"])
def test_a_key_may_have_any_name(tmp_path: Path, name: str) -> None:
    table = TableSchema("shop", "t", (Column(name, "bigint", "bigint", nullable=False),), (name,))
    target = DeltaSinkTable(LocalStorage(tmp_path / "t"), table.sink_schema, [name], name)
    target.create("p")
    writer = staging(target).open_writer(table, "epoch-1/one")
    row = {name: 5, SEQ_COLUMN: 1, OP_COLUMN: "c", TS_COLUMN: 0}
    writer.add(pa.RecordBatch.from_pylist([row], schema=table.sink_schema))
    writer.close()
    apply(target, staging(target).read_for_apply(table, ["epoch-1/one"]), table.key)
    assert target.read_with_soft_deleted()[name].to_pylist() == [5]


@pytest.mark.parametrize("vectors", [True, False])
def test_a_file_of_which_nothing_counts(tmp_path: Path, vectors: bool) -> None:
    target = create_table(tmp_path, vectors=vectors)
    add(target, "a", rows((1, "a", 1, "r"), (2, "b", 1, "r")))
    apply(target, staged(target, "one", (1, "", 10, "d"), (9, "", 10, "d")))
    assert held(opened(tmp_path)) == {2: ("b", 1)}
    assert target.storage.size("changes/one.parquet") is None


def test_what_a_try_that_failed_has_left(tmp_path: Path) -> None:
    """No vectors. What tasks have written is needed again."""
    target, other = create_table(tmp_path), opened(tmp_path)
    add(target, "a", rows((1, "a", 1, "r"), (2, "b", 1, "r")))
    changes, tries = staged(target, "one", (1, "new", 2, "u")), 0

    def decide(_: Markers) -> Upsert:
        nonlocal tries
        tries += 1
        if tries == 1:
            upsert(other, (9, "other", 1, "c"))
        return Upsert(changes)

    assert target.commit(decide, {}, FENCE) and tries == 2
    assert held(opened(tmp_path)) == {1: ("new", 2), 2: ("b", 1), 9: ("other", 1)}
    assert vector_files(target) == {
        f.deletion_vector.file_name for f in target.load_log().files.values() if f.deletion_vector
    }


def test_what_was_not_applied_is_cleared(tmp_path: Path) -> None:
    """Not what is, or was until recently, part of the table, nor what a later epoch is about to apply."""
    target = create_table(tmp_path)
    for name, row in (("one", (1, "a", 1, "c")), ("two", (1, "b", 2, "u"))):
        apply(target, staged(target, f"epoch-1/{name}", row))
    staged(target, "epoch-1/three", (1, "late", 3, "u"))
    later = staged(target, "epoch-10/four", (1, "later", 3, "u"))
    staging(target).clear_older_epochs([TABLE], 2)
    assert {*target.load_log().files} == {"changes/epoch-1/two.parquet"}
    names = ("epoch-1/one", "epoch-1/two", "epoch-10/four")
    assert {name for name, _ in target.storage.list("changes")} == {f"changes/{name}.parquet" for name in names}
    apply(target, later)
    assert held(opened(tmp_path)) == {1: ("later", 3)}


# ---------------------------------------------------------------- vectors or copies


def said(target: DeltaSinkTable) -> tuple[bool, bool]:
    """Whether feature and property say that rows may die by vectors: readers differ in what they go by."""
    log = target.load_log()
    names = [set(log.protocol.get(f"{who}Features") or ()) for who in ("reader", "writer")]
    found = {"deletionVectors" in listed for listed in names}
    assert len(found) == 1
    return found == {True}, log.properties.get("delta.enableDeletionVectors") == "true"


@pytest.mark.parametrize("vectors", [True, False])
def test_a_new_table_says_whether_it_has_vectors(tmp_path: Path, vectors: bool) -> None:
    assert said(create_table(tmp_path, vectors=vectors)) == (vectors, vectors)


def test_copies_need_no_vectors(tmp_path: Path) -> None:
    target = create_table(tmp_path, vectors=False)
    add(target, "a", rows((1, "a", 1, "r"), (2, "b", 1, "r"), (3, "c", 1, "r")))
    upsert(target, (1, "", 2, "d"), (2, "c", 2, "u"))
    assert said(target) == (False, False) and not vector_files(target)
    assert DeltaTable(folder_of(target)).to_pyarrow_table()["id"].sort().to_pylist() == [2, 3]


def test_the_first_vectors_of_a_table(tmp_path: Path) -> None:
    copies = create_table(tmp_path, vectors=False)
    add(copies, "a", rows((1, "a", 1, "r"), (2, "b", 1, "r")))
    upsert(opened(tmp_path), (1, "", 2, "d"))
    assert said(copies) == (True, True) and vector_files(copies) and held(copies) == {2: ("b", 1)}


@pytest.mark.parametrize("row", [(3, "new", 3, "u"), (9, "new", 3, "c")], ids=["beside it", "another file"])
def test_what_died_by_vectors_is_not_copied(tmp_path: Path, row: tuple[int, str, int, str]) -> None:
    target = create_table(tmp_path)
    add(target, "a", rows(*((n, "a", 1, "r") for n in range(5))))
    upsert(target, (1, "", 2, "d"), (2, "", 2, "d"))
    copies = opened(tmp_path, vectors=False)
    upsert(copies, row)
    assert held(copies) == {0: ("a", 1), 3: ("a", 1), 4: ("a", 1), row[0]: ("new", 3)}


def test_as_long_as_there_are_vectors_the_table_says_so(tmp_path: Path) -> None:
    target = create_table(tmp_path)
    add(target, "a", rows((1, "a", 1, "r"), (2, "b", 1, "r")))
    upsert(target, (1, "", 2, "d"))
    copies = opened(tmp_path, vectors=False)
    copies.clean_up()
    assert said(copies) == (True, True)
    upsert(copies, (2, "c", 3, "u"))
    copies.clean_up()
    assert said(copies) == (False, False) and held(copies) == {2: ("c", 3)}


def test_keys_are_exact_values(tmp_path: Path) -> None:
    """'a' and 'A' are two keys here: which of them are one row is the server's business."""
    schema = pa.schema([("k", pa.string()), *list(SCHEMA)[2:]])
    target = DeltaSinkTable(LocalStorage(tmp_path / "t"), schema, ["k"])
    target.create("p")

    def change(*listed: tuple[str, int, str]) -> pa.Table:
        return pa.Table.from_pylist(
            [{"k": k, SEQ_COLUMN: s, OP_COLUMN: op, TS_COLUMN: 0} for k, s, op in listed], schema=schema
        )

    for batch in (change(("a", 1, "c"), ("ä", 1, "c")), change(("a", 2, "d"), ("A", 2, "u"))):
        target.commit(lambda _, batch=batch: Upsert(batch), {}, FENCE)  # type: ignore[misc]
    assert sorted(target.read_with_soft_deleted()["k"].to_pylist()) == ["A", "ä"]


# ---------------------------------------------------------------- others at the same table


def test_another_writer_between_reading_and_committing(tmp_path: Path) -> None:
    """An OPTIMIZE has replaced the file that was to be rewritten, and rows were appended: all is decided again."""
    target = create_table(tmp_path)
    add(target, "a", rows((1, "a", 1, "r")))
    add(target, "b", rows((2, "b", 1, "r")))
    times: list[int] = []

    def decide(markers: Markers) -> Upsert:
        times.append(target.load_log().version)
        if len(times) == 1:
            DeltaTable(target.storage.location()).optimize.compact()
        elif len(times) == 2:
            write_deltalake(target.storage.location(), rows((9, "other", 1, "r")), mode="append")
        return Upsert(rows((1, "new", 2, "u"), (3, "c", 2, "c")))

    assert target.commit(decide, {"m": 2}, FENCE)
    assert len(times) == 3
    assert held(target) == {1: ("new", 2), 2: ("b", 1), 3: ("c", 2), 9: ("other", 1)}
    # What the two failed tries wrote is gone again.
    live = {*target.load_log().files}
    assert {p.name for p in folder_of(target).glob("part-*.parquet")} - live == _removed(target) - live


def _removed(target: DeltaSinkTable) -> set[str]:
    """Files that earlier versions refer to: those of the OPTIMIZE and of the append that were merged since."""
    names: set[str] = set()
    for log in (folder_of(target) / "_delta_log").glob("*.json"):
        for line in log.read_text().splitlines():
            action = json.loads(line)
            if "remove" in action:
                names.add(action["remove"]["path"])
    return {n for n in names if n.startswith("part-") and (folder_of(target) / n).exists()}


def restored(folder: Path, version: int) -> None:
    DeltaTable(folder).restore(version)


def log_gone_and_restored(folder: Path, version: int) -> None:
    """The same long ago: what was before is not in the log any more."""
    restored(folder, version)
    DeltaTable(folder).create_checkpoint()
    newest = DeltaTable(folder).version()
    for number in range(newest + 1):
        (folder / "_delta_log" / f"{number:020}.json").unlink()


@pytest.mark.parametrize("how", [restored, log_gone_and_restored])
def test_rows_that_came_back_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: Callable[[Path, int], None]
) -> None:
    """Somebody has restored an older version. The index has dropped them when they were dead."""
    monkeypatch.setattr(key_index, "_SEGMENTS_TO_MERGE", 2)
    target = create_table(tmp_path)
    add(target, "a", rows((1, "a", 1, "r"), (2, "a", 1, "r")))
    version = target.load_log().version
    for seq in range(2, 5):
        upsert(target, (1, "b", seq, "u"))
    how(folder_of(target), version)
    monkeypatch.setattr("airflow_provider_cdc.sinks.delta.log.delta_log.FRESH_SECONDS", -1)
    assert held(target) == {1: ("a", 1), 2: ("a", 1)}
    upsert(target, (1, "c", 9, "u"))
    assert held(target) == {1: ("c", 9), 2: ("a", 1)}


def test_a_vacuum_leaves_vectors_alone(tmp_path: Path) -> None:
    target = create_table(tmp_path)
    add(target, "a", rows((1, "a", 1, "r"), (2, "b", 1, "r")))
    upsert(target, (1, "", 2, "d"))
    DeltaTable(folder_of(target)).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    assert held(opened(tmp_path)) == {2: ("b", 1)}


def test_others_who_never_leave_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactional_table, "COMMIT_TRIES", 3)
    target, other = create_table(tmp_path), create_table(tmp_path)
    versions: list[int] = []

    def decide(log: DeltaLog) -> TableEdit:
        versions.append(log.version)
        other.commit(lambda _: PublishSlices([]), {}, Fence("else", len(versions)))
        return TableEdit()

    with pytest.raises(TransientError, match="3 tries.*Pause other writers"):
        target.commit_edit(decide, {"m": 1}, FENCE)
    assert versions == sorted(set(versions)) and len(versions) == 3
    assert target.markers().get("m") is None


@pytest.mark.parametrize(
    ("feature", "properties"),
    [
        ("columnMapping", {"delta.columnMapping.mode": "name"}),
        ("rowTracking", {"delta.enableRowTracking": "true"}),
        ("checkConstraints", {"delta.constraints.positive": "id > 0"}),
        ("something new", {}),
    ],
)
def test_features_that_are_not_understood(tmp_path: Path, feature: str, properties: dict[str, str]) -> None:
    target = create_table(tmp_path)
    names = ["deletionVectors", feature]
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": names, "writerFeatures": names}
    metadata = {**target.load_log().metadata, "configuration": properties}
    log = folder_of(target) / "_delta_log" / "00000000000000000001.json"
    log.write_text(json.dumps({"protocol": protocol}) + "\n" + json.dumps({"metaData": metadata}) + "\n")
    with pytest.raises(TerminalError, match=f"uses {feature}.*fresh sink.path"):
        opened(tmp_path).load_log()
    with pytest.raises(TerminalError, match=f"uses {feature}"):
        upsert(target, (1, "a", 1, "c"))


def test_a_table_of_another_pipeline(tmp_path: Path) -> None:
    target = create_table(tmp_path)
    with pytest.raises(TerminalError, match=r"not created by pipeline q, but by p\. Choose another sink\.path"):
        DeltaSinkTable(target.storage, SCHEMA).create("q")
    with pytest.raises(TerminalError, match="not created by pipeline q"):
        target.reset("q", Fence("generation", 2), [])


def test_a_table_that_was_replaced_before_a_restart(tmp_path: Path) -> None:
    """Its markers are still there, so its rows would be taken for what they say."""
    target = create_table(tmp_path)
    add(target, "a", rows((1, "a", 1, "r")), {"m": 7})
    DeltaTable.create(
        folder_of(target).as_uri(),
        DeltaTable(folder_of(target)).schema(),
        mode="overwrite",
        raise_if_key_not_exists=False,
    )
    after = opened(tmp_path)
    with pytest.raises(TerminalError, match="belongs to no pipeline"):
        after.markers()
    with pytest.raises(TerminalError, match="belongs to no pipeline"):
        upsert(after, (1, "b", 2, "u"))


def test_people_may_describe_a_table(tmp_path: Path) -> None:
    target = create_table(tmp_path)
    DeltaTable(folder_of(target)).alter.set_table_description("orders of the shop")
    upsert(target, (1, "a", 1, "c"))
    again = opened(tmp_path)
    again.create("p")
    with pytest.raises(TerminalError, match="not created by pipeline q"):
        again.create("q")


def test_a_table_with_other_columns(tmp_path: Path) -> None:
    target = create_table(tmp_path)
    with pytest.raises(TerminalError, match="has other columns"):
        DeltaSinkTable(target.storage, SCHEMA.remove(1)).create("p")


def test_a_table_that_is_gone(tmp_path: Path) -> None:
    target = DeltaSinkTable(LocalStorage(tmp_path / "gone"), SCHEMA)
    assert not target.exists() and target.markers().get("m") is None
    with pytest.raises(TerminalError, match="is missing"):
        target.load_log()


@pytest.mark.parametrize("vectors", [True, False])
def test_old_files_are_tidied_and_live_ones_stay(tmp_path: Path, vectors: bool) -> None:
    target = create_table(tmp_path, vectors=vectors)
    for n in range(3):
        upsert(target, (n, "x", n + 1, "c"), (0, "y", n + 1, "u"))
    target.clean_up()
    before = {p.name for p in folder_of(target).rglob("*") if p.is_file() and "_delta_log" not in p.parts}
    for path in folder_of(target).rglob("*"):
        os.utime(path, (0, 0))  # that a file is old does not count if it is live
    target.clean_up()
    after = {p.name for p in folder_of(target).rglob("*") if p.is_file() and "_delta_log" not in p.parts}
    assert after < before
    assert held(opened(tmp_path)) == {0: ("y", 3), 1: ("x", 2), 2: ("x", 3)}


def test_an_empty_table_reads_as_one(tmp_path: Path) -> None:
    assert create_table(tmp_path).read_with_soft_deleted().equals(SCHEMA.empty_table())


# ---------------------------------------------------------------- names of folders and files


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("plain", "plain"),
        ("a/b", "a=2Fb"),
        ("a\\b", "a=5Cb"),
        ("50%", "50=25"),
        ("a=b", "a=3Db"),
        ("a=2Fb", "a=3D2Fb"),
        (".", "=2E"),
        ("..", "=2E."),
        (".hidden", "=2Ehidden"),
        ("a.b", "a.b"),
        ("tab\t", "tab=09"),
        ("_cdc", "=5Fcdc"),
        ("_cdc_progress", "=5Fcdc_progress"),
        ("_delta_log", "=5Fdelta_log"),
        ("_migrations", "_migrations"),
        ("ünï 日本", "ünï 日本"),
    ],
)
def test_folder(name: str, expected: str) -> None:
    assert folder_name(name) == expected


@settings(deadline=None)
@given(st.lists(st.text(st.characters(min_codepoint=1, max_codepoint=0xFFFF, codec="utf-8"), min_size=1), unique=True))
def test_folders_are_one_path_part_each_and_differ(names: list[str]) -> None:
    found = [folder_name(name) for name in names]
    assert len(set(found)) == len(names)
    assert all(f not in (".", "..") and "/" not in f and f == Path(f).name for f in found)
