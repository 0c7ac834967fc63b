"""Other programs write to a table while the stream goes on: its rows are right, or the stream stops and says why."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType

from airflow_provider_cdc.model.errors import TerminalError
from airflow_provider_cdc.sinks.delta import maintenance
from airflow_provider_cdc.sinks.delta.table import DeltaSinkTable
from airflow_provider_cdc.sinks.lake import compaction
from airflow_provider_cdc.sinks.lake.merge import key_index
from airflow_provider_cdc.sinks.protocol import Truncate, Upsert
from tests.sinks.conformance import nullable
from tests.sinks.delta import test_definition_changes as altering
from tests.sinks.delta.test_table import FENCE, add, create_table, folder_of, held, opened, rows, upsert
from tests.support.generated import held_by
from tests.support.spark_delta import SparkDelta, spark_delta

RIGHT = "right"
_ALIEN = "SELECT 900L AS id, 'x' AS `v.w`, 1L AS _cdc_seq, 'r' AS _cdc_op, timestamp'2026-01-01' AS _cdc_ts"


@dataclass(frozen=True)
class Case:
    """What somebody else does.

    :param what: as a user would write it, for the table of the documentation.
    :param do: does it to the table in a folder, by Spark (which is given) or by delta-rs.
    :param outcome: of the stream's next batches: right, or words of the error by which it stops.
    :param later: whether days have passed until then, so that what the log no longer needs is deleted.
    """

    what: str
    do: Callable[[str, Any], object]
    outcome: str = RIGHT
    later: bool = False


def sql(text: str, outcome: str = RIGHT, *, later: bool = False) -> Case:
    """Statements of Spark; ``{}`` is the table.

    :param later: before the last one days go by: with its checkpoint Spark cleans the log up.
    """

    def do(folder: str, run: SparkDelta) -> None:
        statements = text.split("; ")
        for statement in statements:
            if later and statement is statements[-1]:
                aged(folder)
            run(statement.format(f"delta.`{folder}`"))
        assert not later or not Path(folder, "_delta_log", f"{0:020}.json").exists(), "the log was not cleaned up"

    what = text.replace(_ALIEN, "SELECT ...").format(*["t"] * 9)
    return Case(what + " (which cleans up the log)" if later else what, do, outcome, later)


def aged(folder: str) -> None:
    """Let the log of a table be ten days old."""
    for path in Path(folder, "_delta_log").rglob("*"):
        os.utime(path, times=(time.time() - 10 * 86400,) * 2)


def rs(what: str, do: Callable[[DeltaTable], object], outcome: str = RIGHT) -> Case:
    """A call of delta-rs."""
    return Case(what, lambda folder, _: do(DeltaTable(folder)), outcome)


def _tuned(name: str, value: str) -> str:
    return f"ALTER TABLE {{}} SET TBLPROPERTIES ('{name}' = '{value}')"


_POLICY = _tuned("delta.checkpointPolicy", "v2") + "; " + _tuned("delta.checkpointInterval", "1")
SPARK = [
    sql("OPTIMIZE {}"),
    sql("OPTIMIZE {} ZORDER BY (id)"),
    sql("VACUUM {} RETAIN 0 HOURS"),
    sql("OPTIMIZE {}; VACUUM {} RETAIN 0 HOURS"),
    sql("REORG TABLE {} APPLY (PURGE)"),
    sql("DELETE FROM {} WHERE id % 7 = 0"),
    sql("UPDATE {} SET `v.w` = 'other' WHERE id % 7 = 0"),
    sql("INSERT INTO {} " + _ALIEN),
    sql(
        f"MERGE INTO {{}} t USING ({_ALIEN} UNION ALL SELECT 3L, 'y', 1L, 'r', timestamp'2026-01-01') s "
        "ON t.id = s.id WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    ),
    sql("RESTORE TABLE {} TO VERSION AS OF 4"),
    sql("TRUNCATE TABLE {}"),
    sql("COMMENT ON TABLE {} IS 'mine'"),
    sql("ALTER TABLE {} ALTER COLUMN id COMMENT 'the key'"),
    sql("ALTER TABLE {} ADD COLUMN more STRING", "has other columns"),
    sql("ALTER TABLE {} CLUSTER BY (id); OPTIMIZE {}"),
    sql("ALTER TABLE {} ADD CONSTRAINT positive CHECK (id >= 0)", "uses checkConstraints"),
    sql(_tuned("delta.columnMapping.mode", "name"), "uses columnMapping"),
    sql(_tuned("delta.enableRowTracking", "true"), "uses rowTracking"),
    sql(_tuned("delta.feature.rowTracking", "supported")),
    sql(_tuned("delta.enableInCommitTimestamps", "true"), "uses inCommitTimestamp"),
    sql(_tuned("delta.enableTypeWidening", "true"), "uses typeWidening"),
    sql(_tuned("delta.enableChangeDataFeed", "true")),
    sql(_tuned("delta.appendOnly", "true"), "uses appendOnly"),
    sql(_tuned("delta.enableDeletionVectors", "false")),
    sql(_POLICY + "; OPTIMIZE {}"),
    sql(_POLICY + "; OPTIMIZE {}; DELETE FROM {} WHERE id % 7 = 0", later=True),
    sql(_tuned("delta.checkpointInterval", "1") + "; DELETE FROM {} WHERE id % 7 = 0", later=True),
    sql("CREATE OR REPLACE TABLE {} USING DELTA AS " + _ALIEN, "was replaced"),
]


def _merged(table: DeltaTable) -> None:
    source = rows((3, "y", 1, "r"), (900, "x", 1, "r"))
    merge = table.merge(source, "t.id = s.id", source_alias="s", target_alias="t")
    merge.when_matched_update_all().when_not_matched_insert_all().execute()


def _vacuumed(table: DeltaTable, *, full: bool) -> None:
    table.vacuum(0, dry_run=False, enforce_retention_duration=False, full=full)


def _replaced(table: DeltaTable) -> None:
    """With a new table that has its columns, and names its owner."""
    own = {name: value for name, value in table.metadata().configuration.items() if name.startswith("airflow-cdc.")}
    assert own
    DeltaTable.create(
        table.table_uri, table.schema(), mode="overwrite", configuration=own, raise_if_key_not_exists=False
    )


def _checkpointed(table: DeltaTable) -> None:
    table.create_checkpoint()
    table.cleanup_metadata()


DELTA_RS = [
    rs("optimize.compact()", lambda t: t.optimize.compact()),
    rs('optimize.z_order(["id"])', lambda t: t.optimize.z_order(["id"])),
    rs("vacuum(0)", lambda t: _vacuumed(t, full=False)),
    rs("vacuum(0, full=True)", lambda t: _vacuumed(t, full=True)),
    rs('delete("id % 7 = 0")', lambda t: t.delete("id % 7 = 0")),
    rs("""update({"_cdc_op": "'x'"}, "id % 7 = 0")""", lambda t: t.update({"_cdc_op": "'x'"}, predicate="id % 7 = 0")),
    rs("merge(...)", _merged),
    rs("restore(4)", lambda t: t.restore(4)),
    rs("create_checkpoint()", lambda t: t.create_checkpoint()),
    rs("create_checkpoint(); cleanup_metadata()", _checkpointed),
    rs('write_deltalake(mode="append")', lambda t: write_deltalake(t, rows((900, "x", 1, "r")), mode="append")),
    rs('write_deltalake(mode="overwrite")', lambda t: write_deltalake(t, rows((900, "x", 1, "r")), mode="overwrite")),
    rs(
        'DeltaTable.create(mode="overwrite")',
        lambda t: DeltaTable.create(t.table_uri, t.schema(), mode="overwrite"),
        "was replaced",
    ),
    rs('DeltaTable.create(mode="overwrite", configuration=...)', _replaced, "was replaced by another one"),
    rs(
        "alter.add_columns(...)",
        lambda t: t.alter.add_columns(Field("more", PrimitiveType("string"))),
        "has other columns",
    ),
    rs(
        'alter.set_table_properties({"delta.logRetentionDuration": "interval 3 days"})',
        lambda t: t.alter.set_table_properties({"delta.logRetentionDuration": "interval 3 days"}),
    ),
    rs(
        'alter.add_constraint({"positive": "id >= 0"})',
        lambda t: t.alter.add_constraint({"positive": "id >= 0"}),
        "uses checkConstraints",
    ),
]


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkDelta]:
    with spark_delta(quick=True) as run:
        yield run


@pytest.fixture(params=["deletion_vectors", pytest.param("copy_on_write", marks=pytest.mark.long)])
def target(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DeltaSinkTable:
    """A table whose index is warm, and has dropped rows that are dead."""
    monkeypatch.setattr(key_index, "_SEGMENTS_TO_MERGE", 2)
    monkeypatch.setattr(compaction, "FANOUT", 2)
    found = create_table(tmp_path, vectors=request.param == "deletion_vectors")
    for at in (0, 100):
        add(found, f"s{at}", rows(*((key, "r", 1, "r") for key in range(at, at + 100))))
    for seq in range(2, 8):
        batch(found, seq)
    return found


def batch(target: DeltaSinkTable, seq: int) -> dict[int, tuple[str, int] | None]:
    """Change some rows; what they are then, or ``None``."""
    changed: dict[int, tuple[str, int] | None] = dict.fromkeys(range(seq, 200, 13), (f"v{seq}", seq))
    changed[200 + seq] = (f"v{seq}", seq)
    changed |= dict.fromkeys(range(seq + 5, 200, 17), None)
    upsert(target, *((key, *(("", seq, "d") if value is None else (*value, "u"))) for key, value in changed.items()))
    return changed


def seen(folder: str) -> dict[int, tuple[str, int]]:
    """Rows as delta-rs reads them."""
    found = pa.table(DeltaTable(folder).scan().read_all())
    listed = {row["id"]: (row["v.w"], row["_cdc_seq"]) for row in found.to_pylist()}
    assert len(listed) == found.num_rows, "a key is there twice"
    return listed


def go(target: DeltaSinkTable, case: Case, run: SparkDelta | None) -> None:
    """Let somebody else write, and the stream go on."""
    folder = str(folder_of(target))
    beside = opened(folder_of(target).parent, vectors=target.options.deletion_vectors)
    work = beside.plan_compactions()
    written = [(w, w.run()) for w in work]
    assert written or not target.options.deletion_vectors, "nothing is being compacted meanwhile"
    case.do(folder, run)
    if case.later:
        for found in (target, beside):
            found.load_log()._refreshed_at -= 86400
    if case.outcome != RIGHT:
        for stops in (lambda: batch(target, 20), lambda: beside.commit_compactions(written), lambda: batch(target, 21)):
            with pytest.raises(TerminalError, match=case.outcome) as refusal:
                stops()
        remedy = re.search("in Spark with (.*), or use a fresh", refusal.value.remedy)
        if run is None or remedy is None:
            return
        for statement in remedy[1].split("; "):
            run(statement.replace("TABLE t ", f"TABLE delta.`{folder}` "))
    expected = seen(folder)
    for seq in (20, 21):
        for key, value in batch(target, seq).items():
            if value is None:
                expected.pop(key, None)
            else:
                expected[key] = value
        assert held(target) == expected
        beside.commit_compactions(written)  # the second time it has been done, or was given up
        assert seen(folder) == held(opened(folder_of(target).parent)) == expected
    for one in beside.plan_compactions():
        beside.commit_compactions([(one, one.run())])
    beside.clean_up()
    batch(target, 22)
    assert seen(folder) == held(target)


@pytest.mark.spark
@pytest.mark.parametrize("case", SPARK, ids=lambda case: case.what[:60])
def test_spark(target: DeltaSinkTable, case: Case, spark: SparkDelta) -> None:
    go(target, case, spark)


@pytest.mark.parametrize("case", DELTA_RS, ids=lambda case: case.what)
def test_delta_rs(target: DeltaSinkTable, case: Case) -> None:
    go(target, case, None)


@pytest.mark.spark
def test_row_tracking_is_switched_on_later(target: DeltaSinkTable, spark: SparkDelta) -> None:
    """The ids of rows that were written where it was supported only are as Spark needs them."""
    table = f"delta.`{folder_of(target)}`"
    spark(f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.feature.rowTracking' = 'supported')")
    batch(target, 20)
    batch(target, 21)
    spark(f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.enableRowTracking' = 'true')")
    counts = f"SELECT count(*), count(DISTINCT _metadata.row_id), max(_metadata.row_commit_version) FROM {table}"
    ((count, ids, version),) = spark(counts)
    assert count == ids == len(seen(str(folder_of(target)))) and version <= DeltaTable(folder_of(target)).version()
    spark(f"UPDATE {table} SET `v.w` = 'other' WHERE id % 7 = 0")
    assert spark(counts)[0][:2] == (count, ids)


@pytest.mark.spark
def test_a_clustered_table_loses_a_column(tmp_path: Path, spark: SparkDelta, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark describes and optimizes it all the same: from the log, and from a checkpoint of this project."""
    monkeypatch.setattr(maintenance, "_CHECKPOINT_INTERVAL", 1)
    where, after = altering.sink(tmp_path), altering.PLAIN
    before = altering.more(after, altering.N, altering.AT, nullable("text", "text", charset="utf8mb4"))
    target = where.table(before)
    target.create("p")
    table = f"delta.`{target.storage.location()}`"
    altering.commit(target, Upsert(altering.rows(before, range(20), 2, n=1)))
    spark(f"ALTER TABLE {table} CLUSTER BY (n, id, text)")
    altering.commit(target, Upsert(altering.rows(before, range(10, 30), 3, n=2)))
    spark(f"OPTIMIZE {table}")
    again = where.table(after)
    assert again.alter(before, {"m": 1}, altering.FENCE)
    altering.commit(again, Upsert(altering.rows(after, range(20, 40), 4)))
    for n in range(2):
        assert spark(f"DESCRIBE DETAIL {table}")[0][8] == ["id"]
        spark(f"OPTIMIZE {table}")
        altering.commit(again, Upsert(altering.rows(after, range(n, 40 + n), 5 + n)))
        assert {*altering.values(again, after)} == {row[0] for row in spark(f"SELECT id FROM {table}")}
        aged(str(folder_of(again)))
        again.clean_up()
        assert n or not Path(folder_of(again), "_delta_log", f"{0:020}.json").exists()
        spark(f"REFRESH TABLE {table}")


def test_the_table_in_the_docs() -> None:
    lines = ["| Program | What it does | The stream |", "|---|---|---|"]
    for program, cases in (("Spark", SPARK), ("delta-rs", DELTA_RS)):
        for case in cases:
            outcome = "goes on, rows are right" if case.outcome == RIGHT else f"stops: {case.outcome}"
            what = f"`` {case.what} ``" if "`" in case.what else f"`{case.what}`"
            lines.append(f"| {program} | {what} | {outcome} |")
    assert held_by("docs/readers.md", "writers", lines)


@pytest.mark.parametrize("is_compacted", [True, False], ids=["compacted", "as they are"])
@pytest.mark.parametrize("vectors", [True, False], ids=["vectors", "copies"])
def test_rows_without_a_seq_are_older_than_all_others(tmp_path: Path, vectors: bool, is_compacted: bool) -> None:
    """Another program has inserted them, with NULL in ``_cdc_seq``; the file's statistics leave NULL out."""
    target, big = create_table(tmp_path, vectors=vectors), 2**40 + 1
    upsert(target, (1, "a", 5, "c"))
    theirs = rows((7, "seven", 0, "c"), (8, "eight", 0, "c"), (9, "nine", big, "c"))
    nulls = pa.array([None, None, big], pa.int64())
    theirs = theirs.set_column(theirs.schema.get_field_index("_cdc_seq"), "_cdc_seq", nulls)
    write_deltalake(folder_of(target), theirs, mode="append")
    if is_compacted:
        upsert(target, (8, "new", 1, "u"), (9, "older", 2**40, "u"))
        assert held(target) == {1: ("a", 5), 7: ("seven", None), 8: ("new", 1), 9: ("nine", big)}
    compactions = target.plan_compactions(purge=True) if is_compacted else []
    assert target.commit_compactions([(c, c.run()) for c in compactions]) == len(compactions)
    assert target.commit(lambda _: Truncate(big), {}, FENCE)
    assert held(target) == {9: ("nine", big)}
