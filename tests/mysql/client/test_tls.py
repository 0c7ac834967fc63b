"""Real servers that prove who they are, or not. The client sees them as off this host: :mod:`tests.support.rogue`."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.airflow.hooks.mysql import CdcMySqlHook
from airflow_provider_cdc.config import Pipeline, Sink, Source, State
from airflow_provider_cdc.config.connections import ResolvedConnection, database_url, mysql_connect_args
from airflow_provider_cdc.model.errors import NotReadyError
from airflow_provider_cdc.mysql.binlog.events.binlog_stream import BinlogStream
from airflow_provider_cdc.mysql.client.identity import binlog_status
from airflow_provider_cdc.mysql.client.session import connect, query_rows
from airflow_provider_cdc.preflight.run import run_preflight
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.state import StateDatabase
from tests.support.mariadb import MariaDBServer
from tests.support.postgres import Postgres, _unprivileged
from tests.support.rogue import AWAY, ELSEWHERE, Certificate, certify
from tests.support.servers import MySQLServer


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return certify(tmp_path_factory.mktemp("right"), AWAY, "localhost")


@pytest.fixture(scope="module", params=[MySQLServer, MariaDBServer], ids=["MySQL", "MariaDB"])
def tls_server(request: pytest.FixtureRequest, certificate: Certificate) -> Iterator[MySQLServer]:
    files = {"ca": certificate.ca, "cert": certificate.cert, "key": certificate.key}
    with request.param(args=[f"--ssl-{name}={path}" for name, path in files.items()]) as server:
        server.execute("CREATE DATABASE state")
        yield server


def fresh(server: MySQLServer) -> dict[str, str]:
    """A user who has never logged in: MySQL wants the full exchange of him. His password is none of Latin-1."""
    user = server.create_cdc_user(f"u_{secrets.token_hex(4)}", f"пароль {secrets.token_hex(8)}")
    server.execute(f"GRANT ALL ON state.* TO '{user['user']}'@'%'")
    return user


def conn(server: MySQLServer, user: dict[str, str], host: str = AWAY, **extra: Any) -> ResolvedConnection:
    return ResolvedConnection("c", "mysql", host, user["user"], user["password"], server.port, "state", extra)


def in_tls(found: ResolvedConnection) -> bool:
    with closing(connect(mysql_connect_args(found))) as connection:
        return bool(query_rows(connection, "SHOW SESSION STATUS LIKE 'Ssl_cipher'")[0][1])


def test_a_server_that_proves_itself(
    tls_server: MySQLServer, certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    ca = str(certificate.ca)
    assert in_tls(conn(tls_server, fresh(tls_server), ssl_ca=ca))
    assert in_tls(conn(tls_server, fresh(tls_server), ssl={"ca": ca}))
    assert in_tls(conn(tls_server, fresh(tls_server), ELSEWHERE, ssl_ca=ca, ssl_mode="VERIFY_CA"))
    right = conn(tls_server, fresh(tls_server), ssl_ca=ca)
    with closing(connect(mysql_connect_args(right))) as connection:
        at, _, _ = binlog_status(connection)
    right = conn(tls_server, fresh(tls_server), ssl_ca=ca)
    uuid = "11111111-1111-1111-1111-111111111111"
    options: dict[str, Any] = {"server_id": 77, "replica_uuid": uuid, "file": at.file, "position": at.position}
    with BinlogStream(mysql_connect_args(right), **options) as stream:
        assert next(iter(stream)).file == at.file
    with closing(
        StateDatabase.open(database_url(conn(tls_server, fresh(tls_server), ssl_ca=ca)), migrate=True)
    ) as store:
        assert store.table_progress("p", 1) is not None
    monkeypatch.setenv("SSL_CERT_FILE", ca)  # the authorities of the system
    assert in_tls(conn(tls_server, fresh(tls_server)))


def test_one_that_does_not(tls_server: MySQLServer, certificate: Certificate, tmp_path: Path) -> None:
    other, ca = str(certify(tmp_path, AWAY).ca), str(certificate.ca)
    for host, extra, words in (
        (ELSEWHERE, {"ssl_ca": ca}, "not valid for '127.0.1'"),
        (AWAY, {"ssl_ca": other}, "certificate verify failed"),
        (AWAY, {"ssl_ca": other, "ssl_mode": "VERIFY_CA"}, "certificate verify failed"),
        (AWAY, {}, "certificate verify failed"),
        (AWAY, {"ssl_ca": "/nowhere/ca.pem"}, "ssl_ca /nowhere/ca.pem cannot be used"),
        (AWAY, {"ssl_ca": ca, "ssl_cert": ca}, f"ssl_cert {ca} cannot be used"),
    ):
        with pytest.raises(NotReadyError, match=words):
            in_tls(conn(tls_server, fresh(tls_server), host, **extra))


def test_the_check_given_up(tls_server: MySQLServer, certificate: Certificate, monkeypatch: pytest.MonkeyPatch) -> None:
    """A challenge is answered; the full exchange, which MySQL wants of a user who is new to it, is not begun."""
    mariadb = isinstance(tls_server, MariaDBServer)
    for extra in ({"ssl_mode": "REQUIRED"}, {"ssl_mode": "PREFERRED"}, {"ssl_disabled": True}):
        user = fresh(tls_server)
        if not mariadb:
            with pytest.raises(NotReadyError, match="asks for the password itself.*ca.pem"):
                in_tls(conn(tls_server, user, **extra))
            assert in_tls(conn(tls_server, user, ssl_ca=str(certificate.ca)))  # from now on the server knows it
        found = conn(tls_server, user, **extra)
        assert in_tls(found) == ("ssl_mode" in extra)
        monkeypatch.setattr(
            "airflow_provider_cdc.airflow.hooks.mysql.resolve_connection", {"cdc_mysql_default": found}.__getitem__
        )
        worked, text = CdcMySqlHook().test_connection()
        assert worked and ", but " in text and "can impersonate the server" in text


def test_on_this_host_nothing_is_demanded(tls_server: MySQLServer) -> None:
    for host in ("127.0.0.1", "localhost"):
        for extra in ({}, {"ssl_disabled": True}, {"ssl_mode": "REQUIRED"}):
            assert in_tls(conn(tls_server, fresh(tls_server), host, **extra)) == (not extra.get("ssl_disabled"))


def test_the_authority_that_mysql_makes_itself(mysql_server: MySQLServer) -> None:
    """What the messages advise."""
    if mysql_server._folder is None:
        pytest.skip("its data folder is not here")
    mysql_server.execute("CREATE DATABASE IF NOT EXISTS state")
    ca = mysql_server._folder / "data/ca.pem"
    assert ca.stat().st_mode & 0o004, "docker/compose.yaml relies on it"
    with pytest.raises(NotReadyError, match="VERIFY_CA"):
        in_tls(conn(mysql_server, fresh(mysql_server), ssl_ca=str(ca)))
    assert in_tls(conn(mysql_server, fresh(mysql_server), ssl_ca=str(ca), ssl_mode="VERIFY_CA"))


def test_check_tells_what_is_unsafe(tls_server: MySQLServer, certificate: Certificate, tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    key.write_bytes(certificate.key.read_bytes())
    key.chmod(0o644)
    ca, user = str(certificate.ca), fresh(tls_server)
    assert in_tls(conn(tls_server, user, ssl_ca=ca))

    def warnings(source: dict[str, Any], state: ResolvedConnection) -> list[str]:
        pipeline = Pipeline(
            name="p",
            source=Source("src", ("state..*",)),
            sink=Sink(str(tmp_path / "lake")),
            state=State("books"),
        )
        found = {"src": conn(tls_server, user, **source), "books": state}
        said = run_preflight(RunContext.for_pipeline(pipeline, find_connection=found.__getitem__), spark=False)
        return [f"{f.message} {f.remedy}" for f in said if "conn_id" in f.message and f.level == "warning"]

    books = ResolvedConnection("b", "postgres", "db.example", "u", "p", schema="d")
    assert warnings({"ssl_ca": ca}, books) == []
    client = {"ssl_ca": ca, "ssl_cert": str(certificate.cert), "ssl_key": str(key)}
    (said,) = warnings(client, ResolvedConnection("b", "sqlite", "/x"))
    assert said == f"source.conn_id src: the key {key} is readable by other users chmod 600 {key}"
    source, state = warnings(
        {"ssl_ca": ca, "ssl_mode": "VERIFY_CA"},
        ResolvedConnection("b", "postgres", "db.example", "u", "p", schema="d", extra={"sslmode": "disable"}),
    )
    assert source.startswith("source.conn_id src: the name in the server's certificate is not checked")
    assert state.startswith("state.conn_id books: nothing is encrypted") and "Remove sslmode from its extra" in state
    source, state = warnings(
        {"ssl_mode": "REQUIRED"},
        ResolvedConnection("b", "mysql", "db.example", schema="d", extra={"ssl_disabled": True}),
    )
    assert "not checked" in source and "Remove ssl_mode from its extra" in source and "nothing is encrypted" in state
    assert not any(user["password"] in text for text in (source, state))


# ---------------------------------------------------------------- PostgreSQL


@pytest.fixture(scope="module")
def postgres(certificate: Certificate) -> Iterator[Postgres]:
    with Postgres() as server:
        assert server._folder is not None
        for name, path in {"server.crt": certificate.cert, "server.key": certificate.key}.items():
            file = server._folder / "data" / name
            file.touch(mode=0o600)
            file.write_bytes(path.read_bytes())
            if os.geteuid() == 0:
                os.chown(file, *_unprivileged())
        server.execute("ALTER SYSTEM SET ssl = on")
        server.execute("SELECT pg_reload_conf()")
        yield server


def test_a_postgresql(postgres: Postgres, certificate: Certificate, tmp_path: Path, monkeypatch: Any) -> None:
    def opens(host: str = AWAY, **extra: Any) -> bool:
        password = postgres.passwords["bookkeeping"]
        found = ResolvedConnection("c", "postgres", host, "bookkeeping", password, postgres.port, "bookkeeping", extra)
        with closing(StateDatabase.open(database_url(found), migrate=True)) as store:
            with store._engine.connect() as connection:
                mine = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
                return bool(connection.exec_driver_sql(mine).scalar())

    other, ca = str(certify(tmp_path, AWAY).ca), str(certificate.ca)
    assert opens(sslrootcert=ca) and opens("localhost", sslrootcert=ca, sslmode="verify-full")
    assert opens(ELSEWHERE, sslrootcert=ca, sslmode="verify-ca")
    assert opens(sslmode="require", channel_binding="require") and opens(sslmode="require")
    assert not opens(sslmode="disable") and opens("127.0.0.1")
    for host, extra, words in (
        (ELSEWHERE, {"sslrootcert": ca}, "server certificate for"),
        (AWAY, {"sslrootcert": other}, "certificate verify failed"),
        (AWAY, {}, "certificate verify failed"),
        (AWAY, {"sslrootcert": "/nowhere/ca.pem"}, "root certificate file"),
        (AWAY, {"sslmode": "disable", "channel_binding": "require"}, "channel binding"),
    ):
        with pytest.raises(NotReadyError, match=words):
            opens(host, **extra)
    monkeypatch.setenv("SSL_CERT_FILE", ca)
    assert opens()
    postgres.execute("ALTER SYSTEM SET ssl = off")
    postgres.execute("SELECT pg_reload_conf()")
    with pytest.raises(NotReadyError, match="does not support SSL"):
        opens(sslrootcert=ca)
