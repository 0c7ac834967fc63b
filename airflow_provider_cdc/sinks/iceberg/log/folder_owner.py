"""Which table a folder belongs to: a file in it names the one that may delete files there.

Two catalogs, or two names that differ only in case, can have tables in one folder. Each of them would take the files of
the other for abandoned ones.
"""

from __future__ import annotations

from airflow_provider_cdc.model.errors import TerminalError
from airflow_provider_cdc.model.json_record import JsonRecord
from airflow_provider_cdc.sinks.iceberg.log.retained_files import METADATA_FOLDER, is_manifest_list
from airflow_provider_cdc.sinks.lake.table_checks import check_no_other_format
from airflow_provider_cdc.sinks.storage.storage import Storage, read_record, write_json_once

#: The file. Spark's ``remove_orphan_files``, which deletes files that no snapshot uses, skips names like this one.
OWNER_FILE = f"{METADATA_FOLDER}/_airflow-cdc-table.json"


class FolderOwner(JsonRecord, frozen=True):
    """The table that a folder belongs to.

    :param table_uuid: its uuid, which no other table has.
    :param table: its name in its catalog, for messages.
    :param catalog: what messages call the catalog.
    """

    table_uuid: str
    table: str
    catalog: str


def check_folder_is_free(storage: Storage, name: str) -> None:
    """Refuse to create a table in a folder that belongs to another one, or has files of one, of whatever format.

    :param storage: storage of the folder.
    :param name: name of the new table in messages.
    :raises TerminalError: if it does.
    """
    check_no_other_format(storage, name, "a Delta table", "_delta_log", lambda _path: True)
    owner = read_record(storage, OWNER_FILE, FolderOwner)
    if owner is not None:
        raise _make_error(storage, name, owner)
    if any(is_manifest_list(path) for path, _ in storage.list(METADATA_FOLDER)):
        raise TerminalError(
            f"the folder {storage.location()} of the {name} has the files of another table",
            "Use another sink.path or sink.table_path; or remove the folder, if no catalog has that table any more",
        )


def take_folder(storage: Storage, name: str, table: FolderOwner) -> None:
    """Let a folder belong to a table from now on, unless it belongs to one.

    :param storage: storage of the folder.
    :param name: name of the table in messages.
    :raises TerminalError: if it belongs to another table.
    """
    owner = read_record(storage, OWNER_FILE, FolderOwner)
    if owner is None and not write_json_once(storage, OWNER_FILE, table.to_json()):
        owner = read_record(storage, OWNER_FILE, FolderOwner)  # another process was faster
    if owner is not None and owner.table_uuid != table.table_uuid:
        raise _make_error(storage, name, owner)


def check_may_delete_folder(storage: Storage, name: str, table_uuid: str | None) -> None:
    """Refuse to delete a folder that belongs to another table.

    :param storage: storage of the folder.
    :param name: name of the table in messages.
    :param table_uuid: uuid of the table; ``None`` if its catalog does not have it.
    :raises TerminalError: if it does.
    """
    owner = read_record(storage, OWNER_FILE, FolderOwner)
    if owner is not None and owner.table_uuid != table_uuid:
        raise _make_error(storage, name, owner)


def _make_error(storage: Storage, name: str, owner: FolderOwner) -> TerminalError:
    return TerminalError(
        f"the folder {storage.location()} of the {name} belongs to table {owner.table} ({owner.table_uuid}) of the "
        f"{owner.catalog}: nothing was written or deleted there",
        "Use another sink.path or sink.table_path; or remove the folder, if no catalog has that table any more",
    )
