"""What a commit does to the files and the definition of a table, whatever its format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from pyroaring import BitMap

from airflow_provider_cdc.sinks.files.parquet import DataFile
from airflow_provider_cdc.sinks.lake.log.table_log import LiveFile


class CommitKind(StrEnum):
    """Kind of a commit; the values are names of operations in the history of a table."""

    #: Rows change.
    MERGE = "MERGE"
    #: All rows are replaced, and columns may change.
    OVERWRITE = "OVERWRITE"
    #: Columns are added.
    ADD_COLUMNS = "ADD COLUMNS"
    #: Columns are removed, and possibly others added.
    REPLACE_COLUMNS = "REPLACE COLUMNS"
    #: Files are compacted: no row changes.
    OPTIMIZE = "OPTIMIZE"


@dataclass(frozen=True)
class RemoveFile:
    """A live file is removed."""

    file: LiveFile


@dataclass(frozen=True)
class MarkRowsDead:
    """Rows of a live file die.

    :param dead: all of its dead rows from then on, but not all rows of the file.
    :param row_count: number of its rows, including dead ones.
    """

    file: LiveFile
    dead: BitMap
    row_count: int


@dataclass(frozen=True)
class AddFile:
    """A file becomes live.

    :param dead: its dead rows, but not all of its rows.
    """

    file: DataFile
    dead: BitMap = field(default_factory=BitMap)


FileOperation = RemoveFile | MarkRowsDead | AddFile


@dataclass
class FileCommit:
    """A commit that is ready to be written.

    :param operations: what happens to files, in the order in which the log is to have it.
    :param definition: changed columns and properties, in the terms of the format's log; none if they stay.
    :param kind: kind of the commit.
    :param delete_on_conflict: files written for it, to be deleted if the commit fails.
    :param delete_on_success: files that are not needed if the commit succeeds.
    :param may_be_made: whether it is possible that a commit that has failed was made all the same: then its files must
        stay, until they are deleted as abandoned ones.
    """

    operations: list[FileOperation] = field(default_factory=list)
    definition: Sequence[Mapping[str, Any]] = ()
    kind: CommitKind = CommitKind.MERGE
    delete_on_conflict: list[str] = field(default_factory=list)
    delete_on_success: list[str] = field(default_factory=list)
    may_be_made: bool = False


def dead_rows_of(commit: FileCommit) -> dict[str, BitMap]:
    """Return the dead rows of the files whose deletion vectors a commit writes, by path."""
    dead = {}
    for operation in commit.operations:
        if isinstance(operation, MarkRowsDead) or (isinstance(operation, AddFile) and operation.dead):
            dead[operation.file.path] = operation.dead
    return dead
