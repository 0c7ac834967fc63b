"""What ``check`` says of ``transforms``: rules that match nothing or do not fit, and what is done to each table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.model.errors import NotReadyError
from airflow_provider_cdc.preflight.run import run_preflight
from tests.support.cli import Cli, tree
from tests.support.servers import MySQLServer
from tests.support.transforms import HASH_CONNECTION, HASH_ENV

TABLE = (
    "CREATE TABLE customer (id INT PRIMARY KEY, email VARCHAR(60), phone VARCHAR(20), note TEXT, born DATE, w DOUBLE, "
    "doc JSON, tenant INT, at TIME)"
)


@pytest.fixture
def cli(mysql_server: MySQLServer, database: str, tmp_path: Path, cdc_user: dict[str, str]) -> Cli:
    mysql_server.session(
        database,
        TABLE,
        "INSERT INTO customer VALUES (1, 'a@b.example', '12345678', 'abc', '2001-02-03', 1.5, '{}', 7, '01:00:00')",
        "CREATE TABLE other (id INT PRIMARY KEY, email VARCHAR(60))",
    )
    cli = Cli(tmp_path, mysql_server, rf"{database}\.customer", name=database, user=cdc_user)
    cli.env |= HASH_ENV
    return cli


def with_rules(cli: Cli, **transforms: Any) -> Cli:
    """The same with rules, of which the patterns are names without the database."""
    database = cli.value["name"]
    for name in {"columns", "where"} & transforms.keys():
        transforms[name] = {rf"{database}.{key}": value for key, value in transforms[name].items()}
    cli.value["transforms"] = transforms
    cli.write()
    return cli


def hashed(**columns: Any) -> dict[str, Any]:
    return {"hash_key_conn_id": HASH_CONNECTION, "columns": {f"customer.{name}": v for name, v in columns.items()}}


def refused(cli: Cli, *words: str) -> None:
    """``check`` has one error, and commands that run a phase end with it, in one line; nothing is written."""
    before = tree(cli.folder)
    for command in ("check", "run"):
        result = cli.call(command)
        line = result.problem if result.err else result.found[0]
        assert result.code == 2 and len(result.found) <= 1, result
        for word in words:
            assert word in line, (command, word, line)
    assert tree(cli.folder) == before


@pytest.mark.parametrize(
    ("rules", "pattern", "what"),
    [
        ({"columns": {"customer.emial": "null"}}, "customer.emial", "matches no column"),
        ({"columns": {"customer.phone_.*": "null"}}, "customer.phone_.*", "matches no column"),
        ({"columns": {"customers.email": "mask"}}, "customers.email", "matches no column"),
        ({"columns": {"other.email": "mask"}}, "other.email", "matches no column"),  # of a table that is not captured
        ({"columns": {"customer.email": "mask"}, "where": {"costumer": "id = 1"}}, "costumer", "matches none"),
        ({"where": {"other": "id = 1"}}, "other", "matches none of the captured tables"),
    ],
)
def test_a_pattern_that_matches_nothing(cli: Cli, rules: Any, pattern: str, what: str) -> None:
    """A wrong name would leave values in clear, so it is refused, by ``check`` and where the tables are planned."""
    refused(with_rules(cli, **rules), f"{cli.value['name']}.{pattern} {what}", "Correct it")
    with pytest.raises(NotReadyError, match=what):
        cli.snapshot()
    assert not list(cli.folder.rglob("plan.json"))


def test_patterns_of_what_is_left_out(cli: Cli) -> None:
    """A rule of an excluded column is fulfilled."""
    cli.value["source"]["exclude_columns"] = [rf"{cli.value['name']}\.customer\.email"]
    assert not with_rules(cli, columns={"customer.email": "null", "customer.phone": "exclude"}).call("check").found
    cli.snapshot()


def test_a_pattern_that_is_wrong_later(cli: Cli, mysql_server: MySQLServer, database: str) -> None:
    """A new rule that matches nothing is refused. One whose column is gone does not end a running pipeline."""
    with_rules(cli, columns={"customer.phone": "mask"})
    cli.snapshot()
    cli.catch_up()
    with_rules(cli, columns={"customer.phone": "mask", "customer.emial": "null"})
    assert "customer.emial matches no column" in cli.call("check").found[0]
    with pytest.raises(NotReadyError, match="emial matches no column"):
        cli.catch_up()
    with_rules(cli, columns={"customer.phone": "mask"})
    mysql_server.session(database, "ALTER TABLE customer DROP COLUMN phone", "INSERT INTO customer (id) VALUES (2)")
    cli.catch_up()
    checked = {result.message: result.level for result in run_preflight(cli.context, spark=False)}
    assert checked[f"transforms.columns: {database}.customer.phone matches no column of the captured tables"] == (
        "warning"
    )
    cli.catch_up()
    # Nor does it if the rules have changed since they were planned.
    cli.value["stream"] = {"on_table_error": "suspend"}
    with_rules(cli, columns={"customer.phone": "mask", "customer.email": "null"})
    levels = {result.level for result in run_preflight(cli.context, spark=False) if "phone matches" in result.message}
    assert levels == {"warning"}
    cli.catch_up()


def test_a_new_table_may_be_what_a_new_rule_is_for(cli: Cli, database: str) -> None:
    with_rules(cli, columns={"customer.phone": "mask"})
    cli.snapshot()
    cli.catch_up()
    cli.value["source"]["tables"].append(rf"{database}\.other")
    with_rules(cli, columns={"customer.phone": "mask", "other.email": "null"})
    assert not cli.call("check").found
    with cli.epoch() as epoch:
        assert [table.policies for table in epoch.plan.tables if table.name == "other"] != [()]


def test_what_is_done_to_each_table(cli: Cli, database: str) -> None:
    columns = {"email": {"hash": "hex", "rename": "e"}, "note": {"truncate": 2}, "phone": "mask", "born": "null"}
    where = {"customer": "tenant = 7\n  AND id > 0"}
    with_rules(cli, **hashed(**columns, tenant="exclude", doc={"rename": "d"}), where=where)
    assert (
        f"table {database}.customer: columns: 1 hashed, 1 masked, 1 truncated, 1 always NULL, 2 renamed; "
        "only rows where tenant = 7 AND id > 0\n" in cli.call("check").out
    )
    assert "columns: " not in with_rules(cli).call("check").out


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        (hashed(id="mask"), ("column id: it is part of the key", "can only be hashed or renamed")),
        (hashed(id="exclude"), ("column id: it is part of the key", "exclude")),
        (hashed(w="hash"), ("column w: transforms.columns has hash", "not exact", "Use null or exclude")),
        (hashed(doc="hash"), ("column doc", "hash", "Use null or exclude")),
        (hashed(at="hash"), ("column at", "several texts")),
        (hashed(born="mask"), ("column born", "mask is for text")),
        (hashed(email={"rename": "_cdc_seq"}), ("column _cdc_seq", "the prefix _cdc_ is used", "transforms.columns")),
        (hashed(email={"rename": "phone"}), ("column phone", "more than one column of the copy", "transforms.columns")),
        (hashed(email={"rename": "Phone"}), ("they differ in case only", "transforms.columns")),
        ({"where": {"customer": "tennant = 7"}}, ("transforms.where", "tennant")),
        ({"where": {"customer": "LOWER(email) = 'x'"}}, ("transforms.where", "LOWER")),
        ({"where": {"customer": "id IN (SELECT 1)"}}, ("transforms.where", "SELECT")),
        ({"where": {"customer": "doc = '{}'"}}, ("transforms.where", "doc")),
    ],
)
def test_a_rule_that_does_not_fit(cli: Cli, rules: dict[str, Any], words: tuple[str, ...]) -> None:
    if rules.get("hash_key_conn_id") and "hash" not in rules["columns"].values():
        del rules["hash_key_conn_id"]
    refused(with_rules(cli, **rules), *words)


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        (None, ("connection pii_key is not defined",)),
        ("generic://", ("connection pii_key (transforms.hash_key_conn_id) has no password", "openssl rand")),
        ("generic://:0123456789abcde@", ("fewer than 16 bytes", "openssl rand")),
    ],
)
def test_a_secret_that_is_missing(cli: Cli, uri: str | None, words: tuple[str, ...]) -> None:
    del cli.env["AIRFLOW_CONN_PII_KEY"]
    cli.env |= {} if uri is None else {"AIRFLOW_CONN_PII_KEY": uri}
    refused(with_rules(cli, **hashed(email="hash")), *words)
    assert "0123456789abcde" not in cli.call("check").err


@pytest.mark.parametrize("missing", ["hash_key_conn_id", "hash"])
def test_hashes_and_their_key_belong_together(cli: Cli, missing: str) -> None:
    rules = hashed(email="hash" if missing != "hash" else "mask")
    if missing == "hash_key_conn_id":
        del rules["hash_key_conn_id"]
    refused(with_rules(cli, **rules), "transforms.hash_key_conn_id")
