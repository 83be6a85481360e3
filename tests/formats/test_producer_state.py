"""Producer state. Each docstring states its property (sections 6G, 6N, 6W)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastword.errors import (
    CoordinatorFencedError,
    ProducerFencedError,
    SequenceGapError,
    TransactionStateError,
)
from lastword.partition.producer_state import (
    Producer,
    ProducerState,
    SequencedBatch,
    add_sequence,
    subtract_sequence,
)
from lastword.partition.transactions import OpenTransactions
from lastword.records.batch import BatchHeader
from lastword.records.record import ControlRecord
from lastword.segment.indexes import AbortedTransaction
from tests.formats.batches import T, abort, commit, control, data

MAX = 2**31 - 1
PID = 7


def append(
    state: ProducerState, header: BatchHeader, marker: ControlRecord | None = None
) -> SequencedBatch | list[AbortedTransaction]:
    """Apply a batch as a leader; return the earlier batch for a duplicate, else the new index entries."""
    earlier = state.begin().add(header, marker)
    if earlier is not None:
        return earlier
    entry = state.update(header, marker)
    return [] if entry is None else [entry]


def state_after(*batches: BatchHeader) -> ProducerState:
    state = ProducerState()
    for header in batches:
        assert append(state, header) == []
    return state


def producer(state: ProducerState) -> Producer:
    entry = state.get(PID)
    assert entry is not None
    return entry


def test_6N_142_sequences_wrap_at_max_int() -> None:
    """6N.142: Adding to and subtracting from a sequence wrap at 2^31 - 1 and 0."""
    assert add_sequence(MAX, 1) == 0
    assert add_sequence(MAX - 1, 3) == 1
    assert subtract_sequence(0, 1) == MAX
    assert subtract_sequence(1, 3) == MAX - 1


def test_6N_141_a_batch_across_the_wrap_keeps_first_and_last_sequence() -> None:
    """6N.141: The sequences of a batch wrap from 2^31 - 1 to 0."""
    (batch,) = producer(state_after(data(PID, 0, MAX - 1, count=3))).batches
    assert (batch.first_sequence, batch.last_sequence) == (MAX - 1, 0)


def test_6W_308_gaps_repetitions_and_epochs() -> None:
    """6W.308: Repeated and out-of-order sequences are refused; a new epoch starts at 0; an older epoch is
    fenced.
    """
    state = state_after(data(PID, 0, 0), data(PID, 1, 1))
    for sequence in (3, 9, MAX):
        with pytest.raises(SequenceGapError, match="2 is next") as error:
            append(state, data(PID, 2, sequence))
        assert error.value.kafka_code == 45
    with pytest.raises(SequenceGapError, match="0 is next"):
        append(state, data(PID, 2, 2, epoch=1))
    assert append(state, data(PID, 2, 0, epoch=1)) == []
    with pytest.raises(ProducerFencedError) as fenced:
        append(state, data(PID, 3, 2, epoch=0))
    assert fenced.value.kafka_code == 47
    assert producer(state).batches == (SequencedBatch(0, 2, 0, T),)


def test_an_unknown_producer_may_start_anywhere() -> None:
    assert producer(state_after(data(PID, 10, 4711))).last_sequence == 4711


def test_a_producer_needs_epoch_and_sequence() -> None:
    for header in (data(PID, 0, -1), data(PID, 0, 0, epoch=-1)):
        with pytest.raises(SequenceGapError):
            append(ProducerState(), header)


def test_6W_309_a_marker_of_an_unknown_producer() -> None:
    """6W.309: A marker without a known producer creates an entry without a sequence."""
    state = ProducerState()
    assert append(state, control(PID, 10, epoch=3), abort(5)) == []
    known = producer(state)
    assert (known.epoch, known.coordinator_epoch, known.batches, known.last_sequence) == (3, 5, (), -1)
    with pytest.raises(SequenceGapError, match="0 is next"):
        append(state, data(PID, 11, 17, epoch=3))
    assert append(state, data(PID, 11, 0, epoch=3)) == []


def test_6W_311_replay_accepts_unknown_producers_gaps_and_older_epochs() -> None:
    """6W.311: Replaying a log accepts unknown producers and gaps."""
    state = ProducerState()
    for header in (data(PID, 0, 5), data(PID, 1, 50), data(PID, 9, 3, epoch=4), data(PID, 10, 900, epoch=4)):
        assert state.update(header) is None
    assert [batch.last_sequence for batch in producer(state).batches] == [3, 900]
    assert state.end_offset == 11


def test_6W_312_a_marker_with_a_higher_epoch_clears_batches_and_transaction() -> None:
    """6W.312: A marker with a higher epoch clears the producer's batches and its transaction."""
    state = state_after(data(PID, 0, 0, transactional=True))
    assert append(state, control(PID, 1, epoch=1), abort()) == [AbortedTransaction(PID, 0, 1, 2)]
    known = producer(state)
    assert (known.epoch, known.batches, known.transaction_start) == (1, (), None)
    assert state.open_transactions() == {}
    assert append(state, data(PID, 2, 0, epoch=1)) == []


def test_6W_313_no_plain_batch_inside_a_transaction() -> None:
    """6W.313: A batch outside a transaction is refused while the producer has a transaction open."""
    state = state_after(data(PID, 4, 0, transactional=True))
    with pytest.raises(TransactionStateError, match="opened at offset 4") as error:
        append(state, data(PID, 5, 1))
    assert error.value.kafka_code == 48


def test_6W_314_markers_of_older_epochs_and_coordinators() -> None:
    """6W.314: A marker of an older epoch is refused; a lower coordinator epoch is fenced, an equal one
    accepted, also after a reload.
    """
    state = state_after(data(PID, 0, 0, epoch=5, transactional=True))
    with pytest.raises(ProducerFencedError):
        append(state, control(PID, 1, epoch=4), commit())
    append(state, control(PID, 1, epoch=5), commit(8))
    reloaded = ProducerState(state.end_offset, state.producers)
    for each in (state, reloaded):
        with pytest.raises(CoordinatorFencedError) as error:
            append(each, control(PID, 2, epoch=5), commit(7))
        assert error.value.kafka_code == 52
        append(each, control(PID, 2, epoch=5), commit(8))
    assert state.update(control(PID, 3, epoch=5), commit(1)) is None  # already in the log: not checked


def test_6W_319_expiry_spares_open_transactions() -> None:
    """6W.319: Idle producers expire; producers with an open transaction do not."""
    state = state_after(data(1, 0, 0), data(2, 1, 0, transactional=True), data(3, 2, 0, timestamp=T + 1))
    assert state.expire(T + 99, 100) == []
    assert state.expire(T + 100, 100) == [1]
    assert state.expire(T + 1000, 100) == [3]
    assert [p.producer_id for p in state.producers] == [2]
    assert append(state, data(1, 3, 77)) == []


def test_6W_320_the_first_unstable_offset_waits_for_the_high_watermark() -> None:
    """6W.320: The first unstable offset stays until the high watermark passes the marker, also with
    several transactions.

    The end of the log is the high watermark: there are no followers.
    """
    state = state_after(data(9, 4, 0))
    assert state.stable_offset == 5
    append(state, data(1, 5, 0, transactional=True))
    append(state, data(2, 6, 0, transactional=True))
    assert state.stable_offset == 5
    append(state, data(9, 7, 1))
    assert state.stable_offset == 5
    append(state, control(1, 8), commit())
    assert state.stable_offset == 6
    append(state, control(2, 9), abort())
    assert state.stable_offset == 10
    assert state.open_since() is None


def test_6W_321_what_the_index_records_as_last_stable_offset() -> None:
    """6W.321: The last stable offset that a completed transaction records is the first offset of the
    oldest other open transaction, else the marker's offset + 1.
    """
    state = state_after(
        data(1, 0, 0, transactional=True),
        data(2, 1, 0, transactional=True),
        data(3, 2, 0, transactional=True),
    )
    assert append(state, control(2, 10), abort()) == [AbortedTransaction(2, 1, 10, 0)]
    assert append(state, control(1, 11), abort()) == [AbortedTransaction(1, 0, 11, 2)]
    assert append(state, control(3, 12), abort()) == [AbortedTransaction(3, 2, 12, 13)]


def test_6W_322_markers_without_data_complete_nothing() -> None:
    """6W.322: A marker without data completes nothing."""
    state = ProducerState()
    assert append(state, control(PID, 0), abort()) == []
    append(state, data(PID, 1, 0, transactional=True))
    assert append(state, control(PID, 2), abort()) == [AbortedTransaction(PID, 1, 2, 3)]
    assert append(state, control(PID, 3), abort()) == []


def test_6W_323_an_emptied_marker_opens_nothing_and_keeps_its_epoch() -> None:
    """6W.323: An empty control batch leaves no transaction open and does not fail.

    Kafka's replay forgets the epoch here, and lets a zombie of an older epoch write.
    """
    state = ProducerState()
    assert state.update(control(PID, 23, epoch=5, kept=0)) is None
    assert state.open_transactions() == {}
    assert state.end_offset == 24
    assert producer(state).epoch == 5
    with pytest.raises(ProducerFencedError):
        append(state, data(PID, 24, 0, epoch=4))
    assert append(state, data(PID, 24, 0, epoch=5)) == []
    state.update(control(PID, 25, epoch=2, kept=0))
    assert producer(state).epoch == 5


@pytest.mark.parametrize("kept", [1, 0])
def test_6G_66_68_a_compacted_batch_gives_its_original_last_sequence(kept: int) -> None:
    """6G.66: Reading a compacted batch, which misses records, gives the producer the batch's original last
    sequence.
    6G.68: An empty batch gives the original last sequence as well.
    """
    state = ProducerState()
    state.update(data(PID, 40, 10, count=5, kept=kept))
    assert producer(state).batches == (SequencedBatch(14, 44, 4, T),)
    repeated = append(state, data(PID, 90, 10, count=5))
    assert isinstance(repeated, SequencedBatch)
    assert repeated.first_offset == 40


def test_batches_without_a_producer_only_move_the_end() -> None:
    state = state_after(data(-1, 0), data(-1, 1, count=9))
    assert (len(state), state.end_offset) == (0, 10)


def test_open_transactions_of_a_snapshot_come_in_any_order() -> None:
    loaded = OpenTransactions({1: 30, 2: 10, 3: 20})
    assert loaded.oldest() == 10
    assert list(loaded.first_offsets()) == [2, 3, 1]
    assert len(loaded) == 3


steps = st.lists(
    st.tuples(st.sampled_from(["plain", "data", "commit", "abort"]), st.integers(1, 3), st.integers(1, 4)),
    max_size=40,
)


@given(steps, st.data())
def test_a_leader_and_a_replay_agree_from_wherever_it_starts(
    moves: list[tuple[str, int, int]], choices: st.DataObject
) -> None:
    """Applying as leader, and a replay from the state at any point, give equal states and index entries."""
    leader = ProducerState()
    log: list[tuple[BatchHeader, ControlRecord | None, list[AbortedTransaction]]] = []
    states = [list(leader.producers)]
    for kind, producer_id, count in moves:
        known = leader.get(producer_id)
        sequence = add_sequence(known.last_sequence, 1) if known and known.batches else 0
        marker = {"commit": commit(), "abort": abort()}.get(kind)
        if marker is not None:
            header = control(producer_id, leader.end_offset)
        else:
            inside = kind == "data" or (known is not None and known.transaction_start is not None)
            header = data(producer_id, leader.end_offset, sequence, count=count, transactional=inside)
        result = append(leader, header, marker)
        assert isinstance(result, list)
        log.append((header, marker, result))
        states.append(list(leader.producers))
    start = choices.draw(st.integers(0, len(log)))
    begun = log[start - 1][0].next_offset if start else 0
    replayed = ProducerState(begun, states[start])
    for header, marker, entries in log[start:]:
        entry = replayed.update(header, marker)
        assert ([] if entry is None else [entry]) == entries
    assert replayed.producers == leader.producers
    assert replayed.open_transactions() == leader.open_transactions()
    assert replayed.stable_offset == leader.stable_offset
