"""What a statement does to the columns of a table, beyond what the definitions before and after it show."""

from __future__ import annotations

import pyarrow as pa

from airflow_provider_cdc.model.json_record import JsonRecord
from airflow_provider_cdc.model.schema import TableSchema


class ColumnChanges(JsonRecord, frozen=True):
    """Facts from the text of one statement. Nothing in them is guessed.

    :param renamed: (old name, new name) of each column that is renamed, all at once: names may be exchanged.
    :param defaults: (name, text) of each new column that has a value in all rows that exist; the text is exactly that
        value when it is cast to the column's Arrow type.
    """

    renamed: tuple[tuple[str, str], ...] = ()
    defaults: tuple[tuple[str, str], ...] = ()

    def __bool__(self) -> bool:
        """Return whether there are any."""
        return bool(self.renamed or self.defaults)

    def copied_by(self, table: TableSchema) -> ColumnChanges:
        """Return the changes of those columns that a definition copies.

        :param table: the definition after the statement.
        """
        copied = {column.name for column in table.copied_columns}
        return ColumnChanges(
            tuple(pair for pair in self.renamed if pair[1] in copied),
            tuple(pair for pair in self.defaults if pair[0] in copied),
        )


NO_CHANGES = ColumnChanges()


def default_array(text: str, arrow_type: pa.DataType) -> pa.Array:
    """Return the value of a default, as an array of one.

    :raises pa.ArrowInvalid: if the type has no such value.
    """
    return pa.array([text], pa.string()).cast(arrow_type)
