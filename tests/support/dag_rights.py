"""Airflow's simple auth manager, but with rights DAG by DAG, as others have them (FAB, Keycloak)."""

from __future__ import annotations

from typing import Any

from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

#: Who may do what with one DAG only; names of users, and the DAG and methods.
ONE_DAG = {"stranger": ("elsewhere", {"GET", "PUT", "POST", "DELETE"})}


class DagRights(SimpleAuthManager):
    """Users of :data:`ONE_DAG` have that DAG; the others are as in the simple auth manager."""

    def is_authorized_dag(self, *, method: Any, user: Any, access_entity: Any = None, details: Any = None) -> bool:
        if user.get_name() in ONE_DAG:
            dag, methods = ONE_DAG[user.get_name()]
            return details is not None and details.id == dag and method in methods
        return super().is_authorized_dag(method=method, user=user, access_entity=access_entity, details=details)
