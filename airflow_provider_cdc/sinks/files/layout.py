"""Names of files and folders below ``sink.path``.

::

    <database>/<table>/                                   the table, unless sink.table_path says where
    <database>/<table>/snapshot/<gen>/<group>/<attempt>/  slices of the snapshot, each with its manifest beside it
    _cdc_progress/<pipeline>/                             the stream's resume point
    _cdc/<pipeline>/                                      plan, manifests, notes, staged batches; and the local files,
                                                          if it is a folder

A name never changes: a copy that was made by an older version goes on.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from airflow_provider_cdc.config.store_address import StoreAddress, local_folder_of
from airflow_provider_cdc.config.table_paths import DEFAULT_TABLE_PATHS, TablePaths
from airflow_provider_cdc.model.errors import NotReadyError
from airflow_provider_cdc.model.plan import Plan
from airflow_provider_cdc.model.plan_history import Amendment, FollowedDdl, Rejoin
from airflow_provider_cdc.model.schema import TableSchema
from airflow_provider_cdc.sinks.storage.storage import Storage, read_json
from airflow_provider_cdc.system import permissions as rights


class Layout:
    """Names of one pipeline, in the storage of its sink.

    :param pipeline: name of the pipeline.
    :param table_paths: how the folders of tables are named.
    """

    def __init__(self, pipeline: str, table_paths: TablePaths = DEFAULT_TABLE_PATHS) -> None:
        self._table_paths = table_paths
        #: Folder of what the pipeline writes for itself.
        self.pipeline_folder = f"_cdc/{pipeline}"
        #: Folder of the resume point.
        self.resume_point_folder = f"_cdc_progress/{pipeline}"
        self.plan = f"{self.pipeline_folder}/plan.json"
        #: Where the batch ends that is being applied, or was the last one; written before its first commit.
        self.current_batch = f"{self.pipeline_folder}/batch.json"
        #: Folder of staged batches; one folder an epoch below.
        self.change_staging_folder = f"{self.pipeline_folder}/staging"

    def next_plan(self, generation: int) -> str:
        """The plan of a snapshot that takes the place of another; written once, before it becomes :attr:`plan`."""
        return f"{self.pipeline_folder}/plans/{generation}.json"

    def amendments_folder(self, generation: int) -> str:
        """Folder of a snapshot's amendments."""
        return f"{self.pipeline_folder}/amended/{generation}"

    def amendment(self, generation: int, table: int, revision: int) -> str:
        """How a table was planned again after it was altered during its snapshot; written once."""
        return f"{self.amendments_folder(generation)}/{table}-{revision}.json"

    def definition(self, generation: int, table: int, seq: int) -> str:
        """What a table is behind a DDL that the stream has followed, by the DDL's ``_cdc_seq``; written once."""
        return f"{self.amendments_folder(generation)}/{table}-at-{seq}.json"

    def suspension(self, generation: int, table: int, revision: int) -> str:
        """Why and where a table was suspended, once a revision of its definitions; written once."""
        return f"{self.amendments_folder(generation)}/{table}-suspended-{revision}.json"

    def addition(self, generation: int, table: int) -> str:
        """A table that was added to the plan; written once."""
        return f"{self.amendments_folder(generation)}/{table}-added.json"

    def table_folder(self, table: TableSchema) -> str:
        """Folder of a table."""
        return self._table_paths.path_of(*table.id)

    def groups_folder(self, generation: int) -> str:
        """Folder of the folders of a snapshot's chunk groups."""
        return f"{self.pipeline_folder}/groups/{generation}"

    def group_folder(self, generation: int, group: int) -> str:
        """Folder of a chunk group's manifests; one file an attempt."""
        return f"{self.groups_folder(generation)}/{group}"

    def group_plan(self, generation: int, group: int) -> str:
        """A chunk group's share of the plan: what its tasks read in place of the whole."""
        return f"{self.group_folder(generation, group)}/plan.json"

    def attempt_manifest(self, generation: int, group: int, attempt: int) -> str:
        """Manifest of one attempt of a group."""
        return f"{self.group_folder(generation, group)}/attempt-{attempt}.json"

    def resnapshots_folder(self, generation: int) -> str:
        """Folder of what was read again: a file for each number that was drawn."""
        return f"{self.pipeline_folder}/readings/{generation}"

    def resnapshot(self, generation: int, number: int) -> str:
        """What a reading with a number reads again; written once, by whoever draws the number."""
        return f"{self.resnapshots_folder(generation)}/{number}.json"

    def resnapshot_outcome(self, generation: int, number: int) -> str:
        """How a reading of a table, or of ranges of its keys, has ended."""
        return f"{self.group_folder(generation, number)}/outcome.json"

    def signals_folder(self, generation: int, group: int, attempt: int) -> str:
        """Folder of the notes between driver and readers of an attempt; gone when it ends."""
        return f"{self.group_folder(generation, group)}/notes-{attempt}"

    def task_request(self, generation: int, group: int, task: str) -> str:
        """Which request of a scheduler's task a chunk group was last finished for; one file a task."""
        return f"{self.group_folder(generation, group)}/tasks/{hashlib.sha256(task.encode()).hexdigest()[:32]}.json"

    def slices_folder(self, table: TableSchema, generation: int, group: int) -> str:
        """Folder of a group's slices of one table; one folder an attempt below."""
        return f"{self.table_folder(table)}/snapshot/{generation}/{group}"

    def slice_manifest(self, table: TableSchema, generation: int, group: int, attempt: int, number: int) -> str:
        """Manifest of a slice, written once, when the slice is finished."""
        return f"{self.slices_folder(table, generation, group)}/{attempt}/slice-{number:05d}.json"

    def staged_reads_folder(self, generation: int) -> str:
        """Folder of what waits for the stream: a file for each attempt that was read again and is to be published."""
        return f"{self.pipeline_folder}/staged/{generation}"

    def reload_request(self, generation: int) -> str:
        """Which tables the running stream is asked to copy from now on."""
        return f"{self.staged_reads_folder(generation)}/reload.json"


@dataclass(frozen=True)
class LocalFiles:
    """What a pipeline keeps in a file system of the host that it runs on, whatever storage its sink is.

    None of it decides about rows: the bookkeeping is a mirror of the sink, and Spark's checkpoint begins anew with each
    epoch.

    :param folder: their folder.
    """

    folder: Path

    @classmethod
    def for_pipeline(cls, path: str | Path, pipeline: str) -> LocalFiles:
        """Those of a pipeline: beside the plan where the sink is a folder, else in a folder for state of this host.

        :param path: ``sink.path``.
        """
        address = StoreAddress.parse(str(path))
        if address is None:
            return cls(Path(local_folder_of(str(path)) or path) / Layout(pipeline).pipeline_folder)
        digest = hashlib.sha256(address.display().encode()).hexdigest()[:12]
        return cls(_local_state_folder() / f"{pipeline}-{digest}")

    @property
    def state_database(self) -> Path:
        """SQLite file of the bookkeeping, unless that is in a database of its own."""
        return self.folder / "bookkeeping.db"

    @property
    def log_folder(self) -> Path:
        """Folder of the logs of streams that Airflow has started."""
        return self.folder / "logs"

    def checkpoint_folder(self, epoch: int, section: int) -> Path:
        """Folder of Spark's checkpoint of one section of an epoch."""
        return self.folder / "checkpoint" / f"epoch-{epoch}" / str(section)

    def clear_checkpoints(self) -> None:
        """Remove those of all epochs."""
        shutil.rmtree(self.folder / "checkpoint", ignore_errors=True)

    def remove_folder(self) -> None:
        """Remove all of it."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def create_folder(self) -> None:
        """Make the folder, for nobody outside of the owner's group: the bookkeeping holds bounds of keys."""
        rights.make_private_folder(self.folder)


def _local_state_folder() -> Path:
    """Where programs of this user keep state: a run on another host finds none there, and makes it anew."""
    configured = os.environ.get("AIRFLOW_CDC_STATE_DIR", "")
    if configured:
        if not os.path.isabs(configured):
            raise NotReadyError("AIRFLOW_CDC_STATE_DIR is not an absolute path", "Name a folder of this host")
        return Path(configured)
    state = os.environ.get("XDG_STATE_HOME", "")
    try:
        parent = Path(state) if os.path.isabs(state) else Path.home() / ".local" / "state"
    except RuntimeError:  # a user without a home
        raise NotReadyError(
            "there is no folder for the bookkeeping: this user has no home",
            "Name a database in state.conn_id, or a folder of this host in AIRFLOW_CDC_STATE_DIR",
        ) from None
    return parent / "airflow-provider-cdc"


def read_plan(storage: Storage, layout: Layout) -> Plan | None:
    """The plan in the sink with all of its amendments; ``None`` if there is none."""
    plan_json = read_json(storage, layout.plan)
    if plan_json is None:
        return None
    plan = Plan.from_json(plan_json)
    while True:
        amendments = [read_json(storage, name) for name in list_amendments(storage, layout, plan.generation)]
        if None not in amendments:
            return plan.with_amendments(amendments)
        # One was removed since it was listed: so a newer one of its table is there, which may not have been listed.


def amendment_file(layout: Layout, generation: int, amendment: Amendment) -> str:
    """Name of the file in which a step is written down."""
    if isinstance(amendment, FollowedDdl):
        return layout.definition(generation, amendment.table, amendment.seq)
    if isinstance(amendment, Rejoin):
        return layout.amendment(generation, amendment.table, amendment.revision)
    if amendment.schema is not None:
        return layout.addition(generation, amendment.table)
    return layout.suspension(generation, amendment.table, amendment.revision)


def list_amendments(storage: Storage, layout: Layout, generation: int) -> list[str]:
    """Names of a snapshot's amendments, in any order."""
    return [name for name, _ in storage.list(layout.amendments_folder(generation)) if name.endswith(".json")]
