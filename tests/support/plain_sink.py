"""A second sink, so that it is seen what a sink has to do: a Parquet file a table, written whole in each commit.

Each state of a table (and of the resume point) is a JSON file with a number, written once: of two that were decided on
the same state one wins, and the other decides again. It names the markers and the file with the rows.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_provider_cdc.config.delete_policy import ALL_HARD, HARD, SOFT, DeletePolicy
from airflow_provider_cdc.config.sink_kinds import CATALOG_SETTING, COPY_ON_WRITE, SinkKind
from airflow_provider_cdc.config.sink_section import Sink
from airflow_provider_cdc.config.store_access import StoreAccess
from airflow_provider_cdc.model.definition_history import NO_CHANGES, ColumnChanges
from airflow_provider_cdc.model.errors import FencedError, TerminalError
from airflow_provider_cdc.model.multiset import find_removed_rows, without_removed_rows
from airflow_provider_cdc.model.offset import Offset, Timeline
from airflow_provider_cdc.model.row_retention import RetainedRowsLoss, why_not_retainable
from airflow_provider_cdc.model.schema import OP_COLUMN, SEQ_COLUMN, TableSchema
from airflow_provider_cdc.sinks.files.change_staging import FileChangeStaging
from airflow_provider_cdc.sinks.files.layout import Layout
from airflow_provider_cdc.sinks.files.parquet import DataFile
from airflow_provider_cdc.sinks.protocol import (
    Change,
    DecideChange,
    Feature,
    Fence,
    Markers,
    MultisetChange,
    OverwriteRange,
    PublishSlices,
    Truncate,
    Upsert,
)
from airflow_provider_cdc.sinks.storage.open_storage import open_storage
from airflow_provider_cdc.sinks.storage.storage import Storage, read_json, write_json_once

State = dict[str, Any]
#: Both write the table anew in each commit: they have no deletion vectors.
PLAIN_KIND = SinkKind(f"{__name__}:PlainSink", (COPY_ON_WRITE,), frozenset({"deletes"}))
#: The same sink, whose tables are in a catalog.
LISTED_KIND = SinkKind(f"{__name__}:PlainSink", (COPY_ON_WRITE,), frozenset({"conn_id", CATALOG_SETTING}))
NARROW_KIND = SinkKind(f"{__name__}:NarrowSink", (COPY_ON_WRITE,), frozenset())


@dataclass(frozen=True)
class NarrowSink:
    """A sink that can do no more than it must."""

    path: str
    pipeline: str
    supports: ClassVar[frozenset[Feature]] = frozenset()

    @classmethod
    def from_settings(cls, settings: Sink, pipeline: str, access: StoreAccess | None) -> NarrowSink:
        return cls(settings.path, pipeline)

    def table(self, table: TableSchema) -> WriteOnlyTable:
        return WriteOnlyTable(open_storage(self.path).subfolder(Layout(self.pipeline).table_folder(table)), table)

    def change_staging(self) -> FileChangeStaging:
        return FileChangeStaging(open_storage(self.path), Layout(self.pipeline).change_staging_folder)

    def resume_point(self) -> PlainResumePoint:
        return PlainResumePoint(open_storage(self.path).subfolder(Layout(self.pipeline).resume_point_folder))


@dataclass(frozen=True)
class PlainSink(NarrowSink):
    supports: ClassVar[frozenset[Feature]] = frozenset(Feature) - {Feature.IN_PLACE}
    deletes: DeletePolicy = ALL_HARD

    @classmethod
    def from_settings(cls, settings: Sink, pipeline: str, access: StoreAccess | None) -> PlainSink:
        return cls(settings.path, pipeline, settings.delete_policy)

    def table(self, table: TableSchema) -> PlainTable:
        storage = open_storage(self.path).subfolder(Layout(self.pipeline).table_folder(table))
        return PlainTable(storage, table, self.deletes.mode_of(table))


class States:
    """What tables and the resume point have in common: states with markers, one after the other."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    def newest(self) -> tuple[int, State]:
        names = sorted(name for name, _ in self.storage.list("states"))
        return len(names), read_json(self.storage, names[-1]) if names else {"markers": {}}

    def exists(self) -> bool:
        return self.newest()[0] > 0

    def markers(self) -> Markers:
        found: dict[str, int] = self.newest()[1]["markers"]
        return found

    def raise_fence(self, fence: Fence) -> bool:
        return self.change(lambda state: None if state["markers"].get(fence.name) == fence.value else {}, {}, fence)

    def change(self, decide: Callable[[State], State | None], markers: Mapping[str, int], fence: Fence) -> bool:
        while True:
            number, state = self.newest()
            if not number:
                raise TerminalError(f"{self.storage.location()} is missing", "It was removed: restore it")
            standing = state["markers"].get(fence.name)
            if standing is not None and standing > fence.value:
                raise FencedError(f"{fence.name} stands at {standing}", "A newer run has taken over")
            changed = decide(state)
            if changed is None:
                return False
            changed["markers"] = {**state["markers"], **markers, fence.name: fence.value}
            if self.put(number + 1, {**state, **changed}):
                return True

    def put(self, number: int, state: State) -> bool:
        return write_json_once(self.storage, f"states/{number:08}.json", state)


def _told(table: TableSchema) -> list[str]:
    """What a state says of the definition: the columns and the key."""
    return [*(f"{field.name} {field.type}" for field in table.sink_schema), f"key {list(table.copy.key)}"]


class WriteOnlyTable(States):
    def __init__(self, storage: Storage, table: TableSchema, deletes: str = HARD) -> None:
        super().__init__(storage)
        self._schema, self._key = table.sink_schema, table.copy.key
        self._told = _told(table)
        self._deletes = deletes
        self.name = f"plain table {table.label}"

    def create(self, pipeline: str) -> None:
        self.put(1, {"markers": {}, "rows": None, "owner": pipeline, "columns": self._told})
        state = self.newest()[1]
        if state["owner"] != pipeline or state["columns"] != self._told:
            raise TerminalError(f"the {self.name} is another's, or has other columns")

    def reset(self, pipeline: str, fence: Fence, markers: Sequence[str]) -> None:
        def decide(state: State) -> State | None:
            if (state["markers"].get(fence.name) or 0) >= fence.value:
                return None
            if any(marker in state["markers"] for marker in markers):
                raise TerminalError(f"rows were published to the {self.name}")
            if state["owner"] != pipeline:
                raise TerminalError(f"the {self.name} is another's")
            return {"rows": None, "columns": self._told}

        if (self.newest()[1]["markers"].get(fence.name) or 0) < fence.value:
            self.change(decide, {}, fence)

    def alter(
        self,
        old_table: TableSchema,
        markers: Mapping[str, int],
        fence: Fence,
        changes: ColumnChanges = NO_CHANGES,
    ) -> bool:
        assert not changes

        def decide(state: State) -> State | None:
            if markers and all(state["markers"].get(name, -math.inf) >= value for name, value in markers.items()):
                return None
            kinds = {field.name: field.type for field in old_table.sink_schema}
            lost = [field.name for field in self._schema if kinds.get(field.name, field.type) != field.type]
            if state["columns"] != _told(old_table) or lost or old_table.copy.key != self._key:
                raise TerminalError(f"the {self.name} was altered by something else, or it would lose {lost}")
            rows = WriteOnlyTable(self.storage, old_table)._rows(state)
            return {"rows": self._write("rows", [self._widened(rows)]).path, "columns": self._told}

        return self.change(decide, markers, fence)

    def overwrite(
        self,
        slices: Sequence[DataFile],
        markers: Mapping[str, int],
        fence: Fence,
        *,
        keep_deleted_to: int | None = None,
    ) -> bool:
        def decide(state: State) -> State | None:
            if markers and all(state["markers"].get(name, -math.inf) >= value for name, value in markers.items()):
                return None
            if lost := [file.path for file in slices if not self.is_staged(file)]:
                raise TerminalError(f"the slice {lost[0]} is gone, or not whole")
            rows = [self._read(file.path) for file in slices]
            if keep_deleted_to is not None and self._deletes != HARD:
                known = self._rows(state)
                rows.append(self._kept(known.filter(pc.less_equal(known[SEQ_COLUMN], keep_deleted_to)), rows))
            return {"rows": self._write("rows", rows).path, "columns": self._told}

        return self.change(decide, markers, fence)

    def overwrite_loss(
        self, old_table: TableSchema, slices: Sequence[DataFile] | None = None, *, reason: str | None = None
    ) -> RetainedRowsLoss | None:
        why = reason or why_not_retainable(old_table.sink_schema, old_table.copy.key, self._schema, self._key)
        if self._deletes == HARD or why is None or not (state := self.newest()[1]).get("rows"):
            return None
        old = WriteOnlyTable(self.storage, old_table)
        rows = old._rows(state)
        if slices is None and self._deletes == SOFT:
            rows = rows.filter(pc.equal(rows[OP_COLUMN], "d"))
        elif slices is not None:
            rows = old._kept(rows, [old._read(file.path) for file in slices])
        return RetainedRowsLoss(why, rows.num_rows) if rows.num_rows else None

    def _kept(self, rows: pa.Table, others: Sequence[pa.Table]) -> pa.Table:
        """Rows whose keys others do not have; marked as deleted by their operation, if that is marked."""
        taken = {tuple(row[k] for k in self._key) for table in others for row in table.select(self._key).to_pylist()}
        left = [row for row in rows.to_pylist() if tuple(row[k] for k in self._key) not in taken]
        marks = {OP_COLUMN: "d"} if self._deletes == SOFT else {}
        return pa.Table.from_pylist([{**row, **marks} for row in left], self._schema)

    def commit(self, decide: DecideChange, markers: Mapping[str, int], fence: Fence) -> bool:
        def decided(state: State) -> State | None:
            change = decide(state["markers"])
            if change is None:
                return None
            if state["columns"] != self._told:
                raise TerminalError(f"the {self.name} has other columns")
            return {"rows": self._write("rows", [self._changed(self._rows(state), change)]).path}

        return self.change(decided, markers, fence)

    def clean_up(self) -> None:
        """Nothing is ever deleted."""

    def stage(self, staging_path: str, rows: Iterable[pa.Table]) -> DataFile:
        return self._write(f"snapshot/{staging_path}", rows)

    def is_staged(self, file: DataFile) -> bool:
        return (file.path, file.size) in self.storage.list("snapshot")

    def read_staged(self, file: DataFile) -> Iterator[pa.Table]:
        yield self._read(file.path)

    def discard_staged(self, file: DataFile) -> None:
        self.storage.delete(file.path)

    def clear_staged(self, staging_folder: str) -> None:
        self.storage.delete_folder(
            f"snapshot/{staging_folder}"
        )  # rows that are part of the table are written anew, elsewhere

    def _changed(self, rows: pa.Table, change: Change) -> pa.Table:
        match change:
            case Upsert(changes):
                return self._upserted(rows, changes)
            case MultisetChange(net, since):
                kept = without_removed_rows([rows], find_removed_rows([("", [rows])], net, since).get("", {}))
                return pa.concat_tables([*kept, net.added])
            case Truncate(seq) if self._deletes == SOFT:
                older = rows.filter(pc.less(rows[SEQ_COLUMN], seq))
                return pa.concat_tables([rows.filter(pc.greater_equal(rows[SEQ_COLUMN], seq)), self._kept(older, [])])
            case Truncate(seq):
                return rows.filter(pc.greater_equal(rows[SEQ_COLUMN], seq)) if self._deletes == HARD else rows
            case PublishSlices(slices):
                return pa.concat_tables([rows, *(self._read(file.path) for file in slices)])
            case OverwriteRange(slices, _, owned, _):
                mine = owned(rows.select(list(self._key) or [SEQ_COLUMN]))
                found = [self._read(file.path) for file in slices]
                if self._deletes != HARD:
                    found.append(self._kept(rows.filter(mine), found))
                return pa.concat_tables([rows.filter(pc.invert(mine)), *found])

    def _upserted(self, rows: pa.Table, changes: pa.Table) -> pa.Table:
        found = {tuple(row[k] for k in self._key): row for row in rows.to_pylist()}
        for change in changes.to_pylist():
            key = tuple(change[k] for k in self._key)
            if found.get(key, {SEQ_COLUMN: -math.inf})[SEQ_COLUMN] < change[SEQ_COLUMN]:
                found[key] = change
        left = [row for row in found.values() if row[OP_COLUMN] != "d" or self._deletes == SOFT]
        return pa.Table.from_pylist(left, self._schema)

    def _rows(self, state: State) -> pa.Table:
        return self._read(state["rows"]) if state["rows"] else self._schema.empty_table()

    def _read(self, name: str) -> pa.Table:
        with self.storage.open(name, "rb") as file:
            return self._widened(pq.read_table(file))

    def _widened(self, rows: pa.Table) -> pa.Table:
        """Rows that may have been written under an older definition."""
        known = rows.column_names
        columns = [rows[f.name] if f.name in known else pa.nulls(rows.num_rows, f.type) for f in self._schema]
        return pa.table(columns, names=self._schema.names).cast(self._schema)

    def _write(self, name: str, rows: Iterable[pa.Table]) -> DataFile:
        name = f"{name}-{uuid.uuid4().hex}.parquet"
        table = pa.concat_tables([self._schema.empty_table(), *rows])
        with self.storage.open(name, "wb") as file:
            pq.write_table(table, file)
        return DataFile(name, dict(self.storage.list(name.rpartition("/")[0]))[name], table.num_rows)


class PlainTable(WriteOnlyTable):
    def read(self) -> tuple[pa.Table, Markers]:
        state = self.newest()[1]
        rows = self._rows(state)
        return rows.filter(pc.not_equal(rows[OP_COLUMN], "d")), state["markers"]


class PlainResumePoint(States):
    def clean_up(self) -> None:
        """Nothing is ever deleted."""

    def create(self) -> None:
        self.put(1, {"markers": {}})

    def forget_older_generation(self, generation: int) -> None:
        fence = Fence("generation", generation)
        if self.exists() and generation > 1:
            standing = self.markers().get(fence.name)
            if standing is None or standing < generation:
                self.change(lambda _: {"offset": None}, {}, fence)

    def read(self) -> Offset | None:
        found = self.read_with_timeline()
        return found[0] if found else None

    def read_with_timeline(self) -> tuple[Offset, Timeline] | None:
        state = self.newest()[1]
        if not state.get("offset"):
            return None
        return Offset.from_json(state["offset"]), Timeline.from_json(state["lineage"])

    def write(self, offset: Offset, timeline: Timeline, fence: Fence) -> None:
        state = {"offset": offset.to_json(), "lineage": timeline.to_json()}
        self.change(lambda _: dict(state), {}, fence)
