"""The batch table: `int64[rows, FIELDS]`, one row a batch.

POSITION is where the batch starts in the bytes as they lie on disk (`raw`), FILE_POSITION where that is in
its file, SIZE its bytes there. PLAIN_POSITION and PLAIN_END bound its records, uncompressed, in `plain`.
BASE_TIMESTAMP is the raw field at byte 27: the base timestamp, or the delete horizon when HORIZON is among
the ATTRIBUTES. All others are the header's fields. A row of magic 0 or 1 reads the same once its records
were translated (`kernels.legacy`).
"""

POSITION = 0
FILE_POSITION = 1
SIZE = 2
BASE_OFFSET = 3
LAST_OFFSET = 4
ATTRIBUTES = 5
COUNT = 6
BASE_TIMESTAMP = 7
MAX_TIMESTAMP = 8
PRODUCER_ID = 9
PRODUCER_EPOCH = 10
BASE_SEQUENCE = 11
LEADER_EPOCH = 12
CRC = 13
MAGIC = 14
PLAIN_POSITION = 15
PLAIN_END = 16
FIELDS = 17
