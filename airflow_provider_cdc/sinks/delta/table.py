"""One Delta table: every write is one idempotent commit that carries its own markers.

Commits are compare-and-set on the table's version: what a commit was decided on (markers, fence, live files) is read at
version ``v`` and the commit succeeds only as ``v + 1``; otherwise everything is read and decided again. So a marker can
never be written twice and a writer that has been overtaken can never commit.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake._internal import RemoveAction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction

from airflow_provider_cdc.exceptions import FencedError, TerminalError, TransientError
from airflow_provider_cdc.sinks.delta.files import Actions, files_of
from airflow_provider_cdc.sinks.delta.merge import SLICES, Merge
from airflow_provider_cdc.sinks.files import DataFile, read_file, row_groups, write_file
from airflow_provider_cdc.sinks.protocol import Decide, Fence, Markers
from airflow_provider_cdc.sinks.storage import Storage

_TRIES = 50
#: Hours for which files are kept that only older versions refer to.
_KEEP_HOURS = 1
#: Table features under which a data file alone does not tell its live rows or its columns.
_FOREIGN_FEATURES = {"deletionVectors", "columnMapping"}


@dataclass(frozen=True)
class _Markers:
    """The markers of one version."""

    table: DeltaTable

    def get(self, name: str, /) -> int | None:
        """Value of a marker."""
        return self.table.transaction_version(name)


class DeltaTarget:
    """One Delta table.

    :param storage: that of its folder.
    :param schema: Arrow schema of its rows.
    :param key: names of the key columns; none if equal rows are told by counting them.
    :param stat: column that file statistics are kept for (a single integer key).
    """

    def __init__(self, storage: Storage, schema: pa.Schema, key: Sequence[str] = (), stat: str | None = None) -> None:
        self.storage = storage
        self.schema = schema
        self._key = key
        self._stat = stat
        self._table: DeltaTable | None = None

    @property
    def name(self) -> str:
        """What messages call the table."""
        return f"Delta table {self.storage.location()}"

    def exists(self) -> bool:
        """Whether the table has been created."""
        return DeltaTable.is_deltatable(self.storage.uri())

    def create(self, pipeline: str, configuration: Mapping[str, str | None] | None = None) -> None:
        """Create the table if it does not exist.

        :param pipeline: the pipeline that owns the table: two that wrote to one table would double its rows.
        :raises TerminalError: if it exists and is another's, or has other columns.
        """
        owner = f"airflow-cdc pipeline {pipeline}"
        if not self.exists():
            try:
                DeltaTable.create(
                    self.storage.uri(),
                    self.schema,
                    mode="ignore",
                    description=owner,
                    configuration={"delta.logRetentionDuration": "interval 1 days", **(configuration or {})},
                )
            except DeltaError as error:
                if not self.exists():  # else another process was faster
                    raise TransientError(
                        f"the {self.name} could not be created: {error}", "Look at the disk, then run again"
                    ) from None
        if self.load().metadata().description != owner:
            raise TerminalError(
                f"the {self.name} was not made by pipeline {pipeline}",
                "Choose another sink.path: only one pipeline may write to a table",
            )
        found = pa.schema(self.load().schema().to_arrow())
        if found.names != self.schema.names:
            raise TerminalError(
                f"the {self.name} has other columns than its source table",
                "It was written by something else or under another definition: use a fresh sink.path, or remove it",
            )

    def load(self) -> DeltaTable:
        """The table at its newest version.

        :raises TerminalError: if it is missing.
        """
        try:
            if self._table is None:
                self._table = DeltaTable(self.storage.uri())
            else:
                self._table.update_incremental()
        except TableNotFoundError:
            raise TerminalError(f"the {self.name} is missing", "Start with a fresh sink.path, or restore it") from None
        features = set(self._table.protocol().reader_features or ()) & _FOREIGN_FEATURES
        if features:
            raise TerminalError(
                f"the {self.name} uses {', '.join(sorted(features))}",
                "Something else enabled it; this version cannot merge into such a table: use a fresh sink.path",
            )
        return self._table

    def markers(self) -> Markers:
        """The markers of the newest version; none if the table does not exist."""
        return _Markers(self.load()) if self.exists() else {}

    def raise_fence(self, fence: Fence) -> None:
        """Write a fence's value, if it does not stand there yet; from then on smaller values cannot commit."""
        self.transact(
            lambda table: None if table.transaction_version(fence.name) == fence.value else Actions(), {}, fence
        )

    def begin_anew(self, fence: Fence, markers: Sequence[str]) -> None:
        """Begin the table anew, once: without rows, with the columns of this target.

        :param fence: raised in the same transaction; if it stands already, nothing happens.
        :param markers: names of the markers that tell that something was published that must stay.
        :raises TerminalError: if something was.
        """
        for _ in range(_TRIES):
            table = self.load()
            if (table.transaction_version(fence.name) or 0) >= fence.value:
                return
            if any(table.transaction_version(marker) is not None for marker in markers):
                raise TerminalError(
                    f"rows under an older definition of its source were published to the {self.name}",
                    "Start with a fresh sink.path (or remove the old one) and run again",
                )
            written = CommitProperties(max_commit_retries=0, app_transactions=[Transaction(fence.name, fence.value)])
            try:
                table.create_write_transaction([], "overwrite", self.schema, commit_properties=written)
            except CommitFailedError:
                continue
        raise TransientError(f"the {self.name} could not be committed", "Run again")

    def commit(self, decide: Decide, markers: Mapping[str, int], fence: Fence) -> bool:
        """Change rows and markers, all or nothing; see :class:`~airflow_provider_cdc.sinks.protocol.SinkTable`."""

        def actions(table: DeltaTable) -> Actions | None:
            change = decide(_Markers(table))
            merge = Merge(table, self.storage, self.schema, self._key, self._stat)
            return None if change is None else merge.of(change)

        return self.transact(actions, markers, fence)

    def transact(
        self, decide: Callable[[DeltaTable], Actions | None], markers: Mapping[str, int], fence: Fence
    ) -> bool:
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
            standing = table.transaction_version(fence.name)
            if standing is not None and standing > fence.value:
                raise FencedError(
                    f"{fence.name} stands at {standing} in {self.storage.location()}, this run has {fence.value}",
                    "A newer run has taken over; leave it running and stop this one",
                )
            actions = decide(table)
            if actions is None:
                return False
            written = [Transaction(k, v) for k, v in {**markers, fence.name: fence.value}.items()]
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
                self.storage.delete(*(file.path for file in actions.add if file.path.startswith("part-")))
                time.sleep(min(1.0, 0.01 * 2**attempt))
        raise TransientError(
            f"the {self.name} could not be committed in {_TRIES} tries: {failed}",
            "Pause other writers of the table and look at the disk, then run again",
        )

    def read(self) -> tuple[pa.Table, _Markers]:
        """All rows of the newest version, in the sink's schema, and its markers."""
        self._table = None  # the one that later loads bring up to date is another
        table, self._table = self.load(), None
        return self._rows(table), _Markers(table)

    def to_arrow(self) -> pa.Table:
        """All rows of the newest version, in the sink's schema."""
        return self._rows(self.load())

    def tidy(self, retention_hours: int = _KEEP_HOURS) -> None:
        """Delete files that no version of the last hours refers to."""
        try:
            self.load().vacuum(retention_hours=retention_hours, dry_run=False, enforce_retention_duration=False)
        except DeltaError as error:
            raise TransientError(
                f"old files of the {self.name} could not be deleted: {error}", "They are the next time"
            ) from None

    def stage(self, place: str, rows: Iterable[pa.Table]) -> DataFile:
        """Write a slice of the snapshot, beside the files of the table."""
        name = f"{SLICES}/{place}.parquet"
        try:
            return write_file(self.storage, name, self.schema, rows, self._stat, ordered_by=self._key)
        except BaseException:
            self.storage.delete(name)
            raise

    def staged(self, file: DataFile) -> bool:
        """Whether the file is there, and of the size that was written."""
        return self.storage.size(file.path) == file.size

    def read_staged(self, file: DataFile) -> Iterator[pa.Table]:
        """The rows of a slice, row group by row group."""
        return row_groups(self.storage, file.path, self.schema)

    def discard(self, file: DataFile) -> None:
        """Remove the file of a slice."""
        self.storage.delete(file.path)

    def _rows(self, table: DeltaTable) -> pa.Table:
        found = [read_file(self.storage, str(f["path"]), self.schema) for f in files_of(table)]
        return pa.concat_tables(found) if found else self.schema.empty_table()

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
