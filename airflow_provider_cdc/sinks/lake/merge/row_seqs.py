"""The ``_cdc_seq`` of rows. Rows that other software has inserted may have none, and are older than all others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_cdc.model.schema import SEQ_COLUMN

_LOWEST_SEQ = int(np.iinfo(np.int64).min)


def with_lowest_seqs(rows: pa.Table) -> pa.Table:
    """Return rows in which those without a ``_cdc_seq`` have the lowest one; other columns stay, if there are any."""
    index = rows.schema.get_field_index(SEQ_COLUMN)
    if index < 0 or not rows.column(index).null_count:
        return rows
    return rows.set_column(index, rows.schema.field(index), pc.fill_null(rows.column(index), _LOWEST_SEQ))


def seqs_of(rows: pa.Table) -> Any:
    """Return the ``_cdc_seq`` of each row as an array of int64."""
    return with_lowest_seqs(rows)[SEQ_COLUMN].to_numpy()
