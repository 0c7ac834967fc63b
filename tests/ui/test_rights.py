"""Who sees what: every route, found by introspection, as nobody and as users with several rights."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute

from airflow_provider_cdc.ui.action_rules import ACTIONS
from tests.ui import books
from tests.ui.conftest import Site

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(600)]


def routes() -> list[BaseRoute]:
    from airflow_provider_cdc.ui.app import make_app

    return make_app().routes


def questions() -> list[APIRoute]:
    """Those that change nothing."""
    return [route for route in routes() if isinstance(route, APIRoute) and route.methods == {"GET"}]


def path_of(route: BaseRoute, site: Site, pipeline: str = "shop", act: str = "stop") -> str:
    assert isinstance(route, APIRoute), f"{route} is no route that depends on Airflow's user"
    values = {"book": site.book, "no": "0", "act": act}
    values["name"] = "main.js" if route.path.startswith("/static") else pipeline
    return route.path.format(**values) + "?generation=1&dag_id=shop"


def test_nobody(site: Site) -> None:
    seen = 0
    for route in routes():
        assert isinstance(route, APIRoute)
        for method in sorted(route.methods):
            address = f"{site.url}{path_of(route, site)}"
            for headers in ({}, {"Authorization": "Bearer forged"}, {"Cookie": "_token=forged"}):
                answer = httpx.request(method, address, headers=headers, timeout=30)
                assert answer.status_code in (401, 403), (method, route.path, headers, answer.text)
                seen += 1
    assert seen >= 20
    for documentation in ("/docs", "/redoc", "/openapi.json"):
        assert site.get(documentation, user=None).status_code in (401, 403, 404)


def test_everybody_who_may_see_it(site: Site) -> None:
    for user in ("root", "viewer", "editor"):
        for route in questions():
            answer = site.get(path_of(route, site), user)
            assert answer.status_code == 200, (user, route, answer.text)
            assert "script-src 'self'" in answer.headers["content-security-policy"]


def test_who_has_rights_for_another_dag(site: Site) -> None:
    """A pipeline that is not theirs is not told from one that there is not."""
    for route in routes():
        assert isinstance(route, APIRoute)
        if "{name}" in route.path and not route.path.startswith("/static"):
            for pipeline in ("shop", "by_hand", "no_such"):
                for method in route.methods:
                    answer = site.ask(method, path_of(route, site, pipeline), "stranger", {"X-CDC-Page": "1"})
                    said = answer.status_code, answer.json()
                    assert said == (404, {"detail": "There is no such pipeline"}), pipeline
            if "GET" in route.methods:
                assert site.get(path_of(route, site, "elsewhere"), "stranger").status_code == 200
    found = site.get("/api/pipelines", "stranger").json()
    assert {line["name"]: line["dags"] for line in found["pipelines"]} == {
        "elsewhere": ["elsewhere"],
        "acted": ["mended"],
    }
    assert found["troubles"] == []
    assert found["unknown"] == []
    assert site.get("/api/where?dag_id=shop", "stranger").status_code == 404


def test_pipelines_of_no_dag(site: Site) -> None:
    """Those made by the command line are for those who may read connections, which lead to their bookkeeping."""
    names = {}
    for user in ("root", "viewer", "editor"):
        found = site.get("/api/pipelines", user).json()
        names[user] = {line["name"] for line in found["pipelines"]}
        assert bool([t for t in found["troubles"] if t["where"] == "cdc_away"]) == (user == "root")
    assert names["root"] >= {"shop", "elsewhere", "by_hand", "acted"}
    assert names["viewer"] == names["editor"] == {"shop", "elsewhere", "acted"}


def test_acts(site: Site) -> None:
    """It takes the right to edit the DAG, and nothing of another site; Airflow's audit log has the name."""
    routed = [route for route in routes() if isinstance(route, APIRoute) and route.methods != {"GET"}]
    assert [route.path for route in routed] == ["/api/pipelines/{book}/{name}/acts/{act}"]
    for act in ACTIONS:
        body: dict[str, Any] = {"group": 0, "table": "shop.orders", "condition": "id = 1", "id": 1}
        for route in routed:
            assert route.methods == {"POST"}
            for pipeline, user in (("shop", "viewer"), ("by_hand", "viewer"), ("by_hand", "editor")):
                for dry_run in (True, False):
                    asked = {**body, "dry_run": dry_run}
                    address = path_of(route, site, pipeline, act)
                    answer = site.ask("POST", address, user, {"X-CDC-Page": "1"}, asked)
                    assert answer.status_code == (403 if pipeline == "shop" else 404), (user, answer.text)
            for forged in (
                {},
                {"X-CDC-Page": "1", "Origin": "https://evil.example"},
                {"X-CDC-Page": "1", "Origin": "null"},
            ):
                answer = site.ask("POST", path_of(route, site, act=act), "root", forged, body)
                assert (answer.status_code, answer.json()["detail"]) == (
                    403,
                    "This request does not come from the page",
                )
    assert site.store.last_requests("shop") == []
    assert site.get(f"/api/pipelines/{site.book}/shop", "viewer").json()["offers"] == []
    assert site.act("shop", "no_such").status_code == 404

    site.store.add_event("shop", "restart", "the server was restarted")
    [event] = site.store.last_events("shop", 1)
    assert site.act("shop", "acknowledge", "editor", id=event.id).json() == {"done": True}
    assert site.act("shop", "acknowledge", "root", id=event.id).status_code == 409
    [event] = site.store.last_events("shop", 1)
    assert event.acknowledged_by == "editor"
    logged = site.airflow.client.get("/eventLogs", event="cdc_acknowledge")["event_logs"]
    mine = [one for one in logged if json.loads(one["extra"])["id"] == event.id]
    assert [(one["owner"], one["dag_id"]) for one in mine] == [("editor", "shop")]


def test_what_is_wanted_of_a_stream(site: Site) -> None:
    """Who may edit another DAG of the pipeline does nothing about its stream; conditions are for those who may act."""
    number = site.store.add_request("acted", "reread", "shop.orders", "root", "id >= 4711")
    seen = {user: "4711" in site.get(f"/api/pipelines/{site.book}/acted", user).text for user in ("viewer", "editor")}
    assert seen == {"viewer": False, "editor": True}
    missing = "You need the right to edit task instances of acted"
    answer = site.act("acted", "withdraw", "stranger", id=number)
    assert (answer.status_code, answer.json()["detail"]) == (403, missing)
    assert site.act("acted", "withdraw", "stranger", id=number, dry_run=True).json()["why_not"] == missing
    assert site.act("acted", "withdraw", "editor", id=number).json() == {"done": True}


def test_no_secret(site: Site) -> None:
    """Addresses of databases hold passwords."""
    books.read(site.store, "by_hand", 0)
    said = [site.get(path_of(route, site, "by_hand")).text for route in questions()]
    assert any("cdc_away" in text for text in said)
    for text in said:
        assert "sesame" not in text


@pytest.mark.parametrize("name", ["..%2fapp.py", "%2e%2e%2fapp.py", "no.js", "", "main.js%00", "..%5capp.py"])
def test_no_other_file(site: Site, name: str) -> None:
    answer = site.get(f"/static/{name}")
    assert answer.status_code in (404, 405), answer.text


def test_tabs(site: Site) -> None:
    """The plugin is known to Airflow, and a tab leads to the pipelines of its DAG.

    So does a link beside each task, of which none has run yet.
    """
    plugins = site.airflow.client.get("/plugins", limit=100)["plugins"]
    views = next(plugin for plugin in plugins if plugin["name"] == "cdc")["external_views"]
    assert {view["destination"] for view in views} == {"nav", "dag", "dag_run", "task_instance"}
    assert site.airflow.client.get("/plugins/importErrors")["import_errors"] == []

    def where(query: str) -> tuple[int, list[str]]:
        found = site.get(f"/api/where?{query}").json()
        return found["tasks"], [line["name"] for line in found["pipelines"]]

    assert where("dag_id=shop") == (5, ["shop"])
    assert where("dag_id=shop&run_id=r&task_id=shop.stream&map_index=-1") == (1, ["shop"])
    assert where("dag_id=shop&task_id=no_such") == (0, [])
    assert where("dag_id=nothing_of_ours") == (0, [])
    assert where("dag_id=templated") == (1, [])
    found = site.get("/api/pipelines").json()
    assert found["unknown"] == [{"dag": "templated", "task": "preflight"}]
    assert [(t["dags"], "state.conn_id" in t["remedy"]) for t in found["troubles"] if t["dags"]] == [
        (["beside_the_sink"], True)
    ]


def test_links(site: Site) -> None:
    """Each of our tasks, a sensor and a mapped one among them, has a link to its pipeline before it has run."""
    client = site.airflow.client
    run = client.trigger("elsewhere")
    tasks = ("preflight", "plan_chunks", "snapshot", "snapshot_complete", "stream")
    for task in tasks:
        links = client.extra_links("elsewhere", run, f"elsewhere.{task}")
        address = links["CDC page"] or ""
        assert address.startswith("/cdc/?dag_id=elsewhere&run_id="), links
        found = site.get(f"/api/where?{address.partition('?')[2]}").json()
        assert (found["tasks"], [line["name"] for line in found["pipelines"]]) == (1, ["elsewhere"]), task
        assert site.airflow.client.get("/plugins/importErrors")["import_errors"] == []
