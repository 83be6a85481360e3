"""Which segments may go: the three passes, with their limits, against a plain form of Kafka's rules."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lastword.config import TopicConfig
from lastword.retention import BYTES, LOG_START, MS, NO_POLICY, WITHIN
from tests.retention.support import DAY, HOUR, NOW, Fake, decided, fakes, policy


def test_no_policy_removes_nothing() -> None:
    deletion = decided(fakes((100, 30 * DAY), (100, 0)), TopicConfig(retention_bytes=0), log_start=10)
    assert not deletion.removes and deletion.codes == (NO_POLICY,) and deletion.log_start == 10


def test_age_is_strict() -> None:
    config = policy("delete", retention_ms=HOUR)
    assert not decided(fakes((100, HOUR), (100, 0)), config).removes
    deletion = decided(fakes((100, HOUR + 1), (100, 0)), config)
    assert (deletion.segments, deletion.log_start, deletion.freed_bytes) == (
        1,
        10,
        100,
    ) and deletion.codes == (MS,)


def test_age_without_timestamps_is_that_of_the_file() -> None:
    config = policy("delete", retention_ms=HOUR)
    old = Fake(0, largest_timestamp=-1, mtime_ms=NOW - 2 * HOUR)
    new = Fake(10, largest_timestamp=-1, mtime_ms=NOW)
    assert decided([old, new], config).segments == 1


def test_size_leaves_at_least_the_limit() -> None:
    segments = fakes((100, 0), (100, 0), (100, 0))
    for limit, goes in ((300, 0), (201, 0), (200, 1), (101, 1), (100, 2), (1, 2), (0, 3)):
        assert decided(segments, policy("delete", retention_bytes=limit)).segments == goes, limit


def test_size_counts_what_the_log_start_left() -> None:
    segments = fakes((1000, 0), (100, 0), (100, 0))
    deletion = decided(segments, policy("delete", retention_bytes=200), log_start=10)
    assert (deletion.segments, deletion.codes) == (1, (LOG_START,))
    deletion = decided(segments, policy("delete", retention_bytes=100), log_start=10)
    assert (deletion.segments, deletion.codes) == (2, (LOG_START, BYTES))


def test_log_start_needs_a_successor_at_or_below_it() -> None:
    segments = fakes((100, 0), (100, 0), (100, 0))
    for start, goes in ((0, 0), (9, 0), (10, 1), (19, 1), (20, 2), (29, 2), (30, 2)):
        deletion = decided(segments, policy("compact"), log_start=start, log_end=30)
        assert deletion.segments == goes and deletion.log_start == start, start


def test_the_last_segment_goes_if_it_holds_records() -> None:
    config = policy("delete", retention_ms=HOUR)
    deletion = decided(fakes((100, 2 * HOUR), (100, 2 * HOUR)), config)
    assert (deletion.segments, deletion.log_start) == (2, 20)
    deletion = decided(fakes((100, 2 * HOUR), (0, 2 * HOUR)), config)
    assert (deletion.segments, deletion.log_start) == (1, 10)
    assert decided(fakes((0, 2 * HOUR)), config).reason == "the log is empty"


def test_compaction_alone_has_no_limits() -> None:
    config = policy("compact", retention_ms=1, retention_bytes=1)
    deletion = decided(fakes((100, DAY), (100, DAY)), config)
    assert (
        not deletion.removes
        and deletion.codes == (WITHIN,)
        and "cleanup.policy is compact" in deletion.reason
    )


def test_reasons_can_be_read() -> None:
    config = policy("delete", retention_ms=7 * DAY, retention_bytes=150)
    deletion = decided(fakes((100, 8 * DAY), (100, 0)), config)
    assert str(deletion) == (
        "users-0: 1 segment removed, 100 B, log start 10: retention.ms 7 d, "
        "newest record 2023-11-06 22:13:20Z"
    )
    deletion = decided(fakes((100, DAY), (100, 0)), config)
    assert (
        "may go in 6 d by retention.ms" in deletion.reason
        and "200 B of retention.bytes 150 B" in deletion.reason
    )
    assert deletion.to_dict()["segments"] == 0


class TestClocks:
    """reliability 18: the effect of a date that jumps. As in a broker, the date decides."""

    def test_18_a_date_set_back_keeps_more(self) -> None:
        config = policy("delete", retention_ms=HOUR)
        segments = fakes((100, 2 * HOUR), (100, 0))
        assert decided(segments, config).segments == 1
        assert decided(segments, config, now_ms=NOW - DAY).segments == 0

    def test_18_ten_years_ahead_removes_what_is_old_then_and_keeps_the_end(self) -> None:
        deletion = decided(
            fakes((100, 0), (100, 0)), policy("delete", retention_ms=DAY), now_ms=NOW + 3650 * DAY
        )
        assert (deletion.segments, deletion.log_start) == (2, 20)

    def test_18_timestamps_of_the_future_never_expire_by_age(self) -> None:
        segments = [Fake(0, largest_timestamp=2**62), Fake(10)]
        assert not decided(segments, policy("delete", retention_ms=0), now_ms=NOW).removes


def plainly(
    segments: list[Fake], log_start: int, log_end: int, top: int, now: int, limit: int, age: int
) -> int:
    """Apply the rules of the specification on lists, one pass after another."""
    left = list(segments)

    def bound(segment: Fake) -> int:
        at = segments.index(segment)
        return segments[at + 1].base_offset if at + 1 < len(segments) else log_end

    def drop(allowed) -> None:  # type: ignore[no-untyped-def]
        while left:
            first = left[0]
            if bound(first) > top or (first is segments[-1] and not first.size) or not allowed(first):
                return
            left.pop(0)

    drop(lambda s: s is not segments[-1] and bound(s) <= log_start)
    if limit >= 0:
        total = sum(s.size for s in left)
        if total >= limit:
            diff = [total - limit]

            def by_size(segment: Fake) -> bool:
                if diff[0] - segment.size < 0:
                    return False
                diff[0] -= segment.size
                return True

            drop(by_size)
    if age >= 0:
        drop(lambda s: now - (s.largest_timestamp if s.largest_timestamp >= 0 else s.mtime_ms) > age)
    return len(segments) - len(left)


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(-1, 20), st.integers(0, 20), st.integers(1, 4)), min_size=1
    ),
    st.data(),
)
def test_as_the_specification_says(parts: list[tuple[int, int, int, int]], data: st.DataObject) -> None:
    segments, base = [], data.draw(st.integers(0, 3))
    for size, stamp, mtime, step in parts:
        segments.append(Fake(base, size, stamp, mtime))
        base += step
    log_end = base if segments[-1].size else segments[-1].base_offset
    log_start = data.draw(st.integers(segments[0].base_offset, log_end))
    top = data.draw(st.integers(log_start, log_end))
    limit, age = data.draw(st.integers(-1, 12)), data.draw(st.integers(-1, 12))
    now = data.draw(st.integers(0, 25))
    config = policy("delete", retention_bytes=limit, retention_ms=age)
    deletion = decided(segments, config, log_start=log_start, log_end=log_end, now_ms=now, upper_offset=top)
    assert deletion.segments == plainly(segments, log_start, log_end, top, now, limit, age)
    assert log_start <= deletion.log_start <= max(top, log_start)
    assert deletion.freed_bytes == sum(s.size for s in segments[: deletion.segments])
