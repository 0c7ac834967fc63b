"""The page while a real snapshot is read, one of its groups fails and is run again, and a real stream goes on."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import psycopg
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from tests.in_airflow.site import Site
from tests.in_airflow.test_retries import kill_reader
from tests.support.airflow_client import PATIENCE
from tests.support.browser import chromium

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(3600)]


def confirm(page: Page, label: str, says: str, *, button: str | None = None) -> None:
    """Press a button, read what it will do, and confirm it."""
    page.get_by_role("button", name=button or label, exact=True).first.click()
    dialog = page.get_by_role("dialog", name=label)
    expect(dialog).to_contain_text(says)
    dialog.get_by_role("button", name=label.partition(":")[0]).click()
    expect(page.get_by_role("dialog")).to_have_count(0)


def ask_the_stream(site: Site, page: Page, name: str) -> None:
    """Pause a stream and resume it, suspend a table, let it rejoin: what the stream has done of that is seen."""
    table = "shop.orders"
    confirm(page, "Pause the stream", "reads nothing more until it is resumed")
    expect(page.get_by_text("paused by").first).to_be_visible()
    confirm(page, "Resume the stream", "The stream continues")
    site.wait_batch(name, site.stream(name).epoch)
    page.get_by_role("link", name="Tables").click()
    page.get_by_role("link", name=table, exact=True).click()
    for act, says, state in (
        ("Suspend", "continues without", "suspended"),
        ("Re-snapshot and resume", "rejoins", "streaming"),
    ):
        confirm(page, f"{act}: {table}", says)
        expect(page.locator(f"[data-state={state}]")).to_be_visible()
    expect(page.get_by_role("region", name="Requests").get_by_text("done")).to_have_count(2)
    page.get_by_role("link", name=name, exact=True).click()


def compare(site: Site, page: Page, label: str, dag: str, state: str, attempt: int) -> str:
    """Let a DAG compare source and copy by a click: its first run, whose task is cleared from then on."""
    expect(page.get_by_role("button", name=label, exact=True).first).not_to_have_attribute("aria-disabled", "true")
    confirm(page, label, "Source and copy are compared")
    run: str = site.wait(f"a run of {dag}", lambda: next(iter(site.client.runs(dag)), None))
    site.client.wait_state(dag, run, "verify", state, min_try=attempt)
    return run


@contextmanager
def scheduler_ends_run(site: Site, dag: str) -> Iterator[None]:
    """The scheduler is about to end a run, since its tasks have ended, when one of them is cleared.

    The run is locked and still running. It ends, and is unlocked, when another session waits for the lock.
    """
    with psycopg.connect(site.metadata.uri("airflow")) as scheduler:
        state = None
        while state != "running":  # the real scheduler may have been faster
            scheduler.execute("UPDATE dag_run SET state = 'running' WHERE dag_id = %s", [dag])
            scheduler.commit()
            locked = scheduler.execute("SELECT state FROM dag_run WHERE dag_id = %s FOR UPDATE", [dag]).fetchone()
            state = locked and locked[0]

        def end_run() -> None:
            waiting = "SELECT 1 FROM pg_locks WHERE NOT granted"
            site.wait("a session that waits for the lock", lambda: site.metadata.execute(waiting))
            scheduler.execute("UPDATE dag_run SET state = 'success' WHERE dag_id = %s", [dag])
            scheduler.commit()

        with ThreadPoolExecutor(1) as pool:
            ended = pool.submit(end_run)
            yield
            ended.result()


def put_right(site: Site, browser: Browser, page: Page, name: str) -> None:
    """Rows that the binlog does not tell of: from the red task to copies that are right, without leaving Airflow."""
    for dag in ("watched_compared", "watched_repaired"):
        site.client.wait_for_dag(dag)
        site.client.unpause(dag)
    tables = page.get_by_role("table", name="Tables")
    run = compare(site, page, "Verify now", "watched_compared", "success", 1)
    expect(tables).to_contain_text("equal")
    site.client.wait_run("watched_compared", run)
    with scheduler_ends_run(site, "watched_compared"):
        compare(site, page, "Verify now", "watched_compared", "success", 2)
    keys = site.server.execute("SELECT customer, line FROM shop.orders ORDER BY customer, line LIMIT 2")
    for key, act, attempt in zip(keys, ("Re-snapshot some keys", "Repair all tables"), (3, 5), strict=True):
        with closing(site.server.connect()) as connection, connection.cursor() as cursor:
            cursor.execute("SET sql_log_bin = 0")
            cursor.execute("DELETE FROM shop.orders WHERE customer = %s AND line = %s", key)
        run = compare(site, page, "Verify now", "watched_compared", "failed", attempt)
        woken = browser.new_page()
        woken.context.add_cookies([{"name": "_token", "value": site.client.token, "url": site.airflow.url}])
        woken.set_default_timeout(PATIENCE * 1000)
        woken.goto(f"{site.airflow.url}/dags/watched_compared/runs/{run}/tasks/verify")
        woken.get_by_role("link", name="CDC", exact=True).click()
        frame = woken.frame_locator("iframe")
        expect(frame.get_by_role("heading", name=name, exact=True)).to_be_visible()
        expect(frame.get_by_role("table", name="Tables")).to_contain_text("different")
        woken.close()
        if act == "Repair all tables":
            compare(site, page, act, "watched_repaired", "success", 1)
        else:
            tables.get_by_role("link", name="shop.orders", exact=True).click()
            page.get_by_role("button", name=f"{act}: shop.orders").click()
            dialog = page.get_by_role("dialog", name=f"{act}: shop.orders")
            dialog.get_by_label("A condition on customer, line").fill(f"customer = {key[0]} AND line = {key[1]}")
            dialog.get_by_role("button", name=act, exact=True).click()
            expect(page.get_by_role("region", name="Requests").get_by_text("done")).to_have_count(3)
            page.get_by_role("link", name=name, exact=True).click()
            compare(site, page, "Verify now", "watched_compared", "success", attempt + 1)
        expect(tables).to_contain_text("equal")


def retry_what_was_never_claimed(site: Site, page: Page, name: str, run: str) -> None:
    """A task that fails before it begins: the bookkeeping does not know, since nobody has claimed its group."""
    client, task = site.client, f"{name}.snapshot"
    client.wait_state(name, run, task, ("queued", "running", "success"), map_index=0)
    client.mark(name, run, task, "failed", map_index=1)
    page.get_by_label("State of groups").select_option("pending")
    row = page.get_by_role("table", name="Chunk groups").get_by_role("row").filter(has_text="waiting")
    retry = row.get_by_role("button", name="Retry group 1", exact=True)
    expect(retry).to_have_count(1)
    with closing(site.store(name)) as store:
        [group] = [group for group in store.groups(name, 1) if group.group_no == 1]
        assert (group.state, group.attempt) == ("pending", 0)
    told = f"Task {task}[1] of DAG {name}, run {run}, is cleared, and no other task"
    confirm(page, "Retry group 1", told)
    page.get_by_label("State of groups").select_option("")
    assert client.task_instance(name, run, task, 1).state in (None, "scheduled", "queued", "running")


def test_from_the_plan_to_the_stream(site: Site) -> None:
    dag, name, client = "watched", "watched", site.client
    wrong: list[str] = []
    with chromium() as browser, ExitStack() as written:
        written.enter_context(site.written("orders"))
        page = browser.new_page(viewport={"width": 1280, "height": 1100}, color_scheme="light")
        page.context.add_cookies([{"name": "_token", "value": client.token, "url": site.airflow.url}])
        page.set_default_timeout(PATIENCE * 1000)
        expect.set_options(timeout=PATIENCE * 1000)
        page.on("console", lambda said: wrong.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on(
            "request", lambda asked: None if asked.url.startswith(f"{site.airflow.url}/") else wrong.append(asked.url)
        )

        # A browser and an Airflow that are cold take longer for their first page than a small snapshot takes.
        page.goto(f"{site.airflow.url}/cdc/")
        expect(page.get_by_role("heading", name="CDC pipelines", exact=True)).to_be_visible()
        run = client.trigger(dag)
        # The tab of the run: it leads to the pipeline as soon as there is one. From here on nothing is loaded anew.
        page.goto(f"{site.airflow.url}/cdc/?dag_id={dag}&run_id={run}")
        expect(page.get_by_role("heading", name=name, exact=True)).to_be_visible()
        loads: list[str] = []
        page.on("framenavigated", lambda frame: loads.append(frame.url))
        retry_what_was_never_claimed(site, page, name, run)
        kill_reader(site, name, 1, attempt=1)
        expect(page.locator("[data-state=published] .num")).not_to_have_text("0")
        expect(
            page.get_by_role("table", name="Chunk groups").get_by_role("row").filter(has_text="failed")
        ).to_be_visible()
        expect(page.get_by_text("1 chunk group without a reader").first).to_be_visible()
        assert Axe().run(page).violations_count == 0

        failed = client.wait_state(dag, run, "watched.snapshot", "failed", map_index=1)
        held = f"Task watched.snapshot[1] of DAG watched, run {run}, is cleared, and no other task"
        page.get_by_role("button", name="Retry group 1", exact=True).first.click()
        expect(page.get_by_role("dialog", name="Retry group 1")).to_contain_text(held)
        page.keyboard.press("Escape")
        # The same is known of a task that ended before Airflow had rendered anything.
        site.metadata.execute("DELETE FROM rendered_task_instance_fields WHERE map_index = 1", database="airflow")
        confirm(page, "Retry group 1", held)
        again = client.wait_state(dag, run, "watched.snapshot", map_index=1, min_try=failed.try_number + 1)
        assert again.try_number == failed.try_number + 1
        client.wait_state(dag, run, "watched.stream", "deferred")
        expect(page.get_by_role("status").first).to_have_text("streaming")
        expect(page.get_by_role("slider", name="Lag")).to_be_visible()
        page.get_by_role("link", name="Stream", exact=True).click()
        expect(page.get_by_role("table", name="Newest batches").get_by_role("row").nth(3)).to_be_visible()
        page.emulate_media(color_scheme="dark")
        assert Axe().run(page).violations_count == 0
        page.get_by_role("link", name="All pipelines").click()
        expect(page.get_by_role("row").filter(has=page.get_by_role("link", name=name, exact=True))).to_contain_text(
            "streaming"
        )
        page.go_back()
        ask_the_stream(site, page, name)

        written.close()
        put_right(site, browser, page, name)

        confirm(page, "Stop the stream", "at the next transaction boundary")
        client.wait_run(dag, run)
        expect(page.get_by_role("status").first).to_have_text("stopped")
        ended = site.stream(name).epoch
        confirm(page, "Start the stream", f"Task watched.stream of DAG watched, run {run}, is cleared")
        expect(page.get_by_role("status").first).to_have_text("streaming")
        assert site.wait_epoch(name, ended).state == "running"
        assert [url for url in loads if "#/" not in url] == []
        assert wrong == []
        confirm(page, "Stop the stream", "at the next transaction boundary")
    client.wait_run(dag, run)
    site.equal("orders", lake=Path(f"{site.lake}-{name}"))
    with closing(site.store(name)) as store:
        done = {event.kind for event in store.last_events(name, 100) if event.by}
    asked = {f"stream_{what}" for what in ("paused", "resumed", "stop", "start")}
    assert done >= asked | {"group_retried", "verify", "repair", "request"}
