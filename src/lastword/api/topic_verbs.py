"""`TopicVerbs`: the verbs of `LogDir` for one topic. What each does stands there (`verbs.py`)."""

from __future__ import annotations

import os
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Unpack

from lastword.api import partitioners
from lastword.api.found import By
from lastword.api.record import K
from lastword.api.serializers import Serializer
from lastword.config.keywords import Keywords
from lastword.values import Handle, ProgressLike

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


class TopicVerbs(Handle, Generic[K]):
    """The verbs of `Topic`, which says what these are."""

    name: str
    partitions: int
    key_serializer: Serializer
    _logs: LogDir
    _partitioner: partitioners.Partitioner

    def plan(
        self,
        partition: int | None = None,
        *,
        due: bool = False,
        strategy: str | None = None,
        progress: ProgressLike | bool | None = None,
    ) -> list[Plan]:
        """What `clean` would do now, or why not; see `LogDir.plan`."""
        return self._logs.plan(self.name, partition, due=due, strategy=strategy, progress=progress)

    def clean(
        self,
        partition: int | None = None,
        *,
        due: bool = False,
        strategy: str | None = None,
        progress: ProgressLike | bool | None = None,
    ) -> list[CleanRound]:
        """Remove superseded records now; see `LogDir.clean`."""
        return self._logs.clean(self.name, partition, due=due, strategy=strategy, progress=progress)

    def expire(self, partition: int | None = None) -> list[Deletion]:
        """Apply retention now; see `LogDir.expire`."""
        return self._logs.expire(self.name, partition)

    def trim(self, before: int | datetime, *, partition: int | None = None) -> dict[int, int]:
        """Raise the log start: records before an offset, or older than an aware datetime, are gone, whatever
        the policy. Returns the log start of each partition. Whole segments below it go at once, their files
        after `file.delete.delay.ms`.

        OffsetOutOfRangeError above a log end: nothing was changed.
        """
        from lastword.api.retaining import trim

        return trim(self._logs, self.name, partition, before)

    def audit(
        self,
        partition: int | None = None,
        *,
        delivered: Any,
        most_rows: int = 100_000,
        progress: ProgressLike | bool | None = None,
    ) -> Audit:
        """What was delivered against what is logged, per key; see `LogDir.audit`."""
        from lastword.api.auditing import audited

        return audited(
            self._logs,
            self.name,
            partition,
            delivered,
            most_rows=most_rows,
            progress=progress,
            partitioner=self._partitioner,
        )

    def _partition_of(self, key: bytes) -> int:
        return partitioners.choose(self._partitioner, key, self.partitions)

    def restore(
        self,
        partition: int | None = None,
        *,
        to: str | os.PathLike[str],
        end: Bounds = "latest",
        progress: ProgressLike | bool | None = None,
    ) -> list[Restored]:
        """The newest values as a file; see `LogDir.restore`."""
        return self._logs.restore(self.name, partition, to=to, end=end, progress=progress)

    def explain(self, partition: int | None = None, *, key: K | None = None) -> Explanation:
        """Why a partition is or is not due, and which rule keeps each record of `key`; see
        `LogDir.explain`."""
        from lastword.api.explaining import explained

        data = None if key is None else self.key_serializer.encode(key, "key")
        return explained(self._logs, self.name, partition, data, self._partitioner)

    def simulate(
        self,
        partition: int | None = None,
        *,
        strategy: str | None = None,
        progress: ProgressLike | bool | None = None,
        **config: Unpack[Keywords],
    ) -> list[Simulation]:
        """What cleaning would have moved under other settings; see `LogDir.simulate`."""
        return self._logs.simulate(self.name, partition, strategy=strategy, progress=progress, **config)

    def duplication(
        self,
        partition: int | None = None,
        *,
        exact: bool = False,
        by: By = "partition",
        progress: ProgressLike | bool | None = None,
    ) -> list[Duplication]:
        """How much is superseded; see `LogDir.duplication`."""
        return self._logs.duplication(self.name, partition, exact=exact, by=by, progress=progress)

    def verify(
        self,
        partition: int | None = None,
        *,
        quick: bool = False,
        md5: bool = False,
        progress: ProgressLike | bool | None = None,
    ) -> Verification:
        """Check everything; see `LogDir.verify`."""
        return self._logs.verify(self.name, partition, quick=quick, md5=md5, progress=progress)
