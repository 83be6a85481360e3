"""`BucketWork`: what the background cleaner does for a log in a bucket.

A cleaning is a transaction like any other. Several processes may run one: both clean what is due, and the
commit of the second is refused and runs again on what is left.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lastword.api import cleaning
from lastword.background.scheduler import BackgroundTask, Done, Stop, Urgency
from lastword.background.states import States
from lastword.errors import LastwordError, PartialFailure, UnknownTopicError
from lastword.logdir.checkpoints import TopicPartition
from lastword.retention import outlook
from lastword.segment import names

if TYPE_CHECKING:
    from lastword.api.bucket_dirs import BucketDirs
    from lastword.cleaner.engine.report import CleanRound
    from lastword.config import TopicConfig

CHECK_AGAIN_SECONDS = 3600.0
"""A partition that did not change is checked after this time: tombstones become due without a new record."""


class BucketWork:
    """Supplies the scheduler with cleanings of a log in a bucket.

    Args:
        dirs: The log.
        states: States of its partitions: paused, for example.
    """

    def __init__(self, dirs: BucketDirs, states: States) -> None:
        self.dirs = dirs
        self.only: tuple[str, int | None] | None = None
        self._states = states
        self._checked: dict[TopicPartition, tuple[float, object]] = {}

    def drives(self) -> list[str]:
        """Return the log's URL as the only drive."""
        return [self.dirs.paths[0]]

    def forget(self) -> None:
        """Check every partition again."""
        self._checked.clear()

    def next(self, drive: str, held: Collection[TopicPartition]) -> BackgroundTask | None:
        """Return a cleaning of the partition that waits longest, among those that changed."""
        now = self.dirs.clock.monotonic()
        waiting = []
        for tp in self._partitions():
            if not self.dirs.config(tp.topic).compacts:
                continue
            checked_at, segments = self._checked.get(tp, (float("-inf"), None))
            changed = segments != self._segments(tp) or now - checked_at >= CHECK_AGAIN_SECONDS
            if changed and tp not in held and not self._states[tp].pauses:
                waiting.append((checked_at, tp))
        return _BucketTask(self, min(waiting)[1]) if waiting else None

    def overtakes(self, task: BackgroundTask, held: Collection[TopicPartition]) -> bool:
        """Return False: a cleaning in a bucket holds nothing that another one needs."""
        return False

    def chores(self, held: Collection[TopicPartition]) -> Iterator[Done]:
        """Apply retention, and remove objects that no version needs."""
        now_ms, drive = self.dirs.clock.now_ms(), self.dirs.paths[0]
        for tp in self._partitions():
            config = self.dirs.config(tp.topic)
            if tp in held or config.cleanup_policy is None or self._states[tp].pauses:
                continue
            try:
                if not self._has_expired(tp, config):
                    continue
                deletions = self.dirs.transaction(lambda dirs, tp=tp: cleaning.expire(dirs, *tp))  # type: ignore[misc]
            except UnknownTopicError:
                continue
            except LastwordError as error:
                yield Done(*tp, drive, "failed", now_ms, error=error.message)
                continue
            for deletion in deletions:
                yield Done(*tp, drive, "expired", now_ms, deletion=deletion)
        self.dirs.collect()

    def _has_expired(self, tp: TopicPartition, config: TopicConfig) -> bool:
        """Return whether retention would remove segments. Needs no transaction."""
        view = self.dirs.log_dir(*tp).view(*tp)
        return outlook(view, config, self.dirs.clock.now_ms()).removes

    def clean(self, tp: TopicPartition, stop: Stop) -> list[CleanRound]:
        """Clean what is due in one partition."""
        # As of before: what is appended during the cleaning is a change.
        self._checked[tp] = (self.dirs.clock.monotonic(), self._segments(tp))
        return self.dirs.transaction(
            lambda dirs: cleaning.clean(dirs, *tp, due=True, strategy=None, progress=None, stop=stop)
        )

    def _partitions(self) -> Iterator[TopicPartition]:
        topic, partition = self.only or (None, None)
        for name, numbers in self.dirs.topics().items():
            if topic in (None, name):
                yield from (TopicPartition(name, n) for n in numbers if partition in (None, n))

    def _segments(self, tp: TopicPartition) -> object:
        """Return a value that changes when segments of the partition are added or rewritten."""
        children = self.dirs.newest.children(str(tp))
        return hash(frozenset(entry for name, entry in children.items() if name.endswith(names.LOG)))


@dataclass(frozen=True, slots=True)
class _BucketTask:
    """A cleaning of one partition."""

    work: BucketWork
    partition: TopicPartition
    urgency: Urgency = field(default_factory=lambda: Urgency(0))

    @property
    def drive(self) -> str:
        """The log's URL."""
        return self.work.drives()[0]

    def run(self, stop: Stop) -> Done | None:
        """Clean the partition; None if nothing was due."""
        now_ms = self.work.dirs.clock.now_ms()
        try:
            rounds = self.work.clean(self.partition, stop)
        except UnknownTopicError:  # deleted a moment ago
            return None
        except LastwordError as error:
            damaged = isinstance(error, PartialFailure)
            return Done(*self.partition, self.drive, "failed", now_ms, error=error.message, damaged=damaged)
        if not rounds:
            return None
        result = "ok" if rounds[-1].complete else "partial"
        return Done(*self.partition, self.drive, result, rounds[-1].now_ms, round=rounds[-1])  # type: ignore[arg-type]
