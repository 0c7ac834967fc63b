"""Tables that the replication filters of a replica leave out: what is said is what the replica really does."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import pytest

from airflow_provider_cdc.model.errors import NotReadyError
from airflow_provider_cdc.mysql.client.replication_filters import excluding_filter, read_filters
from airflow_provider_cdc.mysql.client.session import connect, query_value
from tests.mysql.client.test_throttle import begin
from tests.support.cli import Cli
from tests.support.servers import MySQLServer

TABLES = ("a.one", "a.two", "a.o_e", "b.one", "b.x%y")
#: Filters as MySQL takes them.
CASES = (
    "REPLICATE_DO_DB = (a)",
    "REPLICATE_IGNORE_DB = (a)",
    "REPLICATE_DO_TABLE = (a.one)",
    "REPLICATE_IGNORE_TABLE = (a.one, b.one)",
    "REPLICATE_WILD_DO_TABLE = ('a.o%')",
    r"REPLICATE_WILD_IGNORE_TABLE = ('a.o\\_e', 'b.x\\%%')",
    "REPLICATE_WILD_IGNORE_TABLE = ('_.o_e')",
    "REPLICATE_DO_DB = (a), REPLICATE_IGNORE_TABLE = (a.two)",
    "REPLICATE_DO_TABLE = (a.one), REPLICATE_WILD_DO_TABLE = ('b.%')",
    "REPLICATE_DO_TABLE = (a.one), REPLICATE_WILD_IGNORE_TABLE = ('a.%')",
    "REPLICATE_IGNORE_TABLE = (a.one), REPLICATE_WILD_DO_TABLE = ('a.%')",
    "REPLICATE_DO_DB = (a, b), REPLICATE_IGNORE_DB = (a)",
)
_NONE = ", ".join(
    f"REPLICATE_{name} = ()"
    for name in ("DO_DB", "IGNORE_DB", "DO_TABLE", "IGNORE_TABLE", "WILD_DO_TABLE", "WILD_IGNORE_TABLE", "REWRITE_DB")
)


def test_what_is_left_out_is_what_the_replica_leaves_out(tmp_path: Path) -> None:
    """Each filter is set on a real replica, a row is written to each table, and what arrives is compared."""
    with MySQLServer() as source, MySQLServer() as replica, closing(connect(replica.connect_args())) as connection:
        source.execute("CREATE USER repl IDENTIFIED BY 'r'")
        source.execute("GRANT REPLICATION SLAVE ON *.* TO repl")
        for database in ("a", "b"):
            source.execute(f"CREATE DATABASE {database}")
        for name in TABLES:
            source.execute("CREATE TABLE {}.`{}` (id INT PRIMARY KEY)".format(*name.split(".")).replace("%", "%%"), ())
        begin(replica, source.connect_args(), delay=0)
        arrive(source, replica)
        for number, case in enumerate(CASES):
            replica.execute("STOP REPLICA")
            replica.execute(f"CHANGE REPLICATION FILTER {_NONE}")
            replica.execute(f"CHANGE REPLICATION FILTER {case}".replace("%%", "%"))
            replica.execute("START REPLICA")
            for name in TABLES:
                text = "INSERT INTO {}.`{}` VALUES ({})".format(*name.split("."), number)
                source.execute(text.replace("%", "%%"), ())
            arrive(source, replica)
            found = read_filters(connection)
            assert found, case
            for name in TABLES:
                database, table = name.split(".")
                there = query_value(connection, f"SELECT COUNT(*) FROM {database}.`{table}` WHERE id = {number}") == "1"
                for one in found:
                    assert there == (excluding_filter(one, database, table) is None), (case, name, found)

        replica.execute("STOP REPLICA")
        replica.execute(f"CHANGE REPLICATION FILTER {_NONE}, REPLICATE_IGNORE_TABLE = (a.two)")
        replica.execute("START REPLICA")
        user = replica.create_cdc_user()
        result = Cli(tmp_path, replica, "a..*", user=user).call("check")
        warned = [line for line in result.out.splitlines() if line.startswith("warning")]
        assert result.code == 0 and len(warned) == 1, result
        assert "table a.two: this server leaves out its changes as a replica (Replicate_Ignore_Table)" in warned[0]


def arrive(source: MySQLServer, replica: MySQLServer) -> None:
    """Wait until the replica has passed everything that the source has."""
    wanted = source.execute("SELECT @@global.gtid_executed")[0][0].replace("\n", "")
    end = time.monotonic() + 60
    while not replica.execute("SELECT GTID_SUBSET(%s, @@global.gtid_executed)", (wanted,))[0][0]:
        assert time.monotonic() < end, replica.execute("SHOW REPLICA STATUS")
        time.sleep(0.05)


def test_a_server_that_is_no_replica_has_no_filters(mysql_server: MySQLServer) -> None:
    with closing(connect(mysql_server.connect_args())) as connection:
        assert read_filters(connection) == []


@pytest.mark.parametrize("limit", [None, 5])
def test_a_limit_of_the_lag_without_a_replica(
    mysql_server: MySQLServer, database: str, tmp_path: Path, limit: int
) -> None:
    mysql_server.execute(f"CREATE TABLE {database}.t (id INT PRIMARY KEY)")
    cli = Cli(tmp_path, mysql_server, rf"{database}\.t", snapshot={"max_replica_lag_seconds": limit})
    assert ("max_replica_lag_seconds has no effect" in cli.call("check").out) == (limit is not None)


def test_databases_that_are_called_otherwise() -> None:
    for text in ("(shop,archive),(x,y)", "shop->archive,x->y"):
        found = {"Replicate_Rewrite_DB": text}
        for database in ("shop", "archive", "x", "y"):  # where rows come to is not what the source has, either
            assert excluding_filter(found, database, "t") == "Replicate_Rewrite_DB"
        assert excluding_filter(found, "other", "t") is None
    assert excluding_filter({"Replicate_Rewrite_DB": "(shop,shop)"}, "shop", "t") is None
    assert excluding_filter({}, "shop", "t") is None


def test_a_server_that_does_not_tell() -> None:
    with MySQLServer({"performance_schema": "OFF"}) as server, closing(connect(server.connect_args())) as connection:
        with pytest.raises(NotReadyError, match="performance_schema is OFF"):
            read_filters(connection)
