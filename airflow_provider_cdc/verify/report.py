"""What a comparison of source and sink has found: it decides how the command or the task ends, and is written into the
bookkeeping, where there is one.

A comparison needs no bookkeeping and makes none: one that is not there, is of another version or is away changes
nothing of what was found.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

from airflow_provider_cdc.model.comparison import UNEQUAL, ComparisonRefusal, TableComparison
from airflow_provider_cdc.model.errors import (
    REPORT_REMEDY,
    CdcError,
    NotComparableError,
    NotComparableYetError,
    TerminalError,
)
from airflow_provider_cdc.runtime.run_context import RunContext

#: What is kept of a result: nothing that may hold a value of a row; and of one of a table that could not be compared.
_RECORDED_KEYS = ("equal", "rows", "missing", "extra", "different", "kept", "at", "copy")
_RECORDED_REFUSAL_KEYS = ("reason", "remedy", "copy")


def check_equal(verdicts: Sequence[TableComparison], *, repair: str, show_values: str, repaired: bool = False) -> None:
    """Make sure that all tables are equal to their copies.

    :param repair: how a person asks for a repair, and ``show_values``: for what differs; the latter is empty if that
        was asked for.
    :param repaired: whether a repair was asked for.
    :raises TerminalError: if a table differs, whatever is with the others.
    :raises NotComparableYetError: if tables cannot be compared, and the others are equal; where another try may do.
    :raises NotComparableError: the same, where it does not.
    """
    unequal = [v for v in verdicts if v.verdict == UNEQUAL]
    refusals = [(v.table, v.refusal) for v in verdicts if v.refusal is not None]
    reasons = "; ".join(f"{_abbreviate(tables)}: {reason}" for reason, tables in _group_by_reason(refusals).items())
    if unequal:
        hint = "See above what was not repaired" if repaired else f"{repair} reads what differs again"
        raise TerminalError(
            f"{len(unequal)} of {len(verdicts)} tables differ ({'; '.join(map(str, unequal))})"
            + (f", and {len(refusals)} cannot be compared now ({reasons})" if refusals else ""),
            f"{hint}, and {REPORT_REMEDY}" + (f". {show_values} shows which rows" if show_values else ""),
        )
    if refusals:
        remedies = dict.fromkeys(refusal.remedy for _, refusal in refusals if refusal.remedy)
        can_retry = all(refusal.retry for _, refusal in refusals)
        raise (NotComparableYetError if can_retry else NotComparableError)(
            f"{len(refusals)} of {len(verdicts)} tables cannot be compared now ({reasons}); no difference was found",
            "; ".join(remedies),
            table=refusals[0][0] if len(refusals) == 1 else None,
        )


def _group_by_reason(refused: Iterable[tuple[str, ComparisonRefusal]]) -> dict[str, list[str]]:
    tables_by_reason: dict[str, list[str]] = {}
    for table, refusal in refused:
        tables_by_reason.setdefault(refusal.reason, []).append(table)
    return tables_by_reason


def _abbreviate(tables: Sequence[str], most: int = 5) -> str:
    """Names of tables for people, no more than a few."""
    more = f" and {len(tables) - most} more" if len(tables) > most else ""
    return ", ".join(tables[:most]) + more


def record_verdicts(context: RunContext, verdicts: Iterable[TableComparison]) -> None:
    """Write down the results of a comparison, each with its table."""
    from sqlalchemy.exc import SQLAlchemyError

    try:
        tables = {table.label: table.id for table in context.require_plan().tables}
        values_by_table = {
            tables[verdict.table]: _recorded_values(verdict) for verdict in verdicts if verdict.table in tables
        }
        with closing(context.open_state_database(migrate=False)) as store:
            store.record_verification(context.pipeline.name, values_by_table)
    except (CdcError, SQLAlchemyError) as error:
        message = error.message if isinstance(error, CdcError) else str(error).splitlines()[0]
        context.reporter.line(f"the result is not in the bookkeeping: {message}")


def _recorded_values(verdict: TableComparison) -> dict[str, Any]:
    values = verdict.to_json()
    if verdict.refusal is None:
        return {name: values[name] for name in _RECORDED_KEYS}
    at = datetime.now(UTC).isoformat(timespec="seconds")
    return {"not_comparable": {"at": at, **{name: values[name] for name in _RECORDED_REFUSAL_KEYS}}}
