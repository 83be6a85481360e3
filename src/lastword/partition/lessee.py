"""The reader's side of a lease: whether it may be taken, and whether its reader may go on with it.

Without a lock, and beside a cleaner: the lease is written, and what was dropped is read before and after
(`leases` tells why no side misses the other).
"""

from __future__ import annotations

import os
from dataclasses import replace

from lastword.errors import LeaseRefusedError, OffsetOutOfRangeError, UsageError
from lastword.files import Files
from lastword.partition import leases, losses
from lastword.partition.leases import LeaseFacts
from lastword.partition.losses import Losses
from lastword.units import format_duration


def register(
    files: Files,
    directory: str,
    name: str,
    position: int | None,
    *,
    log_start: int,
    log_end: int,
    max_age_ms: int = leases.DEFAULT_MAX_AGE_MS,
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
    leases.check_name(name)
    if max_age_ms <= 0:
        raise UsageError(f"max_age is {max_age_ms} ms", remedy='give a duration above 0: max_age="7d"')
    before = _sound(leases.read(files, directory, name))
    new = before is None and (position is None or holds_nothing)
    if position is None:
        position = log_start if before is None else before.position
    _check_range(directory, position, log_start, log_end)
    if new:
        known = losses.load(files, directory)
        return leases.write(
            files, directory, _now(files, directory, name, position, max_age_ms, known, now_ms)
        )
    return _go_on(files, directory, name, position, position, before, max_age_ms, now_ms)


def advance(
    files: Files, directory: str, name: str, position: int, *, log_start: int, log_end: int, now_ms: int
) -> LeaseFacts:
    """Its reader has read up to `position` (exclusive); durable when it returns. Also says that it lives.

    LeaseRefusedError for a lease that is gone, or that lapsed while tombstones above it went, or where the
    log was cut below `position` or cleaned by somebody else since.
    """
    before = leases.read(files, directory, leases.check_name(name))
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
    known = losses.load(files, directory)
    _check(files, directory, name, stood, before, known, now_ms)
    taken = _now(files, directory, name, position, max_age_ms, known, now_ms)
    if before is not None:
        if position > known.cut_since(before.cuts):
            raise _was_cut(directory, name, position, known.cut_since(before.cuts))
        if stays:
            taken = replace(taken, cuts=before.cuts, cut_from=before.cut_from)
    leases.write(files, directory, taken)
    try:
        _check(files, directory, name, stood, before, losses.load(files, directory), now_ms)
    except LeaseRefusedError:
        if before is None:
            leases.release(files, directory, name)
        else:
            leases.write(files, directory, before)
        raise
    return taken


def _now(
    files: Files, directory: str, name: str, position: int, max_age_ms: int, known: Losses, now_ms: int
) -> LeaseFacts:
    """A lease of a reader that knows of all that was lost so far."""
    cleaned_to = losses.first_dirty(files, directory)
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
    known: Losses,
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


def _elsewhere_up_to(files: Files, directory: str, before: LeaseFacts | None, known: Losses) -> int:
    """Up to where somebody else has cleaned without this reader's knowledge; 0: nowhere.

    Of a new reader, what the cleaner checkpoint says now counts, too. One that was taken while a broker had
    the log knows how far that had come."""
    if before is None:
        now = losses.first_dirty(files, directory)
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
