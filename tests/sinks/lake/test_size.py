"""What a table says of itself."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from airflow_provider_cdc.sinks.protocol import TableSize
from tests.sinks.delta.test_table import add, create_table, folder_of, held, opened, rows, upsert


@pytest.mark.parametrize("vectors", [True, False])
def test_what_a_table_takes(tmp_path: Path, vectors: bool) -> None:
    """As the log says it: it is told although no file of rows is there."""
    target = create_table(tmp_path, vectors=vectors)
    assert target.table_size() == TableSize(0, 0, 0, 0, 0, 0) and target.index_bytes_used == (0, 0)
    for n in range(40):
        add(target, str(n), rows((n, "a", 1, "r"), (100 + n, "b", 1, "r")))
    upsert(target, (0, "x", 2, "u"), (1, "x", 2, "d"))
    upsert(target, (100, "x", 2, "d"), (0, "y", 3, "u"))
    live = [folder_of(target) / path for path in target.load_log().files]
    size, count = sum(path.stat().st_size for path in live), len(held(target))
    alone = tmp_path / "alone" / "t"
    shutil.copytree(folder_of(target) / "_delta_log", alone / "_delta_log")
    found = opened(tmp_path / "alone", vectors=vectors).table_size()
    dead = 1 if vectors else 0
    assert found == TableSize(len(live), size, count, dead, dead, 0) and count == 78
    assert target.index_bytes_used[0] > 0 and opened(tmp_path, vectors=vectors).index_bytes_used == (0, 0)
    assert target.commit_compactions([(c, c.run()) for c in target.plan_compactions()])
    after = opened(tmp_path, vectors=vectors).table_size()
    assert (after.rows, after.dead_rows, after.files_with_vectors, after.compactions) == (78, 0, 0, 1)


def test_compactions_are_counted(tmp_path: Path) -> None:
    """Whoever has made them."""
    target = create_table(tmp_path)
    for turn in range(2):
        for n in range(40):
            add(target, f"{turn}-{n}", rows((100 * turn + n, "a", 1, "r")))
        assert opened(tmp_path).commit_compactions([(c, c.run()) for c in target.plan_compactions()])
    assert target.table_size().compactions == 2


def test_rows_of_files_that_others_have_written(tmp_path: Path) -> None:
    target = create_table(tmp_path)
    add(target, "a", rows((1, "a", 1, "r")))
    log = target.load_log()
    (file,) = log.files.values()
    assert log.commit([{"add": {**file.action, "stats": None}}], "WRITE")
    assert (target.table_size().rows, target.table_size().files) == (None, 1)
