"""What it costs to read all columns of all rows of a table, by the readers of docs/readers.md.

Tables of the same rows are read in turn. Processor time is that of this process: of Spark, only the clock tells.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

Read = Callable[[Path], int]


@dataclass(frozen=True)
class Reading:
    """Medians of reading a table.

    :param wall: seconds by the clock.
    :param cpu: seconds of processor time.
    """

    wall: float
    cpu: float


def _delta_rs(folder: Path) -> int:
    from deltalake import DeltaTable

    return sum(batch.num_rows for batch in DeltaTable(folder).scan())


def _polars(folder: Path) -> int:
    """The largest value of each column: the rows themselves would not fit into memory."""
    import polars

    found = polars.scan_delta(str(folder)).select(polars.len().alias("rows"), polars.all().max())
    return int(found.collect(engine="streaming")["rows"][0])


@contextlib.contextmanager
def _duckdb() -> Iterator[Read]:
    import duckdb

    from bench.readers import _extension

    with duckdb.connect() as connection:
        connection.execute(f"LOAD '{_extension('delta')}'")

        def read(folder: Path) -> int:
            found = connection.execute("SELECT * FROM delta_scan(?)", [str(folder)])
            return sum(batch.num_rows for batch in found.to_arrow_reader(100_000))

        yield read


@contextlib.contextmanager
def _spark() -> Iterator[Read]:
    from tests.support.spark_delta import spark_delta

    with spark_delta() as run:
        yield lambda folder: int(run(f"SELECT count(*), sum(hash(*)) FROM delta.`{folder}`")[0][0])


READERS: Mapping[str, Callable[[], contextlib.AbstractContextManager[Read]]] = {
    "delta-rs": lambda: contextlib.nullcontext(_delta_rs),
    "polars": lambda: contextlib.nullcontext(_polars),
    "duckdb": _duckdb,
    "spark": _spark,
}


def readings(reader: str, tables: Mapping[Path, int], rounds: int) -> list[Reading]:
    """Read each table once, then so many times in turn.

    :param tables: folders, each with its number of rows.
    """
    wall: list[list[float]] = [[] for _ in tables]
    cpu: list[list[float]] = [[] for _ in tables]
    with READERS[reader]() as read:
        for turn in range(rounds + 1):
            for number, (folder, rows) in enumerate(tables.items()):
                began, used = time.monotonic(), time.process_time()
                found = read(folder)
                if found != rows:
                    raise SystemExit(f"{reader} reads {found} rows of {folder}, which has {rows}")
                if turn:
                    wall[number].append(time.monotonic() - began)
                    cpu[number].append(time.process_time() - used)
    return [Reading(statistics.median(w), statistics.median(c)) for w, c in zip(wall, cpu, strict=True)]
