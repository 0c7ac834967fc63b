"""Imports point one way, and what is heavy is imported late."""

from __future__ import annotations

import ast
import graphlib
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import ROOT

PACKAGE = "airflow_provider_cdc"
MODULES = sorted((ROOT / PACKAGE).rglob("*.py"))

#: The rooms, each above all that it may import: a module imports from its own room and from those before it.
ROOMS = (
    "system",
    "model",
    "ddl",
    "config",
    "native",
    "transforms",
    "mysql.client",
    "mysql.resultset",
    "mysql.binlog.events",
    "mysql.binlog.plain",
    "mysql.binlog.kernels",
    "mysql.binlog.walk",
    "mysql.keys",
    "mysql.positions",
    "mysql.chunks",
    "sinks.storage",
    "sinks.files",
    "sinks",
    "sinks.lake.log",
    "sinks.lake.merge",
    "sinks.lake",
    "sinks.delta.log",
    "sinks.delta",
    "sinks.iceberg.format",
    "sinks.iceberg.catalogs",
    "sinks.iceberg.log",
    "sinks.iceberg",
    "state",
    "runtime",
    "spark",
    "chunk_groups",
    "apply",
    "resnapshot",
    "snapshot",
    "observe",
    "maintenance",
    "verify",
    "stream",
    "explain",
    "preflight",
    "driver",
    "airflow",
    "data_source",
    "ui",
    "cli",
)
#: What a task on another host imports: modules with this name import from no other rooms.
TASK = {"task"}
OF_TASKS = ("system", "model", "ddl", "config", "native", "transforms", "mysql", "sinks")
#: The rooms that face Airflow; nothing else may import it.
AIRFLOW = {"airflow", "ui"}
#: Rooms of sinks that `sinks/lake` may use: none of them belongs to a format.
_LAKE_MAY_USE = {"sinks", "sinks.files", "sinks.storage"}
#: Modules in one folder: more are a hall.
SPACE = 22


def imported(path: Path) -> Iterator[str]:
    """Names of all modules that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            assert node.module is not None
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def module_of(path: Path) -> str:
    """Name of a module below the package; of a folder's ``__init__.py``, that of the folder."""
    names = path.relative_to(ROOT / PACKAGE).with_suffix("").parts
    return ".".join(names[:-1] if names[-1] == "__init__" else names)


def room_of(module: str) -> str:
    """The room that a module stands in; empty for the package's own."""
    return next((room for room in sorted(ROOMS, key=len, reverse=True) if f"{module}.".startswith(f"{room}.")), "")


KNOWN = {module_of(path) for path in MODULES}
FILES = {module_of(path) for path in MODULES if path.name != "__init__.py"}


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT / PACKAGE)))
def test_direction(path: Path) -> None:
    here = module_of(path)
    if here not in FILES or here == "__main__":
        return  # what a folder hands on
    assert room_of(here), f"{here} stands in no room"
    for name in imported(path):
        module = name.removeprefix(f"{PACKAGE}.")
        if name.startswith(f"{PACKAGE}.") and module in KNOWN:
            assert ROOMS.index(room_of(module)) <= ROOMS.index(room_of(here)), f"{here} imports {module}, above it"
            if here.rpartition(".")[2] in TASK:
                own = module.startswith(f"{here.rpartition('.')[0]}.")
                assert own or module.startswith(OF_TASKS), f"{here} imports {module}: it runs on other hosts"
        assert name.split(".")[0] != "airflow" or here.split(".")[0] in AIRFLOW, (
            f"{here} imports {name}: the core works without Airflow"
        )


def test_every_room_is_there_and_none_is_a_hall() -> None:
    files = [path for path in MODULES if path.name != "__init__.py"]
    assert {room_of(module_of(path)) for path in files} - {""} == set(ROOMS)
    sizes = Counter(path.parent for path in files)
    assert {folder: size for folder, size in sizes.items() if size > SPACE} == {}


def test_no_two_modules_import_each_other() -> None:
    """At no distance: neither at the top of a module nor within a function."""
    graph = {}
    for path in MODULES:
        names = {name.removeprefix(f"{PACKAGE}.") for name in imported(path) if name.startswith(f"{PACKAGE}.")}
        if path.name != "__init__.py":
            graph[module_of(path)] = names & FILES
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError


def test_no_two_classes_have_the_same_name() -> None:
    """A name stands for one thing, and a search finds it."""
    nodes = [node for path in MODULES for node in ast.walk(ast.parse(path.read_text()))]
    names = Counter(node.name for node in nodes if isinstance(node, ast.ClassDef))
    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.parametrize("room", ["model", "ddl"])
def test_pure_rooms_do_no_io(room: str) -> None:
    forbidden = {"os", "io", "pathlib", "socket", "subprocess", "time", "random", "pymysql", "pyspark", "deltalake"}
    for path in (ROOT / PACKAGE / room).glob("*.py"):
        assert not forbidden & {name.split(".")[0] for name in imported(path)}, path


def test_only_the_delta_sink_knows_delta() -> None:
    """Elsewhere a sink is what `sinks/protocol.py` says; `config/sink_kinds.py` names its module, as text."""
    delta = ROOT / PACKAGE / "sinks" / "delta"
    for path in MODULES:
        if delta not in path.parents:
            for name in imported(path):
                assert name.split(".")[0] != "deltalake" and not name.startswith(f"{PACKAGE}.sinks.delta"), path


def test_only_the_iceberg_sink_knows_iceberg() -> None:
    """And its format is pure: what reads and writes files hands it their bytes."""
    iceberg = ROOT / PACKAGE / "sinks" / "iceberg"
    libraries = {"pyiceberg", "pyiceberg_core", "fastavro"}
    for path in MODULES:
        names = {*imported(path)}
        if iceberg not in path.parents:
            assert not libraries & {name.split(".")[0] for name in names}, path
            assert not any(name.startswith(f"{PACKAGE}.sinks.iceberg") for name in names), path
        elif path.parent == iceberg / "format":
            forbidden = {"os", "pathlib", "socket", "subprocess", "time", "random", "pyiceberg", "deltalake"}
            assert not forbidden & {name.split(".")[0] for name in names}, path
            assert not any(name.startswith(f"{PACKAGE}.sinks.storage") for name in names), path
            assert not any(name.startswith(f"{PACKAGE}.sinks.delta") for name in names), path


def test_the_shared_part_of_lakes_knows_no_format() -> None:
    """What is in `sinks/lake` serves each format, whose log and encoder it knows by their protocol alone."""
    lake = ROOT / PACKAGE / "sinks" / "lake"
    paths = [path for path in MODULES if lake in path.parents]
    assert len(paths) > 10
    for path in paths:
        for name in imported(path):
            room = room_of(name.removeprefix(f"{PACKAGE}."))
            assert not room.startswith("sinks.") or room in _LAKE_MAY_USE or room.startswith("sinks.lake"), path
            assert name.split(".")[0] not in {"deltalake", "pyiceberg", "fastavro"}, path
        assert "_delta_log" not in path.read_text(), path


#: Rooms above the server and below the driver, whose files may lie in an object store.
_STORED = (
    *("sinks", "runtime", "chunk_groups", "apply", "resnapshot", "snapshot", "maintenance", "stream", "verify"),
    *("explain", "preflight"),
)


def test_files_are_reached_through_a_storage() -> None:
    """But for the bookkeeping, logs and checkpoints, which `sinks/files/layout.py` names, the look at free space, and
    the files of an index that is too large for memory: they have no names.
    """
    own = {
        "sinks/storage/disk.py",
        "sinks/storage/local_storage.py",
        "sinks/storage/open_storage.py",
        "sinks/storage/durable_file.py",
        "sinks/files/layout.py",
        "sinks/lake/merge/key_index.py",
        "preflight/run.py",
        "stream/spark_query.py",
        "stream/spark_source.py",
    }
    for path in MODULES:
        name = path.relative_to(ROOT / PACKAGE).as_posix()
        if name.partition("/")[0] in _STORED and name not in own:
            assert not {"pathlib", "shutil", "glob", "tempfile"} & set(imported(path)), path


def test_parquet_is_read_and_written_in_one_place() -> None:
    for path in MODULES:
        if path != ROOT / PACKAGE / "sinks" / "files" / "parquet.py":
            assert "pyarrow.parquet" not in set(imported(path)), path


def test_tasks_do_not_know_what_carries_them() -> None:
    tasks = [path for path in MODULES if path.stem in TASK]
    assert len(tasks) >= 4
    for path in tasks:
        assert "pyspark" not in {name.split(".")[0] for name in imported(path)}, path


@pytest.mark.parametrize("module", ["", ".config", ".model.errors", ".config.connections", ".cli"])
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
    names = ", ".join(f"{PACKAGE}.airflow.{module}" for module in modules)
    code = (
        f"import sys, {names}; heavy = {{'pyspark', 'pyarrow', 'numpy', 'pandas', 'deltalake', 'pymysql', "
        "'pymysqlreplication', 'numba', 'alembic', 'sqlglot'}; "
        "print('heavy:', *sorted(heavy & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert run.stdout.splitlines()[-1] == "heavy:"


@pytest.mark.parametrize(
    "module",
    ["driver.main", "chunk_groups.chunk_group", "stream.run", "stream.spark_source", "mysql.positions.failover"],
)
def test_drivers_do_not_load_the_compiled_decoder(module: str) -> None:
    """It costs a second and 100 MB, in each process: it is for those that read."""
    code = f"import sys, {PACKAGE}.{module}; print('numba' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert run.stdout.strip() == "False"
