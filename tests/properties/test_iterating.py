"""6O: iteration over the batches of a buffer and of a file."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from lastword.errors import CorruptBatchError, UnknownMagicError
from lastword.files import DEFAULT
from lastword.partition import PartitionView
from lastword.partition.cut import cut_segments
from lastword.partition.directory_segments import DirectorySegments
from lastword.partition.segment_store import SegmentSet
from lastword.records.chunk import BytesSource, ChunkReader
from lastword.segment import names
from lastword.segment.recover import inspect
from lastword.segment.scan import headers
from lastword.segment.segment import Segment
from lastword.segment.stored import SegmentFiles
from lastword.testing.unsynced import UNSYNCED
from tests.fakes.recording import RecordingFiles
from tests.properties.support import (
    CONFIG,
    FORMS,
    T,
    batch,
    entry,
    header_of,
    offsets,
    opened,
    partition,
    records_of,
    write_segment,
)

LOG = [batch(0, b"zero"), batch(1, b"one", b"two"), batch(3, b"three" * 9)]
MAX_INT = 2**31 - 1


def in_memory(data: bytes, **options: object) -> list[int]:
    reader = ChunkReader(BytesSource(data), "test.log", 0, len(data), **options)  # type: ignore[arg-type]
    return [chunk.next_offset for chunk in reader]


def in_file(path: Path, data: bytes, start: int = 0, end: int | None = None) -> list[int]:
    path.write_bytes(data)
    with DEFAULT.open_read(path) as handle:
        stop = len(data) if end is None else end
        return [h.base_offset for h in headers(handle, "test.log", start, stop, stop_at_partial_tail=True)]


def test_6O_176_180_184_an_incomplete_last_batch_ends_the_walk(tmp_path: Path) -> None:
    """6O.176: Iteration of bytes in memory ends without an error at an incomplete last batch.
    6O.180: A file whose last batch is cut 13 bytes short gives every batch before it.
    6O.184: A slice one byte shorter than a batch contains no batch.

    Here: A walk over the headers of a file ends without an error, because a crash can leave an incomplete
    batch at its end. A reader of records raises an error for an incomplete batch.
    """
    data = b"".join(LOG)
    ends = [sum(map(len, LOG[:count])) for count in range(1, 4)]
    for size in range(len(data) + 1):
        whole = [0, 1, 3][: sum(end <= size for end in ends)]
        assert in_file(tmp_path / "x.log", data[:size]) == whole
        assert in_file(tmp_path / "x.log", data, end=size) == whole
        if size not in (0, *ends):
            with pytest.raises(CorruptBatchError):
                in_memory(data[:size])


@pytest.mark.parametrize(
    ("position", "field"),
    [
        *((8, struct.pack(">i", size)) for size in (-1, 0, 9, 13)),
        *((16, bytes([magic])) for magic in (3, 37, 127, 128, 255)),
    ],
)
def test_6O_177_178_a_size_or_a_magic_that_cannot_be(tmp_path: Path, position: int, field: bytes) -> None:
    """6O.177: A batch size of 9 is corrupt.
    6O.178: A magic of 37 is corrupt.

    Here: An unknown magic has its own error and is never cut as damage, because it can be a future format.

    Kafka reads magic 3 to 127 of a file as 2.
    """
    bad = LOG[1][:position] + field + LOG[1][position + len(field) :]
    error = CorruptBatchError if position == 8 else (UnknownMagicError, CorruptBatchError)
    for work in (in_memory, lambda data: in_file(tmp_path / "x.log", data)):
        with pytest.raises(error):
            work(LOG[0] + bad + LOG[2])


def test_6O_179_a_batch_above_the_allowed_size() -> None:
    """6O.179: A batch above the allowed size is corrupt."""
    data = b"".join(LOG)
    assert in_memory(data, max_batch_bytes=len(LOG[2]))
    with pytest.raises(CorruptBatchError):
        in_memory(data, max_batch_bytes=len(LOG[2]) - 1)


@pytest.mark.parametrize("zeros", [0, 2, 4, 5, 6, 17, 60])
def test_6O_181_zeros_at_the_end_change_nothing(tmp_path: Path, zeros: int) -> None:
    """6O.181: Up to six zero bytes at the end of a file do not change the records that are read."""
    segment = write_segment(tmp_path, 0, b"".join(LOG) + bytes(zeros), indexes=False)
    view = PartitionView.load(DirectorySegments(UNSYNCED, os.path.dirname(segment.file)))
    assert (view.log_end, offsets(view, 0)) == (4, [0, 1, 2, 3])


def test_6O_182_bounds_at_both_ends_of_the_numbers(tmp_path: Path) -> None:
    """6O.182: Bounds at 0 and at 2^31 - 1 give no batch and do not overflow."""
    for start, end in ((0, 0), (MAX_INT, MAX_INT), (MAX_INT, 0), (2**63, 2**63)):
        assert in_file(tmp_path / "x.log", LOG[0], start, end) == []
    assert in_memory(b"") == []


@pytest.mark.parametrize(("magic", "codec"), FORMS)
def test_6O_183_headers_from_a_file_are_those_of_whole_batches(
    tmp_path: Path, magic: int, codec: int
) -> None:
    """6O.183: Headers that are read alone equal those of whole batches, for each magic and codec."""
    data = entry(magic, codec, 5) + entry(magic, codec, 20, 1)
    (tmp_path / "x.log").write_bytes(data)
    with DEFAULT.open_read(tmp_path / "x.log") as handle:
        batch_headers = list(headers(handle, "test.log", 0, len(data)))
    assert batch_headers == [header_of(data, header.position) for header in batch_headers]
    assert batch_headers[-1].end == len(data) and batch_headers[-1].last_offset == 20
    assert [r.offset for r in records_of(data)] == [5, 6, 7, 20]


@pytest.mark.parametrize("interval", [0, 100, 1 << 20])
def test_6O_185_search_by_offset(tmp_path: Path, interval: int) -> None:
    """6O.185: A search by offset returns the first batch whose last offset is not below it, with position
    and size.
    """
    log = [batch(0, b"a"), batch(1, b"b", b"c"), batch(10, b"d"), batch(15, b"e" * 99)]
    segment = write_segment(tmp_path, 0, b"".join(log), interval=interval)
    starts = [sum(map(len, log[:n])) for n in range(5)]
    for offset in range(20):
        first = next((n for n, last in enumerate((0, 2, 10, 15)) if last >= offset), 4)
        position = segment.position_of(offset)
        assert position == starts[first]
        if first < 4:
            assert next(segment.headers(position)).size == len(log[first])


def test_6O_186_a_file_is_cut_only_to_a_smaller_size(tmp_path: Path) -> None:
    """6O.186: A file is truncated only to a smaller size; the same size does nothing, and a larger one is
    an error.
    """
    files = RecordingFiles(UNSYNCED)
    segment = write_segment(tmp_path, 0, b"".join(LOG), files=files)
    for offset, cuts in ((4, 0), (3, 1), (3, 0)):
        files.calls.clear()
        cut_segments(
            files, os.path.dirname(segment.file), SegmentSet([segment]), offset, 0, index_interval_bytes=0
        )
        cut = [call for call in files.calls if call.name == "truncate" and call.path == segment.file]
        assert len(cut) == cuts
        segment = Segment.load(SegmentFiles(files, os.path.dirname(segment.file), 0))
        assert segment.size == len(b"".join(LOG[: 3 - (offset == 3)]))


def test_6O_187_no_log_file_passes_max_int(tmp_path: Path) -> None:
    """6O.187: An append that would pass 2^31 - 1 bytes fails, and so does opening a larger file.

    Here: A larger file is refused with its name, and not cut.
    """
    log, _ = opened(partition(tmp_path), CONFIG.replace(segment_bytes=MAX_INT))
    log.append_batch(batch(0, b"a"))
    appender = log._local.appender
    appender.end = appender.end._replace(size=MAX_INT - len(batch(0, b"a")) + 1)  # simulates a large file
    log.append_batch(batch(0, b"a"))
    assert [s.base_offset for s in log.segments] == [0, 1]
    log.abandon()


def test_a_larger_file_is_refused(tmp_path: Path) -> None:
    """An index entry has no room for a position above 2^31 - 1."""
    segment = write_segment(tmp_path, 0, LOG[0])
    DEFAULT.truncate(segment.file, MAX_INT + 1)
    with pytest.raises(CorruptBatchError) as caught:
        inspect(UNSYNCED, os.path.dirname(segment.file), 0, index_interval_bytes=0)
    assert caught.value.code == "too-large"
    with pytest.raises(CorruptBatchError, match="positions"):
        opened(os.path.dirname(segment.file))
    assert Path(segment.file).stat().st_size == MAX_INT + 1


def test_6O_188_a_preallocated_file_of_kafka(tmp_path: Path) -> None:
    """6O.188: A preallocated file is empty and has the requested size on disk; it is trimmed to its data when
    it is closed and opened.
    6S.233: A preallocated segment of 512 MiB is trimmed when it is closed.

    Here: No file is preallocated; Kafka's preallocated files are read and trimmed.

    Here: See 6O.188.

    A broker that is killed leaves zeros after the data, up to `segment.bytes`. They are not read as records,
    and opening the log removes them.
    """
    data = b"".join(LOG)
    segment = write_segment(tmp_path, 0, data + bytes(1 << 20), indexes=False)
    view = PartitionView.load(DirectorySegments(UNSYNCED, os.path.dirname(segment.file)))
    assert (view.segments[-1].size, view.log_end) == (len(data), 4)
    log, _ = opened(os.path.dirname(segment.file))
    assert Path(log.active.file).stat().st_size == len(data)
    log.append_batch(batch(0, b"more"))
    assert log.close()
    log, _ = opened(os.path.dirname(segment.file), clean=True)
    assert Path(log.active.file).stat().st_size == len(data) + len(batch(0, b"more"))
    assert (log.active.size, log.log_end) == (len(data) + len(batch(0, b"more")), 5)
    log.abandon()


def test_an_empty_preallocated_file(tmp_path: Path) -> None:
    """Here: No file is preallocated; Kafka's preallocated files are read and trimmed."""
    segment = write_segment(tmp_path, 7, bytes(1 << 20), indexes=False)
    log, _ = opened(os.path.dirname(segment.file))
    assert (log.log_end, Path(segment.file).stat().st_size) == (7, 0)
    log.abandon()


def test_6O_189_reading_does_not_move_where_is_written(tmp_path: Path) -> None:
    """6O.189: Reading does not move the position of the next write."""
    log, _ = opened(partition(tmp_path))
    for number in range(6):
        log.append_batch(batch(0, b"value-%d" % number))
        walk = log.active.headers()
        next(walk)
        log.append_batch(batch(0, b"between"))
        assert offsets(log, 0) == list(range(2 * number + 2))
    assert records_of(Path(log.active.file).read_bytes())[-1].offset == 11
    assert list(Path(log.directory).glob("*" + names.LOG)) == [Path(log.active.file)]
    log.abandon()


@pytest.mark.parametrize("interval", [0, 1 << 20])
def test_6O_190_search_by_timestamp(tmp_path: Path, interval: int) -> None:
    """6O.190: A search by timestamp returns the first record at or after the time and the start offset, or
    none.

    The start offset is the log start.
    """
    times = [100, 50, 300, 20, 70]
    data = b"".join(batch(2 * n, b"a", b"b", timestamp=T + t) for n, t in enumerate(times))
    segment = write_segment(tmp_path, 0, data, interval=interval)
    rows = [(2 * n + m, t + m) for n, t in enumerate(times) for m in (0, 1)]
    for start in range(10):
        log, _ = opened(
            os.path.dirname(segment.file), CONFIG.replace(index_interval_bytes=interval), log_start=start
        )
        for target in [*range(110), 299, 300, 301, 302]:
            wanted = next((o for o, t in rows if t >= target and o >= start), None)
            assert log.offset_at(T + target) == wanted, (start, target)
        log.abandon()
