"""The lake of a demo: a folder, or a place in an object store or an Iceberg catalog that the demo starts itself."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_cdc.config.sink_section import Sink
from airflow_provider_cdc.config.store_access import StoreAccess
from airflow_provider_cdc.sinks.protocol import PipelineSink
from airflow_provider_cdc.sinks.registry import open_sink
from bench.screen import Screen
from tests.support import spark_iceberg
from tests.support.iceberg_place import CatalogPlace
from tests.support.oracle import Place, below

if TYPE_CHECKING:
    from tests.support.s3 import S3, Kind

CONN_ID = "cdc_lake"


@dataclass(frozen=True)
class Lake:
    """Where the copy goes.

    :param settings: the sink section of the pipeline.
    :param place: where the tables are for who reads them.
    :param environment: what commands need to know: the connection, and the folder for state.
    :param connection: the connection as Airflow stores it, if the settings name one.
    """

    settings: Mapping[str, Any]
    place: Place
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    connection: Mapping[str, Any] = field(default_factory=dict, repr=False)
    access: StoreAccess | None = field(default=None, repr=False)

    @classmethod
    def folder(cls, path: Path) -> Lake:
        """A folder."""
        return cls({"path": str(path)}, path)

    @classmethod
    def s3(cls, place: S3, state: Path) -> Lake:
        """A place in a bucket.

        :param state: folder of this host for the bookkeeping.
        """
        from tests.support.object_store import access

        environment = {f"AIRFLOW_CONN_{CONN_ID.upper()}": place.connection(), "AIRFLOW_CDC_STATE_DIR": str(state)}
        settings = {"path": place.uri(), "conn_id": CONN_ID}
        return cls(settings, place, environment, place.airflow(), access(place))

    @classmethod
    def iceberg(cls, path: Path, address: str) -> Lake:
        """A folder whose tables are in a REST catalog.

        :param address: of the catalog.
        """
        catalog = {"type": "rest", "uri": address}
        return cls({"kind": "iceberg", "path": str(path), "catalog": catalog}, CatalogPlace(address))

    @property
    def path(self) -> str:
        """``sink.path``."""
        return str(self.settings["path"])

    def reader_commands(self, table: str) -> dict[str, str]:
        """Commands that read a table, by what has to be installed for them; none if a path is enough.

        :param table: name of the table with dots.
        """
        if not isinstance(self.place, CatalogPlace):
            return {}
        attach = f"ATTACH '' AS ice (TYPE iceberg, ENDPOINT '{self.place.address}', AUTHORIZATION_TYPE 'none')"
        extensions = "avro", "httpfs", "iceberg"
        duckdb = (
            "import duckdb",
            "from duckdb_extensions import import_extension",
            f"for name in {extensions}:",
            "    import_extension(name)",
            f'duckdb.sql("{attach}")',
            f'print(duckdb.sql("FROM ice.{table} LIMIT 5"))',
        )
        prefix = "spark.sql.catalog.ice"
        spark = {prefix: "org.apache.iceberg.spark.SparkCatalog", f"{prefix}.type": "rest"}
        spark[f"{prefix}.uri"] = self.place.address
        settings = " ".join(f"--conf {name}={value}" for name, value in spark.items())
        packages = " ".join(f"duckdb-extension-{name}" for name in extensions)
        return {
            f"pip install duckdb=={version('duckdb')} duckdb-extensions {packages}": "\n".join(
                ("python - <<'END'", *duckdb, "END")
            ),
            "pip install 'pyspark==4.1.*', in an environment of its own": (
                f"spark-sql --packages {spark_iceberg.RUNTIME} {settings} -e 'SELECT * FROM ice.{table} LIMIT 5'"
            ),
        }

    def sink(self, pipeline: str) -> PipelineSink:
        """The sink of a pipeline."""
        return open_sink(Sink(**self.settings), pipeline, self.access)


def opened(kind: str, screen: Screen, folder: Path, stack: ExitStack) -> Lake:
    """The lake that a demo is to have, until the stack is closed.

    :param kind: one of :data:`bench.screen.SINKS`.
    :param folder: of the demo.
    """
    if kind == "folder":
        return Lake.folder(folder / "lake")
    if kind == "iceberg":
        return _opened_catalog(screen, folder, stack)
    return _opened_bucket(screen, folder, stack)


def _opened_catalog(screen: Screen, folder: Path, stack: ExitStack) -> Lake:
    from tests.support.iceberg_rest import VERSION, running_rest_catalog

    with screen.phase("catalog", "Starting a REST catalog for Iceberg tables"):
        catalog = stack.enter_context(running_rest_catalog())
    screen.say(f"The REST catalog of Iceberg's own tests, {VERSION}, answers on {catalog.uri}")
    return Lake.iceberg(folder / "lake", catalog.uri)


def _opened_bucket(screen: Screen, folder: Path, stack: ExitStack) -> Lake:
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

    :param tables: (path below the lake -> name for people).
    """
    from bench.readers import Different, compare, programs

    if isinstance(lake.place, CatalogPlace) and not spark_iceberg.is_at_hand():
        fetch = "python -m tests.support.spark_iceberg (450 MB)"
        screen.say(f"Spark with Iceberg does not read the copy: it has not been fetched. To do that: {fetch}")
    equal = True
    with programs(lake.place) as readers:
        for path, name in tables.items():
            try:
                screen.say(f"{name}: the same rows read by {', '.join(compare(below(lake.place, path), readers))}")
            except Different as error:
                screen.say(f"{name}: {error}")
                equal = False
    return equal
