"""The pipeline that a request is about, if its user may see it."""

from __future__ import annotations

import threading
from typing import Annotated

from fastapi import Depends, HTTPException, Path, Request

from airflow_provider_cdc.ui.access import RightsDep
from airflow_provider_cdc.ui.books import Books, Shown, settings
from airflow_provider_cdc.ui.declared import Declarations

BookKey = Annotated[str, Path(pattern="^[0-9a-f]{12}$")]
Name = Annotated[str, Path(max_length=64)]


class Place:
    """The databases and the DAGs of this Airflow, looked for once they are asked for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._databases: Books | None = None
        self._declared_tasks: Declarations | None = None

    @property
    def declared_tasks(self) -> Declarations:
        """What the DAGs have."""
        with self._lock:
            if self._declared_tasks is None:
                from airflow.utils.session import create_session

                self._declared_tasks = Declarations(lambda: create_session(scoped=False))
            return self._declared_tasks

    @property
    def databases(self) -> Books:
        """The databases."""
        declared_tasks = self.declared_tasks
        with self._lock:
            if self._databases is None:
                from airflow.configuration import conf

                from airflow_provider_cdc.airflow.hooks.connections import resolve

                self._databases = Books(
                    declared_tasks.list_all, lambda: settings(conf.get("cdc", "bookkeeping", fallback="")), resolve
                )
            return self._databases


def _place(request: Request) -> Place:
    sources: Place = request.app.state.place
    return sources


PlaceDep = Annotated[Place, Depends(_place)]


def _found(sources: PlaceDep, rights: RightsDep, book: BookKey, name: Name) -> Shown:
    """The pipeline of a route. One that the user may not see is not told from one that does not exist."""
    shown = sources.databases.find_pipeline(book, name)
    if shown is None or not rights.can_see(shown.dags):
        raise HTTPException(404, "There is no such pipeline")
    return shown


ShownDep = Annotated[Shown, Depends(_found)]
