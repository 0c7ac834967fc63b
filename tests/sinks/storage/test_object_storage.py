"""What is special about an object store: requests that meet faults, answers that are refusals, and who may ask."""

from __future__ import annotations

import gc
import json
import os
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from airflow_provider_cdc.config.connections import ResolvedConnection
from airflow_provider_cdc.config.store_access import StoreAccess, parse_store_access
from airflow_provider_cdc.config.store_address import StoreAddress
from airflow_provider_cdc.model.errors import CdcError, NotReadyError, StoreError, TransientError
from airflow_provider_cdc.model.schema import SEQ_COLUMN
from airflow_provider_cdc.sinks.delta import maintenance
from airflow_provider_cdc.sinks.delta.log.delta_log import DeltaLog
from airflow_provider_cdc.sinks.files.parquet import describe_file, read_file, write_file
from airflow_provider_cdc.sinks.lake.compaction import FileCompaction
from airflow_provider_cdc.sinks.storage import object_storage, store_client
from airflow_provider_cdc.sinks.storage.local_storage import LocalStorage
from airflow_provider_cdc.sinks.storage.object_files import PART_BYTES
from airflow_provider_cdc.sinks.storage.object_storage import ObjectStorage
from airflow_provider_cdc.sinks.storage.request_counts import (
    RequestCounts,
    count_requests_in,
    format_counts,
    sum_counts,
    with_current_counts,
)
from airflow_provider_cdc.sinks.storage.store_check import check_storage_guarantees
from airflow_provider_cdc.spark.tasks import SecretFreePickler
from bench import store
from tests.support.object_store import object_storage as storage_of
from tests.support.s3 import S3, s3_server
from tests.support.store_proxy import Fault, StoreProxy, counted_by


@pytest.fixture
def proxy(s3: S3) -> Iterator[StoreProxy]:
    with StoreProxy(s3) as found:
        yield found


@pytest.fixture
def storage(proxy: StoreProxy) -> ObjectStorage:
    return storage_of(proxy.place, "lake")


def aws(**fields: Any) -> StoreAccess:
    extra = fields.pop("extra", {})
    return parse_store_access(ResolvedConnection("lake", "aws", extra=extra, **fields))


def at(endpoint: str, **extra: Any) -> ObjectStorage:
    """A bucket of a server of the test's own."""
    keys = {"login": "AKID", "password": "hunter2"}
    return ObjectStorage(StoreAddress("s3", "bucket"), aws(**keys, extra={"endpoint_url": endpoint, **extra}))


_NOW = "Tue, 24 Nov 2026 12:00:00 GMT"


class Answers:
    """A server that has the same answer for all, and keeps what it was asked."""

    def __init__(self, status: int, body: str = "", headers: dict[str, str] | None = None) -> None:
        self.asked: list[tuple[str, str, dict[str, str]]] = []
        asked = self.asked

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                asked.append((self.command, self.path, {k.lower(): v for k, v in self.headers.items()}))
                self.send_response(status)
                for name, value in {"ETag": '"x"', "Last-Modified": _NOW, **(headers or {})}.items():
                    self.send_header(name, value)
                data = body.encode() if self.command != "HEAD" else b""
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_PUT = do_HEAD = do_POST = do_DELETE = do_GET

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Answers:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def uploads(s3: S3) -> int:
    return len(s3.client.list_multipart_uploads(Bucket=s3.bucket).get("Uploads") or ())


# ---------------------------------------------------------------- written once, whatever happens on the way


@pytest.mark.parametrize("fault", ["lost", "denied", "conflict", "cut", "error", "slow_down", "delay"])
def test_the_first_writer_knows_that_it_was_the_first(proxy: StoreProxy, storage: ObjectStorage, fault: Fault) -> None:
    """Also if the store has done it and nobody has heard of it, and if what is written says nothing of who wrote it."""
    proxy.meet(fault, "create")
    assert storage.write_once("f", b"same") and storage.read("f") == b"same"
    assert not storage.write_once("f", b"same")
    assert not proxy.waiting and proxy.met == {fault: 1}


@pytest.mark.parametrize("fault", ["lost", "denied", "conflict", "cut", "error"])
def test_another_writer_knows_that_it_was_not(proxy: StoreProxy, storage: ObjectStorage, fault: Fault) -> None:
    assert storage.write_once("f", b"same")
    proxy.meet(fault, "create")
    assert not storage.write_once("f", b"same")
    assert not proxy.waiting


def test_what_others_have_written_is_not_taken_for_ones_own(s3: S3, storage: ObjectStorage) -> None:
    s3.client.put_object(Bucket=s3.bucket, Key="lake/f", Body=b"same")
    assert not storage.write_once("f", b"same")


def test_who_does_not_know_says_so(proxy: StoreProxy, storage: ObjectStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be there, or come later: neither true nor false is an answer."""
    monkeypatch.setattr(object_storage, "_WRITE_ONCE_TRIES", 2)
    monkeypatch.setitem(store_client.RETRY_CONFIG, "max_retries", 0)
    for _ in range(2):
        proxy.meet("cut", "create")
    with pytest.raises(StoreError) as error:
        storage.write_once("f", b"x")
    assert isinstance(error.value, OSError) and isinstance(error.value, TransientError)
    assert storage.read("f") is None and not proxy.waiting


def test_it_is_asked_again_under_the_same_number(
    proxy: StoreProxy, storage: ObjectStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that was given up may come late: it must find itself, and not another writer."""
    monkeypatch.setitem(store_client.RETRY_CONFIG, "max_retries", 0)  # it is not the library that asks again
    proxy.meet("lost", "create")
    waiting: list[Any] = []
    original = proxy.ask

    def ask(method: str, path: str, headers: Any, body: bytes) -> Any:
        if method == "PUT" and not waiting:  # what is lost arrives only when the next request is on its way
            waiting.append((method, path, list(headers), body))
            return 200, "OK", [], b""
        if method == "PUT":
            assert original(*waiting[0])[0] == 200
        return original(method, path, headers, body)

    proxy.ask = ask  # type: ignore[method-assign]
    assert storage.write_once("f", b"x") and storage.read("f") == b"x"
    assert [(r.what, r.status) for r in proxy.requests if r.what == "create"] == [("create", 0), ("create", 412)]


def test_reading_and_listing_go_on_after_faults(proxy: StoreProxy, storage: ObjectStorage) -> None:
    data = os.urandom(300_000)
    storage.write("a/f", data)
    reading: list[Fault] = ["short", "error", "cut", "slow_down"]
    writing: list[Fault] = ["lost", "denied", "error"]
    for fault in reading:
        proxy.meet(fault, "get")
        assert storage.read("a/f") == data
        proxy.meet(fault, "list")
        assert list(storage.list("a")) == [("a/f", len(data))]
    for fault in writing:
        proxy.meet(fault, "put")
        storage.write("a/f", data)
        proxy.meet(fault, "delete")
        storage.delete("a/f", "a/none")
        assert storage.read("a/f") is None
        storage.write("a/f", data)
    assert not proxy.waiting


# ---------------------------------------------------------------- in pieces


def test_a_small_file_is_one_request_each_way(proxy: StoreProxy, storage: ObjectStorage) -> None:
    def write() -> None:
        write_file(storage, "f.parquet", table().schema, [table().slice(0, 100)], "id")

    assert [r.what for r in proxy.record(write)] == ["put"]
    read = proxy.record(lambda: read_file(storage, "f.parquet", table().schema))
    assert [r.what for r in read] == ["get"]
    read = proxy.record(lambda: describe_file(storage, "f.parquet", table().schema, ["id", SEQ_COLUMN], "id"))
    assert [r.what for r in read] == ["get"]


ROWS = 600_000


@cache
def table() -> pa.Table:
    return pa.table(
        {
            "id": pa.array(range(ROWS), pa.int64()),
            "v": [os.urandom(30) for _ in range(ROWS)],
            "w": [b"w"] * ROWS,
            SEQ_COLUMN: pa.array(range(ROWS), pa.int64()),
        }
    )


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A Parquet file of several pieces."""
    local = LocalStorage(tmp_path_factory.mktemp("large"))
    write_file(local, "f", table().schema, _tables(), "id")
    data = local.read("f")
    assert data is not None and len(data) > 2 * PART_BYTES
    return data


def _tables() -> Iterator[pa.Table]:
    for start in range(0, ROWS, 20_000):
        yield table().slice(start, 20_000)


def test_a_large_file(proxy: StoreProxy, storage: ObjectStorage, s3: S3, large: bytes) -> None:
    file = write_file(storage, "f", table().schema, _tables(), "id")
    assert storage.size("f") == file.size == len(large) and uploads(s3) == 0
    assert {r.what for r in proxy.requests if r.key.endswith("f")} >= {"multipart"}
    assert storage.read("f") == s3.client.get_object(Bucket=s3.bucket, Key="lake/f")["Body"].read()
    assert read_file(storage, "f", table().schema).equals(table())
    requests = proxy.record(lambda: read_file(storage, "f", table().schema, ["w"]))
    assert sum(r.received for r in requests if r.status == 206) < len(large) / 4 and len(requests) < 12
    with storage.open("f", "rb") as opened:
        assert opened.size() == len(large)
        for start, count in (
            (0, 10),
            (PART_BYTES - 3, 9),
            (len(large) - 5, 100),
            (len(large), 1),
            (17, 3 * PART_BYTES),
        ):
            opened.seek(start)
            found = storage.read("f")
            assert found is not None and opened.read(count) == found[start : start + count]
            assert opened.tell() == min(start + count, len(large))


@pytest.mark.parametrize("size", [10, 3 * PART_BYTES])
def test_a_file_whose_writer_fails_is_not_there(storage: ObjectStorage, s3: S3, size: int) -> None:
    with pytest.raises(RuntimeError), storage.open("f", "wb") as file:
        file.write(os.urandom(size))
        raise RuntimeError
    with pytest.raises(RuntimeError), storage.open("g", "wb") as file:
        with pq.ParquetWriter(file, table().schema) as writer:
            writer.write_table(table().slice(0, size))
        raise RuntimeError  # the footer is written, and yet it is not what was to be written
    forgotten = storage.open("h", "wb")
    forgotten.write(os.urandom(size))
    del forgotten
    gc.collect()
    assert list(storage.list("")) == []
    until = time.monotonic() + 20
    while uploads(s3) and time.monotonic() < until:
        time.sleep(0.1)
    assert uploads(s3) == 0 and list(storage.list("")) == []


def test_an_upload_that_fails_says_so(proxy: StoreProxy, s3: S3) -> None:
    """Not only to whoever closes it: who goes on writing need not wait for the end."""
    with Answers(403, "<Error><Code>AccessDenied</Code></Error>") as server:
        storage = at(server.endpoint)
        with pytest.raises(NotReadyError), storage.open("f", "wb") as file:
            for _ in range(200):
                file.write(bytes(PART_BYTES))
        with pytest.raises(NotReadyError), storage.open("f", "wb") as file:
            file.write(b"small")


@pytest.mark.parametrize("fault", ["lost", "denied", "error", "cut"])
def test_uploads_meet_faults(proxy: StoreProxy, storage: ObjectStorage, fault: Fault) -> None:
    """The file is there, whole, or the writer hears that it may not be."""
    data = os.urandom(2 * PART_BYTES + 5)
    for number in range(4):
        proxy.meet(fault, "multipart")
        try:
            with storage.open(f"f{number}", "wb") as file:
                for start in range(0, len(data), PART_BYTES // 2):
                    file.write(data[start : start + PART_BYTES // 2])
                    if start == 0 and number == 3:
                        proxy.meet(fault, "multipart", "f3")
        except StoreError:
            assert storage.size(f"f{number}") in (None, len(data))
            continue
        assert storage.read(f"f{number}") == data


# ---------------------------------------------------------------- refusals


REFUSALS = [
    (404, "NoSuchBucket", NotReadyError, "Create the bucket"),
    (403, "AccessDenied", NotReadyError, "Allow reading, writing"),
    (403, "InvalidAccessKeyId", NotReadyError, "Correct the keys"),
    (403, "SignatureDoesNotMatch", NotReadyError, "Correct the keys"),
    (403, "RequestTimeTooSkewed", NotReadyError, "Set the clock"),
    (400, "ExpiredToken", StoreError, "has expired"),
    (301, "PermanentRedirect", NotReadyError, "region"),
    (400, "AuthorizationHeaderMalformed", NotReadyError, "region"),
    (501, "NotImplemented", NotReadyError, "If-None-Match"),
    (400, "SomethingElse", StoreError, "Check the store"),
]


@pytest.mark.parametrize(("status", "code", "kind", "remedy"), REFUSALS)
def test_refusals(status: int, code: str, kind: type[CdcError], remedy: str) -> None:
    body = f"<Error><Code>{code}</Code><Message>hunter2 and AKID</Message></Error>"
    with Answers(status, body) as server:
        storage = at(server.endpoint)
        ways: list[Callable[[], object]] = [
            lambda: storage.read("f"),
            lambda: storage.write("f", b"x"),
            lambda: storage.write_once("f", b"x"),
            lambda: list(storage.list("")),
            lambda: storage.open("f", "rb"),
        ]
        for way in ways:
            with pytest.raises(kind) as error:
                way()
            assert (code in str(error.value) or status == 301) and remedy in error.value.remedy, error.value
            assert "hunter2" not in str(error.value) and "s3://bucket" in error.value.message
            assert "\n" not in str(error.value)


def test_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(store_client.RETRY_CONFIG, "max_retries", 1)
    monkeypatch.setattr(object_storage, "_WRITE_ONCE_TRIES", 1)
    for way in (lambda s: s.read("f"), lambda s: s.write_once("f", b""), lambda s: s.delete("f")):
        with pytest.raises(StoreError, match="s3://bucket/f failed"):
            way(at("http://127.0.0.1:9"))


def test_a_store_that_lets_several_be_the_first_is_refused(proxy: StoreProxy, storage: ObjectStorage) -> None:
    check_storage_guarantees(storage, "_cdc/p")
    assert list(storage.list("")) == []
    original = proxy.ask
    proxy.ask = lambda method, path, headers, body: original(  # type: ignore[method-assign]
        method, path, [(k, v) for k, v in headers if k.lower() != "if-none-match"], body
    )
    with pytest.raises(NotReadyError, match="does not let only one writer create a file.*If-None-Match"):
        check_storage_guarantees(storage, "_cdc/p")
    assert list(storage.list("")) == []


# ---------------------------------------------------------------- who asks


def test_no_secret_shows(s3: S3) -> None:
    storage = storage_of(s3, "lake")
    shown = (
        repr(storage) + str(storage) + repr(storage.access) + repr(storage._open_bucket.store) + storage.location("f")
    )
    assert s3.secret not in shown + storage.uri("f")
    assert pickle.loads(pickle.dumps(storage)) == storage
    assert s3.secret in storage.storage_options().values()  # it is for libraries that need it


def test_keys_of_the_environment_are_not_mixed_in(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_SESSION_TOKEN", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.setenv(name, "http://other.invalid")
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    with Answers(200) as server:
        at(server.endpoint).write("f", b"")
        (_, path, headers) = server.asked[-1]
        assert path == "/bucket/f" and "Credential=AKID/" in headers["authorization"]
        assert "x-amz-security-token" not in headers
        at(server.endpoint, aws_session_token="t0ken").write("f", b"")
        assert server.asked[-1][2]["x-amz-security-token"] == "t0ken"


def test_keys_of_the_environment(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the one that this process has, not of the one that has sent the storage."""
    storage = ObjectStorage(StoreAddress("s3", s3.bucket, "env"))
    for name, value in {"ACCESS_KEY_ID": s3.key, "SECRET_ACCESS_KEY": s3.secret, "ENDPOINT_URL": s3.endpoint}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    storage.write("f", b"1")
    assert s3.keys() == ["env/f"] and s3.secret.encode() not in pickle.dumps(storage)


def test_anonymous_and_styles_of_addresses() -> None:
    with Answers(200) as server:
        unsigned = aws(extra={"endpoint_url": server.endpoint, "anonymous": True})
        ObjectStorage(StoreAddress("s3", "bucket"), unsigned).write("f", b"")
        assert "authorization" not in server.asked[-1][2] and server.asked[-1][1] == "/bucket/f"
    style = {"config_kwargs": {"s3": {"addressing_style": "virtual"}}}
    assert at("http://host:9", **style)._open_bucket.config["endpoint"] == "http://bucket.host:9"
    assert at("http://host:9")._open_bucket.config.get("virtual_hosted_style_request") is None
    bare = ObjectStorage(StoreAddress("s3", "bucket"), aws(login="a", password="b"))
    assert bare._open_bucket.config["virtual_hosted_style_request"] is True
    dotted = ObjectStorage(StoreAddress("s3", "my.bucket"), aws(login="a", password="b"))
    assert dotted._open_bucket.config["virtual_hosted_style_request"] is False


def test_a_role(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    """AWS is asked for its keys when they are needed, and again before they expire."""
    times: list[str] = []
    expires = [timedelta(seconds=1), timedelta(hours=1)]

    def answer(handler: Any) -> str:
        times.append(handler)
        until = (datetime.now(UTC) + expires[min(len(times), 2) - 1]).isoformat()
        return (
            "<AssumeRoleResponse><AssumeRoleResult><Credentials>"
            f"<AccessKeyId>ROLE{len(times)}</AccessKeyId><SecretAccessKey>s</SecretAccessKey>"
            f"<SessionToken>t</SessionToken><Expiration>{until}</Expiration></Credentials></AssumeRoleResult>"
            "</AssumeRoleResponse>"
        )

    with roles(answer) as sts, Answers(200) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", sts)
        extra = {"role_arn": "arn:aws:iam::1:role/r", "region_name": "eu-west-1", "endpoint_url": server.endpoint}
        storage = ObjectStorage(StoreAddress("s3", "bucket"), aws(login="a", password="b", extra=extra))
        storage.write("f", b"")
        time.sleep(1.2)
        storage.write("f", b"")
        storage.write("f", b"")
        used = [headers["authorization"].split("Credential=")[1].split("/")[0] for _, _, headers in server.asked]
        assert used == ["ROLE1", "ROLE2", "ROLE2"] and len(times) == 2
        assert "RoleArn=arn%3Aaws%3Aiam%3A%3A1%3Arole%2Fr" in times[0]
        assert storage.storage_options()["aws_session_token"] == "t"


@contextmanager
def roles(answer: Callable[[str], str]) -> Iterator[str]:
    """A server that gives keys of roles."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            data = answer(body).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/xml")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def test_work_for_tasks_holds_no_secret_where_it_is_large(s3: S3) -> None:
    """Spark writes what is large to disk on its way."""
    storage = storage_of(s3, "lake")
    works = [FileCompaction(storage.subfolder(name), table().schema, ((name, b"x" * 100),)) for name in ("a", "b")]
    parcel = SecretFreePickler()
    packed = [parcel.pack(work) for work in works]
    assert all(s3.secret.encode() not in data for data in packed) and parcel.store_accesses == [storage.access]
    sent: SecretFreePickler = pickle.loads(pickle.dumps(parcel))
    assert [sent.unpack(data) for data in packed] == works


@pytest.mark.long
def test_wrong_keys(tmp_path: Path) -> None:
    """Of a server that looks at signatures."""
    with s3_server("versitygw") as place:
        value = json.loads(place.connection()) | {"password": "hunter2"}
        wrong = parse_store_access(ResolvedConnection.from_json({"conn_id": "lake", **value}))
        storage = ObjectStorage(StoreAddress("s3", place.bucket), wrong)
        with pytest.raises(NotReadyError, match="403 Forbidden SignatureDoesNotMatch"):
            storage.write_once("f", b"")
        with pytest.raises(NotReadyError, match="403"):
            storage.size("f")


def test_a_forked_process_does_not_hang(storage: ObjectStorage) -> None:
    storage.write("f", b"1")
    reader, writer = os.pipe()
    if not (child := os.fork()):
        try:
            storage.read("f")
        except RuntimeError as error:
            os.write(writer, str(error).encode())
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as said:
        assert b"before this process was forked" in said.read()
    os.waitpid(child, 0)


# ---------------------------------------------------------------- counted, and read by others


def test_requests_are_counted(proxy: StoreProxy, storage: ObjectStorage) -> None:
    def work() -> None:
        storage.write("a", b"x" * 1000)
        storage.write_once("b", b"y")
        storage.read("a")
        storage.read("none")
        storage.size("a")
        list(storage.list(""))
        storage.delete("a", "b")

    run = RequestCounts()
    with count_requests_in(RequestCounts(run)) as traffic:
        seen = proxy.record(work)
    storage.read("a")  # not counted any more
    assert traffic.to_json() == run.to_json() == {
        "requests": 7, "put": 2, "get": 2, "head": 1, "list": 1, "delete": 1, "bytes_sent": 1001, "bytes_received": 1000
    } == counted_by(seen)  # fmt: skip


@pytest.mark.parametrize("size", [PART_BYTES - 1, PART_BYTES, 2 * PART_BYTES + 1, 5 * PART_BYTES])
@pytest.mark.parametrize("how", ["whole", "in pieces"])
def test_requests_for_large_files_are_counted(proxy: StoreProxy, storage: ObjectStorage, size: int, how: str) -> None:
    """Also those of other threads: uploads in parts, and what Arrow reads."""

    def work() -> None:
        if how == "whole":
            storage.write("f", b"x" * size)
        else:
            with storage.open("f", "wb") as file:
                for start in range(0, size, 3_000_000):
                    file.write(b"x" * min(3_000_000, size - start))
        with storage.open("f", "rb") as file, ThreadPoolExecutor(1) as pool:
            assert len(pool.submit(file.read).result()) == size

    with count_requests_in(RequestCounts()) as traffic:
        seen = proxy.record(work)
    assert traffic.to_json() == counted_by(seen)


def test_requests_of_other_threads_are_counted_where_they_were_asked_for(storage: ObjectStorage) -> None:
    with count_requests_in(RequestCounts()) as traffic, ThreadPoolExecutor(4) as pool:
        list(pool.map(with_current_counts(storage.read), "abc"))
        list(pool.map(storage.read, "abc"))  # of nobody
        with count_requests_in(RequestCounts()) as inner:
            pool.submit(with_current_counts(storage.read), "d").result()
        with count_requests_in(RequestCounts(traffic)) as part:
            pool.submit(with_current_counts(storage.read), "d").result()
        part.add({"get": 2, "bytes_received": 5})  # as a task on another host has counted
    assert inner.to_json()["requests"] == 1
    assert part.to_json() == {"requests": 3, "get": 3, "bytes_sent": 0, "bytes_received": 5}
    assert traffic.to_json() == {"requests": 6, "get": 6, "bytes_sent": 0, "bytes_received": 5}
    assert sum_counts([part.to_json(), inner.to_json()])["get"] == 4
    assert format_counts(part.to_json()) == "3 requests (3 GET), 0 bytes sent, 5 received"
    assert format_counts(RequestCounts().to_json()) == "0 requests, 0 bytes sent, 0 received"


def test_checkpoints_and_clean_up_of_a_delta_log(
    s3: S3, storage: ObjectStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the library that knows how: it finds the store by ``uri`` and ``options``."""
    monkeypatch.setattr(maintenance, "_CHECKPOINT_INTERVAL", 5)
    folder = storage.subfolder("odd =2F name/t")
    log = DeltaLog(folder)
    fields = [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]
    schema = json.dumps({"type": "struct", "fields": fields})
    day = {"delta.logRetentionDuration": "interval 0 days", "delta.enableExpiredLogCleanup": "true"}
    start: list[dict[str, Any]] = [
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {
            "metaData": {
                "id": "a", "format": {"provider": "parquet", "options": {}}, "schemaString": schema,
                "partitionColumns": [], "configuration": day, "createdTime": 0,
            }
        },
    ]  # fmt: skip
    assert log.commit(start, "CREATE")
    for number in range(9):
        if number == 7:
            maintenance.write_checkpoint_if_due(log)
            assert log.checkpoint_version == 7
        assert log.commit([{"txn": {"appId": "m", "version": number}}], "WRITE")
    names = [name for name, _ in folder.list("_delta_log")]
    assert f"_delta_log/{7:020d}.checkpoint.parquet" in names
    assert f"_delta_log/{8:020d}.json" in names and f"_delta_log/{0:020d}.json" not in names, names
    again = DeltaLog(storage.subfolder("odd =2F name").subfolder("t"))
    again.refresh()
    assert again.version == 9 and again.markers == {"m": 8}
    assert DeltaTable(folder.uri(), storage_options=folder.storage_options()).version() == 9
    assert DeltaTable(s3.uri("lake/odd%20=2F%20name/t"), storage_options=s3.options).version() == 9


def test_a_benchmark_prints_what_status_would_show(proxy: StoreProxy) -> None:
    """``make bench-store`` counts as batches of the stream are counted, and the store has seen just that."""
    storage = storage_of(proxy.place, "table")
    store.make(storage, 1000)
    counts, seen = store.asked(proxy, storage, 1000, 50)
    assert counts == counted_by(seen) and counts["put"] == 3
    assert format_counts(counts).startswith("4 requests (1 GET, 3 PUT), ")
