"""What the machine code that walks the binlog and Python share: numbers of places in arrays."""

from __future__ import annotations

# Why a call ends, beside the reasons of row_kernel: for want of data; at an event for Python; at a place to look up; at
# the end of a transaction whose rows have been handed out with a number that was wrong; at a compressed transaction
# that has not been unpacked.
MORE, EVENT, PAUSE, SPLIT, UNPACK = range(10, 15)

# What calls share. Where to go on in the data, the next packet's number, the offset of the next image in a packet that
# has been begun; the table in trouble; the position in the file; settings; and the transaction that is open.
(
    AT,
    NUMBER,
    INSIDE,
    TABLE,
    WANTED,
    POSITION,
    BASE,  # _cdc_seq of position 0 of the file
    CHECKED,  # whether events have a checksum
    PACKED,  # whether the events inside of a compressed transaction are walked, bare ones: STREAMED or WHOLE, else 0
    INNER,  # where to go on in them, and where they end; where the outer event, at whose end all of them are, begins
    INNER_END,
    OUTER,
    UNPACKED,  # compressed transactions of this block that have been unpacked ahead, and how many of them were walked
    USED,
    MARIADB,
    COUNT_ONLY,  # count rows, do not decode them
    BOTH,  # both images of updates
    LIMIT,  # pause at the first end of a transaction at or behind this position
    BUDGET,  # pause when so many bytes of rows have been decoded
    BYTES,
    MOST,  # pause at the first end of a transaction behind so many counted rows
    COUNTED,  # rows of transactions that have ended
    OPEN,  # whether a transaction is open
    BEGUN,
    START,
    COMMIT,
    KIND,  # of its GTID: one of the next line
    HIGH,
    LOW,
    TAG,  # and its tag, filled up with zeros: four words
    _TAG_2,
    _TAG_3,
    _TAG_4,
    GNO,
    EXPECTED,  # where it ends, if it says so; else 0
    STATEMENT,  # numbers of the statement and of the transaction: what was said of another one counts no more
    TRANSACTION,
    TOUCHED,  # tables that it has changed
    SAFE,  # end of the last transaction
    ENDED,  # transactions that have ended
    RUNS,  # of GTIDs
    NAMED,  # whether each transaction with rows has a run of its own
) = range(42)
STATE = 42
ANONYMOUS, OF_MYSQL, OF_MARIADB, IN_WORDS = range(4)
#: In the place of PACKED: they are unpacked bit by bit, or all of them have been.
STREAMED, WHOLE = 1, 2
#: In the place of BEGUN: begun as an XA transaction, whose rows are for Python.
XA = 2

# A line of ``maps``, a hash table by table id: the id (-1: free), the table (negative: not captured), the body of its
# table map from the name on, and the statement that announced it.
ID, SLOT, BODY, SIZE, SAID = range(5)
MAP_FIELDS = 5

# A line of ``runs``: GTIDs of one source, one after the other. It begins with the source as it stands in the state.
# END: ``_cdc_seq`` of a transaction that has a run of its own, else 0.
SOURCE_FIELDS = TAG + 4 - KIND
RUN_FIRST, RUN_LAST, RUN_END, RUN_FIELDS = range(SOURCE_FIELDS, SOURCE_FIELDS + 4)

# A line of what has been unpacked ahead: where its packet begins in the block, and its compressed content there; the
# events in what was unpacked.
WHERE, FRAME, FRAME_END, UNPACKED_FROM, UNPACKED_END = range(5)
AHEAD_FIELDS = 5
