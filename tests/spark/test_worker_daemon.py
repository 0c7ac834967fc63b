"""The process that Spark's Python workers are forked from."""

from __future__ import annotations

import os
import subprocess
import sys

from tests import ROOT

PROGRAM = """
import os, sys, threading
from airflow_provider_cdc.spark.worker_daemon import load_machine_code

if sys.argv[1:]:
    threading.Thread(target=threading.Event().wait, daemon=True).start()
print(load_machine_code(), os.environ.get("OMP_NUM_THREADS"), "numba" in sys.modules)
"""


def run(*arguments: str, **environment: str) -> str:
    env = {**os.environ, **environment}
    command = [sys.executable, "-c", PROGRAM, *arguments]
    return subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT).stdout.strip()


def test_a_process_with_threads_is_not_forked() -> None:
    """A thread could hold a lock that nothing in the child releases. The machine code itself starts none."""
    assert run(OMP_NUM_THREADS="3") == "True 3 True"
    assert run("with a thread", OMP_NUM_THREADS="3") == "False 3 True"
