"""Several tables copied into one: rows, DDL, TRUNCATE, re-snapshots and damage of one of them concern it alone."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_cdc.model.errors import NotReadyError, TableSuspendedError, TerminalError
from airflow_provider_cdc.sinks.delta import maintenance
from airflow_provider_cdc.sinks.delta import table as delta_table
from airflow_provider_cdc.sinks.delta.log.delta_log import DeltaLog
from airflow_provider_cdc.sinks.protocol import Fence, Upsert
from airflow_provider_cdc.sinks.storage.local_storage import LocalStorage
from airflow_provider_cdc.verify.run import verify_tables
from tests.support.cli import Cli
from tests.support.oracle import open_copy
from tests.support.servers import MySQLServer
from tests.support.sink_kinds import DELTA, ICEBERG
from tests.support.transforms import HASH_CONNECTION, HASH_ENV, hmac_sql

pytestmark = pytest.mark.one_of("server", "kind")

TABLE = "CREATE TABLE orders (id INT PRIMARY KEY, v VARCHAR(20), n INT)"
ROWS = 30


@pytest.fixture(params=[DELTA, ICEBERG])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def shards(server: MySQLServer) -> Iterator[list[str]]:
    """Three databases, each with the same ids in its table."""
    with ExitStack() as stack:
        names = sorted(stack.enter_context(server.fresh_database()) for _ in range(3))  # the order of the plan
        for number, name in enumerate(names):
            fill(server, name, number)
        yield names


def fill(server: MySQLServer, database: str, number: int, first: int = 1, table: str = TABLE) -> None:
    rows = ", ".join(f"({n}, 'shard {number} row {n}', {n * number})" for n in range(first, first + ROWS))
    server.session(database, table, f"INSERT INTO orders (id, v, n) VALUES {rows}")


def pipeline(folder: Path, server: MySQLServer, shards: list[str], kind: str, **settings: Any) -> Cli:
    pattern, route = rf"({'|'.join(shards)})\.orders", settings.pop("route", {})
    return Cli(
        folder,
        server,
        pattern,
        name=shards[0],
        snapshot={"chunk_rows": 7, **settings.pop("snapshot", {})},
        sink={"kind": kind, "routes": [{"match": pattern, "into": "all/orders", **route}], **settings.pop("sink", {})},
        stream={"on_table_error": "suspend", "reread": "ask", **settings.pop("stream", {})},
        **settings,
    )


@pytest.fixture
def cli(server: MySQLServer, shards: list[str], tmp_path: Path, kind: str) -> Cli:
    made = pipeline(tmp_path / "p", server, shards, kind)
    made.snapshot()
    return made


def copied(cli: Cli, *columns: str) -> Counter[tuple[Any, ...]]:
    """The rows of the copy, as other software reads them, with the table that each comes from."""
    copy = open_copy(cli.sink / "all" / "orders")
    assert copy is not None
    names = [*columns, *(["_cdc_deleted"] if "_cdc_deleted" in copy.columns else [])]
    return Counter(tuple(row.values()) for row in copy.read(["_cdc_source", *names]).to_pylist())


def source_rows(server: MySQLServer, shards: list[str], *columns: str, **expressions: dict[str, str]) -> Counter[Any]:
    """The rows of the tables; ``expressions``, by shard, stand for columns that it does not have."""
    rows: Counter[Any] = Counter()
    for shard in shards:
        texts = [expressions.get(shard, {}).get(name, f"`{name}`") for name in columns]
        found = server.execute(f"SELECT {', '.join(texts)} FROM `{shard}`.orders")
        rows.update((f"{shard}.orders", *row) for row in found)
    return rows


def check(cli: Cli, server: MySQLServer, shards: list[str], *columns: str, **expressions: dict[str, str]) -> None:
    """The copy is the union of the tables, and ``verify`` says so for each."""
    columns = columns or ("id", "v", "n")
    assert copied(cli, *columns) == source_rows(server, shards, *columns, **expressions)
    verdicts = {found.table.partition(".")[0]: found.verdict for found in verify_tables(cli.context)}
    assert verdicts == dict.fromkeys(shards, "equal")


def changes(server: MySQLServer, shards: list[str]) -> None:
    """Changes of all kinds, to the same keys of all tables."""
    one, two, three = shards
    server.session(one, "UPDATE orders SET v = 'changed' WHERE id < 5", "DELETE FROM orders WHERE id IN (9, 10)")
    server.session(
        two,
        "UPDATE orders SET id = id + 1000 WHERE id < 4 AND id + 1000 NOT IN (SELECT * FROM (SELECT id FROM orders) x)",
        "REPLACE INTO orders (id, v, n) VALUES (500, 'new', 5)",
    )
    server.session(
        three, "TRUNCATE TABLE orders", "INSERT INTO orders (id, v, n) VALUES (1, 'after', 1), (2, 'after', 2)"
    )
    server.session(
        one, "DELETE FROM orders WHERE id = 2", "REPLACE INTO orders (id, v, n) VALUES (2, 'again', 1), (9, 'x', 9)"
    )


@pytest.mark.parametrize("sink", [{}, {"merge": "copy_on_write"}, {"partition_by": {".*[.].*": ["n"]}}], ids=str)
def test_snapshot_and_stream(
    server: MySQLServer, shards: list[str], tmp_path: Path, kind: str, sink: dict[str, Any]
) -> None:
    cli = pipeline(tmp_path, server, shards, kind, sink=sink)
    checked = cli.call("check")
    assert checked.code == 0 and "differ only in case" not in checked.out
    cli.snapshot()
    cli.snapshot()  # again: nothing happens
    assert copied(cli, "id", "v", "n") == source_rows(server, shards, "id", "v", "n")
    changes(server, shards)
    cli.catch_up()
    check(cli, server, shards)
    changes(server, shards[::-1])
    cli.catch_up()
    check(cli, server, shards)


def test_equal_rows_are_counted_by_table(server: MySQLServer, shards: list[str], tmp_path: Path, kind: str) -> None:
    for shard in shards:
        server.session(
            shard,
            "DROP TABLE orders",
            "CREATE TABLE orders (v VARCHAR(20), n INT)",
            "INSERT INTO orders VALUES ('a', 1), ('a', 1), ('b', 2), (NULL, NULL)",
        )
    cli = pipeline(tmp_path, server, shards, kind)
    cli.snapshot()
    server.session(shards[0], "DELETE FROM orders WHERE v = 'a' LIMIT 1", "INSERT INTO orders VALUES ('b', 2)")
    server.session(shards[1], "UPDATE orders SET n = 3 WHERE v IS NULL")
    server.session(shards[2], "TRUNCATE TABLE orders", "INSERT INTO orders VALUES ('a', 1)")
    cli.catch_up()
    check(cli, server, shards, "v", "n")


@pytest.mark.parametrize("deletes", ["soft", "ignore"])
def test_deleted_rows_stay(server: MySQLServer, shards: list[str], tmp_path: Path, kind: str, deletes: str) -> None:
    cli = pipeline(tmp_path, server, shards, kind, sink={"deletes": deletes})
    cli.snapshot()
    before = source_rows(server, shards, "id", "v")
    server.session(shards[0], "DELETE FROM orders WHERE id = 1")
    server.session(shards[1], "TRUNCATE TABLE orders")
    cli.catch_up()
    gone = {(f"{shards[0]}.orders", 1), *((f"{shards[1]}.orders", n) for n in range(1, ROWS + 1))}
    marks = {row: ((row[:2] in gone),) if deletes == "soft" else () for row in before}
    assert copied(cli, "id", "v") == Counter(row + mark for row, mark in marks.items())
    server.session(shards[2], "DELETE FROM orders WHERE id = 3")
    assert cli.resnapshot(f"{shards[2]}.orders") == "staged"
    cli.catch_up()
    gone.add((f"{shards[2]}.orders", 3))
    marks = {row: ((row[:2] in gone),) if deletes == "soft" else () for row in before}
    assert copied(cli, "id", "v") == Counter(row + mark for row, mark in marks.items())


def test_columns_are_added_one_table_after_the_other(cli: Cli, server: MySQLServer, shards: list[str]) -> None:
    cli.catch_up()
    one, two, three = shards
    server.session(one, "ALTER TABLE orders ADD COLUMN more INT", "UPDATE orders SET more = id WHERE id > 20")
    server.session(two, "UPDATE orders SET v = 'in between'")
    cli.catch_up()
    columns: tuple[str, ...] = ("id", "v", "n", "more")
    absent = {"more": "NULL"}
    check(cli, server, shards, *columns, **{two: absent, three: absent})
    server.session(
        two, "ALTER TABLE orders ADD COLUMN other DATE FIRST, ADD COLUMN more INT", "UPDATE orders SET more=7"
    )
    server.session(three, "DELETE FROM orders WHERE id = 1", "INSERT INTO orders VALUES (1, 'a', 1)")
    cli.catch_up()
    columns = (*columns, "other")
    no_date = {"other": "CAST(NULL AS DATE)"}
    check(cli, server, shards, *columns, **{one: no_date, three: absent | no_date})
    for shard, clause in ((three, "ADD COLUMN more INT, ADD COLUMN other DATE"), (one, "ADD COLUMN other DATE")):
        server.session(shard, f"ALTER TABLE orders {clause}", "UPDATE orders SET other = '2026-01-02' WHERE id < 9")
    cli.catch_up()
    check(cli, server, shards, *columns)
    assert cli.resnapshot(f"{two}.orders") == "staged"
    cli.catch_up()
    check(cli, server, shards, *columns)


#: DDL on one table that the shared copy cannot follow in place, and the columns afterwards.
SUSPENDING = {
    "a column is dropped": ("DROP COLUMN n", {"n": "NULL"}, ("id", "v", "n")),
    "a column is renamed": ("CHANGE n m INT", {"n": "NULL"}, ("id", "v", "n", "m")),
    "a column gets a default": ("ADD COLUMN m INT DEFAULT 5", {}, ("id", "v", "n", "m")),
}


@pytest.mark.parametrize("name", SUSPENDING)
def test_ddl_that_needs_the_rows_again(cli: Cli, server: MySQLServer, shards: list[str], name: str) -> None:
    cli.catch_up()
    clause, absent, columns = SUSPENDING[name]
    server.session(shards[1], f"ALTER TABLE orders {clause}", "UPDATE orders SET v = 'after' WHERE id = 3")
    server.session(shards[0], "UPDATE orders SET v = 'goes on' WHERE id = 4")
    with pytest.raises(TableSuspendedError, match=rf"{shards[1]}\.orders"):
        cli.catch_up()
    assert copied(cli, "id", "v")[(f"{shards[0]}.orders", 4, "goes on")] == 1
    assert cli.resnapshot(f"{shards[1]}.orders") == "staged"
    cli.catch_up()
    others = {"m": "NULL"}
    check(cli, server, shards, *columns, **{shards[0]: others, shards[1]: absent, shards[2]: others})
    changes(server, shards) if "n" not in absent else server.session(shards[1], "DELETE FROM orders WHERE id = 8")
    if "n" not in absent and "m" in columns:
        server.session(shards[1], "INSERT INTO orders (id, v, n) VALUES (600, 'd', 1)")
    cli.catch_up()
    check(cli, server, shards, *columns, **{shards[0]: others, shards[1]: absent, shards[2]: others})


@pytest.mark.parametrize(
    "clause", ["MODIFY n VARCHAR(5)", "ADD COLUMN m BIGINT", "DROP PRIMARY KEY, ADD PRIMARY KEY (n, id)"]
)
def test_columns_that_the_copy_cannot_have(cli: Cli, server: MySQLServer, shards: list[str], clause: str) -> None:
    cli.catch_up()
    server.session(shards[0], "ALTER TABLE orders ADD COLUMN m INT")
    cli.catch_up()
    before = copied(cli, "id", "v", "n")
    server.session(shards[1], f"ALTER TABLE orders {clause}")
    server.session(shards[2], "UPDATE orders SET v = 'goes on' WHERE id = 4")
    with pytest.raises(TableSuspendedError, match=rf"{shards[1]}\.orders"):
        cli.catch_up()
    assert copied(cli, "id", "v")[(f"{shards[2]}.orders", 4, "goes on")] == 1
    remedies: list[str | None] = []
    try:
        cli.resnapshot(f"{shards[1]}.orders")
    except TerminalError as error:
        remedies.append(error.remedy)
    with pytest.raises(TableSuspendedError):
        cli.catch_up()
    with cli.opened() as (context, store):
        remedies += [event.remedy for event in store.last_events(context.pipeline.name, 50, ["reread_dropped"])]
    remedy = "Give the table the key of the others" if "KEY" in clause else "Give the column another name"
    assert remedies and all(str(one).startswith(remedy) for one in remedies), remedies
    kept = Counter({row: count for row, count in copied(cli, "id", "v", "n").items() if row[0].startswith(shards[1])})
    assert kept == Counter({row: count for row, count in before.items() if row[0].startswith(shards[1])})
    server.session(shards[0], "UPDATE orders SET v = 'on and on' WHERE id = 4")
    with pytest.raises(TableSuspendedError):
        cli.catch_up()
    assert copied(cli, "id", "v")[(f"{shards[0]}.orders", 4, "on and on")] == 1


def test_damage_is_found_and_repaired_in_one_table(cli: Cli, server: MySQLServer, shards: list[str]) -> None:
    cli.catch_up()
    server.session(shards[1], "SET sql_log_bin = 0", "UPDATE orders SET v = 'silent' WHERE id = 5")
    verdicts = {found.table.partition(".")[0]: found.verdict for found in verify_tables(cli.context)}
    assert verdicts == {shards[0]: "equal", shards[1]: "different", shards[2]: "equal"}
    assert cli.resnapshot(f"{shards[1]}.orders", "id BETWEEN 3 AND 8") == "staged"
    cli.catch_up()
    check(cli, server, shards)


def test_a_group_is_read_again(cli: Cli, server: MySQLServer, shards: list[str]) -> None:
    """Its slices replace those of its tables, and no others in the same folder."""
    changes(server, shards)
    cli.catch_up()
    for shard in shards:
        server.session(shard, "SET sql_log_bin = 0", "UPDATE orders SET v = 'silent' WHERE id = 20")
    for shard in shards:
        assert cli.resnapshot(f"{shard}.orders") == "staged"
        changes(server, shards)
    cli.catch_up()
    check(cli, server, shards)


def test_a_table_joins_and_another_leaves(server: MySQLServer, shards: list[str], tmp_path: Path, kind: str) -> None:
    one, two, three = shards
    cli = pipeline(tmp_path, server, shards, kind, stream={"reread": "auto"})
    cli.value["source"]["tables"] = [rf"({one}|{two})\.orders"]
    cli.write()
    cli.snapshot()
    cli.catch_up()
    server.session(three, "ALTER TABLE orders ADD COLUMN more INT DEFAULT 3")
    cli.value["source"]["tables"] = [rf"({one}|{three})\.orders"]
    cli.write()
    left = copied(cli, "id", "v")
    server.session(two, "DELETE FROM orders")
    server.session(one, "UPDATE orders SET v = 'on' WHERE id = 3")
    with cli.streaming():
        pass
    cli.catch_up()
    expected = source_rows(server, [one, three], "id", "v")
    expected += Counter({row: count for row, count in left.items() if row[0] == f"{two}.orders"})
    assert copied(cli, "id", "v") == expected


def test_files_of_others_stay(cli: Cli, server: MySQLServer, shards: list[str]) -> None:
    """All files of the folder are old, and may be deleted if the table does not need them."""
    for _ in range(3):
        changes(server, shards)
        cli.catch_up()
    old = time.time() - 30 * 86_400
    for file in (cli.sink / "all" / "orders").rglob("*.parquet"):
        os.utime(file, (old, old))
    context = cli.context
    for table in context.plans.require().tables:
        target = context.sink.table(table)
        target.clear_staged("1")
        target.clean_up()
        check(cli, server, shards)
    changes(server, shards)
    cli.catch_up()
    check(cli, server, shards)


def test_slices_of_one_source_are_cleared(cli: Cli, shards: list[str]) -> None:
    """Those of others stay, though they are slices of the same attempt of the same group."""
    context = cli.context
    staged = []
    for table in context.plans.require().tables[:2]:
        schema, target = table.copy.sink_schema, context.sink.table(table)
        row = {**dict.fromkeys(schema.names), "id": 1, "_cdc_seq": 1, "_cdc_op": "r", "_cdc_source": table.label}
        staged.append((target, target.stage("9/9/1/slice-0", [pa.Table.from_pylist([row], schema)])))
    (one, of_one), (two, of_two) = staged
    one.clear_staged("9/9")
    assert not one.is_staged(of_one) and two.is_staged(of_two)


def test_an_alter_from_another_definition(cli: Cli) -> None:
    context = cli.context
    table = context.plans.require().tables[0]
    other = table.select_columns(lambda name: name != "v")
    with pytest.raises(TerminalError, match="have other columns than the table had before"):
        context.sink.table(table).alter(other, {"cdc/test/altered": 1}, Fence("cdc/test", 1))


def test_commits_of_one_process_are_not_read(
    cli: Cli, server: MySQLServer, shards: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables that share a copy take turns, and know of each other what they have written."""
    asked, read, write_once = Counter[str](), LocalStorage.read, LocalStorage.write_once

    def count_read(storage: LocalStorage, name: str) -> bytes | None:
        asked["read"] += bool(re.search("_delta_log/0|metadata/", name))
        return read(storage, name)

    def count_write(storage: LocalStorage, name: str, data: bytes) -> bool:
        is_written = write_once(storage, name, data)
        asked["lost"] += not is_written
        return is_written

    monkeypatch.setattr(LocalStorage, "read", count_read)
    monkeypatch.setattr(LocalStorage, "write_once", count_write)
    with cli.epoch() as epoch:
        at = epoch.section_start
        for number in range(4):
            for shard in shards:
                server.session(shard, f"UPDATE orders SET v = 'batch {number}' WHERE id < 9")
            with closing(epoch.job.make_planner()) as planner:
                end = planner.find_batch_end(at, 1 << 40)
            staged = epoch.job.stage_range(at, end, str(number))
            if number == 1:
                asked.clear()  # at first, each of them has read the table
            epoch.apply_batch(staged)
            at = end
    assert not asked["read"] and not asked["lost"]
    check(cli, server, shards)


@pytest.mark.parametrize("kind", [DELTA])
def test_a_lost_commit_is_not_known(cli: Cli, shards: list[str]) -> None:
    """Another process was faster. The tables of this one must not take what was not written for a commit."""
    context = cli.context
    logs = [context.sink.table(table).load_log() for table in context.plans.require().tables[:2]]  # type: ignore[attr-defined]
    other = DeltaLog(logs[0].storage)
    other.refresh()
    assert other.commit([{"txn": {"appId": f"{shards[1]}.orders:cdc/other", "version": 7}}], "TEST")
    assert not logs[0].commit([{"txn": {"appId": f"{shards[0]}.orders:cdc/lost", "version": 7}}], "TEST")
    for log in logs:
        log.catch_up()
        log.refresh()
    assert "cdc/lost" not in logs[0].markers and logs[1].markers["cdc/other"] == 7
    assert logs[0].commit([{"txn": {"appId": f"{shards[0]}.orders:cdc/made", "version": 7}}], "TEST")
    logs[1].catch_up()
    assert logs[1].version == logs[0].version == other.version + 1 and "cdc/made" not in logs[1].markers


@pytest.mark.parametrize("kind", [DELTA])
def test_one_checkpoint_is_enough(
    cli: Cli, server: MySQLServer, shards: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first table to whose commits one is due writes it, and the others see that."""
    for module in (maintenance, delta_table):
        monkeypatch.setattr(module, "OVERDUE_COMMITS", 8)
    monkeypatch.setattr(maintenance, "_CHECKPOINT_INTERVAL", 4)
    log_folder = cli.sink / "all" / "orders" / "_delta_log"
    with cli.epoch() as epoch:
        at = epoch.section_start
        while not [*log_folder.glob("*.checkpoint.parquet")]:
            for shard in shards:
                server.session(shard, "UPDATE orders SET n = n + 1 WHERE id < 9")
            with closing(epoch.job.make_planner()) as planner:
                end = planner.find_batch_end(at, 1 << 40)
            epoch.apply_batch(epoch.job.stage_range(at, end, str(end.at)))
            at = end
    assert len([*log_folder.glob("*.checkpoint.parquet")]) == 1
    check(cli, server, shards)


@pytest.mark.parametrize("kind", [DELTA])
def test_a_log_that_was_restored_from_a_backup(cli: Cli, server: MySQLServer, shards: list[str]) -> None:
    """What this process knows of the log from before is void."""
    context, folder = cli.context, cli.sink / "all" / "orders"
    log = context.sink.table(context.plans.require().tables[0]).load_log()  # type: ignore[attr-defined]
    versions = {path: path.read_bytes() for path in (folder / "_delta_log").glob("*.json")}
    before = log.version
    for number in range(3):
        assert log.commit([{"txn": {"appId": f"{shards[0]}.orders:cdc/late", "version": number}}], "TEST")
    for path in (folder / "_delta_log").glob("*.json"):
        if path not in versions:
            path.unlink()
    log._refreshed_at = 0.0  # some time has passed
    log.refresh()
    assert log.version == before and "cdc/late" not in log.markers
    changes(server, shards)
    cli.catch_up()
    check(cli, server, shards)


def test_an_outdated_writer_of_one_table(cli: Cli, server: MySQLServer, shards: list[str]) -> None:
    """The copy still has the columns that it knows, but not it alone decides which those are."""
    context = cli.context
    before = context.plans.require().tables[0]
    old = context.sink.table(before)
    server.session(shards[0], "ALTER TABLE orders ADD COLUMN more INT", "UPDATE orders SET more = 1 WHERE id = 1")
    cli.catch_up()
    row = pa.Table.from_pylist(
        [{**dict.fromkeys(before.copy.sink_schema.names), "id": 1, "_cdc_seq": 1 << 60, "_cdc_op": "u"}],
        before.copy.sink_schema,
    )
    with pytest.raises(TerminalError, match="has other columns than its source table"):
        old.commit(lambda _: Upsert(row), {}, Fence("cdc/test", 1))
    check(cli, server, shards, "id", "v", "n", "more", **{shard: {"more": "NULL"} for shard in shards[1:]})


def test_a_table_is_dropped(server: MySQLServer, shards: list[str], tmp_path: Path, kind: str) -> None:
    """Its rows go, and those of the others stay."""
    cli = pipeline(tmp_path, server, shards, kind, sink={"on_dropped": "drop"}, stream={"fail_on_suspended": False})
    cli.snapshot()
    cli.catch_up()
    server.session(shards[1], "DROP TABLE orders")
    server.session(shards[0], "UPDATE orders SET v = 'goes on' WHERE id = 3")
    cli.catch_up()
    cli.catch_up()
    assert copied(cli, "id", "v") == source_rows(server, [shards[0], shards[2]], "id", "v")


def test_a_start_without_a_snapshot(server: MySQLServer, shards: list[str], tmp_path: Path, kind: str) -> None:
    cli = pipeline(tmp_path, server, shards, kind, stream={"start": "latest"})
    cli.snapshot()
    for number, shard in enumerate(shards):
        server.session(shard, f"INSERT INTO orders VALUES (900, 'new {number}', 1), (901, 'other', 1)")
    cli.catch_up()
    server.session(shards[1], "UPDATE orders SET v = 'changed' WHERE id = 900", "DELETE FROM orders WHERE id = 901")
    cli.catch_up()
    expected = source_rows(server, shards, "id", "v")
    assert copied(cli, "id", "v") == Counter({row: count for row, count in expected.items() if row[1] >= 900})


@pytest.mark.parametrize("rule", ["hash", "where"])
def test_rules(server: MySQLServer, shards: list[str], tmp_path: Path, kind: str, rule: str) -> None:
    """Hashed keys, and a condition for one table."""
    any_shard = f"({'|'.join(shards)})"
    transforms: dict[str, Any] = {"where": {rf"{shards[1]}\.orders": "n > 10"}}
    if rule == "hash":
        transforms = {"hash_key_conn_id": HASH_CONNECTION, "columns": {rf"{any_shard}\.orders\.id": "hash"}}
    cli = pipeline(tmp_path, server, shards, kind, transforms=transforms)
    cli.env |= HASH_ENV
    cli.snapshot()
    changes(server, shards)
    cli.catch_up()
    assert {found.verdict for found in verify_tables(cli.context)} == {"equal"}
    rows = source_rows(
        server,
        shards,
        hmac_sql("id") if rule == "hash" else "id",
        "v",
        "n",
        **{shard: {hmac_sql("id"): hmac_sql("id")} for shard in shards},
    )
    if rule == "where":
        rows = Counter({row: count for row, count in rows.items() if row[0] != f"{shards[1]}.orders" or row[3] > 10})
    assert copied(cli, "id", "v", "n") == rows


def test_maintenance_and_uninstall(cli: Cli, server: MySQLServer, shards: list[str]) -> None:
    for _ in range(6):
        changes(server, shards)
        cli.catch_up()
    assert cli.run("maintain").code in (0, 2)
    check(cli, server, shards)
    result = cli.call("forget", "--tables", "--yes")
    assert result.code == 0, result
    assert open_copy(cli.sink / "all" / "orders") is None


def test_explain(cli: Cli, server: MySQLServer, shards: list[str]) -> None:
    """The same key, in two tables."""
    server.session(shards[1], "UPDATE orders SET v = 'explained' WHERE id = 3")
    cli.catch_up()
    for shard, expected in ((shards[1], True), (shards[0], False)):
        result = cli.call("explain", "--table", f"{shard}.orders", "--key", "3")
        assert result.code == 0, result
        assert ("explained" in result.out) == expected, result.out


def test_another_pipeline_may_not_write_to_it(cli: Cli, server: MySQLServer, shards: list[str], kind: str) -> None:
    other = pipeline(cli.folder, server, shards, kind)
    other.value["name"] = "other"
    other.value["sink"] |= cli.value["sink"]
    other.write()
    result = other.call("check")
    assert any("was not created by pipeline other, but by" in line for line in result.found), result
    with pytest.raises(NotReadyError, match="there is .*, but no plan"):
        other.snapshot()


#: What makes tables that cannot be copied into one: a statement for the second, settings, and what ``check`` says.
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "key": ("ALTER TABLE orders DROP PRIMARY KEY, ADD PRIMARY KEY (id, n)", {}, "the key of the first is (id), and"),
    "no key": ("ALTER TABLE orders DROP PRIMARY KEY", {}, "that of the second is (none)"),
    "type of the key": ("ALTER TABLE orders MODIFY id BIGINT", {}, "column id would be int32 in the first, and int64"),
    "type": ("ALTER TABLE orders MODIFY v VARBINARY(20)", {}, "column v would be string in the first, and binary in"),
    "case": ("ALTER TABLE orders CHANGE v V VARCHAR(20)", {}, "columns v and V differ in case only"),
    "deletes": ("", {"sink": {"deletes": {"soft": ["{}[.]orders"]}}}, "sink.deletes is not the same for them"),
    "merge": ("", {"sink": {"merge": {"copy_on_write": ["{}[.]orders"]}}}, "sink.merge is not the same for them"),
    "partitions": ("", {"sink": {"partition_by": {"{}[.]orders": ["n"]}}}, "sink.partition_by is not the same"),
    "one folder, two ways": ("", {"unique_second": True}, "would both be copied to all/orders"),
    "unique without a key": (
        "ALTER TABLE orders DROP PRIMARY KEY",
        {"route": {"unique": True}},
        "has no usable key, and its route says `unique`",
    ),
}


def _named(value: Any, database: str) -> Any:
    if isinstance(value, dict):
        return {key.replace("{}", database): _named(one, database) for key, one in value.items()}
    return [one.replace("{}", database) for one in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", REFUSED)
def test_tables_that_cannot_be_copied_into_one(
    server: MySQLServer, shards: list[str], tmp_path: Path, kind: str, name: str
) -> None:
    statement, settings, part = REFUSED[name]
    settings = {key: _named(value, shards[1]) for key, value in settings.items()}
    unique_second = settings.pop("unique_second", False)
    if statement:
        server.session(shards[1], statement)
    cli = pipeline(tmp_path, server, shards, kind, **settings)
    if unique_second:
        route = {"match": rf"{shards[1]}\.orders", "into": "all/orders", "unique": True}
        cli.value["sink"]["routes"].insert(0, route)
        cli.write()
    result = cli.call("check")
    assert result.code == 2 and len(result.found) == 1 and part in result.found[0], result
    with pytest.raises(NotReadyError) as refused:
        cli.snapshot()
    assert part in refused.value.message and f"{shards[1]}.orders" in refused.value.message
    assert not (cli.sink / "all").exists()


def test_a_column_that_the_first_table_lacks(server: MySQLServer, shards: list[str], tmp_path: Path, kind: str) -> None:
    """Its types in the others are compared, too."""
    server.session(shards[1], "ALTER TABLE orders ADD COLUMN more INT")
    server.session(shards[2], "ALTER TABLE orders ADD COLUMN more DATE")
    result = pipeline(tmp_path, server, shards, kind).call("check")
    assert result.code == 2 and "column more would be int32 in the first, and date32[day] in the second" in result.out
    assert f"{shards[1]}.orders and {shards[2]}.orders cannot" in result.out


#: Names of databases and tables that are special somewhere: in URLs, in paths, in names of markers.
NAMES = [
    ("sh=op%20", "or/ders"),
    ("sh op'\"`x", "or ders:x"),
    ("#1", "%3A"),
    ("数" * 30, "表" * 30),
    ("s1", "t"),
    ("s1", "t:cdc/p/1/group/"),
    ("S1", "T"),
    (".x", "1"),
]


def test_names(mysql_server: MySQLServer, tmp_path: Path, kind: str) -> None:
    names = [name for name in NAMES if kind == ICEBERG or name[0].isascii()]
    with ExitStack() as stack:
        connection = stack.enter_context(closing(mysql_server.connect(autocommit=True)))
        cursor = stack.enter_context(connection.cursor())

        def run(sql: str, *table: str) -> list[tuple[Any, ...]]:
            cursor.execute(sql.format(".".join("`" + name.replace("`", "``") + "`" for name in table)))
            return [*cursor.fetchall()]

        def check_copy() -> None:
            copy = open_copy(tmp_path / "lake" / "all" / "orders")
            assert copy is not None
            rows = Counter(tuple(row.values()) for row in copy.read(["_cdc_source", "id", "v"]).to_pylist())
            assert rows == Counter(
                (".".join(name), *row) for name in names for row in run("SELECT id, v FROM {}", *name)
            )

        for database in {database for database, _ in NAMES}:
            run("DROP DATABASE IF EXISTS {}", database)
            run("CREATE DATABASE {}", database)
            stack.callback(run, "DROP DATABASE {}", database)
        for name in NAMES:
            run("CREATE TABLE {} (id INT PRIMARY KEY, v VARCHAR(20))", *name)
            run("INSERT INTO {} VALUES (1, 'a'), (2, 'b'), (3, 'c')", *name)
        patterns = [rf"{re.escape(database)}\.{re.escape(table)}" for database, table in NAMES]
        cli = Cli(tmp_path, mysql_server, *patterns, snapshot={"chunk_rows": 2})
        cli.value["sink"] |= {"kind": kind, "routes": [{"match": ".*[.].*", "into": "all/orders"}]}
        cli.write()
        result = cli.call("check")
        if kind == DELTA:
            assert result.code == 2 and "is too long for the folder of its rows in a shared copy" in result.out, result
            del cli.value["source"]["tables"][3]
            cli.write()
            result = cli.call("check")
        assert result.code == 0, result
        cli.snapshot()
        check_copy()
        for number, name in enumerate(names):
            if number % 3 == 0:
                run("TRUNCATE TABLE {}", *name)
            run(f"REPLACE INTO {{}} VALUES (2, 'changed {number}'), (4, 'new')", *name)
            run("DELETE FROM {} WHERE id = 3", *name)
        cli.catch_up()
        check_copy()
        assert cli.resnapshot(".".join(names[0])) == "staged"
        cli.catch_up()
        check_copy()
        assert {found.verdict for found in verify_tables(cli.context)} == {"equal"}


def test_routes_cannot_be_changed(cli: Cli) -> None:
    del cli.value["sink"]["routes"][0]["into"]
    cli.value["sink"]["routes"][0]["table_path"] = "all/orders_{database}"
    cli.write()
    with pytest.raises(NotReadyError, match="sink.routes of .* changed since its snapshot"):
        cli.catch_up()


# ---------------------------------------------------------------- unique keys


@pytest.fixture
def unique(server: MySQLServer, shards: list[str], tmp_path: Path, kind: str) -> Cli:
    for number, shard in enumerate(shards):
        server.session(shard, f"UPDATE orders SET id = id + {1000 * number}")
    return pipeline(tmp_path / "u", server, shards, kind, route={"unique": True})


def test_unique_keys(unique: Cli, server: MySQLServer, shards: list[str], kind: str) -> None:
    unique.snapshot()
    server.session(shards[0], "UPDATE orders SET v = 'changed'", "INSERT INTO orders VALUES (99, 'new', 1)")
    unique.catch_up()
    check(unique, server, shards)


@pytest.mark.parametrize("forth", [True, False])
def test_a_row_moves(unique: Cli, server: MySQLServer, shards: list[str], forth: bool) -> None:
    unique.snapshot()
    unique.catch_up()
    source, target = shards[:2] if forth else shards[1::-1]
    number = 5 if forth else 1005
    for _ in range(2):
        server.session(source, f"DELETE FROM orders WHERE id = {number}")
        server.session(target, f"INSERT INTO orders VALUES ({number}, 'moved', 1)")
        unique.catch_up()
        check(unique, server, shards)
        source, target = target, source


def test_rows_are_exchanged(unique: Cli, server: MySQLServer, shards: list[str]) -> None:
    """In one batch, so that each of the two keys is taken; then a new snapshot of one table must be enough."""
    unique.snapshot()
    unique.catch_up()
    one, two, three = shards
    server.session(one, "DELETE FROM orders WHERE id = 5")
    server.session(two, "DELETE FROM orders WHERE id = 1005", "INSERT INTO orders VALUES (5, 'moved', 1)")
    server.session(one, "INSERT INTO orders VALUES (1005, 'moved', 1)")
    with pytest.raises(TableSuspendedError, match=r"key \(id=1005\) is already in the"):
        unique.catch_up()
    assert copied(unique, "id", "v")[f"{two}.orders", 5, "moved"] == 1
    server.session(three, "UPDATE orders SET v = 'goes on' WHERE id = 2004")
    assert unique.resnapshot(f"{one}.orders") == "staged"
    unique.catch_up()
    check(unique, server, shards)
    server.session(one, "INSERT INTO orders VALUES (2004, 'taken', 1)")
    with pytest.raises(TableSuspendedError, match=r"key \(id=2004\) is already in the"):
        unique.catch_up()


def test_a_row_moves_during_the_snapshot(unique: Cli, server: MySQLServer, shards: list[str]) -> None:
    """Both chunks have it, until the stream has passed them."""
    unique.value["snapshot"] |= {"group_rows": ROWS}
    unique.write()
    with unique.opened() as (context, store):
        context.plans.ensure(store)
    server.session(shards[0], "DELETE FROM orders WHERE id = 5")
    server.session(shards[2], "INSERT INTO orders VALUES (5, 'moved', 1)")
    unique.snapshot()
    server.session(shards[2], "DELETE FROM orders WHERE id = 5")
    server.session(shards[0], "INSERT INTO orders VALUES (5, 'back', 1)")
    unique.catch_up()
    unique.catch_up()
    check(unique, server, shards)


@pytest.mark.parametrize("when", ["before", "stream"])
def test_a_key_that_is_taken(unique: Cli, server: MySQLServer, shards: list[str], when: str) -> None:
    """One table stops, by name, and nothing is overwritten; the others go on."""
    if when == "stream":
        unique.snapshot()
        unique.catch_up()
        server.session(shards[2], "UPDATE orders SET n = 5 WHERE id = 2003")
        unique.catch_up()
    server.session(shards[1], "INSERT INTO orders VALUES (5, 'taken', 1)")
    if when == "before":
        unique.snapshot()
    server.session(shards[2], "UPDATE orders SET v = 'goes on' WHERE id = 2004")
    with pytest.raises(TableSuspendedError) as stopped:
        unique.catch_up()
        server.session(shards[2], "UPDATE orders SET v = 'goes on' WHERE id = 2005")
        unique.catch_up()
    text = str(stopped.value)
    assert "key (id=5) is already in the" in text and f"{shards[0]}.orders" in text and f"{shards[1]}.orders" in text
    rows = copied(unique, "id", "v")
    assert rows[(f"{shards[2]}.orders", 2004, "goes on")] == 1
    assert rows[(f"{shards[0]}.orders", 5, "shard 0 row 5")] == 1
    if when == "stream":
        assert (f"{shards[1]}.orders", 5, "taken") not in rows
    # The remedy.
    assert stopped.value.table == f"{shards[1]}.orders"
    server.session(shards[1], "DELETE FROM orders WHERE id = 5")
    assert unique.resnapshot(f"{shards[1]}.orders") == "staged"
    unique.catch_up()
    unique.catch_up()
    check(unique, server, shards)


def test_a_taken_key_is_read_again(unique: Cli, server: MySQLServer, shards: list[str]) -> None:
    """A new snapshot does not bring in what the stream has refused."""
    unique.snapshot()
    unique.catch_up()
    server.session(shards[1], "INSERT INTO orders VALUES (5, 'taken', 1)")
    for _ in range(2):
        with pytest.raises(TableSuspendedError, match=r"key \(id=5\) is already in the"):
            unique.catch_up()
        assert unique.resnapshot(f"{shards[1]}.orders") == "staged"
    with pytest.raises(TableSuspendedError):
        unique.catch_up()
    assert (f"{shards[1]}.orders", 5, "taken") not in copied(unique, "id", "v")


def test_keys_of_a_removed_table(unique: Cli, server: MySQLServer, shards: list[str]) -> None:
    """Its rows stay, so that no other table may have their keys."""
    unique.snapshot()
    unique.catch_up()
    unique.value["source"]["tables"] = [rf"({shards[0]}|{shards[2]})\.orders"]
    unique.write()
    with unique.streaming():
        pass
    server.session(shards[0], "INSERT INTO orders VALUES (1005, 'taken', 1)")
    with pytest.raises(TableSuspendedError, match=r"key \(id=1005\) is already in the"):
        unique.catch_up()
    assert (f"{shards[0]}.orders", 1005, "taken") not in copied(unique, "id", "v")
