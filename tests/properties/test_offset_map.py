"""6A: the offset map of Kafka's cleaner, as modelled in `demo.kafka_model`. The same tests of our own
map, which stores the keys, are in `resolve/test_maps.py`; the one difference is that our full map
updates known keys."""

from __future__ import annotations

import pytest

from lastword.demo.kafka_model import DigestMap, KafkaCleaner


def key(number: int) -> bytes:
    return b"%d" % number


def filled(slots: int, keys: int) -> DigestMap:
    offset_map = DigestMap(slots * 24)
    for number in range(keys):
        offset_map.put(key(number), number)
    return offset_map


@pytest.mark.parametrize("keys", [10, 100, 1000, 5000])
def test_6A_1_5_6_every_key_reads_back_its_offset(keys: int) -> None:
    """6A.1: Every key reads back the offset that was put with it, for 10 to 5,000 keys at two slots a key.
    6A.5: The latest offset is the offset of the last put.
    6A.6: The used ratio is 0 for an empty map, and entries divided by slots after each put.
    """
    offset_map = DigestMap(keys * 48)
    assert (offset_map.latest_offset, offset_map.used_ratio) == (-1, 0.0)
    for number in range(keys):
        offset_map.put(key(number), number)
        assert offset_map.get(key(number)) == offset_map.latest_offset == number
        assert offset_map.used_ratio == (number + 1) / (2 * keys)
    assert [offset_map.get(key(number)) for number in range(keys)] == list(range(keys))
    offset_map.put(key(0), 3)  # the last put wins, no max
    assert (offset_map.latest_offset, offset_map.get(key(0)), len(offset_map)) == (3, 3, keys)


def test_6A_2_a_cleared_map_knows_no_key() -> None:
    """6A.2: After `clear` no key has an offset."""
    offset_map = filled(100, 90)
    offset_map.clear()
    assert {offset_map.get(key(number)) for number in range(90)} == {-1}
    assert (len(offset_map), offset_map.latest_offset, offset_map.used_ratio) == (0, -1, 0.0)


@pytest.mark.parametrize("slots", [1, 2, 13, 14, 64])
def test_6A_3_a_full_map_still_answers(slots: int) -> None:
    """6A.3: A full map still answers: an absent key has no offset, and the lookup ends; the last key has
    its offset.

    Here: Our own map also updates known keys when it is full.
    """
    offset_map = filled(slots, slots)
    assert len(offset_map) == slots
    assert offset_map.get(b"absent") == -1
    assert offset_map.get(key(slots - 1)) == slots - 1
    with pytest.raises(ValueError, match="taken"):
        offset_map.put(key(0), 99)


def test_6A_4_the_latest_offset_can_be_set_and_changes_no_entry() -> None:
    """6A.4: Setting the latest offset changes no entry, even in a full map.

    Here: Our own map has no latest offset: a pass always reaches its limit.
    """
    offset_map = filled(8, 8)
    for latest in (100, 3):
        offset_map.latest_offset = latest
        assert offset_map.latest_offset == latest
        assert [offset_map.get(key(number)) for number in range(8)] == list(range(8))


@pytest.mark.parametrize(
    ("slots", "load_factor", "keys"), [(1, 1.0, 0), (2, 0.5, 0), (2, 0.9, 1), (3, 0.75, 2)]
)
def test_6A_7_a_cleaner_without_room_for_a_key_cannot_be_made(
    slots: int, load_factor: float, keys: int
) -> None:
    """6A.7: A cleaner whose map has no room for a key cannot be constructed."""
    with pytest.raises(ValueError, match="no slot"):
        DigestMap(23)
    if not keys:
        with pytest.raises(ValueError, match="take no key"):
            KafkaCleaner(slots * 24, load_factor)
    else:
        assert KafkaCleaner(slots * 24, load_factor).most_keys == keys
