"""Cut a log in a directory at either end, so that every crash leaves a log without a hole.

**The front**: whole segments below the log start. The names are removed immediately, the bytes later.

```
1  log start checkpoint, durable    offsets below it cannot be read any more (done by the caller)
2  files -> .deleted, fsync dir     oldest first, so the rest is always a suffix of the log
3  unlink after file.delete.delay   or at closing; opening removes the files that are left
```

A crash after 1 leaves segments below the log start: they are removed the next time. A crash inside 2 leaves a
hole below the log start, which is never read. So no order of these writes costs a record at or above the log
start. The reason why the log start was raised is noted in `<partition>/lastword/log-start`, framed JSON, for
readers of offsets that are gone. If the note is lost, only that reason is lost.

**The end**: everything from an offset on.

```
0  noted in the removal log, synced     leases and snapshot files that reach above are refused from then on
   lastword/accounts removed, synced    a file that grows after the cut may look like an accounted file
   lastword/keys removed, synced        its entries may be of records that are cut off
1  lastword/synced lowered, synced      offsets above may be given again, and are not known to be durable
2  higher segments, the newest first    each name is gone durably before the next: never a hole
3  the segment that holds the offset    cut before the first batch that reaches it; an empty batch takes the
                                        offsets that are missing below it; synced
4  its indexes                          rebuilt
5  snapshots above the offset           gone durably before the log grows there again; one at the offset is
                                        corrected if cleaning has removed its open transactions
6  leader epochs that begin there
7  the cut is noted a second time       a reader between 0 and 6 met the first note, and records that are
                                        gone now: it compares the number of notes
```

A crash anywhere leaves the log longer than requested, never shorter and never with a hole; opening makes the
other files agree with the log.

A batch that holds the offset in its middle is removed as a whole, as in Kafka, and the log continues at
exactly that offset. In Kafka only the broker's memory has that log end. Here an empty batch, as a cleaner
leaves them, takes the offsets in between: readers, and the next opening, find the same end.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence

from lastword.clock import Clock
from lastword.errors import CorruptFileError, LastwordError
from lastword.files import Files
from lastword.files.framed import Framed
from lastword.partition.segment_store import SegmentSet
from lastword.records.batch import write_batch
from lastword.segment import names
from lastword.segment.indexes import TransactionIndex
from lastword.segment.recover import recover_segment
from lastword.segment.segment import Segment
from lastword.segment.stored import SegmentFiles
from lastword.units import format_time

LOG_START_FORM = Framed(
    "log-start", 1, "bad-note", "remove the file: it only says why the log starts where it does"
)
KEYS_FORM = Framed("keys", 2, "bad-key-index", "delete the file: it is made again from the log")
"""The manifest of the key index (`lastword.keys.manifest`)."""

# ---------------------------------------------------------------- the front


def below_start(segments: SegmentSet, log_start: int) -> tuple[Segment, ...]:
    """Return the segments that are wholly below the log start: their successor begins at or below it."""
    return segments.segments[: max(0, segments.floor(log_start))]


def set_aside(
    files: Files, directory: str, gone: Iterable[Segment], listing: Sequence[str], renamed: list[str]
) -> None:
    """Rename the files of these segments to `.deleted`; durable when it returns.

    Producer snapshots at their base offsets are renamed too, except the newest of all snapshots. `renamed`
    gets each new path, also if the call fails half-way.
    """
    names_there = set(listing)
    snapshots = set(names.snapshot_offsets(listing)[:-1])
    for segment in gone:
        extensions = list(names.SEGMENT_EXTENSIONS)
        if segment.base_offset in snapshots:
            extensions.append(names.SNAPSHOT)
        for extension in extensions:
            name = names.segment_file(segment.base_offset, extension)
            if name in names_there:
                target = os.path.join(directory, name + names.DELETED)
                files.rename(os.path.join(directory, name), target)
                renamed.append(target)
    files.fsync_dir(directory)


class DeferredDeletes:
    """Files and directories that were renamed and wait for their removal.

    Times are those of the steady clock, so that a corrected date does not change the delay.
    """

    def __init__(self, files: Files, clock: Clock) -> None:
        self._files = files
        self._clock = clock
        self._waiting: list[tuple[float, str]] = []

    @property
    def paths(self) -> list[str]:
        """The paths that wait."""
        return [path for _, path in self._waiting]

    def add(self, paths: Iterable[str], delay_ms: int) -> None:
        """Remove these paths after a delay."""
        due = self._clock.monotonic() + delay_ms / 1000
        self._waiting += [(due, path) for path in paths]

    def remove(self, *, all: bool = False) -> int:
        """Unlink the paths that are due, or all; return how many.

        A path that cannot be removed now is removed by the next opening.
        """
        now = self._clock.monotonic()
        due = [path for when, path in self._waiting if all or when <= now]
        if not due:
            return 0
        self._waiting = [(when, path) for when, path in self._waiting if not (all or when <= now)]
        for path in due:
            with contextlib.suppress(LastwordError):
                if self._files.is_dir(path):
                    self._files.remove_tree(path)
                else:
                    self._files.unlink(path, missing_ok=True)
        return len(due)


def write_note(files: Files, directory: str, log_start: int, reason: str, now_ms: int) -> None:
    """Write why the log starts where it does. A note that cannot be written is left out."""
    fields = {"log_start": log_start, "reason": reason, "time_ms": now_ms}
    private = os.path.join(directory, names.PRIVATE)
    with contextlib.suppress(LastwordError):
        if not files.exists(private):
            files.mkdir(private)
        LOG_START_FORM.save(files, os.path.join(private, names.LOG_START_NOTE), fields)


def read_note(files: Files, directory: str, log_start: int) -> str:
    """Return why offsets below `log_start` are gone, as `retention.ms, 2026-11-19 02:00Z`; "" if unknown."""
    path = os.path.join(directory, names.PRIVATE, names.LOG_START_NOTE)
    try:
        fields = LOG_START_FORM.load(files, path)
        if fields is None or int(fields["log_start"]) != log_start:
            return ""
        return f"{str(fields['reason'])[:200]}, {format_time(int(fields['time_ms']))}"
    except (LastwordError, ValueError, KeyError, TypeError):
        return ""


# ---------------------------------------------------------------- the end


def forget_accounts(files: Files, directory: str) -> None:
    """Remove the partition's garbage accounts, and its key index (step 0).

    The accounts name the files that they describe; after a cut a file may match again that holds other
    records.
    """
    private = os.path.join(directory, names.PRIVATE)
    for name in (names.ACCOUNTS, names.SUMMARY, names.KEYS):
        path = os.path.join(private, name)
        if files.exists(path):
            files.unlink(path, missing_ok=True)
            files.fsync_dir(private)


def forget_keys_above(files: Files, directory: str, log_end: int) -> None:
    """Remove a key index that reaches above the log end, before other records take these offsets."""
    path = os.path.join(directory, names.PRIVATE, names.KEYS)
    try:
        fields = KEYS_FORM.load(files, path) or {"end": log_end + 1}
        reaches = int(fields["end"]) > log_end
    except (CorruptFileError, ValueError, KeyError, TypeError):
        reaches = True
    if reaches:
        files.unlink(path, missing_ok=True)
        files.fsync_dir(os.path.dirname(path))


def remove_segments(files: Files, directory: str, gone: Iterable[Segment]) -> None:
    """Remove segments at a log's end, the newest first, each durably before the next."""
    for segment in sorted(gone, key=lambda s: s.base_offset, reverse=True):
        for extension in names.SEGMENT_EXTENSIONS:
            segment.stored.remove(extension)
        files.fsync_dir(directory)


def cut_segments(
    files: Files, directory: str, segments: SegmentSet, offset: int, epoch: int, *, index_interval_bytes: int
) -> SegmentSet:
    """Do steps 2 to 4. Return the rest of the log, its last segment active, with nothing open."""
    at = segments.floor(offset)
    remove_segments(files, directory, segments[at + 1 :])
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
    """Return a batch without records that takes the offsets [start, end)."""
    return write_batch(
        base_offset=start,
        leader_epoch=epoch,
        attributes=0,
        last_offset_delta=end - 1 - start,
        base_timestamp=-1,
        max_timestamp=-1,
        count=0,
        payload=b"",
    )
