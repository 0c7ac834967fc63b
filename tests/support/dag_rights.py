"""Airflow's simple auth manager, but with rights DAG by DAG, as others have them (FAB, Keycloak)."""

from __future__ import annotations

from typing import Any

from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

#: Who may do everything with some DAGs, and nothing with others; names of users, and the DAGs.
SOME_DAGS = {"stranger": {"elsewhere", "mended"}}


class DagRights(SimpleAuthManager):
    """Users of :data:`SOME_DAGS` have those; the others are as in the simple auth manager."""

    def is_authorized_dag(self, *, method: Any, user: Any, access_entity: Any = None, details: Any = None) -> bool:
        if user.get_name() in SOME_DAGS:
            return details is not None and details.id in SOME_DAGS[user.get_name()]
        return super().is_authorized_dag(method=method, user=user, access_entity=access_entity, details=details)
