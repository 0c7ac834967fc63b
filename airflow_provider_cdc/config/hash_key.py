"""The secret key of hashed columns, which is the password of a connection. No error or log shows it."""

from __future__ import annotations

import hmac

from airflow_provider_cdc.config.connections import ResolvedConnection
from airflow_provider_cdc.model.errors import NotReadyError

#: A shorter key could be guessed.
MIN_KEY_BYTES = 16
_IDENTIFIED_TEXT = b"airflow-provider-cdc hash key"
_REMEDY = "Its password is the secret key of hashed columns: make one with openssl rand -hex 32, and keep a copy of it"


def hash_key_from_connection(connection: ResolvedConnection) -> bytes:
    """Return the secret key of hashed columns: the password of a connection of any type, in UTF-8.

    :raises NotReadyError: if there is no password, or it is too short.
    """
    if not connection.password:
        raise NotReadyError(f"connection {connection.conn_id} (transforms.hash_key_conn_id) has no password", _REMEDY)
    try:
        key = connection.password.encode()
    except UnicodeEncodeError:  # not chained: it contains the password
        raise NotReadyError(
            f"connection {connection.conn_id} (transforms.hash_key_conn_id) has a password that is not text", _REMEDY
        ) from None
    if len(key) < MIN_KEY_BYTES:
        raise NotReadyError(
            f"connection {connection.conn_id} (transforms.hash_key_conn_id) has a password of fewer than "
            f"{MIN_KEY_BYTES} bytes",
            _REMEDY,
        )
    return key


def hash_key_id(key: bytes) -> str:
    """Return 16 hexadecimal digits that identify a key without revealing it."""
    return hmac.digest(key, _IDENTIFIED_TEXT, "sha256").hex()[:16]
