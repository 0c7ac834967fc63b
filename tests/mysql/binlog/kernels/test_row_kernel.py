"""The machine code that reads row images, by itself: right values, or a stop; never a crash."""

from __future__ import annotations

import random
import subprocess
import sys
import zlib
from typing import Any

import numpy as np

from airflow_provider_cdc.mysql.binlog.kernels import checksum
from airflow_provider_cdc.mysql.binlog.kernels.checksum import crc32, crc_tables
from airflow_provider_cdc.native import primitives
from airflow_provider_cdc.native.compile import compiled
from tests import ROOT


def run(what: str, seed: int) -> str:
    command = [sys.executable, "-m", "tests.support.binlog.mangled", what, str(seed)]
    print("To repeat it:", *command)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    print(done.stdout)
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    return done.stdout


def test_rows_of_all_kinds_are_read_as_the_plain_decoder_does() -> None:
    assert run("read", random.randrange(1 << 30)).strip() == "{'read': 1500}"


def test_mangled_rows_are_refused_or_read_the_same() -> None:
    """Each ends right before memory that must not be touched, so reading on is a crash: of the child, which tells."""
    out = run("mangle", random.randrange(1 << 30))
    assert "'refused'" in out and "'read'" in out


@compiled("uint32(uint32[::1], uint8[::1], int64, int64)", __file__, checksum.__file__, primitives.__file__)
def checksum_of(tables: Any, data: Any, at: Any, end: Any) -> Any:
    return crc32(tables, data, at, end)


def test_checksums_are_those_of_zlib() -> None:
    tables, pick = crc_tables(), random.Random(1)
    for size in [*range(70), 1000, 4096, 65_537]:
        content, at = pick.randbytes(size + 7), pick.randrange(8)
        data = np.frombuffer(bytearray(content + bytes(primitives.PADDING)), np.uint8)
        assert checksum_of(tables, data, at, len(content)) == zlib.crc32(content[at:])
