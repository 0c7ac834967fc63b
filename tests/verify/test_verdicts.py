"""Each table has a verdict: one that cannot be compared now takes no other along, and is not called different."""

from __future__ import annotations

import json
import logging
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from airflow_provider_cdc.config.selection import TableSelection
from airflow_provider_cdc.driver.phases import run_verification
from airflow_provider_cdc.model.errors import CdcError, NotComparableError, NotComparableYetError
from airflow_provider_cdc.observe.metrics import measure_pipeline
from airflow_provider_cdc.runtime.resolved_pipeline import SilentReporter
from airflow_provider_cdc.verify import compare as comparing
from airflow_provider_cdc.verify.report import check_equal
from airflow_provider_cdc.verify.run import verify_tables
from tests.support.cli import Cli, Result
from tests.support.delta import delta_table, put
from tests.support.servers import MySQLServer

TABLES = ("a", "b", "c")


@pytest.fixture
def cli(mysql_server: MySQLServer, database: str, tmp_path: Path, cdc_user: dict[str, str]) -> Cli:
    for name in TABLES:
        mysql_server.execute(f"CREATE TABLE {database}.{name} (id INT PRIMARY KEY, v INT)")
        mysql_server.execute(f"INSERT INTO {database}.{name} VALUES (1, 1), (2, 2), (3, 3)")
    cli = Cli(tmp_path, mysql_server, rf"{database}\..*", user=cdc_user)
    cli.snapshot()
    mysql_server.execute(f"UPDATE {database}.a SET v = 7 WHERE id = 3")
    cli.catch_up()
    return cli


class Heard(SilentReporter):
    """Reporter that keeps what it is told."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines

    def line(self, text: str, level: int = logging.INFO) -> None:
        self._lines.append(text)


def damage(cli: Cli, name: str) -> None:
    """Behind the project's back."""
    target = delta_table(cli.context, next(t for t in cli.context.plans.require().tables if t.name == name))
    put(target, target.read_with_soft_deleted().filter(pc.not_equal(pc.field("id"), 2)), stat="id")


def told(result: Result) -> dict[str, dict[str, Any]]:
    return {one["table"].partition(".")[2]: one for one in json.loads(result.out)}


def verdicts(result: Result) -> dict[str, str]:
    return {name: one["verdict"] for name, one in told(result).items()}


def test_a_ddl_ahead_of_the_stream_is_of_one_table(cli: Cli, mysql_server: MySQLServer, database: str) -> None:
    mysql_server.execute(f"ALTER TABLE {database}.a ADD COLUMN w INT")
    result = cli.call("verify", "--json")
    assert verdicts(result) == {"a": "not_comparable", "b": "equal", "c": "equal"}
    found = told(result)["a"]
    assert not found["equal"] and found["at"] is None and found["retry"]
    assert "its definition" in found["reason"] and "stream" in found["remedy"]
    assert result.code == 4 and f"{database}.a" in result.err and "no difference was found" in result.err
    damage(cli, "c")
    result = cli.call("verify", "--json")
    assert verdicts(result) == {"a": "not_comparable", "b": "equal", "c": "different"}
    assert result.code == 1 and f"1 of 3 tables differ ({database}.c" in result.err
    assert "1 cannot be compared now" in result.err
    cli.catch_up()
    assert verdicts(cli.call("verify", "--json")) == {"a": "equal", "b": "equal", "c": "different"}


@pytest.mark.parametrize("fault", ["gone", "empty", "dropped", "unforeseen"])
def test_whatever_concerns_one_table(
    cli: Cli, mysql_server: MySQLServer, database: str, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """Its copy is gone or damaged, the source has dropped it, or something fails in a way that nobody has foreseen."""
    copy = cli.sink / database / "b"
    if fault == "gone":
        shutil.rmtree(copy)
    elif fault == "empty":
        (copy / "_delta_log" / "00000000000000000000.json").write_text("not JSON\n")
    elif fault == "dropped":
        mysql_server.execute(f"DROP TABLE {database}.b")
    else:
        compare = comparing.TableComparer.compare

        def fail(self: comparing.TableComparer) -> Any:
            if self.table.name == "b":
                raise KeyError("nobody knows")
            return compare(self)

        monkeypatch.setattr(comparing.TableComparer, "compare", fail)
    result = cli.call("verify", "--json")
    assert verdicts(result) == {"a": "equal", "b": "not_comparable", "c": "equal"}, result
    assert told(result)["b"]["reason"] and result.code == 4


def test_a_source_that_goes_away_meanwhile_is_asked_no_more(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was compared before counts; each of the other tables would wait for an answer that does not come."""
    context, compare, asked = cli.context, comparing.TableComparer.compare, list[str]()

    def gone(self: comparing.TableComparer) -> Any:
        asked.append(self.table.name)
        if self.table.name == "b":
            context.connect_args = {**context.connect_args, "port": 1}
        return compare(self)

    monkeypatch.setattr(comparing.TableComparer, "compare", gone)
    found = verify_tables(context)
    assert [one.verdict for one in found] == ["equal", "not_comparable", "not_comparable"] and asked == ["a", "b"]
    with pytest.raises(NotComparableYetError) as caught:
        check_equal(found, hint="")
    assert caught.value.exit_code == NotComparableError.exit_code == 4
    with pytest.raises(CdcError, match="connecting") as failed:  # nothing can be said of any table
        verify_tables(context)
    assert failed.value.exit_code == 3


def test_how_far_the_copy_stands(cli: Cli, mysql_server: MySQLServer, database: str) -> None:
    """The stream refuses an event of one table, and stops there: the others are equal at an old place only."""
    result = cli.call("verify", "--json")
    at = told(result)["b"]["copy"]["at"]
    assert {name: one["copy"]["lag_seconds"] for name, one in told(result).items()} == dict.fromkeys(TABLES, 0.0)
    mysql_server.session(
        database, "SET binlog_row_image = 'MINIMAL'", "UPDATE a SET v = 5 WHERE id = 1", "UPDATE b SET v = 5"
    )
    with pytest.raises(CdcError):
        cli.catch_up()
    result = cli.call("verify", "--json", "--tables", rf"{database}\.c")
    copy = told(result)["c"]["copy"]
    assert (result.code, copy["at"]) == (0, at) and copy["lag_seconds"] > 0 and copy["since"] is not None
    shown = cli.call("verify", "--tables", rf"{database}\.c")
    assert shown.code == 0 and f"the copy stands at {at}" in shown.err and "lacks commits since" in shown.err
    assert f"equal as of {at}" in shown.out
    result = cli.call("verify", "--json", "--max-lag-seconds", "0")
    assert set(verdicts(result).values()) == {"not_comparable"} and result.code == 4
    assert at in told(result)["c"]["reason"] and "--max-lag-seconds" in told(result)["c"]["remedy"]
    (found,) = verify_tables(
        cli.context, selection=TableSelection.from_options([rf"{database}\.c"], max_lag_seconds=0, today=1)
    )
    assert found.refusal is not None and found.refusal.retry


def test_what_the_bookkeeping_keeps(cli: Cli, mysql_server: MySQLServer, database: str) -> None:
    """A table that could not be compared is as it was found the last time, and that is as long ago as it is."""

    def numbers(name: str) -> dict[str, float]:
        with closing(cli.context.open_state_database()) as store:
            return {m.name: m.value for m in measure_pipeline(store, "p") if m.table == f"{database}.{name}"}

    def kept(name: str) -> Any:
        with closing(cli.context.open_state_database()) as store:
            (row,) = [row for row in store.table_states("p") if row.name == name]
        return row.last_verified_at, row.last_verified

    mysql_server.execute(f"ALTER TABLE {database}.a ADD COLUMN w INT")
    cli.call("verify")
    assert numbers("a")["not_comparable"] == 1 and "verified_equal" not in numbers("a")
    assert "verified_age_seconds" not in numbers("a") and kept("a")[0] is None
    cli.catch_up()
    cli.call("verify")
    assert (numbers("a")["verified_equal"], numbers("a")["not_comparable"]) == (1, 0)
    at, before = kept("a")
    mysql_server.execute(f"ALTER TABLE {database}.a ADD COLUMN x INT")
    cli.call("verify")
    assert (numbers("a")["verified_equal"], numbers("a")["not_comparable"]) == (1, 1)
    assert (numbers("b")["verified_equal"], numbers("b")["not_comparable"]) == (1, 0)
    again, now = kept("a")
    assert again == at and {**now, "not_comparable": None} == {**before, "not_comparable": None}
    assert "its definition" in now["not_comparable"]["reason"]


def test_only_what_differs_is_repaired(cli: Cli, mysql_server: MySQLServer, database: str) -> None:
    mysql_server.execute(f"ALTER TABLE {database}.a ADD COLUMN w INT")
    damage(cli, "c")
    lines: list[str] = []
    context = cli.context
    context.reporter = Heard(lines)
    found = run_verification(context, show_values=False, selection=TableSelection.from_options(today=1), repair=True)
    assert [one.verdict for one in found] == ["not_comparable", "equal", "different"]
    assert not [line for line in lines if "not repaired" in line]
    assert [line for line in lines if line.endswith(" keys")] == [f"{database}.c: re-snapshotting 1 keys"]
