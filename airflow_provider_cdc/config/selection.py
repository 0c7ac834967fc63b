"""Options of a comparison: which tables it covers, how fast it reads them, and how old a copy may be."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from airflow_provider_cdc.config.load_limits import LoadLimits
from airflow_provider_cdc.config.patterns import check_patterns, matches_any
from airflow_provider_cdc.model.value_checks import check_integer, invalid_value

#: Lag up to which a copy is compared: one day, which is the lag of a pipeline that catches up daily.
DEFAULT_MAX_LAG_SECONDS = 86_400
_SHARE = re.compile(r"1/([1-9][0-9]{0,5})")


@dataclass(frozen=True)
class TableSelection:
    """A selection of a pipeline's tables, and the limits for comparing them.

    :param tables: patterns ``database.table``; all tables if empty.
    :param parts: number of parts into which the tables are divided by name. Each table stays in its part when other
        tables are added or removed.
    :param turn: number of the selected part, modulo ``parts``.
    :param max_rows_per_second: rows read from the source per second; ``None`` for the pipeline's limit.
    :param max_lag_seconds: a copy is not compared if the oldest commit that it lacks is older.
    """

    tables: tuple[str, ...] = ()
    parts: int = 1
    turn: int = 0
    max_rows_per_second: int | None = None
    max_lag_seconds: int = DEFAULT_MAX_LAG_SECONDS

    @classmethod
    def from_options(
        cls,
        tables: Sequence[str] = (),
        sample: str | None = None,
        seed: int | None = None,
        max_rows_per_second: int | None = None,
        max_lag_seconds: int | None = None,
        *,
        today: int,
    ) -> TableSelection:
        """Check a user's options and make a selection of them.

        :param sample: ``1/n``, or ``None`` for all tables.
        :param seed: the turn; ``None`` for the day's, so that ``n`` days in a row cover each table once.
        :param today: number of the day.
        :raises NotReadyError: for a value that is not allowed.
        """
        patterns = check_patterns("tables", list(tables))
        share = None if sample is None else _SHARE.fullmatch(str(sample))
        if sample is not None and share is None:
            raise invalid_value("sample", sample, "a share such as 1/7")
        if seed is not None:
            check_integer("seed", seed, 0)
            if sample is None:
                raise invalid_value("seed", seed, "given together with sample: it chooses the share of the tables")
        if max_rows_per_second is not None:
            check_integer("max_rows_per_second", max_rows_per_second, 1)
        longest = DEFAULT_MAX_LAG_SECONDS if max_lag_seconds is None else max_lag_seconds
        check_integer("max_lag_seconds", longest, 0)
        parts = int(share[1]) if share else 1
        return cls(patterns, parts, today if seed is None else seed, max_rows_per_second, longest)

    def includes(self, database: str, table: str) -> bool:
        """Return whether a table is selected."""
        return (
            self.matches_patterns(database, table)
            and _name_hash(database, table) % self.parts == self.turn % self.parts
        )

    def matches_patterns(self, database: str, table: str) -> bool:
        """Return whether a table matches the patterns, in whichever part it is."""
        return not self.tables or matches_any(self.tables, database, table)

    def apply_to_limits(self, limits: LoadLimits) -> LoadLimits:
        """Return the pipeline's limits combined with those of the selection; the lower one counts."""
        rates = [rate for rate in (limits.rows_per_second, self.max_rows_per_second) if rate is not None]
        return replace(limits, rows_per_second=min(rates, default=None))


#: All tables.
ALL_TABLES = TableSelection()


def _name_hash(database: str, table: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{database}\0{table}".encode()).digest()[:8], "big")
