"""Commits to Delta tables: markers, fences, and what happens when somebody else was quicker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_cdc.core.schema import OP, SEQ, TS
from airflow_provider_cdc.exceptions import FencedError, TerminalError, TransientError
from airflow_provider_cdc.sinks.delta import merge
from airflow_provider_cdc.sinks.delta import table as module
from airflow_provider_cdc.sinks.delta.files import Actions, read_file
from airflow_provider_cdc.sinks.delta.merge import Merge
from airflow_provider_cdc.sinks.delta.table import DeltaTarget
from airflow_provider_cdc.sinks.files import write_file
from airflow_provider_cdc.sinks.layout import Layout, folder, read_json, write_json
from airflow_provider_cdc.sinks.protocol import Emptied, Fence, Markers, Published, Upserted

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("v.w", pa.string()),  # a dot must not be taken for a path into a struct
        (SEQ, pa.int64()),
        (OP, pa.string()),
        (TS, pa.timestamp("us", tz="UTC")),
    ]
)
FENCE = Fence("epoch", 1)


def rows(*listed: tuple[int, str, int, str]) -> pa.Table:
    data = [dict(zip(SCHEMA.names, (*row, 0), strict=True)) for row in listed]
    return pa.Table.from_pylist(data, schema=SCHEMA)


def made(folder: Path, stat: str | None = "id") -> DeltaTarget:
    target = DeltaTarget(folder / "t", SCHEMA, ["id"], stat)
    target.create("p")
    return target


def add(target: DeltaTarget, name: str, table: pa.Table, marker: dict[str, int] | None = None) -> bool:
    """Add a file, as a chunk group does."""
    file = write_file(target.path, f"snapshot/{name}.parquet", table.schema, [table], "id")
    return target.commit(lambda _: Published([file]), marker or {}, FENCE)


def upsert(target: DeltaTarget, *listed: tuple[int, str, int, str], fence: Fence = FENCE) -> None:
    target.commit(lambda _: Upserted(rows(*listed)), {}, fence)


def held(target: DeltaTarget) -> dict[int, tuple[str, int]]:
    found = target.to_arrow()
    values = {r["id"]: (r["v.w"], r[SEQ]) for r in found.to_pylist()}
    assert len(values) == found.num_rows, "a key is there twice"
    return values


def files(target: DeltaTarget) -> int:
    return len(target.load().file_uris())


# ---------------------------------------------------------------- markers and fences


def test_a_marker_stands_in_the_same_transaction(tmp_path: Path) -> None:
    target = made(tmp_path)
    assert target.markers().get("m") is None
    version = target.load().version()
    assert add(target, "a", rows((1, "a", 1, "r")), {"m": 7, "n": 2**62})
    assert target.load().version() == version + 1
    again = DeltaTarget(target.path, SCHEMA, ["id"], "id")
    assert (again.markers().get("m"), again.markers().get("n"), held(again)) == (7, 2**62, {1: ("a", 1)})


def test_deciding_for_nothing_commits_nothing(tmp_path: Path) -> None:
    target = made(tmp_path)
    version = target.load().version()
    assert not target.commit(lambda _: None, {"m": 1}, FENCE)
    assert target.load().version() == version and target.markers().get("m") is None


def test_an_older_writer_cannot_commit(tmp_path: Path) -> None:
    old, new = made(tmp_path), made(tmp_path)
    upsert(old, (1, "old", 1, "c"))
    new.raise_fence(Fence("epoch", 2))
    with pytest.raises(FencedError, match="stands at 2 in .*, this run has 1"):
        upsert(old, (2, "late", 2, "c"))
    upsert(new, (3, "new", 3, "c"), fence=Fence("epoch", 2))
    assert set(held(new)) == {1, 3}


def test_a_fence_that_is_raised_between_decision_and_commit(tmp_path: Path) -> None:
    """The decision was made with the old fence: the commit must not go through."""
    old, new = made(tmp_path), made(tmp_path)

    def decide(_: Markers) -> Upserted:
        new.raise_fence(Fence("epoch", 2))
        return Upserted(rows((1, "late", 1, "c")))

    with pytest.raises(FencedError):
        old.commit(decide, {}, FENCE)
    assert held(new) == {}


def test_fences_of_different_names_do_not_meet(tmp_path: Path) -> None:
    target = made(tmp_path)
    target.raise_fence(Fence("epoch", 5))
    target.raise_fence(Fence("generation", 1))
    upsert(target, (1, "a", 1, "c"), fence=Fence("generation", 1))
    assert target.markers().get("epoch") == 5


def test_of_two_attempts_the_first_wins(tmp_path: Path) -> None:
    """Both have seen the table without a marker; the second must decide again and find it."""
    one, two = made(tmp_path), made(tmp_path)
    asked: list[int | None] = []

    def decide(markers: Markers) -> Published | None:
        asked.append(markers.get("group"))
        if asked[-1] is not None:
            return None
        if len(asked) == 1:
            assert add(one, "first", rows((1, "first", 1, "r")), {"group": 1})
        second = rows((1, "second", 1, "r"))
        return Published([write_file(two.path, "snapshot/second.parquet", second.schema, [second], "id")])

    assert not two.commit(decide, {"group": 2}, FENCE)
    assert asked == [None, 1]
    assert (two.markers().get("group"), held(two)) == (1, {1: ("first", 1)})


def test_a_table_is_begun_anew_once(tmp_path: Path) -> None:
    """Without rows and under a higher fence; who comes second leaves what has been written since."""
    target = made(tmp_path)
    add(target, "a", rows((1, "a", 1, "r")))
    target.begin_anew(Fence("generation", 2), ["group"])
    assert held(target) == {} and target.markers().get("generation") == 2
    upsert(target, (2, "b", 2, "c"))
    for value in (1, 2):
        target.begin_anew(Fence("generation", value), ["group"])
        assert held(target) == {2: ("b", 2)} and target.markers().get("generation") == 2


def test_a_table_with_published_rows_is_not_begun_anew(tmp_path: Path) -> None:
    target = made(tmp_path)
    add(target, "a", rows((1, "a", 1, "r")), {"group": 1})
    with pytest.raises(TerminalError, match=r"an older definition of its source were published .* fresh sink\.path"):
        target.begin_anew(Fence("generation", 2), ["other", "group"])
    assert held(target) == {1: ("a", 1)}


# ---------------------------------------------------------------- upserts


def test_a_change_wins_only_with_a_greater_seq(tmp_path: Path) -> None:
    target = made(tmp_path)
    add(target, "a", rows((1, "a", 10, "r"), (2, "b", 10, "r"), (3, "c", 10, "r")))
    upsert(target, (1, "same", 10, "u"), (2, "older", 9, "u"), (3, "newer", 11, "u"))
    assert held(target) == {1: ("a", 10), 2: ("b", 10), 3: ("newer", 11)}
    upsert(target, (1, "", 10, "d"), (2, "", 11, "d"), (9, "", 99, "d"))
    assert held(target) == {1: ("a", 10), 3: ("newer", 11)}


def test_a_truncate_takes_what_is_older(tmp_path: Path) -> None:
    """At 10: rows of a chunk that was read later stay, in a file of their own and beside older ones."""
    target = made(tmp_path)
    add(target, "old", rows((1, "a", 8, "r"), (2, "b", 9, "r")))
    add(target, "both", rows((3, "c", 9, "r"), (4, "d", 10, "r"), (5, "e", 11, "r")))
    add(target, "new", rows((6, "f", 10, "r")))
    assert target.commit(lambda _: Emptied(10), {}, FENCE)
    assert held(target) == {4: ("d", 10), 5: ("e", 11), 6: ("f", 10)}
    assert "snapshot/new.parquet" in {uri.partition("/t/")[2] for uri in target.load().file_uris()}
    assert not target.commit(lambda _: Emptied(10), {"m": 1}, FENCE)  # done twice it does nothing more


@settings(max_examples=15, deadline=None)
@given(
    batches=st.lists(
        st.dictionaries(st.integers(0, 12), st.tuples(st.sampled_from("cud"), st.booleans()), min_size=1, max_size=8),
        max_size=5,
    ),
    stat=st.sampled_from(["id", None]),
)
def test_upserts_against_a_dictionary(
    tmp_path_factory: pytest.TempPathFactory,
    batches: list[dict[int, tuple[str, bool]]],
    stat: str | None,
) -> None:
    target = made(tmp_path_factory.mktemp("d"), stat)
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


def test_files_whose_keys_lie_elsewhere_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge, "SMALL_FILE", 0)
    target = made(tmp_path)
    add(target, "low", rows((1, "a", 1, "r"), (5, "b", 1, "r")))
    add(target, "high", rows((10, "c", 1, "r"), (15, "d", 1, "r")))
    read: list[str] = []
    whole = read_file

    def noted(path: Path, *rest: Any) -> Any:
        read.append(str(path.relative_to(target.path)))
        return whole(path, *rest)

    monkeypatch.setattr(merge, "read_file", noted)
    upsert(target, (12, "new", 2, "c"))
    assert read == ["snapshot/high.parquet"]
    for key in (1, 5):  # its smallest and its largest key
        upsert(target, (key, "newer", 3, "u"))
        assert held(target)[key] == ("newer", 3)


def test_small_files_do_not_pile_up(tmp_path: Path) -> None:
    target = made(tmp_path)
    for n in range(20):
        upsert(target, (n, "x", n + 1, "c"))
    assert files(target) == 1 and len(held(target)) == 20


def test_large_files_are_not_written_again_for_new_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge, "SMALL_FILE", 0)
    target = made(tmp_path)
    add(target, "a", rows((1, "a", 1, "r")))
    upsert(target, (2, "b", 2, "c"))
    assert files(target) == 2
    upsert(target, (1, "", 3, "d"))
    assert files(target) == 1 and set(held(target)) == {2}


def test_keys_are_exact_values(tmp_path: Path) -> None:
    """'a' and 'A' are two keys here: which of them are one row is the server's business."""
    schema = pa.schema([("k", pa.string()), *list(SCHEMA)[2:]])
    target = DeltaTarget(tmp_path / "t", schema, ["k"])
    target.create("p")

    def change(*listed: tuple[str, int, str]) -> pa.Table:
        return pa.Table.from_pylist([{"k": k, SEQ: s, OP: op, TS: 0} for k, s, op in listed], schema=schema)

    for batch in (change(("a", 1, "c"), ("ä", 1, "c")), change(("a", 2, "d"), ("A", 2, "u"))):
        target.commit(lambda _, batch=batch: Upserted(batch), {}, FENCE)  # type: ignore[misc]
    assert sorted(target.to_arrow()["k"].to_pylist()) == ["A", "ä"]


# ---------------------------------------------------------------- others at the same table


def test_another_writer_between_reading_and_committing(tmp_path: Path) -> None:
    """An OPTIMIZE has replaced the file that was to be rewritten, and rows were appended: all is decided again."""
    target = made(tmp_path)
    add(target, "a", rows((1, "a", 1, "r")))
    add(target, "b", rows((2, "b", 1, "r")))
    times: list[int] = []

    def decide(table: DeltaTable) -> Actions | None:
        change = Upserted(rows((1, "new", 2, "u"), (3, "c", 2, "c")))
        actions = Merge(table, target.path, SCHEMA, ["id"], "id").of(change)
        times.append(table.version())
        if len(times) == 1:
            DeltaTable(str(target.path)).optimize.compact()
        elif len(times) == 2:
            write_deltalake(str(target.path), rows((9, "other", 1, "r")), mode="append")
        return actions

    assert target.transact(decide, {"m": 2}, FENCE)
    assert len(times) == 3
    assert held(target) == {1: ("new", 2), 2: ("b", 1), 3: ("c", 2), 9: ("other", 1)}
    # What the two failed tries wrote is gone again.
    live = {Path(uri).name for uri in target.load().file_uris()}
    assert {p.name for p in target.path.glob("part-*.parquet")} - live == _removed(target)


def _removed(target: DeltaTarget) -> set[str]:
    """Files that earlier versions refer to: those of the OPTIMIZE and of the append that were merged since."""
    names: set[str] = set()
    for log in (target.path / "_delta_log").glob("*.json"):
        for line in log.read_text().splitlines():
            action = json.loads(line)
            if "remove" in action:
                names.add(action["remove"]["path"])
    return {n for n in names if n.startswith("part-") and (target.path / n).exists()}


def test_others_who_never_leave_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TRIES", 3)
    target, other = made(tmp_path), made(tmp_path)
    versions: list[int] = []

    def decide(table: DeltaTable) -> Actions:
        versions.append(table.version())
        other.commit(lambda _: Published([]), {}, Fence("else", len(versions)))
        return Actions()

    with pytest.raises(TransientError, match="3 tries.*Pause other writers"):
        target.transact(decide, {"m": 1}, FENCE)
    assert versions == sorted(set(versions)) and len(versions) == 3
    assert target.markers().get("m") is None


@pytest.mark.parametrize(
    "configuration",
    [{"delta.enableDeletionVectors": "true"}, {"delta.columnMapping.mode": "name"}],
)
def test_features_under_which_a_file_does_not_tell_its_rows(tmp_path: Path, configuration: dict[str, str]) -> None:
    target = made(tmp_path)
    log = target.path / "_delta_log" / "00000000000000000001.json"
    feature = "deletionVectors" if "Deletion" in next(iter(configuration)) else "columnMapping"
    log.write_text(
        f'{{"protocol":{{"minReaderVersion":3,"minWriterVersion":7,"readerFeatures":["{feature}"],'
        f'"writerFeatures":["{feature}"]}}}}\n'
    )
    with pytest.raises(TerminalError, match=f"uses {feature}.*fresh sink.path"):
        DeltaTarget(target.path, SCHEMA).load()


def test_a_table_of_another_pipeline(tmp_path: Path) -> None:
    target = made(tmp_path)
    with pytest.raises(TerminalError, match=r"not made by pipeline q\. Choose another sink\.path"):
        DeltaTarget(target.path, SCHEMA).create("q")


def test_a_table_with_other_columns(tmp_path: Path) -> None:
    target = made(tmp_path)
    with pytest.raises(TerminalError, match="has other columns"):
        DeltaTarget(target.path, SCHEMA.remove(1)).create("p")


def test_a_table_that_is_gone(tmp_path: Path) -> None:
    target = DeltaTarget(tmp_path / "gone", SCHEMA)
    assert not target.exists() and target.markers().get("m") is None
    with pytest.raises(TerminalError, match="is missing"):
        target.load()


def test_old_files_are_tidied_and_live_ones_stay(tmp_path: Path) -> None:
    target = made(tmp_path)
    for n in range(3):
        upsert(target, (n, "x", n + 1, "c"))
    before = len(list(target.path.glob("part-*")))
    target.tidy(0)
    assert (before, len(list(target.path.glob("part-*")))) == (3, 1)
    assert len(held(DeltaTarget(target.path, SCHEMA, ["id"], "id"))) == 3


def test_an_empty_table_reads_as_one(tmp_path: Path) -> None:
    assert made(tmp_path).to_arrow().equals(SCHEMA.empty_table())


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
    assert folder(name) == expected


@settings(deadline=None)
@given(st.lists(st.text(st.characters(min_codepoint=1, max_codepoint=0xFFFF, codec="utf-8"), min_size=1), unique=True))
def test_folders_are_one_path_part_each_and_differ(names: list[str]) -> None:
    found = [folder(name) for name in names]
    assert len(set(found)) == len(names)
    assert all(f not in (".", "..") and "/" not in f and f == Path(f).name for f in found)


def test_json_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    path = Layout(tmp_path, "p").plan
    assert read_json(path) is None
    write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    assert read_json(path) == {"a": 1}
