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
    about_table = "&table=shop.orders" if route.path.endswith("/table") else ""
    return route.path.format(**values) + f"?generation=1&dag_id=shop{about_table}"


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
    assert "not_run_yet" not in {line["phase"] for line in found["pipelines"]}
    assert site.get("/api/where?dag_id=shop", "stranger").status_code == 404


def test_pipelines_of_no_dag(site: Site) -> None:
    """Those made by the command line are for those who may read connections, which lead to their bookkeeping."""
    names = {}
    for user in ("root", "viewer", "editor"):
        found = site.get("/api/pipelines", user).json()
        names[user] = {line["name"] for line in found["pipelines"]}
        assert bool([t for t in found["troubles"] if t["where"] == "cdc_away"]) == (user == "root")
    assert names["root"] >= {"shop", "elsewhere", "by_hand", "acted", "beside"}
    assert names["viewer"] == names["editor"] == {"shop", "elsewhere", "acted", "beside"}


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

    site.store.add_event("shop", "schema_change", "a column")
    [event] = site.store.last_events("shop", 1)
    assert site.act("shop", "acknowledge", "editor", id=event.id).status_code == 409
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
    missing = "You need the right to edit task instances of another DAG"
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
    assert where("dag_id=beside_the_sink")[1] == ["beside"]
    found = site.get("/api/pipelines").json()
    assert found["unknown"] == [{"dag": "templated", "tasks": ["preflight"]}]
    assert [trouble["where"] for trouble in found["troubles"]] == ["cdc_away"]
    [line] = [line for line in found["pipelines"] if line["phase"] == "not_run_yet"]
    assert (line["name"], line["dags"], line["level"], line["book"]) == ("beside", ["beside_the_sink"], "idle", None)
    assert "state.conn_id" in line["hint"]


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


def test_names_of_dags_that_are_not_theirs(site: Site) -> None:
    """Neither who reads or has asked, nor why something is impossible, names a DAG that a user may not read."""
    store = site.store
    secret = "acted.stream, run manual__1, try 1"
    store.register_pipeline("acted", "server")
    store.claim_group("acted", 1, 0, holder="acted.acted.snapshot[0], run manual__1, try 1", readers=2)
    store.add_event("acted", "schema_change", f"by {secret}: a column", by=secret)
    store.add_event(
        "acted", "group_retried", "group 0 is retried: Task acted.snapshot of DAG acted, run r, was cleared"
    )
    number = store.add_request("acted", "suspend", "shop.orders", secret)
    base = f"/api/pipelines/{site.book}/acted"
    for path in ("", "/groups", "/events", "/requests", "/table?table=shop.orders", "/chunks/0?generation=1"):
        seen = {user: site.get(base + path, user).text for user in ("editor", "stranger")}
        assert "manual__1" not in seen["stranger"] and "DAG acted" not in seen["stranger"], path
        assert "acted.stream" not in seen["stranger"] and "acted.acted" not in seen["stranger"], path
    [group] = [one for one in site.get(base + "/groups", "editor").json()["rows"] if one["no"] == 0]
    assert group["reader"] == {
        "label": "acted.acted.snapshot[0], try 1",
        "dag_id": "acted",
        "run_id": "manual__1",
        "task_id": "acted.snapshot",
        "map_index": 0,
        "try_number": 1,
    }
    [group] = [one for one in site.get(base + "/groups", "stranger").json()["rows"] if one["no"] == 0]
    assert group["reader"]["label"] == "a task of another DAG" and group["reader"]["dag_id"] is None
    for act in ACTIONS:
        answer = site.act("acted", act, "stranger", dry_run=True, group=0, table="shop.orders", id=number).json()
        texts = " ".join(value for value in answer.values() if isinstance(value, str))
        assert "DAG acted" not in texts and "of acted" not in texts.replace("file of acted", ""), (act, texts)
    store.withdraw_request("acted", number, "root")
    store.release_group("acted", 1, 0, 1)


def test_answers_that_have_not_changed(site: Site) -> None:
    """They are not sent again; a request that makes no sense is answered with one line."""
    base = f"/api/pipelines/{site.book}/shop"
    for path in ("/api/pipelines", base, f"{base}/tables", f"{base}/events", f"{base}/chunks", f"{base}/groups"):
        first = site.get(path)
        again = site.ask("GET", path, "root", {"If-None-Match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b""), path
    site.store.add_event("shop", "schema_change", "a column")
    again = site.ask("GET", f"{base}/events", "root", {"If-None-Match": site.get(f"{base}/groups").headers["etag"]})
    assert again.status_code == 200
    answer = site.get(f"{base}/tables?limit=many")
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith("limit: ")
