"""Connections that Airflow resolves for tasks and triggers: from its database, a secrets backend or the environment."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from airflow.providers.common.compat.sdk import AirflowNotFoundException
from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowRuntimeError

from airflow_provider_cdc.config.connections import ResolvedConnection, env_variable_name
from airflow_provider_cdc.config.connections import resolve_connection as of_environment
from airflow_provider_cdc.model.errors import NotReadyError, TransientError


def resolve_connection(
    conn_id: str, get_connection: Callable[[str], Any] = BaseHook.get_connection
) -> ResolvedConnection:
    """Get a connection from Airflow. This blocks, so a trigger calls it in a thread.

    :param conn_id: id of the connection.
    :param get_connection: gets it from Airflow.
    :raises NotReadyError: if Airflow has no connection with that id, or it is invalid.
    :raises TransientError: if Airflow could not be reached.
    """
    name = env_variable_name(conn_id)
    if os.environ.get(name, "").strip():
        of_environment(conn_id)  # refuses a URI that Airflow would split in the wrong place
    try:
        airflow_connection = get_connection(conn_id)
    except AirflowNotFoundException:
        raise NotReadyError(
            f"connection {conn_id} is not defined", f"Create it in Admin > Connections or set {name}"
        ) from None
    except AirflowRuntimeError as error:
        raise TransientError(
            f"Airflow did not give connection {conn_id} ({error.error.error.value})",
            "Check the log of Airflow's API server, then run the task again",
        ) from None
    except Exception as error:  # its text may quote the connection
        raise NotReadyError(
            f"Airflow cannot read connection {conn_id} ({type(error).__name__})",
            "Correct it in Admin > Connections, in the secrets backend or in the environment",
        ) from None
    names = ("conn_id", "conn_type", "host", "login", "password", "port", "schema", "extra")
    try:
        return ResolvedConnection.from_json({name: getattr(airflow_connection, name) for name in names})
    except (ValueError, TypeError, LookupError):
        # Not chained and not quoted: it may hold the password.
        raise NotReadyError(f"connection {conn_id} is invalid", "Give it a type, and a JSON object as extra") from None
