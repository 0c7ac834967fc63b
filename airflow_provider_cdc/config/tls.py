"""What a connection requires of a server before it sends any data: the modes of MySQL's ``ssl_mode``.

For a server on this host (a literal loopback address, ``localhost``, a socket), nothing is required by default. Any
other server must prove its identity by its certificate, including the name, unless a setting disables that explicitly.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from airflow_provider_cdc.model.errors import NotReadyError

#: MySQL's modes, in ascending order of security.
SSL_MODES = ("DISABLED", "PREFERRED", "REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY")
DISABLED, PREFERRED, REQUIRED, VERIFY_CA, VERIFY_IDENTITY = SSL_MODES

#: Settings that name a file, and those that are true or false.
PATH_SETTINGS = ("ssl_ca", "ssl_cert", "ssl_key")
FLAG_SETTINGS = ("ssl_verify_cert", "ssl_verify_identity", "ssl_disabled")
#: Keys of the driver's mapping ``ssl``, and the equivalent settings.
_SSL_KEYS = {
    "ca": "ssl_ca",
    "capath": "ssl_capath",
    "cert": "ssl_cert",
    "key": "ssl_key",
    "password": "ssl_key_password",
    "cipher": "ssl_cipher",
    "check_hostname": "ssl_verify_identity",
    "verify_mode": "ssl_verify_cert",
}
_TEXT_SETTINGS = ("ssl_ca", "ssl_capath", "ssl_cert", "ssl_key", "ssl_key_password", "ssl_cipher")
#: All TLS settings among the arguments of a connection.
TLS_SETTINGS = ("ssl_mode", *_TEXT_SETTINGS, *FLAG_SETTINGS, "ssl")
_BOOLEANS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
_VERIFY_MODES = {**_BOOLEANS, "required": True, "optional": True, "none": False}

_RISKS = {
    DISABLED: "nothing is encrypted, and anyone on the network path can impersonate the server",
    PREFERRED: "TLS is not used if the server offers none, and anyone on the network path can impersonate the server",
    REQUIRED: "the server's certificate is not checked: anyone on the network path can impersonate the server",
    VERIFY_CA: "the name in the server's certificate is not checked: any other one from its authority is accepted",
}
_POSTGRES_RISKS = {"disable": DISABLED, "allow": PREFERRED, "prefer": PREFERRED, "require": REQUIRED}
_POSTGRES_RISKS |= {"verify-ca": VERIFY_CA}


def is_local_host(host: str | None, unix_socket: str | None = None) -> bool:
    """Return whether traffic to an address stays on this host.

    Only ``localhost``, loopback addresses and sockets count, because any other name depends on a name server.
    """
    if unix_socket or not host or host == "localhost" or host.startswith("/"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True)
class TlsSettings:
    """TLS requirements for one server.

    :param mode: one of :data:`SSL_MODES`.
    :param is_local: whether the server is on this host.
    :param options: files and other options by the name of the setting; only those that are given.
    """

    mode: str
    is_local: bool
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def from_settings(cls, what: str, settings: Mapping[str, Any]) -> Self:
        """Parse the settings of a connection; settings other than those of TLS, host and socket are ignored.

        :param what: their owner, for messages.
        :raises NotReadyError: if two of them contradict each other, or one would have no effect.
        """
        settings_given = _given_settings(what, settings)
        texts = {name: str(settings_given[name]) for name in _TEXT_SETTINGS if name in settings_given}
        here = is_local_host(settings.get("host"), settings.get("unix_socket"))
        explicit_mode = str(settings_given["ssl_mode"]).upper() if "ssl_mode" in settings_given else ""
        if explicit_mode and explicit_mode not in SSL_MODES:
            raise NotReadyError(f"{what}: its ssl_mode is not known", f"It must be one of {', '.join(SSL_MODES)}")
        mode = explicit_mode or _infer_mode(settings_given, here)
        verifies, has_ca = mode in (VERIFY_CA, VERIFY_IDENTITY), bool({"ssl_ca", "ssl_capath"} & texts.keys())
        implied_flags = {"ssl_disabled": mode == DISABLED, "ssl_verify_cert": verifies}
        implied_flags["ssl_verify_identity"] = mode == VERIFY_IDENTITY
        for name, meant in implied_flags.items():
            if settings_given.get(name, meant) != meant:
                raise NotReadyError(
                    f"{what}: {name} is {str(settings_given[name]).lower()}, which contradicts "
                    f"{_describe_mode(settings_given, explicit_mode, mode)}",
                    "Leave one of them out; ssl_mode alone is enough",
                )
        unused = [*texts] if mode == DISABLED else [] if verifies else [*({"ssl_ca", "ssl_capath"} & texts.keys())]
        if explicit_mode and unused:
            raise NotReadyError(f"{what}: {min(unused)} has no effect with ssl_mode {mode}", "Leave one of them out")
        if mode == VERIFY_CA and not has_ca and not here:
            raise NotReadyError(
                f"{what}: without a check of the name, any certificate from the system's authorities is accepted",
                "Set ssl_ca to the authority of this server, or leave the check of the name on",
            )
        if "ssl_key" in texts and "ssl_cert" not in texts:
            raise NotReadyError(f"{what}: ssl_key has no effect without ssl_cert", "Give both, or none")
        return cls(mode, here, {name: text for name, text in texts.items() if name not in unused})

    @property
    def verifies_server(self) -> bool:
        """Whether the server must prove its identity."""
        return self.mode in (VERIFY_CA, VERIFY_IDENTITY)

    @property
    def risk(self) -> str | None:
        """Why the connection is unsafe; ``None`` if it is safe."""
        return None if self.is_local else _RISKS.get(self.mode)

    def as_settings(self) -> dict[str, str]:
        """Return the minimal equivalent settings."""
        return {"ssl_mode": self.mode, **self.options}


def _given_settings(what: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that are given, with flags as booleans, and the mapping ``ssl`` as single settings."""
    settings_given = {name: settings[name] for name in TLS_SETTINGS if settings.get(name) not in (None, "")}
    for name in FLAG_SETTINGS:
        if name in settings_given:
            settings_given[name] = _parse_flag(what, name, settings_given[name], _BOOLEANS)
    mapping = settings_given.pop("ssl", None)
    if isinstance(mapping, str):
        try:
            mapping = json.loads(mapping)
        except ValueError:
            mapping = ()
    if mapping is not None and not isinstance(mapping, Mapping):
        raise NotReadyError(f"{what}: extra ssl is not a mapping", "Write a JSON object such as ssl.ca")
    for key, value in (mapping or {}).items():
        if key not in _SSL_KEYS:
            raise NotReadyError(f"{what}: ssl.{key} is not known", f"Use only {', '.join(_SSL_KEYS)}")
        if value in (None, ""):
            continue
        name = _SSL_KEYS[key]
        if name in FLAG_SETTINGS:
            value = _parse_flag(what, f"ssl.{key}", value, _VERIFY_MODES)
        if settings_given.setdefault(name, value) != value:
            raise NotReadyError(f"{what}: ssl.{key} and {name} contradict each other", "Leave one of them out")
    return settings_given


def _parse_flag(what: str, name: str, value: Any, words: Mapping[str, bool]) -> bool:
    flag = words.get(str(value).lower())
    if flag is None:  # treated as "no", a typo would disable a check
        raise NotReadyError(f"{what}: {name} is neither true nor false", f"Write one of {', '.join(words)}")
    return flag


def _infer_mode(settings_given: Mapping[str, Any], here: bool) -> str:
    """Return the mode of settings that do not name it."""
    if settings_given.get("ssl_disabled"):
        return DISABLED
    if settings_given.get("ssl_verify_identity"):
        return VERIFY_IDENTITY
    if settings_given.get("ssl_verify_cert") is False:
        return REQUIRED
    if not here:
        return VERIFY_IDENTITY if settings_given.get("ssl_verify_identity") is None else VERIFY_CA
    if settings_given.get("ssl_verify_cert") or "ssl_ca" in settings_given or "ssl_capath" in settings_given:
        return VERIFY_CA  # as through a tunnel: the host name is not the server's
    return REQUIRED if "ssl_cert" in settings_given else PREFERRED


def _describe_mode(settings_given: Mapping[str, Any], explicit_mode: str, mode: str) -> str:
    if explicit_mode:
        return f"ssl_mode {mode}"
    return next(
        f"{name}={str(settings_given[name]).lower()}"
        for name in ("ssl_disabled", "ssl_verify_identity", "ssl_verify_cert")
        if name in settings_given
    )


# ---------------------------------------------------------------- PostgreSQL, by the names of libpq


def postgres_tls_settings(what: str, host: str | None, parameters: Mapping[str, str]) -> dict[str, str]:
    """Return parameters for libpq: the given ones, and those required for a server on another host.

    :param what: their owner, for messages.
    :param parameters: libpq's parameters, as text.
    :raises NotReadyError: if an unverified server could request the password in plain text.
    """
    if is_local_host(host):
        return dict(parameters)
    secured = {"gssencmode": "disable", **parameters}  # otherwise a Kerberos ticket would replace TLS
    if "sslmode" not in secured:
        secured = {"sslrootcert": "system", **secured, "sslmode": "verify-full"}
    if not _postgres_verifies_server(secured):
        secured.setdefault("require_auth", "scram-sha-256")
        methods = [method.strip() for method in secured["require_auth"].split(",")]
        if "!password" not in methods and (methods[0].startswith("!") or "password" in methods):
            raise NotReadyError(
                f"{what}: its require_auth would send the password to any server that answers",
                "Leave it out (scram-sha-256), or let the server prove its identity: sslmode=verify-full",
            )
    return secured


def _postgres_verifies_server(parameters: Mapping[str, str]) -> bool:
    mode = parameters["sslmode"]
    return mode in ("verify-ca", "verify-full") or (mode == "require" and "sslrootcert" in parameters)


def postgres_tls_risk(host: str | None, parameters: Mapping[str, Any]) -> str | None:
    """Return why libpq's parameters are unsafe; ``None`` if they are safe.

    Channel binding proves to both sides that there is no one in between: only a server that can check the password
    completes it.
    """
    if is_local_host(host) or parameters.get("channel_binding") == "require":
        return None
    mode = str(parameters.get("sslmode", "prefer"))
    if mode == "require" and "sslrootcert" in parameters:
        mode = "verify-ca"
    return _RISKS[_POSTGRES_RISKS[mode]] if mode in _POSTGRES_RISKS else None
