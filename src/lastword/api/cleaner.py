"""`logs.cleaner`: the background cleaner of an open log directory.

In a directory that is open to append it starts by itself: it runs the cleanings that are due, on
`log.cleaner.threads` threads of this process, and applies retention every `log.retention.check.interval.ms`.
The first check comes `log.cleaner.backoff.ms` after opening. Topics without a known cleanup.policy are never
touched.

Each `LogDir` has one `Background`, made when it is first needed. Users hold a `Cleaner`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lastword.background.scheduler import STOP_SECONDS, Done, Scheduler
from lastword.background.states import Kind, PartitionState, States
from lastword.background.work import DirectoryWork
from lastword.cleaner.policy import quarantine
from lastword.errors import NoPolicyError, QuarantinedError
from lastword.logdir.checkpoints import TopicPartition
from lastword.parse import parse_bytes
from lastword.units import format_bytes
from lastword.values import ProcessBound, Value

if TYPE_CHECKING:
    from lastword.api.open_dirs import OpenDirs, PathLike
    from lastword.config.tables import LogConfig
    from lastword.tools.verify import Verification


class Background:
    """The scheduler of the partitions of `dirs`, with their states and drives."""

    def __init__(self, dirs: OpenDirs) -> None:
        self.dirs = dirs
        self.states = States(dirs.clock)
        self.drives = dirs.drives
        self._work = DirectoryWork(dirs.dir_set, self.drives, self.states, dirs.clock)
        self._applied: LogConfig = dirs.settings.instance
        self.scheduler = Scheduler(
            self._work,
            clock=dirs.clock,
            states=self.states,
            threads=self._applied.log_cleaner_threads,
            backoff_ms=self._applied.log_cleaner_backoff_ms,
            chores_ms=self._applied.log_retention_check_interval_ms,
        )

    def run_for(
        self, only: tuple[str, int | None] | None, backoff_ms: int, on_done: Callable[[Done], None]
    ) -> None:
        """Start without a wait, and call `on_done` with every result.

        Args:
            only: A topic and a partition (None: each) to which everything is limited; None: all.
            backoff_ms: Pause between two checks.
            on_done: Called with each result.
        """
        self.dirs.require_writable()
        if only is not None and self.dirs.config(only[0]).cleanup_policy is None:
            raise NoPolicyError.of(only[0], self.dirs.paths[0])
        self._work.only = only
        self._work.forget()
        self.scheduler.backoff_ms = backoff_ms
        self.scheduler.on_done = on_done
        self.scheduler.start(at_once=True)

    def forget(self, topic: str, partitions: Iterable[int]) -> None:
        """Drop the states of a deleted topic: a new one of that name begins without its pauses."""
        for number in partitions:
            self.states.forget(TopicPartition(topic, number))
            self.scheduler.forgive(TopicPartition(topic, number))

    def settings_changed(self) -> None:
        """Apply settings that have changed, and check what is due."""
        now: LogConfig = self.dirs.settings.instance
        before, self._applied = self._applied, now
        if now.log_cleaner_backoff_ms != before.log_cleaner_backoff_ms:
            self.scheduler.backoff_ms = now.log_cleaner_backoff_ms
        self.scheduler.chores_ms = now.log_retention_check_interval_ms
        limits = now.log_cleaner_io_max_bytes_per_second, now.drives
        if limits != (before.log_cleaner_io_max_bytes_per_second, before.drives):
            self.drives.set_all(*limits)
        self._work.forget()
        self.scheduler.wake()


@dataclass(frozen=True, slots=True)
class DriveStatus(Value):
    """One drive.

    Attributes:
        drive: The first of its directories.
        dirs: All of them.
        bytes_per_second: Its budget; None: no limit.
        used_bytes: Read and written by cleanings since opening, limited or not.
        throttled_seconds: Slept to stay within the budget, all threads together.
        running: Partitions that are being cleaned in the background, as `topic-partition`.
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
    """A partition that is not idle. `reason`: why it is quarantined; else empty."""

    topic: str
    partition: int
    state: Kind
    pauses: int
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}: {self.state}" + (f", {self.reason}" if self.reason else "")


@dataclass(frozen=True, slots=True)
class CleanerStatus(Value):
    """The state of the background cleaner.

    Attributes:
        running: Whether it was started.
        threads: Threads that were asked for.
        alive: Threads that run.
        deaths: Threads that died and were replaced.
        drives: Each drive.
        partitions: Those that are not idle.
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


class Cleaner(ProcessBound):
    """The background cleaner. Safe from any thread. All but `status` and `history` need mode "a".

    A process that ends without closing ends a cleaning at its next safe point, too. A forked child has none
    of the threads, and must open the directory again.
    """

    def __init__(self, background: Background) -> None:
        self._dirs = background.dirs
        self._states = background.states
        self._drives = background.drives
        self._scheduler = background.scheduler

    def __repr__(self) -> str:
        return f"Cleaner({self.status()})"

    def start(self) -> None:
        """Clean in the background; does nothing if it runs."""
        self._dirs.require_writable()
        self._scheduler.start()

    def stop(self, *, abort: bool = True, seconds: float = STOP_SECONDS) -> bool:
        """End the background threads; closing does so too.

        A running cleaning ends at its next safe point, or with `abort=False` at its end if that comes within
        `seconds`; it leaves nothing behind.

        Returns:
            False if a thread still runs after `seconds`.
        """
        return self._scheduler.stop(abort=abort, seconds=seconds)

    def pause(
        self, topic: str, partition: int, *, abort: bool = True, seconds: float = STOP_SECONDS
    ) -> PartitionState:
        """Keep the background off a partition; pauses are counted.

        Returns when no background cleaning runs there: it is aborted at its next safe point, or with
        `abort=False` waited for.

        Raises:
            BusyError: It still runs after `seconds`; the pause is removed again.
        """
        return self._states.pause(self._named(topic, partition), abort=abort, seconds=seconds)

    def resume(self, topic: str, partition: int) -> PartitionState:
        """Take one pause back. UsageError if there is none."""
        after = self._states.apply(self._named(topic, partition), "resume")
        self._scheduler.wake()
        return after

    def retry(self, topic: str, partition: int) -> Verification | None:
        """Let a quarantined partition be cleaned again. None: it was not in quarantine.

        The whole partition is verified first.

        Raises:
            QuarantinedError: Names the first problem that is still there; the quarantine stays.
        """
        tp = self._named(topic, partition)
        log_dir = self._dirs.log_dir(*tp)
        directory = log_dir.directory(*tp)
        if quarantine.load(log_dir.files, directory) is None:
            return None
        from lastword.tools.verify import verify

        with log_dir.claim(*tp):
            verification = verify(log_dir.files, [log_dir.path], [(*tp, directory)], clock=self._dirs.clock)
            for problem in verification.problems:
                # A damaged private file stops no cleaning: a lease holds tombstones back, and this note is
                # removed.
                own = os.path.normpath(directory)
                if not problem.repairable and own in (problem.file, os.path.dirname(problem.file)):
                    raise QuarantinedError(
                        f"{tp} stays in quarantine: {problem}",
                        remedy=f"{quarantine.RESTORE}, then {quarantine.retrying(directory, str(tp))}",
                        file=problem.file,
                        position=problem.position,
                        offset=problem.offset,
                    )
            quarantine.retry(log_dir.files, directory)
            if self._states[tp].kind == "quarantined":
                self._states.apply(tp, "retry")
        self._scheduler.forgive(tp)
        self._scheduler.wake()
        return verification

    def status(self) -> CleanerStatus:
        """Return what runs, on which drive, with which budget, and which partitions are held back."""
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
        for topic, log_dirs in self._dirs.topics().items():
            for number, log_dir in log_dirs.items():
                tp = TopicPartition(topic, number)
                state = states.get(tp, PartitionState())
                note = None
                if self._dirs.dir_set.serves(log_dir):
                    note = quarantine.load(log_dir.files, log_dir.directory(*tp))
                kind: Kind = state.kind if note is None or state.kind != "idle" else "quarantined"
                if kind != "idle":
                    reason = "" if note is None else note.reason
                    shown.append(PartitionStatus(topic, number, kind, state.pauses, reason))
        return shown

    def history(self) -> list[Done]:
        """Return the last thousand background cleanings and expiries of this process, oldest first."""
        return list(self._scheduler.history)

    def set_budget(self, bytes_per_second: int | str | None, drive: PathLike | None = None) -> None:
        """Limit how much cleanings may read and write per second.

        The limit holds immediately, also for running cleanings, until the setting itself is changed.

        Args:
            bytes_per_second: None: no limit.
            drive: Any path on the drive; None: each drive.
        """
        self._dirs.require_writable()
        rate = None if bytes_per_second is None else parse_bytes(bytes_per_second)
        names = self._drives.names if drive is None else [os.fspath(drive)]
        for budget in [self._drives.budget(name) for name in names]:
            budget.set(rate)

    def _named(self, topic: str, partition: int) -> TopicPartition:
        self._dirs.require_writable()
        (tp,) = self._dirs.select(topic, partition)
        return TopicPartition(*tp)
