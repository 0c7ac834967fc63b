"""Pages of the application in a real browser, and what must be true of each of them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, FrameLocator, Page, expect

from tests.ui.conftest import Site

#: Milliseconds that anything may take where the machine is busy with other tests.
PATIENCE = 30_000
#: What can be used or read, and is neither inside the viewport's width nor hidden on purpose.
_CUT_OFF = """() => {
  const cut = [];
  const seen = "a, button, input, select, summary, td, h1, h2, p, li, dd, code, canvas, svg";
  for (const node of document.querySelectorAll(seen)) {
    const box = node.getBoundingClientRect();
    if (!box.width || node.closest(".hidden:not(.shown), .skip")) continue;
    let left = 0, right = innerWidth;
    for (let outer = node.parentElement; outer; outer = outer.parentElement) {
      if (getComputedStyle(outer).overflowX === "visible") continue;
      const edge = outer.getBoundingClientRect();
      [left, right] = [Math.max(left, edge.left), Math.min(right, edge.right)];
    }
    if (box.right > right + 1 || box.left < left - 1)
      cut.push(`${node.tagName} ${node.textContent.slice(0, 50)}: ${box.left} to ${box.right} of ${right}`);
  }
  const whole = document.documentElement.scrollWidth;
  if (whole > innerWidth) {
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), range = document.createRange();
    const wide = [];
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
      range.selectNodeContents(node);
      if ([...range.getClientRects()].some((box) => box.right > innerWidth)) wide.push(node.data.slice(0, 50));
    }
    cut.push(`the page is ${whole} wide: ${wide}`);
  }
  return cut;
}"""


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
        assert wrong == [], wrong
    finally:
        context.close()


def accessible(page: Page) -> None:
    """No rule of axe is broken."""
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


def cut_off(page: Page | FrameLocator) -> list[str]:
    """What of a page, or of one in a frame, is not inside its width."""
    body = page.locator("body")
    found: list[str] = body.evaluate(_CUT_OFF)
    return found


def address_of(site: Site, pipeline: str, part: str = "") -> str:
    """The address of a pipeline, as soon as the page knows it: it looks for new ones now and then.

    :param part: such as ``/tables``.
    """
    until = time.monotonic() + 30
    while site.get(f"/api/pipelines/{site.book}/{pipeline}").status_code == 404 and time.monotonic() < until:
        time.sleep(0.2)
    return f"#/p/{site.book}/{pipeline}{part}"
