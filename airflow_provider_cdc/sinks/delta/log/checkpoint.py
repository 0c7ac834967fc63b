"""Checkpoints of a Delta log: finding the newest one, and reading it in the form of commit actions.

Every form that another writer may use is read: one file, several parts, or a file with a UUID (JSON or Parquet), each
with or without sidecars. Anything not understood is an error: a skipped row may be a live file, and a table that is
read incompletely loses rows.
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
#: Fields that are maps.
_MAP_FIELDS = {"partitionValues", "tags", "configuration", "options"}
#: Actions that make up a version.
_STATE_ACTIONS = ("protocol", "metaData", "txn", "add", "domainMetadata", "sidecar", "checkpointMetadata")
#: Actions without effect on the content of a version.
_STATELESS_ACTIONS = ("commitInfo", "cdc")
_ACTION_KINDS = {*_STATE_ACTIONS, "remove", *_STATELESS_ACTIONS}
#: Copies of the statistics and partition values in separate columns.
_DUPLICATED_COLUMNS = {"stats_parsed", "partitionValues_parsed"}
#: Fields read of removed files, of which there may be many.
_TOMBSTONE_FIELDS = ("path", "deletionVector")
_REMEDY = "Nothing was changed. Restore the file, or use a newer version of this package, or a fresh sink.path"


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint.

    :param version: version of the table.
    :param files: names in the table's folder, without sidecars.
    """

    version: int
    files: tuple[str, ...]


def find_newest_checkpoint(names: Iterable[str]) -> Checkpoint | None:
    """Return the newest complete checkpoint, if any. All checkpoints of one version have the same content.

    :param names: names of the files of a log.
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
    """Yield the actions of a checkpoint.

    Tombstones come last and contain only the path and the deletion vector, because there may be many.

    :param storage: storage of the table's folder.
    :param table_name: name of the table in messages.
    :raises TerminalError: naming the file, if not all of it is understood.
    :raises FileNotFoundError: if one of its files is missing.
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
    """Reads one checkpoint.

    :param sidecars: names of further files.
    :param tombstones: tombstones read so far.
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
        """Yield the actions in one of its files, except tombstones.

        :param allowed: kinds of actions that the file may contain.
        """
        rows = self._read_json(name) if name.endswith(".json") else self._read_parquet(name)
        for kind, value in rows:
            if kind not in allowed:
                raise self._not_understood(name, f"it contains {kind}, which does not belong there")
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
        """Check, after all files were read, that nothing is missing."""
        name = self.checkpoint.files[0]
        if missing := {"protocol", "metaData"} - self._kinds_seen:
            raise self._not_understood(name, f"it lacks {' and '.join(sorted(missing))}")
        if self._declared_add_count is not None and self._add_count != self._declared_add_count:
            raise self._not_understood(
                name, f"it has {self._add_count} data files, but declares {self._declared_add_count}"
            )

    def _note_metadata(self, name: str, metadata: dict[str, Any]) -> None:
        if metadata.get("version") != self.checkpoint.version:
            raise self._not_understood(name, f"it declares version {metadata.get('version')}")
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
                raise self._not_understood(name, f"line {number} is not one action") from None
            if kind not in _ACTION_KINDS or not isinstance(value, dict):
                raise self._not_understood(name, f"line {number} has the unknown kind {kind!r}")
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
    """Return the columns of a checkpoint to read.

    All columns of unknown kinds are included, because no row may have such a kind.
    """
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
    """Return a value of a checkpoint in the form it has in a commit.

    In a checkpoint, maps are lists of pairs, and missing fields are ``None``.
    """
    if isinstance(value, dict):
        present = {k: v for k, v in value.items() if v is not None}
        return {
            k: dict(v) if k in _MAP_FIELDS and isinstance(v, list) else _as_in_commit(v) for k, v in present.items()
        }
    return value
