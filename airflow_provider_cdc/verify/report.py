"""The result of a comparison: it decides how the command or task ends, and is recorded in the state database.

A comparison neither needs nor creates a state database. If there is none, or it has another version or cannot be
reached, the result is the same.
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

#: What is recorded of a result, and of a refusal to compare: nothing that may contain values of a row.
_RECORDED_KEYS = ("equal", "rows", "missing", "extra", "different", "kept", "at", "copy")
_RECORDED_REFUSAL_KEYS = ("reason", "remedy", "copy")


def check_equal(verdicts: Sequence[TableComparison], *, hint: str, show_values: str = "") -> None:
    """Raise an error unless all tables are equal to their copies.

    :param hint: what to do about differences.
    :param show_values: option with which the user requests the values that differ; empty if already given, or if there
        is none.
    :raises TerminalError: if a table differs.
    :raises NotComparableYetError: if no table differs, but some cannot be compared yet and a retry may succeed.
    :raises NotComparableError: if no table differs, but some cannot be compared and a retry does not help.
    """
    unequal = [v for v in verdicts if v.verdict == UNEQUAL]
    refusals = [(v.table, v.refusal) for v in verdicts if v.refusal is not None]
    reasons = "; ".join(f"{_abbreviate(tables)}: {reason}" for reason, tables in _group_by_reason(refusals).items())
    if unequal:
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


def repair_hint(option: str, *, repaired: bool) -> str:
    """Return what to do about differences.

    :param option: option with which the user requests a repair.
    :param repaired: whether a repair was requested.
    """
    return "See above for what was not repaired" if repaired else f"{option} re-snapshots the rows that differ"


def describe_equal(verdicts: Sequence[TableComparison]) -> str:
    """Return one line about tables that are all equal to their copies."""
    places = ", ".join(sorted({str(v.copy.position) for v in verdicts if v.copy is not None}))
    return f"all {len(verdicts)} tables are equal as of {places}" if verdicts else "no tables to compare"


def _group_by_reason(refused: Iterable[tuple[str, ComparisonRefusal]]) -> dict[str, list[str]]:
    tables_by_reason: dict[str, list[str]] = {}
    for table, refusal in refused:
        tables_by_reason.setdefault(refusal.reason, []).append(table)
    return tables_by_reason


def _abbreviate(tables: Sequence[str]) -> str:
    """Return the first few table names as text."""
    more = f" and {len(tables) - 5} more" if len(tables) > 5 else ""
    return ", ".join(tables[:5]) + more


def record_verdicts(context: RunContext, verdicts: Sequence[TableComparison], by: str | None = None) -> bool:
    """Record the verdicts in the state database, with an event; report it if that fails.

    :param by: name of the user who requested the comparison, if known.
    :returns: whether they were recorded.
    """
    from sqlalchemy.exc import SQLAlchemyError

    try:
        tables = {table.label: table.id for table in context.plans.require().tables}
        values_by_table = {
            tables[verdict.table]: _recorded_values(verdict) for verdict in verdicts if verdict.table in tables
        }
        with closing(context.open_state_database(migrate=False)) as store:
            store.record_verification(context.pipeline.name, values_by_table, by=by)
            return True
    except (CdcError, SQLAlchemyError) as error:
        message = error.message if isinstance(error, CdcError) else str(error).splitlines()[0]
        context.warn(f"the result was not recorded in the state database: {message}")
        return False


def _recorded_values(verdict: TableComparison) -> dict[str, Any]:
    values = verdict.to_json()
    if verdict.refusal is None:
        return {name: values[name] for name in _RECORDED_KEYS}
    at = datetime.now(UTC).isoformat(timespec="seconds")
    return {"not_comparable": {"at": at, **{name: values[name] for name in _RECORDED_REFUSAL_KEYS}}}
