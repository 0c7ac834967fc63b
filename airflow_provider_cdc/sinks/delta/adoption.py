"""A Delta table that something else has made becomes the copy of a source table (``sink.adopt``).

Its rows say nothing of where in the binlog they stand, so none of them is kept: the snapshot writes them anew.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from airflow_provider_cdc.config.table_properties import OWN
from airflow_provider_cdc.model.errors import NotReadyError
from airflow_provider_cdc.sinks.delta.log.features import both, with_feed
from airflow_provider_cdc.sinks.delta.log.log import Log
from airflow_provider_cdc.sinks.delta.log.retention import without_shorter

#: How the description of a table begins that a pipeline owns, and the property that names it: people may write another
#: description, and somebody who replaces the table takes the property away.
OWNED, OWNER = "airflow-cdc pipeline ", f"{OWN}pipeline"


def owner_of(metadata: Mapping[str, Any]) -> str | None:
    """The pipeline that owns a table, ``None`` if no pipeline does.

    :param metadata: of the table.
    """
    owner: str | None = (metadata.get("configuration") or {}).get(OWNER)
    description = str(metadata.get("description") or "")
    if owner is None and description.startswith(OWNED):  # the only sign that older versions have left
        owner = description.removeprefix(OWNED)
    return owner


def check_adoptable(log: Log, wanted: str, partitions: Sequence[str], nullable: Collection[str]) -> None:
    """Refuse a table that cannot be taken over; parameters as for :func:`differences`.

    :raises NotReadyError: with all that is in the way.
    """
    if found := differences(log, wanted, partitions, nullable):
        raise NotReadyError(
            f"the {log.name} cannot be adopted: {'; '.join(found)}",
            "Alter it, or choose another sink.path or sink.table_path",
        )


def differences(log: Log, wanted: str, partitions: Sequence[str], nullable: Collection[str]) -> list[str]:
    """What stands in the way of taking a table over.

    :param log: the table as it stands.
    :param wanted: the schema that it shall have, as the log says it.
    :param partitions: columns that it shall be partitioned by.
    :param nullable: names of the columns that may be NULL in the source.
    """
    found = []
    if (owner := owner_of(log.metadata)) is not None:
        found.append(f"it belongs to {OWNED}{owner}")
    if log.markers:
        found.append(f"it has a writer: {', '.join(sorted(log.markers)[:3])}")
    needed = {column["name"]: column for column in json.loads(wanted)["fields"]}
    has = {column["name"]: column for column in json.loads(log.metadata["schemaString"])["fields"]}
    for name, column in needed.items():
        there = has.get(name)
        if there is None:
            if not name.startswith("_cdc_"):
                found.append(f"it lacks column {name} ({_type(column)})")
        elif there["type"] != column["type"]:
            found.append(f"column {name} is {_type(there)}, and not {_type(column)}")
        elif not there["nullable"] and (name in nullable or name.startswith("_cdc_")):
            found.append(f"column {name} is NOT NULL, and may be NULL in the source")
    if (parts := list(log.metadata.get("partitionColumns") or ())) != list(partitions):
        found.append(
            f"it is partitioned by {', '.join(parts) or 'nothing'}, and not by {', '.join(partitions) or 'nothing'}"
        )
    found += [f"it has column {name}, which the source does not have" for name in has if name not in needed]
    return found


def adopted(log: Log, metadata: Mapping[str, Any], protocol: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Actions that take a table over: its rows go, and it gets an owner.

    :param metadata: of a new table of this kind.
    :param protocol: likewise.
    """
    theirs = log.metadata
    before = {column["name"]: column["metadata"] for column in json.loads(theirs["schemaString"])["fields"]}
    schema = json.loads(metadata["schemaString"])
    for column in schema["fields"]:
        column["metadata"] = {**before.get(column["name"], {}), **column["metadata"]}
    renewed = {
        **metadata,
        **{key: theirs[key] for key in ("id", "name", "createdTime") if key in theirs},
        "schemaString": json.dumps(schema),
        "configuration": {**log.configuration, **without_shorter(log.configuration, metadata["configuration"])},
    }
    actions: list[dict[str, Any]] = []
    if (needed := with_feed(both(log.protocol, protocol), renewed["configuration"])) != log.protocol:
        actions.append({"protocol": needed})
    actions.append({"metaData": renewed})
    return actions + [file.removed(change=True) for file in log.files.values()]


def _type(column: Mapping[str, Any]) -> str:
    kind = column["type"]
    return kind if isinstance(kind, str) else str(kind.get("type"))
