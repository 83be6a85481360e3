"""`BucketLedgers`: the garbage indexes that a process keeps between its transactions on a log in a bucket.

Each transaction has a private copy of the log, with `Ledgers` of its own. Without this, each would read the
saved index of a partition, about 35 bytes for each key, and save it again.

A ledger is true of the objects from which it was made, and objects never change. So it is kept with the entry
of each of its segments, as the commit stored it, and given to a later copy only if that has the same entries;
`Ledger.fit` then decides about segments that are gone or new. It is kept only when its copy is committed: the
ledger of a copy that was given up may describe segments that are in no version.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from lastword.segment import names

if TYPE_CHECKING:
    from lastword.accounts.ledger import Ledger
    from lastword.bucket.files import BucketFiles
    from lastword.bucket.manifest import Changes, Entry
    from lastword.logdir.checkpoints import TopicPartition


_MARGIN = 1.25
"""A new ledger may take this times the memory of the last one of its topic, for each byte of the log."""


class _Kept(NamedTuple):
    """A ledger, its memory, and where each of its segments is stored, by path."""

    ledger: Ledger
    memory_bytes: int
    logs: Mapping[str, Entry]


class BucketLedgers:
    """The kept ledgers of one log. Safe from any thread.

    Args:
        budget_bytes: Returns the memory that they may take together.
    """

    def __init__(self, budget_bytes: Callable[[], int]) -> None:
        self._budget_bytes = budget_bytes
        self._lock = threading.RLock()
        self._kept: OrderedDict[TopicPartition, _Kept] = OrderedDict()  # least recently used first
        self._kept_bytes = 0  # their sum
        self._ratios: dict[str, float] = {}  # memory of a ledger for each byte of its log, by topic

    def of(self, files: BucketFiles) -> CopyLedgers:
        """Return the ledgers for a private copy."""
        return CopyLedgers(self, files)

    def take(self, tp: TopicPartition) -> _Kept | None:
        """Return the kept ledger of a partition, which is then the caller's."""
        with self._lock:
            kept = self._kept.pop(tp, None)
            if kept is not None:
                self._kept_bytes -= kept.memory_bytes
            return kept

    def keep(self, tp: TopicPartition, kept: _Kept) -> None:
        """Keep a ledger; drop the least recently used ones if it needs their room."""
        with self._lock:
            self.take(tp)
            self._kept[tp] = kept
            self._kept_bytes += kept.memory_bytes
            self.make_room(self._budget_bytes())

    def make_room(self, room_bytes: int) -> None:
        """Drop the least recently used ledgers until the rest fits."""
        with self._lock:
            while self._kept and self._kept_bytes > room_bytes:
                self.take(next(iter(self._kept)))

    def measured(self, topic: str, ledger: Ledger) -> None:
        """Note the memory that a ledger of a topic takes."""
        log_bytes = sum(entry.size_bytes for entry in ledger.entries)
        if log_bytes:
            self._ratios[topic] = ledger.memory_bytes / log_bytes

    def expected_bytes(self, topic: str, log_bytes: int) -> int:
        """Return the memory of a new ledger: not more than its log, or as the last one of the topic."""
        return int(min(_MARGIN * self._ratios.get(topic, 1), 1) * log_bytes)


class CopyLedgers:
    """The kept ledgers as one private copy uses them (`lastword.logdir.ledgers.KeptLedgers`)."""

    def __init__(self, kept: BucketLedgers, files: BucketFiles) -> None:
        self._kept = kept
        self._files = files
        self._used: dict[TopicPartition, Ledger] = {}

    def take(self, tp: TopicPartition) -> Ledger | None:
        """As `KeptLedgers.take`."""
        kept = self._kept.take(tp)
        if kept is None:
            return None
        for path, entry in kept.logs.items():
            file = self._files.file(f"{self._files.root}/{path}")
            if file is not None and file != entry:
                return None
        if kept.ledger.saved != "nothing" and self._files.file(f"{self._files.root}/{_accounts(tp)}") is None:
            kept.ledger.unsaved()  # another process saved accounts together with this one, and both are gone
        return kept.ledger

    def keep(self, tp: TopicPartition, ledger: Ledger) -> None:
        """As `KeptLedgers.keep`."""
        self._used[tp] = ledger

    def make_room(self, room_bytes: int) -> None:
        """As `KeptLedgers.make_room`."""
        self._kept.make_room(room_bytes)

    def measured(self, topic: str, ledger: Ledger) -> None:
        """As `KeptLedgers.measured`."""
        self._kept.measured(topic, ledger)

    def expected_bytes(self, topic: str, log_bytes: int) -> int:
        """As `KeptLedgers.expected_bytes`."""
        return self._kept.expected_bytes(topic, log_bytes)

    def committed(self, changes: Changes) -> None:
        """Keep the ledgers of the copy, which is in the log with these changes."""
        for tp, ledger in self._used.items():
            logs: dict[str, Entry] = {}
            for segment in ledger.entries:
                path = f"{tp}/{names.segment_file(segment.base_offset, names.LOG)}"
                entry = changes[path] if path in changes else self._files.snapshot.entry(path)
                if entry is None:
                    break  # the segment left the log after the ledger was used
                logs[path] = entry
            else:
                ledger.leave()
                self._kept.keep(tp, _Kept(ledger, ledger.memory_bytes, logs))


def _accounts(tp: TopicPartition) -> str:
    return f"{tp}/{names.PRIVATE}/{names.ACCOUNTS}"
