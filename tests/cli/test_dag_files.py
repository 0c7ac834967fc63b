"""Commands on a DAG file: its pipeline, its connections, and one clear line if there is none."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_cdc.airflow.dag_file import load_dag_file
from airflow_provider_cdc.model.errors import NotReadyError
from tests import ROOT
from tests.support.cli import Cli
from tests.support.servers import MySQLServer
from tests.support.three_tables import streamed_copy, three_tables_database

database = three_tables_database

_HEAD = "from airflow.sdk import DAG\nfrom airflow_provider_cdc import *\n"
_PIPELINE = (
    'def make(name, **more):\n    return {"name": name, "source": {"conn_id": "c", "tables": ["d.t"]}, '
    '"sink": {"path": "/lake"}, **more}\n'
)


def written(folder: Path, text: str) -> str:
    file = folder / "shop.py"
    file.write_text(_HEAD + _PIPELINE + text)
    return str(file)


@pytest.mark.parametrize("file", sorted((ROOT / "dags").glob("*.py")), ids=lambda file: file.stem)
def test_examples(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each example has one pipeline, or the error says why not."""
    monkeypatch.setenv("CDC_LAKE", "/lake")
    try:
        assert load_dag_file(str(file)).sink.path.startswith("/lake")
    except NotReadyError as error:
        assert file.stem in ("shards", "history", "downstream", "takeover"), error
        assert (file.stem == "takeover") == ("taken_over.preflight" in str(error) and "is a template" in str(error))
        if file.stem == "shards":
            assert load_dag_file(str(file), "shard_1").name == "shard_1"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import nothing_like_this", r"cannot be imported: ModuleNotFoundError: .*nothing_like_this.*Correct the file"),
        ("def broken(:", r"cannot be imported: SyntaxError"),
        ("with DAG('d', schedule=None):\n    CdcPreflightOperator(task_id='p', pipeline={'name': 'x'})",
         r"the pipeline of task d\.p: "),
        ("DAG('d', schedule=None)", r"has no pipeline\. Give a DAG file with a task of this package"),
        ("pass", "has no pipeline"),
        ("with DAG('d', schedule=None):\n    CdcPreflightOperator(task_id='p', pipeline=make('x_{{ ds }}'))",
         r"has no pipeline; the pipeline of d\.p is a template.*Write this pipeline to a YAML file"),
        ("with DAG('d', schedule=None):\n    CdcPreflightOperator(task_id='p', pipeline=make('x'))\n"
         "    CdcPreflightOperator(task_id='q', pipeline=make('x', stream={'parallelism': 3}))",
         r"tasks d\.p and d\.q have different settings for pipeline x"),
        ("with DAG('d', schedule=None):\n    CdcPreflightOperator(task_id='p', pipeline='lost.yaml')",
         r"the pipeline of task d\.p: cannot read .*lost\.yaml"),
    ],
    ids=["import", "syntax", "invalid", "no tasks", "no DAG", "template", "differ", "lost file"],
)  # fmt: skip
def test_what_is_refused(text: str, says: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(NotReadyError) as caught:
        load_dag_file(written(tmp_path, f"print('noise')\n{text}\n"))
    assert re.search(says, str(caught.value)), caught.value
    assert "noise" not in capfd.readouterr().out


def test_which_one(tmp_path: Path) -> None:
    """By name; also of mapped tasks, sensors, and pipelines in files."""
    (tmp_path / "filed.yaml").write_text("name: filed\nsource: {conn_id: c, tables: [d.t]}\nsink: {path: /lake}\n")
    file = written(
        tmp_path,
        "with DAG('d', schedule=None, default_args={'pipeline': make('given')}):\n"
        "    CdcPreflightOperator(task_id='p')\n"
        "    CdcSnapshotSensor(task_id='s', pipeline='filed.yaml')\n"
        "    CdcVerifyOperator.partial(task_id='v').expand(pipeline=[make('one'), make('two')])\n"
        "    CdcSnapshotOperator.partial(task_id='r', pipeline=make('parted')).expand(groups=[[0], [1]])\n",
    )
    names = ["filed", "given", "one", "parted", "two"]
    assert [load_dag_file(file, name).name for name in names] == names
    with pytest.raises(NotReadyError, match=r"has the pipelines filed, given, one, parted, two.*--pipeline NAME"):
        load_dag_file(file)
    with pytest.raises(NotReadyError, match=r"has no pipeline other\. It has filed, given"):
        load_dag_file(file, "other")


def test_with_the_connections_of_a_secrets_backend(tmp_path: Path) -> None:
    """Without any in the environment or in Airflow's database, which does not exist here."""
    dag = written(
        tmp_path, f"with DAG('d', schedule=None):\n    cdc_pipeline({{**make('x'), 'sink': {{'path': '{tmp_path}'}}}})"
    )
    connections = tmp_path / "connections.json"
    connections.write_text(json.dumps({"c": "mysql://cdc:a-secret@127.0.0.1:1/"}))
    env = {k: v for k, v in os.environ.items() if not k.startswith("AIRFLOW")} | {
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__SECRETS__BACKEND": "airflow.secrets.local_filesystem.LocalFilesystemBackend",
        "AIRFLOW__SECRETS__BACKEND_KWARGS": json.dumps({"connections_file_path": str(connections)}),
    }
    argv = [sys.executable, "-m", "airflow_provider_cdc", "check", "-f", dag]
    checked = subprocess.run(argv, env=env, cwd=ROOT, capture_output=True, text=True)
    assert checked.returncode == 3 and "connecting to 127.0.0.1:1" in checked.stdout, checked
    assert checked.stderr == "" and "a-secret" not in checked.stdout
    connections.write_text("{}")
    missing = subprocess.run(argv, env=env, cwd=ROOT, capture_output=True, text=True)
    assert missing.returncode == 2 and missing.stdout == ""
    assert missing.stderr.startswith("error: connection c is not defined. Create it in Admin > Connections")


@pytest.mark.airflow
@pytest.mark.timeout(600)
def test_with_the_connections_of_airflow(mysql_server: MySQLServer, tmp_path: Path) -> None:
    """A pipeline that only a DAG file and Airflow's database know is shown, compared and asked for things."""
    from tests.support.three_tables import three_tables

    with three_tables(mysql_server):
        _run_commands(mysql_server, tmp_path)


def _run_commands(server: MySQLServer, folder: Path) -> None:
    cli: Cli = streamed_copy(server, folder)
    env = {k: v for k, v in os.environ.items() if not k.startswith("AIRFLOW")} | {
        "AIRFLOW_HOME": str(folder / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "PYTHONPATH": str(ROOT),
    }
    airflow = Path(sys.executable).with_name("airflow")
    for command in (["db", "migrate"], ["connections", "add", "cdc_source", "--conn-uri", server.uri()]):
        subprocess.run([airflow, *command], env=env, check=True, capture_output=True, text=True)
    dag = folder / "shop.py"
    dag.write_text(
        f"{_HEAD}print('noise')\nwith DAG('shop', schedule=None):\n    cdc_pipeline({json.dumps(cli.value)})\n"
    )

    def run(command: str, *args: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "airflow_provider_cdc", command, "-f", str(dag), *args]
        return subprocess.run(argv, env=env, capture_output=True, text=True, cwd=folder)

    shown = run("status", "--json")
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout)["pipeline"] == "p"
    compared = run("verify", "--json", "--pipeline", "p")
    assert compared.returncode == 0 and len(json.loads(compared.stdout)) == 3, compared.stderr
    refused = run("status", "--pipeline", "q")
    assert refused.returncode == 2 and refused.stderr.splitlines() == [
        f"error: {dag} has no pipeline q. It has p: choose one of them with --pipeline"
    ]
    subprocess.run([airflow, "connections", "delete", "cdc_source"], env=env, check=True, capture_output=True)
    missing = run("status")
    assert missing.returncode == 2
    assert missing.stderr.startswith("error: connection cdc_source is not defined. Create it in Admin > Connections")
