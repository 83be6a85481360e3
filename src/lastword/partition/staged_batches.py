"""Staged batches of a commit on their way into a log: read in blocks, or taken as a whole segment.

A commit is appended in several steps, and a stop between two steps leaves a part of its batches in the log.
`<root>/lastword.begun` (framed JSON) holds the log end of each partition before the first append. A second
try compares the batches above that offset with the staged batches and appends what is missing. So nothing
above that offset is cleaned, trimmed or moved meanwhile: a rewritten batch would not be recognized, and its
records would be appended twice. The file is for all partitions, so that a commit into thousands of them
waits for the drive once.

**In blocks.** Whole batches are read into one buffer, to check and append them without copying each batch.
The kernels are used if they are loaded. Without them it is nearly as fast: the batches of a staged file are
large and therefore few.

**As a segment**, so that a bulk load is written once and not copied. This is worth it for files that are
large compared with `segment.bytes`, because each file becomes one segment, however small. The result must
equal that of appending the batches: within `segment.bytes` and `segment.ms`, only batches that may be
appended, and no batch of a producer, because producers are not checked here. The order: offsets and leader
epoch are written into the batches, where no checksum covers them, and the file is synced. The active segment
is closed and synced, as in every roll. The file gets its indexes and its name (`SegmentAppender.from_file`),
and the name is durable before anything is appended behind it. A crash before the rename leaves a staged
file, which gets its offsets again. A crash after it leaves a segment, whose batches the next try of the
commit finds in the log like batches that were copied.
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple, overload

from lastword.config import TopicConfig
from lastword.errors import CorruptFileError, FileVanishedError
from lastword.files import Files, Handle
from lastword.files.framed import Framed
from lastword.partition.checkpoint_file import read_settled
from lastword.records.batch import read_header
from lastword.records.formats import check_crc
from lastword.segment import names
from lastword.segment.append import AssignedBatch
from lastword.wire import HEADER_BYTES, OVERHEAD_BYTES

STAGING = "staging-"
_REMEDY = (
    "restore the file from a copy; without one the commit is refused when the directory is next opened to "
    "write, and its batches that are in the log stay"
)
LOG_ENDS_FORM = Framed("commit-begun", 1, "bad-begun", _REMEDY)

BLOCK_BYTES = 8 << 20
JOINED_BYTES = 1 << 20
"""Smaller blocks are joined up to this size: each block is a write to the log and one to each index."""
SLACK_BYTES = 64
"""Bytes behind the last batch that kernels may read."""
_LENGTH_END = 12
"""End of a batch's first two fields: base offset, and the length of the rest."""

MIN_SIZE_RATIO, MIN_SIZE_RATIO_IF_KEPT = 1 / 32, 1 / 8
"""The smallest file that becomes a segment, relative to `segment.bytes`. The second value applies to a topic
that is not compacted: no cleaner joins its small segments."""

_OFFSET_FIELDS = struct.Struct(">qii")  # base offset, length of what follows, leader epoch


# ---------------------------------------------------------------- the note of an incomplete commit


def staging_dir(directory: str, commit_id: str) -> str:
    """Return the directory of a commit's staged files in one partition."""
    return f"{directory}/{names.PRIVATE}/{STAGING}{commit_id}"


class LogEnds(NamedTuple):
    """The log ends at which a commit began. `offsets`: by partition, as `users-0`."""

    commit_id: str
    offsets: Mapping[str, int]

    def save(self, files: Files, root: str) -> None:
        """Write the note of a log directory, durably."""
        LOG_ENDS_FORM.save(
            files, os.path.join(root, names.BEGUN), {"job": self.commit_id, "log_ends": dict(self.offsets)}
        )


def load_log_ends(files: Files, root: str) -> LogEnds | None:
    """Return the note of a log directory; None without one.

    CorruptFileError if the note is damaged: batches that are in the logs could not be recognized.
    """
    try:
        return read_settled(files, f"{root}/{names.BEGUN}", _read_log_ends)
    except FileVanishedError:
        return None


def _read_log_ends(files: Files, path: str) -> LogEnds:
    fields = LOG_ENDS_FORM.decode(files.read_bytes(path), path)
    with LOG_ENDS_FORM.reading(path):
        offsets = fields["log_ends"]
        if not all(type(offset) is int and offset >= 0 for offset in offsets.values()):
            raise ValueError("a log end is no offset")
        return LogEnds(str(fields["job"]), offsets)


def discard(files: Files, directory: str, commit_id: str) -> None:
    """Remove the files that were staged for a commit in one partition."""
    folder = staging_dir(directory, commit_id)
    if files.exists(folder):
        files.remove_tree(folder)


def incomplete_commit_offset(files: Files, directory: str) -> int | None:
    """Return the offset at which an incomplete commit begins; None if all commits are complete.

    An unreadable note counts as 0.
    """
    root, partition = names.root_and_name(directory)
    try:
        log_ends = load_log_ends(files, root)
    except CorruptFileError:
        return 0
    return None if log_ends is None else log_ends.offsets.get(partition)


def below(offset: int, incomplete: int | None) -> int:
    """Return `offset`, lowered to where an incomplete commit begins."""
    return offset if incomplete is None else min(offset, incomplete)


# ---------------------------------------------------------------- in blocks


class Block(Sequence[memoryview]):
    """Batches of one buffer, from its beginning. Valid until `blocks_of` yields the next block."""

    def __init__(self, buffer: bytearray, sizes: list[int]) -> None:
        self.buffer = buffer
        self.sizes = sizes
        self._view = memoryview(buffer)
        self._ends = list(accumulate(sizes))

    @property
    def size_bytes(self) -> int:
        """Bytes of all batches."""
        return self._ends[-1] if self._ends else 0

    def __len__(self) -> int:
        return len(self.sizes)

    @overload
    def __getitem__(self, index: int) -> memoryview: ...
    @overload
    def __getitem__(self, index: slice) -> list[memoryview]: ...
    def __getitem__(self, index: int | slice) -> memoryview | list[memoryview]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        end = self._ends[index]
        return self._view[end - self.sizes[index] : end]

    def __iter__(self) -> Iterator[memoryview]:
        view = self._view
        return iter([view[end - size : end] for size, end in zip(self.sizes, self._ends, strict=True)])

    def check(self, file: str) -> None:
        """Verify the checksum of each batch. CorruptBatchError for the first wrong one.

        Changes offsets and epochs in the buffer, which no checksum covers.
        """
        if "lastword.kernels" in sys.modules and self._is_valid():
            return
        for batch in self:
            check_crc(batch, read_header(batch, 0, len(batch), file), file)

    def _is_valid(self) -> bool:
        """Verify with a kernel, which releases the interpreter's lock and assigns offsets.

        False may also mean a kind of batch that the kernel does not support.
        """
        import numpy as np

        from lastword.kernels import table as fields
        from lastword.kernels.batches import assign_offsets

        table = np.empty((len(self), fields.FIELDS), np.int64)
        sizes = np.array(self.sizes, np.int64)
        return bool(assign_offsets(np.frombuffer(self.buffer, np.uint8), sizes, 0, 0, table) == sizes.size)


def blocks_of(files: Files, path: str) -> Iterator[Block]:
    """Yield all batches of a file, BLOCK_BYTES at a time, or a single larger batch. Verifies no checksum.

    CorruptFileError if the remaining bytes do not begin with a whole batch.
    """
    with files.open_read(path) as handle:
        yield from blocks_between(handle, 0, handle.size())


def blocks_between(handle: Handle, position: int, size: int) -> Iterator[Block]:
    """Yield the batches of an open file from `position` to `size`, as `blocks_of`."""
    path = handle.path
    buffer = bytearray(max(min(BLOCK_BYTES, size - position), _LENGTH_END) + SLACK_BYTES)
    while position < size:
        wanted = min(len(buffer) - SLACK_BYTES, size - position)
        have = handle.pread_into(memoryview(buffer)[:wanted], position)
        sizes, end = _whole_batches(buffer, have)
        if not sizes:
            wanted = _size_at(buffer, 0)
            if have < _LENGTH_END or wanted > size - position or wanted <= have:
                raise CorruptFileError(
                    f"{path} position {position}: no whole batch", file=path, position=position
                )
            buffer = bytearray(wanted + SLACK_BYTES)
            continue
        yield Block(buffer, sizes)
        position += end


def joined(blocks: Iterable[Block]) -> Iterator[Block]:
    """Yield the batches of blocks in their order, with many small blocks joined into one."""
    buffer, sizes = bytearray(), list[int]()
    for block in blocks:
        size_bytes = block.size_bytes
        if sizes and len(buffer) + size_bytes > JOINED_BYTES:
            yield Block(buffer + bytes(SLACK_BYTES), sizes)
            buffer, sizes = bytearray(), []
        if size_bytes > JOINED_BYTES:
            yield block
            continue
        buffer += memoryview(block.buffer)[:size_bytes]
        sizes += block.sizes
    if sizes:
        yield Block(buffer + bytes(SLACK_BYTES), sizes)


def _whole_batches(buffer: bytearray, have: int) -> tuple[list[int], int]:
    """Return the sizes of the whole batches in the first `have` bytes, and the end of the last."""
    sizes, end = [], 0
    while have - end >= _LENGTH_END:
        size = _size_at(buffer, end)
        if size > have - end:
            break
        sizes.append(size)
        end += size
    return sizes, end


def _size_at(buffer: bytearray, position: int) -> int:
    return int.from_bytes(buffer[position + 8 : position + _LENGTH_END], "big") + _LENGTH_END


# ---------------------------------------------------------------- as a segment


def is_worth_a_segment(config: TopicConfig, size_bytes: int) -> bool:
    """Return whether a file of this size becomes a segment. Never if the log sets the batches' timestamps."""
    stamped = config.message_timestamp_type == "LogAppendTime"
    ratio = MIN_SIZE_RATIO if config.compacts else MIN_SIZE_RATIO_IF_KEPT
    return not stamped and ratio * config.segment_bytes <= size_bytes <= config.segment_bytes


def assign_offsets(files: Files, path: str, next_offset: int) -> list[AssignedBatch] | None:
    """Assign offsets from `next_offset` on to the file's batches. None if a batch has a producer.

    Reads the headers and changes nothing. CorruptBatchError where no whole batch begins.
    """
    batches: list[AssignedBatch] = []
    position = 0
    with files.open_read(path) as handle:
        size = handle.size()
        while position < size:
            data = handle.pread(HEADER_BYTES, position)
            header = read_header(data, 0, size - position, path, file_position=position)
            if header.producer_id >= 0 or header.control:
                return None
            last = next_offset + header.last_offset - header.base_offset
            batches.append(AssignedBatch(position, header.size, next_offset, last, header.max_timestamp))
            position, next_offset = position + header.size, last + 1
    return batches


def write_offsets(files: Files, path: str, batches: Sequence[AssignedBatch], epoch: int) -> None:
    """Write the offsets and a leader epoch into the file, and sync it, before the log has it."""
    with files.open_append(path) as handle:
        for batch in batches:
            fields = _OFFSET_FIELDS.pack(batch.base_offset, batch.size - OVERHEAD_BYTES, epoch)
            handle.pwrite(fields, batch.position)
        handle.fsync()
