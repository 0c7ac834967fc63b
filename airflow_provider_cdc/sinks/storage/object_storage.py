"""Storage in an object store: S3 and compatible stores, Google Cloud Storage, and Azure.

Nothing depends on rename, append or locks. A file appears as a whole when its upload ends; if several writers try to
create it (``If-None-Match: *``), the store lets exactly one succeed.

A response can be lost, and then the library repeats the request, which finds the file that the first request wrote.
Each file that is written once therefore carries an identifier of its write in its metadata, by which the writer
recognizes its own file.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, TypeVar

import pyarrow as pa
from obstore.exceptions import AlreadyExistsError

from airflow_provider_cdc.config.store_access import StoreAccess
from airflow_provider_cdc.config.store_address import AZURE, GCS, S3, StoreAddress
from airflow_provider_cdc.model.errors import StoreError
from airflow_provider_cdc.sinks.storage.object_files import PART_BYTES, ArrowUploadFile, ObjectReader, UploadWriter
from airflow_provider_cdc.sinks.storage.request_counts import current_counts
from airflow_provider_cdc.sinks.storage.storage import checked_name
from airflow_provider_cdc.sinks.storage.store_client import Bucket, open_bucket

T = TypeVar("T")

#: Metadata name of the write identifier. Letters only: Azure restricts it, and some proxies drop underscores.
_WRITE_ID_ATTRIBUTE = "cdcwrite"
#: How often, and for how many seconds, write_once tries again while the store gives no clear answer.
_WRITE_ONCE_TRIES, _WRITE_ONCE_SECONDS = 6, 60.0
#: How often a listing is started, or continued after the last name listed.
_LIST_TRIES = 4
_STORE_REMEDY = "Check the store and the network connection to it, then run again"
#: How often a read is tried if its response breaks off.
_READ_TRIES = 5
#: Pieces uploaded in parallel.
_CONCURRENT_UPLOADS = 4


@dataclass(frozen=True)
class ObjectStorage:
    """Files of an object store, below a prefix. See :class:`~airflow_provider_cdc.sinks.storage.storage.Storage`.

    :param address: the prefix.
    :param access: settings and credentials from a connection; ``None`` to use the environment of each host. They are
        sent to tasks, like the password of the source.
    """

    address: StoreAddress
    access: StoreAccess | None = None
    #: Each call is a request to a server.
    is_remote: ClassVar[bool] = True

    def read(self, name: str) -> bytes | None:
        """See :class:`Storage`."""

        def read() -> bytes:
            with self._bucket_errors("reading", name, FileNotFoundError) as (bucket, key):
                current_counts().count("get")
                data = bytes(bucket.store.get(key).bytes().to_bytes())
                current_counts().count("get", requests=0, received=len(data))
                return data

        try:
            return _retry_broken_reads(read)
        except FileNotFoundError:
            return None

    def write(self, name: str, data: bytes) -> None:
        """See :class:`Storage`."""
        with self._bucket_errors("writing", name) as (bucket, key):
            large = len(data) > 4 * PART_BYTES
            current_counts().count("put", sent=len(data), requests=_multipart_requests(len(data)) if large else 1)
            bucket.store.put(key, data, use_multipart=large, chunk_size=PART_BYTES, max_concurrency=_CONCURRENT_UPLOADS)

    def write_once(self, name: str, data: bytes) -> bool:
        """See :class:`Storage`.

        :raises StoreError: if it is unknown whether this call has written the file, or still will.
        """
        write_id = uuid.uuid4().hex
        deadline = time.monotonic() + _WRITE_ONCE_SECONDS
        problem: StoreError | None = None
        for attempt in range(_WRITE_ONCE_TRIES):
            try:
                with self._bucket_errors("writing", name, AlreadyExistsError) as (bucket, key):
                    current_counts().count("put", sent=len(data))
                    bucket.store.put(
                        key, data, mode="create", attributes={_WRITE_ID_ATTRIBUTE: write_id}, use_multipart=False
                    )
                return True
            except AlreadyExistsError:
                problem = None
            except StoreError as error:
                problem = error
            # An existing file may be from this call: a response was lost, or the library repeated the request.
            try:
                found_id = self._read_write_id(name)
            except StoreError:
                raise problem or StoreError(f"writing {self.location(name)} failed", _STORE_REMEDY) from None
            if found_id is not None:
                return found_id == write_id
            # The file does not exist yet: a request may still be in flight, or requests of others conflicted. Repeating
            # the request with the same identifier is safe: whichever request of this call is first, the others find it.
            if time.monotonic() > deadline:
                break
            time.sleep(0.05 * 2**attempt)
        raise problem or StoreError(
            f"writing {self.location(name)} failed: the store reports both that it exists and that it does not",
            _STORE_REMEDY,
        )

    def size(self, name: str) -> int | None:
        """See :class:`Storage`."""
        head = self._head(name)
        return None if head is None else int(head.meta["size"])

    def modified_at(self, name: str) -> float | None:
        """See :class:`Storage`."""
        head = self._head(name)
        return None if head is None else float(head.meta["last_modified"].timestamp())

    def list(self, folder: str) -> Iterator[tuple[str, int]]:
        """See :class:`Storage`."""
        root = f"{self.address.root}/" if self.address.root else ""
        prefix = self._key(folder) if folder else self.address.root
        bucket, last_path, tries_left = self._open_bucket, None, _LIST_TRIES
        while tries_left:
            tries_left -= 1
            try:
                with bucket.translate_errors(f"listing {self.location(folder)}"):
                    current_counts().count("list")
                    for page, items in enumerate(bucket.store.list(prefix or None, offset=last_path, chunk_size=1000)):
                        current_counts().count("list", requests=int(page > 0))
                        for item in items:
                            last_path = item["path"]
                            yield last_path[len(root) :], int(item["size"])
                return
            except StoreError:  # the library does not retry a response that breaks off
                if not tries_left:
                    raise

    def delete(self, *names: str) -> None:
        """See :class:`Storage`."""
        keys = [self._key(name) for name in names]
        for start in range(0, len(keys), 1000):
            key_batch = keys[start : start + 1000]
            try:
                with self._bucket_errors("deleting", names[start], FileNotFoundError) as (bucket, _):
                    current_counts().count("delete")
                    bucket.store.delete(key_batch)
            except FileNotFoundError:  # some stores fail at the first missing file
                for key in key_batch:
                    with (
                        suppress(FileNotFoundError),
                        self._bucket_errors("deleting", names[start], FileNotFoundError) as (bucket, _),
                    ):
                        current_counts().count("delete")
                        bucket.store.delete(key)

    def delete_folder(self, folder: str) -> None:
        """See :class:`Storage`."""
        self._key(folder)
        with suppress(StoreError):
            self.delete(*(name for name, _ in self.list(folder)))

    def open(self, name: str, mode: Literal["rb", "wb"]) -> pa.NativeFile:
        """See :class:`Storage`."""
        if mode == "rb":
            return self._open_reader(name)
        self._key(name)
        counts = current_counts()  # another thread sends large files

        def put(content: bytes | Iterator[bytes]) -> None:
            with self._bucket_errors("writing", name) as (bucket, key):
                if isinstance(content, bytes):
                    counts.count("put", sent=len(content))
                    bucket.store.put(key, content, use_multipart=False)
                    return
                pieces = _CountedPieces(content)
                try:
                    bucket.store.put(
                        key, pieces, use_multipart=True, chunk_size=PART_BYTES, max_concurrency=_CONCURRENT_UPLOADS
                    )
                finally:
                    counts.count("put", sent=pieces.size, requests=_multipart_requests(pieces.size))

        return ArrowUploadFile(UploadWriter(put))

    def subfolder(self, folder: str) -> ObjectStorage:
        """See :class:`Storage`."""
        checked_name(folder, self.location())
        return replace(self, address=self.address.child(folder))

    def deny_others(self, folder: str) -> None:
        """Do nothing: the access rules of the store apply."""

    def location(self, name: str = "") -> str:
        """See :class:`Storage`."""
        return self.address.display(name)

    def uri(self, name: str = "") -> str:
        """See :class:`Storage`."""
        return self.address.uri(name)

    def storage_options(self) -> dict[str, str]:
        """See :class:`Storage`; for libraries that use ``object_store``. The keys of an assumed role expire."""
        bucket = self._open_bucket
        config = {name: _option_text(value) for name, value in bucket.config.items() if name != "aws_endpoint_url_s3"}
        if bucket.credential_provider is not None:
            keys = bucket.credential_provider()
            config |= {n: keys[n] for n in ("access_key_id", "secret_access_key")}
            config |= {"session_token": keys["token"]} if keys["token"] else {}
        prefix = {S3: "aws_", GCS: "google_", AZURE: "azure_storage_"}[self.address.store]
        config = {name if name in _UNPREFIXED_OPTIONS else prefix + name: value for name, value in config.items()}
        client = dict(self.access.client) if self.access else {}
        return config | {name: _option_text(value) for name, value in client.items()}

    def _open_reader(self, name: str) -> pa.NativeFile:
        counts = current_counts()  # threads of Arrow read large files

        def begin() -> tuple[int, bytes | None]:
            with self._bucket_errors("reading", name, FileNotFoundError) as (bucket, key):
                current_counts().count("get")
                response = bucket.store.get(key)
                size = int(response.meta["size"])
                if size > PART_BYTES:  # large files are read in parts: only the size is needed
                    return size, None
                current_counts().count("get", requests=0, received=size)
                return size, response.bytes().to_bytes()

        def read_ranges(starts: list[int], ends: list[int]) -> list[Any]:
            with self._bucket_errors("reading", name, FileNotFoundError) as (bucket, key):
                counts.count("get", received=sum(ends) - sum(starts))  # adjacent ranges: one request
                return list(bucket.store.get_ranges(key, starts=starts, ends=ends, coalesce=0))

        size, content = _retry_broken_reads(begin)
        if content is not None:
            return pa.BufferReader(pa.py_buffer(content))
        ranged = ObjectReader(size, lambda starts, ends: _retry_broken_reads(lambda: read_ranges(starts, ends)))
        return pa.PythonFile(ranged, mode="r")

    def _head(self, name: str) -> Any:
        try:
            with self._bucket_errors("checking", name, FileNotFoundError) as (bucket, key):
                current_counts().count("head")
                return bucket.store.get(key, options={"head": True})
        except FileNotFoundError:
            return None

    def _read_write_id(self, name: str) -> str | None:
        """Return the write identifier in a file's metadata; empty if it has none, ``None`` if there is no file."""
        head = self._head(name)
        return None if head is None else str(head.attributes.get(_WRITE_ID_ATTRIBUTE, ""))

    @property
    def _open_bucket(self) -> Bucket:
        bucket = open_bucket(replace(self.address, root=""), self.access)
        bucket.check_not_forked()
        return bucket

    def _key(self, name: str) -> str:
        checked_name(name, self.location())
        return f"{self.address.root}/{name}" if self.address.root else name

    @contextmanager
    def _bucket_errors(self, doing: str, name: str, *expected: type[BaseException]) -> Iterator[tuple[Bucket, str]]:
        key, bucket = self._key(name), self._open_bucket
        with bucket.translate_errors(f"{doing} {self.location(name)}", *expected):
            yield bucket, key


def _retry_broken_reads(read: Callable[[], T]) -> T:
    """Read, and retry if a response breaks off."""
    for tries_left in reversed(range(_READ_TRIES)):
        try:
            return read()
        except StoreError as error:
            if not error.response_interrupted or not tries_left:
                raise
    raise AssertionError


#: Options that have the same name for all stores.
_UNPREFIXED_OPTIONS = ("skip_signature",)


def _option_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _multipart_requests(size: int) -> int:
    """Return the number of requests of a multipart upload: one per part, plus its start and its end."""
    return 2 + max(1, -(-size // PART_BYTES))


class _CountedPieces:
    """Counts the bytes of the pieces that have been consumed.

    :param pieces: the pieces.
    """

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self.size = pieces, 0

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._pieces:
            self.size += len(piece)
            yield piece
