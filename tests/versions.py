"""The oldest, the newest and a middle Python, Airflow and Spark: an environment for each, and some of the tests in it.

``provider6`` has a version of Airflow's Spark provider that this package does not ask for (docs/versions.md).

``python -m tests.versions [oldest|middle|newest|provider6] [core|demo|examples|life|assets|lineage|page|iceberg|kills|
tables]``; without arguments everything. uv makes the environments in the cache folder, from
``requirements/oldest.txt`` and its neighbours, and makes them again when their file changes. ``python -m tests.versions
lock`` compiles these files. docs/versions.md lists what was tried.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable
from pathlib import Path

from tests import ROOT
from tests.support.packages import cache_folder, locked

#: What is tried. All else in an environment is the newest that goes with it.
VERSIONS = {
    "oldest": {"apache-airflow": "3.1.8", "pyspark": "4.0.0"},
    # The API server of this Airflow does not start with cadwyn 9.0.0 and fastapi 0.165.0.
    "middle": {"apache-airflow": "3.2.2", "pyspark": "4.1.4", "cadwyn": "7.0.0", "fastapi": "0.136.3"},
    "newest": {"apache-airflow": "3.3.2", "pyspark": "4.3.0"},
    "provider6": {
        "apache-airflow": "3.3.2",
        "apache-airflow-providers-apache-spark": "6.3.4",
        "pyspark": "4.2.0",
        "pyspark-client": "4.2.0",  # the same version: it overwrites files of pyspark
    },
}
PYTHONS = {"oldest": "3.11", "middle": "3.12", "newest": "3.13", "provider6": "3.12"}
#: Of the development tools only what the steps need.
_EXTRAS = ("iceberg", "java", "postgres")
_READERS = (
    *("duckdb>=1.5.5", "duckdb-extension-avro", "duckdb-extension-delta", "duckdb-extension-httpfs"),
    *("duckdb-extension-iceberg", "polars"),
)
_TOOLS = ("editables", "hatchling", "httpx", "hypothesis", "jpype1", "jsonschema", "pytest", "pytest-timeout")
_BROWSER = ("axe-playwright-python", "playwright")
_LINEAGE = ("apache-airflow-providers-openlineage",)
_PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider")
STEPS = {
    "core": (
        *_PYTEST,
        "-m",
        "not long",
        "tests/model",
        "tests/ddl",
        "tests/config",
        "tests/mysql/binlog",
        "tests/mysql/resultset",
        "tests/types",
    ),
    "demo": ("-m", "bench.demo", "--customers", "20000", "--seconds", "10"),
    "examples": (*_PYTEST, "-m", "not long", "tests/in_airflow/test_examples.py"),
    "life": (*_PYTEST, "tests/in_airflow/test_life.py::test_the_life_of_a_stream"),
    "assets": (*_PYTEST, "tests/in_airflow/test_windows.py"),
    "lineage": (*_PYTEST, "tests/in_airflow/test_lineage.py", "tests/airflow/test_openlineage.py"),
    "page": (*_PYTEST, "-m", "not long", "tests/ui", "tests/in_airflow/test_page.py"),
    "iceberg": (*_PYTEST, "tests/sinks/iceberg/test_pipeline.py", "tests/sinks/iceberg/test_types.py"),
    "kills": (*_PYTEST, "tests/restart/test_kill_spark.py::test_killed_and_started_again[0]"),
    "tables": (*_PYTEST, "tests/restart/test_kill_spark.py::test_a_table_that_is_suspended"),
}
_UV = Path(sys.executable).with_name("uv")


def requirements(name: str) -> Path:
    """The file with the versions and hashes of an environment."""
    return ROOT / "requirements" / f"{name}.txt"


def lock(names: Iterable[str] = VERSIONS) -> None:
    """Resolve the environments again."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    optional = [requirement for extra in _EXTRAS for requirement in extras[extra]]
    wanted = [*project["dependencies"], *optional, *_READERS, *_TOOLS, *_BROWSER, *_LINEAGE]
    environ = {key: text for key, text in os.environ.items() if not key.endswith("_FIND_LINKS")}
    for name in names:
        versions = VERSIONS[name]
        others = [requirement for requirement in wanted if re.split("[^a-z0-9-]", requirement)[0] not in versions]
        text = "\n".join([*others, *(f"{package}=={version}" for package, version in versions.items())])
        options = ["--upgrade", "--generate-hashes", "--no-header", "--no-annotate", "--universal"]
        options += ["--no-emit-index-url", "--no-emit-find-links", "--python-version", PYTHONS[name]]
        command: list[str | Path] = [_UV, "pip", "compile", "-q", *options, "-", "-o", requirements(name)]
        subprocess.run(command, cwd=ROOT, env=environ, input=text, text=True, check=True, stdout=subprocess.DEVNULL)


def interpreter(version: str) -> str:
    """Find a Python of a minor version: pyenv's where there is one, else what uv finds or downloads."""
    installed_by_pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    return next(map(str, sorted(installed_by_pyenv.glob(f"{version}.*/bin/python"))), version)


def environment(name: str) -> Path:
    """Make an environment, or find the one that was made, and return its Python."""
    file = requirements(name)
    digest = hashlib.sha256(PYTHONS[name].encode() + file.read_bytes()).hexdigest()[:12]
    folder = cache_folder() / f"versions-{name}-{digest}"
    python, done = folder / "bin" / "python", folder / ".complete"
    with locked(f"versions-{name}"):
        if not done.exists():
            print(f"making {folder} ...", flush=True)
            subprocess.run([_UV, "venv", "-q", "--clear", "-p", interpreter(PYTHONS[name]), folder], check=True)
            install: list[str | Path] = [_UV, "pip", "install", "-q", "-p", python]
            subprocess.run([*install, "--require-hashes", "-r", file], check=True)
            done.touch()
        # The code is that of this folder, whichever was here before.
        subprocess.run(
            [_UV, "pip", "install", "-q", "-p", python, "--no-deps", "--no-build-isolation", "-e", ROOT], check=True
        )
    return python


def installed(name: str) -> dict[str, str]:
    """Packages of an environment and their versions."""
    return dict(re.findall(r"^([a-z0-9.-]+)(?:\[[^]]*\])?==(\S+)", requirements(name).read_text(), re.M))


def main() -> int:
    """Run the steps asked for and return how many failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    words = (*VERSIONS, *STEPS, "lock")
    parser.add_argument("what", nargs="*", metavar="|".join(words))
    options = parser.parse_args()
    if unknown := set(options.what) - set(words):
        parser.error(f"{', '.join(sorted(unknown))}: not one of {', '.join(words)}")
    if "lock" in options.what:
        lock()
        return 0
    names = [name for name in VERSIONS if name in options.what] or list(VERSIONS)
    steps = [step for step in STEPS if step in options.what] or list(STEPS)
    failed = 0
    for name in names:
        python = environment(name)
        title = ", ".join(
            f"{package} {version}" for package, version in {**VERSIONS[name], "Python": PYTHONS[name]}.items()
        )
        for step in steps:
            print(f"=== {name} ({title}): {step}", flush=True)
            began = time.monotonic()
            code = subprocess.run([python, *STEPS[step]], cwd=ROOT).returncode
            said = "ok" if code == 0 else f"FAILED (repeat: {sys.executable} -m tests.versions {name} {step})"
            print(f"=== {name}: {step}: {said}, {time.monotonic() - began:.0f} s", flush=True)
            failed += code != 0
    return failed


if __name__ == "__main__":
    sys.exit(main())
