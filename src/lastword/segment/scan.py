"""Walk the batches of a file without decoding their records. Plain Python: no kernel is loaded.

Batches of any magic. `headers` reads headers, and nothing else of large batches. `SoundWalk` also verifies
every checksum and the order of the offsets; recovery relies on it. Neither changes anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from lastword.errors import CorruptBatchError, DataError
from lastword.files import Handle
from lastword.records.batch import BatchHeader
from lastword.records.formats import UNKNOWN_COUNT, crc_ok, is_as_written, read_header
from lastword.segment.names import MAX_RELATIVE_OFFSET
from lastword.wire import (
    ATTRIBUTES_AT,
    HEADER_BYTES,
    LEADER_EPOCH_AT,
    LENGTH_AT,
    MAGIC_AT,
    OVERHEAD_BYTES,
    SMALLEST_LENGTH,
    STEP_BYTES,
)

_BLOCK_BYTES = 1 << 16
_WALK_BYTES = 1 << 20
_LARGE_BATCH_BYTES = 8192  # from here on a read per header costs less than reading everything

# Something that may be the first 17 bytes of an entry: an offset below 2^48, a length below 2^31, magic 0 to
# 2.
_CANDIDATE = re.compile(rb"(?s)(?=\x00\x00.{6}[\x00-\x7f].{7}[\x00-\x02])")


class Damage(NamedTuple):
    """Where the valid part of a file ends, and why.

    Attributes:
        position: The end of the valid part.
        offset: The first offset that is missing.
        code: A code of `Problem`.
        text: The reason.
        as_written: A whole batch is there whose checksum is right: no torn write leaves it.
    """

    position: int
    offset: int
    code: str
    text: str
    as_written: bool = False


NO_OFFSET = 1 << 63
"""Above every offset."""


class Gap(NamedTuple):
    """A batch at `position` begins with `offset`; the batch before it ends before `next_offset`."""

    position: int
    offset: int
    next_offset: int


def headers(
    handle: Handle, file: str, start: int, end: int, *, stop_at_partial_tail: bool = False
) -> Iterator[BatchHeader]:
    """Yield the headers of the batches in [start, end) bytes; `start` is a batch's first byte.

    Checksums are not verified. CorruptBatchError for bytes that are no batch. A batch that is cut off by
    `end` ends the walk if `stop_at_partial_tail`.
    """
    position = start
    block, block_start, size = b"", start, 0
    while position < end:
        at = position - block_start
        if len(block) - at < HEADER_BYTES and block_start + len(block) < end:
            want = HEADER_BYTES if size > _LARGE_BATCH_BYTES else _BLOCK_BYTES
            block, block_start, at = handle.pread(min(want, end - position), position), position, 0
        if stop_at_partial_tail and _is_partial(block, at, end - position):
            return
        if len(block) - at < min(HEADER_BYTES, end - position):
            raise CorruptBatchError(
                "the file became shorter while it was read", code="truncated", file=file, position=position
            )
        header = read_header(block, at, at + end - position, file, file_position=position)
        yield header
        size = header.size
        position += size


def first_header(handle: Handle, file: str, end: int) -> BatchHeader:
    """Return the header of the first batch of a file with batches up to `end`. Reads no byte behind it."""
    data = handle.pread(min(HEADER_BYTES, end), 0)
    if len(data) < min(HEADER_BYTES, end):
        raise CorruptBatchError(
            "the file became shorter while it was read", code="truncated", file=file, position=0
        )
    return read_header(data, 0, end, file)


def whole_batch(handle: Handle, file: str, position: int, end: int) -> tuple[BatchHeader, bytes] | None:
    """Return the batch at `position` with its bytes; None if `end` cuts it off.

    No checksum is verified. CorruptBatchError for bytes that are no batch.
    """
    block = handle.pread(min(_BLOCK_BYTES, end - position), position)
    if _is_partial(block, 0, end - position):
        return None
    if len(block) < min(HEADER_BYTES, end - position):
        return None
    header = read_header(block, 0, end - position, file, file_position=position)
    rest = header.size - len(block)
    if rest > 0:
        block += handle.pread(rest, position + len(block))
    return header, block[: header.size]


def _is_partial(block: bytes, at: int, left: int) -> bool:
    """Return whether the remaining bytes may begin an entry whose rest was not written (yet)."""
    if left < STEP_BYTES:
        return True
    length = int.from_bytes(block[at + 8 : at + 12], "big", signed=True)
    return length >= SMALLEST_LENGTH and length > left - OVERHEAD_BYTES


class SoundWalk:
    """Iterate over the valid batches of [start, end), and keep where and why the walk stopped.

    A valid batch is whole, has the right checksum, and its offsets follow those before it and are in the
    segment's range. The first other batch ends the walk. Compressed entries of magic 0 and 1 are not
    decompressed: their checksum covers the contents.

    Attributes:
        position: End of the valid part.
        next_offset: The offset behind it.
        damage: Why the walk stopped; None at the end of the file.
        gap: The first gap between batches that reach above `contiguous_from`.
    """

    def __init__(
        self,
        handle: Handle,
        file: str,
        start: int,
        end: int,
        base_offset: int,
        next_offset: int,
        *,
        contiguous_from: int | None = None,
    ) -> None:
        self._handle = handle
        self._file = file
        self._end = end
        self._base_offset = base_offset
        self.position = start
        self.next_offset = next_offset
        self.damage: Damage | None = None
        self.gap: Gap | None = None
        self._contiguous_from = NO_OFFSET if contiguous_from is None else contiguous_from

    def __iter__(self) -> Iterator[BatchHeader]:
        block, block_start = b"", self.position
        while self.position < self._end:
            at = self.position - block_start
            size = self._whole_size(block, at)
            while size < 0:  # the header, or then the rest of the batch, is behind this block
                want = min(max(_WALK_BYTES, -size), self._end - self.position)
                block, block_start, at = self._handle.pread(want, self.position), self.position, 0
                if len(block) < want:
                    return self._stop("short-file", "the file ends before its size")
                size = self._whole_size(block, at)
            if size <= 0:
                left = self._end - self.position
                return self._stop("incomplete-batch", f"{left} bytes that are no whole batch")
            header = self._check(block, at, size)
            if header is None:
                return None
            if header.last_offset >= self._contiguous_from:
                self._follow(header)
            self.position += header.size
            self.next_offset = header.next_offset
            yield header
        return None

    def _follow(self, header: BatchHeader) -> None:
        """Note a gap in front of a batch. Compressed entries of magic 0 or 1 have no first offset."""
        expected = max(self.next_offset, self._contiguous_from)
        begins = self.next_offset if header.count == UNKNOWN_COUNT else header.base_offset
        if self.gap is None and not begins == self.next_offset == expected:
            self.gap = Gap(self.position, header.base_offset, self.next_offset)

    def _whole_size(self, block: bytes, at: int) -> int:
        """Return the size of the entry at `at`.

        Minus the bytes that are needed if the block has too few; 0 if no entry can be there.
        """
        left = self._end - self.position
        if left < STEP_BYTES:
            return 0
        if len(block) - at < STEP_BYTES:
            return -STEP_BYTES
        length = int.from_bytes(block[at + 8 : at + 12], "big", signed=True)
        if length < SMALLEST_LENGTH or length > left - OVERHEAD_BYTES:
            return 0
        size = length + OVERHEAD_BYTES
        return size if len(block) - at >= size else -size

    def _check(self, block: bytes, at: int, size: int) -> BatchHeader | None:
        try:
            header = read_header(block, at, at + size, self._file, file_position=self.position)
        except DataError as error:
            self._stop(error.code, error.message, as_written=is_as_written(block, at, size))
            return None
        if not crc_ok(block, header, at):
            self._stop("bad-crc", f"offset {header.base_offset}: the checksum is wrong")
        elif header.base_offset < self.next_offset:
            self._stop(
                "offsets-fall", f"offset {header.base_offset} follows {self.next_offset - 1}", as_written=True
            )
        else:
            check_range(header, self._base_offset, self._file)
            return header
        return None

    def _stop(self, code: str, text: str, *, as_written: bool = False) -> None:
        self.damage = Damage(self.position, self.next_offset, code, text, as_written)


def check_range(header: BatchHeader, base_offset: int, file: str) -> None:
    """Raise CorruptBatchError if the indexes of the segment with `base_offset` cannot hold the batch."""
    above = header.last_offset - base_offset
    if 0 <= above <= MAX_RELATIVE_OFFSET:
        return
    where = "below" if above < 0 else "more than 2^31 above"
    raise CorruptBatchError(
        f"offset {header.last_offset} is {where} the segment's base {base_offset}",
        code="offset-overflow",
        remedy="open the directory with Kafka once: it splits a segment that is too wide",
        file=file,
        position=header.position,
        offset=header.base_offset,
    )


def is_zeroed(handle: Handle, start: int, end: int) -> bool:
    """Return whether the bytes in [start, end) are zeros: room for appends, as writers and Kafka make it."""
    for position in range(start, end, _WALK_BYTES):
        if handle.pread(min(_WALK_BYTES, end - position), position).strip(b"\0"):
            return False
    return True


def sound_batch_after(handle: Handle, file: str, damage: Damage, end: int, base_offset: int) -> int | None:
    """Return the position of a valid entry behind `damage`; None if only a torn tail follows.

    Every byte is tried as the first of an entry, because the damage may have changed a length. An entry is
    valid if its checksum is right and its offsets are above the damage.
    """
    start = damage.position + 1
    overlap = b""
    position = start
    while position < end:
        part = handle.pread(min(_WALK_BYTES, end - position), position)
        if not part:
            return None
        data = overlap + part
        data_start = position - len(overlap)
        written = len(data.rstrip(b"\0"))  # zeros alone begin no entry
        if written:
            for match in _CANDIDATE.finditer(data):
                if match.start() >= written:
                    break
                candidate = data_start + match.start()
                if _is_sound(handle, file, candidate, end, damage.offset, base_offset):
                    return candidate
        overlap = data[-(STEP_BYTES - 1) :]
        position += len(part)
    return None


def _is_sound(handle: Handle, file: str, position: int, end: int, min_offset: int, base_offset: int) -> bool:
    prefix = handle.pread(min(HEADER_BYTES, end - position), position)
    if len(prefix) < STEP_BYTES:
        return False
    offset = int.from_bytes(prefix[:LENGTH_AT], "big")
    length = int.from_bytes(prefix[LENGTH_AT:LEADER_EPOCH_AT], "big", signed=True)
    if length < SMALLEST_LENGTH or length > end - position - OVERHEAD_BYTES:
        return False
    if offset < min_offset or offset - base_offset > MAX_RELATIVE_OFFSET:
        return False
    if prefix[MAGIC_AT] == 2 and (length < HEADER_BYTES - OVERHEAD_BYTES or prefix[ATTRIBUTES_AT] != 0):
        return False
    entry = handle.pread(length + OVERHEAD_BYTES, position)
    try:
        return crc_ok(entry, read_header(entry, 0, len(entry), file))
    except DataError:
        return False
