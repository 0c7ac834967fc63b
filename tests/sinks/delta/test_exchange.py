"""A table that was read again as a whole is exchanged: other rows, and whatever other columns, in one commit."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder

from airflow_provider_cdc.config.table_properties import CHANGE_DATA_FEED, TableProperties
from airflow_provider_cdc.model.errors import FencedError, TerminalError
from airflow_provider_cdc.model.multiset import net_change
from airflow_provider_cdc.model.schema import DELETED_COLUMN, OP_COLUMN, SEQ_COLUMN, TS_COLUMN, Column, TableSchema
from airflow_provider_cdc.sinks.delta import maintenance
from airflow_provider_cdc.sinks.delta.log.features import GENERATION_EXPRESSION
from airflow_provider_cdc.sinks.delta.sink import DeltaSink
from airflow_provider_cdc.sinks.delta.table import DeltaSinkTable
from airflow_provider_cdc.sinks.files.parquet import DataFile
from airflow_provider_cdc.sinks.lake import compaction
from airflow_provider_cdc.sinks.lake.merge.key_index import KeyIndex
from airflow_provider_cdc.sinks.protocol import Fence, MultisetChange, PublishSlices, Truncate, Upsert
from airflow_provider_cdc.sinks.storage.local_storage import LocalStorage
from tests.sinks.conformance import nullable, preceded_by
from tests.sinks.delta.test_definition_changes import FENCE, MERGES, commit, newest, present, sink
from tests.support.spark_delta import spark_delta

ID = Column("id", "bigint", "bigint", nullable=False)
N, PLACE, MADE = nullable("n", "int"), nullable("pl.ace", "varchar", charset="utf8mb4"), nullable("made", "datetime")
M, TEXT = nullable("m", "bigint"), nullable("n", "varchar", "varchar(9)", charset="utf8mb4")
AT = nullable("at", "datetime", fsp=6)
TABLE = TableSchema("shop", "t", (ID, N, PLACE, MADE), ("id",))
#: What it becomes.
DEFINITIONS = {
    "same": TABLE,
    "dropped": TABLE.replace(columns=(ID, PLACE, MADE)),
    "renamed": TABLE.replace(columns=(ID, N.replace(name="m"), PLACE, MADE)),
    "retyped": TABLE.replace(columns=(ID.replace(data_type="int", column_type="int"), TEXT, PLACE, MADE)),
    "added": TABLE.replace(columns=(AT, ID, M, N, PLACE, MADE)),
    "all": TABLE.replace(columns=(MADE, AT, TEXT.replace(name="id", nullable=False), M, PLACE)),
    "composite": TABLE.replace(key=("pl.ace", "id")),
    "another key": TABLE.replace(key=("n",)),
    "no key": TABLE.replace(key=()),
}
FENCE_2 = Fence("another", 2)
Row = dict[str, Any]


def row(table: TableSchema, key: int, seq: int, op: str = "r", more: int = 0) -> Row:
    """One whose values follow from a number."""
    said: Row = {"pl.ace": "DE" if key % 2 else "AT", "made": datetime(2026, 1, 1 + key % 2)}
    said |= {SEQ_COLUMN: seq, OP_COLUMN: op, TS_COLUMN: datetime(2026, 1, 1, tzinfo=UTC)}
    for column in table.columns:
        number = key if column.name == "id" or (column.name,) == table.key else 100 * key + more
        match column.data_type:
            case "int" | "bigint":
                said[column.name] = number
            case "varchar" if column.name not in said:
                said[column.name] = f"v{number}"
            case "datetime" if column.name not in said:
                said[column.name] = datetime(2026, 1, 1, 1, 1, 1, number)
    return said


def of(table: TableSchema, rows: Iterable[Row]) -> pa.Table:
    return pa.Table.from_pylist([*rows], table.sink_schema)


def merge_in(target: DeltaSinkTable, table: TableSchema, rows: Sequence[Row], before: Sequence[Row] = ()) -> None:
    """Commit changes of rows, which were others before."""
    if table.key:
        commit(target, Upsert(of(table, rows)))
        return
    gone = [{**r, OP_COLUMN: "d", SEQ_COLUMN: rows[0][SEQ_COLUMN]} for r in before]
    added = [r for r in rows if r[OP_COLUMN] != "d"]
    commit(target, MultisetChange(net_change(of(table, [*gone, *added]), table.column_schema.names)))


def table_with_history(where: DeltaSink, table: TableSchema = TABLE) -> DeltaSinkTable:
    """A table with rows of the snapshot, and of two batches that hit them."""
    target = where.table(table)
    target.create("p")
    commit(target, PublishSlices([target.stage("1/0/1/slice", [of(table, [row(table, k, 1) for k in range(20)])])]))
    merge_in(target, table, [row(table, k, 2, "u", 1) for k in (2, 3, 30)], [row(table, k, 1) for k in (2, 3)])
    merge_in(target, table, [row(table, k, 3, "d", 1) for k in (4, 30)], [row(table, 4, 1), row(table, 30, 2, "u", 1)])
    return target


def staged(
    target: DeltaSinkTable, table: TableSchema, keys: Iterable[int], seq: int = 5, place: str = "2/0"
) -> DataFile:
    return target.stage(f"{place}/1/slice", [of(table, [row(table, key, seq) for key in keys])])


def plain(found: pa.Table, table: TableSchema) -> list[Row]:
    rows = found.select(table.sink_schema.names).cast(table.sink_schema).to_pylist()
    return sorted(rows, key=lambda r: str(r["id"]))


def check(target: DeltaSinkTable, table: TableSchema, rows: Iterable[Row]) -> None:
    """What is in the table: as it says itself, and as delta-rs reads it."""
    wanted = plain(of(table, rows), table)
    assert plain(target.read()[0], table) == wanted
    builder = QueryBuilder().register("t", DeltaTable(target.storage.location()))
    assert plain(pa.table(builder.execute("SELECT * FROM t").read_all()), table) == wanted


@pytest.mark.parametrize("merge", MERGES)
@pytest.mark.parametrize("parts", [False, True])
@pytest.mark.parametrize("what", DEFINITIONS)
def test_whatever_it_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, parts: bool, merge: str) -> None:
    """It has the new rows and columns, goes on with them by the new key, and may be exchanged again."""
    monkeypatch.setattr(compaction, "FANOUT", 2)
    where, table = sink(tmp_path, merge, parts=parts), DEFINITIONS[what]
    old = table_with_history(where)
    before, files = old.load_log().metadata, dict(old.load_log().files)
    version = old.load_log().version
    target = where.table(table)
    slices = [staged(target, table, range(10)), staged(target, table, [40, 41], 4, "2/1")]
    slices.append(staged(target, table, (), place="2/2"))
    assert target.overwrite(slices, {"anew": 2}, FENCE)

    log = target.load_log()
    assert log.version == version + 1
    actions = newest(target)
    removed = {a["remove"]["path"]: a["remove"] for a in actions if "remove" in a}
    assert len(removed) == len(files) and all(a["dataChange"] for a in removed.values())
    for file in files.values():
        gone = removed[file.action["path"]]
        assert gone.get("deletionVector") == (file.deletion_vector.to_json() if file.deletion_vector else None)
        assert gone["partitionValues"] == file.action["partitionValues"]
    adds = [a["add"] for a in actions if "add" in a]
    assert {*log.files} == {f.path for s in slices for f in s.files if f.rows} and len(adds) == len(log.files)
    assert all(add["dataChange"] and json.loads(add["stats"])["minValues"][SEQ_COLUMN] in (4, 5) for add in adds)
    keyed = ["id" in json.loads(add["stats"])["minValues"] for add in adds]
    assert all(keyed) == any(keyed) == (table.integer_key_column == "id")
    assert {a["txn"]["appId"]: a["txn"]["version"] for a in actions if "txn" in a} == {"anew": 2, "epoch": 1}
    assert [a["commitInfo"]["operation"] for a in actions if "commitInfo" in a] == ["OVERWRITE"]
    said = log.metadata
    assert said == {
        **before,
        "schemaString": said["schemaString"],
        "configuration": {**before["configuration"], "airflow-cdc.key": json.dumps(list(table.key))},
    }
    rows = {key: row(table, key, 5 - (key > 9)) for key in (*range(10), 40, 41)}
    check(target, table, rows.values())

    with pytest.raises(TerminalError, match="has other columns|has another key") if table != TABLE else nullcontext():
        old.commit(lambda _: Upsert(of(TABLE, [row(TABLE, 2, 9, "u")])), {"stream": 9}, FENCE)
    if table == TABLE:
        rows[2] = row(TABLE, 2, 9, "u")
        check(target, table, rows.values())
    for number, goes_on in enumerate((target, where.table(table))):
        changed, gone, new = 4 + number, 6 + number, 60 + number
        seq, before_them = 10 + 10 * number, [rows[changed], rows[gone]]
        batch = [
            row(table, changed, seq, "u", 7),
            {**rows[gone], SEQ_COLUMN: seq, OP_COLUMN: "d"},
            row(table, new, seq, "c"),
        ]
        merge_in(goes_on, table, batch, before_them)
        del rows[gone]
        rows |= {changed: batch[0], new: batch[2]}
        check(goes_on, table, rows.values())
        goes_on.clean_up()
        work = goes_on.plan_compactions(purge=True)
        assert goes_on.commit_compactions([(c, c.run()) for c in work]) == len(work)
        check(goes_on, table, rows.values())
        commit(goes_on, Truncate(5 + number))
        rows = {key: value for key, value in rows.items() if value[SEQ_COLUMN] >= 5 + number}
        check(goes_on, table, rows.values())
    where.table(table).create("p")

    back = where.table(TABLE)
    assert back.overwrite([staged(back, TABLE, (1, 2), 30, "3/0")], {"anew": 3}, FENCE)
    check(back, TABLE, [row(TABLE, 1, 30), row(TABLE, 2, 30)])
    merge_in(back, TABLE, [row(TABLE, 2, 31, "u", 3)])
    check(back, TABLE, [row(TABLE, 1, 30), row(TABLE, 2, 31, "u", 3)])


def test_it_stands_once(tmp_path: Path) -> None:
    """All markers: then nothing is looked at, though the slices are part of the table and have been hit since."""
    where, table = sink(tmp_path), DEFINITIONS["all"]
    table_with_history(where)
    target = where.table(table)
    slices = [staged(target, table, range(5))]
    assert target.overwrite(slices, {"anew": 3, "other": 1}, FENCE)
    merge_in(target, table, [{**row(table, 1, 9, "u", 5)}])
    version = target.load_log().version
    for again in (target, where.table(table), where.table(TABLE)):
        assert not again.overwrite(slices, {"anew": 3, "other": 1}, FENCE)
        assert not again.overwrite([], {"anew": 2}, Fence("epoch", 2))
    with pytest.raises(TerminalError, match=r"snapshot/2/0/1/slice\.parquet is part of the table already"):
        target.overwrite(slices, {"anew": 3, "other": 2}, FENCE)
    assert target.load_log().version == version
    check(target, table, [row(table, k, 5) for k in (0, 2, 3, 4)] + [row(table, 1, 9, "u", 5)])


@pytest.mark.parametrize("parts", [False, True])
@pytest.mark.parametrize("damage", ["gone", "cut off"])
def test_slices_that_are_not_whole(tmp_path: Path, parts: bool, damage: str) -> None:
    where, table = sink(tmp_path, parts=parts), DEFINITIONS["added"]
    old = table_with_history(where)
    held, version = plain(old.read()[0], TABLE), old.load_log().version
    target = where.table(table)
    slices = [staged(target, table, range(5)), staged(target, table, (6, 7), place="2/1")]
    path = Path(target.storage.location(), slices[1].files[-1].path)
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(TerminalError, match=r"the slice .*/snapshot/2/1/1/slice\.parquet is missing or incomplete"):
        target.overwrite(slices, {"anew": 2}, FENCE)
    assert target.load_log().version == version and plain(old.read()[0], TABLE) == held
    slices[1] = staged(target, table, (6, 7), place="2/2")
    assert target.overwrite(slices, {"anew": 2}, FENCE)
    check(target, table, [row(table, k, 5) for k in (*range(5), 6, 7)])


def test_who_was_overtaken(tmp_path: Path) -> None:
    where, table = sink(tmp_path), DEFINITIONS["dropped"]
    old = table_with_history(where)
    target = where.table(table)
    slices = [staged(target, table, range(5))]
    old.raise_fence(Fence("epoch", 2))
    with pytest.raises(FencedError):
        target.overwrite(slices, {"anew": 2}, FENCE)
    assert target.markers().get("anew") is None and len(old.read()[0]) == 19
    assert target.overwrite(slices, {"anew": 2}, Fence("epoch", 3))
    with pytest.raises(FencedError):  # also where nothing is to be done
        target.overwrite(slices, {"anew": 2}, Fence("epoch", 2))


def test_the_object_of_the_definition_before(tmp_path: Path) -> None:
    """It writes no file of rows; what is not about rows is for all."""
    where, table = sink(tmp_path), DEFINITIONS["another key"]  # whose columns are the same
    old, looked = table_with_history(where), where.table(TABLE)
    looked.markers()
    target = where.table(table)
    assert target.overwrite([staged(target, table, range(5))], {"anew": 2}, FENCE)
    there, version = present(target), target.load_log().version
    for late in (old, looked, where.table(TABLE)):
        for change in (Upsert(of(TABLE, [row(TABLE, 1, 9, "u")])), Truncate(9), PublishSlices([])):
            with pytest.raises(TerminalError, match=r'has another key than its source table: \["n"\]'):
                late.commit(lambda _: change, {"stream": 9}, FENCE)  # noqa: B023
        with pytest.raises(TerminalError, match="has another key"):
            late.plan_compactions(purge=True)
        late.clean_up()
    assert present(target) == there and target.load_log().version == version
    old.raise_fence(Fence("epoch", 2))
    assert target.markers().get("epoch") == 2


def test_a_key_that_was_exchanged_goes_with_a_new_snapshot(tmp_path: Path) -> None:
    where, table = sink(tmp_path), DEFINITIONS["another key"]
    table_with_history(where)
    target = where.table(table)
    assert target.overwrite([staged(target, table, range(5))], {"anew": 2}, FENCE)
    again = where.table(TABLE)
    again.reset("p", Fence("generation", 2), [])
    merge_in(again, TABLE, [row(TABLE, 7, 9, "c")])
    check(again, TABLE, [row(TABLE, 7, 9, "c")])


@pytest.mark.parametrize("run", ["before", "behind"])
@pytest.mark.parametrize("what", ["same", "all"])
def test_a_compaction_from_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: str, what: str) -> None:
    """It does not stand, whoever commits it, and leaves nothing."""
    monkeypatch.setattr(compaction, "FANOUT", 2)
    where, table = sink(tmp_path), DEFINITIONS[what]
    old = table_with_history(where)
    work = old.plan_compactions(purge=True)
    done = [(c, c.run()) for c in work] if run == "before" else []
    target = where.table(table)
    assert target.overwrite([staged(target, table, range(5))], {"anew": 2}, FENCE)
    there = present(target) - {f.path for _, files in done for f in files}
    done = done or [(c, c.run()) for c in work]
    assert any(files for _, files in done)
    if what == "same":
        assert old.commit_compactions(done) == 0
    else:
        with pytest.raises(TerminalError, match="has other columns"):
            old.commit_compactions(done)
    assert target.commit_compactions(done) == 0
    assert present(target) == there
    check(target, table, [row(table, k, 5) for k in range(5)])


def by_batch(old: DeltaSinkTable) -> None:
    merge_in(old, TABLE, [row(TABLE, 5, 4, "u", 9), row(TABLE, 77, 4, "c")])


def by_compaction(old: DeltaSinkTable) -> None:
    work = old.plan_compactions(purge=True)
    assert old.commit_compactions([(c, c.run()) for c in work])


def by_fence(old: DeltaSinkTable) -> None:
    old.raise_fence(Fence("another", 7))


def by_optimize(old: DeltaSinkTable) -> None:
    DeltaTable(old.storage.location()).optimize.compact()


@pytest.mark.parametrize("other", [by_batch, by_compaction, by_fence, by_optimize])
def test_others_write_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: Callable[[DeltaSinkTable], None]
) -> None:
    """Right before it: it is decided again, and what they have written goes as well."""
    where, table = sink(tmp_path, MERGES[1]), DEFINITIONS["all"]
    old = table_with_history(where)
    commit(old, PublishSlices([staged(old, TABLE, (50, 51), 1, "1/1"), staged(old, TABLE, (52,), 1, "1/2")]))
    target = where.table(table)
    slices = [staged(target, table, range(5))]
    real, version = LocalStorage.write_once, old.load_log().version
    assert target.markers().get("anew") is None  # it knows the table, and tries at once

    def work() -> None:
        monkeypatch.setattr(LocalStorage, "write_once", real)
        other(old)

    monkeypatch.setattr(LocalStorage, "write_once", preceded_by(real, work))
    assert target.overwrite(slices, {"anew": 2}, FENCE)
    assert target.load_log().version == version + 2
    check(target, table, [row(table, k, 5) for k in range(5)])
    assert [target.markers().get(name) for name in ("anew", "another")] == [2, 7 if other is by_fence else None]


@pytest.mark.parametrize("merge", MERGES)
def test_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, merge: str) -> None:
    """Of the table before, and of the one behind it."""
    monkeypatch.setattr(maintenance, "_CHECKPOINT_INTERVAL", 3)
    where, table = sink(tmp_path, merge, parts=True), DEFINITIONS["retyped"]
    table_with_history(where).clean_up()
    target = where.table(table)
    assert target.load_log().checkpoint_version is not None
    assert target.overwrite([staged(target, table, range(10))], {"anew": 2}, FENCE)
    first = target.load_log().checkpoint_version
    rows = {key: row(table, key, 5) for key in range(10)}
    for seq in (6, 7, 8):
        rows[seq] = row(table, seq, seq, "u", 1)
        merge_in(target, table, [rows[seq]])
    target.clean_up()
    assert target.load_log().checkpoint_version != first
    fresh = where.table(table)
    check(fresh, table, rows.values())
    assert fresh.load_log().checkpoint_version and not fresh.overwrite([], {"anew": 2}, FENCE)
    with pytest.raises(TerminalError, match="has other columns"):
        where.table(TABLE).commit(lambda _: Truncate(9), {}, FENCE)
    rows[9] = row(table, 9, 9, "u", 1)
    merge_in(fresh, table, [rows[9]])
    check(fresh, table, rows.values())


def test_old_files_go_in_time(tmp_path: Path) -> None:
    """Those of readers that are at work stay for as long as ever."""
    where = sink(tmp_path)
    old = table_with_history(where)
    before = present(old)
    target = where.table(DEFINITIONS["all"])
    file = staged(target, DEFINITIONS["all"], range(5))
    assert target.overwrite([file], {"anew": 2}, FENCE)
    target.clean_up()
    assert present(target) == {*before, file.path}
    maintenance.vacuum_files(target.load_log(), retention=-1)
    assert present(target) == {file.path}


def test_deleted_rows_that_stay(tmp_path: Path) -> None:
    """Those that are marked go as well; later ones are marked."""
    where, table = sink(tmp_path, soft=True), DEFINITIONS["added"]
    assert len(table_with_history(where).read_with_soft_deleted()) == 21
    target = where.table(table)
    assert target.overwrite([staged(target, table, range(5))], {"anew": 2}, FENCE)
    assert target.read_with_soft_deleted()["_cdc_deleted"].to_pylist() == [False] * 5
    merge_in(target, table, [row(table, 3, 9, "d")])
    assert len(target.read_with_soft_deleted()) == 5 and sorted(target.read()[0]["id"].to_pylist()) == [0, 1, 2, 4]


# ---------------------------------------------------------------- what the log says


@pytest.mark.parametrize("merge", MERGES)
@pytest.mark.parametrize("feed", [False, True])
def test_columns_may_need_a_feature(tmp_path: Path, merge: str, feed: bool) -> None:
    """What the table has is kept beside it."""
    where = sink(tmp_path, merge, table_properties=TableProperties.parse({CHANGE_DATA_FEED: "true"} if feed else {}))
    plainer = TABLE.replace(columns=(ID, N, PLACE))
    before = table_with_history(where, plainer).load_log().protocol
    assert "timestampNtz" not in before.get("readerFeatures", ())
    target = where.table(TABLE)
    assert target.overwrite([staged(target, TABLE, range(5))], {"anew": 2}, FENCE)
    protocol = target.load_log().protocol
    assert {*protocol["readerFeatures"]} == {*before.get("readerFeatures", ()), "timestampNtz"}
    assert {*before.get("writerFeatures", ())} <= {*protocol["writerFeatures"]}
    assert ("changeDataFeed" in protocol["writerFeatures"]) == feed
    check(target, TABLE, [row(TABLE, k, 5) for k in range(5)])


@pytest.mark.parametrize("back", [False, True])
def test_how_a_partition_follows_from_a_date(tmp_path: Path, back: bool) -> None:
    """It is told for a DATE alone: the feature comes with the column, and what was told goes with it."""
    dated = TABLE.replace(columns=(ID, N, PLACE, nullable("made", "date")))
    one, other = (dated, TABLE) if back else (TABLE, dated)
    where, values = sink(tmp_path, parts=True), {"made": date(2026, 1, 1)}
    old = where.table(one)
    old.create("p")
    commit(old, Upsert(of(one, [row(one, 1, 1) | (values if back else {})])))
    target = where.table(other)
    file = target.stage("2/0/1/s", [of(other, [row(other, 1, 1) | ({} if back else values)])])
    assert target.overwrite([file], {"anew": 2}, FENCE)
    log = target.load_log()
    told = {c["name"]: c["metadata"] for c in json.loads(log.metadata["schemaString"])["fields"]}
    assert (GENERATION_EXPRESSION in told["made_day"]) == (not back)
    assert "generatedColumns" in log.protocol["writerFeatures"]
    assert target.read()[0].num_rows == 1


def test_what_others_have_told_of_a_column_stays(tmp_path: Path) -> None:
    """Of those that stay as they are. What this project tells is renewed."""
    where = sink(tmp_path)
    log = table_with_history(where, TABLE.replace(comments=(("n", "ours"),))).load_log()
    schema = json.loads(log.metadata["schemaString"])
    for column in schema["fields"]:
        column["metadata"] |= {"theirs": "x", "comment": "theirs", "airflow-cdc.old": "y"}
    assert log.commit([{"metaData": {**log.metadata, "schemaString": json.dumps(schema)}}], "CHANGE COLUMN")
    table = TABLE.replace(columns=(ID, TEXT, M, MADE), comments=(("made", "ours"),))
    target = where.table(table)
    assert target.overwrite([staged(target, table, range(5))], {"anew": 2}, FENCE)
    told = {c["name"]: c["metadata"] for c in json.loads(target.load_log().metadata["schemaString"])["fields"]}
    assert {name: told[name] for name in ("id", "n", "m", "made")} == {
        "id": {"theirs": "x", "comment": "theirs", "airflow-cdc.type": "bigint"},
        "n": {"airflow-cdc.type": "varchar(9)"},
        "m": {"airflow-cdc.type": "bigint"},
        "made": {"theirs": "x", "comment": "ours", "airflow-cdc.type": "datetime"},
    }


@pytest.mark.parametrize(
    ("column", "said"),
    [(nullable("made_DAY", "int"), "made_day twice"), (nullable("_change_type", "int"), "hides its columns")],
)
def test_columns_that_nobody_could_read(tmp_path: Path, column: Column, said: str) -> None:
    where = sink(tmp_path, parts=True, table_properties=TableProperties.parse({CHANGE_DATA_FEED: "true"}))
    held = plain(table_with_history(where).read()[0], TABLE)
    table = TABLE.replace(columns=(*TABLE.columns, column))
    good = where.table(TABLE)  # the sink itself may refuse the other one
    target = DeltaSinkTable(good.storage, table.sink_schema, table.key, table.integer_key_column, good.options)
    with pytest.raises(TerminalError, match=said):
        target.overwrite([], {"anew": 2}, FENCE)
    assert plain(good.read()[0], TABLE) == held and good.markers().get("anew") is None


def test_a_table_that_is_not_there_or_another_one(tmp_path: Path) -> None:
    where = sink(tmp_path / "a")
    with pytest.raises(TerminalError, match="is missing"):
        where.table(TABLE).overwrite([], {"anew": 2}, FENCE)
    table_with_history(where)
    with pytest.raises(TerminalError, match="is partitioned by"):
        sink(tmp_path / "a", parts=True).table(TABLE).overwrite([], {"anew": 2}, FENCE)
    target = where.table(DEFINITIONS["added"])
    assert target.overwrite([staged(target, DEFINITIONS["added"], range(5))], {"anew": 2}, FENCE)
    merge_in(target, DEFINITIONS["added"], [row(DEFINITIONS["added"], 3, 9, "u")])
    log = target.load_log()
    assert log.commit([{"metaData": {**log.metadata, "id": "another"}}], "REPLACE")
    with pytest.raises(TerminalError, match="was replaced by another one"):
        target.overwrite([], {"anew": 3}, FENCE)
    configuration = {k: v for k, v in log.properties.items() if k != "airflow-cdc.pipeline"}
    mine = {**log.metadata, "configuration": configuration, "description": ""}
    assert log.commit([{"metaData": mine}], "REPLACE")
    with pytest.raises(TerminalError, match="belongs to no pipeline"):
        where.table(TABLE).overwrite([], {"anew": 3}, FENCE)


# ---------------------------------------------------------------- the feed


def said(rows: Iterable[Row], version: int, kind: str) -> Counter[tuple[Any, ...]]:
    return Counter((version, kind, r["id"], r.get("n"), r[SEQ_COLUMN]) for r in rows)


def fed(where: DeltaSink, what: str) -> tuple[DeltaSinkTable, int, Counter[tuple[Any, ...]]]:
    """A table that was exchanged, and what its feed has to say from that version on."""
    table = DEFINITIONS[what]
    before = table_with_history(where).read()[0].to_pylist()
    target = where.table(table)
    assert target.overwrite([staged(target, table, range(5))], {"anew": 2}, FENCE)
    version, actions = target.load_log().version, newest(target)
    assert not [a for a in actions if "cdc" in a]
    new = {key: row(table, key, 5) for key in range(5)}
    expected = said(before, version, "delete") + said(new.values(), version, "insert")
    changed = row(table, 3, 9, "u", 1)
    merge_in(target, table, [changed])
    expected += said([new[3]], version + 1, "update_preimage") + said([changed], version + 1, "update_postimage")
    return target, version, expected


def with_feed(folder: Path, merge: str) -> DeltaSink:
    return sink(folder, merge, table_properties=TableProperties.parse({CHANGE_DATA_FEED: "true"}))


@pytest.mark.parametrize("what", ["same", "added"])
def test_the_feed_as_delta_rs_reads_it(tmp_path: Path, what: str) -> None:
    """All rows are deleted and others inserted."""
    target, version, expected = fed(with_feed(tmp_path, MERGES[1]), what)
    read = pa.table(DeltaTable(target.storage.location()).load_cdf(starting_version=version).read_all())
    names = ["_commit_version", "_change_type", "id", "n", SEQ_COLUMN]
    assert Counter(tuple(r.values()) for r in read.select(names).to_pylist()) == expected


@pytest.mark.spark
def test_the_feed_as_spark_reads_it(tmp_path: Path) -> None:
    """Rows that were dead before do not die again. And the table itself, with whatever columns."""
    with spark_delta(quick=True) as run:
        for merge in MERGES:
            for what in ("same", "added"):
                target, version, expected = fed(with_feed(tmp_path / merge / what, merge), what)
                changes = f"table_changes('delta.`{target.storage.location()}`', {version})"
                found = run(f"SELECT _commit_version, _change_type, id, n, {SEQ_COLUMN} FROM {changes}")
                assert Counter(map(tuple, found)) == expected
            for what in ("retyped", "all", "no key"):
                where, table = sink(tmp_path / merge / what, merge, parts=True), DEFINITIONS[what]
                table_with_history(where)
                target = where.table(table)
                assert target.overwrite([staged(target, table, range(5))], {"anew": 2}, FENCE)
                found = run.arrow(f"SELECT * FROM delta.`{target.storage.location()}`")
                assert plain(found, table) == plain(of(table, [row(table, k, 5) for k in range(5)]), table)


@pytest.mark.parametrize("what", ["same", "dropped", "added"])
def test_files_of_rows_that_stay(tmp_path: Path, what: str) -> None:
    """They are left alone where all of their rows stay as they are, and written again without a column that is gone."""
    where, table = sink(tmp_path, soft=True), DEFINITIONS[what]
    old = table_with_history(where)  # 4 and 30 are marked, in a file of their own
    (marked,) = [path for path, file in old.load_log().files.items() if (file.bounds(SEQ_COLUMN) or (0,))[0] == 3]
    target, keys = where.table(table), (*range(4), *range(5, 10))
    assert target.overwrite([staged(target, table, keys)], {"anew": 2}, FENCE, keep_deleted_to=5)
    files = target.load_log().files
    assert (marked in files) == (what != "dropped")
    for path in files:
        columns = {*pq.read_schema(Path(target.storage.location(), path)).names} - {DELETED_COLUMN}
        assert columns <= {*table.sink_schema.names}
    found = {r["id"]: r[DELETED_COLUMN] for r in target.read_with_soft_deleted().to_pylist()}
    assert found == {**dict.fromkeys(keys, False), **dict.fromkeys((4, *range(10, 20), 30), True)}
    before = {*files}
    assert target.overwrite([staged(target, table, keys, 6, "3/0")], {"anew": 3}, FENCE, keep_deleted_to=6)
    left = before & {*target.load_log().files}
    assert {path for path in before if not path.startswith("snapshot/")} == left


def test_rows_that_stay_and_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The keys of the slices take no more of it than the index of the table may."""
    held = []
    real = KeyIndex.merge_and_spill

    def settle(index: KeyIndex, *dead: Any) -> None:
        real(index, *dead)
        held.append(index.bytes_used)

    monkeypatch.setattr(KeyIndex, "merge_and_spill", settle)
    where = replace(sink(tmp_path, soft=True), index_bytes=1 << 12)
    table_with_history(where)
    target = where.table(TABLE)
    slices = [staged(target, TABLE, range(1000 * n, 1000 * n + 1000), place=f"2/{n}") for n in range(5)]
    assert target.overwrite(slices, {"anew": 2}, FENCE, keep_deleted_to=5)
    assert max(memory for memory, _ in held) <= 1 << 12 and held[-1][1] > 1 << 14
    assert target.load_log().markers["anew"] == 2 and target.read_with_soft_deleted().num_rows == 5000


def test_files_for_an_exchange_that_does_not_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written for it goes, and it is decided again."""
    where = sink(tmp_path, soft=True)
    old = table_with_history(where)
    target = where.table(TABLE)
    slices, before = [staged(target, TABLE, range(10))], present(target)
    with monkeypatch.context() as patch:
        patch.setattr(
            LocalStorage, "write_once", preceded_by(LocalStorage.write_once, lambda: old.raise_fence(FENCE_2))
        )
        assert target.overwrite(slices, {"anew": 2}, FENCE, keep_deleted_to=5)
    written = present(target) - before
    assert written and written <= {*target.load_log().files}


def test_a_new_snapshot_does_not_remove_rows_that_stay(tmp_path: Path) -> None:
    table_with_history(sink(tmp_path, soft=True))
    again = sink(tmp_path, soft=True).table(TABLE)
    with pytest.raises(TerminalError, match=r"rows that the source may have deleted \(sink.deletes\)"):
        again.reset("p", Fence("generation", 2), [])


def test_which_rows_stay(tmp_path: Path) -> None:
    """Those whose keys the slices do not have, all marked, and none from behind the place of the slices."""
    where = sink(tmp_path, soft=True)
    old = table_with_history(where)  # 4 and 30 are marked
    merge_in(old, TABLE, [row(TABLE, 50, 8, "c"), row(TABLE, 1, 8, "u")])
    target = where.table(TABLE)
    assert target.overwrite([staged(target, TABLE, (2, 4, 40))], {"anew": 2}, FENCE, keep_deleted_to=5)
    found = {
        r["id"]: (r[DELETED_COLUMN], r[OP_COLUMN], r[SEQ_COLUMN]) for r in target.read_with_soft_deleted().to_pylist()
    }
    unseen = {n: (True, "d", 2 if n == 3 else 1) for n in (0, 3, *range(5, 20))}
    assert found == {**unseen, 30: (True, "d", 3), **dict.fromkeys((2, 4, 40), (False, "r", 5))}
    assert target.read_with_soft_deleted().num_rows == len(found)
