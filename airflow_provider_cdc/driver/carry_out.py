"""Carry out the request of a driver: choose the phase, and return its result or its error, without secrets."""

from __future__ import annotations

import logging
import os
import signal
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from airflow_provider_cdc.config import Pipeline
from airflow_provider_cdc.config.connections import ResolvedConnection, remove_airflow_variables, scrub_secrets
from airflow_provider_cdc.driver.phases import (
    run_maintenance,
    run_requested_groups,
    run_requested_resnapshot,
    run_requested_stream,
    run_requested_verification,
)
from airflow_provider_cdc.driver.request import DriverRequest
from airflow_provider_cdc.model.errors import REPORT_REMEDY, CdcError, NotReadyError, OutOfMemoryError
from airflow_provider_cdc.observe.log_lines import FINAL_ERROR_PREFIX, LOGGER_NAME, log_to_standard_error
from airflow_provider_cdc.observe.reporters import LogReporter
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.sinks.storage.disk import translate_disk_full
from airflow_provider_cdc.system.processes import kill_session


def carry_out(request: DriverRequest) -> tuple[int, dict[str, Any]]:
    """Carry out a request.

    :returns: exit code, as of the command line, and result: ``{"outcome": ...}`` or ``{"error": ...}`` without secrets.
    """
    log_to_standard_error(logging.getLevelNamesMapping().get(request.log_level, logging.INFO))
    remove_airflow_variables()
    connections = {conn_id: ResolvedConnection.from_json(value) for conn_id, value in request.connections.items()}
    log = logging.getLogger(LOGGER_NAME)
    secrets = [secret for connection in connections.values() for secret in connection.secrets]
    try:
        context = RunContext.for_pipeline(
            Pipeline.from_dict(request.pipeline), LogReporter(), _connection_resolver(connections), is_driver=True
        )
        try:
            with translate_disk_full():
                return 0, {"outcome": _run_request(context, request)}
        except MemoryError:
            raise OutOfMemoryError from None
    except CdcError as error:
        failure = error.to_json()
        code = error.exit_code
    except Exception as error:
        log.info("%s", scrub_secrets(_format_stack(error), secrets))
        failure = {
            "kind": "",
            "message": f"unexpected {type(error).__name__}: {error}",
            "remedy": "See the lines above",
        }
        code = 1
    failure = {key: scrub_secrets(fact, secrets) if isinstance(fact, str) else fact for key, fact in failure.items()}
    text = f"{failure['message']}. {failure['remedy']}".replace("\n", " ")
    log.error("%s%s", FINAL_ERROR_PREFIX, text)
    return code, {"error": failure}


def _run_request(context: RunContext, request: DriverRequest) -> dict[str, Any]:
    if context.connect is not None and not request.is_stream:
        signal.signal(signal.SIGTERM, _interrupt_and_end)
    if request.maintain:
        return run_maintenance(context, purge=request.purge)
    if request.reread is not None:
        return run_requested_resnapshot(context, request.reread, request.where_key)
    if request.verify is not None:
        return run_requested_verification(context, **request.verify)
    return run_requested_stream(context, request) if request.groups is None else run_requested_groups(context, request)


def _format_stack(error: Exception) -> str:
    """Return the traceback of an error with the errors that caused it, but without its own text."""
    parts = list(traceback.TracebackException.from_exception(error).format())
    own_text = len(list(traceback.TracebackException.from_exception(error).format_exception_only()))
    return "".join(parts[:-own_text])


def _connection_resolver(known: dict[str, ResolvedConnection]) -> Callable[[str], ResolvedConnection]:
    def find(conn_id: str) -> ResolvedConnection:
        if conn_id not in known:
            raise NotReadyError(
                f"connection {conn_id} was not passed to the driver", f"This must not happen: {REPORT_REMEDY}"
            )
        return known[conn_id]

    return find


def _interrupt_and_end(number: int, _: object) -> NoReturn:
    from airflow_provider_cdc.spark.connect import interrupt_sessions

    interrupt_sessions()
    kill_session(os.getsid(0))
    os._exit(128 + number)
