"""The page's application. Every route, including those of static files, requires an Airflow user."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path as File
from typing import Annotated, Any

from airflow.api_fastapi.core_api.security import GetUserDep, get_user
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse

from airflow_provider_cdc.model.errors import CdcError
from airflow_provider_cdc.state.events import EventFilter
from airflow_provider_cdc.state.table_reader import TABLE_ORDERS, TableQuery
from airflow_provider_cdc.ui import action_routes, batch_views, table_views, views
from airflow_provider_cdc.ui.access import (
    PageSources,
    PageSourcesDep,
    ShownPipelineDep,
    UserRights,
    UserRightsDep,
    may_edit_any,
)
from airflow_provider_cdc.ui.cli_commands import PipelineCommands
from airflow_provider_cdc.ui.conditional_route import ConditionalRoute, describe_invalid_request
from airflow_provider_cdc.ui.event_views import event_view, kinds_view
from airflow_provider_cdc.ui.state_databases import DatabaseTrouble, ShownPipeline
from airflow_provider_cdc.ui.task_names import TaskNames
from airflow_provider_cdc.ui.unknown_pipelines import group_unknown
from airflow_provider_cdc.ui.views import PipelineViews

_STATIC = File(__file__).parent / "static"
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
#: Nothing is loaded from another host, and no text from a database becomes code. Airflow shows the page in a frame.
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
#: Words of a request, separated by commas, the label ``database.table`` of a table, and a number of rows.
Words = Annotated[str | None, Query(max_length=1000, pattern=r"^[a-z_]+(,[a-z_]+)*$")]
TableLabel = Annotated[str, Query(alias="table", max_length=255)]
Limit = Annotated[int, Query(ge=1, le=200)]
#: Control requests that a pipeline shows.
_REQUESTS = 10


def _page(offset: Annotated[int, Query(ge=0, le=10**7)] = 0, limit: Limit = 30) -> slice:
    return slice(offset, offset + limit)


def _pipeline_views(shown: ShownPipelineDep, rights: UserRightsDep) -> PipelineViews:
    return _views(shown, rights)


#: The rows of a list that a request asks for, and the pipeline of a route as its user may see it.
PageDep = Annotated[slice, Depends(_page)]
PipelineViewsDep = Annotated[PipelineViews, Depends(_pipeline_views)]
router = APIRouter(route_class=ConditionalRoute)


def make_app() -> FastAPI:
    """Create the application. The state databases are looked up on first use."""
    # Without FastAPI's documentation: its routes would not require a user.
    no_docs: dict[str, Any] = {"docs_url": None, "redoc_url": None, "openapi_url": None}
    app = FastAPI(title="CDC pipelines", dependencies=[Depends(get_user)], **no_docs)
    app.state.place = PageSources()
    app.include_router(router)
    app.include_router(action_routes.router)

    @app.middleware("http")
    async def headers(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        response = await call_next(request)
        response.headers.update(_HEADERS)
        return response

    @app.exception_handler(CdcError)
    async def failed(_: Request, error: CdcError) -> JSONResponse:
        return JSONResponse({"detail": error.message, "remedy": error.remedy}, status_code=503)

    @app.exception_handler(RequestValidationError)
    async def refused(_: Request, error: RequestValidationError) -> JSONResponse:
        return JSONResponse({"detail": describe_invalid_request(error)}, status_code=422)

    return app


@router.get("/")
def get_index_page() -> FileResponse:
    """Return the page."""
    return _static_file("index.html")


@router.get("/static/{name}")
def get_static_file(name: str) -> FileResponse:
    """Return a static file of the page."""
    return _static_file(name)


@router.get("/api/pipelines")
def get_pipelines(sources: PageSourcesDep, rights: UserRightsDep) -> dict[str, Any]:
    """Return every pipeline that the user may see, most severe first, and the databases that cannot be read."""
    shown, not_run, troubles = sources.databases.read_all()
    lines = [_views(one, rights).summarize() for one in shown if rights.can_see(one.dags)]
    files, unknown = group_unknown(one for one in sources.declared_tasks.list_all() if one.dag_id in rights.dags)
    not_run = [one for one in not_run if rights.can_see(one.dags)]
    lines += [views.not_run_view(one, rights.dags) for one in [*not_run, *files]]
    return {
        "counts": views.count_levels(lines),
        "pipelines": views.sort_by_severity(lines),
        "troubles": [_trouble_json(one, rights) for one in troubles if rights.can_see(one.dags)],
        "unknown": unknown,
    }


@router.get("/api/where")
def find_pipelines(
    sources: PageSourcesDep, rights: UserRightsDep, dag_id: str, run_id: str | None = None, task_id: str | None = None
) -> dict[str, Any]:
    """Return the pipelines of a DAG, of one of its runs, or of one of its tasks."""
    if dag_id not in rights.dags:
        raise HTTPException(404, "There is no such DAG")
    dags = sources.declared_tasks
    declared = dags.list_of_run(dag_id, run_id) if run_id else [one for one in dags.list_all() if one.dag_id == dag_id]
    wanted = [one for one in declared if task_id in (None, "", one.task_id)]
    names = {one.pipeline_name for one in wanted}
    shown, not_run, _ = sources.databases.read_all()
    lines = [_views(one, rights).summarize() for one in shown if one.overview.name in names and dag_id in one.dags]
    files, _ = group_unknown(wanted)
    waiting = [one for one in not_run if one.name in names and dag_id in one.dags]
    lines += [views.not_run_view(one, rights.dags) for one in [*waiting, *files]]
    return {"tasks": len(wanted), "pipelines": lines}


@router.get("/api/pipelines/{book}/{name}")
def get_pipeline(user: GetUserDep, pipeline: PipelineViewsDep) -> dict[str, Any]:
    """Return one pipeline, and what the user may do with it."""
    may_act = may_edit_any(user, pipeline.shown.dags)
    view = pipeline.describe()
    if view["groups"] is not None:
        _mark_retriable(pipeline, view["groups"]["shown"], may_act)
    view["requests"] = pipeline.request_views(_REQUESTS, may_act)
    return {
        **view,
        "may_act": may_act,
        "offers": action_routes.list_offers(user, pipeline) if may_act else [],
    }


@router.get("/api/pipelines/{book}/{name}/tables")
def get_tables(
    pipeline: PipelineViewsDep,
    page: PageDep,
    q: Annotated[str, Query(max_length=255)] = "",
    state: Words = None,
    trouble: bool = False,
    sort: Annotated[str, Query(pattern="^(" + "|".join(TABLE_ORDERS) + ")$")] = "name",
    desc: bool = False,
) -> dict[str, Any]:
    """Return a page of the pipeline's tables."""
    query = TableQuery(q, _split_words(state), trouble, sort, desc, page.start, page.stop - page.start)
    return table_views.tables_view(pipeline, query)


@router.get("/api/pipelines/{book}/{name}/table")
def get_table(user: GetUserDep, pipeline: PipelineViewsDep, label: TableLabel) -> dict[str, Any]:
    """Return one table as a whole."""
    database, _, table = label.partition(".")
    may_act = may_edit_any(user, pipeline.shown.dags)
    view = table_views.table_view(pipeline, database, table, with_conditions=may_act)
    if view is None:
        raise HTTPException(404, "The pipeline has no such table")
    _mark_retriable(pipeline, view["groups"], may_act)
    offers = action_routes.list_offers(user, pipeline, label) if may_act else []
    return {**view, "may_act": may_act, "offers": offers}


@router.get("/api/pipelines/{book}/{name}/groups")
def get_groups(user: GetUserDep, pipeline: PipelineViewsDep, page: PageDep, state: Words = None) -> dict[str, Any]:
    """Return a page of the chunk groups of the newest snapshot."""
    states, wanted = pipeline.group_states(), _split_words(state)
    lost = sorted(pipeline.lost_groups) if wanted == ["failed"] else None
    rows = pipeline.list_groups(lost, [] if lost is not None else wanted, page)
    view = pipeline.group_views(rows)
    _mark_retriable(pipeline, view, may_edit_any(user, pipeline.shown.dags))
    matching = sum(n for name, n in states.items() if not wanted or name in wanted)
    return {"total": sum(states.values()), "matching": matching, "states": states, "rows": view}


@router.get("/api/pipelines/{book}/{name}/events")
def get_events(
    pipeline: PipelineViewsDep,
    kind: Words = None,
    level: Words = None,
    table: TableLabel | None = None,
    attention: bool = False,
    before: int | None = None,
    limit: Limit = 50,
) -> dict[str, Any]:
    """Return a page of the pipeline's events, the newest first."""
    event_filter = EventFilter(_split_words(kind), _split_words(level), table, attention, before)
    rows = pipeline.reader.filter_events(pipeline.name, event_filter, limit + 1)
    return {
        "events": [event_view(row, pipeline.names, pipeline.commands) for row in rows[:limit]],
        "more": len(rows) > limit,
        "kinds": kinds_view(),
    }


@router.get("/api/pipelines/{book}/{name}/runs")
def get_runs(pipeline: PipelineViewsDep, before: int | None = None, limit: Limit = 20) -> dict[str, Any]:
    """Return runs of the stream, the newest first."""
    rows = pipeline.reader.newest_epochs(pipeline.name, limit + 1, before)
    return {"runs": [pipeline.run_view(row) for row in rows[:limit]], "more": len(rows) > limit}


@router.get("/api/pipelines/{book}/{name}/batches")
def get_batches(pipeline: PipelineViewsDep, limit: Limit = 20) -> dict[str, Any]:
    """Return the newest batches of the stream."""
    rows = pipeline.reader.last_batches(pipeline.name, limit)
    return {"batches": [batch_views.batch_view(row) for row in rows]}


@router.get("/api/pipelines/{book}/{name}/requests")
def get_requests(user: GetUserDep, pipeline: PipelineViewsDep, limit: Limit = 50) -> dict[str, Any]:
    """Return the newest control requests."""
    return {"requests": pipeline.request_views(limit, may_edit_any(user, pipeline.shown.dags))}


@router.get("/api/pipelines/{book}/{name}/chunks")
def get_chunks(
    pipeline: PipelineViewsDep, table: TableLabel | None = None, cells: Annotated[int, Query(ge=100, le=4000)] = 2000
) -> dict[str, Any]:
    """Return the map of chunks of the newest snapshot, or of one of its tables."""
    if table is None:
        return pipeline.chunk_map(None, cells)
    database, _, name = table.partition(".")
    chunks = pipeline.read_progress().table_range((database, name))
    if chunks is None:
        raise HTTPException(404, "The table has no chunks")
    return pipeline.chunk_map(chunks, cells)


@router.get("/api/pipelines/{book}/{name}/chunks/{no}")
def get_chunk(pipeline: PipelineViewsDep, no: int, generation: int) -> dict[str, Any]:
    """Return one chunk."""
    rows = pipeline.reader.chunk_with_group(pipeline.name, generation, no)
    if rows is None:
        raise HTTPException(404, "There is no such chunk")
    return pipeline.chunk_view(*rows)


@router.get("/api/pipelines/{book}/{name}/lag")
def get_lag(pipeline: PipelineViewsDep, minutes: Annotated[int, Query(ge=5, le=7 * 24 * 60)] = 60) -> dict[str, Any]:
    """Return the lag over time."""
    return batch_views.lag_view(pipeline.reader, pipeline.name, minutes, datetime.now(UTC))


def _views(shown: ShownPipeline, rights: UserRights) -> PipelineViews:
    return PipelineViews(shown, TaskNames(shown.tasks, rights.dags))


def _mark_retriable(pipeline: PipelineViews, groups: list[dict[str, Any]], may_act: bool) -> None:
    """Mark the groups that the user may retry: without a reader, or with a failed task."""
    snapshot = pipeline.shown.overview.snapshot
    if not may_act or snapshot is None or snapshot.state == "done":
        return
    retriable = set(action_routes.list_retriable_groups(pipeline.shown))
    for group in groups:
        group["retry"] = group["state"] == "failed" or (group["state"] != "done" and group["no"] in retriable)


def _split_words(text: str | None) -> list[str]:
    return text.split(",") if text else []


def _static_file(name: str) -> FileResponse:
    path = _STATIC / name
    if path.suffix not in _TYPES or path.parent != _STATIC or not path.is_file():
        raise HTTPException(404, "There is no such file")
    return FileResponse(path, media_type=_TYPES[path.suffix])


def _trouble_json(trouble: DatabaseTrouble, rights: UserRights) -> dict[str, Any]:
    dags = sorted(rights.dags.intersection(trouble.dags))
    remedy = PipelineCommands(None, None).complete_text(trouble.remedy)
    return {"where": trouble.label, "message": trouble.message, "remedy": remedy, "dags": dags}
