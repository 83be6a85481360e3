"""`DirectorySegments`: the segments of a partition directory, and how they change there.

Reading takes no lock: in a running broker's directory, beside a writer, in the middle of a swap. The log is
what recovery would find (`swap.decide`), listed until two listings agree. Listing changes nothing. The end is
that of the last valid batch: a batch that is being appended, or that a kill left half-written, is not part of
the log. But damage with valid batches behind it is no torn tail: it stays in the range, and reading it is a
CorruptBatchError.

Changing is for the process that holds the lock of the log directory. Each change is an order of writes and
syncs that a crash may interrupt anywhere: `swap` replaces segments, `cut` removes either end.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from lastword.errors import BusyError, DataError, FileTakenError, FileVanishedError, NotAPartitionError
from lastword.files import FileFacts, Files
from lastword.partition import removal_log, swap
from lastword.partition.checkpoint_file import read_offset_lines
from lastword.partition.durability import read_log_end, wrong_end
from lastword.partition.segment_store import LogVersion, PrivateSegment, SegmentSet
from lastword.records.batch import BatchHeader
from lastword.records.formats import crc_ok
from lastword.segment import names
from lastword.segment.append import AssignedBatch, SegmentAppender
from lastword.segment.scan import Damage, headers, sound_batch_after
from lastword.segment.segment import Segment
from lastword.segment.stored import SegmentFiles, SegmentId, StoredFacts, StoredSegment
from lastword.wire import HEADER_BYTES

_TRIES = 1000
_WALKED = 4096
"""Headers that the search for the last valid batch keeps: those of a segment without an index need not fit
into memory."""


class PortableSegment(NamedTuple):
    """One segment of a `PortableVersion`.

    Attributes:
        base_offset: Its base offset.
        suffix: The suffix of its files; "" but for an output in the middle of a swap.
        id: Inode, and the bytes up to its last valid batch.
        mtime_ms: Modification time of the log.
        next_offset: Only of the last segment, which is the active one.
    """

    base_offset: int
    suffix: str
    id: SegmentId
    mtime_ms: int
    next_offset: int | None


class PortableVersion(NamedTuple):
    """A version of a partition directory as plain values, for a process that sees the same directory.

    There `DirectorySegments.from_portable` returns it without listing the directory. A segment that was
    replaced since is a FileVanishedError when it is opened, as in the version itself.
    """

    log_start: int
    log_end: int
    segments: tuple[PortableSegment, ...]
    topic: FileFacts | None = None


class DirectorySegments:
    """The segments of the partition directory `directory`.

    Reading takes no lock; there is one writer, which changes the set.
    """

    def __init__(self, files: Files, directory: str) -> None:
        self.files = files
        self.directory = directory
        self._expected: _Expected | None = None
        """For `is_current`, which a read with `follow` calls for every poll."""

    def __repr__(self) -> str:
        return f"DirectorySegments({self.directory!r})"

    # -------------------------------------------------------------- read

    def load(self) -> LogVersion:
        """Return the segments of now: one version, never parts of two.

        Two listings, and the log start checkpoint before and after, must agree: then no segment was added or
        removed in between, nothing was trimmed, and the active segment, which bounds what a cleaner may use,
        is the listed one. If a file was replaced under its own name meanwhile, opening the file detects that.

        Raises:
            FileVanishedError: There is no such log.
            BusyError: The log changed again and again.
        """
        files, directory = self.files, self.directory
        check_directory(files, directory)
        # The root's log start checkpoint, which is replaced as a whole.
        log_starts = os.path.join(os.path.dirname(os.path.normpath(directory)), names.LOG_STARTS)
        for _ in range(_TRIES):
            checkpoint, topic = files.stat(log_starts), topic_facts(files, directory)
            removals = removal_log.load(files, directory)
            log_start = read_log_start(files, directory)
            listing = files.listdir(directory)
            log_files = _log_files(listing)
            try:
                decision = swap.decide(files, directory, log_files)
                segments = [self._segment(base, suffix) for base, suffix in decision.logs]
                listed_bytes = segments[-1].size if segments else 0
                if segments:
                    segments[-1] = segments[-1].ending_at(*end_of_valid_part(segments[-1]), active=True)
            except FileVanishedError:
                continue
            if _log_files(files.listdir(directory)) == log_files and files.stat(log_starts) == checkpoint:
                version = LogVersion(
                    SegmentSet(segments),
                    *_range(log_start, segments),
                    listed_bytes=listed_bytes,
                    snapshots=names.snapshot_offsets(listing),
                    topic=topic,
                    cuts=None if removals.unknown else removals.cut_count,
                )
                with suppress(FileVanishedError):
                    checked = self._with_end_checked(version, listed_bytes, listing)
                    if checked is not None:
                        return checked
        raise BusyError(f"{directory} kept changing while it was listed", remedy="try again", file=directory)

    def _with_end_checked(
        self, version: LogVersion, listed_bytes: int, listing: list[str]
    ) -> LogVersion | None:
        """Compare the log end with the one that must be there (`durability.LogEnd`).

        If they differ, the version ends where the log must end, and a read that reaches the end raises its
        `damage`. None: a writer is active, so the directory must be listed again.
        """
        if not len(version.segments):
            return version
        last, log_end = version.segments.active, version.log_end
        known = read_log_end(self.files, self.directory, log_end, listing)
        if known is None:
            return version
        expected = known.contradicts(log_end)
        if expected is None:
            expected = _missed(last, known.contiguous_from)
        if expected is None:
            return version
        facts = last.stored.facts()
        if facts is None or facts.id != (last.id.number, listed_bytes) or _is_followed(last, listed_bytes):
            return None
        if _log_files(self.files.listdir(self.directory)) != _log_files(listing):
            return None
        position = last.size if log_end < expected else last.position_of(expected)
        damage = wrong_end(last.file, position, log_end, expected, clean=known.clean)
        return replace(version, log_end=expected, damage=damage)

    def to_portable(self, version: LogVersion) -> PortableVersion | None:
        """Return a version of this directory as plain values; None if its end is damaged."""
        if version.damage is not None:
            return None
        segments = []
        for segment in version.segments:
            assert isinstance(segment.stored, SegmentFiles)
            next_offset = segment.next_offset if segment.active else None
            segments.append(
                PortableSegment(
                    segment.base_offset, segment.stored.suffix, segment.id, segment.mtime_ms, next_offset
                )
            )
        return PortableVersion(version.log_start, version.log_end, tuple(segments), version.topic)

    def from_portable(self, portable: PortableVersion) -> LogVersion:
        """Return the version of which these are the values. Reads nothing."""
        segments = [
            Segment(
                SegmentFiles(self.files, self.directory, segment.base_offset, segment.suffix),
                StoredFacts(segment.id, segment.mtime_ms),
                next_offset=segment.next_offset,
                active=segment.next_offset is not None,
            )
            for segment in portable.segments
        ]
        listed = SegmentSet(segments)
        return LogVersion(listed, portable.log_start, portable.log_end, topic=portable.topic)

    def is_current(self, version: LogVersion) -> bool:
        """Return whether the log still ends as in `version`. Segments before the last may be others.

        The newest segment is the listed file, and nothing follows it.
        """
        expected = self._expected
        if expected is None or expected.version is not version:
            if not len(version.segments):
                return False
            active = version.segments.active
            size = active.size if version.listed_bytes is None else version.listed_bytes
            following = None
            if active.base_offset != version.log_end:
                following = self.stored(version.log_end).path(names.LOG)
            expected = _Expected(version, active.stored, SegmentId(active.id.number, size), following)
            self._expected = expected
        facts = expected.stored.facts()
        if facts is None or facts.id != expected.id:
            return False
        if expected.following is not None and self.files.exists(expected.following):
            return False
        try:
            return not _is_followed(version.segments.active, expected.id.size)
        except FileVanishedError:
            return False

    def pin(self, segments: Sequence[Segment]) -> None:
        """Keep segments readable when they are replaced: an open file is, if there are enough descriptors.

        Raises:
            FileVanishedError: One was replaced since it was listed.
        """
        for segment in segments:
            segment.handle  # noqa: B018  opens it

    def _segment(self, base_offset: int, suffix: str = "") -> Segment:
        return Segment.load(SegmentFiles(self.files, self.directory, base_offset, suffix))

    # -------------------------------------------------------------- append

    def create(self, base_offset: int, *, index_interval_bytes: int) -> SegmentAppender:
        """Begin an empty segment at the log end.

        The log has no segment of this base offset: a file under it was left by a begin that failed, and is
        removed.
        """
        stored = self.stored(base_offset)
        return _created(
            stored, lambda: SegmentAppender.create(stored, index_interval_bytes=index_interval_bytes)
        )

    def ingest(
        self, file: str, batches: Sequence[AssignedBatch], *, index_interval_bytes: int
    ) -> SegmentAppender:
        """Make a file, which holds these batches, the last segment; durable when it returns.

        The file is renamed, and must be on the same drive.
        """
        stored = self.stored(batches[0].base_offset)
        return _created(
            stored,
            lambda: SegmentAppender.from_file(
                stored, file, batches, index_interval_bytes=index_interval_bytes
            ),
        )

    def stored(self, base_offset: int) -> SegmentFiles:
        """Return what is stored under a base offset of the log; its facts are None if there is nothing."""
        return SegmentFiles(self.files, self.directory, base_offset)

    # -------------------------------------------------------------- build in private

    def create_output(self, base_offset: int, within: str | None = None) -> PrivateSegment:
        """Return an empty private segment.

        `within`: a directory that the caller has made for outputs; its `lastword` directory may be missing.

        The location is a directory `<partition>/lastword/rewrite-<base offset>-<token>/` with a random token:
        a second attempt at the same group never meets the files of the first.
        """
        parent = within or self.directory
        private = f"{parent}/{names.PRIVATE}"
        if not self.files.exists(private):
            with suppress(FileTakenError):  # another output, or a reader's lease, came first
                self.files.mkdir(private)
            self.files.fsync_dir(parent)
        location = f"{private}/{names.REWRITE_PREFIX}{base_offset:020d}-{os.urandom(8).hex()}"
        self.files.mkdir(location)
        return PrivateSegment(location, SegmentFiles(self.files, location, base_offset))

    def output(self, location: str, base_offset: int) -> SegmentFiles:
        """Return a private segment that was built, also in another process."""
        return SegmentFiles(self.files, location, base_offset)

    def discard(self, location: str) -> None:
        """Remove a private segment that is not published, or what is left of one that was."""
        if self.files.exists(location):
            self.files.remove_tree(location)

    def discard_outputs(self) -> None:
        """Remove every private segment. For the only cleaning of the partition."""
        private = f"{self.directory}/{names.PRIVATE}"
        if self.files.exists(private):
            for name in self.files.listdir(private):
                if name.startswith(names.REWRITE_PREFIX):
                    self.discard(f"{private}/{name}")

    # -------------------------------------------------------------- change the set

    def after_failed_replace(self, segments: SegmentSet) -> SegmentSet:
        """Finish or undo a swap that failed; return the segments. `segments`: those before it."""
        files, directory = self.files, self.directory
        swap.recover(files, directory)
        logs = [base for base, _ in swap.decide(files, directory, files.listdir(directory)).logs]
        known = {s.base_offset: s for s in segments}
        kept: list[Segment] = []
        for base in logs:
            loaded = self._segment(base)
            before = known.get(base)
            kept.append(before if before is not None and before.id.number == loaded.id.number else loaded)
        active = segments.active
        return SegmentSet([*(s for s in kept if s.base_offset != active.base_offset), active])


class _Expected(NamedTuple):
    """The files of a version that is current.

    Attributes:
        version: The version.
        stored: Its last segment, and `id`: number and file size of that.
        following: The log that a roll would create; None: the last segment is empty.
    """

    version: LogVersion
    stored: StoredSegment
    id: SegmentId
    following: str | None


def _created(stored: SegmentFiles, create: Callable[[], SegmentAppender]) -> SegmentAppender:
    try:
        return create()
    except FileTakenError:  # left by a roll that did not come to its end
        for extension in names.SEGMENT_EXTENSIONS:
            stored.remove(extension)
        return create()


def topic_facts(files: Files, directory: str) -> FileFacts | None:
    """Return the facts of the file with a partition's topic id. They stay as they are until it is deleted."""
    return files.stat(os.path.join(directory, names.PARTITION_METADATA))


def check_directory(files: Files, directory: str) -> None:
    """Raise NotAPartitionError if the path is a link or a file. A path that does not exist is no error."""
    path = os.path.normpath(directory)
    facts = files.stat(path)
    if facts.kind == "link" if facts is not None else files.is_link(path):  # a broken link has no facts
        raise NotAPartitionError.link(path)
    if facts is not None and facts.kind != "dir" and not files.is_dir(path):
        raise NotAPartitionError.of(path, "directory")


def _log_files(listing: list[str]) -> list[str]:
    """Return the names that determine the log. Indexes are added and removed beside a writer."""
    return [n for n in listing if names.LOG in n or n.endswith(names.SUFFIXES)]


def _range(checkpointed: int, segments: list[Segment]) -> tuple[int, int]:
    """Return log start and log end."""
    if not segments:
        return checkpointed, checkpointed
    log_end = segments[-1].next_offset
    first = segments[0].base_offset
    return (checkpointed if first < checkpointed <= log_end else first), log_end


def read_log_start(files: Files, directory: str) -> int:
    """Return the log start of the root's checkpoint; 0 if there is none, or if the file is damaged."""
    root, name = names.root_and_name(directory)
    return read_offset_lines(files, f"{root}/{names.LOG_STARTS}").offsets.get(name, 0)


def _missed(segment: Segment, end: int | None) -> int | None:
    """Return `end` if the last segment holds offsets above it and no batch ends there; else None.

    Then a batch has a wrong base offset, which no checksum covers.
    """
    if end is None or not segment.base_offset < end < segment.next_offset:
        return None
    try:
        return end if segment.end_before(end) != end else None
    except DataError:
        return None  # a read raises it


def end_of_valid_part(segment: Segment, trusted_end: int | None = None) -> tuple[int, int]:
    """Return position and next offset behind the last valid batch; searches from where the index ends.

    `trusted_end`: that of the segment, if it was computed.
    """
    file_size = segment.size
    if trusted_end is None:
        trusted_end, last = segment.last_trusted()
        if last is not None and last.end == file_size:
            return file_size, last.next_offset
    start, next_offset = trusted_end, segment.base_offset
    while True:
        end, next_offset = _valid_end(segment, start, next_offset, file_size)
        if end == file_size:
            return end, next_offset
        damage = Damage(end, next_offset, "tail", "")
        following = sound_batch_after(segment.handle, segment.file, damage, file_size, segment.base_offset)
        if following is None:
            return end, next_offset
        start = following


def _is_followed(segment: Segment, file_size: int) -> bool:
    """Return whether a valid batch begins at the end of an active segment: it was appended over zeros."""
    if file_size <= segment.size:
        return False
    header = segment.handle.pread(HEADER_BYTES, segment.size)
    if not header.strip(b"\0"):
        return False
    return _valid_end(segment, segment.size, segment.next_offset, file_size)[0] > segment.size


def _valid_end(segment: Segment, start: int, next_offset: int, file_size: int) -> tuple[int, int]:
    """Walk from `start`; return position and next offset behind the last batch with a right checksum."""
    walked: list[BatchHeader] = []
    try:
        for header in headers(segment.handle, segment.file, start, file_size, stop_at_partial_tail=True):
            walked.append(header)
            if len(walked) >= _WALKED and _is_valid(segment, header):
                start, next_offset = header.end, header.next_offset
                walked.clear()
    except DataError:
        pass
    while walked:
        last = walked.pop()
        if _is_valid(segment, last):
            return last.end, last.next_offset
    return start, next_offset


def _is_valid(segment: Segment, header: BatchHeader) -> bool:
    data = segment.read_batch(header)
    return len(data) == header.size and crc_ok(data, header, 0)
