"""Constants of Kafka's format: integer limits, the header of a batch, attribute bits, codecs.

The kernels compile these numbers in, and code that loads no Numba uses the same ones, so this module imports
nothing. `records/batch.py` draws the header.
"""

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1

# Where the fields of a batch of magic 2 start, in bytes from the start of the batch. The length and the magic
# have these positions in every magic.
LENGTH_AT = 8
LEADER_EPOCH_AT = 12
MAGIC_AT = 16
CRC_AT = 17
ATTRIBUTES_AT = 21  # the checksum covers everything from here on
LAST_OFFSET_DELTA_AT = 23
BASE_TIMESTAMP_AT = 27
MAX_TIMESTAMP_AT = 35
PRODUCER_ID_AT = 43
PRODUCER_EPOCH_AT = 51
BASE_SEQUENCE_AT = 53
COUNT_AT = 57
HEADER_BYTES = 61

OVERHEAD_BYTES = 12  # base offset and length: the length field does not count them
STEP_BYTES = 17  # up to and including the magic: enough to step from one batch to the next
SMALLEST_LENGTH = 14  # of an entry of magic 0; a larger magic needs more
SMALLEST_ENTRY_BYTES = OVERHEAD_BYTES + SMALLEST_LENGTH
SMALLEST_RECORD_BYTES = 7
"""Length, attributes, timestamp delta, offset delta, key length, value length, header count: one byte
each.
"""

# The same for an entry of magic 0 or 1.
LEGACY_CRC_AT = 12  # the checksum covers everything from MAGIC_AT on
LEGACY_ATTRIBUTES_AT = 17
LEGACY_TIMESTAMP_AT = 18  # magic 1 only; in magic 0 the key's length is here

# Bits of a batch's attributes.
CODEC_MASK = 0x07
LOG_APPEND_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
DELETE_HORIZON_BIT = 0x40

UNCOMPRESSED, GZIP, SNAPPY, LZ4, ZSTD = range(5)
COMPRESSION_TYPES = {"gzip": GZIP, "snappy": SNAPPY, "lz4": LZ4, "zstd": ZSTD}
"""The codecs of compressed batches, by the names that settings have."""

# The largest factor by which a codec's data grows when it is decompressed.
GZIP_GROWTH = 1032
SNAPPY_GROWTH = 64  # its densest element turns 3 bytes into 64
LZ4_GROWTH = 255  # one byte of a match length adds at most 255
ZSTD_BLOCK_BYTES = 128 << 10  # no factor: the content of one block is at most this large
