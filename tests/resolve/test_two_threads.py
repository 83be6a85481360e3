"""Two threads on one partition: the same result as with one thread, bit for bit, and no thread is left."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lastword.errors import CorruptBatchError
from lastword.records.batch import BatchBuilder
from lastword.records.chunk import Chunk
from lastword.resolve import RunningResolution, resolve
from tests.naive.pack import Record, encode_batch
from tests.naive.strategies import T
from tests.resolve.support import MemorySegment, segments
from tests.resolve.test_resolver import BIG, synthetic


def packed(codec: int, count: int = 3000) -> list[MemorySegment]:
    log = []
    for base in range(0, count, 50):
        builder = BatchBuilder(codec)
        for offset in range(base, base + 50):
            value = None if offset % 11 == 0 else b"v" * (offset % 90)
            builder.append(T + offset, b"k%d" % (offset * 7919 % 331), value, offset_delta=offset - base)
        log.append(builder.build(base))
    return segments(log, [17, 18, 40], chunk_bytes=1500)


class WithoutSlots(MemorySegment):
    """A segment whose chunks are valid only until the next chunk, as those of other sources may be."""

    def chunk_reader(self, **options: Any) -> Iterator[Chunk]:
        yield from super().chunk_reader(**options)


def same(first: Any, second: Any) -> bool:
    """Return whether all fields except the time are equal.

    Equal `probes` show that the order in the map is equal, too.
    """
    plain = [
        {
            name: getattr(resolution, name)
            for name in type(resolution).__dataclass_fields__
            if name not in ("dead", "seconds")
        }
        for resolution in (first, second)
    ]
    return plain[0] == plain[1] and first.dead.offsets().tolist() == second.dead.offsets().tolist()


@pytest.mark.parametrize("map_bytes", [BIG, 6000])
@pytest.mark.parametrize("now_ms", [None, T])
@pytest.mark.parametrize(
    "sources",
    [lambda: packed(0), lambda: packed(4), lambda: packed(3), lambda: synthetic(1, 3000, 700, 500)],
    ids=["none", "zstd", "lz4", "many"],
)
def test_two_threads_find_what_one_finds(
    sources: Callable[[], list[MemorySegment]], now_ms: int | None, map_bytes: int
) -> None:
    resolutions = [
        resolve(sources(), map_bytes=map_bytes, salt=b"s", now_ms=now_ms, threads=threads)
        for threads in (1, 2)
    ]
    assert same(*resolutions)
    assert (resolutions[0].passes > 1) == (map_bytes < BIG)


def test_sources_without_slots() -> None:
    plain = synthetic(2, 2000, 300, 400)
    others = [WithoutSlots(source.data, source.base_offset, source.next_offset, 700) for source in plain]
    first, second = (
        resolve(sources, map_bytes=BIG, salt=b"s", now_ms=None, threads=threads)
        for sources, threads in ((plain, 1), (others, 2))
    )
    assert first.segments == second.segments


def test_a_running_resolution_with_two_threads() -> None:
    resolutions = []
    for threads in (1, 2):
        running = RunningResolution(map_bytes=BIG, salt=b"s")
        for source in packed(4):
            running.add_segments([source], threads=threads)
        resolutions.append(running.resolution())
    assert same(*resolutions)


def helpers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("lastword-resolve")]


def test_damage_ends_both_threads() -> None:
    """The error is the first error of a run with one thread, wherever the other thread was."""
    sources = packed(0)
    for at in (0, 1700, len(sources[2].data) - 5):
        data = bytearray(sources[2].data)
        data[at + 3] ^= 1
        bad = [*sources[:2], MemorySegment(bytes(data), sources[2].base_offset, sources[2].next_offset, 1500)]
        texts = []
        for threads in (1, 2):
            with pytest.raises(CorruptBatchError) as caught:
                resolve(bad, map_bytes=BIG, salt=b"", now_ms=None, threads=threads)
            texts.append(str(caught.value))
            assert not helpers()
        assert texts[0] == texts[1]


def test_a_malformed_record_is_told_after_the_chunks_before() -> None:
    log = [encode_batch([Record(n, T, b"k", b"v" * 300)]) for n in range(40)]
    bad = bytearray(encode_batch([Record(40, T, b"k", b"v")]))
    from tests.naive.pack import seal

    bad[61 + 4] = 0x7F  # the length of its key
    sources = segments(
        [*log, seal(bytes(bad)), *(encode_batch([Record(n, T, b"k", b"v")]) for n in range(41, 60))], [], 700
    )
    for threads in (1, 2):
        done: list[int] = []
        with pytest.raises(CorruptBatchError, match="offset 40: malformed record"):
            resolve(
                sources, map_bytes=BIG, salt=b"", now_ms=None, threads=threads,
                progress=lambda now, _, done=done: done.append(now),  # type: ignore[misc]
            )  # fmt: skip
        assert len(done) >= 13
    assert not helpers()


def test_a_caller_that_stops_leaves_no_thread() -> None:
    class Stop(Exception):
        pass

    def stop(done: int, total: int) -> None:
        if done > total // 2:
            raise Stop

    with pytest.raises(Stop):
        resolve(packed(4), map_bytes=BIG, salt=b"", now_ms=None, threads=2, progress=stop)
    assert not helpers()
