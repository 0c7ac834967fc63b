"""A newer version migrates the bookkeeping while a stream of an older one writes to it."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import URL, MetaData, create_engine, insert, make_url, select, text, update

from airflow_provider_cdc.airflow.triggers.state_database import SharedStateDatabase
from airflow_provider_cdc.model.errors import NotReadyError
from airflow_provider_cdc.state import StateDatabase, database, migrate
from airflow_provider_cdc.state.engine import make_engine
from tests import ROOT
from tests.state.conftest import server_url
from tests.support.processes import wait_for

RELEASED = sorted((ROOT / "tests" / "fixtures").glob("state-*/lake/_cdc/shop/bookkeeping.db"))

#: What the next version may do, in a table that a running stream writes to.
NEXT = """
import sqlalchemy as sa
from alembic import op

revision, down_revision, branch_labels, depends_on = "9998", "{newest}", None, None


def upgrade() -> None:
    with op.batch_alter_table("streams") as batch:
        batch.add_column(sa.Column("note", sa.Text(), nullable=True))
"""


@pytest.fixture(params=["sqlite", "postgres", "mysql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> URL:
    """A bookkeeping as this version makes it."""
    made = (
        make_url(f"sqlite:///{tmp_path}/books.db") if request.param == "sqlite" else server_url(request, request.param)
    )
    StateDatabase.open(made, migrate=True).close()
    return made


@contextmanager
def next_version(folder: Path) -> Iterator[None]:
    """The code of the next version, which has one more migration."""
    migrations = folder / "migrations"
    shutil.copytree(migrate._FOLDER, migrations, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    (migrations / "versions" / "9998_next.py").write_text(NEXT.format(newest=database.NEWEST_REVISION))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(migrate, "_FOLDER", migrations)
        patched.setattr(database, "NEWEST_REVISION", "9998")
        yield


@contextmanager
def older_driver(url: URL) -> Iterator[Callable[[], int]]:
    """Heartbeats and batches of a stream that knows the tables only as they were; how many batches it has written."""
    engine = make_engine(url)
    writer = engine.execution_options(cdc_write=True)
    tables = MetaData()
    tables.reflect(engine)
    pipelines, streams, batches = (tables.tables[name] for name in ("pipelines", "streams", "batches"))
    now, over, wrong, number = datetime.now(UTC).replace(tzinfo=None), threading.Event(), [], 0
    run = {"pipeline": "p", "epoch": 1, "host": "h", "pid": 1, "pid_started": 1.0, "state": "running"}
    run |= {"desired_state": "run", "started_at": now, "heartbeat_at": now, "batches": 0, "changes": 0, "bytes": 0}
    pipeline = {"name": "p", "server_uuid": "s", "epoch": 1, "past_batches": 0, "past_changes": 0}
    with writer.begin() as connection:
        connection.execute(insert(pipelines).values(pipeline))
        connection.execute(insert(streams).values(run))

    def write() -> None:
        nonlocal number
        mine = streams.c.pipeline == "p", streams.c.epoch == 1
        while not over.wait(0.01):
            try:
                with writer.begin() as connection:
                    beat = datetime.now(UTC).replace(tzinfo=None)
                    connection.execute(update(streams).where(*mine).values(heartbeat_at=beat))
                    assert connection.execute(select(streams).where(*mine)).one().desired_state == "run"
                    values = {"pipeline": "p", "epoch": 1, "batch_id": number, "changes": 1, "bytes": 1, "seconds": 1.0}
                    values |= {"start_offset": json.dumps(None), "committed_at": beat}
                    connection.execute(insert(batches).values(values))
                number += 1
            except Exception as error:
                wrong.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield lambda: number
    finally:
        over.set()
        thread.join()
        engine.dispose()
    assert not wrong, wrong


def test_a_migration_beside_a_stream_of_an_older_version(url: URL, tmp_path: Path) -> None:
    with older_driver(url) as written:
        wait_for("the older driver", lambda: written() > 20, pause=0.01)
        with next_version(tmp_path), closing(StateDatabase.open(url, migrate=True)) as store:
            before = written()
            wait_for("the older driver", lambda: written() > before + 20, pause=0.01)  # it goes on behind the migration
            run = store.record_supervision("p", 1, "a task")
            assert run is not None and (run.state, run.settings) == ("running", None)
            assert store.last_batches("p", 1)[0].batch_id >= before
            with store._read_session() as session:
                assert session.execute(text("SELECT note FROM streams")).one() == (None,)
    with next_version(tmp_path), closing(StateDatabase.open(url, migrate=False)) as store:
        assert len(store.last_batches("p", 10_000)) == written()  # none was lost
    for may_migrate in (True, False):  # and there is no way back
        with pytest.raises(NotReadyError, match=r"made by a newer version \(9998\). Upgrade airflow-provider-cdc"):
            StateDatabase.open(url, migrate=may_migrate)


def test_a_triggerer_that_is_the_first_to_look(tmp_path: Path) -> None:
    """It brings the bookkeeping up to date, and makes none that is not there."""
    url = f"sqlite:///{tmp_path}/books.db"
    books = SharedStateDatabase(None, f"{tmp_path}/books.db")
    with pytest.raises(NotReadyError, match="there is no state database file"):
        books._run_query(lambda store: store.pipeline_names())
    create_engine(url).connect().close()  # an empty one
    with pytest.raises(NotReadyError, match="is not set up"):
        books._run_query(lambda store: store.pipeline_names())
    StateDatabase.open(url, migrate=True).close()
    older = database.NEWEST_REVISION
    with next_version(tmp_path):
        with pytest.raises(NotReadyError, match=rf"is of an older version \({older}\)"):
            StateDatabase.open(url, migrate=False)
        assert books._run_query(lambda store: store.pipeline_names()) == []
        StateDatabase.open(url, migrate=False).close()
        assert migrate.list_revisions()[:2] == ["9998", older]


@pytest.mark.parametrize("released", RELEASED, ids=lambda file: file.parents[3].name)
def test_what_a_released_version_has_made_opens(released: Path, tmp_path: Path) -> None:
    with closing(StateDatabase.open(f"sqlite:///{shutil.copy(released, tmp_path)}", migrate=True)) as store:
        assert store.pipeline_names() == ["shop"] and store.last_batches("shop", 1)
