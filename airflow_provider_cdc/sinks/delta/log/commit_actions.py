"""What table features that other writers have enabled require of every commit.

With row tracking, each data file gets its own row ids. In a clustered table, each data file has statistics of the
clustering columns. Every writer has to maintain both, even if a property has disabled the feature.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_cdc.sinks.delta.log.features import ROW_TRACKING, features_of
from airflow_provider_cdc.sinks.delta.log.live_file import DeltaLiveFile
from airflow_provider_cdc.sinks.files.parquet import open_parquet
from airflow_provider_cdc.sinks.storage.storage import Storage

_ROW_TRACKING_DOMAIN, _HIGH_WATER_MARK = "delta.rowTracking", "rowIdHighWaterMark"
_ROW_TRACKING_SUSPENDED = "delta.rowTrackingSuspended"
_CLUSTERING_DOMAIN, _CLUSTERING_COLUMNS = "delta.clustering", "clusteringColumns"
#: Characters of a text in statistics, as in Spark.
_MAX_TEXT_LENGTH = 32


def complete_actions(
    storage: Storage,
    actions: Sequence[Mapping[str, Any]],
    version: int,
    protocol: Mapping[str, Any],
    metadata: Mapping[str, Any],
    domains: Mapping[str, str],
) -> list[dict[str, Any]]:
    """Return the actions of a commit with everything that the table's features require.

    :param version: version that the commit is to become.
    :param protocol, metadata, domains: those of the version before.
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
    """Return the columns that a table is clustered by."""
    return [path[0] for path in _clustering_paths(domains)]


def drop_clustering_columns(domains: Mapping[str, str], names: Collection[str]) -> list[dict[str, Any]]:
    """Return the action after which a table is not clustered by columns that it loses; empty if it loses none.

    Otherwise Spark could neither describe nor optimize the table.

    :param names: names of the columns that the table is to have.
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
    """Return the actions with row ids for new files.

    A live file that gets another deletion vector keeps the row ids that it has.
    """
    before = highest = int(json.loads(domains.get(_ROW_TRACKING_DOMAIN) or "{}").get(_HIGH_WATER_MARK, -1))
    result = []
    for action in actions:
        add = action.get("add")
        if add is not None and add.get("baseRowId") is None:
            action = {"add": {**add, "baseRowId": highest + 1, "defaultRowCommitVersion": version}}
            highest += int(DeltaLiveFile(add).stats["numRecords"])
        result.append(action)
    return result if highest == before else [*result, _domain_action(_ROW_TRACKING_DOMAIN, {_HIGH_WATER_MARK: highest})]


# ------------------------------------------------------------ clustering


def _with_statistics(storage: Storage, action: dict[str, Any], columns: Sequence[str]) -> dict[str, Any]:
    add = action.get("add")
    if add is None:
        return action
    stats = dict(DeltaLiveFile(add).stats)
    nulls = stats.get("nullCount") or {}
    if not (missing := [name for name in columns if name not in nulls]):
        return action
    for kind, values in _read_statistics(storage, DeltaLiveFile(add).path, missing).items():
        stats[kind] = {**(stats.get(kind) or {}), **values}
    return {"add": {**add, "stats": json.dumps(stats)}}


def _read_statistics(storage: Storage, path: str, columns: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return statistics of columns of a data file, without bounds that readers might interpret differently."""
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
        except (OverflowError, ValueError):  # no value, or a date outside the range of Python
            continue
        statistics["minValues"][name], statistics["maxValues"][name] = low, high
    return statistics


def _has_bounds(kind: pa.DataType) -> bool:
    types = pa.types
    return any(is_type(kind) for is_type in (types.is_integer, types.is_string, types.is_date32, types.is_timestamp))


def _statistics_bound(value: Any, *, is_upper: bool) -> Any:
    """Return a value in the form used in statistics, rounded outwards if necessary.

    :param is_upper: whether it is the upper bound.
    """
    if isinstance(value, str):
        # In byte order, no character is greater than this one.
        return (
            value if len(value) <= _MAX_TEXT_LENGTH else value[:_MAX_TEXT_LENGTH] + ("\U0010ffff" if is_upper else "")
        )
    if isinstance(value, datetime):
        rounded = value.replace(microsecond=value.microsecond // 1000 * 1000)
        rounded += timedelta(milliseconds=1) if is_upper and rounded < value else timedelta()
        return rounded.replace(tzinfo=None).isoformat(timespec="milliseconds") + ("Z" if value.tzinfo else "")
    return value.isoformat() if isinstance(value, date) else value
