"""The copy as other programs read it, compared with what delta-rs reads; that the proof has compared with the source.

Polars and DuckDB read a folder and S3. Spark with Delta Lake reads a folder; for S3 it would need Hadoop's client, and
this project has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from tests.support.oracle import Place

#: Reads a table: address and storage options.
Read = Callable[[str, Mapping[str, str]], pa.Table]


class Different(Exception):
    """A program reads other rows; the message says which one."""


@contextmanager
def programs(place: Place) -> Iterator[dict[str, Read]]:
    """The programs that can read there, by name and version; Spark runs meanwhile."""
    import duckdb
    import polars

    found: dict[str, Read] = {
        f"Polars {version('polars')}": lambda uri, options: (
            polars.scan_delta(uri, storage_options=dict(options) or None).collect().to_arrow()
        ),
        f"DuckDB {duckdb.__version__}": _duckdb,
    }
    if not isinstance(place, str | Path):
        yield found
        return
    from tests.support.spark_delta import VERSION, spark_delta

    with spark_delta(quick=True) as run:
        name = f"Spark {version('pyspark')} with Delta Lake {VERSION}"
        yield found | {name: lambda uri, _: run.arrow(f"SELECT * FROM delta.`{uri}`")}


def compare(place: Place, folder: str, readers: Mapping[str, Read]) -> list[str]:
    """Read a table with all programs.

    :param folder: of the table.
    :returns: names of the programs, all of which read the same rows.
    :raises Different: if one does not.
    """
    table, (uri, options) = open_table(place, folder), _address(place, folder)
    schema = pa.schema(table.schema().to_arrow())
    expected = _ordered(pa.RecordBatchReader.from_stream(table.scan()).read_all().cast(schema))
    for name, read in readers.items():
        if not _ordered(read(uri, options).select(schema.names).cast(schema)).equals(expected):
            raise Different(f"{name} reads other rows than delta-rs {version('deltalake')}")
    return list(readers)


def open_table(place: Place, folder: str) -> DeltaTable:
    """Open a table with delta-rs.

    :param folder: of the table.
    """
    uri, options = _address(place, folder)
    return DeltaTable(uri, storage_options=options or None)


def _address(place: Place, folder: str) -> tuple[str, dict[str, str]]:
    """Address and storage options of a table."""
    if isinstance(place, str | Path):
        return str(Path(place) / folder), {}
    return place.under(folder).uri(), dict(place.options)


def _duckdb(uri: str, options: Mapping[str, str]) -> pa.Table:
    import duckdb

    with duckdb.connect() as connection:
        connection.execute(f"LOAD '{_extension('delta')}'")
        connection.execute("SET TimeZone = 'UTC'")
        if options:
            connection.execute(f"LOAD '{_extension('httpfs')}'")
            connection.execute(
                f"CREATE SECRET (TYPE s3, KEY_ID '{options['aws_access_key_id']}', "
                f"SECRET '{options['aws_secret_access_key']}', REGION '{options['aws_region']}', "
                f"ENDPOINT '{options['aws_endpoint_url'].partition('://')[2]}', URL_STYLE 'path', USE_SSL false)"
            )
        return connection.execute("SELECT * FROM delta_scan(?)", [uri]).to_arrow_table()


def _extension(name: str) -> Path:
    """From the PyPI package: DuckDB itself would fetch it from a server of its own."""
    module = import_module(f"duckdb_extension_{name}")
    (path,) = Path(str(module.__file__)).parent.rglob("*.duckdb_extension")
    return path


def _ordered(rows: pa.Table) -> pa.Table:
    """The rows in an order that does not depend on who has read them; floats are compared by their bits."""
    columns = [column.combine_chunks() for column in rows.columns]
    columns = [c.cast(pa.float64()).view(pa.int64()) if pa.types.is_floating(c.type) else c for c in columns]
    plain = pa.table(columns, names=rows.schema.names)
    return plain.take(pc.sort_indices(plain, sort_keys=[(name, "ascending") for name in plain.schema.names]))
