"""What a server learns that is not the one that was meant: nothing of the password, by whichever way we come.

See :mod:`tests.support.rogue`: to the client these servers are not on this host.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.airflow.hooks.mysql import CdcMySqlHook
from airflow_provider_cdc.config.connections import ResolvedConnection, database_url, mysql_connect_args
from airflow_provider_cdc.model.errors import NotReadyError
from airflow_provider_cdc.mysql.binlog.events.binlog_stream import BinlogStream
from airflow_provider_cdc.mysql.client.session import connect, query_bytes
from airflow_provider_cdc.state import StateDatabase
from tests.support.rogue import AWAY, ELSEWHERE, Certificate, RogueMySQL, RoguePostgres, certify

PASSWORD = "hunter2 the password"
USER = "cdc_user"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """Of an authority that nobody trusts, for the right name."""
    return certify(tmp_path_factory.mktemp("rogue"), AWAY)


def source(port: int, host: str = AWAY, **extra: Any) -> ResolvedConnection:
    return ResolvedConnection("source", "cdc_mysql", host, USER, PASSWORD, port, extra=extra)


def session(conn: ResolvedConnection, _: pytest.MonkeyPatch) -> None:
    """Of the driver and, with arguments that came by a job, of an executor."""
    with closing(connect(pickle.loads(pickle.dumps(mysql_connect_args(conn))))) as connection:
        query_bytes(connection, "SELECT 1")


def binlog(conn: ResolvedConnection, _: pytest.MonkeyPatch) -> None:
    uuid = "11111111-1111-1111-1111-111111111111"
    with BinlogStream(
        mysql_connect_args(conn), server_id=77, replica_uuid=uuid, file="b.1", position=4, read_timeout=5
    ):
        pass


def bookkeeping(conn: ResolvedConnection, _: pytest.MonkeyPatch) -> None:
    StateDatabase.open(
        database_url(ResolvedConnection("s", "mysql", conn.host, USER, PASSWORD, conn.port, "state", conn.extra)),
        migrate=False,
    )


def hook(conn: ResolvedConnection, patch: pytest.MonkeyPatch) -> None:
    patch.setattr("airflow_provider_cdc.airflow.hooks.mysql.resolve_connection", lambda _: conn)
    worked, text = CdcMySqlHook().test_connection()
    assert not worked and PASSWORD not in text
    raise NotReadyError(text, "")


WAYS = [session, binlog, bookkeeping, hook]
#: What a server may ask for that is the password, or as good as it.
WISHES: dict[str, dict[str, Any]] = {
    "clear text": {"switch": "mysql_clear_password"},
    "dialog": {"switch": "dialog"},
    "sha256, greeted": {"greets": "sha256_password"},
    "sha256, switched": {"switch": "sha256_password"},
    "full exchange": {"full": True},
    "full exchange, switched": {"greets": "mysql_native_password", "switch": "caching_sha2_password", "full": True},
    "old password": {"switch": "mysql_old_password"},
}
#: How the check of the server can be given up; other words for it are in test_connections.
OPT_OUTS: list[dict[str, Any]] = [{"ssl_mode": mode} for mode in ("REQUIRED", "PREFERRED", "DISABLED")]


def refused(
    way: Callable[[ResolvedConnection, pytest.MonkeyPatch], None], conn: ResolvedConnection, patch: pytest.MonkeyPatch
) -> str:
    with pytest.raises(NotReadyError) as found:
        way(conn, patch)
    assert PASSWORD not in str(found.value)
    return str(found.value)


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
@pytest.mark.parametrize("way", WAYS)
def test_an_unknown_server_learns_nothing(
    way: Any, tls: bool, certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default: not even the user's name, be it that it offers no TLS (as one that lets others do so, and strips the
    offer), or that nobody vouches for its certificate."""
    for wish in WISHES.values():
        with RogueMySQL(certificate if tls else None, **wish) as rogue:
            said = refused(way, source(rogue.port), monkeypatch)
            assert rogue.connections and rogue.sent == []
            assert ("certificate verify failed" if tls else "offers no TLS") in said and "ssl_mode" in said


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
@pytest.mark.parametrize("way", WAYS)
def test_without_the_check_it_never_learns_the_password(
    way: Any, tls: bool, certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    for extra in OPT_OUTS:
        for name, wish in WISHES.items():
            with RogueMySQL(certificate if tls else None, **wish) as rogue:
                with pytest.raises(Exception) as found:
                    way(source(rogue.port, **extra), monkeypatch)
                assert not rogue.learned(PASSWORD), (extra, name)
                assert PASSWORD not in str(found.value)
                if rogue.sent and name != "old password":
                    assert "asks for the password itself" in str(found.value), (extra, name)


@pytest.mark.parametrize("way", WAYS)
def test_a_certificate_for_another_name(way: Any, certificate: Certificate, monkeypatch: pytest.MonkeyPatch) -> None:
    ca = str(certificate.ca)
    for extra in ({"ssl_ca": ca}, {"ssl_ca": ca, "ssl_verify_cert": True}, {"ssl": {"ca": ca}}):
        with RogueMySQL(certificate, full=True) as rogue:
            assert "not valid for '127.0.1'" in refused(way, source(rogue.port, ELSEWHERE, **extra), monkeypatch)
            assert rogue.sent == []


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", AWAY])
@pytest.mark.parametrize("way", WAYS)
def test_no_file_is_handed_out(way: Any, host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever Airflow's own hook would be allowed by the connection."""
    file = tmp_path / "secret"
    file.write_text("hunter2 of a file")
    with RogueMySQL(file=str(file)) as rogue:
        extra = {"local_infile": True, **({"ssl_mode": "DISABLED"} if host == AWAY else {})}
        assert "LOCAL INFILE" in refused(way, source(rogue.port, host, **extra), monkeypatch)
        assert not rogue.learned("hunter2 of a file")


@pytest.mark.parametrize("wish", WISHES)
def test_these_servers_do_learn_it_where_they_are_trusted(
    wish: str, certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proof that they would notice: on this host, plain or not, and away behind a certificate that is right."""
    for host, tls in (("127.0.0.1", None), ("127.0.0.1", certificate), ("localhost", None), (AWAY, certificate)):
        with RogueMySQL(tls, **WISHES[wish]) as rogue:
            extra = {"ssl_ca": str(certificate.ca)} if host == AWAY else {}
            with pytest.raises(Exception):  # noqa: B017 whatever: it speaks no SQL
                session(source(rogue.port, host, **extra), monkeypatch)
            assert rogue.learned(PASSWORD) == (wish != "old password"), (host, tls)


# ---------------------------------------------------------------- PostgreSQL


def postgres(port: int, host: str = AWAY, **extra: Any) -> ResolvedConnection:
    return ResolvedConnection("state", "postgres", host, USER, PASSWORD, port, "state", extra)


@pytest.fixture(params=["plain", "TLS"])
def rogue(request: pytest.FixtureRequest, certificate: Certificate) -> Iterator[RoguePostgres]:
    with RoguePostgres(certificate if request.param == "TLS" else None) as found:
        yield found


def test_an_unknown_postgresql_learns_nothing(rogue: RoguePostgres) -> None:
    with pytest.raises(NotReadyError) as found:
        StateDatabase.open(database_url(postgres(rogue.port)), migrate=False)
    assert rogue.connections and rogue.sent == [] and PASSWORD not in str(found.value)
    assert "sslmode" in str(found.value)


@pytest.mark.parametrize("sslmode", ["disable", "allow", "prefer", "require"])
def test_without_the_check_a_postgresql_never_learns_the_password(
    rogue: RoguePostgres, sslmode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rogue.md5 in (False, True):
        for extra in ({}, {"require_auth": "!password,!md5"}, {"channel_binding": "require"}):
            with pytest.raises(NotReadyError) as found:
                StateDatabase.open(database_url(postgres(rogue.port, sslmode=sslmode, **extra)), migrate=False)
            assert not rogue.learned(PASSWORD) and not rogue.learned_hash(USER, PASSWORD)
            assert PASSWORD not in str(found.value)
    rogue.md5 = True
    with pytest.raises(Exception):  # noqa: B017 asked for: a server of old times
        StateDatabase.open(database_url(postgres(rogue.port, sslmode=sslmode, require_auth="md5")), migrate=False)
    assert not rogue.learned(PASSWORD)
    assert rogue.learned_hash(USER, PASSWORD) == (sslmode != "require" or rogue.certificate is not None)
    for extra in ({"require_auth": "password"}, {"require_auth": "scram-sha-256,password"}, {"require_auth": "!md5"}):
        with pytest.raises(NotReadyError, match="require_auth"):
            database_url(postgres(rogue.port, sslmode=sslmode, **extra))


def test_a_postgresql_does_learn_it_where_it_is_trusted(certificate: Certificate) -> None:
    for host, tls in (("127.0.0.1", None), ("localhost", certificate), (AWAY, certificate)):
        with RoguePostgres(tls) as found:
            extra = {"sslmode": "verify-full", "sslrootcert": str(certificate.ca)} if host == AWAY else {}
            with pytest.raises(Exception):  # noqa: B017 whatever: it speaks no SQL
                StateDatabase.open(database_url(postgres(found.port, host, **extra)), migrate=False)
            assert found.learned(PASSWORD)
