"""Taking whole segments off the front of a log: the names go at once, the bytes later.

```
1  log start checkpoint, durable    what lies below is not readable any more (the caller has done it)
2  files -> .deleted, fsync dir     oldest first, so what is left is always an end of the log
3  unlink after file.delete.delay   or at closing; opening removes what is still there
```

A crash after 1 leaves segments below the log start: they are removed the next time. One inside 2 leaves a
hole below the log start, where nobody reads. So no order of these writes costs a record at or above the log
start.

Why the log start was raised is noted in `<partition>/lastword/log-start`, framed JSON, so that a reader
who comes too late is told. It is only a note: losing it loses the sentence.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence

from lastword.clock import Clock
from lastword.errors import LastwordError
from lastword.files import Files
from lastword.files.framed import Framed
from lastword.partition.segment_set import SegmentSet
from lastword.segment import names
from lastword.segment.segment import Segment
from lastword.units import format_time

NOTE = Framed("log-start", 1, "bad-note", "remove the file: it only says why the log starts where it does")


def below_start(segments: SegmentSet, log_start: int) -> tuple[Segment, ...]:
    """The segments that a log which begins at `log_start` has no record in: those whose successor begins at
    or below it.
    """
    return segments.segments[: max(0, segments.floor(log_start))]


def set_aside(files: Files, directory: str, gone: Iterable[Segment], listing: Sequence[str]) -> list[str]:
    """Rename the files of these segments, and the producer snapshots at their bases, to `.deleted`; durable
    when it returns. The newest snapshot always stays. Returns the new paths.
    """
    there = set(listing)
    snapshots = sorted(
        p.base_offset
        for p in map(names.parse_segment_file, listing)
        if p is not None and p.extension == names.SNAPSHOT and not p.suffix
    )
    renamed = []
    for segment in gone:
        extensions = list(names.SEGMENT_EXTENSIONS)
        if segment.base_offset in snapshots[:-1]:
            extensions.append(names.SNAPSHOT)
        for extension in extensions:
            name = names.segment_file(segment.base_offset, extension)
            if name in there:
                target = os.path.join(directory, name + names.DELETED)
                files.rename(os.path.join(directory, name), target)
                renamed.append(target)
    files.fsync_dir(directory)
    return renamed


class DeferredDeletes:
    """Files and directories that are renamed already and wait for their removal. Times are those of the
    steady clock, so that a corrected date neither hurries nor delays them.
    """

    def __init__(self, files: Files, clock: Clock) -> None:
        self._files = files
        self._clock = clock
        self._waiting: list[tuple[float, str]] = []

    @property
    def paths(self) -> list[str]:
        return [path for _, path in self._waiting]

    def add(self, paths: Iterable[str], delay_ms: int) -> None:
        due = self._clock.monotonic() + delay_ms / 1000
        self._waiting += [(due, path) for path in paths]

    def remove(self, *, all: bool = False) -> int:
        """Unlink what is due, or everything; returns how many. What cannot be removed now is left for the
        next opening.
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
    """Remember why the log starts where it does. A note that cannot be written is left out."""
    fields = {"log_start": log_start, "reason": reason, "time_ms": now_ms}
    private = os.path.join(directory, names.PRIVATE)
    with contextlib.suppress(LastwordError):
        if not files.exists(private):
            files.mkdir(private)
        NOTE.save(files, os.path.join(private, names.LOG_START_NOTE), fields)


def read_note(files: Files, directory: str, log_start: int) -> str:
    """Why offsets below `log_start` are gone, as `retention.ms, 2026-11-19 02:00Z`; empty if nobody said."""
    path = os.path.join(directory, names.PRIVATE, names.LOG_START_NOTE)
    try:
        fields = NOTE.load(files, path)
        if fields is None or int(fields["log_start"]) != log_start:
            return ""
        return f"{str(fields['reason'])[:200]}, {format_time(int(fields['time_ms']))}"
    except (LastwordError, ValueError, KeyError, TypeError):
        return ""
