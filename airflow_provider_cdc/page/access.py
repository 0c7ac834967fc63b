"""Who may see and do what. Airflow protects no application of a plugin, so each route depends on what is here."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import Depends


@dataclass(frozen=True)
class Rights:
    """What a user may see.

    :param dags: ids of the DAGs that the user may read.
    :param all: whether the user may see pipelines of no DAG: those who may read Airflow's connections, since it takes a
        connection to reach their bookkeeping.
    """

    dags: frozenset[str]
    all: bool

    def sees(self, dags: Collection[str]) -> bool:
        """Whether a pipeline of these DAGs may be shown: one of them is enough."""
        return bool(self.dags.intersection(dags)) if dags else self.all


def _rights(user: GetUserDep) -> Rights:
    manager: Any = get_auth_manager()
    dags = manager.get_authorized_dag_ids(user=user, method="GET")
    return Rights(frozenset(dags), bool(manager.is_authorized_connection(method="GET", user=user)))


def may_act(user: Any, dags: Collection[str]) -> bool:
    """Whether a user may act on a pipeline: who may edit one of its DAGs; without a DAG, who may edit connections."""
    manager: Any = get_auth_manager()
    if dags:
        return bool(set(manager.get_authorized_dag_ids(user=user, method="PUT")).intersection(dags))
    return bool(manager.is_authorized_connection(method="PUT", user=user))


#: The rights of the user of a request; 401 without one.
RightsDep = Annotated[Rights, Depends(_rights)]
