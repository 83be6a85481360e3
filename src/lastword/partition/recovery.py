"""Repair a partition directory that is being opened, and report all repairs.

`Recovery` is the report. Before a batch is read, interrupted swaps are finished or undone, files of
unpublished rewrites are removed, and segments that are too wide for their indexes are split. `DamageRepair`
then finds and repairs torn and damaged segments; `partition.open` has the rules: which segments are read with
their checksums, and where a log may be cut.

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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from lastword.errors import CorruptBatchError, DataError, FileVanishedError, LastwordError
from lastword.files import Files
from lastword.partition import swap
from lastword.partition.cut import forget_accounts
from lastword.partition.directory_segments import end_of_valid_part
from lastword.partition.durability import LogEnd, wrong_end
from lastword.segment import names
from lastword.segment.indexes import AbortedTransaction, TransactionIndex, encode_aborted
from lastword.segment.recover import Inspection, build_indexes, inspect, is_bulk, repair
from lastword.segment.scan import headers
from lastword.segment.segment import Segment
from lastword.segment.stored import SegmentFiles
from lastword.values import Value
from lastword.wire import INT64_MAX


class Repaired(NamedTuple):
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


class Recovery(NamedTuple):
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
        """Bytes that were cut off, of all repairs."""
        return sum(r.cut_bytes for r in self.repaired)


@dataclass(frozen=True, slots=True)
class Cut(Value):
    """A log file that an opening to write cuts at `left_bytes`, or removes (None)."""

    file: str
    size_bytes: int
    left_bytes: int | None


class Repairs:
    """Collect the repairs of one partition."""

    def __init__(self, topic: str, partition: int) -> None:
        self.done: list[Repaired] = []
        self._topic = topic
        self._partition = partition

    def add(self, code: str, file: str, text: str, *, cut_bytes: int = 0, offset: int | None = None) -> None:
        """Add a repair; see `Repaired`."""
        self.done.append(Repaired(self._topic, self._partition, code, file, text, cut_bytes, offset))


def finish_swaps(files: Files, directory: str, listing: list[str], repairs: Repairs) -> list[str]:
    """Finish or undo an interrupted swap, and remove files that rewrites left beside segments.

    Add the repairs to `repairs`, and return the listing of the directory afterwards.
    """
    parsed = map(names.parse_segment_file, listing)
    if not [file for file in parsed if file is not None and file.suffix]:
        return listing
    done = swap.recover(files, directory)
    for base in done.finished:
        repairs.add("swap-finished", names.segment_file(base, names.LOG), "an interrupted swap was finished")
    for base in done.undone:
        repairs.add("swap-undone", names.segment_file(base, names.LOG), "an interrupted swap was undone")
    if done.removed:
        repairs.add("leftover", directory, f"{len(done.removed)} leftover files of rewrites were removed")
    return files.listdir(directory)


_REPLACED = frozenset({f"{names.LEADER_EPOCHS}.tmp", f"{names.PARTITION_METADATA}.tmp"})
"""Temporary files of files that are replaced as a whole, or not at all."""


def remove_leftovers(
    files: Files, directory: str, listing: list[str], private_names: Iterable[str], repairs: Repairs
) -> list[str]:
    """Remove unpublished rewrites, temporary files, and indexes without a log.

    Add the repairs to `repairs`, and return the listing of the directory afterwards. `private_names`: the
    names in its private directory.
    """
    for name in private_names:
        path = f"{directory}/{names.PRIVATE}/{name}"
        if name.startswith(names.REWRITE_PREFIX):
            files.remove_tree(path)
            repairs.add("leftover", path, "an unpublished rewrite was removed")
        elif name.endswith(".tmp") or name == names.MOVING:
            # A file that is replaced as a whole, or not at all; a move that has not taken the log away.
            files.unlink(path, missing_ok=True)
    gone = set(_REPLACED.intersection(listing))
    logs: set[int] = set()
    indexes = []
    for name in listing:
        parsed = names.parse_segment_file(name)
        if parsed is None:
            if name.endswith(names.SNAPSHOT + ".tmp"):
                gone.add(name)
        elif parsed.extension == names.LOG:
            logs.add(parsed.base_offset)
        elif parsed.extension != names.SNAPSHOT:
            indexes.append(parsed)
    for name in sorted(gone):
        files.unlink(f"{directory}/{name}", missing_ok=True)
    for index in indexes:
        if index.base_offset not in logs:
            files.unlink(f"{directory}/{index.name}", missing_ok=True)
            gone.add(index.name)
            repairs.add("leftover", index.name, "an index without its log was removed")
    return [name for name in listing if name not in gone] if gone else listing


def private_listing(files: Files, directory: str) -> list[str]:
    """Return the names in the private directory of a partition; none if there is no such directory."""
    try:
        return files.listdir(f"{directory}/{names.PRIVATE}")
    except FileVanishedError:
        return []


def split_overflowed(
    files: Files, directory: str, bases: Iterable[int], index_interval_bytes: int, repairs: Repairs
) -> set[int]:
    """Split segments that an old cleaner made too wide for their indexes.

    Args:
        files: The storage.
        directory: The partition's directory.
        bases: The base offsets of its segments, ascending.
        index_interval_bytes: Interval of the indexes of the parts.
        repairs: The repairs are added here.

    Returns:
        The base offsets of the parts.
    """
    made: set[int] = set()
    for base, following in pairwise(bases):
        if following - base <= names.MAX_RELATIVE_OFFSET + 1:
            continue
        segment = Segment.load(SegmentFiles(files, directory, base))
        if not overflows(segment, following):
            continue
        private = os.path.join(directory, names.PRIVATE, f"{names.REWRITE_PREFIX}split-{base}")
        parts = split(files, segment, private, index_interval_bytes=index_interval_bytes)
        made.update(parts)
        repairs.add("split", os.path.basename(segment.file), f"was split at {', '.join(map(str, parts[1:]))}")
    return made


# ---------------------------------------------------------------- segments that are too wide


_COPY_BYTES = 1 << 20


def overflows(segment: Segment, next_base: int) -> bool:
    """Return whether an offset is too far above the base, and none belongs to the next segment.

    Reads headers from the last indexed batch on.
    """
    last = segment.base_offset
    try:
        start = segment.last_trusted().position
        for header in headers(segment.handle, segment.file, start, segment.size, stop_at_partial_tail=True):
            last = max(last, header.last_offset)
    except DataError:
        return False  # reported when the file is read with its checksums
    return segment.base_offset + names.MAX_RELATIVE_OFFSET < last < next_base


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
        if header.last_offset - starts[-1][0] > names.MAX_RELATIVE_OFFSET:
            starts.append((segment.first_offset_of(header), header.position))
    ends = [position for _, position in starts[1:]] + [segment.size]
    return [(base, start, end) for (base, start), end in zip(starts, ends, strict=True)]


def _build(
    files: Files, segment: Segment, private: str, base: int, start: int, end: int, interval: int
) -> None:
    path = os.path.join(private, names.segment_file(base, names.LOG))
    with files.open_append(path, create=True, exclusive=True) as handle:
        for position in range(start, end, _COPY_BYTES):
            handle.append(segment.handle.pread(min(_COPY_BYTES, end - position), position))
        handle.fsync()
    build_indexes(files, path, base, index_interval_bytes=interval)
    for extension in (names.LOG, names.INDEX, names.TIME_INDEX):
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
        path = os.path.join(private, names.segment_file(base, names.TXN_INDEX))
        files.write_new(path, encode_aborted(entries))


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
        for extension in names.SEGMENT_EXTENSIONS
        if names.segment_file(base, extension) in built
    ]
    for base, extension in new:
        rename(private, base, extension, "", names.CLEANED)
    files.fsync_dir(directory)
    for lowest in (False, True):
        for base, extension in new:
            if (base == bases[0]) == lowest:
                rename(directory, base, extension, names.CLEANED, names.SWAP)
        files.fsync_dir(directory)
    listing = set(files.listdir(directory))
    old = [e for e in names.SEGMENT_EXTENSIONS if names.segment_file(segment.base_offset, e) in listing]
    for extension in old:
        rename(directory, segment.base_offset, extension, "", names.DELETED)
    files.fsync_dir(directory)
    for base, extension in new:
        rename(directory, base, extension, names.SWAP, "")
    files.fsync_dir(directory)
    for extension in old:
        files.unlink(
            os.path.join(directory, names.segment_file(segment.base_offset, extension, names.DELETED))
        )


# ---------------------------------------------------------------- torn and damaged segments


def _first_damaged(inspections: Mapping[int, Inspection]) -> int | None:
    return min((base for base, found in inspections.items() if found.damage is not None), default=None)


SIDE_BY_SIDE_BYTES = 16 << 20
"""Segments that are as large as this on average are walked by several threads."""


class DamageRepair:
    """The damage of one partition: `find`, then `mend`.

    Attributes:
        walked: The number of segments of which every checksum was verified.
        sound_end: The next offset of the active segment, if its end is valid without a walk of the segment.
    """

    def __init__(
        self,
        files: Files,
        directory: str,
        listing: list[str],
        repairs: Repairs,
        *,
        segments: Mapping[int, Segment],
        known: LogEnd,
        parts: set[int],
        index_interval_bytes: int,
    ) -> None:
        self.walked = 0
        self.sound_end: int | None = None
        self._segments = segments  # those of the listing, ascending; until `mend`
        self._files = files
        self._directory = directory
        self._listing = listing  # until `mend`
        self._index_interval_bytes = index_interval_bytes
        self._known = known
        self._parts = parts
        self._repairs = repairs

    def find(self) -> dict[int, Inspection]:
        """Verify the segments that need it, by base offset.

        Raises:
            CorruptBatchError: Damage that must not be cut.
        """
        bases = list(self._segments)
        listing = set(self._listing)
        due: list[tuple[int, bool]] = []
        for at, base in enumerate(bases):
            last = at == len(bases) - 1
            above = last or bases[at + 1] > self._known.recovery_point
            has_indexes = (
                names.segment_file(base, names.INDEX) in listing
                and names.segment_file(base, names.TIME_INDEX) in listing
            )
            if not has_indexes or base in self._parts or (above and not self._known.clean):
                due.append((base, last))
        if bases and (not due or due[-1][0] != bases[-1]):
            self.sound_end = self._valid_end(self._segments[bases[-1]])
            if self.sound_end is None:
                due.append((bases[-1], True))
        self.walked += len(due)
        size = sum(self._log_bytes(base) for base, _ in due) if len(due) > 1 else 0
        inspections = self._walk_all(due, size)
        if not self._is_cut(inspections, bases):
            self._check_end(inspections, bases)
        return inspections

    def _walk_all(self, due: list[tuple[int, bool]], size: int) -> dict[int, Inspection]:
        """Verify segments, large ones in parallel: the kernels and the reads release the interpreter's lock.

        With small segments the lock would cost more than the threads gain.
        """
        threads = min(len(due), os.cpu_count() or 1) if size >= SIDE_BY_SIDE_BYTES else 1
        if threads < 2 or size < len(due) * SIDE_BY_SIDE_BYTES or not is_bulk(size):
            return {base: self._walk(base, last, size) for base, last in due}
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(threads) as pool:
            inspections = list(pool.map(lambda item: self._walk(item[0], item[1], size), due))
        return {base: inspection for (base, _), inspection in zip(due, inspections, strict=True)}

    def _walk(self, base: int, active: bool, of_bytes: int = 0) -> Inspection:
        return inspect(
            self._files,
            self._directory,
            base,
            index_interval_bytes=self._index_interval_bytes,
            active=active,
            of_bytes=of_bytes,
            contiguous_from=self._known.contiguous_from if active else None,
        )

    @staticmethod
    def _valid_end(segment: Segment) -> int | None:
        """Return the end of the active segment after a clean stop; None if it must be verified.

        It ends with a whole valid batch that its indexes cover.
        """
        offsets, times = segment.offset_index, segment.time_index
        if offsets.damaged or times.damaged or offsets.zero_tail_bytes or times.zero_tail_bytes:
            return None  # zeros: a stop cuts them
        trusted = segment.last_trusted()
        if trusted.position != offsets.last.position:
            return None
        if trusted.header is not None and trusted.header.end == segment.size:
            position, next_offset = segment.size, trusted.header.next_offset
        else:
            position, next_offset = end_of_valid_part(segment, trusted.position)
        in_range = 0 <= next_offset - segment.base_offset <= names.MAX_RELATIVE_OFFSET + 1
        return next_offset if position == segment.size and in_range else None

    def _is_cut(self, inspections: dict[int, Inspection], bases: list[int]) -> bool:
        """Return whether the first damage is a torn tail. CorruptBatchError if it must not be cut."""
        for at, base in enumerate(bases):
            inspection = inspections.get(base)
            if inspection is None:
                continue
            if at + 1 < len(bases) and inspection.next_offset > bases[at + 1]:
                text = (
                    f"the segment goes up to offset {inspection.next_offset - 1}, the next one begins with "
                    f"{bases[at + 1]}"
                )
                raise CorruptBatchError.damage(
                    text, "offsets-fall", inspection.file, inspection.size, bases[at + 1]
                )
            damage = inspection.damage
            if damage is None:
                continue
            if damage.as_written:
                text = f"{damage.text}; its checksum is right, so it is no torn write, and nothing was cut"
                position, offset = damage.position, damage.offset
                error = CorruptBatchError.damage(text, damage.code, inspection.file, position, offset)
                error.remedy = (
                    f"{error.remedy}. Kafka keeps such a batch: a broker serves the records around it"
                )
                raise error
            later = [b for b in bases if b > base and (self._known.clean or self._log_bytes(b))]
            followed = inspection.followed is not None or bool(later)
            if self._known.is_torn_tail(damage.offset, followed=followed):
                return True
            if followed:
                where = inspection.followed if inspection.followed is not None else f"segment {later[0]}"
                why = f"offset {damage.offset} is missing, and sound batches follow at {where}"
            else:
                why = f"offset {damage.offset} was synced, so this is no torn tail"
            raise CorruptBatchError.damage(
                f"{damage.text}; {why}", damage.code, inspection.file, damage.position, damage.offset
            )
        return False

    def _check_end(self, inspections: dict[int, Inspection], bases: list[int]) -> None:
        """Raise CorruptBatchError if a valid log has a wrong end, or a gap where there must be none."""
        if not bases:
            end, file, position = 0, self._directory, 0
        else:
            inspection = inspections.get(bases[-1])
            end = inspection.next_offset if inspection is not None else self.sound_end or bases[-1]
            segment = self._segments[bases[-1]]
            file, position = segment.file, segment.size
            if inspection is not None and inspection.gap is not None:
                text = (
                    f"offset {inspection.gap.offset} follows {inspection.gap.next_offset - 1}: no append "
                    "leaves a gap, so this batch has a wrong base offset"
                )
                raise CorruptBatchError.damage(
                    text, "offsets-fall", file, inspection.gap.position, inspection.gap.next_offset
                )
        expected = self._known.contradicts(end)
        if expected is None:
            return
        if end > expected:
            position = segment.position_of(expected)
        raise wrong_end(file, position, end, expected, clean=self._known.clean)

    def _log_bytes(self, base: int) -> int:
        facts = self._files.stat(os.path.join(self._directory, names.segment_file(base, names.LOG)))
        return 0 if facts is None else facts.size

    def cuts(self, inspections: dict[int, Inspection]) -> list[Cut]:
        """Return the damaged log files that `mend` changes. Zeros behind a log are room for appends."""
        damaged = _first_damaged(inspections)
        if damaged is None:
            return []
        behind = [(segment.file, base) for base, segment in self._segments.items() if base > damaged]
        found = inspections[damaged]
        cut = Cut(found.file, found.file_size, found.size)
        return [cut, *(Cut(file, self._log_bytes(base), None) for file, base in behind)]

    def mend(self, inspections: dict[int, Inspection]) -> None:
        """Repair the files by the result of `find`.

        Segments behind a cut are removed first, from the end, so that the log is always a prefix.
        """
        damaged = _first_damaged(inspections)
        if damaged is not None:
            behind = [base for base in self._segments if base > damaged]
            if behind:  # closed segments are cut: new segments may look like them
                forget_accounts(self._files, self._directory)
            for base in reversed(behind):
                self._remove_segment(base)
                self._files.fsync_dir(self._directory)  # or a power cut could keep a segment behind a hole
                inspections.pop(base, None)
            if behind:  # the damaged segment is the active one now
                inspections[damaged] = self._walk(damaged, active=True)
        for base, inspection in inspections.items():
            done = repair(self._files, inspection)
            if inspection.damage is not None:
                self._repairs.add(
                    "torn-tail",
                    names.segment_file(base, names.LOG),
                    f"{done.cut_bytes} bytes cut: {inspection.damage.text}",
                    cut_bytes=done.cut_bytes,
                    offset=inspection.next_offset,
                )
            for path in done.rebuilt:
                self._repairs.add("index", os.path.basename(path), "built again")

    def _remove_segment(self, base: int) -> None:
        path = os.path.join(self._directory, names.segment_file(base, names.LOG))
        facts = self._files.stat(path)
        for extension in names.SEGMENT_EXTENSIONS:
            self._files.unlink(
                os.path.join(self._directory, names.segment_file(base, extension)), missing_ok=True
            )
        size = facts.size if facts is not None else 0
        self._repairs.add(
            "lost-segment", os.path.basename(path), "it was behind a torn tail", cut_bytes=size, offset=base
        )
