"""Indirect writes to captured tables, by the catalog; see :mod:`airflow_provider_cdc.ddl.indirect_writes`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from pymysql.connections import Connection

from airflow_provider_cdc.ddl.indirect_writes import (
    SYSTEM_DATABASES,
    IndirectWrites,
    StoredObject,
    find_indirect_writes,
)
from airflow_provider_cdc.model.table_names import TableName
from airflow_provider_cdc.mysql.client.session import query_rows

_SYSTEM = str(SYSTEM_DATABASES)
_GLOBAL_GRANT = re.compile(r"GRANT (.*) ON \*\.\* TO ")


def query_indirect_writes(connection: Connection[Any], captured: Iterable[TableName]) -> IndirectWrites | None:
    """Return the current indirect writes to captured tables; ``None`` if the user may not see the whole catalog."""
    if not _sees_whole_catalog(connection):
        return None
    views = query_rows(
        connection,
        "SELECT table_schema, table_name, view_definition FROM information_schema.views "
        f"WHERE table_schema NOT IN {_SYSTEM}",
    )
    triggers = query_rows(
        connection,
        "SELECT event_object_schema, event_object_table, action_statement FROM information_schema.triggers "
        f"WHERE event_object_schema NOT IN {_SYSTEM}",
    )
    routines = query_rows(
        connection,
        "SELECT routine_schema, routine_name, routine_definition FROM information_schema.routines "
        f"WHERE routine_schema NOT IN {_SYSTEM}",
    )
    cascades = query_rows(
        connection,
        "SELECT unique_constraint_schema, referenced_table_name, constraint_schema, table_name "
        "FROM information_schema.referential_constraints "
        "WHERE delete_rule NOT IN ('RESTRICT', 'NO ACTION') OR update_rule NOT IN ('RESTRICT', 'NO ACTION')",
    )
    stored = [StoredObject((str(d), str(n)), text) for d, n, text in [*views, *triggers]]
    stored += [StoredObject((str(d), str(n)), text, is_routine=True) for d, n, text in routines]
    return find_indirect_writes(captured, stored, [((str(a), str(b)), (str(c), str(d))) for a, b, c, d in cascades])


def _sees_whole_catalog(connection: Connection[Any]) -> bool:
    """Return whether the catalog shows the user every view, trigger and routine."""
    granted = [str(row[0]) for row in query_rows(connection, "SHOW GRANTS")]
    if any(line.startswith("REVOKE") for line in granted):
        return False
    names = {name for line in granted if (m := _GLOBAL_GRANT.match(line)) for name in m[1].split(", ")}
    return "ALL PRIVILEGES" in names or {"SELECT", "TRIGGER"} <= names
