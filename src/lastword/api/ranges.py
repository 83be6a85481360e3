"""From `start=` and `end=` to offsets, partition by partition, checked against the log as it is now."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import Any

from lastword.errors import OffsetOutOfRangeError, UsageError
from lastword.parse import to_ms
from lastword.partition.cut import read_note
from lastword.partition.moment import Range
from lastword.partition.view import PartitionView

Bound = str | int | datetime
Bounds = Bound | Mapping[int, Bound]


def ranges(
    views: Mapping[int, PartitionView], start: Bounds, end: Bounds, *, committed: bool = True
) -> list[Range]:
    """Return one Range per partition, which computes its offsets again when it is renewed. A partition that a
    mapping does not name starts at "earliest" and ends at "latest". A committed read ends at the last stable
    offset, which is also its "latest".

    OffsetOutOfRangeError for an offset outside the log; UsageError for what is no place in a log.
    """
    for what, given in (("start", start), ("end", end)):
        if isinstance(given, Mapping):
            unknown = sorted(set(given) - set(views), key=str)
            if unknown:
                remedy = "leave it out, or read another topic"
                if isinstance(unknown[0], str):  # as JSON gives a position back
                    remedy = "partitions are ints: {int(number): offset for number, offset in saved.items()}"
                raise UsageError(
                    f"{what} names partition {unknown[0]!r}, and there are {_list(sorted(views))}",
                    remedy=remedy,
                )
    found = []
    for partition, view in sorted(views.items()):
        first = _of(start, partition, "earliest")
        last = _of(end, partition, "latest")
        found.append(Range.of(view, partial(_offsets, start=first, end=last, committed=committed)))
    return found


def _offsets(view: PartitionView, *, start: Any, end: Any, committed: bool) -> tuple[int, int]:
    """Start and end as offsets of a view."""
    log_end = view.log_end
    latest = min(view.stable_offset, log_end) if committed else log_end
    first = _offset(view, log_end, latest, start, "start")
    last = _offset(view, log_end, latest, end, "end")
    return first, min(last, latest)


def _of(given: Bounds, partition: int, default: str) -> Any:
    return given.get(partition, default) if isinstance(given, Mapping) else given


def _offset(view: PartitionView, log_end: int, latest: int, bound: Any, what: str) -> int:
    name = f"{view.topic}-{view.partition}"
    if bound == "earliest":
        return view.log_start
    if bound == "latest":
        return latest
    if isinstance(bound, datetime):
        found = view.offset_at(to_ms(bound))
        return latest if found is None else min(found, latest)
    if isinstance(bound, bool) or not isinstance(bound, int):
        raise UsageError(
            f"{what}={bound!r} is no place in a log",
            remedy='"earliest", "latest", an offset, an aware datetime, or a dict of these per partition',
        )
    if bound < view.log_start:
        why = read_note(view.files, view.directory, view.log_start)
        raise OffsetOutOfRangeError.below(name, bound, view.log_start, why)
    if bound > log_end:
        raise OffsetOutOfRangeError.above(name, bound, log_end)
    return bound


def _list(partitions: list[int]) -> str:
    return ", ".join(str(partition) for partition in partitions)
