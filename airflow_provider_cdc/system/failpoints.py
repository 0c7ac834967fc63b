"""Named places in the code where a test may kill the whole run, as a crash would.

``CDC_FAILPOINT=name`` (or ``name:n`` for the n-th time in one process) sends SIGKILL to every process of the session
that reaches the place: the command, the JVM, the Spark workers. Without the variable, a failpoint costs one look-up.
"""

from __future__ import annotations

import os
from collections import Counter

from airflow_provider_cdc.system.processes import kill_session

ENV_VARIABLE = "CDC_FAILPOINT"
_hits: Counter[str] = Counter()


def failpoint(name: str) -> None:
    """Kill the session if this failpoint is armed."""
    armed = os.environ.get(ENV_VARIABLE)
    if not armed:
        return
    wanted, _, count = armed.partition(":")
    if wanted == name:
        _hits[name] += 1
        if _hits[name] == int(count or 1):
            kill_session(os.getsid(0))
