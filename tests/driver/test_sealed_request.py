"""How a request reaches a driver in a cluster."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from airflow_provider_cdc.driver.launchers.sealed_request import (
    ALIAS,
    DriverSecret,
    new_key,
    seal,
    unseal,
    write_credentials,
)
from airflow_provider_cdc.model.errors import TerminalError


def test_a_request_is_sealed_for_one_driver() -> None:
    key = new_key()
    sealed = seal("hunter2", "d", key)
    assert "hunter2" not in sealed and sealed != seal("hunter2", "d", key) and unseal(sealed, "d", key) == "hunter2"
    for wrong in ((sealed, "e", key), (sealed, "d", new_key()), (sealed[:-8] + "AAAAAAAA", "d", key)):
        with pytest.raises(TerminalError, match="is not the one that was sealed"):
            unseal(*wrong)


def test_the_secret_of_a_driver() -> None:
    secret = DriverSecret("d", new_key(), {"conn_id": "books", "password": "hunter2"}, "1.0")
    assert DriverSecret.from_bytes(secret.to_bytes()) == secret and "hunter2" not in repr(secret)


@pytest.mark.parametrize("size", [1, 127, 128, 255, 256, 70_000])
def test_only_their_owner_reads_the_credentials(tmp_path: Path, size: int) -> None:
    """Hadoop itself reads them in tests/driver/test_yarn.py."""
    write_credentials(tmp_path / "credentials", b"x" * size)
    data = (tmp_path / "credentials").read_bytes()
    assert stat.S_IMODE((tmp_path / "credentials").stat().st_mode) == 0o600
    assert data.startswith(b"HDTS\0\0\1" + bytes([len(ALIAS)]) + ALIAS.encode()) and data.endswith(b"x" * size)
    with pytest.raises(FileExistsError):
        write_credentials(tmp_path / "credentials", b"")
