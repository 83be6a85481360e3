"""The removal log of a partition: what is gone that a reader beside it may count on.

```
<partition>/lastword/dropped-tombstones    framed JSON, version 2
    up_to, drops          tombstones below `up_to` went by rounds that asked the leases; how often
    cuts                  where the log was cut, one offset for each time (`partition.cut`), and where it
                          ended after a stop that was not clean, noted before the first append after it
    older_cuts, lowest_older_cut
                          how many cuts came before those in `cuts`, and the lowest of them
    elsewhere, elsewhere_up_to
                          how often somebody else had cleaned the log, who knows no lease, and how far up
    cleaned_to            what our last two rounds left in the root's cleaner checkpoint
    cleaned_knowing       records below this offset made our cleanings remove older ones; 0: none was noted
```

Versions 0 and 1 have nothing of `older_cuts` and `cleaned_knowing`. They are read, and written as version 2
with the next note.

Where the log may have been cut. After a stop that was not clean nothing tells whether a power cut took
records that a reader has met. What is left is a beginning of the log, so a reader that reached to its end or
less has lost nothing. Where it ended is noted before anything is appended; a snapshot file or lease that
reaches above, and was made before the note, may stand for other records than the log has now.

What cleanings knew. A record is removed because of a newer one of its key, so the newest values as of an
offset between the two are not in the log any more. Before its first swap each cleaning notes how far the
records reach that it used (`note_knowledge`).

Who else has cleaned. A broker's cleaner drops a tombstone `delete.retention.ms` after it first cleaned it,
and leaves no note. But whoever cleans a partition moves its line in `cleaner-offset-checkpoint`, and nothing
at or above that offset was cleaned. So a line that is none of our own last two (two, for a crash may come
between note and checkpoint) tells that somebody cleaned up to there; it becomes a note before the line is
written over, and when a log that has leases is opened to append. What cannot be known: whether a tombstone
went at all; what a cleaner did that died between its swap and its checkpoint; and, while a broker has the
log, what it drops above a lease that was taken before. There `delete.retention.ms` alone is a reader's time.
Likewise, of a broker that has taken over a log which we cleaned: what its first cleaning uses, from its first
swap until it moves the checkpoint.

Only the holder of the directory's lock writes; anybody reads. A note is never lowered: one that is too high
refuses a reader that could have gone on, one that is too low brings a deleted key back. One that cannot be
understood counts as "everything": then only readers that hold nothing are taken.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import asdict, dataclass, replace

from lastword.errors import CorruptFileError, FileTakenError
from lastword.files import Files
from lastword.files.framed import Framed
from lastword.partition.checkpoint_file import number, read_lines
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
    """What was noted of one partition; the fields of the file."""

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
        """The note cannot be understood."""
        return self.up_to == EVERYTHING

    @property
    def cut_count(self) -> int:
        """How often the log was cut, or may have been."""
        return self.older_cuts + len(self.cuts)

    def cut_since(self, seen: int) -> int:
        """The lowest offset at which the log was cut since that many cuts; `EVERYTHING`: it was not. Too low
        where `seen` is older than the cuts that are kept one by one; 0 for more cuts than there were."""
        if seen > self.cut_count and not self.unknown:
            return 0
        older = self.lowest_older_cut if seen < self.older_cuts else EVERYTHING
        return min((older, *self.cuts[max(0, seen - self.older_cuts) :]))

    def with_cut(self, offset: int) -> RemovalLog:
        """Add a cut; the oldest ones are kept as their number and the lowest of them."""
        gone, kept = self.cuts[: -(_MAX_CUTS - 1)], self.cuts[-(_MAX_CUTS - 1) :]
        return replace(
            self,
            cuts=(*kept, offset),
            older_cuts=self.older_cuts + len(gone),
            lowest_older_cut=min((self.lowest_older_cut, *gone)),
        )

    def knows_history(self, first_dirty: int) -> bool:
        """Does `cleaned_knowing` hold for every cleaning so far? Not where another cleaner moved the cleaner
        checkpoint last, or where none of ours noted it."""
        return not self.unknown and self.cleaned_knowing > 0 and self.is_ours(first_dirty)

    def is_ours(self, first_dirty: int) -> bool:
        """Is this what our own last round left in the cleaner checkpoint, or what a log has that was never
        cleaned?"""
        return first_dirty == 0 or first_dirty in self.cleaned_to

    def with_elsewhere(self, first_dirty: int) -> RemovalLog:
        """The same, with a cleaning up to there that was not ours noted."""
        if self.unknown or self.is_ours(first_dirty):
            return self
        return replace(
            self,
            elsewhere=self.elsewhere + 1,
            elsewhere_up_to=max(self.elsewhere_up_to, first_dirty),
            cleaned_to=(first_dirty,),
        )


def load(files: Files, directory: str) -> RemovalLog:
    """What was lost so far; everything, where the note cannot be understood."""
    path = _path(directory)
    try:
        fields = FORM.load(files, path)
        if fields is None:
            return RemovalLog()
        return RemovalLog(
            up_to=whole(fields["up_to"]),
            drops=whole(fields["drops"]),
            cuts=tuple(whole(cut) for cut in fields.get("cuts", ())),
            elsewhere=whole(fields.get("elsewhere", 0)),
            elsewhere_up_to=whole(fields.get("elsewhere_up_to", 0)),
            cleaned_to=tuple(whole(offset) for offset in fields.get("cleaned_to", ())),
            older_cuts=whole(fields.get("older_cuts", 0)),
            lowest_older_cut=whole(fields.get("lowest_older_cut", EVERYTHING)),
            cleaned_knowing=whole(fields.get("cleaned_knowing", 0)),
        )
    except (CorruptFileError, ValueError, KeyError, TypeError, AttributeError):
        return RemovalLog(EVERYTHING, EVERYTHING)


def first_dirty(files: Files, directory: str) -> int:
    """What the root's cleaner checkpoint says of this partition; 0 if nothing that can be read."""
    directory = os.path.normpath(directory)
    path = os.path.join(os.path.dirname(directory), names.FIRST_DIRTY)
    try:
        for topic, partition, offset in read_lines(files, path, 3):
            if f"{topic}-{partition}" == os.path.basename(directory):
                return number(offset, path)
    except CorruptFileError:
        pass
    return 0


# ---------------------------------------------------------------- of who holds the lock


def note_dropped(files: Files, directory: str, offset: int) -> RemovalLog:
    """Before a swap that drops the tombstone at `offset` and maybe others below it; durable when it returns,
    and the leases are read afterwards."""
    known = load(files, directory)
    return _noted(
        files, directory, known, replace(known, up_to=max(known.up_to, offset + 1), drops=known.drops + 1)
    )


def note_cut(files: Files, directory: str, offset: int) -> RemovalLog:
    """Note a cut before the log loses the records from `offset` on, or after it may have lost them and before
    others take their place; durable when it returns."""
    known = load(files, directory)
    return _noted(files, directory, known, known.with_cut(offset))


def note_knowledge(files: Files, directory: str, limit: int, active_base: int) -> RemovalLog:
    """Note, before the first swap of a cleaning, that it used records below `limit`; durable when it returns.

    active_base   base offset of the active segment: cleanings of which nothing was noted used no more
    """
    known = load(files, directory)
    if not known.knows_history(first_dirty(files, directory)):
        limit = max(limit, active_base)
    noted = replace(known, cleaned_knowing=max(known.cleaned_knowing, limit))
    return _noted(files, directory, known, noted)


def note_elsewhere(files: Files, directory: str, first_dirty: int) -> RemovalLog:
    """The log is in our hands, and the cleaner checkpoint says `first_dirty`: if that was not us, note it."""
    known = load(files, directory)
    return _noted(files, directory, known, known.with_elsewhere(first_dirty))


def note_cleaned(files: Files, directory: str, before: int, first_dirty: int) -> RemovalLog:
    """Before our own round moves the cleaner checkpoint from `before` to `first_dirty`."""
    known = load(files, directory)
    noted = known.with_elsewhere(before)
    if noted.cleaned_to[-1:] != (first_dirty,):
        noted = replace(noted, cleaned_to=(*noted.cleaned_to[-1:], first_dirty))
    return _noted(files, directory, known, noted)


def _noted(files: Files, directory: str, known: RemovalLog, noted: RemovalLog) -> RemovalLog:
    if known.unknown or noted == known:
        return known
    make_private(files, directory)
    FORM.save(files, _path(directory), asdict(noted))
    return noted


def make_private(files: Files, directory: str) -> None:
    private = os.path.join(directory, names.PRIVATE)
    if not files.exists(private):
        with suppress(FileTakenError):  # made by a reader in between
            files.mkdir(private)
        files.fsync_dir(directory)


def whole(value: object) -> int:
    """ValueError for what is no number of ours."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= EVERYTHING:
        raise ValueError(f"{value!r} is no number")
    return value


def _path(directory: str) -> str:
    return os.path.join(directory, names.PRIVATE, names.DROPPED_TOMBSTONES)
