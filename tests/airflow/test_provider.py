"""What Airflow finds of this package: metadata, connection form, hook. A real Airflow is asked each time."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from airflow_provider_cdc.airflow.provider import get_provider_info
from tests import ROOT
from tests.support.servers import MySQLServer

INFO = get_provider_info()
(CONNECTION,) = INFO["connection-types"]
HEAVY = {"pyspark", "pyarrow", "numba", "numpy", "deltalake", "pymysql", "pymysqlreplication", "pandas", "alembic"}

installed = pytest.mark.skipif(
    not any(d.name == "airflow-provider-cdc" for d in metadata.distributions()),
    reason="Airflow finds providers by their installed metadata",
)


@pytest.fixture
def in_airflow(tmp_path: Path) -> Callable[..., Any]:
    """Runs Python in a process with an Airflow home of its own; the last line of its output is JSON."""

    def run(code: str, **variables: str) -> Any:
        env = {k: v for k, v in os.environ.items() if not k.startswith("AIRFLOW")} | {
            "AIRFLOW_HOME": str(tmp_path / "airflow"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            **variables,
        }
        done = subprocess.run([sys.executable, "-c", code], env=env, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        run.said = done.stdout + done.stderr  # type: ignore[attr-defined]
        return json.loads(done.stdout.splitlines()[-1])

    return run


# ---------------------------------------------------------------- metadata


def test_metadata_fits_the_schema_of_airflow() -> None:
    found = next(p for p in metadata.files("apache-airflow-core") or [] if p.name == "provider_info.schema.json")
    schema = json.loads(Path(str(found.locate())).read_text())
    jsonschema.validate(INFO, schema)
    # The schema lets everything through that it does not know, such as keys with underscores.
    assert set(INFO) <= set(schema["properties"])
    assert all("_" not in key for key in [*INFO, *CONNECTION, *CONNECTION["ui-field-behaviour"]])


def test_everything_that_is_named_is_there() -> None:
    modules = [
        module
        for kind in ("hooks", "operators", "sensors", "triggers")
        for integration in INFO[kind]
        for module in integration["python-modules"]
    ]
    names = defaultdict[str, set[str]](set)
    for module in modules:
        names[module.split(".")[2]] |= set(vars(importlib.import_module(module)))
    assert "CdcMySqlHook" in names["hooks"]
    assert {
        "CdcPreflightOperator",
        "CdcPlanChunksOperator",
        "CdcSnapshotOperator",
        "CdcStreamOperator",
        "CdcVerifyOperator",
        "CdcStopOperator",
        "CdcStatusOperator",
    } <= names["operators"]
    assert "CdcSnapshotSensor" in names["sensors"]
    assert {"CdcSnapshotTrigger", "CdcStreamTrigger", "CdcStreamEndTrigger", "CdcTableTrigger"} <= names["triggers"]
    for path in INFO["extra-links"]:
        module, name = path.rsplit(".", 1)
        assert hasattr(importlib.import_module(module), name)


def test_the_form_has_the_extras_that_connections_know() -> None:
    from airflow_provider_cdc.config import connections, tls

    # A mapping and the flags of older connections go into the raw extra.
    known = set(connections._MYSQL_EXTRA) - {"ssl", *tls.FLAG_SETTINGS}
    assert set(CONNECTION["conn-fields"]) == known
    modes = CONNECTION["conn-fields"]["ssl_mode"]["schema"]
    assert set(modes["enum"]) == {None, *tls.SSL_MODES}
    # Each value has a label: without one, Airflow's form shows "null".
    assert set(modes["values_display"]) == {"null", *tls.SSL_MODES}
    # A default would be saved with every connection: ssl_verify_cert=false would switch the check off beside ssl_ca.
    assert not any("default" in field["schema"] for field in CONNECTION["conn-fields"].values())


def test_the_metadata_costs_nothing() -> None:
    code = "import sys, airflow_provider_cdc.airflow.provider; print(*sorted(sys.modules), sep='\\n')"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    tops = {name.split(".")[0] for name in run.stdout.split()}
    assert not tops & (HEAVY | {"airflow", "sqlalchemy", "yaml", "sqlglot", "json"})


def test_the_hook_imports_nothing_heavy(in_airflow: Callable[..., Any]) -> None:
    code = """
import sys, json
import airflow.sdk.exceptions
from airflow.sdk import BaseHook
before = set(sys.modules)
import airflow_provider_cdc.airflow.hooks.mysql
print(json.dumps([sorted({m.split(".")[0] for m in now}) for now in (sys.modules, set(sys.modules) - before)]))
"""
    everything, new = in_airflow(code)
    assert not set(everything) & HEAVY
    assert "sqlalchemy" not in new  # Airflow itself has it


PARSE = """
import json, os, sys, time
from pathlib import Path
from airflow.dag_processing.dagbag import DagBag
import airflow.sdk
for warm in (Path(os.environ["EMPTY"]), Path(os.environ["FILE"])):
    begun = time.process_time()
    bag = DagBag(warm)
    spent = time.process_time() - begun
assert bag.dags and not bag.import_errors, bag.import_errors
print(json.dumps([spent, sorted({m.split(".")[0] for m in sys.modules})]))
"""


def test_what_parsing_costs(in_airflow: Callable[..., Any], tmp_path: Path) -> None:
    """CPU seconds of the first parse of a file in a process, over those of a DAG with nothing in it."""
    empty = tmp_path / "empty.py"
    empty.write_text("from airflow.sdk import DAG\n\nwith DAG('empty', schedule=None):\n    pass\n")
    least: dict[Path, float] = {}
    for file in (empty, ROOT / "dags/one_table.py") * 2:
        spent, modules = in_airflow(PARSE, EMPTY=str(empty), FILE=str(file))
        assert not set(modules) & (HEAVY - {"numpy", "pandas", "alembic"}), file
        least[file] = min(spent, least.get(file, spent))
    print({file.name: round(seconds, 3) for file, seconds in least.items()})
    assert least[ROOT / "dags/one_table.py"] - least[empty] < 0.5


@installed
def test_airflow_lists_the_provider(in_airflow: Callable[..., Any]) -> None:
    (point,) = (p for p in metadata.entry_points(group="apache_airflow_provider") if p.value.startswith("airflow_prov"))
    assert point.load() is get_provider_info
    assert point.dist is not None
    assert point.dist.name == INFO["package-name"]
    code = """
import subprocess, sys, json
airflow = [sys.executable, "-m", "airflow", "providers"]
def ask(*words):
    run = subprocess.run([*airflow, *words, "-o", "json"], capture_output=True, text=True, check=True)
    return json.loads(run.stdout)
print(json.dumps([ask("get", "airflow-provider-cdc", "--full"), ask("hooks"), ask("links")]))
"""
    (found,), hooks, links = in_airflow(code)
    assert found["package-name"] == "airflow-provider-cdc"
    assert "cdc_mysql" in str(found)
    (hook,) = (h for h in hooks if h["connection_type"] == "cdc_mysql")
    assert hook["class"] == CONNECTION["hook-class-name"]
    assert hook["conn_id_attribute_name"] == "cdc_mysql_conn_id"
    assert hook["hook_name"] == CONNECTION["hook-name"]
    assert any(INFO["extra-links"][0] in str(link) for link in links)


@installed
def test_airflow_lists_the_configuration(in_airflow: Callable[..., Any]) -> None:
    code = """
import subprocess, sys, json
airflow = [sys.executable, "-m", "airflow", "config", "list", "--section", "cdc", "--show-values"]
print(json.dumps(subprocess.run(airflow, capture_output=True, text=True, check=True).stdout))
"""
    shown = in_airflow(code, AIRFLOW__CDC__LEASE_SECONDS="600")
    for name, option in INFO["config"]["cdc"]["options"].items():
        assert f"{name} = {'600' if name == 'lease_seconds' else option['default']}".strip() in shown


@installed
def test_the_form(in_airflow: Callable[..., Any]) -> None:
    code = """
import json
from airflow.api_fastapi.core_api.services.ui.connections import HookMetaService
from airflow.providers_manager import ProvidersManager
(form,) = (m for m in HookMetaService.hook_meta_data() if m.connection_type == "cdc_mysql")
manager = ProvidersManager()
sensitive = [w.field_name for n, w in manager.connection_form_widgets.items() if "cdc_mysql" in n and w.is_sensitive]
print(json.dumps([form.model_dump(), sensitive, dict(manager.hooks.items())["cdc_mysql"].connection_testable]))
"""
    form, sensitive, testable = in_airflow(code)
    assert testable
    assert sensitive == ["ssl_key_password"]
    assert form["hook_name"] == "MySQL / MariaDB (CDC source)"
    assert form["standard_fields"]["url_schema"]["hidden"]
    assert not form["standard_fields"]["host"]["hidden"]
    assert form["standard_fields"]["login"]["title"] == "User (needs REPLICATION SLAVE, REPLICATION CLIENT, SELECT)"
    assert form["extra_fields"]["ssl_mode"]["schema"]["values_display"]["null"] == "Automatic"
    assert form["standard_fields"]["port"]["placeholder"] == "3306"
    assert {k: v["schema"]["title"] for k, v in form["extra_fields"].items()} == {
        k: v["label"] for k, v in CONNECTION["conn-fields"].items()
    }
    assert "Exception" not in in_airflow.said  # type: ignore[attr-defined]


# ---------------------------------------------------------------- links

LINKS = """
import json
from types import SimpleNamespace
from airflow.models.taskinstancekey import TaskInstanceKey
from airflow.sdk import DAG
from airflow.serialization.serialized_objects import DagSerialization
from airflow_provider_cdc import CdcStatusOperator, CdcStopOperator, CdcResnapshotOperator, cdc_pipeline
pipeline = {"name": "p", "source": {"conn_id": "c", "tables": ["d.t"]}, "sink": {"path": "/lake"}}
with DAG("d", schedule=None, default_args={"pipeline": pipeline}) as dag:
    cdc_pipeline(pipeline, verify=True)
    CdcStatusOperator(task_id="status")
    CdcStopOperator(task_id="stop")
    CdcResnapshotOperator(task_id="again", table="d.t")
stored = DagSerialization.from_dict(DagSerialization.to_dict(dag))
key = lambda task: SimpleNamespace(key=TaskInstanceKey("d", task, "r 1", 1, -1))
print(json.dumps({t: task.get_extra_links(key(t), "CDC page") for t, task in stored.task_dict.items()}))
"""


@installed
def test_each_task_links_to_its_pipeline(in_airflow: Callable[..., Any]) -> None:
    """Sensors and mapped tasks too, as the API server has them, below the path at which people reach it."""
    links = in_airflow(LINKS, AIRFLOW__API__BASE_URL="https://flow.example/air/")
    assert len(links) == 9
    for task, link in links.items():
        assert link == f"/air/cdc/?dag_id=d&run_id=r+1&task_id={task}&map_index=-1"


# ---------------------------------------------------------------- the connection test

TEST = """
import json, os
from airflow.sdk import Connection
from airflow_provider_cdc.airflow.hooks.mysql import CdcMySqlHook
found = {}
for conn_id in ("right", "wrong", "nobody_there", "bad_extra", "bad_file", "plain_mysql"):
    found[conn_id] = CdcMySqlHook(conn_id).test_connection()
found["absent"] = CdcMySqlHook("absent").test_connection()
found["default"] = CdcMySqlHook().cdc_mysql_conn_id
# As the button does it: the connection is on a form and nowhere else.
form = Connection.from_uri(os.environ.pop("AIRFLOW_CONN_RIGHT"), conn_id="form")
found["form"] = form.test_connection()
os.environ["AIRFLOW_CONN_RIGHT"] = form.get_uri()
with CdcMySqlHook("right").get_conn() as connection:
    connection.query("SELECT @@time_zone, @@autocommit")
    found["session"] = [v.decode() for v in connection._result.rows[0]]
print(json.dumps(found))
"""


@installed
def test_the_connection_test(
    in_airflow: Callable[..., Any], mysql_server: MySQLServer, cdc_user: dict[str, str]
) -> None:
    version = mysql_server.execute("SELECT VERSION()")[0][0]
    right = mysql_server.uri(**cdc_user)
    at = f"{mysql_server.host}:{mysql_server.port}"
    found = in_airflow(
        TEST,
        AIRFLOW_CONN_RIGHT=right.replace("mysql://", "cdc-mysql://"),
        AIRFLOW_CONN_PLAIN_MYSQL=right,
        AIRFLOW_CONN_WRONG=mysql_server.uri(cdc_user["user"], "hunter2 wrong"),
        AIRFLOW_CONN_NOBODY_THERE="mysql://u:hunter2@127.0.0.1:1/",
        AIRFLOW_CONN_BAD_EXTRA=f"{right}?ssl_mode=hunter2",
        AIRFLOW_CONN_BAD_FILE=f"{right}?ssl_ca=/nowhere/ca.pem",
    )
    for conn_id in ("right", "plain_mysql", "form"):
        assert found[conn_id] == [True, f"Connected to MySQL {version} at {at} as {cdc_user['user']}@%"], conn_id
    for conn_id, words in {
        "wrong": f"connecting to {at}: access denied (MySQL error 1045: Access denied",
        "nobody_there": "connecting to 127.0.0.1:1: the server cannot be reached",
        "bad_extra": "connection bad_extra: its ssl_mode is not known",
        "bad_file": "No such file",
        "absent": "connection absent is not defined. Create it in Admin > Connections or set AIRFLOW_CONN_ABSENT",
    }.items():
        worked, text = found[conn_id]
        assert not worked and words in text and "\n" not in text, conn_id
    assert found["session"] == ["+00:00", "1"]
    assert found["default"] == "cdc_mysql_default"
    said = in_airflow.said  # type: ignore[attr-defined]
    assert "hunter2" not in said.lower() and cdc_user["password"] not in said


# ---------------------------------------------------------------- templates

TEMPLATES = """
import json, os, sys
from pathlib import Path
from airflow.dag_processing.dagbag import DagBag
from airflow.serialization.serialized_objects import DagSerialization

bag = DagBag(Path(os.environ["DAGS"]))
assert not bag.import_errors, bag.import_errors
(dag,) = bag.dags.values()
shown = DagSerialization.to_dict(dag)
context = {"params": {"word": "orders"}}
found = {}
for task in dag.tasks:
    whole = task.unmap({"groups": {"groups": [0], "label": "0: shop.x.yaml"}}) if task.is_mapped else task
    try:
        whole.render_template_fields(context)
        found[task.task_id] = whole.pipeline
    except Exception as error:
        found[task.task_id] = f"{type(error).__name__}: {error}"
print(json.dumps([found, json.dumps(shown)]))
"""

WITH_TEMPLATES = """
import os
from airflow.sdk import DAG
from airflow_provider_cdc import *

plain = {
    "name": "n",
    "source": {"conn_id": "c", "tables": ["shop.{{ params.word }}"]},
    "sink": {"path": "/lake"},
    "spark": {"conf": {"spark.kubernetes.driver.podTemplateFile": "/opt/pod.yaml"}},
}
checked = Pipeline(name="n", source=Source("c", (r"shop.log_{{2}}",)), sink=Sink("/lake"))
with DAG("templates", schedule=None):
    CdcPreflightOperator(task_id="plain", pipeline=plain)
    CdcSnapshotSensor(task_id="checked", pipeline=checked)
    CdcSnapshotOperator.partial(task_id="mapped", pipeline=checked).expand(groups=[0])
    CdcSnapshotOperator.partial(task_id="mapped_file", pipeline="shop.yaml").expand(groups=[0])
    CdcSnapshotOperator.partial(task_id="mapped_plain", pipeline=plain).expand(groups=[0])
    CdcVerifyOperator(task_id="file", pipeline="shop.yaml")
    CdcStreamOperator(task_id="absolute", pipeline=os.environ["ELSEWHERE"])
    CdcSnapshotSensor(task_id="none", pipeline="none.yaml")
"""


def test_what_is_a_template_and_what_a_file(in_airflow: Callable[..., Any], tmp_path: Path) -> None:
    dags, elsewhere = tmp_path / "dags", tmp_path / "elsewhere.yaml"
    dags.mkdir()
    (dags / "templates.py").write_text(WITH_TEMPLATES)
    for path in (dags / "shop.yaml", elsewhere):
        path.write_text(f"name: {path.stem}\nsource: {{tables: ['shop.{{{{ params.word }}}}']}}\n")
    found, shown = in_airflow(TEMPLATES, DAGS=str(dags), ELSEWHERE=str(elsewhere))
    for task in ("plain", "mapped_plain"):
        assert found[task]["source"]["tables"] == ["shop.orders"]
        assert found[task]["spark"]["conf"] == {"spark.kubernetes.driver.podTemplateFile": "/opt/pod.yaml"}
    for task in ("checked", "mapped"):
        assert found[task]["source"]["tables"] == ["shop.log_{{2}}"]
    for task, name in {"file": "shop", "mapped_file": "shop", "absolute": "elsewhere"}.items():
        assert found[task] == f"name: {name}\nsource: {{tables: ['shop.orders']}}"
    assert found["none"].startswith(f"NotReadyError: there is no pipeline file none.yaml in {dags}")
    assert "log_{{2}}" in shown and "elsewhere.yaml" in shown
    assert "Failed to resolve" not in in_airflow.said  # type: ignore[attr-defined]


# ---------------------------------------------------------------- connections of Airflow

RESOLVE = """
import json, os
from airflow_provider_cdc.model.errors import CdcError
from airflow_provider_cdc.airflow.hooks.connections import resolve_connection
found = {}
for conn_id in os.environ["IDS"].split():
    try:
        found[conn_id] = resolve_connection(conn_id).to_json()
    except CdcError as error:
        found[conn_id] = f"{type(error).__name__}: {error} {error.__cause__} {error.__suppress_context__}"
print(json.dumps(found))
"""


BACKEND = """
import json, os
from airflow.sdk import Connection
from airflow.secrets import BaseSecretsBackend

class Backend(BaseSecretsBackend):
    def get_connection(self, conn_id):
        found = json.loads(os.environ["STORED"]).get(conn_id)
        return found and Connection(conn_id=conn_id, **found)
"""


def test_connections_of_a_secrets_backend(in_airflow: Callable[..., Any], tmp_path: Path) -> None:
    """Nothing of them is in the environment's own form, so that all is as Airflow has it."""
    stored: dict[str, Any] = {
        "whole": {"conn_type": "cdc_mysql", "host": "h", "login": "u", "password": "p@s", "port": 3307, "schema": "d",
                  "extra": '{"ssl_ca": "/ca"}'},
        "bare": {"conn_type": "MySQL"},
        "spark": {"conn_type": "spark", "host": "spark://h", "port": 7077, "extra": '{"queue": "q"}'},
        "no_json": {"conn_type": "mysql", "extra": "hunter2 is no JSON"},
        "no_object": {"conn_type": "mysql", "extra": '["hunter2"]'},
        "no_type": {"host": "hunter2"},
    }  # fmt: skip
    (tmp_path / "own_backend.py").write_text(BACKEND)
    found = in_airflow(
        RESOLVE,
        IDS=" ".join([*stored, "none"]),
        STORED=json.dumps(stored),
        PYTHONPATH=f"{tmp_path}:{ROOT}",
        AIRFLOW__SECRETS__BACKEND="own_backend.Backend",
        AIRFLOW__WORKERS__SECRETS_BACKEND="own_backend.Backend",
    )
    assert found["whole"] == {"conn_id": "whole", **stored["whole"], "extra": {"ssl_ca": "/ca"}}
    assert found["bare"]["conn_type"] == "mysql" and found["bare"]["host"] is None
    assert (found["spark"]["host"], found["spark"]["port"]) == ("spark://h", 7077)
    for conn_id in ("no_json", "no_object", "no_type"):
        assert found[conn_id].startswith(f"NotReadyError: connection {conn_id} is invalid")
        assert found[conn_id].endswith("None True")
    assert found["none"].startswith("NotReadyError: connection none is not defined. Create it in Admin > Connections")
    assert "hunter2" not in in_airflow.said  # type: ignore[attr-defined]


def test_connections_of_the_environment(in_airflow: Callable[..., Any]) -> None:
    found = in_airflow(
        RESOLVE,
        IDS="uri json spark k8s cut",
        AIRFLOW_CONN_URI="cdc-mysql://us%40er:p%40s@h:3307/d?ssl_ca=%2Fca",
        AIRFLOW_CONN_JSON='{"conn_type": "cdc-mysql", "host": "h", "extra": {"ssl_verify_cert": true}}',
        AIRFLOW_CONN_SPARK="spark://h:7077",
        AIRFLOW_CONN_K8S="k8s://https://h:6443?namespace=n",
        AIRFLOW_CONN_CUT="mysql://u:hunter2#x@h/",  # Airflow alone would take u for the host
    )
    assert (found["uri"]["conn_type"], found["uri"]["login"], found["uri"]["password"]) == ("cdc_mysql", "us@er", "p@s")
    assert found["uri"]["extra"] == {"ssl_ca": "/ca"}
    assert found["json"]["extra"] == {"ssl_verify_cert": True}
    assert (found["spark"]["conn_type"], found["spark"]["host"], found["spark"]["port"]) == ("spark", "h", 7077)
    assert (found["k8s"]["conn_type"], found["k8s"]["host"], found["k8s"]["port"]) == ("k8s", "https://h", 6443)
    assert "AIRFLOW_CONN_CUT cannot be understood" in found["cut"]
    assert "hunter2" not in in_airflow.said  # type: ignore[attr-defined]
