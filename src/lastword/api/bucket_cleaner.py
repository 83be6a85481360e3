"""`BucketWork`: what the background cleaner does for a log in a bucket.

A cleaning is a transaction like any other, and so is the joining of small segments of a partition that is not
compacted (`partition.joining`). Several processes may run one: both clean what is due, and the
commit of the second is refused and runs again on what is left.

A check that a bound does not decide (`inspection.worst_account`) reads what is new in a partition, and
commits its summary. So a partition is checked when it has grown by a share of its size, and not after each
append.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from lastword.api import cleaning
from lastword.background.scheduler import BackgroundTask, Done, Result, Stop, Urgency
from lastword.background.states import States
from lastword.cleaner.policy import quarantine
from lastword.errors import LastwordError, UnknownTopicError
from lastword.logdir.checkpoints import TopicPartition
from lastword.partition import joining
from lastword.retention import outlook
from lastword.segment import names

if TYPE_CHECKING:
    from lastword.api.bucket_dirs import BucketDirs
    from lastword.cleaner.engine.report import CleanRound
    from lastword.config import TopicConfig
    from lastword.values import Progress

log = logging.getLogger(__name__)

CHECK_AGAIN_SECONDS = 3600.0
"""A partition that did not grow is checked after this time: tombstones become due without a new record."""
GROWN_RATIO = 0.1
"""A partition is checked when it has grown by this share of its size: garbage does not grow faster."""
GROWN_SEGMENTS = 16
"""A partition is checked when it has this many new segments: the cleaner joins small ones."""


class _Checked(NamedTuple):
    """The state of a partition at its last check."""

    at: float
    size_bytes: int
    segments: int


_NEVER = _Checked(float("-inf"), 0, 0)


def _needs_join(checked: _Checked, now: _Checked, config: TopicConfig) -> bool:
    """Return whether segments of a partition that is not compacted may be joined."""
    grown = now.segments - checked.segments
    return (
        config.policy is not None
        and grown >= GROWN_SEGMENTS
        and joining.is_crowded(now.segments, now.size_bytes, config)
    )


class BucketWork:
    """Supplies the scheduler with cleanings of a log in a bucket.

    Args:
        dirs: The log.
        states: States of its partitions: paused, for example.
    """

    def __init__(self, dirs: BucketDirs, states: States) -> None:
        self.dirs = dirs
        self.only: frozenset[tuple[str, int | None]] | None = None
        self._states = states
        self._checked: dict[TopicPartition, _Checked] = {}
        self._warned: set[type[LastwordError]] = set()

    def drives(self) -> list[str]:
        """Return the log's URL as the only drive."""
        return [self.dirs.paths[0]]

    def forget(self) -> None:
        """Check every partition again."""
        self._checked.clear()

    def next(self, drive: str, held: Collection[TopicPartition]) -> BackgroundTask | None:
        """Return a cleaning of the partition that waits longest, among those to check."""
        with self._warning():
            return self._next(held)
        return None

    def _next(self, held: Collection[TopicPartition]) -> BackgroundTask | None:
        now = self.dirs.clock.monotonic()
        waiting = []
        for tp in self._partitions():
            config = self.dirs.config(tp.topic)
            checked = self._checked.get(tp, _NEVER)
            needs_check = self._needs_check if config.compacts else _needs_join
            if (
                tp not in held
                and not self._states[tp].pauses
                and needs_check(checked, self._extent(tp, now), config)
            ):
                waiting.append((checked.at, tp))
        return _BucketTask(self, min(waiting)[1]) if waiting else None

    def _needs_check(self, checked: _Checked, now: _Checked, config: TopicConfig) -> bool:
        longest = CHECK_AGAIN_SECONDS
        if now[1:] != checked[1:]:
            longest = min(longest, config.max_compaction_lag_ms / 1000 / 2)
        grown_bytes = now.size_bytes - checked.size_bytes
        return (
            now.at - checked.at >= longest
            or grown_bytes > GROWN_RATIO * checked.size_bytes
            or now.segments - checked.segments >= GROWN_SEGMENTS
        )

    def overtakes(self, task: BackgroundTask, held: Collection[TopicPartition]) -> bool:
        """Return False: a cleaning in a bucket holds nothing that another one needs."""
        return False

    def chores(self, held: Collection[TopicPartition]) -> Iterator[Done]:
        """Apply retention, and remove objects that no version needs."""
        with self._warning():
            yield from self._expire(held)
            self.dirs.collect()

    def _expire(self, held: Collection[TopicPartition]) -> Iterator[Done]:
        now_ms, drive = self.dirs.clock.now_ms(), self.dirs.paths[0]
        for tp in self._partitions():
            config = self.dirs.config(tp.topic)
            if tp in held or config.policy is None or self._states[tp].pauses:
                continue
            try:
                if not self._has_expired(tp, config):
                    continue
                deletions = self.dirs.transaction(
                    partial(cleaning.expire, topic=tp.topic, partition=tp.partition)
                )
            except UnknownTopicError:
                continue
            except LastwordError as error:
                yield Done(*tp, drive, "failed", now_ms, error=error.message)
                continue
            for deletion in deletions:
                yield Done(*tp, drive, "expired", now_ms, deletion=deletion)

    def _has_expired(self, tp: TopicPartition, config: TopicConfig) -> bool:
        """Return whether retention would remove segments. Needs no transaction."""
        view = self.dirs.log_dir(*tp).view(*tp)
        return outlook(view, config, self.dirs.clock.now_ms()).removes

    def clean(self, tp: TopicPartition, stop: Stop) -> list[CleanRound]:
        """Clean what is due in one partition, or join its segments."""
        # As of before: what is appended during the cleaning is new.
        self._checked[tp] = self._extent(tp, self.dirs.clock.monotonic())
        nothing_due = False
        try:
            if not self.dirs.config(tp.topic).compacts:
                nothing_due = not self.dirs.transaction(lambda dirs: cleaning.join(dirs, *tp))
                return []
            rounds = self.dirs.transaction(
                lambda dirs: cleaning.clean(dirs, *tp, due=True, strategy=None, progress=None, stop=stop)
            )
            nothing_due = not rounds and not stop()
        finally:
            if not nothing_due:
                self._checked.pop(tp, None)  # more may be due in the log as it is now
        return rounds

    @contextmanager
    def _warning(self) -> Iterator[None]:
        """Log an error of the store, once for each kind of error: the next check or removal tries again."""
        try:
            yield
        except LastwordError as error:
            if type(error) not in self._warned:
                self._warned.add(type(error))
                log.warning("lastword: in the background: %s", error.message)

    def is_quarantined(self, tp: TopicPartition) -> bool:
        """Return whether a cleaning has put a partition in quarantine. False: the store does not answer."""
        try:
            self.dirs.refresh()
            log_dir = self.dirs.log_dir(*tp)
            return quarantine.load(log_dir.files, log_dir.directory(*tp)) is not None
        except LastwordError:
            return False

    def _partitions(self) -> Iterator[TopicPartition]:
        for name, numbers in self.dirs.topics().items():
            for tp in (TopicPartition(name, number) for number in numbers):
                if self.only is None or not self.only.isdisjoint([(name, None), tp]):
                    yield tp

    def _extent(self, tp: TopicPartition, now: float) -> _Checked:
        """Return the size and the number of the segments in the newest version that was loaded."""
        children = self.dirs.newest.children(str(tp))
        sizes = [entry.size for name, entry in children.items() if entry and name.endswith(names.LOG)]
        return _Checked(now, sum(sizes), len(sizes))


@dataclass(frozen=True, slots=True)
class _BucketTask:
    """A cleaning of one partition."""

    work: BucketWork
    partition: TopicPartition
    urgency: Urgency = field(default_factory=lambda: Urgency(0))
    steps: Sequence[Progress] = ()

    @property
    def drive(self) -> str:
        """The log's URL."""
        return self.work.drives()[0]

    def run(self, stop: Stop) -> Done | None:
        """Clean the partition; None if nothing was due, or if segments were joined."""
        now_ms = self.work.dirs.clock.now_ms()
        try:
            rounds = self.work.clean(self.partition, stop)
        except UnknownTopicError:  # deleted a moment ago
            return None
        except LastwordError as error:
            damaged = self.work.is_quarantined(self.partition)
            return Done(*self.partition, self.drive, "failed", now_ms, error=error.message, damaged=damaged)
        if not rounds:
            return None
        result: Result = "ok" if rounds[-1].complete else "partial"
        return Done(*self.partition, self.drive, result, rounds[-1].now_ms, round=rounds[-1])
