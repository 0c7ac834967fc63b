"""Replication filters of a server that is a replica, or was one: tables whose changes it does not take from its source.

A server that was promoted is no replica any more, and still lacks what it has left out. It knows its filters for as
long as they are set.
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
#: What comes from one database goes to another: ``(from,to)`` on MySQL, ``from->to`` on MariaDB.
_REWRITE = "Replicate_Rewrite_DB"
_LIST_FILTERS = (_DO_DB, _IGNORE_DB, _DO, _IGNORE, _WILD_DO, _WILD_IGNORE)
FILTER_NAMES = (*_LIST_FILTERS, _REWRITE)
_DO_FILTERS = (_DO_DB, _DO, _WILD_DO)
_BY_LOWER = {name.lower(): name for name in FILTER_NAMES}
#: Where MySQL says which filters are set, whether there is a channel or not.
_TABLES = ("replication_applier_global_filters", "replication_applier_filters")


def read_filters(connection: Connection[Any]) -> list[dict[str, str]]:
    """The filters of each channel that has any, and those that are set without one: name -> comma-separated list.

    :raises NotReadyError: if that cannot be seen; it names the grant.
    """
    mariadb = is_mariadb(connection)
    grant = "REPLICA MONITOR ON *.*" if mariadb else "REPLICATION CLIENT ON *.*"
    channels = _require_grant(lambda: replica_channels(connection), grant)
    all_filters = [{name: text for name in FILTER_NAMES if (text := channel.get(name))} for channel in channels]
    all_filters += [_mariadb_filters(connection)] if mariadb else _mysql_filters(connection)
    return [one for number, one in enumerate(all_filters) if one and one not in all_filters[:number]]


def _mariadb_filters(connection: Connection[Any]) -> dict[str, str]:
    """Those of the default connection, which stay when that is reset."""
    shown = query_pairs(connection, "SHOW GLOBAL VARIABLES LIKE 'replicate%'")
    return {_BY_LOWER[name.lower()]: text for name, text in shown.items() if text and name.lower() in _BY_LOWER}


def _mysql_filters(connection: Connection[Any]) -> list[dict[str, str]]:
    if query_value(connection, "SELECT @@performance_schema") != "1":
        raise NotReadyError(
            "performance_schema is OFF, so the server does not tell which replication filters are set",
            "Start it with performance_schema = ON",
        )
    by_channel: dict[tuple[str, str | None], dict[str, str]] = {}
    for table in _TABLES:
        place, before = f"performance_schema.{table}", ""
        for row in _require_grant(lambda: query_dicts(connection, f"SELECT * FROM {place}"), f"SELECT ON {place}"):  # noqa: B023
            name, rule = _BY_LOWER.get(str(row["FILTER_NAME"]).lower()), row["FILTER_RULE"] or ""
            # MySQL 9.7 shows that of the row before where a global rule was taken back. Taken for a list of what to
            # take, it would leave out everything else; in the others it names what the row before does.
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
            "the user may not see which changes the server leaves out as a replica",
            f"GRANT {grant} TO the user of the connection",
        ) from None


def excluding_filter(channel_filters: Mapping[str, str], database: str, table: str) -> str | None:
    """The filter by which row changes of a table are left out, or go to another database; ``None`` if they are taken.

    The server's own order for row format: databases first, then tables, then patterns; the first that matches decides,
    and where there are lists of what to take, what is in none of them is left out.

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
    """Databases, and what they are called instead."""
    rewrites = re.findall(r"\(([^,()]+),([^,()]+)\)|([^,()]+)->([^,()]+)", text.replace("`", ""))
    return [(one.strip(), other.strip()) for one, other in (filter(None, pair) for pair in rewrites)]


def _matches_wildcard(patterns: Iterable[str], name: str) -> bool:
    """Whether a name matches one of the server's patterns: ``%``, ``_``, a backslash before what is meant itself."""
    signs = {"%": ".*", "_": "."}
    for pattern in patterns:
        parts = re.findall(r"\\.|.", pattern, re.DOTALL)
        if re.fullmatch("".join(signs.get(p, re.escape(p[-1])) for p in parts), name, re.DOTALL):
            return True
    return False
