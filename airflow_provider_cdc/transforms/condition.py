"""Conditions on rows, as users write them (``where``): which rows are copied.

A condition is written in the SQL of MySQL, and evaluated here, in the same way for rows of every origin. Texts are
equal if they are the same characters: case, accents and trailing spaces count, whatever the collation. What cannot be
evaluated exactly is refused.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_cdc.model.schema import TableSchema
from airflow_provider_cdc.transforms.condition_parser import parse_tree
from airflow_provider_cdc.transforms.condition_tree import ConditionNode, columns_of, truth


@dataclass(frozen=True)
class Condition:
    """A condition on the rows of one table.

    :param text: the condition as it was written.
    :param columns: names of the columns that it reads, in ordinal order.
    :param tree: what it means.
    :param null_date_columns: names of the columns in which NULL may stand for an invalid date of the source.
    """

    text: str
    columns: tuple[str, ...]
    tree: ConditionNode
    null_date_columns: frozenset[str]

    def mask(self, rows: pa.Table | pa.RecordBatch) -> pa.Array | pa.ChunkedArray:
        """Return for each row whether the condition is true; never NULL.

        :param rows: rows of the table; they must have the columns that the condition reads.
        """
        outcome = truth(self.tree, rows)
        if isinstance(outcome, pa.Scalar):
            outcome = pa.repeat(outcome, rows.num_rows)
            if isinstance(rows, pa.Table):
                outcome = pa.chunked_array([outcome])
        return pc.fill_null(outcome, False)


def parse_condition(text: str, table: TableSchema) -> Condition:
    """Parse a condition on the rows of a table.

    :param text: the condition, in the SQL of MySQL.
    :raises NotReadyError: if a part of it cannot be understood, or cannot be evaluated exactly.
    """
    tree = parse_tree(text, table)
    names = {column.name for column in columns_of(tree)}
    columns = tuple(column.name for column in table.columns if column.name in names)
    return Condition(text, columns, tree, table.null_date_columns)
