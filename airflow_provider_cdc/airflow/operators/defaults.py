"""Defaults of the operators and the sensor, from the section ``[cdc]`` in Airflow's configuration.

They are read when an operator is created, so an invalid value becomes an import error of the DAG.
"""

from __future__ import annotations

import math
from datetime import timedelta

from airflow.providers.common.compat.sdk import conf

from airflow_provider_cdc.airflow.provider import get_provider_info
from airflow_provider_cdc.model.errors import NotReadyError

CONFIG_SECTION = "cdc"
#: Options for which 0 seconds makes no sense.
_INTERVALS = ("poll_seconds", "report_seconds")
_BOOLEANS = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}


def deferrable() -> bool:
    """Return ``default_deferrable``.

    :raises NotReadyError: if it is neither true nor false.
    """
    text = _option_text("default_deferrable")
    if text.lower() not in _BOOLEANS:
        raise _bad_option_error("default_deferrable", text, "True or False")
    return _BOOLEANS[text.lower()]


def read_seconds(option: str) -> float:
    """Return an option that is a number of seconds.

    :raises NotReadyError: if it is not, or if it is 0 although that is no interval.
    """
    text, is_interval = _option_text(option), option in _INTERVALS
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= timedelta.max.total_seconds() / 2 or (is_interval and not value):
        raise _bad_option_error(option, text, f"a number of seconds, {'more than 0' if is_interval else '0 or more'}")
    return value


def _option_text(option: str) -> str:
    # Before Airflow 3.3, some processes that read DAG files do not know the defaults of providers.
    default = str(get_provider_info()["config"][CONFIG_SECTION]["options"][option]["default"])
    return str(conf.get(CONFIG_SECTION, option, fallback=default)).strip() or default


def _bad_option_error(option: str, text: str, allowed: str) -> NotReadyError:
    return NotReadyError(
        f"[{CONFIG_SECTION}] {option} in Airflow's configuration is {text!r}",
        f"Give {allowed}, in airflow.cfg or as AIRFLOW__{CONFIG_SECTION.upper()}__{option.upper()}",
    )
