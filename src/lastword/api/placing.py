"""`Placing`: which partition of a topic a record goes to: the one that is given, or its key's, or, without a
key, the one whose turn it is.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

from lastword.api import partitioners
from lastword.errors import UsageError

if TYPE_CHECKING:
    from lastword.api.producers import Call


class Placing:
    """Of one topic. `turns`: those of records without a key, counted up."""

    def __init__(self, topic: str, partitions: int, partitioner: partitioners.Partitioner) -> None:
        self.topic = topic
        self.partitions = partitions
        self.turns = count()
        self._partitioner = partitioner

    def of(self, key: bytes | None, given: int | None, turn: int | None = None) -> int:
        """The partition of a record; those without a key take turns, or go where `turn` says."""
        if given is not None:
            return self.checked(given)
        if key is None:
            return (next(self.turns) if turn is None else turn) % self.partitions
        return partitioners.choose(self._partitioner, key, self.partitions)

    def checked(self, given: int) -> int:
        """The number itself; UsageError if the topic has no such partition."""
        if isinstance(given, bool) or not isinstance(given, int) or not 0 <= given < self.partitions:
            raise UsageError(
                f"{self.topic} has no partition {given!r}",
                remedy="it has one, 0" if self.partitions == 1 else f"it has 0 to {self.partitions - 1}",
            )
        return given

    def of_columns(self, keys: Any, given: Any, partition: int | None, call: Call | None) -> Any:
        """int64 partition of each record. `given`: a column of them, `partition`: one for all; or None."""
        import numpy as np
        import pyarrow as pa

        size = len(keys)
        if partition is not None:
            return np.full(size, self.checked(partition), np.int64)
        if given is not None and given.null_count == 0:
            numbers = np.asarray(given.cast(pa.int64()), np.int64)
            for number in np.unique(numbers).tolist():
                self.checked(number)
            return numbers
        if self.partitions == 1:
            return np.zeros(size, np.int64)
        if self._partitioner is partitioners.by_murmur2:
            chosen = partitioners.murmur2_partitions(keys, self.partitions)
        else:
            by_key = (
                -1 if key is None else partitioners.choose(self._partitioner, key, self.partitions)
                for key in keys.to_pylist()
            )
            chosen = np.fromiter(by_key, np.int64, size)
        keyless = np.flatnonzero(chosen < 0)
        if keyless.size:
            # About a batch's worth each: taking turns by blocks of records.
            blocks = next(self.turns) + np.arange(keyless.size) // 512
            if call is not None:
                blocks = call.turn_at(call.seen + keyless)
            chosen[keyless] = blocks % self.partitions
        return chosen
