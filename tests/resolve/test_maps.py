"""The exact map beside a model of Kafka's, which identifies keys by their MD5; and the salt of the hash."""

from __future__ import annotations

import random

import numpy as np
import pytest

from lastword.demo.kafka_model import DigestMap
from lastword.resolve import MapFull, RunningResolution, resolve
from tests.naive.pack import Record, encode_batch
from tests.resolve.support import MemorySegment
from tests.resolve.test_resolver import dense


class FastMap:
    """The map of a running resolution, one record at a time."""

    def __init__(self, map_bytes: int, salt: bytes = b"salt") -> None:
        self.running = RunningResolution(map_bytes=map_bytes, salt=salt)

    def __len__(self) -> int:
        return self.running.distinct_keys

    def put(self, key: bytes, offset: int) -> None:
        data = encode_batch([Record(offset, 0, key, b"")])
        self.running.add_segments([MemorySegment(data, offset, offset + 1)])

    def get(self, key: bytes) -> int:
        offset_map = self.running._scan.map
        return -1 if offset_map is None else offset_map.newest(key)


def test_known_keys_update_a_full_map() -> None:
    """Kafka's map counts as full before it checks whether the key exists."""
    full = FastMap(2048)
    room = 0
    with pytest.raises(MapFull):
        for room in range(200):
            full.put(b"key-%03d" % room, room)
    assert 40 <= len(full) <= 2048 // 24
    again = FastMap(2048)
    for offset in range(3 * room):
        again.put(b"key-%03d" % (offset % room), offset)
    assert len(again) == room
    assert [again.get(b"key-%03d" % n) for n in range(room)] == list(range(2 * room, 3 * room))


def test_two_keys_of_one_md5_are_two() -> None:
    first, second = (
        b"TEXTCOLLBYfGiJUETHQ4h%scKSMd5zYpgqf1YRDhkmxHkhPWptrkoyz28wnI9V0aHeAuaKnak" % letter
        for letter in (b"A", b"E")
    )
    exact, kafka = FastMap(2048), DigestMap(2048)
    for offset_map in (exact, kafka):
        offset_map.put(first, 0)
        offset_map.put(second, 1)
    assert (len(exact), exact.get(first), exact.get(second)) == (2, 0, 1)
    assert (len(kafka), kafka.get(first)) == (1, 1), "the older of the two is lost"


def test_the_salt_decides_where_keys_go() -> None:
    """Two maps with different salts put the same keys into different slots, and return the same offsets."""
    maps = [FastMap(1 << 14, salt) for salt in (b"one", b"two", b"one")]
    for offset in range(100):
        for offset_map in maps:
            offset_map.put(b"key-%d" % offset, offset)
    slots = [offset_map.running._scan.map.slots.tolist() for offset_map in maps]  # type: ignore[union-attr]
    assert slots[0] == slots[2] != slots[1]
    assert all(offset_map.get(b"key-%d" % n) == n for offset_map in maps for n in range(100))


@pytest.mark.slow
def test_keys_chosen_for_another_salt_cost_no_more_probes() -> None:
    """An attacker has the hash but not the salt: keys that share few slots under a guessed salt cost a map
    with another salt at most twice the probes of random keys.
    """
    from lastword.kernels.hashing import seeds
    from tests.naive.hashing import MASK, key_hash

    seed0, seed1 = (int(seed) for seed in seeds(b"guessed", b"lastword map"))
    rng, slots, hostile = random.Random(6), 4096, []
    while len(hostile) < 1500:
        key = rng.randbytes(16)
        if (key_hash(key, seed0, seed1) * 0x9E3779B97F4A7C15 & MASK) * slots >> 64 < slots // 64:
            hostile.append(key)
    chosen = np.frombuffer(b"".join(hostile), np.uint8).reshape(-1, 16)
    usual = np.frombuffer(rng.randbytes(16 * len(hostile)), np.uint8).reshape(-1, 16)

    def probes(keys: np.ndarray, salt: bytes) -> float:
        resolution = resolve(dense(keys), map_bytes=45 * len(keys), salt=salt, now_ms=None)
        return resolution.probes / resolution.records

    assert probes(chosen, b"guessed") > 10 * probes(usual, b"guessed"), "they do meet where the salt is known"
    assert probes(chosen, b"secret") <= 2 * probes(usual, b"secret")
