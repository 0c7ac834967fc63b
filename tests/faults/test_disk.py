"""A disk is full, in each phase: that of the copies, of staged changes, or of the state database."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.phases import Fault, World, failed
from tests.support.servers import MySQLServer


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 32 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", str(folder)], capture_output=True).returncode:
        pytest.skip("no file system may be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def full(disk: Path) -> Fault:
    """Nothing more can be written there."""
    filler = disk / "filler"

    def fill() -> None:
        with suppress(OSError), filler.open("wb", buffering=0) as file:
            for size in (1 << 16, 1):
                with suppress(OSError):
                    while file.write(bytes(size)) == size:
                        pass

    return Fault(fill, lambda: filler.unlink(missing_ok=True))


def only_verify_goes_on(said: Mapping[str, str]) -> None:
    """Of the phases that begin while the disk is full."""
    assert {place for place in said if place.endswith("the start")} - failed(said) == {"verify at the start"}, said


#: Where the failing disk is mounted. Staged changes are below the sink, and go there with it.
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_of_the_sink(mysql_server: MySQLServer, database: str, disk: Path, tmp_path: Path, kind: str) -> None:
    """With plan, staging and the catalog of Iceberg tables; the state database is elsewhere."""
    env = {"AIRFLOW_CONN_BOOKS": f"sqlite:///{tmp_path}/books.db"}
    sink = {"path": str(disk / "lake"), "kind": kind}
    world = World(mysql_server, database, tmp_path / "p", env, disk / "lake", sink=sink, state={"conn_id": "books"})
    said = world.carry(full(disk))
    only_verify_goes_on(said)
    middles = {"snapshot at chunk.after_select:2", "handover at table.after_commit", "stream at table.before_commit:2"}
    assert middles <= failed(said), said
    assert all("No space left on device" in message or "full" in message for message in said.values() if message), said


def test_of_staged_changes(mysql_server: MySQLServer, database: str, disk: Path, tmp_path: Path) -> None:
    """The project's own folder is on another disk than the tables."""
    sink, own = tmp_path / "p" / "lake", disk / "own"
    sink.mkdir(parents=True)
    own.mkdir()
    (sink / "_cdc").symlink_to(own)
    env = {"AIRFLOW_CONN_BOOKS": f"sqlite:///{tmp_path}/books.db"}
    world = World(mysql_server, database, tmp_path / "p", env, state={"conn_id": "books"})
    said = world.carry(full(disk))
    only_verify_goes_on(said)
    assert "snapshot at chunk.after_select:2" in failed(said), said
    assert all("No space left on device" in message for message in said.values() if message), said


def test_of_the_state_database(mysql_server: MySQLServer, database: str, disk: Path, tmp_path: Path) -> None:
    """In SQLite. A stream that has begun goes on; what begins says what to do."""
    env = {"AIRFLOW_CONN_BOOKS": f"sqlite:///{disk}/books.db"}
    world = World(mysql_server, database, tmp_path / "p", env, state={"conn_id": "books"})
    said = world.carry(full(disk))
    assert failed(said).isdisjoint({"handover at table.after_commit", "stream at table.before_commit:2"}), said
    only_verify_goes_on(said)
    assert all(f"{disk}/books.db" in message for message in said.values() if message), said
