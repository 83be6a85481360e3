"""Producers, transactions and snapshots of an open log, and their recovery when the log is opened."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import lastword
from lastword.clock import ManualClock
from lastword.config import TopicConfig
from lastword.errors import (
    ProducerFencedError,
    SequenceGapError,
    StorageError,
    TransactionStateError,
)
from lastword.files import Handle
from lastword.partition import PartitionLog, PartitionView, snapshots
from lastword.partition.directory_segments import DirectorySegments
from lastword.partition.producer_state import Producer, ProducerState
from lastword.partition.snapshots import EMPTY_SNAPSHOT, Snapshots, encode
from lastword.records.batch import BatchBuilder
from lastword.segment import indexes, names
from lastword.segment.indexes import AbortedTransaction
from lastword.testing.unsynced import UNSYNCED, UnsyncedFiles
from tests.cleaner.test_outgrown import work_of
from tests.partition.logs import NOW, fill, make, opened, records
from tests.transactions import end_transaction

DAY_MS = 86_400_000


def of(
    producer_id: int,
    sequence: int,
    count: int = 1,
    *,
    epoch: int = 0,
    transactional: bool = False,
    timestamp: int = NOW,
) -> bytes:
    """Return a ready batch of a producer."""
    builder = BatchBuilder(
        producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, transactional=transactional
    )
    for number in range(count):
        builder.append(timestamp, b"k%d" % number, b"p%d s%d" % (producer_id, sequence + number))
    return builder.build()


def open_again(log: PartitionLog, *, clean: bool = False, **kwargs: Any) -> PartitionLog:
    if clean:
        assert log.close()
    else:
        log.abandon()
    return opened(log.directory, files=UNSYNCED, clean=clean, **kwargs)[0]


def aborted(log: PartitionLog) -> dict[int, list[AbortedTransaction]]:
    """Return the entries of all transaction indexes, by base offset."""
    by_base_offset = {}
    for path in sorted(Path(log.directory).glob("*.txnindex")):
        entries = indexes.decode_aborted(path.read_bytes(), path.name)
        if entries:
            by_base_offset[int(path.stem)] = entries
    return by_base_offset


def encode_producers(producers: list[Producer]) -> list[bytes]:
    """Return what a snapshot would hold of each producer, by producer id."""
    return [encode([producer]) for producer in sorted(producers, key=lambda p: p.producer_id)]


# ---------------------------------------------------------------- sequences


def test_6W_308_a_log_is_a_leader(tmp_path: Path) -> None:
    """6W.308: Repeated and out-of-order sequences are refused; a new epoch starts at 0; an older epoch is
    fenced.
    """
    log, _ = opened(make(tmp_path), files=UNSYNCED)
    assert log.append_batch(of(1, 0, 3)) == (0, 2, NOW)
    assert log.append_batch(of(1, 3)) == (3, 3, NOW)
    end = log.log_end
    for wrong in (of(1, 5), of(1, 1, 7), of(1, 2, epoch=1)):
        with pytest.raises(SequenceGapError):
            log.append_batch(wrong)
    log.append_batch(of(1, 0, epoch=1))
    with pytest.raises(ProducerFencedError):
        log.append_batch(of(1, 4))
    assert log.log_end == end + 1


def test_a_duplicate_of_the_last_five_is_answered_and_not_appended(tmp_path: Path) -> None:
    log, _ = opened(make(tmp_path), files=UNSYNCED)
    places = [log.append_batch(of(9, number * 2, 2, timestamp=NOW + number)) for number in range(7)]
    assert [log.append_batch(of(9, number * 2, 2)) for number in range(2, 7)] == places[2:]
    with pytest.raises(SequenceGapError):  # older than the producer's last five batches
        log.append_batch(of(9, 2, 2))
    mixed = log.append_batches([of(9, 12, 2), of(9, 14), of(8, 0), of(9, 14), of(9, 15)])
    assert [(a.base_offset, a.last_offset) for a in mixed] == [
        (12, 13),
        (14, 14),
        (15, 15),
        (14, 14),
        (16, 16),
    ]
    assert log.log_end == 17
    log = open_again(log)
    assert log.append_batch(of(9, 12, 2))[:2] == (12, 13)  # recovery also restores the last five
    log = open_again(log, clean=True)
    with pytest.raises(SequenceGapError):
        log.append_batch(of(9, 17))
    assert log.append_batch(of(9, 12, 2))[:2] == (12, 13)  # a snapshot has only the newest
    assert log.append_batch(of(9, 16))[:2] == (17, 17)


@pytest.mark.parametrize("rolled", [(), (3, 4), range(1, 9), (8,)])
def test_the_last_five_are_found_in_any_segments(tmp_path: Path, rolled: Sequence[int]) -> None:
    log, _ = opened(make(tmp_path), files=UNSYNCED)
    places = []
    for number in range(9):
        if number in rolled:
            log.roll()
        places.append(log.append_batches([of(7, number * 2, 2), of(8, number), of(-1, -1)])[0])
    for number in (4, 7, 6):
        log = open_again(log, clean=True)
        assert log.append_batch(of(7, number * 2, 2))[:2] == places[number][:2]
        assert [log.append_batch(of(7, n * 2, 2))[:2] for n in range(4, 9)] == [p[:2] for p in places[4:]]
        for older in (0, 3):
            with pytest.raises(SequenceGapError):
                log.append_batch(of(7, older * 2, 2))
    assert log.log_end == places[8].base_offset + 4


def test_no_batch_of_an_older_epoch_is_found_and_one_before_a_lost_snapshot_is(tmp_path: Path) -> None:
    log, _ = opened(make(tmp_path), files=UNSYNCED)
    log.append_batches([of(7, 0), of(7, 1), of(7, 0, epoch=1)])
    log.roll()
    log.append_batches([of(7, 1, epoch=1), of(7, 2, epoch=1)])
    log.roll()
    log.append_batch(of(7, 3, epoch=1))
    log = open_again(log, clean=True)
    assert log.append_batch(of(7, 0, epoch=1))[:2] == (2, 2)
    state = log.producer(7)
    assert state is not None and [batch.last_offset for batch in state.batches] == [2, 3, 4, 5]
    log.close()
    Path(log.directory, names.segment_file(3, names.SNAPSHOT)).unlink()
    log, _ = opened(log.directory, files=UNSYNCED, clean=True)
    assert log.append_batch(of(7, 0, epoch=1))[:2] == (2, 2)
    with pytest.raises(ProducerFencedError):
        log.append_batch(of(7, 1))


def test_an_earlier_batch_is_looked_for_in_a_bounded_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "LOOK_BACK_BYTES", 400)
    log, _ = opened(make(tmp_path), config=TopicConfig(index_interval_bytes=100), files=UNSYNCED)
    log.append_batch(of(7, 0))
    for number in range(20):
        log.append_batch(of(8, number))
    log.append_batches([of(7, 1), of(7, 2)])
    log = open_again(log, clean=True)
    assert log.append_batch(of(7, 1))[:2] == (21, 21)
    with pytest.raises(SequenceGapError):
        log.append_batch(of(7, 0))


def test_a_refused_batch_stops_the_whole_call(tmp_path: Path) -> None:
    log, _ = opened(make(tmp_path), files=UNSYNCED)
    with pytest.raises(SequenceGapError):
        log.append_batches([of(1, 0), of(2, 0), of(1, 2)])
    assert (log.log_end, log.producers) == (0, [])


def test_6W_310_sequences_wrap(tmp_path: Path) -> None:
    """6W.310: After sequence 2^31 - 1 comes 0, and 1 is refused; a batch across the wrap keeps its first
    and last sequence.
    """
    log, _ = opened(make(tmp_path), files=UNSYNCED)
    log.append_batch(of(1, 2**31 - 3, 2))
    with pytest.raises(SequenceGapError):
        log.append_batch(of(1, 0, 2))
    log.append_batch(of(1, 2**31 - 1, 3))  # across the wrap
    log.append_batch(of(1, 2))
    assert log.append_batch(of(1, 2**31 - 1, 3))[:2] == (2, 4)
    log = open_again(log)
    assert log.producer(1) is not None and log.producer(1).last_sequence == 2  # type: ignore[union-attr]


# ---------------------------------------------------------------- transactions


def test_a_new_transaction_repeats_no_batch_of_one_that_has_ended(tmp_path: Path) -> None:
    """librdkafka aborts, and gives the sequences of a batch whose answer was lost to the next batch."""
    log, _ = opened(make(tmp_path), files=UNSYNCED)
    for first, commit in ((0, True), (2, False)):
        written = log.append_batch(of(1, first, 2, transactional=True))
        assert log.append_batch(of(1, first, 2, transactional=True))[:2] == written[:2]
        end_transaction(log, 1, 0, commit)
        for sequence in range(first + 2):
            for count in (1, 2, 3):
                with pytest.raises(TransactionStateError, match=f"sequence {sequence} was in a transaction"):
                    log.append_batch(of(1, sequence, count, transactional=True))
        with pytest.raises(SequenceGapError):
            log.append_batch(of(1, first + 3, transactional=True))
        assert log.log_end == written.last_offset + 2
        log = open_again(log)
    log.append_batch(of(1, 4, transactional=True))
    end_transaction(log, 1, 0, commit=True)
    log.append_batch(of(1, 0, epoch=1, transactional=True))
    assert log.append_batch(of(2, 0))[:2] == log.append_batch(of(2, 0))[:2]  # without a transaction as before


@pytest.mark.parametrize("how", ["open", "killed", "closed"])
def test_6W_326_the_reference_interleaving(tmp_path: Path, how: str) -> None:
    """6W.326: The reference interleaving of transactions writes the aborted entries (producer 1, 0 to 29,
    stable 8) and (producer 2, 8 to 74, stable 36).

    Four producers over several segments; as appended, recovered, and after a clean stop.
    """
    log, _ = opened(make(tmp_path), files=UNSYNCED, config=TopicConfig(segment_bytes=1024 * 5))
    sequences = dict.fromkeys((1, 2, 3, 4), 0)

    def data(producer_id: int, count: int) -> None:
        log.append_batch(of(producer_id, sequences[producer_id], count, transactional=True))
        sequences[producer_id] += count

    data(1, 5)  # 0-4
    fill(log, 3)  # 5-7
    data(2, 3)  # 8-10
    data(3, 3)  # 11-13
    fill(log, 8)  # 14-21
    data(1, 4)  # 22-25
    data(2, 3)  # 26-28
    end_transaction(log, 1, 0, commit=False)  # 29
    data(4, 5)  # 30-34
    data(3, 2)  # 35-36
    data(4, 15)  # 37-51
    end_transaction(log, 4, 0, commit=True)  # 52
    data(2, 16)  # 53-68
    data(3, 5)  # 69-73
    end_transaction(log, 2, 0, commit=False)  # 74
    if how != "open":
        log = open_again(log, clean=how == "closed")
    transactions = [tuple(entry) for entries in aborted(log).values() for entry in entries]
    assert transactions == [(1, 0, 29, 8), (2, 8, 74, 11)]
    assert log.stable_offset == 11
    assert (
        log.view().stable_offset
        == PartitionView.load(DirectorySegments(UNSYNCED, log.directory)).stable_offset
        == 11
    )
    end_transaction(log, 3, 0, commit=True)
    assert (
        log.stable_offset
        == 76
        == PartitionView.load(DirectorySegments(UNSYNCED, log.directory)).stable_offset
    )


def test_6U_294_an_index_that_cannot_be_written(tmp_path: Path) -> None:
    """6U.294: If the transaction index cannot be written, the log end has advanced and the last stable offset
    has not; recovery repairs the index.
    """

    class NoTxnIndex(UnsyncedFiles):
        def open_append(self, path: Any, *, create: bool = False, exclusive: bool = False) -> Handle:
            if str(path).endswith(names.TXN_INDEX):
                raise StorageError("no room", file=str(path))
            return super().open_append(path, create=create, exclusive=exclusive)

    log, _ = opened(make(tmp_path), files=NoTxnIndex())
    log.append_batch(of(5, 0, 4, transactional=True))
    with pytest.raises(StorageError):
        end_transaction(log, 5, 0, commit=False)
    assert (log.log_end, log.stable_offset) == (5, 0)
    with pytest.raises(StorageError):
        fill(log, 1)
    assert not log.close()
    log, _ = opened(log.directory, files=UNSYNCED)
    assert (log.log_end, log.stable_offset) == (5, 5)
    assert aborted(log) == {0: [AbortedTransaction(5, 0, 4, 5)]}


# ---------------------------------------------------------------- snapshots


def test_6U_295_the_recovery_point_waits_for_the_snapshot(tmp_path: Path) -> None:
    """6U.295: The recovery point does not advance if the snapshot cannot be synced."""

    class Refusing(UnsyncedFiles):
        refuse = False

        def rename(self, source: Any, target: Any) -> None:
            if self.refuse and str(target).endswith(names.SNAPSHOT):
                raise StorageError("no room", file=str(target))
            super().rename(source, target)

    files = Refusing()
    log, _ = opened(make(tmp_path), files=files)
    fill(log, 3)
    before = log.recovery_point
    files.refuse = True
    with pytest.raises(StorageError):
        log.roll()
    assert (log.recovery_point, len(log.segments)) == (before, 1)
    files.refuse = False
    log.roll()
    assert (log.recovery_point, len(log.segments)) == (3, 2)
    assert [r[0] for r in records(log)] == [0, 1, 2]


def test_an_open_transaction_is_never_forgotten(tmp_path: Path) -> None:
    """An open transaction is kept even if every snapshot is lost.

    After a clean stop, a broker without a snapshot takes the state for empty and gives undecided records to
    readers.
    """
    log, _ = opened(make(tmp_path), files=UNSYNCED)
    log.append_batch(of(5, 0, transactional=True))
    fill(log, 20)
    for clean in (True, False):
        log = open_again(log, clean=clean)
        assert log.stable_offset == 0
        for path in Path(log.directory).glob("*.snapshot"):
            path.unlink()
    assert PartitionView.load(DirectorySegments(UNSYNCED, log.directory)).stable_offset == 0
    log = open_again(log, clean=True)
    assert log.stable_offset == 0
    Snapshots(UNSYNCED, log.directory).write(log.log_end, ())  # from a writer without producer state
    log = open_again(log)
    assert log.stable_offset == 0


def test_6T_256_258_snapshots_that_tell_of_another_story(tmp_path: Path) -> None:
    """6T.256: In that case stale snapshots are removed, and a delayed deletion does not hit later ones.
    6T.258: A stray snapshot between two bases is removed; the newest, of a clean stop, is kept.
    """
    log, _ = opened(make(tmp_path), files=UNSYNCED)
    for number in range(20):
        log.append_batch(of(1, number))
    bases = [s.base_offset for s in log.segments]
    store = Snapshots(UNSYNCED, log.directory)
    stale = [Producer(99, 3)]
    for offset in (bases[1] + 1, 15, 90):
        store.write(offset, stale)
    log.abandon()
    Path(log.active.file).write_bytes(Path(log.active.file).read_bytes()[:-3])
    log, recovery = opened(log.directory, files=UNSYNCED)
    assert log.log_end == 19 and recovery.cut_bytes
    assert store.offsets() == bases  # the largest snapshot was above the log end
    assert log.close()
    assert store.offsets() == [*bases, 19]
    log, _ = opened(log.directory, files=UNSYNCED, clean=True)
    assert store.offsets() == [*bases, 19]  # the snapshot of a clean stop stays


def test_6W_316_a_damaged_snapshot_is_removed_and_the_one_before_it_used(tmp_path: Path) -> None:
    """6W.316: Empty, truncated and corrupt snapshot files are skipped and deleted; the one before is used."""
    log, _ = opened(make(tmp_path), files=UNSYNCED)
    for number in range(20):
        log.append_batch(of(1, number))
    before = log.producers
    assert log.close()
    newest = Path(log.directory) / names.segment_file(20, names.SNAPSHOT)
    for damage in (b"", newest.read_bytes()[:-1], b"\1" + newest.read_bytes()[1:]):
        newest.write_bytes(damage)
        log, recovery = opened(log.directory, files=UNSYNCED, clean=True)
        assert [r.code for r in recovery.repaired] == ["snapshot"] and not newest.exists()
        assert encode_producers(log.producers) == encode_producers(before)
        assert log.close()


def test_6T_261_the_last_two_bases_get_a_snapshot(tmp_path: Path) -> None:
    """6T.261: Without snapshots, loading writes them for the last two bases and the log end."""
    log, _ = opened(make(tmp_path), files=UNSYNCED)
    for number in range(20):
        log.append_batch(of(1, number))
    for path in Path(log.directory).glob("*.snapshot"):
        path.unlink()
    log = open_again(log)
    store = Snapshots(UNSYNCED, log.directory)
    assert store.offsets() == [s.base_offset for s in log.segments][-2:]
    for offset in store.offsets():
        (producer,) = store.read(offset)
        assert (producer.batches[-1].last_offset, producer.last_sequence) == (offset - 1, offset - 1)
    assert log.close()
    assert store.offsets()[-1] == 20


@pytest.mark.parametrize("snapshots", [True, False])
def test_6T_253_254_recovery_of_the_last_segment_and_of_all(tmp_path: Path, snapshots: bool) -> None:
    """6T.253: All transaction indexes are rebuilt after they were deleted together with the offset indexes.
    6T.254: Recovery of the last segment alone gives the right aborted transactions, with and without
    snapshots.
    """
    log, _ = opened(make(tmp_path), files=UNSYNCED)
    for number in range(8):
        for producer_id in (1, 2):
            log.append_batch(of(producer_id, number * 2, 2, transactional=True))
        end_transaction(log, 1, 0, commit=False)
        if number % 3:
            end_transaction(log, 2, 0, commit=False)
    expected, stable, producers = aborted(log), log.stable_offset, encode_producers(log.producers)
    last = log.active.base_offset
    assert len(expected) > 2
    for recovery_point, wiped in ((last, ["*.txnindex"]), (0, ["*.txnindex", "*.index"])):
        log.abandon()
        for pattern in wiped:
            for path in Path(log.directory).glob(pattern):
                if recovery_point == 0 or int(path.stem) == last:
                    path.unlink()
        if not snapshots:
            for path in Path(log.directory).glob("*.snapshot"):
                path.unlink()
        log, _ = opened(log.directory, files=UNSYNCED, recovery_point=recovery_point)
        assert (aborted(log), log.stable_offset, encode_producers(log.producers)) == (
            expected,
            stable,
            producers,
        )


def test_6R_210_a_transaction_index_that_cannot_be_right_is_built_again_after_a_clean_stop(
    tmp_path: Path,
) -> None:
    """6R.210: Entries below the base offset make the index corrupt."""
    log, _ = opened(make(tmp_path), files=UNSYNCED)
    fill(log, 9)
    log.append_batch(of(1, 0, transactional=True))
    end_transaction(log, 1, 0, commit=False)
    expected = aborted(log)
    fill(log, 9)
    assert log.close()
    (base,) = expected
    path = Path(log.directory) / names.segment_file(base, names.TXN_INDEX)
    for wrong in ([AbortedTransaction(1, 0, 1, 2)], [AbortedTransaction(7, 900, 800, 2)]):
        path.write_bytes(indexes.encode_aborted(wrong))
        log, recovery = opened(log.directory, files=UNSYNCED, clean=True)
        assert aborted(log) == expected and [r.code for r in recovery.repaired] == ["index"]
        assert log.close()


def test_6T_259_coordinator_epochs_may_go_back_in_the_data(tmp_path: Path) -> None:
    """6T.259: Coordinator epochs that decrease in the data do not fail recovery."""
    log, _ = opened(make(tmp_path), files=UNSYNCED)
    end_transaction(log, 1, 0, commit=True, coordinator_epoch=10)
    log.tail.producers = ProducerState(1)  # as a broker that lost its state would continue
    end_transaction(log, 1, 0, commit=True, coordinator_epoch=4)
    log = open_again(log)
    assert log.log_end == 2
    assert log.producer(1).coordinator_epoch == 4  # type: ignore[union-attr]


def test_6T_260_producers_survive_a_raised_log_start(tmp_path: Path) -> None:
    """6T.260: The producer state survives a raised log start inside a segment, and a reload."""
    log, _ = opened(make(tmp_path), files=UNSYNCED)
    log.append_batch(of(7, 0))
    for number in range(12):
        log.append_batch(of(1, number))
    log.append_batch(of(2, 0, 4))
    log.raise_log_start(13)
    log.remove_prefix()
    for clean in (False, True):
        log = open_again(log, clean=clean, log_start=13)
        assert [p.producer_id for p in log.producers] == [1, 2, 7]
        assert log.append_batch(of(2, 0, 4))[:2] == (13, 16)


def test_6W_327_the_stable_offset_does_not_lie_below_the_log_start(tmp_path: Path) -> None:
    """6W.327: The last stable offset is never below the log start."""
    log, _ = opened(make(tmp_path), files=UNSYNCED)
    log.append_batch(of(5, 0, 5, transactional=True))
    assert log.stable_offset == 0
    log.raise_log_start(3)
    assert log.stable_offset == 3
    log = open_again(log, log_start=3)
    assert log.stable_offset == 3


def test_6W_319_idle_producers_are_forgotten_at_a_roll_and_at_opening(tmp_path: Path) -> None:
    """6W.319: Idle producers expire; producers with an open transaction do not."""
    clock = ManualClock(NOW)
    log, _ = opened(make(tmp_path), files=UNSYNCED, clock=clock)
    named = 2**62 + 5
    log.append_batches([of(1, 0), of(2, 0, transactional=True), of(named, 0)])
    clock.advance(DAY_MS - 1)
    log.roll()
    assert [p.producer_id for p in log.producers] == [1, 2, named]
    fill(log, 1)
    clock.advance(600_000)
    log.roll()
    assert [p.producer_id for p in log.producers] == [2, named]  # in a transaction; with a name
    log = open_again(log, clean=True, clock=clock)
    assert [p.producer_id for p in log.producers] == [2, named]


def test_the_background_forgets_idle_producers_of_a_log_that_does_not_roll(tmp_path: Path) -> None:
    """Each producer that starts has an id of its own: their state would grow as long as the process runs."""
    clock = ManualClock(NOW)
    with lastword.open(tmp_path / "d", "a", files=UNSYNCED, clock=clock, log_cleaner_enable=False) as logs:
        logs.create_topic("t")
        log, work = logs.dirs.log("t", 0), work_of(logs, clock)
        log.append_batches([of(1, 0), of(2, 0, transactional=True)])
        clock.advance(DAY_MS - 1)
        log.append_batch(of(3, 0, timestamp=clock.now_ms()))
        list(work.chores(()))
        assert [p.producer_id for p in log.producers] == [1, 2, 3]
        clock.advance(600_000)
        list(work.chores(()))
        assert [p.producer_id for p in log.producers] == [2, 3]
        assert len(log.segments) == 1


def test_an_empty_log_is_not_rewritten_at_each_stop(tmp_path: Path) -> None:
    log, _ = opened(make(tmp_path), files=UNSYNCED)
    path = Path(log.directory) / names.segment_file(0, names.SNAPSHOT)
    assert path.read_bytes() == EMPTY_SNAPSHOT
    inode = path.stat().st_ino
    open_again(log, clean=True).close()
    assert path.stat().st_ino == inode
