"""Delta table properties that a pipeline sets (``sink.table_properties``)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from airflow_provider_cdc.config.patterns import check_patterns, matches_any
from airflow_provider_cdc.model.errors import NotReadyError
from airflow_provider_cdc.model.value_checks import invalid_value

#: Prefixes of Delta's properties and of the project's own. All others are for users.
_DELTA_PREFIX, OWN_PREFIX = "delta.", "airflow-cdc."
_INTERVAL = re.compile(r"interval [1-9]\d* (second|minute|hour|day|week)s?")
#: Properties of Delta that may be set, with the form of their values.
CHANGE_DATA_FEED, DELETED_FILE_RETENTION = "delta.enableChangeDataFeed", "delta.deletedFileRetentionDuration"
LOG_RETENTION = "delta.logRetentionDuration"
_SETTABLE = {
    LOG_RETENTION: (_INTERVAL, "an interval such as interval 7 days"),
    DELETED_FILE_RETENTION: (_INTERVAL, "an interval such as interval 7 days"),
    CHANGE_DATA_FEED: (re.compile("true|false"), "true or false"),
}
#: Properties that a setting of the pipeline or the project itself determines.
_MANAGED = {
    "delta.enableDeletionVectors": "sink.merge decides it",
    "delta.checkpointInterval": "a checkpoint is written every 100 commits",
    "delta.setTransactionRetentionDuration": "the transactions that mark applied work must be kept",
}
#: For tables with a change data feed, which can be read as long as its files are retained.
_FEED_DEFAULTS = {DELETED_FILE_RETENTION: "interval 1 days"}
_EVERY_TABLE = ".*[.].*"


@dataclass(frozen=True)
class TableProperties:
    """``sink.table_properties``.

    :param entries: property, value, and the patterns of the tables that have it.
    """

    entries: tuple[tuple[str, str, tuple[str, ...]], ...] = ()

    @classmethod
    def parse(cls, value: object) -> TableProperties:
        """Check the setting: property -> value, or property -> {value: [patterns of tables]}.

        :raises NotReadyError: for the first property or value that is not usable, by name.
        """
        if not isinstance(value, Mapping):
            raise invalid_value("sink.table_properties", value, "a mapping of properties to values")
        entries = []
        for name, wanted in value.items():
            if not isinstance(name, str) or not name or not name.isprintable():
                raise invalid_value("sink.table_properties", name, "a mapping whose keys are names of properties")
            _check_name(name)
            patterns_by_value = wanted if isinstance(wanted, Mapping) else {wanted: [_EVERY_TABLE]}
            if not patterns_by_value:
                raise invalid_value(
                    f"sink.table_properties.{name}", wanted, "a value, or {value: [patterns of tables]}"
                )
            for one, patterns in patterns_by_value.items():
                text = _check_value(name, one)
                entries.append((name, text, check_patterns(f"sink.table_properties.{name}.{text}", patterns)))
        return cls(tuple(entries))

    def properties_of(self, database: str, table: str) -> dict[str, str]:
        """Return the properties of a table.

        :raises NotReadyError: if a property would have two values.
        """
        properties: dict[str, str] = {}
        for name, value, patterns in self.entries:
            if matches_any(patterns, database, table) and properties.setdefault(name, value) != value:
                raise NotReadyError(
                    f"sink.table_properties.{name} is {properties[name]} and {value} for table {database}.{table}",
                    "Let each table match the patterns of one value",
                )
        if properties.get(CHANGE_DATA_FEED) == "true":
            return {**_FEED_DEFAULTS, **properties}
        return properties


def _check_name(name: str) -> None:
    if name in _MANAGED:
        raise NotReadyError(f"sink.table_properties: {name} cannot be set: {_MANAGED[name]}", "Leave it out")
    if (name.lower().startswith(_DELTA_PREFIX) and name not in _SETTABLE) or name.lower().startswith(OWN_PREFIX):
        raise NotReadyError(
            f"sink.table_properties: {name} is not a property that this version understands",
            f"It may be {', '.join(_SETTABLE)}, or a name of your own that begins with neither {_DELTA_PREFIX} nor "
            f"{OWN_PREFIX}",
        )


def _check_value(name: str, value: object) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value) if isinstance(value, int | str) else None
    pattern, allowed = _SETTABLE.get(name, (None, "a text"))
    if text is None or not text.isprintable() or (pattern is not None and not pattern.fullmatch(text)):
        raise invalid_value(f"sink.table_properties.{name}", value, allowed)
    return text


#: The default: no properties.
NO_PROPERTIES = TableProperties()
