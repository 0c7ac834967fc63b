"""Adoption of a Delta table made by other software as the sink table of a captured table (``sink.adopt``).

Its rows do not record a binlog position, so none of them is kept: the snapshot writes all rows again.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from airflow_provider_cdc.model.errors import NotReadyError
from airflow_provider_cdc.sinks.delta.log.delta_log import DeltaLog
from airflow_provider_cdc.sinks.delta.log.features import merge_protocols, protocol_actions, protocol_with_feed
from airflow_provider_cdc.sinks.delta.log.retention import drop_shorter_retentions
from airflow_provider_cdc.sinks.lake.table_checks import owner_of

#: Prefix of the description of a table that a pipeline owns, which only users read.
OWNER_DESCRIPTION_PREFIX = "airflow-cdc pipeline "


def check_adoptable(log: DeltaLog, wanted_schema: str, partitions: Sequence[str], nullable: Collection[str]) -> None:
    """Refuse a table that cannot be adopted; parameters as for :func:`find_adoption_obstacles`.

    :raises NotReadyError: listing all obstacles.
    """
    if obstacles := find_adoption_obstacles(log, wanted_schema, partitions, nullable):
        raise NotReadyError(
            f"the {log.name} cannot be adopted: {'; '.join(obstacles)}",
            "Alter it, or choose another sink.path or sink.table_path",
        )


def find_adoption_obstacles(
    log: DeltaLog, wanted_schema: str, partitions: Sequence[str], nullable: Collection[str]
) -> list[str]:
    """Return the obstacles to adopting a table.

    :param log: the current state of the table.
    :param wanted_schema: schema that it is to have, in the format of the log.
    :param partitions: columns that it is to be partitioned by.
    :param nullable: names of the columns that may be NULL in the source.
    """
    obstacles = []
    if (owner := owner_of(log.properties)) is not None:
        obstacles.append(f"it belongs to {OWNER_DESCRIPTION_PREFIX}{owner}")
    if log.markers:
        obstacles.append(f"it has a writer: {', '.join(sorted(log.markers)[:3])}")
    wanted_columns = {column["name"]: column for column in json.loads(wanted_schema)["fields"]}
    existing_columns = {column["name"]: column for column in json.loads(log.metadata["schemaString"])["fields"]}
    for name, column in wanted_columns.items():
        existing = existing_columns.get(name)
        if existing is None:
            if not name.startswith("_cdc_"):
                obstacles.append(f"it lacks column {name} ({_type_name(column)})")
        elif existing["type"] != column["type"]:
            obstacles.append(f"column {name} is {_type_name(existing)}, and not {_type_name(column)}")
        elif not existing["nullable"] and (name in nullable or name.startswith("_cdc_")):
            obstacles.append(f"column {name} is NOT NULL, and may be NULL in the source")
    if (parts := list(log.metadata.get("partitionColumns") or ())) != list(partitions):
        obstacles.append(
            f"it is partitioned by {', '.join(parts) or 'nothing'}, and not by {', '.join(partitions) or 'nothing'}"
        )
    obstacles += [
        f"it has column {name}, which the source does not have"
        for name in existing_columns
        if name not in wanted_columns
    ]
    return obstacles


def adoption_actions(log: DeltaLog, metadata: Mapping[str, Any], protocol: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return actions that adopt a table: its rows are removed, and it gets an owner.

    :param metadata: metadata that a new table would have.
    :param protocol: protocol that a new table would have.
    """
    old_metadata = log.metadata
    old_column_metadata = {
        column["name"]: column["metadata"] for column in json.loads(old_metadata["schemaString"])["fields"]
    }
    schema = json.loads(metadata["schemaString"])
    for column in schema["fields"]:
        column["metadata"] = {**old_column_metadata.get(column["name"], {}), **column["metadata"]}
    new_metadata = {
        **metadata,
        **{key: old_metadata[key] for key in ("id", "name", "createdTime") if key in old_metadata},
        "schemaString": json.dumps(schema),
        "configuration": {**log.properties, **drop_shorter_retentions(log.properties, metadata["configuration"])},
    }
    new_protocol = protocol_with_feed(merge_protocols(log.protocol, protocol), new_metadata["configuration"])
    return [
        *protocol_actions(log.protocol, new_protocol),
        {"metaData": new_metadata},
        *(file.remove_action(data_change=True) for file in log.files.values()),
    ]


def _type_name(column: Mapping[str, Any]) -> str:
    kind = column["type"]
    return kind if isinstance(kind, str) else str(kind.get("type"))
