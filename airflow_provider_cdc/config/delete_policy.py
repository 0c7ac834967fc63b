"""What becomes of a row that is deleted in the source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_cdc.config.patterns import matches_any
from airflow_provider_cdc.model.errors import NotReadyError

if TYPE_CHECKING:  # a pipeline is read while DAG files are parsed: without Arrow
    from airflow_provider_cdc.model.schema import TableSchema

#: The row goes; it stays and is marked; it stays as it is.
HARD, SOFT, IGNORE = "hard", "soft", "ignore"
DELETE_MODES = (HARD, SOFT, IGNORE)


@dataclass(frozen=True)
class DeletePolicy:
    """``sink.deletes``: what becomes of deleted rows, by table.

    :param soft: patterns of the tables whose deleted rows stay, and are marked.
    :param ignore: patterns of the tables whose deleted rows stay as they are.
    """

    soft: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()

    def mode_of(self, table: TableSchema) -> str:
        """One of :data:`DELETES`.

        :raises NotReadyError: if the table fits two of them, or has no key and should keep deleted rows.
        """
        modes = [how for how in (SOFT, IGNORE) if matches_any(getattr(self, how), *table.id)]
        if len(modes) > 1:
            raise NotReadyError(f"table {table.label} matches sink.deletes.soft and sink.deletes.ignore", "Choose one")
        if modes and not table.key:
            raise NotReadyError(
                f"table {table.label} has no usable key, and sink.deletes is {modes[0]} for it",
                "Nothing tells which of its rows was deleted or updated: use hard for it, by patterns, or add a key",
            )
        return modes[0] if modes else HARD

    def keeps_deleted_rows(self, table: TableSchema) -> bool:
        """Whether deleted rows stay."""
        return self.mode_of(table) != HARD


#: The default: all deleted rows go.
ALL_HARD = DeletePolicy()
