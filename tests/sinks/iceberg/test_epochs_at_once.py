"""Drivers of several epochs that commit to one table at the same time: a new one shuts out all older ones."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Event

import pytest

from airflow_provider_cdc.config.catalog_settings import REST, CatalogSettings
from airflow_provider_cdc.model.errors import FencedError
from airflow_provider_cdc.sinks.iceberg.sink import IcebergSink
from airflow_provider_cdc.sinks.protocol import Fence, Markers, Upsert
from tests.sinks.conformance import KEYED
from tests.sinks.iceberg.test_table import rows
from tests.support.iceberg_rest import IcebergRest
from tests.support.iceberg_sink import catalog_file

EPOCHS, SECONDS = 5, 1.0
#: Commits of one driver, at most.
_MOST = 300


@pytest.fixture(params=["SQLite", "REST"])
def open_sink(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], IcebergSink]:
    if request.param == "SQLite":
        settings = catalog_file(tmp_path)
    else:
        server: IcebergRest = request.getfixturevalue("iceberg_rest")
        server.forget_all()
        settings = CatalogSettings(REST, server.uri)
    return lambda: IcebergSink(str(tmp_path), "p", catalog=settings)


def decide(epoch: int, number: int, markers: Markers) -> Upsert | None:
    """A row with a number, unless the table has that already: as with a batch, it was determined before."""
    if (markers.get("stream") or 0) >= number:
        return None
    return Upsert(rows((number, f"epoch {epoch}", number, "c")))


def test_drivers_of_several_epochs(open_sink: Callable[[], IcebergSink]) -> None:
    """Each begins while the one before is at work, which goes on until it is refused. What is done once stays so."""
    first = open_sink().table(KEYED)
    first.create("p")

    def drive(epoch: int, began: Event) -> list[int]:
        """Commit one row after the other, from where the table is; the numbers of those that were committed."""
        target, fence, done = open_sink().table(KEYED), Fence("epoch", epoch), list[int]()
        target.raise_fence(fence)
        began.set()
        try:
            for _ in range(_MOST):
                number = (target.markers().get("stream") or 0) + 1
                if target.commit(partial(decide, epoch, number), {"stream": number}, fence):
                    done.append(number)
        except FencedError:
            return done
        raise AssertionError(f"epoch {epoch} was not refused")

    with ThreadPoolExecutor(EPOCHS + 1) as pool:
        drivers = []
        for epoch in range(1, EPOCHS + 1):
            began = Event()
            drivers.append(pool.submit(drive, epoch, began))
            assert began.wait(60)
            time.sleep(SECONDS)
        open_sink().table(KEYED).raise_fence(Fence("epoch", EPOCHS + 1))
        committed = {epoch: driver.result(120) for epoch, driver in enumerate(drivers, 1)}
    found, markers = open_sink().table(KEYED).read()
    numbers = dict(zip(found["id"].to_pylist(), found["v.w"].to_pylist(), strict=True))
    last = markers.get("stream") or 0
    assert found.num_rows == last and {*numbers} == {*range(1, last + 1)}, "a number was lost, or committed twice"
    assert numbers == {number: f"epoch {epoch}" for epoch, listed in committed.items() for number in listed}
    # In the order of the numbers, no older epoch comes behind a newer one.
    epochs = [int(numbers[number].split()[1]) for number in range(1, last + 1)]
    assert epochs == sorted(epochs) and len({*epochs}) == EPOCHS
