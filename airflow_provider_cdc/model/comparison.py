"""Results of comparing source tables with their copies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_cdc.model.offset import Position
from airflow_provider_cdc.model.plan import Chunk, Key
from airflow_provider_cdc.model.progress import format_duration

#: The sink lacks a row of the source; it has a row that the source lacks, or has a row twice; or the two rows differ.
MISSING, EXTRA, DIFFERENT = "missing", "extra", "different"
#: The verdict on a table. The third one says nothing about its rows: they could not be compared.
EQUAL, UNEQUAL, NOT_COMPARABLE = "equal", "different", "not_comparable"


@dataclass(frozen=True)
class LastChange:
    """The last transaction in the binlog that changed a row.

    :param position: end of the transaction.
    :param time: when it was committed, in ISO 8601.
    """

    position: Position
    time: str

    def __str__(self) -> str:
        return f"last changed by the transaction that ends at {self.position} ({self.time})"


@dataclass(frozen=True)
class RowDifference:
    """A key whose rows differ between source and sink.

    :param kind: :data:`MISSING`, :data:`EXTRA` or :data:`DIFFERENT`.
    :param key: the source's key value, in the form described in :mod:`~airflow_provider_cdc.model.plan`.
    :param columns: names of the columns that differ, if both sides have the row.
    :param last_change: the last change of the row, if it was found in the binlog.
    """

    kind: str
    key: Key = field(repr=False)
    columns: tuple[str, ...] = ()
    last_change: LastChange | None = None

    def describe(self, *, show_values: bool) -> str:
        """Return one human-readable line."""
        key = f" {list(self.key)}" if show_values else ""
        columns = f" in {', '.join(self.columns)}" if self.columns else ""
        return f"{self.kind}{key}{columns}; {self.last_change or 'no change of it was found in the binlog'}"

    def to_json(self, *, show_values: bool) -> dict[str, Any]:
        """Return a plain JSON value."""
        last_change = (
            {"at": str(self.last_change.position), "time": self.last_change.time} if self.last_change else None
        )
        key = {"key": list(self.key)} if show_values else {}
        return {"kind": self.kind, **key, "columns": list(self.columns), "last_change": last_change}


@dataclass(frozen=True)
class CopyPosition:
    """How far a copy has caught up with its source.

    :param position: the position up to which the copy is complete.
    :param oldest_missing_commit: time of the oldest commit that the copy lacks, in ISO 8601; ``None`` if it lacks none
        or if the time is unknown.
    :param lag_seconds: age of that commit in seconds; 0 if the copy lacks none, ``None`` if the age is unknown.
    """

    position: Position
    oldest_missing_commit: str | None = None
    lag_seconds: float | None = None

    def __str__(self) -> str:
        if self.oldest_missing_commit is None or self.lag_seconds is None:
            return f"the copy stands at {self.position}"
        return (
            f"the copy stands at {self.position} and lacks commits since {self.oldest_missing_commit} "
            f"({format_duration(self.lag_seconds)})"
        )

    def to_json(self) -> dict[str, Any]:
        """Return a plain JSON value."""
        lag = None if self.lag_seconds is None else round(self.lag_seconds, 3)
        return {"at": str(self.position), "since": self.oldest_missing_commit, "lag_seconds": lag}


@dataclass(frozen=True)
class ComparisonRefusal:
    """Why a table cannot be compared now.

    :param reason: what prevents the comparison.
    :param remedy: what to do about it.
    :param retry: whether a retry may succeed without intervention.
    """

    reason: str
    remedy: str = ""
    retry: bool = False


@dataclass(frozen=True)
class TableComparison:
    """Result of comparing one table.

    :param table: ``database.table``.
    :param rows: number of source rows at the common position.
    :param missing: number of keys that the sink lacks; for a table without a key, of rows.
    :param extra: number of keys that only the sink has, or has twice; for a table without a key, of rows.
    :param different: number of keys whose rows differ.
    :param at: the common position; ``None`` if the table was not compared.
    :param examples: a few of the keys (or rows), if examples were requested.
    :param kept: number of keys that only the sink has because ``sink.deletes`` keeps rows that the source has deleted.
    :param refusal: why the table cannot be compared; ``None`` if it was compared.
    :param at_least: whether there are more differences than were counted; counting stops after some thousands.
    :param differences: the first thousand of the differing keys; empty for a table without a key.
    :param ranges: the source's key ranges that contain these keys, as chunks of one group. A key below the source's
        smallest key or above its largest is in none of them.
    :param columns: number of differing keys by the name of the column that differs.
    :param searched: start of the part of the binlog that was searched for the last changes of the differing keys.
    :param repaired: number of keys that were re-snapshotted and overwritten before this comparison.
    :param copy: how far the copy has caught up.
    """

    table: str
    rows: int
    missing: int
    extra: int
    different: int
    at: Position | None
    examples: tuple[str, ...] = ()
    kept: int = 0
    refusal: ComparisonRefusal | None = None
    at_least: bool = False
    differences: tuple[RowDifference, ...] = ()
    ranges: tuple[Chunk, ...] = field(default=(), repr=False)
    columns: dict[str, int] = field(default_factory=dict, hash=False)
    searched: Position | None = None
    repaired: int = 0
    copy: CopyPosition | None = None

    @classmethod
    def from_refusal(cls, table: str, refusal: ComparisonRefusal, copy: CopyPosition | None) -> TableComparison:
        """Make the result for a table that cannot be compared."""
        return cls(table, 0, 0, 0, 0, None, refusal=refusal, copy=copy)

    @property
    def verdict(self) -> str:
        """:data:`EQUAL`, :data:`UNEQUAL` or :data:`NOT_COMPARABLE`."""
        if self.refusal is not None:
            return NOT_COMPARABLE
        return UNEQUAL if self.missing or self.extra or self.different else EQUAL

    @property
    def is_equal(self) -> bool:
        """Whether source and sink were compared and are equal."""
        return self.verdict == EQUAL

    def __str__(self) -> str:
        if self.refusal is not None:
            return f"{self.table}: cannot be compared now: {self.refusal.reason}"
        counts = f"{self.missing} missing, {self.extra} extra, {self.different} different"
        counts = f"at least {counts}" if self.at_least else counts
        examples = f" ({', '.join(self.examples)})" if self.examples else ""
        retained = f", {self.kept} more that the source has deleted" if self.kept else ""
        repaired = f", after {self.repaired:,} keys were repaired" if self.repaired else ""
        return (
            f"{self.table}: {self.rows} rows, "
            + ("equal" if self.is_equal else counts + examples)
            + retained
            + repaired
        )

    def detail_lines(self, *, show_values: bool) -> Iterator[str]:
        """Yield human-readable lines: which columns differ, and when the rows were last changed.

        :param show_values: whether keys may be shown.
        """
        if self.columns:
            yield f"{self.table}: columns that differ: " + ", ".join(f"{c} ({n})" for c, n in self.columns.items())
        counts = Counter(difference.describe(show_values=show_values) for difference in self.differences)
        for text, count in list(counts.items())[:10]:
            yield f"{self.table}: {text}" + (f" ({count} times)" if count > 1 else "")
        if len(counts) > 10:
            yield f"{self.table}: and {sum(counts.values()) - sum(list(counts.values())[:10])} more"
        if self.searched is not None:
            yield f"{self.table}: the binlog was searched from {self.searched} on"

    def to_json(self, *, show_values: bool = False) -> dict[str, Any]:
        """Return a plain JSON value.

        :param show_values: whether keys may be shown.
        """
        value = {**self.__dict__, "verdict": self.verdict, "equal": self.is_equal, "examples": list(self.examples)}
        value["at"] = None if self.at is None else str(self.at)
        refusal = value.pop("refusal") or ComparisonRefusal("")
        value |= {"reason": refusal.reason, "remedy": refusal.remedy, "retry": refusal.retry}
        value["copy"] = None if self.copy is None else self.copy.to_json()
        value["differences"] = [d.to_json(show_values=show_values) for d in self.differences]
        value["searched"] = None if self.searched is None else str(self.searched)
        value["ranges"] = [[list(c.lower), list(c.upper), c.includes_upper] for c in self.ranges] if show_values else []
        return value
