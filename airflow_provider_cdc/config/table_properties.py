"""Properties of Delta tables that a pipeline asks for (``sink.table_properties``)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from airflow_provider_cdc.config.patterns import check_patterns, matches
from airflow_provider_cdc.model.errors import NotReadyError
from airflow_provider_cdc.model.value_checks import refused

#: What begins like this is Delta's; the project's own begins with the other. All else is for people.
_DELTA, OWN = "delta.", "airflow-cdc."
_INTERVAL = re.compile(r"interval [1-9]\d* (second|minute|hour|day|week)s?")
#: Properties of Delta that may be set, with what their values look like.
FEED, RETENTION = "delta.enableChangeDataFeed", "delta.deletedFileRetentionDuration"
LOG_RETENTION = "delta.logRetentionDuration"
_KNOWN = {
    LOG_RETENTION: (_INTERVAL, "an interval such as interval 7 days"),
    RETENTION: (_INTERVAL, "an interval such as interval 7 days"),
    FEED: (re.compile("true|false"), "true or false"),
}
#: Those that a setting of the pipeline decides, and what the project keeps by itself.
_DECIDED = {
    "delta.enableDeletionVectors": "sink.merge decides it",
    "delta.checkpointInterval": "a checkpoint is written every 100 commits",
    "delta.setTransactionRetentionDuration": "the copy would lose what it holds: transactions must be kept",
}
#: Of tables with a change data feed: it can be read for as long as versions stay in the log.
_OF_FEED = {RETENTION: "interval 1 days"}
_EVERY = ".*[.].*"


@dataclass(frozen=True)
class TableProperties:
    """``sink.table_properties``.

    :param patterns_by_value: properties, each with a value and the patterns of the tables that have it.
    """

    entries: tuple[tuple[str, str, tuple[str, ...]], ...] = ()

    @classmethod
    def parse(cls, value: object) -> TableProperties:
        """Check what a pipeline has: property -> value, or property -> {value: [patterns of tables]}.

        :raises NotReadyError: for the first property or value that is not usable, by name.
        """
        if not isinstance(value, Mapping):
            raise refused("sink.table_properties", value, "a mapping of properties to values")
        entries = []
        for name, wanted in value.items():
            if not isinstance(name, str) or not name or not name.isprintable():
                raise refused("sink.table_properties", name, "a mapping whose keys are names of properties")
            _check_name(name)
            patterns_by_value = wanted if isinstance(wanted, Mapping) else {wanted: [_EVERY]}
            if not patterns_by_value:
                raise refused(f"sink.table_properties.{name}", wanted, "a value, or {value: [patterns of tables]}")
            for one, patterns in patterns_by_value.items():
                text = _checked(name, one)
                entries.append((name, text, check_patterns(f"sink.table_properties.{name}.{text}", patterns)))
        return cls(tuple(entries))

    def properties_of(self, database: str, table: str) -> dict[str, str]:
        """Those of a table.

        :raises NotReadyError: if it would have two values of one.
        """
        properties: dict[str, str] = {}
        for name, value, patterns in self.entries:
            if matches(patterns, database, table) and properties.setdefault(name, value) != value:
                raise NotReadyError(
                    f"sink.table_properties.{name} is {properties[name]} and {value} for table {database}.{table}",
                    "Let each table match the patterns of one value",
                )
        if properties.get(FEED) == "true":
            return {**_OF_FEED, **properties}
        return properties


def _check_name(name: str) -> None:
    if name in _DECIDED:
        raise NotReadyError(f"sink.table_properties: {name} cannot be set: {_DECIDED[name]}", "Leave it out")
    if (name.lower().startswith(_DELTA) and name not in _KNOWN) or name.lower().startswith(OWN):
        raise NotReadyError(
            f"sink.table_properties: {name} is not a property that this version understands",
            f"It may be {', '.join(_KNOWN)}, or a name of your own that begins with neither {_DELTA} nor {OWN}",
        )


def _checked(name: str, value: object) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value) if isinstance(value, int | str) else None
    pattern, allowed = _KNOWN.get(name, (None, "a text"))
    if text is None or not text.isprintable() or (pattern is not None and not pattern.fullmatch(text)):
        raise refused(f"sink.table_properties.{name}", value, allowed)
    return text


#: The default.
NONE = TableProperties()
