"""The exact map from keys to their newest offset, in one block of memory of a fixed size."""

from __future__ import annotations

import numpy as np

from lastword import kernels
from lastword.kernels import offset_map as loops
from lastword.kernels.keyhash import digest_seeds, seeds

MOST_LOAD = 0.8
"""Share of the slots that may be taken; above it, searches grow long."""

SLOT_BYTES = 8
_FEWEST_SLOTS = 8
_LAST_HASH = (1 << 64) - 1
SMALLEST_MAP_BYTES = 1024


class OffsetMap:
    """Bounded and exact. A key takes its bytes plus 13 (17 from 255 bytes on), and 10 for its slot: 47 for
    a key of 24 bytes.

    The salt makes the hash unpredictable, so nobody can choose keys that collide; which keys are the same
    is decided by their bytes. `resolver` drives it; the arrays `block`, `state` and `words` are described
    in `kernels.offset_map`.
    """

    def __init__(
        self, map_bytes: int, salt: bytes, digest_seed: int, *, most_records: int, key_bytes: float
    ) -> None:
        if map_bytes < SMALLEST_MAP_BYTES:
            raise ValueError(f"a map needs at least {SMALLEST_MAP_BYTES} bytes, not {map_bytes}")
        self.block = np.empty(map_bytes & ~7, np.uint8)
        self.state = np.zeros(loops.STATE_FIELDS, np.int64)
        self.words = np.zeros(loops.WORD_FIELDS, np.uint64)
        self.words[loops.SEED0], self.words[loops.SEED1] = seeds(salt, b"lastword map")
        self.words[loops.DIGEST0], self.words[loops.DIGEST1] = digest_seeds(digest_seed)
        self.passes = 0
        self.peak_used = 0
        self.peak_bytes = 0
        slots = int(self._room(loops.FIXED_BYTES + key_bytes) / MOST_LOAD)
        self._first_slots = max(min(slots, int(most_records / MOST_LOAD) + 1), _FEWEST_SLOTS)
        self.start_pass(0, _LAST_HASH)

    # ---------------------------------------------------------------- what it holds

    @property
    def map_bytes(self) -> int:
        """The whole budget."""
        return int(self.block.size)

    @property
    def distinct_keys(self) -> int:
        return int(self.state[loops.USED])

    @property
    def bytes_used(self) -> int:
        """Arena and slots; everything between has never been touched."""
        return int(self.state[loops.ARENA_END]) + SLOT_BYTES * int(self.state[loops.SLOTS])

    @property
    def used_ratio(self) -> float:
        """Share of the keys that would fit, were all like those that are in."""
        return self.distinct_keys / max(self._room(self._entry_bytes()), 1.0)

    @property
    def probes(self) -> int:
        """Slots looked at since the map was made."""
        return int(self.state[loops.PROBES])

    @property
    def hash_range(self) -> tuple[int, int]:
        """First and last hash that this pass takes."""
        return int(self.words[loops.RANGE_FIRST]), int(self.words[loops.RANGE_LAST])

    def newest(self, key: bytes) -> int:
        """Offset of the key's newest record, or -1."""
        data = np.zeros(len(key) + kernels.SLACK, np.uint8)
        data[: len(key)] = np.frombuffer(key, np.uint8)
        return int(loops.find_key(self.block, self.state, self.words, data, len(key)))

    # ---------------------------------------------------------------- making room

    def start_pass(self, first_hash: int, last_hash: int) -> None:
        """Forget all keys and take those whose hash lies in the range."""
        self.note_peak()
        self.passes += 1
        self._set_range(first_hash, last_hash)
        self.state[loops.ARENA_END] = loops.ARENA_START
        self.state[loops.USED] = 0
        self._place_slots(max(self._first_slots, int(self.state[loops.SLOTS])))

    def make_room(self) -> bool:
        """After FULL: balance slots against arena, for keys of the length that was met. False when that
        gains too little.
        """
        self.note_peak()
        wanted = int(self._room(self._entry_bytes()) / MOST_LOAD)
        most = (self.block.size - int(self.state[loops.ARENA_END])) // SLOT_BYTES
        slots = max(min(wanted, most), _FEWEST_SLOTS)
        if slots * MOST_LOAD < self.distinct_keys * 1.05:
            return False
        before = int(self.state[loops.SLOTS])
        arena_left = self.block.size - slots * SLOT_BYTES - int(self.state[loops.ARENA_END])
        if arena_left < 0.04 * self.state[loops.ARENA_END] or abs(slots - before) < 0.02 * before:
            return False
        self._place_slots(slots)
        loops.rebuild(self.block, self.state, self.words)
        return True

    def narrow(self, share: float, store: tuple[np.ndarray, ...]) -> None:
        """Keep only the keys in the first `share` of the hash range; what the others have added is taken
        back.

        `store` is (page_ids, page_segments, bases, stats, digests).
        """
        self.note_peak()
        first, last = self.hash_range
        width = last - first
        self._set_range(first, first + max(min(int(width * share), width - 1), 0))
        loops.drop_outside(self.block, self.state, self.words, *store)
        self._place_slots(int(self.state[loops.SLOTS]))
        loops.rebuild(self.block, self.state, self.words)

    def capacity(self) -> int:
        """Keys that fit, were all like those that are in."""
        return int(self._room(self._entry_bytes()))

    def _room(self, entry_bytes: float) -> float:
        return (self.block.size - loops.ARENA_START) / (entry_bytes + SLOT_BYTES / MOST_LOAD)

    def _entry_bytes(self) -> float:
        used = self.distinct_keys
        if used == 0:
            return loops.FIXED_BYTES + 24.0
        return (int(self.state[loops.ARENA_END]) - loops.ARENA_START) / used

    def _set_range(self, first_hash: int, last_hash: int) -> None:
        self.words[loops.RANGE_FIRST] = np.uint64(first_hash)
        self.words[loops.RANGE_LAST] = np.uint64(last_hash)

    def _place_slots(self, slots: int) -> None:
        start = self.block.size - SLOT_BYTES * slots
        self.state[loops.SLOTS] = slots
        self.state[loops.SLOTS_START] = start
        self.state[loops.MOST_USED] = max(int(slots * MOST_LOAD), 1)
        self.block[start:] = 0

    def note_peak(self) -> None:
        self.peak_used = max(self.peak_used, self.distinct_keys)
        self.peak_bytes = max(self.peak_bytes, self.bytes_used)
