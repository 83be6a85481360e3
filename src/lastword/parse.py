"""Read sizes, durations, timestamps and paths that a user typed or passed; units.py shows them.

Sizes are whole bytes, timestamps whole milliseconds since 1970 in UTC. A bare number is a time in seconds,
but in milliseconds where Kafka defines it so: in settings whose names end in `.ms`, and in timestamps.
"""

from __future__ import annotations

import math
import operator
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import Literal

from lastword.errors import UsageError, hint
from lastword.units import EPOCH, GIB, KIB, MIB, to_time

Duration = int | float | str | timedelta
"""A time: seconds, a text with a unit such as "7d", or a timedelta."""

_BYTE_UNITS = {"": 1, "b": 1, "kib": KIB, "mib": MIB, "gib": GIB, "tib": 1 << 40}
_UNIT_NAMES = {"b": "B", "kib": "KiB", "mib": "MiB", "gib": "GiB", "tib": "TiB"}
_MS_UNITS = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SECOND_UNITS = {**_MS_UNITS, "": 1000}
_QUANTITY = re.compile(r"\s*([+-]?\d+(?:_\d+)*)(\.\d+)?\s*([A-Za-z]*)\s*", re.ASCII)


def _parse(text: str | int, units: dict[str, int], kind: str) -> int:
    if isinstance(text, int) and not isinstance(text, bool):
        return text
    match = _QUANTITY.fullmatch(text) if isinstance(text, str) else None
    scale = units.get(match[3].lower()) if match else None
    if match is None or scale is None:
        names = " ".join(_UNIT_NAMES.get(name, name) for name in units if name)
        raise UsageError(
            f"{text!r} is not a {kind}", remedy=f"a whole number, or one with a unit of: {names}"
        )
    whole, part = int(match[1]) * scale, match[2]
    if part is None:
        return whole
    tenths: int = 10 ** (len(part) - 1)
    fraction, rest = divmod(int(part[1:]) * scale, tenths)
    if rest:
        raise UsageError(
            f"{text!r} is not a whole number of {'bytes' if units is _BYTE_UNITS else 'milliseconds'}",
            remedy="round it",
        )
    return whole - fraction if match[1].startswith("-") else whole + fraction


def parse_bytes(text: str | int) -> int:
    """Parse a size in bytes: `"128MiB"`, `"1.5 GiB"` or a number of bytes."""
    return _parse(text, _BYTE_UNITS, "size")


def parse_duration_ms(duration: Duration) -> int:
    """Return a duration in milliseconds: `"7d"`, `"250ms"`, a number of seconds, or a timedelta."""
    if isinstance(duration, timedelta):
        return duration // timedelta(milliseconds=1)
    if isinstance(duration, float) and math.isfinite(duration):
        return round(duration * 1000)
    milliseconds = _parse(duration, _SECOND_UNITS, "duration")  # type: ignore[arg-type]
    return milliseconds if isinstance(duration, str) else milliseconds * 1000


def parse_setting_ms(duration: str | int | timedelta) -> int:
    """Return the value of a setting in milliseconds. As in Kafka, a bare number is milliseconds."""
    if isinstance(duration, timedelta):
        return duration // timedelta(milliseconds=1)
    return _parse(duration, _MS_UNITS, "duration")


def parse_seconds(name: str, given: object) -> float:
    """Return the argument `name`, a duration of 0 or more, in seconds."""
    if isinstance(given, float) and given >= 0:
        return given
    try:
        seconds = parse_duration_ms(given) / 1000  # type: ignore[arg-type]
    except (UsageError, OverflowError):
        seconds = -1
    if seconds < 0:
        raise UsageError(
            f"{name}={given!r} is not a time", remedy=f'give 0 seconds or more: {name}=1, {name}="90s"'
        )
    return seconds


def check_count(name: str, given: object, of: str, *, least: int = 0, most: int | None = None) -> int:
    """Return the argument `name` as an int; UsageError unless it is a number from `least` to `most`."""
    number = as_int(given)
    if number is None or number < least:
        raise UsageError(f"{name}={given!r} is not a number of {of}", remedy=f"give {least} or more")
    if most is not None and number > most:
        raise UsageError(f"{name}={number} is too many {of}", remedy=f"give at most {most}")
    return number


def one_of(given: str, known: tuple[str, ...], kind: str) -> str:
    """Return `given`; UsageError with the nearest of the known words if it is none of them."""
    if given not in known:
        near = hint(given, known) if isinstance(given, str) else ""
        raise UsageError(f"unknown {kind} {given!r}{near}", remedy=f"one of {', '.join(known)}")
    return given


def check_path(name: str, path: object) -> str:
    """Return the argument `name` as a str, with a home directory for `~`; UsageError unless it is a path."""
    if isinstance(path, (str, os.PathLike)) and isinstance(text := os.fspath(path), str) and text:
        return os.path.expanduser(text)  # noqa: PTH111  paths are strings here
    raise UsageError(f"{name}={path!r} is not a path", remedy="give a str or a pathlib.Path")


_shows_as_typed: ContextVar[bool] = ContextVar("_shows_as_typed", default=False)


@contextmanager
def relative_paths() -> Iterator[None]:
    """Keep relative paths in the block: a command shows them as they were typed.

    A command never changes its working directory. A program may, and its open files must stay the same.
    """
    token = _shows_as_typed.set(True)
    try:
        yield
    finally:
        _shows_as_typed.reset(token)


def stable_path(path: str) -> str:
    """Return a path that does not depend on the working directory, except in a block `relative_paths`."""
    if os.path.isabs(path) or _shows_as_typed.get():  # noqa: PTH117  pathlib takes 4 ms to load
        return path
    try:
        joined = os.path.join(os.getcwd(), path)  # noqa: PTH109
    except OSError:  # the working directory was removed; nothing can be opened there
        return path
    return joined if ".." in path.split("/") else os.path.normpath(joined)  # links may be before a `..`


def as_int(given: object) -> int | None:
    """Return a whole number, also one of NumPy, as an int; None for any other object, and for a bool."""
    if type(given) is int:
        return given
    if isinstance(given, bool) or getattr(getattr(given, "dtype", None), "kind", "") == "b":
        return None  # NumPy 1.26 takes its bool for an index
    try:
        return operator.index(given)  # type: ignore[arg-type]  # another type is a TypeError
    except TypeError:
        return None


def to_ms(when: datetime | int) -> int:
    """Convert a time to milliseconds since 1970. A datetime must have a time zone; it is rounded down."""
    if isinstance(when, datetime):
        if when.tzinfo is None or when.utcoffset() is None:
            raise UsageError(
                f"{when.isoformat()} has no time zone",
                remedy="use an aware datetime, such as datetime.now(UTC)",
            )
        return (when - EPOCH) // timedelta(milliseconds=1)
    milliseconds = as_int(when)
    if milliseconds is None:
        raise UsageError(
            f"{when!r} is not a timestamp", remedy="milliseconds since 1970, or an aware datetime"
        )
    return milliseconds


def parse_when(text: str, *, now_ms: int) -> Literal["earliest", "latest"] | int | datetime:
    """Parse a position in a log: `earliest`, `latest`, an offset, a time, or an age (`90m`).

    A time is ISO 8601 with a zone, a date with a zone (`2026-11-20Z`), or `@` and milliseconds since 1970.

    Returns:
        An argument for `Topic.read`: the word, an int (offset), or an aware datetime.
    """
    word = text.strip()
    if word == "earliest" or word == "latest":
        return word  # type: ignore[return-value]
    if re.fullmatch(r"\d+", word, re.ASCII):
        return int(word)
    remedy = (
        "earliest, latest, an offset, a time with a zone (2026-11-20T10:02:11Z, 2026-11-20Z), milliseconds "
        "(@1795168931000), or an age (90m)"
    )
    if re.fullmatch(r"@\d+", word, re.ASCII):
        when = to_time(int(word[1:]))
        if when is None:
            raise UsageError(f"{text!r} is after any date", remedy=remedy)
        return when
    if date := re.fullmatch(r"(\d{4}-\d\d-\d\d)(Z|[+-]\d\d:?\d\d)", word, re.ASCII):
        word = f"{date[1]}T00:00{date[2]}"
    if re.fullmatch(r"\d+(\.\d+)?\s*(ms|s|m|h|d)", word, re.ASCII):
        when = to_time(now_ms - parse_duration_ms(word))
        if when is None:
            raise UsageError(f"{text!r} is before any date", remedy=remedy)
        return when
    try:
        when = datetime.fromisoformat(word)
    except ValueError:
        raise UsageError(f"{text!r} is not a position in a log", remedy=remedy) from None
    if when.tzinfo is None:
        raise UsageError(f"{text!r} has no time zone", remedy="add Z or an offset such as +02:00")
    return when


# ---------------------------------------------------------------- files of properties


def read_properties(path: str) -> dict[str, str]:
    """Return the properties of a file in Java's format. UsageError if it cannot be read."""
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123 - a path of the caller, not of the log
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(f"cannot read {path}: {why}", remedy="check the path", file=path) from None
    properties = {}
    for line in re.sub(r"(?<!\\)((?:\\\\)*)\\\n[ \t\f]*", r"\1", text).splitlines():
        line = line.lstrip()
        if line and line[0] not in "#!":
            match = re.match(r"((?:[^\s:=\\]|\\.)+)\s*[=:\s]?\s*(.*)", line)
            if match is not None:
                properties[unescaped(match[1])] = unescaped(match[2])
    return properties


def unescaped(text: str) -> str:
    """Return a text of Java's format without its escapes."""
    plain = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}

    def one(match: re.Match[str]) -> str:
        code = match[1]
        return chr(int(code[1:], 16)) if len(code) == 5 else plain.get(code, code)

    return re.sub(r"\\(u[0-9a-fA-F]{4}|.)", one, text)
