"""The process that Spark's Python workers are forked from, with the machine code loaded.

Spark starts it as ``python -m airflow_provider_cdc.spark.worker_daemon pyspark.worker`` instead of its own
``pyspark.daemon``, on each host. Loading numba and the machine code takes seconds of processor time, and more if the
code is not compiled yet: here this happens once, and not in each worker.

A process may only be forked while it has a single thread: another one could hold a lock, which the child would wait for
forever. NumPy starts threads unless a variable of the environment forbids it, and pyarrow always does, so it is not
loaded here.
"""

from __future__ import annotations

import gc
import os
import sys
from importlib import import_module
from pathlib import Path

#: Modules with machine code that tasks run. Others, such as that for JSON, are loaded by the workers that need them.
WORKER_MODULES = ("mysql.resultset.row_kernel", "mysql.binlog.kernels.walk_kernel", "native.siphash")


def load_machine_code() -> bool:
    """Load the machine code; return whether this process may be forked afterwards.

    An error is not raised here: the workers will import the same modules, and report it as the error of their task.
    """
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        for name in WORKER_MODULES:
            import_module(f"airflow_provider_cdc.{name}")
    except Exception:
        return False
    finally:
        os.environ.pop("OMP_NUM_THREADS")
        if before is not None:
            os.environ["OMP_NUM_THREADS"] = before
    return len(list(Path("/proc/self/task").iterdir())) == 1


def main() -> None:
    """Load the machine code, then be Spark's daemon; without the machine code if forking would not be safe."""
    if not load_machine_code():
        os.execv(sys.executable, [sys.executable, "-m", "pyspark.daemon", *sys.argv[1:]])
    from pyspark.daemon import manager

    gc.collect()
    gc.freeze()  # collections in the workers need not touch these objects, which stay shared memory
    manager()


if __name__ == "__main__":
    main()
