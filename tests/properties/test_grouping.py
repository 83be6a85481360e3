"""6D: the dirty bytes of a log, and the groups of segments that a round makes. Kafka groups by the sizes
of segments before the round, lastword by the bytes that the round keeps; the limits are the same."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import pytest

from lastword.cleaner.policy.groups import OutputLimits, group
from lastword.segment.names import MAX_RELATIVE_OFFSET
from tests.build import LogBuilder
from tests.cleaner.transactional import Producer
from tests.properties.strategies import by_strategy
from tests.properties.support import batch

HUGE = OutputLimits(segment_bytes=1 << 40, segment_index_bytes=1 << 40, index_interval_bytes=4096)


@dataclass(frozen=True)
class Facts:
    base_offset: int
    next_offset: int
    live_bytes: int = 100
    dead_records: int = 1
    tombstones_without_horizon: int = 0

    @property
    def size_bytes(self) -> int:
        return self.live_bytes + 10 * self.dead_records


def facts(count: int, live_bytes: int = 100) -> list[Facts]:
    return [Facts(100 * n, 100 * n + 100, live_bytes) for n in range(count)]


def ranges(facts: list[Facts], limits: OutputLimits) -> list[tuple[int, int]]:
    return [(segments.first, segments.last) for segments in group(facts, limits)]


def test_6D_30_31_what_is_clean_dirty_and_neither(tmp_path: Path) -> None:
    """6D.30: If the first dirty offset is the base of the active segment, the bytes below it are all bytes of
    the log without the active segment.
    6D.31: Clean bytes are those before the first dirty offset, cleanable bytes those from there to the first
    uncleanable offset; the ratio is cleanable bytes over the sum of both.

    Here: Bytes are counted by position, and no byte is counted twice. Kafka counts the segment that contains
    the first dirty offset twice.
    """
    log = LogBuilder(tmp_path, min_cleanable_dirty_ratio=0.99)
    for _ in range(4):
        for n in range(5):
            log.put(f"k{n}", "v")
        log.roll()
    (_, size), *_ = log.sizes()
    plan = log.plan(due=True)
    assert (plan.total_bytes, plan.dirty_bytes, plan.dirty_ratio) == (4 * size, 4 * size, 1.0)
    log.first_dirty = 5
    plan = log.plan(due=True)
    assert (plan.dirty_bytes, plan.dirty_ratio) == (3 * size, 0.75)
    Producer(log).put(("k0", 1))
    log.roll()
    plan = log.plan(due=True)
    assert (plan.limit, plan.dirty_bytes, plan.dirty_ratio) == (20, 3 * size, 0.75)
    log.first_dirty = 7
    plan = log.plan(due=True)
    assert plan.dirty_bytes == 3 * size - 2 * size // 5
    log.close()


@pytest.mark.parametrize(
    ("count", "limits", "most"),
    [
        (9, HUGE, 9),
        (5, replace(HUGE, segment_bytes=1), 1),
        (5, replace(HUGE, segment_index_bytes=1), 1),
        (9, replace(HUGE, segment_bytes=3 * 100 + 1), 3),
        (10, replace(HUGE, segment_bytes=3 * 100 + 1), 3),
    ],
)
def test_6D_32_33_34_as_many_as_fit(count: int, limits: OutputLimits, most: int) -> None:
    """6D.32: With huge limits there is one group with all segments in order.
    6D.33: With limits of one byte every group has one segment.
    6D.34: With limits of three segments and one byte, every group but the last has three segments.

    Here: The size of a segment is the bytes that the round keeps, not its bytes before the round.
    """
    expected = [(first, min(first + most, count) - 1) for first in range(0, count, most)]
    assert ranges(facts(count), limits) == expected


@pytest.mark.parametrize(
    ("span", "together"), [(MAX_RELATIVE_OFFSET, True), (MAX_RELATIVE_OFFSET + 1, False)]
)
def test_6D_35_37_offsets_of_a_group_fit_an_index_entry(span: int, together: bool) -> None:
    """6D.35: Segments with records whose offsets span more than 2^31 - 1 are never in one group, however
    small they are.
    6D.37: A span of exactly 2^31 - 1 offsets fits a group; a span of one more does not.

    The last offset of a group is at most 2^31 - 1 above its first base offset.
    """
    two = [Facts(0, 10), Facts(span, span + 1)]
    assert ranges(two, HUGE) == ([(0, 1)] if together else [(0, 0), (1, 1)])
    assert MAX_RELATIVE_OFFSET == (1 << 31) - 1


@by_strategy
def test_6D_36_what_became_empty_is_merged_however_far_apart(tmp_path: Path, strategy: str) -> None:
    """6D.36: Segments that cleaning left empty are grouped and merged by the next cleaning, however far
    apart they are.
    """
    far = 3_000_000_000
    directory = tmp_path / "users-0"
    directory.mkdir()
    for base in (0, far, far + 10, far + 20):
        data = batch(base, b"v", timestamp=1) if base != far + 10 else batch(base, b"w")
        (directory / f"{base:020d}.log").write_bytes(data)
    log = LogBuilder(tmp_path)
    for key in (f"k{far}", f"k{far + 10}", f"k{far + 20}", "k0"):
        log.put(key, "newest")
    log.roll()
    for _ in range(3):
        log.clean(strategy=strategy)
    assert log.offsets() == [far + 21, far + 22, far + 23, far + 24]
    assert len(log.log.segments) <= 3
    log.close()


@by_strategy
def test_6D_38_an_index_that_understates_the_data(tmp_path: Path, strategy: str) -> None:
    """6D.38: Groups are right even if a segment's offset index understates its data.

    The index files are empty. Segments are grouped by the offsets of their batches, not by their indexes.
    """
    far = 3_000_000_000
    directory = tmp_path / "users-0"
    directory.mkdir()
    for base in (0, far):
        data = b"".join(batch(base + n, b"v") for n in range(3))
        (directory / f"{base:020d}.log").write_bytes(data + batch(base + 3, b"v"))
        (directory / f"{base:020d}.index").write_bytes(b"")
        (directory / f"{base:020d}.timeindex").write_bytes(b"")
    log = LogBuilder(tmp_path)
    for base in (0, far):
        for n in range(3):
            log.put(f"k{base + n}", "newest")
    log.roll().clean(strategy=strategy)
    assert log.offsets()[:2] == [3, far + 3] and len(log.offsets()) == 8
    bases = [segment.base_offset for segment in log.log.segments]
    assert all(b - a <= MAX_RELATIVE_OFFSET or a == 0 for a, b in pairwise(bases))
    log.close()


@by_strategy
def test_6D_39_a_segment_too_wide_is_split_when_it_is_opened(tmp_path: Path, strategy: str) -> None:
    """6D.39: A segment whose offsets overflow an index entry is split, without loss, and each part can be
    cleaned.

    Here: The segment is split when the log is opened, before any cleaning. Kafka splits it when a cleaning
    finds it, and aborts the cleaning.
    """
    far = 1 << 31
    directory = tmp_path / "users-0"
    directory.mkdir()
    data = batch(0, b"v") + batch(1, b"v") + batch(far, b"v") + batch(far + 1, b"v")
    (directory / f"{0:020d}.log").write_bytes(data)
    (directory / f"{far + 2:020d}.log").write_bytes(batch(far + 2, b"v"))
    log = LogBuilder(tmp_path)
    log.put("k0", "newest").put(f"k{far}", "newest").roll()
    assert [base for base, _ in log.sizes()][:3] == [0, far, far + 2]
    log.clean(strategy=strategy)
    assert log.offsets() == [1, far + 1, far + 2, far + 3, far + 4]
    log.close()
