"""`Watch`: the changes of a topic as they come, with the present values before them if a caller wants those.

A watch is a read that follows, under a lease: no tombstone is removed before the watch has read it. The
present values are a read of newest values as of one end; the changes begin at that end. So no change is
missing between both parts, and none is in both.

The lease is taken before the first read, at the log start: the watch holds nothing from below. It lapses if
the watch is not read for `max_age`. Each record is read first, and the lease is looked at after that: a
record that is returned was read while no deletion in front of it could be removed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from lastword.api.lease import Lease, Position, listed, take
from lastword.api.reader import Reader, encoded_keys, following, ranges
from lastword.api.record import K, Record, V
from lastword.errors import LastwordError, LeaseRefusedError
from lastword.parse import Duration, one_of, parse_duration_ms, parse_seconds
from lastword.partition import removal_log
from lastword.partition.moment import Range

if TYPE_CHECKING:
    from lastword.api.open_dirs import OpenDirs
    from lastword.api.serializers import Serializer
    from lastword.arrow import pa

STARTS = ("latest", "newest", "earliest")
_UNNAMED = "watch-"
RENEWALS = 4
"""A lease is renewed this many times in its age."""


class Watch(Reader[K, V]):
    """The changes of one `Topic.watch`: a `Reader` that follows, and holds a lease while it is open.

    The records of a partition come in the order of offsets; a record with `is_tombstone` deletes its key. A
    watch that is not closed keeps tombstones until its lease lapses.

    Attributes:
        lease: Its lease. One with a name is moved by `lease.advance(watch.position)`, another by the watch.
    """

    def __init__(
        self,
        dirs: OpenDirs,
        topic: str,
        serializers: tuple[Serializer, Serializer],
        *,
        keys: Iterable[Any] | None,
        start: str | Position,
        lease: str | None,
        max_age: Duration,
        timeout: Duration | None,
        check: Callable[[], None],
    ) -> None:
        """See `Topic.watch`. `check` is called before each round of reads."""
        name = one_of(start, STARTS, "start") if isinstance(start, str) else ""
        timeout_seconds = None if timeout is None else parse_seconds("timeout", timeout)
        wanted = encoded_keys(keys, serializers[0])
        self._clock = dirs.clock
        self._max_age_ms = parse_duration_ms(max_age)
        self._is_unnamed = lease is None
        self._releases = self._is_unnamed
        known: dict[int, int] = {}
        if lease is None:
            _release_abandoned(dirs, topic)
            lease = f"{_UNNAMED}{os.urandom(16).hex()}"
        else:
            known = {info.partition: info.position for info in listed(dirs, topic) if info.name == lease}
        begin: dict[int, int] | None = None
        if not name or (name == "latest" and not known):
            begin = {range_.partition: range_.start for range_ in ranges(dirs.views(topic), start, "latest")}
        with _refusals():
            self.lease = dirs.transaction(
                lambda dirs: take(dirs, topic, lease, begin, max_age), any_mode=True
            ).on(dirs)
        try:
            views = dirs.views(topic)
            self._cuts = {
                number: removal_log.load(view.files, view.directory).cut_count
                for number, view in views.items()
            }
            super().__init__(
                topic,
                ranges(views, begin or known or "earliest", "latest"),
                serializers,
                keys=wanted,
                map_bytes=dirs.settings.instance.map_bytes,
                follow=following(
                    dirs, topic, views, timeout=timeout_seconds, committed=True, grows=True, check=self._keep
                ),
            )
        except BaseException:
            if not known:
                self.lease.release()
            raise
        if name != "newest" or known:
            self._ranges = []
        self._check = check
        self._leased = len(self._position)
        self._renewal_ms = self._clock.now_ms() + self._max_age_ms // RENEWALS

    def _keep(self) -> None:
        """Renew the lease if it is time, or if partitions were added.

        Raises:
            LeaseRefusedError: It had lapsed or the log was cut, and a deletion or another record may be gone.
        """
        self._check()
        now_ms = self._clock.now_ms()
        if now_ms < self._renewal_ms and len(self._position) == self._leased:
            return
        # Present values are as of the end of their range, so that no tombstone below is due any more.
        behind = {range_.partition: range_.end for range_ in self._ranges}
        self._advance(self._position | behind if self._is_unnamed else {})
        self._leased = len(self._position)
        self._renewal_ms = now_ms + self._max_age_ms // RENEWALS

    def _advance(self, position: dict[int, int]) -> None:
        try:
            with _refusals():
                self.lease.advance(position)
        except LeaseRefusedError:
            if self._follow is None or not self._follow.is_stopped:  # else it was released meanwhile
                raise

    def _check_cut(self, range_: Range) -> None:
        """Raise LeaseRefusedError if the log was cut below the position, so that other records are there.

        After a cut above, the lease is renewed, because it is refused above a cut that it has not met.
        """
        number, known = range_.partition, removal_log.load(range_.view.files, range_.view.directory)
        seen = self._cuts.get(number, known.cut_count)
        if seen != known.cut_count:
            is_below = known.cut_since(seen) < range_.start
            self._advance({number: range_.start} if is_below else {})
        self._cuts[number] = known.cut_count

    def _turns(self) -> Iterator[Range]:
        assert self._follow is not None
        if self._ranges:
            self._view = "newest"
            while self._ranges:
                yield self._ranges[0]
                del self._ranges[:1]
            self._renewal_ms = 0
        self._view = "log"
        for range_ in self._follow:
            self._check_cut(range_)
            yield range_

    def _each(self) -> Iterator[Record[K, V]]:
        for record in super()._each():
            if self._clock.now_ms() >= self._renewal_ms:
                self._position[record.partition] = record.offset
                self._keep()
                self._position[record.partition] = record.offset + 1
            yield record

    def _batches(self, form: Any, batch_bytes: int) -> Iterator[pa.RecordBatch]:
        for batch in super()._batches(form, batch_bytes):
            self._keep()
            yield batch

    @property
    def is_due(self) -> bool:
        """Return whether `take` may return records, or the lease is to be renewed."""
        return bool(self._ranges) or self._clock.now_ms() >= self._renewal_ms or super().is_due

    def close(self) -> None:
        """End the watch, as `Reader.close`, and release its lease unless the lease has a name."""
        super().close()
        if self._releases:
            self._releases = False
            with suppress(LastwordError):  # it lapses by itself
                self.lease.release()


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except LeaseRefusedError as error:
        error.remedy = (
            "changes may be missing: drop what was read, release the lease if it has a name, and begin again "
            'with watch(start="newest")'
        )
        raise


def _release_abandoned(dirs: OpenDirs, topic: str) -> None:
    """Release the leases of watches that were not closed, if they lapsed longer ago than they live."""
    now_ms = dirs.clock.now_ms()
    for name in {
        info.name
        for info in listed(dirs, topic)
        if re.fullmatch(f"{_UNNAMED}[0-9a-f]{{32}}", info.name)
        and now_ms - info.lapses_ms > info.lapses_ms - info.advanced_ms
    }:
        Lease(dirs, topic, name).release()
