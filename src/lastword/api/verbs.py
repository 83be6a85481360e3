"""`Verbs`: what cleans, expires, trims and checks the partitions of a `LogDir`.

Each takes a topic and a partition, or None for all, and gives values back. One partition that fails does not
stop the others.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Unpack, cast

from lastword.api.found import By, Found, PathLike
from lastword.api.progress import listener
from lastword.config.keywords import Keywords
from lastword.values import ProgressLike

if TYPE_CHECKING:
    from lastword.api.logs import LogDir
    from lastword.api.ranges import Bounds
    from lastword.cleaner import CleanRound, Plan
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
        partition, and one more with the action `delete` where retention would remove something.

        A partition that is damaged does not stop the others: PartialFailure, raised at the end, holds their
        plans in `results` and each error in `errors`. It is also of the first error's class.
        """
        from lastword.api import cleaning

        return cleaning.plan(self, topic, partition, due=due, strategy=strategy, progress=progress)

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

        A partition that is damaged, or for which there is no room, does not stop the others: PartialFailure,
        raised at the end, holds their rounds in `results` and each error in `errors`. A partition that is
        quarantined already is skipped, unless its topic is named. NoPolicyError for a topic given by name
        that may not be compacted.
        """
        from lastword.api import cleaning

        return cleaning.clean(
            self, topic, partition, due=due, strategy=strategy, progress=progress, stop=stop
        )

    def expire(
        self,
        topic: str | None = None,
        partition: int | None = None,
        *,
        stop: Callable[[], bool] | None = None,
    ) -> list[Deletion]:
        """Apply retention by time, size and log start now; returns a `Deletion` for each partition that lost
        segments. Only what `cleanup.policy` allows; a quarantine of the cleaner does not stop it. `stop` is
        called before each partition, and ends the call where it returns True.

        A partition whose files cannot be changed does not stop the others: PartialFailure, raised at the end,
        holds their deletions. NoPolicyError for a topic given by name whose policy is not known.
        """
        from lastword.api import retaining

        return retaining.expire(self, topic, partition, stop)

    def audit(
        self,
        topic: str | None = None,
        partition: int | None = None,
        *,
        delivered: Any,
        most_rows: int = 100_000,
        progress: ProgressLike | bool | None = None,
    ) -> Audit:
        """Per key, the newest offset that was delivered against the newest that is logged: what is missing,
        stale or phantom. Changes nothing.

        topic       None: the only one; against another `LogDir` every topic, which both must have
        delivered   a mapping of keys to offsets; a table with columns `key` and `offset` (Arrow, Polars,
                    DuckDB), or the path of such a file (.parquet .arrow .jsonl); another `LogDir` or `Topic`
        partition   only this one. A delivered key that does not say its partition belongs to it if the
                    topic's partitioner says so
        most_rows   so many keys are named at most; the counts are of all
        """
        from lastword.api.auditing import audited

        return audited(
            cast("LogDir", self), topic, partition, delivered, most_rows=most_rows, progress=progress
        )

    def restore(
        self,
        topic: str | None = None,
        partition: int | None = None,
        *,
        to: PathLike,
        end: Bounds = "latest",
        progress: ProgressLike | bool | None = None,
    ) -> list[Restored]:
        """Write the newest value of every key to a file, `.parquet`, `.arrow` or `.jsonl`: a table for other
        tools, and a snapshot from which `state(snapshot=)` starts. A file that is there is replaced.

        topic  None: the only one, for a file holds one topic
        end    as of then, like `Topic.read`'s; OffsetOutOfRangeError where the log was cleaned with what came
               after, for then what was newest is not known any more
        """
        from lastword.api.restore import restore

        topic = self._one_topic(topic)
        self._chosen(topic, partition)
        logs = cast("LogDir", self)
        return restore(logs, logs.topic(topic), partition, os.fspath(to), end, progress)

    def explain(
        self, topic: str | None = None, partition: int | None = None, *, key: Any = None
    ) -> Explanation:
        """Why a partition is or is not due, and with `key` where each of its records lies and which rule
        keeps or frees it.

        topic       None: the only one
        partition   None: the only one, or the one that holds the key
        key         through the topic's saved serializer

        Takes no lock and changes nothing. UsageError names the topics, or the partitions, to choose from.
        """
        from lastword.api.explaining import explained
        from lastword.api.serializers import serializer_of

        topic = self._one_topic(topic)
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
        **config: Unpack[Keywords],
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
        by: By = "partition",
        progress: ProgressLike | bool | None = None,
    ) -> list[Duplication]:
        """How much is superseded: a `Duplication` for each topic, partition or segment.

        exact   count, in the memory of a key map; without it, estimate from one walk in a fixed amount of
                memory, each row with its error
        by      "topic", "partition" or "segment": what a row stands for

        Takes no lock and changes nothing. DataError for a topic with damage; the others are counted before,
        and their rows are its `rows`.
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
