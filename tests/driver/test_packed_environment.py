"""Drivers that run from an archive of `airflow-cdc pack`, in a real YARN whose nodes have nothing of the package."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from airflow_provider_cdc.verify.run import verify_tables
from tests import ROOT
from tests.driver.test_yarn import cli  # noqa: F401  # a fixture
from tests.support.cli import Cli
from tests.support.cluster_tasks import ROWS, follow, read
from tests.support.environments import make_environment, needed_packages
from tests.support.processes import remove_folder, temporary_folder, wait_for
from tests.support.servers import MySQLServer
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


def check_snapshot(cli: Cli, yarn: Yarn, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    """Read all chunk groups; the copy is equal, and no process has compiled machine code."""
    assert read(cli.file)["rows"] == ROWS
    assert all(verdict.is_equal for verdict in verify_tables(cli.context))
    said, own = "".join(capsys.readouterr()), yarn.applications()[-1]["id"]
    logs = [path.read_text(errors="replace") for path in yarn.work.rglob("std*") if own in str(path)]
    assert "group 1 published" in said and logs
    assert not [text for text in (said, *logs) if "compiling machine code" in text]
    assert not [*cache.rglob("*.nbi")]


def unpacked_environments(yarn: Yarn) -> int:
    """Return how often a node has unpacked the archive."""
    return len([*yarn.work.rglob("filecache/*/env-*.tar.gz/pyvenv.cfg")])


def test_a_snapshot(
    cli: Cli,  # noqa: F811
    yarn: Yarn,
    spark_conf: dict[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The driver and its executors run from an archive in a folder, which is uploaded."""
    use_archive(cli, yarn, tmp_path / "cache", spark_conf)
    check_snapshot(cli, yarn, tmp_path / "cache", capsys)
    assert unpacked_environments(yarn) == 1


@pytest.fixture
def yarn_with_hdfs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Yarn]:
    with Yarn(hdfs=True) as cluster:
        monkeypatch.setenv("HADOOP_CONF_DIR", str(cluster.conf))
        monkeypatch.setenv("AIRFLOW_CONN_SPARK_YARN", cluster.connection())
        yield cluster


def test_an_archive_in_hdfs(
    cli: Cli,  # noqa: F811
    yarn_with_hdfs: Yarn,
    spark_conf: dict[str, str],
    mysql_server: MySQLServer,
    database: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Drivers share what a node has unpacked. The default file system is HDFS; the sink and checkpoints are folders."""
    archive = Path(spark_conf["spark.yarn.dist.archives"].removeprefix("file://").removesuffix("#env"))
    address = yarn_with_hdfs.put(archive, f"/cdc/{archive.name}")
    conf = {**spark_conf, "spark.yarn.dist.archives": f"{address}#env"}
    assert address.startswith("hdfs://")
    for number in range(2):
        cli.value["name"], cli.value["sink"]["path"] = f"p{number}", str(tmp_path / f"sink{number}")
        use_archive(cli, yarn_with_hdfs, tmp_path / "cache", conf)
        check_snapshot(cli, yarn_with_hdfs, tmp_path / "cache", capsys)
        assert [*(tmp_path / f"sink{number}").rglob("_delta_log/*.json")]
    assert unpacked_environments(yarn_with_hdfs) == 1
    follow(cli)
    mysql_server.execute(f"INSERT INTO {database}.t VALUES (1000, 'later')")
    with cli.opened() as (_, store):
        wait_for("a change", lambda: (run := store.newest_epoch("p1")) is not None and run.changes == 1, 300)
        store.request_stop("p1")
        wait_for("the stream ends", lambda: store.newest_epoch("p1").state == "stopped", 120)  # type: ignore[union-attr]
        wait_for("its driver ends", lambda: not store.live_drivers("p1"), 60)
    assert all(verdict.is_equal for verdict in verify_tables(cli.context))
    assert unpacked_environments(yarn_with_hdfs) == 1
