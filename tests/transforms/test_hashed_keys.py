"""Keys that the copy has hashed: nothing of them is stored in clear, and what would need them is refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from airflow_provider_cdc.chunk_groups.task import run_in_threads
from airflow_provider_cdc.config.selection import TableSelection
from airflow_provider_cdc.model.errors import NotReadyError
from airflow_provider_cdc.model.schema import DELETED_COLUMN
from airflow_provider_cdc.mysql.chunks import chunk
from airflow_provider_cdc.snapshot.run import run_group
from airflow_provider_cdc.stream.run import begin_epoch
from airflow_provider_cdc.transforms.sealed_bounds import open_plan, seal_plan
from airflow_provider_cdc.verify.repair import compare_and_repair
from airflow_provider_cdc.verify.run import verify_tables
from airflow_provider_cdc.verify.task import run_scans_in_threads
from tests.support.cli import Cli, asked_by
from tests.support.delta import delta_table
from tests.support.epochs import run_epoch_in_process
from tests.support.servers import MySQLServer
from tests.support.transforms import HASH_CONNECTION, HASH_ENV, HASH_KEY

pytestmark = pytest.mark.one_of("server")

#: Texts that no file may have.
SECRETS = [f"secret-{n:03d}@example.com" for n in range(60)]


@pytest.fixture
def database(server: MySQLServer) -> Iterator[str]:
    with server.fresh_database() as name:
        server.session(
            name,
            "CREATE TABLE account (mail VARCHAR(60) PRIMARY KEY, n INT)",
            "INSERT INTO account VALUES " + ",".join(f"('{mail}', 0)" for mail in SECRETS[:50]),
        )
        yield name


@pytest.fixture
def cli(server: MySQLServer, database: str, tmp_path: Path) -> Cli:
    transforms = {"hash_key_conn_id": HASH_CONNECTION, "columns": {rf"{database}\.account\.mail": "hash"}}
    snapshot = {"chunk_rows": 10, "group_rows": 20}
    made = Cli(tmp_path, server, rf"{database}\.account", name=database, transforms=transforms, snapshot=snapshot)
    made.env |= HASH_ENV
    return made


def leaks(folder: Path) -> list[str]:
    """Files with a secret in them."""
    texts = [text.encode() for text in (*SECRETS, HASH_KEY)]
    texts += [text.hex().encode() for text in texts]  # bounds of texts are written in hex
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "pipeline.yaml"]
    return [str(path) for path in files if any(text in path.read_bytes() for text in texts)]


def test_nothing_is_stored_in_clear(cli: Cli, server: MySQLServer, database: str) -> None:
    """Neither in the plan, nor in slices and batches, nor when the table is altered or read again."""
    with cli.opened() as (context, store):
        plan = context.plans.ensure(store)
        assert len(plan.chunks) == 5 and bytes.fromhex(str(plan.chunks[0].lower[0])).decode() == SECRETS[0]
        assert context.plans.require().chunks == plan.chunks  # as it was planned, although it is stored otherwise
    server.session(database, "ALTER TABLE account ADD COLUMN more INT")  # planned again
    cli.snapshot()
    server.session(database, f"UPDATE account SET mail = '{SECRETS[55]}' WHERE mail = '{SECRETS[5]}'")
    cli.catch_up()
    with cli.streaming():
        server.session(database, f"DELETE FROM account WHERE mail = '{SECRETS[6]}'")
        assert cli.resnapshot(f"{database}.account") == "rejoined"
    assert leaks(cli.folder) == []
    assert {verdict.verdict for verdict in verify_tables(cli.context)} == {"equal"}


def test_another_key_cannot_open_the_bounds(cli: Cli) -> None:
    with cli.opened() as (context, store):
        plan = context.plans.ensure(store)
        sealed = seal_plan(plan, HASH_KEY.encode())
        assert sealed.chunks != plan.chunks and open_plan(sealed, HASH_KEY.encode()).chunks == plan.chunks
        assert seal_plan(sealed, HASH_KEY.encode()).chunks == sealed.chunks
        for key in (b"another key, long enough", None):
            with pytest.raises(NotReadyError):
                open_plan(sealed, key)


def test_what_was_deleted_before_its_chunk_was_read_does_not_come_back(
    cli: Cli, server: MySQLServer, database: str
) -> None:
    """Whichever way the binlog is cut into batches, a change that a chunk includes is not applied again."""
    with cli.opened() as (context, store):
        context.plans.ensure(store)
    for n in range(50, 54):
        server.session(database, f"INSERT INTO account VALUES ('secret-0{n - 40}x', 1)")
    server.session(database, "UPDATE account SET n = 1 WHERE mail LIKE 'secret-03%'")
    server.session(database, "DELETE FROM account WHERE n = 1")
    cli.snapshot()
    plan = cli.context.plans.require()

    def count() -> int:
        return len(delta_table(cli.context, plan.tables[0]).read()[0])

    assert count() == 40
    server.session(database, "INSERT INTO account VALUES ('secret-9', 1)")
    with cli.epoch() as epoch, closing(epoch.job.make_planner()) as planner:
        at, counts = epoch.section_start, []
        while (end := planner.find_batch_end(at, 1)) != at:
            epoch.apply_batch(epoch.job.stage_range(at, end, "0"))
            counts.append(count())
            at = end
    assert set(counts[:-1]) == {40} and counts[-1] == 41 and len(counts) > 5


def test_what_a_reading_has_seen_is_not_replaced_by_an_older_change(
    cli: Cli, server: MySQLServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row was changed after the reading began and before its chunk was read, last without a word in the binlog."""
    cli.snapshot()
    server.session(database, f"INSERT INTO account VALUES ('{SECRETS[57]}', 1)")
    cli.catch_up()
    pending = [1]

    def failpoint(name: str) -> None:
        if name == "chunk.before_lw" and pending:
            pending.pop()
            update = "UPDATE account SET n = {} WHERE mail = '{}'"
            server.session(database, update.format(5, SECRETS[7]), update.format(8, SECRETS[8]))
            server.session(database, f"INSERT INTO account VALUES ('{SECRETS[58]}', 9)")
            server.session(database, "SET sql_log_bin = 0", update.format(6, SECRETS[7]))

    monkeypatch.setattr(chunk, "failpoint", failpoint)
    with cli.streaming():
        assert cli.resnapshot(f"{database}.account") == "rejoined"
    assert {verdict.verdict for verdict in verify_tables(cli.context)} == {"equal"}
    rows = delta_table(cli.context, cli.context.plans.require().tables[0]).read()[0]
    assert not pending and sorted(n for n in rows["n"].to_pylist() if n) == [1, 6, 8, 9]


def test_a_reading_without_rows(cli: Cli, server: MySQLServer, database: str) -> None:
    """No row satisfies the condition, and nothing changes meanwhile."""
    cli.value["transforms"]["where"] = {rf"{database}[.]account": "n > 0"}
    cli.write()
    cli.snapshot()
    with cli.streaming():
        assert cli.resnapshot(f"{database}.account") == "rejoined"
    assert {verdict.verdict for verdict in verify_tables(cli.context)} == {"equal"}
    assert cli.rows(database, "account").num_rows == 0


def test_parts_of_the_table_cannot_be_read_again(cli: Cli, server: MySQLServer, database: str) -> None:
    """Rows of the copy belong to no chunk, once the stream has written some."""
    cli.snapshot()
    with cli.opened() as (context, store):  # before that, they do
        plan = context.plans.require()
        assert run_group(context, store, plan, 0, run_in_threads, holder="x", requested_by=asked_by("t#1")).rows == 20
        assert run_group(context, store, plan, 0, run_in_threads, holder="x", requested_by=asked_by("t#2")).rows == 20
    server.session(database, f"INSERT INTO account VALUES ('{SECRETS[57]}', 1)")
    cli.catch_up()
    with pytest.raises(NotReadyError, match="the key of .* is hashed in its copy") as caught:
        cli.resnapshot(f"{database}.account", f"mail < '{SECRETS[9]}'")
    assert f"airflow-cdc resnapshot --table {database}.account" in caught.value.remedy
    with cli.opened() as (context, store):
        run_group(context, store, plan, 0, run_in_threads, holder="x", requested_by=asked_by("t#3"))
        cli.catch_up()
        (event,) = store.last_events(database, 10, ["reread_dropped"])
        assert "is hashed in its copy" in event.detail and "the rows published before stay" in event.detail
        assert event.remedy == f"Re-snapshot the whole table: airflow-cdc resnapshot --table {database}.account"
    assert {verdict.verdict for verdict in verify_tables(cli.context)} == {"equal"}


def test_repair_says_what_to_do(cli: Cli, server: MySQLServer, database: str) -> None:
    cli.snapshot()
    cli.catch_up()
    server.session(database, "SET sql_log_bin = 0", f"UPDATE account SET n = 7 WHERE mail = '{SECRETS[3]}'")
    context, lines = cli.context, list[str]()
    context.reporter.line = lambda text, level=0: lines.append(text)  # type: ignore[method-assign]
    (verdict,) = compare_and_repair(context, TableSelection(), run_scans_in_threads, repair=True)
    assert verdict.different == 1 and verdict.repaired == 0
    assert any("its key is hashed in the copy. Re-snapshot the whole table" in line for line in lines), lines


def test_a_hashed_key_that_is_hashed_no_longer(cli: Cli, database: str) -> None:
    cli.snapshot()
    cli.catch_up()
    del cli.value["transforms"]
    cli.write()
    with pytest.raises(NotReadyError, match="transforms.columns hashes none"):
        cli.catch_up()


def test_keys_that_are_hashed_from_now_on(cli: Cli, server: MySQLServer, database: str) -> None:
    """The table is read again as a whole, although its chunks were planned in clear."""
    transforms = cli.value.pop("transforms")
    cli.value["stream"]["on_table_error"] = "suspend"
    cli.write()
    cli.snapshot()
    server.session(database, f"INSERT INTO account VALUES ('{SECRETS[57]}', 1)")
    cli.catch_up()
    cli.value["transforms"] = transforms
    cli.write()
    with cli.opened() as (context, store):
        run_epoch_in_process(begin_epoch(context, store, catch_up=True))
        table = context.plans.require().tables[0]
        rows = delta_table(context, table).read()[0]
        assert table.has_hashed_key and {len(mail) for mail in rows["mail"].to_pylist()} == {64}
    assert {verdict.verdict for verdict in verify_tables(cli.context)} == {"equal"}


def test_a_key_that_changes_while_chunks_are_read(
    cli: Cli, server: MySQLServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chunk of the new key includes the change, that of the old key does not: the old key is deleted."""
    server.session(database, f"UPDATE account SET n = 1 WHERE mail = '{SECRETS[5]}'")
    cli.value["snapshot"]["parallelism"] = 1
    cli.value["sink"]["deletes"] = {"soft": [rf"{database}[.]account"]}
    cli.value["transforms"]["where"] = {rf"{database}[.]account": "n >= 0"}
    cli.write()
    chunks = []

    def failpoint(name: str) -> None:
        if name == "chunk.before_lw":
            chunks.append(name)
            if len(chunks) == 5:
                server.session(database, f"UPDATE account SET mail = 'secret-045x' WHERE mail = '{SECRETS[5]}'")

    monkeypatch.setattr(chunk, "failpoint", failpoint)
    cli.snapshot()
    cli.catch_up()
    assert len(chunks) == 5
    rows = cli.rows(database, "account").to_pylist()
    assert sorted(row[DELETED_COLUMN] for row in rows if row["n"] == 1) == [False, True]
    assert {verdict.verdict for verdict in verify_tables(cli.context)} == {"equal"}
