"""The kinds of sinks. To add one, add an entry here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from airflow_provider_cdc.config.delta_settings import DELTA_PARTITION_UNITS, check_delta_settings
from airflow_provider_cdc.config.iceberg_settings import ICEBERG_PARTITION_UNITS, check_iceberg_settings

DELETION_VECTORS, COPY_ON_WRITE = "deletion_vectors", "copy_on_write"
#: The catalog of the tables.
CATALOG_SETTING = "catalog"
_DELTA_SETTINGS = frozenset(
    {"conn_id", "deletes", "index_bytes", "partition_by", "table_path", "lower_case", "routes", "table_properties"}
    | {"adopt"}
)
#: Keys of the sink section that only some kinds have.
KIND_SETTINGS = _DELTA_SETTINGS | {CATALOG_SETTING}


@dataclass(frozen=True)
class SinkKind:
    """A kind of sink, and the settings that it has.

    :param sink_class: module and class, a :class:`~airflow_provider_cdc.sinks.protocol.PipelineSink`.
    :param merge_modes: supported values of ``sink.merge``, the default first.
    :param settings: those of :data:`KIND_SETTINGS` that it has.
    :param partition_units: parts of dates, and other transforms, that ``sink.partition_by`` may name. ``[n]`` is
        any number.
    :param check_settings: checks ``sink.path`` and ``sink.table_properties`` by the rules of the kind.
    :param extra: extra of this package with the libraries that it needs, if they are optional.
    """

    sink_class: str
    merge_modes: tuple[str, ...]
    settings: frozenset[str]
    partition_units: tuple[str, ...] = ()
    check_settings: Callable[[str, object], None] = lambda _path, _table_properties: None
    extra: str | None = None


#: Kinds by ``sink.kind``.
SINK_KINDS = {
    "delta": SinkKind(
        "airflow_provider_cdc.sinks.delta.sink:DeltaSink",
        (DELETION_VECTORS, COPY_ON_WRITE),
        _DELTA_SETTINGS,
        DELTA_PARTITION_UNITS,
        check_delta_settings,
    ),
    "iceberg": SinkKind(
        "airflow_provider_cdc.sinks.iceberg.sink:IcebergSink",
        (DELETION_VECTORS, COPY_ON_WRITE),
        KIND_SETTINGS,
        ICEBERG_PARTITION_UNITS,
        check_iceberg_settings,
        "iceberg",
    ),
}
