"""Which tables may be written to: checks of the properties that this project keeps in each of its tables."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from airflow_provider_cdc.config.delete_policy import HARD
from airflow_provider_cdc.config.table_properties import OWN_PREFIX
from airflow_provider_cdc.model.column_policy import UNIQUE_KEY
from airflow_provider_cdc.model.errors import NotReadyError, TerminalError
from airflow_provider_cdc.sinks.lake.log.table_log import TableLog
from airflow_provider_cdc.sinks.lake.merge.partitions import SETTING, TableFormat
from airflow_provider_cdc.sinks.lake.table_options import TableOptions
from airflow_provider_cdc.sinks.storage.storage import Storage

#: Property of a table: the pipeline that owns it.
OWNER_PROPERTY = f"{OWN_PREFIX}pipeline"
#: Property of a table that keeps rows deleted in the source: ``sink.deletes``.
DELETES_PROPERTY = f"{OWN_PREFIX}deletes"
#: Property of a table: the source table of which it is the copy.
SOURCE_PROPERTY = f"{OWN_PREFIX}source"
#: Property of a table that several source tables are copied into: how its rows are identified.
SHARED_PROPERTY = f"{OWN_PREFIX}shared"
#: Property of a table that was overwritten or is shared: the columns of its key, which nothing else in its log records.
KEY_PROPERTY = f"{OWN_PREFIX}key"
OVERWRITTEN_REMEDY = "Other software did that, and what it has written would be lost: use a fresh sink.path"


def owner_of(properties: Mapping[str, str]) -> str | None:
    """Return the pipeline that owns a table, or ``None`` if no pipeline does.

    :param properties: properties of the table.
    """
    return properties.get(OWNER_PROPERTY)


def key_property_value(key_columns: Sequence[str]) -> str:
    """Return the value of :data:`KEY_PROPERTY` for the columns of a key."""
    return json.dumps(list(key_columns), ensure_ascii=False)


#: Remedy for columns of tables that cannot be copied into one.
RENAME_REMEDY = (
    "Give the column another name in the copy (transforms.columns: rename), leave it out, or copy this table into "
    "another one (sink.routes)"
)

#: Remedy for a table whose key is not that of the others with which it shares a copy.
SHARED_KEY_REMEDY = (
    "Give the table the key of the others that share its copy, or copy it into another one (sink.routes)"
)


def other_type_error(log: TableLog, source: str, column: str, known: object, wanted: object) -> TerminalError:
    """Make the error for a column that has another type in a shared table than in one of its sources."""
    return TerminalError(
        f"column {column} of {source} is {wanted}, and {known} in the {log.name}, which has rows of other tables, too",
        RENAME_REMEDY,
        table=source,
    )


def check_not_replaced(log: TableLog, known_id: str | None) -> None:
    """Refuse a table that was replaced by another one.

    :param known_id: its number when it was last checked, if it was.
    :raises TerminalError: if it was replaced.
    """
    if known_id is not None and log.table_id != known_id:
        raise TerminalError(f"the {log.name} was replaced by another one", OVERWRITTEN_REMEDY)


def check_key(log: TableLog, key_columns: Sequence[str]) -> None:
    """Refuse a table that was given another key, by which this definition would not find its rows.

    :param key_columns: columns of the key; none if there is no key.
    :raises TerminalError: if the keys differ.
    """
    current_key = log.properties.get(KEY_PROPERTY)
    if current_key is not None and current_key != key_property_value(key_columns):
        raise TerminalError(f"the {log.name} has another key than its source table: {current_key}", OVERWRITTEN_REMEDY)


def check_owner(log: TableLog, pipeline: str) -> None:
    """Refuse a table that the pipeline does not own.

    :raises TerminalError: if another pipeline, or none, owns it.
    """
    owner, text = owner_of(log.properties), f"the {log.name} was not created by pipeline {pipeline}"
    if owner is None:
        raise TerminalError(
            text, "Choose another sink.path, or set sink.adopt: true, which replaces all rows of such a table"
        )
    if owner != pipeline:
        raise TerminalError(
            f"{text}, but by {owner}", "Choose another sink.path: only one pipeline may write to a table"
        )


def check_no_other_format(
    storage: Storage, name: str, other_format: str, folder: str, is_part: Callable[[str], bool]
) -> None:
    """Refuse to create a table in the folder of one of another format: each deletes files that it does not know.

    :param storage: storage of the folder.
    :param name: name of the new table in messages.
    :param other_format: what messages call the other table.
    :param folder: subfolder with the metadata of that format.
    :param is_part: tells from the path of a file there whether it belongs to a table of that format.
    :raises TerminalError: if the folder has such a file.
    """
    if any(is_part(path) for path, _ in storage.list(folder)):
        raise TerminalError(
            f"the folder {storage.location()} of the {name} has {other_format}: nothing was written there",
            "Choose another sink.path or sink.table_path; or, if nobody needs that table any more, remove the folder",
        )


def check_has_owner(log: TableLog) -> None:
    """Refuse a table that no pipeline owns.

    :raises TerminalError: if it has no owner.
    """
    if owner_of(log.properties) is None:
        raise TerminalError(
            f"the {log.name} belongs to no pipeline: it was replaced by another one, or created by other software",
            "Start with a fresh sink.path",
        )


def _describe_sharing(shared: str) -> str:
    if not shared:
        return "the copy of one table"
    return f"the copy of several tables{', whose keys are unique' if shared == UNIQUE_KEY else ''}"


def check_settings(log: TableLog, table_format: TableFormat, options: TableOptions) -> None:
    """Refuse a table that was created with other unchangeable settings, or for another source table.

    :raises TerminalError: if its partitioning differs.
    :raises NotReadyError: if its ``sink.deletes`` differs, or it is the copy of another table or of several ones.
    """
    table_shared = log.properties.get(SHARED_PROPERTY, "")
    if table_shared != options.shared:
        raise NotReadyError(
            f"the {log.name} was made as {_describe_sharing(table_shared)}, and sink.routes makes it "
            f"{_describe_sharing(options.shared)}",
            "Undo the change, or start with a fresh sink.path",
        )
    table_source, own_source = log.properties.get(SOURCE_PROPERTY), options.properties.get(SOURCE_PROPERTY)
    if table_source is not None and own_source is not None and table_source != own_source:
        raise NotReadyError(
            f"the {log.name} is the copy of table {table_source}, and not of {own_source}: their folders are the same "
            "there, as if case did not count",
            "Give the tables different folders in sink.table_path, or exclude one of them",
        )
    current_columns = list(log.partition_columns)
    if current_columns != table_format.columns:
        raise TerminalError(
            f"the {log.name} is partitioned by {', '.join(current_columns) or 'nothing'}, but {SETTING} says "
            f"{', '.join(table_format.columns) or 'nothing'}",
            "Undo the change, or start with a fresh sink.path: the partitioning is fixed when a table is created",
        )
    table_deletes = log.properties.get(DELETES_PROPERTY, HARD)
    if table_deletes != options.deletes:
        raise NotReadyError(
            f"the {log.name} was created with sink.deletes {table_deletes}, which is {options.deletes} now",
            f"It cannot be changed later: set it back to {table_deletes} for this table, or start with a fresh "
            "sink.path",
        )
