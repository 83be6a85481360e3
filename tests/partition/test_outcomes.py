"""Committed reads: where they read the aborted transactions, and what a rewrite or damage must not change."""

from __future__ import annotations

from pathlib import Path

import pytest

from lastword.errors import DataError
from lastword.files import DEFAULT
from lastword.partition import scan, transactions
from lastword.partition.directory_segments import DirectorySegments
from lastword.partition.lookups import records_at
from lastword.partition.transactions import BatchOutcome, Outcomes
from lastword.partition.transactions import scan as scan_batches
from lastword.partition.view import PartitionView
from lastword.segment import names
from lastword.segment.indexes import AbortedTransaction, encode_aborted
from tests.naive.pack import Record, encode_batch

T = 1_700_000_000_000
TRANSACTIONAL, CONTROL = 0x10, 0x20


def plain(offset: int) -> bytes:
    return encode_batch([Record(offset, T, b"k%d" % offset, b"v")])


def data(offset: int, producer: int) -> bytes:
    record = Record(offset, T, b"k%d" % offset, b"v")
    return encode_batch([record], attributes=TRANSACTIONAL, producer=(producer, 0, offset))


def marker(offset: int, producer: int, *, commit: bool) -> bytes:
    record = Record(offset, T, bytes([0, 0, 0, commit]), bytes(6))
    return encode_batch([record], attributes=TRANSACTIONAL | CONTROL, producer=(producer, 0, -1))


FIRST = [plain(0), data(1, 5), plain(2)]
SECOND = [data(3, 6), marker(4, 5, commit=False), plain(5), data(6, 5), data(7, 6)]
THIRD = [marker(8, 6, commit=True), marker(9, 5, commit=True), data(10, 6), plain(11), data(12, 5)]
ABORTED = AbortedTransaction(5, 1, 4, 3)
COMMITTED = [0, 2, 3, 5, 6, 7]
"""Producer 5 aborts what it wrote at 1; producer 6 is open from 10 on."""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "t-0"
    path.mkdir()
    for base, batches in ((0, FIRST), (3, SECOND), (8, THIRD)):
        (path / names.segment_file(base, names.LOG)).write_bytes(b"".join(batches))
    (path / names.segment_file(3, names.TXN_INDEX)).write_bytes(encode_aborted([ABORTED]))
    return path


def _walk_by_kernels(yes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KERNEL_BYTES", "KERNEL_BYTES_LOADED"):
        monkeypatch.setattr(transactions, name, 0 if yes else 1 << 30)


@pytest.fixture(params=["a reader", "a reader with kernels", "the writer"])
def view(request: pytest.FixtureRequest, directory: Path, monkeypatch: pytest.MonkeyPatch) -> PartitionView:
    _walk_by_kernels("kernels" in request.param, monkeypatch)
    partition_view = PartitionView.load(DirectorySegments(DEFAULT, str(directory)))
    partition_view.trusted = request.param == "the writer"
    return partition_view


def read(view: PartitionView, start: int = 0, end: int | None = None) -> list[int]:
    end = view.stable_offset if end is None else end
    ways = [[r.offset for r in scan.records(view, start, end, plain=plain)] for plain in (True, False)]
    assert ways[0] == ways[1]
    return ways[0]


def test_aborted_records_do_not_show_and_open_ones_are_behind_the_end(view: PartitionView) -> None:
    assert (view.stable_offset, view.log_end) == (10, 13)
    assert read(view) == COMMITTED
    for start in range(10):
        for end in range(start, 11):
            expected = [offset for offset in COMMITTED if start <= offset < end]
            assert read(view, start, end) == expected
            looked_up = records_at(view, range(start, end), committed=True)
            assert [record.offset for record in looked_up if record is not None] == expected


def test_above_the_stable_offset_transactions_are_undecided(view: PartitionView) -> None:
    asked = Outcomes(view, view.log_end)
    outcomes = [asked.of_header(header) for _, header, _ in view.batches(0)]
    committed, aborted, undecided, control = BatchOutcome
    assert outcomes == [
        *(committed, aborted, committed),
        *(committed, control, committed, committed, committed),
        *(control, control, undecided, committed, undecided),
    ]


def test_nothing_is_looked_up_without_a_transaction(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "scan", None)
    view = PartitionView.load(DirectorySegments(DEFAULT, str(directory)))
    assert read(view, 0, 1) == [0]
    with pytest.raises(TypeError):
        read(view)


def test_the_walk_ends_once_everything_asked_for_is_decided(directory: Path) -> None:
    """A task that reads the start of a log does not walk to its end."""
    met = []

    def batches(view: PartitionView):  # type: ignore[no-untyped-def]
        for batch in transactions._special_batches(view.segments, 0, view.log_end):
            met.append(batch[0].base_offset)
            yield batch

    decisions = scan_batches(batches(PartitionView.load(DirectorySegments(DEFAULT, str(directory)))), until=3)
    assert met == [1, 3, 4, 6]  # the first batch at or above the end after which no older transaction is open
    assert [(entry.producer_id, entry.first_offset, entry.last_offset) for entry in decisions.aborted] == [
        (5, 1, 4)
    ]


def test_a_rewrite_between_reading_and_asking(view: PartitionView, directory: Path) -> None:
    """Old files that are still open are not judged by the index and markers that the rewrite left."""
    records = scan.records(view, 0, view.stable_offset, plain=True)
    assert next(records).offset == 0
    for segment in view.segments:
        assert segment.handle
    replaced = {0: [FIRST[0], FIRST[2]], 3: [SECOND[0], *SECOND[2:]]}
    for base, batches in replaced.items():
        path = directory / names.segment_file(base, names.LOG)
        (directory / "new").write_bytes(b"".join(batches))
        (directory / "new").replace(path)
    (directory / names.segment_file(3, names.TXN_INDEX)).unlink()
    assert [record.offset for record in records] == COMMITTED[1:]


@pytest.mark.parametrize("bit", range(8))
def test_a_damaged_marker_decides_nothing(directory: Path, bit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    path = directory / names.segment_file(3, names.LOG)
    good = path.read_bytes()
    start = len(SECOND[0])
    for at in range(start, start + len(SECOND[1])):
        bad = bytearray(good)
        bad[at] ^= 1 << bit
        path.write_bytes(bad)
        view = PartitionView.load(DirectorySegments(DEFAULT, str(directory)))
        for by_kernels in (True, False):
            _walk_by_kernels(by_kernels, monkeypatch)
            for plain in (True, False):
                shown, epoch = [], start + 12 <= at < start + 16  # no checksum covers the epoch: no error
                try:
                    for record in scan.records(view, 0, 10, plain=plain):
                        shown.append(record.offset)
                    assert epoch
                except DataError as error:
                    assert error.position is not None and error.file is not None and not epoch
                assert shown == COMMITTED[: len(shown)]
