"""P0: the place in the binlog that a snapshot stands on, and what was open there."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from pymysql.connections import Connection

from airflow_provider_cdc.model.definition_history import DefinitionHistory, histories_by_table
from airflow_provider_cdc.model.errors import NotReadyError, TransientError
from airflow_provider_cdc.model.offset import Offset
from airflow_provider_cdc.model.schema import TableSchema
from airflow_provider_cdc.mysql.client.identity import open_xa_transactions
from airflow_provider_cdc.mysql.positions.binlog_files import OpenStreamAt, binlog_sizes
from airflow_provider_cdc.mysql.positions.watermarks import take_low_watermark, wait_until_gone
from airflow_provider_cdc.mysql.positions.xa_lookback import XaLookback

#: Seconds to wait for open XA transactions to end.
_XA_SECONDS = 10


def take_p0(connection: Connection[Any], server: str | None = None) -> tuple[Offset, frozenset[str]]:
    """P0: a low watermark, taken when the XA transactions that were open before it have ended, if they do so soon.

    Rows of those that are open at P0 stand before it in the binlog: the stream looks back for them when they end. After
    the wait these are ones that were prepared a moment ago, and those whose names are returned. Without the
    privilege to look they may be any.
    """
    still_open: frozenset[str] = frozenset()
    with suppress(NotReadyError):
        still_open = wait_until_gone(
            open_xa_transactions(connection), lambda: open_xa_transactions(connection), time.monotonic() + _XA_SECONDS
        )
    return take_low_watermark(connection, server), still_open


def with_open_xa(
    connection: Connection[Any], p0: Offset, xids: frozenset[str], tables: Sequence[TableSchema], open_at: OpenStreamAt
) -> Offset:
    """P0 with the XA transactions in its list that have been open for long: their binlog is needed until they end.

    :param xids: names of those that were open before P0.
    :param tables: captured tables.
    :param open_at: opens a binlog stream at a position.
    :raises TransientError: if the binlog does not have one of them any more.
    """
    if not xids:
        return p0
    lookback = XaLookback(
        p0.at, lambda: binlog_sizes(connection), open_at, histories_by_table(map(DefinitionHistory.from_single, tables))
    )
    entries = {xid: lookback.offset_entry(xid) for xid in sorted(xids)}
    if missing := [xid for xid, text in entries.items() if text is None and xid in open_xa_transactions(connection)]:
        raise TransientError(
            f"{len(missing)} XA transactions are prepared, and what they changed is not in the binlog any more "
            f"({', '.join(missing[:3])})",
            "Commit or roll them back (XA RECOVER lists them), then run again",
        )
    return replace(p0, open_xa=tuple(sorted(text for text in entries.values() if text is not None)))
