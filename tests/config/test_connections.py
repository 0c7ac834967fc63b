"""Connections from the environment, and that their secrets stay there."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_cdc.config.connections import (
    ResolvedConnection,
    connection_risk,
    database_url,
    env_variable_name,
    environment_without_airflow,
    mysql_connect_args,
    read_connection_file,
    remove_airflow_variables,
    resolve_connection,
    scrub_secrets,
    spark_cluster,
    spark_master_and_conf,
)
from airflow_provider_cdc.config.spark_conf import YarnCluster
from airflow_provider_cdc.config.tls import TlsSettings
from airflow_provider_cdc.model.errors import NotReadyError

PASSWORD = "p@ss:w/o#r?d%41 &é"


@pytest.fixture
def define(monkeypatch: pytest.MonkeyPatch) -> Any:
    def define(value: str | dict[str, Any]) -> ResolvedConnection:
        monkeypatch.setenv("AIRFLOW_CONN_MY_DB", value if isinstance(value, str) else json.dumps(value))
        return resolve_connection("my_db")

    return define


def test_address(define: Any) -> None:
    conn = define(f"mysql://us%40er:{quote(PASSWORD, safe='')}@db.example:3307/shop?ssl_ca=/ca.pem&flag=true&n=a%20b")
    assert conn == ResolvedConnection(
        "my_db", "mysql", "db.example", "us@er", PASSWORD, 3307, "shop", {"ssl_ca": "/ca.pem", "flag": True, "n": "a b"}
    )


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("mysql://", ResolvedConnection("my_db", "mysql")),
        ("mysql://h", ResolvedConnection("my_db", "mysql", host="h")),
        ("mysql://u@h", ResolvedConnection("my_db", "mysql", host="h", login="u")),
        ("mysql://u:@h/", ResolvedConnection("my_db", "mysql", host="h", login="u", password="")),
        ("mysql://u:p@ss@h", ResolvedConnection("my_db", "mysql", host="h", login="u", password="p@ss")),
        ("cdc-mysql://h", ResolvedConnection("my_db", "cdc_mysql", host="h")),
        ("cdc_mysql://h", ResolvedConnection("my_db", "cdc_mysql", host="h")),
        ("postgresql://u:p@h:1/d", ResolvedConnection("my_db", "postgres", "h", "u", "p", 1, "d")),
        ("mysql://u:p@[::1]:3306/", ResolvedConnection("my_db", "mysql", "::1", "u", "p", 3306)),
        ("spark://h:7077", ResolvedConnection("my_db", "spark", "h", port=7077)),
        ("k8s://https://h:6443/?namespace=n",
         ResolvedConnection("my_db", "k8s", "https://h", port=6443, extra={"namespace": "n"})),
        ("spark://spark%3A%2F%2Fh%3A1%2Ci%3A2", ResolvedConnection("my_db", "spark", "spark://h:1,i:2")),
        ("mysql://h/?__extra__=%7B%22ssl%22%3A+%7B%22ca%22%3A+%22x%22%7D%7D",
         ResolvedConnection("my_db", "mysql", host="h", extra={"ssl": {"ca": "x"}})),
        ("sqlite:////data/State.db", ResolvedConnection("my_db", "sqlite", schema="/data/State.db")),
        ("sqlite://%2Fdata%2FState.db", ResolvedConnection("my_db", "sqlite", host="/data/State.db")),
    ],
)  # fmt: skip
def test_addresses_are_read_as_airflow_reads_them(uri: str, expected: ResolvedConnection, define: Any) -> None:
    assert define(uri) == expected
    from airflow.sdk import Connection as AirflowConnection

    airflow = AirflowConnection.from_uri(uri.replace("cdc_mysql", "cdc-mysql"), "my_db")
    for name in ("conn_type", "host", "login", "password", "port", "schema"):
        assert (getattr(airflow, name) or None) == (getattr(expected, name) or None)
    assert airflow.extra_dejson == expected.extra


@pytest.mark.parametrize("extra", [{"ssl_ca": "/x"}, '{"ssl_ca": "/x"}'], ids=["mapping", "text"])
def test_json(extra: Any, define: Any) -> None:
    value = {"conn_type": "MySQL", "host": "h", "login": "u", "password": PASSWORD, "port": "3307", "extra": extra}
    assert define(value) == ResolvedConnection("my_db", "mysql", "h", "u", PASSWORD, 3307, None, {"ssl_ca": "/x"})


def test_missing_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_CDC_SOURCE", raising=False)
    with pytest.raises(NotReadyError, match=r"cdc_source is not defined.*AIRFLOW_CONN_CDC_SOURCE"):
        resolve_connection("cdc_source")
    assert env_variable_name("a.b-c") == "AIRFLOW_CONN_A.B-C"


@pytest.mark.parametrize(
    "value",
    [
        "hunter2",
        "mysql:hunter2",
        "mysql://u:hunter2#x@h/",
        "mysql://u:hunter2/x@h/",
        "mysql://u:12/hunter2@h/",
        "mysql://u:12?hunter2@h/",
        "mysql://u:hunter2[@h/",
        "mysql://u:p@h:hunter2/",
        "mysql://u:p@h/?__extra__=hunter2",
        "mysql://u:p@h/?__extra__=[1]",
        "my sql://u:hunter2@h/",
        '{"hunter2',
        '{"conn_type": "mysql", "password": ["hunter2"]}',
        '{"conn_type": "mysql", "port": "hunter2"}',
        '{"conn_type": "mysql", "extra": "hunter2"}',
        '{"password": "hunter2"}',
    ],
)
def test_what_cannot_be_understood_is_not_shown(value: str, define: Any) -> None:
    with pytest.raises(NotReadyError) as error:
        define(value)
    assert "AIRFLOW_CONN_MY_DB cannot be understood" in str(error.value)
    assert "hunter2" not in str(error.value)
    assert error.value.__suppress_context__


def test_repr_shows_no_secret() -> None:
    conn = ResolvedConnection(
        "c", "mysql", password="hunter2", extra={"ssl_key_password": "hunter3", "ssl": {"password": "x4"}}
    )
    assert "hunter" not in repr(conn) + str(conn)
    assert conn.secrets == ("hunter2", "hunter3", "x4")
    assert pickle.loads(pickle.dumps(conn)) == conn
    assert hash(conn)


def test_json_for_another_process() -> None:
    extra = {"ssl": {"ca": "/x"}, "ssl_disabled": False}
    conn = ResolvedConnection("my id", "mysql", "h", "u", PASSWORD, 3307, "shop", extra)
    assert ResolvedConnection.from_json(json.loads(json.dumps(conn.to_json()))) == conn
    assert ResolvedConnection.from_json(ResolvedConnection("c", "sqlite").to_json()) == ResolvedConnection(
        "c", "sqlite"
    )


def test_mysql_args() -> None:
    assert mysql_connect_args(ResolvedConnection("c", "mysql")) == {
        "host": "127.0.0.1",
        "port": 3306,
        "user": "",
        "password": b"",
        "charset": "utf8mb4",
        "autocommit": True,
        "connect_timeout": 10,
        "ssl_mode": "PREFERRED",  # on this host
    }
    extra = {"ssl_ca": "/ca", "ssl_cert": "/c", "ssl_key": "/k", "unix_socket": "/s", "charset": "latin1"}
    args = mysql_connect_args(ResolvedConnection("c", "cdc_mysql", "h", "u", "пароль", 1, "shop", extra))
    assert args["password"] == "пароль".encode()
    assert (args["host"], args["user"], args["port"], args["charset"]) == ("h", "u", 1, "utf8mb4")
    assert {k: v for k, v in args.items() if k.startswith(("ssl", "unix"))} == {
        "ssl_ca": "/ca",
        "ssl_cert": "/c",
        "ssl_key": "/k",
        "unix_socket": "/s",
        "ssl_mode": "VERIFY_CA",  # a socket: there is no name that could be checked
    }
    assert "database" not in args


def test_mysql_args_refuses_what_it_would_lose() -> None:
    with pytest.raises(NotReadyError, match=r"c is of type postgres. It must be one of mysql, mariadb, cdc_mysql"):
        mysql_connect_args(ResolvedConnection("c", "postgres"))
    with pytest.raises(NotReadyError, match=r"extra 'sslmode' is not known. Use only ssl_mode, ssl_ca"):
        mysql_connect_args(ResolvedConnection("c", "mysql", extra={"sslmode": "verify-full"}))
    with pytest.raises(NotReadyError, match="connection c: extra ssl is not a mapping"):
        mysql_connect_args(ResolvedConnection("c", "mysql", extra={"ssl": "yes"}))


def tls(host: str, extra: dict[str, Any]) -> dict[str, Any]:
    args = mysql_connect_args(ResolvedConnection("c", "mysql", host, extra=extra))
    return {key.removeprefix("ssl_"): value for key, value in args.items() if key.startswith("ssl")}


@pytest.mark.parametrize(
    ("extra", "here", "away"),
    [
        ({}, "PREFERRED", "VERIFY_IDENTITY"),
        ({"ssl_mode": "verify_ca", "ssl_ca": "/x"}, "VERIFY_CA", "VERIFY_CA"),
        ({"ssl_mode": "PREFERRED"}, "PREFERRED", "PREFERRED"),
        ({"ssl_ca": "/x"}, "VERIFY_CA", "VERIFY_IDENTITY"),
        ({"ssl_ca": "/x", "ssl_verify_cert": True}, "VERIFY_CA", "VERIFY_IDENTITY"),
        ({"ssl_verify_cert": "true"}, "VERIFY_CA", "VERIFY_IDENTITY"),
        ({"ssl_ca": "/x", "ssl_verify_identity": False}, "VERIFY_CA", "VERIFY_CA"),
        ({"ssl_ca": "/x", "ssl_verify_cert": "false"}, "REQUIRED", "REQUIRED"),
        ({"ssl_verify_cert": False}, "REQUIRED", "REQUIRED"),
        ({"ssl_verify_identity": "yes"}, "VERIFY_IDENTITY", "VERIFY_IDENTITY"),
        ({"ssl_disabled": True}, "DISABLED", "DISABLED"),
        ({"ssl_disabled": False}, "PREFERRED", "VERIFY_IDENTITY"),
        ({"ssl_disabled": True, "ssl_verify_cert": "false", "ssl_ca": "/x"}, "DISABLED", "DISABLED"),
        ({"ssl_cert": "/c"}, "REQUIRED", "VERIFY_IDENTITY"),
        ({"ssl": {"ca": "/x"}}, "VERIFY_CA", "VERIFY_IDENTITY"),
        ({"ssl": '{"ca": "/x", "check_hostname": false}'}, "VERIFY_CA", "VERIFY_CA"),
        ({"ssl": {"cert": "/c", "key": "/k", "password": "p", "cipher": "ALL"}}, "REQUIRED", "VERIFY_IDENTITY"),
        ({"ssl": {"verify_mode": "none"}}, "REQUIRED", "REQUIRED"),
        ({"ssl": {"capath": "/x", "verify_mode": "required"}}, "VERIFY_CA", "VERIFY_IDENTITY"),
    ],
)
def test_what_is_demanded_of_a_server(extra: dict[str, Any], here: str, away: str) -> None:
    for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost", ""):
        assert tls(host, extra)["mode"] == here
    for host in ("db.example", "192.0.2.1", "localhost.example", "127.1", "::ffff:192.0.2.1", "0.0.0.0"):
        args = mysql_connect_args(ResolvedConnection("c", "mysql", host, extra=extra))
        assert args["ssl_mode"] == away
        assert (connection_risk(args) is None) == (away == "VERIFY_IDENTITY")
        # Said again, in the words of one mode: as the connection itself reads it, and of the bookkeeping.
        again = {key: value for key, value in args.items() if key.startswith("ssl")}
        assert TlsSettings.from_settings("c", {**again, "host": host}).as_settings() == again
        url = database_url(ResolvedConnection("c", "mysql", host, schema="d", extra=extra))
        assert {"charset": "utf8mb4", **again} == url.query
        assert connection_risk(url) == connection_risk(args)
    assert connection_risk(mysql_connect_args(ResolvedConnection("c", "mysql", "127.0.0.1", extra=extra))) is None
    assert (
        mysql_connect_args(ResolvedConnection("c", "mysql", "db", extra={**extra, "unix_socket": "/s"}))["ssl_mode"]
        == here
    )


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (
            {"ssl_mode": "VERIFY"},
            "its ssl_mode is not known. It must be one of DISABLED, PREFERRED, REQUIRED",
        ),
        ({"ssl_mode": "REQUIRED", "ssl_disabled": True}, "ssl_disabled is true, which contradicts ssl_mode REQUIRED"),
        ({"ssl_mode": "DISABLED", "ssl_disabled": False}, "ssl_disabled is false, which contradicts ssl_mode DISABLED"),
        ({"ssl_mode": "REQUIRED", "ssl_verify_cert": True}, "ssl_verify_cert is true, which contradicts ssl_mode"),
        ({"ssl_mode": "VERIFY_IDENTITY", "ssl_verify_cert": False}, "ssl_verify_cert is false, which contradicts"),
        ({"ssl_mode": "VERIFY_CA", "ssl_ca": "/x", "ssl_verify_identity": True}, "ssl_verify_identity is true"),
        ({"ssl_mode": "VERIFY_IDENTITY", "ssl_verify_identity": False}, "ssl_verify_identity is false"),
        (
            {"ssl_disabled": True, "ssl_verify_identity": True},
            "ssl_verify_identity is true, which contradicts",
        ),
        (
            {"ssl_disabled": True, "ssl_verify_cert": True},
            "ssl_verify_cert is true, which contradicts",
        ),
        ({"ssl_verify_identity": True, "ssl_verify_cert": False}, "contradicts ssl_verify_identity=true"),
        ({"ssl_mode": "REQUIRED", "ssl_ca": "/x"}, "ssl_ca has no effect with ssl_mode REQUIRED"),
        ({"ssl_mode": "DISABLED", "ssl_cert": "/x"}, "ssl_cert has no effect with ssl_mode DISABLED"),
        (
            {"ssl_mode": "VERIFY_CA"},
            "without a check of the name, any certificate from the system's",
        ),
        ({"ssl_verify_identity": False}, "without a check of the name"),
        ({"ssl_verify_cert": "ture"}, "ssl_verify_cert is neither true nor false"),
        ({"ssl": {"verify_mode": "perhaps"}}, "ssl.verify_mode is neither true nor false"),
        ({"ssl": {"ca": "/x"}, "ssl_ca": "/y"}, "ssl.ca and ssl_ca contradict each other"),
        ({"ssl": {"mode": "x"}}, "ssl.mode is not known"),
        ({"ssl_key": "/k"}, "ssl_key has no effect without ssl_cert"),
    ],
)
def test_contradictions_are_refused_by_name(extra: dict[str, Any], words: str) -> None:
    for make in (mysql_connect_args, database_url):
        with pytest.raises(NotReadyError) as error:
            make(ResolvedConnection("c", "mysql", "db.example", schema="d", extra=extra))
        assert words in str(error.value) and str(error.value).startswith("connection c: ")


def test_what_is_demanded_of_a_postgresql(monkeypatch: pytest.MonkeyPatch) -> None:
    def query(host: str | None, **extra: Any) -> dict[str, Any]:
        return dict(database_url(ResolvedConnection("c", "postgres", host, schema="d", extra=extra)).query)

    def risk(**extra: Any) -> str:
        return str(connection_risk(database_url(ResolvedConnection("c", "postgres", "db", schema="d", extra=extra))))

    for here in (None, "localhost", "127.0.0.1", "::1", "/run/postgresql"):
        assert query(here) == {} and query(here, sslmode="disable") == {"sslmode": "disable"}
    safe = {"gssencmode": "disable", "sslmode": "verify-full"}
    assert query("db") == {**safe, "sslrootcert": "system"} and query("localhost,db") == query("db")
    assert query("db", sslrootcert="/x", sslcert="") == {**safe, "sslrootcert": "/x"}
    assert query("db", sslmode="verify-full") == safe  # libpq has a file of its own for that
    assert query("db", sslmode="disable", gssencmode="require") == {
        "sslmode": "disable", "gssencmode": "require", "require_auth": "scram-sha-256"
    }  # fmt: skip
    assert query("db", sslmode="require", sslrootcert="/x") == {**safe, "sslmode": "require", "sslrootcert": "/x"}
    assert query("db", sslmode="prefer", require_auth="md5,scram-sha-256")["require_auth"] == "md5,scram-sha-256"
    assert query("db", require_auth="password")["require_auth"] == "password"
    assert risk() == risk(sslmode="require", channel_binding="require") == "None"
    assert "nothing is encrypted" in risk(sslmode="disable") and "not checked" in risk(sslmode="require")
    assert "name" in risk(sslmode="verify-ca") and "name" in risk(sslmode="require", sslrootcert="/x")
    import psycopg

    monkeypatch.setattr(psycopg.pq, "version", lambda: 150004)
    assert query("db", sslrootcert="/x")["sslrootcert"] == "/x"
    for extra in ({}, {"sslmode": "disable"}):
        with pytest.raises(NotReadyError, match="libpq 15 supports neither"):
            query("db", **extra)


def test_what_a_form_leaves_empty_is_not_said() -> None:
    extra = {"ssl_ca": "/ca", "ssl_cert": "", "ssl_key": None, "ssl_verify_cert": None, "ssl_disabled": ""}
    args = mysql_connect_args(ResolvedConnection("c", "cdc_mysql", extra=extra))
    assert {k: v for k, v in args.items() if k.startswith("ssl")} == {"ssl_ca": "/ca", "ssl_mode": "VERIFY_CA"}


SPARK = [
    (
        ResolvedConnection("c", "spark", "yarn", extra={"queue": "root.default"}),
        "yarn",
        {"spark.yarn.queue": "root.default"},
    ),
    (ResolvedConnection("c", "spark", "spark://h1:7077,h2:7077"), "spark://h1:7077,h2:7077", {}),
    (ResolvedConnection("c", "spark", "spark://h", port=7077), "spark://h:7077", {}),
    (ResolvedConnection("c", "spark", "h", port=7077), "spark://h:7077", {}),
    (ResolvedConnection("c", "spark", "local[*]"), "local[*]", {}),
    (ResolvedConnection("c", "local"), "local", {}),
    (ResolvedConnection("c", "yarn"), "yarn", {}),
    (
        ResolvedConnection("c", "spark", "k8s://https://h", port=443, extra={"namespace": "n"}),
        "k8s://https://h:443",
        {"spark.kubernetes.namespace": "n"},
    ),
    (ResolvedConnection("c", "k8s", "https://h", port=6443), "k8s://https://h:6443", {}),
    # As Airflow's form leaves it.
    (
        ResolvedConnection(
            "c",
            "spark",
            "local",
            extra={"deploy-mode": "client", "spark-binary": "spark-submit", "queue": None, "namespace": ""},
        ),
        "local",
        {},
    ),
    (ResolvedConnection("c", "spark", "local", extra={"keytab": "", "rest-port": 6066}), "local", {}),
    (ResolvedConnection("c", "yarn", extra={"yarn_resourcemanager_webapp_address": "rm:8088"}), "yarn", {}),
    (ResolvedConnection("c", "yarn", extra={"deploy-mode": "cluster"}), "yarn", {}),
]


@pytest.mark.parametrize(("conn", "master", "conf"), SPARK, ids=lambda v: v if isinstance(v, str) else "")
def test_spark_connections(conn: ResolvedConnection, master: str, conf: dict[str, str]) -> None:
    assert spark_master_and_conf(conn) == (master, conf)


def test_spark_connections_are_read_as_the_spark_provider_reads_them() -> None:
    """The same master for each, but where Spark itself would refuse the provider's."""
    from airflow import sdk
    from airflow.providers.apache.spark.hooks import spark_submit as hooks

    for conn, master, _ in SPARK:
        theirs = sdk.Connection(
            conn_id="c", conn_type=conn.conn_type, host=conn.host, port=conn.port, extra=json.dumps(dict(conn.extra))
        )

        class Hook(hooks.SparkSubmitHook):
            get_connection = classmethod(lambda cls, conn_id, found=theirs: found)

            def __init__(self) -> None:
                self._conn_id = "c"
                self._principal = self._keytab = self._yarn_queue = self._deploy_mode = self.spark_binary = None
                self._conf: dict[str, str] = {}

        found = Hook()._resolve_connection()
        assert {"yarn://": "yarn", "local://": "local"}.get(found["master"], found["master"]) == master


@pytest.mark.parametrize(
    ("conn", "words"),
    [
        (
            ResolvedConnection("c", "mysql", "h"),
            "connection c is of type mysql. It must be one of spark, yarn, k8s, local",
        ),
        (ResolvedConnection("c", "spark"), "the master of connection c is 'spark://'. It must be local, local[N]"),
        (ResolvedConnection("c", "spark", "h"), "the master of connection c is 'h'"),
        (ResolvedConnection("c", "spark", "mesos://h:5050"), "'mesos://h:5050'"),
        (ResolvedConnection("c", "spark", "spark://u:hunter2@h:1"), "the master of connection c is not the address"),
        (ResolvedConnection("c", "spark", "yarn", extra={"keytab": "hunter2"}), "extra 'keytab' is not supported"),
        (
            ResolvedConnection("c", "spark", "yarn", extra={"principal": "p"}),
            "'principal' is not supported. Give the user of the Airflow workers a Kerberos ticket",
        ),
        (
            ResolvedConnection("c", "spark", "yarn", extra={"spark-binary": "spark3-submit"}),
            "'spark-binary' is not supported",
        ),
        (ResolvedConnection("c", "spark", "yarn", extra={"spark-home": "/x"}), "extra 'spark-home' is not known"),
        (ResolvedConnection("c", "spark", "yarn", password="hunter2"), "has a login or password"),
        (
            ResolvedConnection("c", "spark", "local[4]", extra={"queue": "q"}),
            "connection c: extra 'queue' has no effect with master local[4]. Leave it out",
        ),
        (ResolvedConnection("c", "spark", "k8s://h:6443", extra={"queue": "q"}), "extra 'queue' has no effect"),
        (ResolvedConnection("c", "spark", "yarn", extra={"namespace": "n"}), "extra 'namespace' has no effect"),
        (ResolvedConnection("c", "spark", "spark://h:7077", extra={"namespace": "n"}), "extra 'namespace' has no"),
        (ResolvedConnection("c", "k8s", "http://h", port=8080), "would travel in clear text. Write k8s://https://"),
    ],
)
def test_spark_connections_that_are_refused(conn: ResolvedConnection, words: str) -> None:
    with pytest.raises(NotReadyError) as error:
        spark_master_and_conf(conn)
    assert words in str(error.value)
    assert "hunter2" not in str(error.value)


YARN_RM = "yarn_resourcemanager_webapp_address"


@pytest.mark.parametrize(
    ("host", "extra", "found"),
    [
        ("yarn", {}, None),
        ("yarn", {YARN_RM: ""}, None),
        ("spark://h:7077", {"deploy-mode": "client", YARN_RM: "rm:8088"}, f"extra '{YARN_RM}' has no effect"),
        (
            "yarn",
            {"deploy-mode": "client", YARN_RM: "rm:8088"},
            "has no effect. Leave it out: it is for deploy-mode cluster with the master yarn",
        ),
        ("yarn", {"deploy-mode": "cluster", YARN_RM: "rm:8088"}, "http://rm:8088"),
        ("yarn", {"deploy-mode": "cluster", YARN_RM: "https://rm:8090/"}, "https://rm:8090"),
        ("yarn", {"deploy-mode": "cluster", YARN_RM: "http://a:1/, b:2"}, "http://a:1,http://b:2"),
        ("yarn", {"deploy-mode": "cluster", YARN_RM: "http://a:1,"}, f"extra {YARN_RM} is not an address"),
        ("yarn", {"deploy-mode": "cluster"}, f"the extra {YARN_RM} is missing. Add the address"),
        ("yarn", {"deploy-mode": "cluster", YARN_RM: "http://u:hunter2@rm"}, f"extra {YARN_RM} is not an address"),
        ("yarn", {"deploy-mode": "clutser"}, "'clutser'"),
        (
            "spark://h:7077",
            {"deploy-mode": "cluster"},
            "its master is spark://h:7077: cluster deploy mode is currently not supported for python applications on "
            "standalone clusters. Set deploy-mode to client",
        ),
        ("local[2]", {"deploy-mode": "cluster"}, "Spark has no cluster mode with a local master"),
        ("k8s://https://h:443", {}, None),
        ("k8s://https://h:443", {"kubernetes_conn_id": ""}, None),
        ("k8s://https://h:443", {"kubernetes_conn_id": "k"}, "connection c: extra 'kubernetes_conn_id' has no effect"),
        (
            "yarn",
            {"deploy-mode": "cluster", YARN_RM: "rm:8088", "kubernetes_conn_id": "k"},
            "has no effect. Leave it out: it is for deploy-mode cluster with a k8s:// master",
        ),
    ],
)
def test_where_drivers_run(host: str, extra: dict[str, str], found: str | None) -> None:
    connection = ResolvedConnection("c", "spark", host, extra=extra)
    if found is None or found.startswith("http"):
        assert spark_cluster(connection) == (found and YarnCluster(found))
        return
    with pytest.raises(NotReadyError) as error:
        spark_cluster(connection)
    assert found in str(error.value) and "hunter2" not in str(error.value)


def test_database_urls(define: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert database_url(define("sqlite:////data/state.db")).database == "/data/state.db"
    assert (
        database_url(ResolvedConnection("c", "sqlite", host="/data/x.db")).render_as_string() == "sqlite:////data/x.db"
    )
    with pytest.raises(NotReadyError, match="four slashes"):
        database_url(define("sqlite:///state.db"))
    url = database_url(ResolvedConnection("c", "mysql", "h", "u", PASSWORD, None, "state", {"ssl_ca": "/x"}))
    assert (url.drivername, url.password, url.port, url.query["ssl_ca"]) == ("mysql+pymysql", PASSWORD, 3306, "/x")
    with pytest.raises(NotReadyError, match="names no database"):
        database_url(ResolvedConnection("c", "mysql", "h"))
    with pytest.raises(NotReadyError, match="Use sqlite, postgres or mysql"):
        database_url(ResolvedConnection("c", "oracle", "h"))
    with pytest.raises(NotReadyError, match="'sslmode' is not known"):
        database_url(ResolvedConnection("c", "mysql", "h", schema="d", extra={"sslmode": True}))
    find = "airflow_provider_cdc.config.connections.importlib.util.find_spec"
    monkeypatch.setattr(find, lambda name: name == "psycopg2")
    url = database_url(ResolvedConnection("c", "postgres", "localhost", "u", "p", 1, "d", {"sslmode": "require"}))
    assert url.render_as_string() == "postgresql+psycopg2://u:***@localhost:1/d?sslmode=require"
    monkeypatch.setattr(find, lambda name: None)
    with pytest.raises(NotReadyError, match="no PostgreSQL driver"):
        database_url(ResolvedConnection("c", "postgres", "h", schema="d"))


def test_strip_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AIRFLOW")]:
        monkeypatch.delenv(name)
    names = {"AIRFLOW_CONN_X", "AIRFLOW__CORE__FERNET_KEY", "AIRFLOW_VAR_TOKEN"}
    # What a task's process has besides: address of the database, JWT secret, context, its start-up message.
    names |= {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "AIRFLOW__API_AUTH__JWT_SECRET", "AIRFLOW_CTX_DAG_ID"}
    names |= {"_AIRFLOW__STARTUP_MSG", "_AIRFLOW_WWW_USER_PASSWORD", "__AIRFLOW_SUPERVISOR_FD"}
    for name in names | {"AIRFLOW_HOME", "AIRFLOW_CDC_STATE_DIR", "MY_AIRFLOW_TOOL"}:
        monkeypatch.setenv(name, "hunter2")
    before = dict(os.environ)
    clean = environment_without_airflow()
    assert {name for name in before if name not in clean} == names
    assert dict(os.environ) == before
    assert set(remove_airflow_variables()) == names
    assert dict(os.environ) == clean
    monkeypatch.delenv("MY_AIRFLOW_TOOL")
    assert {name for name in os.environ if name.startswith("AIRFLOW")} == {
        "AIRFLOW_HOME", "AIRFLOW_CDC_STATE_DIR"
    }  # fmt: skip
    assert remove_airflow_variables() == ()


def test_scrub() -> None:
    forms = [
        PASSWORD,
        quote(PASSWORD),
        quote(PASSWORD, safe=""),
        quote_plus(PASSWORD),
        json.dumps(PASSWORD),
        repr(PASSWORD),
    ]
    forms.append(quote(PASSWORD, safe="").lower())
    text = scrub_secrets(" | ".join(forms), [PASSWORD, ""])
    assert text == """*** | *** | *** | *** | "***" | '***' | ***"""
    assert scrub_secrets("abcd", ["bc", "abcd"]) == "***"
    assert scrub_secrets("a*b", ["*"]) == "a***b"
    assert scrub_secrets("text", []) == "text"


@given(st.text(min_size=4), st.text(alphabet="xyz "), st.text(alphabet="xyz "))
def test_scrub_leaves_no_secret(secret: str, before: str, after: str) -> None:
    assert secret not in scrub_secrets(before + secret + after, [secret]).replace("***", "")


def test_a_file_holds_what_else_the_environment_does(tmp_path: Path) -> None:
    file = tmp_path / "login"
    file.write_text("mysql://u:s%2Fcret@db:3307/\n")
    found = read_connection_file(str(file))
    assert (found.host, found.port, found.login, found.password) == ("db", 3307, "u", "s/cret")
    file.write_text("mysql:/u:hunter2@db")
    with pytest.raises(NotReadyError, match="its content cannot be understood") as caught:
        read_connection_file(str(file))
    assert "hunter2" not in str(caught.value)
    with pytest.raises(NotReadyError, match=r"none cannot be read \(FileNotFoundError\)"):
        read_connection_file(str(tmp_path / "none"))
