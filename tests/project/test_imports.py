"""Imports point one way, and what is heavy is imported late."""

from __future__ import annotations

import ast
import graphlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import ROOT

PACKAGE = "airflow_provider_cdc"
MODULES = sorted((ROOT / PACKAGE).rglob("*.py"))

#: What each part may import of the project, itself aside.
ALLOWED = {
    "exceptions": set(),
    "processes": set(),
    "failpoints": {"processes"},
    "rights": set(),
    "scratch": set(),
    "core": {"exceptions"},
    "machine": set(),
    "pipeline": {"sinks", "core", "exceptions"},
    "connections": {"core", "exceptions"},
    "guarded": {"core", "exceptions"},
    "mysql": {"guarded", "core", "machine", "exceptions", "failpoints"},
    "sinks": {"core", "machine", "exceptions", "failpoints", "rights"},
    "store": {"core", "connections", "guarded", "exceptions", "rights"},
    "jobs": {"sinks", "mysql", "core", "exceptions", "failpoints"},
    "spark": {"jobs", "mysql", "core", "connections", "exceptions", "scratch"},
    "phases": {
        "spark",
        "jobs",
        "sinks",
        "store",
        "mysql",
        "core",
        "pipeline",
        "connections",
        "guarded",
        "exceptions",
        "failpoints",
        "processes",
    },
    "driver": {
        "core",
        "jobs",
        "phases",
        "spark",
        "sinks",
        "store",
        "pipeline",
        "connections",
        "progress_bar",
        "exceptions",
        "processes",
    },
    "status_text": {"core", "sinks"},
    "metrics": {"core", "store", "exceptions"},
    "alerts": {"core", "store", "metrics"},
    "windows": {"store"},
    "launch": {"driver", "sinks", "connections", "exceptions", "processes", "scratch"},
}

#: What each room of ``mysql/`` may import of its other rooms. No circle: a room stands below all that may import it.
ROOMS = {
    "server": set(),
    "keys": {"server"},
    "resultset": {"server"},
    "binlog.events": {"server"},
    "binlog.plain": {"binlog.events", "server"},
    "binlog.kernels": {"binlog.plain", "binlog.events"},
    "binlog.walk": {"binlog.kernels", "binlog.plain", "binlog.events", "server"},
    "places": {"binlog.walk", "binlog.events", "server"},
    "snapshot": {"places", "binlog.walk", "binlog.events", "keys", "resultset", "server"},
    "stream": {"places", "binlog.walk", "binlog.events", "server"},
}

#: The Airflow face, which may import everything; nothing else may import Airflow.
AIRFLOW = {"operators", "sensors", "triggers", "hooks", "links", "task_group", "provider", "page", "assets", "lineage"}


def part(module: str) -> str:
    """The part of the project that a module belongs to; empty for the package itself."""
    return (module.split(".") + [""])[1]


def imported(path: Path) -> Iterator[str]:
    """Names of all modules that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            assert node.module is not None
            yield node.module
            if node.module == PACKAGE:
                yield from (f"{PACKAGE}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT / PACKAGE)))
def test_direction(path: Path) -> None:
    here = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    allowed = ALLOWED.get(part(here))
    if allowed is None:
        return  # the command line and what faces Airflow may import everything
    for name in imported(path):
        if name.split(".")[0] == PACKAGE and name not in (PACKAGE, f"{PACKAGE}.__version__"):
            assert part(name) in allowed | {part(here)}, f"{here} imports {name}"
        assert name.split(".")[0] != "airflow", f"{here} imports {name}: the core works without Airflow"


def room(module: str) -> str:
    """The room of ``mysql/`` that a module stands in; empty for one elsewhere."""
    names = module.split(".")
    if names[:2] != [PACKAGE, "mysql"] or len(names) < 4:
        return ""
    return ".".join(names[2:4]) if names[2] == "binlog" else names[2]


def test_rooms_of_mysql() -> None:
    seen = set()
    for path in (ROOT / PACKAGE / "mysql").rglob("*.py"):
        here = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if path.name != "__init__.py":
            assert room(here) in ROOMS, f"{here} stands in no room of its own"
            seen.add(room(here))
        for name in imported(path):
            assert room(name) in ROOMS.get(room(here), set()) | {"", room(here)}, f"{here} imports {name}"
    assert seen == set(ROOMS)


def test_rooms_stand_one_above_the_other() -> None:
    graphlib.TopologicalSorter(ROOMS).prepare()  # raises CycleError


def test_core_does_no_io() -> None:
    forbidden = {"os", "io", "pathlib", "socket", "subprocess", "time", "random", "pymysql", "pyspark", "deltalake"}
    for path in (ROOT / PACKAGE / "core").glob("*.py"):
        assert not forbidden & {name.split(".")[0] for name in imported(path)}, path


def test_only_the_delta_sink_knows_delta() -> None:
    """Elsewhere a sink is what `sinks/protocol.py` says; `sinks/registry.py` names its module, as text."""
    delta = ROOT / PACKAGE / "sinks" / "delta"
    for path in MODULES:
        if delta not in path.parents:
            for name in imported(path):
                assert name.split(".")[0] != "deltalake" and not name.startswith(f"{PACKAGE}.sinks.delta"), path


def test_files_are_reached_through_a_storage() -> None:
    """But for the bookkeeping, logs and checkpoints, which `sinks/layout.py` names, the look at free space, and the
    files of an index that is too large for memory: they have no names.
    """
    own = {
        "sinks/storage.py",
        "sinks/durable_file.py",
        "sinks/layout.py",
        "sinks/delta/key_index.py",
        "phases/preflight.py",
    }
    for path in MODULES:
        name = path.relative_to(ROOT / PACKAGE).as_posix()
        if name.partition("/")[0] in ("sinks", "phases", "jobs") and name not in own:
            assert not {"pathlib", "shutil", "glob", "tempfile"} & set(imported(path)), path


def test_parquet_is_read_and_written_in_one_place() -> None:
    for path in MODULES:
        if path != ROOT / PACKAGE / "sinks" / "files.py":
            assert "pyarrow.parquet" not in set(imported(path)), path


def test_jobs_do_not_know_what_carries_them() -> None:
    for path in (ROOT / PACKAGE / "jobs").glob("*.py"):
        assert "pyspark" not in {name.split(".")[0] for name in imported(path)}, path


def test_every_part_has_its_rule() -> None:
    free = {"", "__init__", "__main__", "cli", "progress_bar"}
    parts = {part(".".join(p.relative_to(ROOT).with_suffix("").parts)) for p in MODULES}
    assert parts - free == set(ALLOWED) | AIRFLOW


@pytest.mark.parametrize("module", ["", ".pipeline", ".exceptions", ".connections", ".cli"])
def test_heavy_imports_are_late(module: str) -> None:
    """Airflow parses DAG files all the time: a Pipeline must cost nothing."""
    code = (
        f"import sys, {PACKAGE}{module}; "
        "heavy = {'pyspark', 'pyarrow', 'numpy', 'pandas', 'deltalake', 'pymysql', 'pymysqlreplication', 'numba', "
        "'sqlalchemy', 'alembic', 'sqlglot', 'airflow'}; print(*sorted(heavy & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert run.stdout.strip() == ""


def test_what_a_dag_file_imports() -> None:
    """Airflow brings SQLAlchemy along; nothing of what reads and writes is loaded before a task runs."""
    modules = ("task_group", "operators.cdc", "operators.stream", "sensors.cdc", "triggers.cdc")
    names = ", ".join(f"{PACKAGE}.{module}" for module in modules)
    code = (
        f"import sys, {names}; heavy = {{'pyspark', 'pyarrow', 'numpy', 'pandas', 'deltalake', 'pymysql', "
        "'pymysqlreplication', 'numba', 'alembic', 'sqlglot'}; "
        "print('heavy:', *sorted(heavy & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert run.stdout.splitlines()[-1] == "heavy:"


@pytest.mark.parametrize(
    "module", ["driver", "phases.groups", "phases.stream", "spark.stream_source", "mysql.places.failover"]
)
def test_drivers_do_not_load_the_compiled_decoder(module: str) -> None:
    """It costs a second and 100 MB, in each process: it is for those that read."""
    code = f"import sys, {PACKAGE}.{module}; print('numba' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert run.stdout.strip() == "False"
