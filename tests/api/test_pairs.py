"""Pairs that become columns directly, and pairs that do not: equal records, equal refusals."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import lastword
from lastword.api import batches
from lastword.errors import KeyRequiredError, SerializerError, UsageError

KINDS = {"bytes": lambda n: b"%d" % n, "str": lambda n: f"ü{n}"}


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "GROUP_RECORDS", 1000)
    monkeypatch.setattr(batches, "_few", lambda: 100)


@pytest.fixture
def new_topic(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Make topics, each in a new directory, which is closed at the end of the test."""
    with ExitStack() as opened:

        def make(kind: str = "bytes", name: str = "data", **more: Any) -> Any:
            logs = opened.enter_context(lastword.open(tmp_path / name, "a", log_cleaner_enable=False))
            return logs.create_topic(
                "a", **{"cleanup_policy": "delete"} | more, key_serializer=kind, value_serializer=kind
            )

        yield make


def contents(topic: Any) -> list[tuple[int, int, Any, Any]]:
    return [(record.partition, record.offset, record.key, record.value) for record in topic.read()]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [0, 1, 99, 100, 1000, 2500])
def test_columns_and_single_records_give_the_same_log(
    new_topic: Callable[..., Any], kind: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, chance = KINDS[kind], random.Random(5)
    rows = [
        (make(chance.randrange(500)), None if chance.random() < 0.1 else make(number))
        for number in range(count)
    ]
    fast = new_topic(kind, "fast", partitions=3)
    assert fast.extend(iter(rows)) == count
    monkeypatch.setattr(batches, "PAIR_TYPES", {})
    slow = new_topic(kind, "slow", partitions=3)
    assert slow.extend(rows) == count
    assert contents(fast) == contents(slow)


def test_what_is_no_pair_of_bytes_goes_on_one_by_one(new_topic: Callable[..., Any]) -> None:
    rows: list[Any] = [(b"a", b"%d" % n) for n in range(1500)]
    rows[1200] = [b"list", bytearray(b"x")]
    topic = new_topic()
    assert topic.extend(rows) == 1500
    assert [key for *_, key, _ in contents(topic)] == [b"a"] * 1200 + [b"list"] + [b"a"] * 299


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        ((b"k", "text"), SerializerError),
        ((1, b"v"), SerializerError),
        ("ab", UsageError),
        ((b"k",), UsageError),
        ((None, b"v"), KeyRequiredError),
    ],
)
def test_a_refused_record_stops_its_group_only(
    new_topic: Callable[..., Any], bad: Any, error: type[Exception]
) -> None:
    rows: list[Any] = [(b"a", b"%d" % n) for n in range(1500)]
    rows[1200] = bad
    topic = new_topic(cleanup_policy="compact")
    with pytest.raises(error, match="the 1000 records before are in the log"):
        topic.extend(rows)
    assert len(contents(topic)) == 1000


def test_text_that_has_no_bytes_is_the_serializers_to_refuse(new_topic: Callable[..., Any]) -> None:
    topic = new_topic("str")
    with pytest.raises(SerializerError, match="not UTF-8"):
        topic.extend([("k", "\ud800")] * 500)
    assert contents(topic) == []


def test_a_group_ends_by_weight_too() -> None:
    rows = iter([(b"k", b"v" * 1000)] * 100)
    assert len(batches.take_pairs(rows, bytes, bytes, 10_000, 1000).keys) == 10
    assert len(batches.take_pairs(rows, bytes, bytes, 1 << 20, 20).keys) == 20
    assert len(batches.take_pairs(rows, bytes, bytes, 1 << 20, 1000).keys) == 70
