"""An Airflow with users of several rights, whose pipelines are written into the bookkeeping and do not run."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from airflow_provider_cdc.state import StateDatabase
from airflow_provider_cdc.ui.state_databases import database_key
from tests.support.airflow_processes import Airflow
from tests.support.browser import chromium
from tests.ui import books

if TYPE_CHECKING:
    from playwright.sync_api import Browser

#: Role of each user; everybody's password is the name. `stranger` has rights for two DAGs alone (`dag_rights`).
USERS = {"root": "ADMIN", "viewer": "VIEWER", "editor": "USER", "stranger": "USER"}


@dataclasses.dataclass
class Site:
    """The Airflow, and the bookkeeping that the connection ``cdc_books`` leads to."""

    airflow: Airflow
    store: StateDatabase
    file: Path

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"{self.airflow.url}/cdc"

    @property
    def book(self) -> str:
        """The bookkeeping's name in addresses of the page."""
        return database_key(self.store._engine.url)

    def login(self, user: str) -> str:
        """A token of a user."""
        answer = httpx.post(f"{self.airflow.url}/auth/token", json={"username": user, "password": user}, timeout=30)
        return str(answer.raise_for_status().json()["access_token"])

    def get(self, path: str, user: str | None = "root") -> httpx.Response:
        """Ask the page for something, as a user or as nobody."""
        return self.ask("GET", path, user)

    def ask(
        self, method: str, path: str, user: str | None, headers: Mapping[str, str] | None = None, body: Any = None
    ) -> httpx.Response:
        """The same, whatever is done."""
        login = {"Authorization": f"Bearer {self.login(user)}"} if user else {}
        return httpx.request(method, f"{self.url}{path}", headers={**login, **(headers or {})}, json=body, timeout=30)

    def act(self, pipeline: str, act: str, user: str = "root", **about: Any) -> httpx.Response:
        """Do something, as the page does."""
        own = {"X-CDC-Page": "1", "Origin": self.airflow.url}
        return self.ask("POST", f"/api/pipelines/{self.book}/{pipeline}/acts/{act}", user, own, about)


@pytest.fixture(scope="package")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("page")
    file, passwords = folder / "books.db", folder / "passwords.json"
    passwords.write_text(json.dumps({user: user for user in USERS}))
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(contextlib.closing(StateDatabase.open(f"sqlite:///{file}", migrate=True)))
        for name in ("shop", "elsewhere", "by_hand", "acted"):
            books.plan(store, name, tables={"orders": 8, "customer": 4}, per_group=4)
        airflow = Airflow(
            Path(__file__).parent / "dags",
            connections={"cdc_books": f"sqlite:///{file}", "cdc_away": "postgres://u:sesame@127.0.0.1:1/books"},
            env={"CDC_LAKE": str(folder / "lake")},
            config={
                "core": {
                    "auth_manager": "tests.support.dag_rights.DagRights",
                    "simple_auth_manager_all_admins": False,
                    "simple_auth_manager_users": ",".join(f"{user}:{role}" for user, role in USERS.items()),
                    "simple_auth_manager_passwords_file": passwords,
                },
                "cdc": {"bookkeeping": "cdc_books, cdc_away"},
            },
            login=("root", "root"),
            only=("api-server", "dag-processor"),
        )
        stack.enter_context(airflow)
        for dag in (
            "shop",
            "elsewhere",
            "acted",
            "compared",
            "mended",
            "templated",
            "beside_the_sink",
            "nothing_of_ours",
        ):
            airflow.client.wait_for_dag(dag, 120)
        yield Site(airflow, store, file)


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found
