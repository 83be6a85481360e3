"""`MemorySegments`: a `SegmentStore` without a file system.

The log is a tuple of immutable facts about contents. Every change, also an append, makes a new tuple, which
is set by compare-and-swap; nothing is renamed. A content that left the log can still be read through open
handles, and by no other handle.

Notes beside the segments (leases, snapshots, accounts) are in `NoteFiles`, which refuses every file of a
segment: so a test that passes shows that no segment was read or written except through the store.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lastword.clock import Clock, ManualClock
from lastword.config import TopicConfig
from lastword.errors import FileTakenError, FileVanishedError
from lastword.files import FileFacts, Files, Handle
from lastword.partition.checkpoint_file import LeaderEpochs
from lastword.partition.cut import empty_batch
from lastword.partition.local_log import LocalLog
from lastword.partition.log import PartitionLog
from lastword.partition.segment_store import LogVersion, PrivateSegment, SegmentSet
from lastword.partition.snapshots import Snapshots, replay
from lastword.segment import names
from lastword.segment.append import AssignedBatch, SegmentAppender
from lastword.segment.indexes import IndexBuilder, TransactionIndex
from lastword.segment.segment import Segment
from lastword.segment.stored import SegmentId, StoredFacts
from tests.build import LogBuilder
from tests.crash.memory import ROOT, MemoryFiles


class NoteFiles(MemoryFiles):
    """Files in memory, except those of segments."""

    def _split(self, path: Any) -> Any:
        _check_note(path)
        return super()._split(path)

    def _entry(self, path: Any) -> Any:
        _check_note(path)
        return super()._entry(path)


def _check_note(path: Any) -> None:
    parsed = names.parse_segment_file(str(path).rpartition("/")[2])
    if parsed is not None and parsed.extension in names.SEGMENT_EXTENSIONS:
        raise AssertionError(f"{path} is reached around the segment store")


@dataclass(eq=False)
class Content:
    """The bytes of one segment, by extension. A log only grows; a change of its bytes makes a new content."""

    number: int
    base_offset: int
    data: dict[str, bytearray] = field(default_factory=dict)

    @property
    def log(self) -> bytearray:
        return self.data[names.LOG]


@dataclass(frozen=True)
class Listed:
    """A content as listed in one version of the log."""

    content: Content
    size: int
    mtime_ms: int


@dataclass(frozen=True)
class State:
    """One version of the log."""

    listed: tuple[Listed, ...] = ()
    log_start: int = 0

    def find(self, content: Content) -> Listed | None:
        return next((entry for entry in self.listed if entry.content is content), None)


class MemorySegment:
    """A `StoredSegment`: a content in the version of the log that `now` returns. None: it is private."""

    def __init__(
        self, store: MemorySegments, content: Content, now: Callable[[], State] | None, mtime_ms: int = 0
    ) -> None:
        self.base_offset = content.base_offset
        self.content = content
        self.mtime_ms = mtime_ms
        self._store = store
        self._now = now

    def path(self, extension: str) -> str:
        name = names.segment_file(self.base_offset, extension)
        return f"{self._store.directory}/{name} (number {self.content.number})"

    def facts(self) -> StoredFacts | None:
        content = self.content
        if self._now is None:
            size = len(content.data.get(names.LOG, b""))
            return StoredFacts(SegmentId(content.number, size), self.mtime_ms)
        listed = self._now().find(content)
        return (
            None if listed is None else StoredFacts(SegmentId(content.number, listed.size), listed.mtime_ms)
        )

    def open_read(self) -> Handle:
        if self.facts() is None:
            raise FileVanishedError(f"{self.path(names.LOG)} is gone", file=self.path(names.LOG))
        return MemoryHandle(self._store, self, names.LOG)

    def open_append(self, extension: str, *, create: bool = False, exclusive: bool = False) -> Handle:
        data = self.content.data
        if exclusive and extension in data:
            raise FileTakenError(f"{self.path(extension)} is there", file=self.path(extension))
        if extension not in data:
            if not create:
                raise FileVanishedError(f"{self.path(extension)} is gone", file=self.path(extension))
            data[extension] = bytearray()
        return MemoryHandle(self._store, self, extension)

    def read(self, extension: str) -> bytes | None:
        if self.facts() is None:
            return None
        data = self.content.data.get(extension)
        return None if data is None else bytes(data)

    def remove(self, extension: str) -> None:
        self.content.data.pop(extension, None)

    def seal(self, extensions: Sequence[str], mtime_ms: int) -> None:
        assert set(extensions) == set(self.content.data)
        self.mtime_ms = mtime_ms


class MemoryHandle(Handle):
    """The log or an index of a content; a log that grows makes a new version."""

    def __init__(self, store: MemorySegments, segment: MemorySegment, extension: str) -> None:
        self.path = segment.path(extension)
        self._store = store
        self._segment = segment
        self._data = segment.content.data[extension]
        self._is_log = extension == names.LOG

    def pread(self, n: int, position: int) -> bytes:
        return bytes(self._data[position : position + n])

    def pread_into(self, buffer: Any, position: int) -> int:
        view = memoryview(buffer).cast("B")
        data = self._data[position : position + len(view)]
        view[: len(data)] = data
        return len(data)

    def append(self, data: Any) -> int:
        position = len(self._data)
        self._data += memoryview(data).cast("B")
        self._changed()
        return position

    def pwrite(self, data: Any, position: int) -> None:
        raise AssertionError("bytes of a segment do not change")

    def truncate(self, size: int) -> None:
        assert not self._is_log or size == len(self._data), "bytes of a segment do not change"
        del self._data[size:]

    def _changed(self) -> None:
        if self._is_log:
            self._store.grown(self._segment.content)

    def fsync(self) -> None:
        pass

    def stat(self) -> FileFacts:
        facts = self._segment.facts()
        mtime_ms = 0 if facts is None else facts.mtime_ms
        size = len(self._data) if facts is None or not self._is_log else facts.id.size
        return FileFacts(size, mtime_ms, self._segment.content.number)

    def close(self) -> None:
        pass


class MemorySegments:
    """A `SegmentStore` in memory; `now` is the current version of the log."""

    def __init__(self, name: str = "users-0", clock: Clock | None = None, files: Files | None = None) -> None:
        self.directory = f"{ROOT}/{name}"
        self.clock = clock or ManualClock()
        self.files = files or NoteFiles({name: None})
        self.now = State()
        self._private: dict[str, Content] = {}
        self._count = 0

    # ---- versions

    def _swap(self, old: State, new: State) -> None:
        """Compare and swap the version of the log."""
        assert self.now is old, "another version came first"
        self.now = new

    def _content(self, base_offset: int, data: Mapping[str, bytes] | None = None) -> Content:
        self._count += 1
        given = {extension: bytearray(value) for extension, value in (data or {}).items()}
        return Content(self._count, base_offset, given)

    def _current(self) -> State:
        return self.now

    def grown(self, content: Content) -> None:
        state = self.now
        listed = state.find(content)
        if listed is not None:
            more = replace(listed, size=len(content.log), mtime_ms=self.clock.now_ms())
            changed = tuple(more if entry is listed else entry for entry in state.listed)
            self._swap(state, replace(state, listed=changed))

    # ---- read

    def load(self) -> LogVersion:
        state = self.now
        last = len(state.listed) - 1
        segments = SegmentSet(
            Segment(
                MemorySegment(self, entry.content, self._current),
                StoredFacts(SegmentId(entry.content.number, entry.size), entry.mtime_ms),
                active=number == last,
            )
            for number, entry in enumerate(state.listed)
        )
        log_end = segments.active.next_offset if len(segments) else state.log_start
        first = segments[0].base_offset if len(segments) else log_end
        return LogVersion(segments, max(state.log_start, first), log_end, token=_newest(state))

    def is_current(self, version: LogVersion) -> bool:
        if version.token is not None:
            return version.token == _newest(self.now)
        active = version.segments.active
        return _newest(self.now) == (active.id.number, active.id.size)

    def pin(self, segments: Sequence[Segment]) -> None:
        for segment in segments:
            segment.handle  # noqa: B018  opens it

    # ---- append

    def create(self, base_offset: int, *, index_interval_bytes: int) -> SegmentAppender:
        content = self._content(base_offset)
        stored = MemorySegment(self, content, self._current)
        appender = SegmentAppender.create(stored, index_interval_bytes=index_interval_bytes)
        self._add(content)
        return appender

    def _add(self, content: Content) -> None:
        state, listed = self.now, Listed(content, len(content.log), self.clock.now_ms())
        assert not any(entry.content.base_offset == content.base_offset for entry in state.listed)
        self._swap(state, replace(state, listed=(*state.listed, listed)))

    def ingest(
        self, file: str, batches: Sequence[AssignedBatch], *, index_interval_bytes: int
    ) -> SegmentAppender:
        builder = IndexBuilder(batches[0].base_offset, index_interval_bytes)
        for batch in batches:
            builder.batch(batch.position, batch.last_offset, batch.max_timestamp)
        content = self._content(batches[0].base_offset, _data(self.files.read_bytes(file), builder))
        self._add(content)
        self.files.unlink(file)
        segment = Segment.load(MemorySegment(self, content, self._current), active=True)
        return SegmentAppender.resume(segment, index_interval_bytes=index_interval_bytes)

    def stored(self, base_offset: int) -> MemorySegment:
        contents = [entry.content for entry in self.now.listed if entry.content.base_offset == base_offset]
        return MemorySegment(self, (contents or [self._content(base_offset)])[0], self._current)

    def sync(self, segment: Segment) -> None:
        """Do nothing: memory needs no sync."""

    def sync_names(self) -> None:
        """Do nothing: memory needs no sync."""

    # ---- build in private

    def create_output(self, base_offset: int, within: str | None = None) -> PrivateSegment:
        content = self._content(base_offset)
        location = f"private-{content.number}"
        self._private[location] = content
        return PrivateSegment(location, MemorySegment(self, content, None))

    def output(self, location: str, base_offset: int) -> MemorySegment:
        content = self._private[location]
        assert content.base_offset == base_offset
        return MemorySegment(self, content, None)

    def discard(self, location: str) -> None:
        self._private.pop(location, None)

    def discard_outputs(self) -> None:
        self._private.clear()

    def free_bytes(self) -> int:
        return 1 << 40

    @property
    def outputs(self) -> list[str]:
        """Return the locations of private segments that were not discarded."""
        return sorted(self._private)

    # ---- change the set

    def replace(self, sources: Sequence[Segment], output: Segment) -> Segment:
        state, stored = self.now, output.stored
        assert isinstance(stored, MemorySegment) and stored.content in self._private.values()
        numbers = [entry.content.number for entry in state.listed]
        first = numbers.index(sources[0].id.number)
        assert numbers[first : first + len(sources)] == [source.id.number for source in sources]
        assert output.base_offset == sources[0].base_offset and not any(s.active for s in sources)
        mtime_ms = sources[-1].mtime_now_ms()
        new = Listed(stored.content, len(stored.content.log), mtime_ms)
        listed = (*state.listed[:first], new, *state.listed[first + len(sources) :])
        self._swap(state, replace(state, listed=listed))
        published = MemorySegment(self, stored.content, self._current)
        return Segment.load(published, next_offset=output.next_offset)

    def after_failed_replace(self, segments: SegmentSet) -> SegmentSet:
        return segments  # a swap that failed changed nothing

    def remove_front(self, gone: Sequence[Segment], kept: list[str]) -> None:
        numbers = {segment.id.number for segment in gone}
        state = self.now
        left = tuple(entry for entry in state.listed if entry.content.number not in numbers)
        self._swap(state, replace(state, listed=left))

    def truncate(
        self, segments: SegmentSet, offset: int, epoch: int, *, index_interval_bytes: int
    ) -> SegmentSet:
        state, at = self.now, segments.floor(offset)
        last = segments[at]
        position, end = last.position_of(offset), last.end_before(offset)
        log = last.handle.pread(position, 0) + (empty_batch(end, offset, epoch) if end < offset else b"")
        content = self._content(last.base_offset, {names.LOG: log})
        builder = IndexBuilder(last.base_offset, index_interval_bytes)
        for header in Segment.load(MemorySegment(self, content, None)).headers():
            builder.batch(header.position, header.last_offset, header.max_timestamp)
        content.data.update({e: bytearray(d) for e, d in _data(log, builder).items()})
        entries = last.stored.read(names.TXN_INDEX)
        if entries is not None:
            content.data[names.TXN_INDEX] = bytearray(entries)
            TransactionIndex(MemorySegment(self, content, None)).truncate(offset)
        listed = (*state.listed[:at], Listed(content, len(log), self.clock.now_ms()))
        self._swap(state, replace(state, listed=listed, log_start=min(state.log_start, offset)))
        left = Segment.load(MemorySegment(self, content, self._current), active=True)
        return SegmentSet([*segments[:at], left])

    def remove_all(self, segments: SegmentSet) -> None:
        self._swap(self.now, State())


def _newest(state: State) -> tuple[int, int]:
    last = state.listed[-1] if state.listed else None
    return (0, 0) if last is None else (last.content.number, last.size)


def _data(log: bytes, builder: IndexBuilder) -> dict[str, bytes]:
    return {
        names.LOG: log,
        names.INDEX: bytes(builder.offset_entries),
        names.TIME_INDEX: bytes(builder.time_entries),
    }


class MemoryLogBuilder(LogBuilder):
    """A `LogBuilder` whose segments are in memory."""

    def __init__(self, store: MemorySegments, clock: ManualClock, **config: Any) -> None:
        super().__init__(ROOT, files=store.files, clock=clock, **config)
        self._store = store

    @property
    def store(self) -> MemorySegments:
        return self._store

    @property
    def log(self) -> PartitionLog:
        if self._log is None:
            self._log = open_memory_log(self._store, self.config, self.clock, *self._name)
        return self._log

    def tree(self) -> dict[str, bytes]:
        """Return the log and the indexes of each segment."""
        return {
            names.segment_file(entry.content.base_offset, extension): bytes(data)
            for entry in self._store.now.listed
            for extension, data in entry.content.data.items()
        }


def open_memory_log(
    store: MemorySegments, config: TopicConfig, clock: Clock, topic: str = "users", partition: int = 0
) -> PartitionLog:
    """Open the log of a store to write; an empty store becomes a log that starts at 0."""
    if not store.now.listed:
        store.create(0, index_interval_bytes=config.index_interval_bytes).close()
    version = store.load()
    epochs = LeaderEpochs.load(store.files, store.directory)
    snapshots = Snapshots(store.files, store.directory)
    local = LocalLog(
        store,
        config,
        clock,
        version.segments,
        epochs=epochs,
        synced_to=version.log_end,
        recovery_point=version.log_end,
    )
    return PartitionLog(
        topic,
        partition,
        local,
        log_start=version.log_start,
        epochs=epochs,
        producers=replay(snapshots, version.segments, version.log_end).state,
        snapshots=snapshots,
    )
