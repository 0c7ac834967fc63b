"""The declarative Pipeline: what to copy, how, and where to. Names are the same in YAML and in Python.

Every value is checked when its object is created, so files and Python objects follow the same rules. The first problem
is reported in one line that names the key, the value and what is allowed. ``docs/pipeline.md`` describes every key.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import reprlib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from airflow_provider_cdc.config.delete_policy import ALL_HARD
from airflow_provider_cdc.config.patterns import matches_any
from airflow_provider_cdc.config.sections import (
    MAX_SERVER_ID,
    SUSPEND,
    Alerts,
    Snapshot,
    Source,
    Spark,
    State,
    Stream,
)
from airflow_provider_cdc.config.sink_section import KEEP, Sink
from airflow_provider_cdc.config.strict_yaml import parse_yaml
from airflow_provider_cdc.config.transforms import Transforms
from airflow_provider_cdc.model import server_id_slots as slots
from airflow_provider_cdc.model.errors import NotReadyError
from airflow_provider_cdc.model.start_mode import SNAPSHOT
from airflow_provider_cdc.model.value_checks import check_keys, format_keys, invalid_value

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
# Derived server ids are far above the small numbers that are usually assigned to servers.
_FIRST_DERIVED_ID, _ID_STRIDE = 2**20, 1024
_UUID_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "airflow-provider-cdc")

_SECTIONS: dict[str, type[Any]] = {
    section.__name__.lower(): section for section in (Source, Transforms, Snapshot, Stream, Sink, State, Spark, Alerts)
}


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """One pipeline, as used by the command line, DAGs and tests.

    :param name: identity of the pipeline in the state database, in sink transactions and for replication server ids.
    :raises NotReadyError: for the first value that is not usable.
    """

    name: str
    source: Source
    transforms: Transforms = field(default_factory=Transforms)
    snapshot: Snapshot = field(default_factory=Snapshot)
    stream: Stream = field(default_factory=Stream)
    sink: Sink
    state: State = field(default_factory=State)
    spark: Spark = field(default_factory=Spark)
    alerts: Alerts = field(default_factory=Alerts)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise invalid_value(
                "name", self.name, "1 to 63 letters, digits, '_', '.' or '-', with a letter or digit first"
            )
        for key, section in _SECTIONS.items():
            if not isinstance(getattr(self, key), section):
                raise invalid_value(
                    key, getattr(self, key), f"a {section.__name__}; Pipeline.from_dict takes plain mappings"
                )
        if self.sink.adopt and self.stream.start != SNAPSHOT:
            raise NotReadyError(
                "sink.adopt is true, and stream.start is not snapshot",
                "The rows of an adopted table are replaced by those of the snapshot: set stream.start to snapshot",
            )
        if self.stream.on_purged == "reread" and self.sink.delete_policy != ALL_HARD:
            raise NotReadyError(
                "stream.on_purged is reread, and sink.deletes keeps deleted rows",
                "A new snapshot would remove them: leave on_purged at stop",
            )
        stream = self.stream
        if self.sink.on_dropped != KEEP and (stream.on_table_error != SUSPEND or not stream.follows_ddl):
            raise NotReadyError(
                "sink.on_dropped is not keep, and the stream stops where a table is dropped",
                f"Leave stream.on_table_error at {SUSPEND}, and stream.schema_changes at another value than exception",
            )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Pipeline:
        """Read a pipeline from a YAML file.

        :param path: file to read, UTF-8.
        :raises NotReadyError: if the file cannot be read, is not YAML, or has a value that is not usable.
        """
        try:
            text = Path(path).read_text(encoding="utf-8-sig")
        except OSError as error:
            raise NotReadyError(f"cannot read {path}: {error.strerror}", "Give the pipeline's YAML file") from None
        except UnicodeDecodeError:
            raise NotReadyError(f"{path} is not a UTF-8 text", "Give the pipeline's YAML file") from None
        return cls.from_yaml(text, str(path))

    @classmethod
    def from_yaml(cls, text: str, name: str = "pipeline") -> Pipeline:
        """Read a pipeline from YAML text, the inverse of :meth:`to_yaml`.

        :param text: the YAML.
        :param name: its name in messages.
        :raises NotReadyError: if it is not YAML, or has a value that is not usable.
        """
        value = parse_yaml(text, name)
        try:
            return cls.from_dict(value)
        except NotReadyError as error:
            raise NotReadyError(f"{name}: {error.message}", error.remedy) from None

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Pipeline:
        """Make a pipeline from plain values, as parsed from YAML or JSON.

        :param value: mapping with the names of the sections; a section that is missing or ``None`` has its defaults.
        :raises NotReadyError: for the first key or value that is not usable.
        """
        if not isinstance(value, Mapping):
            raise NotReadyError(
                f"a pipeline is not {reprlib.repr(value)}", "It is a mapping with name, source and sink"
            )
        values = dict(value)
        check_keys("", values, cls)
        for key, section in _SECTIONS.items():
            if values.get(key) is None:
                values[key] = {}
            if not isinstance(values[key], Mapping):
                raise invalid_value(key, values[key], f"a mapping with the keys {format_keys(section)}")
            check_keys(f"{key}.", values[key], section)
            values[key] = section(**values[key])
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values in the documented order, the inverse of :meth:`from_dict`."""
        value: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        return value

    def to_yaml(self) -> str:
        """Return YAML text, the inverse of :meth:`from_yaml`. It has no secrets: connections are only named."""
        return yaml.safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True)

    @property
    def connection_ids(self) -> tuple[str, ...]:
        """Ids of all connections that the pipeline names."""
        sections = (self.source, self.sink, self.state, self.spark)
        ids = [*(section.conn_id for section in sections), self.transforms.hash_key_conn_id]
        return tuple(dict.fromkeys(conn_id for conn_id in ids if conn_id))

    def captures(self, database: str, table: str) -> bool:
        """Return whether the pipeline captures a table."""
        source = self.source
        return matches_any(source.tables, database, table) and not matches_any(source.exclude, database, table)

    def copies_column(self, database: str, table: str, column: str) -> bool:
        """Return whether the patterns select a column of a captured table; key columns are copied in any case.

        :raises NotReadyError: if the patterns of two different policies match the column.
        """
        if self.transforms.excludes(database, table, column):
            return False
        included, excluded = self.source.include_columns, self.source.exclude_columns
        if included:
            return matches_any(included, database, table, column)
        return not matches_any(excluded, database, table, column)

    def server_id(self, slot: int) -> int:
        """Return the replication server id of one of the pipeline's binlog readers.

        :param slot: one of :mod:`~airflow_provider_cdc.model.server_id_slots`.
        :return: a number below 2^32, the same in every run.
        """
        if not 0 <= slot <= slots.LAST_SLOT:
            raise ValueError(f"slot {slot} is not in 0..{slots.LAST_SLOT}")
        if self.source.server_id is not None:
            return self.source.server_id + slot
        # Strides, so that the ids of two pipelines never overlap partially.
        strides = (MAX_SERVER_ID - _FIRST_DERIVED_ID) // _ID_STRIDE
        digest = int.from_bytes(hashlib.sha256(self.name.encode()).digest()[:8], "big")
        return _FIRST_DERIVED_ID + digest % strides * _ID_STRIDE + slot

    def replica_uuid(self, slot: int) -> str:
        """Return the UUID with which the reader of a slot registers at the server; the same in every run."""
        return str(uuid.uuid5(_UUID_NAMESPACE, f"{self.name}/{self.server_id(slot)}"))

    def replica_ids(self, slot: int) -> tuple[int, str]:
        """Return server id and UUID with which the reader of a slot registers at the server."""
        return self.server_id(slot), self.replica_uuid(slot)
