"""Java's classes for Spark, loaded and checked once: the many short-lived drivers of the tests start in half the time.

``python -m tests.support.jvm`` makes the archive; Java itself leaves one alone that does not fit it or Spark's jars.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from airflow_provider_cdc.spark.java import ensure_java_home

ARCHIVE = Path(sys.prefix) / "spark.jsa"

#: What Java's second compiler and its parallel collectors give costs more than it brings to a driver that lives for
#: seconds.
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

_JOB = """
import pyarrow
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader

class Numbers(DataSource):
    name = classmethod(lambda cls: "numbers")
    schema = lambda self: "id long"
    simpleStreamReader = lambda self, schema: Reader()

class Reader(SimpleDataSourceStreamReader):
    initialOffset = lambda self: {"at": 0}
    read = lambda self, start: (iter([(start["at"],)]), {"at": start["at"] + 1})
    readBetweenOffsets = lambda self, start, end: iter([(start["at"],)])

settings = {"spark.ui.enabled": "true", "spark.ui.port": "0", "spark.driver.host": "127.0.0.1"}
spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
spark.range(100).mapInArrow(lambda batches: batches, "id long").repartition(2).toArrow()
spark.sql("SELECT id % 3 AS k, count(*) FROM range(100) GROUP BY k ORDER BY k").collect()
spark.dataSource.register(Numbers)
stream = spark.readStream.format("numbers").load().writeStream.foreachBatch(lambda frame, number: frame.toArrow())
query = stream.trigger(processingTime="0.2 seconds").start()
while len(query.recentProgress) < 3:
    query.awaitTermination(0.2)
query.stop()
spark.stop()
"""


def options() -> str:
    """Options of Java for the drivers of tests."""
    quiet = "-Xlog:cds=off -Xlog:cds+dynamic=off"  # said on standard output, of an archive that does not fit
    return f"{SHORT_LIVED} -XX:SharedArchiveFile={ARCHIVE} {quiet}" if ARCHIVE.exists() else SHORT_LIVED


@contextlib.contextmanager
def own_java(environment: Mapping[str, str]) -> Iterator[None]:
    """Run the Spark sessions of this process in a new Java that has this environment, and end that Java afterwards.

    PySpark keeps its Java when a session is stopped. A later test would run in it, with the connections of this one.
    """
    before = dict(os.environ)
    _end_java()
    os.environ |= environment
    try:
        yield
    finally:
        _end_java()
        os.environ.clear()
        os.environ |= before


def _end_java() -> None:
    from pyspark import SparkContext

    context: Any = SparkContext
    if context._active_spark_context is not None:
        context._active_spark_context.stop()
    if context._gateway is not None:
        context._gateway.shutdown()
        context._gateway.proc.stdin.close()
        context._gateway.proc.wait(60)
        context._gateway = context._jvm = None


def make() -> None:
    """Run a small Spark job and keep the classes that it has used, if that was not done before."""
    if ARCHIVE.exists():
        return
    print("Keeping Java's classes for Spark (once) ...", flush=True)
    made = ARCHIVE.with_suffix(".new")
    made.unlink(missing_ok=True)
    env = {
        **os.environ,
        "JAVA_HOME": ensure_java_home(),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SUBMIT_OPTS": f"{SHORT_LIVED} -XX:ArchiveClassesAtExit={made}",
    }
    try:
        subprocess.run([sys.executable, "-c", _JOB], env=env, capture_output=True, text=True, check=True, timeout=300)
        made.rename(ARCHIVE)
    except (subprocess.SubprocessError, OSError) as error:
        # Without it the tests are slower, and no less right.
        print(f"Not kept: {error} {getattr(error, 'stderr', '')!s:.500}", flush=True)


if __name__ == "__main__":
    make()
