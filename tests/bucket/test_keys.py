"""Lookups of keys in a bucket: an index in memory, the answers of a scan, and few requests."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import lastword
from lastword.keys import index
from lastword.keys.index import KeyIndex

Open = Callable[..., lastword.LogDir]
NAMES = [b"k%d" % n for n in range(10)]


def of_scan(topic: lastword.Topic, keys: list[bytes]) -> dict[bytes, Any]:
    return {record.key: record for record in topic.newest(keys)}


@pytest.mark.parametrize("seed", range(2))
def test_the_answers_are_those_of_a_scan(opened: Open, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Two processes commit; cleanings join segments, the log is trimmed, the topic is made again."""
    monkeypatch.setattr(index, "OVERLAY_ENTRIES", 5)
    rng = random.Random(seed)
    settings = {"cleanup_policy": "compact", "delete_retention_ms": 0, "partitions": 2}
    writers = [opened(), opened()]
    writers[0].create_topic("t", **settings)
    looking = [opened("r"), writers[1]]
    for step in range(60):
        logs = rng.choice(writers)
        match rng.randrange(12):
            case 0:
                logs.clean("t")
            case 1:
                for number, (start, end) in logs["t"].bounds().items():
                    logs["t"].trim(rng.randrange(start, end + 1), partition=number)
            case 2 if rng.random() < 0.3:
                logs.delete_topic("t")
                logs.create_topic("t", **settings)
            case _:
                rows = [(rng.choice(NAMES), None if rng.random() < 0.3 else b"%d" % step) for _ in range(4)]
                logs["t"].extend(rows)
        topic = rng.choice(looking)["t"]
        key, keys = rng.choice(NAMES), rng.sample(NAMES, 3)
        expected = of_scan(topic, NAMES)
        assert topic.get_record(key) == expected.get(key)
        assert topic.get_records(keys) == {key: expected[key] for key in keys if key in expected}


def filled(logs: lastword.LogDir, count: int = 10_000) -> lastword.Topic:
    topic = logs.create_topic("t", cleanup_policy="compact")
    for first in range(0, count, count // 4):
        topic.extend([(b"k%d" % n, b"v%d" % n * 100) for n in range(first, first + count // 4)])
    return topic


def test_a_lookup_after_the_first_takes_few_requests(opened: Open, requests: Counter[str]) -> None:
    writer = opened()
    filled(writer)
    topic = opened("r")["t"]

    def counted(call: Callable[[], Any]) -> tuple[Any, int]:
        requests.clear()
        result = call()
        return result, requests.total()

    _, first = counted(lambda: topic.get(b"k1"))
    for key, expected in ((b"k1", b"v1" * 100), (b"k5000", b"v5000" * 100), (b"absent", None)):
        value, count = counted(lambda key=key: topic.get(key))
        assert value == expected
        assert count <= 4 < first, (key, count, first)
    writer["t"].append(b"k1", b"new")
    assert counted(lambda: topic.get(b"k1")) == (b"new", 1), "the manifest, which has the small batch, too"
    assert counted(lambda: topic.get(b"absent")) == (None, 1)


def test_many_keys_are_scanned_for(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = filled(opened())
    topic.get(b"k1")
    used: list[int] = []
    real = KeyIndex.find
    monkeypatch.setattr(
        KeyIndex, "find", lambda self, log, keys: used.append(len(keys)) or real(self, log, keys)
    )
    assert len(topic.get_many([b"k%d" % n for n in range(3)])) == 3 and used == [3]
    assert len(topic.get_many([b"k%d" % n for n in range(50)])) == 50 and used == [3]


def test_keys_that_do_not_fit_the_memory_are_scanned_for_with_a_warning(
    opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    filled(opened())
    logs = opened("r", log_cleaner_dedupe_buffer_size=1 << 16, log_cleaner_threads=1)
    assert logs["t"].get(b"k1") == b"v1" * 100
    (record,) = caplog.records
    assert "do not fit" in record.getMessage() and "mode" not in record.getMessage()
