"""`Lease`: a reader's claim on a topic that keeps tombstones until the reader has passed them.

A lease needs no lock and no mode "a": a replica or a stream takes it beside the writer.
`lastword.partition.leases` explains leases, and why no deletion is missed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from lastword.errors import LastwordError, LeaseRefusedError, UsageError
from lastword.parse import Duration, as_int, parse_duration_ms
from lastword.partition import leases
from lastword.partition.leases import LeaseFacts
from lastword.units import format_duration, format_time
from lastword.values import ProcessBound, Value, partitions_text, plural
from lastword.wire import INT64_MAX

if TYPE_CHECKING:
    from lastword.api.open_dirs import OpenDirs
    from lastword.logdir import LogDirectory

Position = int | Mapping[int, int]
"""Next offset to read: of every partition, or by partition (as `Reader.position`)."""


@dataclass(frozen=True, slots=True)
class LeaseInfo(Value):
    """One lease on one partition, as `lastword lease DIR TOPIC` shows it.

    Attributes:
        topic: The topic.
        partition: The partition.
        name: The name of the lease.
        position: Next offset that its reader will read.
        lag_offsets: Offsets from there to the log end.
        advanced_ms: Time when it was taken or last advanced.
        lapses_ms: Time from which it no longer keeps tombstones.
        lapsed: Whether it has lapsed; its reader may then have missed tombstones.
        cut_from: Its position before the log was cut at `position`; None: the log was not cut.
    """

    topic: str
    partition: int
    name: str
    position: int
    lag_offsets: int
    advanced_ms: int
    lapses_ms: int
    lapsed: bool
    cut_from: int | None = None

    text_columns = ("PARTITION", "LEASE", "ADVANCED", "")

    def cells(self) -> dict[str, str]:
        """Return a row of the table of leases."""
        return {
            "PARTITION": f"{self.topic}-{self.partition}",
            "LEASE": self.name,
            "POSITION": str(self.position),
            "BEHIND": plural(self.lag_offsets, "offset"),
            "ADVANCED": format_time(self.advanced_ms),
            "": f"{'lapsed' if self.lapsed else 'lapses'} {format_time(self.lapses_ms)}",
        }

    @classmethod
    def totals(cls, values: Sequence[LeaseInfo]) -> str:
        """Return the number of leases, and of the offsets that the slowest reader is behind."""
        behind = max((info.lag_offsets for info in values if not info.lapsed), default=0)
        return f"{plural(len(values), 'lease')}, the slowest {plural(behind, 'offset')} behind"

    def __str__(self) -> str:
        state = "lapsed" if self.lapsed else "lapses"
        return (
            f"{self.topic}-{self.partition}: {self.name} at {self.position}, {self.lag_offsets} behind, "
            f"{state} {format_time(self.lapses_ms)}{_cut_text(self)}"
        )


class Lease(ProcessBound):
    """A named lease on all partitions of a topic. Get it from `Topic.lease`; safe from any thread.

    Attributes:
        topic: The topic.
        name: The name of the lease.
    """

    def __init__(
        self, dirs: OpenDirs, topic: str, name: str, taken: Mapping[int, LeaseFacts] | None = None
    ) -> None:
        self._dirs = dirs
        self.topic = topic
        self.name = name
        self._taken = dict(taken or {})
        """The lease on each partition that had it first; others were added since. Empty: unknown."""

    def __repr__(self) -> str:
        return f"Lease({self.topic!r}, {self.name!r})"

    def on(self, dirs: OpenDirs) -> Lease:
        """Return the lease, used through other directories that hold it."""
        return Lease(dirs, self.topic, self.name, self._taken)

    @property
    def position(self) -> int | dict[int, int]:
        """The next offset of its reader; a dict by partition if the topic has several.

        Raises:
            LeaseRefusedError: The lease was released.
        """

        def position_of(number: int, log_dir: LogDirectory) -> int:
            lease = leases.read(log_dir.files, log_dir.directory(self.topic, number), self.name)
            if lease is None:
                raise LeaseRefusedError(
                    f"{self.topic}-{number} has no lease {self.name!r}: it was released, or never taken",
                    remedy="take it with Topic.lease",
                )
            return lease.position

        dirs = self._dirs
        positions = {n: dirs.at(self.topic, n, partial(position_of, n)) for n in dirs.partitions(self.topic)}
        return next(iter(positions.values())) if len(positions) == 1 else positions

    def advance(self, position: Position) -> None:
        """Move the lease to `position` and renew it. Durable when the call returns.

        A partition that was added to the topic since the lease was taken gets it now.

        Args:
            position: An offset for every partition, or a dict. Other partitions keep their position
                and are renewed.

        Raises:
            LeaseRefusedError: The lease was released, or lapsed while tombstones above its position were
                removed; or the log was cut below `position`, or cleaned by a broker above it. Restore, or
                start from "earliest".
            OffsetOutOfRangeError: The position is below the log start or above the log end.
        """
        self._taken |= self._dirs.transaction(lambda dirs: self._advance(dirs, position), any_mode=True)

    def _advance(self, dirs: OpenDirs, position: Position) -> dict[int, LeaseFacts]:
        """Advance the lease in these directories; return it on partitions that were added."""
        added: dict[int, LeaseFacts] = {}
        wanted = _by_partition(dirs, self.topic, position)
        now_ms = dirs.clock.now_ms()

        def advance(number: int, log_dir: LogDirectory) -> None:
            directory = log_dir.directory(self.topic, number)
            known = leases.read(log_dir.files, directory, self.name)
            view = dirs.view(self.topic, number)
            target = wanted.get(number, view.log_start if known is None else known.position)
            bounds = {"log_start": view.log_start, "log_end": view.log_end, "now_ms": now_ms}
            if known is None and self._taken and number not in self._taken:
                added[number] = leases.register(
                    log_dir.files,
                    directory,
                    self.name,
                    target,
                    **bounds,
                    max_age_ms=next(iter(self._taken.values())).max_age_ms,
                    holds_nothing=target == view.log_start,
                )
            else:
                leases.advance(log_dir.files, directory, self.name, target, **bounds)

        for number in dirs.partitions(self.topic):
            dirs.write_lease(self.topic, number, partial(advance, number))
        return added

    def release(self) -> None:
        """Release the lease. A second release does nothing."""
        self._dirs.transaction(self._release, any_mode=True)

    def _release(self, dirs: OpenDirs) -> None:
        for number in dirs.partitions(self.topic):
            release(dirs, self.topic, number, self.name)


def release(dirs: OpenDirs, topic: str, partition: int, name: str) -> None:
    """Release the lease on one partition, if there is one."""

    def release_in(log_dir: LogDirectory) -> None:
        if not leases.release(log_dir.files, log_dir.directory(topic, partition), name):
            raise LeaseRefusedError(f"{topic}-{partition} has no lease {name!r}")

    with suppress(LeaseRefusedError):  # there is none, or the partition was moved and it is in the other one
        dirs.write_lease(topic, partition, release_in)


def take(dirs: OpenDirs, topic: str, name: str, position: Position | None, max_age: Duration) -> Lease:
    """See `Topic.lease`. If one partition refuses the lease, no partition keeps it."""
    leases.check_name(name)
    max_age_ms = parse_duration_ms(max_age)
    if max_age_ms > INT64_MAX:  # no file holds it: a lease of unknown age would be read back
        raise UsageError(f"max_age is {max_age_ms} ms", remedy='give a duration: max_age="7d"')
    wanted = {} if position is None else _by_partition(dirs, topic, position)
    now_ms = dirs.clock.now_ms()
    before: dict[int, LeaseFacts | None] = {}
    taken: dict[int, LeaseFacts] = {}

    def register(number: int, log_dir: LogDirectory) -> None:
        directory = log_dir.directory(topic, number)
        known = leases.read(log_dir.files, directory, name)
        view = dirs.view(topic, number)
        taken[number] = leases.register(
            log_dir.files,
            directory,
            name,
            wanted.get(number),
            log_start=view.log_start,
            log_end=view.log_end,
            max_age_ms=max_age_ms,
            now_ms=now_ms,
        )
        before.setdefault(number, known)  # a move lets it run again

    try:
        for number in dirs.partitions(topic):
            dirs.write_lease(topic, number, partial(register, number))
    except LastwordError:
        for number, known in before.items():
            if known is None:
                with suppress(LastwordError):  # the first error is the one to report
                    release(dirs, topic, number, name)
        raise
    return Lease(dirs, topic, name, taken)


def listed(dirs: OpenDirs, topic: str, partition: int | None = None) -> list[LeaseInfo]:
    """Return all leases on a topic, live and lapsed, by partition and name."""
    now_ms = dirs.clock.now_ms()
    infos = []
    for _, number in dirs.select(topic, partition):
        log_dir = dirs.log_dir(topic, number)
        known = leases.load(log_dir.files, log_dir.directory(topic, number), now_ms)
        if not known.live and not known.lapsed:
            continue
        log_end = dirs.view(topic, number).log_end
        for lease in sorted((*known.live, *known.lapsed), key=lambda lease: lease.name):
            infos.append(
                LeaseInfo(
                    topic=topic,
                    partition=number,
                    name=lease.name,
                    position=lease.position,
                    lag_offsets=max(0, log_end - lease.position),
                    advanced_ms=lease.advanced_ms,
                    lapses_ms=lease.lapses_ms,
                    lapsed=lease.lapsed(now_ms),
                    cut_from=lease.cut_from,
                )
            )
    return infos


def age_text(info: LeaseInfo, now_ms: int) -> str:
    """Format the age of a lease: `lapses in 6 d`, `lapsed 3 h ago`, and whether a cut moved it."""
    if info.lapsed:
        return f"lapsed {format_duration(now_ms - info.lapses_ms)} ago{_cut_text(info)}"
    return f"lapses in {format_duration(info.lapses_ms - now_ms)}{_cut_text(info)}"


def _cut_text(info: LeaseInfo) -> str:
    return "" if info.cut_from is None else f"; was at {info.cut_from} when the log was cut"


def _by_partition(dirs: OpenDirs, topic: str, position: Position) -> dict[int, int]:
    numbers = dirs.partitions(topic)
    if not isinstance(position, Mapping):
        return dict.fromkeys(numbers, position)
    unknown = [number for number in position if as_int(number) not in numbers]
    if unknown:
        raise UsageError(
            f"{topic} has no partition {min(unknown, key=str)!r}", remedy=partitions_text(numbers)
        )
    return dict(position)
