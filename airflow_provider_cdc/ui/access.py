"""Who may see and do what. Airflow does not protect a plugin's application, so every route depends on this module."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.configuration import conf
from airflow.models.dag import DagModel
from fastapi import Depends, HTTPException, Path, Request

from airflow_provider_cdc.airflow.hooks.connections import resolve_connection
from airflow_provider_cdc.ui.declared_tasks import DeclaredTasks
from airflow_provider_cdc.ui.state_databases import PageDatabases, ShownPipeline, split_setting


@dataclass(frozen=True)
class UserRights:
    """What a user may see.

    :param dags: ids of the DAGs that the user may read.
    :param sees_without_dag: whether the user may see pipelines that are in no DAG. This applies to users who may read
        Airflow's connections, because a connection is needed to reach the pipelines' state database.
    """

    dags: frozenset[str]
    sees_without_dag: bool

    def can_see(self, dags: Collection[str]) -> bool:
        """Return whether a pipeline of these DAGs may be shown. The right to read one of them is enough."""
        return bool(self.dags.intersection(dags)) if dags else self.sees_without_dag


def _user_rights(user: GetUserDep) -> UserRights:
    manager: Any = get_auth_manager()
    dags = manager.get_authorized_dag_ids(user=user, method="GET")
    return UserRights(frozenset(dags), bool(manager.is_authorized_connection(method="GET", user=user)))


def may_edit_any(user: Any, dags: Collection[str]) -> bool:
    """Return whether a user may edit task instances (as for clearing) of one of these DAGs, or connections if there is
    no DAG.
    """
    manager: Any = get_auth_manager()
    if dags:
        return any(_is_authorized(user, dag, "PUT", DagAccessEntity.TASK_INSTANCE) for dag in dags)
    return bool(manager.is_authorized_connection(method="PUT", user=user))


def may_trigger(user: Any, dags: Collection[str]) -> bool:
    """Return whether a user may start a run of one of these DAGs."""
    return any(_is_authorized(user, dag, "POST", DagAccessEntity.RUN) for dag in dags)


def _is_authorized(user: Any, dag: str, method: Any, entity: DagAccessEntity) -> bool:
    details = DagDetails(id=dag, team_name=DagModel.get_team_name(dag))
    return bool(get_auth_manager().is_authorized_dag(method=method, access_entity=entity, details=details, user=user))


#: The rights of the request's user. The response is 401 if there is no user.
UserRightsDep = Annotated[UserRights, Depends(_user_rights)]


class PageSources:
    """What the page shows: the tasks that the DAGs of this Airflow declare, and the state databases."""

    def __init__(self) -> None:
        self.declared_tasks = DeclaredTasks()
        self.databases = PageDatabases(
            self.declared_tasks.list_all,
            lambda: split_setting(conf.get("cdc", "bookkeeping", fallback="")),
            resolve_connection,
        )


def _page_sources(request: Request) -> PageSources:
    sources: PageSources = request.app.state.place
    return sources


PageSourcesDep = Annotated[PageSources, Depends(_page_sources)]


def _find_shown_pipeline(
    sources: PageSourcesDep,
    rights: UserRightsDep,
    book: Annotated[str, Path(pattern="^[0-9a-f]{12}$")],
    name: Annotated[str, Path(max_length=64)],
) -> ShownPipeline:
    """Return the pipeline of a route. One that the user may not see looks like one that does not exist."""
    shown = sources.databases.find_pipeline(book, name)
    if shown is None or not rights.can_see(shown.dags):
        raise HTTPException(404, "There is no such pipeline")
    return shown


ShownPipelineDep = Annotated[ShownPipeline, Depends(_find_shown_pipeline)]
