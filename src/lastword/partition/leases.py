"""Leases: positions of readers, so that no tombstone is removed before the reader has read it.

```
<partition>/lastword/lease-<name>          framed JSON: {"position": 120, "advanced_ms": ..., ...}
<partition>/lastword/dropped-tombstones    what readers may have missed (`removal_log`)
```

A replica, a restoring state or a query holds the newest values below its *position*, the next offset that it
will read. If a tombstone at or above the position were removed, the reader would never read the delete and
would keep the old value for ever. So the cleaner drops a tombstone at offset o only if o < `Leases.floor`,
the lowest live position. A lease that was not advanced for `max_age_ms` has lapsed: it holds nothing back,
and is listed as lapsed until it is advanced, registered again or released.

Neither readers nor the cleaner take a lock for a lease: each file is replaced as a whole. Two sides could
miss each other, so each writes first and reads afterwards:

    reader      writes its lease, then reads the removal log    refused: takes the lease back
    cleaner     notes what it will drop, then reads the leases  one is below: drops nothing

Whichever is second reads what the other wrote; at worst both stand back. A note is never lowered: a note that
is too high refuses a lease that could have been taken, one that is too low would bring a deleted key back.

A log that loses its end (`partition.cut`, or a recovery that finds the log shorter than a lease says)
lowers every lease above to the cut, because the next records there are new to its reader. The cut is noted
before the log is cut, and a lease that was written before the note counts as lowered, even if its reader
wrote it last. The reader holds records that the log no longer has, and is refused when it advances above the
cut. To register the lease again, at its present position, says that the reader will read from there.

What a broker's cleaner removed while it had the log (`removal_log`) refuses readers below in the same way,
since that cleaner reads no leases.

A lease whose file is damaged holds back every tombstone from the log start on, until it lapses by the file's
time: its position is not known.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from lastword.errors import (
    CorruptFileError,
    FileVanishedError,
    LeaseRefusedError,
    OffsetOutOfRangeError,
    UsageError,
)
from lastword.files import Files
from lastword.files.framed import Framed
from lastword.partition import removal_log
from lastword.partition.removal_log import RemovalLog, make_private, whole
from lastword.segment import names
from lastword.units import format_duration
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
    known = removal_log.load(files, directory)
    each = [_read(files, directory, name, known) for name in there]
    found = [one for one in each if one is not None]
    return Leases(
        live=tuple(one for one in found if not one.lapsed(now_ms)),
        lapsed=tuple(one for one in found if one.lapsed(now_ms)),
    )


def read(files: Files, directory: str, name: str) -> LeaseFacts | None:
    """One lease, or None if there is none of that name."""
    return _read(files, directory, name, removal_log.load(files, directory))


def _read(files: Files, directory: str, name: str, known: RemovalLog) -> LeaseFacts | None:
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
    return removal_log.load(files, directory).up_to


def _is_lease(name: str) -> bool:
    return name.startswith(names.LEASE) and not name.endswith(_SCRATCH)


# ---------------------------------------------------------------- the side of who holds the lock


def log_found(files: Files, directory: str, log_end: int, first_dirty: int) -> None:
    """A log was opened to append and ends at `log_end`; its cleaner checkpoint says `first_dirty`. A lease
    that says more has read what a power cut has taken, or was of another copy."""
    there = load(files, directory, 0)
    if any(one.position > log_end for one in (*there.live, *there.lapsed)):
        removal_log.note_cut(files, directory, log_end)
    if there != Leases():
        removal_log.note_elsewhere(files, directory, first_dirty)


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


# ---------------------------------------------------------------- the reader's side


def register(
    files: Files,
    directory: str,
    name: str,
    position: int | None,
    *,
    log_start: int,
    log_end: int,
    max_age_ms: int = DEFAULT_MAX_AGE_MS,
    now_ms: int,
    holds_nothing: bool = False,
) -> LeaseFacts:
    """Take a lease, or take it up again; durable when it returns.

    position       offset that the reader will read next. None: where the lease of that name stands, and for
                   a new one `log_start`, for a reader that holds nothing yet
    holds_nothing  this reader has nothing from below `position` either: a new lease is taken whatever
                   tombstones are gone, for it knows no old value that one of them ended

    LeaseRefusedError if tombstones above the position may be gone already; OffsetOutOfRangeError outside the
    log. Nothing was changed then.
    """
    check_name(name)
    if max_age_ms <= 0:
        raise UsageError(f"max_age is {max_age_ms} ms", remedy='give a duration above 0: max_age="7d"')
    before = _sound(read(files, directory, name))
    new = before is None and (position is None or holds_nothing)
    if position is None:
        position = log_start if before is None else before.position
    _check_range(directory, position, log_start, log_end)
    if new:
        known = removal_log.load(files, directory)
        return write(files, directory, _now(files, directory, name, position, max_age_ms, known, now_ms))
    return _go_on(files, directory, name, position, position, before, max_age_ms, now_ms)


def advance(
    files: Files, directory: str, name: str, position: int, *, log_start: int, log_end: int, now_ms: int
) -> LeaseFacts:
    """Its reader has read up to `position` (exclusive); durable when it returns. Also says that it lives.

    LeaseRefusedError for a lease that is gone, or that lapsed while tombstones above it went, or where the
    log was cut below `position` or cleaned by somebody else since.
    """
    before = read(files, directory, check_name(name))
    if before is None:
        raise LeaseRefusedError(
            f"{_name_of(directory)} has no lease {name!r}: it was released, or its topic was made anew",
            remedy='take it again; what was read before it went may hold deleted keys: read from "earliest"',
        )
    _check_range(directory, position, log_start, log_end)
    sound = _sound(before)
    # It read on from where the lease stood, so nothing may have gone from there on: while a lease lives
    # nothing does, and one that lapsed is judged by the place that it left.
    stood = position if sound is None else min(position, sound.position)
    # Where a cut has left it, it only lives on: whether its reader went back, too, is not said.
    stays = sound is not None and sound.cut_from is not None and position == sound.position
    return _go_on(files, directory, name, position, stood, sound, before.max_age_ms, now_ms, stays=stays)


def _go_on(
    files: Files,
    directory: str,
    name: str,
    position: int,
    stood: int,
    before: LeaseFacts | None,
    max_age_ms: int,
    now_ms: int,
    *,
    stays: bool = False,
) -> LeaseFacts:
    """Write the lease, looked at before and after. `stood`: from where on its reader must not have missed
    anything; `stays`: what it knows of cuts stays as it was."""
    known = removal_log.load(files, directory)
    _check(files, directory, name, stood, before, known, now_ms)
    taken = _now(files, directory, name, position, max_age_ms, known, now_ms)
    if before is not None:
        if position > known.cut_since(before.cuts):
            raise _was_cut(directory, name, position, known.cut_since(before.cuts))
        if stays:
            taken = replace(taken, cuts=before.cuts, cut_from=before.cut_from)
    write(files, directory, taken)
    try:
        _check(files, directory, name, stood, before, removal_log.load(files, directory), now_ms)
    except LeaseRefusedError:
        if before is None:
            release(files, directory, name)
        else:
            write(files, directory, before)
        raise
    return taken


def _now(
    files: Files, directory: str, name: str, position: int, max_age_ms: int, known: RemovalLog, now_ms: int
) -> LeaseFacts:
    """A lease of a reader that knows of all that was lost so far."""
    cleaned_to = removal_log.first_dirty(files, directory)
    return LeaseFacts(
        name,
        position,
        now_ms,
        max_age_ms,
        known.drops,
        cuts=known.cut_count,
        elsewhere=known.elsewhere,
        cleaned_to=0 if known.is_ours(cleaned_to) else cleaned_to,
    )


def _check_range(directory: str, position: int, log_start: int, log_end: int) -> None:
    where = _name_of(directory)
    if isinstance(position, bool) or not isinstance(position, int) or position < 0:
        raise UsageError(f"{position!r} is no offset", remedy="give the next offset that will be read")
    if position < log_start:
        raise OffsetOutOfRangeError.below(where, position, log_start)
    if position > log_end:
        raise OffsetOutOfRangeError.above(where, position, log_end)


def _check(
    files: Files,
    directory: str,
    name: str,
    stood: int,
    before: LeaseFacts | None,
    known: RemovalLog,
    now_ms: int,
) -> None:
    """May a reader that stood at `stood` go on from there?

    A live lease may always go forward: what went while it lived lay below it. Any other reader must have
    nothing dropped above it; a lapsed lease also goes on if nothing was dropped since it was last advanced.
    A cleaner that asks no lease must have come nowhere above either, since the lease was last written.
    """
    elsewhere = _elsewhere_up_to(files, directory, before, known)
    if stood < elsewhere:
        raise _refused(
            directory,
            name,
            stood,
            f"another cleaner, which knows no lease, came up to {elsewhere}, and tombstones below may be "
            "gone, so its reader may keep deleted keys",
            elsewhere,
        )
    if stood >= known.up_to:
        return
    because = ""
    if before is not None and stood >= before.position:
        if not before.lapsed(now_ms) or before.drops == known.drops:
            return
        because = f"it lapsed {format_duration(now_ms - before.lapses_ms)} ago, and "
    why = f"{because}tombstones up to {known.up_to - 1} are gone, so its reader would keep deleted keys"
    raise _refused(directory, name, stood, why, known.up_to)


def _elsewhere_up_to(files: Files, directory: str, before: LeaseFacts | None, known: RemovalLog) -> int:
    """Up to where somebody else has cleaned without this reader's knowledge; 0: nowhere.

    Of a new reader, what the cleaner checkpoint says now counts, too. One that was taken while a broker had
    the log knows how far that had come."""
    if before is None:
        now = removal_log.first_dirty(files, directory)
        return max(known.elsewhere_up_to, 0 if known.is_ours(now) else now)
    if known.elsewhere == before.elsewhere or before.cleaned_to == known.elsewhere_up_to:
        return 0
    return known.elsewhere_up_to


def _refused(directory: str, name: str, stood: int, why: str, up_to: int) -> LeaseRefusedError:
    return LeaseRefusedError(
        f"{_name_of(directory)}: lease {name!r} at {stood} is refused: {why}",
        remedy='begin with nothing, from "earliest" (release the lease and take it without a position), or '
        f"restore a copy of offset {up_to} or later and take it from there",
        offset=stood,
    )


def _was_cut(directory: str, name: str, position: int, cut: int) -> LeaseRefusedError:
    return LeaseRefusedError(
        f"{_name_of(directory)}: lease {name!r} cannot go to {position}: the log was cut at {cut} since, so "
        "its reader may hold records that are no more, and lack others",
        remedy='begin with nothing, from "earliest" (release the lease and take it without a position), or '
        f"go back to what was true at offset {cut}, take the lease again and read from there",
        offset=position,
    )


def _sound(one: LeaseFacts | None) -> LeaseFacts | None:
    return None if one is None or one.damaged else one


def _name_of(directory: str) -> str:
    return os.path.basename(os.path.normpath(directory))
