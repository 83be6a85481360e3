"""Combine several log directories into one, as a broker's log.dirs are.

A topic's partitions are spread over the directories; each new partition is made in the directory with the
fewest. A directory that fails goes offline alone: its partitions raise `OfflineError`, and the rest is
served. The partition of a key depends on the number of the topic's partitions, those of a failed directory
included. So every root keeps the list of all partitions in `lastword.partitions`, framed JSON; brokers ignore
it. A single directory has no such file. A damaged list is ignored, and written again when all
directories are open to append.

A partition in two directories is refused, and the others are served, with one exception: a move that a crash
interrupted between its two renames is finished here (`settle`).

`move` moves a partition from one directory to another, while it is appended to and read:

```
step                                               source            target      a crash leaves
1  copy closed files to <t>-<p>.<hex>-future       t-p               -future     t-p; the copy is removed
2  no more appends: flush, copy the rest, fsync    t-p               -future     likewise
3  complete the note, target's checkpoints,
   rename to t-p, fsync root                       t-p               t-p + note  both: settle finishes
4  close the leases of the source (`moving`),
   copy them again                                 t-p + moving      t-p + note  both: settle finishes
5  rename the source to -delete, fsync root        t-p.<hex>-delete  t-p + note  the target's
6  remove the note                                 t-p.<hex>-delete  t-p         the target's
```

Readers without a lock write leases. The note has the checksums of those that were copied in step 2; what was
written to the source since is copied in step 4, or by `settle`. Each side writes first and reads afterwards:
step 4 makes the mark `moving` and then copies, and a reader writes its lease and then looks for the mark
(`partition.leases`). So either step 4 meets the lease, or the reader meets the mark, and knows that its lease
is not taken: it writes to the target (`api.open_dirs`), or is refused if it has opened the source alone. A
reader that looks after step 5 meets neither mark nor directory, with the same result. The
copies are durable before step 5, and a lease that was taken in the source before the mark is there as long as
the source has its name. A reader that finds the target before step 3 is durable syncs its root.

After an error between 3 and 5 the source refuses the partition until the directories are opened again.
Kafka renames in the same order, and refuses to start if it was killed between its renames. The note names the
source directory, and the log end there at the time. If both directories have the partition, the source is
removed if its log end is still the noted one. If the log has grown since, another process appended to it
alone, and the partition is refused.

Only `-future` directories with the note of a move, `lastword/moved-from`, are removed by lastword: they get
the note when they are made. A broker's own directories stay.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

from lastword import metrics
from lastword.errors import (
    BusyError,
    CorruptFileError,
    DataError,
    DiskFullError,
    DuplicatePartitionError,
    FileVanishedError,
    LastwordError,
    OfflineError,
    StorageError,
    UsageError,
)
from lastword.files import Files, real_path
from lastword.files.framed import Framed
from lastword.logdir.checkpoints import TopicPartition, part_of_a_commit
from lastword.logdir.identity import (
    MoveNote,
    directory_name,
    read_move_note,
    remove_move_note,
    write_move_note,
)
from lastword.logdir.log_dir import LogDirectory
from lastword.logdir.topics import Listing
from lastword.partition import leases
from lastword.partition.directory_segments import DirectorySegments
from lastword.partition.log import PartitionLog
from lastword.partition.view import PartitionView
from lastword.segment import names

LIST = Framed(
    "partitions", 1, "bad-partition-list", "open all directories to write: the list is written again"
)


class StandIn:
    """Stand-in for the directory of partitions that cannot be used. Every use raises `error`.

    The directory could not be opened (OfflineError), or two directories have the partition.
    """

    def __init__(self, path: str, error: LastwordError) -> None:
        self.path = path
        self.error = error

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise self.error

    def __repr__(self) -> str:
        return f"StandIn({self.path!r})"


class LogDirSet:
    """The directories that are served, those that are offline, and the directory of each partition."""

    def __init__(self, directories: Sequence[LogDirectory], offline: Mapping[str, LastwordError]) -> None:
        self.directories = list(directories)
        self._failed: dict[str, LastwordError] = dict(offline)
        self._log_dirs: dict[TopicPartition, LogDirectory] = {}
        self._last: tuple[list[Listing], dict[str, dict[int, LogDirectory]]] = ([], {})
        for path in offline:
            metrics.DIR_OFFLINE.set(1, real_path(path))
        for directory in self.directories:
            directory.shared_topic_id = self.topic_id
            directory.directory_count = len(self.directories)
        if len(self.directories) > 1:
            self._settle()
            if not offline and self.directories[0].mode == "a":
                half = {topic for directory in self.directories for topic in directory.half_deleted}
                gone = [topic for topic in half if not self.log_dirs(topic)]
                for directory in self.directories if gone else ():
                    directory.remove_settings(gone)
                self.write_list()

    @property
    def offline(self) -> dict[str, LastwordError]:
        """Directories that failed, by path, with the reason."""
        errors = dict(self._failed)
        for directory in self.directories:
            error = directory.files.offline(directory.path)
            if error is not None:
                errors.setdefault(directory.path, error)
        return errors

    def _settle(self) -> None:
        """Finish interrupted moves."""
        seen: dict[TopicPartition, LogDirectory] = {}
        for directory in self.directories:
            for tp in self._listing(directory).partitions:
                first = seen.setdefault(tp, directory)
                if first is not directory:
                    with suppress(DataError):  # raised when that partition is used
                        seen[tp] = settle(tp, first, directory)

    def _listing(self, directory: LogDirectory) -> Listing:
        """Return the contents of a directory; of a failed one, as it was last listed."""
        try:
            return directory.listing()
        except StorageError as error:
            self._failed.setdefault(directory.path, error)
            metrics.DIR_OFFLINE.set(1, real_path(directory.path))
            return directory.last_listing

    # -------------------------------------------------------------- where things are

    def log_dirs_by_topic(self) -> dict[str, dict[int, LogDirectory]]:
        """Return topic names, sorted, with their partitions, ascending, and the directory of each.

        An offline directory, and one of two that have a partition, is represented by an object that raises
        the error. A caller must not change the result: it is the same object until a partition is added or
        removed.
        """
        listings = [self._listing(directory) for directory in self.directories]
        if not self._failed and list(map(id, listings)) == list(map(id, self._last[0])):
            return self._last[1]
        directories: dict[TopicPartition, Any] = {}
        for directory, listing in zip(self.directories, listings, strict=True):
            for tp in listing.partitions:
                first = directories.setdefault(tp, directory)
                if first is not directory:
                    directories[tp] = _one_of(tp, first, directory)
        opened = {directory.path for directory in self.directories}
        for path, error in self._failed.items():
            if path in opened:  # its partitions are known
                continue
            stand_in = StandIn(path, OfflineError.of("a partition", path, error))
            for tp in self.read_list():
                directories.setdefault(tp, stand_in)
        self._log_dirs = directories
        topics: dict[str, dict[int, LogDirectory]] = {}
        for tp in sorted(directories):
            topics.setdefault(tp.topic, {})[tp.partition] = directories[tp]
        if not self._failed:
            self._last = listings, topics
        return topics

    def log_dirs(self, topic: str) -> dict[int, LogDirectory]:
        """Return the partitions of a topic, ascending, with their directories; none: there is no such topic.

        The same as in `log_dirs_by_topic`. The cost does not depend on the number of topics, also after one
        was created.
        """
        log_dirs: dict[int, LogDirectory] = {}
        for directory in self.directories:
            for partition in self._listing(directory).numbers.get(topic, ()):
                first = log_dirs.setdefault(partition, directory)
                if first is not directory:
                    log_dirs[partition] = _one_of(TopicPartition(topic, partition), first, directory)
        if self._failed:  # it may have partitions of the topic
            return self.log_dirs_by_topic().get(topic, {})
        return dict(sorted(log_dirs.items()))

    def log_dir(self, topic: str, partition: int) -> LogDirectory | None:
        """Return the directory of a partition; None if there is none. Fast if it was found before."""
        if len(self.directories) == 1 and not self._failed:
            return self.directories[0]
        tp = TopicPartition(topic, partition)
        known = self._log_dirs.get(tp)
        if known is not None and (isinstance(known, StandIn) or known.holds(*tp)):
            return known
        self.log_dirs_by_topic()
        return self._log_dirs.get(tp)

    def serves(self, log_dir: LogDirectory) -> bool:
        """Return whether a directory can be used now.

        `log_dirs_by_topic` has stand-ins for those that cannot.
        """
        return not isinstance(log_dir, StandIn) and log_dir.files.offline(log_dir.path) is None

    def topic_id(self, topic: str) -> str | None:
        """Return the topic's id, from the first directory that has one."""
        for directory in self.directories:
            with suppress(LastwordError):
                topic_id = directory.topic_id(topic)
                if topic_id is not None:
                    return topic_id
        return None

    # -------------------------------------------------------------- placing

    def assign(self, counts: Mapping[str, int]) -> dict[LogDirectory, dict[str, list[int]]]:
        """Assign new partitions of topics: the directory with the fewest partitions first.

        OfflineError while a directory is offline, because it may hold a topic of that name.

        Args:
            counts: The number of new partitions of each topic.

        Returns:
            For each directory the partitions of each topic, numbered from 0.
        """
        for path, error in self.offline.items():
            raise OfflineError.of("what may be a topic of that name", path, error)
        load = [(self._listing(directory).size, at) for at, directory in enumerate(self.directories)]
        placed: dict[LogDirectory, dict[str, list[int]]] = {}
        for topic, count in counts.items():
            for partition in range(count):
                fewest = min(load)
                load[load.index(fewest)] = (fewest[0] + 1, fewest[1])
                directory = self.directories[fewest[1]]
                placed.setdefault(directory, {}).setdefault(topic, []).append(partition)
        return placed

    # -------------------------------------------------------------- the list of all

    def write_list(self) -> None:
        """Update `lastword.partitions` in every root; only with several directories."""
        if len(self.directories) < 2 or self._failed:
            return
        every = sorted({tp for directory in self.directories for tp in self._listing(directory).partitions})
        data = LIST.encode({"partitions": [[tp.topic, tp.partition] for tp in every]})
        for directory in self.directories:
            path = os.path.join(directory.path, names.PARTITION_LIST)
            with suppress(StorageError):  # the list is needed only while a directory is offline
                if not directory.files.exists(path) or directory.files.read_bytes(path) != data:
                    directory.files.write_atomic(path, data)

    def read_list(self) -> list[TopicPartition]:
        """Return all partitions that the lists of the available roots name."""
        partitions: set[TopicPartition] = set()
        for directory in self.directories:
            path = os.path.join(directory.path, names.PARTITION_LIST)
            with suppress(CorruptFileError, StorageError):
                partitions.update(read_partition_list(directory.files, path))
        return sorted(partitions)


def read_partition_list(files: Files, path: str) -> list[TopicPartition]:
    """Return the partitions that a list names; none if there is no list.

    CorruptFileError if it is damaged.
    """
    fields = LIST.load(files, path)
    if fields is None:
        return []
    with LIST.reading(path):
        return [
            TopicPartition(str(topic), names.check_partition(number))
            for topic, number in fields["partitions"]
        ]


# ---------------------------------------------------------------- move a partition


COPY_BYTES = 1 << 20


def move(
    source: LogDirectory,
    target: LogDirectory,
    topic: str,
    partition: int,
    commits: AbstractContextManager[object] | None = None,
) -> None:
    """Move one partition. Appends and reads continue, except for the last moment. Durable when it returns.

    A holder of the old `PartitionLog` gets a BusyError and must get the new one. `commits` is held in that
    moment, if it is given: no transaction has records there without a marker.

    Raises:
        DiskFullError: The target has too little room; nothing was moved.
        UsageError: The partition is in the target already.
        BusyError: A commit to the partition is incomplete.
    """
    tp = TopicPartition(topic, partition)
    if source is target or target.holds(*tp):
        raise UsageError(f"{tp} is in {target.path} already", remedy="name another directory")
    with source.claim(*tp):
        log = source.log(*tp)
        _check_whole(log)
        needed, free = sum(s.size for s in log.segments), target.files.free_bytes(target.path)
        if needed > free:
            raise DiskFullError.of(str(tp), target.path, needed, free, target.path)
        future = _make_future(source, target, tp)
        try:
            copied = _copy_closed(log, future, target.files)
            # Both directories in one order: another thread may move a partition the other way.
            first, second = sorted((source, target), key=lambda directory: directory.path)
            with commits or nullcontext(), first.lock, second.lock, log.lock:
                _check_whole(log)
                log.flush()
                _finish(source, target, tp, log, future, copied)
        except BaseException as error:
            if not target.holds(*tp):
                with suppress(LastwordError):
                    target.files.remove_tree(future)
            elif source.holds(*tp):  # a record that is appended here would not be in the other directory
                source.refuse(tp, _unfinished(tp, target, error))
            raise


def _unfinished(tp: TopicPartition, target: LogDirectory, error: BaseException) -> StorageError:
    return StorageError(
        f"the move of {tp} to {target.path} did not come to its end: {error or type(error).__name__}",
        remedy="open all directories again: the move is finished then",
        file=target.directory(*tp),
    )


def _check_whole(log: PartitionLog) -> None:
    """Raise BusyError if a commit is incomplete: staged files are not moved."""
    if log.incomplete_commit_offset is not None:
        raise part_of_a_commit(log, "cannot be moved")


def _make_future(source: LogDirectory, target: LogDirectory, tp: TopicPartition) -> str:
    files, token = target.files, f"{random.SystemRandom().getrandbits(128):032x}"
    begun = os.path.join(target.path, names.marked_partition_dir(*tp, "delete", token))
    future = os.path.join(target.path, f"{tp}.{token}-future")
    files.mkdir(begun)  # without its note, opening removes a directory of this name
    files.mkdir(os.path.join(begun, names.PRIVATE))
    write_move_note(files, begun, MoveNote(directory_name(source.files, source.path)))
    files.fsync_dir(begun)
    files.rename(begun, future)
    files.fsync_dir(target.path)
    return future


def _copy_closed(log: PartitionLog, future: str, files: Files) -> set[str]:
    """Copy the closed segments without blocking appends. The claim keeps rewrites away."""
    copied: set[str] = set()
    listing = set(log.files.listdir(log.directory))
    for segment in log.segments:
        if segment.active:
            continue
        for extension in names.SEGMENT_EXTENSIONS:
            name = names.segment_file(segment.base_offset, extension)
            if name in listing:
                _copy(log.files, os.path.join(log.directory, name), files, os.path.join(future, name))
                copied.add(name)
    return copied


def _finish(
    source: LogDirectory,
    target: LogDirectory,
    tp: TopicPartition,
    log: PartitionLog,
    future: str,
    copied: set[str],
) -> None:
    """Do steps 2 to 6. The log is flushed, and locked until it is closed."""
    files, here = target.files, {s.base_offset for s in log.segments}
    for name in log.files.listdir(log.directory):
        parsed = names.parse_segment_file(name)
        path = os.path.join(log.directory, name)
        if name in copied or log.files.is_dir(path) or name.endswith(".tmp"):
            continue
        if parsed is not None and (
            parsed.suffix or (parsed.extension in names.SEGMENT_EXTENSIONS and parsed.base_offset not in here)
        ):
            continue  # being deleted
        _copy(log.files, path, files, os.path.join(future, name))
    _copy_private(log, future, files)
    known = {name: _checksum(data) for name, data in _leases(files, future).items()}
    note = MoveNote(directory_name(source.files, source.path), log.log_end, known)
    write_move_note(files, future, note)
    files.fsync_dir(os.path.join(future, names.PRIVATE))
    files.fsync_dir(future)
    target.attach(tp, log.recovery_point, log.log_start, source.first_dirty(*tp))
    final = target.directory(*tp)
    files.rename(future, final)
    files.fsync_dir(target.path)
    leases.close(source.files, source.directory(*tp))
    _take_leases(source, target, tp)
    log.retire(BusyError(f"{tp} was moved to {target.path}", remedy="get the partition again"))
    source.discard(tp)
    remove_move_note(files, final)
    log.goes_on_in(target.log(*tp))  # recovered now, so that the target can be closed cleanly


def _copy_private(log: PartitionLog, future: str, files: Files) -> None:
    """Copy our plain files: quarantine, notes, accounts. Directories there are unpublished rewrites."""
    private = os.path.join(log.directory, names.PRIVATE)
    if not log.files.exists(private):
        return
    for name in log.files.listdir(private):
        path = os.path.join(private, name)
        if name != names.MOVED_FROM and not name.endswith(".tmp") and not log.files.is_dir(path):
            is_lease = name.startswith(names.LEASE)
            with suppress(FileVanishedError) if is_lease else nullcontext():  # a reader has released it
                _copy(log.files, path, files, os.path.join(future, names.PRIVATE, name))


def _leases(files: Files, directory: str) -> dict[str, bytes]:
    """Return the content of the files of leases on a partition, by name."""
    private = os.path.join(directory, names.PRIVATE)
    found: dict[str, bytes] = {}
    for name in files.listdir(private) if files.exists(private) else ():
        if name.startswith(names.LEASE) and not name.endswith(".tmp"):
            with suppress(FileVanishedError):  # a reader has released it
                found[name] = files.read_bytes(os.path.join(private, name))
    return found


def _checksum(data: bytes | None) -> str | None:
    return None if data is None else hashlib.blake2b(data, digest_size=16).hexdigest()


def _take_leases(source: LogDirectory, target: LogDirectory, tp: TopicPartition) -> None:
    """Make the changes of leases that readers without a lock have made in the source since the copy.

    A lease that was changed in the target already stays.
    """
    files, final = target.files, target.directory(*tp)
    note = read_move_note(files, final)
    known = {} if note is None else note.leases
    now, there = _leases(source.files, source.directory(*tp)), _leases(files, final)
    for name in now.keys() | known.keys():
        data, path = now.get(name), os.path.join(final, names.PRIVATE, name)
        if _checksum(data) != known.get(name) == _checksum(there.get(name)):
            if data is None:
                files.unlink(path, missing_ok=True)
                files.fsync_dir(os.path.dirname(path))
            else:
                files.write_atomic(path, data)


def _copy(source: Files, path: str, target: Files, to: str) -> None:
    """Copy one file with its modification time, synced.

    Retention uses that time for records without timestamps.
    """
    with source.open_read(path) as reading, target.open_append(to, create=True, exclusive=True) as writing:
        facts = reading.stat()
        position = 0
        while position < facts.size:
            data = reading.pread(min(COPY_BYTES, facts.size - position), position)
            if not data:
                break
            writing.append(data)
            position += len(data)
        writing.fsync()
    target.set_mtime(to, facts.mtime_ms)


# ---------------------------------------------------------------- after a crash


def chosen(tp: TopicPartition, first: LogDirectory, second: LogDirectory) -> LogDirectory:
    """Return the directory to which the partition was moved, of two that hold it.

    DuplicatePartitionError if there is no such move, or the other directory's log has grown since.
    """
    for source, target in ((first, second), (second, first)):
        note = read_move_note(target.files, target.directory(*tp))
        if note is None or note.source != directory_name(source.files, source.path):
            continue
        segments = DirectorySegments(source.files, source.directory(*tp))
        if note.log_end == PartitionView.load(segments).log_end:
            return target
    raise DuplicatePartitionError(
        f"{tp} is in {first.path} and in {second.path}",
        remedy="keep the newer of the two, and move the other out",
        file=second.directory(*tp),
    )


def _one_of(tp: TopicPartition, first: Any, second: LogDirectory) -> Any:
    """Return `chosen`; if no directory can be chosen, a stand-in that raises the error for this partition.

    The directories were listed one after the other. If the partition was moved between, one does not hold it.
    """
    if isinstance(first, StandIn):
        return first
    try:
        return chosen(tp, first, second)
    except (DataError, FileVanishedError) as error:
        for directory, other in ((first, second), (second, first)):
            if not directory.holds(*tp):
                return other
        return StandIn(first.path, error)


def settle(tp: TopicPartition, first: LogDirectory, second: LogDirectory) -> LogDirectory:
    """Return `chosen`, and finish the move if both are open to append."""
    target = chosen(tp, first, second)
    source = first if target is second else second
    if source.mode == "a":
        with suppress(DiskFullError):  # a full drive does not keep a move from its end
            leases.close(source.files, source.directory(*tp))
        _take_leases(source, target, tp)
        source.discard(tp)
        remove_move_note(target.files, target.directory(*tp))
    return target
