"""The pipeline of a request, if the user may see it."""

from __future__ import annotations

import threading
from typing import Annotated

from fastapi import Depends, HTTPException, Path, Request

from airflow_provider_cdc.ui.access import UserRightsDep
from airflow_provider_cdc.ui.declared_tasks import DeclaredTasks
from airflow_provider_cdc.ui.state_databases import PageDatabases, ShownPipeline, split_setting

DatabaseKey = Annotated[str, Path(pattern="^[0-9a-f]{12}$")]
PipelineName = Annotated[str, Path(max_length=64)]


class PageSources:
    """The databases and the DAGs of this Airflow, which are looked up on first use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._databases: PageDatabases | None = None
        self._declared_tasks: DeclaredTasks | None = None

    @property
    def declared_tasks(self) -> DeclaredTasks:
        """Pipelines that the DAGs declare."""
        with self._lock:
            if self._declared_tasks is None:
                from airflow.utils.session import create_session

                self._declared_tasks = DeclaredTasks(lambda: create_session(scoped=False))
            return self._declared_tasks

    @property
    def databases(self) -> PageDatabases:
        """State databases that the page shows."""
        declared_tasks = self.declared_tasks
        with self._lock:
            if self._databases is None:
                from airflow.configuration import conf

                from airflow_provider_cdc.airflow.hooks.connections import resolve_connection

                self._databases = PageDatabases(
                    declared_tasks.list_all,
                    lambda: split_setting(conf.get("cdc", "bookkeeping", fallback="")),
                    resolve_connection,
                )
            return self._databases


def _page_sources(request: Request) -> PageSources:
    sources: PageSources = request.app.state.place
    return sources


PageSourcesDep = Annotated[PageSources, Depends(_page_sources)]


def _find_shown_pipeline(
    sources: PageSourcesDep, rights: UserRightsDep, book: DatabaseKey, name: PipelineName
) -> ShownPipeline:
    """Return the pipeline of a route. One that the user may not see looks like one that does not exist."""
    shown = sources.databases.find_pipeline(book, name)
    if shown is None or not rights.can_see(shown.dags):
        raise HTTPException(404, "There is no such pipeline")
    return shown


ShownPipelineDep = Annotated[ShownPipeline, Depends(_find_shown_pipeline)]
