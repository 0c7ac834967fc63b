"""What the features that other writers have given a table ask of each commit, whatever it is for.

With row tracking, each data file gets row ids of its own. In a clustered table, each has statistics of the columns that
the table is clustered by. Both are kept by whoever writes, also where a property has switched the feature off.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_cdc.sinks.delta.log.features import ROW_TRACKING, features_of
from airflow_provider_cdc.sinks.delta.log.live_file import LiveFile
from airflow_provider_cdc.sinks.files.parquet import open_parquet
from airflow_provider_cdc.sinks.storage.storage import Storage

_ROW_TRACKING_DOMAIN, _HIGH_WATER_MARK = "delta.rowTracking", "rowIdHighWaterMark"
_ROW_TRACKING_SUSPENDED = "delta.rowTrackingSuspended"
_CLUSTERING_DOMAIN, _CLUSTERING_COLUMNS = "delta.clustering", "clusteringColumns"
#: Characters of a text in statistics, as Spark has it.
_MAX_TEXT_LENGTH = 32


def complete_actions(
    storage: Storage,
    actions: Sequence[Mapping[str, Any]],
    version: int,
    protocol: Mapping[str, Any],
    metadata: Mapping[str, Any],
    domains: Mapping[str, str],
) -> list[dict[str, Any]]:
    """The actions of a commit with all that the table's features ask of it.

    :param version: that the commit is to become.
    :param protocol, metadata, domains: of the version before.
    """
    for action in actions:
        protocol, metadata = action.get("protocol", protocol), action.get("metaData", metadata)
        if domain := action.get("domainMetadata"):
            domains = {**domains, domain["domain"]: domain["configuration"]}
    result = [dict(action) for action in actions]
    if columns := clustering_columns(domains):
        result = [_with_statistics(storage, action, columns) for action in result]
    suspended = str((metadata.get("configuration") or {}).get(_ROW_TRACKING_SUSPENDED, "")).lower() == "true"
    if ROW_TRACKING in features_of(protocol)[1] and not suspended:
        return _with_row_ids(result, version, domains)
    return result


def clustering_columns(domains: Mapping[str, str]) -> list[str]:
    """The columns that a table is clustered by."""
    return [path[0] for path in _clustering_paths(domains)]


def drop_clustering_columns(domains: Mapping[str, str], names: Collection[str]) -> list[dict[str, Any]]:
    """The action after which a table is no longer clustered by columns that it loses; none if there are none.

    Otherwise Spark could neither describe nor optimize it.

    :param names: of the columns that it is to have.
    """
    paths = _clustering_paths(domains)
    kept_paths = [path for path in paths if path[0] in names]
    if kept_paths == paths:
        return []
    configuration = {**json.loads(domains[_CLUSTERING_DOMAIN]), _CLUSTERING_COLUMNS: kept_paths}
    return [_domain_action(_CLUSTERING_DOMAIN, configuration)]


def _clustering_paths(domains: Mapping[str, str]) -> list[list[str]]:
    clustering = json.loads(domains.get(_CLUSTERING_DOMAIN) or "{}")
    return [[str(name) for name in path] for path in clustering.get(_CLUSTERING_COLUMNS) or () if path]


def _domain_action(domain: str, configuration: Mapping[str, Any]) -> dict[str, Any]:
    return {"domainMetadata": {"domain": domain, "configuration": json.dumps(configuration), "removed": False}}


# ------------------------------------------------------------ row tracking


def _with_row_ids(actions: Iterable[dict[str, Any]], version: int, domains: Mapping[str, str]) -> list[dict[str, Any]]:
    """A file that is there already, and gets another vector, keeps those that it has."""
    before = highest = int(json.loads(domains.get(_ROW_TRACKING_DOMAIN) or "{}").get(_HIGH_WATER_MARK, -1))
    result = []
    for action in actions:
        add = action.get("add")
        if add is not None and add.get("baseRowId") is None:
            action = {"add": {**add, "baseRowId": highest + 1, "defaultRowCommitVersion": version}}
            highest += int(LiveFile(add).stats["numRecords"])
        result.append(action)
    return result if highest == before else [*result, _domain_action(_ROW_TRACKING_DOMAIN, {_HIGH_WATER_MARK: highest})]


# ------------------------------------------------------------ clustering


def _with_statistics(storage: Storage, action: dict[str, Any], columns: Sequence[str]) -> dict[str, Any]:
    add = action.get("add")
    if add is None:
        return action
    stats = dict(LiveFile(add).stats)
    nulls = stats.get("nullCount") or {}
    if not (missing := [name for name in columns if name not in nulls]):
        return action
    for kind, values in _read_statistics(storage, LiveFile(add).path, missing).items():
        stats[kind] = {**(stats.get(kind) or {}), **values}
    return {"add": {**add, "stats": json.dumps(stats)}}


def _read_statistics(storage: Storage, path: str, columns: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Statistics of columns of a data file. Bounds are left out where a reader might take them otherwise."""
    statistics: dict[str, dict[str, Any]] = {"minValues": {}, "maxValues": {}, "nullCount": dict.fromkeys(columns, 0)}
    extremes: dict[str, list[Any]] = {name: [] for name in columns}
    with open_parquet(storage, path) as file:
        present = [name for name in columns if name in file.schema_arrow.names]
        for number in range(file.num_row_groups):
            rows = file.read_row_group(number, columns=present)
            for name in columns:
                if name not in present:  # the file is older than the column
                    statistics["nullCount"][name] += file.metadata.row_group(number).num_rows
                    continue
                statistics["nullCount"][name] += rows[name].null_count
                if _has_bounds(rows[name].type) and rows[name].null_count < len(rows):
                    extremes[name].append(pc.min_max(rows[name]))
    for name, column_extremes in extremes.items():
        try:
            low = _statistics_bound(min(extreme["min"].as_py() for extreme in column_extremes), is_upper=False)
            high = _statistics_bound(max(extreme["max"].as_py() for extreme in column_extremes), is_upper=True)
        except (OverflowError, ValueError):  # there is no value, or Python has no such date
            continue
        statistics["minValues"][name], statistics["maxValues"][name] = low, high
    return statistics


def _has_bounds(kind: pa.DataType) -> bool:
    types = pa.types
    return any(is_type(kind) for is_type in (types.is_integer, types.is_string, types.is_date32, types.is_timestamp))


def _statistics_bound(value: Any, *, is_upper: bool) -> Any:
    """A value as statistics have it: rounded, but never into the file's values.

    :param is_upper: whether it is the highest one.
    """
    if isinstance(value, str):
        # By bytes no character is above this one.
        return (
            value if len(value) <= _MAX_TEXT_LENGTH else value[:_MAX_TEXT_LENGTH] + ("\U0010ffff" if is_upper else "")
        )
    if isinstance(value, datetime):
        rounded = value.replace(microsecond=value.microsecond // 1000 * 1000)
        rounded += timedelta(milliseconds=1) if is_upper and rounded < value else timedelta()
        return rounded.replace(tzinfo=None).isoformat(timespec="milliseconds") + ("Z" if value.tzinfo else "")
    return value.isoformat() if isinstance(value, date) else value
