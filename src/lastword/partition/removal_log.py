"""The removal log of a partition: what was removed that a reader without the lock may rely on.

```
<partition>/lastword/dropped-tombstones    framed JSON, version 2
    up_to, drops          cleanings that read the leases dropped tombstones below `up_to`; how often
    cuts                  where the log was cut, one offset for each note (`partition.cut`), and where it
                          ended after a stop that was not clean, noted before the first append after it
    older_cuts, lowest_older_cut
                          the number of cuts before those in `cuts`, and the lowest of them
    elsewhere, elsewhere_up_to
                          how often another cleaner, or an erasure of keys, which read no leases, had cleaned
                          the log, and how far
    cleaned_to            the values that our last two cleanings left in the root's cleaner checkpoint
    cleaned_knowing       records below this offset made our cleanings remove older ones; 0: none was noted
```

Where the log may have been cut. After a stop that was not clean, nothing shows whether a power cut took
records that a reader has read. The log that is left is a prefix, so a reader at or below its end has lost
nothing. The end is noted before anything is appended. A snapshot file or lease that reaches above the note,
and is older, may stand for other records than the log has now.

The offsets that cleanings used. A record is removed because of a newer one of its key, so the log no longer
has the newest values as of an offset between the two. Before its first swap each cleaning notes the end of
the records that it used (`note_knowledge`).

Cleanings by others. A broker's cleaner drops a tombstone `delete.retention.ms` after it first cleaned it,
without a note. But every cleaner moves the partition's line in `cleaner-offset-checkpoint`, and nothing at or
above that offset was cleaned. So a line that is none of our own last two (two, because a crash may come
between note and checkpoint) shows that another cleaner cleaned up to there. It is noted before the line is
overwritten, and when a log with leases is opened to append. Three things cannot be detected: whether a
tombstone was dropped at all; the work of a cleaner that died between its swap and its checkpoint; and the
tombstones that a broker drops, while it has the log, above a lease that was taken before. In the last case a
reader has only `delete.retention.ms`. The same holds for a broker that takes over a log which we cleaned:
the records that its first cleaning uses are not known from its first swap until it moves the checkpoint.

Only the holder of the directory's lock writes; any process reads. A note is never lowered: a note that is
too high refuses a reader that could have continued, a note that is too low brings a deleted key back. A
damaged file counts as "everything": then only readers that hold nothing are accepted.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from typing import Any

from lastword.errors import CorruptFileError, FileTakenError
from lastword.files import Files
from lastword.files.framed import Framed
from lastword.partition.checkpoint_file import number, read_offset_lines
from lastword.segment import names
from lastword.values import Value
from lastword.wire import INT64_MAX

EVERYTHING = INT64_MAX
_MAX_CUTS = 128
"""Two notes for each of the newest 64 truncations: one before and one after the log is cut."""

FORM = Framed(
    "removals",
    2,
    "bad-removal-log",
    "restore the file from a copy; without one every reader has to begin with nothing: release all leases of "
    "the partition, delete the files that `restore` wrote from it, then remove this file",
)


@dataclass(frozen=True, slots=True)
class RemovalLog(Value):
    """The fields of the file of one partition."""

    up_to: int = 0
    drops: int = 0
    cuts: tuple[int, ...] = ()
    elsewhere: int = 0
    elsewhere_up_to: int = 0
    cleaned_to: tuple[int, ...] = ()
    older_cuts: int = 0
    lowest_older_cut: int = EVERYTHING
    cleaned_knowing: int = 0

    @property
    def unknown(self) -> bool:
        """Whether the file is damaged."""
        return self.up_to == EVERYTHING

    @property
    def cut_count(self) -> int:
        """The number of notes of cuts."""
        return self.older_cuts + len(self.cuts)

    def cut_since(self, seen: int) -> int:
        """Return the lowest offset at which the log was cut after `seen` notes; `EVERYTHING`: it was not.

        Too low if `seen` is older than the cuts that are kept one by one; 0 for more cuts than were noted.
        """
        if seen > self.cut_count and not self.unknown:
            return 0
        older = self.lowest_older_cut if seen < self.older_cuts else EVERYTHING
        return min((older, *self.cuts[max(0, seen - self.older_cuts) :]))

    def with_cut(self, offset: int) -> RemovalLog:
        """Add a cut. The oldest cuts are kept as their number and the lowest of them."""
        gone, kept = self.cuts[: -(_MAX_CUTS - 1)], self.cuts[-(_MAX_CUTS - 1) :]
        return replace(
            self,
            cuts=(*kept, offset),
            older_cuts=self.older_cuts + len(gone),
            lowest_older_cut=min((self.lowest_older_cut, *gone)),
        )

    def knows_history(self, first_dirty: int) -> bool:
        """Return whether `cleaned_knowing` holds for every cleaning so far.

        It does not if another cleaner moved the cleaner checkpoint last, or if no cleaning of ours noted it.
        """
        return not self.unknown and self.cleaned_knowing > 0 and self.is_ours(first_dirty)

    def is_ours(self, first_dirty: int) -> bool:
        """Return whether our own last cleaning left this value in the cleaner checkpoint.

        Also true of the value of a log that was never cleaned.
        """
        return first_dirty == 0 or first_dirty in self.cleaned_to

    def with_elsewhere(self, first_dirty: int) -> RemovalLog:
        """Add a cleaning by another cleaner up to `first_dirty`, unless it was ours."""
        if self.unknown or self.is_ours(first_dirty):
            return self
        return replace(
            self,
            elsewhere=self.elsewhere + 1,
            elsewhere_up_to=max(self.elsewhere_up_to, first_dirty),
            cleaned_to=(first_dirty,),
        )


def load(files: Files, directory: str) -> RemovalLog:
    """Read the removal log of a partition. A damaged file counts as the removal of everything."""
    try:
        data = FORM.read(files, _path(directory))
    except CorruptFileError:
        return RemovalLog(EVERYTHING, EVERYTHING)
    if data is None:
        return RemovalLog()
    return _known(data) if len(data) <= _KNOWN_BYTES else _decoded(data)


def _decoded(data: bytes) -> RemovalLog:
    try:
        content = FORM.decode(data, "")
        return RemovalLog(**{name: read(content[name]) for name, read in _READERS.items()})
    except (CorruptFileError, ValueError, KeyError, TypeError, AttributeError):
        return RemovalLog(EVERYTHING, EVERYTHING)


_KNOWN_BYTES = 4096
_known = lru_cache(maxsize=64)(_decoded)  # a reader beside a writer loads the same bytes for each view


def first_dirty(files: Files, directory: str) -> int:
    """Return the partition's line in the root's cleaner checkpoint; 0 if it cannot be read."""
    root, name = os.path.split(os.path.normpath(directory))
    path = os.path.join(root, names.FIRST_DIRTY)
    try:
        return number(read_offset_lines(files, path).first.get(name, "0"), path)
    except CorruptFileError:
        return 0


# ---------------------------------------------------------------- written by the holder of the lock


def note_dropped(files: Files, directory: str, offset: int) -> RemovalLog:
    """Note that a swap will drop the tombstone at `offset`, and maybe others below it.

    Called before the swap; durable when it returns. The cleaner reads the leases afterwards.
    """

    def change(known: RemovalLog) -> RemovalLog:
        return replace(known, up_to=max(known.up_to, offset + 1), drops=known.drops + 1)

    return _note(files, directory, change)


def note_erased(files: Files, directory: str, offset: int) -> RemovalLog:
    """Note that a swap will drop the tombstone at `offset`, whatever leases are below it.

    It counts as the work of a cleaner that reads no leases, so a reader below is refused when it advances.
    """

    def change(known: RemovalLog) -> RemovalLog:
        return replace(
            known,
            up_to=max(known.up_to, offset + 1),
            drops=known.drops + 1,
            elsewhere=known.elsewhere + 1,
            elsewhere_up_to=max(known.elsewhere_up_to, offset + 1),
        )

    return _note(files, directory, change)


def note_cut(files: Files, directory: str, offset: int) -> RemovalLog:
    """Note a cut at `offset`; durable when it returns.

    Called before the log loses the records from `offset` on. Also called after a power cut may have taken
    them, before other records take their offsets.
    """
    return _note(files, directory, lambda known: known.with_cut(offset))


def note_knowledge(files: Files, directory: str, limit: int, active_base: int) -> RemovalLog:
    """Note, before the first swap of a cleaning, that it used records below `limit`; durable when it returns.

    Args:
        files: The storage.
        directory: The partition's directory.
        limit: The offset that the used records do not reach.
        active_base: Base offset of the active segment: cleanings without a note used no record from there on.
    """

    def change(known: RemovalLog) -> RemovalLog:
        is_known = known.knows_history(first_dirty(files, directory))
        used = limit if is_known else max(limit, active_base)
        return replace(known, cleaned_knowing=max(known.cleaned_knowing, used))

    return _note(files, directory, change)


def note_elsewhere(files: Files, directory: str, first_dirty: int) -> RemovalLog:
    """Note that another cleaner moved the cleaner checkpoint to `first_dirty`, unless we did."""
    return _note(files, directory, lambda known: known.with_elsewhere(first_dirty))


def note_cleaned(files: Files, directory: str, before: int, first_dirty: int) -> RemovalLog:
    """Note that our cleaning will move the cleaner checkpoint from `before` to `first_dirty`."""

    def change(known: RemovalLog) -> RemovalLog:
        noted = known.with_elsewhere(before)
        if noted.cleaned_to[-1:] != (first_dirty,):
            noted = replace(noted, cleaned_to=(*noted.cleaned_to[-1:], first_dirty))
        return noted

    return _note(files, directory, change)


_LOCKS = tuple(threading.Lock() for _ in range(256))
"""Held from the read of a removal log to its write, because an append may note a cut beside a cleaning.

Directories share them by hash: notes of many partitions are synced together."""
os.register_at_fork(after_in_child=lambda: globals().update(_LOCKS=tuple(threading.Lock() for _ in _LOCKS)))


def _note(files: Files, directory: str, change: Callable[[RemovalLog], RemovalLog]) -> RemovalLog:
    with _LOCKS[hash(directory) % len(_LOCKS)]:
        known = load(files, directory)
        noted = change(known)
        if known.unknown or noted == known:
            return known
        make_private(files, directory)
        FORM.save(files, _path(directory), asdict(noted))
        return noted


def make_private(files: Files, directory: str) -> None:
    """Make the private directory of a partition durably, if there is none."""
    private = os.path.join(directory, names.PRIVATE)
    if not files.exists(private):
        with suppress(FileTakenError):  # made by a reader in between
            files.mkdir(private)
        files.fsync_dir(directory)


def whole(value: object) -> int:
    """Return a non-negative 64-bit integer. ValueError for any other value."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= EVERYTHING:
        raise ValueError(f"{value!r} is no number")
    return value


def _wholes(values: Iterable[object]) -> tuple[int, ...]:
    return tuple(map(whole, values))


_READERS: dict[str, Callable[[Any], Any]] = {
    field.name: _wholes if field.name in ("cuts", "cleaned_to") else whole for field in fields(RemovalLog)
}


def _path(directory: str) -> str:
    return os.path.join(directory, names.PRIVATE, names.DROPPED_TOMBSTONES)
