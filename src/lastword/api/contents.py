"""`Contents`: the newest value of every key of a topic, as bytes; what the states of one topic share.

The log is the source of truth. `Contents` restores the values from it, and takes in every record that is
appended later: its own directly, those of others in its process before the next call (`Changed` names the
partitions), those of other processes by `refresh`, and in a bucket also when a change finds them.

A range is read up to the log end, without the records of undecided transactions. When a transaction is
committed, the range is read again from the first offset of the transaction: all committed records from there
on, in order, give the newest value of each of their keys, whether or not they were applied before.

Two locks. `turn` is held by a caller that must not be interrupted by another caller, for as long as the
caller's function takes. `reading` is held while records are read or appended. Order: `turn`, `reading`, the
lock of a partition's log. In a bucket both are one lock, which the thread of the commits never takes.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from lastword.api.open_dirs import OpenDirs
from lastword.api.reader import Bounds, ranges
from lastword.api.record import Absent, Appended
from lastword.api.restore import Restored, SnapshotFile
from lastword.api.state_log import log_below
from lastword.api.topic import Topic
from lastword.errors import (
    FileVanishedError,
    ReadOnlyError,
    ReadOvertakenError,
    StateTooLargeError,
    UsageError,
)
from lastword.metrics import STATE_RESTORE_SECONDS
from lastword.partition import removal_log
from lastword.partition.log import PartitionLog
from lastword.partition.moment import Range
from lastword.partition.removal_log import RemovalLog
from lastword.partition.tail import Changed
from lastword.partition.view import PartitionView
from lastword.records.record import Header
from lastword.state.newest import ValueBuffer, newest, newest_pairs
from lastword.state.ttl import expires_at, own_ttl
from lastword.units import NEVER
from lastword.values import Progress, ProgressLike

FEW = 100
LISTED = 100_000
"""Keys that are listed at a time for `some_pair`."""
_ATTEMPTS = 10  # an attempt fails only if a cleaning runs and there are more segments than descriptors


@dataclass(slots=True)
class _LoadStats:
    """Keys, bytes and seconds of one partition's part of a snapshot."""

    keys: int = 0
    bytes: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class _Reached:
    """How far a partition is in the mapping.

    Attributes:
        end: All committed records below it are in the mapping.
        log_start: The log start then.
        undecided: Producer id -> first offset of a transaction that was undecided then.
        removals: The removal log then.
    """

    end: int
    log_start: int
    undecided: dict[int, int]
    removals: RemovalLog

    @property
    def position(self) -> int:
        """The offset up to which every record is decided and in the mapping."""
        return min(self.end, *self.undecided.values()) if self.undecided else self.end

    def is_at(self, log: PartitionLog) -> bool:
        """Return whether the log has no other records than then."""
        return (
            self.end == log.log_end == log.stable_offset
            and not self.undecided
            and self.log_start == log.log_start
        )


@dataclass(slots=True)
class _Tail:
    """Records of a partition that are not in the mapping yet.

    Attributes:
        partition: The partition.
        reached: How far the partition is in the mapping with them.
        values: The newest value of each key; None: it was deleted.
        expiry: Time at which a value expires, and its own time to live, for the keys of `values`.
    """

    partition: int
    reached: _Reached
    values: dict[bytes, bytes | None] = field(default_factory=dict)
    expiry: dict[bytes, tuple[int, int | None]] = field(default_factory=dict)


class Contents:
    """The newest value of every key of a topic, as bytes.

    Attributes:
        topic: The name of the topic.
        in_memory: True: all values are.
        data: Key to value. It may be replaced at any call.
        restored: A `Restored` for each partition.
        turn: Held by a caller that must not be interrupted by another one.
        reading: Held while records are read or appended.
        ttl_ms: The topic's `lastword.ttl.ms`; -1: nothing expires.
        users: The ids of the open states that show these values.
        given: The arguments of the state that was opened first, and where: `opened_at` (`states`).
    """

    given: Mapping[str, Any]
    opened_at: str
    in_memory = True

    def __init__(
        self,
        dirs: OpenDirs,
        topic: Topic[Any, Any],
        *,
        end: Bounds = "latest",
        max_bytes: int | None = None,
        snapshot: SnapshotFile | None = None,
        progress: ProgressLike | None = None,
    ) -> None:
        self._dirs, self._topic = dirs, topic
        self._saved = topic.schema.saved
        self._log = log_below(dirs, topic.name)
        self.topic = topic.name
        self._end = end
        self._is_past = end != "latest"
        self._map_bytes = dirs.settings.instance.map_bytes
        self._log_dir = dirs.directories[0]  # its `settings` are another object after a change of settings
        self.data: dict[bytes, bytes] = {}
        self.restored: tuple[Restored, ...] = ()
        self._reached: dict[int, _Reached] = {}
        self._bytes = 0
        self._max_bytes = max_bytes
        self._topic_id: str | None = None  # as of the restore
        self.users: set[int] = set()
        self.turn = threading.RLock()
        self.reading = self.turn if self._log.is_deferred else threading.RLock()
        self._refused: BaseException | None = None  # the error of a change that is in the mapping only
        self._log.on_refused(self._note_refused)
        self._is_unsynced = False  # in a bucket: a change may not be committed yet
        self._settings = self._log_dir.settings  # before the time to live: older ones only compare again
        self.ttl_ms = -1 if self._is_past else self._saved_ttl_ms()
        self._expiry: dict[bytes, int] = {}  # for keys whose value expires
        self._expiring: list[tuple[int, bytes]] = []
        """A heap. An entry is valid if `_expiry` has the same time."""
        self._own_ttl_ms: dict[bytes, int] = {}
        self._changed = Changed()
        self._is_taking = False
        """A partition is no longer in `_changed`, and its records are not in the mapping yet."""
        self._logs: Mapping[int, PartitionLog] = {}
        self._watch()
        self._listed: list[bytes] = []  # keys for `some_pair`, the oldest last
        self._restore(progress, snapshot)

    def __len__(self) -> int:
        return len(self.data)

    @property
    def position(self) -> dict[int, int]:
        """The offset of each partition up to which its records are in the mapping."""
        return {number: reached.position for number, reached in sorted(self._reached.items())}

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key; None if it is absent."""
        return self.data.get(key)

    def own_ttl_ms(self, key: bytes) -> int | None:
        """Return the time to live that a value has of its own; None: that of the topic."""
        return self._own_ttl_ms.get(key)

    def all_keys(self) -> list[bytes]:
        """Return every key: a copy, because threads change the mapping, and values expire."""
        return list(self.data)

    def pairs(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield keys and values, without what is deleted before it is reached."""
        for key in self.all_keys():
            value = self.data.get(key)
            if value is not None:
                yield key, value

    def some_pair(self) -> tuple[bytes, bytes] | None:
        """Return a key and its value, about the oldest; None: there is none. The caller holds `turn`.

        A dict passes all keys that were deleted before it finds its first one. So many are listed at a time.
        """
        while self.data:
            self._listed = self._listed or [*islice(self.data, LISTED)][::-1]
            key = self._listed[-1]
            value = self.data.get(key)
            if value is not None:
                return key, value
            self._listed.pop()
        return None

    def snapshot(self) -> dict[bytes, bytes]:
        """Return a copy of all values, as of one moment."""
        with self.reading:
            self.check()
            return dict(self.data)

    def check(self) -> None:
        """Take in what this process has appended otherwise; UsageError if the log is closed."""
        if self._dirs.closed:
            self._dirs.require_open()
        if self._log_dir.settings is not self._settings:
            self._take_settings()
        if self._changed or self._is_taking:
            self._take_changed()
        if self._expiring:
            first = self._expiring[:1]  # another thread may have removed it
            if first and first[0][0] <= self._dirs.clock.now_ms():
                self._drop_expired()

    # -------------------------------------------------------------- restoring

    def _restore(self, progress: ProgressLike | None, snapshot: SnapshotFile | None = None) -> None:
        """Read all partitions; start again if a cleaning replaced files that could not be held open."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                self._restore_once(progress, snapshot)
                return
            except (FileVanishedError, ReadOvertakenError):
                if attempt == _ATTEMPTS:
                    raise
                self.data, self._bytes = {}, 0
                self._expiry, self._expiring, self._own_ttl_ms = {}, [], {}

    def _restore_once(self, progress: ProgressLike | None, snapshot: SnapshotFile | None) -> None:
        self._topic_id = self._id_of_now()  # before the views: an older id only restores once more
        ranges = {range_.partition: range_ for range_ in self._ranges_of(self._dirs.views(self.topic))}
        removals = {
            number: removal_log.load(range_.view.files, range_.view.directory)
            for number, range_ in ranges.items()
        }
        for number, range_ in ranges.items():
            if removals[number].cut_count:  # list the files after the note was read: a cut may be in between
                range_.renew()
        total = sum(segment.size for range_ in ranges.values() for segment in range_.view.segments)
        began = time.monotonic()
        done = 0
        restored = []
        loaded = {} if snapshot is None else self._load(snapshot, ranges)
        for number, range_ in sorted(ranges.items()):
            size = range_.view.segment_set.size

            def report(part: int, parts: int, before: int = done, size: int = size) -> None:
                if progress is not None:
                    at = before + (size * part // parts if parts else size)
                    progress(Progress.at("restore", at, total, time.monotonic() - began))

            started = time.monotonic()
            keys, held = len(self.data), self._bytes
            if number in loaded:
                self._apply_newer(range_, progress=report)
                keys, held = keys - loaded[number].keys, held - loaded[number].bytes
            else:
                self._fill(range_, report)
            view, end = range_.view, range_.end
            self._note_expiry(view, view.log_start, end)
            reached = self._reached[number] = _Reached(end, view.log_start, {}, removals[number])
            if not self._is_past and end < view.log_end:  # a transaction is open
                self._take(self._read_tail(view.held(end), reached, end))
            report(1, 1)
            done += size
            restored.append(
                Restored(
                    self.topic,
                    number,
                    range_.end,
                    len(self.data) - keys,
                    self._bytes - held,
                    time.monotonic() - started + (loaded[number].seconds if number in loaded else 0.0),
                )
            )
        self.restored = tuple(restored)
        STATE_RESTORE_SECONDS.set(time.monotonic() - began, self.topic)

    def _ranges_of(self, views: Mapping[int, PartitionView]) -> list[Range]:
        if self._is_past:
            return ranges(views, "earliest", self._end)
        return [Range.of(view, lambda view: (view.log_start, view.stable_offset)) for view in views.values()]

    def _id_of_now(self) -> str | None:
        """Return the id of the topic, or None. It lists nothing again."""
        log_dirs = self._dirs.dir_set.log_dirs(self.topic)
        return next((log_dir.topic_id(self.topic) for log_dir in log_dirs.values()), None)

    def _load(self, snapshot: SnapshotFile, ranges: dict[int, Range]) -> dict[int, _LoadStats]:
        """Put the values of a snapshot into the mapping, and return the statistics of each partition.

        Changes the ranges of its partitions to the records that are not in the snapshot, as of the moment for
        which the snapshot was checked.
        """
        for number in snapshot.ends.keys() & ranges.keys():
            ranges[number] = ranges[number].settled()
        snapshot.check(ranges)
        starts = {number: ranges[number].start for number in snapshot.ends}
        for number, end in snapshot.ends.items():
            ranges[number].start = max(end, starts[number])
        loaded = {number: _LoadStats() for number in snapshot.ends}
        buffers = {number: ValueBuffer() for number in snapshot.ends}
        began = time.monotonic()
        for number, pairs in snapshot.pairs(starts):
            buffers[number].put(pairs)
            self._check_buffers(*buffers.values())
            now = time.monotonic()
            loaded[number].seconds += now - began
            began = now
        for number, buffer in buffers.items():
            keys, held = len(self.data), self._bytes
            self._merge(buffer)
            loaded[number].keys, loaded[number].bytes = len(self.data) - keys, self._bytes - held
        return loaded

    def _check_buffers(self, *buffers: ValueBuffer) -> None:
        """Check the size limit, buffers included. They are counted exactly only near the limit."""
        limit = self._max_bytes
        if limit is not None and self._bytes + sum(buffer.size_bytes for buffer in buffers) > limit:
            self._check_size(self._bytes + sum(buffer.recount() for buffer in buffers))

    def _check_size(self, size_bytes: int) -> None:
        limit = self._max_bytes
        if limit is not None and size_bytes > limit:
            raise StateTooLargeError(
                f"{self.topic}: the live data is larger than memory = {limit}",
                remedy="a larger memory=, or read what you need: topic.read(view='newest', keys=[...])",
            )

    def _fill(self, range_: Range, progress: Callable[[int, int], None] | None) -> None:
        """Put the newest values of a whole partition into the mapping, which has no value of it yet."""
        buffer = ValueBuffer()
        newest_values = newest_pairs(
            range_,
            tombstones=False,
            map_bytes=self._map_bytes,
            first_dirty=self._dirs.first_dirty(self.topic, range_.partition),
            progress=progress,
        )
        with closing(newest_values) as parts:
            for pairs in parts:
                buffer.put(pairs)
                self._check_buffers(buffer)
        self._merge(buffer)

    def _merge(self, buffer: ValueBuffer) -> None:
        self._bytes += buffer.recount()
        if not self.data:
            self.data = buffer.data
            return
        known = len(self.data)
        self.data.update(buffer.data)
        if len(self.data) - known < len(buffer.data):  # a key that was written to two partitions
            self._bytes = sum(map(len, self.data)) + sum(map(len, self.data.values()))

    def _apply_newer(self, range_: Range, *, progress: Callable[[int, int], None] | None = None) -> int:
        """Apply the newest records of a range that follows the mapping; return the number of records."""
        taken = 0
        newest_values = newest_pairs(range_, tombstones=True, map_bytes=self._map_bytes, progress=progress)
        with closing(newest_values) as parts:
            for pairs in parts:
                taken += len(pairs.keys)
                self._put_all(dict(zip(pairs.keys, pairs.values, strict=True)))
                self._check_size(self._bytes)
        return taken

    def _put_all(self, values: Mapping[bytes, bytes | None]) -> None:
        for key, value in values.items():
            self._put(key, value)

    def _put(self, key: bytes, value: bytes | None) -> None:
        old = self.data.pop(key, None) if value is None else self.data.get(key)
        if old is not None:
            self._bytes -= len(key) + len(old)
        if value is not None:
            self.data[key] = value
            self._bytes += len(key) + len(value)

    def refresh(self) -> int:
        """Apply records that other writers have appended; return the number of keys that they changed."""
        self.check()
        if self._is_past:
            raise UsageError("this state was opened as of an earlier end", remedy='open it with end="latest"')
        with self.reading:
            self._take_back_refused()
            return self._refresh()

    def _refresh(self) -> int:
        try:
            changed = self._refresh_once()
        except (FileVanishedError, ReadOvertakenError):
            changed = None
        if changed is None:
            self._restore_again(self.ttl_ms)
            return len(self.data)
        return changed

    def _restore_again(self, ttl_ms: int) -> None:
        new: Contents = object.__new__(type(self))  # `self` shows the old values meanwhile
        new.__dict__.update(self.__dict__, data={}, _bytes=0, _reached={})
        new._expiry, new._expiring, new._own_ttl_ms, new.ttl_ms = {}, [], {}, ttl_ms
        new._restore(None)
        self.data, self._bytes, self.restored = new.data, new._bytes, new.restored
        self._reached, self._topic_id = new._reached, new._topic_id
        self._expiry, self._expiring, self._own_ttl_ms = new._expiry, new._expiring, new._own_ttl_ms
        self.ttl_ms = ttl_ms

    def _refresh_once(self) -> int | None:
        """Apply new records; None if the log no longer continues the mapping."""
        changed = 0
        for _, view in sorted(self._dirs.views(self.topic).items()):
            tail = self._tail(view)
            if tail is None:
                return None
            self._take(tail)
            changed += len(tail.values)
        # After the last view was made: all of them are of the topic that was restored.
        return changed if self._id_of_now() in (None, self._topic_id) else None

    def _watch(self) -> None:
        """Look at the logs of now. A log that was not watched before counts as changed."""
        if self._is_past:
            return
        known, self._logs = self._logs, self._log.watched(self._changed) or {}
        self._changed.update(number for number, log in self._logs.items() if known.get(number) is not log)

    def _take_changed(self) -> None:
        """Take in the records of the partitions that have changed."""
        with self.reading, self._dirs.moment, self._taking():
            for number in list(self._changed):  # not what is appended meanwhile: a busy writer has no end
                self._changed.discard(number)
                try:
                    log = self._logs.get(number)
                    tail = None if log is None else self._tail(log)
                    if tail is not None:
                        self._take(tail)
                        continue
                    if log is None and number >= 0:  # in a bucket: some partition
                        self._changed.clear()
                    self._watch()
                    self._changed.discard(number)
                    self._refresh()  # all partitions
                    return
                except BaseException:
                    self._changed.add(number)
                    raise

    @contextmanager
    def _taking(self) -> Iterator[None]:
        before, self._is_taking = self._is_taking, True
        try:
            yield
        finally:
            self._is_taking = before

    def _tail(self, log: PartitionLog | PartitionView) -> _Tail | None:
        """Read the records that are not in the mapping.

        None if the log does not continue the mapping, or if cleanings replaced its files again and again.
        """
        reached = self._reached.get(log.partition)
        known: RemovalLog | None = None
        if isinstance(log, PartitionLog):
            if reached is not None and reached.is_at(log):
                return _Tail(log.partition, reached)
            log = log.view()
            if reached is not None and log.segments[-1].base_offset <= reached.position:
                known = reached.removals  # no cleaner touches the active segment, and a cut is notified
        known = known or removal_log.load(log.files, log.directory)
        if reached is None:
            reached = _Reached(log.log_start, log.log_start, {}, known)
        for _ in range(_ATTEMPTS):
            opened = log.undecided
            decided = [first for id_, first in reached.undecided.items() if opened.get(id_) != first]
            start, end = min((reached.end, *decided)), log.log_end
            highest = min(end, known.cut_since(reached.removals.cut_count))
            if log.log_start > reached.log_start or not known.up_to <= start <= reached.end <= end <= highest:
                return None
            try:
                return self._read_tail(
                    log.held(start), _Reached(reached.end, reached.log_start, {}, known), start
                )
            except FileVanishedError:
                log.refresh()
            except ReadOvertakenError:
                break
        return None

    def _read_tail(self, view: PartitionView, reached: _Reached, start: int) -> _Tail:
        """Read the committed records of a held view from `start` on.

        The range of a view that is not held would keep its end when the view shows a later one.
        """
        tail = _Tail(
            view.partition, _Reached(view.log_end, reached.log_start, view.undecided, reached.removals)
        )
        range_ = Range(view, start, view.log_end)
        few = view.log_end - start < FEW
        if self.ttl_ms < 0 and view.log_end <= view.stable_offset and not few:
            with closing(newest_pairs(range_, tombstones=True, map_bytes=self._map_bytes)) as parts:
                for pairs in parts:
                    tail.values.update(zip(pairs.keys, pairs.values, strict=True))
            return tail
        # A resolution takes no undecided batch. The size of a few records takes longer than to read them.
        plain = True if few or view.log_end > view.stable_offset else None
        for record in newest(range_, tombstones=True, map_bytes=self._map_bytes, plain=plain):
            assert record.key is not None
            tail.values[record.key] = record.value
            if self.ttl_ms >= 0:
                tail.expiry[record.key] = self._expiry_of(record.value, record.timestamp, record.headers)
        return tail

    def _take(self, tail: _Tail) -> None:
        """Put the records of a partition into the mapping."""
        self._put_all(tail.values)
        for key, expiry in tail.expiry.items():
            self._expires(key, *expiry)
        self._check_size(self._bytes)
        self._reached[tail.partition] = tail.reached

    # -------------------------------------------------------------- writing

    def write(
        self,
        key: bytes,
        value: bytes | None,
        headers: tuple[Header, ...] = (),
        expect: int | Absent | None = None,
    ) -> None:
        """Set a value, or delete a key (None), if its newest record is the expected one. After `check`."""
        if self._is_past:
            self.check_writable()
        with self.turn, self.reading:
            if self._refused is not None:
                self._take_back_refused()
            if expect is None:
                self._is_unsynced = True
                appended = self._log.append(key, value, headers)
            else:
                if self._log.is_deferred and self._is_unsynced:
                    self.sync()  # the changes before this one, in their order
                appended = self._log.append_expecting(key, value, headers, expect)
            self._note_own(appended, key, value, headers)
        self._log.acknowledge(key)

    def write_all(
        self, pairs: Iterable[tuple[bytes, bytes | None]], headers: tuple[Header, ...] = ()
    ) -> None:
        """Set many values and delete many keys."""
        self.check_writable()
        written = list(dict(pairs).items())
        if not written:
            return
        with self.turn, self.reading:
            self._take_back_refused()
            if self._changed:
                self._take_changed()
            self._is_unsynced = True
            before = {number: log.log_end for number, log in self._logs.items()}
            self._log.extend(written, headers)
            after = {number: log.log_end for number, log in self._logs.items()}
            alone = not self._logs or sum(after.values()) - sum(before.values()) == len(written)
            if alone and all(self._reached[number].end == end for number, end in before.items()):
                for key, value in written:
                    self._put(key, value)
                    self._note_written(key, value, headers)
                for number, end in after.items():
                    self._reached[number].end = end
        self._log.acknowledge(None)

    def replace(
        self, key: bytes, old: bytes | None, new: bytes | None, headers: tuple[Header, ...] = ()
    ) -> bool:
        """Replace a value if the log still has `old`, and return whether it had.

        The caller holds `turn`, and calls `acknowledge` later. If the log has another value, it is in the
        mapping when the call returns.
        """
        self.check_writable()
        tail: _Tail | None = None
        is_lost = False

        def check(log: PartitionLog) -> bool:
            nonlocal tail, is_lost
            reached = self._reached.get(log.partition)
            if reached is not None and reached.is_at(log):
                tail, is_lost = None, False
                return self.data.get(key) == old
            tail = self._tail(log)
            is_lost = tail is None
            return tail is not None and tail.values.get(key, self.data.get(key)) == old

        with self.reading:
            if self._log.is_deferred and self._is_unsynced:
                self.sync()  # the changes before this one, in their order
                if self.data.get(key) != old:
                    return False
            appended = self._log.append_if(key, new, headers, check)
            if is_lost:
                self._restore_again(self.ttl_ms)
                return False
            if tail is not None:
                self._take(tail)
            if appended is not None:
                self._note_own(appended, key, new, headers)
        return appended is not None

    def acknowledge(self, key: bytes) -> None:
        """Sync the partition of a key, if the topic's `lastword.ack` is "disk"."""
        self._log.acknowledge(key)

    def _note_own(
        self, appended: Appended, key: bytes, value: bytes | None, headers: tuple[Header, ...]
    ) -> None:
        """Put an own record into the mapping if it follows directly; else it is read with those before."""
        number, end = appended.partition, appended.offset + 1
        reached = self._reached.get(number)
        if number >= 0 and (reached is None or reached.end + 1 != end):
            self._changed.add(number)
            return
        self._put(key, value)
        if self.ttl_ms >= 0:
            self._note_written(key, value, headers)
        if reached is not None:
            reached.end = end
            log = self._logs.get(number)
            if log is not None:
                self._changed.discard(number)
                if log.log_end != end:  # read after the mark was removed: a later append marks again
                    self._changed.add(number)

    def _note_written(self, key: bytes, value: bytes | None, headers: tuple[Header, ...]) -> None:
        if self.ttl_ms >= 0:
            self._expires(key, *self._expiry_of(value, self._dirs.clock.now_ms(), headers))

    def sync(self) -> None:
        """Sync: changes acknowledged with "os" survive a power cut when the call returns.

        In a bucket, a commit may refuse a change that the mapping shows already: another process has lowered
        `max.message.bytes`, for example. Then this, or the next change, restores the mapping from the log and
        raises the error. The caller has called `check`.
        """
        try:
            self._log.sync()
            self._is_unsynced = False
        finally:
            if self._refused is not None:
                self._take_back_refused()

    def _note_refused(self, error: BaseException) -> None:
        """Note that the log will never have a change that the mapping shows. For another thread."""
        self._refused = self._refused or error

    def _take_back_refused(self) -> None:
        """Restore the mapping from the log if a change was refused, and raise the error of the change."""
        if self._refused is None:
            return
        with self.reading:
            with suppress(Exception):
                self._log.sync()  # raises errors of refused changes once
            self._log.sync()  # all other changes are in the log now
            refused = self._refused
            if refused is not None:
                self._restore_again(self.ttl_ms)
                self._refused = None
                raise refused

    def check_writable(self) -> None:
        """Raise ReadOnlyError if the values are those of an earlier end; else as `check`."""
        self.check()
        if self._is_past:
            raise ReadOnlyError(
                f"the state of {self.topic} was opened as of an earlier end",
                remedy='open it with end="latest" to change it',
            )

    # -------------------------------------------------------------- time to live

    def _saved_ttl_ms(self) -> int:
        """Return the topic's `lastword.ttl.ms`; InvalidSettingError if its serializers were changed."""
        self._topic.check_serializers(self._saved)
        return self._dirs.config(self.topic).lastword_ttl_ms

    def _take_settings(self) -> None:
        """Take the time to live of now. If it has changed, restore again: hidden values may be back.

        Also if the topic was deleted and created again. In mode "r" that is found by `refresh`.
        """
        with self.reading:
            settings, ttl_ms = self._log_dir.settings, self._saved_ttl_ms()
            is_other = self._dirs.mode == "a" and self._id_of_now() not in (None, self._topic_id)
            if not self._is_past and (is_other or ttl_ms != self.ttl_ms):
                self._restore_again(ttl_ms)
            self._watch()
            self._settings = settings

    def _note_expiry(self, view: PartitionView, start: int, end: int) -> None:
        """Read the expiry of the newest values of a range. Costs one more read, if values may expire."""
        if self.ttl_ms < 0 or start >= end:
            return
        for record in newest(Range(view.held(start), start, end), tombstones=True, map_bytes=self._map_bytes):
            assert record.key is not None
            self._expires(record.key, *self._expiry_of(record.value, record.timestamp, record.headers))

    def _expiry_of(
        self, value: bytes | None, timestamp: int, headers: tuple[Header, ...]
    ) -> tuple[int, int | None]:
        """Return the time at which a value expires, and its own time to live; a deletion never expires."""
        if value is None:
            return NEVER, None
        return expires_at(timestamp, headers, self.ttl_ms), own_ttl(headers)

    def _expires(self, key: bytes, at: int, own_ms: int | None) -> None:
        if own_ms is None:
            self._own_ttl_ms.pop(key, None)
        else:
            self._own_ttl_ms[key] = own_ms
        if at == NEVER:
            self._expiry.pop(key, None)
        else:
            self._expiry[key] = at
            heapq.heappush(self._expiring, (at, key))
            if len(self._expiring) > 2 * len(self._expiry) + FEW:  # most are of values that were replaced
                self._expiring = [(at, key) for key, at in self._expiry.items()]
                heapq.heapify(self._expiring)

    def _drop_expired(self) -> None:
        with self.reading:
            now_ms = self._dirs.clock.now_ms()
            while self._expiring and self._expiring[0][0] <= now_ms:
                at, key = heapq.heappop(self._expiring)
                if self._expiry.get(key) == at:
                    del self._expiry[key]
                    self._own_ttl_ms.pop(key, None)
                    self._put(key, None)

    def remaining_ms(self, key: bytes) -> int | None:
        """Return the time until a value expires; None: never."""
        at = self._expiry.get(key)
        return None if at is None else max(0, at - self._dirs.clock.now_ms())
