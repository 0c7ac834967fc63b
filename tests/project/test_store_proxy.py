"""The proxy before an object store does what it says: otherwise the tests of faults prove nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from botocore.exceptions import BotoCoreError, ClientError

from tests.support.processes import wait_for
from tests.support.s3 import S3
from tests.support.store_proxy import FAULTS, LATE, Fault, Request, StoreProxy, in_a_row


@pytest.fixture
def proxy(s3: S3) -> Iterator[StoreProxy]:
    with StoreProxy(s3) as proxy:
        yield proxy


def create(place: S3, key: str) -> Any:
    return place.client.put_object(Bucket=place.bucket, Key=key, Body=b"x" * 1000, IfNoneMatch="*")


def read(place: S3, key: str) -> bytes:
    body: bytes = place.client.get_object(Bucket=place.bucket, Key=key)["Body"].read()
    return body


def code(work: Callable[[], object]) -> str:
    """The code of an error, or that there was no answer."""
    try:
        work()
    except ClientError as error:
        return str(error.response["Error"]["Code"])
    except BotoCoreError:
        return "no answer"
    return ""


@pytest.mark.parametrize(
    ("fault", "answer", "done"),
    [
        ("cut", "no answer", False),
        ("error", "InternalError", False),
        ("slow_down", "SlowDown", False),
        ("conflict", "ConditionalRequestConflict", False),
        ("lost", "no answer", True),
        ("denied", "InternalError", True),
    ],
)
def test_a_write_that_meets_a_fault(s3: S3, proxy: StoreProxy, fault: Fault, answer: str, done: bool) -> None:
    create(proxy.place, "before")
    proxy.meet(fault, "create", "^a/one$")
    create(proxy.place, "a/other")
    assert code(lambda: create(proxy.place, "a/one")) == answer
    assert ("a/one" in s3.keys("a/")) == done
    assert code(lambda: create(proxy.place, "a/one")) == ("PreconditionFailed" if done else "")
    assert proxy.met == {fault: 1} and not proxy.waiting


def test_a_write_that_is_done_when_nobody_waits_for_it(s3: S3, proxy: StoreProxy) -> None:
    proxy.meet("late", "create")
    assert code(lambda: create(proxy.place, "a")) == "no answer"
    assert not s3.keys()
    wait_for("it is there", lambda: s3.keys() == ["a"], LATE + 20)


def test_an_answer_that_ends_in_its_middle(proxy: StoreProxy) -> None:
    create(proxy.place, "a")
    proxy.meet("short", "get")
    with pytest.raises(Exception, match=r"(?i)incomplete|0 bytes|broken|read"):
        read(proxy.place, "a")
    assert read(proxy.place, "a") == b"x" * 1000


def test_an_answer_that_comes_late(proxy: StoreProxy) -> None:
    create(proxy.place, "a")
    proxy.meet("delay", "get")
    begin = time.monotonic()
    assert read(proxy.place, "a") == b"x" * 1000
    assert time.monotonic() - begin > 0.25


def test_a_seed_decides_which_request_meets_what(s3: S3) -> None:
    def faults(seed: int, between: int) -> list[Fault | None]:
        found: list[Fault | None] = []
        with StoreProxy(s3) as proxy:
            proxy.disturb(seed, every=3)
            for _ in range(60):
                found.append(proxy.fault("create", "a"))
                for _ in range(between):  # whatever goes on beside it
                    proxy.fault("get", "b")
        return found

    assert faults(1, 0) == faults(1, 2) != faults(2, 0)
    assert {*faults(1, 0)} == {*FAULTS, None} - {"short"}


def test_it_records_what_was_asked(proxy: StoreProxy) -> None:
    create(proxy.place, "f/a b=é")
    found = proxy.record(lambda: (read(proxy.place, "f/a b=é"), proxy.place.keys("f/")))
    said = [(r.what, r.key, r.status) for r in found]
    assert said == [("get", "f/a b=é", 200), ("list", "f/", 200)] and found[0].received == 1000
    assert [(r.what, r.key, r.status) for r in proxy.requests] == [("create", "f/a b=é", 200), *said]
    # The client of this test frames what it sends.
    assert proxy.requests[0].sent >= 1000


def test_requests_at_the_same_time_are_one_in_a_row() -> None:
    def request(begin: float, end: float) -> Request:
        return Request("get", "", begin, end, 0, 0, 200, None)

    assert in_a_row([]) == 0
    assert in_a_row([request(1, 2), request(1.5, 3), request(1.9, 2.5)]) == 1
    assert in_a_row([request(1, 2), request(2, 3), request(1.5, 2.5), request(3.5, 4)]) == 3
