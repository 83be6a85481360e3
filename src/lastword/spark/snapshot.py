"""From options to offsets: which partitions a read covers, and from where to where in each.

Everything here looks without a lock, at the directory as recovery would see it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from lastword.errors import OffsetOutOfRangeError, SparkOptionError, UnknownTopicError
from lastword.files import DEFAULT, Files
from lastword.logdir.log_dir import LogDirectory
from lastword.partition.view import PartitionView
from lastword.spark.options import EARLIEST, LATEST, Bound, ReadOptions, Wanted


@dataclass(frozen=True, slots=True)
class Chosen:
    """One partition of a read: its view when the read was planned, and the offsets start <= o < end."""

    topic: str
    partition: int
    directory: str
    view: PartitionView
    start: int
    end: int

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"


def choose(options: ReadOptions, files: Files = DEFAULT, *, stream: bool = False) -> list[Chosen]:
    """Every partition that is read, in order of topic and number; of a stream, where it begins.

    NotALogDirError, UnknownTopicError, SparkOptionError (JSON that names other partitions than those that
    are read; a start above the end), OffsetOutOfRangeError (real loss, unless failOnDataLoss is false).
    """
    directory = LogDirectory.open(options.path, "r", files)
    found = {topic: directory.partitions(topic) for topic in directory.topics()}
    picked = pick(found, options.wanted, options.path)
    for which, bound in (("starting", options.start), ("ending", options.end)):
        _check_named(bound, picked, which)
    return [_bounded(directory, topic, number, options, stream) for topic, number in picked]


def pick(found: dict[str, list[int]], wanted: Wanted, path: str) -> list[tuple[str, int]]:
    """(topic, partition) of what is wanted; UnknownTopicError for what is not there, but not for a
    pattern.
    """
    if wanted.pattern is not None:
        matches = re.compile(wanted.pattern).fullmatch
        return [(topic, number) for topic, numbers in found.items() if matches(topic) for number in numbers]
    if wanted.assigned:
        chosen = []
        for topic, numbers in sorted(wanted.assigned.items()):
            _require(topic, found, path)
            absent = sorted(set(numbers) - set(found[topic]))
            if absent:
                raise UnknownTopicError(
                    f"{topic} in {path} has no partition {', '.join(map(str, absent))}",
                    remedy=f"its partitions: {', '.join(map(str, found[topic]))}",
                    file=path,
                )
            chosen += [(topic, number) for number in numbers]
        return chosen
    for topic in wanted.topics:
        _require(topic, found, path)
    return [(topic, number) for topic in sorted(wanted.topics) for number in found[topic]]


def _require(topic: str, found: Iterable[str], path: str) -> None:
    if topic not in found:
        raise UnknownTopicError.named(topic, path, found)


def _check_named(bound: Bound, picked: list[tuple[str, int]], which: str) -> None:
    """As in Kafka's source: JSON must name every partition that is read, and no other."""
    given = bound.named()
    if given is None:
        return
    named = {(topic, number) for topic, numbers in given.items() for number in numbers}
    missing, extra = sorted(set(picked) - named), sorted(named - set(picked))
    if missing or extra:
        said = [f"lacks {_listed(missing)}"] if missing else []
        said += [f"names {_listed(extra)}, not read here"] if extra else []
        raise SparkOptionError(
            f"the JSON of {which} offsets {' and '.join(said)}",
            remedy="name exactly the partitions that are read",
        )


def _listed(partitions: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{topic}-{number}" for topic, number in partitions)


def _bounded(
    directory: LogDirectory, topic: str, number: int, options: ReadOptions, stream: bool = False
) -> Chosen:
    view = directory.view(topic, number)
    name = f"{topic}-{number}"
    start = _start_of(view, name, topic, number, options)
    end = _end_of(view, topic, number, options)
    if start < view.log_start:
        if options.fail_on_data_loss:
            raise OffsetOutOfRangeError.below(name, start, view.log_start)
        start = view.log_start
    for offset, what in ((start, "start"), (end, "end")):
        if offset > view.log_end and options.fail_on_data_loss:
            raise OffsetOutOfRangeError(
                f"{name}: the {what}, offset {offset}, is above log end {view.log_end}: "
                "the log was cut or made anew",
                remedy="check the offsets, or set failOnDataLoss to false to read what is there",
                offset=offset,
            )
    start, end = min(start, view.log_end), min(end, view.log_end)
    if start > end:
        raise SparkOptionError(f"{name}: the read starts at offset {start}, above its end {end}")
    if options.isolation == "read_committed":
        end = max(start, min(end, view.stable_offset))
        if stream and options.start.everywhere == LATEST:
            start = min(start, end)
    if options.view == "latest":
        _refuse_rewritten_history(name, end, view, directory.first_dirty(topic, number))
    return Chosen(topic, number, view.directory, view, start, end)


def _refuse_rewritten_history(name: str, end: int, view: PartitionView, first_dirty: int | None) -> None:
    """The newest values as of an offset are not known where the log was cleaned with what came after it."""
    if end < view.log_end and first_dirty is not None and end < first_dirty:
        raise OffsetOutOfRangeError(
            f"{name}: the newest values as of offset {end} are not known any more: "
            f"the log was cleaned up to {first_dirty}",
            remedy=f"end at {first_dirty} or later",
            offset=end,
        )


def _start_of(view: PartitionView, name: str, topic: str, number: int, options: ReadOptions) -> int:
    bound = options.start
    at = _timestamp_of(bound, topic, number)
    if at is not None:
        offset = view.offset_at(at)
        if offset is None and options.late_start == "error":
            raise OffsetOutOfRangeError(
                f"{name}: no record is as young as the start time {at}",
                remedy="take an earlier time, or set startingOffsetsByTimestampStrategy to latest",
            )
        return view.log_end if offset is None else offset
    return _offset_of(bound, topic, number, view)


def _end_of(view: PartitionView, topic: str, number: int, options: ReadOptions) -> int:
    at = _timestamp_of(options.end, topic, number)
    if at is not None:
        offset = view.offset_at(at)
        return view.log_end if offset is None else offset
    return _offset_of(options.end, topic, number, view)


def _timestamp_of(bound: Bound, topic: str, number: int) -> int | None:
    if bound.timestamp_ms is not None:
        return bound.timestamp_ms
    return None if bound.timestamps is None else bound.timestamps[topic][number]


def _offset_of(bound: Bound, topic: str, number: int, view: PartitionView) -> int:
    offset = bound.everywhere if bound.offsets is None else bound.offsets[topic][number]
    return {EARLIEST: view.log_start, LATEST: view.log_end}.get(offset, offset)
