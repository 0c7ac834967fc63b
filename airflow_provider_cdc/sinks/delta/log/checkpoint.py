"""Checkpoints of a Delta log: which one is the newest, and what it says, as it would stand in commits.

Whatever form another writer has chosen is read: one file, several parts, or a file with a number of its own (JSON or
Parquet), each with or without sidecars. What is not understood raises: a row that is passed over may be a live file,
and a table that is read for less than it holds loses rows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_cdc.model.errors import TerminalError
from airflow_provider_cdc.sinks.files.parquet import open_parquet
from airflow_provider_cdc.sinks.storage.storage import Storage

LOG_FOLDER = "_delta_log"
SIDECAR_FOLDER = f"{LOG_FOLDER}/_sidecars"
_CHECKPOINT_NAME = re.compile(
    rf"{LOG_FOLDER}/(?P<version>\d{{20}})\.checkpoint"
    r"(?:\.(?P<part>\d{10})\.(?P<parts>\d{10})\.parquet|(?P<number>\.[0-9a-fA-F-]{36})\.(?:json|parquet)|\.parquet)"
)
#: What is a map in the log.
_MAP_FIELDS = {"partitionValues", "tags", "configuration", "options"}
#: What a version consists of.
_STATE_ACTIONS = ("protocol", "metaData", "txn", "add", "domainMetadata", "sidecar", "checkpointMetadata")
#: What changes nothing of what a version holds.
_STATELESS_ACTIONS = ("commitInfo", "cdc")
_ACTION_KINDS = {*_STATE_ACTIONS, "remove", *_STATELESS_ACTIONS}
#: Statistics and partition values once more, in columns of their own.
_DUPLICATED_COLUMNS = {"stats_parsed", "partitionValues_parsed"}
#: All that is asked about a file that was removed: there may be many.
_TOMBSTONE_FIELDS = ("path", "deletionVector")
_REMEDY = "Nothing was changed. Restore the file, or use a newer version of this package, or a fresh sink.path"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that is whole.

    :param version: of the table.
    :param files: names below the table's folder, without sidecars.
    """

    version: int
    files: tuple[str, ...]


def find_newest_checkpoint(names: Iterable[str]) -> Checkpoint | None:
    """The newest whole checkpoint, if there is one. Of several of one version each says the same.

    :param names: of the files of a log.
    """
    files_by_checkpoint: dict[tuple[int, str, int], list[str]] = {}
    for match in filter(None, map(_CHECKPOINT_NAME.fullmatch, names)):
        key = int(match["version"]), match["number"] or "", int(match["parts"] or 1)
        files_by_checkpoint.setdefault(key, []).append(match[0])
    complete = [key for key, files in files_by_checkpoint.items() if len(files) >= key[2]]
    if not complete:
        return None
    newest = max(complete)
    files = sorted(files_by_checkpoint[newest])
    return Checkpoint(newest[0], tuple(files if newest[2] > 1 else files[:1]))


def read_actions(storage: Storage, checkpoint: Checkpoint, table_name: str) -> Iterator[dict[str, Any]]:
    """What a checkpoint says; tombstones last, and of them only which files they are of, since they may be many.

    :param storage: that of the table's folder.
    :param table_name: what messages call it.
    :raises TerminalError: naming the file, if not all of it is understood.
    :raises FileNotFoundError: if one of its files is not there.
    """
    reader = _CheckpointReader(storage, checkpoint, table_name)
    for name in checkpoint.files:
        yield from reader.read_part(name)
    for sidecar in list(reader.sidecars):
        yield from reader.read_part(f"{SIDECAR_FOLDER}/{sidecar}", ("add", "remove"))
    reader.check_complete()
    for tombstones in reader.tombstones:
        for value in tombstones.to_pylist():
            yield {"remove": _as_in_commit(value)}


@dataclass
class _CheckpointReader:
    """One checkpoint while it is read.

    :param sidecars: names of files with more of it.
    :param tombstones: tombstones.
    """

    storage: Storage
    checkpoint: Checkpoint
    table_name: str
    sidecars: list[str] = field(default_factory=list)
    tombstones: list[pa.StructArray] = field(default_factory=list)
    _kinds_seen: set[str] = field(default_factory=set)
    _add_count: int = 0
    _declared_add_count: int | None = None

    def read_part(self, name: str, allowed: Collection[str] = _ACTION_KINDS) -> Iterator[dict[str, Any]]:
        """What one of its files says, other than tombstones.

        :param allowed: kinds of actions that it may have.
        """
        rows = self._read_json(name) if name.endswith(".json") else self._read_parquet(name)
        for kind, value in rows:
            if kind not in allowed:
                raise self._not_understood(name, f"it holds {kind}, which does not belong there")
            self._kinds_seen.add(kind)
            if kind == "remove":
                self.tombstones.append(value)
                continue
            if kind == "sidecar":
                self.sidecars.append(unquote(str(value["path"])).rpartition("/")[2])
            elif kind == "checkpointMetadata":
                self._note_metadata(name, value)
            elif kind == "add":
                self._add_count += 1
            yield {kind: value}

    def check_complete(self) -> None:
        """See that nothing is missing, when all files were read."""
        name = self.checkpoint.files[0]
        if missing := {"protocol", "metaData"} - self._kinds_seen:
            raise self._not_understood(name, f"it lacks {' and '.join(sorted(missing))}")
        if self._declared_add_count is not None and self._add_count != self._declared_add_count:
            raise self._not_understood(
                name, f"it has {self._add_count} data files, and says that it has {self._declared_add_count}"
            )

    def _note_metadata(self, name: str, metadata: dict[str, Any]) -> None:
        if metadata.get("version") != self.checkpoint.version:
            raise self._not_understood(name, f"it says that it is of version {metadata.get('version')}")
        count = str((metadata.get("tags") or {}).get("numOfAddFiles") or "")
        self._declared_add_count = int(count) if count.isdecimal() else None

    def _read_json(self, name: str) -> Iterator[tuple[str, Any]]:
        data = self.storage.read(name)
        if data is None:
            raise FileNotFoundError(self.storage.location(name))
        tombstones = []
        for number, line in enumerate(data.splitlines(), 1):
            try:
                action = json.loads(line)
                ((kind, value),) = action.items()
            except (ValueError, AttributeError):
                raise self._not_understood(name, f"line {number} of it is not one action") from None
            if kind not in _ACTION_KINDS or not isinstance(value, dict):
                raise self._not_understood(name, f"line {number} of it is of the unknown kind {kind!r}")
            if kind == "remove":
                tombstones.append({k: value[k] for k in _TOMBSTONE_FIELDS if value.get(k) is not None})
            elif kind not in _STATELESS_ACTIONS:
                yield kind, value
        if tombstones:
            yield "remove", pa.array(tombstones)

    def _read_parquet(self, name: str) -> Iterator[tuple[str, Any]]:
        try:
            with open_parquet(self.storage, name) as file:
                schema = file.schema_arrow
                for number in range(file.num_row_groups):
                    yield from self._read_row_group(name, file.read_row_group(number, columns=_columns_to_read(schema)))
        except pa.ArrowInvalid as error:
            raise self._not_understood(name, f"it is damaged: {error}") from None

    def _read_row_group(self, name: str, rows: pa.Table) -> Iterator[tuple[str, Any]]:
        counts = {kind: len(rows) - rows[kind].null_count for kind in rows.column_names}
        if sum(count for kind, count in counts.items() if kind in _ACTION_KINDS) != len(rows):
            unknown_kinds = sorted(kind for kind, count in counts.items() if count and kind not in _ACTION_KINDS)
            raise self._not_understood(
                name, f"it has rows of an unknown kind ({', '.join(unknown_kinds) or 'without a name'})"
            )
        for kind in (k for k in _STATE_ACTIONS if counts.get(k)):
            for value in rows[kind].filter(pc.is_valid(rows[kind])).to_pylist():
                yield kind, _as_in_commit(value)
        if counts.get("remove"):
            yield "remove", rows["remove"].filter(pc.is_valid(rows["remove"])).combine_chunks()

    def _not_understood(self, name: str, problem: str) -> TerminalError:
        return TerminalError(
            f"the checkpoint {self.storage.location(name)} of the {self.table_name} is not understood: {problem}",
            _REMEDY,
        )


def _columns_to_read(schema: pa.Schema) -> list[str]:
    """Columns of a checkpoint. Of kinds that are not known, all: there must be no row of them."""
    columns = []
    for column in schema:
        if column.name == "add":
            columns += [f"add.{f.name}" for f in column.type if f.name not in _DUPLICATED_COLUMNS]
        elif column.name == "remove":
            columns += [f"remove.{f.name}" for f in column.type if f.name in _TOMBSTONE_FIELDS]
        else:
            columns.append(column.name)
    return columns


def _as_in_commit(value: Any) -> Any:
    """A value of a checkpoint as it would stand in a commit: there maps are lists of pairs, and what is missing is
    there as ``None``.
    """
    if isinstance(value, dict):
        present = {k: v for k, v in value.items() if v is not None}
        return {
            k: dict(v) if k in _MAP_FIELDS and isinstance(v, list) else _as_in_commit(v) for k, v in present.items()
        }
    return value
