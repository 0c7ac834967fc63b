"""Drivers that run from an archive of `airflow-cdc pack`, in a real YARN whose nodes have nothing of the package."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from airflow_provider_cdc.verify.run import verify_tables
from tests import ROOT
from tests.driver.test_yarn import ROWS, cli, read  # noqa: F401  # a fixture
from tests.support.cli import Cli
from tests.support.environments import make_environment, needed_packages
from tests.support.processes import remove_folder, temporary_folder
from tests.support.yarn import Yarn

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def spark_conf() -> Iterator[dict[str, str]]:
    """The lines that the command prints for the pipeline."""
    folder = temporary_folder("cdc-packed-")
    needed = needed_packages("airflow-provider-cdc[postgres]") - {"airflow-provider-cdc"}
    command: list[str | Path] = [make_environment(folder / "env", needed), "-P", "-m", "airflow_provider_cdc"]
    command += ["pack", folder / "out"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True, cwd=folder)
    remove_folder(folder / "env")  # nothing may need it any more
    printed = yaml.safe_load(done.stdout[done.stdout.index("spark:") :])["spark"]["conf"]
    assert isinstance(printed, dict)
    yield printed
    remove_folder(folder)


def use_archive(cli: Cli, yarn: Yarn, cache: Path, conf: dict[str, str]) -> None:  # noqa: F811
    """Let drivers run from the archive, with an empty folder for caches and without the tests' own packages."""
    settings = {key: value for key, value in yarn.settings.items() if not key.endswith(".PYTHONPATH")}
    for kind in ("yarn.appMasterEnv", "executorEnv"):
        settings[f"spark.{kind}.XDG_CACHE_HOME"] = str(cache)
    cli.value["spark"]["conf"] = settings | conf
    cli.write()


def test_a_snapshot(
    cli: Cli,  # noqa: F811
    yarn: Yarn,
    spark_conf: dict[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It is equal, and no process of it has compiled machine code."""
    cache = tmp_path / "cache"
    use_archive(cli, yarn, cache, spark_conf)
    assert read(cli)["rows"] == ROWS
    assert all(verdict.is_equal for verdict in verify_tables(cli.context))
    said = "".join(capsys.readouterr())
    own = yarn.applications()[-1]["id"]
    logs = [path.read_text(errors="replace") for path in yarn.work.rglob("std*") if own in str(path)]
    assert "group 1 published" in said and logs
    assert not [text for text in (said, *logs) if "compiling machine code" in text]
    assert not [*cache.rglob("*.nbi")]
    scripts = [path.read_text() for path in yarn.work.rglob("launch_container.sh")]
    assert any(re.search(r"ln -sf .*\.tar\.gz. .*env", text) for text in scripts)
