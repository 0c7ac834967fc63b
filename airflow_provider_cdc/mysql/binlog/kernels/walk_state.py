"""What the machine code that walks the binlog and Python share: numbers of places in arrays."""

from __future__ import annotations

# Why a call ends, beside the reasons of row_kernel: for want of data; at an event for Python; at a place to look up; at
# the end of a transaction whose rows have been handed out with a number that was wrong; at a compressed transaction
# that has not been unpacked.
NEED_DATA, FOR_PYTHON, PAUSE, WRONG_END, NEED_UNPACKED = range(10, 15)

# What calls share. Where to go on in the data, the next packet's number, the offset of the next image in a packet that
# has been begun; the table in trouble; the position in the file; settings; and the transaction that is open.
(
    BLOCK_AT,
    PACKET_NUMBER,
    IMAGE_OFFSET,
    FAILED_TABLE,
    WANTED_BYTES,
    POSITION,
    FILE_SEQ,  # _cdc_seq of position 0 of the file
    HAS_CHECKSUMS,  # whether events have a checksum
    PAYLOAD_MODE,  # whether the events of a compressed transaction are walked, bare ones: STREAMED or WHOLE, else 0
    PAYLOAD_AT,  # where to go on in them, and where they end; and where the outer event begins, at whose end all are
    PAYLOAD_END,
    PAYLOAD_POSITION,
    UNPACKED_COUNT,  # compressed transactions of this block that have been unpacked ahead, and how many were walked
    UNPACKED_USED,
    MARIADB,
    COUNT_ONLY,  # count rows, do not decode them
    WITH_BEFORE_IMAGES,  # both images of updates
    PAUSE_POSITION,  # pause at the first end of a transaction at or behind this position
    BYTE_BUDGET,  # pause when so many bytes of rows have been decoded
    DECODED_BYTES,
    MAX_COUNTED_ROWS,  # pause at the first end of a transaction behind so many counted rows
    COUNTED_ROWS,  # rows of transactions that have ended
    IS_OPEN,  # whether a transaction is open
    HAS_BEGUN,
    START_POSITION,
    COMMIT_US,
    GTID_KIND,  # of its GTID: one of the next line
    GTID_HIGH,
    GTID_LOW,
    GTID_TAG_WORDS,  # and its tag, filled up with zeros: four words
    _TAG_2,
    _TAG_3,
    _TAG_4,
    GTID_NUMBER,
    EXPECTED_END,  # where it ends, if it says so; else 0
    STATEMENT_NUMBER,  # numbers of the statement and of the transaction: what was said of another one counts no more
    TRANSACTION_NUMBER,
    CHANGED_TABLES,  # tables that it has changed
    LAST_END,  # end of the last transaction
    ENDED_TRANSACTIONS,  # transactions that have ended
    GTID_RUNS,  # of GTIDs
    WITH_GTIDS,  # whether each transaction with rows has a run of its own
) = range(42)
STATE_SIZE = 42
ANONYMOUS_KIND, MYSQL_GTID_KIND, MARIADB_GTID_KIND, GTID_IN_PYTHON = range(4)
#: In the place of PACKED: they are unpacked bit by bit, or all of them have been.
STREAMED, WHOLE = 1, 2
#: In the place of BEGUN: begun as an XA transaction, whose rows are for Python.
BEGUN_XA = 2

# A line of ``maps``, a hash table by table id: the id (-1: free), the table (negative: not captured), the body of its
# table map from the name on, and the statement that announced it.
MAP_TABLE_ID, MAP_SLOT, MAP_BODY, MAP_BODY_SIZE, MAP_STATEMENT = range(5)
MAP_FIELDS = 5

# A line of ``runs``: GTIDs of one source, one after the other. It begins with the source as it stands in the state.
# END: ``_cdc_seq`` of a transaction that has a run of its own, else 0.
SOURCE_FIELDS = GTID_TAG_WORDS + 4 - GTID_KIND
RUN_FIRST, RUN_LAST, RUN_SEQ, RUN_FIELDS = range(SOURCE_FIELDS, SOURCE_FIELDS + 4)

# A line of what has been unpacked ahead: where its packet begins in the block, and its compressed content there; the
# events in what was unpacked.
PACKET_START, FRAME_START, FRAME_END, UNPACKED_START, UNPACKED_END = range(5)
AHEAD_FIELDS = 5
