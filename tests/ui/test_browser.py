"""The page in a real browser: what it shows, how it keeps up, and that nothing of it is unsafe or hard to use."""

from __future__ import annotations

import time
from contextlib import closing
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from airflow_provider_cdc.state import StateDatabase, TableStatus, utc_now
from airflow_provider_cdc.state.values import LastCompaction
from tests.ui import books
from tests.ui.browsing import accessible, address_of, opened
from tests.ui.conftest import Site

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(900)]


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
        expect(rows.first).to_contain_text("without a reader")
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
    with opened(site, browser, address_of(site, name)) as (page, _):
        expect(page.get_by_role("heading", name="Chunks of all tables: 60")).to_be_visible()

        def shown(state: str) -> Any:
            return page.locator(f"[data-state={state}] .num")

        expect(shown("published")).to_have_text("7")
        expect(shown("corrected")).to_have_text("3")
        expect(shown("waiting")).to_have_text("50")

        attempt = store.claim_group(name, 1, 1, holder="shop.snapshot[1], try 1")
        expect(page.get_by_role("table", name="Chunk groups")).to_contain_text("being read")
        store.record_read_chunks(name, 1, [(10, attempt, books.position(1), books.position(2), 7, 8, 0, 0.1)])
        expect(shown("read")).to_have_text("1")
        store.release_group(name, 1, 1, attempt)
        expect(shown("failed")).to_have_text("9")
        expect(page.get_by_role("region", name="What is wrong")).to_contain_text("1 chunk group without a reader")
        expect(page.get_by_role("region", name="Freshness")).to_contain_text("11 of 60")
        chunk = page.get_by_role("slider", name="Chunk", exact=True)
        chunk.focus()
        for key in ("Home", "ArrowRight", "ArrowRight"):
            page.keyboard.press(key)
        expect(page.locator("#chunk-detail")).to_contain_text("chunk 2 of shop.orders, group 0: in the copy, corrected")
        expect(page.locator("#chunk-detail")).to_contain_text("read between binlog.000007:100 and binlog.000007:200")
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
    with opened(site, browser, address_of(site, name)) as (page, _):
        expect(page.get_by_role("status").first).to_have_text("streaming")
        expect(page.locator(".lag .legend")).to_contain_text("median 400 ms")
        expect(page.locator(".lag .legend")).to_contain_text("95 % 800 ms")
        store.record_sample(name, epoch, lag_seconds=0.7, lag_bytes=1_200_000, purge_hours=31.0)
        sizes = {"files": 12, "bytes": 3_400_000, "rows": 1000, "dead_rows": 71, "compactions": 3}
        why: dict[str, Any] = {
            "reason": "ALTER TABLE orders makes numbers shorter",
            "remedy": "Run airflow-cdc resnapshot",
        }
        types = {"id": "bigint", "e": "char(64)", "phone": "varchar(9)", "n": "int"}
        rules: dict[str, Any] = {
            "e": {"column": "email", "action": "hash", "encoding": "hex"},
            "phone": {"column": "phone", "action": "mask", "length": 4},
            "n": {"column": "number", "action": "keep"},
        }
        shown_rules: dict[str, Any] = {"policies": rules, "where": "tenant_id = 7"}
        places = [{"since": None, "columns": types, "key": ["id"], "changed": None, **shown_rules}]
        stands = TableStatus("shop", "orders", "suspended", "binlog.000007:120", definitions=places, **why)
        table = "shop", "orders"
        done = {table: LastCompaction(utc_now(), 4.0)}
        store.write_table_states(
            name, [stands], sizes={table: sizes}, last_compactions=done, applied_counts={table: (5, 6, 7)}
        )
        store.record_verification(name, {table: {"equal": True}})
        refusal = {"at": "2026-01-02T03:04:05+00:00", "reason": "the copy stands at binlog.000007:120"}
        store.record_verification(name, {table: {"not_comparable": refusal}})
        row = page.get_by_role("table", name="Tables").locator("tbody tr").first
        for text in (*why.values(), "suspended", "3.4 MB", "12 files", "18", "equal", "not comparable"):
            expect(row).to_contain_text(text)
        expect(page.locator(".pill").filter(has_text="1 problem")).to_be_visible()
        for text in ("1.2 MB", "The source keeps what is needed for"):
            expect(page.get_by_role("region", name="Freshness")).to_contain_text(text)
        accessible(page)
        row.get_by_role("link").click()
        whole = page.get_by_role("region", name="shop.orders", exact=True)
        for text in (*why.values(), "6 updates", "3 times", "the copy stands at binlog.000007:120"):
            expect(whole).to_contain_text(text, ignore_case=True)
        definitions = page.get_by_role("region", name="Definitions")
        lines = ["as it was planned", "only rows where tenant_id = 7", "id bigint", "e char(64): hash of email"]
        for text in (*lines, "phone varchar(9): mask 4 of phone", "n int: number"):
            expect(definitions).to_contain_text(text)
        expect(page.get_by_role("region", name="Explain a row")).to_contain_text("airflow-cdc explain")
        accessible(page)
        page.goto(f"{site.url}/{address_of(site, name, '/stream')}")
        expect(page.get_by_text("uuid:1-120")).to_be_visible()
        left = "getBoundingClientRect().left"
        cut = f"(all) => all.filter((one) => one.{left} < one.closest('svg').{left})"
        assert page.locator("svg.chart text").evaluate_all(f"{cut}.length") == 0, "labels are cut off"
        lags: dict[str, Any] = {"lag_p50_ms": 1000, "lag_p95_ms": 2500, "lag_max_ms": 2500}
        where: dict[str, Any] = {"start_offset": books.position(120), "end_offset": books.position(77_777)}
        store.record_batch(name, epoch, 120, changes=5, bytes=10, seconds=0.1, **where, **lags)
        expect(page.get_by_role("table", name="Newest batches")).to_contain_text("77777")
        store.end_epoch(name, epoch, "failed", "the server has purged binlogs. Plan a new snapshot", "PurgedError")
        wrong = page.get_by_role("region", name="What is wrong")
        expect(wrong).to_contain_text("the server has purged binlogs. Plan a new snapshot")
        expect(page.get_by_role("status").first).to_have_text("failed")


def test_hostile_names(site: Site, browser: Browser) -> None:
    """Whatever stands in a name, an event or an error is text."""
    store, name = site.store, "hostile"
    books.plan(store, name, tables=dict.fromkeys(books.HOSTILE, 2), per_group=2, database=books.HOSTILE[0][:60])
    for text in books.HOSTILE:
        store.add_event(name, "restart", text)
    attempt = store.claim_group(name, 1, 0, holder=books.HOSTILE[1])
    store.release_group(name, 1, 0, attempt)
    epoch = books.stream(store, name, batches=1)
    store.end_epoch(name, epoch, "failed", books.HOSTILE[0])
    with opened(site, browser, address_of(site, name)) as (page, _):
        expect(page.get_by_text(books.HOSTILE[0]).first).to_be_visible()
        page.get_by_role("link", name="Timeline").click()
        expect(page.get_by_role("region", name="Timeline").get_by_text(books.HOSTILE[2]).first).to_be_visible()
        page.get_by_role("link", name="Snapshot", exact=True).click()
        expect(page.get_by_role("heading", name="Chunks of all tables: 6")).to_be_visible()
        page.get_by_role("slider", name="Chunk", exact=True).focus()
        page.keyboard.press("Home")
        expect(page.locator("#chunk-detail")).to_contain_text("chunk 0 of <script>")
        assert page.locator("main img, main script").count() == 0
        page.goto(f"{site.url}/#/")
        expect(page.get_by_text(books.HOSTILE[0]).first).to_be_visible()
        assert "pwned" not in page.title()


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
