"""`KeyIndexes`: the key indexes of the partitions of open directories, which share a limit of memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial

from lastword.errors import LastwordError
from lastword.files import Files
from lastword.keys.index import KeyIndex


class KeyIndexes:
    """Makes the index of a partition at its first lookup, and saves it at the end. Safe from any thread.

    Attributes:
        warned: The partitions whose keys do not fit the memory, for which a warning was logged.
    """

    def __init__(self, files: Files, *, writes: bool, most_bytes: Callable[[], int]) -> None:
        """Begin without an index.

        Args:
            files: The storage.
            writes: The partitions are open to append, and indexes are saved.
            most_bytes: Returns the memory for the entries of all indexes.
        """
        self._files, self._writes, self._most_bytes = files, writes, most_bytes
        self._lock = threading.Lock()
        self._indexes: dict[tuple[str, int], tuple[str, KeyIndex]] = {}
        self.warned: set[tuple[str, int]] = set()

    def of(self, topic: str, partition: int, directory: str) -> KeyIndex:
        """Return the index of the partition in `directory`."""
        known = self._indexes.get((topic, partition))
        if known is not None and known[0] == directory:
            return known[1]
        with self._lock:
            tp = topic, partition
            known = self._indexes.get(tp)
            if known is None or known[0] != directory:
                left = partial(self._left, tp)
                index = KeyIndex(self._files, directory, topic, writes=self._writes, most_bytes=left)
                known = self._indexes[tp] = directory, index
            return known[1]

    def forget(self, topic: str, partitions: Iterable[int]) -> None:
        """Drop the indexes of a topic that was deleted."""
        for number in partitions:
            with self._lock:
                self._indexes.pop((topic, number), None)
            self.warned.discard((topic, number))

    def _left(self, tp: tuple[str, int]) -> int:
        """Return the memory that the indexes of other partitions leave."""
        others = sum(index.memory_bytes for key, (_, index) in list(self._indexes.items()) if key != tp)
        return self._most_bytes() - others

    def save_large(self) -> None:
        """Make runs of overlays that are half full, so that a lookup need not."""
        for _, index in list(self._indexes.values()):
            with suppress(LastwordError):  # the next lookup raises it, or does without
                index.save_large()

    def close(self) -> None:
        """Save what is worth it. The logs are open still."""
        with self._lock:
            indexes, self._indexes = self._indexes, {}
        for _, index in indexes.values():
            index.close()
