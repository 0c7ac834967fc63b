"""What a comparison of source and sink has found is written into the bookkeeping, where there is one.

A comparison needs no bookkeeping and makes none: one that is not there, is of another version or is away changes
nothing of what was found.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from typing import TYPE_CHECKING

from airflow_provider_cdc.exceptions import CdcError
from airflow_provider_cdc.phases.context import Context

if TYPE_CHECKING:
    from airflow_provider_cdc.phases.verify import TableComparison

#: What is kept of a result: nothing that may hold a value of a row.
_KEPT = ("equal", "rows", "missing", "extra", "different", "kept", "at", "suspended")


def record_verified(context: Context, verdicts: Iterable[TableComparison]) -> None:
    """Write down the results of a comparison, each with its table."""
    from sqlalchemy.exc import SQLAlchemyError

    try:
        tables = {table.label: table.id for table in context.need_plan().tables}
        found = {tables[one.table]: one.to_json() for one in verdicts if one.table in tables}
        kept = {table: {name: value[name] for name in _KEPT if name in value} for table, value in found.items()}
        with closing(context.store(migrate=False)) as store:
            store.verified(context.pipeline.name, kept)
    except (CdcError, SQLAlchemyError) as error:
        said = error.message if isinstance(error, CdcError) else str(error).splitlines()[0]
        context.reporter.line(f"the result is not in the bookkeeping: {said}")
