"""GTIDs of the walked transactions, converted from the kernel's numbers to text."""

from __future__ import annotations

import struct
from typing import Any
from uuid import UUID

import numpy as np

from airflow_provider_cdc.mysql.binlog.kernels import walk_state

_RUNS = 4096


class GtidCollector:
    """Collects GTIDs, with consecutive ones of a source joined, and the GTIDs of transactions with rows.

    :param state: state shared with the walk kernel, which writes to ``runs``.
    """

    def __init__(self, state: Any) -> None:
        self._state = state
        self.runs: Any = np.zeros((_RUNS, walk_state.RUN_FIELDS), np.int64)
        self._texts: list[str] = []
        self._by_seq: dict[int, str] = {}

    def add(self, gtid: str, seq: int) -> None:
        """Add a transaction that was read by Python.

        :param gtid: empty if the transaction has none.
        :param seq: its ``_cdc_seq``.
        """
        self._drain_runs()
        if gtid:
            self._texts.append(gtid)
            if self._state[walk_state.WITH_GTIDS]:
                self._by_seq[seq] = gtid

    def take_texts(self) -> tuple[str, ...]:
        """Return the GTIDs since the last call."""
        self._drain_runs()
        texts, self._texts = tuple(self._texts), []
        return texts

    def take_by_seq(self) -> dict[int, str]:
        """Return the GTIDs of transactions with rows since the last call, by ``_cdc_seq``."""
        self._drain_runs()
        names, self._by_seq = self._by_seq, {}
        return names

    def open_gtid(self) -> str:
        """Return the GTID of the kernel's open transaction."""
        source = self._state[walk_state.GTID_KIND : walk_state.GTID_KIND + walk_state.SOURCE_FIELDS].tolist()
        number = int(self._state[walk_state.GTID_NUMBER])
        return _format_run(*source, number, number)

    def _drain_runs(self) -> None:
        """Convert the kernel's GTIDs to text."""
        for line in self.runs[: self._state[walk_state.GTID_RUNS]].tolist():
            *run, seq = line
            self._texts.append(_format_run(*run))
            if seq:
                self._by_seq[seq] = self._texts[-1]
        self._state[walk_state.GTID_RUNS] = 0


def _format_run(kind: int, high: int, low: int, *more: int) -> str:
    *tag, first, last = more
    if kind == walk_state.MARIADB_GTID_KIND:
        return f"{high}-{low}-{last}"
    if kind == walk_state.MYSQL_GTID_KIND:
        numbers = f"{first}-{last}" if first < last else f"{last}"
        uuid = UUID(int=(high & (1 << 64) - 1) << 64 | low & (1 << 64) - 1)
        name = struct.pack("<4q", *tag).rstrip(b"\0").decode()
        return f"{uuid}:{name}:{numbers}" if name else f"{uuid}:{numbers}"
    return ""
