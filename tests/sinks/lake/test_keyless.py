"""Merging into a table without a key: exactly as many rows go as have gone, or nothing is written."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_provider_cdc.model.multiset import MissingRowsError, find_removed_rows, net_change, without_removed_rows
from airflow_provider_cdc.model.schema import OP_COLUMN, SEQ_COLUMN, TS_COLUMN
from airflow_provider_cdc.sinks.delta.table import DeltaSinkTable
from airflow_provider_cdc.sinks.delta.table_metadata import DeltaTableOptions
from airflow_provider_cdc.sinks.files import parquet as data_files
from airflow_provider_cdc.sinks.files.parquet import write_file
from airflow_provider_cdc.sinks.lake.merge import table_edit
from airflow_provider_cdc.sinks.protocol import Fence, MultisetChange, PublishSlices
from airflow_provider_cdc.sinks.storage.local_storage import LocalStorage

Row = tuple[int | None, str | None]
SCHEMA = pa.schema(
    [
        ("a", pa.int32()),
        ("v.w", pa.string()),
        (SEQ_COLUMN, pa.int64()),
        (OP_COLUMN, pa.string()),
        (TS_COLUMN, pa.timestamp("us", tz="UTC")),
    ]
)
#: Few, so that many are equal.
ROWS: list[Row] = [(None, None), (None, "x"), (1, None), (1, "x"), (1, "X"), (2, "x")]


def table(rows: Sequence[Row], op: str = "c", seq: int = 0) -> pa.Table:
    listed = [dict(zip(SCHEMA.names, (*row, seq + i, op, 0), strict=True)) for i, row in enumerate(rows)]
    return pa.Table.from_pylist(listed, SCHEMA)


FENCE = Fence("epoch", 1)


class Table:
    """A table without a key."""

    def __init__(self, root: Path, vectors: bool) -> None:
        self.target = DeltaSinkTable(LocalStorage(root / uuid.uuid4().hex), SCHEMA, options=DeltaTableOptions(vectors))
        self.target.create("p")

    def add(self, name: str, *groups: pa.Table) -> None:
        file = write_file(self.target.storage, f"snapshot/{name}.parquet", SCHEMA, groups, None)
        assert self.target.commit(lambda _: PublishSlices([file]), {}, FENCE)

    def merge(self, insert: Sequence[Row], delete: Sequence[Row], *, since: int = 0) -> None:
        change = net_change(pa.concat_tables([table(delete, "d", 100), table(insert, "u", 200)]), ["a", "v.w"])
        self.target.commit(lambda _: MultisetChange(change, since), {}, FENCE)

    def rows(self) -> Counter[Row]:
        return Counter((r["a"], r["v.w"]) for r in self.target.read_with_soft_deleted().to_pylist())

    @property
    def live(self) -> set[str]:
        return {*self.target.load_log().files}


Make = Callable[[], Table]


@pytest.fixture(params=[True, False], ids=["vectors", "copies"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    return lambda: Table(tmp_path, request.param)


def test_exactly_so_many(make: Make) -> None:
    files = make()
    files.add("one", table([(1, "x")] * 3 + [(None, None)]), table([(1, "x")] * 2))
    files.add("two", table([(1, "x"), (1, "X"), (None, None)]))
    files.merge([], [(1, "x")])
    assert files.rows() == Counter({(1, "x"): 5, (1, "X"): 1, (None, None): 2})
    files.merge([], [(None, None), (1, "x"), (1, "x"), (1, "x"), (None, None)])
    assert files.rows() == Counter({(1, "x"): 2, (1, "X"): 1})
    files.merge([], [(1, "x")])
    files.merge([(1, "x")], [])
    files.merge([(1, "x"), (2, "new")], [(1, "X")])
    assert files.rows() == Counter({(1, "x"): 3, (2, "new"): 1})
    files.merge([], [(1, "x")] * 3 + [(2, "new")])
    assert files.rows() == Counter() and not files.live


def test_more_than_there_are(make: Make) -> None:
    """Nothing is written, though other rows were found."""
    files = make()
    files.add("one", table([(1, "x"), (2, "y"), (None, "x")]))
    root = Path(files.target.storage.location())
    before = {*root.rglob("*")}
    cases: list[tuple[list[Row], int]] = [
        ([(1, "x"), (1, "x"), (2, "y"), (1, "x")], 2),
        ([(2, "y"), (None, None)], 1),
    ]
    for gone, count in cases:
        with pytest.raises(MissingRowsError) as caught:
            files.merge([(7, "z")], gone)
        assert caught.value.count == count and caught.value.row["a"].to_pylist() == [gone[-1][0]]
    assert {*root.rglob("*")} == before


def test_rows_that_somebody_else_has_put_in(make: Make) -> None:
    """What an old version lacks need not be missing."""
    files = make()
    other = DeltaSinkTable(files.target.storage, SCHEMA, options=files.target.options)
    other.load_log()
    files.add("one", table([(1, "x"), (2, "y")]))
    gone = net_change(table([(1, "x")], "d", 100), ["a", "v.w"])
    assert other.commit(lambda _: MultisetChange(gone), {}, FENCE)
    assert files.rows() == Counter({(2, "y"): 1})


def test_put_in_and_taken_out_again(make: Make) -> None:
    """What is not there need not be looked for, if it came and went."""
    files = make()
    files.add("one", table([(1, "x")]))
    before = files.live
    files.merge([(9, "z")], [(9, "z")])
    assert files.live == before


def test_a_truncate_takes_what_is_older(make: Make) -> None:
    files = make()
    files.add("old", table([(1, "x")] * 4, seq=5))
    files.add("both", table([(1, "x")] * 4, seq=7), table([(2, "y")], seq=30))
    files.merge([(3, "z")], [(1, "x")], since=9)  # of the two that are left one goes
    assert files.rows() == Counter({(1, "x"): 1, (2, "y"): 1, (3, "z"): 1})
    with pytest.raises(MissingRowsError):  # what the TRUNCATE takes cannot be taken again
        files.merge([], [(2, "y")], since=50)


def test_a_truncate_alone_is_looked_for_in_all_files(make: Make) -> None:
    files = make()
    for name in ("a", "b", "c"):
        files.add(name, table([(1, name)], seq=5))
    files.merge([(3, "z")], [], since=9)
    assert files.rows() == Counter({(3, "z"): 1})


def test_copies_stay_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large file is cut up where it is written anew; small ones take new rows in."""
    rows = table([(i, "x" * 100) for i in range(4000)])
    monkeypatch.setattr(table_edit, "LARGE_FILE_BYTES", rows.nbytes // 4)
    monkeypatch.setattr(data_files, "_ROW_GROUP_BYTES", rows.nbytes // 40)
    files = Table(tmp_path, vectors=False)
    files.add("large", *(rows.slice(i, 100) for i in range(0, 4000, 100)))
    files.merge([], [(1999, "x" * 100)])
    assert 4 <= len(files.live) <= 5 and files.rows().total() == 3999
    before = files.live
    files.merge([], [(2500, "x" * 100)])
    assert len(files.live - before) == 1, "one piece was written again"
    files = Table(tmp_path, vectors=False)
    for i in range(5):
        files.merge([(i, "new")], [])
    assert len(files.live) == 1


# ---------------------------------------------------------------- files that are staged, when rows are read again


def left(*groups: pa.Table, delete: Sequence[Row], since: int = 0) -> Counter[Row]:
    """What is left of a file."""
    lost = find_removed_rows([("file", groups)], net_change(table(delete, "d", 100), ["a", "v.w"]), since)
    kept = pa.concat_tables(without_removed_rows(groups, lost.get("file", {})))
    return Counter((r["a"], r["v.w"]) for r in kept.to_pylist())


def test_exactly_so_many_of_a_file() -> None:
    groups = table([(1, "x")] * 3 + [(None, None)]), table([(1, "x"), (1, "X"), (None, None)])
    assert left(*groups, delete=[(1, "x")]) == Counter({(1, "x"): 3, (1, "X"): 1, (None, None): 2})
    assert left(*groups, delete=[(1, "x")] * 4 + [(None, None)]) == Counter({(1, "X"): 1, (None, None): 1})
    with pytest.raises(MissingRowsError) as caught:
        left(*groups, delete=[(1, "x")] * 6)
    assert caught.value.count == 2


def test_a_truncate_takes_what_is_older_of_a_file() -> None:
    groups = table([(1, "x")] * 4, seq=7), table([(1, "x"), (2, "y")], seq=30)
    assert left(*groups, delete=[(1, "x")], since=9) == Counter({(1, "x"): 2, (2, "y"): 1})
    assert left(*groups, delete=[], since=9) == Counter({(1, "x"): 3, (2, "y"): 1})
    with pytest.raises(MissingRowsError):  # what the TRUNCATE takes cannot be taken again
        left(*groups, delete=[(1, "x")] * 4, since=9)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_as_a_counter(make: Make, data: st.DataObject) -> None:
    rows = st.lists(st.sampled_from(ROWS), max_size=8)
    files, model = make(), Counter[Row]()
    for name in ("a", "b"):
        start = data.draw(st.lists(rows, max_size=3))
        files.add(name, *map(table, start))
        for group in start:
            model.update(group)
    for _ in range(3):
        insert, delete = data.draw(rows), data.draw(rows)
        after = model.copy()
        after.update(insert)
        after.subtract(delete)
        if min(after.values(), default=0) < 0:
            with pytest.raises(MissingRowsError):
                files.merge(insert, delete)
        else:
            files.merge(insert, delete)
            model = +after
        assert files.rows() == model


@pytest.mark.parametrize("vectors", [True, False], ids=["vectors", "copies"])
def test_a_single_column_of_integers(tmp_path: Path, vectors: bool) -> None:
    """With a NULL among them: floats would not tell the large ones apart, nor NULL from the smallest."""
    schema = pa.schema([("n", pa.int64()), *list(SCHEMA)[2:]])

    def rows(values: Sequence[int | None], op: str = "c", seq: int = 0) -> pa.Table:
        size = len(values)
        return pa.table([pa.array(values, pa.int64()), [seq] * size, [op] * size, [0] * size], schema=schema)

    target = DeltaSinkTable(LocalStorage(tmp_path / "t"), schema, options=DeltaTableOptions(vectors))
    target.create("p")
    large, smallest = 2**53, -(2**63)
    file = write_file(
        target.storage, "snapshot/one.parquet", schema, [rows([None, large, large + 1, smallest, None])], None
    )
    target.commit(lambda _: PublishSlices([file]), {}, FENCE)
    change = net_change(rows([large + 1, None], "d", 100), ["n"])
    target.commit(lambda _: MultisetChange(change), {}, FENCE)
    assert Counter(target.read_with_soft_deleted()["n"].to_pylist()) == Counter([large, smallest, None])
    with pytest.raises(MissingRowsError):
        target.commit(lambda _: MultisetChange(net_change(rows([large + 1, None], "d", 200), ["n"])), {}, FENCE)
