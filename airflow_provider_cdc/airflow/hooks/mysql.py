"""The hook for the source server."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook

from airflow_provider_cdc.airflow.hooks.connections import resolve_connection
from airflow_provider_cdc.config.connections import connection_risk, mysql_connect_args, scrub_secrets
from airflow_provider_cdc.model.errors import CdcError

if TYPE_CHECKING:
    from pymysql.connections import Connection


class CdcMySqlHook(BaseHook):
    """Opens and tests the connection of a source, of type ``cdc_mysql``, ``mysql`` or ``mariadb``.

    :param cdc_mysql_conn_id: id of the connection.
    """

    conn_name_attr = "cdc_mysql_conn_id"
    default_conn_name = "cdc_mysql_default"
    conn_type = "cdc_mysql"
    hook_name = "MySQL / MariaDB (CDC source)"

    def __init__(self, cdc_mysql_conn_id: str = default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.cdc_mysql_conn_id = cdc_mysql_conn_id

    def get_conn(self) -> Connection[Any]:
        """Open a connection with autocommit, the session in UTC, and results as raw bytes.

        :raises NotReadyError: if the connection is missing or unusable, or the server refuses the login.
        :raises TransientError: if the server cannot be reached.
        """
        from airflow_provider_cdc.mysql.client.session import connect

        return connect(mysql_connect_args(resolve_connection(self.cdc_mysql_conn_id)))

    def test_connection(self) -> tuple[bool, str]:
        """Log in to the server.

        :returns: whether it worked, and one line with the server's version or the error.
        """
        secrets: tuple[str, ...] = ()
        try:
            settings = resolve_connection(self.cdc_mysql_conn_id)
            secrets = settings.secrets
            from airflow_provider_cdc.mysql.client.session import connect, query_rows
            from airflow_provider_cdc.mysql.client.verified_connection import describe_address

            args = mysql_connect_args(settings)
            with closing(connect(args)) as connection:
                ((version, user),) = query_rows(connection, "SELECT VERSION(), CURRENT_USER()")
            product = "MariaDB" if "mariadb" in str(version).lower() else "MySQL"
            risk = f", but {risk}" if (risk := connection_risk(args)) else ""
            return True, f"Connected to {product} {version} at {describe_address(args)} as {user}{risk}"
        except CdcError as error:
            text = str(error)
        except Exception as error:  # such as an invalid certificate file
            text = f"{type(error).__name__}: {error}"
        return False, " ".join(scrub_secrets(text, secrets).split())
