"""The driver's connection, which gives a server that has not proved itself no more than the answer to a challenge.

The driver sends the password as it is, or encrypted with a key that the server has just sent, to every server that asks
for it, and takes TLS that proves nothing for safe.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import pymysql
from pymysql.connections import Connection
from pymysql.constants import CR

from airflow_provider_cdc.config.tls import DISABLED, PREFERRED, TLS_SETTINGS, VERIFY_IDENTITY, TlsSettings
from airflow_provider_cdc.model.errors import NotReadyError

if TYPE_CHECKING:
    _Connection = Connection[Any]
else:
    _Connection = Connection

_SERVER_CA_HINT = (
    "MySQL keeps the authority that it creates itself as ca.pem in its data folder: use ssl_mode VERIFY_CA, since its "
    "certificate has no name"
)


class VerifiedConnection(_Connection):
    """Keyword arguments are those of ``pymysql.connect``; for TLS,
    :data:`~airflow_provider_cdc.config.tls.TLS_SETTINGS`.

    :raises NotReadyError: if the server is not what is demanded of it, or wants the password itself without a proof.
    """

    _sock: Any

    def __init__(self, **args: Any) -> None:
        self._address = describe_address(args)
        self._tls = TlsSettings.from_settings(f"the connection to {self._address}", args)
        plain = {name: value for name, value in args.items() if name not in (*TLS_SETTINGS, "local_infile")}
        if isinstance(password := plain.get("password"), str):
            plain["password"] = password.encode()  # the driver would take Latin-1, which not every password is
        if self._tls.mode == DISABLED:
            plain["ssl_disabled"] = True
        elif self._tls.mode != PREFERRED:
            plain["ssl"] = self._create_ssl_ctx(None)
        super().__init__(**plain)

    def _create_ssl_ctx(self, _: Any) -> ssl.SSLContext:
        """Also called by the driver, where TLS is taken only if it is offered.

        The driver's own checks no name where the authorities are the system's, and loads them where nothing is checked.
        """
        context, texts = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), self._tls.options
        context.check_hostname = self._tls.mode == VERIFY_IDENTITY
        context.verify_mode = ssl.CERT_REQUIRED if self._tls.verifies_server else ssl.CERT_NONE
        name = ""
        try:
            if "ssl_ca" in texts or "ssl_capath" in texts:
                name = "ssl_ca"
                context.load_verify_locations(texts.get("ssl_ca"), texts.get("ssl_capath"))
            elif self._tls.verifies_server:
                context.load_default_certs()
            if "ssl_cert" in texts:
                name, password = "ssl_cert", texts.get("ssl_key_password", "")
                context.load_cert_chain(texts["ssl_cert"], texts.get("ssl_key"), lambda: password)
            if "ssl_cipher" in texts:
                name = "ssl_cipher"
                context.set_ciphers(texts["ssl_cipher"])
        except (OSError, ValueError) as error:
            raise NotReadyError(
                f"the connection to {self._address}: {name} {texts.get(name, '')} cannot be used ({error})",
                "It must exist and be readable on every host that runs a part of the pipeline",
            ) from None
        return context

    @property
    def _is_trusted(self) -> bool:
        """Whether the server may have the password: it is on this host, or has proved itself just now."""
        return self._tls.is_local or (self._tls.verifies_server and isinstance(self._sock, ssl.SSLSocket))

    @property
    def password(self) -> bytes:
        """As the driver finds it when it answers the server."""
        return self._password if self._is_trusted else _SealedPassword(self._password, self._address)

    @password.setter
    def password(self, value: bytes) -> None:
        self._password = value

    def connect(self, sock: Any = None) -> None:
        """See the driver."""
        try:
            super().connect(sock)
        except pymysql.err.OperationalError as error:
            cause = getattr(error, "original_exception", None)
            if isinstance(cause, ssl.SSLCertVerificationError):
                raise NotReadyError(
                    f"the server at {self._address} does not prove its identity: certificate verify failed: "
                    f"{cause.verify_message.rstrip('.')} (ssl_mode {self._tls.mode})",
                    f"Set ssl_ca to the authority that signed its certificate. {_SERVER_CA_HINT}. ssl_mode REQUIRED "
                    "gives up "
                    "the check",
                ) from None
            if error.args[0] == CR.CR_SSL_CONNECTION_ERROR:
                raise NotReadyError(
                    f"the server at {self._address} offers no TLS, which ssl_mode {self._tls.mode} demands",
                    "Enable TLS on the server; if the network to it is safe, set ssl_mode to DISABLED",
                ) from None
            raise

    def _read_query_result(self, unbuffered: bool = False) -> int:
        try:
            affected: int = super()._read_query_result(unbuffered)  # type: ignore[misc]
            return affected
        except RuntimeError:  # the driver's refusal of what was never offered
            self._force_close()  # type: ignore[attr-defined]
            raise NotReadyError(
                f"the server at {self._address} asks for a file of this host instead of answering",
                "It got none. Find out what it is: a genuine server does not do so unasked",
            ) from None


class _SealedPassword(bytes):
    """A password for digests only: every way in which the driver would send it begins with appending a zero to it."""

    _address: str

    def __new__(cls, value: bytes, place: str) -> _SealedPassword:
        sealed = super().__new__(cls, value)
        sealed._address = place
        return sealed

    def _refuse(self, *_: object) -> NoReturn:
        raise NotReadyError(
            f"the server at {self._address} asks for the password itself, and has not proved its identity",
            f"Let it prove its identity: set ssl_ca to the authority that signed its certificate. {_SERVER_CA_HINT}",
        )

    __add__ = __radd__ = __iter__ = __getitem__ = decode = join = _refuse  # type: ignore[assignment]

    def __repr__(self) -> str:
        return "***"

    __str__ = __repr__


def describe_address(args: Mapping[str, Any]) -> str:
    """Host and port for messages."""
    return str(args.get("unix_socket") or f"{args.get('host', '127.0.0.1')}:{args.get('port', 3306)}")
