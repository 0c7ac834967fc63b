"""What the hash of a column costs: values a second on one core, beside the standard library, and that they are equal.

Each round hashes the same values in each way, one after the other: the machine code alone, a whole column as a policy
has it (Arrow in, Arrow with hexadecimal digits out), and ``hmac.digest`` of the standard library (OpenSSL), once for
each value. What counts is the median of the rounds, and of ratios the median over the rounds; seconds are those of this
process's processor time, so that other work on the machine matters little.

    make bench-hash      CDC_BENCH_VALUES=n values (1000000), CDC_BENCH_ROUNDS=n rounds (5)
"""

from __future__ import annotations

import hmac
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_cdc.model.column_policy import HASH, ColumnPolicy
from airflow_provider_cdc.model.schema import Column
from airflow_provider_cdc.native.hmac_sha256 import HmacSha256
from airflow_provider_cdc.transforms.column_values import apply_policy
from bench.snapshot import machine

KERNEL, COLUMN, LIBRARY = "own, machine code", "own, a column of text", "hmac.digest, one by one"
#: Bytes of the values; the longest that need one block, and some that need more.
LENGTHS = (8, 24, 55, 200)
#: Values a second that the machine code is to reach, for values of one block.
GOAL, ONE_BLOCK = 2_000_000, 55
_KEY = b"a secret key of 32 bytes, or so."
_TEXT = Column("c", "varchar", "varchar(255)", True)
#: Values that the standard library hashes in a round (it would take long for all), and in a chunk of the column.
_FEW = 100_000


def seconds_of(work: Callable[[], Any]) -> tuple[float, Any]:
    """Processor time of some work, and its result."""
    began = time.process_time()
    result = work()
    return time.process_time() - began, result


def compare(length: int, count: int, rounds: int) -> float:
    """Print a row of the table, and return how many values a second the machine code hashes."""
    letters = np.random.default_rng(length).integers(ord("a"), ord("z") + 1, count * length, dtype=np.uint8)
    offsets = np.arange(count + 1, dtype=np.int64) * length
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(letters)]
    texts = pa.Array.from_buffers(pa.string(), count, buffers)
    chunks = pa.chunked_array([texts.slice(at, _FEW) for at in range(0, count, _FEW)])
    few = [text.as_buffer().to_pybytes() for text in texts.slice(0, _FEW)]
    rates: dict[str, list[float]] = {KERNEL: [], COLUMN: [], LIBRARY: []}
    for _ in range(rounds):
        seconds, digests = seconds_of(lambda: HmacSha256(_KEY).digests(letters, offsets))
        rates[KERNEL].append(count / seconds)
        seconds, column = seconds_of(lambda: apply_policy(chunks, _TEXT, ColumnPolicy("c", HASH), _KEY))
        rates[COLUMN].append(count / seconds)
        seconds, expected = seconds_of(lambda: [hmac.digest(_KEY, value, "sha256") for value in few])
        rates[LIBRARY].append(len(few) / seconds)
        if [digest.tobytes() for digest in digests[: len(few)]] != expected:
            raise SystemExit(f"hashes of values of {length} bytes are not those of the standard library")
        if column.slice(0, len(few)).to_pylist() != [digest.hex() for digest in expected]:
            raise SystemExit(f"hexadecimal digits of hashes of {length} bytes are not those of the standard library")
    medians = " | ".join(f"{statistics.median(rates[arm]):,.0f}" for arm in rates)
    ratios = " | ".join(
        f"{statistics.median(own / theirs for own, theirs in zip(rates[arm], rates[LIBRARY], strict=True)):.1f}"
        for arm in (KERNEL, COLUMN)
    )
    print(f"| {length} | {medians} | {ratios} |", flush=True)
    return statistics.median(rates[KERNEL])


def main() -> None:
    """Measure, print the table, and fail if the goal is missed."""
    count = int(os.environ.get("CDC_BENCH_VALUES", "1000000"))
    rounds = int(os.environ.get("CDC_BENCH_ROUNDS", "5"))
    print(f"HMAC-SHA-256 of {count:,} values, values per second of one core, medians of {rounds} rounds\n")
    print(
        f"| bytes | {KERNEL} | {COLUMN} | {LIBRARY} | machine code, times | column, times |\n|--:|--:|--:|--:|--:|--:|"
    )
    rates = {length: compare(length, count, rounds) for length in LENGTHS}
    machine()
    slow = [length for length, rate in rates.items() if length <= ONE_BLOCK and rate < GOAL]
    if slow:
        sys.exit(f"fewer than {GOAL:,} values per second of {', '.join(map(str, slow))} bytes")


if __name__ == "__main__":
    main()
