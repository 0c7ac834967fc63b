"""Type codes of binlog events, as in the fifth byte of their header. All that the project knows of them stands here.

A type that is in none of the groups, and not one that :class:`.transactions.Assembler` reads, stops the stream.
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

#: The events that begin a transaction.
TRANSACTION_STARTS = frozenset({GTID, ANONYMOUS_GTID, GTID_TAGGED, MARIADB_GTID})
#: MariaDB's compressed row events, and the events that they unpack to.
UNCOMPRESSED_TYPES = {
    WRITE_ROWS_COMPRESSED_V1: WRITE_ROWS_V1,
    UPDATE_ROWS_COMPRESSED_V1: UPDATE_ROWS_V1,
    DELETE_ROWS_COMPRESSED_V1: DELETE_ROWS_V1,
    WRITE_ROWS_COMPRESSED: WRITE_ROWS,
    UPDATE_ROWS_COMPRESSED: UPDATE_ROWS,
    DELETE_ROWS_COMPRESSED: DELETE_ROWS,
}
#: Row events without a field for further data in front of the columns.
ROWS_EVENTS_V1 = frozenset({WRITE_ROWS_V1, UPDATE_ROWS_V1, DELETE_ROWS_V1})
#: What a server sends when it has nothing else to send.
HEARTBEATS = frozenset({HEARTBEAT, HEARTBEAT_V2})
#: What stands at the beginning of a file, and is sent to each reader first wherever it begins; without a position then.
FILE_HEADER_EVENTS = frozenset({FORMAT_DESCRIPTION, START_ENCRYPTION})
#: What stands between transactions and only shows how far the log has been read. The server decrypts what it sends; the
#: event that says that a file is encrypted comes all the same.
BETWEEN_TRANSACTIONS = frozenset(
    {STOP, ROTATE, FORMAT_DESCRIPTION, PREVIOUS_GTIDS, BINLOG_CHECKPOINT, GTID_LIST, START_ENCRYPTION}
)
#: Events that carry no rows, with what they are for.
EVENTS_WITHOUT_ROWS = {
    INTVAR: "value of an AUTO_INCREMENT for the statement that follows; that statement is judged",
    APPEND_BLOCK: "file content of a LOAD DATA by statement; the statement that follows is judged",
    DELETE_FILE: "takes such a file content back",
    RAND: "random seeds for the statement that follows",
    USER_VAR: "a user variable for the statement that follows",
    BEGIN_LOAD_QUERY: "file content, as APPEND_BLOCK",
    IGNORABLE: "by its definition",
    ROWS_QUERY: "the text of the statement whose rows follow",
    TRANSACTION_CONTEXT: "of group replication, for its certification",
    VIEW_CHANGE: "of group replication, membership",
    ANNOTATE_ROWS: "MariaDB's text of the statement whose rows follow",
}
