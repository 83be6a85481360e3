"""One option: text in, value out, or `Problem` with the end of a sentence that says what it may hold."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from lastword.errors import LastwordError, nearest
from lastword.parse import parse_bytes, parse_duration_ms
from lastword.spark.option_values import EARLIEST, LATEST, Bound, Offsets

Problem = ValueError
"""Collected, and told all at once."""


def hint(name: str, known: Iterable[str]) -> str:
    """`; nearest: x` for the known name that was probably meant (compared without case), or nothing."""
    names = {one.lower(): one for one in known}
    near = nearest(name.lower(), names)
    return f"; nearest: {names[near]}" if near else ""


def flag(text: str) -> bool:
    lowered = text.strip().lower()
    if lowered not in ("true", "false"):
        raise Problem("is true or false")
    return lowered == "true"


def count(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise Problem("is a whole number above 0")
    return number


def size_bytes(text: str) -> int:
    try:
        number = parse_bytes(text)
    except (LastwordError, ValueError):
        number = 0
    if number < 1:
        raise Problem("is a size above 0, such as 128MiB")
    return number


def duration(text: str) -> int:
    try:
        number = parse_duration_ms(re.sub("min$", "m", text.strip()))  # Spark writes 15min, too
    except (LastwordError, ValueError):
        number = -1
    if number < 0:
        raise Problem("is a duration, such as 15m")
    return number


def sequence(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = -1
    if number < 0:
        raise Problem("is a whole number, 0 or above, that rises from batch to batch")
    return number


def millis(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise Problem("is a time in milliseconds since 1970") from None


def one_of(*values: str) -> Callable[[str], Any]:
    def parse(text: str) -> str:
        lowered = text.strip().lower()
        if lowered not in values:
            raise Problem(f"is {' or '.join(values)}{hint(lowered, values)}")
        return lowered

    return parse


def names(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise Problem("names no topic")
    return names


def pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise Problem(f"is no regular expression as Python writes them: {error}") from None
    return text


def json_of(text: str, shape: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise Problem(f"is JSON like {shape}") from None


def assignment(text: str) -> dict[str, tuple[int, ...]]:
    shape = '{"topic":[0,1]}'
    value = json_of(text, shape)
    if not isinstance(value, dict) or not value:
        raise Problem(f"is JSON like {shape}")
    assigned = {}
    for topic, partitions in value.items():
        if (
            not isinstance(partitions, list)
            or not all(type(n) is int and n >= 0 for n in partitions)
            or not partitions
        ):
            raise Problem(f"is JSON like {shape}")
        assigned[topic] = tuple(sorted(set(partitions)))
    return assigned


def per_partition(shape: str, lowest: int) -> Callable[[str], Offsets]:
    def parse(text: str) -> Offsets:
        value = json_of(text, shape)
        if not isinstance(value, dict) or not value:
            raise Problem(f"is JSON like {shape}")
        result: Offsets = {}
        for topic, numbers in value.items():
            if not isinstance(numbers, dict):
                raise Problem(f"is JSON like {shape}")
            result[topic] = {}
            for partition, number in numbers.items():
                if not partition.isdecimal() or type(number) is not int or number < lowest:
                    raise Problem(f"is JSON like {shape}")
                result[topic][int(partition)] = number
        return result

    return parse


offsets_json = per_partition('{"topic":{"0":23,"1":-2}}', EARLIEST)
times_json = per_partition('{"topic":{"0":1767225600000}}', 0)


def starting(text: str) -> Bound:
    lowered = text.strip().lower()
    if lowered == "earliest":
        return Bound(EARLIEST)
    if lowered == "latest":
        raise Problem("cannot be latest in a batch read: there would be nothing to read")
    offsets = offsets_json(text)
    if any(number == LATEST for numbers in offsets.values() for number in numbers.values()):
        raise Problem("cannot be -1 (latest) in a batch read: there would be nothing to read")
    return Bound(EARLIEST, offsets=offsets)


def stream_starting(text: str) -> Bound:
    lowered = text.strip().lower()
    if lowered in ("earliest", "latest"):
        return Bound(EARLIEST if lowered == "earliest" else LATEST)
    return Bound(EARLIEST, offsets=offsets_json(text))


def ending(text: str) -> Bound:
    lowered = text.strip().lower()
    if lowered == "latest":
        return Bound(LATEST)
    if lowered == "earliest":
        raise Problem("cannot be earliest: there would be nothing to read")
    offsets = offsets_json(text)
    if any(number == EARLIEST for numbers in offsets.values() for number in numbers.values()):
        raise Problem("cannot be -2 (earliest): there would be nothing to read")
    return Bound(LATEST, offsets=offsets)


def keys(text: str) -> tuple[bytes, ...]:
    """JSON list of strings (their UTF-8), or {"base64": "..."} for other bytes, as `read --json` prints
    keys.
    """
    shape = '["ada", {"base64": "/wA="}]'
    value = json_of(text, shape)
    if not isinstance(value, list):
        raise Problem(f"is JSON like {shape}")
    keys = []
    for item in value:
        if isinstance(item, str):
            keys.append(item.encode())
        elif isinstance(item, dict) and list(item) == ["base64"] and isinstance(item["base64"], str):
            try:
                keys.append(base64.b64decode(item["base64"], validate=True))
            except ValueError:
                raise Problem(f"is JSON like {shape}") from None
        else:
            raise Problem(f"is JSON like {shape}")
    return tuple(keys)


def absolute_path(text: str) -> str:
    """A directory that driver and tasks see under the same name. Relative to the driver's working
    directory.
    """
    if not text:
        raise Problem("is empty")
    if text.startswith("file:"):
        text = "/" + text[5:].lstrip("/")
    elif re.match(r"^[A-Za-z][A-Za-z0-9+.-]+:/", text):
        raise Problem("is a directory that all tasks can see (local or mounted), not a URL")
    return str(Path(text).absolute())


def plain(text: str) -> str:
    if not text:
        raise Problem("is empty")
    return text
