"""Record restarts of the server: a crash may have undone commits that the copy already has.

With ``sync_binlog`` or ``innodb_flush_log_at_trx_commit`` other than 1, a server that crashes may lose its last commits
in one of the two logs or in both. GTIDs do not show that, but ``verify`` does. So a restart is recorded as an event.
"""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime, timedelta

from airflow_provider_cdc.mysql.client.identity import DURABILITY_VARIABLES, server_identity
from airflow_provider_cdc.mysql.client.session import connect, query_pairs
from airflow_provider_cdc.mysql.positions.binlog_files import server_time
from airflow_provider_cdc.runtime.outages import tolerate_outage
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.state import StateDatabase

#: The server reports its uptime in whole seconds, and it is queried a moment after the time.
_UPTIME_TOLERANCE = timedelta(seconds=3)


def record_server_restart(context: RunContext, state_database: StateDatabase) -> None:
    """Record which server is read and when it was started, with an event if one of them has changed.

    Failures are ignored.
    """
    with tolerate_outage(), closing(connect(context.connect_args)) as connection:
        server, clock = server_identity(connection), server_time(connection)
        uptime = float(query_pairs(connection, "SHOW GLOBAL STATUS LIKE 'Uptime'")["Uptime"])
        names = ", ".join(f"'{name}'" for name in DURABILITY_VARIABLES)
        variables = query_pairs(connection, f"SHOW GLOBAL VARIABLES WHERE variable_name IN ({names})")
        since = datetime.fromtimestamp(round(clock - uptime), UTC)
        detail, name = f"{server} has run since {since.isoformat()}", context.pipeline.name
        source = state_database.source(name) or {}
        last_server, last_start = source.get("server"), source.get("running_since")
        started = {"server": server, "running_since": since.isoformat()}
        state_database.record_source(name, {**context.describe_source(connection), **started})
        if last_server is None or last_start is None:
            return  # the first server is no news
        if last_server != server:
            state_database.add_event(name, "server", detail)
        elif abs(datetime.fromisoformat(last_start) - since) > _UPTIME_TOLERANCE:
            detail += f", previously since {last_start}: it was restarted"
            unsafe = [f"{name}={variables[name]}" for name in DURABILITY_VARIABLES if variables[name] != "1"]
            if unsafe:
                detail += f" with {', '.join(unsafe)}; if it crashed, it may have lost commits that the copy has"
            detail += "; `airflow-cdc verify` compares them"
            state_database.add_event(name, "restart", detail, remedy="`airflow-cdc verify` compares source and copy")
            context.warn(detail)
