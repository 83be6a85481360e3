"""From options to offsets: the partitions that a read covers, and start and end of each.

Everything here reads the directory without a lock, as recovery would see it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from lastword.errors import (
    FileVanishedError,
    OffsetOutOfRangeError,
    ReadOvertakenError,
    SparkOptionError,
    UnknownTopicError,
)
from lastword.files import DEFAULT, Files
from lastword.logdir.log_dir import LogDirectory
from lastword.partition.moment import check_answerable
from lastword.partition.view import PartitionView
from lastword.spark.options import EARLIEST, LATEST, Bound, ReadOptions, Wanted

_TRIES = 100

INTERNAL_TOPICS = ("__consumer_offsets", "__transaction_state", "__share_group_state")
"""Topics of brokers. No pattern matches them, as in Kafka's consumers. They can be named."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """One partition of a read: its view when the read was planned, and the offsets start <= offset < end.

    from_end   the read starts at the log end of that moment; a second plan starts elsewhere
    topic_id   id of the topic, if it has one
    """

    topic: str
    partition: int
    directory: str
    view: PartitionView
    start: int
    end: int
    from_end: bool = False
    topic_id: str | None = None

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"


def choose(options: ReadOptions, files: Files = DEFAULT) -> list[Chosen]:
    """Return every partition to read, in order of topic and number; for a stream, where it begins.

    Raises:
        NotALogDirError, UnknownTopicError: The directory or a topic does not exist.
        SparkOptionError: JSON names other partitions than those that are read, or a given start is above the
            end.
        OffsetOutOfRangeError: Records are lost, unless failOnDataLoss is false.
    """
    directory = LogDirectory.open(options.path, "r", files)
    found = {topic: directory.partitions(topic) for topic in directory.topics()}
    picked = pick(found, options.wanted, options.path)
    for which, bound in (("starting", options.start), ("ending", options.end)):
        _check_named(bound, picked, which)
    ids = {topic: directory.topic_id(topic) for topic, _ in picked}
    return [_bounded(directory, topic, number, ids[topic], options) for topic, number in picked]


def pick(found: dict[str, list[int]], wanted: Wanted, path: str) -> list[tuple[str, int]]:
    """Return (topic, partition) of each selected partition. UnknownTopicError for a missing one, but not for
    a pattern.
    """
    if wanted.pattern is not None:
        topics = matching(wanted.pattern, found)
        return [(topic, number) for topic in topics for number in found[topic]]
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


def matching(pattern: str, topics: Iterable[str]) -> list[str]:
    """Return the topics whose whole name matches the pattern."""
    matches = re.compile(pattern).fullmatch
    return [topic for topic in topics if matches(topic) and topic not in INTERNAL_TOPICS]


def _require(topic: str, found: Iterable[str], path: str) -> None:
    if topic not in found:
        raise UnknownTopicError.named(topic, path, found)


def _check_named(bound: Bound, picked: list[tuple[str, int]], which: str) -> None:
    """SparkOptionError unless JSON names exactly the partitions that are read, as in Kafka's source."""
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
    directory: LogDirectory, topic: str, number: int, topic_id: str | None, options: ReadOptions
) -> Chosen:
    """Compute start and end of one partition from one listing of its files.

    The view lists the files again when one of them vanishes while a time or the last stable offset is looked
    up. Then both offsets are computed again: an end of "latest" that belongs to older files would be refused
    as an end that a cleaning has passed.

    Raises:
        OffsetOutOfRangeError: the range was lost, or its newest values are not known any more (`moment`).
            Each task checks the latter again, in the files that it has opened.
        SparkOptionError: a start that was given is above the end.
        ReadOvertakenError: files were replaced again and again.
    """
    view = directory.view(topic, number)
    for _ in range(_TRIES):
        listed = view.segment_set
        try:
            chosen = _chosen(view, topic, number, topic_id, options)
            if options.view != "log" and chosen.start < chosen.end:
                check_answerable(view, chosen.end)
        except FileVanishedError:
            view.refresh()
        except (OffsetOutOfRangeError, SparkOptionError):
            if view.segment_set is listed:
                raise
        else:
            if view.segment_set is listed:
                return chosen
    raise ReadOvertakenError.of(f"{topic}-{number}", view.directory)


def _chosen(
    view: PartitionView, topic: str, number: int, topic_id: str | None, options: ReadOptions
) -> Chosen:
    """Compute start and end of one partition from its view, which may list the files again meanwhile."""
    name = f"{topic}-{number}"
    given = _start_of(view, name, topic, number, options)
    start = view.log_end if given is None else given
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
        _check_order(view, name, given, end, options)
        start = end
    if options.isolation == "read_committed":
        if given is None:
            start = min(start, view.stable_offset)  # undecided records are new when they are decided
        end = max(start, min(end, view.stable_offset))
    return Chosen(topic, number, view.directory, view, start, end, from_end=given is None, topic_id=topic_id)


def _check_order(view: PartitionView, name: str, given: int | None, end: int, options: ReadOptions) -> None:
    """Handle a start above the end: a mistake, a loss, or nothing to read."""
    if end < view.log_start and options.fail_on_data_loss:
        raise OffsetOutOfRangeError(
            f"{name}: the end, offset {end}, is below log start {view.log_start}: all of it is gone",
            remedy="take a later end, or set failOnDataLoss to false to read what is there",
            offset=end,
        )
    if given is not None and given > end and end >= view.log_start:
        raise SparkOptionError(
            f"{name}: the read starts at offset {given}, above its end {end}",
            remedy="take an earlier start or a later end",
        )


def _start_of(view: PartitionView, name: str, topic: str, number: int, options: ReadOptions) -> int | None:
    """Return the start offset; None: the log end."""
    at = _timestamp_of(options.start, topic, number)
    if at is None:
        offset = _given_offset(options.start, topic, number)
        return {EARLIEST: view.log_start, LATEST: None}.get(offset, offset)
    found = view.offset_at(at)
    if found is None and options.late_start == "error":
        raise OffsetOutOfRangeError(
            f"{name}: no record is as young as the start time {at}",
            remedy="take an earlier time, or set startingOffsetsByTimestampStrategy to latest",
        )
    return found


def _end_of(view: PartitionView, topic: str, number: int, options: ReadOptions) -> int:
    at = _timestamp_of(options.end, topic, number)
    if at is not None:
        offset = view.offset_at(at)
        return view.log_end if offset is None else offset
    offset = _given_offset(options.end, topic, number)
    return view.log_end if offset == LATEST else offset


def _timestamp_of(bound: Bound, topic: str, number: int) -> int | None:
    if bound.timestamp_ms is not None:
        return bound.timestamp_ms
    return None if bound.timestamps is None else bound.timestamps[topic][number]


def _given_offset(bound: Bound, topic: str, number: int) -> int:
    """Return the given offset, EARLIEST or LATEST."""
    return bound.everywhere if bound.offsets is None else bound.offsets[topic][number]
