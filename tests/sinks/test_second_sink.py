"""A whole pipeline on a sink that is not Delta: the phases know no more of a sink than its protocol."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from airflow_provider_cdc.chunk_groups.task import run_in_threads
from airflow_provider_cdc.config import Pipeline, Sink, sink_kinds
from airflow_provider_cdc.config.sink_kinds import SINK_KINDS, SinkKind
from airflow_provider_cdc.model.errors import NotReadyError
from airflow_provider_cdc.observe.status import read_status
from airflow_provider_cdc.preflight.run import run_preflight
from airflow_provider_cdc.sinks.registry import open_sink
from airflow_provider_cdc.snapshot.run import run_group
from airflow_provider_cdc.verify.run import verify_tables
from tests.support.cli import Cli, asked_by
from tests.support.plain_sink import NARROW_KIND, PLAIN_KIND, PlainSink
from tests.support.servers import MySQLServer


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sink_kinds.SINK_KINDS, "plain", PLAIN_KIND)
    monkeypatch.setitem(sink_kinds.SINK_KINDS, "narrow", NARROW_KIND)


@pytest.fixture
def cli(mysql_server: MySQLServer, database: str, tmp_path: Path, cdc_user: dict[str, str]) -> Iterator[Cli]:
    mysql_server.session(
        database,
        "CREATE TABLE a (id INT PRIMARY KEY, v VARCHAR(20), d DECIMAL(5,2), t TIMESTAMP(6) NULL)",
        "INSERT INTO a VALUES " + ",".join(f"({n}, 'v{n}', {n}.5, '2026-01-01 00:00:00.000001')" for n in range(100)),
        "CREATE TABLE b (k VARCHAR(20) PRIMARY KEY, v DOUBLE, j JSON)",
        "INSERT INTO b VALUES ('a', -0.0, '[1]'), ('B', 1.5, NULL), ('é', NULL, '{}')",
        "CREATE TABLE log (v INT, w INT)",
        "INSERT INTO log VALUES (1, 1), (1, 1), (NULL, 2)",
        "CREATE TABLE none_yet (id INT PRIMARY KEY)",
    )
    yield Cli(
        tmp_path,
        mysql_server,
        rf"{database}\..*",
        name=database,
        user=cdc_user,
        snapshot={"chunk_rows": 10, "group_rows": 40},
        sink={"kind": "plain"},
    )


def equal(cli: Cli) -> None:
    found = verify_tables(cli.context, show_values=True)
    assert [str(table) for table in found if not table.is_equal] == [] and len(found) == 4


def test_a_whole_pipeline(cli: Cli, mysql_server: MySQLServer, database: str) -> None:
    """Snapshot, stream, a group that is read again beside it, verify, status."""
    assert not [finding for finding in run_preflight(cli.context, spark=False) if finding.level == "error"]
    cli.snapshot()
    equal(cli)
    mysql_server.session(
        database,
        "UPDATE a SET v = 'new' WHERE id < 5",
        "DELETE FROM a WHERE id = 50",
        "UPDATE a SET id = 1000 WHERE id = 7",
        "UPDATE b SET v = 7 WHERE k = 'B'",
        "DELETE FROM log WHERE v = 1 LIMIT 1",
        "INSERT INTO log VALUES (NULL, 2), (3, 3)",
        "INSERT INTO none_yet VALUES (1), (2)",
    )
    cli.catch_up()
    equal(cli)
    assert not (cli.sink / database / "a" / "_delta_log").exists()
    mysql_server.session(database, "TRUNCATE TABLE b", "INSERT INTO b VALUES ('z', 1, NULL)", "UPDATE log SET w = 9")
    with cli.opened() as (context, store):
        plan = context.plans.require()
        for number in plan.groups():
            first = run_group(
                context, store, plan, number, run_in_threads, holder="a test", requested_by=asked_by("task#1")
            )
            assert first.outcome == "adopted"
        again = run_group(context, store, plan, 0, run_in_threads, holder="a test", requested_by=asked_by("task#2"))
        assert again.outcome == "staged"
    cli.catch_up()
    equal(cli)
    said = read_status(cli.context)
    assert said["snapshot"]["complete"] and said["stream"]["state"] == "caught_up"
    cli.catch_up()
    equal(cli)


def test_a_run_that_goes_on(cli: Cli, mysql_server: MySQLServer, database: str) -> None:
    """The bookkeeping is lost after the snapshot: markers and manifests tell what is there."""
    cli.snapshot()
    mysql_server.session(database, "UPDATE a SET v = 'new'", "DELETE FROM log LIMIT 1")
    for file in (cli.sink / "_cdc" / database).glob("bookkeeping.db*"):
        file.unlink()
    cli.snapshot()
    cli.catch_up()
    equal(cli)


def test_what_a_sink_does_not_support(cli: Cli, database: str) -> None:
    """It is refused by name before anything is written."""
    cli.value["sink"]["kind"] = "narrow"
    cli.value["stream"] = {"on_purged": "reread"}
    cli.write()
    said = [finding.message for finding in run_preflight(cli.context, spark=False) if finding.level == "error"]
    assert said == [
        "stream.on_purged is reread: a sink of kind narrow does not support re-snapshots",
        f"table {database}.log has no usable key: a sink of kind narrow does not support tables without a usable key",
    ]
    with pytest.raises(NotReadyError, match="does not support tables without a usable key"):
        cli.snapshot()
    assert cli.context.storage.read(cli.context.layout.plan) is None


def test_a_group_that_cannot_be_read_again(cli: Cli, database: str) -> None:
    cli.value["sink"]["kind"] = "narrow"
    cli.value["source"]["tables"] = [rf"{database}\.a"]
    cli.write()
    cli.snapshot()
    with cli.opened() as (context, store):
        plan = context.plans.require()
        for request in ("task#1", "task#1"):
            run_group(context, store, plan, 0, run_in_threads, holder="a test", requested_by=asked_by(request))
        with pytest.raises(
            NotReadyError, match="group 0 is to be re-snapshotted: a sink of kind narrow does not support"
        ):
            run_group(context, store, plan, 0, run_in_threads, holder="a test", requested_by=asked_by("task#2"))
    cli.catch_up()


def test_a_sink_that_cannot_be_read_back(cli: Cli, database: str) -> None:
    cli.value["sink"]["kind"] = "narrow"
    cli.value["source"]["tables"] = [rf"{database}\.b"]
    cli.write()
    cli.snapshot()
    with pytest.raises(NotReadyError, match="cannot be read back: a sink of kind narrow is write-only"):
        verify_tables(cli.context)


@pytest.mark.parametrize("kind", ["changelog", "nothing"])
def test_kinds_that_are_not_known(kind: str) -> None:
    value = {"name": "p", "source": {"conn_id": "c", "tables": ["d.t"]}, "sink": {"path": "/x", "kind": kind}}
    with pytest.raises(NotReadyError, match="delta"):
        Pipeline.from_yaml(yaml.safe_dump(value))


def test_a_sink_whose_library_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    module = "airflow_provider_cdc.sinks.iceberg.format.avro_files"
    kind = SinkKind(f"{module}:read_records", ("copy_on_write",), frozenset(), extra="iceberg")
    monkeypatch.setitem(SINK_KINDS, "optional", kind)
    monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, "fastavro", None)
    with pytest.raises(NotReadyError, match="a sink of kind optional needs fastavro, which is not installed") as error:
        open_sink(Sink("/x", kind="optional"), "p")
    assert error.value.remedy == 'Run on every host: pip install "airflow-provider-cdc[iceberg]"'


@pytest.mark.parametrize("merge", [None, "copy_on_write"])
def test_a_sink_that_only_copies_on_write(merge: str | None) -> None:
    """The right value is accepted, and it is the default."""
    settings = Sink("/x", kind="plain", merge=merge, deletes="soft")
    assert settings.merge == "copy_on_write"
    assert open_sink(settings, "p") == PlainSink("/x", "p", settings.delete_policy)
    assert Sink("/x").merge == "deletion_vectors"


@pytest.mark.parametrize(
    ("kind", "setting", "said"),
    [
        ("plain", {"merge": "deletion_vectors"}, "sink.merge is 'deletion_vectors'. It must be copy_on_write"),
        (
            "plain",
            {"merge": {"copy_on_write": ["a.b"]}},
            "sink.merge is {'copy_on_write': ['a.b']}. It must be copy_on_",
        ),
        ("plain", {"lower_case": True}, "sink.lower_case is set, and a sink of kind plain has no such setting"),
        ("plain", {"partition_by": {"a.b": ["c"]}}, "sink.partition_by is set, and a sink of kind plain has no such"),
        ("narrow", {"deletes": "soft"}, "sink.deletes is set, and a sink of kind narrow has no such setting"),
    ],
)
def test_settings_that_a_kind_does_not_have(kind: str, setting: dict[str, object], said: str) -> None:
    """They are refused by the user's own key when the pipeline is loaded."""
    value = {
        "name": "p",
        "source": {"conn_id": "c", "tables": ["d.t"]},
        "sink": {"path": "/x", "kind": kind, **setting},
    }
    with pytest.raises(NotReadyError, match=re.escape(said)):
        Pipeline.from_dict(value)
