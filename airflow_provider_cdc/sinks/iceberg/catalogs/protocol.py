"""The protocol of a catalog: it says which metadata a table has, and sets the next one if nobody else was faster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from airflow_provider_cdc.sinks.iceberg.format.table_metadata import TableMetadata
from airflow_provider_cdc.sinks.iceberg.format.table_updates import Requirement, Update


@dataclass(frozen=True)
class TableIdentifier:
    """Name of a table in a catalog.

    :param namespace: levels of its namespace.
    """

    namespace: tuple[str, ...]
    name: str

    def __str__(self) -> str:
        return ".".join((*self.namespace, self.name))


@dataclass(frozen=True)
class CatalogTable:
    """A table as the catalog has it.

    :param metadata_location: location of the file with its metadata; ``None`` if the catalog does not say.
    :param config: what the catalog says of the access to the table's files, such as temporary credentials.
    """

    metadata: TableMetadata
    metadata_location: str | None
    config: Mapping[str, str] = field(default_factory=dict, repr=False)


class CommitOutcome(StrEnum):
    """What became of a commit."""

    #: The table has it.
    DONE = "done"
    #: A requirement is not met: the table does not have it, and never will.
    CONFLICT = "conflict"
    #: The catalog did not answer, or reported an internal error: the table has it, or does not, or gets it later.
    UNKNOWN = "unknown"


class Catalog(Protocol):
    """A catalog of Iceberg tables. Any method may raise ``TransientError`` or ``TerminalError``.

    Not thread-safe: each thread opens its own.
    """

    @property
    def name(self) -> str:
        """What messages call it, without secrets, such as ``REST catalog https://catalog.example.com``."""

    def check(self) -> str:
        """Check that the catalog answers, and that this client can write to it as far as that is known. Write nothing.

        :return: what messages call it, with the name by which other software opens it.
        :raises NotReadyError: if it cannot be used with these settings.
        :raises TransientError: if it does not answer now.
        """

    def load_table(self, table: TableIdentifier) -> CatalogTable | None:
        """Return a table as it is now; ``None`` if there is no table or view of this name."""

    def create_table(self, table: TableIdentifier, metadata: TableMetadata) -> CatalogTable | None:
        """Create a table without snapshots, and its namespace if it is missing.

        :param metadata: its location, format version, schema, partition spec and properties count; a catalog may give
            it another uuid and other ids.
        :return: the table as the catalog has created it; ``None`` if the name was taken meanwhile.
        """

    def commit_table(
        self,
        table: TableIdentifier,
        base: CatalogTable,
        requirements: Sequence[Requirement],
        updates: Sequence[Update],
    ) -> tuple[CommitOutcome, CatalogTable | None]:
        """Change a table in one step, in one attempt, unless it does not meet a requirement.

        :param base: the table as it was loaded last.
        :return: what became of it, and, if it is done, the table as it is now.
        """

    def drop_table(self, table: TableIdentifier) -> None:
        """Remove a table from the catalog, if it is there. Its files stay."""
