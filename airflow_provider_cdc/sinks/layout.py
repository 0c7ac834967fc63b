"""Names of files and folders below ``sink.path``.

::

    <path>/<database>/<table>/                                   the Delta table
    <path>/<database>/<table>/snapshot/<gen>/<group>/<attempt>/  files of the snapshot, each with its manifest beside it
    <path>/_cdc_progress/<pipeline>/                             Delta table with the stream's resume point
    <path>/_cdc/<pipeline>/                                      plan, manifests, bookkeeping, checkpoints, staging
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import uuid
from pathlib import Path
from typing import Any

from airflow_provider_cdc import rights
from airflow_provider_cdc.core.plan import Plan
from airflow_provider_cdc.core.schema import TableSchema


def folder(name: str) -> str:
    r"""Folder name of a database or table: the name, with ``/ \ % =`` and control characters as ``=XX``.

    Percent signs are escaped since Delta readers take paths for URLs and decode them; a leading dot, and names that
    begin like the project's and Delta's own folders, so that they are not taken for those.
    """
    return re.sub(r"[/\\%=\x00-\x1f\x7f]|^\.|^_(?=cdc|delta_log)", lambda m: f"={ord(m[0]):02X}", name)


class Layout:
    """Paths of one pipeline's sink.

    :param root: ``sink.path``.
    :param pipeline: name of the pipeline.
    """

    def __init__(self, root: str | Path, pipeline: str) -> None:
        self.root = Path(root).absolute()
        self.private = self.root / "_cdc" / pipeline
        self.progress = self.root / "_cdc_progress" / pipeline
        self.plan = self.private / "plan.json"
        #: Where the batch ends that is being applied, or was the last one; written before its first commit.
        self.batch = self.private / "batch.json"
        self.bookkeeping = self.private / "bookkeeping.db"

    def next_plan(self, generation: int) -> Path:
        """The plan of a snapshot that takes the place of another; written once, before it becomes :attr:`plan`."""
        return self.private / "plans" / f"{generation}.json"

    def amendment(self, generation: int, table: int, revision: int) -> Path:
        """How a table was planned again after it was altered during its snapshot; written once."""
        return self.private / "amended" / str(generation) / f"{table}-{revision}.json"

    def table(self, table: TableSchema) -> Path:
        """Folder of a table's Delta table."""
        return self.root / folder(table.database) / folder(table.name)

    def group(self, generation: int, group: int) -> Path:
        """Folder of a chunk group's manifests; one file an attempt."""
        return self.private / "groups" / str(generation) / str(group)

    def share(self, generation: int, group: int) -> Path:
        """A chunk group's share of the plan: what its tasks read in place of the whole."""
        return self.group(generation, group) / "plan.json"

    def attempt(self, generation: int, group: int, attempt: int) -> Path:
        """Manifest of one attempt of a group."""
        return self.group(generation, group) / f"attempt-{attempt}.json"

    def notes(self, generation: int, group: int, attempt: int) -> Path:
        """Folder of the notes between driver and readers of an attempt; gone when it ends."""
        return self.group(generation, group) / f"notes-{attempt}"

    def request(self, generation: int, group: int, task: str) -> Path:
        """Which request of a scheduler's task a chunk group was last finished for; one file a task."""
        return self.group(generation, group) / "tasks" / f"{hashlib.sha256(task.encode()).hexdigest()[:32]}.json"

    def files(self, table: TableSchema, generation: int, group: int) -> Path:
        """Folder of a group's data files of one table; one folder an attempt below."""
        return self.table(table) / "snapshot" / str(generation) / str(group)

    def staged(self, generation: int) -> Path:
        """Folder that names the attempts that were read again and wait to be published; one file an attempt."""
        return self.private / "staged" / str(generation)

    def epoch(self, kind: str, epoch: int) -> Path:
        """Folder of one stream epoch: ``checkpoint`` or ``staging``."""
        return self.private / kind / f"epoch-{epoch}"


def make_private(layout: Layout) -> None:
    """Make the folder of what the pipeline writes for itself: bounds of keys are in the plan and in the bookkeeping."""
    rights.make_private(layout.private)


def read_plan(layout: Layout) -> Plan | None:
    """The plan in the sink with all of its amendments; ``None`` if there is none."""
    found = read_json(layout.plan)
    if found is None:
        return None
    plan = Plan.from_json(found)
    amendments = layout.amendment(plan.generation, 0, 0).parent.glob("*.json")
    return plan.amended(map(read_json, amendments))


def write_json(path: Path, value: Any) -> None:
    """Write JSON so that the file is there whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    temporary.write_text(json.dumps(value))
    os.replace(temporary, path)


def write_json_once(path: Path, value: Any) -> bool:
    """Like :func:`write_json`, but a file that is there stays.

    :returns: whether it was written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    temporary.write_text(json.dumps(value))
    try:
        os.link(temporary, path)
        return True
    except FileExistsError:
        return False
    finally:
        temporary.unlink()


def whole_json(path: Path) -> Any:
    """Like :func:`read_json`, and ``None`` also if the file was damaged, as when its host lost power."""
    try:
        return read_json(path)
    except ValueError:
        return None


def read_json(path: Path) -> Any:
    """JSON value of a file, ``None`` if it does not exist."""
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        return None
