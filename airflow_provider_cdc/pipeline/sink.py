"""The section of a pipeline that says where rows go, and how."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_cdc.core.checks import check_choice, check_conn_id, check_whole, refused
from airflow_provider_cdc.core.patterns import check_patterns
from airflow_provider_cdc.core.store_address import StoreAddress
from airflow_provider_cdc.exceptions import NotReadyError
from airflow_provider_cdc.sinks.registry import KINDS

_SINK_KINDS = ("delta", "iceberg", "jdbc", "kafka", "changelog")
_MERGES = ("deletion_vectors", "copy_on_write")


@dataclass(frozen=True)
class Sink:
    """Where rows go.

    :param path: absolute folder, or address in an object store (``s3://``, ``gs://``, ``abfss://``, ``az://``); one
        table a folder: ``<path>/<database>/<table>``.
    :param kind: ``delta``; one of :data:`airflow_provider_cdc.sinks.registry.KINDS`.
    :param deletes: ``hard``: a deleted row is gone.
    :param merge: how rows that are replaced or deleted go: ``deletion_vectors`` or ``copy_on_write``; or, for some
        tables, ``{"copy_on_write": [patterns]}``.
    :param index_bytes: what the index of a table's keys may take in memory.
    :param compaction: whether the stream compacts the tables beside its work; else only ``airflow-cdc maintain`` does.
    :param conn_id: Airflow connection of the object store; ``None`` for what the environment of each host says.
    """

    path: str
    kind: str = "delta"
    deletes: str = "hard"
    merge: str | Mapping[str, Sequence[str]] = field(default="deletion_vectors", hash=False)
    index_bytes: int = 268_435_456
    compaction: bool = True
    conn_id: str | None = None

    def __post_init__(self) -> None:
        check_choice("sink.kind", self.kind, tuple(KINDS), _SINK_KINDS, f"Use {' or '.join(KINDS)}")
        path: object = self.path
        if not isinstance(path, str):
            raise refused("sink.path", path, "the absolute path of a folder, such as /data/lake")
        address = StoreAddress.of(path)
        if self.conn_id is not None:
            check_conn_id("sink.conn_id", self.conn_id)
            if address is None:
                raise NotReadyError("sink.conn_id is set, and sink.path is a folder", "Leave one of them out")
        check_choice(
            "sink.deletes", self.deletes, ("hard",), ("soft",), "Use hard: a deleted row is removed from the sink"
        )
        self._check_merge()
        check_whole("sink.index_bytes", self.index_bytes, 1 << 20)
        compaction: object = self.compaction
        if not isinstance(compaction, bool):
            raise refused("sink.compaction", compaction, "true or false")

    def _check_merge(self) -> None:
        merge: object = self.merge
        if not isinstance(merge, Mapping):
            check_choice("sink.merge", merge, _MERGES, (), "")
        elif list(merge) != ["copy_on_write"]:
            raise refused("sink.merge", merge, f"{' or '.join(_MERGES)}, or {{copy_on_write: [patterns of tables]}}")
        else:
            patterns = check_patterns("sink.merge.copy_on_write", merge["copy_on_write"])
            object.__setattr__(self, "merge", {"copy_on_write": patterns})

    @property
    def settings(self) -> dict[str, Any]:
        """What the class of the sink takes beside path and pipeline, as far as it is not the default."""
        found: dict[str, Any] = {}
        if self.merge != "deletion_vectors":
            found["copies"] = (".*[.].*",) if isinstance(self.merge, str) else tuple(self.merge["copy_on_write"])
        if self.index_bytes != type(self).index_bytes:
            found["index_bytes"] = self.index_bytes
        return found
