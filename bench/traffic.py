"""Generate synthetic traffic, the keys of records in order, for simulations and for real logs.

Each kind gives the keys (int64) and marks the tombstones, in order. In the kinds that update, the first
`keys` records load one record for each key. `KINDS` describes each kind in one sentence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lastword.tools.overwrites import OverwriteTrace, trace_of_keys

Keys = NDArray[np.int64]

KINDS: dict[str, str] = {
    "uniform": "every key is as likely as any other",
    "zipf": "the key of rank r is chosen with weight r ** -skew",
    "hot-cold": "nine records of ten go to a tenth of the keys",
    "drift": "as hot-cold, and the hot tenth moves once through all keys",
    "insert-only": "each key once",
    "ttl": "each key once, and its tombstone when `keys` others have come",
    "deletes": "as zipf, and every second record is a tombstone",
}


@dataclass(frozen=True, slots=True)
class Traffic:
    """Keys in order of append.

    `tombstone` marks the tombstones; the first `loaded` records load the keys.
    """

    keys: Keys
    tombstone: NDArray[np.bool_]
    loaded: int

    def trace(
        self, record_bytes: int = 100, tombstone_bytes: int = 30, *, per_ms: float = 1.0
    ) -> OverwriteTrace:
        """Return the trace of records and tombstones of these sizes, `per_ms` of them per millisecond."""
        count = self.keys.size
        return trace_of_keys(
            self.keys,
            size_bytes=np.where(self.tombstone, tombstone_bytes, record_bytes),
            time_ms=(np.arange(count) / per_ms).astype(np.int64),
            tombstone=self.tombstone,
            loaded=self.loaded,
        )


def traffic(kind: str, keys: int, records: int, *, seed: int, skew: float = 0.99) -> Traffic:
    """Generate `records` records of a kind over `keys` live keys, after the records that load them."""
    random = np.random.default_rng(seed)
    if kind == "insert-only":
        return _of(np.arange(keys + records), keys)
    if kind == "ttl":
        return _ttl(keys, records)
    chosen = _UPDATES[kind](random, keys, records, skew)
    record_keys = np.concatenate((random.permutation(keys), chosen))
    tombstone = np.zeros(record_keys.size, bool)
    if kind == "deletes":
        tombstone[keys:] = random.random(records) < 0.5
    return Traffic(record_keys, tombstone, keys)


def _of(keys: Keys, loaded: int) -> Traffic:
    return Traffic(keys, np.zeros(keys.size, bool), loaded)


def _ttl(keys: int, records: int) -> Traffic:
    """Alternate an insert and the tombstone of the oldest key, as soon as `keys` keys are live."""
    born = np.arange(records - records // 2) + keys
    record_keys = np.empty(records, np.int64)
    record_keys[0::2], record_keys[1::2] = born, np.arange(records // 2)
    tombstone = np.zeros(keys + records, bool)
    tombstone[keys + 1 :: 2] = True
    return Traffic(np.concatenate((np.arange(keys), record_keys)), tombstone, keys)


def _uniform(random: np.random.Generator, keys: int, records: int, skew: float) -> Keys:
    return random.integers(0, keys, records)


def _zipf(random: np.random.Generator, keys: int, records: int, skew: float) -> Keys:
    upto = np.cumsum(np.arange(1, keys + 1, dtype=np.float64) ** -skew)
    ranks = np.searchsorted(upto, random.random(records) * upto[-1], "right")
    drawn: Keys = random.permutation(keys)[np.minimum(ranks, keys - 1)]
    return drawn


def _hot_cold(random: np.random.Generator, keys: int, records: int, skew: float) -> Keys:
    return random.permutation(keys)[_hot_first(random, keys, records)]


def _drift(random: np.random.Generator, keys: int, records: int, skew: float) -> Keys:
    moved = (np.arange(records) * (keys / max(records, 1))).astype(np.int64)
    return (_hot_first(random, keys, records) + moved) % keys


def _hot_first(random: np.random.Generator, keys: int, records: int) -> Keys:
    hot = max(keys // 10, 1)
    near, far = random.integers(0, hot, records), random.integers(hot, keys, records)
    return np.where(random.random(records) < 0.9, near, far)


_UPDATES: dict[str, Callable[[np.random.Generator, int, int, float], Keys]] = {
    "uniform": _uniform,
    "zipf": _zipf,
    "deletes": _zipf,
    "hot-cold": _hot_cold,
    "drift": _drift,
}
