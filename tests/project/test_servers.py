from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pymysql
import pytest

from tests.support.packages import NotOurs, docker_works, newest_suite_source
from tests.support.processes import wait_for
from tests.support.servers import MySQLServer, ServerUnavailable


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture(scope="module")
def server() -> Iterator[MySQLServer]:
    with MySQLServer(variables={"binlog_row_image": "FULL"}) as own:
        yield own


def test_shared_server_is_ready_for_cdc(mysql_server: MySQLServer, database: str, cdc_user: dict[str, str]) -> None:
    ((version, gtid, image, metadata),) = mysql_server.execute(
        "SELECT @@version, @@gtid_mode, @@binlog_row_image, @@binlog_row_metadata"
    )
    assert (gtid, image, metadata) == ("ON", "FULL", "FULL")
    assert int(version.split(".")[0]) >= 8
    mysql_server.execute(f"CREATE TABLE `{database}`.t (a INT PRIMARY KEY)")
    mysql_server.execute(f"INSERT INTO `{database}`.t VALUES (%s)", (7,))
    with contextlib.closing(mysql_server.connect(**cdc_user)) as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT a FROM `{database}`.t")
        assert cursor.fetchall() == ((7,),)
        cursor.execute("SHOW BINARY LOG STATUS")
        cursor.execute("XA RECOVER")
        with pytest.raises(pymysql.err.OperationalError, match="denied"):
            cursor.execute(f"DELETE FROM `{database}`.t")


def test_cdc_user_reads_only_the_database_it_was_given(mysql_server: MySQLServer, database: str) -> None:
    other = database.replace("_", "x")  # what a bare underscore in GRANT would match
    mysql_server.execute(f"CREATE DATABASE `{other}`")
    try:
        mysql_server.execute(f"CREATE TABLE `{other}`.t (a INT PRIMARY KEY)")
        user = mysql_server.create_cdc_user(f"only_{database}", databases=[database], xa=False)
        with contextlib.closing(mysql_server.connect(**user)) as connection, connection.cursor() as cursor:
            cursor.execute("SHOW DATABASES")
            names = {name for (name,) in cursor.fetchall()}
        assert database in names
        assert other not in names
    finally:
        mysql_server.execute(f"DROP DATABASE `{other}`")


def test_kill_and_restart_keep_data_port_and_identity(server: MySQLServer) -> None:
    port, before = server.port, server.execute("SELECT @@server_uuid")
    server.execute("CREATE DATABASE kept")
    server.execute("CREATE TABLE kept.t (a INT PRIMARY KEY)")
    server.execute("INSERT INTO kept.t VALUES (1)")
    server.kill()
    with pytest.raises(pymysql.err.OperationalError):
        server.connect()
    server.start()
    server.execute("INSERT INTO kept.t VALUES (2)")
    server.restart()
    assert server.execute("SELECT a FROM kept.t ORDER BY a") == ((1,), (2,))
    assert server.execute("SELECT @@server_uuid") == before
    assert server.port == port
    ((executed,),) = server.execute("SELECT @@global.gtid_executed")
    assert executed == f"{before[0][0]}:1-4"  # the administrator's own account left nothing in the binlog


def test_two_servers_have_two_identities(server: MySQLServer) -> None:
    with MySQLServer(variables={"server_id": 2}) as other:
        assert other.execute("SELECT @@server_id, @@server_uuid")[0][0] == 2
        assert other.execute("SELECT @@server_uuid") != server.execute("SELECT @@server_uuid")
        pid, folder = other.pid, other._folder
    assert pid is None or not alive(pid)
    assert folder is None or not folder.exists()


def test_password_is_in_no_command_line(server: MySQLServer) -> None:
    if server.pid is not None:
        assert server.password.encode() not in Path(f"/proc/{server.pid}/cmdline").read_bytes()


def test_a_server_that_cannot_start_says_why(server: MySQLServer) -> None:
    with pytest.raises(ServerUnavailable, match=r"no[-_]such[-_]variable"):
        MySQLServer(variables={"no_such_variable": 1}).start()


def test_server_does_not_outlive_a_killed_parent(server: MySQLServer) -> None:
    if server.pid is None:
        pytest.skip("only where the server is a process of ours")
    # Started in a thread that ends at once: the server must depend on the process, not on the thread.
    code = (
        "import threading, time; from tests.support.servers import MySQLServer; s = MySQLServer();"
        "t = threading.Thread(target=s.start); t.start(); t.join(); time.sleep(0.5);"
        "s.execute('SELECT 1'); print(s.pid, s._folder, flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid, folder = parent.stdout.readline().split()
    assert alive(int(pid))
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    wait_for("the end of the server", lambda: not alive(int(pid)), 10)
    subprocess.run(["rm", "-rf", folder], check=True)


def test_a_server_taken_by_url_is_used_as_it_is(server: MySQLServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDC_TEST_MYSQL_URL", server.uri())
    with MySQLServer() as taken:
        assert taken.port == server.port
        assert not taken.controllable
        with pytest.raises(NotOurs):
            taken.kill()
    with pytest.raises(NotOurs):
        MySQLServer(variables={"server_id": 9}).start()
    assert server.execute("SELECT 1") == ((1,),)  # leaving the with-block did not stop it


def test_a_docker_client_without_daemon_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = tmp_path / "docker"
    client.write_text("#!/bin/sh\necho 'Cannot connect to the Docker daemon' >&2\nexit 1\n")
    client.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert not docker_works()


DEB822 = """\
Types: deb
URIs: http://mirror.test/extra
Suites: bookworm
Components: main
Signed-By: /keys/extra.gpg

# a comment
Types: deb deb-src
URIs: http://mirror.test/debian
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: /keys/none.gpg
"""


@pytest.mark.parametrize(
    ("system", "file", "text", "expected"),
    [
        ("debian", "sources.list.d/debian.sources", DEB822, "deb http://mirror.test/debian sid main\n"),
        (
            "debian",
            "sources.list",
            "deb [arch=amd64] http://m/debian/ bookworm main\n",
            "deb http://m/debian/ sid main\n",
        ),
        (
            "ubuntu",
            "sources.list",
            "deb http://m/ubuntu bookworm main restricted\n",
            "deb http://m/ubuntu devel main\n",
        ),
    ],
)
def test_package_source_is_the_systems_own(tmp_path: Path, system: str, file: str, text: str, expected: str) -> None:
    (tmp_path / "os-release").write_text(f'ID={system}\nVERSION_CODENAME="bookworm"\n')
    (tmp_path / "apt/sources.list.d").mkdir(parents=True)
    (tmp_path / "apt" / file).write_text(text)
    found = newest_suite_source(tmp_path)
    assert found.replace(f"[signed-by=/usr/share/keyrings/{system}-archive-keyring.gpg] ", "") == expected


@pytest.mark.parametrize(
    ("release", "source"),
    [
        ("ID=fedora\n", ""),
        ("ID=debian\nVERSION_CODENAME=bookworm\n", "deb http://m.test/other bookworm main\n"),
        ("ID=debian\nVERSION_CODENAME=bookworm\n", "# deb http://m.test/debian bookworm main\n"),
    ],
)
def test_no_package_source_is_said_with_the_other_ways(tmp_path: Path, release: str, source: str) -> None:
    (tmp_path / "os-release").write_text(release)
    (tmp_path / "apt").mkdir()
    (tmp_path / "apt/sources.list").write_text(source)
    with pytest.raises(ServerUnavailable, match="CDC_TEST_MYSQL_URL"):
        newest_suite_source(tmp_path)
