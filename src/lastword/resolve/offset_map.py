"""The exact map from keys to their newest offset, in memory of a fixed size."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from lastword import kernels
from lastword.errors import CapacityError
from lastword.kernels import key_batch
from lastword.kernels import offset_map as loops
from lastword.kernels.hashing import digest_seeds, seeds
from lastword.kernels.pages import Pages

MOST_LOAD = 0.8
"""Share of the slots that may be taken; above it, searches grow long."""

LEAST_LOAD = 0.62
"""Share below which a map that is kept gives slots back."""

SLOT_BYTES = 8
_FEWEST_SLOTS = 8
_LAST_HASH = (1 << 64) - 1
_ENTRY_MASK = np.uint64((1 << 40) - 1)  # of a slot; above it a tag
_FLAGS_AT = np.arange(8, 12)  # of an entry; the kind is in the last byte
_SLOTS_AT_ONCE = 1 << 18
SMALLEST_MAP_BYTES = 1024


class OffsetMap:
    """Bounded and exact. A key takes its bytes plus 15 (19 from 255 bytes on), and 10 for its slot: 49 for
    a key of 24 bytes.

    The salt makes the hash unpredictable, so nobody can choose keys that collide; which keys are the same
    is decided by their bytes. `walk` drives it; the arrays `arena`, `slots`, `state` and `words` are
    described in `kernels.offset_map` and `kernels.key_batch`.

    `spill` gives the arena another place than memory: asked for a number of bytes, it returns an array of at
    least as many that begins as the one before. Then `map_bytes` bounds the slots alone.
    """

    def __init__(
        self,
        map_bytes: int,
        salt: bytes,
        digest_seed: int,
        *,
        most_records: int,
        key_bytes: float,
        state: NDArray[np.int64] | None = None,
        last_hash: int = _LAST_HASH,
        spill: Callable[[int], NDArray[np.uint8]] | None = None,
    ) -> None:
        if map_bytes < SMALLEST_MAP_BYTES:
            raise ValueError(f"a map needs at least {SMALLEST_MAP_BYTES} bytes, not {map_bytes}")
        self.map_bytes = map_bytes & ~7
        self.spill = spill
        self.arena = np.empty(self.map_bytes, np.uint8) if spill is None else spill(1 << 20)
        self.slots = np.empty(0, np.uint64)
        self.state = np.zeros(loops.STATE_FIELDS, np.int64) if state is None else state
        self.words = np.zeros(key_batch.WORD_FIELDS, np.uint64)
        self.words[key_batch.SEED0], self.words[key_batch.SEED1] = seeds(salt, b"lastword map")
        self.words[key_batch.DIGEST0], self.words[key_batch.DIGEST1] = digest_seeds(digest_seed)
        self.passes = 0
        self.peak_used = 0
        self.peak_bytes = 0
        slots = int(self._room(loops.FIXED_BYTES + key_bytes) / MOST_LOAD)
        self._first_slots = max(min(slots, int(most_records / MOST_LOAD) + 1), _FEWEST_SLOTS)
        self.start_pass(0, last_hash)

    @property
    def arrays(self) -> loops.KeyMap:
        """The map as kernels take it; valid until arena or slots are replaced."""
        return loops.KeyMap(self.arena, self.slots, self.state, self.words)

    # ---------------------------------------------------------------- what it holds

    @property
    def distinct_keys(self) -> int:
        """Keys that have a record."""
        return int(self.state[loops.USED] - self.state[loops.VACANCIES])

    @property
    def arena_bytes(self) -> int:
        return int(self.state[loops.ARENA_END])

    @property
    def bytes_used(self) -> int:
        """Arena and slots; what lies behind the arena's end has never been touched."""
        return self.arena_bytes + self.slots.nbytes

    @property
    def anonymous_bytes(self) -> int:
        """Memory that no file stands behind."""
        return self.slots.nbytes + (self.arena_bytes if self.spill is None else 0)

    @property
    def used_ratio(self) -> float:
        """Share of the keys that would fit, were all like those that are in."""
        return self._used / max(self._room(self._entry_bytes()), 1.0)

    @property
    def probes(self) -> int:
        """Slots looked at since the map was made."""
        return int(self.state[loops.PROBES])

    @property
    def hash_range(self) -> tuple[int, int]:
        """First and last hash that this pass takes."""
        return int(self.words[key_batch.RANGE_FIRST]), int(self.words[key_batch.RANGE_LAST])

    def newest(self, key: bytes) -> int:
        """Offset of the key's newest record, or -1."""
        entry = self._find(key)
        if (
            entry < 0
            or int(self.arena[entry + 8 : entry + 12].view(np.uint32)[0]) & loops.KIND == loops.VACANT
        ):
            return -1
        return int(self.arena[entry : entry + 8].view(np.int64)[0])

    def copies(self, key: bytes) -> int:
        """Records of the key on disk, dead ones too; 255 stands for any number from there on."""
        entry = self._find(key)
        return 0 if entry < 0 else int(self.arena[entry + loops.COPIES_AT])

    def _find(self, key: bytes) -> int:
        data = np.zeros(len(key) + kernels.SLACK, np.uint8)
        data[: len(key)] = np.frombuffer(key, np.uint8)
        return int(loops.find_key(self.arrays, data, len(key)))

    # ---------------------------------------------------------------- making room

    def start_pass(self, first_hash: int, last_hash: int) -> None:
        """Forget all keys and take those whose hash lies in the range."""
        self.note_peak()
        self.passes += 1
        self._set_range(first_hash, last_hash)
        self.state[loops.ARENA_END] = loops.ARENA_START
        self.state[loops.USED] = 0
        self.state[loops.VACANCIES] = 0
        self._place_slots(max(self._first_slots, self.slots.size))

    def make_room(self, growth: float = 1e9) -> bool:
        """After FULL: balance slots against arena, for keys of the length that was met. False when that
        gains too little. The slots become at most `growth` times as many.
        """
        self.note_peak()
        if self.spill is not None and self._spill_more():
            return True
        wanted = int(self._room(self._entry_bytes()) / MOST_LOAD)
        most = (self.map_bytes - self._arena_share()) // SLOT_BYTES
        before = self.slots.size
        slots = max(min(wanted, most, int(before * growth) + 64), _FEWEST_SLOTS)
        if slots * MOST_LOAD < self._used * 1.02:
            return False
        arena_left = self.map_bytes - slots * SLOT_BYTES - self._arena_share()
        if arena_left < 0.02 * self._arena_share() or abs(slots - before) < 0.02 * before:
            return False
        self._rebuild(slots)
        return True

    def trim(self) -> None:
        """Give back slots that a map of this many keys does not need."""
        self.note_peak()
        if self._used < LEAST_LOAD * self.slots.size and self.slots.size > 64:
            self._rebuild(max(int(self._used / MOST_LOAD * 1.06) + 8, _FEWEST_SLOTS))

    def narrow(self, share: float, pages: Pages, counts: loops.CountArrays) -> None:
        """Keep only the keys in the first `share` of the hash range; what the others have added is taken
        back from `counts`.
        """
        first, last = self.hash_range
        width = last - first
        self._set_range(first, first + max(min(int(width * share), width - 1), 0))
        self.drop(pages, counts)

    def drop(self, pages: Pages, counts: loops.CountArrays) -> None:
        """Leave out keys outside the range, and those of which nothing is left."""
        self.note_peak()
        loops.drop_entries(self.arrays, pages, counts)
        self._rebuild(self.slots.size)

    def forget_vacant(self) -> bool:
        """Take it that of keys without a record no copy is left either, so that `drop` leaves them out; False
        if that changed nothing."""
        changed = False
        for vacant in self._entries_of(loops.VACANT):
            changed |= bool(self.arena[vacant + loops.COPIES_AT].any())
            self.arena[vacant + loops.COPIES_AT] = 0
        return changed

    def due_tombstones(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """(entry, offset, size in bytes) of the keys whose newest record is a tombstone that is due."""
        at = np.concatenate([np.empty(0, np.int64), *self._entries_of(key_batch.TOMBSTONE | key_batch.DUE)])
        offsets = self.arena[at[:, None] + np.arange(8)].view("<i8")[:, 0]
        flags = self.arena[at[:, None] + _FLAGS_AT].view("<u4")[:, 0]
        return at, offsets, flags.astype(np.int64) & key_batch.SIZE_MASK

    def set_flags(self, at: NDArray[np.int64], flags: NDArray[np.int64]) -> None:
        """Of these entries."""
        self.arena[at[:, None] + _FLAGS_AT] = flags.astype("<u4").view(np.uint8).reshape(-1, 4)

    def _entries_of(self, kind: int) -> Iterator[NDArray[np.int64]]:
        """Where the entries of a kind lie, some at a time."""
        for start in range(0, self.slots.size, _SLOTS_AT_ONCE):
            slots = self.slots[start : start + _SLOTS_AT_ONCE]
            at = (slots[slots != 0] & _ENTRY_MASK).astype(np.int64)
            yield at[self.arena[at + _FLAGS_AT[-1]] & (loops.KIND >> 24) == kind >> 24]

    def load(self, arena: NDArray[np.uint8], used: int, vacancies: int, *, give: bool = False) -> bool:
        """Take the entries of another map of this salt. False when they do not fit. `give`: nobody else uses
        the array any more, and if it is the beginning of one of the right size, that becomes the arena.

        ValueError if the bytes are not entries end to end, as many as `used`.
        """
        slots = max(int(used / MOST_LOAD * 1.06) + 8, _FEWEST_SLOTS)
        self.state[loops.ARENA_END] = arena.size
        while self.spill is not None and self.arena.size < arena.size + kernels.SLACK:
            self.arena = self.spill(2 * self.arena.size)
        # What is nearly full takes as few as it had: or it would be saved, and never loaded again.
        slots = min(slots, (self.map_bytes - self._arena_share()) // SLOT_BYTES)
        if used > int(slots * MOST_LOAD):
            return False
        whole = arena.base
        if (
            give
            and self.spill is None
            and isinstance(whole, np.ndarray)
            and whole.nbytes == self.arena.nbytes
        ):
            assert whole.ctypes.data == arena.ctypes.data
            self.arena = whole
        else:
            self.arena[: arena.size] = arena
        self.state[loops.USED] = used
        self.state[loops.VACANCIES] = vacancies
        self._rebuild(slots)
        return True

    def capacity(self) -> int:
        """Keys that fit, were all like those that are in."""
        return int(self._room(self._entry_bytes()))

    @property
    def _used(self) -> int:
        return int(self.state[loops.USED])

    def _arena_share(self) -> int:
        """What the arena takes of the budget."""
        return self.arena_bytes if self.spill is None else 0

    def _room(self, entry_bytes: float) -> float:
        if self.spill is not None:
            entry_bytes = 0.0
        return (self.map_bytes - loops.ARENA_START) / (entry_bytes + SLOT_BYTES / MOST_LOAD)

    def _entry_bytes(self) -> float:
        if self._used == 0:
            return loops.FIXED_BYTES + 24.0
        return (self.arena_bytes - loops.ARENA_START) / self._used

    def _set_range(self, first_hash: int, last_hash: int) -> None:
        self.words[key_batch.RANGE_FIRST] = np.uint64(first_hash)
        self.words[key_batch.RANGE_LAST] = np.uint64(last_hash)

    def _spill_more(self) -> bool:
        """A longer arena, if it was the arena that was full."""
        if self._used >= self.state[loops.MAX_ENTRIES] or self.spill is None:
            return False
        self.arena = self.spill(self.arena.size + max(self.arena.size // 2, 1 << 20))
        self.state[loops.ARENA_LIMIT] = self.arena.size - kernels.SLACK
        return True

    def _place_slots(self, slots: int) -> None:
        self.slots = np.empty(0, np.uint64)  # the old ones are free before the new ones are made
        self.slots = np.empty(slots, np.uint64)  # not `zeros`, which gets no huge pages
        self.slots[:] = 0
        limit = self.map_bytes - self.slots.nbytes if self.spill is None else self.arena.size - kernels.SLACK
        self.state[loops.ARENA_LIMIT] = min(limit, self.arena.size - kernels.SLACK)
        self.state[loops.MAX_ENTRIES] = max(int(slots * MOST_LOAD), 1)

    def _rebuild(self, slots: int) -> None:
        self._place_slots(slots)
        homes = np.empty((2, 64), np.int64)
        if loops.rebuild_slots(self.arrays, homes) != kernels.OK:
            raise ValueError("the arena of an offset map does not hold what it says")

    def note_peak(self) -> None:
        self.peak_used = max(self.peak_used, self._used)
        self.peak_bytes = max(self.peak_bytes, self.bytes_used)


def too_large_key(map_bytes: int, file: str) -> CapacityError:
    return CapacityError(
        f"a key does not fit the map of {map_bytes} bytes",
        remedy="raise log.cleaner.dedupe.buffer.size",
        file=file,
    )
