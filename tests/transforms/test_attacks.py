"""DDL, changed rules, and damage to copies of which a part of the rows and values is left out."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.config.selection import TableSelection
from airflow_provider_cdc.model.comparison import TableComparison
from airflow_provider_cdc.model.errors import NotReadyError, TableSuspendedError
from airflow_provider_cdc.verify.run import verify_tables
from airflow_provider_cdc.verify.task import run_scans_in_threads
from tests.support.cli import Cli
from tests.support.oracle import compare, open_copy
from tests.support.servers import MySQLServer
from tests.support.sink_kinds import DELTA, ICEBERG
from tests.support.transforms import HASH_CONNECTION, HASH_ENV, HASH_KEY, hmac_sql, make_view, mask_sql, null_sql

pytestmark = pytest.mark.one_of("server", "kind")

TABLE = (
    "CREATE TABLE t (id INT PRIMARY KEY, tenant TINYINT NOT NULL, email VARCHAR(30), phone VARCHAR(20), "
    "note VARCHAR(20) DEFAULT 'x', code INT, born DATE, small TINYINT, e ENUM('a', 'bb'), region VARCHAR(5))"
)
COLUMNS: dict[str, Any] = {
    "email": "hash",
    "phone": {"mask": 2, "rename": "phone_end"},
    "note": {"rename": "remark"},
    "(code|added.*)": "hash",  # a pattern that matches nothing is refused
    "born": "null",
    "small": "null",
    "e": "mask",
    "region": "exclude",
}
CONDITION = "tenant = 1 AND region IS NOT NULL"
VIEW: dict[str, str] = {
    "id": "id",
    "tenant": "tenant",
    "email": hmac_sql("email"),
    "phone_end": mask_sql("phone", 2),
    "remark": "note",
    "code": hmac_sql("code"),
    "born": null_sql("born"),
    "small": null_sql("small"),
    "e": mask_sql("CAST(e AS CHAR)"),
}


@pytest.fixture(params=[DELTA, ICEBERG])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def database(server: MySQLServer) -> Iterator[str]:
    with server.fresh_database() as name:
        server.session(
            name,
            TABLE,
            "CREATE TABLE other (id INT PRIMARY KEY, v VARCHAR(20))",
            *(
                f"INSERT INTO t VALUES ({n}, {n % 3}, 'mail{n}@x.org', '555-{1000 + n}', 'note{n}', {n * 7}, "
                f"'2001-02-03', {n}, '{('a', 'bb')[n % 2]}', 'eu')"
                for n in range(1, 31)
            ),
            "INSERT INTO other VALUES (1, 'first')",
        )
        yield name


def held(cli: Cli, database: str, table: str = "t") -> dict[int, dict[str, Any]]:
    """The rows of a copy, by id."""
    copy = open_copy(cli.sink / database / table)
    assert copy is not None
    return {row["id"]: row for row in copy.read(copy.columns).to_pylist()}


def rules(database: str, columns: dict[str, Any] = COLUMNS, condition: str | None = CONDITION) -> dict[str, Any]:
    hashes = any(policy == "hash" for policy in columns.values())
    return {
        **({"hash_key_conn_id": HASH_CONNECTION} if hashes else {}),
        "columns": {rf"{database}\.t\.{name}": policy for name, policy in columns.items()},
        "where": {} if condition is None else {rf"{database}\.t": condition},
    }


def pipeline(folder: Path, server: MySQLServer, database: str, kind: str, **settings: Any) -> Cli:
    cli = Cli(
        folder,
        server,
        rf"{database}\..*",
        name=database,
        snapshot={"chunk_rows": 7},
        sink={"kind": kind, **settings.pop("sink", {})},
        stream={"on_table_error": "suspend", "reread": "ask", **settings.pop("stream", {})},
        transforms=rules(database, **settings),
    )
    cli.env |= HASH_ENV
    return cli


@pytest.fixture
def cli(server: MySQLServer, database: str, tmp_path: Path, kind: str) -> Cli:
    made = pipeline(tmp_path / "p", server, database, kind)
    made.value["source"]["tables"] = [rf"{database}\.(t|other)"]
    made.write()
    made.snapshot()
    server.session(database, "UPDATE t SET note = 'streamed' WHERE id = 1", "DELETE FROM t WHERE id = 4")
    made.catch_up()
    return made


def check(
    cli: Cli,
    server: MySQLServer,
    database: str,
    condition: str = CONDITION,
    **columns: Any,
) -> None:
    """The copy is the view, and ``verify`` says so.

    :param columns: other expressions, or ``None`` for columns that the copy does not have.
    """
    wanted = {name: text for name, text in {**VIEW, **columns}.items() if text is not None}
    make_view(server, database, "t_copy", "t", condition, **wanted)
    with closing(server.connect(database=database)) as connection:
        difference = compare(connection, database, "t", cli.sink / database / "t", view=("t_copy", ["id"]))
        assert difference is None, difference
    server.session(database, "DROP VIEW t_copy")
    assert {found.table.partition(".")[2]: found.verdict for found in verify_tables(cli.context)} == {
        "t": "equal",
        "other": "equal",
    }


#: DDL that must be followed, on both kinds of sinks; with other columns of the view.
FOLLOWED: dict[str, tuple[str, dict[str, str | None]]] = {
    "a longer hashed text": ("MODIFY email VARCHAR(40)", {}),
    "a longer masked text": ("MODIFY phone VARCHAR(40)", {}),
    "more members of a masked ENUM": ("MODIFY e ENUM('a', 'bb', 'cccc')", {}),
    "a hashed column goes": ("DROP COLUMN email", {"email": None}),
    "a renamed column goes": ("DROP COLUMN note", {"remark": None}),
    "a new column that is hashed": ("ADD COLUMN added_one VARCHAR(10)", {"added_one": hmac_sql("added_one")}),
}
#: DDL that must suspend the table, and a part of what is said then.
SUSPENDING: dict[str, tuple[str, str]] = {
    "a column of the condition goes": ("DROP COLUMN region", "column region, which the condition"),
    "a column of the condition changes": ("MODIFY region VARCHAR(9)", "column region, which the condition"),
    "a copied column of the condition changes": ("MODIFY tenant INT NOT NULL", "tenant"),
    "a hashed column gets another type": ("MODIFY code VARCHAR(12)", "code"),
    "a hashed column becomes another one that is not": ("CHANGE email mail VARCHAR(30)", "email"),
    "a masked column becomes another one that is not": ("CHANGE phone tel VARCHAR(20)", "phone"),
    "a masked column becomes a number": ("MODIFY phone VARBINARY(40)", "phone"),
    "a new column of a type without hashes": ("ADD COLUMN added_one TIME", "added_one"),
    "a new hashed column with a default": ("ADD COLUMN added_one VARCHAR(10) DEFAULT 'canary'", "added_one"),
    "a new hashed column that is not NULL": ("ADD COLUMN added_one VARCHAR(10) NOT NULL", "added_one"),
    "a name that the copy has for another": ("ADD COLUMN phone_end VARCHAR(10)", "phone_end"),
    "a new name that the copy has for another": ("CHANGE region remark VARCHAR(5)", "region"),
}


@pytest.mark.parametrize("name", FOLLOWED)
def test_ddl_that_is_followed(cli: Cli, server: MySQLServer, database: str, name: str) -> None:
    clause, columns = FOLLOWED[name]
    row = ", ".join(["'v'"] if clause.startswith("ADD") else [])
    server.session(
        database,
        "UPDATE t SET note = 'before', email = 'before@x' WHERE id = 7",
        f"ALTER TABLE t {clause}",
        "UPDATE t SET tenant = 1, born = NULL WHERE id = 8",
        "UPDATE t SET tenant = 2 WHERE id = 10",
        "INSERT INTO other VALUES (2, 'after')",
        *([f"UPDATE t SET added_one = {row} WHERE id IN (1, 2, 13)"] if row else []),
    )
    cli.catch_up()
    check(cli, server, database, CONDITION, **columns)
    assert cli.resnapshot(f"{database}.t") in ("rejoined", "staged")
    cli.catch_up()
    check(cli, server, database, CONDITION, **columns)


@pytest.mark.parametrize("name", SUSPENDING)
def test_ddl_that_suspends_the_table(cli: Cli, server: MySQLServer, database: str, name: str) -> None:
    clause, part = SUSPENDING[name]
    server.session(
        database, f"ALTER TABLE t {clause}", "DELETE FROM t WHERE id = 7", "INSERT INTO other VALUES (2, 'after')"
    )
    with pytest.raises(TableSuspendedError, match=rf"{database}\.t.*{part}") as stopped:
        cli.catch_up()
    assert "canary" not in str(stopped.value)
    assert {found.table.partition(".")[2]: found.verdict for found in verify_tables(cli.context)} == {
        "t": "not_comparable",
        "other": "equal",
    }


@pytest.mark.parametrize("reread", ["auto", "ask"])
@pytest.mark.parametrize("column", ["email", "phone", "born", "region"])
def test_a_table_that_is_read_again_shows_nothing(
    server: MySQLServer, database: str, tmp_path: Path, kind: str, column: str, reread: str
) -> None:
    """The policy is for the old name. Under the new one, the values would be copied as they are."""
    columns = {**COLUMNS, "region": "exclude"}
    cli = pipeline(tmp_path, server, database, kind, columns=columns, condition=None, stream={"reread": reread})
    cli.snapshot()
    cli.catch_up()
    kind_of = "DATE" if column == "born" else "VARCHAR(30)"
    server.session(database, f"ALTER TABLE t CHANGE {column} renamed {kind_of}", "UPDATE t SET note = 'n' WHERE id = 7")
    with pytest.raises(TableSuspendedError):
        cli.catch_up()
    for _ in range(2):
        with pytest.raises(NotReadyError, match=f"column {column} of .* is gone.*column renamed is new"):
            cli.resnapshot(f"{database}.t")
        assert not {"renamed"} & {*next(iter(held(cli, database).values()))}
    # One of the two remedies: the old name may still have its policy.
    policy = columns.pop(column)
    new_pattern = "renamed" if reread == "ask" else f"({column}|renamed)"
    cli.value["transforms"] = rules(database, {**columns, new_pattern: policy}, None)
    cli.write()
    assert cli.resnapshot(f"{database}.t") == "staged"
    cli.catch_up()
    names = {"phone": "phone_end"}
    new_name = policy.get("rename", "renamed") if isinstance(policy, dict) else "renamed"
    texts = {"email": hmac_sql("renamed"), "phone": mask_sql("renamed", 2), "born": null_sql("renamed"), "region": ""}
    view = {
        (new_name if name == names.get(column, column) else name): (
            texts[column] if name == names.get(column, column) else text
        )
        for name, text in VIEW.items()
    }
    make_view(server, database, "v", "t", "TRUE", **view)
    with closing(server.connect(database=database)) as connection:
        assert compare(connection, database, "t", cli.sink / database / "t", view=("v", ["id"])) is None


def test_a_rename_within_the_rules(server: MySQLServer, database: str, tmp_path: Path, kind: str) -> None:
    """Iceberg renames in place if the new name has the same rules; else, the table is read again."""
    cli = pipeline(tmp_path, server, database, kind, columns={**COLUMNS, "(email|mail)": "hash"} | {"email": "hash"})
    cli.snapshot()
    cli.catch_up()
    server.session(database, "ALTER TABLE t CHANGE email mail VARCHAR(30)", "UPDATE t SET mail = 'new' WHERE id = 7")
    columns = {name: (hmac_sql("mail") if name == "email" else text) for name, text in VIEW.items()}
    columns = {"mail" if name == "email" else name: text for name, text in columns.items()}
    try:
        cli.catch_up()
    except TableSuspendedError:
        assert kind == DELTA
        assert cli.resnapshot(f"{database}.t") == "staged"
        cli.catch_up()
    make_view(server, database, "v", "t", CONDITION, **columns)
    with closing(server.connect(database=database)) as connection:
        assert compare(connection, database, "t", cli.sink / database / "t", view=("v", ["id"])) is None


def test_a_masked_column_that_is_gone_and_stays(server: MySQLServer, database: str, tmp_path: Path, kind: str) -> None:
    cli = pipeline(tmp_path, server, database, kind, stream={"schema_changes": "lenient"})
    cli.snapshot()
    cli.catch_up()
    server.session(
        database, "ALTER TABLE t DROP COLUMN phone, DROP COLUMN email", "UPDATE t SET note = 'n' WHERE id < 8"
    )
    cli.catch_up()
    found = held(cli, database)
    assert {*found} == {n for n in range(1, 31) if n % 3 == 1}
    assert all((row["phone_end"] is None) == (n < 8) for n, row in found.items())
    assert found[10]["phone_end"] == "******10" and len(found[10]["email"]) == 64 and found[1]["email"] is None
    # A new column of the source with the name that the copy has for the old one.
    server.session(database, "ALTER TABLE t ADD COLUMN phone_end VARCHAR(20)")
    with pytest.raises(TableSuspendedError, match="phone_end"):
        cli.catch_up()


CHANGED: dict[str, dict[str, Any]] = {
    "another policy": {"columns": {**COLUMNS, "email": {"mask": 1}}},
    "no policy any more": {"columns": {**COLUMNS, "email": {"rename": "email"}}},
    "a policy for a column without": {"columns": {**COLUMNS, "tenant": {"rename": "owner"}}},
    "another condition": {"condition": "tenant <= 2 AND region IS NOT NULL"},
    "no condition": {"condition": None},
    "the condition written anew": {"condition": "tenant = 1  AND region IS NOT NULL"},
}
CHANGED_VIEW: dict[str, dict[str, Any]] = {
    "another policy": {"email": mask_sql("email", 1)},
    "no policy any more": {"email": "email"},
    "another condition": {"condition": "tenant <= 2 AND region IS NOT NULL"},
    "no condition": {"condition": "TRUE"},
}


@pytest.mark.parametrize("name", CHANGED)
def test_other_rules(cli: Cli, server: MySQLServer, database: str, name: str) -> None:
    """The stream reads the table again."""
    cli.value["transforms"] = rules(database, **CHANGED[name])
    cli.value["stream"]["reread"] = "auto"
    cli.write()
    server.session(database, "UPDATE t SET tenant = 1 WHERE id = 2", "UPDATE t SET email = 'later@x' WHERE id = 7")
    with cli.streaming():
        for _ in range(300):
            time.sleep(0.2)
            plan = cli.context.plans.require()
            table = next(one for one in plan.tables if one.name == "t")
            if cli.context.copy_rules.describe_difference(table) is None:
                break
        else:
            pytest.fail("the table is not read again")
    cli.catch_up()
    if name == "a policy for a column without":
        columns = {"owner" if key == "tenant" else key: text for key, text in VIEW.items()}
        make_view(server, database, "v", "t", CONDITION, **columns)
        with closing(server.connect(database=database)) as connection:
            assert compare(connection, database, "t", cli.sink / database / "t", view=("v", ["id"])) is None
        return
    check(cli, server, database, **CHANGED_VIEW.get(name, {}))


def test_other_rules_before_the_stream_began(server: MySQLServer, database: str, tmp_path: Path, kind: str) -> None:
    cli = pipeline(tmp_path, server, database, kind)
    cli.snapshot()
    for name in ("another policy", "another condition", "no condition"):
        cli.value["transforms"] = rules(database, **CHANGED[name])
        cli.write()
        for phase in (cli.snapshot, cli.catch_up):
            with pytest.raises(NotReadyError, match=r"transforms\.(columns|where) has another"):
                phase()
    cli.value["transforms"] = rules(database)
    cli.write()
    cli.catch_up()
    check(cli, server, database)


def test_another_secret_key(cli: Cli, server: MySQLServer, database: str) -> None:
    """No row gets a hash that does not fit the others: the table stops, or all of it is hashed anew."""
    server.session(database, "UPDATE t SET email = 'later@x' WHERE id = 7", "UPDATE other SET v = 'later'")
    before, other_key = held(cli, database), f"{HASH_KEY}-2"
    cli.env |= {"AIRFLOW_CONN_PII_KEY": f"generic://:{other_key}@"}
    with pytest.raises(
        TableSuspendedError, match=r"(email|code) of .*\.t was hashed with another secret key"
    ) as stopped:
        cli.catch_up()
    assert HASH_KEY not in str(stopped.value) and held(cli, database) == before
    assert cli.resnapshot(f"{database}.t") == "staged"
    cli.catch_up()
    check(cli, server, database, email=hmac_sql("email", other_key), code=hmac_sql("code", other_key))
    cli.env |= HASH_ENV
    with pytest.raises(TableSuspendedError, match="another secret key"):
        cli.catch_up()
    assert cli.resnapshot(f"{database}.t") == "staged"
    cli.catch_up()
    check(cli, server, database)


def verdict(cli: Cli) -> TableComparison:
    return next(found for found in verify_tables(cli.context) if found.table.endswith(".t"))


def test_damage_is_told_and_repaired(server: MySQLServer, database: str, tmp_path: Path, kind: str) -> None:
    """A bit behind a mask and in a hash, a row that should have left, and one that should be there."""
    cli = pipeline(tmp_path, server, database, kind)
    cli.snapshot()
    cli.catch_up()
    for damage, (missing, extra, different) in {
        "UPDATE t SET email = 'other' WHERE id = 7": (0, 0, 1),
        "UPDATE t SET phone = '555-1099' WHERE id = 7": (0, 0, 1),
        "UPDATE t SET tenant = 2 WHERE id = 10": (0, 1, 0),
        "UPDATE t SET tenant = 1 WHERE id = 11": (1, 0, 0),
        "UPDATE t SET region = NULL WHERE id IN (13, 16)": (0, 2, 0),
        "DELETE FROM t WHERE id = 19": (0, 1, 0),
    }.items():
        server.session(database, "SET sql_log_bin = 0", damage)
        found = verdict(cli)
        assert (found.missing, found.extra, found.different) == (missing, extra, different), (damage, found)
        said = str(found) + json.dumps(found.to_json()) if hasattr(found, "to_json") else repr(found)
        assert "other" not in said and "555-1099" not in said
        with cli.opened() as (context, store):
            repaired = repair(context, store, found)
        assert repaired
        cli.catch_up()
        check(cli, server, database)
    for harmless in (
        "UPDATE t SET phone = '777-1099' WHERE id = 7",
        "UPDATE t SET born = NULL, small = 9",
        "UPDATE t SET region = 'us' WHERE id = 1",
        "UPDATE t SET email = 'out' WHERE id = 2",
    ):
        server.session(database, "SET sql_log_bin = 0", harmless)
    assert verdict(cli).is_equal


def repair(context: Any, store: Any, found: TableComparison) -> bool:

    from airflow_provider_cdc.verify.repair import compare_and_repair

    compared = compare_and_repair(context, TableSelection((r".*\.t",)), run_scans_in_threads, repair=True)
    return bool(compared)


@pytest.mark.parametrize("image", ["MINIMAL", "NOBLOB"])
def test_images_that_are_not_full(cli: Cli, server: MySQLServer, database: str, image: str) -> None:
    """Whether a row is in the copy can then not be told: a column of the condition may be absent."""
    server.session(
        database,
        f"SET binlog_row_image = '{image}'",
        "UPDATE t SET tenant = 1 WHERE id = 2",
        "DELETE FROM t WHERE id = 7",
    )
    try:
        cli.catch_up()
    except TableSuspendedError as error:
        assert image == "MINIMAL" and "row images" in str(error)
        return
    assert image == "NOBLOB"  # the table has no BLOB
    check(cli, server, database)


def test_rows_that_only_an_excluded_date_decides_on(
    server: MySQLServer, database: str, tmp_path: Path, kind: str
) -> None:
    server.session(
        database,
        "CREATE TABLE dates (id INT PRIMARY KEY, d DATE, v INT, twice INT AS (v * 2) STORED, "
        "never INT AS (v + 1) VIRTUAL)",
        "SET sql_mode = ''",
        "INSERT INTO dates (id, d, v) VALUES (1, '0000-00-00', 1), (2, NULL, 2), (3, '2001-01-01', 3), "
        "(4, '2001-00-00', 4)",
    )
    transforms = {
        "columns": {rf"{database}\.dates\.d": "exclude", rf"{database}\.dates\.twice": "null"},
        "where": {rf"{database}\.dates": "d IS NULL AND never < 100"},
    }
    cli = Cli(
        tmp_path,
        server,
        rf"{database}\.dates",
        name=database,
        sink={"kind": kind},
        transforms=transforms,
        snapshot={"chunk_rows": 2},
    )
    cli.value["source"]["zero_dates"] = "null"
    cli.write()
    cli.snapshot()

    def values() -> dict[int, int]:
        rows = held(cli, database, "dates")
        assert all(row["twice"] is None and row["never"] == row["v"] + 1 for row in rows.values())
        return {n: row["v"] for n, row in rows.items()}

    cli.catch_up()
    assert values() == {1: 1, 2: 2, 4: 4}
    server.session(
        database,
        "SET sql_mode = ''",
        "UPDATE dates SET d = '2001-01-01' WHERE id = 1",
        "UPDATE dates SET d = '0000-00-00', v = 30 WHERE id = 3",
        "UPDATE dates SET v = 500 WHERE id = 4",
        "UPDATE dates SET d = '0000-00-00' WHERE id = 2",
    )
    cli.catch_up()
    assert values() == {2: 2, 3: 30}
    assert all(found.is_equal for found in verify_tables(cli.context))


def test_a_stream_that_begins_now(server: MySQLServer, database: str, tmp_path: Path, kind: str) -> None:
    """What happens to rows of before: those that enter come, and those that leave go, there or not."""
    cli = pipeline(tmp_path, server, database, kind, stream={"start": "latest"})
    cli.snapshot()
    cli.catch_up()
    server.session(
        database,
        "UPDATE t SET tenant = 1 WHERE id IN (2, 5)",
        "UPDATE t SET tenant = 2 WHERE id IN (1, 5)",
        "UPDATE t SET note = 'n' WHERE id IN (7, 8)",
        "UPDATE t SET id = 99 WHERE id = 10",
        "DELETE FROM t WHERE id = 13",
    )
    cli.catch_up()
    assert sorted(held(cli, database)) == [2, 7, 99]
