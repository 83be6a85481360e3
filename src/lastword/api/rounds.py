"""What the scheduler does to one partition: a whole round, one run, or a scan of what is new."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lastword.cleaner import quarantine
from lastword.cleaner.steps import Stopped
from lastword.cleaner.tasks import Done, Stop, Urgency
from lastword.errors import LastwordError, UnknownTopicError
from lastword.logdir import LogDirectory
from lastword.logdir.checkpoints import TopicPartition

if TYPE_CHECKING:
    from lastword.api.work import DirectoryWork
    from lastword.cleaner import CleanRound
    from lastword.cleaner.runs import Run


@dataclass(frozen=True, slots=True)
class Due:
    """Something to do with one partition, now."""

    work: DirectoryWork
    partition: TopicPartition
    home: LogDirectory
    drive: str
    urgency: Urgency

    def run(self, stop: Stop) -> Done | None:
        """With the partition's claim, if nobody has it; given up as soon as somebody wants it, or the topic
        may not be cleaned any more."""
        tp, home = self.partition, self.home

        def over() -> bool:
            return home.wanted(*tp) or not home.topic_config(tp.topic).compacts or stop()

        with home.try_claim(*tp) as mine:
            if not mine or not home.holds(*tp):
                return None
            try:
                return self._do(over)
            except UnknownTopicError:  # deleted a moment ago
                return None
            except LastwordError as error:
                damaged = quarantine.load(home.files, home.directory(*tp)) is not None
                now_ms = self.work.clock.now_ms()
                return Done(*tp, self.drive, "failed", now_ms, error=error.message, damaged=damaged)

    def _do(self, stop: Stop) -> Done | None:
        raise AssertionError("each kind has its own")

    def _done(self, found: CleanRound | None) -> Done | None:
        if found is None:
            return None
        published = found.certificate is not None
        result = "ok" if found.complete else "partial" if published else "aborted"
        # `result` is one of Done's three words, which mypy takes for any text.
        return Done(*self.partition, self.drive, result, found.now_ms, round=found)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Whole(Due):
    """Strategy `kafka`: all that lies below the limit."""

    def _do(self, stop: Stop) -> Done | None:
        from lastword.cleaner.cleaner import clean_partition
        from lastword.cleaner.cleaning import Context
        from lastword.cleaner.plan import Request

        tp, home = self.partition, self.home
        log, settings = home.log(*tp), home.settings.instance
        found = clean_partition(
            log,
            home.topic_config(tp.topic),
            Request(home.first_dirty(*tp), due=True, map_bytes=settings.map_bytes),
            Context(
                log.files,
                log.clock,
                scratch=settings.lastword_map_scratch,
                stop=stop,
                budget=self.work.budgets.budget(self.drive),
            ),
            record_first_dirty=lambda offset: home.set_first_dirty(*tp, offset),
        )
        return self._done(found)


@dataclass(frozen=True, slots=True)
class Rewrite(Due):
    """Strategy `generational`: one run of neighbouring segments."""

    chosen: Run

    def _do(self, stop: Stop) -> Done | None:
        from lastword.cleaner.drive import Place, rewrite

        budget = self.work.budgets.budget(self.drive)
        found = rewrite(Place(self.partition, self.home), self.chosen, stop=stop, budget=budget)
        return self._done(found)


@dataclass(frozen=True, slots=True)
class Scan(Due):
    """Brings the accounts of a partition up to date; each segment is read once, soon after it was closed."""

    def _do(self, stop: Stop) -> Done | None:
        from lastword.cleaner.drive import Place, look

        place = Place(self.partition, self.home)
        now_ms = self.work.clock.now_ms()
        failed: list[LastwordError] = []
        try:
            look(
                [place],
                self.drive,
                now_ms=now_ms,
                space_target=self.work.space_target([place]),
                failed=failed,
                stop=stop,
                budget=self.work.budgets.budget(self.drive),
            )
        except Stopped:
            return None
        if failed:
            raise failed[0]
        return Done(*self.partition, self.drive, "looked", now_ms)
