"""Copy a partition's files into another log directory, so that they are the files of the source.

The files of a segment are sent only if they differ. A log file is that of the source if the note
`lastword/copied` in the target's partition names both: the number (inode), size and time of the source's
file, and the number of the target's. A rewritten file has a new number, also if its size is the same. So a
segment that either side has cleaned since is sent again, and so is a segment that the note does not name.

```
step                                                          a crash here leaves
1  missing files -> lastword/copy/, synced                    the old log; the next copy uses these files
2  the note; leases, names of batches, the removal log        the old log
3  checkpoints lowered to the first offset that changes       the old log
4  segments from there on -> lastword/copy/ or removed,       a prefix of the old log
   the newest first
5  lastword/copy/ -> final names, the oldest first            a longer prefix of the new log
6  checkpoints of the new log; it is opened                   the new log
```

Each segment's names are synced before the next, so a prefix is what a crash leaves, and the next copy ends
the work. Indexes that are missing or do not fit are built when the log is opened. In a bucket all of it
happens in a private copy, and one commit publishes the result.

The source is copied as of one moment: a view of its segments, the active one up to its last valid batch. If a
cleaning removes a file of the view before it is copied, FileVanishedError is raised, and the caller begins
with a new view; what was copied is used.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

from lastword.errors import (
    BusyError,
    CorruptFileError,
    DiskFullError,
    FileTakenError,
    FileVanishedError,
    UsageError,
)
from lastword.files import Files
from lastword.files.framed import Framed
from lastword.logdir.checkpoints import TopicPartition
from lastword.logdir.log_dir import LogDirectory
from lastword.partition.cut import forget_accounts
from lastword.partition.view import PartitionView
from lastword.segment import names

COPIED = Framed("copied", 1, "bad-note", "remove the file; the next copy sends every segment again")
BLOCK_BYTES = 8 << 20
OnBytes = Callable[[int], None]
"""Called with the number of bytes that were copied."""


class SourceFile(NamedTuple):
    """One file of the source.

    Attributes:
        name: The name of the file.
        number: Its inode, or the number of its entry in a bucket.
        size: Bytes to copy.
        mtime_ms: Time of the last change.
    """

    name: str
    number: int
    size: int
    mtime_ms: int

    @property
    def staged(self) -> str:
        """The name of a complete copy in `lastword/copy/`."""
        return f"{self.name}.{self.number:x}-{self.size:x}-{self.mtime_ms:x}"


class SourceSegment(NamedTuple):
    """One segment of the source: its log, its indexes, and the producer snapshot at its base offset."""

    base_offset: int
    log: SourceFile
    others: tuple[SourceFile, ...]

    @property
    def files(self) -> tuple[SourceFile, ...]:
        """All files, the log last: a log that is there has its indexes."""
        return (*self.others, self.log)


@dataclass(frozen=True, slots=True)
class SourceLog:
    """A partition as of one moment.

    Attributes:
        files: The storage.
        directory: The partition's directory.
        segments: Its segments, ascending; the last may be growing.
        log_start: The log start.
        log_end: The log end; of a part of the log, the base offset of its last segment.
        first_dirty: The cleaner's checkpoint; None: there is none.
        private: Leases, names of batches and notes: content by name. Empty for a part of a log.
        epochs: Content of the leader epochs; None: there are none.
        whole: It is the whole log.
    """

    files: Files
    directory: str
    segments: tuple[SourceSegment, ...]
    log_start: int
    log_end: int
    first_dirty: int | None
    private: Mapping[str, bytes]
    epochs: bytes | None
    whole: bool = True

    @classmethod
    def of(cls, view: PartitionView, first_dirty: int | None) -> SourceLog:
        """Return the log of a view.

        Args:
            view: The view. The notes are read after it: a note that is too new is safe.
            first_dirty: The cleaner's checkpoint, read before the view.

        Raises:
            BusyError: A commit to the partition is incomplete.
        """
        if view.incomplete_commit_offset is not None:
            raise BusyError(
                f"{view.topic}-{view.partition}: a commit to it is incomplete",
                remedy="copy again: its writer takes the commit in as soon as that is possible",
                file=view.directory,
            )
        files, directory = view.files, view.directory
        listing = set(files.listdir(directory))
        segments = []
        for segment in view.segments:
            facts = files.stat(segment.file)
            if facts is None or facts.inode != segment.id.number:
                raise FileVanishedError(f"{segment.file} was replaced", file=segment.file)
            name = os.path.basename(segment.file)
            # The indexes of the active segment are being written; they are built again.
            extensions = (
                [names.SNAPSHOT] if segment.active else [*names.SEGMENT_EXTENSIONS[1:], names.SNAPSHOT]
            )
            others = [names.segment_file(segment.base_offset, extension) for extension in extensions]
            segments.append(
                SourceSegment(
                    segment.base_offset,
                    SourceFile(name, segment.id.number, segment.size, facts.mtime_ms),
                    tuple(_source_file(files, directory, other) for other in others if other in listing),
                )
            )
        return cls(
            files,
            directory,
            tuple(segments),
            view.log_start,
            view.log_end,
            first_dirty,
            _private(files, directory),
            _content(files, os.path.join(directory, names.LEADER_EPOCHS)),
        )

    def part(self, count: int) -> SourceLog:
        """Return the first segments of the log."""
        if count >= len(self.segments):
            return self
        end = self.segments[count - 1].base_offset
        return replace(
            self,
            segments=self.segments[:count],
            log_start=min(self.log_start, end),
            log_end=end,
            first_dirty=None if self.first_dirty is None else min(self.first_dirty, end),
            private={},
            whole=False,
        )


def _source_file(files: Files, directory: str, name: str) -> SourceFile:
    facts = files.stat(os.path.join(directory, name))
    if facts is None:
        raise FileVanishedError(f"{name} is gone", file=os.path.join(directory, name))
    return SourceFile(name, facts.inode, facts.size, facts.mtime_ms)


_KEPT = (names.DROPPED_TOMBSTONES, names.PRODUCERS, names.LOG_START_NOTE)


def _private(files: Files, directory: str) -> dict[str, bytes]:
    """Return leases, names of batches and notes. Derived files, and those of one directory, stay there."""
    private = os.path.join(directory, names.PRIVATE)
    if not files.is_dir(private):
        return {}
    content = {}
    for name in files.listdir(private):
        if (name in _KEPT or name.startswith(names.LEASE)) and not name.endswith(".tmp"):
            data = _content(files, os.path.join(private, name))
            if data is not None:
                content[name] = data
    return content


def _content(files: Files, path: str) -> bytes | None:
    try:
        return files.read_bytes(path)
    except FileVanishedError:
        return None


@dataclass(frozen=True, slots=True)
class Brought:
    """The result of `bring`.

    Attributes:
        copied_bytes: Bytes that were read from the source.
        copied_segments: Segments that were sent.
        removed_segments: Segments of the target that the source does not have.
        whole: Nothing is left to copy.
    """

    copied_bytes: int
    copied_segments: int
    removed_segments: int
    whole: bool


def bring(
    source: SourceLog,
    target: LogDirectory,
    tp: TopicPartition,
    *,
    most_bytes: int | None = None,
    on_bytes: OnBytes = lambda count: None,
) -> Brought:
    """Make the files of a partition those of the source. The partition exists in the target.

    Args:
        source: The log to copy.
        target: The directory, open to append.
        tp: The partition.
        most_bytes: Stop after about this many bytes, with a part of the log that ends above the target's log
            end. None: copy everything.
        on_bytes: Called while bytes are copied.

    Raises:
        FileVanishedError: The source has changed: begin with a new view.
        UsageError: The target has records that the source does not have.
        DiskFullError: There is no room in the target.
    """
    with target.claim(*tp):
        if _Copy(source, target, tp).is_there():
            return Brought(0, 0, 0, True)
        end = target.log(*tp).log_end
        if end > source.log_end:
            raise UsageError(
                f"{target.path}: {tp} ends at {end}, and the source at {source.log_end}: "
                "the target has records of its own",
                remedy=f"use another target, or drop {tp.topic} there first",
            )
        copy = _Copy(source, target, tp)  # after the recovery of the target's log
        if most_bytes is not None:
            copy = _Copy(source.part(copy.segments_within(most_bytes, end)), target, tp)
        return copy.run(on_bytes)


class _Copy:
    """One copy of a log, or of a part of it."""

    def __init__(self, source: SourceLog, target: LogDirectory, tp: TopicPartition) -> None:
        self._source = source
        self._target = target
        self._tp = tp
        self._files = target.files
        self._directory = target.directory(*tp)
        self._private = os.path.join(self._directory, names.PRIVATE)
        self._staging = os.path.join(self._private, names.COPY)
        self._listing = self._files.listdir(self._directory)
        self._kept = self._kept_segments()
        self._keep_empty_end()

    # -------------------------------------------------------------- what is there

    def _kept_segments(self) -> dict[int, int]:
        """Return the segments whose log is that of the source: the target's number by base offset."""
        note = read_note(self._files, self._directory)
        kept = {}
        for segment in self._source.segments:
            if segment.log.name not in self._listing:
                continue
            facts = self._files.stat(os.path.join(self._directory, segment.log.name))
            if facts is None or facts.size != segment.log.size:
                continue
            known = note.get(segment.log.name)
            if not facts.size or known == (*segment.log[1:], facts.inode):
                kept[segment.base_offset] = facts.inode
        return kept

    def _keep_empty_end(self) -> None:
        """Count an empty segment at the log end as one of the source: a commit to a bucket leaves it."""
        source, bases = self._source, self._bases()
        name = names.segment_file(source.log_end, names.LOG)
        whole = len(self._kept) == len(source.segments) and bool(bases) and source.whole
        if not whole or bases[-1] != source.log_end or source.log_end in self._kept:
            return
        own = _source_file(self._files, self._directory, name)
        if not own.size:
            others = [
                _source_file(self._files, self._directory, other)
                for extension in (*names.SEGMENT_EXTENSIONS[1:], names.SNAPSHOT)
                if (other := names.segment_file(source.log_end, extension)) in self._listing
            ]
            segment = SourceSegment(source.log_end, own, tuple(others))
            self._source = replace(source, segments=(*source.segments, segment))
            self._kept[source.log_end] = own.number

    def _other_indexes(self) -> list[SourceFile]:
        """Return the source's indexes of segments that are there with others.

        The last segment of a log lacks the last entry of its time index until it is closed.
        """
        other = []
        for segment in self._source.segments:
            for file in segment.others if segment.base_offset in self._kept else ():
                facts = self._files.stat(os.path.join(self._directory, file.name))
                if not file.name.endswith(names.SNAPSHOT) and (facts is None or facts.size != file.size):
                    other.append(file)
        return other

    def _bases(self) -> list[int]:
        """Return the base offsets of the target's logs, ascending."""
        parsed = [names.parse_segment_file(name) for name in self._listing]
        return sorted(p.base_offset for p in parsed if p and p.extension == names.LOG and not p.suffix)

    def _extra(self) -> list[int]:
        """Return the target's segments that the source does not have in this form."""
        return [base for base in self._bases() if base not in self._kept]

    def is_there(self) -> bool:
        """Return whether nothing is left to do."""
        source, tp = self._source, self._tp
        if len(self._kept) < len(source.segments) or self._extra() or self._other_indexes():
            return False
        if self._files.exists(self._staging):  # of a copy that was killed
            return False
        own = _private(self._files, self._directory)
        if any(own.get(name) != data for name, data in source.private.items()):
            return False
        log_start = self._target.checkpoints.log_starts.get(tp) or 0
        first = source.segments[0].base_offset if source.segments else 0
        if source.log_start > max(log_start, first):
            return False
        return source.first_dirty is None or (self._target.first_dirty(*tp) or 0) >= source.first_dirty

    def segments_within(self, most_bytes: int, end: int) -> int:
        """Return how many segments to copy: new bytes up to a limit, but nothing of the target is lost.

        One segment is sent at least, however large it is.
        """
        total, sends = 0, False
        for number, segment in enumerate(self._source.segments):
            if segment.base_offset in self._kept:
                continue
            total += segment.log.size
            if total > most_bytes and sends and segment.base_offset >= end:
                return number
            sends = True
        return len(self._source.segments)

    # -------------------------------------------------------------- the steps

    def _missing(self) -> list[SourceSegment]:
        return [segment for segment in self._source.segments if segment.base_offset not in self._kept]

    def sent(self) -> list[SourceFile]:
        """Return the files of the source that are copied."""
        return [*(file for segment in self._missing() for file in segment.files), *self._other_indexes()]

    def run(self, on_bytes: OnBytes) -> Brought:
        """Do all steps."""
        source, files, tp = self._source, self._files, self._tp
        missing = self._missing()
        copied_bytes = self._stage(self.sent(), on_bytes)
        changed = [segment.base_offset for segment in missing] + self._extra()
        self._target.let_go(tp)
        self._write_notes()
        removed = 0
        if changed:
            self._lower_checkpoints(min(changed))
            removed = self._clear_from(min(changed))
        self._place()
        if source.epochs is not None:
            self._write(os.path.join(self._directory, names.LEADER_EPOCHS), source.epochs)
        self._target.attach(tp, source.log_end, self._log_start(), source.first_dirty)
        self._target.log(*tp)  # recovered now: indexes that are missing are built
        files.remove_tree(self._staging)
        files.fsync_dir(self._private)
        return Brought(copied_bytes, len(missing), removed, source.whole)

    def _stage(self, sent: Sequence[SourceFile], on_bytes: OnBytes) -> int:
        """Copy files into `lastword/copy/` (step 1); return the bytes that were read."""
        files = self._files
        for directory in (self._private, self._staging):
            if not files.is_dir(directory):
                files.mkdir(directory)
                files.fsync_dir(os.path.dirname(directory))
        wanted = [file for segment in self._source.segments for file in segment.files]
        present = set(files.listdir(self._staging))
        for name in present - {file.staged for file in wanted}:
            files.unlink(os.path.join(self._staging, name))
        todo = [file for file in sent if file.staged not in present]
        needed, free = sum(file.size for file in todo), files.free_bytes(self._directory)
        if needed > free:
            raise DiskFullError.of(str(self._tp), self._directory, needed, free, self._directory)
        for file in todo:
            path = os.path.join(self._staging, file.staged)
            source = self._source
            copy_file(source.files, source.directory, file, files, f"{path}.tmp", on_bytes)
            files.rename(f"{path}.tmp", path)
        files.fsync_dir(self._staging)
        return needed

    def _write_notes(self) -> None:
        """Write the note of the copied files, and the source's private files (step 2)."""
        files = self._files
        note = {}
        for segment in self._source.segments:
            number = self._kept.get(segment.base_offset)
            if number is None:
                facts = files.stat(os.path.join(self._staging, segment.log.staged))
                assert facts is not None, segment.log.staged
                number = facts.inode
            note[segment.log.name] = [*segment.log[1:], number]
        for name, data in self._source.private.items():
            self._write(os.path.join(self._private, name), data)
        COPIED.save(files, os.path.join(self._private, names.COPIED), {"logs": note})

    def _write(self, path: str, data: bytes) -> None:
        if _content(self._files, path) != data:
            self._files.write_atomic(path, data)

    def _lower_checkpoints(self, cut: int) -> None:
        """Lower what must not be above the log (step 3)."""
        files, tp, target = self._files, self._tp, self._target
        checkpoints = target.checkpoints
        log_start = checkpoints.log_starts.get(tp) or 0
        first_dirty = target.first_dirty(*tp)
        recovered = checkpoints.recovery_points.get(tp) or 0
        target.attach(
            tp,
            min(recovered, cut),
            min(log_start, cut),
            None if first_dirty is None else min(first_dirty, cut),
        )
        if (checkpoints.high_watermarks.get(tp) or 0) > cut:
            checkpoints.high_watermarks.update({tp: cut})
        files.unlink(os.path.join(self._private, names.SYNCED), missing_ok=True)
        files.fsync_dir(self._private)
        forget_accounts(files, self._directory)

    def _clear_from(self, cut: int) -> int:
        """Take the segments from `cut` on away, the newest first (step 4).

        Returns:
            The number of segments with records that the source does not have.
        """
        files, directory = self._files, self._directory
        wanted = {file.name: file for segment in self._source.segments for file in segment.files}
        present, staged, gone = set(self._listing), set(files.listdir(self._staging)), 0
        parsed = [p for p in map(names.parse_segment_file, self._listing) if p is not None and not p.suffix]
        for base in sorted({p.base_offset for p in parsed if p.base_offset >= cut}, reverse=True):
            for extension in (*names.SEGMENT_EXTENSIONS, names.SNAPSHOT):
                name = names.segment_file(base, extension)
                if name not in present:
                    continue
                path = os.path.join(directory, name)
                if base in self._kept and name in wanted and wanted[name].staged not in staged:
                    files.rename(path, os.path.join(self._staging, wanted[name].staged))
                    continue
                if extension == names.LOG and name not in wanted:
                    facts = files.stat(path)
                    gone += facts is not None and facts.size > 0
                files.unlink(path)
            files.fsync_dir(directory)
        files.fsync_dir(self._staging)
        return gone

    def _place(self) -> None:
        """Give the files in `lastword/copy/` their names, the oldest segment first (step 5)."""
        files, directory = self._files, self._directory
        staged = set(files.listdir(self._staging))
        for segment in self._source.segments:
            placed = [file for file in segment.files if file.staged in staged]
            for file in placed:
                files.rename(os.path.join(self._staging, file.staged), os.path.join(directory, file.name))
            if placed:
                files.fsync_dir(directory)

    def _log_start(self) -> int:
        """Return the log start: that of the source, but a part of its log does not lower the target's."""
        own = self._target.checkpoints.log_starts.get(self._tp) or 0
        return self._source.log_start if self._source.whole else max(self._source.log_start, own)


def files_to_send(source: SourceLog, target: LogDirectory, tp: TopicPartition) -> list[SourceFile]:
    """Return the files that `bring` would copy, for processes that copy them before with `send`."""
    copy = _Copy(source, target, tp)
    return [] if copy.is_there() else copy.sent()


def send(
    source: Files, directory: str, chosen: Iterable[SourceFile], target: Files, partition: str, own: str
) -> int:
    """Copy files into `lastword/copy/` of a partition, where `bring` finds them; return the bytes.

    Any number of processes may do this together, also with one file. No lock is needed.

    Args:
        source: The storage of the source.
        directory: The partition's directory in the source.
        chosen: The files.
        target: The storage of the target.
        partition: The partition's directory in the target.
        own: A name that no other process uses.

    Raises:
        FileVanishedError: The source has changed: begin with a new view.
    """
    private = os.path.join(partition, names.PRIVATE)
    staging = os.path.join(private, names.COPY)
    for path in (private, staging):
        if not target.is_dir(path):
            with suppress(FileTakenError):
                target.mkdir(path)
    copied_bytes = 0
    for file in chosen:
        path = os.path.join(staging, file.staged)
        if not target.exists(path):
            copy_file(source, directory, file, target, f"{path}.{own}.tmp", lambda count: None)
            target.rename(f"{path}.{own}.tmp", path)
            copied_bytes += file.size
    target.fsync_dir(staging)
    return copied_bytes


def copy_file(
    source: Files, directory: str, file: SourceFile, files: Files, to: str, on_bytes: OnBytes
) -> None:
    """Copy one file with its time, synced. FileVanishedError: it is not the file of the view any more."""
    files.unlink(to, missing_ok=True)
    with files.open_append(to, create=True, exclusive=True) as writing:
        for data in blocks(source, directory, file):
            writing.append(data)
            on_bytes(len(data))
        writing.fsync()
    files.set_mtime(to, file.mtime_ms)


def blocks(files: Files, directory: str, file: SourceFile) -> Iterable[bytes]:
    """Yield the bytes of a file of the source. FileVanishedError: it is not that file any more."""
    path = os.path.join(directory, file.name)
    with files.open_read(path) as reading:
        if reading.stat().inode != file.number:
            raise FileVanishedError(f"{path} was replaced", file=path)
        position = 0
        while position < file.size:
            data = reading.pread(min(BLOCK_BYTES, file.size - position), position)
            if not data:
                raise FileVanishedError(f"{path} ends at {position}, not at {file.size}", file=path)
            yield data
            position += len(data)


def difference(
    source: Files,
    directory: str,
    logs: Iterable[SourceFile],
    target: Files,
    copied: str,
    on_block: Callable[[], None] = lambda: None,
) -> str | None:
    """Return the first log of a copy whose bytes are not those of the source; None: there is none.

    Args:
        source: The storage of the source.
        directory: The partition's directory in the source.
        logs: The logs that were copied.
        target: The storage of the copy.
        copied: The partition's directory in the copy.
        on_block: Called for each block.
    """
    for log in logs:
        if not log.size:
            continue
        path = f"{copied}/{log.name}"
        facts = target.stat(path)
        if facts is None or facts.size != log.size:
            return path
        here = SourceFile(log.name, facts.inode, facts.size, facts.mtime_ms)
        ours = _digest(blocks(target, copied, here), on_block)
        if ours != _digest(blocks(source, directory, log), on_block):
            return path
    return None


def _digest(data: Iterable[bytes], on_block: Callable[[], None]) -> bytes:
    digest = hashlib.blake2b()
    for block in data:
        on_block()
        digest.update(block)
    return digest.digest()


def read_note(files: Files, directory: str) -> dict[str, tuple[int, int, int, int]]:
    """Return the note of a partition's copied logs: number, size, time, and the number here; {}: none."""
    path = os.path.join(directory, names.PRIVATE, names.COPIED)
    with suppress(CorruptFileError):
        fields = COPIED.load(files, path)
        if fields is not None:
            with COPIED.reading(path):
                return {
                    str(name): (int(number), int(size), int(mtime_ms), int(own))
                    for name, (number, size, mtime_ms, own) in fields["logs"].items()
                }
    return {}


def forget_note(files: Files, directory: str) -> None:
    """Remove the note: the next copy sends every segment again."""
    files.unlink(os.path.join(directory, names.PRIVATE, names.COPIED), missing_ok=True)
