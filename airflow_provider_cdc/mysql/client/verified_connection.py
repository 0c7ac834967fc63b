"""The driver's connection, made safe: a server that has not proved its identity gets only the answer to a challenge.

The driver itself sends the password to every server that asks for it, either in clear text or encrypted with a key that
the server has just sent, and considers TLS safe even if it proves nothing.
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
    "MySQL stores the authority that it generates itself as ca.pem in its data folder. With that one, use ssl_mode "
    "VERIFY_CA, because the server's certificate contains no host name"
)


class VerifiedConnection(_Connection):
    """A connection that takes the keyword arguments of ``pymysql.connect``.

    The arguments for TLS are :data:`~airflow_provider_cdc.config.tls.TLS_SETTINGS`.

    :raises NotReadyError: if the server does not meet the TLS settings, or asks for the password itself without having
        proved its identity.
    """

    _sock: Any

    def __init__(self, **args: Any) -> None:
        self._address = describe_address(args)
        self._tls = TlsSettings.from_settings(f"the connection to {self._address}", args)
        plain = {name: value for name, value in args.items() if name not in (*TLS_SETTINGS, "local_infile")}
        if isinstance(password := plain.get("password"), str):
            plain["password"] = password.encode()  # the driver would encode it in Latin-1, which lacks characters
        if self._tls.mode == DISABLED:
            plain["ssl_disabled"] = True
        elif self._tls.mode != PREFERRED:
            plain["ssl"] = self._create_ssl_ctx(None)
        super().__init__(**plain)

    def _create_ssl_ctx(self, _: Any) -> ssl.SSLContext:
        """Create the TLS context. The driver calls this, too, if TLS is used only when the server offers it.

        The driver's own context does not check the name if it uses the system's authorities, and loads them even if
        nothing is verified.
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
        """Whether the server may get the password: it is on this host, or has just proved its identity."""
        return self._tls.is_local or (self._tls.verifies_server and isinstance(self._sock, ssl.SSLSocket))

    @property
    def password(self) -> bytes:
        """The password, as the driver gets it when it answers the server."""
        return self._password if self._is_trusted else _SealedPassword(self._password, self._address)

    @password.setter
    def password(self, value: bytes) -> None:
        self._password = value

    def connect(self, sock: Any = None) -> None:
        """Connect as the driver does, and turn TLS failures into :class:`NotReadyError`."""
        try:
            super().connect(sock)
        except pymysql.err.OperationalError as error:
            cause = getattr(error, "original_exception", None)
            if isinstance(cause, ssl.SSLCertVerificationError):
                raise NotReadyError(
                    f"the server at {self._address} does not prove its identity: certificate verify failed: "
                    f"{cause.verify_message.rstrip('.')} (ssl_mode {self._tls.mode})",
                    f"Set ssl_ca to the authority that signed its certificate. {_SERVER_CA_HINT}. ssl_mode REQUIRED "
                    "skips the check",
                ) from None
            if error.args[0] == CR.CR_SSL_CONNECTION_ERROR:
                raise NotReadyError(
                    f"the server at {self._address} offers no TLS, which ssl_mode {self._tls.mode} requires",
                    "Enable TLS on the server; if the network to it is safe, set ssl_mode to DISABLED",
                ) from None
            raise

    def _read_query_result(self, unbuffered: bool = False) -> int:
        try:
            affected: int = super()._read_query_result(unbuffered)  # type: ignore[misc]
            return affected
        except RuntimeError:  # the driver refuses LOCAL INFILE, because it was never enabled
            self._force_close()  # type: ignore[attr-defined]
            raise NotReadyError(
                f"the server at {self._address} sent a LOCAL INFILE request, which was refused",
                "A genuine server never does this unprompted. Check what is listening at that address",
            ) from None


class _SealedPassword(bytes):
    """A password that can only be hashed: to send it, the driver always begins by appending a zero byte to it."""

    _address: str

    def __new__(cls, value: bytes, place: str) -> _SealedPassword:
        sealed = super().__new__(cls, value)
        sealed._address = place
        return sealed

    def _refuse(self, *_: object) -> NoReturn:
        raise NotReadyError(
            f"the server at {self._address} asks for the password itself, but has not proved its identity",
            "Set ssl_ca to the authority that signed its certificate, so that it can prove its identity. "
            f"{_SERVER_CA_HINT}",
        )

    __add__ = __radd__ = __iter__ = __getitem__ = decode = join = _refuse  # type: ignore[assignment]

    def __repr__(self) -> str:
        return "***"

    __str__ = __repr__


def describe_address(args: Mapping[str, Any]) -> str:
    """Return host and port, or the socket, for messages."""
    return str(args.get("unix_socket") or f"{args.get('host', '127.0.0.1')}:{args.get('port', 3306)}")
