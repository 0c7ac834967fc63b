"""Whether the copies of tables that were altered have the columns that they would have if they were made now."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import closing
from typing import Any

from deltalake import DeltaTable

from airflow_provider_cdc.mysql.client.catalog import read_schema
from airflow_provider_cdc.mysql.client.session import connect
from tests.support.cli import Cli
from tests.support.iceberg_place import find_in_catalog
from tests.support.servers import MySQLServer


def check_definitions(server: MySQLServer, cli: Cli, fresh: Cli, names: Iterable[str]) -> None:
    """Definitions are those of the source, and columns of a copy, their order, types and comments those of a new one.

    :param fresh: a pipeline of the same tables and settings, whose snapshot was just taken.
    :param names: of the tables.
    """
    wanted = set(names)
    with closing(connect(server.connect_args())) as connection:
        for table in cli.context.plans.require().tables:
            if table.name not in wanted:
                continue
            now = read_schema(connection, *table.id).with_zero_dates("null")
            assert (table.columns, table.key, table.comments) == (now.columns, now.key, now.comments)
            assert (table, table.collation) == (now, now.collation)
            old, new = (copied_fields(one, table.database, table.name) for one in (cli, fresh))
            for one, other in zip(old, new, strict=True):
                if "comment" not in other["metadata"]:  # one that is told no more may be somebody else's
                    one["metadata"].pop("comment", None)
            assert old == new, (table.label, [pair for pair in zip(old, new, strict=True) if pair[0] != pair[1]])


def copied_fields(cli: Cli, database: str, table: str) -> list[dict[str, Any]]:
    """Columns of a copy: name, type and comment of each."""
    if cli.value["sink"].get("kind") == "iceberg":
        copy = find_in_catalog(cli.sink / database / table)
        assert copy is not None
        fields = copy.schema().fields
        return [
            {"name": f.name, "type": str(f.field_type), "metadata": {"comment": f.doc} if f.doc else {}} for f in fields
        ]
    found: list[dict[str, Any]] = json.loads(DeltaTable(str(cli.sink / database / table)).schema().to_json())["fields"]
    return found
