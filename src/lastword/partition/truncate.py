"""Cutting the end off a log, so that every crash leaves a beginning of it.

```
0  the cut is noted (losses), synced    leases and snapshot files that reach above are refused from then on
   lastword/accounts removed, synced    what grows in place of what is cut may look like it
1  lastword/synced lowered, synced      what lies above may be given again and is not "known to be durable"
2  higher segments, the newest first    each name is gone for good before the next: never a hole
3  the segment that holds the offset    cut before the first batch that reaches it; an empty batch takes
                                        what is then missing below the offset; synced
4  its indexes                          of what is left
5  snapshots above the offset           gone for good before the log grows there again
6  leader epochs that begin there
```

A crash anywhere leaves the log longer than asked, never shorter and never with a hole; opening makes the
rest agree with it.

A batch that holds the offset in its middle is removed as a whole, as Kafka does, and the log goes on at
exactly that offset. In Kafka only the broker's memory has that log end. Here an empty batch, as a cleaner
leaves them, takes the offsets in between: readers, and the next opening, find the same end.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from lastword.files import Files
from lastword.partition.epochs import LeaderEpochs
from lastword.partition.producer_state import ProducerState
from lastword.partition.replay import replay
from lastword.partition.segment_set import SegmentSet
from lastword.partition.snapshots import Snapshots
from lastword.records.batch import write_batch
from lastword.segment import names
from lastword.segment.append import SegmentAppender
from lastword.segment.recover import recover_segment
from lastword.segment.segment import Segment
from lastword.segment.txn_index import TransactionIndex


def forget_accounts(files: Files, directory: str) -> None:
    """Step 0. The accounts of the partition's garbage name the files that they are about; after a cut a file
    could come to match again that holds other records."""
    path = os.path.join(directory, names.PRIVATE, names.ACCOUNTS)
    if files.exists(path):
        files.unlink(path, missing_ok=True)
        files.fsync_dir(os.path.dirname(path))


def remove_segments(files: Files, directory: str, gone: list[Segment]) -> None:
    """Remove segments at a log's end, the newest first, each durably before the next."""
    for segment in sorted(gone, key=lambda s: s.base_offset, reverse=True):
        for extension in names.SEGMENT_EXTENSIONS:
            files.unlink(segment.path(extension), missing_ok=True)
        files.fsync_dir(directory)


def cut_segments(
    files: Files,
    directory: str,
    segments: SegmentSet,
    offset: int,
    epoch: int,
    *,
    index_interval_bytes: int,
) -> SegmentSet:
    """Steps 2 to 4. Returns what is left of the log, its last segment active, with nothing open."""
    at = segments.floor(offset)
    remove_segments(files, directory, list(segments[at + 1 :]))
    last: Segment = segments[at]
    position = last.position_of(offset)
    end = last.end_before(offset)
    with files.open_append(last.file) as handle:
        if position < handle.size():
            handle.truncate(position)
        if end < offset:
            handle.append(_empty_batch(end, offset, epoch))
        handle.fsync()
    recover_segment(
        files, directory, last.base_offset, index_interval_bytes=index_interval_bytes, active=True
    )
    index = TransactionIndex(files, last.path(names.TXN_INDEX), last.base_offset)
    index.truncate(offset)
    index.sync()
    index.close()
    files.fsync_dir(directory)
    left = Segment.load(files, directory, last.base_offset, active=True)
    return SegmentSet([*segments[:at], left])


def _empty_batch(start: int, end: int, epoch: int) -> bytes:
    """A batch without records that takes the offsets [start, end)."""
    return write_batch(
        base_offset=start,
        leader_epoch=epoch,
        attributes=0,
        last_offset_delta=end - 1 - start,
        base_timestamp=-1,
        max_timestamp=-1,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        count=0,
        payload=b"",
    )


class Parts(NamedTuple):
    """What a log consists of, none of it open."""

    files: Files
    directory: str
    segments: SegmentSet
    snapshots: Snapshots
    epochs: LeaderEpochs
    index_interval_bytes: int


class Left(NamedTuple):
    """What it goes on with."""

    segments: SegmentSet
    appender: SegmentAppender
    producers: ProducerState


def to_offset(log: Parts, offset: int) -> Left:
    """Steps 2 to 6, for an offset that the log holds."""
    files, directory, interval = log.files, log.directory, log.index_interval_bytes
    epoch = log.epochs.at(offset)
    segments = cut_segments(files, directory, log.segments, offset, epoch, index_interval_bytes=interval)
    if log.snapshots.remove_outside(segments[0].base_offset - 1, offset):
        files.fsync_dir(directory)
    log.epochs.truncate_from_end(offset)
    appender = SegmentAppender.resume(segments.active, index_interval_bytes=interval)
    return Left(segments, appender, replay(log.snapshots, segments, offset).state)


def everything(log: Parts, offset: int) -> Left:
    """Steps 2, 5 and 6 with nothing left: an empty segment that begins at `offset`."""
    files, directory = log.files, log.directory
    remove_segments(files, directory, list(log.segments))
    log.snapshots.remove_outside(-1, -1)
    log.epochs.truncate_from_end(0)
    appender = SegmentAppender.create(files, directory, offset, index_interval_bytes=log.index_interval_bytes)
    files.fsync_dir(directory)
    return Left(SegmentSet([appender.segment]), appender, ProducerState(offset))
