"""Move a partition from one log directory to another, while it is appended to and read.

```
step                                               source            target      a crash leaves
1  copy closed files to <t>-<p>.<hex>-future       t-p               -future     t-p; the copy is removed
2  no more appends: flush, copy the rest, fsync    t-p               -future     likewise
3  complete the note, target's checkpoints,
   rename to t-p, fsync root                       t-p               t-p + note  both: settle finishes
4  rename the source to -delete, fsync root        t-p.<hex>-delete  t-p + note  the target's
5  remove the note                                 t-p.<hex>-delete  t-p         the target's
```

Kafka renames in the same order, and refuses to start if it was killed between 3 and 4. The note names the
source directory, and the log end there at the time. If both directories have the partition, the source is
removed if its log end is still the noted one. If the log has grown since, another process appended to it
alone, and the partition is refused.

Only `-future` directories with the note of a move, `lastword/moved-from`, are removed by lastword: they get
the note when they are made. A broker's own directories stay.
"""

from __future__ import annotations

import os
import random
from contextlib import suppress

from lastword.errors import BusyError, DiskFullError, DuplicatePartitionError, LastwordError, UsageError
from lastword.files import Files
from lastword.logdir.checkpoints import TopicPartition, part_of_a_commit
from lastword.logdir.identity import directory_name, read_move_note, remove_move_note, write_move_note
from lastword.logdir.log_dir import LogDirectory
from lastword.partition.directory_segments import DirectorySegments
from lastword.partition.log import PartitionLog
from lastword.partition.view import PartitionView
from lastword.segment import names

COPY_BYTES = 1 << 20


def move(source: LogDirectory, target: LogDirectory, topic: str, partition: int) -> None:
    """Move one partition. Appends and reads continue, except for the last moment. Durable when it returns.

    A holder of the old `PartitionLog` gets a BusyError and must get the new one.

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
            with source.lock, log.lock:
                _check_whole(log)
                log.flush()
                _finish(source, target, tp, log, future, copied)
        except LastwordError:
            if not target.holds(*tp):
                with suppress(LastwordError):
                    target.files.remove_tree(future)
            raise


def _check_whole(log: PartitionLog) -> None:
    """BusyError if a commit is incomplete: staged files are not moved."""
    if log.incomplete_commit_offset is not None:
        raise part_of_a_commit(log, "cannot be moved")


def _make_future(source: LogDirectory, target: LogDirectory, tp: TopicPartition) -> str:
    files, token = target.files, f"{random.SystemRandom().getrandbits(128):032x}"
    begun = os.path.join(target.path, names.marked_partition_dir(*tp, "delete", token))
    future = os.path.join(target.path, f"{tp}.{token}-future")
    files.mkdir(begun)  # under a name that is waste until the note is in it
    files.mkdir(os.path.join(begun, names.PRIVATE))
    write_move_note(files, begun, directory_name(source.files, source.path), -1)
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
    """Do steps 2 to 5. The log is flushed, and locked until it is closed."""
    files, here = target.files, {s.base_offset for s in log.segments}
    for name in log.files.listdir(log.directory):
        parsed = names.parse_segment_file(name)
        path = os.path.join(log.directory, name)
        if name in copied or log.files.is_dir(path) or name.endswith(".tmp"):
            continue
        if parsed is not None and (parsed.suffix or _is_no_segment(parsed, here)):
            continue  # being deleted
        _copy(log.files, path, files, os.path.join(future, name))
    _copy_private(log, future, files)
    write_move_note(files, future, directory_name(source.files, source.path), log.log_end)
    files.fsync_dir(os.path.join(future, names.PRIVATE))
    files.fsync_dir(future)
    target.attach(tp, log.recovery_point, log.log_start, source.first_dirty(*tp))
    final = target.directory(*tp)
    files.rename(future, final)
    files.fsync_dir(target.path)
    moved = BusyError(f"{tp} was moved to {target.path}", remedy="ask for the partition again")
    log.retire(moved)
    source.discard(tp)
    remove_move_note(files, final)
    target.log(*tp)  # recovered now, so that the target can be closed cleanly


def _is_no_segment(file: names.SegmentFile, bases: set[int]) -> bool:
    return file.extension in names.SEGMENT_EXTENSIONS and file.base_offset not in bases


def _copy_private(log: PartitionLog, future: str, files: Files) -> None:
    """Copy our plain files: quarantine, notes, accounts. Directories there are unpublished rewrites."""
    private = os.path.join(log.directory, names.PRIVATE)
    if not log.files.exists(private):
        return
    for name in log.files.listdir(private):
        path = os.path.join(private, name)
        if name != names.MOVED_FROM and not name.endswith(".tmp") and not log.files.is_dir(path):
            _copy(log.files, path, files, os.path.join(future, names.PRIVATE, name))


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
        if note is not None and note == (directory_name(source.files, source.path), _log_end(source, tp)):
            return target
    raise DuplicatePartitionError.of(str(tp), first.path, second.path)


def settle(tp: TopicPartition, first: LogDirectory, second: LogDirectory) -> LogDirectory:
    """Return `chosen`, and finish the move if both are open to append."""
    target = chosen(tp, first, second)
    source = first if target is second else second
    if source.mode == "a":
        source.discard(tp)
        remove_move_note(target.files, target.directory(*tp))
    return target


def _log_end(directory: LogDirectory, tp: TopicPartition) -> int:
    return PartitionView.load(DirectorySegments(directory.files, directory.directory(*tp))).log_end
