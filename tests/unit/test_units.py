from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastword.clock import ManualClock, SystemClock
from lastword.errors import UsageError
from lastword.parse import (
    Duration,
    parse_bytes,
    parse_duration_ms,
    parse_seconds,
    parse_setting_ms,
    parse_when,
    to_ms,
)
from lastword.units import (
    NO_TIMESTAMP,
    exact_bytes,
    exact_duration,
    format_bytes,
    format_duration,
    format_freed,
    format_time,
    to_time,
)
from lastword.values import in_groups, partitions_text


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("128MiB", 128 << 20),
        ("1.5 GiB", 3 << 29),
        ("7", 7),
        (" 4 KiB ", 4096),
        (9, 9),
        ("-1", -1),
        ("0.5KiB", 512),
    ],
)
def test_sizes(text: str | int, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "1MB", "1 2", "0.3", "1e3", "1 m", "١", True, None, 1.5])
def test_what_is_no_size(text: object) -> None:
    with pytest.raises(UsageError):
        parse_bytes(text)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [1.5, None, True])
def test_a_value_of_another_type_is_refused_with_the_units(value):
    for parse, unit in ((parse_bytes, "KiB"), (parse_setting_ms, "ms")):
        with pytest.raises(UsageError, match=str(value)) as caught:
            parse(value)
        assert unit in caught.value.remedy
    with pytest.raises(UsageError, match="round it"):
        parse_duration_ms("0.3ms")
    for wrong in (None, True, math.nan, math.inf, "soon"):
        with pytest.raises(UsageError, match=f"{wrong!r} is not a duration"):
            parse_duration_ms(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("7d", 604_800_000),
        ("90m", 5_400_000),
        ("250 ms", 250),
        ("1.5s", 1500),
        ("-1", -1000),
        (5, 5000),
        (0.25, 250),
    ],
)
def test_durations(text: str | float, ms: int) -> None:
    """A bare number is seconds; in a setting, milliseconds."""
    assert parse_duration_ms(text) == ms
    assert parse_setting_ms("7d") == 604_800_000 and parse_setting_ms("5") == parse_setting_ms(5) == 5


@pytest.mark.parametrize("one", [1, 1.0, "1", "1s", "1000ms", timedelta(seconds=1)])
def test_seconds_of_an_argument(one: Duration) -> None:
    assert parse_seconds("timeout", one) == 1
    for wrong in (-1, "-1s", None, True, math.nan, "soon"):
        with pytest.raises(UsageError, match=r"timeout=.* is not a time"):
            parse_seconds("timeout", wrong)


@given(st.integers(0, 2**62))
def test_exact_texts_read_back(number: int) -> None:
    assert parse_bytes(exact_bytes(number)) == number
    assert parse_setting_ms(exact_duration(number)) == number


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (61, "61 B"),
        (1023, "1.0 KiB"),
        (2_040_109_465, "1.9 GiB"),
        (214 << 20, "214 MiB"),
        (8 << 30, "8.0 GiB"),
        (41 << 30, "41 GiB"),
        (-2048, "-2.0 KiB"),
    ],
)
def test_sizes_for_reading(size: int, text: str) -> None:
    assert format_bytes(size) == text


def test_what_is_freed_is_never_negative() -> None:
    assert format_freed("freed", 2048) == "freed 2.0 KiB" and format_freed("free", 61, "~ ") == "free ~ 61 B"
    assert [format_freed(verb, -76) for verb in ("free", "frees", "freed")] == [
        "add 76 B",
        "adds 76 B",
        "added 76 B",
    ]


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0 ms"),
        (350, "350 ms"),
        (4700, "4.7 s"),
        (15_000, "15 s"),
        (86_400_000, "24 h"),
        (604_800_000, "7 d"),
    ],
)
def test_durations_for_reading(ms: int, text: str) -> None:
    assert format_duration(ms) == text


def test_times() -> None:
    assert format_time(1_795_168_932_000) == "2026-11-20 10:02:12Z"
    assert format_time(1_795_168_932_007) == "2026-11-20 10:02:12.007Z"
    assert format_time(NO_TIMESTAMP) == "-"
    assert format_time(2**62) == f"{2**62} ms"
    assert to_time(NO_TIMESTAMP) is None


@given(st.integers(-(10**13), 10**13))
def test_moments_keep_their_milliseconds(ms: int) -> None:
    when = to_time(ms)
    assert ms == NO_TIMESTAMP or (when is not None and to_ms(when) == ms)


def test_a_datetime_without_zone_is_refused() -> None:
    with pytest.raises(UsageError, match="no time zone"):
        to_ms(datetime(2026, 11, 20))
    assert to_ms(datetime(1970, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))) == 0


def test_places_in_a_log() -> None:
    now_ms = 1_795_168_932_000
    assert parse_when("earliest", now_ms=now_ms) == "earliest"
    assert parse_when("latest", now_ms=now_ms) == "latest"
    assert parse_when("42", now_ms=now_ms) == 42
    assert parse_when("90m", now_ms=now_ms) == datetime(2026, 11, 20, 8, 32, 12, tzinfo=UTC)
    assert parse_when("@1795168931250", now_ms=now_ms) == datetime(
        2026, 11, 20, 10, 2, 11, 250_000, tzinfo=UTC
    )
    assert parse_when("2026-11-20Z", now_ms=now_ms) == datetime(2026, 11, 20, tzinfo=UTC)
    assert parse_when("2026-11-20T10:02:11Z", now_ms=now_ms) == datetime(2026, 11, 20, 10, 2, 11, tzinfo=UTC)
    for text in ("2026-11-20T10:02:11", "yesterday", "-5", "", "1.5", "99999999999999999d"):
        with pytest.raises(UsageError):
            parse_when(text, now_ms=now_ms)


def test_clocks() -> None:
    clock = ManualClock(1000)
    clock.advance(500)
    assert (clock.now_ms(), clock.monotonic()) == (1500, 0.5)
    clock.set_date(10)
    assert (clock.now_ms(), clock.monotonic()) == (10, 0.5)
    assert abs(SystemClock().now_ms() - to_ms(datetime.now(UTC))) < 5000


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([0], "it has partition 0"),
        (range(3), "it has partitions 0 to 2"),
        ([4, 0, 2], "it has partitions 0, 2, 4"),
        (range(0, 5000, 2), "it has partitions 2500 from 0 to 4998"),
    ],
)
def test_partitions_of_a_topic(numbers: Collection[int], text: str) -> None:
    assert partitions_text(numbers) == text


def test_grouping_looks_at_each_file_once() -> None:
    """The bytes of a group were added up for each of its files: 50 million steps for 10,000 small files."""
    seen: Counter[int] = Counter()

    class File:
        def __init__(self, number: int) -> None:
            self.number = number

        @property
        def size(self) -> int:
            seen[self.number] += 1
            return 7 if self.number else 1000

    files = [File(number) for number in range(50)]
    groups = list(in_groups(files, lambda file: file.size, 100))
    assert [file for group, _ in groups for file in group] == files and set(seen.values()) == {1}
    assert [size_bytes for _, size_bytes in groups] == [1000, 105, 105, 105, 28]
