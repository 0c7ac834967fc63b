"""Which runs of the stream raise their fence in every table: those before which another one may still be alive."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_cdc.apply.applier import Applier, epoch_fence
from airflow_provider_cdc.apply.fencing import raise_fences
from airflow_provider_cdc.maintenance.table_maintenance import maintain_tables
from airflow_provider_cdc.model.errors import FencedError, TerminalError, TransientError
from airflow_provider_cdc.sinks.delta import maintenance
from airflow_provider_cdc.sinks.delta import table as module
from airflow_provider_cdc.sinks.delta.log.delta_log import DeltaLog
from airflow_provider_cdc.sinks.delta.resume_point import DeltaResumePoint
from airflow_provider_cdc.sinks.delta.sink import DeltaSink
from airflow_provider_cdc.sinks.storage.local_storage import LocalStorage
from airflow_provider_cdc.stream.run import begin_epoch
from tests.sinks.conformance import KEYED, KEYLESS
from tests.support.cli import Cli
from tests.support.epochs import run_epoch_in_process
from tests.support.servers import MySQLServer


@pytest.fixture
def cli(mysql_server: MySQLServer, database: str, tmp_path: Path) -> Iterator[Cli]:
    mysql_server.session(
        database,
        "CREATE TABLE busy (id INT PRIMARY KEY, v INT)",
        "CREATE TABLE still (id INT PRIMARY KEY, v INT)",
        "INSERT INTO busy VALUES (1, 0)",
        "INSERT INTO still VALUES (1, 0)",
    )
    found = Cli(tmp_path, mysql_server, rf"{database}\..*", name=database)
    found.snapshot()
    found.catch_up()
    yield found


def version(cli: Cli, name: str) -> int:
    """The newest version of a table, or of the resume point."""
    folder = cli.sink / (
        f"_cdc_progress/{cli.value['name']}" if name == "_cdc_progress" else f"{cli.value['name']}/{name}"
    )
    return max(int(path.stem) for path in folder.glob("_delta_log/*.json") if path.stem.isdigit())


def fence_of(cli: Cli, name: str) -> int | None:
    """The epoch that stands in a table."""
    context = cli.context
    plan = context.plans.require()
    table = next(table for table in plan.tables if table.name == name)
    return context.sink.table(table).markers().get(epoch_fence(plan.pipeline, 0).name)


def epoch_of(cli: Cli) -> int:
    """The epoch that stands in the resume point: that of the last run."""
    found = cli.context.sink.resume_point().markers().get(epoch_fence(cli.value["name"], 0).name)
    assert found is not None
    return found


def test_a_table_that_nobody_touches_gets_no_commit(cli: Cli, mysql_server: MySQLServer, database: str) -> None:
    """The runs before have ended, and said so. In another table the fence comes with the first rows."""
    before = version(cli, "still"), version(cli, "busy")
    for _ in range(4):
        cli.catch_up()
    assert (version(cli, "still"), version(cli, "busy")) == before
    mysql_server.execute(f"UPDATE `{database}`.busy SET v = v + 1")
    cli.catch_up()
    assert (version(cli, "still"), version(cli, "busy")) == (before[0], before[1] + 1)
    assert fence_of(cli, "busy") == epoch_of(cli) == 6 and fence_of(cli, "still") == 1


def test_a_run_that_did_not_end(cli: Cli) -> None:
    """It may still be alive, and so may what it had not shut out: each table gets the fence."""
    cli.catch_up()
    with cli.epoch() as lost:
        assert fence_of(cli, "still") == fence_of(cli, "busy") == 1
    cli.catch_up()
    assert fence_of(cli, "still") == fence_of(cli, "busy") == lost.number + 1
    before = version(cli, "still")
    cli.catch_up()
    assert version(cli, "still") == before


def test_a_lost_run_commits_nothing_in_a_table_that_is_not_touched(cli: Cli) -> None:
    """It was taken for lost, and goes on when the next one has begun."""
    cli.catch_up()
    with cli.epoch() as lost:
        pass
    with cli.opened() as (context, store):
        new = begin_epoch(context, store, catch_up=True)
        before = version(cli, "still"), version(cli, "busy"), version(cli, "_cdc_progress")
        for table in lost.applier.tables:
            with pytest.raises(FencedError):
                table.raise_fence(lost.applier.fence)
        with pytest.raises(FencedError):
            lost.applier.check_fence()
        assert (version(cli, "still"), version(cli, "busy"), version(cli, "_cdc_progress")) == before
        run_epoch_in_process(new)


def test_a_run_that_failed(cli: Cli, mysql_server: MySQLServer, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit of it may still arrive at an object store."""
    mysql_server.execute(f"UPDATE `{database}`.busy SET v = v + 1")
    with monkeypatch.context() as patched:
        patched.setattr(Applier, "apply", lambda *_: (_ for _ in ()).throw(TransientError("away", "Run again")))
        with pytest.raises(TransientError, match="away"):
            cli.catch_up()
    cli.catch_up()
    assert fence_of(cli, "still") == fence_of(cli, "busy") == epoch_of(cli) == 3


def test_a_run_that_has_suspended_a_table(
    cli: Cli, mysql_server: MySQLServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what had failed nothing is known, though it ended well."""
    cli.value["stream"]["on_table_error"] = "suspend"
    cli.write()
    mysql_server.execute(f"UPDATE `{database}`.busy SET v = v + 1")
    done, failed = Applier.apply, list[int]()

    def fails_once(applier: Applier, manifest: dict[str, object]) -> object:
        if failed:
            return done(applier, manifest)
        failed.append(1)
        raise TerminalError("no", "Do", table=f"{database}.busy")

    with monkeypatch.context() as patched:
        patched.setattr(Applier, "apply", fails_once)
        cli.value["stream"]["fail_on_suspended"] = False
        cli.write()
        cli.catch_up()
    cli.catch_up()
    assert fence_of(cli, "still") == epoch_of(cli) == 3


def test_an_epoch_that_was_only_numbered(cli: Cli) -> None:
    """A run that has its number, and no more, may be about to begin."""
    with cli.opened() as (_, store):
        assert store.begin_epoch(cli.value["name"], 0, "elsewhere", 1, 0.0) == 2
        store.end_epoch(cli.value["name"], 2, "failed")
    cli.catch_up()
    assert fence_of(cli, "still") == epoch_of(cli) == 3


def test_without_the_bookkeeping(cli: Cli) -> None:
    """What a run has said of its end is in the sink."""
    before = version(cli, "still")
    for path in (cli.sink / "_cdc" / cli.value["name"]).glob("bookkeeping.db*"):
        path.unlink()
    cli.snapshot()
    cli.catch_up()
    assert version(cli, "still") == before and epoch_of(cli) == 2


def test_two_processes_with_the_number_of_one_epoch(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bookkeeping was lost between their starts: one begins."""
    raised = DeltaResumePoint.raise_fence
    number = epoch_of(cli) + 1

    def second(progress: DeltaResumePoint, fence: object) -> bool:
        monkeypatch.undo()
        raised(progress, epoch_fence(cli.value["name"], number))
        return progress.raise_fence(fence)  # type: ignore[arg-type]

    monkeypatch.setattr(DeltaResumePoint, "raise_fence", second)
    with pytest.raises(TransientError, match=f"another process has begun epoch {number}"):
        cli.catch_up()
    cli.catch_up()
    assert fence_of(cli, "still") == epoch_of(cli) == number + 1


def test_a_table_that_has_never_had_a_fence(tmp_path: Path) -> None:
    """As long as it has none, a group that is read again publishes its rows by itself."""
    sink = DeltaSink(str(tmp_path), "p")
    tables = {index: sink.table(table) for index, table in enumerate((KEYED, KEYLESS))}
    for table in tables.values():
        table.create("p")
    tables[1].raise_fence(epoch_fence("p", 1))
    known = {index: table.markers() for index, table in tables.items()}
    raise_fences("p", epoch_fence("p", 2), tables, known, older_epochs_ended=True)
    assert [table.markers() for table in tables.values()] == [{"cdc/p/epoch": 2}, {"cdc/p/epoch": 1}]


# ---------------------------------------------------------------- short runs without end


def commits_to_read(folder: Path) -> int:
    """Commits that whoever opens a table reads."""
    log = DeltaLog(LocalStorage(folder))
    log.refresh()
    return log.version - (log.checkpoint_version or 0)


def test_opening_costs_the_same_behind_many_short_runs(
    cli: Cli, mysql_server: MySQLServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them is killed: so each raises the fence in each table, and no upkeep ever looks at them."""
    monkeypatch.setattr(maintenance, "_CHECKPOINT_INTERVAL", 4)
    monkeypatch.setattr(maintenance, "OVERDUE_COMMITS", 8)
    monkeypatch.setattr(module, "OVERDUE_COMMITS", 8)
    worst = 0
    for _ in range(20):
        with cli.epoch():
            pass
        worst = max(worst, commits_to_read(cli.sink / database / "still"))
        assert commits_to_read(cli.sink / "_cdc_progress" / database) <= 4
    assert version(cli, "still") > 20 and 4 < worst <= 8


def test_maintain_tidies_the_resume_point(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(3):
        cli.catch_up()
    folder = cli.sink / "_cdc_progress" / cli.value["name"]
    assert commits_to_read(folder) >= 4
    monkeypatch.setattr(maintenance, "_CHECKPOINT_INTERVAL", 4)
    maintain_tables(cli.context, lambda work: [one.run() for one in work])
    assert commits_to_read(folder) == 0
