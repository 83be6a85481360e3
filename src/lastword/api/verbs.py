"""`Verbs`: what cleans, expires, trims and checks the partitions of a `LogDir`.

Each takes a topic and a partition, or None for all, and gives values back. One partition that fails does not
stop the others.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from lastword.api.due import by_accounts, clean_due, plan_due
from lastword.api.found import Found, PathLike
from lastword.api.progress import Meter, listener
from lastword.errors import (
    CapacityError,
    DataError,
    LastwordError,
    NoPolicyError,
    QuarantinedError,
    StorageError,
)
from lastword.logdir.checkpoints import TopicPartition
from lastword.values import ProgressLike

if TYPE_CHECKING:
    from lastword.accounts.deletes import Clocks
    from lastword.api.logs import LogDir
    from lastword.api.ranges import Bounds
    from lastword.cleaner import CleanRound, Plan
    from lastword.partition.view import PartitionView
    from lastword.retention import Deletion
    from lastword.state.state import Restored
    from lastword.tools.audit import Audit
    from lastword.tools.duplication import Duplication
    from lastword.tools.explain import Explanation
    from lastword.tools.simulate import Simulation
    from lastword.tools.verify import Verification


class Verbs(Found):
    """The verbs of `LogDir`."""

    def plan(
        self,
        topic: str | None = None,
        partition: int | None = None,
        *,
        due: bool = False,
        strategy: str | None = None,
        progress: ProgressLike | bool | None = None,
    ) -> list[Plan]:
        """What `clean` with these arguments and `expire` would do now, or leave, and why: a `Plan` for each
        partition, and one more with the action `delete` where retention would remove something."""
        from lastword.cleaner.cleaner import plan
        from lastword.retention.expire import outlook

        chosen = self._chosen(topic, partition)
        views = [(name, number, self._view(name, number)) for name, number in chosen]
        meter = Meter("plan", progress, sum(segment.size for *_, view in views for segment in view.segments))
        accounts = {name for name, _ in chosen if due and by_accounts(self, name, strategy)}
        planned = {
            (one.topic, one.partition): one
            for one in plan_due(self, {tp for tp in chosen if tp[0] in accounts}, strategy)
        }
        found = []
        for name, number, view in views:
            config = self._config(name)
            retention = outlook(view, config, self._clock.now_ms())
            if retention.removes:
                found.append(_plan_of(retention, view))
            if (name, number) in planned:
                found.append(planned[name, number])
                continue
            with meter.progress_part(sum(segment.size for segment in view.segments)) as part:
                found.append(
                    plan(
                        view,
                        config,
                        files=self._files,
                        clock=self._clock,
                        first_dirty=self._first_dirty(name, number),
                        due=due,
                        strategy=strategy or config.lastword_strategy,
                        map_bytes=self.settings.instance.map_bytes,
                        clocks=self._clocks(name, number),
                        progress=part,
                    )
                )
        return found

    def _clocks(self, name: str, number: int) -> Clocks | None:
        held = self._home(name, number).ledgers.held(TopicPartition(name, number))
        return None if held is None or not held.exact else held.deletes.running()

    def clean(
        self,
        topic: str | None = None,
        partition: int | None = None,
        *,
        due: bool = False,
        strategy: str | None = None,
        progress: ProgressLike | bool | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> list[CleanRound]:
        """Remove superseded records now; returns a `CleanRound` for each round.

        due       only what the settings make due, in as many rounds as it takes (`generational`: until each
                  drive is within its space target); without it the active segment is rolled, and all garbage
                  goes in one round over each partition
        strategy  which segments a round takes; None: the setting lastword.strategy
        stop      asked while it runs; True ends it at the next safe point

        A partition that is damaged, or for which there is no room, does not stop the others: its error is
        raised at the end, with `error.rounds`. NoPolicyError for a topic given by name that may not be
        compacted.
        """
        from lastword.cleaner.cleaner import clean

        self._check_writable()
        chosen = self._chosen(topic, partition)
        if topic is not None:
            self._check_policy(topic)
        compacted = [(name, number) for name, number in chosen if self._config(name).compacts]
        rounds: list[CleanRound] = []
        failed: LastwordError | None = None
        sizes = {tp: self._size(*tp) for tp in compacted}
        meter = Meter("clean", progress, sum(sizes.values()))
        accounts = [tp for tp in compacted if due and by_accounts(self, tp[0], strategy)]
        if accounts:
            compacted = [tp for tp in compacted if tp not in accounts]
            errors: list[LastwordError] = []
            rounds += clean_due(self, accounts, strategy, meter, stop, errors)
            failed = errors[0] if errors else None
            if topic is not None and failed is None and not rounds:
                for tp in accounts:
                    self._check_quarantine(*tp)
        for name, number in compacted:
            if stop is not None and stop():
                break
            try:
                with meter.progress_part(sizes[name, number]) as part:
                    done = self._clean_one(clean, name, number, due, strategy, part, stop)
                if done is not None:
                    rounds.append(done)
                elif topic is not None:
                    self._check_quarantine(name, number)
            except (DataError, CapacityError, StorageError) as error:
                failed = failed or error
        if failed is not None:
            if len(compacted) + len(accounts) > 1:
                failed.message += f"; {len(rounds)} others cleaned"
                failed.args = (failed.message,)
            failed.rounds = rounds  # type: ignore[attr-defined]  # what was done, for who catches it
            raise failed
        return rounds

    def _clean_one(
        self,
        clean: Callable[..., CleanRound | None],
        name: str,
        number: int,
        due: bool,
        strategy: str | None,
        progress: ProgressLike | None,
        stop: Callable[[], bool] | None,
    ) -> CleanRound | None:
        config = self._config(name)
        home = self._home(name, number)
        threads = self.settings.instance.log_cleaner_threads
        with home.claim(name, number):
            if (strategy or config.lastword_strategy) == "generational":
                from lastword.cleaner.drive import Place, rewrite

                place = Place(TopicPartition(name, number), home)
                budget = self._drives.budget(home.path)
                return rewrite(
                    place, None, due=False, progress=progress, stop=stop, budget=budget, threads=threads
                )
            return clean(
                home.log(name, number),
                config,
                first_dirty=home.first_dirty(name, number),
                record_first_dirty=lambda offset: home.set_first_dirty(name, number, offset),
                due=due,
                strategy=strategy or config.lastword_strategy,
                map_bytes=self.settings.instance.map_bytes,
                progress=progress,
                stop=stop,
                budget=self._drives.budget(home.path),
                threads=threads,
            )

    def _size(self, name: str, number: int) -> int:
        """Bytes of a partition; 0 for one that cannot be opened, which is told when it is its turn."""
        try:
            return sum(segment.size for segment in self._home(name, number).log(name, number).segments)
        except (DataError, StorageError):
            return 0

    def expire(self, topic: str | None = None, partition: int | None = None) -> list[Deletion]:
        """Apply retention by time, size and log start now; returns a `Deletion` for each partition that lost
        segments. Only what `cleanup.policy` allows; a quarantine of the cleaner does not stop it.

        A partition whose files cannot be changed does not stop the others: its error is raised at the end,
        with `error.deletions`. NoPolicyError for a topic given by name whose policy is not known.
        """
        from lastword.retention.expire import expire

        self._check_writable()
        chosen = self._chosen(topic, partition)
        if topic is not None and self._config(topic).cleanup_policy is None:
            raise NoPolicyError.of(topic, self.paths[0])
        done: list[Deletion] = []
        failed: LastwordError | None = None
        for name, number in chosen:
            if self._config(name).cleanup_policy is None:
                continue
            try:
                found = expire(self._home(name, number), name, number)
            except (DataError, CapacityError, StorageError) as error:
                failed = failed or error
                continue
            if found.removes:
                done.append(found)
        for home in self._directories:
            home.remove_waste()
        if failed is not None:
            failed.deletions = done  # type: ignore[attr-defined]  # likewise
            raise failed
        return done

    def _expire_outlook(self, topic: str | None, partition: int | None) -> list[Deletion]:
        """What `expire` would do with every partition, also with those that lose nothing."""
        from lastword.retention.expire import outlook

        now_ms = self._clock.now_ms()
        return [
            outlook(self._view(name, number), self._config(name), now_ms)
            for name, number in self._chosen(topic, partition)
        ]

    def _trim(
        self, topic: str, partition: int | None, before: int | datetime, *, dry_run: bool = False
    ) -> dict[int, int]:
        """See `Topic.trim`. All partitions are looked at before the first one is changed."""
        from lastword.retention.trim import trim_offset

        numbers = [number for _, number in self._chosen(topic, partition)]
        wanted = {number: trim_offset(self._view(topic, number), before) for number in numbers}
        if dry_run:
            return wanted
        self._check_writable()
        for number, offset in wanted.items():
            home = self._home(topic, number)
            with home.claim(topic, number):
                home.raise_log_start(topic, number, offset, "trim")
                home.log(topic, number).remove_front()
        return {number: self._home(topic, number).log(topic, number).log_start for number in numbers}

    def _check_policy(self, topic: str) -> None:
        policy = self._config(topic).cleanup_policy
        if policy is None:
            raise NoPolicyError.of(topic, self.paths[0])
        if "compact" not in policy:
            raise NoPolicyError(
                f"{topic} has cleanup.policy={','.join(sorted(policy))}: superseded records stay",
                remedy=f"lastword config {self.paths[0]} {topic} --set cleanup.policy=compact,delete",
            )

    def _check_quarantine(self, name: str, number: int) -> None:
        from lastword.cleaner import quarantine

        directory = self._home(name, number).directory(name, number)
        found = quarantine.load(self._files, directory)
        if found is not None:
            raise QuarantinedError(
                f"{name}-{number} is quarantined: {found.reason}",
                remedy=f"{quarantine.RESTORE}, then {quarantine.retrying(directory, f'{name}-{number}')}",
                file=found.file,
                position=found.position,
                offset=found.offset,
            )

    def audit(
        self,
        topic: str,
        partition: int | None = None,
        *,
        delivered: Any,
        most_rows: int = 100_000,
        progress: ProgressLike | bool | None = None,
    ) -> Audit:
        """Per key, the newest offset that was delivered against the newest that is logged: what is missing,
        stale or phantom. Changes nothing.

        delivered   a mapping of keys to offsets; a table with columns `key` and `offset` (Arrow, Polars,
                    DuckDB), or the path of such a file (.parquet .arrow .jsonl); another `LogDir` or `Topic`
        most_rows   so many keys are named at most; the counts are of all
        """
        from lastword.api.audited import delivered_of
        from lastword.partition import leases
        from lastword.tools.audit import Logged, audit

        chosen = [(number, self._view(topic, number)) for _, number in self._chosen(topic, partition)]
        logged = []
        for number, view in chosen:
            cleaned = max(
                self._first_dirty(topic, number) or 0, leases.dropped_up_to(self._files, view.directory)
            )
            logged.append(
                Logged(
                    view, view.log_start, view.stable_offset, max(view.log_start, min(cleaned, view.log_end))
                )
            )
        map_bytes = self.settings.instance.map_bytes
        logs = cast("LogDir", self)
        other = delivered_of(delivered, logs.topic(topic), self._files, map_bytes)
        meter = Meter("audit", progress, sum(segment.size for _, view in chosen for segment in view.segments))
        with meter.part(sum(segment.size for _, view in chosen for segment in view.segments)) as tell:
            return audit(
                topic,
                logged,
                other,
                memory_bytes=map_bytes,
                partition=partition,
                most_rows=most_rows,
                progress=tell,
            )

    def restore(
        self,
        topic: str,
        partition: int | None = None,
        *,
        to: PathLike,
        end: Bounds = "latest",
        progress: ProgressLike | bool | None = None,
    ) -> list[Restored]:
        """Write the newest value of every key to a file, `.parquet`, `.arrow` or `.jsonl`: a table for other
        tools, and a snapshot from which `state(snapshot=)` starts. A file that is there is replaced.

        end   as of then, like `Topic.read`'s; OffsetOutOfRangeError where the log was cleaned with what came
              after, for then what was newest is not known any more
        """
        from lastword.api.restore import restore

        self._chosen(topic, partition)
        logs = cast("LogDir", self)
        return restore(logs, logs.topic(topic), partition, os.fspath(to), end, progress)

    def explain(self, topic: str, partition: int | None = None, *, key: Any = None) -> Explanation:
        """Why a partition is or is not due, and with `key` where each of its records lies and which rule
        keeps or frees it.

        partition   None: the only one, or the one that holds the key
        key         through the topic's saved serializer

        Takes no lock and changes nothing. UsageError for a topic of several partitions without either.
        """
        from lastword.api.explaining import explained
        from lastword.api.serializers import serializer_of

        serializer = serializer_of(self._config(topic).lastword_key_serializer or "bytes")
        data = None if key is None else serializer.encode(key, "key")
        return explained(self, topic, partition, data, None)

    def simulate(
        self,
        topic: str | None = None,
        partition: int | None = None,
        *,
        strategy: str | None = None,
        progress: ProgressLike | bool | None = None,
        **config: Any,
    ) -> list[Simulation]:
        """What cleaning as soon as it is due would have moved, by today's settings and by others: which
        record replaced which since the last cleaning is read off the log, and replayed. Changes nothing.

        strategy  `generational`, `kafka`, or `broker` for what Kafka's own cleaner would have done
        config    settings to try, as `segment_bytes="64MiB"`, `lastword_space_target=1.25`

        For each partition a `Simulation` with `settings` {} (today's), and one with those given, if any are.
        Partitions of one directory share its space target; where several are simulated, a last one for each
        directory and try (topic "", partition -1) adds them up.
        """
        from lastword.api.simulations import simulations

        return simulations(self, topic, partition, strategy, progress, config)

    def duplication(
        self,
        topic: str | None = None,
        partition: int | None = None,
        *,
        exact: bool = False,
        by: str = "partition",
        progress: ProgressLike | bool | None = None,
    ) -> list[Duplication]:
        """How much is superseded: a `Duplication` for each topic, partition or segment.

        exact   count, in the memory of a key map; without it, estimate from one walk in a fixed amount of
                memory, each row with its error
        by      "topic", "partition" or "segment": what a row stands for

        Takes no lock and changes nothing.
        """
        from lastword.api.duplicates import duplication

        return duplication(self, topic, partition, exact=exact, by=by, progress=progress)

    def verify(
        self,
        topic: str | None = None,
        partition: int | None = None,
        *,
        quick: bool = False,
        md5: bool = False,
        progress: ProgressLike | bool | None = None,
    ) -> Verification:
        """Check every checksum, index, checkpoint and invariant; changes nothing.

        quick  skips the records
        md5    also find the keys of one partition that Kafka's cleaner would take for one, as it knows a key
               by its MD5 alone: `collisions` of the result. Exact, in the memory of a key map.
        """
        from lastword.tools.verify import verify

        chosen = self._chosen(topic, partition)
        places = [(name, number, self._home(name, number).directory(name, number)) for name, number in chosen]
        return verify(
            self._files,
            self.paths,
            places,
            quick=quick,
            md5=md5,
            md5_memory_bytes=self.settings.instance.map_bytes,
            progress=listener(progress),
            clock=self._clock,
        )


def _plan_of(deletion: Deletion, view: PartitionView) -> Plan:
    """A `Deletion` as one of the things that could be done."""
    from lastword.cleaner.choose import Plan, Reason

    return Plan(
        topic=deletion.topic,
        partition=deletion.partition,
        action="delete",
        due=True,
        strategy="retention",
        segments=deletion.segments,
        read_bytes=0,
        write_bytes=0,
        free_bytes=deletion.freed_bytes,
        exact=True,
        reasons=tuple(Reason(code, deletion.reason) for code in deletion.codes[:1]),
        log_start=deletion.log_start,
        total_segments=len(view.segments),
        total_bytes=sum(segment.size for segment in view.segments),
    )
