"""At every width, in both themes and inside Airflow, nothing that can be used or read is cut off."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from airflow_provider_cdc.state import TableStatus, utc_now
from airflow_provider_cdc.state.values import LastCompaction
from tests.ui import books
from tests.ui.browsing import accessible, address_of, cut_off, opened
from tests.ui.conftest import Site

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(900)]
WIDTHS = (390, 768, 1024, 1440, 2560)
SIZE = {"files": 18, "bytes": 3_400_000, "rows": 123_456_789, "dead_rows": 654_321, "compactions": 3}
PARTS = ("/tables", "/table/shop.orders", "/timeline", "/snapshot", "/stream")

#: Given words that are on more than one line, and those that are cut off without a title that has them.
_BROKEN = """(words) => {
  const broken = [], walker = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    if (node.parentElement.closest(".hidden, select")) continue;
    for (const match of node.data.matchAll(/[a-z]+/g)) {
      if (!words.includes(match[0])) continue;
      const range = document.createRange();
      range.setStart(node, match.index);
      range.setEnd(node, match.index + match[0].length);
      if (new Set([...range.getClientRects()].map((box) => Math.round(box.top))).size > 1)
        broken.push(`${match[0]} in ${node.data}`);
      const piece = node.parentElement.closest(".piece");
      if (piece && piece.scrollWidth > piece.clientWidth && !piece.closest("[title]")?.title.includes(match[0]))
        broken.push(`${match[0]} is cut off without a title`);
    }
  }
  return broken;
}"""


def write_everything(site: Site, name: str) -> None:
    """A pipeline with something in every column: suspended, compacted, compared, with long texts."""
    store = site.store
    for group in range(books.plan(store, name, tables={"orders": 12, "customer": 4}, per_group=4)):
        books.read(store, name, group, corrected=1, holder=f"{name}.snapshot[{group}], try 1 [host-1.example 4711]")
    store.finish_snapshot(name, 1)
    books.stream(store, name, batches=90)
    places = [
        {"since": None, "columns": {"id": "bigint"}, "key": ["id"], "changed": None},
        {"since": "binlog.000007:120", "columns": {"id": "bigint"}, "key": ["id"], "changed": "ALTER TABLE orders ..."},
    ]
    why: dict[str, Any] = {
        "reason": "The copy of shop.orders differs: ALTER TABLE " + "a_very_long_name_of_a_column_" * 6,
        "remedy": "Resume the table, which re-snapshots all of it",
    }
    states = [
        TableStatus("shop", "orders", "suspended", "binlog.000007:120", definitions=places, **why),
        TableStatus("shop", "customer", "streaming", "binlog.000007:120", definitions=places[:1]),
    ]
    tables = [("shop", "orders"), ("shop", "customer")]
    store.write_table_states(
        name,
        states,
        sizes=dict.fromkeys(tables, SIZE),
        last_compactions=dict.fromkeys(tables, LastCompaction(utc_now(), 4.0)),
        applied_counts=dict.fromkeys(tables, (123_456_789, 987_654_321, 1_234)),
    )
    store.record_verification(name, {tables[0]: {"equal": True}, tables[1]: {"equal": False}})
    store.record_sample(name, 1, lag_seconds=0.4, lag_bytes=1_234_567, purge_hours=31.0)
    store.add_event(name, "table_suspended", why["reason"], table="shop.orders", remedy=why["remedy"])
    store.add_request(name, "reread", "shop.customer", "root", "id >= 100 AND id < 200")


def test_nothing_is_cut_off(site: Site, browser: Browser) -> None:
    write_everything(site, "wide")
    address = address_of(site, "wide")
    for scheme in ("light", "dark"):
        with opened(site, browser, color_scheme=scheme) as (page, _):
            for part in ("overview", *PARTS):
                page.goto(f"{site.url}/{'#/' if part == 'overview' else address + part}")
                expect(page.locator("h1")).to_be_visible()
                expect(page.locator("main .empty")).to_have_count(0)
                for width in WIDTHS:
                    page.set_viewport_size({"width": width, "height": 900})
                    page.wait_for_timeout(50)
                    assert cut_off(page) == [], (part, width)
                page.set_viewport_size({"width": 1440, "height": 900})
                accessible(page)


def test_names_never_break_inside_a_word(site: Site, browser: Browser) -> None:
    """They wrap after a dot or an underscore. A word that has no room is cut, and its title has the whole name."""
    store, name = site.store, "a_pipeline_with_a_name_that_is_rather_longer_than_others"
    tables = ("customer_relationship_contact_preferences_archive_of_last_year", "unbreakable" * 5, "t")
    database = "warehouse_of_the_northern_region"
    for group in range(books.plan(store, name, tables=dict.fromkeys(tables, 4), per_group=12, database=database)):
        books.read(store, name, group, holder=f"{name}.{name}.snapshot[{group}], try 1")
    store.finish_snapshot(name, 1)
    books.stream(store, name, batches=9)
    states = []
    for table in tables:
        label = f"{database}.{table}"
        why: dict[str, Any] = {"kind": "SchemaError", "reason": f"{label} has no key", "remedy": f"Resume {label}"}
        states.append(TableStatus(database, table, "suspended", **why))
        store.add_event(name, "reread_given_up", f"{label} is not re-snapshotted", table=label, remedy=why["remedy"])
        store.add_request(name, "reread", label, "root", None)
    store.write_table_states(name, states)
    words = sorted(set("_".join((name, database, *tables)).split("_")))
    with opened(site, browser) as (page, _):
        address = address_of(site, name)
        parts = ("/tables", "/timeline", "/snapshot", "/stream", *(f"/table/{database}.{table}" for table in tables))
        for part in ("overview", *parts):
            page.goto(f"{site.url}/{'#/' if part == 'overview' else address + part}")
            expect(page.locator("main .name").first).to_be_visible()
            expect(page.locator("main .empty")).to_have_count(0)
            for width in WIDTHS:
                page.set_viewport_size({"width": width, "height": 900})
                page.wait_for_timeout(50)
                assert page.evaluate(_BROKEN, words) == [], (part, width)
                assert cut_off(page) == [], (part, width)


def test_nothing_is_cut_off_inside_airflow(site: Site, browser: Browser) -> None:
    """In the tab of a DAG, the split view leaves about half of the window; on a phone there is a way out of it."""
    with opened(site, browser) as (page, wrong):
        frame = page.frame_locator("iframe")
        way_out = frame.get_by_role("link", name="Open the full page")
        inside: dict[int, int] = {}
        for width in (1440, 1024, 768, 390):
            page.set_viewport_size({"width": width, "height": 900})
            page.goto(f"{site.airflow.url}/dags/shop/plugin/cdc_dag")
            expect(frame.locator("h1")).to_have_text("shop")
            expect(frame.get_by_role("table", name="Chunk groups")).to_be_attached()
            inside[width] = frame.locator("body").evaluate("() => innerWidth")
            assert cut_off(frame) == [], inside
            # On a phone, Airflow makes the frame wider than the window.
            expect(way_out).to_have_count(int(min(width, inside[width]) < 500))
        way_out.click()
        page.wait_for_url(f"{site.url}/**")
        expect(page.get_by_role("heading", name="shop", exact=True)).to_be_visible()
        assert cut_off(page) == []
        expect(page.get_by_role("link", name="Open the full page")).to_have_count(0)
        wrong.clear()  # what Airflow's own pages say is not this one's
