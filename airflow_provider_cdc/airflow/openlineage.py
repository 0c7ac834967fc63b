"""OpenLineage: which source tables a task reads and which copies it writes, column by column.

Nothing here is called unless Airflow's OpenLineage provider is installed, which is optional. The provider calls these
methods when a task begins and when it has ended. If one fails, the provider continues without it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow_provider_cdc.airflow.operators.base import make_run_context
from airflow_provider_cdc.config.catalog_settings import catalog_settings, table_identifier
from airflow_provider_cdc.config.store_address import StoreAddress, local_folder_of
from airflow_provider_cdc.model.column_policy import KEEP

if TYPE_CHECKING:
    from airflow_provider_cdc.model.plan import Plan
    from airflow_provider_cdc.model.schema import TableSchema
    from airflow_provider_cdc.runtime.run_context import RunContext

#: Name of the run facet.
FACET_NAME = "cdc"


class OpenLineageMixin:
    """OpenLineage metadata of a task that reads source tables and writes their copies."""

    #: Whether the task writes the copies. Otherwise it reads them as well.
    writes_copies = True
    pipeline: Any
    log: Any
    #: The task's result.
    task_result: Mapping[str, Any] | None = None

    def table_indexes(self, plan: Plan) -> Collection[int]:
        """Return the indexes of the tables that the task works on."""
        return plan.active_tables

    def get_openlineage_facets_on_start(self) -> Any:
        """Return the tables and the pipeline's current position."""
        return self._facets({})

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Return the tables, the pipeline's current position, and the task's result."""
        return self._facets(self.task_result or {})

    def _facets(self, task_result: Mapping[str, Any]) -> Any:
        from airflow.providers.openlineage.extractors import OperatorLineage

        run_context = make_run_context(self.pipeline, self.log)
        plan = run_context.plans.load()
        if plan is None:
            return OperatorLineage()
        tables = [plan.tables[index] for index in sorted(self.table_indexes(plan))]
        sources = [_source_dataset(run_context, table) for table in tables]
        copies = [_copy_dataset(run_context, table) for table in tables]
        offset = run_context.resume_state(plan)[0]
        position = {"file": offset.at.file, "position": offset.at.position, "gtid_set": offset.gtid_set}
        facet = _run_facet_class()(
            pipeline=plan.pipeline, generation=plan.generation, position=position, result=dict(task_result)
        )
        inputs, outputs = (sources, copies) if self.writes_copies else ([*sources, *copies], [])
        return OperatorLineage(inputs=inputs, outputs=outputs, run_facets={FACET_NAME: facet})


def copy_dataset_name(pipeline: Any, table: tuple[str, str]) -> tuple[str, str]:
    """Return namespace and name of a copy, as OpenLineage names files."""
    folder, path = pipeline.sink.table_paths.path_of(*table), pipeline.sink.path
    if (address := StoreAddress.parse(path)) is None:
        return "file", f"{(local_folder_of(path) or '').rstrip('/')}/{folder}"
    store_url = urlsplit(address.display())
    return f"{store_url.scheme}://{store_url.netloc}", f"{address.root}/{folder}".lstrip("/")


def source_dataset_name(run_context: RunContext, table: TableSchema) -> tuple[str, str]:
    """Return namespace and name of a source table, as OpenLineage names MySQL tables."""
    return f"mysql://{run_context.connect_args['host']}:{run_context.connect_args['port']}", table.label


def _source_dataset(run_context: RunContext, table: TableSchema) -> Any:
    from airflow.providers.common.compat.openlineage.facet import Dataset

    namespace, name = source_dataset_name(run_context, table)
    columns = ((column.name, column.column_type) for column in table.copied_columns)
    return Dataset(namespace=namespace, name=name, facets={"schema": _schema_facet(columns)})


def _copy_dataset(run_context: RunContext, table: TableSchema) -> Any:
    from airflow.providers.common.compat.openlineage import facet

    namespace, name = source_dataset_name(run_context, table)
    actions = {policy.column: policy.action for policy in table.policies if policy.action != KEEP}
    fields = {
        table.copy_name(column.name): facet.Fields(
            inputFields=[facet.InputField(namespace=namespace, name=name, field=column.name)],
            transformationDescription=actions.get(column.name, ""),
            transformationType="MASKED" if column.name in actions else "IDENTITY",
        )
        for column in table.copied_columns
    }
    columns = ((field.name, str(field.type)) for field in table.sink_schema)
    facets = {"schema": _schema_facet(columns), "columnLineage": facet.ColumnLineageDatasetFacet(fields=fields)}
    sink = run_context.pipeline.sink
    if sink.has_catalog:
        levels, table_name = table_identifier(sink.table_paths.path_of(*table.id))
        catalog = catalog_settings(sink, run_context.access).uri
        identifier = facet.Identifier(namespace=catalog, name=".".join((*levels, table_name)), type="TABLE")
        facets["symlinks"] = facet.SymlinksDatasetFacet(identifiers=[identifier])
    place, folder = copy_dataset_name(run_context.pipeline, table.id)
    return facet.Dataset(namespace=place, name=folder, facets=facets)


def _schema_facet(columns: Iterable[tuple[str, str]]) -> Any:
    from airflow.providers.common.compat.openlineage.facet import SchemaDatasetFacet, SchemaDatasetFacetFields

    return SchemaDatasetFacet(fields=[SchemaDatasetFacetFields(name=name, type=kind) for name, kind in columns])


@cache
def _run_facet_class() -> type[Any]:
    """Return the class of the run facet. Its base class exists only with OpenLineage."""
    import attrs
    from airflow.providers.common.compat.openlineage.facet import RunFacet

    @attrs.define(kw_only=True)
    class CdcRunFacet(RunFacet):  # type: ignore[misc]
        """The position of a pipeline, and the result of its task."""

        pipeline: str
        generation: int
        position: dict[str, Any]
        result: dict[str, Any]

    return CdcRunFacet
