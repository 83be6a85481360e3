"""`logs.cleaner`: the background cleaner of an open log directory.

It starts when a directory is opened to append. It runs the cleanings that are due, on `log.cleaner.threads`
threads of this process, and applies retention every `log.retention.check.interval.ms`. The first check is
`log.cleaner.backoff.ms` after opening. Topics without a known cleanup.policy are never changed.

Each `LogDir` has one `Background`, made when it is first needed. `Cleaner` is its public interface.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from lastword.background.scheduler import STOP_SECONDS, Done, Scheduler
from lastword.background.states import Kind, PartitionState, States
from lastword.cleaner.policy import quarantine
from lastword.errors import LastwordError, NoPolicyError, QuarantinedError, UsageError
from lastword.files import normal_path
from lastword.logdir.checkpoints import TopicPartition
from lastword.parse import Duration, check_path, parse_bytes, parse_seconds
from lastword.units import format_bytes
from lastword.values import ProcessBound, Value

if TYPE_CHECKING:
    from lastword.api.bucket_cleaner import BucketWork
    from lastword.api.bucket_dirs import BucketDirs
    from lastword.api.open_dirs import OpenDirs, PathLike
    from lastword.background.work import DirectoryWork
    from lastword.config.tables import LogConfig
    from lastword.tools.verify import Verification


def work_of(dirs: OpenDirs, states: States) -> DirectoryWork | BucketWork:
    """Return what the background cleaner does in these directories."""
    if dirs.holds_logs:
        from lastword.background.work import DirectoryWork

        return DirectoryWork(dirs.dir_set, dirs.drives, states, dirs.clock)
    from lastword.api.bucket_cleaner import BucketWork

    return BucketWork(cast("BucketDirs", dirs), states)


class Background:
    """The scheduler of the partitions of `dirs`, with their states and drives."""

    def __init__(self, dirs: OpenDirs) -> None:
        self._dirs = dirs
        self.states = States(dirs.clock)
        self._work = work_of(dirs, self.states)
        self._applied: LogConfig = dirs.settings.instance
        self.scheduler = Scheduler(
            self._work,
            clock=dirs.clock,
            states=self.states,
            threads=self._applied.log_cleaner_threads,
            backoff_ms=self._applied.log_cleaner_backoff_ms,
            chores_ms=self._applied.log_retention_check_interval_ms,
            on_look=dirs.save_key_indexes,
        )
        dirs.on_close(self.scheduler.stop)
        dirs.on_settings_changed(self._settings_changed)
        dirs.on_topic_deleted(self._forget)

    def run_for(
        self,
        only: Collection[tuple[str, int | None]] | None,
        backoff_ms: int,
        on_done: Callable[[Done], None],
    ) -> None:
        """Start immediately, and call `on_done` with every result.

        Args:
            only: The topics to clean, each with a partition (None: each of them); None: all topics.
            backoff_ms: Pause between two checks.
            on_done: Called with each result.
        """
        self._dirs.require_writable()
        for topic, _ in only or ():
            if self._dirs.config(topic).policy is None:
                raise NoPolicyError.of(topic, self._dirs.paths[0], self._dirs.config(topic).unread)
        self._work.only = None if only is None else frozenset(only)
        self._work.forget()
        self.scheduler.backoff_ms = backoff_ms
        self.scheduler.on_done = on_done
        self.scheduler.start(at_once=True)

    def _forget(self, topic: str, partitions: Iterable[int]) -> None:
        """Drop the states of a deleted topic, so that a new topic of that name has no pauses."""
        for number in partitions:
            self.states.forget(TopicPartition(topic, number))
            self.scheduler.forgive(TopicPartition(topic, number))

    def _settings_changed(self) -> None:
        """Apply changed settings, and check which cleanings are due."""
        now: LogConfig = self._dirs.settings.instance
        before, self._applied = self._applied, now
        if now.log_cleaner_backoff_ms != before.log_cleaner_backoff_ms:
            self.scheduler.backoff_ms = now.log_cleaner_backoff_ms
        self.scheduler.chores_ms = now.log_retention_check_interval_ms
        limits = now.log_cleaner_io_max_bytes_per_second, now.drives
        if limits != (before.log_cleaner_io_max_bytes_per_second, before.drives):
            self._dirs.drives.set_all(*limits)
        self._work.forget()
        self.scheduler.wake()


@dataclass(frozen=True, slots=True)
class DriveStatus(Value):
    """One drive.

    Attributes:
        drive: The first of its directories.
        dirs: All its directories.
        bytes_per_second: Its I/O budget; None: no limit.
        used_bytes: Bytes read and written by cleanings since opening, with or without a limit.
        throttled_seconds: Seconds slept to stay within the budget, summed over all threads.
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
    """A partition that is not idle. `reason`: the reason of its quarantine; else empty."""

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
        threads: Number of configured threads.
        alive: Number of running threads.
        deaths: Number of threads that died and were replaced.
        drives: Each drive.
        partitions: Partitions that are not idle.
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
    """The background cleaner. Safe from any thread. All methods but `status` and `history` need mode "a".

    A process that ends without closing also ends a cleaning at its next safe point. A forked child has none
    of the threads, and must open the directory again.
    """

    def __init__(self, dirs: OpenDirs) -> None:
        self.background = background = Background(dirs)
        self._dirs = dirs
        self._states = background.states
        self._drives = dirs.drives
        self._scheduler = background.scheduler

    def __repr__(self) -> str:
        try:
            return f"Cleaner({self.status()})"
        except LastwordError as error:  # closed, or a directory that failed
            return f"Cleaner({error.message})"

    def start(self) -> None:
        """Start to clean in the background; does nothing if it runs."""
        self._dirs.require_writable()
        self._scheduler.start()

    def stop(self, *, abort: bool = True, timeout: Duration = STOP_SECONDS) -> bool:
        """End the background threads, as closing the directory does.

        A running cleaning ends at its next safe point, or with `abort=False` at its end, if it ends within
        `timeout`. It removes its unfinished files.

        Returns:
            False if a thread still runs after `timeout`.
        """
        return self._scheduler.stop(abort=abort, seconds=parse_seconds("timeout", timeout))

    def pause(
        self, topic: str, partition: int, *, abort: bool = True, timeout: Duration = STOP_SECONDS
    ) -> PartitionState:
        """Pause the background cleaning of a partition; pauses are counted.

        Returns when no background cleaning of the partition runs: a running cleaning is aborted at its next
        safe point, or with `abort=False` runs to its end.

        Raises:
            BusyError: A cleaning still runs after `timeout`; the pause is removed again.
        """
        return self._states.pause(
            self._named(topic, partition), abort=abort, seconds=parse_seconds("timeout", timeout)
        )

    def resume(self, topic: str, partition: int) -> PartitionState:
        """Remove one pause.

        Raises:
            UsageError: The partition is not paused.
        """
        after = self._states.apply(self._named(topic, partition), "resume")
        self._scheduler.wake()
        return after

    def retry(self, topic: str, partition: int) -> Verification | None:
        """Verify a quarantined partition, and end its quarantine if it is valid.

        Returns:
            The verification; None if the partition is not in quarantine.

        Raises:
            QuarantinedError: Names the first remaining problem; the quarantine stays.
        """
        tp = self._named(topic, partition)
        return self._dirs.transaction(lambda dirs: self._retry(dirs, tp))

    def _retry(self, dirs: OpenDirs, tp: TopicPartition) -> Verification | None:
        log_dir = dirs.log_dir(*tp)
        directory = log_dir.directory(*tp)
        if quarantine.load(log_dir.files, directory) is None:
            return None
        from lastword.tools.verify import verify

        with log_dir.claim(*tp):
            verification = verify(log_dir.files, [log_dir.path], [(*tp, directory)], clock=dirs.clock)
            for problem in verification.problems:
                # A damaged private file prevents no cleaning: a damaged lease keeps tombstones, and a damaged
                # quarantine note is removed.
                own = normal_path(directory)
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
        """Return the running cleanings, each drive with its budget, and the partitions that are not idle."""
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
                reason = None
                if self._dirs.dir_set.serves(log_dir):
                    reason = quarantine.reason_of(log_dir.files, log_dir.directory(*tp))
                kind: Kind = state.kind if reason is None or state.kind != "idle" else "quarantined"
                if kind != "idle":
                    shown.append(PartitionStatus(topic, number, kind, state.pauses, reason or ""))
        return shown

    def history(self) -> list[Done]:
        """Return the last thousand background cleanings and expiries of this process, oldest first."""
        return list(self._scheduler.history)

    def set_budget(self, bytes_per_second: int | str | None, drive: PathLike | None = None) -> None:
        """Limit how much cleanings may read and write per second.

        The limit holds immediately, also for running cleanings, until the setting itself is changed.

        Args:
            bytes_per_second: Bytes or a size such as "80MiB"; None: no limit.
            drive: Any path on the drive; None: each drive.
        """
        self._dirs.require_writable()
        rate = None if bytes_per_second is None else parse_bytes(bytes_per_second)
        names = self._drives.names if drive is None else [check_path("drive", drive)]
        for budget in [self._drives.budget(name) for name in names]:
            budget.set(rate)

    def _named(self, topic: str, partition: int) -> TopicPartition:
        self._dirs.require_writable()
        if topic is None or partition is None:
            raise UsageError(
                f"topic={topic!r}, partition={partition!r} is not one partition",
                remedy='name a topic and the number of a partition: ("users", 0)',
            )
        (tp,) = self._dirs.select(topic, partition)
        return TopicPartition(*tp)
