"""The pictures of the page in the docs. ``CDC_WRITE_DOCS=1`` writes them into `docs/images`."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect
from sqlalchemy import update

from airflow_provider_cdc.state import StateDatabase, TableStatus, utc_now
from airflow_provider_cdc.state.models import BatchRow
from tests import ROOT
from tests.ui import books
from tests.ui.browsing import address_of, cut_off, opened
from tests.ui.conftest import Site

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(900)]
PICTURES = ROOT / "docs" / "images"
WIDE, HIGH, LARGEST = 1180, 760, 150_000
#: Name of each picture, pipeline, and a heading that is seen when it is complete.
SCENES = (
    ("snapshot", "crm", "Chunks of all tables: 578"),
    ("stream", "billing", "Lag"),
    ("trouble", "warehouse", "Lag"),
)
#: Other widths of screens, with the height and the scale of their pictures.
SCREENS = {390: (1400, 1.0), 768: (1100, 1.0), 1440: (800, 0.5), 2560: (1000, 0.5)}
TABLES = {"customer": 96, "orders": 160, "order_lines": 210, "invoices": 60, "payments": 40, "products": 12}
SIZES = {"customer": 4_120_331, "orders": 18_440_902, "order_lines": 61_300_118, "invoices": 9_020_411}


def write_snapshot(store: StateDatabase, name: str) -> None:
    """A snapshot of which about half is read, with a group that has failed and two that are being read."""
    groups = books.plan(store, name, tables=TABLES, per_group=24)
    for group in range(groups // 2):
        books.read(store, name, group, corrected=2 if group % 3 == 0 else 0)
    task = "shop.shop.snapshot[{}], run manual__1, try 1"
    failed = groups // 2
    attempt = store.claim_group(name, 1, failed, holder=task.format(failed))
    store.release_group(name, 1, failed, attempt)
    for group in (failed + 1, failed + 2):
        attempt = store.claim_group(name, 1, group, holder=task.format(group), readers=2)
        results = [(24 * group + n, attempt, None, None, 1000, 50_000, 0, 0.3) for n in range(7)]
        store.record_read_chunks(name, 1, results)


def write_stream(store: StateDatabase, name: str, *, suspended: bool) -> None:
    """A stream that has run for an hour, with lags that differ."""
    for group in range(books.plan(store, name, tables=TABLES, per_group=72)):
        books.read(store, name, group, corrected=1)
    store.finish_snapshot(name, 1)
    batches = 240
    epoch = books.stream(store, name, batches=batches)
    with store._write_session() as session:
        for number in range(batches):
            lag = 180 + 30 * ((number * 37) % 11) + number % 60
            at = utc_now() - timedelta(seconds=15 * (batches - 1 - number))
            values: dict[str, Any] = {"lag_p50_ms": lag / 2, "lag_p95_ms": lag, "committed_at": at, "changes": 4000}
            mine = BatchRow.pipeline == name, BatchRow.epoch == epoch, BatchRow.batch_id == number
            session.execute(update(BatchRow).where(*mine).values(**values))
    store.record_supervision(name, epoch, f"{name}.{name}.stream, run manual__1, try 1")
    definitions = [{"since": None, "columns": {"id": "bigint"}, "key": ["id"], "changed": None}]
    states = [TableStatus("shop", table, "streaming", definitions=definitions) for table in TABLES]
    if suspended:
        why: dict[str, Any] = {
            "kind": "SchemaError",
            "reason": "The key of shop.orders has changed from (id) to (id, region): ALTER TABLE orders ...",
            "remedy": "Resume the table, which re-snapshots all of it while the stream continues",
        }
        states[1] = TableStatus("shop", "orders", "suspended", definitions=definitions, **why)
    sizes = {("shop", table): SIZES.get(table, 12_000) for table in TABLES}
    store.write_table_states(
        name,
        states,
        sizes={
            table: {"files": 12, "bytes": rows * 90, "rows": rows, "dead_rows": 40, "compactions": 2}
            for table, rows in sizes.items()
        },
        applied_counts={table: (rows // 40, rows // 9, rows // 800) for table, rows in sizes.items()},
    )
    store.record_verification(name, {table: {"equal": True} for table in sizes})
    store.record_sample(name, epoch, lag_seconds=0.5, lag_bytes=48_000, purge_hours=170.0)


def take_picture(page: Page, name: str, width: int = WIDE, height: int = HIGH) -> None:
    taken = page.screenshot(clip={"x": 0, "y": 0, "width": width, "height": height})
    assert len(taken) < LARGEST, f"{name}: {len(taken):,} bytes"
    if os.environ.get("CDC_WRITE_DOCS"):
        (PICTURES / f"{name}.png").write_bytes(taken)


def test_pictures(site: Site, browser: Browser) -> None:
    """A snapshot, a stream and a problem, light and dark; the problem also on other screens."""
    source = {"conn_id": "cdc_source", "host": "db.example", "port": 3306, "version": "MySQL 8.4.3"}
    write_snapshot(site.store, "crm")
    write_stream(site.store, "billing", suspended=False)
    write_stream(site.store, "warehouse", suspended=True)
    for _, pipeline, _ in SCENES:
        site.store.record_source(pipeline, source)
    for scheme in ("light", "dark"):
        viewport = {"width": WIDE, "height": HIGH}
        with opened(site, browser, viewport=viewport, color_scheme=scheme, device_scale_factor=1) as (page, _):
            for name, pipeline, seen in SCENES:
                page.goto(f"{site.url}/{address_of(site, pipeline)}")
                expect(page.get_by_role("heading", name=seen)).to_be_visible()
                page.wait_for_timeout(500)
                take_picture(page, f"page-{name}-{scheme}")
        for width, (height, scale) in SCREENS.items():
            viewport = {"width": width, "height": height}
            with opened(site, browser, viewport=viewport, color_scheme=scheme, device_scale_factor=scale) as (page, _):
                page.goto(f"{site.url}/{address_of(site, 'warehouse')}")
                expect(page.get_by_role("heading", name="Lag")).to_be_visible()
                page.wait_for_timeout(500)
                assert cut_off(page) == []
                take_picture(page, f"page-{width}-{scheme}", width, height)
