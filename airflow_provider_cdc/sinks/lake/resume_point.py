"""``_cdc_progress``: the stream's resume point, kept in the sink and committed after all tables of a batch."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

import pyarrow as pa
from pyroaring import BitMap

from airflow_provider_cdc.model.errors import TransientError
from airflow_provider_cdc.model.offset import Offset, Timeline
from airflow_provider_cdc.sinks.lake.lake_table import LakeTable
from airflow_provider_cdc.sinks.lake.log.table_log import TableLog
from airflow_provider_cdc.sinks.lake.merge.table_edit import TableEdit
from airflow_provider_cdc.sinks.protocol import Fence, Markers

Table = TypeVar("Table", bound=LakeTable[Any])
#: Schema of the table.
RESUME_POINT_SCHEMA = pa.schema(
    [
        ("pipeline", pa.string()),
        ("epoch", pa.int64()),
        ("_cdc_seq", pa.int64()),
        ("offset", pa.string()),
        ("lineage", pa.string()),
        ("committed_at", pa.timestamp("us", tz="UTC")),
    ]
)


class LakeResumePoint(ABC, Generic[Table]):
    """The resume point of one pipeline: a table with one row, by copy-on-write.

    :param sink_table: the table.
    :param pipeline: name of the pipeline.
    """

    def __init__(self, sink_table: Table, pipeline: str) -> None:
        self.sink_table = sink_table
        self._pipeline = pipeline

    @abstractmethod
    def _is_clean_up_due(self) -> bool:
        """Return whether enough has been committed since files were deleted last."""

    def exists(self) -> bool:
        """Return whether the table has been created."""
        return self.sink_table.exists()

    def markers(self) -> Markers:
        """Return the markers of the table."""
        return self.sink_table.markers()

    def raise_fence(self, fence: Fence) -> bool:
        """Raise a fence in the table; see :class:`~airflow_provider_cdc.sinks.protocol.Fenceable`."""
        written = self.sink_table.raise_fence(fence)
        self._clean_up_if_due()
        return written

    def create(self) -> None:
        """Create the table if it does not exist."""
        self.sink_table.create(self._pipeline)

    def forget_older_generation(self, generation: int) -> None:
        """Forget an older resume point; see :class:`~airflow_provider_cdc.sinks.protocol.ResumePoint`."""
        if generation > 1 and self.sink_table.exists():
            self.sink_table.reset(self._pipeline, Fence(f"cdc/{self._pipeline}/generation", generation), [])

    def read(self) -> Offset | None:
        """Return the resume point, or ``None`` before the first batch."""
        resume_state = self.read_with_timeline()
        return resume_state[0] if resume_state else None

    def read_with_timeline(self) -> tuple[Offset, Timeline] | None:
        """Return the resume point and the timeline of its server, or ``None`` before the first batch."""
        if not self.sink_table.exists():
            return None
        # Without the commit time, which would load pandas.
        rows = self.sink_table.read_with_soft_deleted().select(["offset", "lineage"]).to_pylist()
        if not rows:
            return None
        row = rows[0]
        place = self.sink_table.storage.location()
        return Offset.from_json(json.loads(row["offset"]), place), Timeline.from_json(json.loads(row["lineage"]), place)

    def write(self, offset: Offset, timeline: Timeline, fence: Fence) -> None:
        """Replace the resume point; see :class:`~airflow_provider_cdc.sinks.protocol.ResumePoint`."""
        row = {
            "pipeline": self._pipeline,
            "epoch": fence.value,
            "_cdc_seq": timeline.seq(offset.at),
            "offset": json.dumps(offset.to_json()),
            "lineage": json.dumps(timeline.to_json()),
            "committed_at": datetime.now(UTC),
        }

        def decide(log: TableLog) -> TableEdit:
            files = self.sink_table.write_rows(pa.Table.from_pylist([row], RESUME_POINT_SCHEMA))
            return TableEdit(removed_files=set(log.files), added_files=[(file, BitMap()) for file in files])

        self.sink_table.commit_edit(decide, {}, fence)
        self._clean_up_if_due()

    def _clean_up_if_due(self) -> None:
        """Clean up depending on the version: most runs are too short to count enough commits of their own."""
        if self._is_clean_up_due():
            with suppress(TransientError):  # it is still due after the next commit
                self.sink_table.clean_up()

    def clean_up(self) -> None:
        """Delete what is no longer needed; see :class:`~airflow_provider_cdc.sinks.protocol.ResumePoint`."""
        self.sink_table.clean_up()
