"""What is asked of a server that cannot be had here: by the words of the servers' own documentation."""

from __future__ import annotations

import pytest

from airflow_provider_cdc.mysql.client import session
from airflow_provider_cdc.mysql.client.product import (
    AURORA,
    CLOUD_SQL,
    RDS,
    TESTED_VERSIONS,
    ManagedService,
    Product,
    managed_service_of,
)

#: What the servers say of themselves, and: name, numbers, whether they are read.
VERSIONS = {
    "8.0.22": ("MySQL", (8, 0, 22), True),
    "8.0.36-0ubuntu0.22.04.1": ("MySQL", (8, 0, 36), True),
    "8.0.26-google": ("MySQL", (8, 0, 26), True),
    "8.0.mysql_aurora.3.04.0": ("MySQL", (8, 0), True),  # no patch number: the oldest Aurora 3 is a MySQL 8.0.23
    "8.0.21": ("MySQL", (8, 0, 21), False),
    "5.7.mysql_aurora.2.11.2": ("MySQL", (5, 7), False),
    "5.7.44-log": ("MySQL", (5, 7, 44), False),
    "8.4.6": ("MySQL", (8, 4, 6), True),
    "9.7.4-debug": ("MySQL", (9, 7, 4), True),
    "10.5.29-MariaDB-0+deb11u1-log": ("MariaDB", (10, 5, 29), False),
    "10.6.21-MariaDB-log": ("MariaDB", (10, 6, 21), True),
    "5.5.5-10.11.14-MariaDB-0+deb12u2-log": ("MariaDB", (10, 11, 14), True),  # a greeting
    "11.8.3-MariaDB-1": ("MariaDB", (11, 8, 3), True),
    "unheard of": ("MySQL", (), False),
}


@pytest.mark.parametrize("text", VERSIONS)
def test_product(text: str) -> None:
    found = Product.parse(text)
    name, version, readable = VERSIONS[text]
    assert (found.name, found.version, found.is_supported) == (name, version, readable)
    assert found.is_mariadb is (name == "MariaDB")
    assert found.is_tested is (version[:2] in {"MySQL": [(9, 7)], "MariaDB": [(10, 11), (11, 8)]}[name])
    assert set(TESTED_VERSIONS) == {"MySQL", "MariaDB"}


@pytest.mark.parametrize(
    ("text", "end", "sources", "replicas"),
    [
        # MySQL 8.0, 13.7.7.23 and 13.7.7.35: SHOW MASTER STATUS is all that there is; SHOW REPLICA STATUS and SHOW
        # REPLICAS came with 8.0.22, in the place of SHOW SLAVE STATUS and SHOW SLAVE HOSTS.
        ("8.0.22", "SHOW MASTER STATUS", "SHOW REPLICA STATUS", "SHOW REPLICAS"),
        ("8.0.mysql_aurora.3.04.0", "SHOW MASTER STATUS", "SHOW REPLICA STATUS", "SHOW REPLICAS"),
        ("8.0.26-google", "SHOW MASTER STATUS", "SHOW REPLICA STATUS", "SHOW REPLICAS"),
        ("8.1.0", "SHOW MASTER STATUS", "SHOW REPLICA STATUS", "SHOW REPLICAS"),
        # Release notes of 8.2.0: SHOW BINARY LOG STATUS is new; those of 8.4.0: SHOW MASTER STATUS is gone.
        ("8.2.0", "SHOW BINARY LOG STATUS", "SHOW REPLICA STATUS", "SHOW REPLICAS"),
        ("8.4.0", "SHOW BINARY LOG STATUS", "SHOW REPLICA STATUS", "SHOW REPLICAS"),
        ("9.7.4", "SHOW BINARY LOG STATUS", "SHOW REPLICA STATUS", "SHOW REPLICAS"),
        ("10.6.21-MariaDB", "SHOW MASTER STATUS", "SHOW ALL SLAVES STATUS", "SHOW SLAVE HOSTS"),
        ("11.8.3-MariaDB", "SHOW MASTER STATUS", "SHOW ALL SLAVES STATUS", "SHOW SLAVE HOSTS"),
    ],
)
def test_statements(text: str, end: str, sources: str, replicas: str) -> None:
    found = Product.parse(text)
    assert (found.binlog_status_sql, found.replica_status_sql, found.replicas_sql) == (end, sources, replicas)


@pytest.mark.parametrize(
    ("variables", "service"),
    [
        ({"version": "8.0.36", "basedir": "/usr/", "version_comment": "MySQL Community Server - GPL"}, None),
        ({"version": "8.0.35", "basedir": "/rdsdbbin/mysql-8.0.35.R2/", "version_comment": "Source distribution"}, RDS),
        ({"version": "8.4.3", "basedir": "/rdsdbbin/mysql/"}, RDS),
        ({"version": "10.11.8-MariaDB-log", "basedir": "/rdsdbbin/mariadb/"}, RDS),
        ({"version": "8.0.32", "aurora_version": "3.05.2", "basedir": "/rdsdbbin/oscar/"}, AURORA),
        ({"version": "8.0.mysql_aurora.3.04.0", "basedir": "/rdsdbbin/oscar/"}, AURORA),
        ({"version": "8.0.26-google", "version_comment": "(Google)", "basedir": "/usr/"}, CLOUD_SQL),
    ],
)
def test_services(variables: dict[str, str], service: ManagedService | None) -> None:
    assert managed_service_of(variables) == service


def test_the_first_statement_of_a_session_has_nothing_that_an_older_server_does_not_know() -> None:
    """A server executes such a comment if it is of that version or newer."""
    assert "/*!80030 , show_gipk_in_create_table_and_information_schema=1 */" in session.SESSION_SQL
    everywhere = session.SESSION_SQL.split("/*!80030")[0]
    assert "show_gipk" not in everywhere and "/*!80000 , transaction_isolation" in everywhere
    assert "/*M!100600 , tx_isolation" in session.SESSION_SQL
