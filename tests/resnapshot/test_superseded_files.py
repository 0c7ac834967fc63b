"""What is left of tables that are read again and again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cli import Cli
from tests.support.delta import as_delta
from tests.support.oracle import compare_database
from tests.support.servers import MySQLServer


@pytest.fixture
def cli(mysql_server: MySQLServer, database: str, tmp_path: Path) -> Iterator[Cli]:
    mysql_server.session(
        database,
        "CREATE TABLE a (id INT PRIMARY KEY, v INT)",
        "CREATE TABLE b (id INT PRIMARY KEY, v INT)",
        "INSERT INTO a VALUES (1, 0), (2, 0)",
        "INSERT INTO b VALUES (1, 0)",
    )
    found = Cli(tmp_path, mysql_server, rf"{database}\..*", name=database)
    found.snapshot()
    found.catch_up()
    yield found


def files(cli: Cli) -> Counter[str]:
    """Files of readings and steps, by folder; what has a number in its name is one. Without those that stay for readers
    of old versions of a table for a while.
    """
    context, removed = cli.context, set[Path]()
    for table in context.plans.require().tables:
        target = as_delta(context.sink.table(table))
        removed |= {Path(target.storage.location(name)) for name in target.load_log().tombstones}
    files = (path for path in cli.sink.rglob("*") if path.is_file() and path not in removed)
    found = [path.relative_to(cli.sink).parts for path in files]
    listed = [parts for parts in found if {"groups", "amended", "snapshot", "staged", "readings"} & {*parts}]
    return Counter("/".join(part for part in parts[:-1] if not part.isdigit()) for parts in listed)


def test_files_of_tables_that_are_read_again_do_not_pile_up(cli: Cli, mysql_server: MySQLServer, database: str) -> None:
    """As a whole and in part, also where a reading comes too late; and the copy is right each time."""
    counts = []
    for number in range(6):
        mysql_server.session(database, f"UPDATE a SET v = {number}", f"INSERT INTO b VALUES ({number + 10}, 0)")
        assert cli.resnapshot(f"{database}.a") == "staged"
        if number % 2:
            assert cli.resnapshot(f"{database}.a", "id = 1") == "staged"
        assert cli.resnapshot(f"{database}.a") == "staged"
        cli.catch_up()
        assert compare_database(mysql_server, database, cli.sink, ["a", "b"]) == []
        counts.append(files(cli))
    most = Counter[str]()
    for count in counts[:4]:
        most |= count
    assert {name: n for count in counts[4:] for name, n in count.items() if n > most[name]} == {}
    plan = cli.context.plans.require()
    assert plan.revision_of(0) == 6 and len([step for step in plan.amendments if step.table == 0]) <= 4
    assert as_delta(cli.context.sink.table(plan.tables[0])).read()[0].num_rows == 2
