"""The copy as other programs read it, compared with what delta-rs or pyiceberg reads; that the proof has compared with
the source.

Polars and DuckDB read a folder, S3 and an Iceberg catalog. Spark with Delta Lake reads a folder; for S3 it would need
Hadoop's client, and this project has none. Spark with Iceberg is a Spark of its own, and reads a catalog if it has been
fetched.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from tests.support import spark_iceberg
from tests.support.iceberg_place import CatalogPlace
from tests.support.oracle import Place, open_copy

#: Reads the table at a place.
Read = Callable[[Place], pa.Table]


class Different(Exception):
    """A program reads other rows; the message says which one."""


@contextmanager
def programs(place: Place) -> Iterator[dict[str, Read]]:
    """The programs that can read there, by name and version; Spark runs meanwhile."""
    import duckdb

    is_iceberg = isinstance(place, CatalogPlace)
    found: dict[str, Read] = {
        f"Polars {version('polars')}": _polars_iceberg if is_iceberg else _polars_delta,
        f"DuckDB {duckdb.__version__}": _duckdb_iceberg if is_iceberg else _duckdb_delta,
    }
    if is_iceberg and spark_iceberg.is_at_hand():
        assert isinstance(place, CatalogPlace)
        with spark_iceberg.spark_iceberg({"lake": {"type": place.kind, "uri": place.address}}, quick=False) as spark:
            name = f"Spark {spark_iceberg.SPARK} with Iceberg {spark_iceberg.ICEBERG}"
            yield found | {name: lambda table: spark.arrow(f"SELECT * FROM lake.{table.name}")}
        return
    if not isinstance(place, str | Path):
        yield found
        return
    from tests.support.spark_delta import VERSION, spark_delta

    with spark_delta(quick=True) as run:
        name = f"Spark {version('pyspark')} with Delta Lake {VERSION}"
        yield found | {name: lambda table: run.arrow(f"SELECT * FROM delta.`{table}`")}


def compare(table: Place, readers: Mapping[str, Read]) -> list[str]:
    """Read a table with all programs.

    :returns: names of the programs, all of which read the same rows.
    :raises Different: if one does not.
    """
    copy = open_copy(table)
    if copy is None:
        raise Different("there is no such table")
    rows = copy.read(copy.columns)
    schema, expected = rows.schema, _ordered(rows)
    for name, read in readers.items():
        if not _ordered(read(table).select(schema.names).cast(schema)).equals(expected):
            raise Different(f"{name} reads other rows than {copy.reader}")
    return list(readers)


def _address(table: Place) -> tuple[str, dict[str, str]]:
    """Address and storage options of a table."""
    return (str(table), {}) if isinstance(table, str | Path) else (table.uri(), dict(table.options))


def _polars_delta(table: Place) -> pa.Table:
    import polars

    uri, options = _address(table)
    return polars.scan_delta(uri, storage_options=options or None).collect().to_arrow()


def _polars_iceberg(table: Place) -> pa.Table:
    import polars

    assert isinstance(table, CatalogPlace)
    found = table.load()
    assert found is not None
    os.environ["POLARS_ICEBERG_PLANNER"] = "pyiceberg"  # else it recommends another package
    return polars.scan_iceberg(found).collect().to_arrow()


def _duckdb_iceberg(table: Place) -> pa.Table:
    """Through the catalog."""
    import duckdb

    assert isinstance(table, CatalogPlace)
    with duckdb.connect() as connection:
        for name in ("avro", "httpfs", "iceberg"):
            connection.execute(f"LOAD '{_extension(name)}'")
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute(f"ATTACH '' AS lake (TYPE iceberg, ENDPOINT '{table.address}', AUTHORIZATION_TYPE 'none')")
        return connection.execute(f"SELECT * FROM lake.{table.name}").to_arrow_table()


def _duckdb_delta(table: Place) -> pa.Table:
    import duckdb

    uri, options = _address(table)
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
