"""The kinds of sinks. To add one, add an entry here."""

from __future__ import annotations

from dataclasses import dataclass

DELETION_VECTORS, COPY_ON_WRITE = "deletion_vectors", "copy_on_write"
#: Keys of the sink section that only some kinds have.
KIND_SETTINGS = frozenset(
    {"conn_id", "deletes", "index_bytes", "partition_by", "table_path", "lower_case", "table_properties", "adopt"}
)


@dataclass(frozen=True)
class SinkKind:
    """A kind of sink, and the settings that it has.

    :param sink_class: module and class, a :class:`~airflow_provider_cdc.sinks.protocol.PipelineSink`.
    :param merge_modes: supported values of ``sink.merge``, the default first.
    :param settings: those of :data:`KIND_SETTINGS` that it has.
    """

    sink_class: str
    merge_modes: tuple[str, ...]
    settings: frozenset[str]


#: Kinds by ``sink.kind``.
SINK_KINDS = {
    "delta": SinkKind(
        "airflow_provider_cdc.sinks.delta.sink:DeltaSink", (DELETION_VECTORS, COPY_ON_WRITE), KIND_SETTINGS
    ),
}
