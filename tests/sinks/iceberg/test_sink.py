"""Iceberg is a sink, however its rows die."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.config.catalog_settings import REST, CatalogSettings
from airflow_provider_cdc.config.delete_policy import DeletePolicy
from airflow_provider_cdc.model.errors import TerminalError
from airflow_provider_cdc.model.schema import DELETED_COLUMN, SEQ_COLUMN
from airflow_provider_cdc.sinks.iceberg.catalogs.open_catalog import open_catalog
from airflow_provider_cdc.sinks.iceberg.catalogs.protocol import TableIdentifier
from airflow_provider_cdc.sinks.iceberg.catalogs.rest_catalog import RestCatalog
from airflow_provider_cdc.sinks.iceberg.catalogs.sql_catalog import SqlCatalog
from airflow_provider_cdc.sinks.iceberg.sink import IcebergSink
from airflow_provider_cdc.sinks.iceberg.table import IcebergSinkTable
from airflow_provider_cdc.sinks.protocol import PipelineSink, SinkTable
from tests.sinks.conformance import INT, KEYED, TEXT, SinkConformance, failing, preceded_by
from tests.support.iceberg import read_with_duckdb, read_with_pyiceberg
from tests.support.iceberg_rest import IcebergRest
from tests.support.iceberg_sink import catalog_file, metadata_file


class TestIcebergSink(SinkConformance):
    catalog_class: type[SqlCatalog | RestCatalog] = SqlCatalog
    copies: tuple[str, ...] = ()
    partition_by: tuple[tuple[str, tuple[tuple[str, str | None], ...]], ...] = ()

    def open(self, folder: Path) -> PipelineSink:
        return IcebergSink(str(folder), "p", self.copies, catalog=catalog_file(folder), partition_by=self.partition_by)

    def metadata_of(self, target: IcebergSinkTable) -> Path:
        """The newest metadata of a table."""
        return metadata_file(target)

    def open_keeping_deletes(self, folder: Path, deletes: DeletePolicy) -> PipelineSink:
        opened = self.open(folder)
        assert isinstance(opened, IcebergSink)
        return replace(opened, deletes=deletes)

    def held(self, target: SinkTable) -> Counter[tuple[int, str | None, int]]:
        """As the table says itself, and as pyiceberg reads it."""
        found = super().held(target)
        assert isinstance(target, IcebergSinkTable)
        read = read_with_pyiceberg(self.metadata_of(target))
        assert found == Counter((r["id"], r["v.w"], r[SEQ_COLUMN]) for r in read.to_pylist())
        return found

    def read_all_rows(self, target: SinkTable) -> Counter[tuple[int, str | None, int, bool]]:
        """As the table says itself, and as DuckDB reads it."""
        assert isinstance(target, IcebergSinkTable)
        read = read_with_duckdb(self.metadata_of(target))
        found = [
            Counter((r["id"], r["v.w"], r[SEQ_COLUMN], r.get(DELETED_COLUMN, False)) for r in rows.to_pylist())
            for rows in (target.read_with_soft_deleted(), read)
        ]
        assert found[0] == found[1]
        return found[0]

    @contextmanager
    def failing_commit(self, monkeypatch: pytest.MonkeyPatch, *, made: bool) -> Iterator[None]:
        """Also what has happened cannot be found out."""
        with monkeypatch.context() as patch:
            catalog = self.catalog_class
            real, failed = catalog.commit_table, failing(catalog.commit_table, made=made)

            def commit_table(*arguments: Any) -> Any:
                """Only of a snapshot: a schema that is added before is not used yet."""
                has_snapshot = any(update["action"] == "add-snapshot" for update in arguments[-1])
                return (failed if has_snapshot else real)(*arguments)

            patch.setattr(catalog, "commit_table", commit_table)
            patch.setattr(catalog, "load_table", failing(catalog.load_table, made=False))
            yield

    @contextmanager
    def concurrent_writer(self, monkeypatch: pytest.MonkeyPatch, work: Callable[[], object]) -> Iterator[None]:
        with monkeypatch.context() as patch:
            catalog = self.catalog_class
            patch.setattr(catalog, "commit_table", preceded_by(catalog.commit_table, work))
            yield


class TestIcebergSinkByCopies(TestIcebergSink):
    copies = (".*[.].*",)


class TestIcebergSinkByPartitions(TestIcebergSink):
    """Rows move from one to another."""

    partition_by: tuple[tuple[str, tuple[tuple[str, str | None], ...]], ...] = (
        ("shop[.](orders|two|log)", (("v.w", None),)),
    )

    def test_other_columns_are_refused(self, sink: PipelineSink) -> None:
        self.create_table(sink)
        with pytest.raises(TerminalError):
            sink.table(KEYED.replace(columns=(INT, TEXT, INT.replace(name="n")))).create("p")


class TestIcebergSinkByPartitionsByCopies(TestIcebergSinkByPartitions):
    copies = (".*[.].*",)


class TestIcebergSinkByPartitionsOfKeys(TestIcebergSinkByPartitions):
    partition_by = (("shop[.](orders|two|log)", (("id", "bucket[4]"), ("v.w", "truncate[1]"))),)


class TestIcebergSinkInARestCatalog(TestIcebergSink):
    """One server has the tables of all tests, one after the other."""

    @pytest.fixture(autouse=True)
    def server(self, iceberg_rest: IcebergRest) -> None:
        self.settings = CatalogSettings(REST, iceberg_rest.uri)
        catalog = open_catalog(self.settings)
        for name in ("orders", "two", "log", "values"):
            catalog.drop_table(TableIdentifier(("shop",), name))
        catalog.drop_table(TableIdentifier(("_cdc_progress",), "p"))

    def open(self, folder: Path) -> PipelineSink:
        return IcebergSink(str(folder), "p", catalog=self.settings)

    def metadata_of(self, target: IcebergSinkTable) -> Path:
        table = open_catalog(self.settings).load_table(target.identifier)
        assert table is not None
        return Path(str(table.metadata_location).removeprefix("file:").replace("//", "/"))

    catalog_class = RestCatalog
