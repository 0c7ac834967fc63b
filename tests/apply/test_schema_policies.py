"""What a copy takes over of a DDL, by ``stream.schema_changes`` and the lists of kinds."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.model.errors import DdlError, NotReadyError, TableSuspendedError
from airflow_provider_cdc.mysql.chunks import chunk
from airflow_provider_cdc.runtime.resolved_pipeline import SilentReporter
from airflow_provider_cdc.verify.run import verify_tables
from tests.support.cli import Cli
from tests.support.servers import MySQLServer
from tests.support.three_tables import run, streamed_copy, three_tables_database

pytestmark = pytest.mark.one_of("server")
database = three_tables_database
MERGES = ["deletion_vectors", "copy_on_write"]
#: Settings under which a column that is gone stays.
KEEPING: dict[str, dict[str, Any]] = {
    "lenient": {"schema_changes": "lenient"},
    "ignore": {"schema_changes": "ignore"},
    "excluded": {"exclude_schema_changes": ["drop.column"]},
    "not included": {"include_schema_changes": ["add.column", "alter.column.type"]},
}


def copied(server: MySQLServer, folder: Path, stream: dict[str, Any], **settings: Any) -> Cli:
    """A pipeline whose stream has passed its snapshot."""
    stream = {"on_table_error": "suspend", **stream}
    return streamed_copy(server, folder, "UPDATE quiet SET v = 'on' WHERE id = 1", stream=stream, **settings)


def columns(cli: Cli, table: str = "keyed") -> list[str]:
    return [name for name in cli.rows("d", table).column_names if not name.startswith("_cdc_")]


def column(cli: Cli, name: str) -> dict[int, Any]:
    """The values of a column, by id."""
    rows = cli.rows("d", "keyed")
    return dict(zip(rows["id"].to_pylist(), rows[name].to_pylist(), strict=True))


def is_equal(cli: Cli) -> bool:
    """Whether the columns that the source has are copied exactly."""
    return all(found.is_equal for found in verify_tables(cli.context))


@pytest.mark.one_of("server", "merge")
@pytest.mark.parametrize("merge", MERGES)
@pytest.mark.parametrize("how", KEEPING)
def test_a_column_that_is_gone_stays(
    server: MySQLServer, database: str, how: str, merge: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(SilentReporter, "line", lambda _, text, *__: said.append(text))
    cli = copied(server, tmp_path, KEEPING[how], sink={"merge": merge})
    run(
        server,
        "UPDATE keyed SET v = 'before' WHERE id = 4",
        "ALTER TABLE keyed DROP COLUMN v, ADD COLUMN w INT",
        "INSERT INTO keyed VALUES (901, 5)",
        "UPDATE keyed SET w = 77 WHERE id = 3",
        "DELETE FROM keyed WHERE id = 6",
    )
    cli.catch_up()
    new = [] if how == "ignore" else ["w"]
    assert columns(cli) == ["id", *new, "v"] and is_equal(cli)
    kept = column(cli, "v")
    assert (kept[4], kept[5], kept[901], 6 in kept) == ("before", "keyed 5", None, False)
    assert kept[3] is None, "written since"
    (line,) = [text for text in said if "d.keyed" in text and "followed" in text]
    assert "no longer in the source, and NULL from now on: v" in line and ("left out: w" in line) == (how == "ignore")
    if new:
        assert column(cli, "w")[3] == 77
    # And so it goes on: with other changes, in another run, and when it is read again.
    run(server, "ALTER TABLE keyed ADD COLUMN x INT", "UPDATE keyed SET x = 1 WHERE id < 3")
    cli.catch_up()
    new = [] if how == "ignore" else ["w", "x"]
    assert columns(cli) == ["id", *new, "v"] and is_equal(cli) and column(cli, "v")[5] == "keyed 5"
    assert cli.resnapshot("d.keyed") == "staged"
    cli.catch_up()
    assert columns(cli) == ["id", *new, "v"] and is_equal(cli) and set(column(cli, "v").values()) == {None}
    # With another setting it goes when the table is read again.
    cli.value["stream"]["on_table_error"] = "suspend"
    for key in KEEPING[how]:
        del cli.value["stream"][key]
    cli.write()
    cli.catch_up()
    assert columns(cli) == ["id", *new, "v"]
    assert cli.resnapshot("d.keyed") == "staged"
    cli.catch_up()
    assert columns(cli) == ["id", "w", "x"] and is_equal(cli)


def test_a_column_that_is_added_again(server: MySQLServer, database: str, tmp_path: Path) -> None:
    """Its values are the source's, not those that files have from before."""
    cli = copied(server, tmp_path, KEEPING["lenient"])
    run(server, "ALTER TABLE keyed DROP COLUMN v", "INSERT INTO keyed VALUES (901)")
    cli.catch_up()
    run(server, "ALTER TABLE keyed ADD COLUMN v VARCHAR(40)", "UPDATE keyed SET v = 'new' WHERE id = 9")
    cli.catch_up()
    assert columns(cli) == ["id", "v"] and is_equal(cli)
    assert {key: value for key, value in column(cli, "v").items() if value is not None} == {9: "new"}


def test_a_column_that_is_dropped_and_added_again(server: MySQLServer, database: str, tmp_path: Path) -> None:
    cli = copied(server, tmp_path, {})
    run(server, "ALTER TABLE keyed DROP COLUMN v")
    cli.catch_up()
    assert columns(cli) == ["id"] and is_equal(cli)
    run(server, "ALTER TABLE keyed ADD COLUMN v VARCHAR(40)", "UPDATE keyed SET v = 'new' WHERE id = 9")
    cli.catch_up()
    assert columns(cli) == ["id", "v"] and is_equal(cli)
    assert {key: value for key, value in column(cli, "v").items() if value is not None} == {9: "new"}
    # Read again, no file has the name any more: from here on it is followed once more.
    run(server, "ALTER TABLE keyed DROP COLUMN v", "ALTER TABLE keyed ADD COLUMN w VARCHAR(40)")
    cli.catch_up()
    assert columns(cli) == ["id", "w"] and is_equal(cli)


@pytest.mark.parametrize("how", ["lenient", "ignore"])
def test_a_column_that_is_renamed(server: MySQLServer, database: str, how: str, tmp_path: Path) -> None:
    """One that is gone, and one that is new: it is read again."""
    cli = copied(server, tmp_path, KEEPING[how])
    run(server, "ALTER TABLE keyed RENAME COLUMN v TO w", "UPDATE keyed SET w = 'renamed' WHERE id = 2")
    cli.catch_up()
    assert columns(cli) == (["id", "w", "v"] if how == "lenient" else ["id", "v"]) and is_equal(cli)
    if how == "lenient":
        assert column(cli, "w")[2] == "renamed" and column(cli, "w")[3] == "keyed 3"
    run(server, "UPDATE keyed SET w = 'later' WHERE id = 3", "INSERT INTO keyed VALUES (901, 'x')")
    cli.catch_up()
    assert is_equal(cli) and 901 in column(cli, "v")


def test_other_types(server: MySQLServer, database: str, tmp_path: Path) -> None:
    """Wider ones are taken over; for others the table is suspended, until somebody asks for it to be read again."""
    cli = copied(server, tmp_path, KEEPING["lenient"])
    run(server, "ALTER TABLE keyed MODIFY id BIGINT", "INSERT INTO keyed VALUES (9000000000, 'far')")
    cli.catch_up()
    assert is_equal(cli) and 9000000000 in column(cli, "v")
    run(server, "ALTER TABLE keyed MODIFY v VARBINARY(40)", "INSERT INTO keyed VALUES (902, x'ff00')")
    for _ in range(2):
        with pytest.raises(TableSuspendedError):
            cli.catch_up()
        assert 902 not in column(cli, "v") and column(cli, "v")[2] == "keyed 2"
    assert cli.resnapshot("d.keyed") == "staged"
    cli.catch_up()
    assert is_equal(cli) and column(cli, "v")[902] == b"\xff\x00"


def test_no_other_types(server: MySQLServer, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(SilentReporter, "line", lambda _, text, *__: said.append(text))
    cli = copied(server, tmp_path, {"exclude_schema_changes": ["alter.column.type"]})
    run(server, "ALTER TABLE quiet MODIFY v VARCHAR(90)", "ALTER TABLE keyed MODIFY id BIGINT")
    with pytest.raises(TableSuspendedError, match=r"d\.keyed"):
        cli.catch_up()
    why = r"column id was int.* and is bigint.*, which stream.exclude_schema_changes does not take over"
    assert any(re.search(why, text) and "airflow-cdc resnapshot --table d.keyed" in text for text in said)
    assert [found.is_equal for found in verify_tables(cli.context) if found.table != "d.keyed"] == [True, True]


def test_without_a_usable_key(server: MySQLServer, database: str, tmp_path: Path) -> None:
    """Its rows are told apart by all their values: it cannot keep a column that is NULL in some of them."""
    cli = copied(server, tmp_path, KEEPING["lenient"])
    run(server, "ALTER TABLE plain DROP COLUMN v", "INSERT INTO plain VALUES (901)")
    with pytest.raises(TableSuspendedError, match=r"d\.plain"):
        cli.catch_up()
    assert columns(cli, "plain") == ["n", "v"]
    assert cli.resnapshot("d.plain") == "staged"
    cli.catch_up()
    assert columns(cli, "plain") == ["n"] and is_equal(cli)


def test_altered_while_the_snapshot_runs(
    server: MySQLServer, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same holds before a table is copied, and for a snapshot that takes the place of another."""
    ddl = ["ALTER TABLE keyed DROP COLUMN v, ADD COLUMN w INT"]

    def alter(name: str) -> None:
        if name == "chunk.before_lw" and ddl:
            run(server, ddl.pop())

    monkeypatch.setattr(chunk, "failpoint", alter)
    cli = Cli(tmp_path, server, r"d\.keyed", snapshot={"chunk_rows": 50}, stream=KEEPING["ignore"])
    cli.snapshot()
    assert not ddl
    cli.catch_up()
    run(server, "INSERT INTO keyed VALUES (901, 5)")
    cli.catch_up()
    assert columns(cli) == ["id", "v"] and is_equal(cli) and set(column(cli, "v").values()) == {None}


def test_a_snapshot_after_another(server: MySQLServer, database: str, tmp_path: Path) -> None:
    """Binlogs were purged that had the DDL: what was kept and left out before is so afterwards."""
    stream = {**KEEPING["ignore"], "on_purged": "reread"}
    cli = copied(server, tmp_path, stream)
    run(server, "ALTER TABLE keyed DROP COLUMN v, ADD COLUMN w INT", "INSERT INTO keyed VALUES (901, 5)")
    cli.catch_up()
    assert columns(cli) == ["id", "v"]
    run(server, "ALTER TABLE keyed ADD COLUMN x INT", "INSERT INTO keyed VALUES (902, 5, 6)", "FLUSH BINARY LOGS")
    run(server, "UPDATE keyed SET w = 1")
    server.purge(flush=False)
    cli.snapshot()
    cli.catch_up()
    assert cli.context.plans.require().generation == 2
    assert columns(cli) == ["id", "v"] and is_equal(cli) and 902 in column(cli, "v")


def test_other_lists_of_columns(server: MySQLServer, database: str, tmp_path: Path) -> None:
    """The next run of the stream reads the tables again whose lists have changed, and no other."""
    run(server, "ALTER TABLE quiet ADD COLUMN w INT DEFAULT 3", "ALTER TABLE keyed ADD COLUMN w INT DEFAULT 4")
    cli = copied(server, tmp_path, KEEPING["lenient"])
    for source, expected in (
        ({"exclude_columns": [r"d\.keyed\.v"]}, ["id", "w"]),
        ({"include_columns": [r"d\.keyed\.v", r"d\.(quiet|plain)\..*"]}, ["id", "v"]),
        ({}, ["id", "v", "w"]),
    ):
        kept = {key: value for key, value in cli.value["source"].items() if not key.endswith("_columns")}
        cli.value["source"] = {**kept, **source}
        cli.write()
        run(server, "UPDATE keyed SET v = CONCAT(v, '!'), w = w + 1")
        cli.catch_up()
        assert columns(cli) == expected and is_equal(cli)
        assert columns(cli, "quiet") == ["id", "v", "w"]
    plan = cli.context.plans.require()
    assert {table.name: plan.revision_of(i) for i, table in enumerate(plan.tables)} == {
        "keyed": 3,
        "plain": 0,
        "quiet": 0,
    }


def test_other_lists_of_columns_before_the_stream_has_begun(server: MySQLServer, database: str, tmp_path: Path) -> None:
    cli = Cli(tmp_path, server, r"d\..*", snapshot={"chunk_rows": 5, "group_rows": 10})
    cli.snapshot()
    cli.value["source"]["exclude_columns"] = [r"d\.keyed\.v"]
    cli.write()
    with pytest.raises(NotReadyError, match=r"leave out v of d\.keyed, but its copy has it"):
        cli.catch_up()


def test_one_table_s_trouble_is_to_stop_all(server: MySQLServer, database: str, tmp_path: Path) -> None:
    cli = copied(server, tmp_path, {"on_table_error": "stop"})
    cli.value["source"]["exclude_columns"] = [r"d\.keyed\.v"]
    cli.write()
    with pytest.raises(DdlError, match=r"leave out v of d\.keyed"):
        cli.catch_up()
    assert columns(cli) == ["id", "v"]
