"""How rows are handled that are deleted in the source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_cdc.config.patterns import matches_any
from airflow_provider_cdc.model.errors import NotReadyError

if TYPE_CHECKING:  # DAG files load pipelines, which must not import Arrow
    from airflow_provider_cdc.model.schema import TableSchema

#: The row is deleted; it is kept and marked; it is kept unchanged.
HARD, SOFT, IGNORE = "hard", "soft", "ignore"
DELETE_MODES = (HARD, SOFT, IGNORE)


@dataclass(frozen=True)
class DeletePolicy:
    """``sink.deletes``: how deleted rows are handled, by table.

    :param soft: patterns of the tables whose deleted rows are kept and marked.
    :param ignore: patterns of the tables whose deleted rows are kept unchanged.
    """

    soft: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()

    def mode_of(self, table: TableSchema) -> str:
        """Return the mode of a table, one of :data:`DELETE_MODES`.

        :raises NotReadyError: if the table matches two of them, or has no key and would keep deleted rows.
        """
        modes = [how for how in (SOFT, IGNORE) if matches_any(getattr(self, how), *table.id)]
        if len(modes) > 1:
            raise NotReadyError(f"table {table.label} matches sink.deletes.soft and sink.deletes.ignore", "Choose one")
        if modes and not table.key:
            raise NotReadyError(
                f"table {table.label} has no usable key, and sink.deletes is {modes[0]} for it",
                "Its deleted rows cannot be identified: choose hard for it, by patterns, or add a key",
            )
        return modes[0] if modes else HARD

    def keeps_deleted_rows(self, table: TableSchema) -> bool:
        """Return whether a table keeps deleted rows."""
        return self.mode_of(table) != HARD


#: The default: all deleted rows are deleted from the copy.
ALL_HARD = DeletePolicy()
