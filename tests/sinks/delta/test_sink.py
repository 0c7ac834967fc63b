"""Delta is a sink, however its rows die."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from airflow_provider_cdc.config.delete_policy import DeletePolicy
from airflow_provider_cdc.config.table_properties import CHANGE_DATA_FEED, TableProperties
from airflow_provider_cdc.model.errors import TerminalError
from airflow_provider_cdc.model.schema import DELETED_COLUMN, SEQ_COLUMN
from airflow_provider_cdc.sinks.delta.sink import DeltaSink
from airflow_provider_cdc.sinks.delta.table import DeltaSinkTable
from airflow_provider_cdc.sinks.protocol import PipelineSink, SinkTable
from airflow_provider_cdc.sinks.storage.local_storage import LocalStorage
from airflow_provider_cdc.sinks.storage.object_storage import ObjectStorage
from tests.sinks.conformance import INT, KEYED, TEXT, SinkConformance, failing, preceded_by
from tests.support.object_store import access
from tests.support.s3 import S3


class _Broken(SinkConformance):
    """Commits of Delta tables break where the log is written."""

    storage: type[LocalStorage | ObjectStorage] = LocalStorage

    @contextmanager
    def failing_commit(self, monkeypatch: pytest.MonkeyPatch, *, made: bool) -> Iterator[None]:
        """Also what has happened cannot be found out."""
        real, fails = self.storage.write_once, failing(self.storage.write_once, made=made)

        def write_once(storage: Any, name: str, data: bytes) -> Any:
            return (fails if name.startswith("_delta_log/") else real)(storage, name, data)

        with monkeypatch.context() as patch:
            patch.setattr(self.storage, "write_once", write_once)
            patch.setattr(self.storage, "read", failing(self.storage.read, made=False))
            yield

    @contextmanager
    def concurrent_writer(self, monkeypatch: pytest.MonkeyPatch, work: Callable[[], object]) -> Iterator[None]:
        first = preceded_by(self.storage.write_once, work)
        real = self.storage.write_once

        def write_once(storage: Any, name: str, data: bytes) -> Any:
            return (first if name.startswith("_delta_log/") else real)(storage, name, data)

        with monkeypatch.context() as patch:
            patch.setattr(self.storage, "write_once", write_once)
            yield


class TestDeltaSink(_Broken):
    copies: tuple[str, ...] = ()
    partition_by: tuple[tuple[str, tuple[tuple[str, str | None], ...]], ...] = ()
    properties: ClassVar[dict[str, str]] = {}

    def open(self, folder: Path) -> PipelineSink:
        properties = TableProperties.parse(self.properties)
        return DeltaSink(str(folder), "p", self.copies, partition_by=self.partition_by, table_properties=properties)

    def open_keeping_deletes(self, folder: Path, deletes: DeletePolicy) -> PipelineSink:
        opened = self.open(folder)
        assert isinstance(opened, DeltaSink)
        return replace(opened, deletes=deletes)

    def read_all_rows(self, target: SinkTable) -> Counter[tuple[int, str | None, int, bool]]:
        """As the table says itself, and as delta-rs reads it."""
        assert isinstance(target, DeltaSinkTable)
        read = QueryBuilder().register("t", DeltaTable(target.storage.location())).execute("SELECT * FROM t").read_all()
        found = [
            Counter((r["id"], r["v.w"], r[SEQ_COLUMN], r.get(DELETED_COLUMN, False)) for r in rows.to_pylist())
            for rows in (target.read_with_soft_deleted(), pa.table(read))
        ]
        assert found[0] == found[1]
        return found[0]


class TestDeltaSinkByCopies(TestDeltaSink):
    copies = (".*[.].*",)


class TestDeltaSinkByPartitions(TestDeltaSink):
    """Rows move from one to another."""

    partition_by = (("shop[.](orders|two|log)", (("v.w", None),)),)

    def test_other_columns_are_refused(self, sink: PipelineSink) -> None:
        self.create_table(sink)
        with pytest.raises(TerminalError):
            sink.table(KEYED.replace(columns=(INT, TEXT, INT.replace(name="n")))).create("p")


class TestDeltaSinkByPartitionsByCopies(TestDeltaSinkByPartitions):
    copies = (".*[.].*",)


class TestDeltaSinkByPartitionsOfKeys(TestDeltaSinkByPartitions):
    """The key is in no file."""

    partition_by = (("shop[.](orders|two|log)", (("id", None),)),)


class TestDeltaSinkWithAFeed(TestDeltaSink):
    properties: ClassVar[dict[str, str]] = {CHANGE_DATA_FEED: "true"}


class TestDeltaSinkWithAFeedByPartitionsByCopies(TestDeltaSinkByPartitionsByCopies):
    properties: ClassVar[dict[str, str]] = {CHANGE_DATA_FEED: "true"}


class TestDeltaSinkInAnObjectStore(_Broken):
    copies: tuple[str, ...] = ()
    storage = ObjectStorage

    @pytest.fixture(autouse=True)
    def at(self, s3: S3) -> None:
        self.place = s3

    def open(self, folder: Path) -> PipelineSink:
        return DeltaSink(self.place.uri("lake"), "p", self.copies, access=access(self.place))


class TestDeltaSinkInAnObjectStoreByCopies(TestDeltaSinkInAnObjectStore):
    copies = (".*[.].*",)
