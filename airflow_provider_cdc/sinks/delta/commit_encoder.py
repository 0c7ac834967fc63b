"""Encodes what a commit does to files as actions of the Delta log."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from airflow_provider_cdc.sinks.delta.log.deletion_vectors import write_vectors
from airflow_provider_cdc.sinks.delta.log.delta_log import DeltaLog
from airflow_provider_cdc.sinks.delta.log.live_file import add_action
from airflow_provider_cdc.sinks.lake.log.file_commit import (
    AddFile,
    CommitKind,
    FileCommit,
    MarkRowsDead,
    RemoveFile,
    dead_rows_of,
)
from airflow_provider_cdc.sinks.lake.log.source_scope import WHOLE_TABLE, SourceScope


def encode_operations(log: DeltaLog, commit: FileCommit, stats_column: str | None) -> list[dict[str, Any]]:
    """Return the actions for the files of a commit, and write its deletion vectors to one file.

    A file whose dead rows change is removed and added again.

    :param log: the current state of the table.
    :param commit: the commit, to which the file of the vectors is added as one to delete on conflict.
    :param stats_column: name of the single integer key column.
    """
    data_change = commit.kind is not CommitKind.OPTIMIZE
    vectors = write_vectors(log.storage, dead_rows_of(commit))
    commit.delete_on_conflict += {vector.file_name for vector in vectors.values() if vector.file_name}
    actions, added_again = list[dict[str, Any]](), list[dict[str, Any]]()
    for operation in commit.operations:
        match operation:
            case AddFile(data_file):
                vector = vectors.get(data_file.path)
                actions += [*added_again, add_action(data_file, stats_column, vector, data_change=data_change)]
                added_again = []
            case RemoveFile(file):
                actions.append(log.files[file.path].remove_action(data_change=data_change))
            case MarkRowsDead(file, _, row_count):
                live_file, vector = log.files[file.path], vectors[file.path]
                actions.append(live_file.remove_action(data_change=data_change))
                added_again.append(live_file.vector_action(vector, row_count, data_change=data_change))
    return actions + added_again


def marker_actions(markers: Mapping[str, int], scope: SourceScope = WHOLE_TABLE) -> list[dict[str, Any]]:
    """Return the actions that write markers.

    :param scope: whose markers they are.
    """
    now = int(time.time() * 1000)
    stored = {scope.stored_marker(name): value for name, value in markers.items()}
    return [{"txn": {"appId": name, "version": value, "lastUpdated": now}} for name, value in stored.items()]
