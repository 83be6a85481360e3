"""Check a batch that a producer sent, before it is appended: its checksum, and each of its records.

Every reader can read a batch that passes: its lengths, varints, headers and count are right, and its offsets
rise by one from 0 to the last. Until the kernels are loaded, a batch of some records is read in plain Python:
their first use takes 0.5 s and 120 MiB. Other batches are walked by a kernel, once, where they were received.
Compressed records are decompressed once, into a buffer of the thread.
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

from lastword.errors import CorruptBatchError
from lastword.records.batch import BatchHeader, decompress_records, records_of
from lastword.records.formats import check_crc
from lastword.units import NO_TIMESTAMP
from lastword.wire import HEADER_BYTES, INT32_MAX

NO_KEY = -1
"""Instead of a time: the record has no key."""
FEW_RECORDS = 2
"""A batch of at most this many records costs less in plain Python."""
PLAIN_RECORDS, LOADING_RECORDS = 200, 20_000
"""Until the kernels are loaded, a batch of at most PLAIN_RECORDS is read in plain Python, and the process
loads them after LOADING_RECORDS."""
PLAIN_BYTES = 1 << 20
"""Records that may decompress to more are not read in plain Python."""
TOO_LARGE = "a record is larger than max.decompressed.message.bytes"
MOST_REFUSED = 1000
"""Most records of a batch that a refusal names."""


class Limits(NamedTuple):
    """The limits of a topic for the records of a batch.

    Attributes:
        oldest: The lowest time of a record.
        newest: The highest time of a record.
        needs_key: A record must have a key.
        body: Most bytes of the body of a record of a compressed batch.
        decompressed: Most bytes of all records of a compressed batch.
    """

    oldest: int
    newest: int
    needs_key: bool
    body: int
    decompressed: int


class Checked(NamedTuple):
    """The records of a batch.

    Attributes:
        payload: Their uncompressed bytes. Valid until the thread checks another batch.
        largest: Their largest time; -1 if none has a time.
        refused: Index and time of the records whose time is out of range, and index and NO_KEY of those
            without a key; at most MOST_REFUSED.
        refusals: The number of such records.
    """

    payload: Any
    largest: int
    refused: list[tuple[int, int]]
    refusals: int


_plain_records = 0
_kernels_used = False
_kept = threading.local()


def needs_loading(header: BatchHeader, limits: Limits) -> bool:
    """Return whether the check of a batch loads the kernels."""
    return not (_kernels_used or _is_plain(header, limits))


def _is_plain(header: BatchHeader, limits: Limits) -> bool:
    """Return whether a batch is read in plain Python, which copies decompressed records twice more."""
    if header.codec and not limits.decompressed <= PLAIN_BYTES <= limits.body:
        return False
    if _kernels_used:
        return header.count <= FEW_RECORDS
    return header.count <= PLAIN_RECORDS and _plain_records < LOADING_RECORDS


def check_produced(records: Any, header: BatchHeader, limits: Limits, file: str) -> Checked:
    """Check the batch `records[: header.size]`, whose header was read and counts from offset 0.

    Args:
        records: The bytes that were received; there may be more behind the batch.
        header: The header.
        limits: What the topic allows.
        file: A name in the directory of the partition, for errors.

    Raises:
        CorruptBatchError: The checksum is wrong (code `bad-crc`), or a reader could not read the records.
        DecompressionLimitError: The records are larger than their bound.
    """
    global _plain_records, _kernels_used
    if not _is_plain(header, limits):
        checked = _check_by_kernel(records, header, limits, file)
        _kernels_used = True
        return checked
    _plain_records += header.count
    check_crc(records, header, file)
    payload: Any = memoryview(records)[HEADER_BYTES : header.size]
    if header.codec:
        payload = decompress_records(payload, header, file, limits.decompressed)
    largest, refused, refusals = NO_TIMESTAMP, [], 0
    for index, record in enumerate(records_of(payload, header, file)):
        time = record.timestamp
        largest = max(largest, time)
        no_key = limits.needs_key and record.key is None
        if no_key or not (limits.oldest <= time <= limits.newest or time == NO_TIMESTAMP):
            refusals += 1
            refused.append((index, NO_KEY if no_key else time))
    return Checked(payload, largest, refused[:MOST_REFUSED], refusals)


def drop_large() -> None:
    """Drop the buffer of this thread, with the payload of its last batch, if it is large."""
    arrays: _Arrays | None = getattr(_kept, "arrays", None)
    if arrays is not None:
        arrays.records.drop_large()


class _Arrays:
    """The arrays of one thread, and the kernels: to import them for each batch costs as much as they do."""

    def __init__(self) -> None:
        import numpy as np

        from lastword.kernels.batches import walk_batches
        from lastword.kernels.columns import check_records
        from lastword.kernels.table import FIELDS, RECORDS_END, RECORDS_POSITION
        from lastword.records.chunk import RecordBuffer

        self.walk_batches, self.check_records = walk_batches, check_records
        self.position_and_end = slice(RECORDS_POSITION, RECORDS_END + 1)
        self.copied = np.empty(0, np.uint8)
        self.table = np.empty((1, FIELDS), np.int64)
        self.refused = np.empty((MOST_REFUSED, 2), np.int64)
        self.records = RecordBuffer("")

    def with_slack(self, records: Any, size: int) -> tuple[Any, int]:
        """Return an array that has slack behind the batch, and the position of the batch.

        A large request was received into a buffer with slack; of others the batch is copied.
        """
        import numpy as np

        from lastword.kernels import SLACK

        if size > COPIED_BYTES:
            whole = np.frombuffer(records.obj, np.uint8)
            start = _address(np.frombuffer(records, np.uint8)) - _address(whole)
            if start + size + SLACK <= whole.size:
                return whole, start
        if self.copied.size < size + SLACK:
            self.copied = np.empty(size + SLACK, np.uint8)
        raw = self.copied
        raw.data[:size] = records[:size]
        if size > COPIED_BYTES:
            self.copied = np.empty(0, np.uint8)
        return raw, 0


COPIED_BYTES = 128 << 10
"""A smaller batch is copied; a larger one is checked where it is, if that has slack."""


def _address(array: Any) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _check_by_kernel(records: Any, header: BatchHeader, limits: Limits, file: str) -> Checked:
    arrays: _Arrays | None = getattr(_kept, "arrays", None)
    if arrays is None:
        arrays = _kept.arrays = _Arrays()
    raw, start = arrays.with_slack(records, header.size)
    table = arrays.table
    _, _, _, status = arrays.walk_batches(raw, start, start + header.size, -start, 0, True, table, 0)
    if status:  # not OK
        check_crc(records, header, file)
        raise _malformed(_text(status), header, file)
    uncompressed = raw
    if header.codec:
        arrays.records.use_for(file, limits.decompressed)
        uncompressed = arrays.records.decompress(raw, table, 0)
    body = limits.body if header.codec else INT32_MAX
    status, largest, refusals = arrays.check_records(
        uncompressed, table, 0, limits.oldest, limits.newest, limits.needs_key, body, arrays.refused
    )
    if status:
        from lastword.kernels import BAD_LENGTH

        raise _malformed(TOO_LARGE if status == BAD_LENGTH else _text(status), header, file)
    first, end = table[0, arrays.position_and_end].tolist()
    refused = [(index, time) for index, time in arrays.refused[:refusals].tolist()] if refusals else []
    return Checked(uncompressed.data[first:end], largest, refused, refusals)


def _text(status: int) -> str:
    from lastword.kernels import STATUS_TEXT

    return STATUS_TEXT[status]


def _malformed(text: str, header: BatchHeader, file: str) -> CorruptBatchError:
    offset = header.base_offset
    return CorruptBatchError(f"offset {offset}: {text}", code="bad-records", file=file, offset=offset)
