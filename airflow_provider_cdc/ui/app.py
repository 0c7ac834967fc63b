"""The page's application. Every route, including those of static files, requires an Airflow user."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path as File
from typing import Annotated, Any

from airflow.api_fastapi.core_api.security import GetUserDep, get_user
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.responses import FileResponse, JSONResponse

from airflow_provider_cdc.model.errors import CdcError
from airflow_provider_cdc.ui import action_routes, views
from airflow_provider_cdc.ui.access import (
    PageSources,
    PageSourcesDep,
    ShownPipelineDep,
    UserRights,
    UserRightsDep,
    may_edit_any,
)
from airflow_provider_cdc.ui.state_databases import DatabaseTrouble

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
#: Chunk groups of a request, as numbers separated by commas.
GroupNumbers = Annotated[str | None, Query(max_length=8000, pattern=r"^\d+(,\d+)*$")]


router = APIRouter()


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
    shown, troubles = sources.databases.read_all()
    lines = [views.pipeline_summary(one, rights.dags) for one in shown if rights.can_see(one.dags)]
    unknown = [one for one in sources.declared_tasks.list_all() if not one.pipeline_name and one.dag_id in rights.dags]
    return {
        "pipelines": views.sort_by_severity(lines),
        "troubles": [_trouble_json(one, rights) for one in troubles if rights.can_see(one.dags)],
        "unknown": [{"dag": one.dag_id, "task": one.task_id} for one in unknown],
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
    shown = [one for one in sources.databases.read_all()[0] if one.overview.name in names and dag_id in one.dags]
    return {"tasks": len(wanted), "pipelines": [views.pipeline_summary(one, rights.dags) for one in shown]}


@router.get("/api/pipelines/{book}/{name}")
def get_pipeline(user: GetUserDep, rights: UserRightsDep, shown: ShownPipelineDep) -> dict[str, Any]:
    """Return one pipeline, and what the user may do with it."""
    reader, may_act = shown.database.open_reader(), may_edit_any(user, shown.dags)
    view = views.pipeline_view(reader, shown, rights.dags)
    snapshot_incomplete = shown.overview.snapshot is not None and shown.overview.snapshot.state != "done"
    retriable = set(action_routes.list_retriable_groups(shown)) if may_act and snapshot_incomplete else set()
    for group in view["groups_list"]:
        group["retry"] = may_act and (
            group["state"] == "failed" or (group["state"] != "done" and group["no"] in retriable)
        )
    view["requests"] = views.requests_view(reader, shown.overview.name, may_act)
    return {**view, "may_act": may_act, "offers": action_routes.list_offers(user, shown) if may_act else []}


@router.get("/api/pipelines/{book}/{name}/chunks")
def get_chunks(shown: ShownPipelineDep, generation: int, groups: GroupNumbers = None) -> dict[str, Any]:
    """Return the map of chunks, or some groups of it."""
    wanted = None if groups is None else [int(number) for number in groups.split(",")]
    return views.chunks_view(shown.database.open_reader(), shown, generation, wanted)


@router.get("/api/pipelines/{book}/{name}/chunks/{no}")
def get_chunk(shown: ShownPipelineDep, no: int, generation: int) -> dict[str, Any]:
    """Return one chunk."""
    rows = shown.database.open_reader().chunk_with_group(shown.overview.name, generation, no)
    if rows is None:
        raise HTTPException(404, "There is no such chunk")
    return views.chunk_view(*rows)


@router.get("/api/pipelines/{book}/{name}/lag")
def get_lag(shown: ShownPipelineDep, minutes: Annotated[int, Query(ge=5, le=7 * 24 * 60)] = 60) -> dict[str, Any]:
    """Return the lag over time."""
    return views.lag_view(shown.database.open_reader(), shown.overview.name, minutes, datetime.now(UTC))


def _static_file(name: str) -> FileResponse:
    path = _STATIC / name
    if path.suffix not in _TYPES or path.parent != _STATIC or not path.is_file():
        raise HTTPException(404, "There is no such file")
    return FileResponse(path, media_type=_TYPES[path.suffix])


def _trouble_json(trouble: DatabaseTrouble, rights: UserRights) -> dict[str, Any]:
    dags = sorted(rights.dags.intersection(trouble.dags))
    return {"where": trouble.label, "message": trouble.message, "remedy": trouble.remedy, "dags": dags}
