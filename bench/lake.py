"""The lake of a demo: a folder, or a place in an S3-compatible store that the demo starts itself."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_cdc.config.store_access import StoreAccess
from airflow_provider_cdc.sinks.delta.sink import DeltaSink
from bench.screen import Screen
from tests.support.oracle import Place

if TYPE_CHECKING:
    from tests.support.s3 import S3, Kind

KINDS = ("folder", "s3")
CONN_ID = "cdc_lake"


@dataclass(frozen=True)
class Lake:
    """Where the copy goes.

    :param path: ``sink.path``.
    :param place: the same for who reads it.
    :param environment: what commands need to know: the connection, and the folder for state.
    :param connection: the connection as Airflow stores it; empty for a folder.
    """

    path: str
    place: Place
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    connection: Mapping[str, Any] = field(default_factory=dict, repr=False)
    access: StoreAccess | None = field(default=None, repr=False)

    @classmethod
    def folder(cls, path: Path) -> Lake:
        """A folder."""
        return cls(str(path), path)

    @classmethod
    def s3(cls, place: S3, state: Path) -> Lake:
        """A place in a bucket.

        :param state: folder of this host for the bookkeeping.
        """
        from tests.support.object_store import access

        environment = {f"AIRFLOW_CONN_{CONN_ID.upper()}": place.connection(), "AIRFLOW_CDC_STATE_DIR": str(state)}
        return cls(place.uri(), place, environment, place.airflow(), access(place))

    @property
    def conn_id(self) -> str | None:
        """``sink.conn_id``."""
        return CONN_ID if self.connection else None

    def sink(self, pipeline: str) -> DeltaSink:
        """The sink of a pipeline."""
        return DeltaSink(self.path, pipeline, access=self.access)


def opened(kind: str, screen: Screen, folder: Path, stack: ExitStack) -> Lake:
    """The lake that a demo is to have, until the stack is closed.

    :param kind: one of :data:`KINDS`.
    :param folder: of the demo.
    """
    if kind == "folder":
        return Lake.folder(folder / "lake")
    from tests.support.s3 import VERSITYGW, s3_server, versitygw_at_hand

    server: Kind = "versitygw" if versitygw_at_hand() else "moto"
    with screen.phase("S3", f"Starting an S3-compatible server: {server}"):
        place = stack.enter_context(s3_server(server)).under("lake")
    if server == "versitygw":
        screen.say(
            f"versitygw {VERSITYGW.rpartition('@')[2]}, which keeps objects as files, answers on {place.endpoint}"
        )
    else:
        screen.say(f"moto {version('moto')}, which plays S3 in memory, answers on {place.endpoint}")
        screen.say("A server as in production, built once with Go: python -m tests.support.s3 prefetch", "dim")
    lake = Lake.s3(place, folder / "state")
    os.environ.update(lake.environment)  # the bookkeeping is looked for in this process, too
    return lake


def same_for_others(lake: Lake, tables: Mapping[str, str], screen: Screen) -> bool:
    """Whether other programs read the same rows as the one whose rows were compared with the source.

    :param tables: (folder below ``sink.path`` -> name for people).
    """
    from bench.readers import Different, compare, programs

    equal = True
    with programs(lake.place) as readers:
        for folder, name in tables.items():
            try:
                screen.say(f"{name}: the same rows read by {', '.join(compare(lake.place, folder, readers))}")
            except Different as error:
                screen.say(f"{name}: {error}")
                equal = False
    return equal
