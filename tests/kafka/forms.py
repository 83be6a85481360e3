"""Partitions in every form in which a writer leaves them, with a model of their content.

python -m tests.kafka.forms DIRECTORY MILLISECONDS     writes all forms into topics `killed-<form>`, and
                                                       ends by SIGKILL in the middle of another append
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lastword.config import Settings
from lastword.files import DEFAULT, Files
from lastword.logdir import LogDirectory
from lastword.partition.log import PartitionLog
from lastword.records.batch import BatchBuilder
from tests.fakes.recording import RecordingFiles, Stopped
from tests.transactions import end_transaction

SETTINGS = {"segment_bytes": 2 << 10, "index_interval_bytes": 256}
FIRST, SECOND, THIRD, FOURTH = range(900_001, 900_005)  # producer ids; `EPOCHS` has the epoch of each
EPOCHS = {FIRST: 0, SECOND: 3, THIRD: 0, FOURTH: 1}


@dataclass(frozen=True)
class Batch:
    """A batch that was appended.

    `facts` has the offset, timestamp, key, value and headers of each record; `commit` is set for a marker.
    """

    last_offset: int
    producer_id: int
    sequence: int
    count: int
    transactional: bool = False
    commit: bool | None = None
    facts: tuple[tuple[Any, ...], ...] = ()
    data: bytes = b""


@dataclass
class Writer:
    """A writer that appends to a log and keeps a model of its content."""

    log: PartitionLog
    now_ms: int
    batches: list[Batch] = field(default_factory=list)

    def ready(
        self,
        count: int,
        producer_id: int = -1,
        sequence: int = -1,
        *,
        transactional: bool = False,
        codec: int = 0,
        epoch: int | None = None,
    ) -> tuple[bytes, list[tuple[Any, ...]]]:
        """Return a batch without assigned offsets, and its records without their offsets."""
        builder = BatchBuilder(
            codec,
            producer_id=producer_id,
            producer_epoch=EPOCHS.get(producer_id, -1) if epoch is None else epoch,
            base_sequence=sequence,
            transactional=transactional,
        )
        records: list[tuple[Any, ...]] = []
        for i in range(count):
            key, value = f"key-{len(self.batches) % 17}".encode(), f"{producer_id}:{sequence}:{i}".encode()
            headers = (("i", str(i).encode()),) if i % 2 else ()
            records.append((self.now_ms + i, key, value, headers))
            builder.append(*records[-1])
        return builder.build(), records

    def data(self, count: int, producer_id: int = -1, **how: Any) -> None:
        sequence = self.next_sequence(producer_id) if producer_id >= 0 else -1
        data, records = self.ready(count, producer_id, sequence, **how)
        done = self.log.append_batch(data)
        facts = tuple((done.base_offset + i, *record) for i, record in enumerate(records))
        transactional = how.get("transactional", False)
        self.batches.append(
            Batch(done.last_offset, producer_id, sequence, count, transactional, None, facts, data)
        )

    def decide(self, producer_id: int, commit: bool) -> None:
        done = end_transaction(self.log, producer_id, EPOCHS[producer_id], commit)
        self.batches.append(Batch(done.last_offset, producer_id, -1, 1, True, commit))

    def truncate(self, offset: int) -> None:
        self.log.truncate_to(offset)
        self.batches = [batch for batch in self.batches if batch.last_offset < offset]
        assert self.log.log_end == offset

    # ---- the model

    @property
    def end(self) -> int:
        return self.batches[-1].last_offset + 1

    def newest(self, producer_id: int) -> Batch:
        return [b for b in self.batches if b.producer_id == producer_id and b.commit is None][-1]

    def next_sequence(self, producer_id: int) -> int:
        return sum(b.count for b in self.batches if b.producer_id == producer_id and b.commit is None)

    def undecided(self) -> list[int]:
        """Return the producer ids with an open transaction."""
        open_: dict[int, None] = {}
        for batch in self.batches:
            if batch.transactional:
                if batch.commit is None:
                    open_[batch.producer_id] = None
                else:
                    open_.pop(batch.producer_id, None)
        return list(open_)

    def idempotent(self) -> list[int]:
        """Return the producer ids that never had a transaction."""
        ids = {b.producer_id for b in self.batches if b.producer_id >= 0}
        return sorted(ids - {b.producer_id for b in self.batches if b.transactional})

    def records(self, isolation: str) -> list[tuple[Any, ...]]:
        if isolation == "read_uncommitted":
            return [fact for batch in self.batches for fact in batch.facts]
        open_: dict[int, list[Batch]] = {}
        aborted: set[int] = set()
        for batch in (b for b in self.batches if b.transactional):
            if batch.commit is None:
                open_.setdefault(batch.producer_id, []).append(batch)
            else:
                decided = open_.pop(batch.producer_id, [])
                aborted |= set() if batch.commit else {b.last_offset for b in decided}
        stable = min((batches[0].facts[0][0] for batches in open_.values()), default=self.end)
        return [
            fact
            for batch in self.batches
            if batch.last_offset not in aborted
            for fact in batch.facts
            if fact[0] < stable
        ]


def idempotent(writer: Writer) -> None:
    for i in range(25):
        writer.data(3, FIRST)
        writer.data(2, SECOND, codec=4 if i % 2 else 0)
        if i % 5 == 0:
            writer.data(1)


def decided(writer: Writer) -> None:
    for i in range(12):
        writer.data(3, FIRST, transactional=True)
        writer.data(2, FOURTH, transactional=True, codec=3)
        writer.data(1, THIRD)
        if i % 3 == 2:
            writer.decide(FIRST, True)
        if i % 4 == 3:
            writer.decide(FOURTH, False)


def undecided(writer: Writer) -> None:
    decided(writer)
    writer.data(4, FIRST, transactional=True)
    writer.data(2, THIRD)
    writer.data(3, FOURTH, transactional=True)
    writer.decide(FOURTH, True)
    writer.data(1)


def truncated(writer: Writer) -> None:
    """Truncate the log below the end marker of a transaction, so that the transaction is open again."""
    undecided(writer)
    markers = [batch for batch in writer.batches if batch.commit is not None and batch.producer_id == FIRST]
    writer.truncate(markers[-2].last_offset)
    assert FIRST in writer.undecided()
    writer.data(2, THIRD)
    writer.data(1)


def epochs(writer: Writer) -> None:
    """Begin the second epoch inside a segment; a broker that starts again has a higher epoch."""
    for epoch in range(2):
        writer.log.epochs.assign(epoch, writer.log.log_end)
        for _ in range(15):
            writer.data(3, THIRD)
            writer.data(1)


FORMS: dict[str, Callable[[Writer], None]] = {
    form.__name__: form for form in (decided, undecided, truncated, epochs, idempotent)
}


def open_directory(path: Path, files: Files = DEFAULT) -> LogDirectory:
    return LogDirectory.open(path, "a", files, settings=Settings.load([path], arguments=SETTINGS))


def write(directory: LogDirectory, stop: str, now_ms: int) -> dict[str, Writer]:
    """Write all forms into the existing topics `<stop>-<form>`; return their writers by topic.

    The first forms are synced and checkpointed before the other forms are written.
    """
    written = {}
    for number, (form, fill) in enumerate(FORMS.items()):
        topic = f"{stop}-{form}"
        written[topic] = Writer(directory.log(topic, 0), now_ms)
        fill(written[topic])
        if number == 1:
            directory.sync()
    return written


@contextlib.contextmanager
def elsewhere(path: Path, stop: str, now_ms: int) -> Iterator[dict[str, Writer]]:
    """Yield the writers of the same forms in another directory, for a writer process that was killed."""
    with open_directory(path) as directory:
        for form in FORMS:
            directory.create_topic(f"{stop}-{form}")
        yield write(directory, stop, now_ms)


def die_writing(path: Path, now_ms: int) -> None:
    files = RecordingFiles(DEFAULT, torn=True)
    written = write(open_directory(path, files), "killed", now_ms)
    files.stop_at = len(files.changes)
    with contextlib.suppress(Stopped):
        written["killed-idempotent"].data(40, FIRST)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    die_writing(Path(sys.argv[1]), int(sys.argv[2]))
