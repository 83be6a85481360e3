"""From `start=` and `end=` to offsets, partition by partition, checked against the log as it is now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from lastword.errors import OffsetOutOfRangeError, UsageError
from lastword.partition.front import read_note
from lastword.partition.view import PartitionView
from lastword.units import to_ms

Bound = str | int | datetime
Bounds = Bound | Mapping[int, Bound]


@dataclass(slots=True)
class Range:
    """start <= offset < end of one partition, in the segments that `view` listed."""

    view: PartitionView
    start: int
    end: int

    @property
    def partition(self) -> int:
        return self.view.partition


def ranges(
    views: Mapping[int, PartitionView], start: Bounds, end: Bounds, *, committed: bool = True
) -> list[Range]:
    """One Range per partition. A partition that a mapping does not name starts at "earliest" and ends at
    "latest". A committed read ends at the last stable offset, which is also its "latest".

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
        log_end = view.log_end
        latest = min(view.stable_offset, log_end) if committed else log_end
        begin, until = (_offset(view, log_end, latest, *of) for of in ((first, "start"), (last, "end")))
        found.append(Range(view, begin, min(until, latest)))
    return found


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
