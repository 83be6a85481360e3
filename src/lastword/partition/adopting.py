"""A staged file that becomes a segment as it is: a bulk load is written once, and not once more to copy it.

Worth it where the file is large beside `segment.bytes`: each file adopted is a segment, however far it is
from full. It must be one that appending its batches would have made: within `segment.bytes` and `segment.ms`,
of batches that may be appended, and none from a producer, whom nobody would have asked about.

The order. Offsets and epoch are written into the batches, where no checksum covers them, and the file is
synced; then the active segment is closed and synced, as at any roll; then the file gets its indexes and its
name (`SegmentAppender.adopt`), and the name is durable before anything is appended behind it. A crash before
the rename leaves a staged file that gets its offsets again; one after it leaves a segment whose batches the
commit finds in the log, as it finds those that it copied.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from lastword.files import Files
from lastword.records.batch import read_header
from lastword.segment import time_index
from lastword.wire import HEADER_BYTES, OVERHEAD_BYTES

if TYPE_CHECKING:
    from lastword.config import TopicConfig
    from lastword.partition.rolling import RollRule

MIN_SIZE_RATIO, MIN_SIZE_RATIO_IF_KEPT = 1 / 32, 1 / 8
"""A file is adopted if it has at least this share of `segment.bytes`; the second applies to a topic that is
not compacted, where no cleaner joins small segments."""

_PLACE = struct.Struct(">qii")  # base offset, length of what follows, leader epoch


def suits(config: TopicConfig, size_bytes: int) -> bool:
    """Is a file of this size worth a segment of its own? One whose batches must be stamped is not."""
    stamped = config.message_timestamp_type == "LogAppendTime"
    ratio = MIN_SIZE_RATIO if config.compacts else MIN_SIZE_RATIO_IF_KEPT
    return not stamped and ratio * config.segment_bytes <= size_bytes <= config.segment_bytes


class PlacedBatch(NamedTuple):
    """A batch of the file, and the offsets that it gets. `position`, `size`: in the file, in bytes."""

    position: int
    size: int
    base_offset: int
    last_offset: int
    max_timestamp: int


def placed(files: Files, path: str, next_offset: int) -> list[PlacedBatch] | None:
    """The file's batches in their order, from `next_offset` on; None if one of them has a producer. Reads
    their headers and changes nothing; CorruptBatchError where no whole batch begins.
    """
    found: list[PlacedBatch] = []
    position = 0
    with files.open_read(path) as handle:
        size = handle.size()
        while position < size:
            data = handle.pread(HEADER_BYTES, position)
            header = read_header(data, 0, size - position, path, file_position=position)
            if header.producer_id >= 0 or header.control:
                return None
            last = next_offset + header.last_offset - header.base_offset
            found.append(PlacedBatch(position, header.size, next_offset, last, header.max_timestamp))
            position, next_offset = position + header.size, last + 1
    return found


def write_places(files: Files, path: str, batches: Sequence[PlacedBatch], epoch: int) -> None:
    """Write the offsets, and a leader epoch, into the file, and sync it: whole before the log has it."""
    with files.open_append(path) as handle:
        for one in batches:
            place = _PLACE.pack(one.base_offset, one.size - OVERHEAD_BYTES, epoch)
            handle.pwrite(place, one.position)
        handle.fsync()


def takes_whole(rule: RollRule, config: TopicConfig, batches: Sequence[PlacedBatch]) -> bool:
    """Would appending the batches, each allowed, put them all into one new segment?"""
    limit = min(config.max_message_bytes, config.segment_bytes)
    indexed = time_index.ENTRY_BYTES * (len(batches) + 1) < config.segment_index_bytes
    return indexed and max(one.size for one in batches) <= limit and rule.is_one_segment(batches)
