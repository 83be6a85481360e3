"""Sizes, durations and timestamps as text, with their constants; parse.py reads them.

Sizes are whole bytes, durations and timestamps whole milliseconds; timestamps count from 1970 in UTC.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from lastword.wire import INT64_MAX

NO_TIMESTAMP = -1
"""Kafka's mark for a record, or a batch, without a timestamp."""

NEVER = INT64_MAX
"""A timestamp, or an offset, that is never reached."""

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def format_bytes(size_bytes: int) -> str:
    """Format a size for reading, with two digits or more: `61 B`, `1.9 GiB`, `214 MiB`."""
    value, sign = float(abs(size_bytes)), "-" if size_bytes < 0 else ""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 999.5 or unit == "TiB":
            break
        value /= 1024
    digits = 1 if value < 9.95 and unit != "B" else 0
    return f"{sign}{value:.{digits}f} {unit}"


def format_freed(verb: str, freed_bytes: int, about: str = "") -> str:
    """Format what a rewrite frees: `free 1.0 KiB`, or `add 76 B` if the new files are larger.

    Args:
        verb: free, frees or freed.
        freed_bytes: The size.
        about: A sign in front of the size.
    """
    verb = verb if freed_bytes >= 0 else {"free": "add", "frees": "adds", "freed": "added"}[verb]
    return f"{verb} {about}{format_bytes(abs(freed_bytes))}"


def format_duration(duration_ms: float) -> str:
    """Format a duration for reading, with two digits or more: `350 ms`, `4.7 s`, `24 h`, `7 d`."""
    value, unit = float(duration_ms), "ms"
    for larger, scale, at_least in (("s", 1000, 1), ("m", 60, 2), ("h", 60, 2), ("d", 24, 3)):
        if abs(value) < scale * at_least:
            break
        value, unit = value / scale, larger
    digits = 0 if unit == "ms" or abs(value) >= 9.95 or value == int(value) else 1
    return f"{value:.{digits}f} {unit}"


def exact_bytes(size_bytes: int) -> str:
    """Return the shortest text that `parse_bytes` reads back as the same number: `128MiB`, `1000`."""
    return _exact(size_bytes, (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)))


def exact_duration(duration_ms: int) -> str:
    """Return the shortest text that `parse_setting_ms` reads back as the same number: `7d`, `1500ms`."""
    return _exact(duration_ms, (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)))


def _exact(value: int, units: tuple[tuple[str, int], ...]) -> str:
    for unit, scale in units:
        if value >= scale and value % scale == 0:
            return f"{value // scale}{unit}"
    return str(value)


def to_time(timestamp_ms: int) -> datetime | None:
    """Convert a timestamp to a datetime in UTC; None for `NO_TIMESTAMP`, and if it is out of range."""
    if timestamp_ms == NO_TIMESTAMP:
        return None
    try:
        return EPOCH + timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return None


def format_time(timestamp_ms: int) -> str:
    """Format a timestamp: `2026-11-20 10:02:11Z`, with milliseconds unless they are zero."""
    when = to_time(timestamp_ms)
    if when is None:
        return "-" if timestamp_ms == NO_TIMESTAMP else f"{timestamp_ms} ms"
    text = when.strftime("%Y-%m-%d %H:%M:%S") if when.year >= 1000 else when.isoformat(" ")[:19]
    return f"{text}.{when.microsecond // 1000:03d}Z" if when.microsecond else f"{text}Z"
