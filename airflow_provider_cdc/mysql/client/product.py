"""The statements that a server knows, by its product and version, and the managed service that runs it. No I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

#: The oldest supported versions.
MIN_VERSIONS = {"MySQL": (8, 0, 22), "MariaDB": (10, 6)}
#: Versions (major, minor) that this project's tests have run with (docs/versions.md).
TESTED_VERSIONS = {"MySQL": ((9, 7),), "MariaDB": ((10, 11), (11, 8))}


@dataclass(frozen=True)
class Product:
    """A server's product and version.

    :param name: ``MySQL`` or ``MariaDB``.
    :param version: three numbers, or two if the server does not report the third, as Aurora
        (``8.0.mysql_aurora.3.04.0``).
    """

    name: str
    version: tuple[int, ...]

    @classmethod
    def parse(cls, version: str) -> Product:
        """Parse the version in ``SELECT VERSION()`` or the greeting. Some MariaDB greetings begin with ``5.5.5-``."""
        mariadb = "mariadb" in version.lower()
        match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version.removeprefix("5.5.5-") if mariadb else version)
        numbers = match.groups() if match else ()
        return cls("MariaDB" if mariadb else "MySQL", tuple(int(number) for number in numbers if number is not None))

    @property
    def is_mariadb(self) -> bool:
        """Whether the server is MariaDB."""
        return self.name == "MariaDB"

    @property
    def is_supported(self) -> bool:
        """Whether the version is new enough. Only the numbers that the server reports are compared."""
        oldest = MIN_VERSIONS[self.name]
        return len(self.version) > 1 and self.version >= oldest[: len(self.version)]

    @property
    def is_tested(self) -> bool:
        """Whether this project's tests have run with this version."""
        return self.version[:2] in TESTED_VERSIONS[self.name]

    @property
    def binlog_status_sql(self) -> str:
        """Statement for the end of the binlog: file, position, databases it is restricted to and databases left out."""
        return "SHOW BINARY LOG STATUS" if not self.is_mariadb and self.version >= (8, 2) else "SHOW MASTER STATUS"

    @property
    def replica_status_sql(self) -> str:
        """Statement for what the server replicates, one row per channel."""
        return "SHOW ALL SLAVES STATUS" if self.is_mariadb else "SHOW REPLICA STATUS"

    @property
    def replicas_sql(self) -> str:
        """Statement for the replicas of the server."""
        return "SHOW SLAVE HOSTS" if self.is_mariadb else "SHOW REPLICAS"


@dataclass(frozen=True)
class ManagedService:
    """A managed service: how to change its settings, and how long it keeps binlogs.

    :param setting_hint: how to change a server setting, human-readable, with ``{}`` for ``name = value``.
    :param retention_hint: how to set how long binlogs are kept; empty if the server's own setting decides.
    :param enable_binlog_hint: what to do if there is no binary log.
    """

    name: str
    setting_hint: str
    retention_hint: str
    enable_binlog_hint: str


_RDS_KEEPS = "CALL mysql.rds_set_configuration('binlog retention hours', 168)"
RDS = ManagedService(
    "Amazon RDS",
    "set {} in the DB parameter group",
    _RDS_KEEPS,
    "Turn on automated backups. Without them, Amazon RDS writes no binary log",
)
AURORA = ManagedService(
    "Amazon Aurora",
    "set {} in the DB cluster parameter group, then reboot the writer",
    _RDS_KEEPS,
    "Set binlog_format = ROW in the DB cluster parameter group and reboot the writer. Connect to the cluster (writer) "
    "endpoint: the reader endpoint leads to a reader, which has no binary log",
)
CLOUD_SQL = ManagedService(
    "Google Cloud SQL",
    "set the database flag {}",
    "",
    "Turn on point-in-time recovery. Without it, Cloud SQL writes no binary log",
)


def managed_service_of(variables: Mapping[str, str]) -> ManagedService | None:
    """Return the managed service that runs a server, judging by its global variables; ``None`` if unknown."""
    version = variables.get("version", "").lower()
    if "aurora_version" in variables or "aurora" in version:
        return AURORA
    if variables.get("basedir", "").startswith("/rdsdbbin/"):
        return RDS
    return (
        CLOUD_SQL if version.endswith("-google") or "(google)" in variables.get("version_comment", "").lower() else None
    )
