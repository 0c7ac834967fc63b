"""The binlog between the watermarks of chunks, read forward for many chunks over one connection."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from airflow_provider_cdc.model.changes import conform_to_schema
from airflow_provider_cdc.model.definition_history import DefinitionHistory, histories_by_table
from airflow_provider_cdc.model.errors import OtherHistoryError
from airflow_provider_cdc.model.offset import Position, Timeline
from airflow_provider_cdc.mysql.binlog.events.binlog_source import BinlogSource
from airflow_provider_cdc.mysql.binlog.events.xa import PreparedXaRows
from airflow_provider_cdc.mysql.binlog.walk.binlog_reader import BinlogReader
from airflow_provider_cdc.mysql.binlog.walk.change_buffer import KeyFilter
from airflow_provider_cdc.mysql.binlog.walk.changes import DefinitionChange, Truncation, read_changes
from airflow_provider_cdc.mysql.client.catalog import table_altered_error
from airflow_provider_cdc.mysql.client.charsets import UNICODE_DECODERS, CharsetDecoders
from airflow_provider_cdc.mysql.positions.xa_lookback import track_prepared_xa

#: To skip more than this many bytes, reconnect at the wanted position instead.
_SKIP_BYTES = 32 << 20


@dataclass(frozen=True)
class ChangeWindow:
    """What happened to a table in (low, high].

    :param changes: changes of the table in binlog order, after its last TRUNCATE.
    :param truncate_seq: ``_cdc_seq`` of the last TRUNCATE; 0 if there is none.
    """

    changes: pa.Table
    truncate_seq: int


class WindowReader:
    """Reads windows (LW, HW] of the binlog for one table. Later windows continue on the same connection.

    Rows of prepared XA transactions are kept from one window to the next, as long as no binlog in between is skipped.
    Those that were prepared earlier are looked up.

    :param source: opens the binlog.
    :param definitions: definitions of the table; rows are returned in the newest one.
    :param timeline: numbers the transactions.
    :param decoders: decoders of text.
    :param with_before_images: whether updates also return their old image, as ``b``; the definitions must then require
        complete old rows.
    """

    def __init__(
        self,
        source: BinlogSource,
        definitions: DefinitionHistory,
        timeline: Timeline,
        decoders: CharsetDecoders = UNICODE_DECODERS,
        *,
        with_before_images: bool = False,
    ) -> None:
        self.table, self.timeline = definitions.newest, timeline
        self._source, self._captured = source, histories_by_table([definitions])
        self._prepared: PreparedXaRows
        self._binlog = BinlogReader(
            source.open, self._captured, timeline, decoders, yield_ddl=True, with_before_images=with_before_images
        )

    def read_window(self, low: Position, high: Position, key_filter: KeyFilter | None = None) -> ChangeWindow:
        """Return what happened after ``low`` and at or before ``high``. Both must be ends of transactions.

        :param key_filter: changes may be left out if it is true for none of them.
        :raises UnknownPrepareError: if an XA transaction is committed whose rows are not in the binlog.
        :raises TableAlteredError: if a DDL other than TRUNCATE changes the table.
        :raises TransientError: if the binlog does not reach ``high``.
        :raises OtherHistoryError: if ``high`` is before ``low``, although it was read later.
        """
        parts, emptied = list[pa.Table](), 0
        for part in self.read_parts(low, high, key_filter=key_filter):
            if part.truncate_seq:
                parts, emptied = [], part.truncate_seq
            parts.append(part.changes)
        return ChangeWindow(pa.concat_tables([self.table.row_schema.empty_table(), *parts]), emptied)

    def read_parts(
        self, low: Position, high: Position, open_xa: Iterable[str] = (), key_filter: KeyFilter | None = None
    ) -> Iterator[ChangeWindow]:
        """Like :meth:`read_window`, but yield parts, so that few changes are in memory. Consume the iterator fully.

        Other parameters and errors are those of :meth:`read_window`. A part with a TRUNCATE cancels all parts before
        it.

        :param open_xa: entries of XA transactions that are open at ``low``, as far as they are known.
        """
        if high < low:
            raise OtherHistoryError(f"the binlog of the server ends at {high}, but had already reached {low}")
        try:
            yield from self._read_parts(low, high, open_xa, key_filter)
        except BaseException:
            self.close()  # the next window must not see what has been decoded
            raise

    def close(self) -> None:
        """Close the connection."""
        self._binlog.close()

    def _read_parts(
        self, low: Position, high: Position, open_xa: Iterable[str], key_filter: KeyFilter | None
    ) -> Iterator[ChangeWindow]:
        binlog, table = self._binlog, self.table
        if binlog.current_position is not None and self._is_near(binlog.current_position, low):
            for step in binlog.steps(binlog.current_position, low):
                if step.transaction is not None:
                    self._prepared.track(step.transaction)
            binlog.take_changes()
        if binlog.current_position != low:
            self._prepared = track_prepared_xa(self._source, self._captured, low, open_xa)
        for change in read_changes(binlog, low, high, self._prepared, key_filter=key_filter):
            if isinstance(change, DefinitionChange):
                raise table_altered_error(table, f"at {change.at}", change.at)
            if isinstance(change, Truncation):
                yield ChangeWindow(table.row_schema.empty_table(), change.seq)
            else:
                yield ChangeWindow(conform_to_schema(change.batch, table.row_schema), 0)
        if low < high and binlog.current_position != high:
            self.close()

    @staticmethod
    def _is_near(at: Position, low: Position) -> bool:
        return at < low and low.file == at.file and low.position - at.position < _SKIP_BYTES
