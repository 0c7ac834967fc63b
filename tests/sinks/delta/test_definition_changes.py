"""A table gets columns while it is there: the log says so, and its older files lack them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_provider_cdc.config.delete_policy import DeletePolicy
from airflow_provider_cdc.config.table_properties import CHANGE_DATA_FEED, TableProperties
from airflow_provider_cdc.model.definition_history import ColumnChanges
from airflow_provider_cdc.model.errors import TerminalError
from airflow_provider_cdc.model.multiset import net_change
from airflow_provider_cdc.model.schema import OP_COLUMN, SEQ_COLUMN, TS_COLUMN, Column, TableSchema
from airflow_provider_cdc.sinks.delta import maintenance
from airflow_provider_cdc.sinks.delta.log.live_file import add_action
from airflow_provider_cdc.sinks.delta.sink import DeltaSink
from airflow_provider_cdc.sinks.delta.table import DeltaSinkTable
from airflow_provider_cdc.sinks.files.parquet import write_file
from airflow_provider_cdc.sinks.lake import compaction
from airflow_provider_cdc.sinks.lake.merge.table_edit import TableEdit
from airflow_provider_cdc.sinks.protocol import Change, Feature, Fence, MultisetChange, PublishSlices, Truncate, Upsert
from tests.sinks.conformance import nullable
from tests.support.readers import without_spark

ID = Column("id", "bigint", "bigint", nullable=False)
PLACE = nullable("pl.ace", "varchar", "varchar(9)", charset="utf8mb4")
MADE = nullable("made", "datetime")
TABLE = TableSchema("shop", "t", (ID, PLACE, MADE), ("id",))
PLAIN = TableSchema("shop", "t", (ID, PLACE), ("id",))
N, AT, TEXT = nullable("n", "int"), nullable("at", "datetime", fsp=6), nullable("te xt", "text", charset="utf8mb4")
FENCE = Fence("epoch", 1)
MERGES = ["deletion_vectors", "copy_on_write"]


def more(table: TableSchema, *columns: Column) -> TableSchema:
    """A definition with columns before, between and behind the others."""
    first, second, *rest = table.columns
    one, two, three = columns or (N, AT, TEXT)
    return table.replace(columns=(one, first, two, second, *rest, three))


def sink(folder: Path, merge: str = MERGES[0], soft: bool = False, parts: bool = False, **named: Any) -> DeltaSink:
    return DeltaSink(
        str(folder),
        "p",
        copy_on_write_tables=(".*[.].*",) if merge == MERGES[1] else (),
        deletes=DeletePolicy(soft=(".*[.].*",) if soft else ()),
        partition_by=((".*[.].*", (("pl.ace", None), ("made", "day"))),) if parts else (),
        **named,
    )


def rows(table: TableSchema, keys: Sequence[int], seq: int, op: str = "c", **values: Any) -> pa.Table:
    """Rows with such keys; each has one of two places, and what is said in other columns."""
    usual = {
        "pl.ace": "AT",
        "made": datetime(2026, 1, 31),
        SEQ_COLUMN: seq,
        OP_COLUMN: op,
        TS_COLUMN: datetime(2026, 1, 1, tzinfo=UTC),
    }
    listed = [{**usual, **({"pl.ace": "DE"} if key % 2 else {}), **values, "id": key} for key in keys]
    return pa.Table.from_pylist(listed, table.sink_schema)


def commit(target: DeltaSinkTable, change: Change, **markers: int) -> None:
    assert target.commit(lambda _: change, markers, FENCE)


def table_with_history(where: DeltaSink, table: TableSchema = TABLE) -> DeltaSinkTable:
    """A table with rows of the snapshot, and of two batches that hit them."""
    target = where.table(table)
    target.create("p")
    commit(target, PublishSlices([target.stage("1/0/1/slice", [rows(table, range(20), 1, "r")])]))
    commit(target, Upsert(rows(table, (2, 3, 30), 2, "u")))
    commit(target, Upsert(rows(table, (4, 30), 3, "d")))
    return target


def values(target: DeltaSinkTable, table: TableSchema) -> dict[int, list[Any]]:
    """What is in a table, by key: the columns of the source."""
    return listed(target.read()[0], table)


def listed(found: pa.Table, table: TableSchema) -> dict[int, list[Any]]:
    names = [column.name for column in table.copied_columns]
    fitting = found.select(table.sink_schema.names).cast(table.sink_schema)
    found_rows = {row["id"]: [row[name] for name in names] for row in fitting.to_pylist()}
    assert len(found_rows) == found.num_rows, "a key is there twice"
    return found_rows


def read_by_others(target: DeltaSinkTable, merge: str) -> dict[str, pa.Table]:
    """The rows as other programs read them, by their names; only those may refuse that do not know vectors."""
    read = {}
    for reader in without_spark():
        try:
            found = reader.read(target.storage.location())
        except Exception as error:
            assert merge == MERGES[0] and "deletionVectors" in str(error), reader.name
            continue
        if not isinstance(found, int):
            read[reader.name] = found
    assert {"delta-rs, `QueryBuilder`", "Polars", "DuckDB"} <= {*read}
    return read


def newest(target: DeltaSinkTable) -> list[dict[str, Any]]:
    """The actions of the newest commit."""
    log = target.load_log()
    path = Path(target.storage.location(), "_delta_log", f"{log.version:020}.json")
    return [json.loads(line) for line in path.read_text().splitlines()]


def present(target: DeltaSinkTable) -> set[str]:
    return {name for name, _ in target.storage.list("") if not name.startswith("_delta_log/")}


def test_it_is_a_commit_of_the_log_alone(tmp_path: Path) -> None:
    """It says what `create` says of such a table; no file is written."""
    where, table = sink(tmp_path / "a"), more(TABLE).replace(comments=(("n", "how many"), ("id", "which")))
    old = table_with_history(where)
    before, there = old.load_log(), present(old)
    metadata, protocol, version = before.metadata, before.protocol, before.version
    target = where.table(table)
    assert target.alter(TABLE, {"ddl": 3}, FENCE)
    info, altered, *markers = newest(target)
    assert info["commitInfo"]["operation"] == "ADD COLUMNS" and target.load_log().version == version + 1
    assert {m["txn"]["appId"]: m["txn"]["version"] for m in markers} == {"ddl": 3, "epoch": 1}
    assert present(target) == there
    fresh = sink(tmp_path / "b").table(table)
    fresh.create("p")
    said, wanted = altered["metaData"], fresh.load_log().metadata
    assert json.loads(said.pop("schemaString")) == json.loads(wanted["schemaString"])
    assert said == {k: v for k, v in metadata.items() if k != "schemaString"}
    assert target.load_log().protocol == protocol  # it has a DATETIME already


def test_nothing_but_markers(tmp_path: Path) -> None:
    where = sink(tmp_path)
    table_with_history(where)
    assert where.table(TABLE).alter(TABLE, {"ddl": 3}, FENCE)
    assert [next(iter(action)) for action in newest(where.table(TABLE))] == ["commitInfo", "txn", "txn"]


@pytest.mark.parametrize("merge", MERGES)
@pytest.mark.parametrize("feed", [False, True])
def test_columns_may_need_a_feature(tmp_path: Path, merge: str, feed: bool) -> None:
    """What the table has is kept beside it."""
    where = sink(tmp_path, merge, table_properties=TableProperties.parse({CHANGE_DATA_FEED: "true"} if feed else {}))
    before = table_with_history(where, PLAIN).load_log().protocol
    assert "timestampNtz" not in before.get("readerFeatures", ())
    table = more(PLAIN)
    target = where.table(table)
    assert target.alter(PLAIN, {"ddl": 3}, FENCE)
    protocol = target.load_log().protocol
    assert {*protocol["readerFeatures"]} == {*before.get("readerFeatures", ()), "timestampNtz"}
    assert {*protocol["writerFeatures"]} == {
        *before.get("writerFeatures", ("appendOnly", "invariants")),
        "timestampNtz",
        *(["changeDataFeed"] if feed else []),
    }
    commit(target, Upsert(rows(table, [5], 5, at=datetime(1, 1, 1))))
    assert values(target, table)[5] == [None, 5, datetime(1, 1, 1), "DE", None]


def test_a_feed_of_an_older_protocol(tmp_path: Path) -> None:
    """A version of writers stands for the feed until features are named: from then on it is one of these."""
    where = sink(tmp_path, MERGES[1], table_properties=TableProperties.parse({CHANGE_DATA_FEED: "true"}))
    assert (
        table_with_history(where, PLAIN)
        .load_log()
        .commit([{"protocol": {"minReaderVersion": 1, "minWriterVersion": 4}}], "SET")
    )
    target = where.table(more(PLAIN))
    assert target.alter(PLAIN, {"ddl": 3}, FENCE)
    stood_for = {"appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns"}
    assert {*target.load_log().protocol["writerFeatures"]} == {*stood_for, "timestampNtz"}


def test_what_others_have_told_of_a_column_stays(tmp_path: Path) -> None:
    """And what this project has told of it is renewed, also where nothing is to be told any more."""
    where = sink(tmp_path)
    table = TABLE.replace(comments=(("id", "of ours"), ("made", "of ours")))
    log = table_with_history(where, table).load_log()
    schema = json.loads(log.metadata["schemaString"])
    for column in schema["fields"]:
        column["metadata"] |= {"theirs": "x"} | ({"comment": "theirs"} if column["name"] in ("made", "pl.ace") else {})
    assert log.commit([{"metaData": {**log.metadata, "schemaString": json.dumps(schema)}}], "CHANGE COLUMN")
    target = where.table(more(TABLE))
    assert target.alter(table, {"ddl": 3}, FENCE)
    said = {c["name"]: c["metadata"] for c in json.loads(target.load_log().metadata["schemaString"])["fields"]}
    assert {name: told.get("comment") for name, told in said.items() if name in ("id", "made", "pl.ace")} == {
        "id": None,
        "made": "theirs",
        "pl.ace": "theirs",
    }
    assert [name for name, told in said.items() if told.get("theirs")] == [
        "id",
        "pl.ace",
        "made",
        SEQ_COLUMN,
        OP_COLUMN,
        TS_COLUMN,
    ]
    assert said["n"] == {"airflow-cdc.type": "int"}


def test_columns_come_once(tmp_path: Path) -> None:
    where = sink(tmp_path)
    table_with_history(where)
    target = where.table(more(TABLE))
    assert target.alter(TABLE, {"ddl": 3}, FENCE)
    version = target.load_log().version
    assert not target.alter(TABLE, {"ddl": 3}, FENCE) and not target.alter(TABLE, {"ddl": 2}, FENCE)
    for markers in ({"ddl": 4}, {}):
        with pytest.raises(TerminalError, match=r"than shop\.t had before .* Other software has altered it"):
            target.alter(TABLE, markers, FENCE)
    assert target.load_log().version == version


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (TABLE.replace(columns=(ID, nullable("pl.ace", "int"), MADE)), "column pl.ace was string and is now int32"),
        (TABLE.replace(key=("id", "pl.ace")), r"its key was \(id\) and is now \(id, pl.ace\)"),
    ],
    ids=["type", "key"],
)
def test_what_cannot_be_followed(tmp_path: Path, table: TableSchema, said: str) -> None:
    where = sink(tmp_path)
    version = table_with_history(where).load_log().version
    with pytest.raises(TerminalError, match=f"cannot follow the change of the definition of shop.t: {said}"):
        where.table(table).alter(TABLE, {"ddl": 3}, FENCE)
    with pytest.raises(TerminalError, match="Other software has altered it"):
        where.table(more(more(TABLE), *(nullable(n, "int") for n in "xyz"))).alter(more(TABLE), {"ddl": 3}, FENCE)
    assert where.table(TABLE).load_log().version == version


def test_the_order_of_columns(tmp_path: Path) -> None:
    """Rows are read by name: that columns have moved is told by the log as well."""
    where, table = sink(tmp_path), TABLE.replace(columns=(MADE, N, ID, PLACE))
    table_with_history(where)
    target = where.table(table)
    assert target.alter(TABLE, {"ddl": 3}, FENCE)
    commit(target, Upsert(rows(table, [2], 5, "u", n=5)))
    found = values(target, table)
    assert found[2] == [datetime(2026, 1, 31), 5, 2, "AT"] and found[1] == [datetime(2026, 1, 31), None, 1, "DE"]


@pytest.mark.parametrize(
    ("column", "said"),
    [
        (nullable("ID", "int"), "it would have column id twice"),
        (nullable("made_DAY", "int"), "it would have column made_day twice"),
    ],
)
def test_columns_whose_names_differ_by_case_alone(tmp_path: Path, column: Column, said: str) -> None:
    where = sink(tmp_path, parts=True)
    held = values(table_with_history(where), TABLE)
    table = TABLE.replace(columns=(*TABLE.columns, column))
    partitioning = lived_partitioning(where, table)
    with pytest.raises(TerminalError, match=said):
        partitioning.alter(TABLE, {"ddl": 3}, FENCE)
    assert values(where.table(TABLE), TABLE) == held


def lived_partitioning(where: DeltaSink, table: TableSchema) -> DeltaSinkTable:
    """The table of a definition that the sink itself would refuse."""
    good = where.table(TABLE)
    return DeltaSinkTable(good.storage, table.sink_schema, table.key, table.integer_key_column, good.options)


def test_a_column_that_a_feed_hides(tmp_path: Path) -> None:
    """Somebody has turned the feed on: a table that nobody could read any more is not made."""
    where = sink(tmp_path)
    log = table_with_history(where).load_log()
    configuration = {**log.properties, CHANGE_DATA_FEED: "true"}
    protocol = {**log.protocol, "writerFeatures": [*log.protocol["writerFeatures"], "changeDataFeed"]}
    assert log.commit([{"protocol": protocol}, {"metaData": {**log.metadata, "configuration": configuration}}], "SET")
    table = TABLE.replace(columns=(*TABLE.columns, nullable("_change_type", "int")))
    with pytest.raises(TerminalError, match="hides its columns _change_type"):
        where.table(table).alter(TABLE, {"ddl": 3}, FENCE)
    assert values(where.table(TABLE), TABLE)[1] and where.table(TABLE).markers().get("ddl") is None


def test_column_mapping_is_refused_by_name(tmp_path: Path) -> None:
    where = sink(tmp_path)
    log = table_with_history(where).load_log()
    configuration = {**log.properties, "delta.columnMapping.mode": "name"}
    assert log.commit([{"metaData": {**log.metadata, "configuration": configuration}}], "SET")
    with pytest.raises(TerminalError, match="uses columnMapping"):
        where.table(more(TABLE)).alter(TABLE, {"ddl": 3}, FENCE)


def test_a_table_that_is_nobodys_or_another_one(tmp_path: Path) -> None:
    where = sink(tmp_path)
    old, target = table_with_history(where), where.table(more(TABLE))
    assert target.alter(TABLE, {"ddl": 3}, FENCE)
    commit(target, Upsert(rows(more(TABLE), [5], 5)))
    log = target.load_log()
    assert log.commit([{"metaData": {**log.metadata, "id": "another"}}], "REPLACE")
    further = more(TABLE).replace(columns=(*more(TABLE).columns, nullable("m", "int")))
    with pytest.raises(TerminalError, match="was replaced by another one"):
        target.alter(more(TABLE), {"ddl": 4}, FENCE)
    configuration = {k: v for k, v in log.properties.items() if k != "airflow-cdc.pipeline"}
    mine = {**log.metadata, "configuration": configuration, "description": ""}
    assert log.commit([{"metaData": mine}], "REPLACE")
    with pytest.raises(TerminalError, match="belongs to no pipeline"):
        where.table(further).alter(more(TABLE), {"ddl": 4}, FENCE)
    assert old.load_log().markers["ddl"] == 3


def test_reading_with_another_definition(tmp_path: Path) -> None:
    """A column that is not there yet is not NULL."""
    where = sink(tmp_path)
    table_with_history(where)
    with pytest.raises(TerminalError, match="has other columns"):
        where.table(more(TABLE)).read()


# ---------------------------------------------------------------- older files


@pytest.mark.parametrize("merge", MERGES)
@pytest.mark.parametrize("parts", [False, True])
def test_other_programs_read_it(tmp_path: Path, merge: str, parts: bool) -> None:
    """Files with and without the columns, with dead rows in both."""
    where, table = sink(tmp_path, merge, parts=parts), more(TABLE)
    table_with_history(where)
    target = where.table(table)
    assert target.alter(TABLE, {"ddl": 3}, FENCE)
    new = {"n": 7, "at": datetime(2026, 1, 1, 1, 1, 1, 1), "te xt": "ä"}
    commit(target, Upsert(rows(table, (2, 5, 40, 41), 5, "u", **new)))
    commit(target, Upsert(rows(table, (6, 41), 6, "d")))
    expected = values(target, table)
    assert expected[40] == [7, 40, new["at"], "AT", datetime(2026, 1, 31), "ä"] and 41 not in expected
    assert expected[7] == [None, 7, None, "DE", datetime(2026, 1, 31), None] and len(expected) == 19
    read = read_by_others(target, merge)
    assert all(listed(found, table) == expected for found in read.values())
    assert ("delta-rs, `to_pyarrow_table()`" in read) == (merge == MERGES[1])


@pytest.mark.parametrize("merge", MERGES)
def test_compaction_writes_the_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, merge: str) -> None:
    monkeypatch.setattr(compaction, "FANOUT", 2)
    where, table = sink(tmp_path, merge), more(TABLE)
    table_with_history(where)
    target = where.table(table)
    assert target.alter(TABLE, {"ddl": 3}, FENCE)
    for seq in range(5, 9):
        commit(target, PublishSlices([target.stage(f"1/{seq}/1/s", [rows(table, [90 + seq], seq, "r", n=seq)])]))
    before = values(target, table)
    work = target.plan_compactions(purge=True)
    assert target.commit_compactions([(c, c.run()) for c in work]) == len(work) > 0
    assert values(target, table) == before
    names = [pq.read_schema(Path(target.storage.location(), path)).names for path in target.load_log().files]
    assert names == [table.sink_schema.names]
    commit(target, Upsert(rows(table, (1, 95), 9, "u", n=1)))
    assert values(target, table) == {**before, 1: [1, *before[1][1:]], 95: [1, *before[95][1:]]}


@pytest.mark.parametrize("merge", MERGES)
@pytest.mark.parametrize("soft", [False, True], ids=["hard", "soft"])
def test_columns_that_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, merge: str, soft: bool) -> None:
    """Older files still have them, and nobody reads them there; compaction writes them out."""
    monkeypatch.setattr(compaction, "FANOUT", 2)
    where, table, less = sink(tmp_path, merge, soft), more(TABLE), TABLE.replace(columns=(ID, N, MADE))
    table_with_history(where, table)
    before = values(where.table(table), table)
    target = where.table(less)
    assert target.alter(table, {"ddl": 3}, FENCE)
    assert newest(target)[0]["commitInfo"]["operation"] == "REPLACE COLUMNS"
    assert {key: [row[1], row[0], row[4]] for key, row in before.items()} == values(target, less)
    files = {path: pq.read_schema(Path(target.storage.location(), path)).names for path in target.load_log().files}
    assert all(set(table.sink_schema.names) <= {*names} for names in files.values())
    made = pa.Table.from_pylist(rows(table, (2, 5, 40), 5, "u", n=7).to_pylist(), less.sink_schema)
    commit(target, Upsert(made))
    for seq in range(6, 9):
        one = pa.Table.from_pylist(rows(table, [90 + seq], seq, "r").to_pylist(), less.sink_schema)
        commit(target, PublishSlices([target.stage(f"1/{seq}/1/s", [one])]))
    expected = values(target, less)
    assert expected[40][:2] == [40, 7] and expected[7][:2] == [7, None]
    for name, found in read_by_others(target, merge).items():
        assert {*found.column_names} == {*less.sink_schema.names, *(["_cdc_deleted"] if soft else [])}, name
        there = [not row["_cdc_deleted"] for row in found.to_pylist()] if soft else [True] * found.num_rows
        fitting = found.select(less.sink_schema.names).cast(less.sink_schema)
        assert listed(fitting.filter(pa.array(there)), less) == expected, name
    work = target.plan_compactions(purge=True)
    assert target.commit_compactions([(c, c.run()) for c in work]) == len(work) > 0
    assert values(target, less) == expected
    left = [pq.read_schema(Path(target.storage.location(), path)).names for path in target.load_log().files]
    assert not any("te xt" in names for names in left)


@pytest.mark.parametrize("run", ["before", "behind"])
@pytest.mark.parametrize("through", ["old", "new"])
def test_a_compaction_from_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: str, through: str) -> None:
    """Through the new object its file may lack the columns; through the old one it is void, and its file goes."""
    monkeypatch.setattr(compaction, "FANOUT", 2)
    where, table = sink(tmp_path), more(TABLE)
    old = table_with_history(where)
    work = old.plan_compactions(purge=True)
    done = [(c, c.run()) for c in work] if run == "before" else []
    target = where.table(table)
    assert target.alter(TABLE, {"ddl": 3}, FENCE)
    done = done or [(c, c.run()) for c in work]
    commit(target, Upsert(rows(table, (1, 2), 5, "u", n=1)))
    before, files = values(target, table), [file.path for _, files in done for file in files]
    assert files and work
    if through == "old":
        version = old.load_log().version
        with pytest.raises(TerminalError, match="has other columns"):
            old.commit_compactions(done)
        assert old.load_log().version == version
        assert not {*files} & present(target)
        with pytest.raises(TerminalError, match="has other columns"):
            old.plan_compactions(purge=True)
    else:
        assert target.commit_compactions(done) == len(work) and {*files} <= {*target.load_log().files}
    assert values(target, table) == before
    commit(target, Upsert(rows(table, (7, 8), 6, "u", n=2)))
    assert values(target, table) == {**before, **{key: [2, *before[key][1:]] for key in (7, 8)}}


def test_the_object_of_the_definition_before_writes_no_file(tmp_path: Path) -> None:
    where = sink(tmp_path)
    old, target = table_with_history(where), where.table(more(TABLE))
    other = where.table(TABLE)
    other.markers()
    assert target.alter(TABLE, {"ddl": 3}, FENCE)
    there, version = present(target), target.load_log().version
    for late in (old, other):  # one has written before, and one has only looked
        with pytest.raises(TerminalError, match="has other columns"):
            late.commit(lambda _: Upsert(rows(TABLE, (1, 99), 9, "u")), {"stream": 9}, FENCE)
        with pytest.raises(TerminalError, match="has other columns"):
            late.commit_edit(lambda log: TableEdit(removed_files={*log.files}), {"stream": 9}, FENCE)
        late.clean_up()
        with pytest.raises(TerminalError, match="has other columns"):
            late.commit(lambda _: PublishSlices([]), {"stream": 9}, FENCE)
    assert present(target) == there and target.load_log().version == version
    old.raise_fence(Fence("epoch", 2))
    assert not old.commit(lambda _: None, {"stream": 9}, Fence("epoch", 2)) and target.markers().get("epoch") == 2


def test_rows_without_a_key(tmp_path: Path) -> None:
    where, table = sink(tmp_path), TABLE.replace(key=())
    old = where.table(table)
    old.create("p")
    commit(old, PublishSlices([old.stage("1/0/1/slice", [rows(table, (1, 1, 2), 1, "r")])]))
    target = where.table(more(table))
    assert target.alter(table, {"ddl": 3}, FENCE)
    changes = pa.concat_tables([rows(more(table), (1,), 5, "d"), rows(more(table), (1,), 6, n=1)])
    commit(target, MultisetChange(net_change(changes, more(table).column_schema.names)))
    assert sorted((r["id"], r["n"] or 0) for r in target.read()[0].to_pylist()) == [(1, 0), (1, 1), (2, 0)]


def test_slices_from_before(tmp_path: Path) -> None:
    where = sink(tmp_path)
    file = table_with_history(where).stage("1/1/1/slice", [rows(TABLE, (60,), 1, "r")])
    target = where.table(more(TABLE))
    assert target.alter(TABLE, {"ddl": 3}, FENCE)
    assert pa.concat_tables(target.read_staged(file)).equals(rows(more(TABLE), (60,), 1, "r"))


def test_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is read from one, in which the older files stand beside the new columns."""
    monkeypatch.setattr(maintenance, "_CHECKPOINT_INTERVAL", 3)
    where, table = sink(tmp_path), more(TABLE)
    table_with_history(where)
    target = where.table(table)
    assert target.alter(TABLE, {"ddl": 3}, FENCE)
    commit(target, Upsert(rows(table, (1, 50), 5, "u", n=5)))
    target.clean_up()
    assert target.load_log().checkpoint_version == target.load_log().version
    again = where.table(table)
    assert (
        values(again, table) == values(target, table)
        and again.load_log().checkpoint_version
        and not again.load_log().version < 5
    )
    assert not again.alter(TABLE, {"ddl": 3}, FENCE)
    further = table.replace(columns=(*table.columns, nullable("m", "int")))
    assert where.table(further).alter(table, {"ddl": 4}, FENCE)
    assert values(where.table(further), further)[1] == [5, 1, None, "DE", datetime(2026, 1, 31), None, None]


@pytest.mark.parametrize("merge", MERGES)
def test_files_that_others_have_written(tmp_path: Path, merge: str) -> None:
    """Before the columns came, and after it with them and without."""
    where, table = sink(tmp_path, merge), more(TABLE)
    old = table_with_history(where)
    folder = old.storage.location()
    write_deltalake(folder, rows(TABLE, (60, 61), 1, "r"), mode="append")
    target = where.table(table)
    assert target.alter(TABLE, {"ddl": 3}, FENCE)
    write_deltalake(folder, rows(table, (62, 63), 1, "r", n=62), mode="append")
    write_deltalake(folder, rows(TABLE, (64, 65), 1, "r"), mode="append", schema_mode="merge")
    commit(target, Upsert(rows(table, (60, 62, 64), 5, "u", n=5)))
    found = values(target, table)
    assert {key: found[key][0] for key in range(60, 66)} == {60: 5, 61: None, 62: 5, 63: 62, 64: 5, 65: None}
    work = target.plan_compactions(purge=True)
    target.commit_compactions([(c, c.run()) for c in work])
    assert values(target, table) == found
    if merge == MERGES[1]:
        assert listed(DeltaTable(folder).to_pyarrow_table(), table) == found


def test_changes_of_the_definition_before(tmp_path: Path) -> None:
    """They are no older file: what they lack would be lost."""
    where, table = sink(tmp_path), more(TABLE)
    table_with_history(where)
    writer = where.change_staging().open_writer(TABLE, "epoch-1/one")
    writer.add(rows(TABLE, (1,), 5, "u").to_batches()[0])
    writer.close()
    for read in (where.change_staging().read_for_apply, where.change_staging().read_changes):
        with pytest.raises(TerminalError, match="lacks column n"):
            read(table, ["epoch-1/one"])


@pytest.mark.parametrize("missing", ["id", SEQ_COLUMN])
def test_a_file_without_what_no_row_is_without(tmp_path: Path, missing: str) -> None:
    """Neither the key nor what the project adds is ever new: such a file is no older one."""
    where, table = sink(tmp_path), more(TABLE)
    table_with_history(where)
    target = where.table(table)
    assert target.alter(TABLE, {"ddl": 3}, FENCE)
    part = rows(table, (70,), 1).drop_columns([missing])
    file = write_file(target.storage, "theirs.parquet", part.schema, [part], None)
    assert target.load_log().commit([add_action(file, None, None)], "WRITE")
    with pytest.raises(TerminalError, match=f"lacks column {missing}"):
        target.commit(lambda _: Upsert(rows(table, (70,), 5, "u")), {"stream": 5}, FENCE)
    assert target.markers().get("stream") is None
    if missing == SEQ_COLUMN:
        with pytest.raises(TerminalError, match=f"lacks column {missing}"):
            target.read()


def test_deleted_rows_that_stay(tmp_path: Path) -> None:
    """Rows from before are written again when they are marked."""
    where, table = sink(tmp_path, soft=True), more(TABLE)
    table_with_history(where)
    target = where.table(table)
    assert target.alter(TABLE, {"ddl": 3}, FENCE)
    commit(target, Upsert(rows(table, (50,), 5, n=5)))
    commit(target, Upsert(rows(table, (7,), 6, "d", n=6)))
    assert values(target, table)[50][0] == 5 and 7 not in values(target, table)
    commit(target, Truncate(5, 1))
    assert {*values(target, table)} == {50}
    every = {r["id"]: (r["n"], r[OP_COLUMN]) for r in target.read_with_soft_deleted().to_pylist()}
    assert every[1] == (None, "d") and every[7] == (6, "d") and every[50] == (5, "c") and len(every) == 22


@pytest.mark.parametrize("merge", MERGES)
def test_the_feed(tmp_path: Path, merge: str) -> None:
    """A row from before that is updated has nothing in the new columns, and then has."""
    where = sink(tmp_path, merge, table_properties=TableProperties.parse({CHANGE_DATA_FEED: "true"}))
    table = more(TABLE)
    table_with_history(where)
    target = where.table(table)
    assert target.alter(TABLE, {"ddl": 3}, FENCE)
    assert not [action for action in newest(target) if "cdc" in action or "add" in action or "remove" in action]
    commit(target, Upsert(pa.concat_tables([rows(table, (7, 50), 5, "u", n=5), rows(table, (8,), 5, "d")])))
    version, said = target.load_log().version, [action["cdc"]["path"] for action in newest(target) if "cdc" in action]
    assert said
    found = pa.concat_tables([pq.read_table(Path(target.storage.location(), path)) for path in said])
    expected = [
        (7, None, "update_preimage"),
        (7, 5, "update_postimage"),
        (8, None, "delete"),
        (50, 5, "insert"),
    ]
    changes = [(r["id"], r["n"], r["_change_type"]) for r in found.to_pylist()]
    assert sorted(changes, key=str) == sorted(expected, key=str)
    if merge == MERGES[1]:
        read = pa.table(DeltaTable(target.storage.location()).load_cdf(starting_version=version).read_all())
        told = [(r["id"], r["n"], r["_change_type"]) for r in read.to_pylist()]
        assert sorted(told, key=str) == sorted(expected, key=str)


def test_a_table_that_was_adopted(tmp_path: Path) -> None:
    where = sink(tmp_path, adopt=True)
    target = where.table(PLAIN)
    theirs = pa.schema([pa.field("id", pa.int64(), nullable=False), ("pl.ace", pa.string())])
    write_deltalake(target.storage.location(), pa.Table.from_pylist([{"id": 1, "pl.ace": "x"}], theirs))
    with pytest.raises(TerminalError, match="belongs to no pipeline"):
        where.table(more(PLAIN)).alter(PLAIN, {"ddl": 3}, FENCE)
    target.create("p")
    commit(target, Upsert(rows(PLAIN, (1, 2), 1)))
    new = where.table(more(PLAIN))
    assert new.alter(PLAIN, {"ddl": 3}, FENCE)
    commit(new, Upsert(rows(more(PLAIN), (2,), 2, "u", n=2)))
    assert values(new, more(PLAIN)) == {1: [None, 1, None, "DE", None], 2: [2, 2, None, "AT", None]}
    new.create("p")


@pytest.mark.parametrize("changes", [ColumnChanges(renamed=(("v", "w"),)), ColumnChanges(defaults=(("new", "1"),))])
def test_what_only_other_formats_can_follow(tmp_path: Path, changes: ColumnChanges) -> None:
    """Files have the columns under their old names, and no values of new ones."""
    where = sink(tmp_path)
    where.table(TABLE).create("p")
    with pytest.raises(TerminalError, match="its files have columns under their old names"):
        where.table(more(TABLE)).alter(TABLE, {"ddl": 3}, FENCE, changes)
    assert Feature.IN_PLACE not in where.supports
