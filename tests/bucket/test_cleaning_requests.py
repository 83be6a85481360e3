"""The requests of a cleaning in a bucket: what it does not need, it does not read."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest

import lastword
from lastword.bucket import commit
from lastword.bucket.reading import ObjectReads
from tests.bucket.test_log import bucket_of

Open = Callable[..., lastword.LogDir]


@pytest.fixture
def ranges(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """The ranges that were fetched: key of the object, first byte, size."""
    fetched: list[tuple[str, int, int]] = []
    original = ObjectReads._range

    def note(self: ObjectReads, key: str, start: int, size: int) -> object:
        fetched.append((key, start, size))
        return original(self, key, start, size)

    monkeypatch.setattr(ObjectReads, "_range", note)
    return fetched


def pairs(numbers: range, letter: bytes, size: int = 2000) -> list[tuple[bytes, bytes]]:
    return [(b"k%d" % number, letter * size) for number in numbers]


def test_a_rewrite_reads_nothing_behind_its_last_source(
    opened: Open, ranges: list[tuple[str, int, int]]
) -> None:
    logs = opened()
    topic = logs.create_topic("t", cleanup_policy="compact")
    topic.extend(pairs(range(2000), b"a"))
    logs.clean(due=True)
    for number in range(4):
        topic.extend(pairs(range(10_000 + 1000 * number, 11_000 + 1000 * number), b"b"))
        logs.clean(due=True)
    topic.extend(pairs(range(2000), b"c") + pairs(range(2000), b"d"))
    before = bucket_of(logs).load().snapshot
    ranges.clear()
    (result,) = logs.clean(due=True)
    newest = max((path, entry) for path, entry in before.files() if path.endswith(".log") and entry.object)[1]
    read_bytes = sum(size for _, _, size in ranges)
    # Each source once, the new segment for the index, and ends and indexes of segments.
    assert read_bytes < result.read_bytes + newest.size + 200_000


@pytest.mark.parametrize("strategy", ["kafka", "generational"])
def test_a_whole_cleaning_reads_each_byte_once(
    opened: Open, ranges: list[tuple[str, int, int]], strategy: str
) -> None:
    logs = opened()
    topic = logs.create_topic("t", cleanup_policy="compact", lastword_strategy=strategy)
    for _ in range(3):
        topic.extend([(b"%d" % number, random.Random(number).randbytes(300)) for number in range(10_000)])
    sizes = [segment.size_bytes for segment in topic.segments()]
    ranges.clear()
    logs.clean()
    read_bytes = sum(size for _, _, size in ranges)
    # Ends and indexes of segments, too. The key index reads the segment that is not rewritten.
    assert read_bytes < sum(sizes) + 200_000 + (max(sizes) if strategy == "generational" else 0)


def test_a_scan_of_new_segments_takes_a_request_for_each(opened: Open, requests: Counter[str]) -> None:
    logs = opened()
    topic = logs.create_topic("t", cleanup_policy="compact")
    for number in range(10):
        topic.extend(pairs(range(1000 * number, 1000 * number + 1000), b"a"))
    requests.clear()
    logs.clean(due=True)
    assert requests["get_range"] <= 10 + 2  # and the end of the last one: its index, its last batch
    assert logs.verify().ok


def test_a_transaction_is_seen_without_another_request(
    opened: Open, requests: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit, "CONFIRMED_SECONDS", 60.0)
    logs = opened()
    logs.create_topic("t", cleanup_policy="compact")
    logs.clean(due=True)
    requests.clear()
    assert logs.clean(due=True) == []
    assert requests == {"get": 1}  # the manifest, at the beginning
    requests.clear()
    logs.set_config("t", segment_bytes="2MiB")
    assert requests == {"get": 1, "swap": 1}
    assert logs.dirs.config("t").segment_bytes == 2 << 20
    assert bucket_of(logs).committed().snapshot is logs.dirs.newest  # type: ignore[attr-defined]
    other = opened()
    other.create_topic("u", segment_bytes="3MiB")
    logs.set_config("t", segment_bytes="4MiB")
    assert [logs.dirs.config(name).segment_bytes >> 20 for name in ("t", "u")] == [4, 3]
