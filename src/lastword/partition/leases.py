"""When a tombstone may leave the log: the leases of readers, and the rule that uses them.

A lease is the position of a reader, so that no tombstone is removed before the reader has read it.

```
<partition>/lastword/lease-<name>          framed JSON: {"position": 120, "advanced_ms": ..., ...}
<partition>/lastword/dropped-tombstones    what readers may have missed (`removal_log`)
<partition>/lastword/moving                no lease is taken here any more: they were copied elsewhere; empty
```

A replica, a restoring state or a query holds the newest values below its *position*, the next offset that it
will read. If a tombstone at or above the position were removed, the reader would never read the delete and
would keep the old value for ever. So the cleaner drops a tombstone at offset o only if o < `Leases.floor`,
the lowest live position. A lease that was not advanced for `max_age_ms` has lapsed: it holds nothing back,
and is listed as lapsed until it is advanced, registered again or released.

Neither readers nor the cleaner take a lock for a lease: each file is replaced as a whole. Two sides could
miss each other, so each writes first and reads afterwards:

    reader      writes its lease, then reads the removal log    refused: takes the lease back
    cleaner     notes what it will drop, then reads the leases  a lease is below: drops nothing

A partition that moves to another directory closes its leases here (`close`) before they are copied, with the
same order: a lease that is written before is copied, and the writer of a later one finds the mark and is
refused, with a BusyError. At the end of the move the directory goes, and the mark with it: FileVanishedError.
So a lease that was taken is never left behind, whatever a crash undoes.

The side that is second reads what the other side wrote; at worst both stand back. A note is never lowered: a
note that is too high refuses a lease that could have been taken, and a note that is too low would bring a
deleted key back.

A log that loses its end (`partition.cut`, or a recovery that finds the log shorter than a lease says)
lowers every lease above to the cut, because the next records there are new to its reader. The cut is noted
before the log is cut, and a lease that was written before the note counts as lowered, even if its reader
wrote it last. The reader holds records that the log no longer has, and is refused when it advances above the
cut. A reader that registers the lease again, at its present position, declares that it will read from there.

A broker's cleaner reads no leases. If it removed records while it had the log (`removal_log`), readers below
them are refused in the same way.

A lease whose file is damaged holds back every tombstone from the log start on, until it lapses by the file's
time: its position is not known. A file that this process may not read does so until it is released.

A tombstone or a transaction marker leaves the log by one rule, `held_by`. A tombstone deletes every older
record of its key, and a marker decides every batch of its transaction. So each must stay while the log has
such a record or batch, or a reader has read one but not yet the tombstone or marker. The first reason in this
order that holds keeps it:

    1 OLDER_RECORD   an older record of the key, or a batch of the transaction, is still in the log. A
                     cleaning of the whole log drops these in the same pass: there they hold nothing back
    2 PRODUCER       a marker that is the last batch of a producer: it fences off older epochs
    3 NO_HORIZON     no delete horizon was set yet: the cleaning that meets this reason sets it
    4 HORIZON        the delete horizon has not passed
    5 LEASE          a reader with a lease has yet to read it (markers: never)
    6 PLACE          it holds the end of the log or of a file, and no empty batch can take its place: many
                     clients pass over an empty batch, and never reach the end of a log that ends with one

A delete horizon is `delete.retention.ms` after the first cleaning that found no older record: written into
the batch (Kafka's way), kept as a clock by the garbage accounts, or, for magic 0 and 1, computed from file
times.

`kernels.key_batch` applies reasons 3 to 5 to every record of a chunk, from the same facts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from lastword.errors import (
    BusyError,
    CorruptFileError,
    FileVanishedError,
    LeaseRefusedError,
    NotPermittedError,
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
"""The floor while no lease is live: every tombstone is below it."""

DEFAULT_MAX_AGE_MS = 7 * 86_400_000
_SCRATCH = ".tmp"
_STORED = ("position", "advanced_ms", "max_age_ms", "drops", "cuts", "elsewhere", "cleaned_to")
"""The fields of `LeaseFacts` in a lease's file."""
_TRIES = 10

FORM = Framed(
    "lease",
    1,
    "bad-lease",
    "take the lease again, or release it; until then it holds back every tombstone of the partition",
)


@dataclass(frozen=True, slots=True)
class LeaseFacts(Value):
    """A lease on one partition.

    Attributes:
        name: The name of the lease.
        position: Next offset that its reader will read. The reader has met every tombstone below.
        advanced_ms: Time at which it was registered or last advanced.
        max_age_ms: It lapses this long after `advanced_ms`.
        drops: The number of noted drops of tombstones at that time.
        cuts: The number of noted cuts of the log at that time.
        elsewhere: The number of noted cleanings by other cleaners at that time.
        cleaned_to: How far another cleaner had cleaned the log at that time.
        cut_from: Its position before the log was cut below; None: the log was not.
        damaged: Its file cannot be read.
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
        """The time at which the lease lapses."""
        return self.advanced_ms + self.max_age_ms

    def lapsed(self, now_ms: int) -> bool:
        """Return whether the lease has lapsed."""
        return now_ms > self.lapses_ms


@dataclass(frozen=True, slots=True)
class Leases(Value):
    """All leases on one partition at one time, by name."""

    live: tuple[LeaseFacts, ...] = ()
    lapsed: tuple[LeaseFacts, ...] = ()

    @property
    def floor(self) -> int:
        """A tombstone at offset o may go only if o < floor: the lowest live position, or `NO_FLOOR`."""
        return min((lease.position for lease in self.live), default=NO_FLOOR)

    @property
    def lowest(self) -> LeaseFacts | None:
        """The live lease with the lowest position."""
        return min(self.live, key=lambda lease: lease.position, default=None)


def check_name(name: str) -> str:
    """Return the name if a file and a Kafka topic can have it; else UsageError."""
    if not names.is_lease(name) or name.endswith(_SCRATCH):
        raise UsageError(
            f"{name!r} is no name for a lease",
            remedy="use 1 to 200 of the characters a-z A-Z 0-9 . _ - (not . or .. alone, no .tmp at the end)",
        )
    return name


# ---------------------------------------------------------------- what is there


def load(files: Files, directory: str, now_ms: int, listing: Iterable[str] | None = None) -> Leases:
    """Return the leases on the partition in `directory`, live and lapsed at `now_ms`.

    `listing`: the names in its private directory, listed now.
    """
    if listing is None:
        try:
            listing = files.listdir(os.path.join(directory, names.PRIVATE))
        except FileVanishedError:
            return Leases()
    there = [
        name.removeprefix(names.LEASE)
        for name in listing
        if name.startswith(names.LEASE) and not name.endswith(_SCRATCH)
    ]
    if not there:
        return Leases()
    known = removal_log.load(files, directory)
    read_leases = (_read(files, directory, name, known) for name in there)
    leases = [lease for lease in read_leases if lease is not None]
    return Leases(
        live=tuple(lease for lease in leases if not lease.lapsed(now_ms)),
        lapsed=tuple(lease for lease in leases if lease.lapsed(now_ms)),
    )


def read(files: Files, directory: str, name: str) -> LeaseFacts | None:
    """Return a lease; None if there is none of that name."""
    return _read(files, directory, name, removal_log.load(files, directory))


def _read(files: Files, directory: str, name: str, known: RemovalLog) -> LeaseFacts | None:
    path = _path(directory, name)
    facts = files.stat(path)
    if facts is None:
        return None
    try:
        fields = FORM.decode(files.read_bytes(path), path)
        stored: dict[str, Any] = {field: whole(fields[field]) for field in _STORED}
        position = min(stored["position"], known.cut_since(stored["cuts"]))
        if position < stored["position"]:
            stored |= {"position": position, "cut_from": stored["position"]}
        return LeaseFacts(name, **stored)
    except FileVanishedError:
        return None  # released between the two calls
    except (CorruptFileError, ValueError, KeyError, TypeError, AttributeError):
        max_age_ms = DEFAULT_MAX_AGE_MS
    except NotPermittedError:  # it may be intact, with any age
        max_age_ms = INT64_MAX - facts.mtime_ms
    return LeaseFacts(name, 0, facts.mtime_ms, max_age_ms, 0, damaged=True)


def dropped_up_to(files: Files, directory: str) -> int:
    """Return one past the highest offset of a tombstone that a cleaning dropped; 0 if none was."""
    return removal_log.load(files, directory).up_to


# ---------------------------------------------------------------- the side of the lock's holder


def log_found(
    files: Files,
    directory: str,
    log_end: int,
    first_dirty: Callable[[], int],
    listing: Iterable[str] | None = None,
) -> None:
    """Note the facts of a log that was opened to append. `listing`: as of `load`.

    A lease above `log_end` has read records that a power cut has taken, or is of another copy. A
    `first_dirty` that is not ours is a cleaning by another cleaner.
    """
    there = load(files, directory, 0, listing)
    held = (*there.live, *there.lapsed)
    if not held:
        return
    if any(lease.position > log_end for lease in held):
        removal_log.note_cut(files, directory, log_end)
    removal_log.note_elsewhere(files, directory, first_dirty())


# ---------------------------------------------------------------- files


def write(files: Files, directory: str, lease: LeaseFacts) -> LeaseFacts:
    """Replace the lease's file as a whole.

    Two writers of one lease do not conflict: each has its own temporary file, and the later rename holds. A
    process that opens the log to append removes temporary files. If it removes this one, it is written again.
    """
    for _ in range(_TRIES):
        with suppress(FileVanishedError):
            return _write_once(files, directory, lease)
    return _write_once(files, directory, lease)


def _write_once(files: Files, directory: str, lease: LeaseFacts) -> LeaseFacts:
    make_private(files, directory)
    path = _path(directory, lease.name)
    scratch = f"{path}.{os.urandom(8).hex()}{_SCRATCH}"
    fields = {field: getattr(lease, field) for field in _STORED}
    if lease.cut_from is not None:
        fields["position"] = lease.cut_from
    try:
        files.write_new(scratch, FORM.encode(fields))
        files.rename(scratch, path)
    except BaseException:
        with suppress(OSError):  # the first error is raised
            files.unlink(scratch, missing_ok=True)
        raise
    files.fsync_dir(os.path.dirname(path))
    _check_open(files, directory)
    return lease


def release(files: Files, directory: str, name: str) -> bool:
    """Delete the lease. True if there was one.

    Raises:
        BusyError: As of `close`.
        FileVanishedError: The partition was moved or removed meanwhile.
    """
    path = _path(directory, check_name(name))
    try:
        files.unlink(path)
    except FileVanishedError:
        _check_open(files, directory)
        return False
    files.fsync_dir(os.path.dirname(path))
    _check_open(files, directory)
    return True


def close(files: Files, directory: str) -> None:
    """Refuse every lease from now on, durably: the partition moves, and its leases are copied next.

    A lease that is written or released later raises a BusyError, because the copy may be without it. The next
    opening of the log to append takes the mark away: then the move has not taken place.
    """
    make_private(files, directory)
    files.write_atomic(os.path.join(directory, names.PRIVATE, names.MOVING), b"")


def _check_open(files: Files, directory: str) -> None:
    if files.exists(os.path.join(directory, names.PRIVATE, names.MOVING)):
        raise BusyError(
            f"{_name_of(directory)} is moving to another directory, and its leases were copied",
            remedy="try again; a reader that has opened one directory of several must open all of them",
            file=directory,
        )
    _check_there(files, directory)  # second: the mark goes with the directory


def _check_there(files: Files, directory: str) -> None:
    """Raise FileVanishedError if the directory is gone: then the absence of a file in it says nothing."""
    if not files.exists(directory):
        raise FileVanishedError(f"{directory} was moved or removed meanwhile", file=directory)


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
    """Take a lease, or take it again; durable when it returns.

    Args:
        files: The storage.
        directory: The partition's directory.
        name: The name of the lease.
        position: Next offset that the reader will read. None: the position of the lease of that name, or, for
            a new lease of a reader that holds nothing yet, `log_start`.
        log_start: First offset of the log.
        log_end: Next offset of the log.
        max_age_ms: The lease lapses if it is not advanced for this long.
        now_ms: The current time.
        holds_nothing: The reader has nothing from below `position` either. A new lease is accepted even if
            tombstones are gone, because the reader holds no old value that one of them deleted.

    Raises:
        LeaseRefusedError: Tombstones above the position may be gone. Nothing was changed.
        OffsetOutOfRangeError: The position is outside the log. Nothing was changed.
    """
    check_name(name)
    if max_age_ms <= 0:
        raise UsageError(f"max_age is {max_age_ms} ms", remedy='give a duration above 0: max_age="7d"')
    before = _valid(read(files, directory, name))
    new = before is None and (position is None or holds_nothing)
    if position is None:
        position = log_start if before is None else before.position
    _check_range(directory, position, log_start, log_end)
    if new:
        known = removal_log.load(files, directory)
        return write(files, directory, _now(files, directory, name, position, max_age_ms, known, now_ms))
    return _advanced(files, directory, name, position, position, before, max_age_ms, now_ms)


def advance(
    files: Files, directory: str, name: str, position: int, *, log_start: int, log_end: int, now_ms: int
) -> LeaseFacts:
    """Set a lease to `position`, up to which its reader has read, exclusive; durable when it returns.

    Raises:
        LeaseRefusedError: The lease is gone, or lapsed while tombstones above it were dropped, or the log was
            cut below `position` or cleaned by another cleaner since.
        OffsetOutOfRangeError: The position is outside the log. Nothing was changed.
    """
    before = read(files, directory, check_name(name))
    if before is None:
        raise LeaseRefusedError(
            f"{_name_of(directory)} has no lease {name!r}: it was released, or its topic was made again",
            remedy='take it again; records read before its end may have deleted keys: read from "earliest"',
        )
    _check_range(directory, position, log_start, log_end)
    valid = _valid(before)
    # The reader continued from the lease's position, so no tombstone may be gone from there on. While a lease
    # is live none is dropped; a lapsed lease is checked at its last position.
    stood = position if valid is None else min(position, valid.position)
    # At the offset of a cut the lease stays live, but this does not say that its reader went back, too.
    stays = valid is not None and valid.cut_from is not None and position == valid.position
    return _advanced(files, directory, name, position, stood, valid, before.max_age_ms, now_ms, stays=stays)


def place(
    files: Files, directory: str, name: str, position: int, *, max_age_ms: int, now_ms: int
) -> LeaseFacts:
    """Set a lease to `position`, forward or back, without a check; durable when it returns.

    For a reader that cannot be refused: tombstones above `position` may be gone already. From now on none is
    removed.

    Args:
        files: The storage.
        directory: The partition's directory.
        name: The name of the lease.
        position: Next offset that the reader will read, within the log.
        max_age_ms: The lease lapses if it is not placed again for this long.
        now_ms: The current time.
    """
    known = removal_log.load(files, directory)
    return write(
        files, directory, _now(files, directory, check_name(name), position, max_age_ms, known, now_ms)
    )


def _advanced(
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
    """Write the lease, with a check before and after.

    `stood`: the offset from which on its reader must not have missed anything. `stays`: the cuts that the
    lease has met stay as they were.
    """
    known = removal_log.load(files, directory)
    _check(files, directory, name, stood, before, known, now_ms)
    taken = _now(files, directory, name, position, max_age_ms, known, now_ms)
    if before is not None:
        if position > known.cut_since(before.cuts):
            raise _was_cut(directory, name, position, known.cut_since(before.cuts))
        if stays:
            taken = replace(taken, cuts=before.cuts, cut_from=before.cut_from)
    write(files, directory, taken)
    known = removal_log.load(files, directory)
    _check_there(files, directory)
    try:
        _check(files, directory, name, stood, before, known, now_ms)
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
    """Return a lease of a reader that has met all removals so far."""
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
    """Raise LeaseRefusedError if a reader at `stood` may have missed a tombstone.

    A live lease may always advance: while it lived, tombstones were dropped only below it. Any other reader
    must have no dropped tombstone above it; a lapsed lease is also accepted if nothing was dropped since it
    was last advanced. No cleaner that reads no leases may have come above it since the lease was last
    written.
    """
    elsewhere = _elsewhere_up_to(files, directory, before, known)
    if stood < elsewhere:
        raise _refused(
            directory,
            name,
            stood,
            f"another cleaner, or an erasure, which reads no leases, cleaned up to {elsewhere}, and "
            "tombstones below may be gone, so its reader may keep deleted keys",
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
    """Return how far another cleaner has cleaned that this reader has not met; 0: nowhere.

    For a new reader the present value of the cleaner checkpoint counts, too. A lease that was taken while a
    broker had the log holds how far that broker had cleaned.
    """
    if before is None:
        now = removal_log.first_dirty(files, directory)
        return max(known.elsewhere_up_to, 0 if known.is_ours(now) else now)
    met = known.elsewhere == before.elsewhere + 1 and before.cleaned_to == known.elsewhere_up_to
    if known.elsewhere == before.elsewhere or met:
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


def _valid(lease: LeaseFacts | None) -> LeaseFacts | None:
    return None if lease is None or lease.damaged else lease


def _name_of(directory: str) -> str:
    return os.path.basename(os.path.normpath(directory))


# ---------------------------------------------------------------- when a tombstone or marker may go


MAY_GO, OLDER_RECORD, PRODUCER, NO_HORIZON, HORIZON, LEASE, PLACE = range(7)


@dataclass(frozen=True, slots=True)
class TombstoneFacts:
    """One tombstone or marker, or many: every field is a value, or an array with a value for each.

    horizon_ms  delete horizon in ms since 1970; any number where `has_horizon` is False
    has_older   an older record of its key, or a batch of its transaction, is in the log
    ends_file   nothing else holds its place at the end of the log, or of the file
    """

    offset: Any
    horizon_ms: Any
    has_horizon: Any = True
    has_older: Any = False
    last_of_producer: Any = False
    ends_file: Any = False


def due_below(files: Files, directory: str, log_end: int, now_ms: int) -> int:
    """Return the offset from which on no tombstone may go: that of a lease, or of the newest record.

    Kafka's cleaner leaves the active segment alone, and with it the newest record of a partition.
    """
    return min(load(files, directory, now_ms).floor, log_end - 1)


def held_by(facts: TombstoneFacts, now_ms: int, floor: int = NO_FLOOR) -> Any:
    """Return the number of the first reason that keeps a tombstone or marker, `MAY_GO` if none does.

    Args:
        facts: The tombstone or marker, or an array of them.
        now_ms: The current time.
        floor: The lowest offset that a reader with a lease has yet to read.
    """
    held: Any = MAY_GO
    for reason, holds in (
        (OLDER_RECORD, facts.has_older),
        (PRODUCER, facts.last_of_producer),
        (NO_HORIZON, facts.has_horizon ^ True),
        (HORIZON, facts.horizon_ms > now_ms),
        (LEASE, facts.offset >= floor),
        (PLACE, facts.ends_file),
    ):
        held = held + reason * (holds & (held == MAY_GO))
    return held
