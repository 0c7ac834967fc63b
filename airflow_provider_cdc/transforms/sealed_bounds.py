"""Chunk bounds of tables whose keys are hashed: they are keys of the source, and are stored only encrypted.

The plan is a file in the sink, so it must not have in clear what the copy has hashed. Bounds are encrypted with a key
that is derived from the secret key of hashed columns, wherever a plan is written, and decrypted wherever one is read in
order to read chunks or to find the chunk of a key.
"""

from __future__ import annotations

import base64
import hmac
import json
import os
from collections.abc import Callable
from typing import Any

from airflow_provider_cdc.model.errors import NotReadyError
from airflow_provider_cdc.model.plan import Chunk, Key, Plan
from airflow_provider_cdc.model.plan_history import Replan
from airflow_provider_cdc.model.schema import TableSchema

#: No canonical value of a key begins like this.
_PREFIX = "sealed:"
_DERIVATION = b"airflow-provider-cdc chunk bounds"
_NONCE_BYTES = 12
_REMEDY = "Restore the password of the connection in transforms.hash_key_conn_id, or start with a fresh sink.path"


def seal_plan(plan: Plan, hash_key: bytes | None) -> Plan:
    """Return a plan to be written: without bounds in clear where keys are hashed.

    :param hash_key: secret key of hashed columns; ``None`` if the pipeline hashes none.
    """
    if not any(table.has_hashed_key for table in plan.tables):
        return plan
    seal = _make_sealer(hash_key)
    return plan.replace(
        chunks=tuple(
            _with_bounds(chunk, seal) if plan.tables[chunk.table].has_hashed_key else chunk for chunk in plan.chunks
        )
    )


def seal_replan(replan: Replan, table: TableSchema, hash_key: bytes | None) -> Replan:
    """Return an amendment to be written, as :func:`seal_plan` does for a plan."""
    if not table.has_hashed_key:
        return replan
    seal = _make_sealer(hash_key)
    return replan.replace(
        lower=None if replan.lower is None else seal(replan.lower),
        upper=None if replan.upper is None else seal(replan.upper),
    )


def open_plan(plan: Plan, hash_key: bytes | None) -> Plan:
    """Return a plan that was read, with its bounds in clear.

    :param hash_key: secret key of hashed columns; ``None`` if the pipeline hashes none.
    :raises NotReadyError: if the bounds were sealed with another key.
    """
    planned = (table for history in plan.definitions for _, table in history.versions)
    if not any(table.has_hashed_key for table in (*plan.tables, *planned)):  # a plan is read often, and has many chunks
        return plan

    def open_bounds(chunk: Chunk) -> Chunk:
        return chunk.replace(lower=open_bound(chunk.lower), upper=open_bound(chunk.upper))

    open_bound = _make_opener(hash_key)
    return plan.replace(
        chunks=tuple(map(open_bounds, plan.chunks)), superseded_chunks=tuple(map(open_bounds, plan.superseded_chunks))
    )


def _with_bounds(chunk: Chunk, change: Callable[[Key], Key]) -> Chunk:
    return chunk.replace(lower=change(chunk.lower), upper=change(chunk.upper))


def _is_sealed(bound: Key) -> bool:
    return len(bound) == 1 and isinstance(bound[0], str) and bound[0].startswith(_PREFIX)


def _make_cipher(hash_key: bytes | None) -> Any:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # few pipelines need it

    if hash_key is None:
        raise NotReadyError(
            "the snapshot was planned with a hashed key column, and transforms.columns hashes none",
            "Hash the column again, or start with a fresh sink.path",
        )
    return AESGCM(hmac.digest(hash_key, _DERIVATION, "sha256"))


def _make_sealer(hash_key: bytes | None) -> Callable[[Key], Key]:
    cipher = _make_cipher(hash_key)

    def seal(bound: Key) -> Key:
        if not bound or _is_sealed(bound):
            return bound
        nonce = os.urandom(_NONCE_BYTES)
        sealed = nonce + cipher.encrypt(nonce, json.dumps(bound).encode(), None)
        return (_PREFIX + base64.b64encode(sealed).decode(),)

    return seal


def _make_opener(hash_key: bytes | None) -> Callable[[Key], Key]:
    from cryptography.exceptions import InvalidTag

    cipher = _make_cipher(hash_key)

    def open_bound(bound: Key) -> Key:
        if not _is_sealed(bound):
            return bound
        sealed = base64.b64decode(str(bound[0]).removeprefix(_PREFIX))
        try:
            text = cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], None)
        except InvalidTag:
            raise NotReadyError(
                "the secret key of hashed columns is not the one that the chunks were planned with", _REMEDY
            ) from None
        return tuple(json.loads(text))

    return open_bound
