"""OpenLineage: which tables of the source a task reads, and which copies it writes, column by column.

Nothing here is called without Airflow's OpenLineage provider, which need not be installed. It calls these methods when
a task begins and when it has ended, and goes on without them if one fails.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow_provider_cdc.airflow.operators.base import make_run_context
from airflow_provider_cdc.config.store_address import StoreAddress, local_folder_of

if TYPE_CHECKING:
    from airflow_provider_cdc.model.plan import Plan
    from airflow_provider_cdc.model.schema import TableSchema
    from airflow_provider_cdc.runtime.run_context import RunContext

#: Name of the facet of a run.
FACET_NAME = "cdc"


class OpenLineageMixin:
    """What OpenLineage hears of a task that reads tables of the source and writes their copies."""

    #: Whether it writes the copies; otherwise it reads them as well.
    writes_copies = True
    pipeline: Any
    log: Any
    #: What the task returned.
    task_result: Mapping[str, Any] | None = None

    def table_indexes(self, plan: Plan) -> Collection[int]:
        """Indexes of the tables that it works on."""
        return plan.active_tables

    def get_openlineage_facets_on_start(self) -> Any:
        """Tables, and where the pipeline stands."""
        return self._facets({})

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Tables, where the pipeline stands now, and what the task returned."""
        return self._facets(self.task_result or {})

    def _facets(self, task_result: Mapping[str, Any]) -> Any:
        from airflow.providers.openlineage.extractors import OperatorLineage

        run_context = make_run_context(self.pipeline, self.log)
        plan = run_context.load_plan()
        if plan is None:
            return OperatorLineage()
        tables = [plan.tables[index] for index in sorted(self.table_indexes(plan))]
        sources, copies = (
            [_source_dataset(run_context, table) for table in tables],
            [_copy_dataset(run_context, table) for table in tables],
        )
        offset = run_context.resume_state(plan)[0]
        position = {"file": offset.at.file, "position": offset.at.position, "gtid_set": offset.gtid_set}
        facet = _run_facet_class()(
            pipeline=plan.pipeline, generation=plan.generation, position=position, result=dict(task_result)
        )
        inputs, outputs = (sources, copies) if self.writes_copies else ([*sources, *copies], [])
        return OperatorLineage(inputs=inputs, outputs=outputs, run_facets={FACET_NAME: facet})


def copy_dataset_name(pipeline: Any, table: tuple[str, str]) -> tuple[str, str]:
    """Namespace and name of a copy, as OpenLineage names files."""
    folder, path = pipeline.sink.table_paths.of(*table), pipeline.sink.path
    if (address := StoreAddress.parse(path)) is None:
        return "file", f"{(local_folder_of(path) or '').rstrip('/')}/{folder}"
    store_url = urlsplit(address.display())
    return f"{store_url.scheme}://{store_url.netloc}", f"{address.root}/{folder}".lstrip("/")


def source_dataset_name(run_context: RunContext, table: TableSchema) -> tuple[str, str]:
    """Namespace and name of a table of the source, as OpenLineage names those of MySQL."""
    return f"mysql://{run_context.connect_args['host']}:{run_context.connect_args['port']}", table.label


def _source_dataset(run_context: RunContext, table: TableSchema) -> Any:
    from airflow.providers.common.compat.openlineage.facet import Dataset

    namespace, name = source_dataset_name(run_context, table)
    columns = ((column.name, column.column_type) for column in table.copied_columns)
    return Dataset(namespace=namespace, name=name, facets={"schema": _schema_facet(columns)})


def _copy_dataset(run_context: RunContext, table: TableSchema) -> Any:
    from airflow.providers.common.compat.openlineage.facet import (
        ColumnLineageDatasetFacet,
        Dataset,
        Fields,
        InputField,
    )

    namespace, name = source_dataset_name(run_context, table)
    identity_transformation = {"transformationDescription": "", "transformationType": "IDENTITY"}
    fields = {
        column.name: Fields(
            inputFields=[InputField(namespace=namespace, name=name, field=column.name)], **identity_transformation
        )
        for column in table.copied_columns
    }
    columns = ((field.name, str(field.type)) for field in table.sink_schema)
    facets = {"schema": _schema_facet(columns), "columnLineage": ColumnLineageDatasetFacet(fields=fields)}
    place, folder = copy_dataset_name(run_context.pipeline, table.id)
    return Dataset(namespace=place, name=folder, facets=facets)


def _schema_facet(columns: Iterable[tuple[str, str]]) -> Any:
    from airflow.providers.common.compat.openlineage.facet import SchemaDatasetFacet, SchemaDatasetFacetFields

    return SchemaDatasetFacet(fields=[SchemaDatasetFacetFields(name=name, type=kind) for name, kind in columns])


@cache
def _run_facet_class() -> type[Any]:
    """The facet of a run. Its base is there only with OpenLineage."""
    import attrs
    from airflow.providers.common.compat.openlineage.facet import RunFacet

    @attrs.define(kw_only=True)
    class CdcRunFacet(RunFacet):  # type: ignore[misc]
        """Where a pipeline stands, and what its task returned."""

        pipeline: str
        generation: int
        position: dict[str, Any]
        result: dict[str, Any]

    return CdcRunFacet
