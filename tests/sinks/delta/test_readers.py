"""What other programs read of a table: its rows, or a clear refusal; and the table of them in docs/readers.md."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_cdc.model.changes import last_changes
from airflow_provider_cdc.model.schema import Column
from airflow_provider_cdc.sinks.delta import maintenance
from airflow_provider_cdc.sinks.delta.log.delta_log import DeltaLog
from airflow_provider_cdc.sinks.delta.table import DeltaSinkTable
from airflow_provider_cdc.sinks.delta.table_metadata import DeltaTableOptions
from airflow_provider_cdc.sinks.files.change_staging import FileChangeStaging
from airflow_provider_cdc.sinks.files.parquet import DataFile, write_file
from airflow_provider_cdc.sinks.lake import compaction
from airflow_provider_cdc.sinks.lake.change_staging import TableChangeStaging
from airflow_provider_cdc.sinks.protocol import PublishSlices, Upsert
from airflow_provider_cdc.sinks.storage.local_storage import LocalStorage
from tests.sinks.delta.test_table import FENCE
from tests.support.all_types import TABLE, rows
from tests.support.generated import held_by
from tests.support.readers import Reader, readers

pytestmark = pytest.mark.spark
RIGHT, WRONG = "right", "wrong"
#: Readers that are wrong with vectors, and how.
KNOWN_WRONG = {"delta-rs, `count()`": "**wrong**: it counts dead rows as well"}
MERGES = ["deletion_vectors", "copy_on_write"]
#: The definition before every sixth column came, and one went.
GONE = Column("gone", "varchar", "varchar(9)", nullable=True, charset="utf8mb4")
EARLY = TABLE.replace(columns=(GONE, *(c for n, c in enumerate(TABLE.columns) if n % 6 != 5)))


@pytest.fixture(scope="module")
def listed() -> Iterator[list[Reader]]:
    with readers() as found:
        yield found


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, DeltaSinkTable]:
    """Tables that have lived: vectors, tombstones, a checkpoint and commits after it, files that were compacted."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(maintenance, "_CHECKPOINT_INTERVAL", 5)
        patched.setattr(compaction, "FANOUT", 3)
        patched.setattr(
            compaction, "_MERGED_BYTES_LIMITS", (40_000, 40_000)
        )  # bytes: files of the snapshot are above half of it
        return {merge: table_with_history(tmp_path_factory.mktemp("t"), vectors=merge == MERGES[0]) for merge in MERGES}


def table_with_history(folder: Path, *, vectors: bool) -> DeltaSinkTable:
    storage = LocalStorage(folder)
    first = DeltaSinkTable(storage, EARLY.sink_schema, TABLE.key, TABLE.integer_key_column, DeltaTableOptions(vectors))
    first.create("p")
    target = DeltaSinkTable(storage, TABLE.sink_schema, TABLE.key, TABLE.integer_key_column, DeltaTableOptions(vectors))
    staging = TableChangeStaging(lambda _: storage, lambda _: DeltaLog(storage), FileChangeStaging(storage, "aside"))

    def change(keys: range | list[int], seq: int, op: str = "u") -> None:
        changes = rows(keys, seq, op)
        assert target.commit(lambda _: Upsert(changes), {"stream": seq}, FENCE)

    def slice_of(n: int) -> DataFile:
        some = early(rows(range(n, n + 120), 1, "r"))
        return write_file(storage, f"snapshot/1/0/1/{n}.parquet", some.schema, [some], "id")

    files = [slice_of(n) for n in (0, 120)]
    first.commit(lambda _: PublishSlices(files), {"group": 1}, FENCE)
    first.commit(lambda _: Upsert(early(rows([5, 7], 2, "u"))), {}, FENCE)
    assert target.alter(EARLY, {"ddl": 1}, FENCE)
    writer = staging.open_writer(TABLE, "epoch-1/one")  # a file with dead rows from the start
    for part in (rows(range(100, 130), 2, "u"), rows([3, 125], 3, "d"), rows(range(110, 120), 3, "u")):
        writer.add(part.to_batches()[0])
    writer.close()
    staged = last_changes(staging.read_for_apply(TABLE, ["epoch-1/one"]), TABLE.key)
    target.commit(lambda _: Upsert(staged), {"stream": 3}, FENCE)
    for seq in range(4, 8):
        change([seq, 10 * seq, 200 + seq], seq)
        change([seq + 1, 10 * seq + 1], seq, "d")
    work = target.plan_compactions()
    written = [(w, w.run()) for w in work]
    change([1, 61, 110], 8, "d")  # rows that die while files are put together
    target.commit_compactions(written)
    target.clean_up()
    for seq in range(9, 12):
        change([seq, 70 + seq, 300 + seq], seq)
        change([2 * seq, 121], seq, "d")
    return target


def early(made: pa.Table) -> pa.Table:
    """Rows as they were under the definition before."""
    had = made.append_column(GONE.name, pa.array(["was here"] * made.num_rows))
    return had.select(EARLY.sink_schema.names).cast(EARLY.sink_schema)


def plain(found: pa.Table) -> dict[int, dict[str, Any]]:
    """Rows by key, in types of their own (what is a float is its bits)."""
    fitting = found.select(TABLE.sink_schema.names).cast(TABLE.sink_schema)

    def exact(value: Any) -> Any:
        if isinstance(value, list):
            return [exact(v) for v in value]
        return struct.pack(">d", value) if isinstance(value, float) else value

    listed = [{name: exact(value) for name, value in row.items()} for row in fitting.to_pylist()]
    assert len({row["id"] for row in listed}) == len(listed), "a key is there twice"
    return {row["id"]: row for row in listed}


def verdict(reader: Reader, table: DeltaSinkTable) -> str:
    """Whether it reads what is there, in the words of the documentation."""
    expected = plain(table.read_with_soft_deleted())
    try:
        found = reader.read(table.storage.location())
    except Exception as error:
        first = re.split(r"(?<=[.!;]) ", str(error).strip().splitlines()[0])[0]
        return f"refuses: *{first}*"
    right = found == len(expected) if isinstance(found, int) else plain(found) == expected
    return RIGHT if right else WRONG


def test_the_table_has_lived(tables: dict[str, DeltaSinkTable]) -> None:
    for merge, table in tables.items():
        log = table.load_log()
        assert log.version > (log.checkpoint_version or 0) > 0
        assert {action for name in ("add", "remove") for action in (name,) if _said(table, name)} == {"add", "remove"}
        assert _said(table, "OPTIMIZE") == (merge == MERGES[0])  # by copies, nothing is left to be put together
        with_vectors = sum(file.dead_row_count > 0 for file in log.files.values())
        assert with_vectors >= 3 if merge == MERGES[0] else with_vectors == 0


def _said(table: DeltaSinkTable, word: str) -> bool:
    log = Path(table.storage.location(), "_delta_log")
    return any(f'"{word}"' in path.read_text() for path in log.glob("*.json"))


def test_some_rows_are_older_than_columns(tables: dict[str, DeltaSinkTable]) -> None:
    """And some are not; both stand in files with and without dead rows."""
    late = [column.name for column in TABLE.columns if column not in EARLY.columns]
    for table in tables.values():
        older = [not any(row.values()) for row in table.read_with_soft_deleted().select(late).to_pylist()]
        assert len(late) == 10 and 100 < sum(older) < len(older) - 30
        paths = [Path(table.storage.location(), path) for path in table.load_log().files]
        lacking = [not {*late} & {*pq.read_schema(path).names} for path in paths]
        assert table is not tables[MERGES[0]] or {*lacking} == {True, False}


def test_our_own_reading(tables: dict[str, DeltaSinkTable]) -> None:
    """Both merges come to the same rows."""
    found = [plain(table.read_with_soft_deleted()) for table in tables.values()]
    assert found[0] == found[1] and len(found[0]) > 100


def test_readers(tables: dict[str, DeltaSinkTable], listed: list[Reader]) -> None:
    """Each reads the rows, or says that it cannot; what is known to be wrong stands in the documentation as well."""
    lines = ["| Reader | Version | `deletion_vectors` | `copy_on_write` |", "|---|---|---|---|"]
    for reader in listed:
        found = [verdict(reader, tables[merge]) for merge in MERGES]
        known = KNOWN_WRONG.get(reader.name, "")
        assert (WRONG in found) == bool(known), f"{reader.name}: {found}"
        told = [known if word == WRONG else word for word in found]
        lines.append(f"| {reader.name} | {reader.version} | {told[0]} | {told[1]} |")
    assert held_by("docs/readers.md", "readers", lines)
