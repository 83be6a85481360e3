"""Splitting a segment whose offsets do not fit its indexes.

Cleaners of brokers before 2.0 could merge segments until offsets lay more than 2^31 above the base. Such a
file cannot be indexed. Opening splits it, as a broker does: the same bytes in several files, cut before the
first batch that an index of the file before cannot hold. The first part keeps the base offset, if need be
without a batch. Only a closed segment is split, whose offsets lie below the next one's base: elsewhere a wide
offset is damage, for no checksum covers it.

```
step                                                   a crash here leaves
1  parts built and synced in a private directory       the old segment; the parts are removed
2  parts -> .cleaned, fsync dir                        the old segment
3  .cleaned -> .swap but for the first, fsync dir;     the old segment, until nothing is .cleaned any more
   then the first, fsync dir
4  old segment -> .deleted, fsync dir                  the parts
5  .swap -> final names, fsync dir; unlink .deleted    the parts
```

The first part last, and the others durable before it, because a `.cleaned` condemns every `.swap` at or
above it, here (`swap.decide`) and in a broker's recovery; a first `.swap` alone would stand for all of the
old segment. Afterwards opening looks at the parts as at any segment: damage in the old file is in one of
them.
"""

from __future__ import annotations

import os

from lastword.errors import DataError, LastwordError
from lastword.files import Files
from lastword.segment import names
from lastword.segment.names import (
    CLEANED,
    DELETED,
    INDEX,
    LOG,
    MAX_RELATIVE_OFFSET,
    SEGMENT_EXTENSIONS,
    SWAP,
    TIME_INDEX,
    TXN_INDEX,
)
from lastword.segment.recover import build_indexes
from lastword.segment.scan import headers
from lastword.segment.segment import Segment
from lastword.segment.txn_index import AbortedTransaction, TransactionIndex, encode_entries
from lastword.wire import INT64_MAX

_COPY_BYTES = 1 << 20


def overflows(segment: Segment, next_base: int) -> bool:
    """Is there an offset too far above the base, and none that belongs to the next segment? Reads headers
    from the last indexed batch on.
    """
    last = segment.base_offset
    try:
        start = segment.trusted_end()
        for header in headers(segment.handle, segment.file, start, segment.size, stop_at_partial_tail=True):
            last = max(last, header.last_offset)
    except DataError:
        return False  # damage is told by who walks the file with its checksums
    return segment.base_offset + MAX_RELATIVE_OFFSET < last < next_base


def split(files: Files, segment: Segment, private: str, *, index_interval_bytes: int) -> list[int]:
    """Put parts in the place of a segment that overflows; returns their base offsets. `private`: path of a
    directory to be made, below the partition's own. On an error in step 1 everything is as it was.
    """
    for directory in (os.path.dirname(private), private):
        if not files.exists(directory):
            files.mkdir(directory)
    parts = _parts(segment)
    aborted = _aborted(segment)
    try:
        for number, (base, start, end) in enumerate(parts):
            _build(files, segment, private, base, start, end, index_interval_bytes)
            above = parts[number + 1][0] if number + 1 < len(parts) else INT64_MAX
            _build_txn_index(
                files, private, base, [one for one in aborted if base <= one.last_offset < above]
            )
        files.fsync_dir(private)
    except LastwordError:
        files.remove_tree(private)
        raise
    bases = [base for base, _, _ in parts]
    _publish(files, segment, private, bases)
    files.remove_tree(private)
    return bases


def _parts(segment: Segment) -> list[tuple[int, int, int]]:
    """(base offset, first position, end position) of each part; together they are the whole file."""
    starts = [(segment.base_offset, 0)]
    for header in segment.headers():
        if header.last_offset - starts[-1][0] > MAX_RELATIVE_OFFSET:
            starts.append((segment.first_offset_of(header), header.position))
    ends = [position for _, position in starts[1:]] + [segment.size]
    return [(base, start, end) for (base, start), end in zip(starts, ends, strict=True)]


def _build(
    files: Files, segment: Segment, private: str, base: int, start: int, end: int, interval: int
) -> None:
    path = os.path.join(private, names.segment_file(base, LOG))
    with files.open_append(path, create=True, exclusive=True) as handle:
        for position in range(start, end, _COPY_BYTES):
            handle.append(segment.handle.pread(min(_COPY_BYTES, end - position), position))
        handle.fsync()
    build_indexes(files, path, base, index_interval_bytes=interval)
    for extension in (LOG, INDEX, TIME_INDEX):
        files.set_mtime(os.path.join(private, names.segment_file(base, extension)), segment.mtime_ms)


def _aborted(segment: Segment) -> list[AbortedTransaction]:
    """Entries of the transaction index; nothing of one that makes no sense: recovery builds it again."""
    index = TransactionIndex(segment.stored)
    try:
        index.check()
        return list(index.entries)
    except DataError:
        return []
    finally:
        index.close()


def _build_txn_index(files: Files, private: str, base: int, entries: list[AbortedTransaction]) -> None:
    """An aborted transaction is noted in the segment that has its marker."""
    if entries:
        path = os.path.join(private, names.segment_file(base, TXN_INDEX))
        with files.open_append(path, create=True, exclusive=True) as handle:
            handle.append(encode_entries(entries))
            handle.fsync()


def _publish(files: Files, segment: Segment, private: str, bases: list[int]) -> None:
    directory = os.path.dirname(segment.file)

    def rename(source: str, base: int, extension: str, old: str, new: str) -> None:
        files.rename(
            os.path.join(source, names.segment_file(base, extension, old)),
            os.path.join(directory, names.segment_file(base, extension, new)),
        )

    built = set(files.listdir(private))
    new = [
        (base, extension)
        for base in bases
        for extension in SEGMENT_EXTENSIONS
        if names.segment_file(base, extension) in built
    ]
    for base, extension in new:
        rename(private, base, extension, "", CLEANED)
    files.fsync_dir(directory)
    for lowest in (False, True):
        for base, extension in new:
            if (base == bases[0]) == lowest:
                rename(directory, base, extension, CLEANED, SWAP)
        files.fsync_dir(directory)
    listing = set(files.listdir(directory))
    old = [e for e in SEGMENT_EXTENSIONS if names.segment_file(segment.base_offset, e) in listing]
    for extension in old:
        rename(directory, segment.base_offset, extension, "", DELETED)
    files.fsync_dir(directory)
    for base, extension in new:
        rename(directory, base, extension, SWAP, "")
    files.fsync_dir(directory)
    for extension in old:
        files.unlink(os.path.join(directory, names.segment_file(segment.base_offset, extension, DELETED)))
