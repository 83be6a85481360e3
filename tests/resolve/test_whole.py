"""Reads of newest values over more keys than memory: one reading of the log, and a file without a name."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from lastword.errors import CorruptBatchError, DiskFullError, LastwordError, NotPermittedError, StorageError
from lastword.files.scratch import Scratch
from lastword.partition.moment import Range
from lastword.partition.view import PartitionView
from lastword.resolve import Resolution, whole
from lastword.resolve.hash_map import HashResolver
from lastword.state import newest
from tests.build import SALT, LogBuilder
from tests.resolve.support import colliding_key
from tests.support.damage import flip

Rows = list[tuple[int, bytes | None, bytes | None]]


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LogBuilder:
    """Return a log with 300 keys, up to three records of each, some of them tombstones."""
    monkeypatch.setattr(whole, "DIVIDE_FROM_BYTES", 0)
    log = LogBuilder(tmp_path, segment_bytes=20_000)
    for start in range(0, 900, 10):
        numbers = [7 * n % 300 for n in range(start, start + 10)]
        log.batch([(f"k{n}", None if (n + start) % 13 == 0 else f"{start}".zfill(150)) for n in numbers])
    return log


@pytest.fixture
def resolutions(monkeypatch: pytest.MonkeyPatch) -> list[Resolution]:
    """Return a list that gets the result of each resolution."""
    results: list[Resolution] = []
    real = whole.LogResolver.run

    def run(self: Any, keys: int | None = None) -> Resolution:
        results.append(real(self, keys))
        return results[-1]

    monkeypatch.setattr(whole.LogResolver, "run", run)
    return results


def rows_of(log: LogBuilder, map_bytes: int, end: int | None = None) -> Rows:
    """Return the newest records, tombstones included."""
    view = PartitionView.load(log.store)
    range_ = Range(view, view.log_start, view.log_end if end is None else end)
    records = newest.newest(range_, tombstones=True, map_bytes=map_bytes, plain=False)
    return [(record.offset, record.key, record.value) for record in records]


def test_the_same_records_in_the_order_of_offsets(log: LogBuilder, resolutions: list[Resolution]) -> None:
    for end in (None, 455):  # inside a batch
        assert rows_of(log, 2048, end) == rows_of(log, 1 << 20, end)
        divided, plain = resolutions[-2:]
        assert divided.scratch_bytes > 0 and plain.scratch_bytes == 0
        assert divided.dead.offsets().tolist() == plain.dead.offsets().tolist()
    rows = rows_of(log, 2048)
    assert len(rows) == 300 and rows == sorted(rows)


def test_pairs_and_columns(log: LogBuilder, resolutions: list[Resolution]) -> None:
    expected = {key: value for _, key, value in rows_of(log, 1 << 20) if value is not None}
    view = PartitionView.load(log.store)
    with closing(
        newest.newest_pairs(Range(view, 0, 900), tombstones=False, map_bytes=2048, plain=False)
    ) as parts:
        pairs = {key: value for part in parts for key, value in zip(part.keys, part.values, strict=True)}
    assert pairs == expected
    count = 0
    for part in newest.newest_parts(Range(view, 0, 900), tombstones=False, map_bytes=2048):
        count += len(part.records) + (0 if part.columns is None else len(part.columns))
    assert count == len(expected)
    assert [bool(resolution.scratch_bytes) for resolution in resolutions][:2] == [False, True]


def test_the_log_is_read_twice(
    log: LogBuilder, resolutions: list[Resolution], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read once to find the newest records, and once to return them.

    The part up to which the map was full is read another time.
    """
    taken: list[int] = []
    view = PartitionView.load(log.store)
    size = sum(segment.size for segment in view.segments)
    reports: list[tuple[int, int]] = []
    real = newest.SegmentSlice.chunk_reader

    def reader(self: Any, **how: Any) -> Iterator[Any]:
        for chunk in real(self, **how):
            taken.append(chunk.size_bytes)
            yield chunk

    monkeypatch.setattr(newest.SegmentSlice, "chunk_reader", reader)
    records = newest.newest(
        Range(view, 0, 900),
        tombstones=True,
        map_bytes=2048,
        plain=False,
        progress=lambda *bytes_done: reports.append(bytes_done),
    )
    assert len(list(records)) == 300 and resolutions[-1].scratch_bytes
    assert 2 * size <= sum(taken) < 2.5 * size
    assert reports == sorted(reports) and reports[-1] == (2 * size, 2 * size)


def names(root: Path) -> list[str]:
    return sorted(str(path) for path in root.rglob("*"))


def test_its_file_has_no_name(log: LogBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So nothing has to be removed after a kill."""
    before, seen = names(tmp_path), []
    real = Scratch.append

    def append(self: Scratch, data: Any) -> int:
        seen.append(names(tmp_path))
        return real(self, data)

    monkeypatch.setattr(Scratch, "append", append)
    rows_of(log, 2048)
    assert seen and all(listed == before for listed in seen)


def raises(error: Callable[[str], LastwordError]) -> Callable[..., int]:
    def append(self: Scratch, data: Any) -> int:
        raise error(self.path)

    return append


def absent(directory: str) -> Scratch:
    raise NotPermittedError("cannot open it", file=directory)


def flipped(self: Scratch, buffer: Any, position: int) -> int:
    count = os.preadv(self._fd, [buffer], position)
    buffer[count // 2] ^= 1
    return count


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("append", raises(lambda path: DiskFullError.of("t-0", "/drive", 100, 1, path))),
        ("append", raises(lambda path: StorageError("cannot write", file=path))),
        ("without_name", staticmethod(absent)),
        ("pread_into", flipped),
    ],
    ids=["a full drive", "a broken drive", "a directory that is read only", "damage"],
)
def test_without_the_file_there_are_passes(
    log: LogBuilder, resolutions: list[Resolution], monkeypatch: pytest.MonkeyPatch, name: str, fault: Any
) -> None:
    expected = rows_of(log, 1 << 20)
    monkeypatch.setattr(Scratch, name, fault)
    assert rows_of(log, 2048) == expected
    assert resolutions[-1].scratch_bytes == 0 and resolutions[-1].passes > 2


def test_damage_of_the_log_is_raised(log: LogBuilder) -> None:
    path = Path(PartitionView.load(log.store).segments[1].file)
    flip(path, -5)
    with pytest.raises(CorruptBatchError):
        rows_of(log, 2048)


def test_a_small_range_takes_passes(
    log: LogBuilder, resolutions: list[Resolution], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole, "DIVIDE_FROM_BYTES", 4 << 20)
    rows_of(log, 2048)
    assert resolutions[-1].scratch_bytes == 0 and resolutions[-1].passes > 2


@pytest.fixture
def by_hash(monkeypatch: pytest.MonkeyPatch) -> list[HashResolver]:
    """Resolve logs of any size by a map of hashes first; return the resolvers."""
    monkeypatch.setattr(whole, "HASHES_FROM_BYTES", 0)
    made: list[HashResolver] = []
    real = HashResolver.run

    def run(self: HashResolver) -> Resolution:
        resolution = real(self)
        made.append(self)
        return resolution

    monkeypatch.setattr(HashResolver, "run", run)
    return made


@pytest.mark.parametrize(("start", "end"), [(0, 900), (15, 900), (0, 888), (333, 777)])
def test_a_range_by_hashes(log: LogBuilder, by_hash: list[HashResolver], start: int, end: int) -> None:
    """A range may begin and end inside a segment, and inside a batch."""
    range_ = Range(PartitionView.load(log.store), start, end)
    found = list(newest.newest(range_, tombstones=True, map_bytes=1 << 20, plain=False))
    assert by_hash
    assert found == list(newest.newest(range_, tombstones=True, map_bytes=1 << 20, plain=True))


def test_keys_of_one_hash_are_read_by_the_exact_map(
    tmp_path: Path, by_hash: list[HashResolver], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No certificate follows a read, so the map itself compares both hashes."""
    monkeypatch.setattr(newest.os, "urandom", lambda size: SALT)
    log = LogBuilder(tmp_path, segment_bytes=1 << 20)
    keys = [colliding_key(SALT, number) for number in (1, 2)]
    log.put(keys[0], "older").put(keys[1], "newer").put(keys[1], "newest")
    rows = rows_of(log, 1 << 20, end=3)
    assert [value for _, _, value in rows] == [b"older", b"newest"] and not by_hash
