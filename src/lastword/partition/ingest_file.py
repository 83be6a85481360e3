"""Make a staged file a segment as it is, so that a bulk load is written once and not copied.

This is worth it for files that are large compared with `segment.bytes`, because each file becomes one
segment, however small. The result must equal that of appending the batches: within `segment.bytes` and
`segment.ms`, only batches that may be appended, and no batch of a producer, because producers are not checked
here.

The order: offsets and leader epoch are written into the batches, where no checksum covers them, and the file
is synced. The active segment is closed and synced, as in every roll. The file gets its indexes and its name
(`SegmentAppender.from_file`), and the name is durable before anything is appended behind it. A crash before
the rename leaves a staged file, which gets its offsets again. A crash after it leaves a segment, whose
batches the next try of the commit finds in the log like batches that were copied.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from lastword.files import Files
from lastword.records.batch import read_header
from lastword.segment.indexes import TIME_ENTRY_BYTES
from lastword.wire import HEADER_BYTES, OVERHEAD_BYTES

if TYPE_CHECKING:
    from lastword.config import TopicConfig
    from lastword.partition.rolling import RollRule

MIN_SIZE_RATIO, MIN_SIZE_RATIO_IF_KEPT = 1 / 32, 1 / 8
"""The smallest file that becomes a segment, relative to `segment.bytes`. The second value applies to a topic
that is not compacted: no cleaner joins its small segments."""

_OFFSET_FIELDS = struct.Struct(">qii")  # base offset, length of what follows, leader epoch


def is_worth_a_segment(config: TopicConfig, size_bytes: int) -> bool:
    """Return whether a file of this size becomes a segment. Never if the log sets the batches' timestamps."""
    stamped = config.message_timestamp_type == "LogAppendTime"
    ratio = MIN_SIZE_RATIO if config.compacts else MIN_SIZE_RATIO_IF_KEPT
    return not stamped and ratio * config.segment_bytes <= size_bytes <= config.segment_bytes


class AssignedBatch(NamedTuple):
    """A batch of the file with its assigned offsets. `position` and `size` are in bytes of the file."""

    position: int
    size: int
    base_offset: int
    last_offset: int
    max_timestamp: int


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


def fits_one_segment(rule: RollRule, config: TopicConfig, batches: Sequence[AssignedBatch]) -> bool:
    """Return whether appending the batches, if each is allowed, would make exactly one segment."""
    limit = min(config.max_message_bytes, config.segment_bytes)
    indexed = TIME_ENTRY_BYTES * (len(batches) + 1) < config.segment_index_bytes
    return indexed and max(batch.size for batch in batches) <= limit and rule.is_one_segment(config, batches)
