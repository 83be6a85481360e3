"""Leases: how far a reader has come, so that no tombstone goes before the reader has met it.

```
<partition>/lastword/lease-<name>          framed JSON: {"position": 120, "advanced_ms": ..., ...}
<partition>/lastword/dropped-tombstones    what readers may have missed: see `losses`
```

A replica, a restoring state or a query holds the newest values below its *position*, the next offset that it
will read. If a tombstone at or above the position went, the reader would never learn of the delete and keep
the old value for ever. So the cleaner drops a tombstone at offset o only if o < `Leases.floor`, the lowest
live position. A lease that was not advanced for `max_age_ms` has lapsed: it holds nothing back any more, and
stays listed as lapsed until it is advanced, registered again or released.

Readers (`lessee`) take no lock, and neither does this: each file is replaced as a whole. Two sides could miss
each other, so each writes first and looks afterwards:

    reader      writes its lease, then reads what was dropped    refused: takes the lease back
    cleaner     notes what it will drop, then reads the leases   one is below: drops nothing

Whichever comes second sees the other; at worst both stand back. What was noted is never lowered: a note that
is too high refuses a lease that could have been taken, one that is too low would bring a deleted key back.

A log that loses its end (`partition.truncate`, or a recovery that finds it shorter than a lease says) takes
every lease above back to where it was cut: there the next records come that its reader has not seen. The cut
is noted before the log is cut, and a lease that was written before counts as lowered, whoever wrote it last.
Its reader holds records that the log has no more, and is told when it goes on above the cut; to take the
lease again, where it stands now, says that the reader will read from there.

What a broker's cleaner did while it had the log (`losses`) is told likewise, to who stood below: it asks no
lease.

A lease whose file cannot be understood holds back every tombstone from the log start on, until it lapses by
the file's time: it may have stood anywhere.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from lastword.errors import CorruptFileError, FileVanishedError, UsageError
from lastword.files import Files
from lastword.files.framed import Framed
from lastword.partition import losses
from lastword.partition.losses import Losses, make_private, whole
from lastword.segment import names
from lastword.values import Value
from lastword.wire import INT64_MAX

NO_FLOOR = INT64_MAX
"""The floor while no lease is live: every tombstone lies below it."""

DEFAULT_MAX_AGE_MS = 7 * 86_400_000
_SCRATCH = ".tmp"
_TRIES = 10

FORM = Framed(
    "lease",
    1,
    "bad-lease",
    "take the lease again, or release it; until then it holds back every tombstone of the partition",
)


@dataclass(frozen=True, slots=True)
class LeaseFacts(Value):
    """One lease on one partition.

    position      offset that its reader will read next: it has met every tombstone below
    advanced_ms   when it was registered or last advanced; it lapses `max_age_ms` later
    drops         how many times tombstones had been dropped from the partition then; cuts: how often the log
                  was cut; elsewhere, cleaned_to: how often, and how far, somebody else had cleaned it
    cut_from      where it stood before the log was cut below; None: it was not
    damaged       its file cannot be understood
    """

    name: str
    position: int
    advanced_ms: int
    max_age_ms: int
    drops: int
    cuts: int = 0
    elsewhere: int = 0
    cleaned_to: int = 0
    cut_from: int | None = None
    damaged: bool = False

    @property
    def lapses_ms(self) -> int:
        return self.advanced_ms + self.max_age_ms

    def lapsed(self, now_ms: int) -> bool:
        return now_ms > self.lapses_ms


@dataclass(frozen=True, slots=True)
class Leases(Value):
    """All leases on one partition at one moment, by name."""

    live: tuple[LeaseFacts, ...] = ()
    lapsed: tuple[LeaseFacts, ...] = ()

    @property
    def floor(self) -> int:
        """A tombstone at offset o may go only if o < floor: the lowest live position, `NO_FLOOR` without."""
        return min((one.position for one in self.live), default=NO_FLOOR)

    @property
    def lowest(self) -> LeaseFacts | None:
        """The live lease that stands at the floor."""
        return min(self.live, key=lambda one: one.position, default=None)


def check_name(name: str) -> str:
    """The name itself, if a file can have it and Kafka would take it for a topic; else UsageError."""
    if not names.is_lease(name) or name.endswith(_SCRATCH):
        raise UsageError(
            f"{name!r} is no name for a lease",
            remedy="use 1 to 200 of the characters a-z A-Z 0-9 . _ - (not . or .. alone, no .tmp at the end)",
        )
    return name


# ---------------------------------------------------------------- what is there


def load(files: Files, directory: str, now_ms: int) -> Leases:
    """The leases on the partition in `directory`, live and lapsed by `now_ms`."""
    private = os.path.join(directory, names.PRIVATE)
    try:
        listing = files.listdir(private)
    except FileVanishedError:
        return Leases()
    there = [name.removeprefix(names.LEASE) for name in listing if _is_lease(name)]
    if not there:
        return Leases()
    known = losses.load(files, directory)
    each = [_read(files, directory, name, known) for name in there]
    found = [one for one in each if one is not None]
    return Leases(
        live=tuple(one for one in found if not one.lapsed(now_ms)),
        lapsed=tuple(one for one in found if one.lapsed(now_ms)),
    )


def read(files: Files, directory: str, name: str) -> LeaseFacts | None:
    """One lease, or None if there is none of that name."""
    return _read(files, directory, name, losses.load(files, directory))


def _read(files: Files, directory: str, name: str, known: Losses) -> LeaseFacts | None:
    path = _path(directory, name)
    facts = files.stat(path)
    if facts is None:
        return None
    try:
        fields = FORM.decode(files.read_bytes(path), path)
        stored, cuts = whole(fields["position"]), whole(fields.get("cuts", 0))
        position = min(stored, known.cut_since(cuts))
        return LeaseFacts(
            name=name,
            position=position,
            advanced_ms=whole(fields["advanced_ms"]),
            max_age_ms=whole(fields["max_age_ms"]),
            drops=whole(fields["drops"]),
            cuts=cuts,
            elsewhere=whole(fields.get("elsewhere", 0)),
            cleaned_to=whole(fields.get("cleaned_to", 0)),
            cut_from=stored if position < stored else None,
        )
    except FileVanishedError:
        return None  # released between the two calls
    except (CorruptFileError, ValueError, KeyError, TypeError, AttributeError):
        return LeaseFacts(name, 0, facts.mtime_ms, DEFAULT_MAX_AGE_MS, 0, damaged=True)


def dropped_up_to(files: Files, directory: str) -> int:
    """One past the highest offset of a tombstone that a cleaning dropped; 0 if none was."""
    return losses.load(files, directory).up_to


def any_there(files: Files, directory: str) -> bool:
    """Is there a lease, live or lapsed?"""
    try:
        return any(_is_lease(name) for name in files.listdir(os.path.join(directory, names.PRIVATE)))
    except FileVanishedError:
        return False


def _is_lease(name: str) -> bool:
    return name.startswith(names.LEASE) and not name.endswith(_SCRATCH)


# ---------------------------------------------------------------- the side of who holds the lock


def log_found(files: Files, directory: str, log_end: int, first_dirty: int) -> None:
    """A log was opened to append and ends at `log_end`; its cleaner checkpoint says `first_dirty`. A lease
    that says more has read what a power cut has taken, or was of another copy."""
    there = load(files, directory, 0)
    if any(one.position > log_end for one in (*there.live, *there.lapsed)):
        losses.note_cut(files, directory, log_end)
    if there != Leases():
        losses.note_elsewhere(files, directory, first_dirty)


# ---------------------------------------------------------------- files


def _token() -> str:
    return os.urandom(8).hex()


def write(files: Files, directory: str, one: LeaseFacts, token: Callable[[], str] = _token) -> LeaseFacts:
    """Replace the lease's file as a whole. Two writers of one lease do not meet: each has a scratch file of
    its own, and the later rename stands. Whoever opens the log to write removes scratch files, which may be
    this one: then it is written again."""
    for _ in range(_TRIES):
        with suppress(FileVanishedError):
            return _write_once(files, directory, one, token)
    return _write_once(files, directory, one, token)


def _write_once(files: Files, directory: str, one: LeaseFacts, token: Callable[[], str]) -> LeaseFacts:
    make_private(files, directory)
    path = _path(directory, one.name)
    scratch = f"{path}.{token()}{_SCRATCH}"
    fields = {
        "position": one.position if one.cut_from is None else one.cut_from,
        "advanced_ms": one.advanced_ms,
        "max_age_ms": one.max_age_ms,
        "drops": one.drops,
        "cuts": one.cuts,
        "elsewhere": one.elsewhere,
        "cleaned_to": one.cleaned_to,
    }
    try:
        with files.open_append(scratch, create=True, exclusive=True) as handle:
            handle.append(FORM.encode(fields))
            handle.fsync()
        files.rename(scratch, path)
    except BaseException:
        with suppress(OSError):  # the first error is the one to tell
            files.unlink(scratch, missing_ok=True)
        raise
    files.fsync_dir(os.path.dirname(path))
    return one


def release(files: Files, directory: str, name: str) -> bool:
    """Give the lease back: its reader will not come again, or will begin anew. True if there was one."""
    path = _path(directory, check_name(name))
    there = files.exists(path)
    files.unlink(path, missing_ok=True)
    if there:
        files.fsync_dir(os.path.dirname(path))
    return there


def _path(directory: str, name: str) -> str:
    return os.path.join(directory, names.PRIVATE, names.LEASE + name)
