"""The map of Kafka's cleaner: MD5 digests to offsets, in a table of 24-byte slots.

Probing, what counts as full and what is overwritten are as in Kafka, so that the model in `kafka_model.py`
stops and forgets where Kafka does. Our own map, which keeps the keys, is `offset_map.py`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

SLOT_BYTES = 24
_WINDOWS = 12  # a digest of 16 bytes has windows of 4 bytes at 0 to 12; after these probing is linear


class DigestMap:
    """Digest of a key to an offset, in `memory_bytes` of 24-byte slots."""

    def __init__(self, memory_bytes: int) -> None:
        self.slots = memory_bytes // SLOT_BYTES
        if self.slots < 1:
            raise ValueError(f"a map of {memory_bytes} bytes has no slot of {SLOT_BYTES} bytes")
        self.clear()

    def clear(self) -> None:
        self._entries: dict[int, tuple[bytes, int]] = {}  # by slot; what is not there is an empty slot
        self.latest_offset = -1

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def used_ratio(self) -> float:
        return len(self._entries) / self.slots

    def put(self, key: bytes, offset: int) -> None:
        """Insert or overwrite: the last put wins. ValueError on a full map, also for a key it has."""
        if len(self._entries) >= self.slots:
            raise ValueError(f"all {self.slots} slots are taken")
        digest = md5(key)
        for slot in self._probes(digest):
            entry = self._entries.get(slot)
            if entry is None or entry[0] == digest:
                self._entries[slot] = (digest, offset)
                break
        self.latest_offset = offset

    def get(self, key: bytes) -> int:
        """The offset of the key's digest; -1 if it is not there."""
        digest = md5(key)
        for slot in self._probes(digest):
            entry = self._entries.get(slot)
            if entry is None:
                return -1
            if entry[0] == digest:
                return entry[1]
        return -1

    def _probes(self, digest: bytes) -> Iterator[int]:
        for attempt in range(self.slots + _WINDOWS):
            at = min(attempt, _WINDOWS)
            number = int.from_bytes(digest[at : at + 4], "big") + attempt - at
            number = (number + (1 << 31)) % (1 << 32) - (1 << 31)  # Java's int
            yield (0 if number == -(1 << 31) else abs(number)) % self.slots


def md5(key: bytes) -> bytes:
    """What Kafka's cleaner knows a key by."""
    return hashlib.md5(key, usedforsecurity=False).digest()
