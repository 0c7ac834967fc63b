"""Results of preflight checks, and helpers for the checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from airflow_provider_cdc.model.errors import CdcError, NotReadyError, TransientError


@dataclass(frozen=True)
class CheckResult:
    """One result of a preflight check.

    :param level: ``ok``, ``warning`` or ``error``.
    :param message: what was checked and found.
    :param remedy: what to do about it.
    :param transient: whether the problem may be temporary.
    """

    level: str
    message: str
    remedy: str = ""
    transient: bool = False

    @classmethod
    def from_error(cls, error: CdcError) -> CheckResult:
        """Convert an error to a check result; :meth:`to_error` converts it back."""
        return cls("error", error.message, error.remedy, isinstance(error, TransientError))

    def to_error(self) -> CdcError:
        """Convert the check result to an error."""
        return (TransientError if self.transient else NotReadyError)(self.message, self.remedy)

    def __str__(self) -> str:
        return f"{self.message}. {self.remedy}" if self.remedy else self.message

    def to_json(self) -> dict[str, str]:
        """Return a plain JSON value."""
        return {"level": self.level, "what": self.message, "remedy": self.remedy}


def run_check(check: Callable[[], Iterator[CheckResult]]) -> list[CheckResult]:
    """Return the results of a check. If an error ends it, that is its last result."""
    results: list[CheckResult] = []
    try:
        for result in check():
            results.append(result)
    except CdcError as error:
        results.append(CheckResult.from_error(error))
    return results


def require_grant(read: Callable[[], Any], grant: str, scope: str = "*.*") -> Any:
    """Return the result of ``read``. If the server denies access, raise an error that names the missing grant.

    :raises NotReadyError: if the user lacks the grant.
    """
    try:
        return read()
    except NotReadyError as error:
        if error.code is None:  # not denied by the server
            raise
        raise NotReadyError(*missing_grant(grant, scope)) from None


def missing_grant(grant: str, scope: str = "*.*") -> tuple[str, str]:
    """Return the message and the remedy for a missing grant."""
    return f"the user lacks the grant {grant} on {scope}", f"GRANT {grant} ON {scope} TO the user of the connection"
