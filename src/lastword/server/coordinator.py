"""The parts that coordinators share: the topic that holds their state, and timers by the clock of the log.

A coordinator's state is a compacted topic in Kafka's own record formats. Every change is appended before the
client gets its answer, and the topic is read when the coordinator is first needed. So a broker that takes
over the directory has the groups, and gives them back.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from lastword.clock import Clock, SystemClock
from lastword.partition.reads import read_batches
from lastword.records.batch import BatchBuilder
from lastword.records.formats import check_crc, read_records

if TYPE_CHECKING:
    from lastword.partition.log import PartitionLog
    from lastword.server.broker import Broker

POLL_SECONDS = 0.01
"""How often a clock that does not run by itself is read while a timer waits."""


class CoordinatorTopic:
    """A compacted topic of records that the server makes.

    Args:
        broker: The broker.
        name: The topic.
        partitions: The number of its partitions, if it has to be created.
    """

    def __init__(self, broker: Broker, name: str, partitions: int) -> None:
        self._broker = broker
        self.name = name
        self._partitions = partitions

    def open(self) -> int:
        """Create the topic if there is none, recover its logs, and return the number of partitions."""
        topic = self._broker.topics.get(self.name)
        if topic is None:
            settings = {"cleanup.policy": "compact", "segment.bytes": "104857600"}
            topic = self._broker.create(self.name, self._partitions, settings)
        for number in topic.directories:
            topic.log(number)
        return len(topic.directories)

    def partition_of(self, key: str) -> int:
        """Return the partition of a group or of a transactional id, as Kafka does."""
        topic = self._broker.topics.get(self.name)
        count = self._partitions if topic is None else len(topic.directories)
        return java_hash(key) % count

    def log(self, partition: int) -> PartitionLog:
        """Return the open log of a partition."""
        topic = self._broker.topics.get(self.name)
        assert topic is not None
        return topic.log(partition)

    def newest(self) -> Iterator[tuple[int, bytes, bytes]]:
        """Yield partition, key and value of the newest record of each key that has a value."""
        topic = self._broker.topics.get(self.name)
        for number in () if topic is None else topic.directories:
            log = self.log(number)
            values: dict[bytes, bytes | None] = {}
            for segment, header, data in read_batches(log, log.log_start):
                if header.control:
                    continue
                check_crc(data, header, segment.file, 0)
                for record in read_records(data, header, segment.file, position=0):
                    if record.key is not None:
                        values[record.key] = record.value
            for key, value in values.items():
                if value is not None:
                    yield number, key, value

    def append(self, partition: int, records: Iterable[tuple[bytes, bytes | None]]) -> PartitionLog | None:
        """Append records as one batch.

        Returns:
            The log that must be synced before the change is acknowledged; None if none must.
        """
        now_ms = self._broker.clock.now_ms()
        builder = BatchBuilder()
        for key, value in records:
            builder.append(now_ms, key, value)
        if not len(builder):
            return None
        log = self.log(partition)
        log.append_batch(builder.build())
        return log if log.config.lastword_ack == "disk" else None


class Timer:
    """A call that is due at a time of the clock."""

    __slots__ = ("call", "due")

    def __init__(self, due: float, call: Callable[[], None]) -> None:
        self.due = due
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        """Drop the call."""
        self.call = None


class Timers:
    """Calls in the thread of the event loop, due by the clock of the log. A test moves that clock."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._loop = loop
        self._clock = clock
        self._runs = isinstance(clock, SystemClock)
        self._heap: list[tuple[float, int, Timer]] = []
        self._numbers = itertools.count()
        self._next: asyncio.TimerHandle | None = None

    def after(self, milliseconds: int, call: Callable[[], None]) -> Timer:
        """Return a timer that calls `call` when this time has passed."""
        timer = Timer(self._clock.monotonic() + milliseconds / 1000, call)
        heapq.heappush(self._heap, (timer.due, next(self._numbers), timer))
        if self._heap[0][2] is timer:
            self._schedule()
        return timer

    def _schedule(self) -> None:
        if self._next is not None:
            self._next.cancel()
            self._next = None
        while self._heap and self._heap[0][2].call is None:
            heapq.heappop(self._heap)
        if self._heap:
            seconds = max(0.0, self._heap[0][0] - self._clock.monotonic()) if self._runs else POLL_SECONDS
            self._next = self._loop.call_later(seconds, self.run)

    def run(self) -> None:
        """Make the calls that are due. A clock that jumped calls this in the thread of the event loop."""
        now = self._clock.monotonic()
        while self._heap and self._heap[0][0] <= now:
            timer = heapq.heappop(self._heap)[2]
            call, timer.call = timer.call, None
            if call is not None:
                call()
        self._schedule()


def java_hash(text: str) -> int:
    """Return the absolute value of Java's hash of a text, 0 for its smallest number: `Utils.abs`."""
    data = text.encode("utf-16-be", "surrogatepass")
    code = 0
    for at in range(0, len(data), 2):
        code = (code * 31 + (data[at] << 8 | data[at + 1])) & 0xFFFFFFFF
    return code if code < 0x80000000 else (0x100000000 - code) & 0x7FFFFFFF
