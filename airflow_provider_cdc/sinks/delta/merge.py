"""What changes mean for the data files of a Delta table: which ones go, and which ones take their place.

Copy on write: a file that loses rows is written anew without them. The argument for it is decision 0001.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from airflow_provider_cdc.core.changes import upserts
from airflow_provider_cdc.core.schema import SEQ
from airflow_provider_cdc.sinks.delta.files import LARGE_FILE, SMALL_FILE, Actions, files_of, read_file
from airflow_provider_cdc.sinks.delta.keyless import counted
from airflow_provider_cdc.sinks.files import DataFile, write_file
from airflow_provider_cdc.sinks.protocol import Change, Counted, Emptied, Published, Replaced, Upserted

#: Folder of the snapshot's slices in that of the table.
SLICES = "snapshot"


@dataclass(frozen=True)
class Merge:
    """Merges into one version of a table.

    :param table: the table as it stands.
    :param root: its folder.
    :param schema: schema of its rows.
    :param key: names of the key columns.
    :param stat: column that file statistics are kept for.
    """

    table: DeltaTable
    root: Path
    schema: pa.Schema
    key: Sequence[str]
    stat: str | None

    @cached_property
    def live(self) -> list[dict[str, Any]]:
        """Its files."""
        return files_of(self.table)

    def of(self, change: Change) -> Actions | None:
        """Actions of a change; ``None`` for nothing."""
        match change:
            case Upserted(changes):
                return self._upserted(changes)
            case Counted(net, since):
                return counted(self.root, self.schema, self.live, net, since)
            case Emptied(seq):
                return self._emptied(seq)
            case Published(slices):
                return _published(slices)
            case Replaced():
                return self._replaced(change)

    def _upserted(self, changes: pa.Table) -> Actions:
        """Actions that bring the table up to date: rows are replaced or deleted by key, new ones added."""
        actions, stat = Actions(), self.stat
        live = self.live
        span = pc.min_max(changes[stat]).as_py() if stat else None
        current = np.ones(changes.num_rows, dtype=bool)
        rewritten: list[tuple[dict[str, Any], Any]] = []
        for file in live:
            if stat and span and _apart(file, stat, int(span["min"]), int(span["max"])):
                continue
            replaced, outdated = self._hits(file["path"], changes)
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

    def _emptied(self, seq: int) -> Actions | None:
        """Actions that take out all rows whose ``_cdc_seq`` is below ``seq``; ``None`` if there are none."""
        actions = Actions()
        for file in self.live:
            old = pc.less(self._read(file["path"], [SEQ])[SEQ], seq)
            if not pc.any(old).as_py():
                continue
            actions.remove.append(file["path"])
            if not pc.all(old).as_py():
                actions.add.append(self._write(self._read(file["path"]).filter(pc.invert(old))))
        return actions if actions.remove else None

    def _replaced(self, change: Replaced) -> Actions:
        """Actions that put slices in the place of all rows of a chunk group.

        Files of the snapshot hold rows of one chunk group alone, and are never changed: they go or stay as they are.
        All other files were written by merges, and only their rows that belong to the group go.
        """
        generation, group = change.group
        snapshot, home = f"{SLICES}/{generation}/", f"{SLICES}/{generation}/{group}/"
        actions, stat = _published(change.slices), self.stat
        for file in self.live:
            path = str(file["path"])
            if path.startswith(home):
                actions.remove.append(path)
                continue
            if path.startswith(snapshot):
                continue
            if stat and change.span and _apart(file, stat, *change.span):
                continue
            leaves = change.owned(self._read(path, self.key or [SEQ]))
            if not pc.any(leaves).as_py():
                continue
            rows = self._read(path).filter(pc.invert(leaves))
            actions.remove.append(path)
            if rows.num_rows:
                actions.add.append(self._write(rows))
        return actions

    def _hits(self, path: str, changes: pa.Table) -> tuple[Any, Any]:
        """Indices of the rows of a file that changes replace, and of the changes that the row they meet outdates."""
        mine = _indexed(self._read(path, [*self.key, SEQ]), self.key, "row")
        theirs = _indexed(changes, self.key, "change")
        met = mine.join(theirs, [str(i) for i in range(len(self.key))], join_type="inner")
        newer = pc.greater(met["change_seq"], met["row_seq"])
        return met["row"].filter(newer).to_numpy(), met["change"].filter(pc.invert(newer)).to_numpy()

    def _read(self, path: str, columns: Sequence[str] | None = None) -> pa.Table:
        return read_file(self.root / path, self.schema, columns)

    def _write(self, rows: pa.Table) -> DataFile:
        return write_file(self.root, f"part-{uuid.uuid4().hex}.parquet", rows.schema, [rows], self.stat)


def _published(slices: Sequence[DataFile]) -> Actions:
    return Actions(add=[file for file in slices if file.rows])


def _apart(file: Mapping[str, Any], stat: str, low: int, high: int) -> bool:
    smallest, largest = file.get(f"min.{stat}"), file.get(f"max.{stat}")
    return smallest is not None and largest is not None and (int(smallest) > high or int(largest) < low)


def _indexed(rows: pa.Table, key: Sequence[str], name: str) -> pa.Table:
    columns = {str(i): rows[k] for i, k in enumerate(key)}
    columns[name] = pa.array(np.arange(rows.num_rows))
    columns[f"{name}_seq"] = rows[SEQ]
    return pa.table(columns)
