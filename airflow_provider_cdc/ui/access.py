"""Who may see and do what. Airflow protects no application of a plugin, so each route depends on what is here."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.models.dag import DagModel
from fastapi import Depends


@dataclass(frozen=True)
class UserRights:
    """What a user may see.

    :param dags: ids of the DAGs that the user may read.
    :param sees_without_dag: whether the user may see pipelines of no DAG: those who may read Airflow's connections,
        since it takes a connection to reach their bookkeeping.
    """

    dags: frozenset[str]
    sees_without_dag: bool

    def can_see(self, dags: Collection[str]) -> bool:
        """Whether a pipeline of these DAGs may be shown: one of them is enough."""
        return bool(self.dags.intersection(dags)) if dags else self.sees_without_dag


def _user_rights(user: GetUserDep) -> UserRights:
    manager: Any = get_auth_manager()
    dags = manager.get_authorized_dag_ids(user=user, method="GET")
    return UserRights(frozenset(dags), bool(manager.is_authorized_connection(method="GET", user=user)))


def may_edit(user: Any, dags: Collection[str]) -> bool:
    """Whether a user may edit task instances of one of these DAGs, as clearing takes; without a DAG, connections."""
    manager: Any = get_auth_manager()
    if dags:
        return any(_is_authorized(user, dag, "PUT", DagAccessEntity.TASK_INSTANCE) for dag in dags)
    return bool(manager.is_authorized_connection(method="PUT", user=user))


def may_trigger(user: Any, dags: Collection[str]) -> bool:
    """Whether a user may start a run of one of these DAGs."""
    return any(_is_authorized(user, dag, "POST", DagAccessEntity.RUN) for dag in dags)


def _is_authorized(user: Any, dag: str, method: Any, entity: DagAccessEntity) -> bool:
    details = DagDetails(id=dag, team_name=DagModel.get_team_name(dag))
    return bool(get_auth_manager().is_authorized_dag(method=method, access_entity=entity, details=details, user=user))


#: The rights of the user of a request; 401 without one.
UserRightsDep = Annotated[UserRights, Depends(_user_rights)]
