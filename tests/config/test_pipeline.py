"""Every key of the Pipeline: what is taken, what is refused, and with which words."""

from __future__ import annotations

import copy
import json
from datetime import date
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_cdc.config import (
    MAX_SERVER_ID,
    Alerts,
    Pipeline,
    Sink,
    Snapshot,
    Source,
    Spark,
    State,
    Stream,
    Transforms,
)
from airflow_provider_cdc.config.spark_conf import MANAGED_SETTINGS
from airflow_provider_cdc.model.errors import NotReadyError
from tests import ROOT

MINIMAL: dict[str, Any] = {
    "name": "shop",
    "source": {"conn_id": "cdc_source", "tables": ["shop.customer", "shop.order_.*"]},
    "sink": {"path": "/data/lake"},
}
FULL: dict[str, Any] = {
    "name": "shop",
    "source": {
        "conn_id": "cdc_source",
        "tables": ["shop.customer", "shop.order_.*"],
        "exclude": ["shop.order_tmp"],
        "server_id": 7000,
        "include_columns": [],
        "exclude_columns": ["shop.customer.phone_.*"],
        "zero_dates": "null",
    },
    "transforms": {
        "hash_key_conn_id": "pii_key",
        "columns": {
            "shop.customer.email": {"hash": "binary", "rename": "email_hash"},
            "shop.customer.phone": {"mask": 4},
            "shop.customer.notes": {"truncate": 20},
            "shop.customer.birthday": "null",
            "shop.customer.password": "exclude",
        },
        "where": {"shop.order_.*": "tenant_id = 7"},
        "metadata": ["server", "gtid"],
    },
    "snapshot": {
        "chunk_rows": 100,
        "group_rows": 1000,
        "parallelism": 4,
        "max_rows_per_second": 5000,
        "max_bytes_per_second": 1_000_000,
        "max_threads_running": 9,
        "max_replica_lag_seconds": 30,
    },
    "stream": {
        "mode": "catch_up",
        "trigger_seconds": 0.5,
        "schema_changes": "evolve",
        "max_batch_bytes": 1048576,
        "max_batch_rows": 1000,
        "parallelism": 3,
        "start": {"file": "binlog.000017", "position": 157},
        "on_purged": "stop",
        "on_table_error": "stop",
        "fail_on_suspended": False,
        "reread": "ask",
        "reread_max_bytes": 1 << 30,
        "include_schema_changes": ["add.column"],
        "exclude_schema_changes": ["drop.column"],
    },
    "sink": {
        "path": "/data/lake",
        "kind": "delta",
        "deletes": {"soft": ["shop.customer"], "ignore": ["shop.order_.*"]},
        "merge": {"copy_on_write": ["shop.customer"]},
        "index_bytes": 1 << 20,
        "partition_by": {"shop.order_.*": ["country", {"month": "created_at"}]},
        "compaction": False,
        "conn_id": None,
        "table_path": "bronze/{database}_{table}",
        "lower_case": True,
        "routes": [
            {"match": r"shop_(\d+).orders", "table_path": "orders_$1"},
            {"match": "shop.(?P<kind>x|y)_.*", "table_path": "{database}/${kind}/{table}"},
        ],
        "table_properties": {
            "delta.logRetentionDuration": "interval 7 days",
            "tier": {"gold": ["shop.customer"], "silver": ["shop.order_.*"]},
        },
        "adopt": False,
        "on_dropped": "keep",
        "catalog": {},
    },
    "state": {"conn_id": "cdc_state"},
    "spark": {"conn_id": None, "master": "local[4]", "conf": {"spark.executor.memory": "4g"}},
    "alerts": {"lag_seconds": 300, "hours_to_purge": 1.5},
}


def changed(key: str, value: Any) -> dict[str, Any]:
    """The minimal pipeline with one value (by its dotted path) set."""
    pipeline = copy.deepcopy(MINIMAL)
    *section, last = key.split(".")
    target = pipeline.setdefault(section[0], {}) if section else pipeline
    target[last] = value
    return pipeline


def route(match: str, table_path: object) -> dict[str, Any]:
    return changed("sink.routes", [{"match": match, "table_path": table_path}])


def into(keys: dict[str, Any], **sink: Any) -> dict[str, Any]:
    pipeline = changed("sink.routes", [{"match": "a.b", **keys}])
    pipeline["sink"] |= sink
    return pipeline


def refusal(value: Any) -> str:
    with pytest.raises(NotReadyError) as error:
        Pipeline.from_dict(value)
    text = str(error.value)
    assert "\n" not in text
    assert error.value.remedy
    return text


def test_defaults_are_those_of_the_contract() -> None:
    pipeline = Pipeline.from_dict(MINIMAL)
    assert pipeline.snapshot == Snapshot(8096, 4_000_000, 2, None)
    assert pipeline.stream == Stream("continuous", 0.5, "evolve", 268_435_456)
    assert pipeline.sink == Sink("/data/lake", "delta", "hard", "deletion_vectors", 268_435_456, {}, True)
    assert pipeline.state == State(None)
    assert pipeline.spark == Spark(None, "local[2]", {})
    assert pipeline.source == Source("cdc_source", ("shop.customer", "shop.order_.*"), (), None, (), (), "error")
    assert Pipeline.from_yaml("name: p\nsource: {conn_id: c, tables: [a.b], zero_dates: null}\nsink: {path: /d}") == (
        Pipeline.from_dict(
            {
                **MINIMAL,
                "name": "p",
                "source": {"conn_id": "c", "tables": ["a.b"], "zero_dates": "null"},
                "sink": {"path": "/d"},
            }
        )
    )


@pytest.mark.parametrize("value", [MINIMAL, FULL], ids=["minimal", "full"])
def test_yaml_and_python_say_the_same(value: dict[str, Any], tmp_path: Path) -> None:
    pipeline = Pipeline.from_dict(value)
    assert Pipeline.from_dict(pipeline.to_dict()) == pipeline
    path = tmp_path / "pipeline.yaml"
    path.write_text(pipeline.to_yaml())
    assert Pipeline.load(path) == pipeline
    assert pipeline == Pipeline(
        name="shop",
        source=Source(**value["source"]),
        transforms=Transforms(**value.get("transforms", {})),
        snapshot=Snapshot(**value.get("snapshot", {})),
        stream=Stream(**value.get("stream", {})),
        sink=Sink(**value["sink"]),
        state=State(**value.get("state", {})),
        spark=Spark(**value.get("spark", {})),
        alerts=Alerts(**value.get("alerts", {})),
    )
    assert hash(pipeline) == hash(Pipeline.load(path))


def test_to_dict_has_every_key_in_the_order_of_the_contract() -> None:
    assert {k: sorted(v) if isinstance(v, dict) else v for k, v in Pipeline.from_dict(MINIMAL).to_dict().items()} == {
        k: sorted(v) if isinstance(v, dict) else v for k, v in FULL.items()
    }
    assert list(Pipeline.from_dict(MINIMAL).to_dict()) == list(FULL)


def test_empty_sections_have_their_defaults() -> None:
    assert Pipeline.from_dict(MINIMAL | {"snapshot": None, "state": {}}) == Pipeline.from_dict(MINIMAL)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (
            MINIMAL | {"sinks": {}},
            "unknown key sinks. Did you mean sink? The keys here are name, source, transforms",
        ),
        (changed("snapshot.chunk_row", 5), "unknown key snapshot.chunk_row. Did you mean snapshot.chunk_rows?"),
        (changed("source.password", "hunter2"), "unknown key source.password. The keys here are conn_id, tables"),
        (changed("source.a\nb", 1), "unknown key source.'a\\nb'"),
        (MINIMAL | {7: 1}, "unknown key 7"),
        ({"name": "shop", "source": MINIMAL["source"]}, "sink.path is missing"),
        ({"name": "shop", "sink": MINIMAL["sink"]}, "source.conn_id is missing"),
        ({}, "name is missing"),
        (MINIMAL | {"sink": "delta"}, "sink is 'delta'. It must be a mapping with the keys path, kind, deletes"),
        ([1], "a pipeline is not [1]"),
        (None, "a pipeline is not None"),
        (changed("name", "-shop"), "name is '-shop'. It must be 1 to 63"),
        (changed("name", "shop\n"), "name is 'shop\\n'"),
        (changed("name", 7), "name is 7"),
        (changed("name", "x" * 64), "1 to 63"),
        (changed("source.conn_id", 5), "source.conn_id is not the id of a connection"),
        (changed("source.tables", []), "source.tables is []. It must be at least one"),
        (changed("source.tables", "shop.a"), "source.tables is 'shop.a'. It must be a list"),
        (changed("source.tables", [5]), "source.tables is 5"),
        (changed("source.tables", ["shop.("]), "source.tables is 'shop.('. It must be a list of valid regular"),
        (changed("source.tables", ["shop"]), "source.tables is 'shop'. It must be a regular expression with a dot"),
        (changed("source.tables", [".*"]), "with a dot between database and table"),
        (changed("source.exclude", ["x"]), "source.exclude is 'x'"),
        (changed("source.server_id", 0), "source.server_id is 0. It must be a whole number from 1 to 4294966295"),
        (changed("source.server_id", MAX_SERVER_ID + 1), "4294966296"),
        (changed("source.server_id", True), "source.server_id is True"),
        (changed("snapshot.chunk_rows", 0), "snapshot.chunk_rows is 0. It must be a whole number from 1 to 1000000"),
        (changed("snapshot.chunk_rows", "8096"), "snapshot.chunk_rows is '8096'"),
        (changed("snapshot.chunk_rows", 1.5), "snapshot.chunk_rows is 1.5"),
        (changed("snapshot.chunk_rows", None), "snapshot.chunk_rows is None"),
        (
            changed("snapshot.group_rows", 10),
            "snapshot.group_rows is 10. It must be at least snapshot.chunk_rows (8096)",
        ),
        (changed("snapshot.parallelism", 65), "from 1 to 64"),
        (changed("snapshot.max_rows_per_second", 0), "snapshot.max_rows_per_second is 0. It must be a whole number"),
        (changed("snapshot.max_rows_per_second", "5k"), "snapshot.max_rows_per_second is '5k'"),
        (
            changed("snapshot.max_bytes_per_second", -1),
            "snapshot.max_bytes_per_second is -1. It must be a whole number",
        ),
        (changed("snapshot.max_bytes_per_second", True), "snapshot.max_bytes_per_second is True"),
        (
            changed("snapshot.max_threads_running", 4),
            "max_threads_running is 4. It must be a whole number of at least 5",
        ),
        (changed("snapshot.max_replica_lag_seconds", 0.5), "snapshot.max_replica_lag_seconds is 0.5"),
        (changed("snapshot.max_row_per_second", 5), "Did you mean snapshot.max_rows_per_second?"),
        (changed("source.zero_dates", "epoch"), "source.zero_dates is 'epoch'. It must be one of error, null"),
        (changed("stream.mode", "forever"), "stream.mode is 'forever'. It must be one of continuous, catch_up"),
        (changed("stream.mode", ["continuous"]), "stream.mode is ['continuous']"),
        (changed("stream.trigger_seconds", -1), "stream.trigger_seconds is -1. It must be a number from 0 to 3600"),
        (changed("stream.trigger_seconds", float("nan")), "stream.trigger_seconds is nan"),
        (changed("stream.trigger_seconds", False), "stream.trigger_seconds is False"),
        (
            changed("stream.schema_changes", "try_evolve"),
            "stream.schema_changes: 'try_evolve' is not supported yet. Use evolve (the default), lenient, ignore or",
        ),
        (
            changed("stream.schema_changes", "maybe"),
            "stream.schema_changes is 'maybe'. It must be one of evolve, lenient, ignore, exception",
        ),
        (
            {**MINIMAL, "stream": {"schema_changes": "ignore", "include_schema_changes": ["add.column"]}},
            "stream.include_schema_changes is set, and stream.schema_changes is ignore. Use evolve or lenient with it",
        ),
        (
            changed("stream.exclude_schema_changes", ["add.columns"]),
            "stream.exclude_schema_changes is 'add.columns'. It must be one of add.column, drop.column",
        ),
        (changed("stream.exclude_schema_changes", "drop.column"), "It must be a list of add.column, drop.column"),
        (changed("stream.include_schema_changes", [3]), "It must be a list of add.column, drop.column"),
        (
            changed("stream.exclude_schema_changes", ["rename.column"]),
            "stream.exclude_schema_changes: 'rename.column' is not chosen here. A renamed column is one dropped and",
        ),
        (changed("stream.include_schema_changes", ["truncate.table"]), "TRUNCATE deletes all rows"),
        (changed("stream.on_table_error", "skip"), "stream.on_table_error is 'skip'. It must be one of suspend, stop"),
        (changed("stream.fail_on_suspended", "no"), "stream.fail_on_suspended is 'no'. It must be true or false"),
        (changed("stream.reread", True), "stream.reread is True. It must be one of auto, ask"),
        (
            changed("stream.reread_max_bytes", -1),
            "stream.reread_max_bytes is -1. It must be a whole number of at least",
        ),
        (
            changed("stream.max_batch_bytes", 1000),
            "stream.max_batch_bytes is 1000. It must be a whole number of at least",
        ),
        (
            changed("stream.max_batch_rows", 999),
            "stream.max_batch_rows is 999. It must be a whole number of at least 1000",
        ),
        (changed("stream.parallelism", 0), "stream.parallelism is 0. It must be a whole number from 1 to 64"),
        (
            changed("stream.on_purged", "again"),
            "stream.on_purged is 'again'. It must be one of stop, reread",
        ),
        (
            changed("stream.start", "now"),
            "stream.start is 'now'. It must be snapshot, earliest, latest, or a mapping with gtid_set, with file and",
        ),
        (changed("stream.start", None), "stream.start is None"),
        (changed("stream.start", {"file": "binlog.000001"}), "stream.start is {'file': 'binlog.000001'}"),
        (changed("stream.start", {"gtid_set": "0-1-5", "timestamp": "x"}), "or with timestamp"),
        (
            changed("stream.start", {"file": "binlog", "position": 4}),
            "stream.start.file is 'binlog'. It must be the name",
        ),
        (
            changed("stream.start", {"file": "b.1", "position": 3}),
            "stream.start.position is 3. It must be a whole number",
        ),
        (changed("stream.start", {"file": "b.1", "position": "157"}), "stream.start.position is '157'"),
        (changed("stream.start", {"gtid_set": ""}), "stream.start.gtid_set is ''. It must be a GTID set such as"),
        (changed("stream.start", {"gtid_set": "uuid:1-5"}), "stream.start.gtid_set is 'uuid:1-5'"),
        (changed("stream.start", {"timestamp": "2026-11-21 08:30:00"}), "with its zone, such as 2026-11-21T08:30:00Z"),
        (changed("stream.start", {"timestamp": 1_700_000_000}), "stream.start.timestamp is 1700000000"),
        (changed("stream.start", {"timestamp": date(2026, 11, 21)}), "stream.start.timestamp is datetime.date"),
        (changed("sink.kind", "jdbc"), "sink.kind: 'jdbc' is not supported yet. Use delta or iceberg"),
        (changed("sink.kind", "csv"), "sink.kind is 'csv'. It must be "),
        (changed("sink.deletes", "keep"), "sink.deletes is 'keep'. It must be one of hard, soft, ignore"),
        (changed("sink.deletes", {"hard": ["a.b"]}), "or {soft: [patterns of tables], ignore: [patterns of tables]}"),
        (changed("sink.deletes", {}), "sink.deletes is {}"),
        (changed("sink.deletes", {"soft": ["customer"]}), "sink.deletes.soft"),
        (
            {**changed("sink.deletes", "soft"), "stream": {"on_purged": "reread"}},
            "stream.on_purged is reread, and sink.deletes keeps deleted rows",
        ),
        (changed("sink.merge", "vectors"), "sink.merge is 'vectors'. It must be one of deletion_vectors,"),
        (changed("sink.merge", {"deletion_vectors": ["a.b"]}), "or {copy_on_write: [patterns of tables]}"),
        (changed("sink.merge", {"copy_on_write": "a.b"}), "sink.merge.copy_on_write is 'a.b'"),
        (changed("sink.merge", {"copy_on_write": ["customer"]}), "sink.merge.copy_on_write"),
        (changed("sink.table_path", "/lake/{table}"), "sink.table_path is '/lake/{table}'. It must be folders below"),
        (changed("sink.lower_case", "yes"), "sink.lower_case is 'yes'. It must be true or false"),
        (changed("sink.routes", {"a.b": "c"}), "sink.routes is {'a.b': 'c'}. It must be a list such as"),
        (changed("sink.routes", [{"match": "a.b"}]), "sink.routes is {'match': 'a.b'}. It must be a list such as"),
        (route("orders", "o"), "sink.routes.match is 'orders'"),
        (into({"into": "o", "table_path": "o"}), "sink.routes is {'into': 'o', 'match': 'a.b', 'table_path': 'o'}. It"),
        (
            into({"table_path": "o", "unique": True}),
            "sink.routes is {'match': 'a.b', 'table_path': 'o', 'unique': True",
        ),
        (into({"into": "o", "unique": 1}), "sink.routes: unique of a.b is 1. It must be true or false"),
        (into({"into": "/o"}), "sink.routes: into of a.b is '/o'. It must be folders below sink.path"),
        (into({"into": "o_$1"}), "sink.routes: a.b has no group 1, which into o_$1 names"),
        (into({"into": "o"}, adopt=True), "sink.adopt is set, and sink.routes copies several tables into one"),
        (route("shop.(x", "o"), "sink.routes.match is 'shop.(x'"),
        (route("shop.x", "/o"), "sink.routes: table_path of shop.x is '/o'. It must be folders below sink.path"),
        (route("shop.x", 5), "sink.routes: table_path of shop.x is 5"),
        (route("shop.x", "_cdc_$1"), "sink.routes: table_path of shop.x is '_cdc_$1'"),
        (route("shop.x", "_cdc_progress"), "sink.routes: table_path of shop.x is '_cdc_progress'"),
        (route("shop.x", "o_$0"), "sink.routes: table_path of shop.x is 'o_$0'"),
        (route("shop.(x)", "o_$2"), "shop.(x) has no group 2, which table_path o_$2 names"),
        (route("shop.(x)", "o_${k}"), "shop.(x) has no group k, which table_path o_${k} names"),
        (changed("sink.table_properties", ["a"]), "sink.table_properties is ['a']. It must be a mapping of properties"),
        (changed("sink.table_properties", {"a": {}}), "sink.table_properties.a is {}. It must be a value, or"),
        (changed("sink.table_properties", {"a": {"b": ["x"]}}), "sink.table_properties.a.b is 'x'"),
        (
            changed("sink.table_properties", {"delta.setTransactionRetentionDuration": "interval 1 days"}),
            "delta.setTransactionRetentionDuration cannot be set: the transactions that mark applied",
        ),
        (
            changed("sink.catalog", {"type": "rest"}),
            "sink.catalog is set, and a sink of kind delta has no such setting",
        ),
        (changed("sink.index_bytes", 1000), "sink.index_bytes is 1000"),
        (changed("sink.partition_by", ["a"]), "sink.partition_by is ['a']. It must be a mapping of patterns"),
        (changed("sink.partition_by", {"orders": ["a"]}), "sink.partition_by is 'orders'"),
        (changed("sink.partition_by", {"a.b": "country"}), "sink.partition_by.a.b is 'country'. It must be a list"),
        (changed("sink.partition_by", {"a.b": []}), "sink.partition_by.a.b is []"),
        (
            changed("sink.partition_by", {"a.b": [{"week": "at"}]}),
            "such as {month: created_at}: year, month, day, hour",
        ),
        (changed("sink.partition_by", {"a.b": [{"day": "at", "hour": "at"}]}), "sink.partition_by.a.b is {"),
        (changed("sink.partition_by", {"a.b": [7]}), "sink.partition_by.a.b is 7"),
        (changed("sink.on_dropped", "empty"), "sink.on_dropped is 'empty'. It must be one of keep, drop"),
        (changed("sink.on_dropped", {"keep": ["a.b"]}), "or {drop: [patterns of tables]}"),
        (
            {**changed("sink.on_dropped", "drop"), "stream": {"on_table_error": "stop"}},
            "sink.on_dropped is not keep, and the stream stops where a table is dropped",
        ),
        (
            {**changed("sink.on_dropped", {"drop": ["a.b"]}), "stream": {"schema_changes": "exception"}},
            "sink.on_dropped is not keep, and the stream stops where a table is dropped",
        ),
        (changed("sink.adopt", 1), "sink.adopt is 1. It must be true or false"),
        (changed("sink.compaction", "no"), "sink.compaction is 'no'. It must be true or false"),
        (changed("sink.path", "s3://key:hunter2@lake"), "sink.path is not an address of an object store: the part"),
        (
            changed("sink.path", "file:/data"),
            "sink.path: a file address must not name a host. Write it as file:///data",
        ),
        (changed("sink.path", "hdfs://hunter2/lake"), "sink.path: hdfs:// is not supported. Use the absolute path"),
        (changed("sink.conn_id", "lake"), "sink.conn_id is set, and sink.path is a folder. Leave one of them out"),
        (changed("sink.conn_id", "s3://k:hunter2@h"), "sink.conn_id is not the id of a connection"),
        (changed("sink.path", "lake"), "sink.path is 'lake'. It must be the absolute path"),
        (changed("sink.path", 5), "sink.path is 5"),
        (changed("sink.path", "/a\nb"), "sink.path is '/a\\nb'"),
        (changed("state.conn_id", ""), "state.conn_id is not the id of a connection"),
        (changed("spark.conn_id", "spark://u:hunter2@h"), "spark.conn_id is not the id of a connection"),
        (
            changed("spark.master", "local[0]"),
            "spark.master is 'local[0]'. It must be local, local[N], local[*], spark",
        ),
        (changed("spark.master", "mesos://h:1"), "spark.master is 'mesos://h:1'. It must be local"),
        (changed("spark.master", "spark://host"), "spark.master is 'spark://host'"),
        (changed("spark.master", "spark://u:hunter2@h:1"), "spark.master is not the address of a Spark master"),
        (changed("spark.master", "k8s://https://u:hunter2@h"), "spark.master is not the address of a Spark master"),
        (
            changed("spark.master", "k8s://http://h:8080"),
            "spark.master is 'k8s://http://h:8080': what the API server is sent, passwords too, would travel in clear "
            "text. Write k8s://https://host:port",
        ),
        (changed("spark.master", "k8s://http://127.0.0.1.example/"), "would travel in clear text"),
        (changed("spark.master", "k8s://http://[::1]h:80"), "would travel in clear text"),
        (changed("spark.master", "k8s://http://:8080"), "would travel in clear text"),
        (changed("spark.master", "k8s://HTTP://h"), "spark.master is 'k8s://HTTP://h'. It must be local"),
        (changed("spark.master", "sc://h:15002"), "spark.master is 'sc://h:15002'"),
        (changed("spark.master", ""), "spark.master is ''"),
        (changed("spark.master", 2), "spark.master is 2"),
        (changed("spark.conf", "a=b"), "spark.conf is 'a=b'. It must be a mapping such as"),
        (changed("spark.conf", {"executor.memory": "4g"}), "spark.conf: 'executor.memory' is not the name of a Spark"),
        (changed("spark.conf", {5: "4g"}), "spark.conf: 5 is not the name of a Spark setting"),
        (changed("spark.conf", {"spark.a\nb": "4g"}), "spark.conf: 'spark.a\\nb' is not the name"),
        (changed("spark.conf", {"spark.a": None}), "spark.conf: spark.a is None. It must be a text, a number, true or"),
        (changed("spark.conf", {"spark.a": ["b"]}), "spark.conf: spark.a is ['b']"),
        (changed("spark.conf", {"spark.a": "b\nc"}), "spark.conf: spark.a is 'b\\nc'"),
        (changed("spark.conf", {"spark.authenticate.secret": "hunter2"}), "would carry a secret, and everyone"),
        (changed("spark.conf", {"spark.ssl.keyPassword": "hunter2"}), "spark.conf: spark.ssl.keyPassword would carry"),
        (changed("spark.conf", {"spark.hadoop.fs.s3a.access.key": "hunter2"}), "would carry a secret"),
        (changed("spark.conf", {"spark.hadoop.fs.azure.account.key.x": "hunter2"}), "would carry a secret"),
        (changed("spark.conf", {"spark.kubernetes.oauthToken": "hunter2"}), "would carry a secret"),
        (changed("spark.conf", {"spark.hadoop.fs.azure.sas.c.a": "hunter2"}), "would carry a secret"),
        (changed("spark.conf", {"spark.executorEnv.MYSQL_PWD": "hunter2"}), "would carry a secret"),
        (changed("spark.conf", {"spark.hadoop.fs.s3a.encryption.key": "hunter2"}), "would carry a secret"),
        (
            changed(
                "spark.conf", {"spark.driver.defaultJavaOptions": "-Xss2m -Djavax.net.ssl.keyStorePassword=hunter2"}
            ),
            "spark.driver.defaultJavaOptions: -Djavax.net.ssl.keyStorePassword would carry a secret, and everyone on "
            "the host can read settings. Put the options of Java into a file",
        ),
        (
            changed("spark.conf", {"spark.jars.repositories": "https://a.test,https://u:hunter2@b.test"}),
            "spark.jars.repositories would carry a password in an address",
        ),
        (
            changed("spark.conf", {"spark.sql.session.timeZone": "CET"}),
            "spark.conf: spark.sql.session.timeZone cannot be set. It is always UTC",
        ),
        (
            changed("spark.conf", {"spark.master": "yarn"}),
            "spark.conf: spark.master cannot be set. Use the key spark.m",
        ),
    ],
)
def test_refusals_name_key_value_and_remedy(value: Any, words: str) -> None:
    text = refusal(value)
    assert words in text
    assert "hunter2" not in text


@pytest.mark.parametrize(
    "master",
    ["local", "local[3]", "local[*]", "yarn", "spark://h:7077", "spark://h1.example:7077,h-2:7078", "spark://[::1]:7077",
     "k8s://https://kubernetes.default.svc:443", "k8s://h:6443", "k8s://https://h/k8s/clusters/c-1",
     "k8s://http://127.0.0.1:8001", "k8s://http://[::1]:8001", "k8s://http://localhost:8001/path"],
)  # fmt: skip
def test_masters(master: str) -> None:
    assert Pipeline.from_dict(changed("spark.master", master)).spark == Spark(None, master)


def test_a_spark_connection_stands_in_for_the_master() -> None:
    pipeline = Pipeline.from_dict(changed("spark.conn_id", "spark_default"))
    assert pipeline.spark == Spark("spark_default", None)
    assert Pipeline.from_dict(pipeline.to_dict()) == pipeline


def test_spark_settings_become_text() -> None:
    given = {"spark.a": 4, "spark.b": True, "spark.c": 0.5, "spark.d-e.F_1": "x y", "spark.f": False}
    conf = Pipeline.from_dict(changed("spark.conf", given)).spark.conf
    assert conf == {"spark.a": "4", "spark.b": "true", "spark.c": "0.5", "spark.d-e.F_1": "x y", "spark.f": "false"}
    assert Pipeline.from_dict(changed("spark.conf", None)).spark.conf == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("spark.io.encryption.keySizeBits", "256"),
        ("spark.driver.defaultJavaOptions", "-XX:+UseG1GC -Duser.timezone=UTC @/etc/cdc/java-options"),
        ("spark.yarn.stagingDir", "hdfs://name.test:8020/staging,abfss://c@a.dfs.core.windows.net/x"),
    ],
)
def test_spark_settings_that_only_look_like_secrets(name: str, value: str) -> None:
    assert Pipeline.from_dict(changed("spark.conf", {name: value})).spark.conf == {name: value}


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("earliest", "earliest"),
        ("{timestamp: 2026-11-21T08:30:00Z}", {"timestamp": "2026-11-21T08:30:00+00:00"}),
        ("{timestamp: '2026-11-21 09:30:00.25+01:00'}", {"timestamp": "2026-11-21T08:30:00.250000+00:00"}),
        ("{gtid_set: '0-1-7, 3-1-2'}", {"gtid_set": "0-1-7,3-1-2"}),
        ("{position: 4, file: mysql-bin.1000000}", {"file": "mysql-bin.1000000", "position": 4}),
    ],
)
def test_starts_of_a_stream(text: str, start: Any) -> None:
    pipeline = Pipeline.from_yaml(yaml.safe_dump(MINIMAL) + f"stream: {{start: {text}}}")
    assert pipeline.stream.start == start
    assert json.loads(json.dumps(pipeline.to_dict()))["stream"]["start"] == start
    assert Pipeline.from_yaml(pipeline.to_yaml()) == pipeline


def test_yaml_text() -> None:
    """What a DAG renders is read as a file is."""
    pipeline = Pipeline.from_dict(FULL)
    assert Pipeline.from_yaml(pipeline.to_yaml()) == pipeline
    with pytest.raises(NotReadyError, match=r"^pipeline: line 2, column"):
        Pipeline.from_yaml("name: [1\nsource: 2")
    with pytest.raises(NotReadyError, match=r"^shop of the DAG: name is missing"):
        Pipeline.from_yaml("{}", "shop of the DAG")
    with pytest.raises(NotReadyError, match=r"^pipeline is nested too deeply"):
        Pipeline.from_yaml("[" * 3000)


def test_an_address_in_place_of_a_connection_id_is_not_shown() -> None:
    text = refusal(changed("source.conn_id", "mysql://root:hunter2@db/"))
    assert "hunter2" not in text
    assert "not an address" in text


def test_a_long_value_is_cut() -> None:
    assert len(refusal(changed("name", "x" * 10_000))) < 300


def test_python_is_held_to_the_same_rules() -> None:
    with pytest.raises(NotReadyError, match=r"snapshot\.parallelism is 0"):
        Snapshot(parallelism=0)
    with pytest.raises(NotReadyError, match=r"source is .* It must be a Source"):
        Pipeline(name="shop", source={"conn_id": "x"}, sink=Sink("/lake"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name: [1\nsource: 2", "line 2, column"),
        ("name: a\nsink:\n  path: /a\n  path: /b\n", "line 4, column 3: key path is given twice"),
        ("name: a\nname: a\n", "line 2, column 1: key name is given twice"),
        ("name: !!python/object:os.system x", "could not determine a constructor"),
        ("name: a\n---\nname: b\n", "expected a single document"),
        ("name: \x07", "special characters are not allowed"),
        ("", "a pipeline is not None"),
        ("[" * 3000, "nested too deeply"),
        ("name: 5\nsource: {conn_id: a, tables: [a.b]}\nsink: {path: /a}", "name is 5"),
    ],
)
def test_bad_yaml_is_one_line_with_the_place(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "pipeline.yaml"
    path.write_text(text)
    with pytest.raises(NotReadyError) as error:
        Pipeline.load(path)
    assert str(error.value).startswith(f"{path}")
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(NotReadyError, match=r"cannot read .*absent.yaml: No such file"):
        Pipeline.load(tmp_path / "absent.yaml")
    with pytest.raises(NotReadyError, match="Is a directory"):
        Pipeline.load(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"name: \xe9")
    with pytest.raises(NotReadyError, match="not a UTF-8 text"):
        Pipeline.load(tmp_path / "latin.yaml")


def test_yaml_anchors_and_merges_work(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.yaml"
    path.write_text(
        "name: shop\nsource: &s {conn_id: a, tables: [a.b]}\nsink: {path: /a}\n"
        "snapshot: &p {chunk_rows: 5, parallelism: 3}\n"
    )
    text = path.read_text()
    assert Pipeline.load(path).snapshot.parallelism == 3
    path.write_text(text + "spark: {<<: {master: local}, master: 'local[3]'}\n")
    assert Pipeline.load(path).spark.master == "local[3]"


@pytest.mark.parametrize(
    ("tables", "database", "table", "captured"),
    [
        (["shop.customer"], "shop", "customer", True),
        (["shop.customer"], "shop", "customers", False),
        (["shop.customer"], "myshop", "customer", False),
        (["shop.customer"], "shop", "Customer", False),
        (["shop.order_.*"], "shop", "order_line", True),
        (["shop.order_.*"], "shop1order_", "x", False),  # the dot is the one between database and table
        (["shop.a"], "shopxa", "", False),
        ([r"shop\.a"], "shop", "a", True),
        (["shop[.]a"], "shop", "a", True),
        ([r".*\..*"], "any", "thing", True),
        ([".*.orders"], "any", "orders", True),
        (["(shop|crm).(a|b)"], "crm", "b", True),
        (["(shop.a|crm.b)"], "crm", "b", True),
        (["shop.a|crm.b"], "crm", "b", True),
        (["shop.a|crm.b"], "crm", "a", False),
        ([r"we\.ird\.ta\.ble"], "we.ird", "ta.ble", True),
        ([r"we\.ird\.ta\.ble"], "we", "ird.ta.ble", True),
        (["we.ird.t"], "we.ird", "t", True),
        (["(?i)SHOP.CUSTOMER"], "shop", "customer", True),
        ([r"shop.[^.]+"], "shop", "a.b", False),
        ([r"shop.a`b%';\""], "shop", "a`b%';\"", True),
        (["shop.a", "shop.b"], "shop", "b", True),
        ([r"shop.line\nfeed"], "shop", "line\nfeed", True),
        (["shop..*"], "shop", "line\nfeed", True),
    ],
)
def test_captures(tables: list[str], database: str, table: str, captured: bool) -> None:
    assert Pipeline.from_dict(changed("source.tables", tables)).captures(database, table) is captured


@pytest.mark.parametrize(
    ("patterns", "name", "expected"),
    [
        (["shop.customer.phone"], ("shop", "customer", "phone"), True),
        (["shop.customer.phone"], ("shop", "customer", "phone2"), False),
        (["shop.customer.phone"], ("shop", "customers", "phone"), False),
        (["shop.customer.(phone|birthday)"], ("shop", "customer", "birthday"), True),
        (["shop..*.phone_.*"], ("shop", "lead", "phone_work"), True),
        (["shop..*.phone_.*"], ("shopxa", "phone_", "work"), False),
        ([".*..*.secret"], ("a", "b", "secret"), True),
        ([r"shop.a\.b.c"], ("shop", "a.b", "c"), True),
        (["shop.a.b.c"], ("shop", "a", "b.c"), True),
        (["shop.a", "shop.b.c"], ("shop", "b", "c"), True),
    ],
)
def test_column_patterns(patterns: list[str], name: tuple[str, str, str], expected: bool) -> None:
    if any(p.count(".") < 2 for p in patterns):
        assert "dots between database, table and column" in refusal(changed("source.exclude_columns", patterns))
        return
    assert Pipeline.from_dict(changed("source.exclude_columns", patterns)).copies_column(*name) is not expected
    assert Pipeline.from_dict(changed("source.include_columns", patterns)).copies_column(*name) is expected


def test_columns_are_included_or_excluded() -> None:
    value = changed("source.include_columns", ["shop.customer.id"])
    value["source"]["exclude_columns"] = ["shop.customer.phone"]
    assert "source.include_columns and source.exclude_columns are both set" in refusal(value)
    assert Pipeline.from_dict(MINIMAL).copies_column("any", "column", "at all")


def test_exclude_takes_tables_out_again() -> None:
    value = changed("source.tables", ["shop..*"])
    value["source"]["exclude"] = ["shop.tmp_.*"]
    pipeline = Pipeline.from_dict(value)
    assert pipeline.captures("shop", "a")
    assert not pipeline.captures("shop", "tmp_a")


@given(st.text(min_size=1, max_size=8).filter(lambda s: "\0" not in s), st.text(min_size=1, max_size=8))
def test_an_escaped_name_captures_itself(database: str, table: str) -> None:
    import re

    table = table.replace("\0", "_")
    pipeline = Pipeline.from_dict(changed("source.tables", [f"{re.escape(database)}.{re.escape(table)}"]))
    assert pipeline.captures(database, table)
    assert not pipeline.captures(database + "x", table)
    assert not pipeline.captures(database, table + "x")


@given(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", fullmatch=True), st.integers(0, 1000))
def test_derived_ids_are_valid_and_stable(name: str, slot: int) -> None:
    pipeline, again = (Pipeline.from_dict(MINIMAL | {"name": name}) for _ in range(2))
    assert 10_000 < pipeline.server_id(slot) < 2**32 - 1000
    assert pipeline.server_id(slot) == again.server_id(slot) == pipeline.server_id(0) + slot
    assert UUID(pipeline.replica_uuid(slot)) == UUID(again.replica_uuid(slot))


def test_ids_of_slots_and_pipelines_differ() -> None:
    one, two = Pipeline.from_dict(MINIMAL), Pipeline.from_dict(MINIMAL | {"name": "shop2"})
    ids = {p.server_id(slot) for p in (one, two) for slot in range(1001)}
    uuids = {p.replica_uuid(slot) for p in (one, two) for slot in range(1001)}
    assert len(ids) == len(uuids) == 2002
    given_id = Pipeline.from_dict(changed("source.server_id", MAX_SERVER_ID))
    assert given_id.server_id(1000) == 2**32 - 1
    with pytest.raises(ValueError, match="slot 1001"):
        one.server_id(1001)


def test_ids_never_change_between_versions() -> None:
    """A server that knows a client by these must find it again after an upgrade."""
    pipeline = Pipeline.from_dict(MINIMAL)
    assert (pipeline.server_id(0), pipeline.replica_uuid(0)) == (1570211840, "14c5557e-b2ec-5af8-85c5-6be061066463")


def test_to_yaml_is_plain() -> None:
    assert yaml.safe_load(Pipeline.from_dict(FULL).to_yaml()) == FULL


def test_the_reference_names_every_key() -> None:
    text = (ROOT / "docs" / "pipeline.md").read_text()
    for section, value in Pipeline.from_dict(FULL).to_dict().items():
        for key in value if isinstance(value, dict) else ():
            assert f"`{section}.{key}`" in text
    for setting in MANAGED_SETTINGS:
        assert f"`{setting}`" in text


@pytest.mark.parametrize("path", ["/data/50%", "/data/a%20b", "file:///data/50%25"])
def test_a_percent_sign_in_the_path(path: str) -> None:
    with pytest.raises(NotReadyError, match="sink.path has a percent sign.*Name a folder without one"):
        Sink(path)
    Sink("file:///data/my%20lake")
