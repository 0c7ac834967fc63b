"""One result of the preflight, and how a check comes to its results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from airflow_provider_cdc.model.errors import CdcError, NotReadyError, TransientError


@dataclass(frozen=True)
class CheckResult:
    """One result of the preflight.

    :param level: ``ok``, ``warning`` or ``error``.
    :param message: what was looked at and found.
    :param remedy: what to do about it.
    :param transient: whether it may go away by itself.
    """

    level: str
    message: str
    remedy: str = ""
    transient: bool = False

    @classmethod
    def from_error(cls, error: CdcError) -> CheckResult:
        """An error as a finding; :meth:`error` turns it back."""
        return cls("error", error.message, error.remedy, isinstance(error, TransientError))

    def to_error(self) -> CdcError:
        """The finding as an error."""
        return (TransientError if self.transient else NotReadyError)(self.message, self.remedy)

    def __str__(self) -> str:
        return f"{self.message}. {self.remedy}" if self.remedy else self.message

    def to_json(self) -> dict[str, str]:
        """Plain JSON value."""
        return {"level": self.level, "what": self.message, "remedy": self.remedy}


def run_check(check: Callable[[], Iterator[CheckResult]]) -> list[CheckResult]:
    """What a check finds; an error that ends it is its last finding."""
    results: list[CheckResult] = []
    try:
        for result in check():
            results.append(result)
    except CdcError as error:
        results.append(CheckResult.from_error(error))
    return results


def require_grant(read: Callable[[], Any], grant: str, scope: str = "*.*") -> Any:
    """What is read; if the server denies it, the error names the grant.

    :raises NotReadyError: if the user lacks the grant.
    """
    try:
        return read()
    except NotReadyError as error:
        if error.code is None:  # not denied by the server
            raise
        raise NotReadyError(*missing_grant(grant, scope)) from None


def missing_grant(grant: str, scope: str = "*.*") -> tuple[str, str]:
    """What to say, and the remedy, where a grant is missing."""
    return f"the user lacks the grant {grant} on {scope}", f"GRANT {grant} ON {scope} TO the user of the connection"
