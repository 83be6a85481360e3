"""`<topic>@newest`: the newest record of each key, for a client that reads it like a topic.

A partition is resolved up to its last stable offset when it is first read. The map of its keys and the dead
bitmap stay in memory, and batches that follow are added when a fetch needs them. So a reader that keeps up
costs one more pass over what is appended.

An answer has the batches of the log without their dead records, made by the kernels of the cleaner. Dead are:
records that a newer one with the same key supersedes, records of aborted transactions, records without a
key, and markers. A tombstone that is its key's newest record is sent, or a reader that keeps up would not
learn that the key is gone. Offsets are those of the log. The end of an answer is covered by its last batch,
which is empty if the last records are dead: a reader never waits in a gap.

Bits that were set are never wrong later: a superseded record stays superseded. A record that was live when it
was sent may be superseded by the next answer, as in any compacted topic.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lastword.errors import CapacityError
from lastword.partition.cut import empty_batch
from lastword.partition.reads import read_again
from lastword.partition.transactions import Outcomes
from lastword.records.formats import read_header
from lastword.wire import CONTROL_BIT, INT32_MAX

if TYPE_CHECKING:
    from lastword.partition.view import PartitionView
    from lastword.records.chunk import Chunk
    from lastword.resolve import DeadBitmaps, RunningResolution
    from lastword.server.topics import ServedLog
    from lastword.state.newest import SegmentSlice

CHUNK_BYTES = 1 << 20
LEAST_BYTES = 64 << 10
"""Fewest bytes that are read at a time."""
READ_BYTES = 16 << 20
"""Most bytes of the log that one answer reads."""
MOST_SLICES = 10_000
"""A partition is resolved again after this number of additions, which cost memory each."""


@dataclass(eq=False, slots=True)
class _Resolved:
    """The resolution of one partition; `lock` belongs to the thread that uses it."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    running: RunningResolution | None = None
    slices: int = 0
    memory_bytes: int = 0
    error: CapacityError | None = None
    """The keys do not fit. Kept, because clients ask again and again, and each attempt reads the log."""
    refused: tuple[int, set[tuple[int, int]]] = (0, set())
    """Log start and segments whose keys did not fit. They may fit when one of them is gone."""

    def check(self, view: PartitionView) -> None:
        """Raise the error again, unless records were removed since then."""
        if self.error is not None:
            log_start, segments = self.refused
            if view.log_start == log_start and segments <= _segments_of(view):
                raise self.error
            self.error = None


class NewestReads:
    """The newest records of partitions. Safe from any thread; runs kernels, so it belongs in the pool.

    Args:
        memory_bytes: Memory for the maps and bitmaps of all partitions. The least recently read is dropped.
    """

    def __init__(self, memory_bytes: int) -> None:
        self._memory_bytes = memory_bytes
        self._lock = threading.Lock()
        self._resolved: OrderedDict[ServedLog, _Resolved] = OrderedDict()

    def read(self, log: ServedLog, offset: int, most_bytes: int, *, first: bool) -> bytes:
        """Return whole batches with the live records from `offset` to the last stable offset.

        Args:
            log: The log.
            offset: The first offset, not below the log start.
            most_bytes: The most bytes.
            first: The first batch may be larger.

        Raises:
            CapacityError: The keys do not fit the memory.
        """
        with self._lock:
            resolved = self._resolved.setdefault(log, _Resolved())
            self._resolved.move_to_end(log)

        def read() -> bytes:
            view = log.view()
            resolved.check(view)
            if offset >= view.stable_offset:
                return b""
            limit = 0 if resolved.running is None else resolved.running.limit
            view = view.held(min(offset, limit))
            self._resolve(resolved, view)
            batches = self._live(resolved, view, offset, most_bytes)
            return _whole_batches(batches, most_bytes, first=first)

        with resolved.lock:
            return read_again(read)

    def _resolve(self, resolved: _Resolved, view: PartitionView) -> None:
        """Add the batches between the limit and the last stable offset."""
        from lastword.resolve import MapFull, RunningResolution
        from lastword.state.newest import slices_of

        end = view.stable_offset
        for _ in range(2):
            if resolved.running is None:
                resolved.running = RunningResolution(map_bytes=self._memory_bytes, salt=os.urandom(16))
                resolved.slices = 0
            start = max(resolved.running.limit, view.log_start)
            if start >= end:
                return
            slices, _cut = slices_of(view, start, end)
            if resolved.slices and (
                _begins_below(slices, start) or resolved.slices + len(slices) > MOST_SLICES
            ):
                resolved.running = None  # a cleaning has joined batches over the limit
                continue
            try:
                resolved.running.add_segments(slices, outcomes=Outcomes(view, end))
            except MapFull as full:
                resolved.running, resolved.memory_bytes = None, 0
                if resolved.slices:
                    continue  # the map may have keys whose records were removed
                resolved.refused = view.log_start, _segments_of(view)
                resolved.error = CapacityError(
                    f"{view.topic}-{view.partition}: {full.keys} keys do not fit {self._memory_bytes} bytes",
                    file=view.directory,
                    remedy="serve the directory with a larger lastword.newest.bytes",
                )
                raise resolved.error from None
            except BaseException:
                resolved.running = None
                raise
            resolved.slices += len(slices)
            self._make_room(resolved)
            return

    def _make_room(self, resolved: _Resolved) -> None:
        """Count the memory of a resolution, and drop others until all fit."""
        assert resolved.running is not None
        with self._lock:
            resolved.memory_bytes = resolved.running.memory_bytes
            for log, other in list(self._resolved.items()):
                if sum(each.memory_bytes for each in self._resolved.values()) <= self._memory_bytes:
                    break
                if other is not resolved:
                    del self._resolved[log]

    def _live(self, resolved: _Resolved, view: PartitionView, offset: int, most_bytes: int) -> bytes:
        """Return the live records of some chunks as batches; the last one ends where the chunks do."""
        from lastword.kernels import table as fields
        from lastword.state.newest import slices_of

        assert resolved.running is not None
        dead = resolved.running.dead
        parts: list[bytes] = []
        read = written = 0
        covered, end = offset, resolved.running.limit
        chunk_bytes = min(CHUNK_BYTES, max(most_bytes, LEAST_BYTES))
        chunks = (
            chunk
            for part in slices_of(view, offset, end)[0]
            for chunk in part.segment.chunk_reader(part.first, part.last, chunk_bytes=chunk_bytes)
        )
        for chunk in chunks:
            batches, next_offset = _without_dead(chunk, dead)
            parts.append(batches)
            covered = max(covered, next_offset)
            written += len(batches)
            read += chunk.size_bytes
            if 2 * written >= most_bytes or read >= READ_BYTES:
                end = int(chunk.table[-1, fields.LAST_OFFSET]) + 1
                break
        if covered < end:  # a batch spans INT32_MAX offsets at most
            parts.append(empty_batch(max(covered, end - 1 - INT32_MAX), end, -1))
        return b"".join(parts)


def _segments_of(view: PartitionView) -> set[tuple[int, int]]:
    """Return base offset and file of each segment: a cleaning makes other files."""
    return {(segment.base_offset, segment.id.number) for segment in view.segments}


def _without_dead(chunk: Chunk, dead: DeadBitmaps) -> tuple[bytes, int]:
    """Return the batches of a chunk without their dead records, and the offset after the last batch."""
    import numpy as np

    from lastword.cleaner.engine.output import Writer
    from lastword.kernels import table as fields
    from lastword.kernels.repack import AS_BITS, DROP
    from lastword.records.columns import decode_columns
    from lastword.resolve import DeadBitmaps

    def without_delay(work: Callable[[], None]) -> bool:
        work()
        return True

    # A cleaning may have removed records since their bits were set. The kernels compare the number of bits
    # with the number of records, so they get the bits of records that are there.
    offsets = decode_columns(chunk).offset
    parts: list[bytes] = []
    writer = Writer(
        None,
        DeadBitmaps.of(offsets[dead.mask(offsets)]),
        CHUNK_BYTES,
        without_delay,
        lambda data: parts.append(bytes(data)),
    )
    control = (chunk.table[:, fields.ATTRIBUTES] & CONTROL_BIT) != 0
    writer.take(chunk, np.where(control, DROP, AS_BITS).astype(np.uint8), -1)
    writer.flush()
    return b"".join(parts), writer.next_offset


def _begins_below(slices: list[SegmentSlice], start: int) -> bool:
    """Return whether the first batch begins below the start of the range."""
    if not slices:
        return False
    first = slices[0]
    header = next(iter(first.segment.headers(first.first, first.last)))
    return header.base_offset < start


def _whole_batches(batches: bytes, most_bytes: int, *, first: bool) -> bytes:
    """Return as many whole batches as fit; with `first`, one at least."""
    end = 0
    while end < len(batches):
        header = read_header(batches, end, len(batches), "<newest>")
        if header.end > most_bytes and not (first and end == 0):
            break
        end = header.end
    return batches[:end]
