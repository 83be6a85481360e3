"""Read-ahead: a scan has many requests in flight, over several files, and bounded memory."""

from __future__ import annotations

import random
import threading
from collections import OrderedDict

from lastword.bucket import reading
from lastword.bucket.commit import Bucket
from lastword.bucket.files import BucketFiles
from lastword.bucket.reading import AHEAD_BLOCKS, BLOCK_BYTES, CHANGE_BLOCKS, HELD_BYTES, ObjectReads
from tests.fakes import objects
from tests.support.waiting import until

MIB = 1 << 20


class Scan:
    """A directory of segments in a store that counts."""

    def __init__(self, sizes: list[int]) -> None:
        self.store = objects.Bucket()
        self.bucket = Bucket(self.store.process(), rng=random.Random(1))
        self.paths = [f"{self.bucket.url}/t-0/{number:020d}.log" for number in range(len(sizes))]
        self.contents = [random.Random(number).randbytes(size) for number, size in enumerate(sizes)]
        self.bucket.transaction(self._write)
        self.store.received.clear()
        self.store.requests.clear()
        self.files = self.bucket.files(self.bucket.load().snapshot)

    def _write(self, files: BucketFiles) -> None:
        files.mkdir(f"{files.root}/t-0")
        for path, content in zip(self.paths, self.contents, strict=True):
            files.write_atomic(path, content)

    def ranges(self) -> int:
        return self.store.requests["range"]


def test_a_scan_is_ahead_over_several_files_by_a_bounded_number_of_blocks() -> None:
    scan = Scan([6 * MIB] * 22)
    blocks = (
        1 + 8 + AHEAD_BLOCKS
    )  # of the first 24 MiB: a first range and two for each file; then what is ahead
    read = 0
    for path, content in zip(scan.paths, scan.contents, strict=True):
        with scan.files.open_read(path) as handle:
            for position in range(0, len(content), MIB):
                assert handle.pread(MIB, position) == content[position : position + MIB]
                read += MIB
                if read == 24 * MIB:  # of 132: only the room for blocks limits what is ahead
                    until(lambda: scan.ranges() >= blocks - 1)
                    assert scan.ranges() <= blocks
    assert scan.store.received["range"] == 132 * MIB
    assert scan.ranges() == 22 * 2 + 1


def test_a_change_reads_longer_ranges_with_the_same_bytes_ahead() -> None:
    scan = Scan([70 * MIB] * 2)
    sizes: list[int] = []
    fetch = scan.bucket.store.get_range
    scan.bucket.store.get_range = lambda key, start, size: sizes.append(size) or fetch(key, start, size)  # type: ignore[method-assign]

    def work(files: BucketFiles) -> None:
        for path, content in zip(scan.paths, scan.contents, strict=True):
            with files.open_read(path) as handle:
                for position in range(0, len(content), MIB):
                    assert handle.pread(MIB, position) == content[position : position + MIB]

    scan.bucket.transaction(work)
    assert sum(sizes) == 140 * MIB and max(sizes) == CHANGE_BLOCKS * BLOCK_BYTES
    assert len(sizes) <= 10


def test_a_range_that_is_announced_is_read_in_long_ranges_and_nothing_behind_it() -> None:
    scan = Scan([40 * MIB])
    start, end = 3 * MIB + 5, 17 * MIB + 9
    with scan.files.open_read(scan.paths[0]) as handle:
        for _ in range(2):
            scan.store.received.clear()
            scan.store.requests.clear()
            handle.will_read(start, end)
            data = b"".join(
                handle.pread(min(100_000, end - position), position)
                for position in range(start, end, 100_000)
            )
            assert data == scan.contents[0][start:end]
            assert scan.store.received["range"] == end - start
            assert scan.ranges() == -(-(end - start) // BLOCK_BYTES)
        assert handle.pread(10, 30 * MIB) == scan.contents[0][30 * MIB : 30 * MIB + 10]


def test_a_scan_from_the_end_reads_each_byte_once_and_the_next_range_ahead() -> None:
    scan = Scan([70 * MIB, 5 * MIB])
    longest = CHANGE_BLOCKS * BLOCK_BYTES

    def work(files: BucketFiles) -> None:
        handles = [files.open_read(path) for path in scan.paths]
        for number in (1, 0):
            content, handle = scan.contents[number], handles[number]
            for each in handles[max(number - 1, 0) : number + 1]:
                each.will_read_back()
            if number:
                until(lambda: scan.ranges() == 2)  # that of the file that follows, too
            for position in reversed(range(0, len(content), MIB)):
                assert handle.pread(MIB, position) == content[position : position + MIB]
                assert len(handle._handle._held[1]) <= longest
        assert scan.store.received["range"] == 75 * MIB and scan.ranges() == 4
        assert handles[0].pread(MIB, 0) == scan.contents[0][:MIB]  # another scan, in the usual direction

    scan.bucket.transaction(work)


def test_small_segments_are_fetched_ahead_from_the_second_on() -> None:
    scan = Scan([5000] * 50)
    handles = [scan.files.open_read(path) for path in scan.paths]
    assert handles[0].pread(5000, 0) == scan.contents[0]
    assert scan.ranges() == 1
    assert handles[7].pread(5000, 0) == scan.contents[7]
    assert scan.ranges() == 2
    for number in range(1, 5):
        assert handles[number].pread(5000, 0) == scan.contents[number]
    until(lambda: scan.ranges() >= AHEAD_BLOCKS)
    for number in range(5, 50):
        assert handles[number].pread(9000, 0) == scan.contents[number]
    assert scan.ranges() <= 52


def test_reads_at_random_and_scans_at_the_same_time_return_the_bytes(monkeypatch) -> None:
    for name, size in {
        "BLOCK_BYTES": 4096,
        "BULK_BYTES": 1024,
        "FIRST_BYTES": 256,
        "HELD_BYTES": 6000,
    }.items():
        monkeypatch.setattr(reading, name, size)
    choose = random.Random(3)
    scan = Scan([choose.randrange(1, 30_000) for _ in range(12)])
    handles = [scan.files.open_read(path) for path in scan.paths]
    places = [(0, 0), (3, 0), (5, 100)]
    for _ in range(1500):
        at = choose.randrange(len(places))
        number, position = places[at]
        content, size = scan.contents[number], choose.choice([1, 300, 1024, 5000])
        assert handles[number].pread(size, position) == content[position : position + size]
        position += size
        if choose.random() < 0.05:
            number, position = choose.randrange(12), choose.randrange(30_000)
            if choose.random() < 0.5:
                handles[number] = scan.files.open_read(scan.paths[number])
            if choose.random() < 0.3:
                handles[number].will_read_back()
        if position >= len(scan.contents[number]):
            number, position = (number + 1) % 12, 0
        places[at] = number, position


def test_open_files_hold_bounded_memory() -> None:
    scan = Scan([BLOCK_BYTES + 1] * 12)
    reads = ObjectReads(scan.bucket.store)
    files = BucketFiles(scan.bucket.url, scan.files.snapshot, reads)
    handles = [files.open_read(path) for path in scan.paths]
    for handle, content in zip(handles, scan.contents, strict=True):
        assert handle.pread(100, 0) == content[:100]
        assert handle.pread(BLOCK_BYTES, 100) == content[100 : 100 + BLOCK_BYTES]
        assert sum(len(handle._held[1]) for handle in handles) <= HELD_BYTES
    reads.close()


def test_pieces_of_short_reads_stay_in_memory_up_to_a_bound(monkeypatch) -> None:
    monkeypatch.setattr(reading, "FIRST_BYTES", 256)
    monkeypatch.setattr(reading, "PIECES_BYTES", 20 * 256)
    choose = random.Random(4)
    scan = Scan([10_000, 200_000])
    content, handle = scan.contents[1], scan.files.open_read(scan.paths[1])
    handle.will_read_pieces()

    def read(position: int, size: int) -> int:
        before = scan.ranges()
        assert handle.pread(size, position) == content[position : position + size]
        return scan.ranges() - before

    assert [read(250, 5), read(250, 10), read(0, 256), read(300, 100), read(255, 2)] == [1, 1, 0, 0, 0]
    for _ in range(500):
        read(choose.randrange(200_000), choose.choice([1, 100, 256, 300, 5000]))
        assert len(handle._pieces) <= 20
        assert scan.files._reads._held_bytes <= 20 * 256 + 5000
    handle.free()
    assert read(250, 10) == 2


def test_pieces_may_be_freed_while_they_are_read(monkeypatch) -> None:
    """Another open file frees them, without the lock of this one."""

    class Freed(OrderedDict[int, bytes]):
        def __len__(self) -> int:
            count = super().__len__()
            handle.free()
            return count

    monkeypatch.setattr(reading, "PIECES_BYTES", 2 * reading.FIRST_BYTES)
    scan = Scan([MIB])
    content, handle = scan.contents[0], scan.files.open_read(scan.paths[0])
    handle.will_read_pieces()
    handle._pieces = Freed({-1: b"", -2: b""})
    assert handle.pread(5, 100) == content[100:105]


def test_a_file_that_is_closed_gives_up_what_is_ahead() -> None:
    scan = Scan([40 * MIB])
    handle = scan.files.open_read(scan.paths[0])
    for position in range(0, 8 * MIB, MIB):
        handle.pread(MIB, position)
    handle.close()
    assert not scan.files._reads._blocks


def test_a_handle_that_is_collected_as_garbage_waits_for_no_lock() -> None:
    """A thread that starts may collect it, while the starting thread has the lock."""
    scan = Scan([40 * MIB])
    reads = scan.files._reads
    handle = scan.files.open_read(scan.paths[0])
    for position in range(0, 8 * MIB, MIB):
        handle.pread(MIB, position)
    assert reads._blocks and reads._held_bytes
    with reads._lock:
        collector = threading.Thread(target=handle.__del__)
        collector.start()
        collector.join(10)
        assert not collector.is_alive()
    scan.files.open_read(scan.paths[0]).pread(10, 0)
    assert not reads._blocks and reads._held_bytes == reading.FIRST_BYTES
