"""Uninstall a pipeline: delete its internal data and, if requested, its tables.

Tables are deleted first and the plan last, because the plan lists the tables: so a killed run can be repeated.
"""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_cdc.model.errors import AlreadyRunningError, TransientError
from airflow_provider_cdc.model.plan import Plan
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.sinks.protocol import HasOwner, Registered
from airflow_provider_cdc.sinks.storage.storage import Storage
from airflow_provider_cdc.snapshot.claims import find_active_reader
from airflow_provider_cdc.state import StateDatabase
from airflow_provider_cdc.system.failpoints import failpoint

#: Staged files of epochs before this one are deleted.
_ALL_EPOCHS = 1 << 62


@dataclass(frozen=True)
class Folder:
    """A folder of the sink, or of this host.

    :param name: path below ``sink.path``; empty for a folder of this host.
    :param location: its human-readable location.
    :param file_count: number of files in it.
    :param size: size of these files in bytes.
    :param table: the table that it contains, ``database.table``; empty if it contains none.
    """

    name: str
    location: str
    file_count: int
    size: int
    table: str = ""


@dataclass(frozen=True)
class PipelineData:
    """All data of a pipeline.

    :param plan: its plan, if it still exists.
    :param row_counts: number of its rows in the state database, by table of that database.
    :param internal_folders: folders with its internal data.
    :param table_folders: folders of its sink tables.
    """

    plan: Plan | None
    row_counts: dict[str, int]
    internal_folders: list[Folder]
    table_folders: list[Folder]


def open_state_database(context: RunContext) -> StateDatabase | None:
    """Open the state database of a pipeline; return ``None`` if it is a file that does not exist."""
    if context.state_url is None and not context.local_files.state_database.exists():
        return None
    return context.open_state_database()


def find_pipeline_data(context: RunContext, store: StateDatabase | None) -> PipelineData:
    """Return all data of a pipeline.

    :param store: as returned by :func:`open_state_database`.
    :raises AlreadyRunningError: if a stream or a snapshot is running.
    """
    name, layout, storage = context.pipeline.name, context.layout, context.storage
    plan = context.plans.load()
    if store is not None:
        context.liveness.refuse_if_running(store, name)
        if plan is not None and (active_group := find_active_reader(store, plan)) is not None:
            raise AlreadyRunningError(
                f"chunk group {active_group.group_no} of {name} is being read by {active_group.holder}",
                "Wait until it ends, or stop it",
            )
    internal_folders = [
        _measure_folder(storage, layout.resume_point_folder),
        _measure_folder(storage, layout.pipeline_folder),
    ]
    local = context.local_files.folder
    if storage.is_remote and local.is_dir():
        sizes = [path.stat().st_size for path in local.rglob("*") if path.is_file()]
        internal_folders.append(Folder("", f"{local} on this host", len(sizes), sum(sizes)))
    table_folders = list[Folder]()
    for table in plan.tables if plan is not None else ():
        target = context.sink.table(table)
        folder = layout.table_folder(table)  # other tables may be copied into the same one
        is_listed = any(listed.name == folder for listed in table_folders)
        if not is_listed and target.exists() and isinstance(target, HasOwner) and target.owner() == name:
            table_folders.append(_measure_folder(storage, folder, table.label))
    rows = store.count_rows_by_table(name) if store is not None else {}
    return PipelineData(plan, rows, [folder for folder in internal_folders if folder.file_count], table_folders)


def delete_pipeline(
    context: RunContext, store: StateDatabase | None, data: PipelineData, *, delete_tables: bool
) -> None:
    """Delete the data of a pipeline, and close the state database.

    :param data: as returned by :func:`find_pipeline_data`.
    :param delete_tables: whether to delete the sink tables as well.
    :raises TransientError: if some of the data is still there afterwards.
    """
    storage, layout, plan = context.storage, context.layout, data.plan
    if delete_tables:
        tables = {table.label: table for table in (plan.tables if plan is not None else ())}
        for folder in data.table_folders:
            _delete_registered(context.sink.table(tables[folder.table]))
            _delete_folder(storage, folder.name)
            failpoint("forget.after_table")
    elif plan is not None:
        context.sink.change_staging().clear_older_epochs(plan.tables, _ALL_EPOCHS)
    _delete_registered(context.sink.resume_point())
    _delete_folder(storage, layout.resume_point_folder)
    state_file = f"{layout.pipeline_folder}/{context.local_files.state_database.name}"
    for name, _ in [*storage.list(layout.pipeline_folder)]:
        if name != layout.plan and not name.startswith(state_file):
            storage.delete(name)
    failpoint("forget.before_plan")
    storage.delete(layout.plan)
    if store is not None:
        store.delete_pipeline(context.pipeline.name)
        store.close()  # if it is a file of this pipeline, it is deleted next
    failpoint("forget.before_books")
    _delete_folder(storage, layout.pipeline_folder)
    if storage.is_remote:
        context.local_files.remove_folder()


def _measure_folder(storage: Storage, name: str, table: str = "") -> Folder:
    sizes = [size for _, size in storage.list(name)]
    return Folder(name, storage.location(name), len(sizes), sum(sizes), table)


def _delete_registered(target: object) -> None:
    """Delete a table, or the resume point, that something else than its folder knows of."""
    if isinstance(target, Registered):
        target.delete()


def _delete_folder(storage: Storage, name: str) -> None:
    storage.delete_folder(name)
    if left := next(iter(storage.list(name)), None):
        raise TransientError(
            f"{storage.location(left[0])} could not be deleted",
            "Check the permissions of the folder, then run this again",
        )
