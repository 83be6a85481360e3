"""One moment of a partition: segments and an end offset that belong together.

The newest value of a key is right only for both: a cleaning removes a record because of a newer one. If that
newer record is above the end of a read, the key would be missing. So a read of newest values

1. pins every segment of its range before it decides anything (`PartitionView.held`): a pinned segment stays
   readable after a cleaning has replaced it;
2. checks that its end is not below the records that cleanings of these files used (`check_answerable`);
3. begins again, with other segments and with an end that is computed again, if a segment was replaced before
   the first record was yielded;
4. raises ReadOvertakenError if a segment is lost after that: in a directory this needs more segments than
   descriptors.

A read of all records (`view="log"`) needs none of this: it continues in the segments of now (`reads`).
A count, a plan or another figure over a whole log begins again with a view of now (`read_again`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import TypeVar, cast

from lastword.errors import FileVanishedError, OffsetOutOfRangeError, ReadOvertakenError
from lastword.partition import removal_log
from lastword.partition.reads import ATTEMPTS, check_reached
from lastword.partition.view import PartitionView
from lastword.records.formats import UNKNOWN_COUNT

T = TypeVar("T")
Bounds = Callable[["PartitionView"], tuple[int, int]]

_NOTHING = object()


@dataclass(slots=True)
class Range:
    """start <= offset < end of one partition, in the segments that `view` listed.

    bounds   computes start and end for a view of the partition; None: they stay as they are
    """

    view: PartitionView
    start: int
    end: int
    bounds: Bounds | None = None

    @classmethod
    def of(cls, view: PartitionView, bounds: Bounds) -> Range:
        """Compute start and end from the view.

        A search for a time may refresh the view: then they are computed again, so that they are never those
        of an older log than its files.
        """
        result = cls(view, 0, 0, bounds)
        result._compute()
        return result

    @property
    def partition(self) -> int:
        """Number of the partition."""
        return self.view.partition

    def renew(self) -> None:
        """List the files again, and compute start and end again.

        Raises:
            ReadOvertakenError: The range is settled, so its files cannot be exchanged for newer ones.
        """
        if self.view.is_held:
            raise _overtaken(self)
        self.view.refresh()
        self._compute()

    def held(self) -> PartitionView:
        """Return the view with every file of the range held open.

        Raises:
            FileVanishedError: A file was replaced.
            OffsetOutOfRangeError: See `check_answerable`.
        """
        view = self.view.held(self.start)
        check_reached(view, self.end)
        check_answerable(view, self.end)
        return view

    def settled(self) -> Range:
        """Return a range that does not change: its files are held open.

        If a file was replaced before it could be opened, the range is renewed first.

        Raises:
            ReadOvertakenError: Files were replaced again and again.
        """
        for _ in range(ATTEMPTS):
            try:
                return Range(self.held(), self.start, self.end)
            except FileVanishedError:
                self.renew()
        raise _overtaken(self)

    def _compute(self) -> None:
        while self.bounds is not None:
            listed = self.view.segment_set
            self.start, self.end = self.bounds(self.view)
            if self.view.segment_set is listed:
                return


def at_one_moment(range_: Range, read: Callable[[PartitionView, int, int], Iterator[T]]) -> Generator[T]:
    """Yield the items of `read(view, start, end)`, of one moment.

    Until its first item `read` may be called again; `range_` then has the start and end that were used.

    Raises:
        ReadOvertakenError: Files were replaced and closed after the first item, or again and again before it.
    """
    for _ in range(ATTEMPTS):
        if range_.start >= range_.end:
            return
        items: Iterator[T] = iter(())
        try:
            items = read(range_.held(), range_.start, range_.end)
            first = next(items, _NOTHING)
        except FileVanishedError:
            _close(items)
            range_.renew()
            continue
        try:
            if first is not _NOTHING:
                yield cast(T, first)
                yield from items
        except FileVanishedError as error:
            raise _overtaken(range_) from error
        finally:
            _close(items)
        return
    raise _overtaken(range_)


def _close(items: Iterator[T]) -> None:
    if isinstance(items, Generator):
        items.close()


def _overtaken(range_: Range) -> ReadOvertakenError:
    return ReadOvertakenError.of(_name(range_.view), range_.view.directory)


def check_answerable(view: PartitionView, end: int) -> None:
    """Raise OffsetOutOfRangeError if newest values as of `end` may be missing from the files of a view.

    They are missing if the files were cleaned with records from `end` on. The error names the lowest end that
    can be answered for certain.

    The files must be open already: a cleaning notes the records that it uses before its first swap. No
    cleaner, Kafka's neither, uses the active segment or anything from the last stable offset on. Below that,
    the removal log says what our cleanings used. Where another cleaner was, or nothing was noted, the log
    must be whole below `end`: no record was removed there.
    """
    active = view.active
    if active is None or end >= active.base_offset or end >= view.stable_offset:
        return
    known = removal_log.load(view.files, view.directory)
    lowest = min(active.base_offset, view.stable_offset)
    if known.knows_history(removal_log.first_dirty(view.files, view.directory)):
        lowest = min(lowest, known.cleaned_knowing)
    if end < lowest and not is_whole(view, end):
        raise OffsetOutOfRangeError(
            f"{_name(view)}: the newest values below {end} are lost: the log was cleaned up to {lowest}",
            remedy=f"end at {lowest} or later",
            offset=end,
        )


def is_whole(view: PartitionView, end: int) -> bool:
    """Return whether every offset from the log start up to `end` is in the log. Reads headers."""
    due = view.log_start
    for segment in view.segment_set.starting_at(due):
        if segment.base_offset >= end:
            break
        first = segment.position_of(due)
        for header in segment.headers(first):
            if due >= end:
                return True
            if header.count == UNKNOWN_COUNT:  # a compressed set of magic 0 or 1: not counted
                return False
            if header.base_offset > due or header.count != header.next_offset - header.base_offset:
                return False
            due = header.next_offset
    return due >= end


def _name(view: PartitionView) -> str:
    return os.path.basename(os.path.normpath(view.directory))
