"""What people do from the page, from the click to what has become of it, in Airflow and in the bookkeeping."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from airflow_provider_cdc.state import TableStatus
from tests.ui import books
from tests.ui.browsing import accessible, address_of, opened
from tests.ui.conftest import Site

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(900)]
NAME = "acted"


def press(page: Page, label: str, says: str, *, button: str | None = None) -> None:
    """Press a button, read what it will do, and confirm it."""
    page.get_by_role("button", name=button or label, exact=True).click()
    dialog = page.get_by_role("dialog", name=label)
    expect(dialog).to_contain_text(says)
    accessible(page)
    dialog.get_by_role("button", name=label.partition(":")[0]).click()
    expect(page.get_by_role("dialog")).to_have_count(0)


def refused(page: Page, label: str, why: str) -> None:
    """Press a button whose act is impossible now: it only says why."""
    button = page.get_by_role("button", name=label, exact=True)
    expect(button).to_have_attribute("aria-disabled", "true")
    expect(button).to_have_attribute("title", re.compile(re.escape(why)))
    button.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#done")).to_contain_text(why)
    expect(page.get_by_role("dialog")).to_have_count(0)


def why_not(site: Site, act: str, user: str = "root", **about: Any) -> str:
    answer = site.act(NAME, act, user, dry_run=True, **about).json()
    return str(answer["why_not"])


def logged(site: Site, act: str) -> list[tuple[Any, ...]]:
    """Lines of Airflow's audit log: who, and the task instance."""
    found = site.airflow.client.get("/eventLogs", event=f"cdc_{act}", order_by="id")["event_logs"]
    names = "owner", "dag_id", "task_id", "run_id"
    return [tuple(one[name] for name in names) for one in found if json.loads(one["extra"])["pipeline"] == NAME]


def said(site: Site, kind: str) -> list[str | None]:
    """Who has done that, as our events have it."""
    return [event.by for event in site.store.last_events(NAME, 50) if event.kind == kind]


@pytest.fixture(scope="module")
def epoch(site: Site) -> int:
    """A stream that runs, whose pipeline has a table with a key."""
    store = site.store
    for group in range(3):
        books.read(store, NAME, group, holder=f"acted.acted.snapshot[{group}], run manual__1, try 1")
    store.finish_snapshot(NAME, 1)
    epoch = books.stream(store, NAME)
    places = [{"since": None, "columns": {"id": "bigint"}, "key": ["id"], "changed": None}]
    store.write_table_states(NAME, [TableStatus("shop", "orders", "streaming", definitions=places)])
    return epoch


def test_the_stream(site: Site, browser: Browser, epoch: int) -> None:
    """Pause, resume and stop are wanted of the stream; it is started by clearing the task that ended last."""
    store, client = site.store, site.airflow.client
    with opened(site, browser, address_of(site, NAME), user="editor") as (page, _):
        press(page, "Pause the stream", "reads nothing more until it is resumed")
        expect(page.get_by_text("paused by editor").first).to_be_visible()
        press(page, "Resume the stream", "The stream continues from where it was paused")
        expect(page.get_by_role("button", name="Pause the stream")).to_be_visible()
        page.get_by_role("button", name="Stop the stream").focus()
        page.keyboard.press("Enter")
        expect(page.get_by_role("dialog", name="Stop the stream")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_have_count(0)
        assert store.newest_epoch(NAME).desired_state == "run"  # type: ignore[union-attr]
        press(page, "Stop the stream", "at the next transaction boundary")
        run = store.newest_epoch(NAME)
        assert run is not None
        assert run.desired_state == "stop"
        store.end_epoch(NAME, epoch, "stopped")
        for act, kind in (("pause", "stream_paused"), ("resume", "stream_resumed"), ("stop", "stream_stop")):
            assert logged(site, act) == [("editor", "acted", None, None)]
            assert said(site, kind) == ["editor"]

        refused(page, "Start the stream", "has never run: start a run of acted")
        old, new = client.trigger("acted"), client.trigger("acted")
        for started in (old, new):
            client.mark("acted", started, "acted.stream", "failed")
        client.pause("acted")
        refused(page, "Start the stream", "DAG acted is paused")
        client.unpause("acted")
        press(page, "Start the stream", f"Task acted.stream of DAG acted, run {new}, is cleared, and no other task")
        assert client.task_instance("acted", new, "acted.stream").state is None
        assert client.task_instance("acted", old, "acted.stream").state == "failed"
        assert logged(site, "start") == [("editor", "acted", "acted.stream", new)]
        assert said(site, "stream_start") == ["editor"]
        assert site.act(NAME, "start").status_code == 409
        assert f"run {new}, is waiting to be scheduled" in why_not(site, "start")


def test_comparisons(site: Site, browser: Browser, epoch: int) -> None:
    """A comparison that has run is cleared; of one that has not, the DAG runs, unless that would begin a stream."""
    client = site.airflow.client
    with opened(site, browser, address_of(site, NAME)) as (page, _):
        refused(page, "Verify now", "DAG compared is paused")
        for dag in ("compared", "mended"):
            client.unpause(dag)
        expect(page.get_by_role("button", name="Verify now")).not_to_have_attribute("aria-disabled", "true")
        press(page, "Verify now", "A run of DAG compared is started, with all of its tasks")
        [run] = client.runs("compared")
        assert client.get(f"/dags/compared/dagRuns/{run}")["triggering_user_name"] == "root"
        assert f"Task compare of DAG compared, run {run}, is waiting" in why_not(site, "verify")
        client.mark("compared", run, "compare", "success")
        expect(page.get_by_role("button", name="Verify now")).not_to_have_attribute("aria-disabled", "true")
        press(page, "Verify now", f"Task compare of DAG compared, run {run}, is cleared")
        assert client.task_instance("compared", run, "compare").state is None
        assert list(client.runs("compared")) == [run]
        assert logged(site, "verify") == [("root", "compared", None, None), ("root", "compared", "compare", run)]
        assert said(site, "verify") == ["root", "root"]
        press(page, "Repair all tables", "A run of DAG mended is started")
        assert len(client.runs("mended")) == 1
        assert said(site, "repair") == ["root"]
    # Of one table, the stream is asked.
    says = site.act(NAME, "verify", dry_run=True, table="shop.orders").json()["says"]
    # Whether the stream still runs depends on the test before.
    assert re.match(r"shop\.orders: source and copy are compared\. Nothing is written\. (The|No) stream ", says), says
    assert "has no table no.such" in why_not(site, "verify", table="no.such")
    assert site.act(NAME, "verify", table="shop.orders").json() == {"done": True}
    request = site.store.last_requests(NAME)[0]
    assert (request.kind, request.table, request.by) == ("verify", "shop.orders", "root")
    with opened(site, browser, address_of(site, NAME, "/table/shop.orders")) as (page, _):
        press(
            page,
            "Withdraw",
            "The request of root for shop.orders will not be carried out",
            button="Withdraw: Compare shop.orders",
        )
    assert site.store.request(NAME, request.id).state == "withdrawn"  # type: ignore[union-attr]


def test_tables(site: Site, browser: Browser, epoch: int) -> None:
    """A table is suspended, read again and in part; what becomes of it is seen, and what still waits is withdrawn."""
    store = site.store
    with opened(site, browser, address_of(site, NAME, "/table/shop.orders")) as (page, wrong):

        def choose(act: str) -> None:
            page.get_by_role("button", name=f"{act}: shop.orders", exact=True).click()

        choose("Re-snapshot some keys")
        dialog = page.get_by_role("dialog", name="Re-snapshot some keys: shop.orders")
        confirm = dialog.get_by_role("button", name="Re-snapshot some keys")
        confirm.click()
        expect(dialog.get_by_role("alert")).to_contain_text("A condition on id is missing")
        dialog.get_by_label("A condition on id").fill("note = 'x'")
        confirm.click()
        expect(dialog.get_by_role("alert")).to_contain_text("note")
        assert [request.kind for request in store.last_requests(NAME)][:1] == ["verify"], "nothing was requested"
        wrong.clear()  # two answers 409
        dialog.get_by_label("A condition on id").fill("id >= 100 AND id < 200")
        accessible(page)
        page.keyboard.press("Enter")
        wanted = page.get_by_role("region", name="Requests")
        expect(wanted).to_contain_text("Re-snapshot some keys of shop.orders")
        expect(wanted).to_contain_text("id >= 100 AND id < 200")
        request = store.last_requests(NAME)[0]
        assert (request.kind, request.table, request.by) == ("reread", "shop.orders", "root")
        assert request.condition == "id >= 100 AND id < 200"
        assert store.take_request(request.id)
        store.end_request(request.id, "refused", "shop.orders has no rows there. Choose others")
        expect(wanted).to_contain_text("has no rows there. Choose others")

        choose("Suspend")
        dialog = page.get_by_role("dialog", name="Suspend: shop.orders")
        expect(dialog).to_contain_text("continues without shop.orders")
        dialog.get_by_role("button", name="Suspend").click()
        expect(wanted).to_contain_text("Suspend shop.orders")
        press(
            page,
            "Withdraw",
            "The request of root for shop.orders will not be carried out",
            button="Withdraw: Suspend shop.orders",
        )
        expect(wanted).to_contain_text("root has withdrawn it")
        assert [request.state for request in store.last_requests(NAME)][:2] == ["withdrawn", "refused"]

        row = TableStatus("shop", "orders", "suspended", reason="lost", definitions=[{"columns": {}, "key": ["id"]}])
        store.write_table_states(NAME, [row])
        expect(page.locator("[data-state=suspended]")).to_be_visible()
        choose("Re-snapshot and resume")
        dialog = page.get_by_role("dialog", name="Re-snapshot and resume: shop.orders")
        expect(dialog).to_contain_text("The table then rejoins the stream")
        dialog.get_by_role("button", name="Re-snapshot and resume").click()
        expect(wanted).to_contain_text("Re-snapshot shop.orders")
        assert [logged(site, act)[0][0] for act in ("reread_keys", "suspend", "withdraw", "reread")] == ["root"] * 4
        assert said(site, "request") == ["root"] * 3
        assert why_not(site, "suspend", table="shop.orders") == "shop.orders is already suspended"
        assert "has no table no.such" in why_not(site, "reread", table="no.such")

        file = Path(__file__).parent / "dags" / "shown.py"
        store.add_event(NAME, "restart", "without GTIDs", table="shop.orders", remedy="`airflow-cdc verify` compares")
        expect(page.get_by_role("region", name="Events")).to_contain_text(
            f"airflow-cdc verify -f {file} --pipeline acted compares"
        )
        command = page.locator("#command").inner_text()
        assert command.startswith(f"airflow-cdc explain -f {file} --pipeline acted --table shop.orders --key "), command
        page.goto(f"{site.url}/{address_of(site, NAME, '/tables')}")
        page.get_by_text("Add or remove tables").click()
        expect(page.get_by_text(f"airflow-cdc reload -f {file} --pipeline acted")).to_be_visible()


def test_who_may_do_what(site: Site, browser: Browser, epoch: int) -> None:
    """Viewers are offered nothing; who may edit one DAG of a pipeline may do what concerns that one."""
    with opened(site, browser, address_of(site, NAME), user="viewer") as (page, _):
        expect(page.get_by_role("heading", name=NAME, exact=True)).to_be_visible()
        page.get_by_role("link", name="Stream", exact=True).click()
        expect(page.get_by_role("region", name="Requests")).to_be_visible()
        expect(page.locator("[data-act]")).to_have_count(0)
        assert "id >= 100" not in page.content()
    client, missing = site.airflow.client, "You need the right to edit task instances of "
    answer = site.act(NAME, "reread", "stranger", table="shop.orders")
    assert (answer.status_code, answer.json()["detail"]) == (403, f"{missing}another DAG")
    [mended], [compared] = client.runs("mended"), client.runs("compared")
    client.mark("mended", mended, "mend", "success")
    client.mark("compared", compared, "compare", "failed")
    assert site.act(NAME, "repair", "stranger").json() == {"done": True}
    assert client.task_instance("mended", mended, "mend").state is None
    assert site.act(NAME, "verify", "stranger").json()["detail"] == f"{missing}another DAG"
    assert why_not(site, "verify", "stranger") == f"{missing}another DAG"
    assert client.task_instance("compared", compared, "compare").state == "failed"


def test_without_a_dag(site: Site) -> None:
    """Of a pipeline that the command line runs, the command is said; the stream is asked for a comparison."""
    offers = site.get(f"/api/pipelines/{site.book}/by_hand").json()["offers"]
    told = {offer["act"]: offer["why_not"] for offer in offers}
    assert "Run `airflow-cdc stream -f FILE --pipeline by_hand` on a host" in told["start"]
    assert told["start"].endswith(". FILE is the DAG file or YAML file of by_hand")
    assert told["verify"] is told["repair"] is None
    for act in ("verify", "repair"):
        says = site.act("by_hand", act, dry_run=True).json()["says"]
        assert "No stream is running now: the next one does it" in says
        assert site.act("by_hand", act).json() == {"done": True}
    requests = [(one.kind, one.table, one.by) for one in site.store.last_requests("by_hand")]
    assert requests == [("repair", "", "root"), ("verify", "", "root")]
    assert [event.kind for event in site.store.last_events("by_hand", 2)] == ["repair", "verify"]
    assert "airflow-cdc snapshot -f" in site.act("by_hand", "retry", dry_run=True, group=1).json()["why_not"]
