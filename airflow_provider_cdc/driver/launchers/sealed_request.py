"""How a request reaches a driver in a cluster: sealed in the state database, and its key in Hadoop's credentials.

YARN hands an application the credentials of its client in memory, over a channel of its own: they are on no command
line and in no environment. YARN's own files may have them (docs/deployment.md): only a random key and the connection
of the state database are in them.
The request, with all other secrets, is encrypted with that key in the driver's row, until the driver takes it.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from airflow_provider_cdc.model.errors import REPORT_REMEDY, TerminalError

#: Name of the secret in the credentials.
ALIAS = "airflow-cdc"
_NONCE_BYTES = 12


@dataclass(frozen=True)
class DriverSecret:
    """What a driver must know to fetch its request. Its ``repr`` shows nothing.

    :param driver: id of the driver.
    :param key: key of its sealed request.
    :param state: connection of the state database, as of ``ResolvedConnection.to_json``.
    :param version: version of this package that sealed the request.
    """

    driver: str
    key: bytes
    state: dict[str, Any]
    version: str

    def __repr__(self) -> str:
        return f"DriverSecret({self.driver})"

    def to_bytes(self) -> bytes:
        """Return the secret as it is in the credentials."""
        key = base64.b64encode(self.key).decode()
        return json.dumps({"driver": self.driver, "key": key, "state": self.state, "version": self.version}).encode()

    @classmethod
    def from_bytes(cls, text: bytes) -> DriverSecret:
        """Return the inverse of :meth:`to_bytes`."""
        value = json.loads(text)
        return cls(value["driver"], base64.b64decode(value["key"]), value["state"], value["version"])


def new_key() -> bytes:
    """Return a random key."""
    return secrets.token_bytes(32)


def seal(request: str, driver: str, key: bytes) -> str:
    """Encrypt a request for one driver."""
    nonce = os.urandom(_NONCE_BYTES)
    return base64.b64encode(nonce + AESGCM(key).encrypt(nonce, request.encode(), driver.encode())).decode()


def unseal(sealed: str, driver: str, key: bytes) -> str:
    """Decrypt a request.

    :raises TerminalError: if it was sealed for another driver, with another key, or was changed.
    """
    data = base64.b64decode(sealed)
    try:
        return AESGCM(key).decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], driver.encode()).decode()
    except InvalidTag:
        raise TerminalError(
            f"the request of driver {driver} in the state database is not the one that was sealed",
            f"Find out who may write to the state database, or {REPORT_REMEDY}",
        ) from None


def write_credentials(path: Path, secret: bytes) -> None:
    """Write a file of Hadoop credentials with one secret, which only its owner may read."""
    alias = ALIAS.encode()
    # Hadoop's own format 0: its name, the format, no tokens, and one secret.
    data = b"HDTS\0" + _vint(0) + _vint(1) + _vint(len(alias)) + alias + _vint(len(secret)) + secret
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)


def _vint(number: int) -> bytes:
    """Return a non-negative number as Hadoop's ``WritableUtils.writeVInt`` writes it."""
    if number <= 127:
        return bytes([number])
    size = (number.bit_length() + 7) // 8
    return bytes([256 - 112 - size]) + number.to_bytes(size, "big")
