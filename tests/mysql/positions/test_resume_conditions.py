"""May a stream go on at an offset? Each of the conditions by itself, with an offset that breaks no other."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from airflow_provider_cdc.model.errors import OtherHistoryError, PurgedError
from airflow_provider_cdc.model.offset import Offset, Position
from airflow_provider_cdc.mysql.binlog.events.binlog_source import BinlogSource, OpenStreamAt
from airflow_provider_cdc.mysql.client import gtids
from airflow_provider_cdc.mysql.client.session import connect
from airflow_provider_cdc.mysql.positions.binlog_files import with_file_start_time
from airflow_provider_cdc.mysql.positions.resume import check_resume_offset
from airflow_provider_cdc.mysql.positions.watermarks import take_low_watermark
from tests.support.servers import MySQLServer


class Resume:
    """A server, and an offset on it where a stream may go on."""

    def __init__(self, args: dict[str, Any]) -> None:
        self._open_at: OpenStreamAt = BinlogSource(args).open_to_end
        self.connection = connect(args)
        self.here = with_file_start_time(take_low_watermark(self.connection), self._open_at)
        self.check(self.here)

    def check(self, offset: Offset) -> None:
        assert check_resume_offset(self.connection, offset, self._open_at) == offset

    def close(self) -> None:
        self.connection.close()


@pytest.fixture
def resume(mysql_server: MySQLServer, cdc_user: dict[str, str]) -> Iterator[Resume]:
    with contextlib.closing(Resume(mysql_server.connect_args(**cdc_user))) as opened:
        yield opened


def test_a_server_that_has_lost_transactions(resume: Resume, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gtids, "WAIT_SECONDS", 0.3)
    with pytest.raises(OtherHistoryError, match=r"the server no longer has \S+:1-5, which was read up to"):
        resume.check(resume.here.replace(gtid_set=f"{resume.here.gtid_set},{uuid4()}:1-5"))


def test_a_transaction_on_its_way_into_the_engine(resume: Resume, mysql_server: MySQLServer, database: str) -> None:
    """The stream has read it, and the server is not done with it."""
    gtid = f"{uuid4()}:1"
    with contextlib.closing(mysql_server.connect(database=database)) as other, other.cursor() as cursor:
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY)")
        cursor.execute(f"SET gtid_next = '{gtid}'")
        cursor.execute("BEGIN")
        cursor.execute("INSERT INTO t VALUES (1)")
        timer = threading.Timer(0.5, cursor.execute, ("COMMIT",))
        timer.start()
        resume.check(resume.here.replace(gtid_set=f"{resume.here.gtid_set},{gtid}"))
        timer.join()
        cursor.execute("SET gtid_next = 'AUTOMATIC'")


def test_what_was_purged_beyond_it() -> None:
    """The position is there: but a restore has added what was in no binlog of this server."""
    with MySQLServer() as server, contextlib.closing(Resume(server.connect_args())) as resume:
        server.execute(f"SET GLOBAL gtid_purged = '+{uuid4()}:1-5'")
        with pytest.raises(PurgedError, match=r"the server has purged \S+:1-5, which was not read"):
            resume.check(resume.here)


def test_a_position_behind_the_end_of_its_file(resume: Resume) -> None:
    behind = Position(resume.here.at.file, resume.here.at.position + 1000)
    with pytest.raises(OtherHistoryError, match=f"of the server ends at .*, and was read up to {behind}"):
        resume.check(resume.here.replace(file=behind.file, position=behind.position))


def test_a_domain_of_a_file_that_may_be_another(mariadb_server: MySQLServer) -> None:
    """Without the time at which the file began, nothing shows that the server removed the domain from its binlog."""
    with contextlib.closing(Resume(mariadb_server.connect_args())) as resume:
        other = resume.here.replace(gtid_set=",".join(filter(None, (resume.here.gtid_set, "4294967295-1-5"))))
        resume.check(other)  # the same file: the domain was removed
        with pytest.raises(OtherHistoryError, match=r"but was read as '.*4294967295-1-5'"):
            resume.check(other.replace(file_start_time=0))


def test_rows_of_an_open_xa_transaction_that_were_purged(resume: Resume) -> None:
    resume.check(resume.here.replace(open_xa=("X'61',X'',1", f"X'62',X'',1 {resume.here.at.file}:4")))
    with pytest.raises(PurgedError, match=r"X'62',X'',1 was prepared at binlog\.000000:4, which is no longer"):
        resume.check(resume.here.replace(open_xa=("X'62',X'',1 binlog.000000:4",)))
