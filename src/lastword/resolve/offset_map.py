"""The exact map from keys to their newest offset, in memory of a fixed size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lastword import kernels
from lastword.errors import CapacityError
from lastword.files.scratch import Scratch, new_path
from lastword.kernels import key_batch
from lastword.kernels import offset_map as loops
from lastword.kernels.hashing import digest_seeds, seeds
from lastword.kernels.pages import Pages


class Spill:
    """An array of bytes in a scratch file, which is created on first use."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._scratch: Scratch | None = None

    def __call__(self, size_bytes: int) -> NDArray[np.uint8]:
        """Return the array, grown to this size."""
        if self._scratch is None:
            self._scratch = Scratch(self._path)
        return np.frombuffer(self._scratch.grow(size_bytes), np.uint8)


def spill_in(directory: str | None) -> Spill | None:
    """Return a spill in a directory; None without a directory: then the keys are in memory."""
    return None if directory is None else Spill(new_path(directory))


MAX_LOAD = 0.8
"""Highest share of slots in use; above it, searches take long."""

MIN_LOAD = 0.62
"""Share below which a kept map releases slots."""

SLOT_BYTES = 8
ENTRY_BYTES = loops.FIXED_BYTES + SLOT_BYTES / MAX_LOAD
"""Memory of a key of less than 255 bytes in a full map, besides the key's own bytes."""

_MIN_SLOTS = 8
_LAST_HASH = (1 << 64) - 1
_ENTRY_MASK = np.uint64((1 << 40) - 1)  # of a slot; the tag is above
_FLAGS_AT = np.arange(8, 12)  # of an entry; the kind is in the last byte
_SLOTS_PER_STEP = 1 << 18
_SMALL_ARENA_BYTES = 1 << 20
MIN_MAP_BYTES = 1024


class NewestRecords(NamedTuple):
    """The newest records of some keys.

    Attributes:
        keys: Bytes with the keys, with slack.
        offset: Offset of each record: int64[n].
        is_tombstone: Whether it has no value: bool[n].
        key_position: Position of its key: int64[n].
        key_length: Length of its key: int32[n].
    """

    keys: NDArray[np.uint8]
    offset: NDArray[np.int64]
    is_tombstone: NDArray[np.bool_]
    key_position: NDArray[np.int64]
    key_length: NDArray[np.int32]


def words_of(salt: bytes, digest_seed: int) -> NDArray[np.uint64]:
    """Return the words of key batches (`kernels.key_batch`): the seeds, and the range of all hashes."""
    words = np.zeros(key_batch.WORD_FIELDS, np.uint64)
    words[key_batch.SEED0], words[key_batch.SEED1] = seeds(salt, b"lastword map")
    words[key_batch.DIGEST0], words[key_batch.DIGEST1] = digest_seeds(digest_seed)
    words[key_batch.RANGE_LAST] = np.uint64(_LAST_HASH)
    return words


class OffsetMap:
    """The offset map: bounded and exact.

    A key takes its bytes plus 15 (19 from 255 bytes on), and 10 for its slot: 49 for a key of 24 bytes. The
    salt makes the hash unpredictable, so a client cannot choose keys that collide; the bytes of keys decide
    whether they are equal. `resolver` drives the map. The arrays `arena`, `slots`, `state` and `words` are
    described in `kernels.offset_map` and `kernels.key_batch`.

    `spill` allocates the arena outside anonymous memory: called with a number of bytes, it returns an array
    of at least that size, which begins with the content of the previous array. With `spill`, `map_bytes`
    bounds only the slots.
    """

    def __init__(
        self,
        map_bytes: int,
        salt: bytes,
        digest_seed: int,
        *,
        max_records: int,
        key_bytes: float,
        state: NDArray[np.int64] | None = None,
        last_hash: int = _LAST_HASH,
        spill: Callable[[int], NDArray[np.uint8]] | None = None,
    ) -> None:
        if map_bytes < MIN_MAP_BYTES:
            raise ValueError(f"a map needs at least {MIN_MAP_BYTES} bytes, not {map_bytes}")
        self.map_bytes = map_bytes & ~7
        self.spill = spill
        self.arena = np.empty(self.map_bytes, np.uint8) if spill is None else spill(1 << 20)
        self.slots = np.empty(0, np.uint64)
        self.state = np.zeros(loops.STATE_FIELDS, np.int64) if state is None else state
        self.words = words_of(salt, digest_seed)
        self._unplaced = 0  # slots to make and fill before their first use
        self.peak_used = 0
        self.peak_bytes = 0
        slots = int(self._room(loops.FIXED_BYTES + key_bytes) / MAX_LOAD)
        self._first_slots = max(min(slots, int(max_records / MAX_LOAD) + 1), _MIN_SLOTS)
        self.start_pass(0, last_hash)

    @property
    def arrays(self) -> loops.KeyMap:
        """Return the map for kernels; valid until arena or slots are replaced."""
        self._place()
        return loops.KeyMap(self.arena, self.slots, self.state, self.words)

    # ---------------------------------------------------------------- content

    @property
    def distinct_keys(self) -> int:
        """Return the number of keys that have a record."""
        return int(self.state[loops.USED] - self.state[loops.VACANCIES])

    @property
    def arena_bytes(self) -> int:
        """Return the bytes of the arena in use."""
        return int(self.state[loops.ARENA_END])

    @property
    def bytes_used(self) -> int:
        """Return the bytes of arena and slots; the memory after the arena's end was never touched."""
        return self.arena_bytes + self._slots_bytes

    @property
    def anonymous_bytes(self) -> int:
        """Return the memory that no file backs."""
        return self._slots_bytes + (self.arena_bytes if self.spill is None else 0)

    @property
    def probes(self) -> int:
        """Return the slots read since the map was made."""
        return int(self.state[loops.PROBES])

    @property
    def hash_range(self) -> tuple[int, int]:
        """Return the first and the last hash of this pass."""
        return int(self.words[key_batch.RANGE_FIRST]), int(self.words[key_batch.RANGE_LAST])

    def newest(self, key: bytes) -> int:
        """Return the offset of the key's newest record, or -1."""
        entry = self._find(key)
        if (
            entry < 0
            or int(self.arena[entry + 8 : entry + 12].view(np.uint32)[0]) & loops.KIND == loops.VACANT
        ):
            return -1
        return int(self.arena[entry : entry + 8].view(np.int64)[0])

    def copies(self, key: bytes) -> int:
        """Return the records of the key on disk, dead ones included; 255 means 255 or more."""
        entry = self._find(key)
        return 0 if entry < 0 else int(self.arena[entry + loops.COPIES_AT])

    def _find(self, key: bytes) -> int:
        data = np.zeros(len(key) + kernels.SLACK, np.uint8)
        data[: len(key)] = np.frombuffer(key, np.uint8)
        return int(loops.find_key(self.arrays, data, len(key)))

    # ---------------------------------------------------------------- room

    def start_pass(self, first_hash: int, last_hash: int) -> None:
        """Remove all keys, and set the range of hashes to take."""
        self.note_peak()
        self._set_range(first_hash, last_hash)
        self.state[loops.ARENA_END] = loops.ARENA_START
        self.state[loops.USED] = 0
        self.state[loops.VACANCIES] = 0
        self._place_slots(max(self._first_slots, self.slots.size))

    def make_room(self, growth: float = 1e9) -> bool:
        """Balance slots against arena after FULL, for keys of the average length so far.

        Returns False if that gains too little. The number of slots grows at most by the factor `growth`.
        """
        self.note_peak()
        if self.spill is not None and self._spill_more():
            return True
        wanted = int(self._room(self._entry_bytes()) / MAX_LOAD)
        most = (self.map_bytes - self._arena_share()) // SLOT_BYTES
        before = self.slots.size
        slots = max(min(wanted, most, int(before * growth) + 64), _MIN_SLOTS)
        if slots * MAX_LOAD < self._used * 1.02:
            return False
        arena_left = self.map_bytes - slots * SLOT_BYTES - self._arena_share()
        if arena_left < 0.02 * self._arena_share() or abs(slots - before) < 0.02 * before:
            return False
        self._rebuild(slots)
        return True

    def trim(self) -> None:
        """Release slots that a map of this many keys does not need."""
        self.note_peak()
        if self._used < MIN_LOAD * self.slots.size and self.slots.size > 64:
            self._rebuild(self._slots_for(self._used))

    def shrink(self) -> None:
        """Release the room of a small arena, until `expand`.

        The system may give a whole huge page to an arena of some bytes.
        """
        if self.spill is None and self.arena_bytes < min(_SMALL_ARENA_BYTES, self.arena.size // 2):
            self._set_arena(self.arena_bytes + kernels.SLACK)

    def expand(self) -> None:
        """Give the arena its whole room again."""
        if self.spill is None and self.arena.size < self.map_bytes:
            self._set_arena(self.map_bytes)

    def _set_arena(self, size: int) -> None:
        """Copy the entries into an arena of another size."""
        arena = np.empty(size, np.uint8)
        arena[: self.arena_bytes] = self.arena[: self.arena_bytes]
        self.arena = arena
        self._set_arena_limit()

    def narrow(self, share: float, pages: Pages, counts: loops.CountArrays) -> None:
        """Keep only the keys in the first `share` of the hash range; subtract the others from `counts`."""
        first, last = self.hash_range
        width = last - first
        self._set_range(first, first + max(min(int(width * share), width - 1), 0))
        self.drop(pages, counts)

    def drop(self, pages: Pages, counts: loops.CountArrays) -> None:
        """Remove keys outside the range, and vacant keys without copies."""
        self.note_peak()
        loops.drop_entries(self.arrays, pages, counts)
        self._rebuild(self.slots.size)

    def newest_records(self) -> Iterator[NewestRecords]:
        """Yield the newest record of each key, some keys at a time, in no order."""
        self._place()
        for number in range(0, self.slots.size, _SLOTS_PER_STEP):
            slots = self.slots[number : number + _SLOTS_PER_STEP]
            at = (slots[slots != 0] & _ENTRY_MASK).astype(np.int64)
            kind = self.arena[at + _FLAGS_AT[-1]] & (loops.KIND >> 24)
            at, kind = at[kind != loops.VACANT >> 24], kind[kind != loops.VACANT >> 24]
            length = self.arena[at + loops.LENGTH_AT].astype(np.int32)
            position = at + loops.FIXED_BYTES
            long = length == loops.LONG_KEY
            length[long] = self.arena[position[long][:, None] + np.arange(4)].view("<i4")[:, 0]
            position[long] += 4
            offset = self.arena[at[:, None] + np.arange(8)].view("<i8")[:, 0]
            yield NewestRecords(self.arena, offset, kind & (key_batch.TOMBSTONE >> 24) != 0, position, length)

    def forget_vacant(self) -> bool:
        """Set the copies of vacant keys to zero, so that `drop` removes them; False if nothing changed."""
        changed = False
        for vacant in self._entries_of(loops.VACANT):
            changed |= bool(self.arena[vacant + loops.COPIES_AT].any())
            self.arena[vacant + loops.COPIES_AT] = 0
        return changed

    def due_tombstones(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return (entry, offset, size in bytes) of the keys whose newest record is a due tombstone."""
        at = np.concatenate([np.empty(0, np.int64), *self._entries_of(key_batch.TOMBSTONE | key_batch.DUE)])
        offsets = self.arena[at[:, None] + np.arange(8)].view("<i8")[:, 0]
        flags = self.arena[at[:, None] + _FLAGS_AT].view("<u4")[:, 0]
        return at, offsets, flags.astype(np.int64) & key_batch.SIZE_MASK

    def vacate_due(self) -> None:
        """Make the keys vacant whose newest record is a due tombstone: these have left the log."""
        at = self.due_tombstones()[0]
        none = np.full((at.size, 1), loops.NO_OFFSET, np.int64)
        self.arena[at[:, None] + np.arange(8)] = none.view(np.uint8)
        self.arena[at + loops.COPIES_AT] = 0
        self.set_flags(at, np.full(at.size, loops.VACANT))
        self.state[loops.VACANCIES] += at.size

    def set_flags(self, at: NDArray[np.int64], flags: NDArray[np.int64]) -> None:
        """Set the flags of these entries."""
        self.arena[at[:, None] + _FLAGS_AT] = flags.astype("<u4").view(np.uint8).reshape(-1, 4)

    def _entries_of(self, kind: int) -> Iterator[NDArray[np.int64]]:
        """Yield the positions of the entries of a kind, some at a time."""
        self._place()
        for start in range(0, self.slots.size, _SLOTS_PER_STEP):
            slots = self.slots[start : start + _SLOTS_PER_STEP]
            at = (slots[slots != 0] & _ENTRY_MASK).astype(np.int64)
            yield at[self.arena[at + _FLAGS_AT[-1]] & (loops.KIND >> 24) == kind >> 24]

    def load(self, arena: NDArray[np.uint8], used: int, vacancies: int, *, take_over: bool = False) -> bool:
        """Load the entries of another map of this salt; return False if they do not fit.

        `take_over`: the caller no longer uses the array; if it is the beginning of an array of the right
        size, that array becomes the arena. Raises ValueError if the bytes are not exactly `used` entries,
        end to end.
        """
        slots = self._slots_for(used)
        self.state[loops.ARENA_END] = arena.size
        while self.spill is not None and self.arena.size < arena.size + kernels.SLACK:
            self.arena = self.spill(2 * self.arena.size)
        # A nearly full map gets as few slots as it had. Otherwise it could be saved but not loaded again.
        slots = min(slots, (self.map_bytes - self._arena_share()) // SLOT_BYTES)
        if used > int(slots * MAX_LOAD):
            return False
        whole = arena.base
        if (
            take_over
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

    def use_listed(self, arena: NDArray[np.uint8], end: int, used: int) -> bool:
        """Use an arena of `map_bytes` with `used` entries up to `end`; return False if they do not fit.

        Their slots are made when they are needed: a map that is only saved needs none.
        """
        slots = min(self._slots_for(used), (self.map_bytes - end) // SLOT_BYTES)
        if used > int(slots * MAX_LOAD):
            return False
        self.arena = arena
        self.state[loops.ARENA_END], self.state[loops.USED] = end, used
        self._unplaced = slots
        return True

    def capacity(self) -> int:
        """Return the number of keys that fit, if all have the average size of the present keys."""
        return int(self._room(self._entry_bytes()))

    @staticmethod
    def _slots_for(used: int) -> int:
        return max(int(used / MAX_LOAD * 1.06) + 8, _MIN_SLOTS)

    @property
    def _slots_bytes(self) -> int:
        return max(self.slots.nbytes, self._unplaced * SLOT_BYTES)

    @property
    def _used(self) -> int:
        return int(self.state[loops.USED])

    def _arena_share(self) -> int:
        """Return the bytes of the budget that the arena takes."""
        return self.arena_bytes if self.spill is None else 0

    def _room(self, entry_bytes: float) -> float:
        if self.spill is not None:
            entry_bytes = 0.0
        return (self.map_bytes - loops.ARENA_START) / (entry_bytes + SLOT_BYTES / MAX_LOAD)

    def _entry_bytes(self) -> float:
        if self._used == 0:
            return loops.FIXED_BYTES + 24.0
        return (self.arena_bytes - loops.ARENA_START) / self._used

    def _set_range(self, first_hash: int, last_hash: int) -> None:
        self.words[key_batch.RANGE_FIRST] = np.uint64(first_hash)
        self.words[key_batch.RANGE_LAST] = np.uint64(last_hash)

    def _spill_more(self) -> bool:
        """Enlarge the arena, if the arena was full."""
        if self._used >= self.state[loops.MAX_ENTRIES] or self.spill is None:
            return False
        self.arena = self.spill(self.arena.size + max(self.arena.size // 2, 1 << 20))
        self.state[loops.ARENA_LIMIT] = self.arena.size - kernels.SLACK
        return True

    def _place_slots(self, slots: int) -> None:
        self.slots = np.empty(0, np.uint64)  # frees the old slots first
        self.slots = np.empty(slots, np.uint64)  # not `zeros`, which gets no huge pages
        self.slots[:] = 0
        self._set_arena_limit()
        self.state[loops.MAX_ENTRIES] = max(int(slots * MAX_LOAD), 1)

    def _set_arena_limit(self) -> None:
        limit = self.map_bytes - self.slots.nbytes if self.spill is None else self.arena.size - kernels.SLACK
        self.state[loops.ARENA_LIMIT] = min(limit, self.arena.size - kernels.SLACK)

    def _place(self) -> None:
        if self._unplaced:
            self._rebuild(self._unplaced)

    def _rebuild(self, slots: int) -> None:
        self._unplaced = 0
        self._place_slots(slots)
        homes = np.empty((2, 64), np.int64)
        if loops.rebuild_slots(self.arrays, homes) != kernels.OK:
            raise ValueError("the arena of an offset map does not match its counts")

    def note_peak(self) -> None:
        """Record the present use if it is a peak."""
        self.peak_used = max(self.peak_used, self._used)
        self.peak_bytes = max(self.peak_bytes, self.bytes_used)


def too_large_key(map_bytes: int, file: str) -> CapacityError:
    """Return the error for a key that does not fit the map."""
    return CapacityError(
        f"a key does not fit the map of {map_bytes} bytes",
        remedy="raise log.cleaner.dedupe.buffer.size",
        file=file,
    )
