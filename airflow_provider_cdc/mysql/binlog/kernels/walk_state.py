"""State shared by the walk kernel and Python: the fields of its arrays."""

from __future__ import annotations

# Why a call ends, in addition to the reasons of row_kernel: more data is needed; an event is left to Python; a pause is
# due; a transaction ended elsewhere than expected after rows of it were taken with a wrong number; a compressed
# transaction has not been unpacked.
NEED_DATA, FOR_PYTHON, PAUSE, WRONG_END, NEED_UNPACKED = range(10, 15)

# The state that calls share.
(
    BLOCK_AT,  # where to continue in the block
    PACKET_NUMBER,  # number of the next packet
    IMAGE_OFFSET,  # offset of the next image in a packet that has been read in part, else 0
    FAILED_TABLE,  # slot of the table at which a call ended
    WANTED_BYTES,
    POSITION,  # position in the binlog file
    FILE_SEQ,  # _cdc_seq of position 0 of the file
    HAS_CHECKSUMS,  # whether events have checksums
    PAYLOAD_MODE,  # STREAMED or WHOLE while the bare events of a compressed transaction are walked, else 0
    PAYLOAD_AT,  # where to continue in these events
    PAYLOAD_END,  # where they end
    PAYLOAD_POSITION,  # where the outer event begins; all inner events have the position of its end
    UNPACKED_COUNT,  # compressed transactions of this block that have been unpacked ahead
    UNPACKED_USED,  # how many of them have been walked
    MARIADB,
    COUNT_ONLY,  # count rows instead of decoding them
    WITH_BEFORE_IMAGES,  # store both images of updates
    PAUSE_POSITION,  # pause at the first end of a transaction at or after this position
    BYTE_BUDGET,  # pause when this many bytes of rows have been decoded
    DECODED_BYTES,
    MAX_COUNTED_ROWS,  # pause at the first end of a transaction with at least this many counted rows
    COUNTED_ROWS,  # rows of transactions that have ended
    IS_OPEN,  # whether a transaction is open
    HAS_BEGUN,
    START_POSITION,
    COMMIT_US,
    GTID_KIND,  # kind of its GTID, one of the four below
    GTID_HIGH,
    GTID_LOW,
    GTID_TAG_WORDS,  # its tag in four words, padded with zeros
    _TAG_2,
    _TAG_3,
    _TAG_4,
    GTID_NUMBER,
    TRANSACTION_END,  # announced end of the transaction, or 0
    STATEMENT_NUMBER,  # what was recorded under another number of the statement or transaction is no longer valid
    TRANSACTION_NUMBER,
    CHANGED_TABLES,  # number of tables that the transaction has changed
    LAST_END,  # end of the last transaction
    ENDED_TRANSACTIONS,  # number of transactions that have ended
    GTID_RUNS,  # number of lines in ``runs``
    WITH_GTIDS,  # whether each transaction with rows has its own line in ``runs``
) = range(42)
STATE_SIZE = 42
ANONYMOUS_KIND, MYSQL_GTID_KIND, MARIADB_GTID_KIND, GTID_IN_PYTHON = range(4)
#: Values of PAYLOAD_MODE: the payload is unpacked incrementally, or has been unpacked as a whole.
STREAMED, WHOLE = 1, 2
#: Value of HAS_BEGUN: the transaction began as XA; its rows are left to Python.
BEGUN_XA = 2

# A line of ``maps``, a hash table by table id: the id (-1: free), the slot (negative: not captured), address and size
# of the table map's body from the table name on, and the statement that announced it.
MAP_TABLE_ID, MAP_SLOT, MAP_BODY, MAP_BODY_SIZE, MAP_STATEMENT = range(5)
MAP_FIELDS = 5

# A line of ``runs``: consecutive GTIDs of one source. It begins with the source, in the order of the state.
# RUN_SEQ: ``_cdc_seq`` of a transaction that has its own line, else 0.
SOURCE_FIELDS = GTID_TAG_WORDS + 4 - GTID_KIND
RUN_FIRST, RUN_LAST, RUN_SEQ, RUN_FIELDS = range(SOURCE_FIELDS, SOURCE_FIELDS + 4)

# A line of a payload that has been unpacked ahead: where its packet begins in the block, where its compressed content
# begins and ends there, and where its events begin and end in the unpacked bytes.
PACKET_START, FRAME_START, FRAME_END, UNPACKED_START, UNPACKED_END = range(5)
AHEAD_FIELDS = 5
