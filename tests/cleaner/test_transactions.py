"""Cleaning transactions. A number in a name, as `6F_44`, is that of a property (`tests/properties`)."""

from __future__ import annotations

from pathlib import Path

import pytest

import lastword
from lastword.cleaner.policy import quarantine
from lastword.config.tables import STRATEGIES
from lastword.errors import CertificateError, DataError
from lastword.logdir.checkpoints import LogStart, TopicPartition
from lastword.records.batch import BatchBuilder
from lastword.segment.indexes import AbortedTransaction
from tests.build import HOUR, LogBuilder
from tests.cleaner.transactional import (
    Marker,
    Producer,
    committed,
    data,
    empty_batches,
    entries,
    headers,
    markers,
    offsets,
)
from tests.support.damage import flip

DAY = 24 * HOUR


@pytest.fixture
def users(tmp_path: Path) -> LogBuilder:
    return LogBuilder(tmp_path / "data", delete_retention_ms=HOUR).topic("users")


def test_6F_44_only_committed_data_survives_and_markers_stay(users: LogBuilder) -> None:
    """6F.44: Only committed data survives a cleaning. Aborted data goes immediately; markers stay, and the
    transaction index is unchanged.
    """
    producer_1, producer_2 = Producer(users, 1), Producer(users, 2)
    producer_1.put(("a", 1), ("b", 1))  # 0 1
    producer_2.put(("a", "no"), ("c", "no"))  # 2 3
    producer_1.put(("a", 2)).commit()  # 4, marker 5
    producer_2.abort()  # marker 6
    producer_2.put(("d", 1)).commit()  # 7, marker 8
    producer_1.put(("e", 1)).commit()  # 9, marker 10
    before = entries(users.roll())
    round_ = users.clean()
    assert offsets(users) == [1, 4, 7, 9]
    assert (round_.removed.aborted, round_.removed.superseded, round_.removed.marker) == (2, 1, 0)
    assert (round_.records_read, round_.records_kept) == (7, 4)
    assert [m.type for m in markers(users)] == ["commit", "abort", "commit", "commit"]
    assert entries(users) == before == [AbortedTransaction(2, 2, 6, 7)]
    assert committed(users) == {b"a": b"2", b"b": b"1", b"d": b"1", b"e": b"1"}


def test_an_index_that_lost_its_entries_costs_no_record(users: LogBuilder) -> None:
    """The transaction index is derived data: without it the markers of the log decide."""
    users.put("a", "kept")
    Producer(users).put(("a", "aborted")).abort()
    users.put("z", 1).close()
    for path in Path(users.directory).glob("*.txnindex"):
        path.unlink()
    users.clean()
    assert offsets(users) == [0, 3]


def test_6F_45_the_abort_marker_of_the_first_segments_data_lies_in_a_later_one(users: LogBuilder) -> None:
    """6F.45: Cleaning the first segment alone removes the data of a transaction whose abort marker is in a
    later segment.
    """
    aborted, kept = Producer(users, 1), Producer(users, 2)
    aborted.put(("a", "no"))
    kept.put(("b", 1)).commit()
    users.put("x", 1).roll()
    aborted.abort()
    users.put("y", 1)
    round_ = users.clean(due=True)
    assert (round_.end, round_.removed.aborted) == (4, 1)
    assert offsets(users) == [1, 3, 5]


def test_6F_46_a_later_round_takes_the_rest(users: LogBuilder) -> None:
    """6F.46: A later cleaning of the other segments leaves committed keys only."""
    test_6F_45_the_abort_marker_of_the_first_segments_data_lies_in_a_later_one(users)
    users.put("y", 2).clean()
    assert offsets(users) == [1, 3, 6]


def test_6F_48_no_transaction_is_left_open_by_cleaning(users: LogBuilder) -> None:
    """6F.48: Cleaning leaves no transaction open in the producer state."""
    for value in range(4):
        Producer(users, value).put(("k", value)).put(("k", value)).commit()
    Producer(users, 9).put(("k", "no")).abort()
    users.roll()
    for _ in range(4):
        users.clean()
        users.wait(2 * HOUR)
        users.reopen()
        assert users.log.stable_offset == users.log.log_end


def test_6F_49_50_a_commit_marker_outlives_its_data_by_the_retention(users: LogBuilder) -> None:
    """6F.49: A commit marker stays while its transaction has records.
    6F.50: A commit marker without records gets a horizon from the cleaning that finds this, and goes when the
    horizon has passed.
    """
    producer = Producer(users)
    producer.put(("a", 1)).put(("b", 1)).commit()  # 0 1 marker 2
    producer.put(("b", 2)).commit()  # 3 marker 4
    users.roll().clean()
    assert offsets(users) == [0, 3]
    assert markers(users)[0] == Marker(2, "commit", False), "its transaction still has a record"
    producer.put(("a", 2)).commit()  # 5 marker 6
    users.roll().clean()
    assert offsets(users) == [3, 5]
    assert markers(users)[0] == Marker(2, "commit", False), "the round met the data that it removed"
    users.clean()
    assert markers(users)[0] == Marker(2, "commit", True)
    users.clean()
    assert markers(users)[0] == Marker(2, "commit", True), "the horizon has not passed"
    users.wait(HOUR)
    round_ = users.clean()
    assert [m.offset for m in markers(users)] == [4, 6]
    assert round_.removed.marker == 1


def test_6F_51_an_abort_marker_and_its_index_entry(users: LogBuilder) -> None:
    """6F.51: An abort marker survives the cleaning that removes its data, gets a horizon, and goes when
    the horizon has passed.
    """
    producer = Producer(users)
    producer.put(("a", "no")).abort()  # 0 marker 1
    producer.put(("b", 1)).commit()  # 2 marker 3
    users.roll().clean()
    assert (offsets(users), markers(users)[0]) == ([2], Marker(1, "abort", False))
    assert entries(users) == [AbortedTransaction(7, 0, 1, 2)], "its data was met"
    users.clean()
    assert markers(users)[0] == Marker(1, "abort", True)
    assert entries(users) == [], "no batch of it is left"
    users.wait(HOUR).clean()
    assert [m.offset for m in markers(users)] == [3]


def test_6F_52_54_an_empty_batch_holds_its_marker(users: LogBuilder) -> None:
    """6F.52: A commit marker stays while an empty batch of its transaction is in the log.
    6F.54: The cleaning that drops the last empty batch does not set the marker's horizon; the next one does,
    and the one after the horizon drops the marker.
    """
    producer = Producer(users)
    producer.put(("a", 1)).commit()  # 0 marker 1
    users.put("a", 2).roll().clean()  # 2
    assert (empty_batches(users), offsets(users)) == ([0], [2])
    users.wait(DAY).clean()
    assert markers(users) == [Marker(1, "commit", False)], "an empty batch of its transaction is there"
    producer.put(("b", 1)).commit()  # 3 marker 4: now the empty batch is not its producer's last
    users.put("z", 1).roll().clean()
    assert empty_batches(users) == []
    assert markers(users)[0] == Marker(1, "commit", False), "not in the round that drops the empty batch"
    users.clean()
    assert markers(users)[0] == Marker(1, "commit", True)
    users.wait(HOUR).clean()
    assert [m.offset for m in markers(users)] == [4]


def test_6F_53_the_same_for_an_abort_marker_with_its_index_entry(users: LogBuilder) -> None:
    """6F.53: An abort marker stays while an empty batch of its transaction is in the log, and so does its
    index entry.
    """
    producer = Producer(users)
    producer.put(("a", 1)).abort()
    users.put("a", 2).roll().clean()
    users.wait(DAY).clean()
    assert (empty_batches(users), markers(users)) == ([0], [Marker(1, "abort", False)])
    assert entries(users) == [AbortedTransaction(7, 0, 1, 2)]
    producer.put(("b", 1)).commit()
    users.put("z", 1).roll().clean()
    assert len(entries(users)) == 1
    users.clean()
    assert (entries(users), markers(users)[0]) == ([], Marker(1, "abort", True))


def test_6F_55_a_committed_transaction_over_two_segments_keeps_both(users: LogBuilder) -> None:
    """6F.55: A committed transaction with data in one segment and its marker in the next keeps both."""
    producer = Producer(users).put(("a", 1))
    users.roll()
    producer.commit()
    users.roll().clean()
    assert (offsets(users), markers(users)) == ([0], [Marker(1, "commit", False)])


def test_6F_56_an_aborted_one_keeps_its_batch_empty_and_its_marker(users: LogBuilder) -> None:
    """6F.56: An aborted transaction with data in one segment and its marker in the next keeps the marker
    and its batch, which is empty.
    """
    producer = Producer(users).put(("a", 1))
    users.roll()
    producer.abort()
    users.roll()
    for _ in range(3):
        users.clean()
        assert (offsets(users), empty_batches(users)) == ([], [0])
        assert markers(users) == [Marker(1, "abort", False)]
        users.wait(10 * DAY)


def test_6F_57_the_marker_of_a_producer_without_data_is_kept_whole(users: LogBuilder) -> None:
    """6F.57: The marker of a producer without data may be emptied after its horizon, and is cleaned again
    without an error.

    Here: The last marker of a producer is kept whole: an emptied marker would lose the producer's epoch.

    Kafka empties the marker; its replay then has no entry for the producer.
    """
    Producer(users, 3).abort()
    users.put("a", 1).put("a", 2).roll()
    for _ in range(3):
        users.clean()
        users.wait(7 * HOUR)  # within the day after which a producer expires
        assert [m.type for m in markers(users)] == ["abort"]
    users.reopen()
    assert {p.producer_id for p in users.log.producers} == {3}


def test_6F_58_with_sequences_from_0_in_each_transaction(users: LogBuilder) -> None:
    """6F.58: If the sequences of a producer start at 0 in each transaction, older empty batches and
    markers still go; only the last batch is kept empty.
    """
    for epoch in range(4):
        Producer(users, 7, epoch).put(("a", epoch), ("b", epoch)).commit()
    users.put("a", "x").put("b", "x").roll()
    for _ in range(3):
        users.clean()
        users.wait(HOUR)
    assert empty_batches(users) == [10], "the last data batch of the producer"
    assert [m.offset for m in markers(users)] == [11]


def test_6F_60_user_keys_with_the_bytes_of_marker_keys(users: LogBuilder) -> None:
    """6F.60: User keys with the bytes of a marker's key neither remove markers nor are removed by them."""
    for key in (b"\0\0\0\0", b"\0\0\0\1"):
        users.put(key, 1).put(key, 2)
    producer = Producer(users).put((b"\0\0\0\1", 3)).commit()
    producer.put(("z", 1)).abort()
    users.roll().clean()
    assert offsets(users) == [1, 4]
    assert [m.type for m in markers(users)] == ["commit", "abort"]


def test_6F_61_undecided_data_is_not_cleaned(users: LogBuilder) -> None:
    """6F.61: Records of an open transaction are not cleanable, even after the compaction lag. After the
    abort they are cleanable up to the marker.
    """
    users.put("a", 1).put("a", 2).roll()
    producer = Producer(users).put(("a", 3))
    users.put("a", 4).roll().put("a", 5)
    round_ = users.clean()
    assert (round_.end, offsets(users)) == (2, [1, 2, 3, 4])
    held = {reason.code: reason.text for reason in users.plan().reasons}
    assert "at 2 is undecided" in held["undecided-transaction"]
    producer.abort()
    users.roll()
    assert users.clean().end == 6
    assert offsets(users) == [4]


def test_6G_62_64_the_last_batch_of_each_producer_stays(users: LogBuilder) -> None:
    """6G.62: Cleaning changes neither the last sequence nor the last offset of a producer.
    6G.64: The last batch of each producer is retained, empty if need be; earlier batches without live records
    go.
    """
    producer_1, producer_2 = Producer(users, 1), Producer(users, 2)
    producer_1.put(("a", 1)).put(("a", 2)).commit()  # 0 1 marker 2
    producer_2.put(("a", 3), ("b", 3), transactional=False)  # 3 4
    users.put("a", 4).put("b", 4).roll()
    known = state_of(users)
    users.clean()
    assert empty_batches(users) == [1, 4]
    users.reopen()
    assert state_of(users) == known
    again = users.log.log_end
    producer_2.sequence = 0
    producer_2.put(("a", 3), ("b", 3), transactional=False)
    assert users.log.log_end == again, "63: its last batch, sent again, is known"


def test_6G_62_of_a_silent_producer_nothing_stays(users: LogBuilder) -> None:
    """6G.62: Cleaning changes neither the last sequence nor the last offset of a producer.

    An expired producer needs no batch in the log: neither an empty batch nor a marker.
    """
    producer_1, producer_2 = Producer(users, 1), Producer(users, 2)
    producer_1.put(("a", 1)).commit()
    producer_2.put(("b", 1)).abort()
    left = []
    for n in range(5):
        users.put("a", n).put("b", n).roll()
        expected = users.plan()
        done = users.clean()
        assert (expected.write_bytes, expected.free_bytes) == (done.written_bytes, done.freed_bytes)
        left.append((empty_batches(users), [m.offset for m in markers(users)]))
        users.wait(25 * HOUR)
        producer_2.put(("c", n), transactional=False)
    assert left[0] == ([0, 2], [1, 3])
    assert left[-1] == ([], []), "of the other one the data alone tells"
    assert set(state_of(users)) == {2}


def state_of(log: LogBuilder) -> dict[int, tuple[int, int, int]]:
    return {
        p.producer_id: (p.epoch, p.last_sequence, p.batches[-1].last_offset if p.batches else -1)
        for p in log.log.producers
    }


def test_6G_65_an_old_empty_batch_goes_after_a_newer_one(users: LogBuilder) -> None:
    """6G.65: The last batch is retained for aborted data as well; it goes after the producer's next
    append.
    """
    producer = Producer(users)
    producer.put(("a", 1)).abort()
    users.put("z", 0).roll().clean()
    assert empty_batches(users) == [0]
    producer.put(("b", 1)).commit()
    users.roll().clean()
    assert empty_batches(users) == []


def test_rounds_reach_a_fixed_point_with_a_frozen_clock(users: LogBuilder) -> None:
    for i in range(6):
        producer = Producer(users, i % 2, i)
        producer.put((f"k{i % 3}", i)).put(("hot", i))
        producer.commit() if i % 3 else producer.abort()
    users.put("z", 1).roll()
    trees = []
    for _ in range(6):
        users.clean()
        trees.append({n: d for n, d in users.tree().items() if n.endswith((".log", ".txnindex"))})
    assert trees[3] == trees[4] == trees[5]
    users.wait(2 * HOUR).clean()
    gone = users.tree()
    users.wait(2 * HOUR).clean()
    assert {n for n in users.tree() if n.endswith(".log")} == {n for n in gone if n.endswith(".log")}


def test_a_lost_marker_is_seen_before_the_swap(users: LogBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted fault: the output omits a marker that must stay."""
    from lastword.cleaner.engine import output, rewrite

    real = output.loops.repack_rows
    producer = Producer(users)
    producer.put(("a", 1)).commit()
    producer.put(("a", 2)).commit()
    users.roll()

    def plant(source, rows, row, retain, *rest):  # type: ignore[no-untyped-def]
        retain = retain.copy()
        retain[1] = rewrite.DROP
        return real(source, rows, row, retain, *rest)

    monkeypatch.setattr(output.loops, "repack_rows", plant)
    with pytest.raises(CertificateError, match="transaction markers"):
        users.clean()
    assert len(markers(users)) == 2 and len(data(users)) == 2


@pytest.mark.parametrize("damaged", ["data", "marker", "marker above the limit"])
def test_a_flipped_bit_decides_nothing(users: LogBuilder, damaged: str) -> None:
    """A damaged marker stops the round; so does a damaged batch. The sources stay."""
    producer = Producer(users)
    producer.put(("a", 1), ("a", 2))
    if damaged == "marker above the limit":
        users.put("z", 1).roll()
    producer.commit()
    users.put("z", 1).put("z", 2).roll()
    segment = users.log.segments[0 if damaged != "marker above the limit" else 1]
    header = list(segment.headers())[1 if damaged == "marker" else 0]
    path = Path(segment.file)
    flip(path, header.position + header.size - 1)
    before = path.read_bytes()
    with pytest.raises(DataError, match="users-0 is quarantined"):
        users.clean(due=damaged == "marker above the limit")
    assert path.read_bytes() == before
    assert quarantine.load(users.files, users.directory) is not None


@pytest.mark.parametrize("codec", [0, 1, 3])
def test_the_plan_tells_what_the_round_does(users: LogBuilder, codec: int) -> None:
    users.codec_of(codec)
    for i in range(8):
        producer = Producer(users, i % 3, i)
        producer.put((f"k{i % 3}", i), ("hot", i)).put(("gone", None))
        producer.commit() if i % 2 else producer.abort()
    users.roll()
    for _ in range(3):
        plan = users.plan()
        round_ = users.clean()
        if plan.action == "keep":
            assert round_.written_bytes == 0
        else:
            assert (plan.read_bytes, plan.write_bytes, plan.free_bytes) == (
                round_.read_bytes,
                round_.written_bytes,
                round_.freed_bytes,
            )
        users.wait(HOUR)
    assert [h.last_offset for h, _ in headers(users)] == sorted({h.last_offset for h, _ in headers(users)})


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_transaction_below_the_log_start_that_is_undecided(tmp_path: Path, strategy: str) -> None:
    """The log start was raised past a transaction that hangs, and retention has not removed its segment."""
    with lastword.open(tmp_path / "data", "a", log_cleaner_enable=False) as logs:
        users = logs.create_topic("users", cleanup_policy="compact", lastword_strategy=strategy)
        log = logs.dirs.log("users", 0)
        builder = BatchBuilder(producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
        builder.append(0, b"a", b"hangs")
        log.append_batch(builder.build())
        users.extend([(b"a", b"1"), (b"a", b"2")])
        log.roll()
        users.extend([(b"a", b"3"), (b"b", b"4"), (b"a", b"5")])
        for offset in (3, 6):
            starts = {TopicPartition("users", 0): LogStart(offset, "deleted")}
            assert logs.dirs.log_dir("users", 0).raise_log_starts(starts) == {}
            assert [plan.action for plan in logs.plan("users")] == ["delete", "keep"]
            assert logs.clean("users") == []
        users.append(b"c", b"6")
        logs.expire("users")
        logs.clean("users")
        left = users.read(isolation="read_uncommitted")
        assert [(record.offset, record.value) for record in left] == [(6, b"6")]
