"""Several writers, compaction, and the deletion of old files, in an order that chance decides: rows stay right."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyroaring import BitMap

from airflow_provider_cdc.sinks.files.parquet import read_file
from airflow_provider_cdc.sinks.iceberg import commit_encoder, snapshot_expiry, upkeep
from airflow_provider_cdc.sinks.iceberg.catalogs.protocol import CommitOutcome
from airflow_provider_cdc.sinks.iceberg.table import IcebergSinkTable
from airflow_provider_cdc.sinks.lake import compaction
from airflow_provider_cdc.sinks.protocol import Truncate, Upsert
from tests.sinks.conformance import KEYED
from tests.sinks.iceberg.test_table import FENCE, held, open_sink, other_writer, read_all_snapshots, rows

#: Actions of a schedule, and of the longest one.
ACTIONS, MANY_ACTIONS = 60, 2000


class Chance:
    """A table, what it must have, and what may happen to it.

    :param options: of the sink.
    """

    def __init__(self, folder: Path, seed: int, **options: object) -> None:
        self.random, self.folder, self.options = random.Random(seed), folder, options
        self.model, self.seq = dict[int, int](), 0
        self.targets = [self.opened() for _ in range(2)]
        self.targets[0].create("p")

    def opened(self) -> IcebergSinkTable:
        return open_sink(self.folder, **self.options).table(KEYED)

    @property
    def target(self) -> IcebergSinkTable:
        return self.random.choice(self.targets)

    def upsert(self) -> None:
        self.seq += 1
        keys = self.random.sample(range(30), self.random.randint(1, 12))
        ops = {key: self.random.choice("cuud") for key in keys}
        changes = rows(*((key, "x", self.seq, op) for key, op in ops.items()))
        assert self.target.commit(lambda _: Upsert(changes), {"stream": self.seq}, FENCE)
        self.model |= dict.fromkeys(keys, self.seq)
        for key in (key for key, op in ops.items() if op == "d"):
            del self.model[key]

    def truncate(self) -> None:
        if self.random.random() < 0.2:
            seq = self.seq - self.random.randint(0, 5)
            self.target.commit(lambda _: Truncate(seq), {}, FENCE)
            self.model = {key: own for key, own in self.model.items() if own >= seq}

    def compact(self) -> None:
        """Rows change between the plan and its commit."""
        target = self.target
        results = [(c, c.run()) for c in target.plan_compactions(purge=self.random.random() < 0.3)]
        self.random.choice([self.upsert, self.others, lambda: None])()
        target.commit_compactions(results)

    def others(self) -> None:
        """They add a row, or let one die."""
        target, other = self.target, other_writer(self.targets[0])
        log = target.load_log()
        if "copy_on_write_tables" not in self.options and log.files and self.random.random() < 0.5:
            # The last row of a file may die by their hands, too; then none is left to choose from.
            files = [f for f in log.files.values() if len(log.dead_rows(f.path)) < f.row_count]
            if not files:
                return
            file = self.random.choice(files)
            living = sorted({*range(file.row_count)} - {*log.dead_rows(file.path)})
            row = self.random.choice(living)
            keys = read_keys(target, file.path)
            other.dead = {f.entry.file.file_path: log.dead_rows(p) for p, f in log.files.items() if f.vector}
            other.commit((), {file.entry.file.file_path: BitMap([row])})
            del self.model[keys[row]]
        else:
            key = 1000 + len(other.metadata.snapshots) + self.random.randint(0, 10**6)
            other.commit(other.write_rows(rows((key, "theirs", 1, "c"))))
            self.model[key] = 1
        assert other.outcome is CommitOutcome.DONE

    def clean(self) -> None:
        self.target.clean_up()

    def reopen(self) -> None:
        self.targets[self.random.randrange(2)] = self.opened()


def read_keys(target: IcebergSinkTable, path: str) -> list[int]:
    keys: list[int] = read_file(target.storage, path, KEYED.sink_schema, ["id"])["id"].to_pylist()
    return keys


@pytest.mark.parametrize("copies", [(), (".*[.].*",)], ids=["vectors", "copies"])
@pytest.mark.parametrize(
    ("seed", "count"),
    [
        pytest.param(0, ACTIONS, id="0"),
        *(pytest.param(seed, ACTIONS, marks=pytest.mark.long, id=str(seed)) for seed in range(1, 10)),
        pytest.param(10, MANY_ACTIONS, marks=pytest.mark.long, id="many"),
    ],
)
def test_writers_by_chance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, count: int, copies: tuple[str, ...]
) -> None:
    monkeypatch.setattr(snapshot_expiry, "MAX_SNAPSHOTS", 4)
    monkeypatch.setattr(snapshot_expiry, "EXPIRY_BATCH", 1)
    monkeypatch.setattr(commit_encoder, "MERGED_MANIFESTS", 5)
    monkeypatch.setattr(compaction, "FANOUT", 3)
    monkeypatch.setattr(upkeep, "RETENTION_SECONDS", -3600)
    chance = Chance(tmp_path, seed, **({"copy_on_write_tables": copies} if copies else {}))
    actions = [*[chance.upsert] * 5, chance.truncate, chance.compact, chance.others, chance.clean, chance.reopen]
    for number in range(count):
        action = chance.random.choice(actions)
        action()
        found, markers = chance.target.read()
        read = dict(zip(found["id"].to_pylist(), found["_cdc_seq"].to_pylist(), strict=True))
        assert read == chance.model and found.num_rows == len(read), (number, action.__name__)
        assert (markers.get("stream") or 0) == chance.seq
    log = chance.targets[0].load_log()
    assert count < MANY_ACTIONS or log.metadata.last_sequence_number > 1000, "commits"
    chance.targets[0].clean_up()
    assert held(chance.targets[0]) == chance.model and read_all_snapshots(chance.targets[0])
    chance.targets[1].load_log().cross_check_files()
