"""Uninstalling a pipeline: what it has written for itself goes, and its tables if that is wanted.

Tables go first and the plan last, so that a run that was killed can be repeated: the plan says which tables there are.
"""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_cdc.model.errors import AlreadyRunningError, TransientError
from airflow_provider_cdc.model.plan import Plan
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.sinks.protocol import HasOwner
from airflow_provider_cdc.sinks.storage.storage import Storage
from airflow_provider_cdc.snapshot.claims import find_active_reader
from airflow_provider_cdc.state import StateDatabase
from airflow_provider_cdc.system.failpoints import failpoint

#: What was staged by epochs before this one goes.
_ALL_EPOCHS = 1 << 62


@dataclass(frozen=True)
class Folder:
    """A folder of the sink, or of this host.

    :param name: below ``sink.path``; empty for one of this host.
    :param location: for people.
    :param file_count: how many there are in it.
    :param size: of these in bytes.
    :param table: the table that it is, ``database.table``; empty if it is none.
    """

    name: str
    location: str
    file_count: int
    size: int
    table: str = ""


@dataclass(frozen=True)
class PipelineData:
    """All that is left of a pipeline.

    :param plan: its plan, if it is still there.
    :param row_counts: of the bookkeeping, by table.
    :param internal_folders: folders of what it has written for itself.
    :param table_folders: its copies.
    """

    plan: Plan | None
    row_counts: dict[str, int]
    internal_folders: list[Folder]
    table_folders: list[Folder]


def open_state_database(context: RunContext) -> StateDatabase | None:
    """The bookkeeping of a pipeline; ``None`` if it is a file that is not there."""
    if context.state_url is None and not context.local_files.state_database.exists():
        return None
    return context.open_state_database()


def find_pipeline_data(context: RunContext, store: StateDatabase | None) -> PipelineData:
    """Look what there is.

    :param store: as of :func:`bookkeeping`.
    :raises AlreadyRunningError: if a stream or a snapshot runs.
    """
    name, layout, storage = context.pipeline.name, context.layout, context.storage
    plan = context.load_plan()
    if store is not None:
        context.liveness.refuse_if_running(store, name)
        if plan is not None and (active_group := find_active_reader(store, plan)) is not None:
            raise AlreadyRunningError(
                f"chunk group {active_group.group_no} of {name} is being read by {active_group.holder}",
                "Wait for its end, or end it",
            )
    internal_folders = [
        _measure_folder(storage, layout.resume_point_folder),
        _measure_folder(storage, layout.pipeline_folder),
    ]
    local = context.local_files.folder
    if storage.is_remote and local.is_dir():
        sizes = [path.stat().st_size for path in local.rglob("*") if path.is_file()]
        internal_folders.append(Folder("", f"{local} on this host", len(sizes), sum(sizes)))
    table_folders = []
    for table in plan.tables if plan is not None else ():
        target = context.sink.table(table)
        if target.exists() and isinstance(target, HasOwner) and target.owner() == name:
            table_folders.append(_measure_folder(storage, layout.table_folder(table), table.label))
    rows = store.count_rows_by_table(name) if store is not None else {}
    return PipelineData(plan, rows, [folder for folder in internal_folders if folder.file_count], table_folders)


def delete_pipeline(
    context: RunContext, store: StateDatabase | None, data: PipelineData, *, delete_tables: bool
) -> None:
    """Delete it. The bookkeeping is closed.

    :param data: as :func:`belongings` has it.
    :param delete_tables: whether the copies go, too.
    :raises TransientError: if something is still there afterwards.
    """
    storage, layout, plan = context.storage, context.layout, data.plan
    if delete_tables:
        for folder in data.table_folders:
            _delete_folder(storage, folder.name)
            failpoint("forget.after_table")
    elif plan is not None:
        context.sink.change_staging().clear_older_epochs(plan.tables, _ALL_EPOCHS)
    _delete_folder(storage, layout.resume_point_folder)
    state_file = f"{layout.pipeline_folder}/{context.local_files.state_database.name}"
    for name, _ in [*storage.list(layout.pipeline_folder)]:
        if name != layout.plan and not name.startswith(state_file):
            storage.delete(name)
    failpoint("forget.before_plan")
    storage.delete(layout.plan)
    if store is not None:
        store.delete_pipeline(context.pipeline.name)
        store.close()  # a file of its own is about to go
    failpoint("forget.before_books")
    _delete_folder(storage, layout.pipeline_folder)
    if storage.is_remote:
        context.local_files.remove_folder()


def _measure_folder(storage: Storage, name: str, table: str = "") -> Folder:
    sizes = [size for _, size in storage.list(name)]
    return Folder(name, storage.location(name), len(sizes), sum(sizes), table)


def _delete_folder(storage: Storage, name: str) -> None:
    storage.delete_folder(name)
    if left := next(iter(storage.list(name)), None):
        raise TransientError(
            f"{storage.location(left[0])} could not be deleted", "Look at the rights of the folder, and run this again"
        )
