"""Cutting the end off a log, so that every crash leaves a beginning of it.

```
0  removal log: cut noted, synced       leases and snapshot files that reach above are refused from then on
   lastword/accounts removed, synced    what grows in place of what is cut may look like it
1  lastword/synced lowered, synced      what lies above may be given again and is not "known to be durable"
2  higher segments, the newest first    each name is gone for good before the next: never a hole
3  the segment that holds the offset    cut before the first batch that reaches it; an empty batch takes
                                        what is then missing below the offset; synced
4  its indexes                          of what is left
5  snapshots above the offset           gone for good before the log grows there again
6  leader epochs that begin there
7  the cut is noted a second time       a reader between 0 and 6 met the first note and records that are gone
                                        now: it compares the number of notes
```

A crash anywhere leaves the log longer than asked, never shorter and never with a hole; opening makes the
rest agree with it.

A batch that holds the offset in its middle is removed as a whole, as Kafka does, and the log goes on at
exactly that offset. In Kafka only the broker's memory has that log end. Here an empty batch, as a cleaner
leaves them, takes the offsets in between: readers, and the next opening, find the same end.
"""

from __future__ import annotations

import os

from lastword.files import Files
from lastword.partition.segment_set import SegmentSet
from lastword.records.batch import write_batch
from lastword.segment import names
from lastword.segment.recover import recover_segment
from lastword.segment.segment import Segment
from lastword.segment.stored import SegmentFiles
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
            segment.stored.remove(extension)
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
            handle.append(empty_batch(end, offset, epoch))
        handle.fsync()
    recover_segment(
        files, directory, last.base_offset, index_interval_bytes=index_interval_bytes, active=True
    )
    index = TransactionIndex(last.stored)
    index.truncate(offset)
    index.sync()
    index.close()
    files.fsync_dir(directory)
    left = Segment.load(SegmentFiles(files, directory, last.base_offset), active=True)
    return SegmentSet([*segments[:at], left])


def empty_batch(start: int, end: int, epoch: int) -> bytes:
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
