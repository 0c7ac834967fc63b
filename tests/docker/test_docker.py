"""Whether the files of docker/ are true: everything that they name exists. What they do is in test_topology.py."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography.fernet import Fernet

from airflow_provider_cdc.config import Pipeline
from airflow_provider_cdc.config.catalog_settings import catalog_settings, parse_catalog_connection
from airflow_provider_cdc.config.connections import _parse_connection, database_url, mysql_connect_args
from airflow_provider_cdc.config.store_access import parse_store_access
from airflow_provider_cdc.config.store_address import StoreAddress
from tests import ROOT
from tests.support.compose import DOCKER, StackError, image, interpolate, load, make_env, variables
from tests.support.s3 import VERSITYGW

COMPOSE, COMPOSE_S3, COMPOSE_ICEBERG = (DOCKER / f"compose{name}.yaml" for name in ("", ".s3", ".iceberg"))
EXAMPLE = dict(re.findall(r"^(\w+)=(.*)$", (DOCKER / ".env.example").read_text(), re.M))
SECRETS = {name for name in EXAMPLE if not name.endswith("_PORT")}
DOCUMENT = load(dict.fromkeys(SECRETS, "secret"))
SERVICES: dict[str, dict[str, Any]] = DOCUMENT["services"]
OURS = {name for name, spec in SERVICES.items() if spec["image"] == "airflow-provider-cdc"}


def run(*words: str | Path, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, timeout=120, **more)


def settings() -> dict[str, str]:
    """docker/spark-defaults.conf."""
    lines = (DOCKER / "spark-defaults.conf").read_text().splitlines()
    return {words[0]: words[1] for line in lines if (words := line.split(None, 1)) and not line.startswith("#")}


# ---------------------------------------------------------------- form


@pytest.mark.parametrize("file", [COMPOSE, COMPOSE_S3, COMPOSE_ICEBERG], ids=lambda file: file.name)
def test_the_compose_file_is_one(file: Path) -> None:
    """By the schema of the Compose specification."""
    checked = run(sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", file)
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("name", ["Dockerfile", "s3.Dockerfile"])
def test_the_dockerfile_is_clean(name: str) -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    if not hadolint.exists():
        pytest.skip("hadolint is not installed: there is none for this machine")
    checked = run(hadolint, "--no-color", DOCKER / name)
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("script", ["init.sh", "make-env"])
def test_scripts_are_shell(script: str) -> None:
    assert run("sh", "-n", DOCKER / script).stderr == ""
    assert (DOCKER / script).stat().st_mode & 0o111


# ---------------------------------------------------------------- secrets


def test_every_variable_is_in_the_example_and_no_secret_has_a_default() -> None:
    used = variables(COMPOSE.read_text()) | variables(COMPOSE_S3.read_text())
    assert set(used) == set(EXAMPLE)
    assert {name: used[name] for name in SECRETS} == dict.fromkeys(SECRETS, ":?run docker/make-env")
    assert {name: f":-{EXAMPLE[name]}" for name in EXAMPLE if name not in SECRETS} == {
        name: how for name, how in used.items() if name not in SECRETS
    }
    assert not any(EXAMPLE[name] for name in SECRETS)
    with pytest.raises(StackError, match="run docker/make-env"):
        load({})


def test_no_password_is_written_down() -> None:
    """What is between the colon and the @ of an address, or the value of a name that sounds like one, is a variable."""
    text = COMPOSE.read_text()
    assert all(found.startswith("${") for found in re.findall(r"://\w+:([^@\s]+)@", text))
    for spec in yaml.safe_load(text)["services"].values():
        for name, value in (spec.get("environment") or {}).items():
            if re.search("PASSWORD$|SECRET|FERNET", name) and not name.endswith("PASSWORDS_FILE"):
                assert value.startswith("${"), name


def test_make_env(tmp_path: Path) -> None:
    env = make_env(tmp_path)
    made = [env[name] for name in SECRETS]
    assert env.keys() == EXAMPLE.keys() and len(set(made)) == len(made) and min(map(len, made)) >= 32
    Fernet(env["AIRFLOW_FERNET_KEY"])
    assert all(env[name].isalnum() for name in SECRETS - {"AIRFLOW_FERNET_KEY"}), "some are parts of addresses"
    file = tmp_path / ".env"
    assert file.stat().st_mode & 0o777 == 0o600
    before = file.read_text()
    again = run(tmp_path / "make-env")
    assert again.returncode == 1 and "is there already" in again.stderr and file.read_text() == before


def test_secrets_stay_out_of_the_repository_and_of_the_image() -> None:
    if (ROOT / ".git").exists() and shutil.which("git"):
        assert run("git", "check-ignore", "docker/.env", cwd=ROOT).stdout == "docker/.env\n"
    ignored = (DOCKER / "Dockerfile.dockerignore").read_text().splitlines()
    assert "*" in ignored and not [line for line in ignored if line.startswith("!") and ".env" in line]


def test_secrets_of_spark_are_in_its_file_only() -> None:
    """Spark's processes find it in SPARK_CONF_DIR; an environment is inherited by whatever they start."""
    holders = {name for name, spec in SERVICES.items() if "SPARK_SECRET" in spec.get("environment", {})}
    assert holders == {"init"}
    for name in ("spark-master", "spark-worker"):
        assert "secret" not in SERVICES[name]["environment"].values()
    assert not [key for key in settings() if "secret" in key]
    for name in ("scheduler", "spark-master", "spark-worker"):
        assert SERVICES[name]["environment"]["SPARK_CONF_DIR"] == "/opt/spark/conf"
        assert "spark-conf:/opt/spark/conf:ro" in SERVICES[name]["volumes"]


# ---------------------------------------------------------------- what is named exists


def test_every_file_and_volume_exists() -> None:
    (built,) = (spec["build"] for spec in SERVICES.values() if "build" in spec)
    assert built == SERVICES["init"]["build"] and (DOCKER / built["context"] / built["dockerfile"]).samefile(
        DOCKER / "Dockerfile"
    )
    mounts = [(name, *text.split(":")[:2]) for name, spec in SERVICES.items() for text in spec.get("volumes", ())]
    assert all((DOCKER / source).exists() for _, source, _ in mounts if source.startswith("."))
    assert {source for _, source, _ in mounts if not source.startswith(".")} == set(DOCUMENT["volumes"])
    # A volume takes the owner of the folder that the image has in its place.
    assert {target for name, _, target in mounts if name in OURS} <= set(image().folders)


def test_every_file_of_the_image_is_let_in() -> None:
    text = (DOCKER / "Dockerfile").read_text()
    copied = [word for line in re.findall(r"^COPY (?!--from)(.*)", text, re.M) for word in line.split()[:-1]]
    let_in = re.findall(r"^!(.*)", (DOCKER / "Dockerfile.dockerignore").read_text(), re.M)
    assert sorted(copied) == sorted(let_in) and all((ROOT / path).exists() for path in copied)
    user = re.search(r"^USER (\d+):(\d+)", text, re.M)
    assert user and f"--uid {user[1]} --gid {user[2]}" in text


def test_every_option_of_airflow_is_one() -> None:
    from airflow.configuration import conf

    known = {(s.lower(), o.lower()) for s, found in conf.configuration_description.items() for o in found["options"]}
    named = {tuple(key.lower().split("__")[1:]) for s in SERVICES.values() for key in s.get("environment", {})}
    assert len(named - {()}) > 10 and named - {()} <= known


def test_every_command_exists() -> None:
    for name in OURS:
        words = [SERVICES[name]["command"], SERVICES[name].get("healthcheck", {}).get("test", ["CMD"])[1:]]
        for command in filter(None, words):
            programs = {"python", *(path.name for path in Path(sys.executable).parent.iterdir())}
            assert command[0] in programs or command[0] == "/bin/sh", command
            assert all(word in image().files for word in command if word.startswith("/opt/")), command


def test_services_wait_for_what_they_need() -> None:
    for spec in SERVICES.values():
        for other, rule in spec.get("depends_on", {}).items():
            needed = "healthcheck" in SERVICES[other] if rule["condition"] == "service_healthy" else other == "init"
            assert needed, other
    assert all("healthcheck" in spec for name, spec in SERVICES.items() if name != "init")
    assert all(SERVICES[name]["depends_on"] for name in OURS)


def test_ports_are_open_on_this_machine_only() -> None:
    published = [text.rsplit(":", 2) for spec in SERVICES.values() for text in spec.get("ports", ())]
    assert len(published) == 4 and {host for host, _, _ in published} == {"127.0.0.1"}
    assert len({port for _, port, _ in published}) == 4
    pages = range(int(settings()["spark.ui.port"]), int(settings()["spark.ui.port"]) + 17)
    assert f"127.0.0.1:{pages[0]}-{pages[-1]}:{pages[0]}-{pages[-1]}" in SERVICES["scheduler"]["ports"]


# ---------------------------------------------------------------- what must fit


def test_driver_and_executors_share_the_lake() -> None:
    lake = Pipeline.load(DOCKER / "dags/shop.yaml").sink.path
    for name in ("scheduler", "spark-worker"):
        assert f"lake:{lake}" in SERVICES[name]["volumes"]
        assert SERVICES[name]["image"] == SERVICES["scheduler"]["image"], "one Python, one user"
        assert "user" not in SERVICES[name]


def test_the_connections_of_the_pipeline_are_there() -> None:
    pipeline = Pipeline.load(DOCKER / "dags/shop.yaml")
    for conn_id in (pipeline.source.conn_id, pipeline.state.conn_id, pipeline.spark.conn_id):
        assert conn_id and f"AIRFLOW_CONN_{conn_id.upper()}" in SERVICES["scheduler"]["environment"]


def test_what_is_demanded_of_the_databases() -> None:
    """The source proves itself to whoever connects to it; the bookkeeping, which has no TLS, gets no password."""
    environment = SERVICES["scheduler"]["environment"]
    source = _parse_connection("source", environment["AIRFLOW_CONN_CDC_SOURCE"], "it")
    args = mysql_connect_args(source)
    assert (args["ssl_mode"], args["ssl_ca"]) == ("VERIFY_CA", "/opt/mysql/ca.pem")
    holder = next(text for text in SERVICES["mysql"]["volumes"] if text.endswith(":/var/lib/mysql")).split(":")[0]
    for name in ("api-server", "scheduler", "spark-worker"):
        assert f"{holder}:/opt/mysql:ro,nocopy" in SERVICES[name]["volumes"], name
    url = database_url(_parse_connection("state", environment["AIRFLOW_CONN_CDC_STATE"], "it"))
    assert (url.host, url.query["sslmode"], url.query["require_auth"]) == ("postgres", "disable", "scram-sha-256")


def test_with_an_object_store_nothing_else_is_shared() -> None:
    """compose.s3.yaml, laid over compose.yaml as compose does it."""
    over = interpolate(yaml.safe_load(COMPOSE_S3.read_text()), dict.fromkeys(SECRETS, "secret"))
    pipeline = Pipeline.load(DOCKER / "dags-s3/shop.yaml")
    shop = Pipeline.load(DOCKER / "dags/shop.yaml")
    folder = shop.sink.path
    for name in ("scheduler", "spark-worker"):
        (over_it,) = (v for v in over["services"][name]["volumes"] if isinstance(v, dict))
        assert over_it == {"type": "tmpfs", "target": folder}
        volumes = [v for v in SERVICES[name]["volumes"] if not v.endswith(f":{folder}")]
        writable = [v for v in volumes if not v.endswith((":ro", ":ro,nocopy")) and not v.startswith("logs:")]
        assert not writable, "a folder that is written to by one and read by another"
    variable = f"AIRFLOW_CONN_{str(pipeline.sink.conn_id).upper()}"
    for name in OURS - {"spark-master", "spark-worker"}:
        connection = _parse_connection("lake", over["services"][name]["environment"][variable], "it")
        assert parse_store_access(connection).aws_keys == ("lake", "secret", None)
        store = over["services"]["s3"]
        assert (store["environment"]["ROOT_ACCESS_KEY"], store["environment"]["ROOT_SECRET_KEY"]) == ("lake", "secret")
        port = store["command"][store["command"].index("--port") + 1]
        assert connection.extra["endpoint_url"] == f"http://s3{port}"
        if name != "init":
            assert "./dags-s3:/opt/airflow/dags:ro" in over["services"][name]["volumes"]
    assert StoreAddress.parse(pipeline.sink.path) == StoreAddress("s3", "lake", "shop")
    assert "mkdir -p /data/lake" in (DOCKER / "s3.Dockerfile").read_text(), "the bucket"
    assert VERSITYGW in (DOCKER / "s3.Dockerfile").read_text(), "the version that the tests run with"
    assert replace(pipeline, sink=shop.sink) == shop


def test_with_iceberg_only_the_sink_is_another_one() -> None:
    """compose.iceberg.yaml, laid over compose.yaml as compose does it."""
    services = load(dict.fromkeys(SECRETS, "secret"), COMPOSE_ICEBERG.name)["services"]
    pipeline, shop = (Pipeline.load(DOCKER / folder / "shop.yaml") for folder in ("dags-iceberg", "dags"))
    assert pipeline.sink == replace(shop.sink, kind="iceberg", conn_id="cdc_catalog")
    assert replace(pipeline, sink=shop.sink) == shop
    variable = f"AIRFLOW_CONN_{str(pipeline.sink.conn_id).upper()}"
    for name in OURS - {"spark-master", "spark-worker"}:
        access = parse_catalog_connection(_parse_connection("catalog", services[name]["environment"][variable], "it"))
        settings = catalog_settings(pipeline.sink, access)
        assert (settings.kind, settings.all_properties["password"]) == ("sql", "secret")
        assert settings.uri == "postgresql+psycopg://postgres:5432/bookkeeping?sslmode=disable"
        if name != "init":
            assert services[name]["volumes"][-1] == "./dags-iceberg:/opt/airflow/dags:ro"
    assert "airflow-provider-cdc[iceberg,postgres]" in (DOCKER / "Dockerfile").read_text()


def test_two_drivers_find_room() -> None:
    """The stream holds its cores for as long as it runs; a chunk group must get some beside it."""
    words, workers = SERVICES["spark-worker"]["command"], SERVICES["spark-worker"]["deploy"]["replicas"]
    cores, memory = (words[words.index(option) + 1] for option in ("--cores", "--memory"))
    at_once = 2
    assert workers == 2 and workers * int(cores) >= at_once * int(settings()["spark.cores.max"])
    assert int(memory.removesuffix("g")) >= at_once * int(settings()["spark.executor.memory"].removesuffix("g"))


def test_the_images_python_is_one_that_is_supported() -> None:
    versions = set(re.findall(r"^FROM python:(3\.\d+)-", (DOCKER / "Dockerfile").read_text(), re.M))
    classifiers = (ROOT / "pyproject.toml").read_text()
    assert len(versions) == 1 and f'"Programming Language :: Python :: {versions.pop()}"' in classifiers


def test_the_readme_names_services_that_exist() -> None:
    text = (DOCKER / "README.md").read_text()
    named = set(re.findall(r"docker compose (?:exec|up -d --wait) ([a-z][a-z-]*)", text))
    assert named and named <= SERVICES.keys()


def test_variables_are_replaced_as_compose_does() -> None:
    env = {"A": "1", "EMPTY": ""}
    assert interpolate(["${A}", "x${B:-2}y", "$${A}", {"k": "${EMPTY:-3}"}, 4], env) == [
        "1",
        "x2y",
        "${A}",
        {"k": "3"},
        4,
    ]
    assert json.dumps(variables("${A} $${B} ${C:?d}")) == '{"A": null, "C": ":?d"}'
