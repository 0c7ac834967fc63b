"""The resume point of a pipeline."""

from __future__ import annotations

from pathlib import Path

from airflow_provider_cdc.model.offset import Offset, Timeline
from airflow_provider_cdc.sinks.delta.resume_point import DeltaResumePoint
from airflow_provider_cdc.sinks.protocol import Fence
from airflow_provider_cdc.sinks.storage.local_storage import LocalStorage


def test_there_is_one(tmp_path: Path) -> None:
    """What is written takes the place of what was there, with all segments."""
    progress, lineage = DeltaResumePoint(LocalStorage(tmp_path / "progress"), "p"), Timeline("a", "binlog.000001")
    progress.create()
    assert progress.read_with_timeline() is None
    for number in range(3):
        offset = Offset("a", "binlog.000001", 100 + number, "", file_start_time=5, gtid_mode_on=True)
        progress.write(offset, lineage, Fence("f", 1))
        assert (
            progress.read_with_timeline() == (offset, lineage)
            and progress.sink_table.read_with_soft_deleted().num_rows == 1
        )
    moved = Offset("b", "other.000007", 4, "")
    lineage = lineage.with_segment("b", "other.000007", lineage.seq(offset.at))
    progress.write(moved, lineage, Fence("f", 2))
    assert (
        progress.read_with_timeline() == (moved, lineage) and progress.sink_table.read_with_soft_deleted().num_rows == 1
    )
