"""The data source ``mysql_cdc`` through a real Spark: ranges, streams that go on, options, secrets."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import re
import secrets
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from airflow_provider_cdc.data_source import MySQLCdcDataSource
from airflow_provider_cdc.model.offset import Position
from airflow_provider_cdc.spark.java import ensure_java_home
from tests import ROOT
from tests.support.binlog.reading import binlog_place
from tests.support.jvm import own_java
from tests.support.mariadb import MariaDBServer
from tests.support.servers import MySQLServer
from tests.system.test_secrets import leaks

pytestmark = pytest.mark.spark

PASSWORD = "C4n4ry/%s:@?#&'\"\\ é+" + secrets.token_hex(12)
DOCUMENT = ROOT / "docs" / "data_source.md"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything that Spark writes."""
    return tmp_path_factory.mktemp("spark")


@pytest.fixture(scope="module")
def spark(mysql_server: MySQLServer, folder: Path) -> Iterator[SparkSession]:
    """A session as anybody starts it: the connection is in its environment."""
    user = mysql_server.create_cdc_user(f"canary_{secrets.token_hex(4)}", password=PASSWORD)
    ensure_java_home()
    environment = {
        "AIRFLOW_CONN_CDC_LOG": mysql_server.uri(user["user"], PASSWORD),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    (folder / "events").mkdir()
    with own_java(environment):
        session = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.eventLog.enabled", "true")
            .config("spark.eventLog.dir", f"file:{folder}/events")
            .config("spark.local.dir", str(folder / "local"))
            .getOrCreate()
        )
        session.dataSource.register(MySQLCdcDataSource)
        yield session


@pytest.fixture
def source(spark: SparkSession, mysql_server: MySQLServer, database: str, folder: Path) -> Source:
    return Source(spark, mysql_server, database, folder / database)


class Source:
    """A table ``t`` with two columns, and a place for a stream's output."""

    def __init__(self, spark: SparkSession, server: MySQLServer, database: str, folder: Path) -> None:
        self.spark, self.server, self.database, self.folder = spark, server, database, folder
        self.options = {"conn_id": "cdc_log", "table": f"{database}.t"}
        self.run("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(100))")
        self.begin = self.end()

    def run(self, *statements: str) -> Position:
        self.server.session(self.database, *statements)
        return self.end()

    def end(self) -> Position:
        return binlog_place(self.server)

    def range(self, start: object = None, **options: object) -> DataFrame:
        given = {**self.options, "start": str(start or self.begin), **{k: str(v) for k, v in options.items()}}
        return self.spark.read.format("mysql_cdc").options(**given).load()

    def follow(self, fails_at: int = -1, **options: object) -> list[tuple[int, list[Row]]]:
        """Follow the binlog to where it ends now: the batches that came, with their numbers.

        :param fails_at: the batch of this number fails, after it has been taken.
        """
        given = {**self.options, "start": str(self.begin), **{k: str(v) for k, v in options.items()}}
        stream = self.spark.readStream.format("mysql_cdc").options(**given).load()
        found: list[tuple[int, list[Row]]] = []

        def take(batch: DataFrame, number: int) -> None:
            found.append((number, ordered(batch)))
            if number == fails_at:
                raise RuntimeError("on purpose")

        query = (
            stream.writeStream.foreachBatch(take)
            .option("checkpointLocation", str(self.folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        if fails_at < 0:
            query.awaitTermination()
        else:
            with pytest.raises(Exception, match="on purpose"):
                query.awaitTermination()
        return found


def ordered(frame: DataFrame) -> list[Row]:
    return sorted(frame.collect(), key=lambda r: (Position(r["_cdc_file"], r["_cdc_pos"]), r["_cdc_row"]))


def short(rows: list[Any]) -> list[tuple[Any, ...]]:
    return [(r["_cdc_op"], r["id"], r["v"]) for r in rows]


TYPES = {
    "id": ("BIGINT UNSIGNED PRIMARY KEY", "18446744073709551615", "decimal(20,0)", Decimal(2**64 - 1)),
    "tiny": ("TINYINT UNSIGNED", "255", "smallint", 255),
    "whole": ("INT UNSIGNED", "4000000000", "bigint", 4_000_000_000),
    "money": ("DECIMAL(12,3)", "-123456789.001", "decimal(12,3)", Decimal("-123456789.001")),
    "exact": ("DOUBLE", "0.1", "double", 0.1),
    "words": ("VARCHAR(20) CHARACTER SET latin1", "'Größe'", "string", "Größe"),
    "bits": ("VARBINARY(9)", "x'00ff'", "binary", bytearray(b"\0\xff")),
    "document": ("JSON", """'{"b": [1, 2.5, null], "a": "ä"}'""", "string", '{"a": "ä", "b": [1, 2.5, null]}'),
    "day": ("DATE", "'2024-02-29'", "date", date(2024, 2, 29)),
    "clock": (
        "DATETIME(6)",
        "'2024-02-29 23:59:59.000009'",
        "timestamp_ntz",
        datetime(2024, 2, 29, 23, 59, 59, 9),
    ),
    "moment": ("TIMESTAMP(3)", "'2024-03-31 01:30:00.125'", "timestamp", datetime(2024, 3, 31, 1, 30, 0, 125000)),
    "lasts": ("TIME", "'-01:00:01'", "bigint", -3_601_000_000),
    "colour": ("ENUM('red','green')", "'green'", "string", "green"),
    "nothing": ("INT", "NULL", "int", None),
}
ADDED = ["_cdc_op", "_cdc_ts", "_cdc_gtid", "_cdc_file", "_cdc_pos", "_cdc_row"]


def test_values_have_their_types(source: Source) -> None:
    source.options["table"] = f"{source.database}.kinds"
    source.run(f"CREATE TABLE kinds ({', '.join(f'{name} {kind[0]}' for name, kind in TYPES.items())})")
    begin = source.end()
    end = source.run(
        "SET time_zone = '+00:00'", f"INSERT INTO kinds VALUES ({', '.join(kind[1] for kind in TYPES.values())})"
    )
    frame = source.range(begin)
    kinds = {name: kind[2] for name, kind in TYPES.items()}
    added = dict(zip(ADDED, ("string", "timestamp", "string", "string", "bigint", "bigint"), strict=True))
    assert {field.name: field.dataType.simpleString() for field in frame.schema} == kinds | added
    (row,) = frame.collect()
    found = row.asDict()
    # Spark gives moments in the time zone of this process.
    moment = found.pop("moment").astimezone(UTC).replace(tzinfo=None)
    expected = {name: kind[3] for name, kind in TYPES.items()}
    assert moment == expected.pop("moment")
    assert {name: found[name] for name in expected} == expected
    assert [found[name] for name in ADDED[3:]] == [end.file, end.position, 0] and found["_cdc_op"] == "c"
    ((own,),) = source.server.execute(f"SELECT GTID_SUBSET('{found['_cdc_gtid']}', @@global.gtid_executed)")
    assert own


def test_a_range_is_read_in_parallel(source: Source) -> None:
    middle = source.begin
    for n in range(12):
        at = source.run(f"INSERT INTO t VALUES ({n}, 'x')", *(["FLUSH BINARY LOGS"] if n == 5 else []))
        middle = at if n == 7 else middle
    source.run("UPDATE t SET v = 'y' WHERE id < 2", "DELETE FROM t WHERE id = 11")
    whole = ordered(source.range())
    assert short(whole) == [("c", n, "x") for n in range(12)] + [("u", 0, "y"), ("u", 1, "y"), ("d", 11, "x")]
    pieces = source.range(max_bytes_per_partition=500)
    assert pieces.rdd.getNumPartitions() >= 4 and ordered(pieces) == whole
    assert short(ordered(source.range(end=middle))) == short(whole)[:8]
    assert short(ordered(source.range(middle))) == short(whole)[8:]
    assert source.range("latest").collect() == []
    assert short(ordered(source.range(before_images=True)))[12:14] == [("b", 0, "x"), ("u", 0, "y")]


def test_a_stream_goes_on_where_it_stopped(source: Source) -> None:
    """A batch that failed comes again as it was; nothing is missing or there twice, whatever the size of batches."""
    for n in range(8):
        source.run(f"INSERT INTO t VALUES ({n}, 'x'), ({n + 100}, 'x')")
    failed = source.follow(fails_at=2, max_bytes_per_batch=700)
    assert [number for number, _ in failed] == [0, 1, 2]
    source.run("UPDATE t SET v = 'y'", "FLUSH BINARY LOGS", "DELETE FROM t WHERE id = 3")
    # With other sizes than those with which the batch was planned.
    again = source.follow(max_bytes_per_batch=1 << 20, max_bytes_per_partition=400)
    assert again[0] == failed[2] and len(again) == 2
    source.run("INSERT INTO t VALUES (50, 'z')")
    last = source.follow()
    assert [number for number, _ in last] == [4]
    came = [row for _, rows in (*failed[:2], *again, *last) for row in rows]
    assert came == ordered(source.range()) and len(came) == 34


def test_a_table_that_is_altered_ends_the_stream(source: Source) -> None:
    stream = source.spark.readStream.format("mysql_cdc").options(**source.options, start=str(source.begin)).load()
    found: list[Row] = []
    query = (
        stream.writeStream.foreachBatch(lambda batch, _: found.extend(batch.collect()))
        .option("checkpointLocation", str(source.folder / "checkpoint"))
        .trigger(processingTime="200 milliseconds")
        .start()
    )
    try:
        source.run("INSERT INTO t VALUES (1, 'a')")
        query.processAllAvailable()
        before = source.run("INSERT INTO t VALUES (2, 'b')")
        behind = source.run("ALTER TABLE t ADD COLUMN w INT")
        source.run("INSERT INTO t VALUES (3, 'c', 3)")
        said = rf"table {source.database}.t was altered at {before}.* use {behind} as `start`, and a new checkpoint"
        with pytest.raises(Exception, match=said):
            query.awaitTermination(400)
    finally:
        query.stop()
    assert short(found) == [("c", 1, "a"), ("c", 2, "b")]
    with pytest.raises(Exception, match=said):
        source.follow()
    assert short(source.range(behind).collect()) == [("c", 3, "c")]


BAD = {
    "unknown option tabel. Known options: conn_id": {"tabel": "d.t"},
    "unknown option password. A login is never an option": {"password": "hunter2"},
    "option table is 't'. Give database.table": {"table": "t"},
    "give exactly one of conn_id and conn_file": {"conn_file": "/x"},
    "connection nobody is not defined. Set the environment variable AIRFLOW_CONN_NOBODY": {"conn_id": "nobody"},
    "option max_bytes_per_batch is '1 MB'. Give a whole number": {"max_bytes_per_batch": "1 MB"},
    "option before_images is 'yes'. Give true or false": {"before_images": "yes"},
    "there is no table d.none": {"table": "d.none"},
    "'yesterday' is not a position in the binlog": {"start": "yesterday"},
    "there is no position binlog.000001:99999999999 in": {"end": "binlog.000001:99999999999"},
}


@pytest.mark.parametrize("said", BAD)
def test_bad_options(source: Source, said: str) -> None:
    with pytest.raises(Exception) as caught:
        source.spark.read.format("mysql_cdc").options(**(source.options | BAD[said])).load().collect()
    lines = [line for line in str(caught.value).splitlines() if said in line]
    assert len(lines) == 1 and "NotReadyError: " in lines[0], str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_another_schema_and_a_stream_with_an_end(source: Source) -> None:
    with pytest.raises(Exception, match="the schema is defined by the table"):
        source.spark.read.format("mysql_cdc").options(**source.options).schema("id int").load().collect()
    with pytest.raises(Exception, match="a stream has no end"):
        source.follow(end=source.end())


def test_a_checkpoint_whose_binlog_is_gone(source: Source) -> None:
    at = source.run("INSERT INTO t VALUES (1, 'a')")
    assert len(source.follow()) == 1
    source.run("FLUSH BINARY LOGS")
    offsets = sorted((source.folder / "checkpoint" / "offsets").glob("[0-9]*"))
    # As if the file had been removed: the server is shared with other tests.
    text = offsets[-1].read_text()
    stored = rf"\"file\": \"{at.file}\""
    assert stored in text
    offsets[-1].write_text(text.replace(stored, r"\"file\": \"binlog.000000\""))
    (offsets[-1].parent / f".{offsets[-1].name}.crc").unlink()
    source.run("INSERT INTO t VALUES (2, 'b')")
    with pytest.raises(Exception, match=rf"the binlog position binlog.000000:{at.position} is no longer") as caught:
        source.follow()
    assert "a new checkpoint and another `start`" in str(caught.value) and "sink.path" not in str(caught.value)


def test_mariadb_by_a_file(spark: SparkSession, folder: Path) -> None:
    with MariaDBServer() as server:
        login = folder.parent / f"login_{secrets.token_hex(4)}"
        login.write_text(server.uri())
        server.execute("CREATE DATABASE d")
        source = Source(spark, server, "d", folder / "mariadb")
        source.options = {"conn_file": str(login), "table": "d.t"}
        source.run("INSERT INTO t VALUES (1, 'a')", "UPDATE t SET v = 'b'")
        gtid = server.execute("SELECT @@global.gtid_binlog_pos")[0][0]
        assert [row["_cdc_gtid"] for _, rows in source.follow() for row in rows][-1] == gtid
        source.run("DELETE FROM t")
        assert [short(rows) for _, rows in source.follow()] == [[("d", 1, "b")]]
        assert short(ordered(source.range("earliest"))) == [
            ("t", None, None),  # its CREATE TABLE
            ("c", 1, "a"),
            ("u", 1, "b"),
            ("d", 1, "b"),
        ]


def test_the_example(source: Source, mysql_server: MySQLServer, tmp_path: Path) -> None:
    """The program in the documentation, with other names in it."""
    source.run("INSERT INTO t VALUES (1, 'a')", "UPDATE t SET v = 'b'")
    (program,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    names = {'"shop.orders"': f'"{source.database}.t"', '"cdc_source"': '"cdc_log"', "/data": str(tmp_path)}
    names['"binlog.000017:4"'] = f'"{source.begin}"'
    for name, other in names.items():
        assert name in program
        program = program.replace(name, other)
    exec(compile(program, str(DOCUMENT), "exec"), {})
    assert len(source.spark.read.parquet(str(tmp_path / "changes")).collect()) == 2


def test_no_secret_gets_out(source: Source, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """After all the others: in what Spark has written, what it shows of plans, its processes, and errors."""
    source.run("INSERT INTO t VALUES (1, 'a')")
    frame = source.range()
    frame.explain("extended")
    assert source.follow() and frame.collect()
    texts = {"output": "".join(capfd.readouterr())}
    made = MySQLCdcDataSource(dict(source.options))
    kept = [made, made.reader(made.schema()), made.streamReader(made.schema())]
    texts["what is sent to tasks"] = repr([pickle.dumps(one) for one in kept]) + repr(kept)
    texts["the plan"] = frame._jdf.queryExecution().toString()
    wrong = folder.parent / f"wrong_{secrets.token_hex(4)}"
    wrong.write_text(source.server.uri("canary_nobody", PASSWORD))
    for broken in ({"conn_id": "", "conn_file": str(wrong)}, {"table": "a.b"}, {"start": "x"}):
        with pytest.raises(Exception) as caught:
            source.spark.read.format("mysql_cdc").options(**(source.options | broken)).load().collect()
        texts[f"error of {json.dumps(sorted(broken))}"] = str(caught.value)
    found = [leak for where, text in texts.items() for leak in leaks(where, text.encode(), PASSWORD)]
    read = 0
    for path in folder.rglob("*"):
        if path.is_file():
            read += 1
            found += leaks(str(path), path.read_bytes(), PASSWORD)
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            found += leaks(f"command line of {process.name}", (process / "cmdline").read_bytes(), PASSWORD)
    assert found == []
    assert read > 10 and any((folder / "events").iterdir())
    assert leaks("the environment", os.environb[b"AIRFLOW_CONN_CDC_LOG"], PASSWORD), "the search would find it"
