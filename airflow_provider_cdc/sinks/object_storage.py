"""An object store as storage: S3 and what speaks its protocol, Google Cloud Storage, Azure.

Nothing rests on rename, append or locks. A file is there, whole, when its upload has ended; of several writers who
want to be the first (``If-None-Match: *``), the store lets one be it.

An answer can be lost, and the library asks again: the second request then finds what the first has written. So each
file that is written once bears a number of its write among its metadata, by which it knows its own.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import lru_cache
from typing import Any, Literal

import pyarrow as pa
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import AzureStore, GCSStore, S3Store

from airflow_provider_cdc.core.store_access import StoreAccess
from airflow_provider_cdc.core.store_address import AZURE, GCS, S3, StoreAddress
from airflow_provider_cdc.exceptions import NotReadyError
from airflow_provider_cdc.sinks.object_files import PART, RangedFile, Upload, UploadFile
from airflow_provider_cdc.sinks.storage import checked_name
from airflow_provider_cdc.sinks.store_errors import StoreError, error_of_store, is_no_place

#: Name of the metadata that tells a write. Letters only: Azure allows no others, and some proxies drop underscores.
_WRITE = "cdcwrite"
#: How often it is tried to be the first where a store says neither yes nor no.
_TRIES = 5
#: Uploads of a piece, at the same time.
_UPLOADS = 4
_CLIENT: Mapping[str, Any] = {
    "connect_timeout": timedelta(seconds=10),
    "timeout": timedelta(seconds=60),
    "user_agent": "airflow-provider-cdc",
}
_RETRY: Any = {
    "max_retries": 10,
    "backoff": {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=10), "base": 2},
    "retry_timeout": timedelta(seconds=120),
}


class Traffic:
    """What was asked of a store by this process, and how many bytes went there and back. Repetitions are not seen."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.requests: Counter[str] = Counter()
        self.sent = self.received = 0

    def count(self, kind: str, *, sent: int = 0, received: int = 0, requests: int = 1) -> None:
        """Count requests.

        :param kind: ``get``, ``head``, ``put``, ``list`` or ``delete``.
        """
        with self._lock:
            self.requests[kind] += requests
            self.sent += sent
            self.received += received

    def to_json(self) -> dict[str, int]:
        """Plain values: requests by kind, and bytes."""
        with self._lock:
            return {**self.requests, "bytes_sent": self.sent, "bytes_received": self.received}


@dataclass(frozen=True)
class AssumedRole:
    """Asks AWS for the keys of a role, whenever those that it gave expire.

    :param keys: who asks; ``None`` for the environment.
    :param region: region of the service that is asked.
    :param role: arguments of ``AssumeRole``.
    """

    keys: tuple[str, str, str | None] | None
    region: str | None
    role: tuple[tuple[str, Any], ...]

    def __call__(self) -> Any:
        """Keys, and how long they hold."""
        try:
            import boto3
            from obstore.auth.boto3 import StsCredentialProvider
        except ImportError:
            raise NotReadyError(
                "role_arn needs boto3, which is not installed", 'Run: pip install "airflow-provider-cdc[aws]"'
            ) from None
        session = boto3.session.Session(*(self.keys or (None, None, None)), region_name=self.region)
        arguments: Any = dict(self.role)
        return StsCredentialProvider(session, **arguments)()


class _Keys:
    """Keys that hold. Given this way, nothing of the environment is mixed into them."""

    def __init__(self, keys: tuple[str, str, str | None]) -> None:
        self._keys = keys

    def __call__(self) -> Any:
        key, secret, token = self._keys
        return {"access_key_id": key, "secret_access_key": secret, "token": token, "expires_at": None}


class _Opened:
    """A bucket, as this process has opened it: with its connections, which all storages in it share."""

    def __init__(self, address: StoreAddress, access: StoreAccess | None) -> None:
        self.traffic = Traffic()
        self.secrets = access.secrets if access else ()
        self.config = settings(address, access)
        self.provider = _provider(access, self.config.get("region"))
        client: Any = {**_CLIENT, **dict(access.client if access else ())}
        if certificates := client.get("root_certificate"):
            client["root_certificate"] = _content(str(certificates))
        made: Any = {S3: S3Store, GCS: GCSStore, AZURE: AzureStore}[address.store]
        more: dict[str, Any] = {} if self.provider is None else {"credential_provider": self.provider}
        with self.errors(f"opening {address.text()}"):
            self.store = made(address.bucket, config=self.config, client_options=client, retry_config=_RETRY, **more)
        self._process = os.getpid()

    @contextmanager
    def errors(self, doing: str) -> Iterator[None]:
        """Errors of the library become the project's own."""
        try:
            yield
        except (BaseError, OSError, ValueError) as error:
            if isinstance(error, StoreError | AlreadyExistsError):
                raise
            if isinstance(error, FileNotFoundError) and not is_no_place(error):
                raise
            raise error_of_store(error, doing, self.secrets) from None

    def check(self) -> None:
        """Refuse to work in a process that was forked when the store was open: its threads are not there, it hangs."""
        if os.getpid() != self._process:
            raise RuntimeError("an object store was opened before this process was forked: start it afresh")


def settings(address: StoreAddress, access: StoreAccess | None) -> dict[str, Any]:
    """Settings of a store, by the names of obstore, without keys of AWS."""
    found: dict[str, Any] = dict(access.config) if access else {}
    if address.store == S3:
        endpoint, virtual = found.get("endpoint"), found.get("virtual_hosted_style_request")
        if virtual is None and not endpoint and not any(os.environ.get(name) for name in _ENDPOINTS):
            virtual = "." not in address.bucket  # no certificate covers a bucket whose name has dots
        if virtual and endpoint:
            scheme, _, host = endpoint.partition("://")
            found["endpoint"] = f"{scheme}://{address.bucket}.{host}"
        if virtual is not None:
            found["virtual_hosted_style_request"] = virtual
        if endpoint:  # or else one for S3 alone in the environment would go first
            found["aws_endpoint_url_s3"] = found["endpoint"]
        if access is not None:
            found.setdefault("skip_signature", False)
    if address.store == AZURE and address.account:
        found["account_name"] = address.account
        if address.cloud != StoreAddress.cloud:
            found.setdefault("endpoint", f"https://{address.account}.blob.{address.cloud}")
    return found


_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")


def _provider(access: StoreAccess | None, region: str | None) -> Any:
    if access is None or access.store != S3:
        return None
    if access.role:
        return AssumedRole(access.keys, region, access.role)
    return _Keys(access.keys) if access.keys else None


def _content(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise NotReadyError(
            f"the certificates {path} (extra verify) cannot be read: {type(error).__name__}",
            "The file must be on every host",
        ) from None


@lru_cache(maxsize=32)
def _opened(address: StoreAddress, access: StoreAccess | None) -> _Opened:
    return _Opened(address, access)


@dataclass(frozen=True)
class ObjectStorage:
    """Files of an object store, below a prefix. See :class:`~airflow_provider_cdc.sinks.storage.Storage`.

    :param address: the prefix.
    :param access: what a connection says; ``None`` for what the environment of each host says. It travels to tasks, as
        the password of the source does.
    """

    address: StoreAddress
    access: StoreAccess | None = None

    @property
    def traffic(self) -> Traffic:
        """What this process has asked of the bucket, whatever the prefix."""
        return self._bucket.traffic

    def read(self, name: str) -> bytes | None:
        """See :class:`Storage`."""
        try:
            with self._errors("reading", name) as (bucket, key):
                bucket.traffic.count("get")
                data = bucket.store.get(key).bytes().to_bytes()
        except FileNotFoundError:
            return None
        bucket.traffic.count("get", requests=0, received=len(data))
        return bytes(data)

    def write(self, name: str, data: bytes) -> None:
        """See :class:`Storage`."""
        with self._errors("writing", name) as (bucket, key):
            bucket.traffic.count("put", sent=len(data))
            bucket.store.put(key, data, use_multipart=len(data) > 4 * PART, chunk_size=PART, max_concurrency=_UPLOADS)

    def write_once(self, name: str, data: bytes) -> bool:
        """See :class:`Storage`.

        :raises StoreError: if it is not known whether this call has written it, or ever will.
        """
        number = uuid.uuid4().hex
        for attempt in range(_TRIES):
            problem: StoreError | None = None
            try:
                with self._errors("writing", name) as (bucket, key):
                    bucket.traffic.count("put", sent=len(data))
                    bucket.store.put(key, data, mode="create", attributes={_WRITE: number}, use_multipart=False)
                return True
            except AlreadyExistsError:
                pass
            except StoreError as error:
                problem = error
            # What is there may be what this call has written: an answer was lost, and the library has asked again.
            found = self._written_by(name)
            if found is not None:
                return found == number
            if problem is not None:  # nothing is there yet: a request may still be under way
                raise problem
            time.sleep(0.05 * 2**attempt)  # said to be there, and is not: others were at it, or it was deleted
        raise StoreError(
            f"writing {self.location(name)} failed: the store says that it is there, and that it is not",
            "Look at the store, then run again",
        )

    def size(self, name: str) -> int | None:
        """See :class:`Storage`."""
        found = self._head(name)
        return None if found is None else int(found["size"])

    def modified(self, name: str) -> float | None:
        """See :class:`Storage`."""
        found = self._head(name)
        return None if found is None else float(found["last_modified"].timestamp())

    def list(self, folder: str) -> Iterator[tuple[str, int]]:
        """See :class:`Storage`."""
        root = f"{self.address.root}/" if self.address.root else ""
        prefix = self._key(folder) if folder else self.address.root
        bucket = self._bucket
        with bucket.errors(f"listing {self.location(folder)}"):
            for found in bucket.store.list(prefix or None, chunk_size=1000):
                bucket.traffic.count("list")
                for item in found:
                    yield item["path"][len(root) :], int(item["size"])

    def delete(self, *names: str) -> None:
        """See :class:`Storage`."""
        keys = [self._key(name) for name in names]
        for start in range(0, len(keys), 1000):
            some = keys[start : start + 1000]
            try:
                with self._errors("deleting", names[start]) as (bucket, _):
                    bucket.traffic.count("delete")
                    bucket.store.delete(some)
            except FileNotFoundError:  # of some stores, at the first that is not there
                for key in some:
                    with suppress(FileNotFoundError), self._errors("deleting", names[start]) as (bucket, _):
                        bucket.traffic.count("delete")
                        bucket.store.delete(key)

    def clear(self, folder: str) -> None:
        """See :class:`Storage`."""
        self._key(folder)
        with suppress(StoreError):
            self.delete(*(name for name, _ in self.list(folder)))

    def open(self, name: str, mode: Literal["rb", "wb"]) -> pa.NativeFile:
        """See :class:`Storage`."""
        if mode == "rb":
            return self._reader(name)
        self._key(name)

        def put(content: bytes | Iterator[bytes]) -> None:
            with self._errors("writing", name) as (bucket, key):
                small = isinstance(content, bytes)
                pieces = content if isinstance(content, bytes) else _counted(bucket.traffic, content)
                bucket.traffic.count(
                    "put", sent=len(content) if isinstance(content, bytes) else 0, requests=1 if small else 2
                )
                bucket.store.put(key, pieces, use_multipart=not small, chunk_size=PART, max_concurrency=_UPLOADS)

        return UploadFile(Upload(put))

    def within(self, folder: str) -> ObjectStorage:
        """See :class:`Storage`."""
        checked_name(folder, self.location())
        return replace(self, address=self.address.within(folder))

    def make_private(self, folder: str) -> None:
        """Nothing: who may read a store, its own rules say."""

    def location(self, name: str = "") -> str:
        """See :class:`Storage`."""
        return self.address.text(name)

    def uri(self, name: str = "") -> str:
        """See :class:`Storage`."""
        return self.address.uri(name)

    def options(self) -> dict[str, str]:
        """See :class:`Storage`: for libraries on top of ``object_store``. Keys of a role hold for a while only."""
        bucket = self._bucket
        found = {name: _text(value) for name, value in bucket.config.items() if name != "aws_endpoint_url_s3"}
        if bucket.provider is not None:
            keys = bucket.provider()
            found |= {n: keys[n] for n in ("access_key_id", "secret_access_key")}
            found |= {"session_token": keys["token"]} if keys["token"] else {}
        prefix = {S3: "aws_", GCS: "google_", AZURE: "azure_storage_"}[self.address.store]
        found = {name if name in _BARE else prefix + name: value for name, value in found.items()}
        client = dict(self.access.client) if self.access else {}
        return found | {name: _text(value) for name, value in client.items()}

    def _reader(self, name: str) -> pa.NativeFile:
        with self._errors("reading", name) as (bucket, key):
            bucket.traffic.count("get")
            found = bucket.store.get(key)
            size = int(found.meta["size"])
            if size <= PART:
                bucket.traffic.count("get", requests=0, received=size)
                return pa.BufferReader(pa.py_buffer(found.bytes().to_bytes()))
            del found  # only its size is of use: what is wanted of a large file is read in parts

        def read_ranges(starts: list[int], ends: list[int]) -> list[Any]:
            with self._errors("reading", name) as (bucket, key):
                bucket.traffic.count("get", requests=len(starts), received=sum(ends) - sum(starts))
                return list(bucket.store.get_ranges(key, starts=starts, ends=ends, coalesce=0))

        return pa.PythonFile(RangedFile(size, read_ranges), mode="r")

    def _head(self, name: str) -> Any:
        try:
            with self._errors("looking at", name) as (bucket, key):
                bucket.traffic.count("head")
                return bucket.store.head(key)
        except FileNotFoundError:
            return None

    def _written_by(self, name: str) -> str | None:
        """Number of the write that a file bears; empty if it bears none, ``None`` if there is no file."""
        try:
            with self._errors("looking at", name) as (bucket, key):
                bucket.traffic.count("head")
                attributes: Mapping[Any, Any] = bucket.store.get(key, options={"head": True}).attributes
                return str(attributes.get(_WRITE, ""))
        except FileNotFoundError:
            return None

    @property
    def _bucket(self) -> _Opened:
        found = _opened(replace(self.address, root=""), self.access)
        found.check()
        return found

    def _key(self, name: str) -> str:
        checked_name(name, self.location())
        return f"{self.address.root}/{name}" if self.address.root else name

    @contextmanager
    def _errors(self, doing: str, name: str) -> Iterator[tuple[_Opened, str]]:
        key, bucket = self._key(name), self._bucket
        with bucket.errors(f"{doing} {self.location(name)}"):
            yield bucket, key


#: Settings whose names are the same for all stores.
_BARE = ("skip_signature",)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _counted(traffic: Traffic, pieces: Iterator[bytes]) -> Iterator[bytes]:
    for piece in pieces:
        traffic.count("put", sent=len(piece))
        yield piece
