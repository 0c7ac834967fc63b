"""docs/versions.md says what is supported and what was tried; it says neither more nor less than the code."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from airflow_provider_cdc.mysql.client import product
from airflow_provider_cdc.spark import java
from tests import ROOT
from tests.versions import PYTHONS, STEPS, VERSIONS, installed, requirements

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DOCUMENT = (ROOT / "docs" / "versions.md").read_text()
#: By the first word of a line: supported, tried, not tried.
TABLE = {
    cells[0].split()[0]: cells[1:]
    for line in DOCUMENT.partition("\n### ")[0].splitlines()
    if line.startswith("| ") and len(cells := [cell.strip() for cell in line.strip("|").split("|")]) == 4 and cells[0]
}


def numbers(text: str) -> list[str]:
    return re.findall(r"\d+(?:\.\d+)*", text)


def test_what_is_supported() -> None:
    wanted = {Requirement(text).name: Requirement(text) for text in PROJECT["dependencies"]}
    for line, package in (("Airflow", "apache-airflow"), ("Spark", "pyspark")):
        assert wanted[package].specifier == Requirement(f"x{TABLE[line][0].strip('`')}").specifier, line
    assert TABLE["Python"][0] == f"`{PROJECT['requires-python']}`"
    assert [int(number) for number in numbers(TABLE["Java"][0])] == sorted(java.SUPPORTED_VERSIONS)
    for name, oldest in product.MIN_VERSIONS.items():
        assert TABLE[name][0] == f"{'.'.join(map(str, oldest))} and newer"


def test_what_was_tried() -> None:
    for line, package in (("Airflow", "apache-airflow"), ("Spark", "pyspark")):
        tried = {versions[package] for versions in VERSIONS.values()} | {metadata.version(package), lock(package)}
        if metadata.version(package) == lock(package):  # not in an environment of `make test-versions`
            assert set(numbers(TABLE[line][1])) == tried, line
    for name, versions in product.TESTED_VERSIONS.items():
        assert numbers(TABLE[name][1]) == [".".join(map(str, version)) for version in versions]
    tried = {text.rpartition(".")[0] for text in numbers(TABLE["Python"][1])}  # named with their patch versions
    assert tried == {*PYTHONS.values()} and not tried & {*numbers(TABLE["Python"][2])}
    assert PYTHONS.keys() == VERSIONS.keys() and f"{sys.version_info[0]}.{sys.version_info[1]}" in tried


def test_what_ran_with_each_pair() -> None:
    """The environments of ``make test-versions``, and that of the whole suite, each with its own row."""
    section = DOCUMENT.partition("### What ran with each\n")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:2] == "| "]
    found = {(cells[0], numbers(cells[1])[0]) for cells in rows[1:]}
    pairs = {(of["apache-airflow"], of["pyspark"]) for of in VERSIONS.values()}
    pairs.add((lock("apache-airflow"), lock("pyspark")))
    assert found == pairs
    named = {cells[2] for cells in rows[1:]}
    assert {".".join(python.split(".")[:2]) for python in named} == {*PYTHONS.values()}


def lock(package: str) -> str:
    found = re.search(rf"^{package}==(\S+)", (ROOT / "requirements" / "dev.txt").read_text(), re.M)
    assert found
    return found[1]


def test_the_environments_are_what_they_say_and_what_pyproject_allows() -> None:
    for name, versions in VERSIONS.items():
        has = installed(name)
        assert {package: has[package] for package in versions} == versions
        for text in PROJECT["dependencies"]:
            wanted = Requirement(text)
            if wanted.name not in versions or name != "provider6":
                assert has[wanted.name.lower()] in wanted.specifier, f"{name}: {wanted}"
        # The Connect client is not forced on anybody; where something else wants it, it has the version of pyspark.
        assert has.get("pyspark-client") == (has["pyspark"] if name == "provider6" else None)
        text = requirements(name).read_text()
        assert "://" not in text and "--index" not in text and text.count("--hash=sha256:") > len(has)
    for package in ("apache-airflow", "pyspark"):
        assert Version(VERSIONS["oldest"][package]) < Version(lock(package)) <= Version(VERSIONS["newest"][package])


def test_ci_runs_with_the_oldest_python(tmp_path: Path) -> None:
    for folder, name, version in (
        ("a", "python3", "3.12.9"),
        ("a", "python3.11", "3.11.11"),
        ("b", "python3", "3.11.2"),
        ("b", "python3.13", "3.10.1"),  # none that the project runs on
    ):
        python = tmp_path / folder / name
        python.parent.mkdir(exist_ok=True)
        numbers_of_it = tuple(map(int, version.split(".")))
        lines = f"#!{sys.executable}", "import sys", f"sys.version_info = {numbers_of_it}", "code = sys.argv[2]"
        python.write_text("\n".join([*lines, "del sys.argv[1:3]", "exec(code)"]))
        python.chmod(0o755)
    path = f"{tmp_path / 'a'}:{tmp_path / 'b'}"
    tools = [shutil.which(tool) for tool in ("which", "sort", "head", "cut", "sh")]
    for tool in filter(None, tools):
        (tmp_path / "b" / Path(tool).name).symlink_to(tool)
    found = subprocess.run([ROOT / ".ci" / "oldest-python"], env={"PATH": path}, capture_output=True, text=True)
    assert found.stdout.strip() == str(tmp_path / "b" / "python3"), found
    assert "export PYTHON=" in (ROOT / ".ci" / "run").read_text()


def test_every_step_names_what_there_is() -> None:
    for words in STEPS.values():
        for word in words:
            if word.startswith("tests/"):
                file, _, test = word.partition("::")
                name = test.partition("[")[0]
                assert f"def {name}(" in (ROOT / file).read_text() if test else (ROOT / file).exists()


@pytest.mark.long
@pytest.mark.timeout(1800)  # the first step in an environment makes it
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("name", VERSIONS)
def test_a_step(name: str, step: str) -> None:
    """A part of ``make test-versions``, so that some of the shares of the long tests have one."""
    command = [sys.executable, "-m", "tests.versions", name, step]
    run = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert run.returncode == 0, run.stdout
