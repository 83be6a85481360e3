"""Transactions while resolving: aborted records supersede nothing and are dead, undecided records supersede
nothing and stay.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lastword.errors import UnsupportedBatchError
from lastword.partition.transactions import Decisions
from lastword.resolve import resolve
from lastword.segment.indexes import AbortedTransaction
from tests.naive.pack import Record, encode_batch
from tests.naive.strategies import T
from tests.resolve.support import segments
from tests.resolve.test_resolver import BIG, check
from tests.support.exhaustive import few

TRANSACTIONAL, CONTROL, HORIZON = 0x10, 0x20, 0x40


def data(offset: int, *pairs: tuple[bytes | None, bytes | None], producer: int = 5, bits: int = 0) -> bytes:
    records = [Record(offset + n, T, key, value) for n, (key, value) in enumerate(pairs)]
    return encode_batch(
        records,
        attributes=TRANSACTIONAL | bits,
        base_timestamp=T if bits else None,
        producer=(producer, 0, offset),
    )


def marker(offset: int, commit: bool, producer: int = 5) -> bytes:
    record = Record(offset, T, bytes([0, 0, 0, commit]), bytes(6))
    return encode_batch([record], attributes=TRANSACTIONAL | CONTROL, producer=(producer, 0, -1))


def test_an_aborted_record_replaces_nothing_and_is_dead() -> None:
    log = [
        encode_batch([Record(0, T, b"a", b"1"), Record(1, T, b"b", b"1")]),
        data(2, (b"a", b"2"), (b"b", None), (None, b"x"), (b"new", b"1")),
        marker(6, commit=False),
        data(7, (b"b", b"2")),
        marker(8, commit=True),
    ]
    for now_ms in (None, T):
        resolution = check(
            segments(log, [1, 3]),
            BIG,
            now_ms,
            outcomes=Decisions([AbortedTransaction(5, 2, 6, 7)]),
            aborted={2},
        )
        assert resolution.dead.offsets().tolist() == [1, 2, 3, 4, 5]
        assert [facts.aborted_records for facts in resolution.segments] == [0, 4, 0]
        assert (resolution.distinct_keys, resolution.records) == (2, 7)


def test_an_undecided_record_replaces_nothing_and_stays() -> None:
    log = [encode_batch([Record(0, T, b"a", b"1")]), data(1, (b"a", b"2")), data(2, (b"b", b"1"), producer=6)]
    outcomes = Decisions(undecided={5: 1, 6: 2})
    resolution = check(segments(log, [1]), BIG, None, outcomes=outcomes, undecided={1, 2})
    assert (resolution.dead.offsets().tolist(), resolution.records) == ([], 3)


def test_a_cleaning_refuses_what_is_undecided() -> None:
    log = [data(0, (b"a", b"1"))]
    with pytest.raises(UnsupportedBatchError, match=r"00000000000000000000.log position 0.*undecided"):
        resolve(segments(log, []), map_bytes=BIG, salt=b"", now_ms=T, outcomes=Decisions(undecided={5: 0}))


def test_read_uncommitted_takes_them_as_they_are() -> None:
    log = [data(0, (b"a", b"1")), marker(1, commit=False), data(2, (b"a", b"2"))]
    assert check(segments(log, []), BIG, None, outcomes=Decisions()).dead.offsets().tolist() == [0]


@pytest.mark.slow
@settings(max_examples=few(40))
@given(st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.integers(0, 4)), min_size=1, max_size=30))
def test_many_pages(steps: list[tuple[int, bool, int]]) -> None:
    """Pages with records of aborted transactions only; the store grows in the middle of a batch."""
    offset, log, entries, aborted = 0, [], [], set()
    for gap, commit, count in steps:
        offset += gap * 5000
        records = [Record(offset + n * 4096, T, b"k%d" % n, b"") for n in range(300 * count + 1)]
        log.append(encode_batch(records, attributes=TRANSACTIONAL, producer=(5, 0, 0)))
        first, offset = offset, records[-1].offset + 1
        log.append(marker(offset, commit))
        if not commit:
            aborted.add(first)
            entries.append(AbortedTransaction(5, first, offset, offset + 1))
        offset += 1
    check(segments(log, []), BIG, None, outcomes=Decisions(entries), aborted=aborted)
