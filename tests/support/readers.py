"""Programs that read Delta tables, each in the ways that its users read."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.support.packages import cache_folder, locked
from tests.support.spark_delta import VERSION, SparkDelta, spark_delta

#: Wants an older pyarrow than this project: it gets a folder of packages of its own.
DAFT = "0.7.26"
_DAFT = """
import sys, daft
import pyarrow as pa
try:
    rows = daft.read_deltalake(sys.argv[1]).to_arrow()
except Exception as error:
    sys.exit(" ".join(str(error).split()))
with pa.ipc.new_stream(sys.argv[2], rows.schema) as writer:
    writer.write_table(rows)
"""


@dataclass(frozen=True)
class Reader:
    """One way to read.

    :param name: the program, and the way.
    :param version: that of the program.
    :param read: all rows of the table in a folder, or only how many there are.
    """

    name: str
    version: str
    read: Callable[[str], pa.Table | int]


@contextmanager
def readers() -> Iterator[list[Reader]]:
    """All of them; Spark runs meanwhile."""
    with spark_delta(quick=True) as run:
        yield [*_spark(run), *_delta_rs(), *_others()]


def without_spark() -> list[Reader]:
    """Those that are installed with the tests."""
    return [reader for reader in (*_delta_rs(), *_others()) if reader.name != "Daft"]


def _spark(run: SparkDelta) -> list[Reader]:
    title = f"{version('pyspark')}, Delta Lake {VERSION}"
    return [Reader("Spark", title, lambda folder: run.arrow(f"SELECT * FROM delta.`{folder}`"))]


def _delta_rs() -> list[Reader]:
    from deltalake import DeltaTable, QueryBuilder
    from pandas import ArrowDtype

    def query(folder: str) -> pa.Table:
        builder = QueryBuilder().register("t", DeltaTable(folder))
        return pa.table(builder.execute("SELECT * FROM t").read_all())

    def pandas(folder: str) -> pa.Table:
        found = DeltaTable(folder).to_pandas(types_mapper=ArrowDtype)
        return pa.Table.from_pandas(found, preserve_index=False)

    ways: dict[str, Callable[[str], pa.Table | int]] = {
        "`QueryBuilder`": query,
        "`scan()`": lambda folder: pa.table(DeltaTable(folder).scan().read_all()),
        "`count()`": lambda folder: DeltaTable(folder).count(),
        "`to_pyarrow_table()`": lambda folder: DeltaTable(folder).to_pyarrow_table(),
        "`to_pyarrow_dataset()`": lambda folder: DeltaTable(folder).to_pyarrow_dataset().to_table(),
        "`to_pandas(types_mapper=ArrowDtype)`": pandas,
    }
    return [Reader(f"delta-rs, {way}", version("deltalake"), read) for way, read in ways.items()]


def _others() -> list[Reader]:
    import duckdb
    import polars

    def duck(folder: str) -> pa.Table:
        with duckdb.connect() as connection:
            _load_delta(connection)
            connection.execute("SET TimeZone = 'UTC'")
            return connection.execute("SELECT * FROM delta_scan(?)", [folder]).to_arrow_table()

    return [
        Reader("Polars", version("polars"), lambda folder: polars.read_delta(folder).to_arrow()),
        Reader("DuckDB", version("duckdb"), duck),
        Reader("Daft", DAFT, _daft),
    ]


def _load_delta(connection: Any) -> None:
    """From the PyPI package: DuckDB itself would fetch it from a server of its own."""
    import duckdb_extension_delta as found  # type: ignore[import-untyped]

    (path,) = Path(found.__file__).parent.rglob("*.duckdb_extension")
    connection.execute(f"LOAD '{path}'")


def _daft(folder: str) -> pa.Table:
    with tempfile.TemporaryDirectory() as scratch:
        result = Path(scratch, "rows.arrow")
        command = [sys.executable, "-c", _DAFT, folder, str(result)]
        ended = subprocess.run(command, env={"PYTHONPATH": str(daft_folder())}, capture_output=True, text=True)
        if ended.returncode:
            raise RuntimeError(ended.stderr.strip().splitlines()[-1])
        return pa.ipc.open_stream(result.read_bytes()).read_all()


def daft_folder() -> Path:
    """Folder with Daft and what it needs, fetched the first time (150 MB)."""
    key = f"daft-{DAFT}-py{sys.version_info.major}{sys.version_info.minor}"
    folder = cache_folder() / key
    with locked(key):
        if not folder.exists():
            print(f"Fetching Daft {DAFT} (once) ...", file=sys.stderr, flush=True)
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix="fetch-") as scratch:
                made = Path(scratch, "packages")
                command = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--target"]
                subprocess.run([*command, str(made), f"daft=={DAFT}", "deltalake==" + version("deltalake")], check=True)
                made.rename(folder)
    return folder


if __name__ == "__main__":
    print(f"Daft: {daft_folder()}")
