"""Addresses in ``sink.path``: a folder, or a location in an object store."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self
from urllib.parse import quote, unquote

from airflow_provider_cdc.model.errors import NotReadyError

#: Kinds of object stores.
S3, GCS, AZURE = "s3", "gs", "az"
_SCHEMES = {"s3": S3, "s3a": S3, "gs": GCS, "gcs": GCS, "abfss": AZURE, "abfs": AZURE, "az": AZURE}
_ADDRESS_FORMS = "s3://bucket/prefix, gs://bucket/prefix, abfss://container@account.dfs.core.windows.net/prefix or az://container/prefix"
_FOLDER_FORM = "the absolute path of a folder, such as /data/lake, or an address such as s3://bucket/lake"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*):/")
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._\-]{1,220}[A-Za-z0-9]")
_ACCOUNT = re.compile(r"([a-z0-9]{3,24})\.(?:dfs|blob)\.(core\.[a-z0-9.\-]+)")
#: Domain of accounts in Azure's public cloud.
_PUBLIC_DOMAIN = "core.windows.net"


@dataclass(frozen=True)
class StoreAddress:
    """A location in an object store.

    :param store: kind of the store.
    :param bucket: bucket or container.
    :param root: prefix of all names below it, without leading or trailing slashes.
    :param account: account of Azure, if the address names it.
    :param account_domain: domain of that account.
    """

    store: str
    bucket: str
    root: str = ""
    account: str | None = None
    account_domain: str = _PUBLIC_DOMAIN

    @classmethod
    def parse(cls, path: str) -> Self | None:
        """Return the location that ``sink.path`` names; ``None`` if it names a folder.

        :raises NotReadyError: if it is neither. The address is not shown, because it may contain keys.
        """
        match = _SCHEME.match(path)
        if match is None or match[1].lower() == "file":
            local_folder_of(path)
            return None
        store = _SCHEMES.get(match[1])
        if store is None:
            raise NotReadyError(f"sink.path: {match[1]}:// is not supported", f"Use {_FOLDER_FORM}: {_ADDRESS_FORMS}")
        bucket, _, root = path.partition("://")[2].partition("/")
        account, cloud = None, _PUBLIC_DOMAIN
        if "@" in bucket and store == AZURE:
            bucket, _, host = bucket.partition("@")
            matched = _ACCOUNT.fullmatch(host)
            if matched is None:
                raise _invalid_address("the account's host is not like account.dfs.core.windows.net")
            account, cloud = matched[1], matched[2]
        elif match[1] in ("abfss", "abfs"):
            raise _invalid_address("it names no account")
        root = root.rstrip("/")
        if not _BUCKET.fullmatch(bucket):
            raise _invalid_address("the part before the first slash is not the name of a bucket or container")
        if not root.isprintable() or any(part in ("", ".", "..") for part in root.split("/") if root):
            raise _invalid_address("the prefix has empty, dotted or unprintable parts")
        if re.search(r"[?#%\\]", root):
            raise _invalid_address(r"the prefix has one of ? # % \ in it")
        return cls(store, bucket, root, account, cloud)

    def display(self, name: str = "") -> str:
        """Return the human-readable address of a file or folder, or of the root."""
        return f"{self._base}/{'/'.join(part for part in (self.root, name) if part)}".rstrip("/")

    def uri(self, name: str = "") -> str:
        """Return the percent-encoded form of :meth:`display`, as libraries expect it."""
        return f"{self._base}/{quote('/'.join(part for part in (self.root, name) if part), safe='/=')}".rstrip("/")

    @property
    def _base(self) -> str:
        if self.account:
            return f"abfss://{self.bucket}@{self.account}.dfs.{self.account_domain}"
        return f"{self.store}://{self.bucket}"

    def child(self, folder: str) -> StoreAddress:
        """Return the address of a folder."""
        return StoreAddress(
            self.store, self.bucket, f"{self.root}/{folder}" if self.root else folder, self.account, self.account_domain
        )


def local_folder_of(path: str) -> str | None:
    """Return the folder that ``sink.path`` names; ``None`` if it is an address in an object store.

    :raises NotReadyError: if it is an invalid path or file address.
    """
    match = _SCHEME.match(path)
    if match is not None and match[1].lower() != "file":
        return None
    if match is not None:
        if not path.startswith("file:///"):
            raise NotReadyError("sink.path: a file address must not name a host", "Write it as file:///data/lake")
        path = unquote(path[len("file://") :])
    if not path.startswith("/") or not path.isprintable():
        raise NotReadyError(f"sink.path is {path[:60]!r}", f"It must be {_FOLDER_FORM}")
    return path


def _invalid_address(why: str) -> NotReadyError:
    return NotReadyError(f"sink.path is not an address of an object store: {why}", f"Write it as {_ADDRESS_FORMS}")
