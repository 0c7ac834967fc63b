"""Delta tables as sinks: every write is one idempotent commit that carries its own marker.

Commits are compare-and-set on the table's version: what a commit was decided on (markers, fence, live files) is read at
version ``v`` and the commit succeeds only as ``v + 1``; otherwise everything is read and decided again. So a marker can
never be written twice and a writer that has been overtaken can never commit.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake._internal import RemoveAction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction

from airflow_provider_cdc.core.changes import upserts
from airflow_provider_cdc.core.schema import SEQ, TableSchema
from airflow_provider_cdc.exceptions import FencedError, TerminalError, TransientError
from airflow_provider_cdc.sinks.files import DataFile, files_of, write_file

#: A live file below this size is rewritten together with new rows, so that small files do not pile up; new rows never
#: join a file above the other size, so that no file grows without end.
SMALL_FILE, LARGE_FILE = 4 << 20, 64 << 20
_TRIES = 50
#: Table features under which a data file alone does not tell its live rows or its columns.
_FOREIGN_FEATURES = {"deletionVectors", "columnMapping"}


@dataclass
class Actions:
    """What one commit does to the files of a table."""

    add: list[DataFile] = field(default_factory=list)
    remove: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Replacement:
    """Which rows of a table make way for others.

    :param owned: for the key columns of some rows, a mask of those that go.
    :param home: files whose path begins like this hold nothing else: they go as a whole.
    :param snapshot: other files whose path begins like this hold none of them.
    :param span: smallest and largest key, only for a single integer key.
    """

    owned: Callable[[pa.Table], pa.Array]
    home: str
    snapshot: str
    span: tuple[int, int] | None = None


@dataclass(frozen=True)
class Fence:
    """A counter stored in the table that only grows; a writer with a smaller value must not commit.

    :param app_id: name of the counter.
    :param value: the writer's own value.
    """

    app_id: str
    value: int


class DeltaTarget:
    """One Delta table.

    :param path: its folder.
    :param schema: Arrow schema of its rows.
    :param stat: column that file statistics are kept for (a single integer key).
    """

    def __init__(self, path: Path, schema: pa.Schema, stat: str | None = None) -> None:
        self.path = path
        self.schema = schema
        self._stat = stat
        self._table: DeltaTable | None = None
        #: The fence that this object has raised last.
        self.fenced: Fence | None = None

    def exists(self) -> bool:
        """Whether the table has been created."""
        return DeltaTable.is_deltatable(self.path.as_uri())

    def create(self, pipeline: str, configuration: Mapping[str, str | None] | None = None) -> None:
        """Create the table if it does not exist.

        :param pipeline: the pipeline that owns the table: two that wrote to one table would double its rows.
        :raises TerminalError: if it exists and is another's, or has other columns.
        """
        owner = f"airflow-cdc pipeline {pipeline}"
        if not self.exists():
            self.path.mkdir(parents=True, exist_ok=True)
            try:
                DeltaTable.create(
                    self.path.as_uri(),
                    self.schema,
                    mode="ignore",
                    description=owner,
                    configuration={"delta.logRetentionDuration": "interval 1 days", **(configuration or {})},
                )
            except DeltaError as error:
                if not self.exists():  # else another process was faster
                    raise TransientError(
                        f"the Delta table {self.path} could not be created: {error}", "Look at the disk, then run again"
                    ) from None
        if self.load().metadata().description != owner:
            raise TerminalError(
                f"the Delta table {self.path} was not made by pipeline {pipeline}",
                "Choose another sink.path: only one pipeline may write to a table",
            )
        found = pa.schema(self.load().schema().to_arrow())
        if found.names != self.schema.names:
            raise TerminalError(
                f"the Delta table {self.path} has other columns than its source table",
                "It was written by something else or under another definition: use a fresh sink.path, or remove it",
            )

    def load(self) -> DeltaTable:
        """The table at its newest version.

        :raises TerminalError: if it is missing.
        """
        try:
            if self._table is None:
                self._table = DeltaTable(self.path.as_uri())
            else:
                self._table.update_incremental()
        except TableNotFoundError:
            raise TerminalError(
                f"the Delta table {self.path} is missing", "Start with a fresh sink.path, or restore it"
            ) from None
        features = set(self._table.protocol().reader_features or ()) & _FOREIGN_FEATURES
        if features:
            raise TerminalError(
                f"the Delta table {self.path} uses {', '.join(sorted(features))}",
                "Something else enabled it; this version cannot merge into such a table: use a fresh sink.path",
            )
        return self._table

    def marker(self, app_id: str) -> int | None:
        """Value of a marker, ``None`` if it was never written."""
        return self.load().transaction_version(app_id) if self.exists() else None

    def raise_fence(self, fence: Fence) -> None:
        """Write a fence's value, if it does not stand there yet; from then on smaller values cannot commit."""
        self.commit(
            lambda table: None if table.transaction_version(fence.app_id) == fence.value else Actions(), {}, fence
        )
        self.fenced = fence

    def redefine(self, fence: Fence, markers: Sequence[str]) -> None:
        """Begin the table anew, once: without rows, with the columns of this target.

        :param fence: raised in the same transaction; if it stands already, nothing happens.
        :param markers: names of the markers that tell that something was published that must stay.
        :raises TerminalError: if something was.
        """
        for _ in range(_TRIES):
            table = self.load()
            if (table.transaction_version(fence.app_id) or 0) >= fence.value:
                return
            if any(table.transaction_version(marker) is not None for marker in markers):
                raise TerminalError(
                    f"rows with an older definition of the source were published to the Delta table {self.path}",
                    "Start with a fresh sink.path (or remove the old one) and run again",
                )
            written = CommitProperties(max_commit_retries=0, app_transactions=[Transaction(fence.app_id, fence.value)])
            try:
                table.create_write_transaction([], "overwrite", self.schema, commit_properties=written)
            except CommitFailedError:
                continue
        raise TransientError(f"the Delta table {self.path} could not be committed", "Run again")

    def commit(self, decide: Callable[[DeltaTable], Actions | None], markers: Mapping[str, int], fence: Fence) -> bool:
        """Commit files and markers in one transaction.

        :param decide: called with the table as it stands; returns what to do, or ``None`` to leave it as it is.
        :param markers: (name -> value) to write in the same transaction.
        :param fence: checked, and written, in the same transaction.
        :returns: whether something was committed.
        :raises FencedError: if a writer with a larger fence value has been here.
        """
        failed = ""
        for attempt in range(_TRIES):
            table = self.load()
            standing = table.transaction_version(fence.app_id)
            if standing is not None and standing > fence.value:
                raise FencedError(
                    f"{fence.app_id} stands at {standing} in {self.path}, this run has {fence.value}",
                    "A newer run has taken over; leave it running and stop this one",
                )
            actions = decide(table)
            if actions is None:
                return False
            written = [Transaction(k, v) for k, v in {**markers, fence.app_id: fence.value}.items()]
            try:
                table.create_write_transaction(
                    self._delta_actions(actions),
                    "append",
                    self.schema,
                    commit_properties=CommitProperties(max_commit_retries=0, app_transactions=written),
                )
                return True
            except CommitFailedError as error:
                failed = str(error)
                for file in actions.add:
                    if file.path.startswith("part-"):
                        (self.path / file.path).unlink(missing_ok=True)
                time.sleep(min(1.0, 0.01 * 2**attempt))
        raise TransientError(
            f"the Delta table {self.path} could not be committed in {_TRIES} tries: {failed}",
            "Pause other writers of the table and look at the disk, then run again",
        )

    def upsert(self, table: DeltaTable, changes: pa.Table, key: Sequence[str]) -> Actions:
        """Actions that bring the table up to date: rows are replaced or deleted by key, new ones added.

        A change is applied iff its ``_cdc_seq`` is greater than the row's.

        :param table: the table as it stands.
        :param changes: at most one change a key, in the sink's schema.
        :param key: names of the key columns.
        """
        actions, stat = Actions(), self._stat
        live = files_of(table)
        span = pc.min_max(changes[stat]).as_py() if stat else None
        current = np.ones(changes.num_rows, dtype=bool)
        rewritten: list[tuple[dict[str, Any], Any]] = []
        for file in live:
            if stat and span and _apart(file, stat, int(span["min"]), int(span["max"])):
                continue
            replaced, outdated = self._hits(file["path"], changes, key)
            current[outdated] = False
            if len(replaced):
                rewritten.append((file, replaced))
        fresh = upserts(changes.filter(pa.array(current)))
        if fresh.num_rows and not any(f["size_bytes"] < SMALL_FILE for f, _ in rewritten):
            names = {f["path"] for f, _ in rewritten}
            small = next((f for f in live if f["size_bytes"] < SMALL_FILE and f["path"] not in names), None)
            if small is not None:
                rewritten.append((small, np.empty(0, dtype=np.int64)))
        rewritten.sort(key=lambda pair: pair[0]["size_bytes"], reverse=True)
        for i, (file, replaced) in enumerate(rewritten):
            rows = self._read(file["path"])
            kept = np.ones(rows.num_rows, dtype=bool)
            kept[replaced] = False
            rows = rows.filter(pa.array(kept))
            if i == len(rewritten) - 1 and fresh.num_rows and file["size_bytes"] < LARGE_FILE:
                rows, fresh = pa.concat_tables([rows, fresh]), fresh.slice(0, 0)
            actions.remove.append(file["path"])
            if rows.num_rows:
                actions.add.append(self._write(rows))
        if fresh.num_rows:
            actions.add.append(self._write(fresh))
        return actions

    def emptied(self, table: DeltaTable, seq: int) -> Actions | None:
        """Actions that take out all rows whose ``_cdc_seq`` is below ``seq``; ``None`` if there are none.

        :param table: the table as it stands.
        """
        actions = Actions()
        for file in files_of(table):
            old = pc.less(self._read(file["path"], [SEQ])[SEQ], seq)
            if not pc.any(old).as_py():
                continue
            actions.remove.append(file["path"])
            if not pc.all(old).as_py():
                actions.add.append(self._write(self._read(file["path"]).filter(pc.invert(old))))
        return actions if actions.remove else None

    def replace(
        self, table: DeltaTable, fresh: Sequence[DataFile], replacement: Replacement, key: Sequence[str]
    ) -> Actions:
        """Actions that put files in the place of all rows of certain keys.

        Files of the snapshot hold rows of one chunk group alone, and are never changed: they go or stay as they are.
        All other files were written by merges, and only their rows with such keys go.

        :param table: the table as it stands.
        :param fresh: the files; the ones without rows are left out.
        :param replacement: which rows go.
        :param key: names of the key columns.
        """
        actions, stat = Actions(add=[file for file in fresh if file.rows]), self._stat
        for file in files_of(table):
            path = str(file["path"])
            if path.startswith(replacement.home):
                actions.remove.append(path)
                continue
            if path.startswith(replacement.snapshot):
                continue
            if stat and replacement.span and _apart(file, stat, *replacement.span):
                continue
            leaves = replacement.owned(self._read(path, key))
            if not pc.any(leaves).as_py():
                continue
            rows = self._read(path).filter(pc.invert(leaves))
            actions.remove.append(path)
            if rows.num_rows:
                actions.add.append(self._write(rows))
        return actions

    def to_arrow(self, version: int | None = None) -> pa.Table:
        """All rows of one version (default: the newest), in the sink's schema."""
        table = self.load()
        if version is not None:
            table = DeltaTable(self.path.as_uri(), version=version)
        found = [self._read(f["path"]) for f in files_of(table)]
        return pa.concat_tables(found) if found else self.schema.empty_table()

    def tidy(self, retention_hours: int) -> None:
        """Delete files that no version of the last hours refers to."""
        self.load().vacuum(retention_hours=retention_hours, dry_run=False, enforce_retention_duration=False)

    def _hits(self, path: str, changes: pa.Table, key: Sequence[str]) -> tuple[Any, Any]:
        """Indices of the rows of a file that changes replace, and of the changes that the row they meet outdates."""
        file = self._read(path, [*key, SEQ])
        mine = _indexed(file, key, "row")
        theirs = _indexed(changes, key, "change")
        met = mine.join(theirs, [str(i) for i in range(len(key))], join_type="inner")
        newer = pc.greater(met["change_seq"], met["row_seq"])
        return met["row"].filter(newer).to_numpy(), met["change"].filter(pc.invert(newer)).to_numpy()

    def _read(self, path: str, columns: Sequence[str] | None = None) -> pa.Table:
        schema = self.schema if columns is None else pa.schema([self.schema.field(c) for c in columns])
        # Not pq.read_table(columns=...): it takes a dot in a column's name for a path into a struct.
        with pq.ParquetFile(self.path / path) as file:
            if columns is None:
                return file.read().select(schema.names).cast(schema)
            indices = [file.schema_arrow.get_field_index(c) for c in columns]
            groups = [
                file.reader.read_row_group(i, column_indices=indices) for i in range(file.metadata.num_row_groups)
            ]
            return pa.concat_tables(groups).select(schema.names).cast(schema) if groups else schema.empty_table()

    def _write(self, rows: pa.Table) -> DataFile:
        return write_file(self.path, f"part-{uuid.uuid4().hex}.parquet", rows.schema, [rows], self._stat)

    def _delta_actions(self, actions: Actions) -> list[AddAction | RemoveAction]:
        now = int(time.time() * 1000)
        found: list[AddAction | RemoveAction] = []
        for file in actions.add:
            stats: dict[str, Any] = {"numRecords": file.rows}
            if self._stat and file.low is not None:
                stats |= {"minValues": {self._stat: file.low}, "maxValues": {self._stat: file.high}}
            found.append(AddAction(file.path, file.size, {}, now, True, json.dumps(stats)))
        found += [RemoveAction(path, data_change=True, deletion_timestamp=now) for path in actions.remove]
        return found


def target_of(path: Path, table: TableSchema) -> DeltaTarget:
    """Delta table of a captured table."""
    return DeltaTarget(path, table.sink_schema, table.integer_key)


def _apart(file: Mapping[str, Any], stat: str, low: int, high: int) -> bool:
    smallest, largest = file.get(f"min.{stat}"), file.get(f"max.{stat}")
    return smallest is not None and largest is not None and (int(smallest) > high or int(largest) < low)


def _indexed(rows: pa.Table, key: Sequence[str], name: str) -> pa.Table:
    columns = {str(i): rows[k] for i, k in enumerate(key)}
    columns[name] = pa.array(np.arange(rows.num_rows))
    columns[f"{name}_seq"] = rows[SEQ]
    return pa.table(columns)
