"""Parts of the page: severity and its colors, ages, timeline, charts, buttons, and links to other places."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect
from sqlalchemy import update

from airflow_provider_cdc.state import TableStatus, utc_now
from airflow_provider_cdc.state.models import EpochRow
from tests.ui import books
from tests.ui.browsing import accessible, address_of, opened
from tests.ui.conftest import Site

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(900)]


def streaming(site: Site, name: str, *, batches: int = 50, age: timedelta = timedelta()) -> int:
    """A pipeline whose snapshot is complete and whose stream runs."""
    for group in range(books.plan(site.store, name, tables={"orders": 4, "customer": 4}, per_group=4)):
        books.read(site.store, name, group)
    site.store.finish_snapshot(name, 1)
    epoch = books.stream(site.store, name, batches=batches, age=age)
    site.store.record_sample(name, epoch, lag_seconds=0.4, lag_bytes=1_200_000, purge_hours=31.0)
    return epoch


def stop(site: Site, name: str, epoch: int, *, hours: float) -> None:
    """Let a stream have been stopped by a user some hours ago."""
    site.store.request_stop(name, epoch, "alice")
    site.store.end_epoch(name, epoch, "stopped")
    at = utc_now() - timedelta(hours=hours)
    with site.store._write_session() as session:
        session.execute(update(EpochRow).where(EpochRow.pipeline == name).values(ended_at=at, heartbeat_at=at))


def hue(page: Page, selector: str) -> str:
    """Which of red, amber and green a text has."""
    css = "(node) => getComputedStyle(node).color.match(/[\\d.]+/g).slice(0, 3).map(Number)"
    red, green, blue = page.locator(selector).first.evaluate(css)
    if green > red:
        return "green" if green > blue else "blue"
    return "amber" if green > 1.3 * blue else "red"


def test_a_stopped_stream_is_a_warning_with_the_age_of_its_numbers(site: Site, browser: Browser) -> None:
    stop(site, "halted", streaming(site, "halted"), hours=2)
    with opened(site, browser, address_of(site, "halted")) as (page, _):
        wrong = page.get_by_role("region", name="What is wrong")
        expect(wrong).to_contain_text("stopped")
        expect(wrong).to_contain_text("by alice")
        expect(wrong).to_contain_text("What to do: Start it")
        expect(wrong).to_contain_text("Start the stream is not possible now: ")
        expect(page.locator(".pill.warning").filter(has_text="1 problem")).to_be_visible()
        assert hue(page, ".pill.warning") == "amber"
        fresh = page.get_by_role("region", name="Freshness")
        expect(fresh).to_contain_text("The copy has not followed the source for")
        expect(fresh.locator(".facts > div").filter(has_text="Binlog not read yet")).to_contain_text("ago")
        expect(page.locator(".asof")).to_contain_text("as of")
        accessible(page)
        page.goto(f"{site.url}/#/")
        page.get_by_role("button", name="Need a look").click()
        row = page.get_by_role("row").filter(has_text="halted")
        expect(row).to_contain_text("by alice")
        assert hue(page, "tr:has-text('halted') .problems .warning") == "amber"


def test_ages_follow_the_clock(site: Site, browser: Browser) -> None:
    """Nothing is sent, and yet the age grows."""
    streaming(site, "aging")
    with opened(site, browser, address_of(site, "aging")) as (page, wrong):
        age = page.locator(".headline time")
        expect(age).to_be_visible()
        site.store.record_sample("aging", 1, lag_seconds=0.4, lag_bytes=1_200_000, purge_hours=31.0)
        expect(age).to_have_text("just now")
        page.context.set_offline(True)
        expect(age).to_contain_text("s ago")
        wrong.clear()  # requests without an answer


def test_the_trouble_is_above_all_with_its_remedy_and_its_action(site: Site, browser: Browser) -> None:
    name = "troubled"
    streaming(site, name)
    why: dict[str, Any] = {
        "kind": "SchemaError",
        "reason": "the key of shop.orders has changed",
        "remedy": "Resume the table",
    }
    site.store.write_table_states(name, [TableStatus("shop", "orders", "suspended", **why)])
    site.store.add_event(name, "table_suspended", why["reason"], table="shop.orders", remedy=why["remedy"])
    with opened(site, browser) as (page, _):
        page.get_by_label("Filter").fill(name)
        page.get_by_role("row").filter(has_text=name).get_by_role("link", name="suspended").click()
        page.get_by_role("table", name="Tables").get_by_role("link", name="shop.orders").click()
        expect(page.get_by_role("heading", name="shop.orders", exact=True)).to_be_visible()
        expect(page.locator(".card").first).to_contain_text(why["remedy"])
        page.get_by_role("link", name=name, exact=True).click()
        trouble = page.locator(".trouble")
        expect(trouble).to_have_count(1)
        expect(trouble).to_contain_text(why["reason"])
        expect(trouble).to_contain_text("What to do: ")
        top = trouble.bounding_box()
        fresh = page.get_by_role("region", name="Freshness").bounding_box()
        assert top and fresh
        assert top["y"] < fresh["y"]
        trouble.get_by_role("button", name="Acknowledge").click()
        page.get_by_role("dialog").get_by_role("button", name="Acknowledge").click()
        expect(trouble.get_by_role("button", name="Acknowledge")).to_have_count(0)


def test_timeline(site: Site, browser: Browser) -> None:
    """Events by kind, severity and table; only what needs attention can be acknowledged."""
    name = "told"
    streaming(site, name)
    store = site.store
    store.add_event(name, "schema_change", "shop.orders: column note added", table="shop.orders")
    store.add_event(name, "table_suspended", "shop.customer: no key", table="shop.customer", remedy="Add a key")
    for number in range(60):
        store.add_event(name, "compacted", f"compaction {number}")
    with opened(site, browser, address_of(site, name, "/timeline")) as (page, _):
        events = page.get_by_role("region", name="Timeline").locator(".ev")
        expect(events).to_have_count(50)
        page.get_by_role("button", name="Older events").click()
        expect(events.filter(has_text="Stream started")).to_have_count(1)
        expect(page.get_by_role("region", name="Timeline").get_by_role("button", name="Acknowledge")).to_have_count(1)
        page.get_by_label("Kind").select_option(label="DDL followed")
        expect(events).to_have_count(1)
        expect(events).to_contain_text("column note added")
        page.get_by_label("Kind").select_option("")
        expect(events).to_have_count(50)
        page.get_by_label("Table", exact=True).fill("shop.customer")
        expect(events).to_have_count(1)
        expect(events).to_contain_text("What to do: Add a key")
        page.get_by_label("Table", exact=True).fill("")
        expect(events).to_have_count(50)
        page.get_by_label("Severity").select_option("attention")
        expect(events).to_have_count(1)
        events.get_by_role("button", name="Acknowledge").click()
        page.get_by_role("dialog").get_by_role("button", name="Acknowledge").click()
        expect(events).to_have_count(0)
        accessible(page)


def test_the_overview_leads_to_events_that_need_attention(site: Site, browser: Browser) -> None:
    name = "eventful"
    streaming(site, name)
    site.store.add_event(name, "restart", "The server was restarted without gtid_mode")
    site.store.add_event(name, "table_refused", "shop.log has no key", table="shop.log", remedy="Give it a key")
    site.store.add_event(name, "compacted", "12 files")
    with opened(site, browser) as (page, _):
        page.get_by_label("Filter").fill(name)
        row = page.get_by_role("row").filter(has_text=name)
        expect(row).to_contain_text("shop.log has no key")
        row.get_by_role("link", name="2 events need attention, the newest: Table refused").click()
        events = page.get_by_role("region", name="Timeline").locator(".ev")
        expect(events).to_have_count(2)
        expect(events.first).to_contain_text("shop.log has no key")
        expect(page.get_by_label("Severity")).to_have_value("attention")
        expect(page.locator(".trouble")).to_have_count(2)
        for left in (1, 0):
            events.first.get_by_role("button", name="Acknowledge").click()
            page.get_by_role("dialog").get_by_role("button", name="Acknowledge").click()
            expect(events).to_have_count(left)
        expect(page.locator(".trouble")).to_have_count(0)


def test_charts_say_values_and_fill_their_width(site: Site, browser: Browser) -> None:
    """A stream of two minutes fills the chart of an hour; a single point is a circle."""
    epoch = streaming(site, "charted", batches=120)
    with opened(site, browser, address_of(site, "charted")) as (page, _):
        chart = page.get_by_role("slider", name="Lag")
        expect(chart).to_have_attribute("aria-valuetext", re.compile("^median 400 ms, 95 % 800 ms, at "))
        expect(page.locator(".lag .legend")).to_contain_text("median 400 ms")
        drawn = page.locator(".lag .chart path.p50").bounding_box()
        whole = page.locator(".lag .chart").bounding_box()
        assert drawn and whole
        assert drawn["width"] > 0.6 * whole["width"], "the stream of two minutes does not fill the chart"
        page.mouse.move(whole["x"] + whole["width"] * 0.6, whole["y"] + 60)
        expect(page.locator(".lag .legend .when")).to_contain_text("at ")
        expect(page.locator(".lag .legend .when")).not_to_contain_text("newest")
        expect(page.locator(".lag .chart .cross")).to_have_count(1)
        page.mouse.move(0, 0)
        chart.focus()
        page.keyboard.press("Home")
        expect(chart).to_have_attribute("aria-valuenow", "0")
        expect(page.locator(".lag .chart .cross")).to_have_count(1)
        accessible(page)
    site.store.end_epoch("charted", epoch, "stopped")
    streaming(site, "single", batches=1)
    with opened(site, browser, address_of(site, "single")) as (page, _):
        expect(page.locator(".lag .chart circle.p50")).to_have_count(1)


def test_charts_reach_the_newest_batch_of_a_stream_that_has_stopped(site: Site, browser: Browser) -> None:
    """Each chart shows it, whatever time is chosen, and says how old it is. Nothing goes when the page draws again."""
    name, count_drawn = "silent", "document.querySelectorAll('svg path.p50:not([d=\"\"]), svg circle.p50').length"
    stop(site, name, streaming(site, name, batches=90, age=timedelta(hours=3)), hours=3)
    with opened(site, browser, address_of(site, name, "/stream")) as (page, _):
        for minutes in ("60", "5", "360"):
            page.get_by_label("Time shown").select_option(minutes)
            expect(page.locator("figure .when").filter(has_text="newest 3 h ago, at ")).to_have_count(3)
            assert page.evaluate(count_drawn) == 3
        page.evaluate(f"window.counts = new Set(), setInterval(() => counts.add({count_drawn}), 20)")
        for _ in range(3):
            with page.expect_response(lambda answer: answer.url.endswith(name)):
                pass
        assert page.evaluate("[...counts]") == [3]


def test_a_button_that_is_impossible_only_says_why(site: Site, browser: Browser) -> None:
    """Nothing is asked of the server, and the reason is seen. What the server refuses is a sentence."""
    with opened(site, browser, address_of(site, "by_hand")) as (page, wrong):
        impossible = page.get_by_role("group", name="Actions").locator("[aria-disabled=true]").first
        expect(impossible).to_be_visible()
        posts: list[str] = []
        page.on("request", lambda asked: posts.append(asked.url) if asked.method == "POST" else None)
        impossible.click(force=True)
        expect(page.locator("#done")).to_contain_text("Not possible now: ")
        expect(page.locator("#done")).to_have_text(f"Not possible now: {impossible.get_attribute('title')}.")
        assert posts == []
        expect(page.get_by_role("dialog")).to_have_count(0)
        assert wrong == []
    streaming(site, "refusing")
    site.store.write_table_states(
        "refusing",
        [TableStatus("shop", "orders", "streaming", definitions=[{"columns": {"id": "bigint"}, "key": ["id"]}])],
    )
    with opened(site, browser, address_of(site, "refusing", "/table/shop.orders")) as (page, wrong):
        page.get_by_role("button", name="Re-snapshot some keys: shop.orders").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("A condition on id").fill("id > 1 AND " * 400)
        dialog.get_by_role("button", name="Re-snapshot some keys").click()
        error = dialog.get_by_role("alert")
        expect(error).to_contain_text("condition")
        expect(error).not_to_contain_text("[object")
        wrong.clear()  # the answer 422


def test_links_lead_out(site: Site, browser: Browser) -> None:
    """From a task to its log in Airflow; a text that is no address of a task is text."""
    dag = f"{site.airflow.url}/dags/elsewhere"
    books.read(site.store, "elsewhere", 0)
    site.store.claim_group("elsewhere", 1, 1, holder="elsewhere.elsewhere.snapshot[1], run manual__1, try 2")
    epoch = books.stream(site.store, "elsewhere")
    site.store.record_supervision("elsewhere", epoch, "elsewhere.elsewhere.stream, run manual__1, try 1")
    with opened(site, browser, address_of(site, "elsewhere", "/stream")) as (page, _):
        expect(page.get_by_role("link", name="DAG elsewhere")).to_have_attribute("href", dag)
        log = page.get_by_role("region", name="Stream").get_by_role("link", name="log")
        expect(log).to_have_attribute("href", f"{dag}/runs/manual__1/tasks/elsewhere.stream?try_number=1")
        expect(page.get_by_text("/logs/1.log")).to_be_visible()
        page.get_by_role("link", name="Snapshot", exact=True).click()
        log = page.get_by_role("table", name="Chunk groups").get_by_role("link", name="log")
        expect(log).to_have_attribute("href", f"{dag}/runs/manual__1/tasks/elsewhere.snapshot/mapped/1?try_number=2")
        site.store.record_supervision("elsewhere", epoch, books.HOSTILE[0])
        page.get_by_role("link", name="Stream", exact=True).click()
        expect(page.get_by_role("region", name="Stream")).to_contain_text(books.HOSTILE[0])


def test_a_source_is_named_as_people_know_it(site: Site, browser: Browser) -> None:
    """By connection, version and host; by its identity only until a driver has recorded these."""
    streaming(site, "named")
    with opened(site, browser, address_of(site, "named")) as (page, _):
        expect(page.locator(".source")).to_have_text("server server-of-named")
        source = {"conn_id": "cdc_source", "host": "db.example", "port": 3306, "version": "MySQL 8.4.3"}
        site.store.record_source("named", source)
        expect(page.locator(".source")).to_have_text("cdc_source: MySQL 8.4.3 at db.example:3306")


def test_what_has_not_run_yet_is_in_the_list(site: Site, browser: Browser) -> None:
    with opened(site, browser) as (page, _):
        row = page.get_by_role("row").filter(has=page.get_by_role("link", name="DAG beside_the_sink"))
        expect(row).to_contain_text("beside")
        expect(row).to_contain_text("not run yet")
        unreadable: Any = page.get_by_role("region", name="State databases that cannot be read")
        expect(unreadable).not_to_contain_text("beside")
        unknown = page.get_by_role("region", name="DAGs whose pipeline is not known yet")
        expect(unknown.get_by_role("listitem")).to_have_count(1)
        page.goto(f"{site.url}/?dag_id=beside_the_sink")
        expect(page.get_by_role("listitem").filter(has_text="beside")).to_contain_text("not run yet")
        page.goto(f"{site.url}/?dag_id=shop")
        expect(page.get_by_role("heading", name="shop", exact=True)).to_be_visible()
        assert "#/p/null" not in page.url
