"""Records for the interop tests: few keys written often, with every part that a record may have."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import lastword
from tests.support.kafka import KafkaRecord

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
START_MS = 1_700_000_000_000


def updates(count: int, keys: int, seed: int) -> list[KafkaRecord]:
    """Return `count` updates of `keys` keys: tombstones, headers, empty values, timestamps out of order."""
    choice = random.Random(seed)
    records = []
    for i in range(count):
        key = f"key-{choice.randrange(keys):05d}".encode()
        value: bytes | None = f"{seed}:{i}:".encode() + b"word " * choice.randrange(30)
        if i % 9 == 4:
            value = None
        elif i % 31 == 7:
            value = b""
        headers: tuple[tuple[str, bytes | None], ...] = ()
        if i % 7 == 3:
            headers = (("number", str(i).encode()), ("", b""), ("number", None))
        records.append(KafkaRecord(key, value, START_MS + 100 * i - 900 * (i % 3), headers))
    return records


def batches(records: Sequence[KafkaRecord]) -> Iterator[Sequence[KafkaRecord]]:
    """Yield the records in batches of changing sizes."""
    sizes = (1, 13, 40, 3, 90, 8)
    start = i = 0
    while start < len(records):
        size = sizes[i % len(sizes)]
        yield records[start : start + size]
        start, i = start + size, i + 1


def append_all(topic: lastword.Topic[bytes, bytes], records: Sequence[KafkaRecord]) -> None:
    """Append batch by batch to partition 0, with timestamps and headers."""
    for batch in batches(records):
        topic.extend(
            lastword.Record(
                topic.name,
                0,
                -1,
                r.timestamp or -1,
                "create",
                r.key,
                r.value,
                r.headers,
                is_tombstone=r.value is None,
            )
            for r in batch
        )


def facts(records: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Return offset, timestamp, key, value and headers of each record, to compare both sides."""
    return [(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in records]


def newest(records: Iterable[Any]) -> dict[bytes, tuple[Any, ...]]:
    """Return the facts of each key's newest record, tombstones included."""
    return {fact[2]: fact for fact in facts(records)}
