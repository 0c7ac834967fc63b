"""What ``verify`` says of a table with a key: nothing of what writers do meanwhile, and everything else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from airflow_provider_cdc.mysql.chunks import chunk
from airflow_provider_cdc.verify.run import TableComparison, verify_tables
from tests.support.cli import Cli
from tests.support.delta import delta_table, put
from tests.support.servers import MySQLServer


@pytest.fixture
def cli(mysql_server: MySQLServer, database: str, tmp_path: Path, cdc_user: dict[str, str]) -> Cli:
    """A copy of 40 rows, in four chunks."""
    mysql_server.execute(f"CREATE TABLE {database}.t (id INT PRIMARY KEY, v INT, f DOUBLE)")
    rows = ", ".join(f"({n}, {n if n % 3 else 'NULL'}, 0)" for n in range(40))
    mysql_server.execute(f"INSERT INTO {database}.t VALUES {rows}")
    cli = Cli(tmp_path, mysql_server, f"{database}.t", user=cdc_user, snapshot={"chunk_rows": 10})
    cli.snapshot()
    cli.catch_up()
    return cli


def verdict(cli: Cli) -> TableComparison:
    (found,) = verify_tables(cli.context, show_values=True)
    return found


def damage(cli: Cli, change: Callable[[pa.Table], pa.Table]) -> None:
    """Behind the project's back."""
    target = delta_table(cli.context, cli.context.plans.require().tables[0])
    put(target, change(target.read_with_soft_deleted().sort_by("id")), stat="id")


def test_changes_behind_the_copy_and_behind_the_chunks(
    cli: Cli, mysql_server: MySQLServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some the stream has not read yet; others come behind the high watermark of the chunk that they concern."""
    table = f"{database}.t"
    for sql in (f"UPDATE {table} SET v = 7 WHERE id < 5", f"DELETE FROM {table} WHERE id = 30"):
        mysql_server.execute(sql)
    seen: list[str] = []

    def failpoint(name: str) -> None:
        if name == "chunk.after_hw":
            seen.append(name)
            if len(seen) == 1:
                mysql_server.execute(f"UPDATE {table} SET v = 8 WHERE id IN (1, 35)")
                mysql_server.execute(f"INSERT INTO {table} VALUES (900, 1, 1)")
                mysql_server.execute(f"DELETE FROM {table} WHERE id = 2")

    monkeypatch.setattr(chunk, "failpoint", failpoint)
    assert verdict(cli).is_equal and len(seen) > 1


def test_what_differs_in_a_bit(cli: Cli) -> None:
    def bits(rows: pa.Table) -> pa.Table:
        listed = rows.to_pylist()
        listed[4]["f"], listed[6]["v"], listed[7]["v"] = -0.0, 0, None
        return pa.Table.from_pylist([*listed[:20], *listed[21:], {**listed[0], "id": 77}], schema=rows.schema)

    damage(cli, bits)
    found = verdict(cli)
    assert (found.missing, found.extra, found.different) == (1, 1, 3)
    assert set(found.examples) == {"missing (20,)", "extra (77,)", *(f"different ({n},)" for n in (4, 6, 7))}
    damage(cli, lambda rows: pa.concat_tables([rows, rows.slice(3, 1)]))
    assert verdict(cli).extra == 2, "a key that is there twice"


def test_the_last_change_of_a_row_before_a_ddl_that_was_followed(
    cli: Cli, mysql_server: MySQLServer, database: str
) -> None:
    for sql in (f"UPDATE {database}.t SET v = 77 WHERE id = 4", f"ALTER TABLE {database}.t ADD COLUMN w INT"):
        mysql_server.execute(sql)
    cli.catch_up()
    damage(cli, lambda rows: rows.filter(pc.not_equal(rows["id"], 4)))
    found = verdict(cli)
    assert (found.missing, found.differences[0].key) == (1, (4,))
    assert found.differences[0].last_change is not None and found.at is not None
    assert found.differences[0].last_change.position < found.at
