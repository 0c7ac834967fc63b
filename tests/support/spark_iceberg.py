"""Real Spark with Iceberg, a reader and writer of tables: Spark 4.1, the newest that Iceberg has a runtime for.

Spark and the jar are kept in the user's cache folder. ``python -m tests.support.spark_iceberg`` fetches them (450 MB).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import pyarrow as pa

from airflow_provider_cdc.spark.java import ensure_java_home
from tests.support import jvm
from tests.support.maven import maven_jars
from tests.support.packages import cache_folder, locked

SPARK, ICEBERG = "4.1.3", "1.12.0"
RUNTIME = f"org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:{ICEBERG}"
#: Needed by a catalog in SQLite.
_SQLITE = "org.xerial:sqlite-jdbc:3.50.3.0"
#: Their folders in the cache.
_JARS_KEY = f"iceberg-spark-{ICEBERG}"
_SPARK_KEY = f"pyspark-{SPARK}-py{sys.version_info.major}{sys.version_info.minor}"
_SETTINGS = {
    "spark.master": "local[1]",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "1",
    "spark.default.parallelism": "1",
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
}
#: For many small statements.
_QUICK = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
#: As users have it, on the cores of this machine.
_USUAL = {"spark.master": "local[*]", "spark.driver.memory": "4g", "spark.sql.shuffle.partitions": "8"}
#: Answers statements, one a line, until its input ends. Values that JSON has not are texts.
_SERVER = """
import json, sys
import pyarrow
from pyspark.sql import SparkSession
answers = sys.stdout
sys.stdout = sys.stderr
builder = SparkSession.builder
for name, value in json.loads(sys.stdin.readline()).items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
for line in sys.stdin:
    try:
        message = json.loads(line)
        if isinstance(message, str):
            answer = {"rows": [list(row) for row in spark.sql(message).collect()]}
        else:
            found = spark.sql(message["sql"]).toArrow()
            with pyarrow.ipc.new_file(message["file"], found.schema) as writer:
                writer.write_table(found)
            answer = {}
    except Exception as error:
        answer = {"error": str(error) or repr(error)}
    answers.write(json.dumps(answer, default=str) + "\\n")
    answers.flush()
"""


class SparkIcebergError(Exception):
    """What Spark says of a statement."""


class SparkIceberg:
    """Runs SQL; see :func:`spark_iceberg`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def __call__(self, sql: str) -> list[tuple[Any, ...]]:
        """Run a statement and return its rows; values that JSON has not are texts.

        :raise SparkIcebergError: with Spark's words.
        """
        answer = self.ask(sql)
        if "error" in answer:
            raise SparkIcebergError(answer["error"])
        return [tuple(row) for row in answer["rows"]]

    def arrow(self, sql: str) -> pa.Table:
        """Run a query and return its rows as Arrow.

        :raise SparkIcebergError: with Spark's words.
        """
        with tempfile.TemporaryDirectory(prefix="cdc-spark-iceberg-") as folder:
            file = f"{folder}/rows.arrow"
            answer = self.ask({"sql": sql, "file": file})
            if "error" in answer:
                raise SparkIcebergError(answer["error"])
            with pa.OSFile(file) as source:
                return pa.ipc.open_file(source).read_all()

    def ask(self, message: object) -> dict[str, Any]:
        """Send a message to Spark's process and return the answer."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SparkIcebergError("Spark has ended")
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextlib.contextmanager
def spark_iceberg(catalogs: Mapping[str, Mapping[str, str]], *, quick: bool = True) -> Iterator[SparkIceberg]:
    """Start Spark with Iceberg.

    :param quick: for many small statements; else as users have it.
    :param catalogs: by name, their settings below ``spark.sql.catalog.<name>``, such as ``type`` and ``uri``.
    """
    jars = maven_jars(_JARS_KEY, (RUNTIME, _SQLITE))
    folder = tempfile.mkdtemp(prefix="cdc-spark-iceberg-")
    quiet = files("airflow_provider_cdc.spark").joinpath("log4j2.properties")
    options = f"-Djava.io.tmpdir={folder} -Dlog4j2.configurationFile=file:{quiet} {jvm.SHORT_LIVED if quick else ''}"
    settings = {
        **_SETTINGS,
        **(_QUICK if quick else _USUAL),
        "spark.jars": ",".join(str(jar) for jar in sorted(jars.glob("*.jar"))),
        "spark.driver.extraJavaOptions": options,
    }
    for name, values in catalogs.items():
        prefix = f"spark.sql.catalog.{name}"
        settings[prefix] = "org.apache.iceberg.spark.SparkCatalog"
        settings |= {f"{prefix}.{key}": value for key, value in values.items()}
    environment = {
        **{name: value for name, value in os.environ.items() if name not in ("SPARK_HOME", "PYSPARK_SUBMIT_ARGS")},
        "PYTHONPATH": str(spark_folder()),
        "JAVA_HOME": ensure_java_home(),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": folder,
    }
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=folder,  # Spark leaves folders where it runs
        env=environment,
    )
    assert process.stdin is not None
    try:
        process.stdin.write(json.dumps(settings) + "\n")
        yield SparkIceberg(process)
    finally:
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def is_at_hand() -> bool:
    """Whether Spark and the jars have been fetched."""
    return all((cache_folder() / key).exists() for key in (_SPARK_KEY, _JARS_KEY))


def spark_folder() -> Path:
    """Folder with that Spark, fetched the first time."""
    folder = cache_folder() / _SPARK_KEY
    with locked(_SPARK_KEY):
        if not folder.exists():
            print(f"Fetching Spark {SPARK} (once) ...", file=sys.stderr, flush=True)
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix="fetch-") as scratch:
                made = Path(scratch, "packages")
                command = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--target"]
                subprocess.run([*command, str(made), f"pyspark=={SPARK}"], check=True)
                made.rename(folder)
    return folder


if __name__ == "__main__":
    maven_jars(_JARS_KEY, (RUNTIME, _SQLITE))
    print(f"Spark with Iceberg: {spark_folder()}")
