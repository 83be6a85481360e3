"""`logs.cleaner`: the background cleaner of an open log directory, and what can be said to it.

It runs by itself in a directory that is open to append: it takes the rounds that are due, on
`log.cleaner.threads` threads of this process, and applies retention every
`log.retention.check.interval.ms`. The first look comes `log.cleaner.backoff.ms` after opening. Topics without
a known cleanup.policy are never touched.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lastword.cleaner import quarantine
from lastword.cleaner.scheduler import STOP_SECONDS
from lastword.cleaner.states import Kind, State
from lastword.cleaner.tasks import Done
from lastword.errors import QuarantinedError
from lastword.logdir.checkpoints import TopicPartition
from lastword.parse import parse_bytes
from lastword.units import format_bytes
from lastword.values import Handle, Value

if TYPE_CHECKING:
    from lastword.api.background import Background
    from lastword.api.open_dirs import PathLike
    from lastword.tools.verify import Verification


@dataclass(frozen=True, slots=True)
class DriveStatus(Value):
    """One drive.

    drive                the first of its directories; dirs: all of them
    bytes_per_second     its budget; None: no limit
    used_bytes           read and written by cleanings since opening, limited or not
    throttled_seconds    slept to stay within the budget, all threads together
    running              partitions that are being cleaned in the background, as `topic-partition`
    """

    drive: str
    dirs: tuple[str, ...]
    bytes_per_second: int | None
    used_bytes: int
    throttled_seconds: float
    running: tuple[str, ...]

    def __str__(self) -> str:
        limit = "no limit"
        if self.bytes_per_second is not None:
            limit = f"{format_bytes(self.bytes_per_second)} a second"
        return f"{self.drive}: {limit}, {', '.join(self.running) or 'idle'}"


@dataclass(frozen=True, slots=True)
class PartitionStatus(Value):
    """A partition that is not idle. reason: why it is quarantined; else empty."""

    topic: str
    partition: int
    state: Kind
    pauses: int
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}: {self.state}" + (f", {self.reason}" if self.reason else "")


@dataclass(frozen=True, slots=True)
class CleanerStatus(Value):
    """What the background cleaner is doing.

    threads, alive   threads that were asked for, and that run; deaths: how many died and were replaced
    """

    running: bool
    threads: int
    alive: int
    deaths: int
    drives: tuple[DriveStatus, ...]
    partitions: tuple[PartitionStatus, ...]

    def __str__(self) -> str:
        threads = f"{self.alive} of {self.threads} threads" if self.running else "stopped"
        return "; ".join([threads, *map(str, self.drives), *map(str, self.partitions)])


class Cleaner(Handle):
    """The background cleaner. Safe from any thread. All but `status` and `history` need mode "a".

    A process that ends without closing ends a round at its next safe point, too. A forked child has none of
    the threads, and must open the directory again.
    """

    def __init__(self, background: Background) -> None:
        self._dirs = background.dirs
        self._states = background.states
        self._drives = background.drives
        self._scheduler = background.scheduler

    def __repr__(self) -> str:
        return f"Cleaner({self.status()})"

    def start(self) -> None:
        """Clean in the background. Started already, nothing changes."""
        self._dirs.require_writable()
        self._scheduler.start()

    def stop(self, *, abort: bool = True, seconds: float = STOP_SECONDS) -> bool:
        """End the background threads; closing does so too. A round that runs ends at its next safe point, or
        with `abort=False` at its end if that comes within `seconds`; it leaves nothing behind. False: a
        thread still runs after `seconds`."""
        return self._scheduler.stop(abort=abort, seconds=seconds)

    def pause(
        self, topic: str, partition: int, *, abort: bool = True, seconds: float = STOP_SECONDS
    ) -> State:
        """Keep the background off a partition; pauses are counted. Returns when no background round runs
        there: it is aborted at its next safe point, or with `abort=False` waited for. BusyError after
        `seconds`; the pause is taken back then."""
        return self._states.pause(self._named(topic, partition), abort=abort, seconds=seconds)

    def resume(self, topic: str, partition: int) -> State:
        """Take one pause back. UsageError if there is none."""
        after = self._states.apply(self._named(topic, partition), "resume")
        self._scheduler.wake()
        return after

    def retry(self, topic: str, partition: int) -> Verification | None:
        """Let a quarantined partition be cleaned again. None: it was not in quarantine.

        It is verified first, wholly. QuarantinedError names the first problem that is still there, and the
        quarantine stays.
        """
        tp = self._named(topic, partition)
        home = self._dirs.log_dir(*tp)
        directory = home.directory(*tp)
        if quarantine.load(home.files, directory) is None:
            return None
        from lastword.tools.verify import verify

        with home.claim(*tp):
            found = verify(home.files, [home.path], [(*tp, directory)], clock=self._dirs.clock)
            for problem in found.problems:
                # A damaged private file stops no cleaning: a lease holds tombstones back, and this note goes.
                own = os.path.normpath(directory)
                if not problem.repairable and own in (problem.file, os.path.dirname(problem.file)):
                    raise QuarantinedError(
                        f"{tp} stays in quarantine: {problem}",
                        remedy=f"{quarantine.RESTORE}, then {quarantine.retrying(directory, str(tp))}",
                        file=problem.file,
                        position=problem.position,
                        offset=problem.offset,
                    )
            quarantine.retry(home.files, directory)
            if self._states[tp].kind == "quarantined":
                self._states.apply(tp, "retry")
        self._scheduler.forgive(tp)
        self._scheduler.wake()
        return found

    def status(self) -> CleanerStatus:
        """What runs, on which drive, under which budget, and which partitions are held back."""
        running = self._scheduler.running()
        drives = []
        for name in self._drives.names:
            budget = self._drives.budget(name)
            here = sorted(str(tp) for tp, task in running.items() if task.drive == name)
            drives.append(
                DriveStatus(
                    name,
                    tuple(self._drives.directories(name)),
                    budget.bytes_per_second,
                    budget.used_bytes,
                    budget.throttled_seconds,
                    tuple(here),
                )
            )
        scheduler = self._scheduler
        return CleanerStatus(
            scheduler.started,
            scheduler.threads,
            scheduler.alive,
            scheduler.deaths,
            tuple(drives),
            tuple(self._held_back()),
        )

    def _held_back(self) -> list[PartitionStatus]:
        states = self._states.all()
        shown = []
        for topic, homes in self._dirs.topics().items():
            for number, home in homes.items():
                tp = TopicPartition(topic, number)
                state = states.get(tp, State())
                noted = None
                if self._dirs.dir_set.serves(home):
                    noted = quarantine.load(home.files, home.directory(*tp))
                kind: Kind = state.kind if noted is None or state.kind != "idle" else "quarantined"
                if kind != "idle":
                    reason = "" if noted is None else noted.reason
                    shown.append(PartitionStatus(topic, number, kind, state.pauses, reason))
        return shown

    def history(self) -> list[Done]:
        """The last thousand background rounds and expiries of this process, oldest first."""
        return list(self._scheduler.history)

    def set_budget(self, bytes_per_second: int | str | None, drive: PathLike | None = None) -> None:
        """How much cleanings may read and write per second, on one drive (any path on it) or on each; None:
        no limit. Holds at once, also for rounds that run, until the setting itself is changed."""
        self._dirs.require_writable()
        rate = None if bytes_per_second is None else parse_bytes(bytes_per_second)
        names = self._drives.names if drive is None else [os.fspath(drive)]
        for budget in [self._drives.budget(name) for name in names]:
            budget.set(rate)

    def _named(self, topic: str, partition: int) -> TopicPartition:
        self._dirs.require_writable()
        (tp,) = self._dirs.select(topic, partition)
        return TopicPartition(*tp)
