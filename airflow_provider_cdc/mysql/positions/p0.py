"""P0: the binlog position that a snapshot is based on, and the XA transactions that were open there."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from pymysql.connections import Connection

from airflow_provider_cdc.model.definition_history import DefinitionHistory, histories_by_table
from airflow_provider_cdc.model.errors import NotReadyError, TransientError
from airflow_provider_cdc.model.offset import Offset
from airflow_provider_cdc.model.schema import TableSchema
from airflow_provider_cdc.mysql.binlog.events.binlog_source import OpenStreamAt
from airflow_provider_cdc.mysql.client.identity import open_xa_transactions
from airflow_provider_cdc.mysql.positions.binlog_files import binlog_sizes
from airflow_provider_cdc.mysql.positions.watermarks import take_low_watermark, wait_until_gone
from airflow_provider_cdc.mysql.positions.xa_lookback import XaLookback

#: Seconds to wait for open XA transactions to end.
_XA_SECONDS = 10


def take_p0(connection: Connection[Any], server: str | None = None) -> tuple[Offset, frozenset[str]]:
    """Take P0: a low watermark, after waiting a short time for open XA transactions to end.

    The rows of XA transactions that are open at P0 are before it in the binlog. The stream looks back for them when
    these transactions end. After the wait, only those that were just prepared and those that are returned can be open.
    Without the privilege to list them, any may be.

    :returns: P0, and the names of XA transactions that did not end.
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
    """Add long-open XA transactions to the list in P0, because their binlog is needed until they end.

    :param xids: names of the XA transactions that were open before P0.
    :param tables: captured tables.
    :param open_at: opens a binlog stream at a position.
    :raises TransientError: if the binlog no longer contains one of them.
    """
    if not xids:
        return p0
    lookback = XaLookback(
        p0.at, lambda: binlog_sizes(connection), open_at, histories_by_table(map(DefinitionHistory.from_single, tables))
    )
    entries = {xid: lookback.offset_entry(xid) for xid in sorted(xids)}
    if missing := [xid for xid, text in entries.items() if text is None and xid in open_xa_transactions(connection)]:
        raise TransientError(
            f"{len(missing)} XA transactions are prepared, but their changes are no longer in the binlog "
            f"({', '.join(missing[:3])})",
            "Commit or roll them back (XA RECOVER lists them), then run again",
        )
    return p0.replace(open_xa=tuple(sorted(text for text in entries.values() if text is not None)))
