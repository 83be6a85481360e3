"""The exact offset map as a dict with a budget."""

from __future__ import annotations

FIXED_BYTES, SLOT_BYTES, MAX_LOAD = 15, 8, 0.8


class ExactMap:
    """Keys to their newest offset; each costs its bytes, 15 more, and 10 for its slot."""

    def __init__(self, map_bytes: int) -> None:
        self.map_bytes = map_bytes
        self.newest: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self.newest)

    @property
    def bytes_used(self) -> float:
        return sum(map(len, self.newest)) + len(self.newest) * (FIXED_BYTES + SLOT_BYTES / MAX_LOAD)

    def put(self, key: bytes, offset: int) -> None:
        """Set the offset of a key; raise ValueError if a new key has no room."""
        more = len(key) + FIXED_BYTES + SLOT_BYTES / MAX_LOAD
        if key not in self.newest and self.bytes_used + more > self.map_bytes:
            raise ValueError(f"no room for another key in {self.map_bytes} bytes")
        self.newest[key] = offset

    def get(self, key: bytes) -> int:
        return self.newest.get(key, -1)
