"""Changes per second of a table, from two samples of the counts that a driver records about once a minute."""

from __future__ import annotations

from datetime import datetime

#: Seconds between two writes of a driver, and seconds without a write after which there were no changes.
WRITE_SECONDS, SILENT_SECONDS = 60.0, 150.0


class ChangeRate:
    """The rates of one table's operations."""

    def __init__(self) -> None:
        self._at: datetime | None = None
        self._counts: tuple[int, ...] = ()
        self._rates: tuple[float, ...] | None = None
        self._since = 0.0

    def update(self, at: datetime, counts: tuple[int, ...], clock: float) -> tuple[float, ...] | None:
        """Add a sample of the counts.

        :param at: when the driver wrote them, by its clock.
        :param counts: changes by operation.
        :param clock: seconds on this host's clock.
        :returns: changes per second by operation, or ``None`` until that is known.
        """
        if at != self._at:
            if self._at is not None and self._at < at:
                # A driver writes nothing for an unchanged table, so new changes must not be spread over a long gap.
                passed = (at - self._at).total_seconds()
                seconds = passed if passed < SILENT_SECONDS else WRITE_SECONDS
                self._rates = tuple(max(n - m, 0) / seconds for n, m in zip(counts, self._counts, strict=True))
            self._at, self._counts, self._since = at, counts, clock
        elif clock - self._since > SILENT_SECONDS:
            self._rates = (0.0,) * len(counts)
        return self._rates
