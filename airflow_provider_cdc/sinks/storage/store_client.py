"""A bucket of an object store that a process has opened: settings, credentials and errors."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, timedelta
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, S3Store

from airflow_provider_cdc.config.store_access import StoreAccess
from airflow_provider_cdc.config.store_address import AZURE, GCS, S3, StoreAddress
from airflow_provider_cdc.model.errors import NotReadyError
from airflow_provider_cdc.sinks.storage.store_errors import is_missing_bucket, translate_store_error

_CLIENT_OPTIONS: Mapping[str, Any] = {
    "connect_timeout": timedelta(seconds=10),
    "timeout": timedelta(seconds=60),
    "user_agent": "airflow-provider-cdc",
}
#: How often, and for how long, the library retries a request.
RETRY_CONFIG: Any = {
    "max_retries": 10,
    "backoff": {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=10), "base": 2},
    "retry_timeout": timedelta(seconds=120),
}


@dataclass(frozen=True)
class AssumedRoleCredentials:
    """Requests the keys of a role from AWS, and new ones when they expire.

    :param keys: keys for the request; ``None`` to use the environment.
    :param region: region of the STS service.
    :param role: arguments of ``AssumeRole``.
    """

    keys: tuple[str, str, str | None] | None
    region: str | None
    role: tuple[tuple[str, Any], ...]

    def __call__(self) -> Any:
        """Return keys and their expiry time."""
        import boto3

        session = boto3.session.Session(*(self.keys or (None, None, None)), region_name=self.region)
        credentials = session.client("sts").assume_role(**dict(self.role))["Credentials"]
        return {
            "access_key_id": credentials["AccessKeyId"],
            "secret_access_key": credentials["SecretAccessKey"],
            "token": credentials["SessionToken"],
            "expires_at": credentials["Expiration"].astimezone(UTC),  # the library accepts no other time zone class
        }


class _StaticCredentials:
    """Keys that do not expire. Passed this way, they are not mixed with keys from the environment."""

    def __init__(self, keys: tuple[str, str, str | None]) -> None:
        self._keys = keys

    def __call__(self) -> Any:
        key, secret, token = self._keys
        return {"access_key_id": key, "secret_access_key": secret, "token": token, "expires_at": None}


class Bucket:
    """A bucket that this process has opened, with the connections that all storages in it share."""

    def __init__(self, address: StoreAddress, access: StoreAccess | None) -> None:
        self.secrets = access.secrets if access else ()
        self.config = obstore_config(address, access)
        self.credential_provider = _credential_provider(access, self.config.get("region"))
        client: Any = {**_CLIENT_OPTIONS, **dict(access.client if access else ())}
        if access is None and any(os.environ.get(name, "").startswith("http://") for name in _ENDPOINT_VARIABLES):
            client["allow_http"] = True
        if certificates := client.get("root_certificate"):
            client["root_certificate"] = _read_certificates(str(certificates))
        store_class: Any = {S3: S3Store, GCS: GCSStore, AZURE: AzureStore}[address.store]
        credential_options: dict[str, Any] = (
            {} if self.credential_provider is None else {"credential_provider": self.credential_provider}
        )
        with self.translate_errors(f"opening {address.display()}"):
            self.store = store_class(
                address.bucket,
                config=self.config,
                client_options=client,
                retry_config=RETRY_CONFIG,
                **credential_options,
            )
        self._opened_in_pid = os.getpid()

    @contextmanager
    def translate_errors(self, operation: str, *expected: type[BaseException]) -> Iterator[None]:
        """Translate errors of the library into the project's own.

        :param operation: what is done, for the message.
        :param expected: errors that the caller handles and that are raised as they are, except for a missing bucket.
        """
        try:
            yield
        except (BaseError, OSError, ValueError) as error:
            if isinstance(error, expected) and not is_missing_bucket(error):
                raise type(error)(operation) from None  # its text contains the whole request
            raise translate_store_error(error, operation, self.secrets) from None

    def check_not_forked(self) -> None:
        """Refuse to work in a process that was forked after the bucket was opened.

        The client's threads do not exist there, so that requests would hang.

        :raises RuntimeError: if the process was forked.
        """
        if os.getpid() != self._opened_in_pid:
            raise RuntimeError("an object store was opened before this process was forked: start a new process")


def obstore_config(address: StoreAddress, access: StoreAccess | None) -> dict[str, Any]:
    """Return the settings of a store under their obstore names, without AWS keys."""
    config: dict[str, Any] = dict(access.config) if access else {}
    if address.store == S3:
        endpoint, virtual = config.get("endpoint"), config.get("virtual_hosted_style_request")
        if virtual is None and not endpoint and not any(os.environ.get(name) for name in _AWS_ENDPOINT_VARIABLES):
            virtual = "." not in address.bucket  # no certificate covers a bucket name with dots
        if virtual and endpoint:
            scheme, _, host = endpoint.partition("://")
            config["endpoint"] = f"{scheme}://{address.bucket}.{host}"
        if virtual is not None:
            config["virtual_hosted_style_request"] = virtual
        if endpoint:  # otherwise an S3-specific one in the environment would take precedence
            config["aws_endpoint_url_s3"] = config["endpoint"]
        if access is not None:
            config.setdefault("skip_signature", False)
    if address.store == AZURE and address.account:
        config["account_name"] = address.account
        if address.account_domain != StoreAddress.account_domain:
            config.setdefault("endpoint", f"https://{address.account}.blob.{address.account_domain}")
    return config


_AWS_ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_ENDPOINT_VARIABLES = (*_AWS_ENDPOINT_VARIABLES, "GOOGLE_BASE_URL", "AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")


def _credential_provider(access: StoreAccess | None, region: str | None) -> Any:
    if access is None or access.store != S3:
        return None
    if access.assume_role_args:
        if find_spec("boto3") is None:
            raise NotReadyError(
                f"{access.label} has a role_arn, but boto3 is not installed",
                'Run on every host: pip install "airflow-provider-cdc[aws]"',
            )
        return AssumedRoleCredentials(access.aws_keys, region, access.assume_role_args)
    return _StaticCredentials(access.aws_keys) if access.aws_keys else None


def _read_certificates(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise NotReadyError(
            f"the certificates {path} (extra verify) cannot be read: {type(error).__name__}",
            "The file must exist on every host",
        ) from None


@lru_cache(maxsize=32)
def open_bucket(address: StoreAddress, access: StoreAccess | None) -> Bucket:
    """Return the bucket of an address, opened once per process."""
    return Bucket(address, access)
