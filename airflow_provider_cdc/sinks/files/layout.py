"""Names of files and folders below ``sink.path``.

::

    <database>/<table>/                                   the table, unless sink.table_path says where
    <database>/<table>/snapshot/<gen>/<group>/<attempt>/  slices of the snapshot, each next to its manifest; if several
                                                          source tables are copied into this one, below
                                                          snapshot/<source database.table>/
    _cdc_progress/<pipeline>/                             the stream's resume point
    _cdc/<pipeline>/                                      plan, manifests, signals, staged batches; and local files,
                                                          if it is a folder

Names never change, so that a copy made by an older version can be continued.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from airflow_provider_cdc.config.store_address import StoreAddress, local_folder_of
from airflow_provider_cdc.config.table_paths import DEFAULT_TABLE_PATHS, TablePaths, folder_name, url_escaped_characters
from airflow_provider_cdc.model.errors import NotReadyError
from airflow_provider_cdc.model.plan import STORED_GROUP_PLAN, Plan
from airflow_provider_cdc.model.plan_history import STORED_AMENDMENT, Amendment, FollowedDdl, Rejoin, StoredAmendment
from airflow_provider_cdc.model.schema import TableSchema
from airflow_provider_cdc.sinks.storage.storage import Storage, read_record
from airflow_provider_cdc.system import permissions

#: Folder of slices in the folder of a table.
SLICES_FOLDER = "snapshot"
#: Longest name of a folder that every file system takes.
_MAX_NAME_BYTES = 240


def slices_folder(source: str | None) -> str:
    """Return the folder of slices in the folder of a table.

    :param source: ``database.table`` that they are read from, if others are copied into the same table.
    """
    if source is None:
        return SLICES_FOLDER
    name = folder_name(source)
    if url_escaped_characters(name) or len(name.encode()) > _MAX_NAME_BYTES:
        # Readers that take locations for URLs would not find the file, and with it nothing of the whole table.
        name = f"source.{hashlib.sha256(source.encode()).hexdigest()}"
    return f"{SLICES_FOLDER}/{name}"


class Layout:
    """File and folder names of one pipeline in the storage of its sink.

    :param pipeline: name of the pipeline.
    :param table_paths: how the folders of tables are named.
    """

    def __init__(self, pipeline: str, table_paths: TablePaths = DEFAULT_TABLE_PATHS) -> None:
        self._table_paths = table_paths
        #: Folder of the files for the pipeline's own use.
        self.pipeline_folder = f"_cdc/{pipeline}"
        #: Folder of the resume point.
        self.resume_point_folder = f"_cdc_progress/{pipeline}"
        self.plan = f"{self.pipeline_folder}/plan.json"
        #: End of the current or last batch; written before the first commit of the batch.
        self.current_batch = f"{self.pipeline_folder}/batch.json"
        #: Folder of staged batches, with a subfolder per epoch.
        self.change_staging_folder = f"{self.pipeline_folder}/staging"

    def next_plan(self, generation: int) -> str:
        """Return the file for the plan of a replacement snapshot; written once, before it becomes :attr:`plan`."""
        return f"{self.pipeline_folder}/plans/{generation}.json"

    def amendments_folder(self, generation: int) -> str:
        """Return the folder of a snapshot's amendments."""
        return f"{self.pipeline_folder}/amended/{generation}"

    def amendment(self, generation: int, table: int, revision: int) -> str:
        """Return the file for the new plan of a table that was altered during its snapshot; written once."""
        return f"{self.amendments_folder(generation)}/{table}-{revision}.json"

    def definition(self, generation: int, table: int, seq: int) -> str:
        """Return the file for the definition of a table after a followed DDL with this ``_cdc_seq``; written once."""
        return f"{self.amendments_folder(generation)}/{table}-at-{seq}.json"

    def suspension(self, generation: int, table: int, revision: int) -> str:
        """Return the file that records why and where a revision of a table was suspended; written once."""
        return f"{self.amendments_folder(generation)}/{table}-suspended-{revision}.json"

    def addition(self, generation: int, table: int) -> str:
        """Return the file for a table that was added to the plan; written once."""
        return f"{self.amendments_folder(generation)}/{table}-added.json"

    def table_folder(self, table: TableSchema) -> str:
        """Return the folder of a table."""
        return self._table_paths.path_of(*table.id)

    @property
    def all_groups_folder(self) -> str:
        """The folder of the chunk groups of all generations."""
        return f"{self.pipeline_folder}/groups"

    def groups_folder(self, generation: int) -> str:
        """Return the parent folder of the folders of a snapshot's chunk groups."""
        return f"{self.all_groups_folder}/{generation}"

    def group_folder(self, generation: int, group: int) -> str:
        """Return the folder of a chunk group's manifests, with one file per attempt."""
        return f"{self.groups_folder(generation)}/{group}"

    def group_plan(self, generation: int, group: int) -> str:
        """Return the file for a chunk group's part of the plan, which its tasks read instead of the whole plan."""
        return f"{self.group_folder(generation, group)}/plan.json"

    def attempt_manifest(self, generation: int, group: int, attempt: int) -> str:
        """Return the manifest file of one attempt at a group."""
        return f"{self.group_folder(generation, group)}/attempt-{attempt}.json"

    def resnapshots_folder(self, generation: int) -> str:
        """Return the folder of re-snapshots, with one file for each number drawn."""
        return f"{self.pipeline_folder}/readings/{generation}"

    def resnapshot(self, generation: int, number: int) -> str:
        """Return the file that defines a re-snapshot; written once, by the process that draws its number."""
        return f"{self.resnapshots_folder(generation)}/{number}.json"

    def resnapshot_outcome(self, generation: int, number: int) -> str:
        """Return the file for the outcome of a re-snapshot of a table or of key ranges."""
        return f"{self.group_folder(generation, number)}/outcome.json"

    def signals_folder(self, generation: int, group: int, attempt: int) -> str:
        """Return the folder of signals between driver and readers of an attempt; removed when the attempt ends."""
        return f"{self.group_folder(generation, group)}/notes-{attempt}"

    def task_request(self, generation: int, group: int, task: str) -> str:
        """Return the file for the last request of a scheduler task for which a chunk group was finished."""
        return f"{self.group_folder(generation, group)}/tasks/{hashlib.sha256(task.encode()).hexdigest()[:32]}.json"

    def slices_folder(self, table: TableSchema, generation: int, group: int) -> str:
        """Return the folder of a group's slices of one table, with a subfolder per attempt."""
        source = table.label if table.shared else None
        return f"{self.table_folder(table)}/{slices_folder(source)}/{generation}/{group}"

    def slice_manifest(self, table: TableSchema, generation: int, group: int, attempt: int, number: int) -> str:
        """Return the manifest file of a slice; written once, when the slice is complete."""
        return f"{self.slices_folder(table, generation, group)}/{attempt}/slice-{number:05d}.json"

    def coverage(self, generation: int, table: int) -> str:
        """Return the file with the high watermarks of a table's chunks, for tasks that have its keys in clear."""
        return f"{self.groups_folder(generation)}/coverage-{table}.json"

    def staged_reads_folder(self, generation: int) -> str:
        """Return the folder of staged reads, with one file for each attempt that waits to be published."""
        return f"{self.pipeline_folder}/staged/{generation}"

    def reload_request(self, generation: int) -> str:
        """Return the file that lists the tables that the running stream is to copy from now on."""
        return f"{self.staged_reads_folder(generation)}/reload.json"


@dataclass(frozen=True)
class LocalFiles:
    """Files that a pipeline keeps in a file system of its own host, whatever storage its sink uses.

    None of them decides about rows: the state database mirrors the sink, and each epoch starts with an empty Spark
    checkpoint.

    :param folder: folder of the files.
    """

    folder: Path

    @classmethod
    def for_pipeline(cls, path: str | Path, pipeline: str) -> LocalFiles:
        """Return the local files of a pipeline.

        They are next to the plan if the sink is a folder, otherwise in a state folder on this host.

        :param path: ``sink.path``.
        :param pipeline: name of the pipeline.
        """
        address = StoreAddress.parse(str(path))
        if address is None:
            return cls(Path(local_folder_of(str(path)) or path) / Layout(pipeline).pipeline_folder)
        digest = hashlib.sha256(address.display().encode()).hexdigest()[:12]
        return cls(_local_state_folder() / f"{pipeline}-{digest}")

    @property
    def state_database(self) -> Path:
        """SQLite file of the state database, unless ``state.conn_id`` names another database."""
        return self.folder / "bookkeeping.db"

    @property
    def log_folder(self) -> Path:
        """Folder of the logs of streams started by Airflow."""
        return self.folder / "logs"

    def checkpoint_folder(self, epoch: int, section: int) -> Path:
        """Return the folder of Spark's checkpoint for one section of an epoch."""
        return self.folder / "checkpoint" / f"epoch-{epoch}" / str(section)

    def clear_checkpoints(self) -> None:
        """Delete the checkpoints of all epochs."""
        shutil.rmtree(self.folder / "checkpoint", ignore_errors=True)

    def remove_folder(self) -> None:
        """Delete the folder with everything in it."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def create_folder(self) -> None:
        """Create the folder, accessible only to the owner and their group: conditions of control requests name keys."""
        permissions.make_folder_denying_others(self.folder)


def _local_state_folder() -> Path:
    """Return the folder for state of this user; a run on another host finds none there and rebuilds it."""
    configured = os.environ.get("AIRFLOW_CDC_STATE_DIR", "")
    if configured:
        if not os.path.isabs(configured):
            raise NotReadyError(
                "AIRFLOW_CDC_STATE_DIR is not an absolute path", "Set it to the absolute path of a folder on this host"
            )
        return Path(configured)
    state = os.environ.get("XDG_STATE_HOME", "")
    try:
        parent = Path(state) if os.path.isabs(state) else Path.home() / ".local" / "state"
    except RuntimeError:  # a user without a home directory
        raise NotReadyError(
            "there is no folder for the state database: this user has no home directory",
            "Name a database in state.conn_id, or a folder on this host in AIRFLOW_CDC_STATE_DIR",
        ) from None
    return parent / "airflow-provider-cdc"


def read_plan(storage: Storage, layout: Layout) -> Plan | None:
    """Return the plan in the sink with all of its amendments, or ``None`` if there is none."""
    plan = read_record(storage, layout.plan, Plan)
    return None if plan is None else plan.with_amendments(read_amendments(storage, layout, plan.generation))


def read_group_plan(storage: Storage, name: str) -> Plan | None:
    """Return the plan that a chunk group is read with, or ``None`` if there is none.

    :param name: name of its file.
    """
    stored = read_record(storage, name, STORED_GROUP_PLAN)
    return stored if stored is None or isinstance(stored, Plan) else stored.to_plan()


def read_amendments(storage: Storage, layout: Layout, generation: int) -> list[StoredAmendment]:
    """Return the stored amendments of a snapshot, in any order."""
    while True:
        names = list_amendments(storage, layout, generation)
        amendments = [read_record(storage, name, STORED_AMENDMENT) for name in names]
        existing = [amendment for amendment in amendments if amendment is not None]
        if len(existing) == len(names):
            return existing
        # One was removed after it was listed: a newer one of its table exists, which may not have been listed.


def amendment_file(layout: Layout, generation: int, amendment: Amendment) -> str:
    """Return the name of the file that stores an amendment."""
    if isinstance(amendment, FollowedDdl):
        return layout.definition(generation, amendment.table, amendment.seq)
    if isinstance(amendment, Rejoin):
        return layout.amendment(generation, amendment.table, amendment.revision)
    if amendment.schema is not None:
        return layout.addition(generation, amendment.table)
    return layout.suspension(generation, amendment.table, amendment.revision)


def list_amendments(storage: Storage, layout: Layout, generation: int) -> list[str]:
    """Return the names of the files of a snapshot's amendments, in any order."""
    return [name for name, _ in storage.list(layout.amendments_folder(generation)) if name.endswith(".json")]
