"""Fixtures that every test may use (a real MySQL server, a database and a user in it), and how the suite is run."""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import pytest

from tests.support import jvm, running
from tests.support.mariadb import MariaDBServer, NewestMariaDBServer
from tests.support.servers import MySQLServer, ServerUnavailable

if TYPE_CHECKING:
    from tests.support.kubernetes import Kubernetes
    from tests.support.s3 import S3

pytest.register_assert_rewrite("tests.sinks.conformance")

# A shell starts what runs in the background with SIGINT ignored, and so would every process that a test interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ.setdefault("SPARK_SUBMIT_OPTS", jvm.options())


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "of the tests that are marked long, and only of these, the K-th of N shares"
    parser.addoption("--share", metavar="K/N", type=running.share_of, help=text)
    text = "of the tests that take turns, only those of the K-th of N turns"
    parser.addoption("--turn", metavar="K/N", type=running.share_of, default=(1, 1), help=text)


@pytest.hookimpl(trylast=True)  # behind pytest's own, which tells of a crash where it is lost among what follows
def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):  # a worker of pytest-xdist
        running.tell_crashes(config._tmp_path_factory.getbasetemp())  # type: ignore[attr-defined]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: running.order(item.nodeid))
    for item in running.repetitions(items):
        item.add_marker(pytest.mark.long)
    share, turn = config.getoption("--share"), config.getoption("--turn")
    left = [item for item in items if not running.in_turn(item.nodeid, *turn)]
    if share is not None:
        left = [i for i in items if not (i.get_closest_marker("long") and running.in_share(i.nodeid, *share))]
    if "kubernetes" not in config.option.markexpr:
        left = list(dict.fromkeys([*left, *(item for item in items if item.get_closest_marker("kubernetes"))]))
    config.hook.pytest_deselected(items=left)
    gone = set(left)
    items[:] = [item for item in items if item not in gone]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]  # not where versions are tried

    scheduler = LoadScopeScheduling(config, log)
    scheduler._split_scope = running.together
    return scheduler


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = cast(pytest.TestReport, (yield))
    if report.failed:
        folder = item.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        running.shorten(report, folder / f"{report.when}-{abs(hash(item.nodeid))}.txt")
        marker = "kubernetes" if item.get_closest_marker("kubernetes") else ""
        report.sections.append(("To repeat it", running.repeat(item.nodeid, marker)))
    return report  # type: ignore[return-value]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    found = [report for reports in terminalreporter.stats.values() for report in reports if hasattr(report, "duration")]
    if found:
        terminalreporter.section("seconds by folder")
    for folder, (tests, seconds) in running.seconds_by_folder(found).items():
        terminalreporter.write_line(f"{seconds:8.1f} s {tests:5} tests  {folder}")
    for worker, lines in running.crashes(terminalreporter.config._tmp_path_factory.getbasetemp()):
        terminalreporter.section(f"crash of {worker}")
        for line in lines:
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def mysql_server() -> Iterator[MySQLServer]:
    """One server shared by the whole run. A test that kills or changes a server starts its own."""
    with MySQLServer() as server:
        yield server


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[MySQLServer]:
    """The same of MariaDB."""
    with MariaDBServer() as server:
        yield server


@pytest.fixture(scope="session")
def newest_mariadb_server(request: pytest.FixtureRequest) -> Iterator[MySQLServer]:
    """The newest MariaDB, for what older ones do not have; the shared one where that is as new."""
    if os.environ.get("CDC_TEST_MARIADB") == "newest" and "CDC_TEST_MARIADB_URL" not in os.environ:
        yield cast(MySQLServer, request.getfixturevalue("mariadb_server"))
        return
    try:
        server = NewestMariaDBServer().start()
    except ServerUnavailable as error:
        pytest.skip(f"no newer MariaDB: {error}")
    with server:
        yield server


@pytest.fixture(scope="module", params=["MySQL", "MariaDB"])
def server(request: pytest.FixtureRequest) -> MySQLServer:
    """Each of the two, one after the other."""
    return cast(MySQLServer, request.getfixturevalue(f"{request.param.lower()}_server"))


@pytest.fixture
def database(mysql_server: MySQLServer) -> Iterator[str]:
    """The name of a fresh, empty database."""
    with mysql_server.fresh_database() as name:
        yield name


@pytest.fixture
def s3() -> Iterator[S3]:
    """An empty bucket on a quick S3-compatible server that the whole run shares."""
    from tests.support.s3 import s3_server

    with s3_server() as place:
        yield place


@pytest.fixture(scope="session")
def kubernetes() -> Iterator[Kubernetes]:
    """A Kubernetes of one node. Importing its module needs a client that not all sets of versions have."""
    from tests.support.kubernetes import Kubernetes

    with Kubernetes() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def cdc_user(mysql_server: MySQLServer) -> dict[str, str]:
    """A user with exactly the grants that the project asks for: ``{"user": ..., "password": ...}``."""
    return mysql_server.create_cdc_user(f"cdc_{secrets.token_hex(4)}")
