"""What a launcher asks the manager of a cluster about the jobs that run drivers."""

from __future__ import annotations

from typing import Protocol


class ClusterJob(Protocol):
    """What runs a driver in a cluster. Its text says what the manager says of it.

    :param id: its id in the cluster.
    :param log: address of the driver's log; ``None`` while that is unknown.
    :param link: address of its page; ``None`` if it has none.
    """

    @property
    def id(self) -> str:
        """Its id in the cluster."""

    @property
    def log(self) -> str | None:
        """Address of the driver's log; ``None`` while that is unknown."""

    @property
    def link(self) -> str | None:
        """Address of its page; ``None`` if it has none."""

    @property
    def is_over(self) -> bool:
        """Whether the driver has ended, or will never begin."""

    @property
    def is_active(self) -> bool:
        """Whether the cluster still has something to end."""


class ClusterManager(Protocol):
    """What manages a cluster. All methods raise ``CdcError`` if it refuses them or does not answer, unless they say
    otherwise.
    """

    #: Human-readable name.
    name: str
    #: Seconds after which a driver is lost that neither writes to its row nor is known to an answering manager.
    unknown_seconds: float

    def find_job(self, driver: str) -> ClusterJob | None:
        """Return what runs a driver, or ``None``.

        :param driver: id of the driver.
        """

    def kill(self, job: str) -> None:
        """End a job. It may take a moment to end.

        :param job: id in the cluster.
        """

    def clean_up(self, job: str) -> None:
        """Remove what the cluster still has of a job that has succeeded."""

    def clean_up_by_log(self, log: str | None) -> None:
        """Remove what the cluster still has of the job whose driver has a log, when it ends. This raises nothing."""

    def tail_log(self, log: str | None, lines: int) -> list[str]:
        """Return the last lines of a driver's log; empty if it cannot be read from here. This raises nothing."""

    def kill_by_log(self, log: str | None) -> bool:
        """Kill the job whose driver has a log.

        :returns: whether the manager has accepted this. This raises nothing.
        """

    def describe_by_log(self, log: str | None) -> str:
        """Return what the manager says of the job whose driver has a log; empty if nothing. This raises nothing."""
