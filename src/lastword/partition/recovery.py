"""Repair a partition directory before a batch is read, and report all repairs of an opening.

`Recovery` is the report. The functions finish or undo interrupted swaps, remove files of unpublished
rewrites, and split segments that are too wide for their indexes.

A segment whose offsets do not fit its indexes is split. Cleaners of brokers before 2.0 could merge segments
until offsets were more than 2^31 above the base. Opening splits such a file, as a broker does: the same bytes
in several files, cut before the first batch that an index of the file before cannot hold. The first part
keeps the base offset, if need be without a batch. Only a closed segment is split whose offsets are below the
next segment's base: elsewhere a wide offset is damage, because no checksum covers it.

```
step                                                   a crash here leaves
1  parts built and synced in a private directory       the old segment; the parts are removed
2  parts -> .cleaned, fsync dir                        the old segment
3  .cleaned -> .swap but for the first, fsync dir;     the old segment, until no file is .cleaned any more
   then the first, fsync dir
4  old segment -> .deleted, fsync dir                  the parts
5  .swap -> final names, fsync dir; unlink .deleted    the parts
```

The first part is renamed last, and the others are durable before it, because a `.cleaned` invalidates every
`.swap` at or above it, here (`swap.decide`) and in a broker's recovery, and a first `.swap` alone would
replace all of the old segment. Afterwards opening checks the parts as any segment: damage of the old file is
in one of them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import pairwise

from lastword.errors import DataError, LastwordError
from lastword.files import Files
from lastword.partition import swap
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
from lastword.segment.stored import SegmentFiles
from lastword.segment.txn_index import AbortedTransaction, TransactionIndex, encode_entries
from lastword.wire import INT64_MAX


@dataclass(frozen=True, slots=True)
class Repaired:
    """One repair.

    Attributes:
        code: torn-tail, lost-segment, swap-finished, swap-undone, split, index, snapshot, leftover or
            checkpoint.
        file: The file or directory.
        text: For the user.
        cut_bytes: Bytes that were cut off.
        offset: The new end of a log that was cut.
    """

    topic: str
    partition: int
    code: str
    file: str
    text: str
    cut_bytes: int = 0
    offset: int | None = None

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}: {self.text} ({self.file})"


@dataclass(frozen=True, slots=True)
class Recovery:
    """Report of the opening of one partition. `walked`: segments whose checksums were all verified."""

    topic: str
    partition: int
    clean: bool
    log_start: int
    log_end: int
    walked: int
    repaired: tuple[Repaired, ...]

    @property
    def cut_bytes(self) -> int:
        """Bytes that were cut off in all."""
        return sum(r.cut_bytes for r in self.repaired)


class Repairs:
    """Collect the repairs of one partition."""

    def __init__(self, topic: str, partition: int) -> None:
        self.done: list[Repaired] = []
        self._topic = topic
        self._partition = partition

    def tell(self, code: str, file: str, text: str, *, cut_bytes: int = 0, offset: int | None = None) -> None:
        """Add a repair; see `Repaired`."""
        self.done.append(Repaired(self._topic, self._partition, code, file, text, cut_bytes, offset))


def finish_swaps(files: Files, directory: str, repairs: Repairs) -> None:
    """Finish or undo an interrupted swap, and remove files that rewrites left beside segments."""
    done = swap.recover(files, directory)
    for base in done.finished:
        repairs.tell("swap-finished", names.segment_file(base, names.LOG), "an interrupted swap was finished")
    for base in done.undone:
        repairs.tell("swap-undone", names.segment_file(base, names.LOG), "an interrupted swap was undone")
    if done.removed:
        repairs.tell("leftover", directory, f"{len(done.removed)} leftover files of rewrites were removed")


def remove_leftovers(files: Files, directory: str, repairs: Repairs) -> None:
    """Remove unpublished rewrites, temporary files, and indexes without a log."""
    private = os.path.join(directory, names.PRIVATE)
    if files.exists(private):
        for name in files.listdir(private):
            if name.startswith(names.REWRITE_PREFIX):
                files.remove_tree(os.path.join(private, name))
                repairs.tell("leftover", os.path.join(private, name), "an unpublished rewrite was removed")
            elif name.endswith(".tmp"):  # replaced as a whole, or not at all
                files.unlink(os.path.join(private, name), missing_ok=True)
    for name in (names.LEADER_EPOCHS, names.PARTITION_METADATA):  # replaced as a whole, or not at all
        files.unlink(os.path.join(directory, name + ".tmp"), missing_ok=True)
    for name in files.listdir(directory):
        if name.endswith(names.SNAPSHOT + ".tmp"):
            files.unlink(os.path.join(directory, name), missing_ok=True)
    parsed = [names.parse_segment_file(name) for name in files.listdir(directory)]
    logs = {p.base_offset for p in parsed if p is not None and p.extension == names.LOG}
    for p in parsed:
        if p is None or p.base_offset in logs or p.extension not in names.SEGMENT_EXTENSIONS:
            continue
        files.unlink(os.path.join(directory, p.name), missing_ok=True)
        repairs.tell("leftover", p.name, "an index without its log was removed")


def split_overflowed(files: Files, directory: str, index_interval_bytes: int, repairs: Repairs) -> set[int]:
    """Split segments that an old cleaner made too wide for their indexes.

    Returns:
        The base offsets of the parts.
    """
    bases: set[int] = set()
    for base, following in pairwise(log_bases(files, directory)):
        if following - base <= MAX_RELATIVE_OFFSET + 1:
            continue
        segment = Segment.load(SegmentFiles(files, directory, base))
        if not overflows(segment, following):
            continue
        private = os.path.join(directory, names.PRIVATE, f"{names.REWRITE_PREFIX}split-{base}")
        parts = split(files, segment, private, index_interval_bytes=index_interval_bytes)
        bases.update(parts)
        repairs.tell(
            "split", os.path.basename(segment.file), f"was split at {', '.join(map(str, parts[1:]))}"
        )
    return bases


def log_bases(files: Files, directory: str) -> list[int]:
    """Return the base offsets of the segments in a partition's directory, ascending."""
    parsed = (names.parse_segment_file(name) for name in files.listdir(directory))
    return sorted(
        p.base_offset for p in parsed if p is not None and p.extension == names.LOG and not p.suffix
    )


# ---------------------------------------------------------------- segments that are too wide


_COPY_BYTES = 1 << 20


def overflows(segment: Segment, next_base: int) -> bool:
    """Return whether an offset is too far above the base, and none belongs to the next segment.

    Reads headers from the last indexed batch on.
    """
    last = segment.base_offset
    try:
        start = segment.trusted_end()
        for header in headers(segment.handle, segment.file, start, segment.size, stop_at_partial_tail=True):
            last = max(last, header.last_offset)
    except DataError:
        return False  # reported when the file is read with its checksums
    return segment.base_offset + MAX_RELATIVE_OFFSET < last < next_base


def split(files: Files, segment: Segment, private: str, *, index_interval_bytes: int) -> list[int]:
    """Replace a segment that overflows by parts. Return their base offsets.

    On an error in step 1 nothing has changed. `private`: path of a directory to be made, below the
    partition's own.
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
                files, private, base, [entry for entry in aborted if base <= entry.last_offset < above]
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
    """Return (base offset, first position, end position) of each part; together they are the file."""
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
    """Return the entries of the transaction index; none if it is damaged: recovery rebuilds it."""
    index = TransactionIndex(segment.stored)
    try:
        index.check()
        return list(index.entries)
    except DataError:
        return []
    finally:
        index.close()


def _build_txn_index(files: Files, private: str, base: int, entries: list[AbortedTransaction]) -> None:
    """Write the index of a part. An aborted transaction is noted in the segment that has its marker."""
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
