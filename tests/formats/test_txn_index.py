"""The transaction index. Each docstring states its property (section 6R)."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastword.errors import CorruptFileError
from lastword.files import DEFAULT
from lastword.segment import indexes
from lastword.segment.indexes import AbortedTransaction, TransactionIndex
from lastword.segment.stored import SegmentFiles
from lastword.server.aborted import AbortedTransactions
from tests.properties.support import batch, opened, partition
from tests.transactions import end_transaction

VECTOR = bytes.fromhex(
    "0000000000000000000500000000000000140000000000000019000000000000001a"
    "000000000000000000090000000000000015000000000000001e000000000000001f"
)
ENTRIES = [AbortedTransaction(5, 20, 25, 26), AbortedTransaction(9, 21, 30, 31)]

# (producer, first, last, stable): Kafka's own example for lookups.
FIVE = [
    AbortedTransaction(0, 0, 10, 2),
    AbortedTransaction(1, 5, 15, 16),
    AbortedTransaction(2, 18, 35, 25),
    AbortedTransaction(3, 32, 50, 40),
]


def index_at(directory: Path, base_offset: int = 0) -> TransactionIndex:
    return TransactionIndex(SegmentFiles(DEFAULT, str(directory), base_offset))


def filled(directory: Path, entries: list[AbortedTransaction] = FIVE) -> TransactionIndex:
    index = index_at(directory)
    for entry in entries:
        index.append(entry)
    return index


def test_6R_216_vector() -> None:
    """6R.216: An entry round-trips through its bytes."""
    assert indexes.encode_aborted(ENTRIES) == VECTOR
    assert indexes.decode_aborted(VECTOR, "x") == ENTRIES


offsets = st.integers(0, 2**63 - 1)


@given(st.lists(st.tuples(st.integers(-1, 2**63 - 1), offsets, offsets, offsets)))
def test_round_trip_ignoring_a_fragment(rows: list[tuple[int, int, int, int]]) -> None:
    entries = [AbortedTransaction(*row) for row in rows]
    data = indexes.encode_aborted(entries)
    assert len(data) == 34 * len(entries)
    assert indexes.decode_aborted(data + bytes(33), "x") == entries


def test_6R_209_reopening_appends_behind_existing_entries(tmp_path: Path) -> None:
    """6R.209: Opening an existing index continues behind its entries."""
    filled(tmp_path, FIVE[:2]).close()
    again = index_at(tmp_path)
    again.append(FIVE[2])
    again.close()
    assert index_at(tmp_path).entries == FIVE[:3]


def test_a_fragment_at_the_end_is_cut_before_the_next_append(tmp_path: Path) -> None:
    index = filled(tmp_path, FIVE[:1])
    index.close()
    path = Path(index.path)
    path.write_bytes(path.read_bytes() + b"torn")
    again = index_at(tmp_path)
    assert again.entries == FIVE[:1]
    again.append(FIVE[1])
    again.close()
    assert path.read_bytes() == indexes.encode_aborted(FIVE[:2])


def test_6R_210_entries_below_the_base_offset_are_corrupt(tmp_path: Path) -> None:
    """6R.210: Entries below the base offset make the index corrupt."""
    filled(tmp_path).close()
    Path(tmp_path / f"{0:020d}.txnindex").rename(tmp_path / f"{100:020d}.txnindex")
    with pytest.raises(CorruptFileError) as error:
        index_at(tmp_path, 100).check()
    assert error.value.position == 0


@pytest.mark.parametrize(
    "bad",
    [
        [FIVE[1], FIVE[0]],
        [FIVE[0], FIVE[0]],
        [AbortedTransaction(0, 11, 10, 12)],
        [AbortedTransaction(0, -1, 10, 12)],
    ],
)
def test_entries_that_contradict_each_other_are_corrupt(
    bad: list[AbortedTransaction], tmp_path: Path
) -> None:
    (tmp_path / f"{0:020d}.txnindex").write_bytes(indexes.encode_aborted(bad))
    with pytest.raises(CorruptFileError, match="aborted transaction"):
        index_at(tmp_path).check()


@pytest.mark.parametrize("last", [50, 49, 15, 0])
def test_6R_211_last_offsets_must_rise(last: int, tmp_path: Path) -> None:
    """6R.211: A last offset that is equal to or lower than the previous is refused."""
    index = filled(tmp_path)
    with pytest.raises(ValueError, match="after one that ends at 50"):
        index.append(AbortedTransaction(7, 0, last, last + 1))
    assert index.entries == FIVE


def test_6R_212_transactions_of_a_range(tmp_path: Path) -> None:
    """6R.212: An index gives a broker the aborted transactions that overlap a range, and whether later
    entries may matter.

    Here: The batches give them, and an index only those that began in an earlier segment. One that has no
    batch in the range may be left out.
    """
    log, _ = opened(partition(tmp_path))
    transaction = {"producer_epoch": 0, "transactional": True}
    offsets: dict[int, list[int]] = {1: [], 2: [], 3: []}
    for producer, ends in ((1, 0), (2, 0), (1, 0), (1, 1), (3, 0), (2, 0), (2, 1), (3, 0), (3, 1)):
        if ends:
            end_transaction(log, producer, 0, commit=False)
        else:
            sequence = len(offsets[producer])
            data = batch(0, b"v", producer_id=producer, base_sequence=sequence, **transaction)
            offsets[producer].append(log.append_batch(data).base_offset)
        log.roll()
    entries = [entry for segment in log.segments for entry in log.aborted_of(segment)]
    assert [(e.first_offset, e.last_offset) for e in entries] == [(0, 3), (1, 6), (4, 8)]
    for start, end in combinations(range(log.log_end + 1), 2):
        needed = {
            (producer, inside[0])
            for producer, inside in offsets.items()
            if any(start <= offset < end for offset in inside)
        }
        overlapping = {
            (e.producer_id, e.first_offset)
            for e in entries
            if e.last_offset >= start and e.first_offset < end
        }
        assert needed <= set(AbortedTransactions().of(log, start, end)) <= overlapping, (start, end)
    log.abandon()


def test_6R_213_truncate(tmp_path: Path) -> None:
    """6R.213: Truncation to an offset keeps the transactions that end before it; to 0, none."""
    index = filled(tmp_path)
    index.truncate(51)
    assert index.entries == index_at(tmp_path).entries == FIVE
    index.truncate(50)
    assert index.entries == index_at(tmp_path).entries == FIVE[:3]
    index.truncate(0)
    assert index.entries == index_at(tmp_path).entries == []
    index.append(FIVE[0])
    assert index_at(tmp_path).entries == FIVE[:1]


def test_6R_214_rename_with_an_open_handle(tmp_path: Path) -> None:
    """6R.214: A rename with an open handle keeps the entries and takes more."""
    index = filled(tmp_path, FIVE[:2])
    renamed = Path(index.path + ".swap")
    Path(index.path).rename(renamed)
    assert index.entries == FIVE[:2]
    index.append(FIVE[2])
    assert indexes.decode_aborted(renamed.read_bytes(), "x") == FIVE[:3]


def test_6R_215_sync_before_the_first_append(tmp_path: Path) -> None:
    """6R.215: A sync before the first append does not fail; after an append the file has content."""
    index = index_at(tmp_path)
    index.sync()
    assert index.entries == []
    assert list(tmp_path.iterdir()) == []
    index.append(FIVE[0])
    index.sync()
    assert Path(index.path).stat().st_size == 34


def test_an_unknown_version_is_refused(tmp_path: Path) -> None:
    data = bytearray(VECTOR)
    data[34:36] = b"\0\1"
    path = tmp_path / f"{0:020d}.txnindex"
    path.write_bytes(data)
    with pytest.raises(CorruptFileError, match="version 1") as error:
        index_at(tmp_path).check()
    assert (error.value.file, error.value.position) == (str(path), 34)
