"""Recover one segment: find its valid part, and rebuild the indexes of that part.

`inspect` changes nothing: it walks the batches with their checksums and builds both indexes in memory.
`repair` makes the files agree with the result: it cuts the log and replaces index files that differ. Between
the two the partition decides, because later segments decide too whether a tail may be cut.

After a crash during `repair` the next `inspect` has the same result: the cut is first, and an index is
removed before it is written again, so a half-written index is never older than its log.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from typing import NamedTuple

from lastword.errors import CorruptBatchError, FileVanishedError
from lastword.files import Files
from lastword.segment import names
from lastword.segment.indexes import IndexBuilder
from lastword.segment.names import MAX_FILE_BYTES
from lastword.segment.scan import Damage, Gap, SoundWalk, is_zeroed, sound_batch_after

BULK_BYTES = 256 << 10
"""From this size on kernels walk a file faster, if they are loaded."""
LOADING_BYTES = 128 << 20
"""From this size on kernels are faster even if they must be loaded (about 0.4 s, once a process)."""


def is_bulk(size_bytes: int) -> bool:
    """Return whether kernels walk this many bytes faster."""
    return size_bytes >= (BULK_BYTES if "lastword.kernels" in sys.modules else LOADING_BYTES)


@dataclass(frozen=True, slots=True)
class Inspection:
    """Result of `inspect`.

    Attributes:
        size: End of the valid part; `next_offset`: the offset behind it.
        damage: None if the whole file is valid, or an active segment but for zeros at its end.
        followed: Position of a valid entry behind the damage.
        gap: See `inspect`.
        producers: A batch has a producer id.
        epochs: (leader epoch, first offset) as they rise.
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

    @property
    def indexes(self) -> tuple[tuple[str, bytes], ...]:
        """The path of each index file, and what it should hold."""
        stem = self.file.removesuffix(names.LOG)
        return (stem + names.INDEX, self.offset_entries), (stem + names.TIME_INDEX, self.time_entries)


class Repair(NamedTuple):
    """Changes made by `repair`: bytes cut off the log, and the index files that were written."""

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
    of_bytes: int = 0,
    contiguous_from: int | None = None,
) -> Inspection:
    """Walk one segment with all checksums.

    Args:
        files: The storage.
        directory: Directory of the segment.
        base_offset: Base offset of the segment.
        index_interval_bytes: For the indexes.
        active: The segment gets no last time entry, because it gets more batches. Zeros may follow its end.
        of_bytes: Bytes of all segments that are walked, to choose between kernels and plain Python.
        contiguous_from: Batches that reach above this offset leave no gap; the first gap is reported.

    Raises:
        CorruptBatchError: The file is larger than positions in an index can be.
    """
    file = os.path.join(directory, names.segment_file(base_offset, names.LOG))
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
        damage, followed = walk.damage, None
        if damage is not None and active and is_zeroed(handle, damage.position, file_size):
            damage = None  # room for appends, which a killed writer leaves behind
        elif damage is not None:
            followed = sound_batch_after(handle, file, damage, file_size, base_offset)
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
        damage=damage,
        followed=followed,
        gap=gap or walk.gap,
        producers=producers,
        epochs=tuple(epochs),
        offset_entries=bytes(builder.offset_entries),
        time_entries=bytes(builder.time_entries),
    )


def repair(files: Files, inspection: Inspection) -> Repair:
    """Cut the log to its valid part and make both index files what `inspect` built. Syncs nothing."""
    cut = inspection.file_size - inspection.size
    if cut:
        files.truncate(inspection.file, inspection.size)
    rebuilt = [path for path, data in inspection.indexes if replace_index(files, path, data)]
    return Repair(inspection.file, cut, tuple(rebuilt))


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
    files.write_new(path, data, sync=False)
    return True


def recover_segment(
    files: Files, directory: str, base_offset: int, *, index_interval_bytes: int, active: bool = False
) -> Inspection:
    """Inspect and repair: cut the log at the first damage. For files with no acknowledged records."""
    inspection = inspect(
        files, directory, base_offset, index_interval_bytes=index_interval_bytes, active=active
    )
    repair(files, inspection)
    return inspection


def build_indexes(files: Files, file: str, base_offset: int, *, index_interval_bytes: int) -> Inspection:
    """Write and sync the index files of a finished log file.

    The log is not changed. If it is damaged, the indexes end before the damage, which is in the result.
    """
    inspection = inspect(files, os.path.dirname(file), base_offset, index_interval_bytes=index_interval_bytes)
    for path, data in inspection.indexes:
        files.unlink(path, missing_ok=True)
        files.write_new(path, data)
    return inspection
