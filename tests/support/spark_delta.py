"""Real Spark with Delta Lake, the reader and writer that others are measured by; in a process of its own.

Its jars come through Spark's own Ivy and are kept in the user's cache folder. ``python -m tests.support.spark_delta``
fetches them.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.resources import files
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyarrow as pa

from airflow_provider_cdc.spark.java import ensure_java_home
from tests.support import jvm
from tests.support.packages import cache_folder, locked

VERSION = "4.4.0"
PACKAGE = f"io.delta:delta-spark_4.2_2.13:{VERSION}"
_KEY = PACKAGE.replace(":", "-")
#: What Spark has itself.
_EXCLUDED = (
    *("org.apache.*", "com.fasterxml.*", "org.slf4j", "org.xerial.*", "org.roaringbitmap", "org.locationtech.*"),
    *("com.github.luben", "javax.annotation", "commons-*", "com.google.*", "io.airlift", "org.antlr"),
)
_SETTINGS = {
    "spark.master": "local[2]",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",  # VACUUM ... RETAIN 0 HOURS
}
#: What queries of a few rows do without.
_QUICK = {
    "spark.master": "local[1]",
    "spark.default.parallelism": "1",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "1",
}
_FETCH = "from pyspark.sql import SparkSession; SparkSession.builder.getOrCreate().stop()"


class SparkDeltaError(Exception):
    """What Spark says of a statement."""


def jars() -> list[Path]:
    """The jars of Delta Lake, fetched the first time (15 MB)."""
    folder = cache_folder() / _KEY
    with locked(_KEY):
        if not folder.exists():
            print(f"Fetching {PACKAGE} (once) ...", file=sys.stderr, flush=True)
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix="fetch-") as scratch:
                settings = {
                    "spark.master": "local[1]",
                    "spark.ui.enabled": "false",
                    "spark.driver.host": "127.0.0.1",
                    "spark.driver.bindAddress": "127.0.0.1",
                    "spark.jars.packages": PACKAGE,
                    "spark.jars.excludes": ",".join(f"{group}:*" for group in _EXCLUDED),
                    "spark.jars.ivy": scratch,
                }
                # By a process of its own: a JVM cannot be told twice.
                words = [word for k, v in settings.items() for word in ("--conf", f"{k}={v}")]
                ended = subprocess.run(
                    [sys.executable, "-c", _FETCH],
                    env={**_environment(), "PYSPARK_SUBMIT_ARGS": " ".join([*words, "pyspark-shell"])},
                    capture_output=True,
                    text=True,
                    timeout=1200,
                )
                found = Path(scratch, "jars")
                if ended.returncode or not found.is_dir():
                    raise SparkDeltaError(f"{PACKAGE} could not be fetched:\n{(ended.stdout + ended.stderr)[-2000:]}")
                found.rename(folder)
    return sorted(folder.glob("*.jar"))


class SparkDelta:
    """Runs SQL; see :func:`spark_delta`."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def __call__(self, sql: str) -> list[tuple[Any, ...]]:
        """Run a statement and return its rows.

        :raise SparkDeltaError: with Spark's words.
        """
        rows: list[tuple[Any, ...]] = self._ask("rows", sql)
        return rows

    def arrow(self, sql: str) -> pa.Table:
        """Run a query and return its rows as Arrow."""
        return pa.ipc.open_stream(self._ask("arrow", sql)).read_all()

    def _ask(self, how: str, sql: str) -> Any:
        try:
            self._pipe.send((how, sql))
            right, answer = self._pipe.recv()
        except (EOFError, OSError):
            raise SparkDeltaError("Spark has ended") from None
        if not right:
            raise SparkDeltaError(answer)
        return answer


@contextlib.contextmanager
def spark_delta(*, quick: bool = False) -> Iterator[SparkDelta]:
    """Start Spark with Delta Lake.

    :param quick: for many small queries; else as users have it.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    folder = tempfile.mkdtemp(prefix="cdc-spark-delta-")
    process = context.Process(target=_serve, args=(theirs, list(map(str, jars())), folder, quick), daemon=True)
    process.start()
    theirs.close()
    try:
        yield SparkDelta(ours)
    finally:
        ours.close()
        process.join(30)
        if process.is_alive():
            process.kill()
            process.join()
        shutil.rmtree(folder, ignore_errors=True)


def _environment() -> dict[str, str]:
    return {
        **os.environ,
        "JAVA_HOME": ensure_java_home(),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def _serve(pipe: Connection, paths: list[str], folder: str, quick: bool) -> None:
    """Answer statements until the other end is closed."""
    os.environ.update(_environment(), SPARK_LOCAL_DIRS=folder)
    os.environ.pop("PYSPARK_SUBMIT_ARGS", None)
    os.chdir(folder)  # Spark leaves folders where it runs
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.config("spark.jars", ",".join(paths))
    quiet = files("airflow_provider_cdc.spark").joinpath("log4j2.properties")
    options = f"-Djava.io.tmpdir={folder} -Dlog4j2.configurationFile=file:{quiet} {jvm.options() if quick else ''}"
    builder = builder.config("spark.driver.extraJavaOptions", options)
    for name, value in {**_SETTINGS, **(_QUICK if quick else {})}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    while True:
        try:
            how, sql = pipe.recv()
        except EOFError:
            return  # Java ends with this process
        try:
            frame = spark.sql(sql)
            pipe.send((True, _as_bytes(frame.toArrow()) if how == "arrow" else [tuple(row) for row in frame.collect()]))
        except Exception as error:
            pipe.send((False, str(error) or repr(error)))


def _as_bytes(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    data: bytes = sink.getvalue().to_pybytes()
    return data


if __name__ == "__main__":
    print(f"Delta Lake for Spark: {jars()[0].parent}")
