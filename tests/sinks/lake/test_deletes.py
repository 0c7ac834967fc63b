"""Rows that are deleted in the source and stay: marked (soft) or as they are (ignore)."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from airflow_provider_cdc.config.delete_policy import DeletePolicy
from airflow_provider_cdc.model.changes import last_changes
from airflow_provider_cdc.model.errors import NotReadyError
from airflow_provider_cdc.model.schema import DELETED_COLUMN, OP_COLUMN, SEQ_COLUMN, TS_COLUMN, Column, TableSchema
from airflow_provider_cdc.sinks.delta.sink import DeltaSink
from airflow_provider_cdc.sinks.delta.table import DeltaSinkTable
from airflow_provider_cdc.sinks.lake import compaction
from airflow_provider_cdc.sinks.lake.merge.soft_deletes import deleted_mask, drop_deleted_rows
from airflow_provider_cdc.sinks.protocol import Change, Fence, OverwriteRange, PublishSlices, Truncate, Upsert

ID = Column("id", "bigint", "bigint", nullable=False)
NAME = Column("k", "varchar", "varchar(9)", False, charset="utf8mb4")
VALUE = Column("v", "varchar", "varchar(9)", True, charset="utf8mb4")
TABLE = TableSchema("shop", "t", (ID, NAME, VALUE), ("id",))
#: Its key is no single integer: rows are looked up by hashes, and no statistics tell where they are.
NAMED = TableSchema("shop", "t", (ID, NAME, VALUE), ("k", "id"))
FENCE = Fence("epoch", 1)

Open = Callable[..., DeltaSink]
#: id, value, ``_cdc_seq``, ``_cdc_op``
Row = tuple[int, str | None, int, str]


def moment(at: int) -> datetime:
    """``_cdc_ts`` of a change."""
    return datetime.fromtimestamp(at, UTC)


def rows(*listed: Row) -> pa.Table:
    values = [(n, f"k{n}", v, seq, op, moment(seq)) for n, v, seq, op in listed]
    return pa.Table.from_pylist(
        [dict(zip(TABLE.sink_schema.names, row, strict=True)) for row in values], TABLE.sink_schema
    )


@pytest.fixture(params=["vectors", "copies", "partitions"])
def opened(tmp_path: Path, request: pytest.FixtureRequest) -> Open:
    def open_sink(how: str) -> DeltaSink:
        copies = ("shop..*",) if request.param == "copies" else ()
        by = (("shop..*", (("v", None),)),) if request.param == "partitions" else ()
        deletes = DeletePolicy(**({} if how == "hard" else {how: ("shop..*",)}))
        return DeltaSink(str(tmp_path), "p", copies, deletes=deletes, partition_by=by)

    return open_sink


@pytest.fixture(params=[TABLE, NAMED], ids=["integer", "text"])
def table(request: pytest.FixtureRequest) -> TableSchema:
    found: TableSchema = request.param
    return found


def create_table(sink: DeltaSink, table: TableSchema = TABLE) -> DeltaSinkTable:
    target = sink.table(table)
    target.create("p")
    return target


def do(target: DeltaSinkTable, change: Change) -> bool:
    return target.commit(lambda _: change, {}, FENCE)


def upsert(target: DeltaSinkTable, *listed: Row) -> bool:
    return do(target, Upsert(rows(*listed)))


def staged(sink: DeltaSink, target: DeltaSinkTable, name: str, *listed: Row, table: TableSchema = TABLE) -> bool:
    """As a batch is applied: written by a task, reduced, merged."""
    writer = sink.change_staging().open_writer(table, name)
    writer.add(rows(*listed).to_batches()[0])
    writer.close()
    return do(target, Upsert(last_changes(sink.change_staging().read_for_apply(table, [name]), table.key)))


def held(target: DeltaSinkTable) -> dict[int, tuple[Any, ...]]:
    """id -> value, seq, op, deleted, time."""
    found = target.read_with_soft_deleted().to_pylist()
    values = {r["id"]: (r["v"], r[SEQ_COLUMN], r[OP_COLUMN], r.get(DELETED_COLUMN), r[TS_COLUMN]) for r in found}
    assert len(values) == len(found), "a key is there twice"
    return values


def living(target: DeltaSinkTable) -> dict[int, str]:
    found, _ = target.read()
    assert DELETED_COLUMN not in found.column_names
    return {r["id"]: r["v"] for r in found.to_pylist()}


def alive(value: str | None, seq: int, op: str = "c") -> tuple[Any, ...]:
    return value, seq, op, False, moment(seq)


def dead(value: str | None, seq: int) -> tuple[Any, ...]:
    return value, seq, "d", True, moment(seq)


# ---------------------------------------------------------------- soft


def test_a_deleted_row_stays_and_is_marked(opened: Open, table: TableSchema) -> None:
    """With its last values, and the time of the delete."""
    target = create_table(opened("soft"), table)
    upsert(target, (1, "a", 1, "c"), (2, "b", 1, "c"))
    upsert(target, (1, "a", 3, "d"))
    assert held(target) == {1: dead("a", 3), 2: alive("b", 1)} and living(target) == {2: "b"}
    upsert(target, (1, "z", 2, "u"))
    assert held(target)[1] == dead("a", 3), "an older change has brought it back"
    upsert(target, (1, "z", 4, "c"))
    assert held(target)[1] == alive("z", 4) and living(target) == {1: "z", 2: "b"}


def test_a_delete_is_written_once(opened: Open, table: TableSchema) -> None:
    """By the task that decoded it; also of a row that the copy did not have, however batches are cut."""
    sink = opened("soft")
    target = create_table(sink, table)
    staged(sink, target, "epoch-1/a", (1, "a", 1, "c"), (2, "b", 1, "c"), (3, "c", 2, "c"), table=table)
    staged(
        sink, target, "epoch-1/b", (1, "a", 3, "d"), (4, "d", 3, "c"), (4, "d", 4, "d"), (2, "x", 5, "u"), table=table
    )
    assert held(target) == {1: dead("a", 3), 2: alive("x", 5, "u"), 3: alive("c", 2), 4: dead("d", 4)}
    if sink.copy_on_write_tables:
        return
    if sink.partition_by:
        assert all(name.startswith("changes/epoch-1/v=") for name in target.load_log().files)
        return
    assert set(target.load_log().files) == {"changes/epoch-1/a.parquet", "changes/epoch-1/b.parquet"}


def test_rows_of_the_snapshot_are_not_deleted(opened: Open) -> None:
    target = create_table(opened("soft"))
    file = target.stage("1/0/1/slice", [rows((1, "a", 1, "r"))])
    assert pa.concat_tables(target.read_staged(file)) == rows((1, "a", 1, "r"))
    do(target, PublishSlices([file]))
    assert held(target) == {1: alive("a", 1, "r")}


def test_truncated_rows_are_marked(opened: Open) -> None:
    """Those that were deleted before keep their own time, and rows that are newer are none of its business."""
    target = create_table(opened("soft"))
    do(
        target,
        PublishSlices([target.stage("1/0/1/slice", [rows((1, "a", 1, "r"), (2, "b", 1, "r"), (3, "c", 1, "r"))])]),
    )
    upsert(target, (2, "b", 2, "d"), (3, "x", 9, "u"), (4, "d", 3, "c"))
    truncated = Truncate(5, 5_000_000)
    assert do(target, truncated)
    assert held(target) == {1: dead("a", 5), 2: dead("b", 2), 3: alive("x", 9, "u"), 4: dead("d", 5)}
    assert not do(target, truncated), "it was done twice"


def test_a_group_that_is_read_again_keeps_them(opened: Open, table: TableSchema) -> None:
    """Rows that the source has are replaced, marked ones stay, and what nobody has told of is marked now."""
    target, began = create_table(opened("soft"), table), time.time()
    first = rows((1, "a", 1, "r"), (2, "b", 1, "r"), (3, "c", 1, "r"), (4, "d", 1, "r"))
    do(target, PublishSlices([target.stage("1/0/1/slice", [first])]))
    do(target, PublishSlices([target.stage("1/1/1/slice", [rows((70, "other", 1, "r"))])]))
    upsert(target, (2, "b", 2, "d"), (3, "c", 3, "d"), (5, "e", 3, "c"), (71, "other", 3, "d"), (6, "f", 3, "c"))
    again = target.stage("1/0/2/slice", [rows((1, "A", 8, "r"), (3, "C", 8, "r"), (5, "E", 8, "r"))])
    replaced = OverwriteRange(
        [again], (1, 0), lambda keys: pc.less(keys["id"], 70), (1, 69) if table is TABLE else None
    )
    do(target, replaced)
    found = held(target)
    unseen = [found.pop(4), found.pop(6)]
    assert found == {
        **{n: alive(v, 8, "r") for n, v in ((1, "A"), (3, "C"), (5, "E"))},
        2: dead("b", 2),
        70: alive("other", 1, "r"),
        71: dead("other", 3),
    }
    assert [row[:4] for row in unseen] == [("d", 1, "d", True), ("f", 3, "d", True)]
    assert all(began - 1 < row[4].timestamp() < time.time() + 1 for row in unseen)
    do(target, OverwriteRange([], (1, 0), replaced.owns_rows, replaced.key_span))
    assert living(target) == {70: "other"} and len(held(target)) == 8


def test_compaction_keeps_them(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = opened("soft")
    target = create_table(sink)
    monkeypatch.setattr(compaction, "FANOUT", 2)
    monkeypatch.setattr(compaction, "MIN_FANOUT", 2)
    for n in range(3):
        do(target, PublishSlices([target.stage(f"1/{n}/1/slice", [rows((n, "a", 1, "r"), (10 + n, "b", 1, "r"))])]))
    upsert(target, *((n, "a", 2, "d") for n in range(3)))
    before = held(target)
    work = target.plan_compactions()
    assert target.commit_compactions([(c, c.run()) for c in work]) == len(work)
    assert len(target.load_log().files) == (2 if sink.partition_by else 1) and held(target) == before


# ---------------------------------------------------------------- ignore


def test_a_deleted_row_stays_as_it_is(opened: Open, table: TableSchema) -> None:
    """With all that changed it before: a delete takes no other change's place, in one batch or in two."""
    sink = opened("ignore")
    target = create_table(sink, table)
    staged(
        sink, target, "epoch-1/a", (1, "a", 1, "c"), (2, "b", 1, "c"), (3, "c", 1, "c"), (3, "c", 2, "d"), table=table
    )
    staged(sink, target, "epoch-1/b", (1, "z", 3, "u"), (1, "z", 4, "d"), (2, "b", 4, "d"), table=table)
    assert {n: row[:3] for n, row in held(target).items()} == {1: ("z", 3, "u"), 2: ("b", 1, "c"), 3: ("c", 1, "c")}
    staged(sink, target, "epoch-1/c", (1, "new", 5, "c"), table=table)
    assert living(target) == {1: "new", 2: "b", 3: "c"}


def test_truncated_rows_stay(opened: Open) -> None:
    target = create_table(opened("ignore"))
    upsert(target, (1, "a", 1, "c"))
    assert not do(target, Truncate(5, 5_000_000)) and living(target) == {1: "a"}


def test_a_group_that_is_read_again_loses_nothing(opened: Open, table: TableSchema) -> None:
    target = create_table(opened("ignore"), table)
    do(target, PublishSlices([target.stage("1/0/1/slice", [rows((1, "a", 1, "r"), (2, "b", 1, "r"))])]))
    upsert(target, (3, "c", 2, "c"), (4, "d", 2, "c"))
    again = target.stage("1/0/2/slice", [rows((1, "A", 8, "r"), (3, "C", 8, "r"))])
    do(target, OverwriteRange([again], (1, 0), lambda keys: pa.repeat(True, keys.num_rows)))
    assert living(target) == {1: "A", 2: "b", 3: "C", 4: "d"}


@pytest.mark.parametrize("how", ["soft", "ignore"])
def test_a_group_that_is_read_again_and_is_empty(tmp_path: Path, how: str) -> None:
    """Also where a column of the key makes the partitions: a slice without rows is in none."""
    sink = DeltaSink(
        str(tmp_path), "p", deletes=DeletePolicy(**{how: ("shop..*",)}), partition_by=(("shop..*", (("k", None),)),)
    )
    target = create_table(sink, NAMED)
    do(target, PublishSlices([target.stage("1/0/1/slice", [rows((1, "a", 1, "r"), (2, "b", 1, "r"))])]))
    empty = target.stage("1/0/2/slice", [rows()])
    do(target, OverwriteRange([empty], (1, 0), lambda keys: pa.repeat(True, keys.num_rows)))
    assert living(target) == ({} if how == "soft" else {1: "a", 2: "b"}) and len(held(target)) == 2


# ---------------------------------------------------------------- the setting


@pytest.mark.parametrize(
    ("before", "after"), [("hard", "soft"), ("hard", "ignore"), ("soft", "ignore"), ("soft", "hard")]
)
def test_it_cannot_be_changed_later(opened: Open, before: str, after: str) -> None:
    upsert(create_table(opened(before)), (1, "a", 1, "c"))
    target = opened(after).table(TABLE)
    for attempt in (target.load_log, target.read, target.markers, lambda: upsert(target, (1, "a", 2, "c"))):
        with pytest.raises(NotReadyError, match=f"was created with sink.deletes {before}, which is {after} now"):
            attempt()
    assert living(opened(before).table(TABLE)) == {1: "a"}


def test_a_row_that_others_have_inserted_is_not_deleted() -> None:
    """They may leave NULL in the column that marks deleted rows."""
    marks = pa.array([None, True, False])
    rows = pa.table({"id": [1, 2, 3], DELETED_COLUMN: marks})
    assert drop_deleted_rows(rows).to_pylist() == [{"id": 1}, {"id": 3}]
    assert deleted_mask(rows).tolist() == [False, True, False]
