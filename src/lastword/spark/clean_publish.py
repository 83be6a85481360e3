"""The driver's part of a cleaning on Spark: what tasks built is swapped in, as soon as it is there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from lastword.errors import LastwordError

if TYPE_CHECKING:
    from lastword.cleaner.distributed.job import Job
    from lastword.cleaner.distributed.remote import RemoteBuild
    from lastword.cleaner.engine.report import CleanRound, PreparedCleaning
    from lastword.cleaner.policy.plan import Plan
    from lastword.logdir.log_dir import LogDirectory
    from lastword.partition.log import PartitionLog


class Publishing:
    """Rounds that were published, and the errors of those that were not."""

    def __init__(self, directory: LogDirectory) -> None:
        self._directory = directory
        self.rounds: list[CleanRound] = []
        self.failed: list[LastwordError] = []

    def take(
        self, plan: Plan, built: PreparedCleaning | RemoteBuild | LastwordError, job: Job | None = None
    ) -> bool:
        """Publish, and take the rounds or their error down; were all of them published to their end?"""
        from lastword.cleaner.distributed import job as jobs

        whole = True
        try:
            if isinstance(built, LastwordError):
                raise built
            for one in self._published(plan, built, job):
                self.rounds.append(one)
                whole &= one.complete
        except LastwordError as error:
            self.failed.append(error)
            whole = False
        if job is not None:
            jobs.remove(self._log(plan).files, job.directory)
        return whole

    def _published(
        self, plan: Plan, built: PreparedCleaning | RemoteBuild, job: Job | None
    ) -> Iterator[CleanRound]:
        from lastword.cleaner.distributed import job as jobs
        from lastword.cleaner.distributed import remote
        from lastword.cleaner.engine.sinks import Publisher
        from lastword.logdir.checkpoints import TopicPartition

        tp = TopicPartition(plan.topic, plan.partition)
        log, ledgers = self._log(plan), self._directory.ledgers

        def record(offset: int) -> None:
            self._directory.set_first_dirty(*tp, offset)

        if isinstance(built, remote.RemoteBuild):
            ledgers.seen.pop(tp, None)
            for one in remote.publish(log, built, record_first_dirty=record):
                if one.certificate is not None:
                    swaps = max(one.segments_before - one.segments_after, 1)
                    ledgers.measured(one.written_bytes, one.phases.rewrite, swaps, one.phases.swap)
                yield one
                if not one.complete:
                    return
            ledgers.seen[tp] = built.after
            return
        done = () if job is None else jobs.published(log.files, job).values()
        yield Publisher(log, built.plan, record, done).publish(built)

    def _log(self, plan: Plan) -> PartitionLog:
        return self._directory.log(plan.topic, plan.partition)
