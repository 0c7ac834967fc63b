"""What OpenLineage hears: asked as Airflow's provider asks, which need not be installed, and written by its client."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc import (
    CdcResnapshotOperator,
    CdcSnapshotOperator,
    CdcStreamOperator,
    CdcVerifyOperator,
    Pipeline,
    Sink,
    Source,
)
from airflow_provider_cdc.airflow.openlineage import copy_dataset_name
from tests.support.cli import Cli
from tests.support.servers import MySQLServer
from tests.support.transforms import HASH_CONNECTION, HASH_ENV


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("/data/lake", ("file", "/data/lake/shop/orders")),
        ("s3://bucket/lake", ("s3://bucket", "lake/shop/orders")),
        ("gs://bucket", ("gs://bucket", "shop/orders")),
        ("abfss://c0n@acc.dfs.core.windows.net/lake", ("abfss://c0n@acc.dfs.core.windows.net", "lake/shop/orders")),
    ],
)
def test_copies_are_named_as_openlineage_names_files(path: str, place: tuple[str, str]) -> None:
    assert (
        copy_dataset_name(Pipeline(name="p", source=Source("c", ("a.b",)), sink=Sink(path)), ("shop", "orders"))
        == place
    )


def test_a_route_is_the_name_of_a_copy() -> None:
    sink = Sink("s3://bucket/lake", routes=[{"match": r"shop_(\d+).orders", "table_path": "orders_$1"}])
    found = copy_dataset_name(Pipeline(name="p", source=Source("c", ("a.b",)), sink=sink), ("shop_7", "orders"))
    assert found == ("s3://bucket", "lake/orders_7")


def asked(operator: Any, task_result: Any = None) -> dict[str, Any]:
    """What the provider gets from an operator: at its start, or with a result at its end."""
    from airflow.providers.openlineage.extractors.base import DefaultExtractor
    from openlineage.client.serde import Serde

    extractor = DefaultExtractor(operator)
    operator.task_result = task_result
    found = extractor.extract() if task_result is None else extractor.extract_on_complete(None)
    assert found is not None
    lists = {name: [json.loads(Serde.to_json(one)) for one in getattr(found, name)] for name in ("inputs", "outputs")}
    return {**lists, **{name: json.loads(Serde.to_json(facet)) for name, facet in found.run_facets.items()}}


def test_iceberg_tables_have_the_name_of_their_catalog_too(
    mysql_server: MySQLServer, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Spark names them: the files by their folder, and a symlink to the catalog's table."""
    pytest.importorskip("openlineage.client", reason="Airflow's OpenLineage provider is not installed")
    mysql_server.session(database, "CREATE TABLE one (id INT PRIMARY KEY)", "INSERT INTO one VALUES (1)")
    cli = Cli(tmp_path, mysql_server, f"{database}..*", sink={"kind": "iceberg"})
    for name, value in cli.env.items():
        monkeypatch.setenv(name, value)
    cli.snapshot()
    [copy] = asked(CdcStreamOperator(pipeline=str(cli.file), task_id="t"))["outputs"]
    assert (copy["namespace"], copy["name"]) == ("file", f"{cli.sink}/{database}/one")
    [symlink] = copy["facets"]["symlinks"]["identifiers"]
    catalog = f"sqlite:///{cli.sink}/iceberg_catalog.db"
    assert symlink == {"namespace": catalog, "name": f"{database}.one", "type": "TABLE"}


def test_what_is_said_of_each_task(
    mysql_server: MySQLServer, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("openlineage.client", reason="Airflow's OpenLineage provider is not installed")
    for table in ("one", "two"):
        mysql_server.session(
            database,
            f"CREATE TABLE {table} (id INT PRIMARY KEY, v VARCHAR(20), secret TEXT)",
            f"INSERT INTO {table} VALUES (1, 'a', 'x')",
        )
    cli = Cli(tmp_path, mysql_server, f"{database}..*", source={"exclude_columns": [f"{database}..*.secret"]})
    for name, value in cli.env.items():
        monkeypatch.setenv(name, value)
    pipeline: dict[str, Any] = {"pipeline": str(cli.file), "task_id": "t"}

    assert asked(CdcStreamOperator(**pipeline)) == {"inputs": [], "outputs": []}, "there is no plan yet"
    cli.snapshot()
    found = asked(CdcStreamOperator(**pipeline))
    source = f"mysql://127.0.0.1:{mysql_server.port}"
    assert [(one["namespace"], one["name"]) for one in found["inputs"]] == [
        (source, f"{database}.one"),
        (source, f"{database}.two"),
    ]
    assert [(one["namespace"], one["name"]) for one in found["outputs"]] == [
        ("file", f"{cli.sink}/{database}/one"),
        ("file", f"{cli.sink}/{database}/two"),
    ]
    fields = found["inputs"][0]["facets"]["schema"]["fields"]
    assert [(field["name"], field["type"]) for field in fields] == [("id", "int"), ("v", "varchar(20)")]
    copy = found["outputs"][0]["facets"]
    assert [field["name"] for field in copy["schema"]["fields"]] == ["id", "v", "_cdc_seq", "_cdc_op", "_cdc_ts"]
    assert copy["columnLineage"]["fields"].keys() == {"id", "v"}
    (field,) = copy["columnLineage"]["fields"]["v"]["inputFields"]
    assert (field["namespace"], field["name"], field["field"]) == (source, f"{database}.one", "v")
    assert found["cdc"]["pipeline"] == "p" and found["cdc"]["position"]["file"] and found["cdc"]["result"] == {}

    done = asked(CdcStreamOperator(**pipeline), {"epoch": 1, "changes": 7})
    assert done["cdc"]["result"] == {"epoch": 1, "changes": 7} and done["outputs"] == found["outputs"]
    group = asked(CdcSnapshotOperator(groups=0, **pipeline))
    assert [one["name"] for one in group["inputs"]] == [f"{database}.one", f"{database}.two"]
    again = asked(CdcResnapshotOperator(table=f"{database}.two", **pipeline))
    assert [one["name"] for one in again["inputs"]] == [f"{database}.two"]
    compared = asked(CdcVerifyOperator(**pipeline))
    assert len(compared["inputs"]) == 4 and compared["outputs"] == []


def test_columns_that_are_changed_are_marked(
    mysql_server: MySQLServer, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As masked, with what is done to them; a column that only has another name is copied as it is."""
    pytest.importorskip("openlineage.client", reason="Airflow's OpenLineage provider is not installed")
    mysql_server.session(
        database,
        "CREATE TABLE t (id INT PRIMARY KEY, email VARCHAR(60), phone VARCHAR(20), note TEXT, born DATE, secret INT)",
        "INSERT INTO t VALUES (1, 'a', '1', 'x', '2001-02-03', 1)",
    )
    columns = {"email": {"hash": "hex", "rename": "e"}, "phone": "mask", "note": {"rename": "n"}, "born": "null"}
    rules = {rf"{database}.t.{name}": policy for name, policy in {**columns, "secret": "exclude"}.items()}
    routes = [{"match": f"({database}).(t)", "table_path": "r/$2_of_$1"}]
    transforms = {"hash_key_conn_id": HASH_CONNECTION, "columns": rules}
    cli = Cli(
        tmp_path, mysql_server, f"{database}.t", transforms=transforms, sink={"kind": "iceberg", "routes": routes}
    )
    cli.env |= HASH_ENV
    for name, value in cli.env.items():
        monkeypatch.setenv(name, value)
    cli.snapshot()
    found = asked(CdcStreamOperator(pipeline=str(cli.file), task_id="t"))
    [copy] = found["outputs"]
    assert copy["name"] == f"{cli.sink}/r/t_of_{database}"
    assert [one["name"] for one in copy["facets"]["symlinks"]["identifiers"]] == [f"r.t_of_{database}"]
    fields = {
        name: (field["inputFields"][0]["field"], field["transformationType"], field["transformationDescription"])
        for name, field in copy["facets"]["columnLineage"]["fields"].items()
    }
    assert fields == {
        "id": ("id", "IDENTITY", ""),
        "e": ("email", "MASKED", "hash"),
        "phone": ("phone", "MASKED", "mask"),
        "n": ("note", "IDENTITY", ""),
        "born": ("born", "MASKED", "null"),
    }
    types = {field["name"]: field["type"] for field in copy["facets"]["schema"]["fields"]}
    assert types["e"] == "string" and "secret" not in types
    assert [field["name"] for field in found["inputs"][0]["facets"]["schema"]["fields"]][1] == "email"
