"""What operators and sensor take where their arguments say nothing: the section ``[cdc]`` of Airflow's configuration.

It is read when an operator is made, so a value that cannot be used is an import error of the DAG that names it.
"""

from __future__ import annotations

import math
from datetime import timedelta

from airflow.providers.common.compat.sdk import conf

from airflow_provider_cdc.airflow.provider import get_provider_info
from airflow_provider_cdc.model.errors import NotReadyError

CONFIG_SECTION = "cdc"
_BOOLEANS = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}


def deferrable() -> bool:
    """``default_deferrable``.

    :raises NotReadyError: if it is neither true nor false.
    """
    text = _option_text("default_deferrable")
    if text.lower() not in _BOOLEANS:
        raise _bad_option_error("default_deferrable", text, "True or False")
    return _BOOLEANS[text.lower()]


def poll_seconds() -> float:
    """``poll_seconds``.

    :raises NotReadyError: if it is no number above 0; so are the others.
    """
    return _option_seconds("poll_seconds", exclusive_minimum=0)


def report_seconds() -> float:
    """``report_seconds``."""
    return _option_seconds("report_seconds", exclusive_minimum=0)


def restart_timeout() -> timedelta:
    """``restart_timeout``."""
    return timedelta(seconds=_option_seconds("restart_timeout"))


def lease_seconds() -> float:
    """``lease_seconds``; 0 for no lease."""
    return _option_seconds("lease_seconds")


def _option_text(option: str) -> str:
    # Before Airflow 3.3 not every process that reads DAG files knows the defaults of providers.
    default = str(get_provider_info()["config"][CONFIG_SECTION]["options"][option]["default"])
    return str(conf.get(CONFIG_SECTION, option, fallback=default)).strip() or default


def _option_seconds(option: str, exclusive_minimum: float | None = None) -> float:
    text = _option_text(option)
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= timedelta.max.total_seconds() / 2 or value == exclusive_minimum:
        raise _bad_option_error(
            option, text, f"a number of seconds{', more than 0' if exclusive_minimum is not None else ', 0 or more'}"
        )
    return value


def _bad_option_error(option: str, text: str, allowed: str) -> NotReadyError:
    return NotReadyError(
        f"[{CONFIG_SECTION}] {option} in Airflow's configuration is {text!r}",
        f"Give {allowed}, in airflow.cfg or as AIRFLOW__{CONFIG_SECTION.upper()}__{option.upper()}",
    )
