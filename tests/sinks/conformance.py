"""What every sink must do. A sink's tests inherit :class:`SinkConformance`, give a factory and a way to break commits.

Exactly-once rests on each of these. What a sink does not support by name (:class:`Feature`) is skipped.
"""

from __future__ import annotations

import pickle
import threading
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from airflow_provider_cdc.config.delete_policy import IGNORE, SOFT, DeletePolicy
from airflow_provider_cdc.model.errors import FencedError, NotReadyError, TerminalError
from airflow_provider_cdc.model.multiset import MissingRowsError, net_change
from airflow_provider_cdc.model.offset import Offset, Timeline
from airflow_provider_cdc.model.schema import OP_COLUMN, SEQ_COLUMN, TS_COLUMN, Column, TableSchema
from airflow_provider_cdc.sinks.files.parquet import DataFile
from airflow_provider_cdc.sinks.protocol import (
    Change,
    Feature,
    Fence,
    Markers,
    MultisetChange,
    OverwriteRange,
    PipelineSink,
    PublishSlices,
    Readable,
    SinkTable,
    Truncate,
    Upsert,
)

INT = Column("id", "int", "int", nullable=False)
TEXT = Column("v.w", "varchar", "varchar(20)", nullable=True, charset="utf8mb4")  # a dot is not a path
KEYED = TableSchema("shop", "orders", (INT, TEXT), ("id",))
TWO = TableSchema("shop", "two", (INT, TEXT), ("v.w", "id"))
KEYLESS = TableSchema("shop", "log", (INT, TEXT), ())
FENCE = Fence("epoch", 1)


def nullable(name: str, data_type: str, column_type: str = "", **named: Any) -> Column:
    return Column(name, data_type, column_type or data_type, True, **named)


#: A column of every Arrow type, with the ends of its values.
VALUES: tuple[tuple[Column, Any, Any], ...] = (
    (nullable("i1", "tinyint"), -128, 127),
    (nullable("u1", "tinyint", "tinyint unsigned"), 0, 255),
    (nullable("i2", "smallint"), -(2**15), 2**15 - 1),
    (nullable("u2", "smallint", "smallint unsigned"), 0, 2**16 - 1),
    (nullable("i4", "int"), -(2**31), 2**31 - 1),
    (nullable("u4", "int", "int unsigned"), 0, 2**32 - 1),
    (nullable("i8", "bigint"), -(2**63), 2**63 - 1),
    (nullable("u8", "bigint", "bigint unsigned"), 0, 2**64 - 1),
    (nullable("d", "decimal", precision=38, scale=10), Decimal("-9e27"), Decimal("0.0000000001")),
    (nullable("f4", "float"), -3.4028234663852886e38, 1.401298464324817e-45),
    (nullable("f8", "double"), -1.7976931348623157e308, 5e-324),
    (nullable("text", "varchar", charset="utf8mb4"), "", '\0\n"\\\u2028\U0001f600'),
    (nullable("bytes", "varbinary"), b"", bytes(range(256))),
    (nullable("day", "date"), date(1, 1, 1), date(9999, 12, 31)),
    (nullable("at", "datetime", fsp=6), datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999)),
    (nullable("stamp", "timestamp"), datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), datetime(2038, 1, 19, tzinfo=UTC)),
    (nullable("took", "time"), -3020399000000, 3020399000000),
    (nullable("year", "year"), 1901, 2155),
    (nullable("vector", "vector"), [], [1.5, -0.0]),
)

#: Columns that come to a table: before, between and behind the others.
WIDER = tuple(nullable(name, "int") for name in ("before", "be.tween", "behind"))
BEFORE, BETWEEN, BEHIND = (column.name for column in WIDER)

Row = tuple[int, str | None, int, str]
#: Rows of a table that has got columns: the value of these, (id, text, ``_cdc_seq``), and how many.
Rows = dict[tuple[int | None, int, str | None, int], int]
#: Rows of a table that keeps deleted ones: (id, text, ``_cdc_seq``), whether it is marked as deleted, and how many.
Marked = dict[tuple[int, str | None, int, bool], int]


def rows(table: TableSchema, *listed: Row) -> pa.Table:
    """Rows as (id, text, ``_cdc_seq``, ``_cdc_op``)."""
    names = table.sink_schema.names
    return pa.Table.from_pylist([dict(zip(names, (*row, 0), strict=True)) for row in listed], table.sink_schema)


def widened(table: TableSchema) -> TableSchema:
    """The definition of a table that has got columns."""
    first, second = table.columns
    return table.replace(columns=(WIDER[0], first, WIDER[1], second, WIDER[2]))


def wide(table: TableSchema, *listed: tuple[int | None, Row]) -> pa.Table:
    """Rows of such a table: what each has in the new columns, and the rest."""
    return pa.Table.from_pylist(
        [
            {BEFORE: n, "id": key, BETWEEN: n, "v.w": text, BEHIND: n, SEQ_COLUMN: seq, OP_COLUMN: op, TS_COLUMN: 0}
            for n, (key, text, seq, op) in listed
        ],
        widened(table).sink_schema,
    )


def once(marker: str, value: int, change: Change) -> Callable[[Markers], Change | None]:
    """As the phases decide: what the marker says is done is not done again."""
    return lambda markers: None if (markers.get(marker) or 0) >= value else change


class SinkConformance:
    """Inherit it as ``TestMySink(SinkConformance)``."""

    def open(self, folder: Path) -> PipelineSink:
        """The sink of a pipeline ``p`` below a folder; called again it opens the same one."""
        raise NotImplementedError

    def open_keeping_deletes(self, folder: Path, deletes: DeletePolicy) -> PipelineSink:
        """Likewise one that keeps rows that the source has deleted."""
        pytest.skip("it does not keep deleted rows")

    def read_all_rows(self, target: SinkTable) -> Counter[tuple[int, str | None, int, bool]]:
        """All rows of such a table: (id, text, ``_cdc_seq``), and whether it is marked as deleted."""
        raise NotImplementedError

    def failing_commit(self, monkeypatch: pytest.MonkeyPatch, *, made: bool) -> AbstractContextManager[None]:
        """Whatever makes a commit stand fails within: after it was made (the answer is lost), or before."""
        raise NotImplementedError

    def concurrent_writer(
        self, monkeypatch: pytest.MonkeyPatch, work: Callable[[], object]
    ) -> AbstractContextManager[None]:
        """Another writer does something right before the first commit that is made within."""
        raise NotImplementedError

    # ------------------------------------------------------------ helpers

    @pytest.fixture
    def sink(self, tmp_path: Path) -> PipelineSink:
        return self.open(tmp_path)

    def create_table(self, sink: PipelineSink, table: TableSchema = KEYED) -> SinkTable:
        target = sink.table(table)
        target.create("p")
        return target

    def held(self, target: SinkTable) -> Counter[tuple[int, str | None, int]]:
        """What is in a table: (id, text, ``_cdc_seq``).

        A sink that keeps changes folds them here, and sees in tests of its own that each of them is kept once.
        """
        if not isinstance(target, Readable):
            raise NotImplementedError("a sink that cannot be read back says in its tests what is in a table")
        found, _ = target.read()
        return Counter((r["id"], r["v.w"], r[SEQ_COLUMN]) for r in found.to_pylist())

    def publish(self, target: SinkTable, group: int, attempt: int, *listed: Row, table: TableSchema = KEYED) -> bool:
        """As a chunk group is published."""
        files = [target.stage(f"1/{group}/{attempt}/slice", [rows(table, *listed)])]
        return target.commit(
            lambda markers: PublishSlices(files) if markers.get(f"group/{group}") is None else None,
            {f"group/{group}": attempt},
            FENCE,
        )

    def upsert(self, target: SinkTable, seq: int, *listed: Row, fence: Fence = FENCE) -> bool:
        """As a batch is applied that ends at ``seq``."""
        return target.commit(once("stream", seq, Upsert(rows(KEYED, *listed))), {"stream": seq}, fence)

    # ------------------------------------------------------------ tables

    def test_it_travels(self, sink: PipelineSink) -> None:
        """To tasks in other processes."""
        assert pickle.loads(pickle.dumps(sink)) == sink

    def test_a_table_is_made_once(self, sink: PipelineSink, tmp_path: Path) -> None:
        target = sink.table(KEYED)
        assert not target.exists() and target.markers().get("m") is None
        target.create("p")
        self.publish(target, 0, 1, (1, "a", 1, "r"))
        again = self.create_table(self.open(tmp_path))
        assert target.exists() and again.exists() and self.held(again) == {(1, "a", 1): 1}

    def test_what_is_not_there_is_not_made_by_writing(self, sink: PipelineSink, tmp_path: Path) -> None:
        """Somebody has removed it: it must not come back empty."""
        target, point = sink.table(KEYED), sink.resume_point()
        with pytest.raises(TerminalError):
            target.raise_fence(FENCE)
        with pytest.raises(TerminalError):
            self.upsert(target, 1, (1, "a", 1, "c"))
        with pytest.raises(TerminalError):
            point.write(Offset("a", "binlog.000001", 100, ""), Timeline("a", "binlog.000001"), FENCE)
        with pytest.raises(TerminalError):
            point.raise_fence(FENCE)
        other = self.open(tmp_path)
        assert not other.table(KEYED).exists() and not other.resume_point().exists()

    def test_a_table_is_made_by_several_at_once(self, sink: PipelineSink, tmp_path: Path) -> None:
        problems: list[BaseException] = []
        start = threading.Barrier(4)

        def make(number: int) -> None:
            try:
                start.wait()
                self.publish(self.create_table(self.open(tmp_path)), number, 1, (number, "a", 1, "r"))
            except BaseException as error:
                problems.append(error)

        threads = [threading.Thread(target=make, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not problems and self.held(sink.table(KEYED)) == {(number, "a", 1): 1 for number in range(4)}

    def test_another_pipeline_is_refused(self, sink: PipelineSink) -> None:
        self.create_table(sink)
        with pytest.raises(TerminalError):
            sink.table(KEYED).create("q")

    def test_other_columns_are_refused(self, sink: PipelineSink) -> None:
        self.create_table(sink)
        with pytest.raises(TerminalError):
            sink.table(KEYED.replace(columns=(INT,))).create("p")

    def test_tables_do_not_meet(self, sink: PipelineSink) -> None:
        one, two = self.create_table(sink), self.create_table(sink, TWO)
        self.publish(one, 0, 1, (1, "a", 1, "r"))
        assert self.held(two) == {} and two.markers().get("group/0") is None

    def test_tidying_takes_nothing_that_is_there(self, sink: PipelineSink) -> None:
        target = self.create_table(sink)
        for seq in range(1, 4):
            self.upsert(target, seq, (seq, "a", seq, "c"))
        waiting = target.stage("1/0/1/slice", [rows(KEYED, (9, "staged", 1, "r"))])
        target.clean_up()
        assert self.held(target) == {(n, "a", n): 1 for n in range(1, 4)} and target.is_staged(waiting)
        target.commit(lambda _: PublishSlices([waiting]), {}, FENCE)
        assert self.held(target)[(9, "staged", 1)] == 1

    # ------------------------------------------------------------ markers and fences

    def test_markers_stand_with_the_rows(self, sink: PipelineSink, tmp_path: Path) -> None:
        target = self.create_table(sink)
        files = [target.stage("1/0/1/slice", [rows(KEYED, (1, "a", 1, "r"))])]
        assert target.commit(lambda _: PublishSlices(files), {"m": 7, "n": 2**62}, FENCE)
        again = self.open(tmp_path).table(KEYED)
        expected = [7, 2**62, 1, None]
        assert [again.markers().get(name) for name in ("m", "n", "epoch", "other")] == expected
        assert self.held(again) == {(1, "a", 1): 1}
        found, markers = self.readable(again).read()
        assert [markers.get(name) for name in ("m", "n", "epoch", "other")] == expected and found.num_rows == 1

    def test_markers_are_those_of_the_rows_that_were_read(self, sink: PipelineSink) -> None:
        target = self.create_table(sink)
        self.upsert(target, 5, (1, "a", 5, "c"))
        found, markers = self.readable(target).read()
        self.upsert(target, 6, (2, "b", 6, "c"))
        target.markers()
        assert found.num_rows == 1 and markers.get("stream") == 5

    def test_deciding_for_nothing(self, sink: PipelineSink) -> None:
        target = self.create_table(sink)
        assert not target.commit(lambda _: None, {"m": 1}, FENCE)
        assert target.markers().get("m") is None and target.markers().get("epoch") is None

    def test_an_older_epoch(self, sink: PipelineSink) -> None:
        old, new = self.create_table(sink), self.create_table(sink)
        self.upsert(old, 1, (1, "old", 1, "c"))
        new.raise_fence(Fence("epoch", 2))
        new.raise_fence(Fence("epoch", 2))
        with pytest.raises(FencedError):
            self.upsert(old, 2, (2, "late", 2, "c"))
        with pytest.raises(FencedError):  # it is told so, even where it has nothing to do
            old.commit(lambda _: None, {}, FENCE)
        with pytest.raises(FencedError):
            old.raise_fence(FENCE)
        self.upsert(new, 3, (3, "new", 3, "c"), fence=Fence("epoch", 2))
        assert self.held(new) == {(1, "old", 1): 1, (3, "new", 3): 1}

    def test_overtaken_between_decision_and_commit(self, sink: PipelineSink) -> None:
        old, new = self.create_table(sink), self.create_table(sink)

        def decide(_: Markers) -> Upsert:
            new.raise_fence(Fence("epoch", 2))
            return Upsert(rows(KEYED, (1, "late", 1, "c")))

        with pytest.raises(FencedError):
            old.commit(decide, {}, FENCE)
        assert self.held(new) == {}

    def test_fences_of_different_names_do_not_meet(self, sink: PipelineSink) -> None:
        target = self.create_table(sink)
        target.raise_fence(Fence("generation", 5))
        self.upsert(target, 1, (1, "a", 1, "c"))
        assert (target.markers().get("generation"), target.markers().get("epoch")) == (5, 1)

    # ------------------------------------------------------------ crashes

    def test_a_replayed_batch(self, sink: PipelineSink) -> None:
        """Whole, and cut differently."""
        target = self.create_table(sink)
        assert self.upsert(target, 9, (1, "a", 5, "c"), (2, "b", 9, "c"))
        before = self.held(target)
        assert not self.upsert(target, 9, (1, "a", 5, "c"), (2, "b", 9, "c"))
        assert not self.upsert(target, 5, (1, "a", 5, "c"))
        assert self.held(target) == before

    def test_a_change_counts_only_if_it_is_newer(self, sink: PipelineSink) -> None:
        target = self.create_table(sink)
        self.publish(target, 0, 1, (1, "a", 10, "r"), (2, "b", 10, "r"), (3, "c", 10, "r"), (4, "d", 10, "r"))
        self.upsert(target, 20, (1, "same", 10, "u"), (2, "older", 9, "d"), (3, "newer", 11, "u"), (4, None, 12, "d"))
        assert self.held(target) == {(1, "a", 10): 1, (2, "b", 10): 1, (3, "newer", 11): 1}

    @pytest.mark.parametrize("made", [False, True])
    @pytest.mark.parametrize("what", ["upserted", "counted", "emptied", "published", "replaced"])
    def test_a_crash_at_the_commit(
        self, sink: PipelineSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, made: bool
    ) -> None:
        """Before it, or after it with its fate unknown: rows and marker stand or fall together.

        Who comes then does the same again.
        """
        self.require_features(sink, *{"counted": [Feature.KEYLESS], "replaced": [Feature.RESNAPSHOT]}.get(what, []))
        table = KEYLESS if what == "counted" else KEYED
        target = self.create_table(sink, table)
        self.publish(target, 0, 1, (1, "a", 1, "r"), (2, "b", 1, "r"), table=table)
        batch: tuple[Row, ...] = ((1, "new", 5, "u"), (2, None, 5, "d"), (3, "c", 5, "c"))
        slices = [target.stage("1/1/1/slice", [rows(table, (3, "c", 5, "r"))])]
        before: dict[tuple[int, str | None, int], int] = {(1, "a", 1): 1, (2, "b", 1): 1}
        gone_and_new = net_change(rows(table, (1, "a", 5, "d"), (3, "c", 5, "c")), ["id", "v.w"])
        cases: dict[str, tuple[Change, dict[tuple[int, str | None, int], int]]] = {
            "upserted": (Upsert(rows(table, *batch)), {(1, "new", 5): 1, (3, "c", 5): 1}),
            "counted": (MultisetChange(gone_and_new), {(2, "b", 1): 1, (3, "c", 5): 1}),
            "emptied": (Truncate(5), {}),
            "published": (PublishSlices(slices), {**before, (3, "c", 5): 1}),
            "replaced": (
                OverwriteRange(slices, (1, 0), lambda found: pa.repeat(True, found.num_rows)),
                {(3, "c", 5): 1},
            ),
        }
        change, after = cases[what]

        def write(target: SinkTable) -> bool:
            return target.commit(once("stream", 5, change), {"stream": 5}, FENCE)

        said = False
        try:
            with self.failing_commit(monkeypatch, made=made):
                said = write(target)
        except Exception:
            pass  # it need not be raised if the sink has found out for itself
        again = self.open(tmp_path).table(table)
        stands = again.markers().get("stream") == 5
        assert self.held(again) == (after if stands else before)
        assert (stands or not made) and (stands or not said)
        again.create("p")
        assert write(again) != stands
        assert self.held(again) == after
        assert [again.markers().get(name) for name in ("stream", "group/0", "epoch")] == [5, 1, 1]

    def test_concurrent_commits(self, sink: PipelineSink, tmp_path: Path) -> None:
        """Each decides on what stands: none is lost, and none is made twice."""
        self.create_table(sink)
        problems: list[BaseException] = []

        def write(number: int) -> None:
            try:
                target = self.open(tmp_path).table(KEYED)
                for n in range(5):
                    key = number * 10 + n
                    self.count_up(target, rows(KEYED, (key, "x", key + 1, "c")))
            except BaseException as error:
                problems.append(error)

        threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not problems
        target = sink.table(KEYED)
        assert target.markers().get("count") == 15 and len(self.held(target)) == 15

    def count_up(self, target: SinkTable, changes: pa.Table) -> None:
        """A commit whose marker is one more than what it was decided on: tried until nobody came between."""
        while True:
            seen = target.markers().get("count") or 0
            if target.commit(
                lambda m: Upsert(changes) if (m.get("count") or 0) == seen else None,  # noqa: B023
                {"count": seen + 1},
                FENCE,
            ):
                return

    def test_another_commit_between_decision_and_commit(self, sink: PipelineSink) -> None:
        """All is decided again, on what stands then."""
        one, two = self.create_table(sink), self.create_table(sink)
        asked: list[int | None] = []

        def decide(markers: Markers) -> Change | None:
            asked.append(markers.get("stream"))
            if len(asked) == 1:
                self.upsert(two, 7, (1, "first", 7, "c"))
            return once("stream", 7, Upsert(rows(KEYED, (1, "second", 7, "c"))))(markers)

        assert not one.commit(decide, {"stream": 7}, FENCE)
        assert asked == [None, 7] and self.held(one) == {(1, "first", 7): 1}

    # ------------------------------------------------------------ chunk groups

    def test_nobody_sees_what_is_staged(self, sink: PipelineSink, tmp_path: Path) -> None:
        target = self.create_table(sink)
        file = target.stage("1/0/1/slice", [rows(KEYED, (2, "b", 1, "r"))])
        assert self.held(target) == {} and self.held(self.open(tmp_path).table(KEYED)) == {}
        # It is named in a manifest, and may be used by another process.
        other, named = self.open(tmp_path).table(KEYED), DataFile.from_json(file.to_json())
        assert other.is_staged(named) and named.rows == 1
        if Feature.RESNAPSHOT in sink.supports:
            assert pa.concat_tables(other.read_staged(named))["id"].to_pylist() == [2]
        other.discard_staged(named)
        assert not target.is_staged(file)

    def test_what_is_damaged_is_seen(self, sink: PipelineSink) -> None:
        target = self.create_table(sink)
        file = target.stage("1/0/1/slice", [rows(KEYED, (2, "b", 1, "r"))])
        assert not target.is_staged(file.replace(size=file.size + 1))

    def test_a_reader_that_dies(self, sink: PipelineSink) -> None:
        """Rows that are staged may end with an error; the next attempt is not in its way."""
        target = self.create_table(sink)

        def dying() -> Any:
            yield rows(KEYED, (2, "b", 1, "r"))
            raise ConnectionError

        with pytest.raises(ConnectionError):
            target.stage("1/0/1/slice", dying())
        assert self.publish(target, 0, 2, (2, "b", 1, "r")) and self.held(target) == {(2, "b", 1): 1}

    def test_a_group_is_published_once(self, sink: PipelineSink) -> None:
        """Of two attempts the first one that stands has won."""
        one, two = self.create_table(sink), self.create_table(sink)
        assert self.publish(one, 0, 1, (1, "first", 1, "r"), (2, "b", 1, "r"))
        assert not self.publish(two, 0, 2, (1, "second", 2, "r"))
        assert self.publish(two, 1, 1, (7, "g", 1, "r"))
        assert self.held(one) == {(1, "first", 1): 1, (2, "b", 1): 1, (7, "g", 1): 1}
        assert (two.markers().get("group/0"), two.markers().get("group/1")) == (1, 1)

    def test_a_group_without_rows(self, sink: PipelineSink) -> None:
        target = self.create_table(sink)
        assert self.publish(target, 0, 3)
        assert self.held(target) == {} and target.markers().get("group/0") == 3
        assert not self.publish(target, 0, 4, (1, "late", 1, "r"))
        assert (
            target.commit(lambda _: PublishSlices([]), {"group/1": 1}, FENCE) and target.markers().get("group/1") == 1
        )

    def test_a_table_without_rows(self, sink: PipelineSink) -> None:
        target = self.create_table(sink)
        assert self.readable(target).read()[0].equals(KEYED.sink_schema.empty_table())

    def test_values_come_back(self, sink: PipelineSink) -> None:
        """Extremes of every Arrow type that a column can have, through a slice and through a batch."""
        table = TableSchema("shop", "values", (INT, *(column for column, *_ in VALUES)), ("id",))
        listed = [{"id": n, **{c.name: (low, high, None)[n % 3] for c, low, high in VALUES}} for n in range(6)]
        found = pa.Table.from_pylist(
            [{**row, SEQ_COLUMN: 1, OP_COLUMN: "r", TS_COLUMN: 2**53} for row in listed], table.sink_schema
        )
        target = self.create_table(sink, table)
        written = self.readable(target)
        slices = [target.stage("1/0/1/slice", [found.slice(0, 3)])]
        target.commit(lambda _: PublishSlices(slices), {}, FENCE)
        writer = sink.change_staging().open_writer(table, "epoch-1/one")
        for batch in found.slice(3).to_batches():
            writer.add(batch)
        writer.close()
        changes = sink.change_staging().read_for_apply(table, ["epoch-1/one"])
        target.commit(lambda _: Upsert(changes), {}, FENCE)
        assert written.read()[0].sort_by("id").equals(found)

    def replaced(self, target: SinkTable, keys: set[int], attempt: int, *listed: Row, table: TableSchema) -> bool:
        """As a chunk group 0 is replaced that owns some keys."""
        asked: list[list[str]] = []

        def owned(found: pa.Table) -> pa.Array:
            asked.append(found.column_names)
            if not table.key:
                return pa.repeat(True, found.num_rows)
            return pc.is_in(found["id"], value_set=pa.array(sorted(keys), pa.int32())).combine_chunks()

        files = [target.stage(f"1/0/{attempt}/slice-{uuid.uuid4().hex}", [rows(table, *listed)])]
        span = (min(keys), max(keys)) if table.integer_key_column else None
        change = OverwriteRange(files, (1, 0), owned, span)
        done = target.commit(once("group/0", attempt, change), {"group/0": attempt}, FENCE)
        assert all(sorted(names) == sorted(table.key or [SEQ_COLUMN]) for names in asked)
        return done

    @pytest.mark.parametrize("table", [KEYED, TWO], ids=["integer", "composite"])
    def test_a_group_is_read_again(self, sink: PipelineSink, table: TableSchema) -> None:
        """Its rows go wherever they are, and those of others stay."""
        self.require_features(sink, Feature.RESNAPSHOT)
        target = self.create_table(sink, table)
        self.publish(target, 0, 1, (1, "a", 1, "r"), (2, "b", 1, "r"), (3, "c", 1, "r"), table=table)
        self.publish(target, 1, 1, (7, "g", 1, "r"), table=table)
        changes = rows(table, (2, "b", 5, "u"), (4, "merged", 5, "c"), (8, "other", 5, "c"))
        target.commit(lambda _: Upsert(changes), {}, FENCE)
        assert self.replaced(target, {1, 2, 3, 4}, 2, (1, "new", 9, "r"), (4, "d", 9, "r"), table=table)
        expected = {(1, "new", 9): 1, (4, "d", 9): 1, (7, "g", 1): 1, (8, "other", 5): 1}
        assert self.held(target) == expected and target.markers().get("group/0") == 2
        assert not self.replaced(target, {1, 2, 3, 4}, 2, (1, "again", 9, "r"), table=table)
        assert self.held(target) == expected
        assert self.replaced(target, {1, 2, 3, 4}, 3, table=table)  # all of its rows are gone at the source
        assert self.held(target) == {(7, "g", 1): 1, (8, "other", 5): 1}

    def test_a_table_is_begun_anew_once(self, sink: PipelineSink) -> None:
        self.require_features(sink, Feature.RESNAPSHOT)
        target = self.create_table(sink)
        self.publish(target, 0, 1, (1, "a", 1, "r"))
        target.reset("p", Fence("generation", 2), ["other"])
        assert self.held(target) == {} and target.markers().get("generation") == 2
        self.upsert(target, 2, (2, "b", 2, "c"))
        for value in (1, 2):
            target.reset("p", Fence("generation", value), ["other"])
            assert self.held(target) == {(2, "b", 2): 1} and target.markers().get("generation") == 2

    def test_what_is_published_stays(self, sink: PipelineSink) -> None:
        self.require_features(sink, Feature.RESNAPSHOT)
        target = self.create_table(sink)
        self.publish(target, 0, 1, (1, "a", 1, "r"))
        with pytest.raises(TerminalError):
            target.reset("p", Fence("generation", 2), ["other", "group/0"])
        assert self.held(target) == {(1, "a", 1): 1} and target.markers().get("generation") is None

    def test_nobody_empties_the_table_of_another(self, sink: PipelineSink) -> None:
        self.require_features(sink, Feature.RESNAPSHOT)
        target = self.create_table(sink)
        self.publish(target, 0, 1, (1, "a", 1, "r"))
        with pytest.raises(TerminalError):
            target.reset("q", Fence("generation", 2), [])
        assert self.held(target) == {(1, "a", 1): 1} and target.markers().get("generation") is None

    def test_another_definition(self, sink: PipelineSink) -> None:
        self.require_features(sink, Feature.RESNAPSHOT)
        self.create_table(sink)
        more = KEYED.replace(columns=(INT, TEXT, Column("n", "decimal", "decimal(5,2)", True, precision=5, scale=2)))
        target = sink.table(more)
        target.reset("p", Fence("generation", 2), [])
        target.create("p")
        row = {"id": 1, "v.w": "a", "n": Decimal("1.50"), SEQ_COLUMN: 1, OP_COLUMN: "r", TS_COLUMN: 0}
        file = target.stage("2/0/1/slice", [pa.Table.from_pylist([row], more.sink_schema)])
        target.commit(lambda _: PublishSlices([file]), {}, FENCE)
        found = self.readable(target).read()[0]
        assert found.schema.names == more.sink_schema.names and found["n"].to_pylist() == [Decimal("1.50")]

    # ------------------------------------------------------------ the stream

    def test_a_table_is_truncated(self, sink: PipelineSink) -> None:
        """At 10: what was read or written later stays. Done twice it does nothing more."""
        target = self.create_table(sink)
        self.publish(target, 0, 1, (1, "a", 8, "r"), (2, "b", 9, "r"))
        self.publish(target, 1, 1, (3, "c", 9, "r"), (4, "d", 10, "r"), (5, "e", 11, "r"))
        for _ in range(2):
            target.commit(once("stream", 10, Truncate(10)), {"stream": 10}, FENCE)
            assert self.held(target) == {(4, "d", 10): 1, (5, "e", 11): 1}
        target.commit(lambda _: Truncate(10), {}, FENCE)
        assert self.held(target) == {(4, "d", 10): 1, (5, "e", 11): 1}

    def test_keys_are_exact_values(self, sink: PipelineSink) -> None:
        target = self.create_table(sink, TWO)
        for n, batch in enumerate(([(1, "a", 1, "c"), (1, "ä", 1, "c")], [(1, "a", 2, "d"), (1, "A", 2, "u")]), 1):
            target.commit(once("stream", n, Upsert(rows(TWO, *batch))), {"stream": n}, FENCE)
        assert self.held(target) == {(1, "A", 2): 1, (1, "ä", 1): 1}

    def count(self, target: SinkTable, seq: int, *listed: Row, since: int = 0) -> bool:
        change = MultisetChange(net_change(rows(KEYLESS, *listed), ["id", "v.w"]), since)
        return target.commit(once("stream", seq, change), {"stream": seq}, FENCE)

    def test_a_table_without_a_key(self, sink: PipelineSink) -> None:
        """Exactly as many of equal rows go as have gone, once."""
        self.require_features(sink, Feature.KEYLESS)
        target = self.create_table(sink, KEYLESS)
        same: list[Row] = [(1, "x", 1, "r")] * 3
        self.publish(target, 0, 1, *same, (1, None, 1, "r"), table=KEYLESS)
        for _ in range(2):
            self.count(target, 5, (1, "x", 5, "d"), (1, None, 5, "d"), (2, "y", 5, "c"), (2, "y", 5, "c"))
            assert self.held(target) == {(1, "x", 1): 2, (2, "y", 5): 2}
        self.count(target, 6, (9, "z", 6, "d"), (9, "z", 6, "c"))  # nothing but the marker
        assert self.held(target) == {(1, "x", 1): 2, (2, "y", 5): 2}

    def test_rows_that_are_missing(self, sink: PipelineSink) -> None:
        """Nothing is written, though others were found."""
        self.require_features(sink, Feature.KEYLESS)
        target = self.create_table(sink, KEYLESS)
        self.publish(target, 0, 1, (1, "x", 1, "r"), (2, "y", 1, "r"), table=KEYLESS)
        with pytest.raises(MissingRowsError) as caught:
            self.count(target, 5, (1, "x", 5, "d"), (2, "y", 5, "d"), (2, "y", 5, "d"), (3, "new", 5, "c"))
        assert caught.value.count == 1 and caught.value.row["id"].to_pylist() == [2]
        assert self.held(target) == {(1, "x", 1): 1, (2, "y", 1): 1} and target.markers().get("stream") is None

    def test_a_table_without_a_key_is_truncated(self, sink: PipelineSink) -> None:
        """What the TRUNCATE takes does not count; all of it is one commit."""
        self.require_features(sink, Feature.KEYLESS)
        target = self.create_table(sink, KEYLESS)
        self.publish(target, 0, 1, (1, "x", 1, "r"), (1, "x", 9, "r"), (2, "y", 9, "r"), table=KEYLESS)
        with pytest.raises(MissingRowsError):
            self.count(target, 8, (1, "x", 8, "d"), (1, "x", 8, "d"), since=5)
        self.count(target, 8, (1, "x", 8, "d"), (3, "z", 8, "c"), since=5)
        assert self.held(target) == {(2, "y", 9): 1, (3, "z", 8): 1}
        self.count(target, 20, since=15)
        assert self.held(target) == {} and target.markers().get("stream") == 20

    def test_a_group_without_a_key_is_read_again(self, sink: PipelineSink) -> None:
        self.require_features(sink, Feature.KEYLESS)
        self.require_features(sink, Feature.RESNAPSHOT)
        target = self.create_table(sink, KEYLESS)
        self.publish(target, 0, 1, (1, "x", 1, "r"), (1, "x", 1, "r"), table=KEYLESS)
        self.count(target, 5, (2, "y", 5, "c"))
        self.replaced(target, set(), 2, (2, "y", 9, "r"), table=KEYLESS)
        assert self.held(target) == {(2, "y", 9): 1}

    def test_batches_wait_to_be_applied(self, sink: PipelineSink) -> None:
        """In binlog order, from several tasks; those of older epochs go."""
        staging = sink.change_staging()
        for name, listed in (
            ("epoch-3/one", [(1, "a", 1, "c")]),
            ("epoch-3/two", [(1, "b", 2, "u"), (2, "c", 3, "c")]),
        ):
            writer = staging.open_writer(KEYED, name)
            writer.add(rows(KEYED, (9, "gone", 0, "c")).to_batches()[0])
            writer.truncate()
            for row in listed:
                writer.add(rows(KEYED, row).to_batches()[0])
            writer.close()
        names = ["epoch-3/one", "epoch-3/two"]
        other = pickle.loads(pickle.dumps(sink)).change_staging()
        for found in (other.read_changes(KEYED, names), other.read_for_apply(KEYED, names)):
            assert list(zip(found["id"].to_pylist(), found[SEQ_COLUMN].to_pylist(), strict=True)) == [
                (1, 1),
                (1, 2),
                (2, 3),
            ]
        assert other.read_changes(KEYED, names)["v.w"].to_pylist() == ["a", "b", "c"]
        target = self.create_table(sink)
        target.commit(lambda _: Upsert(found.slice(1)), {}, FENCE)
        expected = {(1, "b", 2): 1, (2, "c", 3): 1}
        assert self.held(target) == expected
        for _ in range(2):
            other.discard_applied(KEYED, names)
            sink.change_staging().clear_older_epochs([KEYED], 4)
            target.clean_up()
            assert self.held(target) == expected

    def test_what_is_not_applied_goes(self, sink: PipelineSink) -> None:
        self.create_table(sink)
        staging = sink.change_staging()
        for name in ("one", "two"):
            writer = staging.open_writer(KEYED, f"epoch-3/{name}")
            writer.add(rows(KEYED, (1, name, 1, "c")).to_batches()[0])
            writer.close()
        staging.discard(KEYED, ["epoch-3/one"])
        staging.discard(KEYED, ["epoch-3/one"])
        assert staging.read_changes(KEYED, ["epoch-3/two"]).num_rows == 1
        for epoch in (2, 3):  # an epoch that was overtaken, and does not know it yet
            sink.change_staging().clear_older_epochs([KEYED, TWO], epoch)
            assert staging.read_changes(KEYED, ["epoch-3/two"]).num_rows == 1
        sink.change_staging().clear_older_epochs([KEYED, TWO], 10)
        with pytest.raises(Exception, match="two"):
            staging.read_changes(KEYED, ["epoch-3/two"])

    # ------------------------------------------------------------ columns that come

    def table_with_history(self, sink: PipelineSink, table: TableSchema = KEYED) -> SinkTable:
        """A table with rows of the snapshot, 1 to 6, and with a batch behind it."""
        self.require_features(sink, Feature.FOLLOW_DDL)
        target = self.create_table(sink, table)
        self.publish(target, 0, 1, *((n, "a", 1, "r") for n in range(1, 7)), table=table)
        change: Change = Upsert(rows(table, (2, "b", 2, "u"), (3, None, 2, "d")))
        if not table.key:
            change = MultisetChange(
                net_change(rows(table, (2, "a", 2, "d"), (2, "b", 2, "c"), (3, "a", 2, "d")), ["id", "v.w"])
            )
        assert target.commit(lambda _: change, {"stream": 2}, FENCE)
        return target

    def altered_table(self, sink: PipelineSink, table: TableSchema = KEYED) -> SinkTable:
        """The same after it has got columns."""
        self.table_with_history(sink, table)
        target = sink.table(widened(table))
        assert target.alter(table, {"ddl": 3}, FENCE)
        return target

    def wide_rows(self, target: SinkTable) -> Counter[tuple[int | None, int, str | None, int]]:
        """What is in such a table: the value of the new columns, (id, text, ``_cdc_seq``)."""
        found, _ = self.readable(target).read()
        assert found.schema.names[:5] == [BEFORE, "id", BETWEEN, "v.w", BEHIND]
        assert found[BEFORE].equals(found[BETWEEN]) and found[BEFORE].equals(found[BEHIND])
        return Counter((r[BEFORE], r["id"], r["v.w"], r[SEQ_COLUMN]) for r in found.to_pylist())

    #: What the rows from before are in a table that has got columns.
    OLD: ClassVar[Rows] = {(None, 2, "b", 2): 1, **{(None, n, "a", 1): 1 for n in (1, 4, 5, 6)}}

    def test_columns_come(self, sink: PipelineSink, tmp_path: Path) -> None:
        """Rows from before have nothing there; they are updated and deleted like others, and later ones have values."""
        target = self.altered_table(sink)
        assert [target.markers().get(name) for name in ("ddl", "stream", "epoch")] == [3, 2, 1]
        assert self.wide_rows(target) == self.OLD
        batch = wide(KEYED, (7, (1, "new", 5, "u")), (None, (2, None, 5, "d")), (8, (9, "i", 5, "c")))
        assert target.commit(once("stream", 5, Upsert(batch)), {"stream": 5}, FENCE)
        expected = {(7, 1, "new", 5): 1, (8, 9, "i", 5): 1} | {(None, n, "a", 1): 1 for n in (4, 5, 6)}
        assert self.wide_rows(target) == expected
        slices = [target.stage("1/1/1/slice", [wide(KEYED, (9, (20, "s", 6, "r")))])]
        assert target.commit(lambda _: PublishSlices(slices), {"group/1": 1}, FENCE)
        expected[9, 20, "s", 6] = 1
        for _ in range(2):
            target.clean_up()
            again = self.open(tmp_path).table(widened(KEYED))
            again.create("p")
            assert self.wide_rows(target) == self.wide_rows(again) == expected
        with pytest.raises(TerminalError):
            self.open(tmp_path).table(KEYED).create("p")

    def test_columns_come_once(self, sink: PipelineSink) -> None:
        target = self.altered_table(sink)
        for marker in (3, 2):
            assert not target.alter(KEYED, {"ddl": marker}, Fence("epoch", 2))
        assert [target.markers().get(name) for name in ("ddl", "epoch")] == [3, 1] and self.wide_rows(
            target
        ) == self.OLD
        for markers in ({"ddl": 4}, {"ddl": 3, "other": 1}, {}):  # it is not known who has done it
            with pytest.raises(TerminalError):
                target.alter(KEYED, markers, Fence("epoch", 2))
        assert [target.markers().get(name) for name in ("ddl", "other", "epoch")] == [3, None, 1]

    def test_a_definition_whose_columns_do_not_change(self, sink: PipelineSink) -> None:
        self.table_with_history(sink)
        target = sink.table(KEYED.replace(comments=(("id", "the number"),)))
        before = self.held(target)
        assert target.alter(KEYED, {"ddl": 3}, Fence("epoch", 2))
        assert not target.alter(KEYED, {"ddl": 3}, Fence("epoch", 2))
        assert [target.markers().get(name) for name in ("ddl", "stream", "epoch")] == [3, 2, 2]
        assert self.upsert(target, 5, (9, "i", 5, "c"), fence=Fence("epoch", 2))
        assert self.held(target) == {**before, (9, "i", 5): 1}

    def test_columns_and_the_fence(self, sink: PipelineSink) -> None:
        """An older epoch adds no columns; they come with the fence of a newer one."""
        target = self.table_with_history(sink)
        target.raise_fence(Fence("epoch", 2))
        new = sink.table(widened(KEYED))
        with pytest.raises(FencedError):
            new.alter(KEYED, {"ddl": 3}, FENCE)
        assert target.markers().get("ddl") is None and self.upsert(target, 3, fence=Fence("epoch", 2))
        assert new.alter(KEYED, {"ddl": 3}, Fence("epoch", 3))
        assert [new.markers().get(name) for name in ("ddl", "epoch")] == [3, 3]
        with pytest.raises(FencedError):  # also where nothing is to be done
            new.alter(KEYED, {"ddl": 3}, Fence("epoch", 2))

    def test_a_column_goes(self, sink: PipelineSink) -> None:
        self.require_features(sink, Feature.FOLLOW_DDL)
        target = self.table_with_history(sink)
        ids = sorted(self.readable(target).read()[0]["id"].to_pylist())
        less = KEYED.replace(columns=tuple(c for c in KEYED.columns if c is not TEXT))
        try:
            new = sink.table(less)
        except NotReadyError:  # it is partitioned by that column
            return
        assert new.alter(KEYED, {"ddl": 3}, FENCE)
        found = self.readable(new).read()[0]
        assert "v.w" not in found.column_names and sorted(found["id"].to_pylist()) == ids

    @pytest.mark.parametrize("what", ["another type", "another key", "not before", "too far"])
    def test_what_cannot_be_followed(self, sink: PipelineSink, what: str) -> None:
        """Nothing is written, and the table is what it was."""
        target = self.table_with_history(sink)
        name = nullable("name", "varchar", "varchar(20)", charset="utf8mb4")
        more, before = widened(KEYED), KEYED
        match what:
            case "another type":
                more = more.replace(columns=tuple(nullable("v.w", "int") if c is TEXT else c for c in more.columns))
            case "another key":
                more = more.replace(key=("id", "v.w"))
            case "not before":
                before = KEYED.replace(columns=(INT, name))
            case "too far":
                before, more = more, more.replace(columns=(*more.columns, name))
        held, markers = self.held(target), {name: target.markers().get(name) for name in ("ddl", "epoch", "stream")}
        try:
            new = sink.table(more)
        except NotReadyError:  # it is partitioned by that column
            assert what == "another type"
            return
        with pytest.raises(TerminalError):
            new.alter(before, {"ddl": 3}, Fence("epoch", 2))
        assert self.held(target) == held and {name: target.markers().get(name) for name in markers} == markers
        target.create("p")
        assert self.upsert(target, 3, (3, "again", 3, "c")) and self.held(target) == {**held, (3, "again", 3): 1}

    def test_columns_of_what_is_not_there(self, sink: PipelineSink) -> None:
        self.require_features(sink, Feature.FOLLOW_DDL)
        target = sink.table(widened(KEYED))
        with pytest.raises(TerminalError):
            target.alter(KEYED, {"ddl": 3}, FENCE)
        assert not target.exists()

    def test_columns_come_while_another_commits(self, sink: PipelineSink, monkeypatch: pytest.MonkeyPatch) -> None:
        """Right before their own commit: both stand, or the fence of the other one does."""
        old, new = self.table_with_history(sink), sink.table(widened(KEYED))
        with self.concurrent_writer(monkeypatch, lambda: self.upsert(old, 5, (9, "other", 5, "c"))):
            assert new.alter(KEYED, {"ddl": 3}, FENCE)
        assert self.wide_rows(new) == {**self.OLD, (None, 9, "other", 5): 1}
        assert [new.markers().get(name) for name in ("ddl", "stream")] == [3, 5]
        more = widened(KEYED).replace(columns=(*widened(KEYED).columns, nullable("more", "int")))
        with (
            self.concurrent_writer(monkeypatch, lambda: new.raise_fence(Fence("epoch", 2))),
            pytest.raises(FencedError),
        ):
            sink.table(more).alter(widened(KEYED), {"ddl": 4}, FENCE)
        assert new.markers().get("ddl") == 3 and self.wide_rows(new)

    def test_two_add_the_same_columns(self, sink: PipelineSink, monkeypatch: pytest.MonkeyPatch) -> None:
        self.table_with_history(sink)
        one, two = sink.table(widened(KEYED)), sink.table(widened(KEYED))
        with self.concurrent_writer(monkeypatch, lambda: two.alter(KEYED, {"ddl": 3}, FENCE)):
            assert not one.alter(KEYED, {"ddl": 3}, FENCE)
        assert self.wide_rows(one) == self.OLD and one.markers().get("ddl") == 3

    @pytest.mark.parametrize("made", [False, True])
    def test_a_crash_when_columns_come(
        self, sink: PipelineSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: bool
    ) -> None:
        """Columns and marker stand or fall together; who comes then does the same again."""
        self.table_with_history(sink)
        new, said = sink.table(widened(KEYED)), False
        assert new.markers().get("ddl") is None  # it knows the table, and may try at once
        try:
            with self.failing_commit(monkeypatch, made=made):
                said = new.alter(KEYED, {"ddl": 3}, FENCE)
        except Exception:
            pass
        again = self.open(tmp_path)
        old, target = again.table(KEYED), again.table(widened(KEYED))
        stands = old.markers().get("ddl") == 3
        assert (stands or not made) and (stands or not said)
        old.raise_fence(Fence("epoch", 2))  # a run that begins again does not know yet
        assert not old.commit(lambda _: None, {"stream": 9}, Fence("epoch", 2))
        assert target.alter(KEYED, {"ddl": 3}, Fence("epoch", 2)) != stands
        assert self.wide_rows(target) == self.OLD
        assert [target.markers().get(name) for name in ("ddl", "stream", "epoch")] == [3, 2, 2]

    def test_an_object_of_the_definition_before(self, sink: PipelineSink) -> None:
        """It writes no rows any more: also none that were decided on before the columns came."""
        old, new = self.table_with_history(sink), sink.table(widened(KEYED))
        slices = [old.stage("1/2/1/slice", [rows(KEYED, (30, "s", 1, "r"))])]

        def decide(markers: Markers) -> Change:
            if markers.get("ddl") is None:
                assert new.alter(KEYED, {"ddl": 3}, FENCE)
            return Upsert(rows(KEYED, (1, "late", 9, "u")))

        with pytest.raises(TerminalError):
            old.commit(decide, {"stream": 9}, FENCE)
        for change in (Upsert(rows(KEYED, (9, "late", 9, "c"))), Truncate(9), PublishSlices(slices), PublishSlices([])):
            with pytest.raises(TerminalError):
                old.commit(lambda _: change, {"stream": 9}, FENCE)  # noqa: B023
        assert self.wide_rows(new) == self.OLD and old.markers().get("stream") == 2
        assert not old.commit(lambda _: None, {"stream": 9}, FENCE)
        old.raise_fence(Fence("epoch", 2))
        old.clean_up()
        assert self.wide_rows(new) == self.OLD and new.markers().get("epoch") == 2

    def test_slices_that_were_staged_before_columns_came(self, sink: PipelineSink) -> None:
        old = self.table_with_history(sink)
        slices = [old.stage("1/1/1/slice", [rows(KEYED, (20, "s", 1, "r"))])]
        new = sink.table(widened(KEYED))
        assert new.alter(KEYED, {"ddl": 3}, FENCE) and new.is_staged(slices[0])
        expected = wide(KEYED, (None, (20, "s", 1, "r")))
        if Feature.RESNAPSHOT in sink.supports:
            assert pa.concat_tables(new.read_staged(slices[0])).equals(expected)
        assert new.commit(lambda _: PublishSlices(slices), {"group/1": 1}, FENCE)
        assert self.wide_rows(new) == {**self.OLD, (None, 20, "s", 1): 1}

    def test_batches_of_a_table_that_has_got_columns(self, sink: PipelineSink) -> None:
        target, table = self.altered_table(sink), widened(KEYED)
        writer = sink.change_staging().open_writer(table, "epoch-1/one")
        for row in ((7, (1, "x", 5, "u")), (8, (1, "new", 6, "u")), (None, (4, "a", 6, "d")), (9, (9, "i", 6, "c"))):
            writer.add(wide(KEYED, row).to_batches()[0])
        writer.close()
        staging = pickle.loads(pickle.dumps(sink)).change_staging()
        assert staging.read_changes(table, ["epoch-1/one"])[BETWEEN].to_pylist() == [7, 8, None, 9]
        changes = staging.read_for_apply(table, ["epoch-1/one"]).slice(1)
        assert target.commit(lambda _: Upsert(changes), {"stream": 6}, FENCE)
        left: Rows = {key: 1 for key in self.OLD if key[1] not in (1, 4)}
        assert self.wide_rows(target) == {**left, (8, 1, "new", 6): 1, (9, 9, "i", 6): 1}

    def test_a_table_without_a_key_gets_columns(self, sink: PipelineSink) -> None:
        """What a row has not counts as NULL when equal ones are looked for."""
        self.require_features(sink, Feature.KEYLESS)
        target = self.altered_table(sink, KEYLESS)
        names = [BEFORE, "id", BETWEEN, "v.w", BEHIND]

        def count(seq: int, *listed: tuple[int | None, Row]) -> None:
            change = MultisetChange(net_change(wide(KEYLESS, *listed), names))
            target.commit(once("stream", seq, change), {"stream": seq}, FENCE)

        count(5, (7, (4, "a", 5, "c")), (None, (4, "a", 5, "c")))
        count(6, (7, (4, "a", 6, "d")), (None, (1, "a", 6, "d")), (None, (5, "a", 6, "d")), (5, (5, "a", 6, "c")))
        left: Rows = {(None, 2, "b", 2): 1, (None, 4, "a", 1): 1, (None, 4, "a", 5): 1, (None, 6, "a", 1): 1}
        left[5, 5, "a", 6] = 1
        assert self.wide_rows(target) == left
        with pytest.raises(MissingRowsError):
            count(7, (0, (6, "a", 7, "d")))
        count(8, (None, (4, "a", 8, "d")), (None, (4, "a", 8, "d")))
        assert self.wide_rows(target) == {(None, 2, "b", 2): 1, (None, 6, "a", 1): 1, (5, 5, "a", 6): 1}

    def test_a_table_with_new_columns_is_truncated(self, sink: PipelineSink) -> None:
        target = self.altered_table(sink)
        target.commit(lambda _: Truncate(2), {}, FENCE)
        assert self.wide_rows(target) == {(None, 2, "b", 2): 1}
        target.commit(lambda _: Truncate(9), {}, FENCE)
        assert self.wide_rows(target) == {}

    @pytest.mark.parametrize("table", [KEYED, TWO, KEYLESS], ids=["integer", "composite", "none"])
    def test_a_group_is_read_again_after_columns_came(self, sink: PipelineSink, table: TableSchema) -> None:
        self.require_features(sink, Feature.RESNAPSHOT)
        if not table.key:
            self.require_features(sink, Feature.KEYLESS)
        target = self.altered_table(sink, table)
        extra = MultisetChange(net_change(wide(table, (8, (8, "x", 5, "c"))), widened(table).column_schema.names))
        target.commit(lambda _: extra if not table.key else Upsert(wide(table, (8, (8, "x", 5, "c")))), {}, FENCE)
        files = [target.stage("1/0/2/slice", [wide(table, (7, (1, "new", 9, "r")), (None, (5, "a", 9, "r")))])]

        def owned(found: pa.Table) -> pa.Array:
            if not table.key:
                return pc.less(found[SEQ_COLUMN], 5).combine_chunks()
            return pc.less_equal(found["id"], 6).combine_chunks()

        change = OverwriteRange(files, (1, 0), owned, (1, 6) if table.integer_key_column else None)
        assert target.commit(lambda _: change, {"group/0": 2}, FENCE)
        assert self.wide_rows(target) == {(7, 1, "new", 9): 1, (None, 5, "a", 9): 1, (8, 8, "x", 5): 1}

    def test_a_table_that_has_got_columns_is_begun_anew(self, sink: PipelineSink) -> None:
        self.require_features(sink, Feature.RESNAPSHOT)
        self.altered_table(sink)
        more = widened(KEYED).replace(columns=(*widened(KEYED).columns, nullable("more", "int")))
        target = sink.table(more)
        target.reset("p", Fence("generation", 2), [])
        target.create("p")
        assert self.readable(target).read()[0].equals(more.sink_schema.empty_table())

    def test_columns_of_every_type_come(self, sink: PipelineSink) -> None:
        """One after the other: rows have what they were written with."""
        self.require_features(sink, Feature.FOLLOW_DDL)
        table = TableSchema("shop", "values", (INT,), ("id",))
        target, listed = self.create_table(sink, table), list[dict[str, Any]]()
        for number, (column, *values) in enumerate([*VALUES, (nullable("last", "int"), 1, 2)]):
            row = {"id": number, SEQ_COLUMN: number + 1, OP_COLUMN: "c", TS_COLUMN: 2**53} | {
                c.name: v for c, v, _ in VALUES[:number]
            }
            listed.append(row)
            one = pa.Table.from_pylist([row], table.sink_schema)
            assert target.commit(lambda _: Upsert(one), {}, FENCE)  # noqa: B023
            more = table.replace(columns=(column, *table.columns))
            target = sink.table(more)
            assert target.alter(table, {"ddl": number + 1}, FENCE) and values
            table = more
        found = self.readable(target).read()[0].sort_by("id")
        assert found.equals(pa.Table.from_pylist(listed, table.sink_schema))

    # ------------------------------------------------------------ all rows are exchanged

    #: A definition with the columns of the partitions, and with others: one is gone, and others have come.
    REDEFINED: ClassVar[TableSchema] = widened(KEYED).replace(columns=(TEXT, WIDER[2], INT))

    def staged_overwrite(
        self, sink: PipelineSink, table: TableSchema = REDEFINED
    ) -> tuple[SinkTable, SinkTable, list[DataFile]]:
        """A table that has lived under a wider definition, the object of the new one, and slices of that."""
        self.require_features(sink, Feature.RESNAPSHOT)
        old = self.altered_table(sink)
        new = sink.table(table)
        listed = [{"id": n, "v.w": "new", BEHIND: n, SEQ_COLUMN: 5, OP_COLUMN: "r", TS_COLUMN: 0} for n in (1, 2, 7)]
        parts = (listed[:2], listed[2:], listed[:0])
        found = [pa.Table.from_pylist(part, table.sink_schema) for part in parts]
        return old, new, [new.stage(f"2/{n}/1/slice", [part]) for n, part in enumerate(found)]

    def read_overwritten(self, target: SinkTable) -> Counter[tuple[int, str, int | None, int]]:
        found, _ = self.readable(target).read()
        return Counter((r["id"], r["v.w"], r[BEHIND], r[SEQ_COLUMN]) for r in found.to_pylist())

    #: What it holds then.
    EXCHANGED: ClassVar[dict[tuple[int, str, int | None, int], int]] = {(n, "new", n, 5): 1 for n in (1, 2, 7)}

    @pytest.mark.parametrize("key", [("id",), ("v.w", "id"), (BEHIND,)], ids=["same", "composite", "another"])
    def test_all_rows_are_exchanged(self, sink: PipelineSink, tmp_path: Path, key: tuple[str, ...]) -> None:
        """Whatever columns and key there were; it goes on with the new ones."""
        table = self.REDEFINED.replace(key=key)
        _, new, slices = self.staged_overwrite(sink, table)
        assert new.overwrite(slices, {"anew": 2}, FENCE)
        assert [new.markers().get(name) for name in ("anew", "ddl", "stream", "epoch")] == [2, 3, 2, 1]
        assert self.read_overwritten(new) == self.EXCHANGED
        again = self.open(tmp_path).table(table)
        again.create("p")
        for seq, target in ((9, new), (10, again)):
            listed = [(7, "new", 7, "d"), (2, "new", 2, "u"), (8, "new", 8, "c")]
            values = [
                {"id": n, "v.w": text, BEHIND: b, SEQ_COLUMN: seq, OP_COLUMN: op, TS_COLUMN: 0}
                for n, text, b, op in listed
            ]
            change = Upsert(pa.Table.from_pylist(values, table.sink_schema))
            assert target.commit(once("stream", seq, change), {"stream": seq}, FENCE)
            expected = {(1, "new", 1, 5): 1, (2, "new", 2, seq): 1, (8, "new", 8, seq): 1}
            assert self.read_overwritten(new) == self.read_overwritten(again) == expected
            target.clean_up()
        new.commit(lambda _: Truncate(9), {}, FENCE)
        assert self.read_overwritten(again) == {(2, "new", 2, 10): 1, (8, "new", 8, 10): 1}
        assert not again.overwrite(slices, {"anew": 2}, FENCE)
        more = [new.stage("3/0/1/slice", [self.readable(new).read()[0].slice(0, 1)])]
        assert again.overwrite(more, {"anew": 3}, FENCE) and self.read_overwritten(new).total() == 1

    def test_rows_are_exchanged_once(self, sink: PipelineSink) -> None:
        """Also by who has other slices, or none; and not if not all markers stand."""
        _, new, slices = self.staged_overwrite(sink)
        assert new.overwrite(slices, {"anew": 2}, FENCE)
        for value in (2, 1):
            assert not new.overwrite([], {"anew": value}, Fence("epoch", 2))
        assert self.read_overwritten(new) == self.EXCHANGED and new.markers().get("epoch") == 1
        assert new.overwrite([], {"anew": 2, "other": 1}, Fence("epoch", 2))
        assert self.read_overwritten(new) == {} and [new.markers().get(name) for name in ("other", "epoch")] == [1, 2]

    def test_an_exchange_and_the_fence(self, sink: PipelineSink) -> None:
        old, new, slices = self.staged_overwrite(sink)
        old.raise_fence(Fence("epoch", 2))
        with pytest.raises(FencedError):
            new.overwrite(slices, {"anew": 2}, FENCE)
        assert self.wide_rows(old) == self.OLD and old.markers().get("anew") is None
        assert new.overwrite(slices, {"anew": 2}, Fence("epoch", 3)) and self.read_overwritten(new) == self.EXCHANGED
        with pytest.raises(FencedError):  # also where nothing is to be done
            new.overwrite(slices, {"anew": 2}, Fence("epoch", 2))

    def test_an_exchange_lacks_a_slice(self, sink: PipelineSink) -> None:
        old, new, slices = self.staged_overwrite(sink)
        new.discard_staged(slices[1])
        with pytest.raises(TerminalError, match="slice"):
            new.overwrite(slices, {"anew": 2}, FENCE)
        assert self.wide_rows(old) == self.OLD and old.markers().get("anew") is None

    def test_an_exchange_of_what_is_not_there(self, sink: PipelineSink) -> None:
        self.require_features(sink, Feature.RESNAPSHOT, Feature.FOLLOW_DDL)
        target = sink.table(KEYED)
        with pytest.raises(TerminalError):
            target.overwrite([], {"anew": 2}, FENCE)
        assert not target.exists()

    def test_an_exchange_while_another_commits(self, sink: PipelineSink, monkeypatch: pytest.MonkeyPatch) -> None:
        """Right before it: what that has written goes as well, or it has a newer fence."""
        old, new, slices = self.staged_overwrite(sink)
        batch = wide(KEYED, (7, (9, "other", 5, "c")))
        with self.concurrent_writer(monkeypatch, lambda: old.commit(lambda _: Upsert(batch), {"stream": 5}, FENCE)):
            assert new.overwrite(slices, {"anew": 2}, FENCE)
        assert self.read_overwritten(new) == self.EXCHANGED
        assert [new.markers().get(name) for name in ("anew", "stream")] == [2, 5]
        with (
            self.concurrent_writer(monkeypatch, lambda: new.raise_fence(Fence("epoch", 2))),
            pytest.raises(FencedError),
        ):
            new.overwrite([], {"anew": 3}, FENCE)
        assert self.read_overwritten(new) == self.EXCHANGED and new.markers().get("anew") == 2

    @pytest.mark.parametrize("made", [False, True])
    def test_a_crash_of_an_exchange(
        self, sink: PipelineSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: bool
    ) -> None:
        """Rows, columns and marker stand or fall together; who comes then does the same again."""
        old, new, slices = self.staged_overwrite(sink)
        assert new.markers().get("anew") is None  # it knows the table, and may try at once
        said = False
        try:
            with self.failing_commit(monkeypatch, made=made):
                said = new.overwrite(slices, {"anew": 2}, FENCE)
        except Exception:
            pass
        again = self.open(tmp_path).table(self.REDEFINED)
        stands = old.markers().get("anew") == 2
        assert (stands or not made) and (stands or not said)
        assert again.overwrite(slices, {"anew": 2}, FENCE) != stands
        assert (
            self.read_overwritten(again) == self.read_overwritten(new) == self.EXCHANGED
            and again.markers().get("anew") == 2
        )

    @pytest.mark.parametrize("what", ["columns", "key"])
    def test_an_object_from_before_an_exchange(self, sink: PipelineSink, what: str) -> None:
        """It writes no rows any more: also none that were decided on before."""
        table = self.REDEFINED if what == "columns" else widened(KEYED).replace(key=("v.w", "id"))
        old, new, slices = self.staged_overwrite(sink, table)

        def decide(markers: Markers) -> Change:
            if markers.get("anew") is None:
                assert new.overwrite(slices, {"anew": 2}, FENCE)
            return Upsert(wide(KEYED, (7, (1, "late", 9, "u"))))

        with pytest.raises(TerminalError):
            old.commit(decide, {"stream": 9}, FENCE)
        for change in (Upsert(wide(KEYED, (7, (9, "late", 9, "c")))), Truncate(9), PublishSlices([])):
            with pytest.raises(TerminalError):
                old.commit(lambda _: change, {"stream": 9}, FENCE)  # noqa: B023
        assert self.read_overwritten(new) == self.EXCHANGED and old.markers().get("stream") == 2
        old.raise_fence(Fence("epoch", 2))
        old.clean_up()
        assert self.read_overwritten(new) == self.EXCHANGED and new.markers().get("epoch") == 2

    # ------------------------------------------------------------ deleted rows that stay

    def kept(self, folder: Path, how: str) -> tuple[SinkTable, SinkTable, list[DataFile]]:
        """A table whose rows 2 and 3 were deleted, the object of a definition with another column, and its slices:
        3 is there again, and 4 was deleted unseen. Row 9 is from behind the place of the slices.
        """
        sink = self.open_keeping_deletes(folder, DeletePolicy(**{how: (".*[.].*",)}))
        self.require_features(sink, Feature.RESNAPSHOT, Feature.FOLLOW_DDL)
        old = self.create_table(sink)
        self.publish(old, 0, 1, *((n, "a", 1, "r") for n in range(1, 5)))
        gone = [(n, "a", 2, "d") for n in (2, 3)] if how == SOFT else []  # where they stay, deletes do not come here
        assert old.commit(lambda _: Upsert(rows(KEYED, *gone, (9, "late", 8, "c"))), {"stream": 8}, FENCE)
        table = KEYED.replace(columns=(INT, WIDER[0], TEXT))
        new = sink.table(table)
        listed = [{"id": n, BEFORE: n, "v.w": "new", SEQ_COLUMN: 5, OP_COLUMN: "r", TS_COLUMN: 0} for n in (1, 3, 7)]
        parts = [pa.Table.from_pylist(part, table.sink_schema) for part in (listed[:2], listed[2:], [])]
        return old, new, [new.stage(f"2/{n}/1/slice", [part]) for n, part in enumerate(parts)]

    @staticmethod
    def stays(how: str) -> Marked:
        """What it holds then."""
        marks = how == SOFT
        here: Marked = {(n, "new", 5, False): 1 for n in (1, 3, 7)}
        return {**here, (2, "a", 2 if marks else 1, marks): 1, (4, "a", 1, marks): 1}

    @pytest.mark.parametrize("how", [SOFT, IGNORE])
    def test_deleted_rows_stay_in_an_exchange(self, tmp_path: Path, how: str) -> None:
        """Those whose keys the slices do not have; rows from behind their place come again."""
        _, new, slices = self.kept(tmp_path, how)
        assert new.overwrite(slices, {"anew": 2}, FENCE, keep_deleted_to=5)
        assert self.read_all_rows(new) == self.stays(how)
        assert not new.overwrite([], {"anew": 2}, FENCE, keep_deleted_to=5)
        # It goes on, and is exchanged once more.
        listed = [{"id": n, BEFORE: n, "v.w": "on", SEQ_COLUMN: 8, OP_COLUMN: "c", TS_COLUMN: 0} for n in (2, 9)]
        schema = self.readable(new).read()[0].schema
        assert new.commit(lambda _: Upsert(pa.Table.from_pylist(listed, schema)), {}, FENCE)
        here: Marked = {(2, "on", 8, False): 1, (9, "on", 8, False): 1}
        rest: Marked = {row: 1 for row in self.stays(how) if row[0] != 2}
        assert self.read_all_rows(new) == {**rest, **here}
        again = pa.Table.from_pylist([{**row, SEQ_COLUMN: 12} for row in listed[1:]], schema)
        assert new.overwrite([new.stage("3/0/1/slice", [again])], {"anew": 3}, FENCE, keep_deleted_to=12)
        marked: Marked = {(n, text, seq, how == SOFT): 1 for n, text, seq, _ in ({**rest, **here}) if n != 9}
        assert self.read_all_rows(new) == {**marked, (9, "on", 12, False): 1}
        assert new.overwrite([], {"anew": 4}, FENCE) and not self.read_all_rows(new)

    @pytest.mark.parametrize("how", [SOFT, IGNORE])
    def test_deleted_rows_and_another_commit(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
        """What stays is decided on what was there when the commit stands."""
        old, new, slices = self.kept(tmp_path, how)
        batch = rows(KEYED, (1, "z", 4, "d" if how == SOFT else "u"), (6, "z", 4, "d" if how == SOFT else "c"))
        with self.concurrent_writer(monkeypatch, lambda: old.commit(lambda _: Upsert(batch), {"stream": 4}, FENCE)):
            assert new.overwrite(slices, {"anew": 2}, FENCE, keep_deleted_to=5)
        assert self.read_all_rows(new) == {**self.stays(how), (6, "z", 4, how == SOFT): 1}

    @pytest.mark.parametrize("made", [False, True])
    def test_a_crash_of_an_exchange_that_keeps_rows(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: bool
    ) -> None:
        old, new, slices = self.kept(tmp_path, SOFT)
        before = self.read_all_rows(old)
        assert new.markers().get("anew") is None  # it knows the table, and may try at once
        with suppress(Exception), self.failing_commit(monkeypatch, made=made):
            new.overwrite(slices, {"anew": 2}, FENCE, keep_deleted_to=5)
        stands = old.markers().get("anew") == 2
        assert (stands or not made) and self.read_all_rows(new if stands else old) == (
            self.stays(SOFT) if stands else before
        )
        assert new.overwrite(slices, {"anew": 2}, FENCE, keep_deleted_to=5) != stands
        assert self.read_all_rows(new) == self.stays(SOFT)

    @pytest.mark.parametrize("how", [SOFT, IGNORE])
    def test_deleted_rows_that_could_not_stay(self, tmp_path: Path, how: str) -> None:
        """How many there are is said before and behind the reading."""
        _, new, slices = self.kept(tmp_path, how)
        assert new.overwrite_loss(KEYED) is None and new.overwrite_loss(KEYED, slices) is None
        sink = self.open_keeping_deletes(tmp_path, DeletePolicy(**{how: (".*[.].*",)}))
        rekeyed, retyped = KEYED.replace(key=("v.w", "id")), INT.replace(data_type="smallint", column_type="smallint")
        before, behind = sink.table(rekeyed).overwrite_loss(KEYED), sink.table(rekeyed).overwrite_loss(KEYED, slices)
        assert before is not None and before.rows == (2 if how == SOFT else 5)
        assert behind is not None and (behind.rows, behind.is_exact) == (
            3,
            True,
        )  # 2, 4 and 9, by the key that they have
        narrower = sink.table(KEYED.replace(columns=(retyped, TEXT))).overwrite_loss(KEYED)
        assert narrower is not None and narrower.rows
        # No row is lost where all keys are there.
        again = [
            self.create_table(sink).stage("9/0/1/slice", [rows(KEYED, *((n, "a", 5, "r") for n in (1, 2, 3, 4, 9)))])
        ]
        assert sink.table(KEYED.replace(key=("v.w", "id"))).overwrite_loss(KEYED, again) is None
        assert self.open(tmp_path / "hard").table(KEYED).overwrite_loss(KEYED.replace(key=("v.w", "id"))) is None

    @pytest.mark.parametrize("how", [SOFT, IGNORE])
    def test_deleted_rows_stay_in_ranges_of_keys(self, tmp_path: Path, how: str) -> None:
        old, _, _ = self.kept(tmp_path, how)
        files = [old.stage("5/0/1/slice", [rows(KEYED, (1, "new", 9, "r"), (3, "new", 9, "r"))])]

        def owned(keys: pa.Table) -> pa.Array:
            return pc.less(keys["id"], 5).combine_chunks()

        assert old.commit(lambda _: OverwriteRange(files, None, owned, (1, 4)), {}, FENCE)
        marks = how == SOFT
        expected = {(n, "new", 9, False): 1 for n in (1, 3)} | {(9, "late", 8, False): 1}
        assert self.read_all_rows(old) == {**expected, (2, "a", 2 if marks else 1, marks): 1, (4, "a", 1, marks): 1}

    # ------------------------------------------------------------ the resume point

    def test_there_is_one_resume_point(self, sink: PipelineSink, tmp_path: Path) -> None:
        point, lineage = sink.resume_point(), Timeline("a", "binlog.000001")
        assert not point.exists() and point.read_with_timeline() is None and point.read() is None
        point.create()
        point.create()
        assert point.exists() and point.read_with_timeline() is None
        for number in range(3):
            offset = Offset("a", "binlog.000001", 100 + number, "", file_start_time=5, gtid_mode_on=True)
            point.write(offset, lineage, FENCE)
            assert (
                self.open(tmp_path).resume_point().read_with_timeline() == (offset, lineage) and point.read() == offset
            )
        moved = Offset("b", "other.000007", 4, "", already_applied="x:1-5", open_xa=("t",))
        lineage = lineage.with_segment("b", "other.000007", lineage.seq(offset.at))
        point.write(moved, lineage, Fence("epoch", 2))
        assert self.open(tmp_path).resume_point().read_with_timeline() == (moved, lineage)

    def test_an_older_epoch_does_not_move_the_resume_point(self, sink: PipelineSink, tmp_path: Path) -> None:
        old, new, lineage = sink.resume_point(), self.open(tmp_path).resume_point(), Timeline("a", "binlog.000001")
        old.create()
        at = Offset("a", "binlog.000001", 100, "")
        old.write(at, lineage, FENCE)
        new.raise_fence(Fence("epoch", 2))
        with pytest.raises(FencedError):
            old.write(Offset("a", "binlog.000001", 200, ""), lineage, FENCE)
        assert new.read() == at and new.markers().get("epoch") == 2

    def test_the_resume_point_of_an_older_snapshot(self, sink: PipelineSink) -> None:
        self.require_features(sink, Feature.RESNAPSHOT)
        point, lineage = sink.resume_point(), Timeline("a", "binlog.000001")
        point.forget_older_generation(2)
        point.create()
        at = Offset("a", "binlog.000001", 100, "")
        point.write(at, lineage, FENCE)
        point.forget_older_generation(1)
        assert point.read() == at
        point.forget_older_generation(2)
        assert point.read() is None
        point.write(at, lineage, FENCE)
        point.forget_older_generation(2)
        assert point.read() == at

    @staticmethod
    def readable(target: SinkTable) -> Readable:
        if not isinstance(target, Readable):
            pytest.skip("it cannot be read back")
        return target

    @staticmethod
    def require_features(sink: PipelineSink, *features: Feature) -> None:
        if missing := set(features) - sink.supports:
            pytest.skip(f"not supported: {', '.join(sorted(missing))}")


def preceded_by(real: Callable[..., Any], work: Callable[[], object]) -> Callable[..., Any]:
    """A function before whose first call something is done."""
    waiting = [work]

    def called(*arguments: Any, **named: Any) -> Any:
        if waiting:
            waiting.pop()()
        return real(*arguments, **named)

    return called


def failing(real: Callable[..., Any], *, made: bool) -> Callable[..., Any]:
    """A function that fails, after having done its work or before."""

    def fails(*arguments: Any, **named: Any) -> Any:
        if made:
            real(*arguments, **named)
        raise ConnectionError("the answer was lost" if made else "it never arrived")

    return fails
