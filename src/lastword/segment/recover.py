"""Recovering one segment: how far it is sound, and the indexes that belong to that.

`inspect` only looks: it walks the batches with their checksums and builds both indexes in memory. `repair`
makes the files agree with what was found: cuts the log, replaces index files that differ. Between the two the
partition decides, because whether a tail may be cut depends on what lies behind it, in later segments too.

A crash during `repair` leaves a state that the next `inspect` finds the same way: the cut comes first, and an
index is removed before it is written again, so a half-written one is never older than the log it describes.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field

from lastword.errors import CorruptBatchError, FileVanishedError
from lastword.files import Files
from lastword.segment import names
from lastword.segment.index_builder import IndexBuilder
from lastword.segment.names import MAX_FILE_BYTES
from lastword.segment.scan import Damage, Gap, SoundWalk, sound_batch_after

BULK_BYTES = 256 << 10
"""From here on kernels walk a file faster, once they are loaded."""
LOADING_BYTES = 128 << 20
"""And from here on even if they must be loaded for it (about 0.4 s, once a process)."""


def is_bulk(size_bytes: int) -> bool:
    """Are so many bytes better walked by kernels?"""
    return size_bytes >= (BULK_BYTES if "lastword.kernels" in sys.modules else LOADING_BYTES)


"""Of a segment's log, in Kafka too: positions in its index have four bytes."""


@dataclass(frozen=True, slots=True)
class Inspection:
    """What `inspect` found. `size` and `next_offset` end the sound part; `damage` is None if that is the
    whole file.

    `followed` is the position of a sound entry behind the damage. `gap`: see `inspect`. `epochs` are (leader
    epoch, first offset) as they rise; `producers` tells whether any batch has a producer id.
    """

    file: str
    base_offset: int
    file_size: int
    size: int
    next_offset: int
    batches: int
    largest_timestamp: int
    damage: Damage | None
    followed: int | None
    gap: Gap | None
    producers: bool
    epochs: tuple[tuple[int, int], ...]
    offset_entries: bytes = field(repr=False)
    time_entries: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Repair:
    """What `repair` changed: bytes cut off the log, and the index files written again."""

    file: str
    cut_bytes: int
    rebuilt: tuple[str, ...]


def inspect(
    files: Files,
    directory: str,
    base_offset: int,
    *,
    index_interval_bytes: int,
    active: bool = False,
    suffix: str = "",
    of_bytes: int = 0,
    contiguous_from: int | None = None,
) -> Inspection:
    """Walk one segment with all checksums. An `active` one gets no last time entry: it goes on.

    `of_bytes`: of how many bytes in all this file is a part, if more are to be walked. `contiguous_from`: the
    batches that reach above this offset are known to leave no gap; the first one that does is reported.
    """
    file = os.path.join(directory, names.segment_file(base_offset, names.LOG, suffix))
    builder = IndexBuilder(base_offset, index_interval_bytes)
    epochs: list[tuple[int, int]] = []
    batches, producers = 0, False
    with files.open_read(file) as handle:
        file_size = handle.size()
        if file_size > MAX_FILE_BYTES:
            raise CorruptBatchError(
                f"{file_size} bytes: an index holds positions below 2^31",
                code="too-large",
                remedy="no broker writes such a file; restore it from a copy",
                file=file,
                position=MAX_FILE_BYTES,
            )
        start, next_offset = 0, base_offset
        gap: Gap | None = None
        if file_size >= BULK_BYTES and is_bulk(max(file_size, of_bytes)):
            from lastword.segment.bulk_walk import walk as bulk_walk

            done = bulk_walk(handle, file_size, base_offset, builder, contiguous_from=contiguous_from)
            start, next_offset, gap = done.position, done.next_offset, done.gap
            epochs, batches, producers = done.epochs, done.batches, done.producers
        walk = SoundWalk(
            handle, file, start, file_size, base_offset, next_offset, contiguous_from=contiguous_from
        )
        for header in walk:
            batches += 1
            builder.batch(header.position, header.last_offset, header.max_timestamp)
            producers = producers or header.producer_id >= 0
            if header.leader_epoch >= 0 and (not epochs or header.leader_epoch > epochs[-1][0]):
                epochs.append((header.leader_epoch, header.base_offset))
        followed = None
        if walk.damage is not None:
            followed = sound_batch_after(handle, file, walk.damage, file_size, base_offset)
    if not active:
        builder.finish()
    return Inspection(
        file=file,
        base_offset=base_offset,
        file_size=file_size,
        size=walk.position,
        next_offset=walk.next_offset,
        batches=batches,
        largest_timestamp=builder.largest_timestamp,
        damage=walk.damage,
        followed=followed,
        gap=gap or walk.gap,
        producers=producers,
        epochs=tuple(epochs),
        offset_entries=bytes(builder.offset_entries),
        time_entries=bytes(builder.time_entries),
    )


def repair(files: Files, found: Inspection) -> Repair:
    """Cuts the log to its sound part and makes both index files what `inspect` built. Nothing is synced."""
    cut = found.file_size - found.size
    if cut:
        files.truncate(found.file, found.size)
    stem = found.file[: found.file.rindex(names.LOG)]
    suffix = found.file[len(stem) + len(names.LOG) :]
    rebuilt = [
        path
        for path, data in (
            (f"{stem}{names.INDEX}{suffix}", found.offset_entries),
            (f"{stem}{names.TIME_INDEX}{suffix}", found.time_entries),
        )
        if replace_index(files, path, data)
    ]
    return Repair(found.file, cut, tuple(rebuilt))


def replace_index(files: Files, path: str, data: bytes, *, may_be_absent: bool = False) -> bool:
    """Make the file hold `data`; False if it does already. Nothing is synced."""
    facts = files.stat(path)
    if facts is None and may_be_absent:
        return False
    if facts is not None and facts.size == len(data):
        try:
            if files.read_bytes(path) == data:
                return False
        except FileVanishedError:
            pass
    files.unlink(path, missing_ok=True)
    with files.open_append(path, create=True, exclusive=True) as handle:
        if data:
            handle.append(data)
    return True


def recover_segment(
    files: Files, directory: str, base_offset: int, *, index_interval_bytes: int, active: bool = False
) -> Inspection:
    """`inspect` and `repair` in one: cuts whatever is behind the first damage. For files that nobody
    acknowledged.
    """
    found = inspect(files, directory, base_offset, index_interval_bytes=index_interval_bytes, active=active)
    repair(files, found)
    return found


def build_indexes(files: Files, file: str, base_offset: int, *, index_interval_bytes: int) -> Inspection:
    """Writes and syncs the index files beside a finished log file, whose every batch must be sound.

    For segments built elsewhere (a rewrite, a staged write). The log itself is not changed; damage in it
    shows in the returned `damage` and its indexes end before it.
    """
    found = inspect(files, os.path.dirname(file), base_offset, index_interval_bytes=index_interval_bytes)
    stem = file[: -len(names.LOG)]
    for extension, data in ((names.INDEX, found.offset_entries), (names.TIME_INDEX, found.time_entries)):
        path = stem + extension
        files.unlink(path, missing_ok=True)
        with files.open_append(path, create=True, exclusive=True) as handle:
            if data:
                handle.append(data)
            handle.fsync()
    return found
