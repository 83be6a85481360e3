"""Tests of all forms of the offset map: the exact map in plain Python, the fast map, and a model of Kafka's
map, which identifies keys by their MD5. The last part tests their differences.
"""

from __future__ import annotations

import random
from typing import Protocol

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lastword.demo.kafka_model import DigestMap
from lastword.resolve import MapFull, RunningResolution, resolve
from tests.naive.exact_map import ExactMap
from tests.naive.pack import Record, encode_batch
from tests.resolve.support import MemorySegment
from tests.resolve.test_resolver import dense
from tests.support.exhaustive import few


class Map(Protocol):
    def __len__(self) -> int: ...
    def put(self, key: bytes, offset: int) -> None: ...
    def get(self, key: bytes) -> int: ...


class FastMap:
    """The map of a running resolution, one record at a time."""

    def __init__(self, map_bytes: int, salt: bytes = b"salt") -> None:
        self.running = RunningResolution(map_bytes=map_bytes, salt=salt)

    def __len__(self) -> int:
        return self.running.distinct_keys

    def put(self, key: bytes, offset: int) -> None:
        data = encode_batch([Record(offset, 0, key, b"")])
        try:
            self.running.add_segments([MemorySegment(data, offset, offset + 1)])
        except MapFull as full:
            raise ValueError(str(full)) from None

    def get(self, key: bytes) -> int:
        offset_map = self.running._scan.map
        return -1 if offset_map is None else offset_map.newest(key)


FORMS = {"plain": ExactMap, "fast": FastMap, "kafka": DigestMap}
EXACT = {name: form for name, form in FORMS.items() if name != "kafka"}
every_form = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
every_exact_form = pytest.mark.parametrize("form", EXACT.values(), ids=EXACT)

some_keys = st.one_of(
    st.sampled_from([b"", b"a", b"aa", b"a" * 8, b"a" * 16, b"a" * 17, b"a" * 254, b"a" * 255, b"a" * 256]),
    st.binary(max_size=40),
)


@every_form
@settings(max_examples=few(25))
@given(st.lists(some_keys, max_size=25), st.lists(some_keys, max_size=5))
def test_the_newest_offset_of_each_key(form: type[Map], keys: list[bytes], others: list[bytes]) -> None:
    offset_map, wanted = form(1 << 14), {}
    for offset, key in enumerate(keys):
        offset_map.put(key, offset)
        wanted[key] = offset
    assert len(offset_map) == len(wanted)
    for key in [*keys, *others]:
        assert offset_map.get(key) == wanted.get(key, -1)


@every_form
def test_one_more_key_than_there_is_room_for_is_refused(form: type[Map]) -> None:
    offset_map = form(2048)
    with pytest.raises(ValueError, match=r"\d"):
        for offset in range(200):
            offset_map.put(b"key-%03d" % offset, offset)
    assert 40 <= len(offset_map) <= 2048 // 24


@every_exact_form
def test_known_keys_update_a_full_map(form: type[Map]) -> None:
    """Kafka's map counts as full before it checks whether the key exists."""
    full = form(2048)
    room = 0
    with pytest.raises(ValueError, match=r"\d"):
        for room in range(200):
            full.put(b"key-%03d" % room, room)
    again = form(2048)
    for offset in range(3 * room):
        again.put(b"key-%03d" % (offset % room), offset)
    assert len(again) == room
    assert [again.get(b"key-%03d" % n) for n in range(room)] == list(range(2 * room, 3 * room))


@every_exact_form
def test_two_keys_of_one_md5_are_two(form: type[Map]) -> None:
    first, second = (
        b"TEXTCOLLBYfGiJUETHQ4h%scKSMd5zYpgqf1YRDhkmxHkhPWptrkoyz28wnI9V0aHeAuaKnak" % letter
        for letter in (b"A", b"E")
    )
    exact, kafka = form(2048), DigestMap(2048)
    for offset_map in (exact, kafka):
        offset_map.put(first, 0)
        offset_map.put(second, 1)
    assert (len(exact), exact.get(first), exact.get(second)) == (2, 0, 1)
    assert (len(kafka), kafka.get(first)) == (1, 1), "the older of the two is lost"


def test_the_exact_forms_refuse_at_about_the_same_key() -> None:
    """The difference is within the share that the fast map reserves for its slots."""
    rng = random.Random(3)
    keys = [rng.randbytes(rng.randrange(4, 60)) for _ in range(2000)]
    room = []
    for form in EXACT.values():
        offset_map = form(20_000)
        with pytest.raises(ValueError, match=r"\d"):
            for offset, key in enumerate(keys):
                offset_map.put(key, offset)
        room.append(len(offset_map))
    assert 0.93 * room[0] <= room[1] <= room[0] + 2


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
