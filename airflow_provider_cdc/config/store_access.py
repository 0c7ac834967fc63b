"""Access to object stores, as configured in Airflow connections.

Whatever a connection does not specify comes from the environment of each host, as for any other client of such a store.
An unknown extra is rejected: it may be needed for security or correctness.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import urlsplit

from airflow_provider_cdc.config.store_address import AZURE, GCS, S3, StoreAddress
from airflow_provider_cdc.config.tls import is_local_host
from airflow_provider_cdc.model.errors import NotReadyError

#: Connection types, and the kind of store of each.
STORE_TYPES = {"aws": S3, "s3": S3, "google_cloud_platform": GCS, "wasb": AZURE, "adls": AZURE}
#: Extras that are secrets.
_SECRETS = (
    "aws_secret_access_key",
    "aws_session_token",
    "private_key",
    "shared_access_key",
    "account_key",
    "sas_token",
    "client_secret",
    "connection_string",
    # Of catalogs.
    "credential",
    "token",
    "password",
    "client.secret-access-key",
    "client.session-token",
    "s3.secret-access-key",
    "s3.session-token",
)
#: Extras that may be secrets: headers of requests to a catalog.
_SECRET_PREFIX = "header."
_PREFIX = re.compile(r"extra__(aws|google_cloud_platform|wasb|adls)__")

# Extras that only other tasks' hooks use.
_GCP_IGNORED = ("project", "project_id", "num_retries", "scope")
_AWS_KEYS = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
_AWS_EXTRA = (
    *_AWS_KEYS,
    "region_name",
    "endpoint_url",
    "service_config",
    "config_kwargs",
    "verify",
    "anonymous",
    "role_arn",
    "assume_role_method",
    "assume_role_kwargs",
)
_GCP_EXTRA = ("keyfile_dict", "key_path", "endpoint_url")
_AZURE_EXTRA = (
    "account_name",
    "account_url",
    "account_key",
    "shared_access_key",
    "sas_token",
    "connection_string",
    "tenant_id",
    "client_secret",
    "managed_identity_client_id",
    "anonymous",
    "endpoint_url",
)
_ROLE_KWARGS = ("RoleSessionName", "ExternalId", "DurationSeconds")
_Pairs = tuple[tuple[str, Any], ...]


class _ConnectionFields(Protocol):
    """The fields of a connection that are used."""

    @property
    def conn_id(self) -> str: ...
    @property
    def conn_type(self) -> str: ...
    @property
    def host(self) -> str | None: ...
    @property
    def login(self) -> str | None: ...
    @property
    def password(self) -> str | None: ...
    @property
    def extra(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True)
class StoreAccess:
    """Access to a store, as specified by a connection.

    Its ``repr`` shows no secret; it is passed to tasks in the same way as passwords.

    :param store: kind of the store; empty if the connection is that of a catalog, and says nothing about a store.
    :param label: its name in messages.
    :param config: settings of the store, by the names that libraries based on ``object_store`` share.
    :param client: settings of the HTTP client.
    :param aws_keys: keys of AWS: id, secret, and token or ``None``.
    :param assume_role_args: arguments of AWS's ``AssumeRole``, called with these keys.
    :param catalog: properties of the catalog that the same connection names, of which some are secrets.
    """

    store: str
    label: str
    config: _Pairs = field(default=(), repr=False)
    client: _Pairs = field(default=(), repr=False)
    aws_keys: tuple[str, str, str | None] | None = field(default=None, repr=False)
    assume_role_args: _Pairs = field(default=(), repr=False)
    catalog: _Pairs = field(default=(), repr=False)

    @property
    def secrets(self) -> tuple[str, ...]:
        """Texts that no message may contain."""
        names = ("account_key", "sas_key", "client_secret", "service_account_key")
        config_secrets = [str(value) for name, value in self.config if name in names]
        catalog_secrets = secrets_in_extra(dict(self.catalog))
        return tuple(filter(None, (*config_secrets, *catalog_secrets, *(self.aws_keys or ())[1:])))

    @property
    def risk(self) -> str | None:
        """Why the access is unsafe; ``None`` if it is safe."""
        if dict(self.client).get("allow_invalid_certificates"):
            return "the server's certificate is not checked: anyone on the network path can impersonate the server"
        config = dict(self.config)
        addresses = config.get("endpoint") or config.get("base_url"), dict(self.catalog).get("uri")
        endpoints = [urlsplit(str(address or "")) for address in addresses]
        if any(endpoint.scheme == "http" and not is_local_host(endpoint.hostname) for endpoint in endpoints):
            return "nothing is encrypted, and anyone on the network path can impersonate the server"
        return None

    def check_path(self, path: str) -> None:
        """Reject a connection that does not match the store in ``sink.path``.

        :raises NotReadyError: if it is for another kind of store, or another account.
        """
        if not self.store:  # the connection of a catalog
            return
        address = StoreAddress.parse(path)
        if address is None or address.store != self.store:
            raise NotReadyError(f"{self.label} is not for the store that sink.path names", "Correct one of them")
        if address.account and dict(self.config).get("account_name", address.account) != address.account:
            raise NotReadyError(f"{self.label} is for another account than sink.path names", "Correct one of them")


def secrets_in_extra(extra: Mapping[str, Any]) -> list[str]:
    """Return the texts in a connection's extra that no message may contain."""
    secrets: list[str] = []
    for prefixed, value in extra.items():
        name = _PREFIX.sub("", prefixed)
        if name == "keyfile_dict":
            with suppress(ValueError):
                inner = json.loads(value) if isinstance(value, str) else value
                secrets += [str(value), *(secrets_in_extra(inner) if isinstance(inner, Mapping) else [])]
        elif (name in _SECRETS or name.startswith(_SECRET_PREFIX)) and value:
            secrets.append(str(value))
            if name == "credential":
                secrets.append(str(value).partition(":")[2])
            if name == "connection_string":
                parts = (part.partition("=") for part in str(value).split(";"))
                secrets += [text for key, _, text in parts if key in ("AccountKey", "SharedAccessSignature")]
    return secrets


def parse_store_access(conn: _ConnectionFields) -> StoreAccess:
    """Parse the store access that a connection specifies.

    :raises NotReadyError: if it has another type, or specifies something that would have no effect.
    """
    what = f"connection {conn.conn_id}"
    store = STORE_TYPES.get(conn.conn_type)
    if store is None:
        raise NotReadyError(
            f"{what} is of type {conn.conn_type}",
            "For an object store it must be aws, google_cloud_platform, wasb or adls",
        )
    extra = {_PREFIX.sub("", k): v for k, v in conn.extra.items() if v not in (None, "", {}, [])}
    return {S3: _aws_access, GCS: _gcp_access, AZURE: _azure_access}[store](what, conn, extra)


def _refuse_unknown(what: str, extra: Mapping[str, Any], known: tuple[str, ...], ignored: tuple[str, ...] = ()) -> None:
    for name in extra:
        if name not in known and name not in ignored:
            raise NotReadyError(f"{what}: extra {name!r} is not supported", f"Use only {', '.join(known)}")


def _parse_mapping(what: str, name: str, value: Any) -> dict[str, Any]:
    """Return an extra that is a mapping, or the JSON of one."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = None
    if not isinstance(value, Mapping):
        raise NotReadyError(f"{what}: extra {name!r} is not a JSON object", "Correct it")
    return dict(value)


def _parse_flag(what: str, extra: Mapping[str, Any], name: str) -> bool:
    value = extra.get(name, False)
    flag = {"true": True, "false": False}.get(str(value).lower())
    if flag is None:
        raise NotReadyError(f"{what}: extra {name!r} is neither true nor false", "Correct it")
    return flag


def _parse_endpoint(what: str, url: Any) -> tuple[str, dict[str, Any]]:
    """Return an endpoint and the client settings that it requires."""
    try:
        parts = urlsplit(str(url))
        ok = parts.scheme in ("http", "https") and parts.hostname and "@" not in parts.netloc and not parts.query
    except ValueError:
        ok = False
    if not ok:
        raise NotReadyError(f"{what}: its endpoint is not an address", "Write it as https://host:port, without keys")
    return str(url).rstrip("/"), {"allow_http": True} if parts.scheme == "http" else {}


# ---------------------------------------------------------------- AWS and compatible stores


def _aws_access(what: str, conn: _ConnectionFields, extra: Mapping[str, Any]) -> StoreAccess:
    _refuse_unknown(what, extra, _AWS_EXTRA)
    config: dict[str, Any] = {}
    client: dict[str, Any] = {}
    if extra.get("region_name"):
        config["region"] = str(extra["region_name"])
    url = extra.get("endpoint_url")
    if "service_config" in extra:
        url = _parse_service_config(what, extra["service_config"]).get("endpoint_url", url)
    if url:
        config["endpoint"], client = _parse_endpoint(what, url)
    verify = extra.get("verify", True)
    if str(verify).lower() == "false":
        client["allow_invalid_certificates"] = True
    elif str(verify).lower() != "true":
        client["root_certificate"] = str(verify)
    style, unsigned = _parse_config_kwargs(what, extra)
    if style:
        config["virtual_hosted_style_request"] = style == "virtual"
    key = conn.login or extra.get("aws_access_key_id")
    secret = conn.password or extra.get("aws_secret_access_key")
    token = extra.get("aws_session_token")
    if bool(key) != bool(secret) or (token and not key):
        raise NotReadyError(
            f"{what} needs both a login (access key id) and a password (secret access key)",
            "Give both, or neither to use the credentials of the environment or the instance",
        )
    keys = (str(key), str(secret), str(token) if token else None) if key else None
    role = _parse_assume_role(what, extra)
    if unsigned or _parse_flag(what, extra, "anonymous"):
        if keys or role:
            raise NotReadyError(f"{what} is anonymous, and has keys or a role", "Remove one of them")
        config["skip_signature"] = True
    return StoreAccess(S3, what, tuple(config.items()), tuple(client.items()), keys, role)


def _parse_service_config(what: str, value: Any) -> dict[str, Any]:
    """Return the S3 part of ``service_config``, of which only the endpoint is used."""
    s3_config = _parse_mapping(what, "service_config.s3", _parse_mapping(what, "service_config", value).get("s3", {}))
    if other := sorted(s3_config.keys() - {"endpoint_url", "bucket_name"}):
        raise NotReadyError(f"{what}: extra 'service_config.s3.{other[0]}' is not supported", "Use endpoint_url only")
    return s3_config


def _parse_config_kwargs(what: str, extra: Mapping[str, Any]) -> tuple[str | None, bool]:
    """Return the addressing style, and whether requests are unsigned."""
    kwargs = _parse_mapping(what, "config_kwargs", extra.get("config_kwargs", {}))
    s3 = _parse_mapping(what, "config_kwargs.s3", kwargs.pop("s3", {}))
    unsigned = kwargs.pop("signature_version", "s3v4")
    style = s3.pop("addressing_style", "auto")
    for prefix, rest in (("", kwargs), ("s3.", s3)):
        for name in rest:
            raise NotReadyError(
                f"{what}: extra 'config_kwargs.{prefix}{name}' is not supported",
                "Use only s3.addressing_style and signature_version",
            )
    if unsigned not in ("s3v4", "unsigned") or style not in ("path", "virtual", "auto"):
        raise NotReadyError(
            f"{what}: extra 'config_kwargs' has an unknown signature_version or s3.addressing_style",
            "They are s3v4 or unsigned, and path, virtual or auto",
        )
    return (None if style == "auto" else style), unsigned == "unsigned"


def _parse_assume_role(what: str, extra: Mapping[str, Any]) -> _Pairs:
    method = extra.get("assume_role_method", "assume_role")
    if method != "assume_role":
        raise NotReadyError(
            f"{what}: extra 'assume_role_method' is not assume_role",
            "For a web identity, leave out sink.conn_id and set AWS_ROLE_ARN and AWS_WEB_IDENTITY_TOKEN_FILE",
        )
    arn, kwargs = extra.get("role_arn"), _parse_mapping(what, "assume_role_kwargs", extra.get("assume_role_kwargs", {}))
    if kwargs and not arn:
        raise NotReadyError(f"{what}: extra 'assume_role_kwargs' requires role_arn", "Add it")
    for name in kwargs:
        if name not in _ROLE_KWARGS:
            raise NotReadyError(
                f"{what}: extra 'assume_role_kwargs.{name}' is not supported", f"Use only {', '.join(_ROLE_KWARGS)}"
            )
    if not arn:
        return ()
    return (("RoleArn", str(arn)), *{"RoleSessionName": "airflow-cdc", **kwargs}.items())


# ---------------------------------------------------------------- Google and Azure


def _gcp_access(what: str, conn: _ConnectionFields, extra: Mapping[str, Any]) -> StoreAccess:
    for name in ("anonymous", "is_anonymous"):
        if _parse_flag(what, extra, name):
            raise NotReadyError(
                f"{what}: extra {name!r} is for reading only", "Give keyfile_dict or key_path: a sink writes"
            )
    extra = {name: value for name, value in extra.items() if name not in ("anonymous", "is_anonymous")}
    _refuse_unknown(what, extra, _GCP_EXTRA, _GCP_IGNORED)
    config: dict[str, Any] = {}
    client: dict[str, Any] = {}
    if "keyfile_dict" in extra:
        config["service_account_key"] = json.dumps(_parse_mapping(what, "keyfile_dict", extra["keyfile_dict"]))
    if "key_path" in extra:
        config["service_account"] = str(extra["key_path"])
    if len(config) > 1:
        raise NotReadyError(f"{what} specifies more than one credential", "Give one of keyfile_dict and key_path")
    if "endpoint_url" in extra:
        config["base_url"], client = _parse_endpoint(what, extra["endpoint_url"])
    return StoreAccess(GCS, what, tuple(config.items()), tuple(client.items()))


def _azure_access(what: str, conn: _ConnectionFields, extra: Mapping[str, Any]) -> StoreAccess:
    _refuse_unknown(what, extra, _AZURE_EXTRA)
    connection_string = _parse_connection_string(what, str(extra.get("connection_string", "")))
    tenant = extra.get("tenant_id")
    host = str(extra.get("account_url") or conn.host or "")
    account = extra.get("account_name") or connection_string.get("AccountName") or _account_of_host(host)
    if not account and not tenant:
        account = conn.login
    url = extra.get("endpoint_url") or connection_string.get("BlobEndpoint")
    config: dict[str, Any] = {"account_name": str(account)} if account else {}
    client: dict[str, Any] = {}
    if url:
        config["endpoint"], client = _parse_endpoint(what, url)
    credentials: list[dict[str, Any]] = []
    key = extra.get("account_key") or extra.get("shared_access_key") or connection_string.get("AccountKey")
    if not tenant:
        key = key or conn.password
    if key:
        credentials.append({"credential_type": "access_key", "account_key": str(key)})
    if sas := extra.get("sas_token") or connection_string.get("SharedAccessSignature"):
        credentials.append({"credential_type": "sas_token", "sas_key": str(sas).lstrip("?")})
    if tenant:
        secret = conn.password or extra.get("client_secret")
        if not conn.login or not secret:
            raise NotReadyError(
                f"{what} has a tenant_id, but no login (client id) or no password (client secret)", "Give all three"
            )
        ids = {"tenant_id": str(tenant), "client_id": conn.login, "client_secret": str(secret)}
        credentials.append({"credential_type": "client_secret", **ids})
    if identity := extra.get("managed_identity_client_id"):
        credentials.append({"credential_type": "managed_identity", "client_id": str(identity)})
    if _parse_flag(what, extra, "anonymous"):
        credentials.append({"skip_signature": True})
    if len(credentials) > 1:
        raise NotReadyError(
            f"{what} specifies more than one credential",
            "Give one of an account key, sas_token, tenant_id with client id and secret, managed_identity_client_id "
            "and anonymous",
        )
    config |= credentials[0] if credentials else {}
    return StoreAccess(AZURE, what, tuple(config.items()), tuple(client.items()))


def _account_of_host(host: str) -> str | None:
    """Return the account in a connection's host, which is the account's name or address."""
    name = re.sub(r"^https?://", "", host).split("/")[0]
    return name.split(".")[0] or None


def _parse_connection_string(what: str, text: str) -> dict[str, str]:
    parts = [part.partition("=") for part in text.split(";") if part]
    if not all(separator for _, separator, _ in parts):
        raise NotReadyError(f"{what}: its connection_string cannot be understood", "Copy it again")
    return {name: value for name, _, value in parts}
