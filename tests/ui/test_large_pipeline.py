"""A pipeline of 5,000 tables and 100,000 chunks: what the page asks for again and again stays small and quick."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.ui import books
from tests.ui.conftest import Site

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(900)]
NAME = "large"
#: The limits of a poll: bytes, and seconds in which the server answers.
MAX_BYTES, MAX_SECONDS = 20_000, 0.05
#: How much longer an answer may take here, since other processes share the machine, and each request logs in again.
MARGIN = 4.0


@pytest.fixture(scope="module")
def large(site: Site) -> Iterator[str]:
    books.large(site.store, NAME)
    yield f"/api/pipelines/{site.book}/{NAME}"
    site.store.delete_pipeline(NAME)


def test_polls(site: Site, large: str) -> None:
    token = site.login("root")
    paths = {
        "": 0,
        "/tables": 0,
        "/tables?sort=trouble&limit=30": 0,
        "/tables?q=table_04&sort=bytes&desc=1": 0,
        "/chunks": 0,
        "/events": 0,
        "/groups": 0,
        "/table?table=shop.table_00007": 0,
    }
    import httpx

    with httpx.Client(base_url=site.url, headers={"Authorization": f"Bearer {token}"}, timeout=60) as client:
        begun = time.monotonic()
        first = client.get(large)
        assert first.status_code == 200
        assert time.monotonic() - begun < 2 * MARGIN  # the first look reads all chunks
        for path in paths:
            seconds = []
            for _ in range(8):
                begun = time.monotonic()
                answer = client.get(large + path)
                seconds.append(time.monotonic() - begun)
                assert answer.status_code == 200, answer.text
                assert len(answer.content) < MAX_BYTES, (path, len(answer.content))
            assert min(seconds) < MAX_SECONDS * MARGIN, (path, seconds)
        view = first.json()
        assert view["tables"] == {"total": 5000, "states": {"snapshot": 4992, "suspended": 8}}
        assert (view["snapshot"]["chunks"], view["snapshot"]["done"], view["snapshot"]["reading"]) == (
            100_000,
            50_125,
            8,
        )
        chunks = client.get(f"{large}/chunks").json()
        assert len(chunks["cells"]) * chunks["per_cell"] == 100_000
        assert chunks["counts"]["reading"] == 8
        troubled = client.get(f"{large}/tables?trouble=1").json()
        assert (troubled["total"], troubled["matching"], len(troubled["rows"])) == (5000, 8, 8)
        events = client.get(f"{large}/events?table=shop.table_00007").json()["events"]
        assert {one["table"] for one in events} == {"shop.table_00007"}
