"""Type codes of binlog events (the fifth byte of their header), and groups of them.

A type that is neither in one of the groups nor handled by
:class:`~airflow_provider_cdc.mysql.binlog.events.transactions.TransactionAssembler` stops the stream.
"""

from __future__ import annotations

# Both servers.
QUERY, STOP, ROTATE, INTVAR = 2, 3, 4, 5
APPEND_BLOCK, DELETE_FILE, RAND, USER_VAR = 9, 11, 13, 14
FORMAT_DESCRIPTION, XID, BEGIN_LOAD_QUERY, EXECUTE_LOAD_QUERY, TABLE_MAP = 15, 16, 17, 18, 19
WRITE_ROWS_V1, UPDATE_ROWS_V1, DELETE_ROWS_V1, INCIDENT, HEARTBEAT = 23, 24, 25, 26, 27
IGNORABLE, ROWS_QUERY, WRITE_ROWS, UPDATE_ROWS, DELETE_ROWS = 28, 29, 30, 31, 32
# MySQL.
GTID, ANONYMOUS_GTID, PREVIOUS_GTIDS, TRANSACTION_CONTEXT, VIEW_CHANGE = 33, 34, 35, 36, 37
XA_PREPARE, PARTIAL_UPDATE_ROWS, TRANSACTION_PAYLOAD, HEARTBEAT_V2, GTID_TAGGED = 38, 39, 40, 41, 42
# MariaDB.
ANNOTATE_ROWS, BINLOG_CHECKPOINT, MARIADB_GTID, GTID_LIST, START_ENCRYPTION = 160, 161, 162, 163, 164
QUERY_COMPRESSED = 165
WRITE_ROWS_COMPRESSED_V1, UPDATE_ROWS_COMPRESSED_V1, DELETE_ROWS_COMPRESSED_V1 = 166, 167, 168
WRITE_ROWS_COMPRESSED, UPDATE_ROWS_COMPRESSED, DELETE_ROWS_COMPRESSED = 169, 170, 171

#: Events that begin a transaction.
TRANSACTION_STARTS = frozenset({GTID, ANONYMOUS_GTID, GTID_TAGGED, MARIADB_GTID})
#: MariaDB's compressed row events, mapped to the types that they unpack to.
UNCOMPRESSED_TYPES = {
    WRITE_ROWS_COMPRESSED_V1: WRITE_ROWS_V1,
    UPDATE_ROWS_COMPRESSED_V1: UPDATE_ROWS_V1,
    DELETE_ROWS_COMPRESSED_V1: DELETE_ROWS_V1,
    WRITE_ROWS_COMPRESSED: WRITE_ROWS,
    UPDATE_ROWS_COMPRESSED: UPDATE_ROWS,
    DELETE_ROWS_COMPRESSED: DELETE_ROWS,
}
#: Row events without a field for extra data before the columns.
ROWS_EVENTS_V1 = frozenset({WRITE_ROWS_V1, UPDATE_ROWS_V1, DELETE_ROWS_V1})
#: Events that an idle server sends.
HEARTBEATS = frozenset({HEARTBEAT, HEARTBEAT_V2})
#: Events at the beginning of a file. Each reader gets them first, without a position if it starts elsewhere.
FILE_HEADER_EVENTS = frozenset({FORMAT_DESCRIPTION, START_ENCRYPTION})
#: Events between transactions, which only show how far the binlog has been read. The server decrypts what it sends, but
#: still sends the event that marks a file as encrypted.
BETWEEN_TRANSACTIONS = frozenset(
    {STOP, ROTATE, FORMAT_DESCRIPTION, PREVIOUS_GTIDS, BINLOG_CHECKPOINT, GTID_LIST, START_ENCRYPTION}
)
#: Events that carry no rows, with their purpose.
SKIPPED_EVENTS = {
    INTVAR: "AUTO_INCREMENT value for the next statement, which the statement guard checks",
    APPEND_BLOCK: "file content of a LOAD DATA logged by statement; the statement guard checks that statement",
    DELETE_FILE: "discards such file content",
    RAND: "random seeds for the next statement",
    USER_VAR: "user variable for the next statement",
    BEGIN_LOAD_QUERY: "file content, as APPEND_BLOCK",
    IGNORABLE: "may be ignored by definition",
    ROWS_QUERY: "text of the statement whose rows follow",
    TRANSACTION_CONTEXT: "group replication: data for certification",
    VIEW_CHANGE: "group replication: membership change",
    ANNOTATE_ROWS: "text of the statement whose rows follow (MariaDB)",
}
