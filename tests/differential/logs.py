"""Generate random logs by number, with everything that producers, formats and time can leave in a partition.

Magic 0, 1 and 2 with every codec of each, also mixed in one log; repeated and unique keys, keyless records,
tombstones, duplicates inside a batch; transactions that commit, abort and stay open, and empty ones;
producers whose epoch rises with each transaction and whose sequences wrap; batches that an earlier cleaning
emptied; gaps inside batches and between them, and of more than 2^31 offsets between segments; batches of one
record and of many; times that run backwards. A log has two parts: the records at the first cleaning, and
those appended before the second.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field
from pathlib import Path

from lastword.config import TopicConfig
from lastword.records.batch import BatchBuilder, write_batch
from lastword.records.formats import build_message
from lastword.records.record import ABORT, COMMIT, RawRecord
from lastword.segment import names
from lastword.wire import INT32_MAX
from tests.support.legacy import build_wrapper
from tests.transactions import control_key, marker_value

T = 1_700_000_000_000
TOPIC = "random"
FOREVER_MS = 1 << 62
LOG_APPEND = 1


@dataclass(frozen=True)
class RandomLog:
    """A random log: for each part its segments, as (base offset, bytes of the batches).

    `now_ms` has the times of the first two cleanings, `slots` the size of Kafka's map, `map_bytes` of ours.
    """

    seed: int
    parts: tuple[tuple[tuple[int, bytes], ...], ...]
    now_ms: tuple[int, int]
    config: TopicConfig
    map_bytes: int
    slots: int
    old_formats: bool
    transactions: bool

    def write(self, directory: Path, part: int, now_ms: int | None = None) -> None:
        """Write the segments of one part, without indexes, as files modified a second before the cleaning."""
        directory.mkdir(parents=True, exist_ok=True)
        for base, data in self.parts[part]:
            path = directory / names.segment_file(base, names.LOG)
            path.write_bytes(data)
            when = (self.now_ms[part] if now_ms is None else now_ms) - 1000
            os.utime(path, (when // 1000, when // 1000))


@dataclass
class _Writer:
    rng: random.Random
    offset: int = 0
    time_ms: int = T
    segments: list[tuple[int, bytearray]] = field(default_factory=list)
    open_: dict[int, int] = field(default_factory=dict)  # producer id -> batches of its open transaction
    sequences: dict[int, int] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)
    epochs_rise: bool = False  # with each end of a transaction; sequences restart at 0
    rare: random.Random = field(default_factory=random.Random)  # for rare events
    keys: list[bytes] = field(default_factory=list)
    tombstones: float = 0.15
    keyless: float = 0.0

    def roll(self) -> None:
        self.segments.append((self.offset, bytearray()))

    def put(self, data: bytes, next_offset: int) -> None:
        self.segments[-1][1].extend(data)
        self.offset = next_offset

    def stamp(self) -> int:
        self.time_ms += self.rng.choice((0, 1, 7, -3, 1000))
        return max(self.time_ms, 0)

    def pair(self) -> tuple[bytes | None, bytes | None]:
        rng = self.rng
        if rng.random() < self.keyless:
            return None, rng.randbytes(3)
        key = (
            rng.choice(self.keys)
            if rng.random() < 0.9
            else b"once-%d-%d" % (self.offset, rng.getrandbits(20))
        )
        if rng.random() < self.tombstones:
            return key, None
        return key, b"v" * rng.choice((0, 1, 10, 10, 40, 300)) + b"%d" % rng.getrandbits(24)

    def count(self) -> int:
        return self.rng.choice((1, 1, 2, 3, 5, 8, 20)) if self.rng.random() < 0.97 else 150

    def rows(self, magic: int) -> list[RawRecord]:
        offset = self.offset + self.gap()
        records = []
        for _ in range(self.count()):
            key, value = self.pair()
            records.append(RawRecord(offset, self.stamp() if magic else -1, magic - 1, key, value))
            offset += 1 + (self.gap() if self.rng.random() < 0.1 else 0)
        return records

    def gap(self) -> int:
        return self.rng.choice((0,) * 12 + (1, 3, 90))

    def old(self, magic: int, codec: int) -> None:
        rows = self.rows(magic)
        if codec:
            stamp = self.stamp() if magic and self.rng.random() < 0.2 else None
            data = build_wrapper(magic, codec, rows, log_append_ms=stamp)
        else:
            data = b"".join(build_message(magic, r.offset, r.key, r.value, r.timestamp) for r in rows)
        self.put(data, rows[-1].offset + 1)

    def new(self, codec: int, producer: int = -1, *, transactional: bool = False) -> None:
        rng = self.rng
        rows = self.rows(2)
        appended = rng.random() < 0.15
        known = producer >= 0
        if known and producer not in self.sequences:
            self.sequences[producer] = self.rare.choice((0, 0, INT32_MAX, INT32_MAX - 6))
        builder = BatchBuilder(
            codec,
            timestamp_type=LOG_APPEND if appended else 0,
            producer_id=producer,
            producer_epoch=self.epochs.get(producer, 0) if known else -1,
            base_sequence=self.sequences[producer] if known else -1,
            transactional=transactional,
        )
        base = rows[0].offset
        for row in rows:
            headers = (("h", None), ("i", rng.randbytes(2)), ("", b"")) if rng.random() < 0.1 else ()
            builder.append(row.timestamp, row.key, row.value, headers, offset_delta=row.offset - base)
        last = rows[-1].offset - base + (rng.choice((0, 0, 0, 2)) if not known else 0)
        data = builder.build(
            base,
            rng.choice((0, 0, 1)),
            append_time=self.stamp() if appended else None,
            last_offset_delta=last,
        )
        if known:
            self.sequences[producer] = (self.sequences[producer] + last + 1) & INT32_MAX
        self.put(data, base + last + 1)

    def end(self, producer: int, kind: int) -> None:
        if self.epochs_rise:
            self.epochs[producer] = self.epochs.get(producer, 0) + 1
            self.sequences[producer] = 0
        epoch = self.epochs.get(producer, 0)
        builder = BatchBuilder(producer_id=producer, producer_epoch=epoch, transactional=True, control=True)
        builder.append(self.stamp(), control_key(kind), marker_value(1))
        self.open_.pop(producer, None)
        self.put(builder.build(self.offset), self.offset + 1)

    def emptied(self, producer: int) -> None:
        """Write an emptied batch, which a cleaning keeps as the last of its producer or of its range."""
        count, known = self.rare.choice((1, 5)), producer >= 0
        sequence = self.sequences.setdefault(producer, 0) if known else -1
        data = write_batch(
            base_offset=self.offset,
            leader_epoch=0,
            attributes=0,
            last_offset_delta=count - 1,
            base_timestamp=-1,
            max_timestamp=self.time_ms,
            producer=(producer, self.epochs.get(producer, 0) if known else -1, sequence),
            count=0,
            payload=b"",
        )
        if known:
            self.sequences[producer] = (sequence + count) & INT32_MAX
        self.put(data, self.offset + count)

    def something_rare(self, producers: list[int]) -> None:
        """Write, rarely, an emptied batch or the marker of a transaction without records in this log."""
        rare = self.rare
        if rare.random() < 0.04:
            self.emptied(rare.choice((-1, 77)))
        if producers and rare.random() < 0.04:
            producer = rare.choice(producers)
            if not self.open_.get(producer):
                self.end(producer, rare.choice((COMMIT, ABORT)))


def random_log(seed: int, parts: int = 2) -> RandomLog:
    """Return the log with number `seed`; the same number gives the same log."""
    rng = random.Random(f"differential {seed}")
    rare = random.Random(f"rare {seed}")
    writer = _Writer(rng, rare=rare, epochs_rise=rare.random() < 0.5)
    writer.keys = [rng.randbytes(rng.choice((0, 1, 3, 8, 24, 60))) for _ in range(rng.choice((1, 3, 12, 60)))]
    writer.tombstones = rng.choice((0.0, 0.1, 0.4))
    writer.keyless = rng.choice((0.0, 0.0, 0.08))
    magics = rng.choice(((2,), (2,), (2,), (0,), (1,), (0, 1), (1, 2), (0, 1, 2)))
    transactions = magics[-1] == 2 and rng.random() < 0.5
    producers = [3, 5, 8][: rng.randint(1, 3)]
    codecs = rng.choice(((0,), (0, 3), (1,), (2,), (3,), (4,), (0, 1, 2, 3, 4)))
    batches = rng.choice((6, 25, 60))
    roll = rng.choice((0.05, 0.15, 0.4))
    wide = rng.random() < 0.04
    written = []
    for part in range(parts):
        writer.segments = []
        writer.roll()
        for number in range(batches if part == 0 else rng.randint(1, batches)):
            if number and rng.random() < roll:
                if wide and rng.random() < 0.3:
                    writer.offset += 3_000_000_000
                writer.roll()
            magic = magics[min(number * len(magics) // batches, len(magics) - 1)] if part == 0 else magics[-1]
            _batch(writer, magic, codecs, producers if transactions else [])
        written.append(tuple((base, bytes(data)) for base, data in writer.segments))
    retention_ms = rng.choice((0, 5_000, 10_000_000_000))
    first_ms = T + 1_000_000
    segment_bytes = rng.choice((2_000, 20_000, 1 << 20))
    config = TopicConfig(
        cleanup_policy=frozenset({"compact"}),
        segment_bytes=segment_bytes,
        segment_ms=FOREVER_MS,
        index_interval_bytes=rng.choice((0, 500, 4096)),
        delete_retention_ms=retention_ms,
        min_cleanable_dirty_ratio=0.0,
        file_delete_delay_ms=0,
    )
    return RandomLog(
        seed,
        tuple(written),
        (first_ms, first_ms + rng.choice((2_000, 5_000, 60_000))),
        config,
        rng.choice((1 << 13, 1 << 14, 1 << 20)),
        rng.choice((3, 4, 9, 40, 4000)),
        magics[0] < 2,
        transactions,
    )


def _batch(writer: _Writer, magic: int, codecs: tuple[int, ...], producers: list[int]) -> None:
    rng = writer.rng
    codec = rng.choice(codecs)
    if magic == 2:
        writer.something_rare(producers)
    if magic < 2:
        writer.old(magic, codec if codec < 4 else 0)
    elif producers and rng.random() < 0.7:
        producer = rng.choice(producers)
        if writer.open_.get(producer) and rng.random() < 0.45:
            writer.end(producer, rng.choice((COMMIT, ABORT)))
        else:
            writer.new(codec, producer, transactional=True)
            writer.open_[producer] = writer.open_.get(producer, 0) + 1
    elif rng.random() < 0.2:
        writer.new(codec, 77)
    else:
        writer.new(codec)
