"""Spark, delta-rs and this project write to one table in an order by chance; four programs read it after each step.

``CDC_WRITERS_SECONDS`` says for how long one seed goes on, with a new table for each round; without it there is one
round for each seed.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_provider_cdc.model.errors import TerminalError
from airflow_provider_cdc.model.schema import TableSchema
from airflow_provider_cdc.sinks.delta import maintenance
from airflow_provider_cdc.sinks.delta.table import DeltaSinkTable
from airflow_provider_cdc.sinks.lake import compaction
from airflow_provider_cdc.sinks.protocol import PublishSlices, Upsert
from tests.sinks.conformance import nullable
from tests.sinks.delta import test_definition_changes as altering
from tests.sinks.delta.test_other_writers import aged
from tests.support.readers import _load_delta
from tests.support.spark_delta import SparkDelta, spark_delta
from tests.support.v2_checkpoints import as_v2

#: What is in a row: place, and the third column.
Row = tuple[str, int | None]
#: Steps of one round, and keys.
STEPS, KEYS = 30, 60
SECONDS = float(os.environ.get("CDC_WRITERS_SECONDS", "0"))


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkDelta]:
    with spark_delta(quick=True) as run:
        yield run


class Round:
    """One table, and what is to be in it."""

    def __init__(self, folder: Path, run: SparkDelta | None, chance: random.Random, merge: str) -> None:
        self.sink, self.spark, self.chance = altering.sink(folder, merge), run, chance
        self.definition, self.seq, self.number = self._defined(0), 1, 0
        self.target = self.opened()
        self.target.create("p")
        self.folder = self.target.storage.location()
        self.model: dict[int, Row] = dict.fromkeys(range(KEYS), ("r", 0))
        altering.commit(self.target, PublishSlices([self.target.stage("1/0/1/slice", [self._rows(self.model)])]))
        #: By version, what was in the table: of those that it can be restored to.
        self.versions = dict[int, dict[int, Row]]()
        self.done = list[str]()

    def run(self, sql: str) -> None:
        """Let Spark run a statement."""
        assert self.spark is not None
        self.spark(sql)

    @staticmethod
    def _defined(number: int) -> TableSchema:
        column = nullable(f"n{number}", "bigint")
        return altering.PLAIN.replace(columns=(altering.ID, altering.PLACE, column))

    def opened(self) -> DeltaSinkTable:
        return self.sink.table(self.definition)

    @property
    def name(self) -> str:
        return f"delta.`{self.folder}`"

    @property
    def third(self) -> str:
        return self.definition.columns[2].name

    def _rows(self, wanted: Mapping[int, Row | None]) -> pa.Table:
        listed = []
        for key, row in wanted.items():
            values = {"pl.ace": row[0], self.third: row[1]} if row else {}
            listed.append(altering.rows(self.definition, [key], self.seq, "u" if row else "d", **values))
        return pa.concat_tables(listed) if listed else altering.rows(self.definition, [], self.seq)

    def _some(self, most: int = 12) -> list[int]:
        return self.chance.sample(range(KEYS + 20), self.chance.randint(1, most))

    # ------------------------------------------------------------ this project

    def batch(self) -> None:
        """Changes of the stream."""
        self.seq += 1
        changes: dict[int, Row | None] = {
            key: None if self.chance.random() < 0.3 else (f"b{self.seq}", self.seq) for key in self._some()
        }
        altering.commit(self.target, Upsert(self._rows(changes)))
        for key, row in changes.items():
            if row is None:
                self.model.pop(key, None)
            else:
                self.model[key] = row

    def exchange(self) -> None:
        self.seq += 1
        self.number += 1
        self.model = dict.fromkeys(self._some(KEYS), (f"x{self.seq}", self.seq))
        staged = self.target.stage(f"1/0/{self.seq}/slice", [self._rows(self.model)])
        assert self.target.overwrite([staged], {"exchange": self.number}, altering.FENCE)
        self.versions.clear()

    def alter(self) -> None:
        """The third column goes, and another one comes."""
        self.number += 1
        before, self.definition = self.definition, self._defined(self.number)
        self.target = self.opened()
        assert self.target.alter(before, {"ddl": self.number}, altering.FENCE)
        self.model = {key: (row[0], None) for key, row in self.model.items()}
        self.versions.clear()

    def compact(self) -> None:
        self.target.commit_compactions(
            [(one, one.run()) for one in self.target.plan_compactions(purge=self.chance.random() < 0.3)]
        )

    def tidy(self) -> None:
        self.target.clean_up()

    def restart(self) -> None:
        self.target = self.opened()

    # ------------------------------------------------------------ Spark

    def spark_update(self) -> None:
        self.run(f"UPDATE {self.name} SET `pl.ace` = 's{self.seq}' WHERE id % 5 = {self.seq % 5}")
        self.model = {k: (f"s{self.seq}" if k % 5 == self.seq % 5 else p, n) for k, (p, n) in self.model.items()}

    def spark_delete(self) -> None:
        self.run(f"DELETE FROM {self.name} WHERE id % 11 = {self.seq % 11}")
        self.model = {key: row for key, row in self.model.items() if key % 11 != self.seq % 11}

    def spark_merge(self) -> None:
        keys = self._some(5)
        values = " UNION ALL ".join(f"SELECT {key}L AS id" for key in keys)
        self.run(
            f"MERGE INTO {self.name} t USING ({values}) s ON t.id = s.id "
            f"WHEN MATCHED THEN UPDATE SET `pl.ace` = 'm' WHEN NOT MATCHED THEN "
            "INSERT (id, `pl.ace`, _cdc_seq, _cdc_op, _cdc_ts) VALUES (s.id, 'm', 1L, 'r', timestamp'2026-01-01')"
        )
        for key in keys:
            self.model[key] = ("m", self.model[key][1] if key in self.model else None)

    def spark_optimize(self) -> None:
        self.run(f"OPTIMIZE {self.name}")

    def spark_vacuum(self) -> None:
        self.run(f"VACUUM {self.name} RETAIN 0 HOURS")
        self.versions.clear()

    def spark_restore(self) -> None:
        if self.versions:
            version, rows = self.chance.choice([*self.versions.items()])
            self.run(f"RESTORE TABLE {self.name} TO VERSION AS OF {version}")
            self.model = dict(rows)

    def spark_property(self) -> None:
        key, value = self.chance.choice(
            [
                *(("delta.checkpointPolicy", "v2"), ("delta.checkpointPolicy", "classic")),
                *(("delta.checkpointInterval", "1"), ("delta.checkpointInterval", "100")),
                *(("delta.feature.rowTracking", "supported"), ("delta.feature.variantType", "supported")),
            ]
        )
        self.run(f"ALTER TABLE {self.name} SET TBLPROPERTIES ('{key}' = '{value}')")

    def spark_cluster(self) -> None:
        by = self.chance.choice(["(id)", f"(id, `{self.third}`)", "(`pl.ace`)", "NONE"])
        self.run(f"ALTER TABLE {self.name} CLUSTER BY {by}")

    def spark_cleanup(self) -> None:
        """A checkpoint of either policy, after which Spark deletes the commits before it."""
        policy = self.chance.choice(["v2", "classic"])
        tune = f"ALTER TABLE {self.name} SET TBLPROPERTIES"
        self.run(f"{tune} ('delta.checkpointPolicy' = '{policy}', 'delta.checkpointInterval' = '1')")
        self._days_go_by()
        self.run(f"{tune} ('delta.checkpointInterval' = '100', 'mine' = '{self.seq}')")

    def _days_go_by(self) -> None:
        aged(self.folder)
        self.versions.clear()
        self.target.load_log()._refreshed_at -= 86400

    # ------------------------------------------------------------ delta-rs

    def rs_delete(self) -> None:
        DeltaTable(self.folder).delete(f"id % 7 = {self.seq % 7}")
        self.model = {key: row for key, row in self.model.items() if key % 7 != self.seq % 7}

    def rs_append(self) -> None:
        key = 1000 + self.seq * 100 + len(self.done)
        row = altering.rows(self.definition, [key], 1, "r", **{"pl.ace": "a", self.third: 7})
        write_deltalake(DeltaTable(self.folder), row, mode="append")
        self.model[key] = ("a", 7)

    def rs_optimize(self) -> None:
        DeltaTable(self.folder).optimize.compact()

    def rs_vacuum(self) -> None:
        DeltaTable(self.folder).vacuum(0, dry_run=False, enforce_retention_duration=False)
        self.versions.clear()

    def rs_checkpoint(self) -> None:
        DeltaTable(self.folder).create_checkpoint()

    def rs_cleanup(self) -> None:
        self._days_go_by()
        DeltaTable(self.folder).create_checkpoint()
        DeltaTable(self.folder).cleanup_metadata()

    def v2_checkpoint(self) -> None:
        """In one of the forms that Spark gives them, and the commits before it are deleted."""
        self._days_go_by()
        version = DeltaTable(self.folder).version()
        log = Path(self.folder, "_delta_log")
        if not [*log.glob(f"{version:020}.checkpoint.*")]:
            form, named = self.chance.choice([("json", False), ("parquet", False), ("parquet", True)])
            as_v2(Path(self.folder), form=form, named=named, sidecars=self.chance.randrange(3))
            for path in log.glob("*.json"):
                if path.name[20] == "." and path.stem.isdecimal() and int(path.stem) < version:
                    path.unlink()

    def rs_property(self) -> None:
        DeltaTable(self.folder).alter.set_table_properties({"delta.checkpointInterval": "50"})

    # ------------------------------------------------------------ what is there

    def step(self) -> None:
        ours = [self.batch, self.batch, self.batch, self.batch, self.exchange, self.alter]
        ours += [self.compact, self.compact, self.tidy, self.tidy, self.restart, self.restart]
        theirs = [self.spark_update, self.spark_delete, self.spark_merge, self.spark_optimize, self.spark_vacuum]
        theirs += [self.spark_restore, self.spark_property, self.spark_property, self.spark_cluster]
        theirs += [self.spark_cleanup, self.spark_cleanup]
        rs = [self.rs_delete, self.rs_append, self.rs_optimize, self.rs_vacuum, self.rs_checkpoint]
        rs += [self.rs_cleanup, self.rs_property]
        if self.spark is None:
            theirs = [self.v2_checkpoint]
        do = self.chance.choice(self.chance.choice([ours, ours, theirs, rs]))
        self.done.append(do.__name__)
        print(self.done[-1], flush=True)
        try:
            do()
        except Exception as error:
            if not do.__name__.startswith(("spark_", "rs_")) or isinstance(error, (TerminalError, AssertionError)):
                raise
            # That another program refuses, or fails, is its own affair, as long as the table is as it was.
            self.done[-1] += f" ({' '.join(str(error).split())[:200]})"
        self.compare()
        self.versions[DeltaTable(self.folder).version()] = dict(self.model)

    def compare(self) -> None:
        ways: dict[str, Callable[[], pa.Table]] = {
            "this project": lambda: self.target.read()[0],
            "this project, from the start": lambda: self.opened().read()[0],
            "delta-rs": lambda: pa.table(DeltaTable(self.folder).scan().read_all()),
            "DuckDB": lambda: _duck(self.folder),
            "Polars": lambda: polars.read_delta(self.folder).to_arrow(),
        }
        if (run := self.spark) is not None:
            ways["Spark"] = lambda: run.arrow(f"SELECT id, `pl.ace`, `{self.third}` FROM {self.name}")
        for name, read in ways.items():
            try:
                rows = read()
            except Exception as error:
                if _refuses(error) and not name.startswith("this"):
                    continue
                raise AssertionError(f"{name} cannot read after {self.done}: {error}") from error
            ids, places, thirds = (rows[column].to_pylist() for column in ("id", "pl.ace", self.third))
            found = dict(zip(ids, zip(places, thirds, strict=True), strict=True))
            assert len(found) == len(ids), f"{name} has a key twice after {self.done}"
            assert found == self.model, f"{name} is wrong after {self.done}"


def _refuses(error: Exception) -> bool:
    """Whether a program does not know a feature that the table has."""
    return any(word in str(error) for word in ("variantType", "Unsupported", "not supported", "not yet supported"))


def _duck(folder: str) -> Any:
    with duckdb.connect() as connection:
        _load_delta(connection)
        return connection.execute("SELECT * FROM delta_scan(?)", [folder]).to_arrow_table()


@pytest.mark.timeout(1800 + 3 * SECONDS)
@pytest.mark.spark
@pytest.mark.long
@pytest.mark.parametrize("merge", altering.MERGES)
@pytest.mark.parametrize("seed", range(1, 9))
def test_writers_by_chance(
    tmp_path: Path, spark: SparkDelta, monkeypatch: pytest.MonkeyPatch, seed: int, merge: str
) -> None:
    rounds(tmp_path, spark, monkeypatch, seed, merge)


@pytest.mark.timeout(600 + 2 * SECONDS)
@pytest.mark.parametrize("merge", [altering.MERGES[0], pytest.param(altering.MERGES[1], marks=pytest.mark.long)])
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 9))])
def test_without_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, merge: str) -> None:
    """With checkpoints by the V2 specification that the tests make."""
    rounds(tmp_path, None, monkeypatch, seed, merge)


def rounds(folder: Path, run: SparkDelta | None, monkeypatch: pytest.MonkeyPatch, seed: int, merge: str) -> None:
    monkeypatch.setattr(maintenance, "_CHECKPOINT_INTERVAL", 3)
    monkeypatch.setattr(compaction, "FANOUT", 2)
    until, number, steps = time.monotonic() + SECONDS, 0, 0
    while not number or time.monotonic() < until:
        found = Round(folder / str(number), run, random.Random(f"{seed}/{merge}/{number}"), merge)
        for _ in range(STEPS):
            found.step()
            steps += 1
        number += 1
    print(f"{number} rounds, {steps} steps")
