"""Replication filters of a current or former replica: tables whose changes it does not apply from its source.

A promoted server is no longer a replica, but still lacks what its filters left out. It reports its filters for as long
as they are set.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from pymysql.connections import Connection

from airflow_provider_cdc.model.errors import NotReadyError
from airflow_provider_cdc.mysql.client.identity import is_mariadb
from airflow_provider_cdc.mysql.client.session import query_dicts, query_pairs, query_value
from airflow_provider_cdc.mysql.client.throttle import replica_channels

T = TypeVar("T")
_DO_DB, _IGNORE_DB = "Replicate_Do_DB", "Replicate_Ignore_DB"
_DO, _IGNORE = "Replicate_Do_Table", "Replicate_Ignore_Table"
_WILD_DO, _WILD_IGNORE = "Replicate_Wild_Do_Table", "Replicate_Wild_Ignore_Table"
#: Changes of one database are applied to another: ``(from,to)`` on MySQL, ``from->to`` on MariaDB.
_REWRITE = "Replicate_Rewrite_DB"
_LIST_FILTERS = (_DO_DB, _IGNORE_DB, _DO, _IGNORE, _WILD_DO, _WILD_IGNORE)
FILTER_NAMES = (*_LIST_FILTERS, _REWRITE)
_DO_FILTERS = (_DO_DB, _DO, _WILD_DO)
_BY_LOWER = {name.lower(): name for name in FILTER_NAMES}
#: Where MySQL lists the filters that are set, with or without a channel.
_TABLES = ("replication_applier_global_filters", "replication_applier_filters")


def read_filters(connection: Connection[Any]) -> list[dict[str, str]]:
    """Return the filters of each channel that has any, and the filters that are set without a channel.

    :returns: for each channel, filter name -> comma-separated list.
    :raises NotReadyError: if the user may not see the filters; the error names the grant.
    """
    mariadb = is_mariadb(connection)
    grant = "REPLICA MONITOR ON *.*" if mariadb else "REPLICATION CLIENT ON *.*"
    channels = _require_grant(lambda: replica_channels(connection), grant)
    all_filters = [{name: text for name in FILTER_NAMES if (text := channel.get(name))} for channel in channels]
    all_filters += [_mariadb_filters(connection)] if mariadb else _mysql_filters(connection)
    return [one for number, one in enumerate(all_filters) if one and one not in all_filters[:number]]


def _mariadb_filters(connection: Connection[Any]) -> dict[str, str]:
    """Return the filters of the default connection, which remain after the connection is reset."""
    shown = query_pairs(connection, "SHOW GLOBAL VARIABLES LIKE 'replicate%'")
    return {_BY_LOWER[name.lower()]: text for name, text in shown.items() if text and name.lower() in _BY_LOWER}


def _mysql_filters(connection: Connection[Any]) -> list[dict[str, str]]:
    if query_value(connection, "SELECT @@performance_schema") != "1":
        raise NotReadyError(
            "performance_schema is OFF, so the server does not show which replication filters are set",
            "Start the server with performance_schema = ON",
        )
    by_channel: dict[tuple[str, str | None], dict[str, str]] = {}
    for table in _TABLES:
        place, before = f"performance_schema.{table}", ""
        for row in _require_grant(lambda: query_dicts(connection, f"SELECT * FROM {place}"), f"SELECT ON {place}"):  # noqa: B023
            name, rule = _BY_LOWER.get(str(row["FILTER_NAME"]).lower()), row["FILTER_RULE"] or ""
            # Where a global rule was withdrawn, MySQL 9.7 shows the rule of the previous row. As a list of what to
            # replicate, it would leave out everything else; in the other filters it repeats what the previous row says.
            stale, before = rule == before and name in _DO_FILTERS, rule
            if name and rule and not stale:
                by_channel.setdefault((table, row.get("CHANNEL_NAME")), {})[name] = rule
    return [*by_channel.values()]


def _require_grant(look: Callable[[], T], grant: str) -> T:
    try:
        return look()
    except NotReadyError as error:
        if error.code is None:  # not denied by the server
            raise
        raise NotReadyError(
            "the user may not see which changes the server leaves out when it replicates from its source",
            f"GRANT {grant} TO the user of the connection",
        ) from None


def excluding_filter(channel_filters: Mapping[str, str], database: str, table: str) -> str | None:
    """Return the name of the filter that leaves out or redirects the row changes of a table; ``None`` if there is none.

    The order is the server's own for row format: databases, then tables, then patterns. The first match decides. If
    there are lists of what to replicate, a table that is in none of them is left out.

    :param channel_filters: filters of one channel.
    """
    if any(database in pair and pair[0] != pair[1] for pair in _parse_rewrites(channel_filters.get(_REWRITE, ""))):
        return _REWRITE
    parts = {name: channel_filters.get(name, "").replace("`", "").split(",") for name in _LIST_FILTERS}
    lists = {name: [part.strip() for part in names if part] for name, names in parts.items()}
    name = f"{database}.{table}"
    if lists[_DO_DB]:
        if database not in lists[_DO_DB]:
            return _DO_DB
    elif database in lists[_IGNORE_DB]:
        return _IGNORE_DB
    if name in lists[_DO]:
        return None
    if name in lists[_IGNORE]:
        return _IGNORE
    if _matches_wildcard(lists[_WILD_DO], name):
        return None
    if _matches_wildcard(lists[_WILD_IGNORE], name):
        return _WILD_IGNORE
    return _DO if lists[_DO] else _WILD_DO if lists[_WILD_DO] else None


def _parse_rewrites(text: str) -> list[tuple[str, str]]:
    """Parse rewrite rules into (database, database that its changes are applied to)."""
    rewrites = re.findall(r"\(([^,()]+),([^,()]+)\)|([^,()]+)->([^,()]+)", text.replace("`", ""))
    return [(one.strip(), other.strip()) for one, other in (filter(None, pair) for pair in rewrites)]


def _matches_wildcard(patterns: Iterable[str], name: str) -> bool:
    """Return whether a name matches one of the server's patterns: ``%``, ``_``, and a backslash as escape."""
    signs = {"%": ".*", "_": "."}
    for pattern in patterns:
        parts = re.findall(r"\\.|.", pattern, re.DOTALL)
        if re.fullmatch("".join(signs.get(p, re.escape(p[-1])) for p in parts), name, re.DOTALL):
            return True
    return False
