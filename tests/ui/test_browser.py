"""The page in a real browser: what it shows, how it keeps up, and that nothing of it is unsafe or hard to use."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from airflow_provider_cdc.state import StateDatabase, TableStatus, utc_now
from airflow_provider_cdc.state.values import LastCompaction
from tests.ui import books
from tests.ui.conftest import Site

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(900)]
#: Milliseconds that anything may take where the machine is busy with other tests.
PATIENCE = 15_000


@contextlib.contextmanager
def opened(
    site: Site, browser: Browser, address: str = "", *, user: str = "root", **how: Any
) -> Iterator[tuple[Page, list[str]]]:
    """A page of the application, and all that is wrong: errors in its console, and requests to other hosts."""
    wrong: list[str] = []
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **how})
    context.set_default_timeout(PATIENCE)
    expect.set_options(timeout=PATIENCE)
    context.add_cookies([{"name": "_token", "value": site.login(user), "url": site.airflow.url}])
    page = context.new_page()
    page.on("console", lambda said: wrong.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda asked: None if asked.url.startswith(f"{site.airflow.url}/") else wrong.append(asked.url))
    try:
        page.goto(f"{site.url}/{address}")
        yield page, wrong
        assert wrong == []
    finally:
        context.close()


def accessible(page: Page) -> None:
    """No rule of axe is broken."""
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


def of(site: Site, pipeline: str) -> str:
    """The address of a pipeline, as soon as the page knows it: it looks for new ones now and then."""
    until = time.monotonic() + 30
    while site.get(f"/api/pipelines/{site.book}/{pipeline}").status_code == 404 and time.monotonic() < until:
        time.sleep(0.2)
    return f"#/p/{site.book}/{pipeline}"


def test_overview(site: Site, browser: Browser) -> None:
    """Worst first; what changes is seen without a reload; a phone shows it without scrolling sideways."""
    names = [f"many_{number:03}" for number in range(200)]
    for name in names:
        books.plan(site.store, name, tables={"t": 1}, per_group=1)
    with opened(site, browser) as (page, _):
        rows = page.get_by_role("table", name="Pipelines, most severe first").locator("tbody tr")
        expect(rows.first).to_be_visible()
        expect(page.get_by_role("link", name="many_199")).to_be_visible()
        page.get_by_label("Filter").fill("many_19")
        expect(rows).to_have_count(10)

        site.store.claim_group("many_195", 1, 0)  # without a heartbeat: its reader has gone
        expect(rows.first).to_contain_text("many_195")
        expect(rows.first).to_contain_text("1 chunk group without a reader")
        expect(page.get_by_label("Filter")).to_be_focused()
        accessible(page)
        page.get_by_label("Filter").fill("no such")
        expect(page.get_by_text("No pipeline matches")).to_be_visible()

    for scheme in ("light", "dark"):
        phone: dict[str, Any] = {"viewport": {"width": 360, "height": 700}, "color_scheme": scheme}
        with opened(site, browser, **phone) as (page, _):
            expect(page.locator("tbody tr").first).to_be_visible()
            expect(page.get_by_role("link", name="many_195")).to_be_visible()
            assert page.evaluate("document.documentElement.scrollWidth") <= 360
            accessible(page)


def test_a_snapshot_in_progress(site: Site, browser: Browser) -> None:
    """The map of chunks follows the snapshot, of which only the group that is read is asked for."""
    store, name = site.store, "progress"
    books.plan(store, name, tables={"orders": 40, "customer": 20}, per_group=10)
    books.read(store, name, 0, corrected=3)
    with opened(site, browser, of(site, name)) as (page, _):
        expect(page.get_by_role("heading", name="Chunks of all tables: 60")).to_be_visible()

        def shown(state: str) -> Any:
            return page.locator(f"[data-state={state}] .num")

        expect(shown("published")).to_have_text("7")
        expect(shown("corrected")).to_have_text("3")
        expect(shown("waiting")).to_have_text("50")

        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url) if "/chunks?" in request.url else None)
        attempt = store.claim_group(name, 1, 1, holder="shop.snapshot[1], try 1")
        expect(shown("reading")).to_have_text("10")
        store.record_read_chunks(name, 1, [(10, attempt, books.position(1), books.position(2), 7, 8, 0, 0.1)])
        expect(shown("read")).to_have_text("1")
        store.release_group(name, 1, 1, attempt)
        expect(shown("failed")).to_have_text("9")
        expect(page.get_by_text("1 chunk group without a reader")).to_be_visible()
        assert asked
        assert all(url.endswith("groups=1") for url in asked), asked

        page.get_by_label("Table shown in the map").select_option("shop.customer")
        expect(page.get_by_role("heading", name="Chunks of shop.customer: 20")).to_be_visible()
        page.get_by_label("Table shown in the map").select_option("all tables")
        chunk = page.get_by_role("slider", name="Chunk")
        chunk.focus()
        for key in ("Home", "ArrowRight", "ArrowRight"):
            page.keyboard.press(key)
        expect(page.locator("#chunk-detail")).to_contain_text("chunk 2 of shop.orders, group 0: published, corrected")
        expect(page.locator("#chunk-detail")).to_contain_text("low watermark binlog.000007:100")
        expect(chunk).to_have_attribute("aria-valuenow", "2")
        chunk.hover(position={"x": 5, "y": 5})
        expect(page.locator("#chunk-detail")).to_contain_text("chunk 0 of")
        accessible(page)


def test_a_stream(site: Site, browser: Browser) -> None:
    """Lag, batches and events of a stream that runs, and then fails."""
    store, name = site.store, "live"
    for group in range(books.plan(store, name, tables={"orders": 4}, per_group=4)):
        books.read(store, name, group)
    store.finish_snapshot(name, 1)
    epoch = books.stream(store, name, batches=120)
    store.add_event(name, "schema_change", "shop.orders: column note added")
    with opened(site, browser, of(site, name)) as (page, _):
        expect(page.get_by_role("status").first).to_have_text("streaming")
        expect(page.get_by_role("img", name="Lag in seconds: p50 400 ms, p95 800 ms")).to_be_visible()
        expect(page.get_by_text("column note added")).to_be_visible()
        expect(page.get_by_text("uuid:1-120")).to_be_visible()
        store.record_sample(name, epoch, lag_seconds=0.7, lag_bytes=1_200_000, purge_hours=31.0)
        sizes = {"files": 12, "bytes": 3_400_000, "rows": 1000, "dead_rows": 71, "compactions": 3}
        why: dict[str, Any] = {
            "reason": "ALTER TABLE orders makes numbers shorter",
            "remedy": "Run airflow-cdc resnapshot",
        }
        places = [{"since": None, "columns": {"id": "bigint"}, "key": ["id"], "changed": None}]
        stands = TableStatus("shop", "orders", "suspended", "binlog.000007:120", definitions=places, **why)
        table = "shop", "orders"
        done = {table: LastCompaction(utc_now(), 4.0)}
        store.write_table_states(
            name, [stands], sizes={table: sizes}, last_compactions=done, applied_counts={table: (5, 6, 7)}
        )
        store.record_verification(name, {table: {"equal": True}})
        refusal = {"at": "2026-01-02T03:04:05+00:00", "reason": "the copy stands at binlog.000007:120"}
        store.record_verification(name, {table: {"not_comparable": refusal}})
        tables = page.get_by_role("region", name="Tables")
        for text in (
            *why.values(),
            "suspended",
            "1 definition",
            "7.1 %",
            "3.4 MB",
            "18",
            "6 updates",
            "equal",
            "not comparable",
            "the copy stands at binlog.000007:120",
            "compacted 3 times",
        ):
            expect(tables).to_contain_text(text)
        expect(page.get_by_text("1 table suspended")).to_be_visible()
        for text in ("1.2 MB", "31 h 0 min"):
            expect(page.locator(".tile").filter(has_text=text)).to_be_visible()
        accessible(page)
        left = "getBoundingClientRect().left"
        cut = f"(all) => all.filter((one) => one.{left} < one.closest('svg').{left})"
        assert page.locator("svg.chart text").evaluate_all(f"{cut}.length") == 0, "labels are cut off"
        page.set_viewport_size({"width": 360, "height": 700})
        for what in ("document.documentElement", "document.querySelector('[role=region][aria-label=Tables]')"):
            assert page.evaluate(f"{what}.scrollWidth - {what}.clientWidth") == 0, what
        accessible(page)
        page.set_viewport_size({"width": 1280, "height": 900})
        lags: dict[str, Any] = {"lag_p50_ms": 1000, "lag_p95_ms": 2500, "lag_max_ms": 2500}
        where: dict[str, Any] = {"start_offset": books.position(120), "end_offset": books.position(77_777)}
        store.record_batch(name, epoch, 120, changes=5, bytes=10, seconds=0.1, **where, **lags)
        expect(page.get_by_role("region", name="Newest batches")).to_contain_text("77,777")
        page.get_by_role("button", name="Acknowledge: shop.orders: column note added").click()
        expect(page.get_by_role("dialog")).to_contain_text("Your name is recorded with this event")
        accessible(page)
        page.get_by_role("dialog").get_by_role("button", name="Acknowledge").click()
        expect(page.get_by_text("acknowledged by root")).to_be_visible()
        store.end_epoch(name, epoch, "failed", "the server has purged binlogs. Plan a new snapshot", "PurgedError")
        expect(page.get_by_role("heading", name="Why it stopped")).to_be_visible()
        expect(page.get_by_text("the server has purged binlogs. Plan a new snapshot").first).to_be_visible()


def test_hostile_names(site: Site, browser: Browser) -> None:
    """Whatever stands in a name, an event or an error is text."""
    store, name = site.store, "hostile"
    books.plan(store, name, tables=dict.fromkeys(books.HOSTILE, 2), per_group=2, database=books.HOSTILE[0][:60])
    for text in books.HOSTILE:
        store.add_event(name, text[:60], text)
    attempt = store.claim_group(name, 1, 0, holder=books.HOSTILE[1])
    store.release_group(name, 1, 0, attempt)
    epoch = books.stream(store, name, batches=1)
    store.end_epoch(name, epoch, "failed", books.HOSTILE[0])
    with opened(site, browser, of(site, name)) as (page, _):
        expect(page.get_by_role("region", name="Events").get_by_text(books.HOSTILE[0]).first).to_be_visible()
        expect(page.get_by_role("heading", name="Chunks of all tables: 6")).to_be_visible()
        page.get_by_role("slider", name="Chunk").focus()
        page.keyboard.press("Home")
        expect(page.locator("#chunk-detail")).to_contain_text(books.HOSTILE[1])
        assert page.locator("main img, main script").count() == 0
        page.goto(f"{site.url}/#/")
        expect(page.get_by_text(books.HOSTILE[2]).first).to_be_visible()
        assert "pwned" not in page.title()


def test_a_hundred_thousand_chunks(site: Site, browser: Browser) -> None:
    """What travels and what is drawn does not grow with them; each can be looked at."""
    store, name = site.store, "large"
    books.plan(store, name, tables={"a": 60_000, "b": 40_000}, per_group=100)
    for group in (0, 1, 2):
        books.read(store, name, group, corrected=5)
    with opened(site, browser, of(site, name)) as (page, _):
        sizes: list[int] = []
        page.on("response", lambda got: sizes.append(len(got.body())) if "/chunks?" in got.url else None)
        expect(page.get_by_role("heading", name="Chunks of all tables: 100,000")).to_be_visible()
        expect(page.locator("[data-state=published] .num")).to_have_text("285")
        attempt = store.claim_group(name, 1, 3, holder="h")
        expect(page.locator("[data-state=reading] .num")).to_have_text("100")
        store.record_read_chunks(name, 1, [(300, attempt, None, None, 1, 1, 0, 0.1)])
        expect(page.locator("[data-state=read] .num")).to_have_text("1")
        assert max(sizes) < 2000, sizes
        drawn = page.evaluate(
            """() => new Promise((done) => { let frames = 0; const end = performance.now() + 1000;
            const map = document.querySelector("canvas"); const count = () => { frames++;
            map.dispatchEvent(new PointerEvent("pointermove", {clientX: 40 + frames, clientY: 400}));
            performance.now() < end ? requestAnimationFrame(count) : done(frames); }; count(); })"""
        )
        assert drawn >= 10, "the page stood still while the pointer moved over the map"
        page.get_by_role("slider", name="Chunk").focus()
        page.keyboard.press("End")
        expect(page.locator("#chunk-detail")).to_contain_text("chunk 99,999 of shop.b, group 999: waiting")


def test_when_something_is_away(site: Site, browser: Browser) -> None:
    """A page that cannot be filled says why, and what to do."""
    with opened(site, browser, "#/p/000000000000/nobody") as (page, wrong):
        expect(page.get_by_role("alert")).to_contain_text("There is no such pipeline")
        accessible(page)
        wrong.clear()  # the answer 404
    with opened(site, browser) as (page, wrong):
        expect(page.get_by_role("heading", name="State databases that cannot be read")).to_be_visible()
        expect(page.get_by_role("row").filter(has_text="cdc_away")).to_contain_text("Connection refused")
        page.context.clear_cookies()
        expect(page.get_by_role("alert")).to_contain_text("You are no longer logged in to Airflow")
        wrong.clear()  # the answer 401


def test_inside_airflow(site: Site, browser: Browser) -> None:
    """The entry in Airflow's navigation and the tab of a DAG show the page, light and dark as Airflow is."""
    with opened(site, browser) as (page, wrong):
        page.goto(f"{site.airflow.url}/plugin/cdc")
        frame = page.frame_locator("iframe")
        expect(frame.get_by_role("heading", name="CDC pipelines")).to_be_visible()
        for theme in ("dark", "light"):
            page.evaluate("(theme) => { document.documentElement.className = theme }", theme)
            expect(frame.locator(f"html[data-theme={theme}]")).to_have_count(1)
        page.goto(f"{site.airflow.url}/dags/shop/plugin/cdc_dag")
        frame = page.frame_locator("iframe")
        expect(frame.get_by_role("heading", name="shop", exact=True)).to_be_visible()
        frame.get_by_role("link", name="DAG shop").click()
        page.wait_for_url(f"{site.airflow.url}/dags/shop**")
        expect(page.locator("iframe")).to_have_count(0)
        # A tab of a run and one of a task are clicked, as people do.
        run = site.airflow.client.trigger("shop")
        for place in (f"dags/shop/runs/{run}", f"dags/shop/runs/{run}/tasks/shop.stream"):
            page.goto(f"{site.airflow.url}/{place}")
            page.get_by_role("link", name="CDC", exact=True).click()
            expect(frame.get_by_role("heading", name="shop", exact=True)).to_be_visible()
        wrong.clear()  # what Airflow's own pages say is not this one's


def test_two_databases_with_one_name(site: Site, tmp_path: Any) -> None:
    """The same bookkeeping reached by two names is one; another one with a pipeline of the same name is another."""
    from airflow_provider_cdc.config.connections import ResolvedConnection
    from airflow_provider_cdc.ui.state_databases import PageDatabases

    with closing(StateDatabase.open(f"sqlite:///{tmp_path}/b.db", migrate=True)) as store:
        store.register_pipeline("shop", "another")
    known = {"one": str(site.file), "two": str(site.file)}
    places = PageDatabases(
        list,
        lambda: ["one", "two", f"{tmp_path}/b.db"],
        lambda conn_id: ResolvedConnection(conn_id, "sqlite", host=known[conn_id]),
    )
    with closing(places):
        deadline = time.monotonic() + 60
        while len(found := [one for one in places.read_all()[0] if one.overview.name == "shop"]) < 2:
            assert time.monotonic() < deadline
        assert len({one.database.key for one in found}) == 2
