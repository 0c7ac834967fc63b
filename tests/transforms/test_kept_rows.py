"""Filtered copies in which deleted rows stay: what they must have follows from a model of a few lines.

A row that no longer satisfies the condition counts as deleted: it stays with the last values that satisfied it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.apply.task import merge_manifests
from airflow_provider_cdc.model.schema import DELETED_COLUMN
from airflow_provider_cdc.verify.run import verify_tables
from tests.support.cli import Cli
from tests.support.oracle import open_copy
from tests.support.servers import MySQLServer
from tests.support.sink_kinds import seeds_by_kind

pytestmark = pytest.mark.one_of("server")

CONDITION = "tenant = 1 AND NOT state = 'draft'"
MODES = ("soft", "kept", "gone")
Values = tuple[int | None, str | None, str]


def is_copied(row: Values) -> bool:
    return row[0] == 1 and row[1] is not None and row[1] != "draft"


@dataclass
class Model:
    """The source, and a copy that keeps deleted rows: values of each, and whether the row is deleted."""

    draw: random.Random
    source: dict[str, Values] = field(default_factory=dict)
    copy: dict[str, tuple[str, str, bool]] = field(default_factory=dict)

    def put(self, key: str, row: Values) -> None:
        """A row is written."""
        self.source[key] = row
        if is_copied(row):
            self.copy[key] = str(row[1]), row[2], False
        elif key in self.copy:
            self.copy[key] = *self.copy[key][:2], True

    def remove(self, key: str) -> None:
        """A row is deleted."""
        del self.source[key]
        if key in self.copy:
            self.copy[key] = *self.copy[key][:2], True

    def statements(self) -> list[str]:
        """The statements of one transaction, with ``{t}`` for the table; the model has done what they do."""
        if self.draw.random() < 0.03:
            for key in [*self.source]:
                self.remove(key)
            return ["TRUNCATE TABLE {t}"]
        made = [self.statement() for _ in range(self.draw.choice((1, 1, 2, 3, 6)))]
        if self.draw.random() < 0.2:
            xid = f"'{self.draw.getrandbits(60):x}'"
            return [f"XA START {xid}", *made, f"XA END {xid}", f"XA PREPARE {xid}", f"XA COMMIT {xid}"]
        return ["BEGIN", *made, "COMMIT"]

    def statement(self) -> str:
        draw, key, row = self.draw, self.key(), self.row()
        written = "('" + key + "', " + ", ".join("NULL" if v is None else repr(v) for v in row) + ")"
        same = self.equal(key)
        how = draw.randrange(8)
        if same is None or how == 0:
            if same is not None:
                self.remove(same)
            self.put(key, row)
            return f"REPLACE INTO {{t}} VALUES {written}"
        if how == 1:
            self.put(same, row)
            return (
                f"INSERT INTO {{t}} VALUES {written} ON DUPLICATE KEY UPDATE tenant = VALUES(tenant), "
                "state = VALUES(state), v = VALUES(v)"
            )
        if how == 2:
            self.remove(same)
            return f"DELETE FROM {{t}} WHERE k = '{key}'"
        if how == 3 and (self.equal(other := self.key()) in (None, same)):  # another key, perhaps in its case only
            self.remove(same)
            self.put(other, row)
            values = ["NULL" if value is None else repr(value) for value in row]
            assigned = ", ".join(
                f"{name} = {text}" for name, text in zip(("tenant", "state", "v"), values, strict=True)
            )
            return f"UPDATE {{t}} SET k = '{other}', {assigned} WHERE k = '{key}'"
        tenant = draw.choice((1, 1, 2))
        old = self.source[same]
        if how < 6:
            self.put(same, (tenant, *old[1:]))
            return f"UPDATE {{t}} SET tenant = {tenant} WHERE k = '{key}'"
        self.put(same, (*old[:2], row[2]))
        return f"UPDATE {{t}} SET v = '{row[2]}' WHERE k = '{key}'"

    def key(self) -> str:
        return self.draw.choice("abcdefgABCDEFG") + self.draw.choice(("", "", "x"))

    def equal(self, key: str) -> str | None:
        """The key of the source that the server has equal to this one."""
        return next((one for one in self.source if one.lower() == key.lower()), None)

    def row(self) -> Values:
        draw = self.draw
        state = draw.choice(("open", "open", "open", "draft", "Draft", None))
        return draw.choice((1, 1, 2, None)), state, f"v{draw.randrange(1000)}"


@pytest.fixture
def database(server: MySQLServer) -> Iterator[str]:
    with server.fresh_database() as name:
        yield name


def pipeline(folder: Path, server: MySQLServer, database: str, kind: str, name: str) -> Cli:
    return Cli(
        folder / name,
        server,
        rf"{database}\..*",
        name=f"{database}-{name}",
        snapshot={"chunk_rows": 3},
        sink={"kind": kind, "deletes": {"soft": [rf"{database}.soft"], "ignore": [rf"{database}.kept"]}},
        transforms={
            "where": {rf"{database}\..*": CONDITION},
            "columns": {rf"{database}\..*\.tenant": "exclude", rf"{database}\..*\.v": {"mask": 2, "rename": "w"}},
        },
    )


def masked(value: str) -> str:
    return "*" * len(value) if len(value) <= 2 else "*" * (len(value) - 2) + value[-2:]


def rows_of(cli: Cli, database: str, table: str) -> dict[str, Any]:
    copy = open_copy(cli.sink / database / table)
    assert copy is not None
    marks = [DELETED_COLUMN] if table == "soft" else []
    rows = copy.read(["k", "state", "w", *marks]).to_pylist()
    by_key = {row.pop("k"): tuple(row.values()) for row in rows}
    assert len(by_key) == len(rows), "a key is there twice"
    return by_key


def check(cli: Cli, database: str, model: Model) -> None:
    live = {key: (state, masked(v)) for key, (state, v, deleted) in model.copy.items() if not deleted}
    assert live == {key: (row[1], masked(row[2])) for key, row in model.source.items() if is_copied(row)}
    assert rows_of(cli, database, "gone") == live
    assert rows_of(cli, database, "kept") == {key: (row[0], masked(row[1])) for key, row in model.copy.items()}
    assert rows_of(cli, database, "soft") == {key: (r[0], masked(r[1]), r[2]) for key, r in model.copy.items()}
    verdicts = {verdict.table.partition(".")[2]: verdict for verdict in verify_tables(cli.context)}
    assert {table: verdict.verdict for table, verdict in verdicts.items()} == dict.fromkeys(MODES, "equal")
    assert verdicts["kept"].kept == len(model.copy) - len(live)


def write(server: MySQLServer, database: str, model: Model, count: int) -> None:
    for _ in range(count):
        statements = model.statements()
        for table in MODES:
            server.session(database, *(sql.format(t=table) for sql in statements))


@pytest.mark.parametrize(("seed", "kind"), seeds_by_kind([0], range(1, 12), [1]))
def test_by_chance(server: MySQLServer, database: str, tmp_path: Path, seed: int, kind: str) -> None:
    """However changes are cut into batches, and after the tables were read again."""
    model = Model(random.Random(seed))
    for table in MODES:
        server.session(
            database,
            f"CREATE TABLE {table} (k VARCHAR(5) COLLATE utf8mb4_general_ci PRIMARY KEY, tenant INT, "
            "state VARCHAR(10) COLLATE utf8mb4_general_ci, v VARCHAR(10) NOT NULL)",
        )
    write(server, database, model, 10)
    # What was deleted before the snapshot is in no copy.
    model.copy = {key: row for key, row in model.copy.items() if not row[2]}
    whole, single, pieces = made = [pipeline(tmp_path, server, database, kind, name) for name in "abc"]
    for cli in made:
        cli.snapshot()
        check(cli, database, model)
    for number in range(3):
        write(server, database, model, 25)
        whole.catch_up()
        check(whole, database, model)
        for cli in (single, pieces):
            with cli.epoch() as run, closing(run.job.make_planner()) as planner:
                ends = [run.section_start]
                while (end := planner.find_batch_end(ends[-1], 1)) != ends[-1]:
                    ends.append(end)
                staged = [run.job.stage_range(*piece, "0") for piece in pairwise(ends)]
                for manifest in staged if cli is single else [merge_manifests(staged)] if staged else []:
                    run.apply_batch(manifest)
            check(cli, database, model)
        if number == 1:
            with whole.streaming():
                for table in MODES:
                    assert whole.resnapshot(f"{database}.{table}") == "rejoined"
            whole.catch_up()
            check(whole, database, model)
