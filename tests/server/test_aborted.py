"""The aborted transactions of a committed fetch do not depend on the bits of the transaction indexes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

import lastword
from lastword.partition.log import PartitionLog
from lastword.partition.transactions import control_of
from lastword.records.batch import BatchHeader
from lastword.server import aborted
from lastword.server.aborted import AbortedTransactions
from lastword.testing.unsynced import UNSYNCED
from tests.server.client import batch, served
from tests.server.writer import committed
from tests.support.damage import flip
from tests.transactions import end_transaction


def append_transactions(log: PartitionLog, rng: random.Random, count: int) -> None:
    """Append transactions of three producers, with rolls between; at the end, none is open."""
    sequences, undecided = dict.fromkeys(range(7, 10), 0), set()
    for _ in range(count):
        producer = rng.choice(list(sequences))
        if rng.random() < 0.2:
            log.roll()
        if rng.random() < 0.2:
            log.append_batch(batch((b"k", b"plain")))
        if producer in undecided and rng.random() < 0.5:
            end_transaction(log, producer, 0, commit=rng.random() < 0.5)
            undecided.discard(producer)
        else:
            data = batch((b"k", b"v"), producer=(producer, 0, sequences[producer]), attributes=0x10)
            log.append_batch(data)
            sequences[producer] += 1
            undecided.add(producer)
    for producer in sorted(undecided):
        end_transaction(log, producer, 0, commit=False)
    log.roll()
    log.append_batch(batch((b"k", b"last")))


def headers(log: PartitionLog) -> list[tuple[BatchHeader, bool]]:
    """Return all batches of a log, and of each whether it is an abort marker."""
    batches = []
    for segment in log.segments:
        for header in segment.headers():
            marker = control_of(segment.read_batch(header), header, segment.file, position=0)
            batches.append((header, marker is not None and marker.type == "abort"))
    return batches


def shown(batches: list[tuple[BatchHeader, bool]], listed: list[tuple[int, int]], start: int) -> list[int]:
    """Return the offsets of the batches that a client shows, by the rules of Kafka's consumer."""
    waiting = sorted((first, producer) for producer, first in listed)
    hidden: set[int] = set()
    offsets = []
    for header, aborts in batches:
        if header.last_offset < start:
            continue
        while waiting and waiting[0][0] <= header.last_offset:
            hidden.add(waiting.pop(0)[1])
        if aborts:
            hidden.discard(header.producer_id)
        elif not header.control and not (header.transactional and header.producer_id in hidden):
            offsets.append(header.base_offset)
    return offsets


@pytest.fixture
def log(tmp_path: Path) -> Iterator[PartitionLog]:
    with lastword.open(tmp_path / "data", "a", files=UNSYNCED, log_cleaner_enable=False) as logs:
        logs.create_topic("users", cleanup_policy="delete")
        yield logs.dirs.log("users", 0)


def test_each_flipped_bit_of_an_index(log: PartitionLog) -> None:
    append_transactions(log, random.Random(4), 40)
    batches = headers(log)
    starts = [header.base_offset for header, _ in batches]
    whole = AbortedTransactions()
    of = whole.of
    right = {start: of(log, start, log.log_end) for start in starts}
    wanted = {start: shown(batches, right[start], start) for start in starts}
    assert all(len(offsets) < len(batches) for offsets in wanted.values())
    by_index = {
        (entry.producer_id, entry.first_offset)
        for segment in log.segments
        for entry in log.aborted_of(segment)
    }
    assert set(right[0]) == by_index and len(by_index) > 3
    flips = 0
    for segment in log.segments[:-1]:
        path = Path(segment.file).with_suffix(".txnindex")
        if not path.exists():
            continue
        data = path.read_bytes()
        for bit in range(8 * len(data)):
            changed = bytearray(data)
            changed[bit // 8] ^= 1 << bit % 8
            path.write_bytes(changed)
            flipped = AbortedTransactions()
            flipped._read = whole._read  # the segments are the same
            of = flipped.of
            for start in random.Random(bit).sample(starts, 4):
                found = of(log, start, log.log_end)
                assert shown(batches, found, start) == wanted[start], (path.name, bit, start)
            flips += 1
        path.write_bytes(data)
    assert flips > 500


@pytest.mark.parametrize("rolls", [True, False], ids=["closed segment", "active segment"])
def test_a_committed_fetch_over_a_flipped_bit(tmp_path: Path, rolls: bool) -> None:
    with served(tmp_path / "data") as (logs, _, _):
        logs.create_topic("users", cleanup_policy="delete")
        log = logs.dirs.log("users", 0)
        append_aborted(log, 0)
        log.append_batch(batch((b"k", b"shown")))
        if rolls:
            log.roll()
        index = Path(log.segments[0].file).with_suffix(".txnindex")
    flip(index, 9)  # of the producer id
    with served(tmp_path / "data") as (logs, _, client):
        assert committed(client) == [b"shown"]
        append_aborted(logs.dirs.log("users", 0), 1)  # known without the segment being read again
        assert committed(client) == [b"shown"]


@pytest.mark.parametrize("rolls", [True, False], ids=["closed segment", "active segment"])
def test_transactions_that_overlap_are_in_the_order_of_their_first_offsets(
    log: PartitionLog, rolls: bool
) -> None:
    """kafkajs shows the records of one that is named behind another which began later."""
    transactions = AbortedTransactions()
    assert transactions.of(log, 0, log.log_end) == []
    for producer_id in (8, 7):
        log.append_batch(batch((b"k", b"aborted"), producer=(producer_id, 0, 0), attributes=0x10))
    for producer_id in (7, 8):
        end_transaction(log, producer_id, 0, commit=False)
    if rolls:
        log.roll()
    assert transactions.of(log, 0, log.log_end) == [(8, 0), (7, 1)]
    assert AbortedTransactions().of(log, 0, log.log_end) == [(8, 0), (7, 1)]


def append_aborted(log: PartitionLog, sequence: int) -> None:
    log.append_batch(batch((b"k", b"aborted"), producer=(7, 0, sequence), attributes=0x10))
    end_transaction(log, 7, 0, commit=False)


def test_a_log_without_aborted_transactions_is_not_read(
    log: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.append_batch(batch((b"k", b"v"), producer=(7, 0, 0), attributes=0x10))
    end_transaction(log, 7, 0, commit=True)
    log.roll()
    log.append_batch(batch((b"k", b"v")))
    monkeypatch.setattr(aborted, "_transactions", lambda segment: pytest.fail("it was read"))
    transactions = AbortedTransactions()
    assert transactions.is_known(log, 0)
    assert transactions.of(log, 0, log.log_end) == []
