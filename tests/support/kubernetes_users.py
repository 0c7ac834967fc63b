"""The users of the tests' Kubernetes: how they connect, and what they may do."""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import kubernetes as api

from tests.support.processes import wait_for

#: The role that Airflow's Helm chart gives to its workers, so that they may launch pods.
AIRFLOW_ROLE: list[dict[str, Any]] = [
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "list", "get", "patch", "watch", "delete"]},
    {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
    {"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["create", "get"]},
    {"apiGroups": [""], "resources": ["events"], "verbs": ["list"]},
]
_ROLE = "pod-launcher"


class KubernetesUsers:
    """An administrator, and user ``airflow``, who has in one namespace what Airflow's Helm chart gives it.

    :ivar address: of the API server.
    :ivar authority: file with the certificate that signed the API server's.
    :ivar tokens: by user.
    """

    namespace = "cdc"

    def __init__(self) -> None:
        self.address = ""
        self.authority = Path()
        self.tokens = {name: secrets.token_hex(16) for name in ("admin", "airflow")}

    def kubeconfig(self, user: str = "airflow") -> dict[str, Any]:
        """Return the configuration of a client, of user ``airflow`` or ``admin``."""
        authority = base64.b64encode(self.authority.read_bytes()).decode()
        context = {"cluster": "cdc", "user": user, "namespace": self.namespace}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "cdc", "cluster": {"server": self.address, "certificate-authority-data": authority}}],
            "users": [{"name": user, "user": {"token": self.tokens[user]}}],
            "contexts": [{"name": user, "context": context}],
            "current-context": user,
        }

    def connection(self, user: str = "airflow", **extra: Any) -> str:
        """Return a connection for Airflow's hook, as JSON."""
        values = {"kube_config": json.dumps(self.kubeconfig(user)), "namespace": self.namespace, **extra}
        return json.dumps({"conn_type": "kubernetes", "extra": values})

    def client(self, user: str = "admin") -> Any:
        """Return a ``kubernetes.client.CoreV1Api`` of its own."""
        return api.client.CoreV1Api(self._connected(user))

    def _connected(self, user: str) -> Any:
        return api.config.new_client_from_config_dict(self.kubeconfig(user))

    def pods(self) -> list[Any]:
        """Return all pods of the namespace, the oldest first."""
        found = self.client().list_namespaced_pod(self.namespace).items
        return sorted(found, key=lambda pod: (pod.metadata.creation_timestamp, pod.metadata.name))

    def delete_pods(self) -> None:
        """Delete all pods of the namespace at once, and wait until they are gone."""
        self.client().delete_collection_namespaced_pod(self.namespace, grace_period_seconds=0)
        wait_for("pods are gone", lambda: not self.pods(), 60)

    # ------------------------------------------------------------ rights

    def make_namespace(self) -> None:
        """Make the namespace, and the role in it."""
        self.client().create_namespace({"metadata": {"name": self.namespace}})
        rights = self._rights()
        name = {"metadata": {"name": _ROLE}}
        rights.create_namespaced_role(self.namespace, {**name, "rules": AIRFLOW_ROLE})
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": _ROLE}
        binding = {**name, "roleRef": reference, "subjects": [{"kind": "User", "name": "airflow"}]}
        rights.create_namespaced_role_binding(self.namespace, binding)

    def _rights(self) -> Any:
        return api.client.RbacAuthorizationV1Api(self._connected("admin"))

    @contextmanager
    def allow(self, resource: str, *verbs: str, group: str = "") -> Iterator[None]:
        """Let ``airflow`` meanwhile do more: ``allow("secrets", "get", "list")``."""
        rules = [*AIRFLOW_ROLE, {"apiGroups": [group], "resources": [resource], "verbs": list(verbs)}]
        with self._changed_role(rules, [(group, resource, verb, True) for verb in verbs]):
            yield

    @contextmanager
    def forbid(self, resource: str, *verbs: str) -> Iterator[None]:
        """Let ``airflow`` meanwhile do less: ``forbid("pods/exec")``, or only some verbs of it."""
        rules, gone = [], []
        for rule in AIRFLOW_ROLE:
            if rule["resources"] == [resource]:
                gone += [verb for verb in rule["verbs"] if not verbs or verb in verbs]
                rule = {**rule, "verbs": [verb for verb in rule["verbs"] if verb not in gone]}
            if rule["verbs"]:
                rules.append(rule)
        assert gone, f"the role has no right to {resource}"
        with self._changed_role(rules, [("", resource, verb, False) for verb in gone]):
            yield

    @contextmanager
    def _changed_role(self, rules: list[dict[str, Any]], expected: list[tuple[str, str, str, bool]]) -> Iterator[None]:
        self._set_role(rules, expected)
        try:
            yield
        finally:
            self._set_role(AIRFLOW_ROLE, [(*right, not allowed) for *right, allowed in expected])  # type: ignore[misc]

    def _set_role(self, rules: list[dict[str, Any]], expected: list[tuple[str, str, str, bool]]) -> None:
        self._rights().patch_namespaced_role(_ROLE, self.namespace, {"rules": rules})
        reviews = api.client.AuthorizationV1Api(self._connected("airflow"))

        def known(group: str, resource: str, verb: str, allowed: bool) -> bool:
            name, _, part = resource.partition("/")
            asked = {"namespace": self.namespace, "group": group, "resource": name, "subresource": part, "verb": verb}
            review = reviews.create_self_subject_access_review({"spec": {"resourceAttributes": asked}})
            return cast(bool, review.status.allowed) == allowed

        wait_for("the role is known", lambda: all(known(*right) for right in expected), 30)
