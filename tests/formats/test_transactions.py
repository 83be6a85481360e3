"""Outcomes of transactions, and the rules that keep markers.

Docstrings state the properties of section 6F.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastword.errors import CorruptBatchError
from lastword.partition.transactions import (
    BatchColumns,
    BatchOutcome,
    Decisions,
    MarkerTracker,
    control_of,
    scan,
)
from lastword.records.batch import BatchHeader, read_header
from lastword.records.record import ControlRecord
from tests.formats.batches import abort, commit, control, data
from tests.naive.empty_batch import empty_batch

COMMIT_MARKER = bytes.fromhex(
    "00000000000000150000004200000004028d2122650030000000000000018bcfe568000000018bcfe568000000000000000005"
    "0002ffffffff000000012000000008000000010c00000000000700"
)
ABORT_MARKER = bytes.fromhex(
    "0000000000000015000000420000000402791ff42d0030000000000000018bcfe568000000018bcfe568000000000000000005"
    "0002ffffffff000000012000000008000000000c00000000000700"
)
EMPTY_BATCH = bytes.fromhex(
    "0000000000000014000000310000000402062c5e8e001000000002ffffffffffffffff0000018bcfe56800000000000000000500"
    "020000000900000000"
)
Log = list[tuple[BatchHeader, ControlRecord | None]]


def test_6M_137_markers_are_read_and_emptied_ones_are_none() -> None:
    """6M.137: A marker batch has 78 bytes, is valid, and decodes to its type and coordinator epoch."""
    for marker, kind in ((COMMIT_MARKER, "commit"), (ABORT_MARKER, "abort")):
        header = read_header(marker, 0, len(marker), "x")
        assert len(marker) == 78
        assert control_of(marker, header, "x") == ControlRecord(kind, 0, 7)
        shell = empty_batch(header)
        assert len(shell) == 61
        assert control_of(shell, read_header(shell, 0, 61, "x"), "x") is None
    assert control_of(EMPTY_BATCH, read_header(EMPTY_BATCH, 0, 61, "x"), "x") is None
    cut = COMMIT_MARKER[:66] + b"\xff\xff" + COMMIT_MARKER[68:]  # a negative version
    with pytest.raises(CorruptBatchError) as error:
        control_of(b"before" + cut, read_header(cut, 0, 78, "x"), "x", position=6)
    assert (error.value.file, error.value.position) == ("x", 0)


# ---------------------------------------------------------------- outcomes


@st.composite
def logs(draw: st.DrawFn) -> Log:
    """Draw a log of three producers, with gaps, emptied batches and markers."""
    log: Log = []
    offset = draw(st.integers(0, 3))
    inside = dict.fromkeys((1, 2, 3), False)
    for kind, producer_id, count, kept in draw(
        st.lists(
            st.tuples(st.sampled_from("ptttca"), st.integers(1, 3), st.integers(1, 4), st.integers(0, 1)),
            max_size=40,
        )
    ):
        if kind in "ca":
            log.append((control(producer_id, offset), commit() if kind == "c" else abort()))
            inside[producer_id] = False
            offset += 1
        else:
            transactional = kind == "t" or inside[producer_id]
            inside[producer_id] = transactional
            log.append(
                (data(producer_id, offset, 0, count=count, transactional=transactional, kept=kept), None)
            )
            offset += count
        offset += draw(st.sampled_from([0, 0, 0, 2]))
    return log


def naive_outcomes(log: Log) -> list[BatchOutcome]:
    """Return the outcome of each batch by the next marker of its producer."""
    outcomes = []
    for n, (header, _) in enumerate(log):
        if header.control:
            outcomes.append(BatchOutcome.CONTROL)
        elif not header.transactional:
            outcomes.append(BatchOutcome.COMMITTED)
        else:
            following = (m for h, m in log[n:] if m is not None and h.producer_id == header.producer_id)
            marker = next(following, None)
            kinds = {"commit": BatchOutcome.COMMITTED, "abort": BatchOutcome.ABORTED}
            outcomes.append(BatchOutcome.UNDECIDED if marker is None else kinds[marker.type])
    return outcomes


@given(logs())
def test_outcomes_of_arrays_are_those_of_headers(log: Log) -> None:
    decisions = scan(log)
    columns = [
        np.array([getattr(header, name) for header, _ in log], np.int64)
        for name in ("attributes", "producer_id", "base_offset", "last_offset")
    ]
    assert decisions.of_batches(BatchColumns(*columns)).tolist() == [
        decisions.of_header(header) for header, _ in log
    ]


@given(logs(), st.integers(0, 60))
def test_entries_collected_for_a_range_decide_it_from_any_start(log: Log, start: int) -> None:
    whole = scan(log)
    part = Decisions([e for e in whole.aborted if e.last_offset >= start], undecided=whole.undecided)
    for header, _ in log:
        if header.base_offset >= start:
            assert part.of_header(header) is whole.of_header(header)


# ---------------------------------------------------------------- markers that a cleaning may remove


def removable(log: Log) -> list[int]:
    """Return the offsets of the markers that may be removed."""
    tracker = MarkerTracker()
    gone = []
    for header, marker in log:
        if not header.control:
            tracker.data(header)
        elif tracker.control(header, marker):
            gone.append(header.last_offset)
    return gone


def test_emptied_markers_may_go_and_other_control_records_never() -> None:
    tracker = MarkerTracker()
    assert tracker.control(control(1, 3, kept=0), None)
    assert not tracker.control(control(-1, 4), ControlRecord("leader-change", 0))
    assert not tracker.control(control(-1, 5), ControlRecord("unknown", 3))


def test_a_marker_stays_until_no_batch_of_its_transaction_is_left() -> None:
    log: Log = [
        (data(1, 0, 0, transactional=True), None),
        (data(2, 1, 0, transactional=True), None),
        (control(1, 10), commit()),
        (control(2, 11), abort()),
        (control(1, 12), commit()),
        (control(2, 13), abort()),
    ]
    assert removable(log) == [12, 13]
    assert removable(log[1:]) == [10, 12, 13]
    assert removable(log[2:]) == [10, 11, 12, 13]


@given(logs())
def test_no_marker_may_go_whose_batches_are_there(log: Log) -> None:
    for offset in removable(log):
        (producer_id,) = {h.producer_id for h, m in log if m is not None and h.last_offset == offset}
        mine = [(h, m) for h, m in log if h.producer_id == producer_id and h.last_offset < offset]
        since = max((h.last_offset for h, m in mine if m is not None), default=-1)
        assert not any(h.transactional and h.last_offset > since for h, m in mine if m is None)


@given(logs())
def test_passes_reach_a_rest(log: Log) -> None:
    """The first pass removes aborted data, the next one the markers; later passes change nothing.

    No pass changes an outcome.
    """
    wanted = {h.base_offset: outcome for (h, _), outcome in zip(log, naive_outcomes(log), strict=True)}
    stable = min(scan(log).undecided.values(), default=1 << 40)
    for _ in range(4):
        decisions = scan(log)
        gone = set(removable([(h, m) for h, m in log if h.last_offset < stable]))
        before = log
        log = [
            (h, m)
            for h, m in log
            if decisions.of_header(h) is not BatchOutcome.ABORTED and h.last_offset not in gone
        ]
        after = scan(log)
        for header, _ in log:
            assert after.of_header(header) is wanted[header.base_offset]
    assert before == log
