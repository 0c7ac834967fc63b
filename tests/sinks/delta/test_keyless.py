"""Merging into a table without a key: exactly as many rows go as have gone, or nothing is written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_provider_cdc.core.multiset import MissingRowsError, net
from airflow_provider_cdc.core.schema import OP, SEQ, TS
from airflow_provider_cdc.sinks import files as data_files
from airflow_provider_cdc.sinks.delta import keyless
from airflow_provider_cdc.sinks.delta.files import Actions
from airflow_provider_cdc.sinks.delta.keyless import counted

Row = tuple[int | None, str | None]
SCHEMA = pa.schema(
    [("a", pa.int32()), ("v.w", pa.string()), (SEQ, pa.int64()), (OP, pa.string()), (TS, pa.timestamp("us", tz="UTC"))]
)
#: Few, so that many are equal.
ROWS: list[Row] = [(None, None), (None, "x"), (1, None), (1, "x"), (1, "X"), (2, "x")]


def table(rows: Sequence[Row], op: str = "c", seq: int = 0) -> pa.Table:
    listed = [dict(zip(SCHEMA.names, (*row, seq + i, op, 0), strict=True)) for i, row in enumerate(rows)]
    return pa.Table.from_pylist(listed, SCHEMA)


class Files:
    """A folder of files that merges change, as a Delta table would have them."""

    def __init__(self, root: Path) -> None:
        self.root, self.live = root, dict[str, int]()

    def add(self, name: str, *groups: pa.Table) -> None:
        with pq.ParquetWriter(self.root / name, SCHEMA) as writer:
            for group in groups:
                writer.write_table(group)
        self.live[name] = (self.root / name).stat().st_size

    def merge(self, insert: Sequence[Row], delete: Sequence[Row], *, since: int = 0) -> Actions:
        change = net(pa.concat_tables([table(delete, "d", 100), table(insert, "u", 200)]), ["a", "v.w"])
        live = [{"path": path, "size_bytes": size} for path, size in self.live.items()]
        done = counted(self.root, SCHEMA, live, change, since)
        for path in done.remove:
            del self.live[path]
        self.live.update({file.path: file.size for file in done.add})
        return done

    def rows(self) -> Counter[Row]:
        read = [pq.read_table(self.root / path, partitioning=None) for path in self.live]
        return Counter((r["a"], r["v.w"]) for part in read for r in part.to_pylist())


def test_exactly_so_many(tmp_path: Path) -> None:
    files = Files(tmp_path)
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


def test_more_than_there_are(tmp_path: Path) -> None:
    """Nothing is written, though other rows were found."""
    files = Files(tmp_path)
    files.add("one", table([(1, "x"), (2, "y"), (None, "x")]))
    before = [*tmp_path.iterdir()]
    cases: list[tuple[list[Row], int]] = [
        ([(1, "x"), (1, "x"), (2, "y"), (1, "x")], 2),
        ([(2, "y"), (None, None)], 1),
    ]
    for gone, count in cases:
        with pytest.raises(MissingRowsError) as caught:
            files.merge([(7, "z")], gone)
        assert caught.value.count == count and caught.value.row["a"].to_pylist() == [gone[-1][0]]
    assert [*tmp_path.iterdir()] == before


def test_put_in_and_taken_out_again(tmp_path: Path) -> None:
    """What is not there need not be looked for, if it came and went."""
    files = Files(tmp_path)
    files.add("one", table([(1, "x")]))
    done = files.merge([(9, "z")], [(9, "z")])
    assert not done.add and not done.remove


def test_a_truncate_takes_what_is_older(tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.add("old", table([(1, "x")] * 4, seq=5))
    files.add("both", table([(1, "x")] * 4, seq=7), table([(2, "y")], seq=30))
    files.merge([(3, "z")], [(1, "x")], since=9)  # of the two that are left one goes
    assert files.rows() == Counter({(1, "x"): 1, (2, "y"): 1, (3, "z"): 1})
    with pytest.raises(MissingRowsError):  # what the TRUNCATE takes cannot be taken again
        files.merge([], [(2, "y")], since=50)


def test_a_truncate_alone_is_looked_for_in_all_files(tmp_path: Path) -> None:
    files = Files(tmp_path)
    for name in ("a", "b", "c"):
        files.add(name, table([(1, name)], seq=5))
    files.merge([(3, "z")], [], since=9)
    assert files.rows() == Counter({(3, "z"): 1})


def test_files_stay_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large file is cut up where it is written anew; small ones take new rows in."""
    rows = table([(i, "x" * 100) for i in range(4000)])
    monkeypatch.setattr(keyless, "LARGE_FILE", rows.nbytes // 4)
    monkeypatch.setattr(data_files, "_ROW_GROUP_BYTES", rows.nbytes // 40)
    files = Files(tmp_path)
    files.add("large", *(rows.slice(i, 100) for i in range(0, 4000, 100)))
    files.merge([], [(1999, "x" * 100)])
    assert 4 <= len(files.live) <= 5 and files.rows().total() == 3999
    before = dict(files.live)
    files.merge([], [(2500, "x" * 100)])
    assert len(files.live.keys() - before.keys()) == 1, "one piece was written again"
    files = Files(tmp_path)
    for i in range(5):
        files.merge([(i, "new")], [])
    assert len(files.live) == 1


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_as_a_counter(tmp_path: Path, data: st.DataObject) -> None:
    rows = st.lists(st.sampled_from(ROWS), max_size=8)
    files, model = Files(tmp_path), Counter[Row]()
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
