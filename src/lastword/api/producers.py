"""`producer=` and `sequence=`: a repeated call appends no record twice.

Each call has a sequence, and sequences increase. A call whose sequence is not above the producer's last
sequence is complete, and does nothing. A call above it may repeat a call that a kill or an error interrupted:
then the partitions hold its first records, and only the missing records are appended. `partition.named` keeps
the state of named producers.

Skipped records are compared with the repeated records. If a cleaning removed some of them, the journal has a
digest of the records of the interrupted call. Repeating a call with other records is an error, and so is a
repetition that cannot be compared: no record is lost.

On disk a named producer is a Kafka producer: an id of 2^62 or more, epoch 0, and in each partition sequences
that rise by one for each record.
"""

from __future__ import annotations

import os
import random
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import google_crc32c

from lastword.api.record import Appended
from lastword.arrow import pc
from lastword.errors import UsageError
from lastword.partition.appending import AppendedBatch
from lastword.partition.log import PartitionLog
from lastword.partition.named import COMPACT_BYTES, Journal, NamedProducer, Part, WholeCall, read_journal
from lastword.partition.view import PartitionView
from lastword.records.batch import read_header, read_records
from lastword.wire import ATTRIBUTES_AT, CRC_AT, INT32_MAX, INT64_MAX

EPOCH = 0
MAX_NAME = 249
TURN_RECORDS = 512
TURNS = 1 << 30
_PRODUCER = struct.Struct(">qhi")
_PRODUCER_POSITION = 43
_CRC = struct.Struct(">I")
_HALF = 1 << 30

LogOf = Callable[[int], PartitionLog]


class Producers:
    """The named producers of one topic that is open to append."""

    def __init__(self, first_partition: PartitionLog, rng: random.Random) -> None:
        self._journal = Journal(first_partition.files, first_partition.directory, rng)
        self._lock = threading.Lock()
        self._busy: dict[str, threading.RLock] = {}
        self._running: set[str] = set()

    @contextmanager
    def call(self, log_of: LogOf, name: str | None, sequence: int | None) -> Iterator[ProducerCall | None]:
        """Enter a call of a producer, one call at a time; yields None if the call was completed before.

        Raises:
            UsageError: An invalid name or sequence.
        """
        name, sequence = check(name, sequence)
        with self._alone(name):
            producer = self._journal.name(name)
            self._settle(producer, log_of)
            last = producer.last_sequence
            is_done = last is not None and sequence <= last
            yield None if is_done else ProducerCall(producer, sequence, log_of, self._journal)

    def finish(self, call: ProducerCall, log_of: LogOf, *, sync: bool) -> None:
        """Record that a call is complete: its records are in the log, and durable if `sync`.

        Raises:
            UsageError: The log has, or had, more records of an interrupted call, which differ.
        """
        call.check_skipped()
        self._journal.add(call.producer, WholeCall(call.sequence, call.parts()), sync=sync)
        if self._journal.size_bytes > COMPACT_BYTES:
            self._rewrite(log_of)

    def last_sequence(self, log_of: LogOf, name: str) -> int | None:
        """Return the sequence of the newest complete call, or None."""
        if name not in self._journal.producers:
            return None
        with self._alone(name):
            producer = self._journal.producers[name]
            self._settle(producer, log_of)
            return producer.last_sequence

    def part(self, name: str, sequence: int) -> dict[int, Part] | None:
        """Return the end positions of a complete call by partition; None unless it is the last call."""
        producer = self._journal.producers.get(name)
        if producer is None or producer.last_sequence != sequence:
            return None
        return producer.calls[-1].parts

    @contextmanager
    def _alone(self, name: str) -> Iterator[None]:
        """Hold a producer against other threads. UsageError: this thread is in a call of the producer."""
        with self._lock:
            busy = self._busy.setdefault(name, threading.RLock())
        with busy:
            if name in self._running:
                raise UsageError(
                    f"a call of producer {name!r} in this thread has not ended: its records make another one",
                    remedy="make it before, or use another producer name",
                )
            try:
                self._running.add(name)  # here: an interrupt (Ctrl-C) before the block would leave it
                yield
            finally:
                self._running.discard(name)

    def _settle(self, producer: NamedProducer, log_of: LogOf) -> None:
        """Remove calls whose records are no longer in the log, after a power cut or a truncation."""
        if all(_is_in_log(producer, log_of(n), part) for n, part in producer.parts.items()):
            return
        for count, call in enumerate(producer.calls):
            if not all(_is_in_log(producer, log_of(n), part) for n, part in call.parts.items()):
                producer.keep(count)
                break
        self._rewrite(log_of)

    def _rewrite(self, log_of: LogOf) -> None:
        touched = {number for producer in self._journal.producers.values() for number in producer.parts}
        for number in sorted(touched):
            log_of(number).sync()
        self._journal.rewrite()


class Leftover(NamedTuple):
    """A record of an incomplete call. `number`: ordinal of the record within its partition."""

    number: int
    offset: int
    key: bytes | None
    value: bytes | None


class RecordsDigest:
    """A digest of records that does not depend on how they are divided into calls of `add`."""

    def __init__(self) -> None:
        self._parts = [blake2b() for _ in range(4)]

    def add(self, keys: Any, values: Any) -> None:
        """Add records: lists of bytes or None, or Arrow arrays."""
        for part, data in zip(self._parts, (*_flat(keys), *_flat(values)), strict=True):
            part.update(data)

    def text(self) -> str:
        """Return the digest of the records so far."""
        return blake2b(b"".join(part.digest() for part in self._parts), digest_size=8).hexdigest()


def _flat(column: Any) -> tuple[Any, Any]:
    """Return the lengths of byte strings, -1 for None, and the strings in one."""
    if isinstance(column, list):
        sizes = [-1 if item is None else len(item) for item in column]
        return struct.pack(f"<{len(sizes)}i", *sizes), b"".join(filter(None, column))
    import numpy as np

    lengths = np.asarray(pc.fill_null(pc.binary_length(column), -1), "<i4").tobytes()
    present = column.drop_null()
    if not len(present):
        return lengths, b""
    _, edges, data = present.buffers()
    ends = np.frombuffer(edges, np.int32)[present.offset : present.offset + len(present) + 1]
    return lengths, memoryview(data)[ends[0] : ends[-1]] if data is not None else b""


class Share:
    """The records of one call in one partition."""

    def __init__(self, producer: NamedProducer, log: PartitionLog, number: int, journal: Journal) -> None:
        known = producer.parts.get(number, Part(0, -1))
        state = log.producer(producer.producer_id)
        ahead = 0
        if state is not None and state.batches:
            ahead = (state.last_sequence + 1 - known.written) & INT32_MAX
            ahead = 0 if ahead >= _HALF else ahead
        self.log = log
        self.before = known.written
        self.written = known.written
        self.last_offset = known.last_offset
        self.ahead_to = known.written + ahead
        self._producer, self._number, self._journal = producer, number, journal
        self._leftovers: Iterator[Leftover] | None = None
        self._next: Leftover | None = None
        self._digest = RecordsDigest()
        self._ends = producer.ends.get(number, {})
        self._has_gone = (
            False  # a record was skipped that is gone, and no digest has shown yet that it was this
        )

    def skips(self, sequence: int, key: bytes | None, value: bytes | None) -> bool:
        """Return whether the next record of the call is in the log.

        Raises:
            UsageError: The log has another record at this position.
        """
        if self.written >= self.ahead_to:
            return False
        if self._leftovers is None:
            self._leftovers = self._read()
        while self._next is None or self._next.number < self.written:
            self._next = next(self._leftovers, Leftover(INT32_MAX, self.last_offset, None, None))
        leftover = self._next
        if leftover.number == self.written:
            if (leftover.key, leftover.value) != (key, value):
                raise UsageError(
                    f"{self.log.name}: the record at offset {leftover.offset}, from an interrupted call, "
                    f"differs from the record of the call with sequence {sequence}",
                    remedy="repeat the failed call with its own records, or use another producer name",
                    offset=leftover.offset,
                )
            self.last_offset = leftover.offset
        else:
            self._has_gone = True
        self._digest.add([key], [value])
        self.written += 1
        if self._has_gone and (self.written in self._ends or self.written == self.ahead_to):
            self.check_skipped(sequence)
            self._has_gone = False
        return True

    def check_skipped(self, sequence: int) -> None:
        """Raise UsageError if skipped records are gone and were not those of the call, as far as is known."""
        if self._has_gone and self._ends.get(self.written) != self._digest.text():
            raise UsageError(
                f"{self.log.name}: a cleaning removed records of an interrupted call, and no digest shows "
                f"that they were the first records of the call with sequence {sequence}",
                remedy="repeat the failed call with its own records, or use another producer name",
            )

    def _read(self) -> Iterator[Leftover]:
        start = max(self.last_offset + 1, self.log.log_start)
        for segment, header, data in self.log.batches(start, self.log.log_end):
            if header.producer_id != self._producer.producer_id or header.control:
                continue
            for record in read_records(data, header, segment.file, position=0):
                sequence = header.base_sequence + record.offset - header.base_offset
                number = self.before + ((sequence - self.before) & INT32_MAX)
                yield Leftover(number, record.offset, record.key, record.value)

    def append(self, batches: list[Any], keys: Any, values: Any) -> list[AppendedBatch]:
        """Stamp batches with id and sequence of the producer, and append them.

        The digests of their records, `keys` and `values`, are written before: what a cleaning removes of a
        call that is interrupted can then be compared with the call that repeats it.
        """
        stamped: list[bytearray] = []
        ends: list[tuple[int, str]] = []
        at = self.written
        for batch in batches:
            data, first = bytearray(batch), at - self.written
            at += stamp(data, self._producer.producer_id, at & INT32_MAX)
            self._digest.add(keys[first : at - self.written], values[first : at - self.written])
            stamped.append(data)
            ends.append((at, self._digest.text()))
        self._journal.note(self._producer, self._number, self.written, ends)
        done = self.log.append_batches(stamped)
        self.written, self.last_offset = at, done[-1].last_offset
        return done


class ProducerCall:
    """A running call of a named producer."""

    def __init__(self, producer: NamedProducer, sequence: int, log_of: LogOf, journal: Journal) -> None:
        self.producer = producer
        self._journal = journal
        self.sequence = sequence
        self._log_of = log_of
        self._shares: dict[int, Share] = {}
        self.seen = 0
        """Number of records that the call has received."""

    def turn(self, records: int) -> int:
        """Return the turn of the next record without a key, and count `records` more records."""
        turn: int = self.turn_at(self.seen)
        self.seen += records
        return turn

    def turn_at(self, number: Any) -> Any:
        """Return the turn of a record of the call; a repeated call returns the same turn."""
        return self.sequence % TURNS + number // TURN_RECORDS

    def share(self, partition: int) -> Share:
        """Return the share of a partition."""
        share = self._shares.get(partition)
        if share is None:
            log = self._log_of(partition)
            share = self._shares[partition] = Share(self.producer, log, partition, self._journal)
        return share

    def skips(self, partition: int, key: bytes | None, value: bytes | None) -> bool:
        """Return whether the next record of the call for a partition is in the log already."""
        return self.share(partition).skips(self.sequence, key, value)

    def left_over(self, partition: int) -> int:
        """Return how many of the next records of a partition may be in the log already."""
        share = self.share(partition)
        return share.ahead_to - share.written

    def check_skipped(self) -> None:
        """Raise UsageError if a share has skipped records that are gone and cannot be compared."""
        for share in self._shares.values():
            share.check_skipped(self.sequence)

    def parts(self) -> dict[int, Part]:
        """Return the end position in each partition that got records."""
        return {
            number: Part(share.written, share.last_offset)
            for number, share in self._shares.items()
            if share.written > share.before
        }

    @property
    def partitions(self) -> list[int]:
        """The partitions that the call has used, sorted."""
        return sorted(self._shares)


def check(name: object, sequence: object) -> tuple[str, int]:
    """Return name and sequence; UsageError if one is invalid."""
    if name is None:
        raise UsageError(f"sequence={sequence!r} without a producer", remedy='give both: producer="loader"')
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME:
        raise UsageError(f"{name!r} is not a producer name", remedy=f"a str of 1 to {MAX_NAME} characters")
    if isinstance(sequence, bool) or not isinstance(sequence, int) or not 0 <= sequence <= INT64_MAX:
        raise UsageError(
            f"producer {name!r} with sequence {sequence!r}",
            remedy="sequence= is the call's number, 0 or more",
        )
    return name, sequence


def stamp(batch: bytearray, producer_id: int, sequence: int) -> int:
    """Write id and sequence of a producer into an encoded batch; return the number of sequences it takes."""
    header = read_header(batch, 0, len(batch), "<append>")
    _PRODUCER.pack_into(batch, _PRODUCER_POSITION, producer_id, EPOCH, sequence)
    _CRC.pack_into(batch, CRC_AT, google_crc32c.value(bytes(batch[ATTRIBUTES_AT:])))
    return header.last_offset - header.base_offset + 1


def _is_in_log(producer: NamedProducer, log: PartitionLog, part: Part) -> bool:
    """Return whether the log holds the records of a part, or held them before a cleaning."""
    state = log.producer(producer.producer_id)
    if state is not None and state.batches:
        return ((state.last_sequence + 1 - part.written) & INT32_MAX) < _HALF
    # The log has no state of the producer: a broker expired it, or all records of the producer are lost.
    if part.last_offset >= log.log_end:
        return False
    if part.last_offset < log.log_start:
        return True
    for _, header, _ in log.batches(part.last_offset, part.last_offset + 1):
        if header.base_offset <= part.last_offset:
            return header.producer_id == producer.producer_id
    return True  # removed by a cleaning


def find_appended(
    producers: Producers, log_of: LogOf, name: str | None, sequence: int | None, partition: int
) -> Appended:
    """Return the position of the record of a call with one record; offset -1 if a later call was made."""
    parts = producers.part(*check(name, sequence)) or {}
    if len(parts) != 1:
        return Appended(partition, -1, -1)
    ((number, part),) = parts.items()
    log = log_of(number)
    for segment, header, data in log.batches(max(part.last_offset, log.log_start), part.last_offset + 1):
        for record in read_records(data, header, segment.file, position=0):
            if record.offset == part.last_offset:
                return Appended(number, record.offset, record.timestamp)
    return Appended(number, part.last_offset, -1)


_OPEN: WeakKeyDictionary[PartitionLog, Producers] = WeakKeyDictionary()
_OPENING = threading.Lock()
os.register_at_fork(after_in_child=lambda: globals().update(_OPENING=threading.Lock()))


def producers_of(first_partition: PartitionLog, rng: random.Random | None = None) -> Producers:
    """Return the `Producers` of the topic with this first partition: one object for all appenders."""
    with _OPENING:
        producers = _OPEN.get(first_partition)
        if producers is None:
            producers = _OPEN[first_partition] = Producers(first_partition, rng or random.SystemRandom())
        return producers


def last_sequence_seen(views: dict[int, PartitionView], name: str) -> int | None:
    """Return the newest call whose records are all in these views, or None."""
    check(name, 0)
    first_partition = views[min(views)]
    producer = read_journal(first_partition.files, first_partition.directory)[0].get(name)
    last = None
    for call in producer.calls if producer is not None else ():
        if any(n in views and part.last_offset >= views[n].log_end for n, part in call.parts.items()):
            break
        last = call.sequence
    return last
