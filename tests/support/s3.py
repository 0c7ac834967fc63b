"""Real S3-compatible servers for tests, demo and benchmarks.

- ``moto``: the server of that Python package, in memory and at once there. For quick tests.
- ``versitygw``: a gateway that keeps objects as files, as it is used in production. Built once by ``go install`` into
  the user's cache folder (about four minutes), or taken from PATH. For long tests, the demo and the benchmarks.

A server is started once in a process, by whoever needs it first, and does not outlive it.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

from obstore.store import S3Store

from tests.support.packages import ServerUnavailable, cache_folder, locked
from tests.support.processes import Session, free_port, remove_folder, tail, temporary_folder, wait_for

Kind = Literal["moto", "versitygw"]
KINDS: tuple[Kind, ...] = get_args(Kind)
VERSITYGW = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
REGION = "us-east-1"


@dataclass(frozen=True)
class S3:
    """A bucket of one's own on a server.

    :param endpoint: address of the server; objects are addressed by path.
    :param prefix: what all names below begin with.
    """

    endpoint: str
    bucket: str
    key: str
    secret: str = field(repr=False)
    prefix: str = ""

    def uri(self, path: str = "") -> str:
        """The address of something there: a ``sink.path``."""
        return f"s3://{self.bucket}/{self._name(path)}".rstrip("/")

    def under(self, path: str) -> S3:
        """A place below."""
        return replace(self, prefix=self._name(path))

    def _name(self, path: str) -> str:
        return "/".join(part for part in (self.prefix, path) if part)

    def at(self, endpoint: str) -> S3:
        """The same bucket by another way: through a proxy."""
        return replace(self, endpoint=endpoint)

    def airflow(self) -> dict[str, Any]:
        """The Airflow connection, field by field."""
        extra = {"endpoint_url": self.endpoint, "region_name": REGION}
        return {"conn_type": "aws", "login": self.key, "password": self.secret, "extra": extra}

    def connection(self) -> str:
        """The same for ``AIRFLOW_CONN_<ID>``."""
        return json.dumps(self.airflow())

    @property
    def options(self) -> dict[str, str]:
        """What Polars and delta-rs call storage options."""
        return {
            "aws_endpoint_url": self.endpoint,
            "aws_access_key_id": self.key,
            "aws_secret_access_key": self.secret,
            "aws_region": REGION,
            "aws_allow_http": "true",
            "aws_virtual_hosted_style_request": "false",
            "aws_conditional_put": "etag",
        }

    def store(self) -> S3Store:
        """A client of the make that the product uses."""
        return S3Store(
            self.bucket,
            prefix=self.prefix or None,
            endpoint=self.endpoint,
            access_key_id=self.key,
            secret_access_key=self.secret,
            region=REGION,
            virtual_hosted_style_request=False,
            client_options={"allow_http": True},
        )

    @property
    def client(self) -> Any:
        """A client of another make than the one that the product uses."""
        return _client(self)

    def stamps(self, prefix: str = "") -> dict[str, tuple[str, str]]:
        """All objects of the bucket whose names begin so: hash of the content, and when it was written."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=prefix)
        found = [item for page in pages for item in page.get("Contents", ())]
        return {item["Key"]: (item["ETag"], item["LastModified"].isoformat()) for item in found}

    def keys(self, prefix: str = "") -> list[str]:
        """The names of all objects of the bucket that begin so, sorted."""
        return sorted(self.stamps(prefix))

    def content(self, key: str) -> bytes:
        """An object of the bucket."""
        data: bytes = self.client.get_object(Bucket=self.bucket, Key=key)["Body"].read()
        return data

    def empty(self) -> None:
        """Remove all objects, and uploads that were not completed."""
        for upload in self.client.list_multipart_uploads(Bucket=self.bucket).get("Uploads") or ():
            self.client.abort_multipart_upload(Bucket=self.bucket, Key=upload["Key"], UploadId=upload["UploadId"])
        keys = self.keys()
        for start in range(0, len(keys), 1000):
            batch = [{"Key": key} for key in keys[start : start + 1000]]
            self.client.delete_objects(Bucket=self.bucket, Delete={"Objects": batch, "Quiet": True})


@cache
def _client(place: S3) -> Any:
    import boto3  # not every environment of tests/versions.py has it
    from botocore.config import Config

    return boto3.client(
        "s3",
        endpoint_url=place.endpoint,
        aws_access_key_id=place.key,
        aws_secret_access_key=place.secret,
        region_name=REGION,
        config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}),
    )


@contextlib.contextmanager
def s3_server(kind: Kind = "moto") -> Iterator[S3]:
    """An empty bucket on a server of that kind; it is removed afterwards.

    :raise ServerUnavailable: when there is no such server, or it did not start; then with the end of its log.
    """
    place = server(kind).bucket()
    try:
        yield place
    finally:
        place.empty()
        place.client.delete_bucket(Bucket=place.bucket)


class S3Server:
    """A server on a free loopback port."""

    def __init__(self, kind: Kind) -> None:
        self.kind, self.pid = kind, os.getpid()
        self.endpoint = f"http://127.0.0.1:{(port := free_port())}"
        self.key, self.secret = secrets.token_hex(8), secrets.token_hex(16)
        program = versitygw() if kind == "versitygw" else None
        self._folder = temporary_folder(f"cdc-{kind}-")
        command: list[str | Path] = [sys.executable, "-m", "tests.support.moto_server", str(port)]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        if program is not None:
            (data := self._folder / "data").mkdir()
            # The secret by the environment, which only this user can read, and not on the command line.
            environment |= {"ROOT_ACCESS_KEY": self.key, "ROOT_SECRET_KEY": self.secret}
            command = [program, "--port", f"127.0.0.1:{port}", "--region", REGION, "--quiet", "posix", data]
        log = self._folder / "log"
        self._session = Session(command, log, env=environment, cwd=self._folder)
        try:
            wait_for(f"{kind} answers", lambda: self._answers() or not self._session.alive, 120)
        finally:
            if not self._session.alive:
                message = f"{kind} did not start:\n{tail(log)}"
                self.stop()
                raise ServerUnavailable(message)

    def stop(self) -> None:
        """End the server and remove its data."""
        self._session.end(grace=5)
        remove_folder(self._folder)

    def bucket(self) -> S3:
        """A new bucket."""
        place = S3(self.endpoint, f"b{secrets.token_hex(6)}", self.key, self.secret)
        place.client.create_bucket(Bucket=place.bucket)
        return place

    def _answers(self) -> bool:
        try:
            urllib.request.urlopen(self.endpoint, timeout=5).close()
        except urllib.error.HTTPError:
            return True  # it wants to know who asks
        except OSError:
            return False
        return True


_running: dict[Kind, S3Server] = {}


def server(kind: Kind) -> S3Server:
    """The server of this process; a forked child uses that of its parent."""
    if kind not in _running:
        _running[kind] = S3Server(kind)
        atexit.register(_running[kind].stop)
    return _running[kind]


def versitygw_at_hand() -> bool:
    """Whether there is one without building it."""
    return shutil.which("versitygw") is not None or _built().exists()


def _built() -> Path:
    return cache_folder() / f"versitygw-{VERSITYGW.rpartition('@')[2]}" / "versitygw"


def versitygw() -> Path:
    """The program, built first where it is neither in PATH nor in the cache.

    :raise ServerUnavailable: where it cannot be built.
    """
    if found := shutil.which("versitygw"):
        return Path(found)
    program = _built()
    with locked("versitygw"):
        if not program.exists():
            if shutil.which("go") is None:
                raise ServerUnavailable("versitygw is built with Go: install that, or put a versitygw into PATH")
            print("Building versitygw (once, about four minutes) ...", file=sys.stderr, flush=True)
            program.parent.mkdir(exist_ok=True)
            environment = {**os.environ, "GOBIN": str(program.parent)}
            run = subprocess.run(["go", "install", VERSITYGW], env=environment, capture_output=True, text=True)
            if run.returncode:
                raise ServerUnavailable(f"versitygw could not be built:\n{run.stderr[-2000:]}")
    return program


if __name__ == "__main__":
    if sys.argv[1:] != ["prefetch"]:
        sys.exit("usage: python -m tests.support.s3 prefetch")
    print(f"versitygw for long tests, demo and benchmarks: {versitygw()}")
