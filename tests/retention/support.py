"""Logs for the tests of retention: batches of one record, five to a segment by default."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from lastword.clock import ManualClock
from lastword.config import TopicConfig
from lastword.errors import LastwordError
from lastword.logdir import LogDirectory
from lastword.logdir.checkpoints import LogStart, TopicPartition
from lastword.retention import Deletion, expire, outlook, trim
from lastword.segment import names
from lastword.testing.unsynced import UNSYNCED
from tests.partition.logs import batch

NOW = 1_700_000_000_000
HOUR = 3_600_000
DAY = 24 * HOUR


@dataclass
class Fake:
    """The fields of a segment that the rules read."""

    base_offset: int
    size: int = 100
    largest_timestamp: int = NOW
    mtime_ms: int = NOW
    known_timestamp: int = -1


def fakes(*sizes_and_ages: tuple[int, int], step: int = 10) -> list[Fake]:
    """Return segments with (bytes, age in ms), `step` offsets each."""
    return [Fake(at * step, size, NOW - age, NOW - age) for at, (size, age) in enumerate(sizes_and_ages)]


def policy(*words: str, **settings: Any) -> TopicConfig:
    return TopicConfig(cleanup_policy=frozenset(words), **{"retention_ms": -1, **settings})


def decided(
    segments: Sequence[Fake], config: TopicConfig, *, step: int = 10, now_ms: int = NOW, **more: Any
) -> Deletion:
    end = more.pop("log_end", segments[-1].base_offset + (step if segments[-1].size else 0))
    log: Any = SimpleNamespace(
        topic="users",
        partition=0,
        segments=segments,
        log_start=more.pop("log_start", segments[0].base_offset),
        log_end=end,
        removable_offset=more.pop("upper_offset", end),
    )
    return outlook(log, config, now_ms, **more)


def expire_partition(home: LogDirectory, topic: str, partition: int) -> Deletion:
    """Apply retention to one partition."""
    (result,) = expire(home, [TopicPartition(topic, partition)]).values()
    if isinstance(result, LastwordError):
        raise result
    return result


def raise_log_start(home: LogDirectory, topic: str, partition: int, offset: int) -> None:
    """Raise the log start of one partition, and remove nothing."""
    starts = {TopicPartition(topic, partition): LogStart(offset, "trim")}
    for error in home.raise_log_starts(starts).values():
        raise error


class Log:
    """One partition of a topic `users` that has `partitions`, through a log directory."""

    def __init__(
        self,
        root: Path,
        clock: ManualClock | None = None,
        files: Any = UNSYNCED,
        *,
        partition: int = 0,
        partitions: int = 1,
        **settings: Any,
    ):
        self.root = root
        self.files = files
        self.partition = partition
        self.clock = clock or ManualClock(NOW)
        self.home = self._open()
        if "users" not in self.home.topics():
            self.home.create_topic("users", partitions, settings)

    def _open(self) -> LogDirectory:
        return LogDirectory.open(self.root, "a", self.files, self.clock)

    @property
    def log(self):  # type: ignore[no-untyped-def]
        return self.home.log("users", self.partition)

    @property
    def path(self) -> Path:
        return self.root / f"users-{self.partition}"

    def fill(self, records: int, per_segment: int = 5, age_ms: int = 0, timestamp: int | None = None) -> Log:
        for number in range(records):
            if number % per_segment == 0:
                self.log.roll()
            stamp = self.clock.now_ms() - age_ms if timestamp is None else timestamp
            self.log.append_batch(batch((b"k%d" % self.log.log_end, b"v" * 30), timestamp=stamp))
        return self

    def expire(self) -> Deletion:
        return expire_partition(self.home, "users", self.partition)

    def trim(self, offset: int) -> None:
        for error in trim(self.home, {TopicPartition("users", self.partition): offset}).values():
            raise error

    def raise_log_start(self, offset: int) -> None:
        raise_log_start(self.home, "users", self.partition, offset)

    @property
    def bases(self) -> list[int]:
        return [s.base_offset for s in self.log.segments]

    def named(self, ending: str) -> list[int]:
        """Return the numbers in the names of files that end with `ending`."""
        return sorted(int(p.name.split(".")[0]) for p in self.path.iterdir() if p.name.endswith(ending))

    def reopen(self) -> Log:
        self.home.close()
        self.home = self._open()
        return self

    def kill(self) -> Log:
        self.home.abandon()
        self.home = self._open()
        return self

    def close(self) -> None:
        self.home.close()


DELETED = names.DELETED
