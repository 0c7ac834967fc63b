"""Replay the binlog onto staged rows: they become the rows of the source as of a position of the stream."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_cdc.apply.applier import explain_missing_rows
from airflow_provider_cdc.apply.task import StreamJob
from airflow_provider_cdc.chunk_groups.chunk_group import ChunkGroup, watermarks_of
from airflow_provider_cdc.model import server_id_slots as slots
from airflow_provider_cdc.model.changes import apply_changes, changes_after, last_changes, mask_changed_keys
from airflow_provider_cdc.model.errors import TerminalError
from airflow_provider_cdc.model.multiset import find_removed_rows, net_change, without_removed_rows
from airflow_provider_cdc.model.offset import Offset
from airflow_provider_cdc.model.schema import SEQ_COLUMN
from airflow_provider_cdc.model.staged_read import TABLE, StagedRead
from airflow_provider_cdc.mysql.client.key_sql import keys_of
from airflow_provider_cdc.mysql.client.session import connect
from airflow_provider_cdc.mysql.keys.ownership import find_owning_chunks
from airflow_provider_cdc.sinks.files.parquet import DataFile, split_by_size
from airflow_provider_cdc.sinks.protocol import SinkTable

#: In-memory size, in bytes, of one staged slice of a table without a key.
_PORTION_BYTES = 64 << 20


@dataclass(frozen=True)
class BinlogReplay:
    """Replays the binlog onto the rows of one table in a staged read.

    :param group: the chunks that were read, in a plan with the definition that they were read with.
    :param index: index of the table in the plan.
    :param target: sink table of that definition.
    :param job: reads the binlog with that definition.
    """

    group: ChunkGroup
    staged: StagedRead
    index: int
    target: SinkTable
    job: StreamJob

    def replay_up_to(self, end: Offset) -> list[DataFile]:
        """Return the staged files as of ``end``. A file without newer changes stays as it is."""
        table, timeline = self.group.plan.tables[self.index], self.job.timeline
        entries = [entry for entry in self.group.read_manifest(self.staged.attempt) if entry["table"] == self.index]
        files = [DataFile.from_json(entry["file"]) for entry in entries]
        for file in files:
            if not self.target.is_staged(file):
                raise TerminalError(f"the file {file.path} of the {self.target.name} is missing or damaged")
        high_seqs = {
            chunk["no"]: timeline.seq(watermarks_of(chunk)[1]) for entry in entries for chunk in entry["chunks"]
        }
        changes, emptied = self._read_changes(end)
        if not table.key:
            (file,), (high_seq,) = files, high_seqs.values()
            with explain_missing_rows(table, timeline):
                return self._replay_keyless(file, high_seq, changes, emptied)
        chunk_numbers = [[chunk["no"] for chunk in entry["chunks"]] for entry in entries]
        if table.has_hashed_key:
            return self._replay_by_hashed_key(files, last_changes(changes, table.copy.key), emptied)
        # Reduce to the last change of each key first; then drop what was read already.
        return self._replay_keyed(files, chunk_numbers, high_seqs, last_changes(changes, table.copy.key), emptied)

    def _replay_keyed(
        self,
        files: Sequence[DataFile],
        chunk_numbers: Sequence[list[int]],
        high_seqs: Mapping[int, int],
        changes: pa.Table,
        emptied: int,
    ) -> list[DataFile]:
        """Return the staged files of a table with a key.

        A change counts if it is after the high watermark of the chunk that owns its key. Keys outside all chunks belong
        to other rows, or, if the whole table was read, to none yet: then a change after the start position counts.

        :param chunk_numbers: numbers of the chunks in each file.
        :param high_seqs: ``_cdc_seq`` of the high watermark by chunk number.
        :param changes: the last change of each key.
        """
        group, table = self.group, self.group.plan.tables[self.index]
        chunks = [chunk for chunk in group.plan.chunks if chunk.group == group.number and chunk.table == self.index]
        with closing(connect(group.context.connect_args)) as connection:
            owners = np.array(
                find_owning_chunks(connection, table, chunks, keys_of(table, table.source_keys(changes))), np.int64
            )
        # Index -1 is for the keys outside all chunks.
        owner_numbers = np.array([*(chunk.number for chunk in chunks), -1], np.int64)[owners]
        start_seq = self.job.timeline.seq(self.staged.start.at)
        read_seqs = np.array([*(high_seqs[chunk.number] for chunk in chunks), start_seq], np.int64)[owners]
        is_newer = changes[SEQ_COLUMN].to_numpy() > read_seqs
        replayed = []
        for file, numbers in zip(files, chunk_numbers, strict=True):
            newer_changes = changes.filter(pa.array(is_newer & np.isin(owner_numbers, numbers)))
            if newer_changes.num_rows or any(high_seqs[number] < emptied for number in numbers):
                rows = pa.concat_tables([table.sink_schema.empty_table(), *self.target.read_staged(file)])
                rows = apply_changes(
                    rows.filter(pc.greater_equal(rows[SEQ_COLUMN], emptied)), newer_changes, table.copy.key
                )
                file = self._stage_rows([rows])
            replayed.append(file)
        if self.staged.scope != TABLE:
            return replayed
        outside = changes.filter(pa.array(is_newer & (owners < 0)))
        added = apply_changes(table.sink_schema.empty_table(), outside, table.copy.key)
        return [*replayed, self._stage_rows([added])] if added.num_rows else replayed

    def _replay_by_hashed_key(self, files: Sequence[DataFile], changes: pa.Table, emptied: int) -> list[DataFile]:
        """Return the staged files of a whole table whose keys are hashed, so that nothing tells the chunk of a key.

        A change counts if it is after the row that was read, which has the high watermark of its chunk. If no row was
        read, the last change of the key counts: had its chunk been read after it, a row would have been read, unless
        the change is a delete.

        :param changes: the last change of each key.
        """
        table, replayed = self.group.plan.tables[self.index], list[DataFile]()
        key = table.copy.key
        for file in files:
            rows = pa.concat_tables([table.sink_schema.empty_table(), *self.target.read_staged(file)])
            nothing = pa.array([False] * changes.num_rows, pa.bool_())
            known = mask_changed_keys(changes, rows, key) if rows.num_rows else nothing
            changes_of_file, changes = changes.filter(known), changes.filter(pc.invert(known))
            living_rows = rows.filter(pc.greater_equal(rows[SEQ_COLUMN], emptied))
            newer_changes = _changes_after_rows(changes_of_file, living_rows, key)
            if newer_changes.num_rows or living_rows.num_rows < rows.num_rows:
                file = self._stage_rows([apply_changes(living_rows, newer_changes, key)])
            replayed.append(file)
        added = apply_changes(table.sink_schema.empty_table(), changes, key)
        return [*replayed, self._stage_rows([added])] if added.num_rows else replayed

    def _replay_keyless(self, file: DataFile, high_seq: int, changes: pa.Table, emptied: int) -> list[DataFile]:
        """Return the staged files of a table without a key with the changes after its high watermark applied."""
        table = self.group.plan.tables[self.index]
        change = net_change(changes_after(changes, high_seq), [c.name for c in table.copy.copied_columns])
        since = emptied if emptied > high_seq else 0
        if not change and not since:
            return [file]
        removed = find_removed_rows([("", self.target.read_staged(file))], change, since).get("")
        rows_left = () if removed is None else without_removed_rows(self.target.read_staged(file), removed)
        written = split_by_size(chain(rows_left, [change.added]), _PORTION_BYTES)
        files = [self._stage_rows(portion) for portion in written]
        return files if removed is not None else [file, *files]

    def _read_changes(self, end: Offset) -> tuple[pa.Table, int]:
        """Read the changes of the table up to ``end`` that its staged chunks may lack.

        :returns: the changes after the last TRUNCATE, in binlog order, and the ``_cdc_seq`` of that TRUNCATE (0 for
            none).
        """
        table, start = self.group.plan.tables[self.index], self.staged.start
        changes, emptied = table.sink_schema.empty_table(), 0
        if end.at <= start.at:
            return changes, emptied
        # Not with the batches' replica id: the next batch may be being read right now.
        reader = self.group.context.pipeline.replica_ids(slots.REPLAY)
        name = f"reread-{self.group.number}-{self.staged.attempt}"
        staging = self.job.sink.change_staging()
        job = replace(self.job, reader_replicas=(reader,), only_table=self.index)
        manifest = job.stage_range(start, end.replace(open_xa=()), name)
        for entry in manifest["tables"]:
            if entry["table"] == self.index:
                emptied = entry["emptied"] or 0
                changes = staging.read_changes(table, entry["staged"])
        for number, staged_name in manifest["staged"]:
            staging.discard(self.group.plan.tables[number], [staged_name])
        return changes, emptied

    def _stage_rows(self, rows: Iterable[pa.Table]) -> DataFile:
        folder = f"{self.group.plan.generation}/{self.group.number}/{self.staged.attempt}"
        return self.target.stage(f"{folder}/replayed-{uuid.uuid4().hex}", rows)


def _changes_after_rows(changes: pa.Table, rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return the changes that are after the row of their key, or whose key has no row.

    :param changes: at most one change of each key.
    """
    if not changes.num_rows or not rows.num_rows:
        return changes
    names = [str(i) for i in range(len(key))]
    numbers = pa.array(np.arange(changes.num_rows))
    left = pa.table([*(changes[name] for name in key), changes[SEQ_COLUMN], numbers], [*names, "changed", "number"])
    right = pa.table([*(rows[name] for name in key), rows[SEQ_COLUMN]], [*names, "read"])
    joined = left.join(right, names, join_type="left outer")
    is_newer = pc.or_kleene(pc.is_null(joined["read"]), pc.greater(joined["changed"], joined["read"]))
    return changes.take(pa.array(np.sort(joined.filter(is_newer)["number"].to_numpy())))
