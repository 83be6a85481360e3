"""What the scheduler cleans: the partitions of open log directories, drive by drive.

Choosing looks at sizes, times and checkpoints and reads no record, so a log in which nothing is due costs a
look and no import. A round is `cleaner.clean` with its `due=True`, so it decides once more when it begins;
and it holds the partition's claim. Whoever waits for that claim (to trim, move, truncate or delete, to clean
or expire by hand) ends the round at its next safe point. The background itself never waits for a claim.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lastword import metrics
from lastword.cleaner import quarantine
from lastword.cleaner.budget import Drives
from lastword.cleaner.choose import choose, overdue_ms
from lastword.cleaner.scheduler import Done, Stop, Urgency
from lastword.cleaner.states import States
from lastword.clock import Clock
from lastword.config import TopicConfig
from lastword.errors import LastwordError, UnknownTopicError
from lastword.logdir import LogDirectory, Spread
from lastword.logdir.checkpoints import TopicPartition

if TYPE_CHECKING:
    from lastword.cleaner import CleanRound, Plan

OVERDUE, DIRTY = 0, 2  # ranks: garbage older than max.compaction.lag.ms, and more of it than is tolerated


class DirectoryWork:
    """The compacted partitions of `spread`.

    only   a topic and a partition (None: each) to which everything is limited; None: all
    """

    def __init__(
        self,
        spread: Spread,
        drives: Drives,
        states: States,
        clock: Clock,
        *,
        only: tuple[str, int | None] | None = None,
    ) -> None:
        self._spread = spread
        self._drives = drives
        self._states = states
        self._clock = clock
        self.only = only

    def drives(self) -> list[str]:
        self._look_at_quarantine()
        return self._drives.names

    def next(self, drive: str, held: Collection[TopicPartition]) -> Round | None:
        """The most urgent round on a drive."""
        found: list[Round] = []
        first_dirty: dict[str, dict[TopicPartition, int]] = {}
        for tp, home, config in self._partitions(drive):
            if tp in held or not config.compacts:
                continue
            try:
                if home.path not in first_dirty:
                    first_dirty[home.path] = home.checkpoints.first_dirty.read_sound()
                one = self._look(tp, home, config, first_dirty[home.path].get(tp), drive)
            except LastwordError:  # told to whoever uses that partition; the others are cleaned
                continue
            if one is not None:
                found.append(one)
        return min(found, key=lambda one: (one.urgency, one.partition), default=None)

    def _partitions(self, drive: str) -> Iterator[tuple[TopicPartition, LogDirectory, TopicConfig]]:
        """Those that may be touched, on a drive that serves."""
        try:
            homes = self._spread.homes()
        except LastwordError:  # a partition lies in two places: nothing is touched before that is settled
            return
        for topic, partitions in homes.items():
            for number, home in partitions.items():
                if not self._spread.serves(home):
                    continue
                if self.only is not None and self.only not in ((topic, None), (topic, number)):
                    continue
                if self._drives.drive_of(home.path) == drive:
                    yield TopicPartition(topic, number), home, home.topic_config(topic)

    def _look(
        self,
        tp: TopicPartition,
        home: LogDirectory,
        config: TopicConfig,
        first_dirty: int | None,
        drive: str,
    ) -> Round | None:
        log = home.log(*tp)
        log.roll_if_due()
        noted = quarantine.load(home.files, log.directory)
        segments = log.segments
        plan = choose(
            *tp,
            segments,
            config,
            log_start=log.log_start,
            log_end=log.log_end,
            stable_offset=log.stable_offset,
            first_dirty=first_dirty,
            now_ms=self._clock.now_ms(),
            map_bytes=home.settings.instance.map_bytes,
            due=True,
            quarantine=None if noted is None else noted.reason,
        )
        late_ms = overdue_ms(
            [one for one in segments if one.next_offset <= plan.limit],
            plan.start,
            plan.now_ms,
            config.max_compaction_lag_ms,
        )
        labels = tp.topic, str(tp.partition)
        metrics.LOG_DIRTY_RATIO.set(plan.dirty_ratio, *labels)
        metrics.CLEANER_OVERDUE_SECONDS.set((late_ms or 0) / 1000, *labels)
        if noted is not None:
            if self._states[tp].kind in ("idle", "paused"):
                self._states.apply(tp, "find")
            return None
        if plan.action != "clean":
            return None
        return Round(self, tp, home, drive, _urgency(plan, late_ms))

    def _look_at_quarantine(self) -> None:
        """A note that somebody removed by hand holds nobody back."""
        for tp, state in self._states.all().items():
            if state.kind == "quarantined":
                try:
                    home = self._spread.home(*tp)
                    if home is None or not home.holds(*tp):
                        self._states.forget(tp)
                    elif quarantine.load(home.files, home.directory(*tp)) is None:
                        self._states.apply(tp, "retry")
                except LastwordError:  # its drive is offline
                    continue

    def chores(self, held: Collection[TopicPartition]) -> Iterator[Done]:
        """Retention of every partition whose policy is known, and files whose delay has passed."""
        homes: dict[str, LogDirectory] = {}
        for drive in self._drives.names:
            for tp, home, config in self._partitions(drive):
                homes[home.path] = home
                if tp not in held and config.cleanup_policy is not None:
                    done = self._expire(tp, home, drive)
                    if done is not None:
                        yield done
        for home in homes.values():
            try:
                home.remove_waste()
            except LastwordError:  # a drive that fails says so to whoever writes there
                continue

    def _expire(self, tp: TopicPartition, home: LogDirectory, drive: str) -> Done | None:
        from lastword.retention.expire import expire

        with home.try_claim(*tp) as mine:
            if not mine:
                return None
            try:
                found = expire(home, *tp)
            except UnknownTopicError:  # deleted a moment ago
                return None
            except LastwordError as error:
                return Done(*tp, drive, "failed", self._clock.now_ms(), error=error.message)
        if not found.removes:
            return None
        return Done(*tp, drive, "expired", self._clock.now_ms(), deletion=found)

    # -------------------------------------------------------------- a round

    def clean(self, one: Round, stop: Stop) -> Done | None:
        from lastword.cleaner.cleaner import clean

        tp, home = one.partition, one.home

        def wanted_or_not() -> bool:
            return home.wanted(*tp) or not home.topic_config(tp.topic).compacts or stop()

        with home.try_claim(*tp) as mine:
            if not mine or not home.holds(*tp):
                return None
            try:
                found = clean(
                    home.log(*tp),
                    home.topic_config(tp.topic),
                    first_dirty=home.first_dirty(*tp),
                    record_first_dirty=lambda offset: home.set_first_dirty(*tp, offset),
                    due=True,
                    map_bytes=home.settings.instance.map_bytes,
                    stop=wanted_or_not,
                    budget=self._drives.budget(one.drive),
                )
            except LastwordError as error:
                damaged = quarantine.load(home.files, home.directory(*tp)) is not None
                now_ms = self._clock.now_ms()
                return Done(*tp, one.drive, "failed", now_ms, error=error.message, damaged=damaged)
        return None if found is None else _done(found, one.drive)


@dataclass(frozen=True, slots=True)
class Round:
    """One partition that is due."""

    work: DirectoryWork
    partition: TopicPartition
    home: LogDirectory
    drive: str
    urgency: Urgency

    def run(self, stop: Stop) -> Done | None:
        return self.work.clean(self, stop)


def _urgency(plan: Plan, late_ms: int | None) -> Urgency:
    """Overdue ones first, the latest before all; then the dirtiest."""
    return Urgency(DIRTY, -plan.dirty_ratio) if late_ms is None else Urgency(OVERDUE, -late_ms)


def _done(found: CleanRound, drive: str) -> Done:
    published = found.certificate is not None
    result = "ok" if found.complete else "partial" if published else "aborted"
    return Done(found.topic, found.partition, drive, result, found.now_ms, round=found)  # type: ignore[arg-type]
