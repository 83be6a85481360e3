"""`BucketDirs`: the `OpenDirs` of a log in a bucket.

Reads use the newest version of the manifest, which is loaded again at the start of each verb. Changes are
transactions (`lastword.bucket.commit`): a verb runs on a private copy of the log, and its result is committed
with one swap. Appends of several threads, and those of a state, share a commit; a small one needs no private
copy (`ShortCommits`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from math import inf
from typing import TYPE_CHECKING, Any, TypeVar, cast
from weakref import ref

from lastword.api.bucket_ledgers import BucketLedgers, CopyLedgers
from lastword.api.bucket_records import groups_of, whole
from lastword.api.open_dirs import Ack, Mode, OpenDirs, PathLike
from lastword.api.record import size_of
from lastword.api.short_commits import ShortCommits
from lastword.bucket.collect import Collection, collect, drop_removed_bytes, missing_objects
from lastword.bucket.commit import CLOCK_OBJECT, Bucket, KeptCopy, Loaded
from lastword.bucket.files import BucketFiles
from lastword.bucket.manifest import OBJECTS, is_object, lost_manifest
from lastword.bucket.servers import ServerSession
from lastword.bucket.tenure import Role
from lastword.clock import Clock
from lastword.config import Settings, is_topic_file
from lastword.errors import DataError, LastwordError, PartialFailure, StorageError, UsageError
from lastword.files import DEFAULT, Files
from lastword.keys.manifest import path_of as saved_keys
from lastword.logdir import LogDirectory, LogDirSet
from lastword.logdir.broker import BrokerSettings
from lastword.logdir.checkpoints import TopicPartition
from lastword.partition.committed_log import CommittedLog, Version
from lastword.partition.directory_segments import read_log_start
from lastword.segment import names

if TYPE_CHECKING:
    from lastword.bucket.manifest import Changes, Entry, ManifestVersion, ServerNode
    from lastword.partition.tail import Changed

T = TypeVar("T")


class BucketDirs(OpenDirs):
    """A log in a bucket, open in one mode.

    Args:
        bucket: The versions of the log.
        mode: "r" or "a".
        load: Merges the settings; its argument is where the settings file is.
        clock: The clock.
        config_file: A settings file outside the log.
        opened_at: File and line of the caller.
    """

    holds_logs = False
    saves_key_indexes = False  # a lookup is no commit
    most_commit_bytes = 1 << 30  # of the scratch directory, too

    def __init__(
        self,
        bucket: Bucket,
        mode: Mode,
        load: Callable[[BucketFiles], Settings],
        clock: Clock,
        *,
        config_file: PathLike | None = None,
        opened_at: str = "an unknown place",
    ) -> None:
        self._bucket = bucket
        self._load = load
        self.clock = clock
        self._served: dict[TopicPartition, CommittedLog] = {}
        self._on_topics_changed: Callable[[set[str]], object] | None = None
        self._ledgers = BucketLedgers(lambda: self.settings.instance.log_cleaner_dedupe_buffer_size)
        self._setting_version = threading.Lock()
        self.moment = threading.RLock()  # a version may be loaded before there is that of `OpenDirs`
        self._read_files = bucket.files(bucket.load().snapshot)
        self._version = 0, self._read_files.snapshot
        bucket.reads.on_vanished = self._newest_names
        if not self._read_files.snapshot.manifest.nonce:
            self._require_no_objects()
            if mode == "a":
                self._in_private(lambda dirs: None)
            self._read_files.snapshot = bucket.load().snapshot
        directory = LogDirectory.open(
            bucket.url, "r", self._read_files, clock, lambda: load(self._read_files)
        )
        super().__init__(
            LogDirSet([directory], {}),
            mode,
            self._read_files,
            clock,
            config_file=config_file,
            opened_at=opened_at,
        )
        self._settings_version = self._read_files.snapshot
        self._queue = _CommitQueue(self)
        self._watchers: list[tuple[str, ref[Changed]]] = []

    def _require_no_objects(self) -> None:
        """Raise CorruptFileError if there are objects without a manifest: it is lost, and they are needed.

        A new log has its manifest before its first object.
        """
        bucket = self._bucket
        has_objects = any(
            is_object(facts.key) and facts.size > len(CLOCK_OBJECT) for facts in bucket.store.list(OBJECTS)
        )
        if has_objects and not bucket.load().manifest.nonce:  # another process may have made it meanwhile
            raise lost_manifest(bucket.url)

    # -------------------------------------------------------------- read

    def refresh(self, *, at_most_every_ms: int = 0) -> None:
        """Take the newest version. Costs a request, unless the last one is not older than the given time."""
        self.require_open()
        if not at_most_every_ms:
            self._queue.wait()  # so a process reads what it has appended
        now = self.clock.monotonic()
        if at_most_every_ms and now - self._refreshed < at_most_every_ms / 1000:
            return
        self._refreshed = now
        self._take(self._bucket.recent if at_most_every_ms >= 1000 else self._bucket.load)

    def refresh_settings(self, topic: str | None = None, *, edited: bool = True) -> None:
        """Do nothing: a version has its topics and their settings."""

    def _take(self, load: Callable[[], Loaded]) -> None:
        """Read from now on the version that `load` returns."""
        snapshot = self._set_version(load)
        changed = snapshot.changed_in_root(self._settings_version)
        if any(name == names.SETTINGS or is_topic_file(name) for name in changed):
            self.settings_changed()
        self._settings_version = snapshot  # not if it raises: the next call reads them

    @property
    def newest(self) -> ManifestVersion:
        """The newest version that was loaded."""
        return self._read_files.snapshot

    def _set_version(self, load: Callable[[], Loaded]) -> ManifestVersion:
        """Set the version to read. One thread at a time, so that no thread goes back to an older version."""
        with self.moment, self._setting_version:  # not while views of several partitions are made
            snapshot, before = load().snapshot, self._read_files.snapshot
            self._read_files.snapshot = snapshot
            is_other = snapshot.manifest.nonce != before.manifest.nonce
            if is_other:
                self._version = self._version[0] + 1, snapshot
        if is_other and self._on_topics_changed is not None:
            self._served_changed(before, snapshot)
        return snapshot

    def _served_changed(self, before: ManifestVersion, after: ManifestVersion) -> None:
        """Notify a server of another version."""
        changed = after.changed_since(before)
        directories = {path.partition("/")[0] for path in changed}
        for tp, log in list(self._served.items()):
            if f"{tp}/{names.PARTITION_METADATA}" in changed:
                self._served.pop(tp, None)  # of a topic that was deleted, and perhaps made again
            if str(tp) in directories or names.LOG_STARTS in changed:
                log.changed()
        made = {path.partition("/")[0] for path in changed if path.endswith(f"/{names.PARTITION_METADATA}")}
        if made and self._on_topics_changed is not None:
            self._on_topics_changed({names.topic_partition(name)[0] for name in made})

    def _newest_names(self, key: str) -> bool:
        """Take the newest version; return whether it names an object."""
        self._set_version(self._bucket.load)
        return self._bucket.names(key)

    @property
    def local_files(self) -> Files:
        """As `OpenDirs.local_files`."""
        return DEFAULT

    # -------------------------------------------------------------- change

    def transaction(self, work: Callable[[OpenDirs], T], *, any_mode: bool = False) -> T:
        """As `OpenDirs.transaction`: on a private copy, committed when `work` returns.

        Raises:
            ReadOnlyError: The log was opened with mode "r"; the private copy is always one to change.
        """
        if any_mode:
            self.require_open()
        else:
            self.require_writable()
        result = self._in_private(work)
        self._queue.wait()
        self._take(self._bucket.committed)
        self.notify(None)
        return result

    def _in_private(self, work: Callable[[OpenDirs], T], kept: KeptDirs | None = None) -> T:
        ledgers = self._ledgers if kept is None else None  # an append uses none
        return in_private(self._bucket, self._load, self.clock, work, ledgers=ledgers, kept=kept)

    def checked_ack(self, ack: Ack) -> None:
        """As `OpenDirs.checked_ack`."""
        if ack not in ("disk", "store"):
            raise UsageError(
                f'ack="{ack}" does not exist in a bucket: a record is acknowledged when it is in the store',
                remedy="leave ack out",
            )

    def append(
        self, topic: str, work: Callable[[OpenDirs], T], pair: tuple[Any, Any], *, own: Changed | None = None
    ) -> T:
        """As `OpenDirs.append`. `own`: the watcher whose owner makes the call."""
        return self.begin_append((topic,), work, size_of(pair), own=own).result()

    def begin_append(
        self,
        topics: Container[str],
        work: Callable[[OpenDirs], T],
        size_bytes: int,
        *,
        own: Changed | None = None,
    ) -> Future[T]:
        """As `OpenDirs.begin_append`. `own`: the watcher whose owner makes the call."""
        self.require_writable()
        return self._queue.begin(_Append(topics, work, size_bytes, Future(), own=own))

    def extend(self, topic: str, work: Callable[[Any, OpenDirs], int], records: Any, *, is_one: bool) -> int:
        """As `OpenDirs.extend`. A list, a mapping and a table are one commit."""
        appended = 0
        for group, size_bytes in [whole(records)] if is_one else groups_of(records):
            try:
                appended += self.begin_append((topic,), partial(work, group), size_bytes).result()
            except LastwordError as error:
                if not appended:
                    raise
                note = f"the {appended} records before are in the log"
                raise PartialFailure.of(appended, [error], note) from error
        return appended

    # -------------------------------------------------------------- for a server

    def serve(self, changed: Callable[[set[str]], object]) -> None:
        """As `OpenDirs.serve`. The objects of this process's commits stay in memory."""
        self._on_topics_changed = changed
        self._bucket.reads.tail_bytes = self.settings.instance.lastword_tail_bytes

    def served_log(self, log_dir: LogDirectory, topic: str, partition: int) -> CommittedLog:
        """As `OpenDirs.served_log`."""
        tp = TopicPartition(topic, partition)
        log = self._served.get(tp)
        if log is None:
            load, config = partial(self._served_version, tp), partial(self.config, topic)
            log = self._served.setdefault(tp, CommittedLog(self.files, f"{self.paths[0]}/{tp}", load, config))
        return log

    def _served_version(self, tp: TopicPartition, known: Version | None) -> Version:
        """Return the newest version of a partition. `known`: the version that was returned last."""
        number, snapshot = self._version
        if known is not None and known.number == number:
            return known
        stamp = snapshot.children(str(tp)), read_log_start(self.files, f"{self.paths[0]}/{tp}")
        if known is not None and known.stamp == stamp:
            return known._replace(number=number)
        return Version(number, self.directories[0].view(*tp), stamp)

    def is_served_log_open(self, log_dir: LogDirectory, topic: str, partition: int) -> bool:
        """As `OpenDirs.is_served_log_open`: a read that needs a request raises WouldWait."""
        return True

    def server_session(self, address: str, name: str) -> ServerSession:
        """As `OpenDirs.server_session`.

        Raises:
            UsageError: This log is served already: its commits have the epoch of one server.
        """
        held = self._bucket.tenure
        if held is not None and held.role(self.clock.boottime()) is not Role.FENCED:
            raise UsageError(
                f"{self.paths[0]} is served already by this process",
                remedy="close the other server first, or open the log again for another one",
            )
        limits = self.settings.instance
        timeout_ms, heartbeat_ms = limits.broker_session_timeout_ms, limits.broker_heartbeat_interval_ms
        return ServerSession(self._bucket, address, name, timeout_ms=timeout_ms, heartbeat_ms=heartbeat_ms)

    def active_server(self) -> ServerNode | None:
        """As `OpenDirs.active_server`."""
        return self.newest.manifest.servers.node

    def confirm(self) -> None:
        """As `OpenDirs.confirm`."""
        self._take(self._bucket.load)

    def read_ahead_of_commits(self) -> None:
        """As `OpenDirs.read_ahead_of_commits`: a request for each object that has such batches."""
        parts: dict[str, list[Entry]] = {}
        version = self.newest
        for topic, partitions in self.topics().items():
            for partition in partitions:
                files = version.children(str(TopicPartition(topic, partition)))
                newest = names.segment_file(max(names.snapshot_offsets(files), default=0), "")
                for name, entry in files.items():
                    is_read = name.endswith(names.LOG) or name == newest + names.SNAPSHOT
                    if entry is not None and entry.object is not None and is_read and name >= newest:
                        parts.setdefault(entry.object, []).append(entry)
        ranges = {
            key: range(min(e.position for e in entries), max(e.position + e.size for e in entries))
            for key, entries in sorted(parts.items(), key=lambda part: part[1][0].mtime_ms)
        }
        self._bucket.reads.take_in(ranges)

    def is_recent(self) -> bool:
        """As `OpenDirs.is_recent`."""
        return self._bucket.is_recent()

    def settle(self) -> None:
        """As `OpenDirs.settle`: after another swap, the store refuses each earlier one that arrives late."""
        self._bucket.edit(lambda loaded: loaded.manifest)
        self._take(self._bucket.committed)

    def owned_log(self, topic: str, partition: int) -> None:
        """As `OpenDirs.owned_log`: any process may commit."""

    def move(self, topic: str, partition: int, target: str) -> None:
        """As `OpenDirs.move`: a log in a bucket is one directory."""
        self.require_writable()
        raise UsageError(
            f"{self.paths[0]} is one log in a bucket: its partitions have no directories to move between",
            remedy="lastword.copy copies topics to another log",
        )

    def append_later(
        self,
        topic: str,
        work: Callable[[OpenDirs], object],
        size_bytes: int,
        on_refused: Callable[[BaseException], object],
        *,
        own: Changed | None = None,
    ) -> None:
        """Run `work`, which appends, in a later commit. `sync` waits for it and raises its error.

        `on_refused` is called with the error, in another thread, if a part of `work` is never stored.
        """
        self.require_writable()
        self._queue.add(_Append((topic,), work, size_bytes, None, on_refused, own=own))

    def watch(self, topic: str, changed: Changed) -> None:
        """Add a number to `changed` when a commit of this process has appended to a topic.

        Commits of the owner of `changed` do not count. A reference to `changed` is not kept.
        """
        self._watchers = [*((n, known) for n, known in self._watchers if known() is not None)]
        self._watchers.append((topic, ref(changed)))

    def committed(self, calls: Iterable[_Append]) -> None:
        """Notify the watchers of a commit with these calls. A server reads it before they are answered."""
        if self._on_topics_changed is not None:
            with suppress(LastwordError):  # the commit is in the log; the next request reads it
                self._take(self._bucket.committed)
        self.notify(calls)

    def notify(self, calls: Iterable[_Append] | None) -> None:
        """Notify the watchers of a commit with these calls; None: of any change."""
        for topic, watcher in self._watchers:
            changed = watcher()
            if changed is not None and (
                calls is None or any(topic in call.topics and call.own is not changed for call in calls)
            ):
                changed.add(0)

    def sync(self) -> None:
        """Wait until everything that was appended is in the store."""
        self.require_open()
        self._queue.flush()

    def close(self) -> None:
        """Commit what waits, and close the store. A second close does nothing."""
        if self.closed:
            return
        try:
            self._queue.close()
        finally:
            super().close()
            self._bucket.close()

    def collect(self, *, retention_ms: int | None = None, dry_run: bool = False) -> Collection:
        """As `OpenDirs.collect`; see `lastword.bucket.collect`."""
        self.require_open()
        if not dry_run:
            self.require_writable()
        if retention_ms is None:
            retention_ms = self.settings.instance.lastword_objects_retention_ms
        return collect(self._bucket, retention_ms=retention_ms, dry_run=dry_run)

    def drop_removed_bytes(self) -> None:
        """As `OpenDirs.drop_removed_bytes`."""
        self.require_writable()
        drop_removed_bytes(self._bucket)
        self.refresh()

    def object_of(self, path: str) -> tuple[str, int, int] | None:
        """As `OpenDirs.object_of`; None for a file that is in the manifest, or that does not exist."""
        return self._read_files.object_of(path)

    def missing_objects(self) -> list[DataError]:
        """As `OpenDirs.missing_objects`; at most two requests besides a listing."""
        return missing_objects(self._bucket)

    @contextmanager
    def pin(self, max_age_ms: int) -> Iterator[None]:
        """As `LogDir.pin`."""
        self.require_open()
        name = self._bucket.pin(max_age_ms)
        self.refresh()
        try:
            yield
        finally:
            self._bucket.unpin(name)

    # -------------------------------------------------------------- settings

    def set_config(self, topic: str | None, settings: Mapping[str, Any]) -> None:
        """As `OpenDirs.set_config`."""
        self.require_writable()
        if self._config_file is not None:
            super().set_config(topic, settings)
        self.transaction(lambda dirs: dirs.set_config(topic, settings))


class _PrivateDirs(OpenDirs):
    """The directories of a private copy.

    Its key indexes are those of cleanings, and are saved at closing. A cleaning loads the saved ones before
    its swaps, after which they no longer fit, and removes those of topics that are to have none.
    """

    @cached_property
    def _topic_ids(self) -> dict[str, str | None]:
        """The ids that were read, by topic. They stay right: only this process changes the copy."""
        return {}

    def topic_id(self, topic: str) -> str | None:
        """As `OpenDirs.topic_id`."""
        if topic not in self._topic_ids:
            self._topic_ids[topic] = super().topic_id(topic)
        return self._topic_ids[topic]

    def topics_deleted(self, topics: Mapping[str, Iterable[int]]) -> None:
        """As `OpenDirs.topics_deleted`."""
        self._topic_ids.clear()
        super().topics_deleted(topics)

    def key_index(self, topic: str, partition: int, directory: str) -> None:
        """As `OpenDirs.key_index`: an index would be stored with each commit."""

    def load_key_indexes(self, partitions: Iterable[tuple[str, int]]) -> None:
        """As `OpenDirs.load_key_indexes`."""
        for topic, number in partitions:
            with suppress(LastwordError):  # the cleaning of the partition meets the error, too
                directory = self.log_dir(topic, number).directory(topic, number)
                if self.files.exists(saved_keys(directory)):
                    index = self.key_indexes.of(topic, number, directory)
                    with index.lock:
                        if self.config(topic).lastword_key_index:
                            index.load(self.log(topic, number))
                        else:
                            index.remove()

    def grow_key_indexes(self, partitions: Iterable[tuple[str, int]]) -> None:
        """As `OpenDirs.grow_key_indexes`."""
        for topic, number in partitions:
            if self.config(topic).lastword_key_index:
                with suppress(LastwordError):  # derived data: the next cleaning tries again
                    view, tp = self.view(topic, number), TopicPartition(topic, number)
                    ledger = self.log_dir(topic, number).ledgers.held(tp)
                    known = None if ledger is None or not ledger.exact else ledger.tracking.running
                    if known is not None and (known.by_hash or known.lacks_keys or not known.limit):
                        known = None  # without its keys
                    index = self.key_indexes.of(topic, number, view.directory)
                    if index.pays(view, None if known is None else known.distinct_keys):
                        index.grow(self.log(topic, number), known)


def in_private(
    bucket: Bucket,
    load: Callable[[BucketFiles], Settings],
    clock: Clock,
    work: Callable[[OpenDirs], T],
    *,
    uploads: str | None = None,
    ledgers: BucketLedgers | None = None,
    kept: KeptDirs | None = None,
) -> T:
    """Run `work` in a transaction. The results of a PartialFailure are committed before it is raised.

    Args:
        bucket: The log.
        load: Merges the settings; its argument is where the settings file is.
        clock: The clock.
        work: Changes the log directory; its `files` are a private copy.
        uploads: The name of uploads (`Bucket.begin_uploads`) that `work` adopts; the commit ends them.
        ledgers: The garbage indexes that this process keeps between transactions.
        kept: The log directory that stays open between transactions.
    """
    of_copy: CopyLedgers | None = None

    def run(files: BucketFiles) -> tuple[T | None, PartialFailure | None]:
        nonlocal of_copy
        of_copy = None if ledgers is None else ledgers.of(files)
        return _run(files, load, clock, work, of_copy, kept)

    def committed(changes: Changes) -> None:
        if of_copy is not None:
            of_copy.committed(changes)

    copy = None if kept is None else kept.copy
    result, failure = bucket.transaction(run, uploads=uploads, committed=committed, kept=copy)
    if failure is not None:
        raise failure
    return cast("T", result)  # None only after a failure


def _run(
    files: BucketFiles,
    load: Callable[[BucketFiles], Settings],
    clock: Clock,
    work: Callable[[OpenDirs], T],
    ledgers: CopyLedgers | None,
    kept: KeptDirs | None,
) -> tuple[T | None, PartialFailure | None]:
    """Run `work` on a log directory in `files`, and leave the files as after a clean stop.

    Returns its result, or the error with which it failed in part.

    The active segments are rolled: a stored segment never grows, and the next transaction appends to an
    empty one.
    """
    dirs = None if kept is None else kept.take(files)
    if dirs is None:
        directory = LogDirectory.open(files.root, "a", files, clock, lambda: load(files))
        directory.ledgers.kept = ledgers
        dirs = _PrivateDirs(LogDirSet([directory], {}), "a", files, clock)
    [directory] = dirs.directories
    result: T | None = None
    failure: PartialFailure | None = None
    try:
        try:
            result = work(dirs)
        except PartialFailure as error:
            failure = error
        directory.roll()
        stays = kept is not None and directory.leave_clean()
    except BaseException:
        _abandon(dirs)
        raise
    if kept is not None and stays:
        kept.keep(files, dirs)
    else:
        dirs.close()
    return result, failure


def _abandon(dirs: OpenDirs) -> None:
    dirs.closed = True
    for directory in dirs.directories:
        directory.abandon()


class KeptDirs:
    """The log directory of the last commit of appends, open for the next one while no other commit comes.

    For one thread.
    """

    def __init__(self) -> None:
        self.copy = KeptCopy()
        self._files: BucketFiles | None = None
        self._dirs: OpenDirs | None = None

    def take(self, files: BucketFiles) -> OpenDirs | None:
        """Return the directory if it is open in these files; else abandon it."""
        dirs, self._dirs = self._dirs, None
        if dirs is not None and self._files is not files:
            _abandon(dirs)
            return None
        return dirs

    def keep(self, files: BucketFiles, dirs: OpenDirs) -> None:
        """Keep a directory until the next call of `take`."""
        self._files, self._dirs = files, dirs

    def drop(self) -> None:
        """Abandon the directory and drop its files."""
        self.copy.drop()
        if self._dirs is not None:
            _abandon(self._dirs)
        self._files = self._dirs = None


@dataclass(slots=True, eq=False)
class _Append:
    """One call that is part of a commit. `done`: the result, once it is stored; None: of `add`."""

    topics: Container[str]
    work: Callable[[OpenDirs], Any]
    size_bytes: int
    done: Future[Any] | None
    on_refused: Callable[[BaseException], object] = lambda error: None
    own: Changed | None = field(default=None, kw_only=True)
    refused: bool = field(default=False, init=False)
    result: Any = field(default=None, init=False)
    error: BaseException | None = field(default=None, init=False)


class _Refused(Exception):
    """One call of a shared commit failed: the others run again without it."""


MOST_WAITING_BYTES = 16 << 20
"""A call of `add` waits when the calls for the next commit have `lastword.commit.bytes` and this many bytes
more: memory is bounded if the store is slower than the caller."""
CALL_BYTES = 512
"""Memory of a call that waits, besides its record."""


class _CommitQueue:
    """Appends that share commits: one thread commits what all of them have handed in.

    The first call waits `lastword.commit.linger.ms` for more of them, or until they have
    `lastword.commit.bytes`. If the last commit began less than this time before it came, it waits only for
    the rest of that time: commits begin at most once in each linger, and their own duration adds nothing.

    A call that is refused, because a record is too large for example, does not stop the others: the commit
    runs again without it.

    Calls are committed in their order, so the number of a call shows whether it is committed. No step takes
    time for each waiting call.

    If a commit fails, its calls of `add` are held, and so are later ones: the next `add` or `flush` hands
    them in again, in their order. So a `flush` that returns means that all of them are stored, also after
    another one has failed. A commit whose outcome is unknown may then be in the log twice: to a state, whose
    log is appended to by `add`, that makes no difference.
    """

    def __init__(self, dirs: BucketDirs) -> None:
        self._dirs = dirs
        lock = threading.RLock()
        self._changed = threading.Condition(lock)
        self._taken = threading.Condition(lock)  # calls were taken into a commit, or committed
        self._waiting: list[_Append] = []
        self._waiting_bytes = 0
        self._lingers_from = 0.0  # when the time to wait for more began, by the monotonic clock
        self._began = -inf  # when the last commit began
        self._added = 0  # number of calls so far
        self._committed = 0
        self._awaited = 0  # number of the last call to commit now
        self._last_later = 0  # number of the last call of `add`
        self._failed: list[BaseException] = []  # errors of refused calls of `add`, for `flush`
        self._held: list[_Append] = []
        self._thread: threading.Thread | None = None
        self._closed = False
        self._kept = KeptDirs()  # of the thread
        self._short = ShortCommits(dirs._bucket, dirs._load, dirs.clock)  # of the thread

    def begin(self, call: _Append) -> Future[Any]:
        """Run a call in the next commit; return its `done`, which has the result when it is in the store."""
        assert call.done is not None
        call.done.set_running_or_notify_cancel()  # a call cannot be taken back
        with self._changed:
            number = self._add(call)
            if call.own is not None:  # a change of a state: the next one waits for it
                self._awaited = max(self._awaited, number)
                self._changed.notify()
        return call.done

    def add(self, call: _Append) -> None:
        """Run a call in a later commit. Raises the error of a failed commit, whose calls are handed in again.

        Its `on_refused` is called with its error, before a `flush` that waits for it returns.
        """
        with self._changed:
            self._taken.wait_for(self._has_room)
            try:
                self._raise_held()
            finally:
                self._add_held()
            self._last_later = self._add(call)

    def flush(self) -> None:
        """Wait until all calls are committed; raise the first error of the calls of `add`."""
        with self._changed:
            self._add_held()
            self._wait(self._added)
            self._raise_failed()

    def wait(self) -> None:
        """Wait until the calls that wait and those of `add` are committed, or held.

        Leaves errors to those who made the calls. A commit of others alone that is under way is not awaited.
        """
        with self._changed:
            self._wait(self._added if self._waiting else self._last_later)

    def _wait(self, last: int) -> None:
        self._awaited = max(self._awaited, last)
        self._changed.notify()
        self._taken.wait_for(lambda: self._committed >= last)

    def close(self) -> None:
        """Commit everything and end the thread."""
        try:
            self.flush()
        finally:
            with self._changed:
                self._closed = True
                self._changed.notify()
            if self._thread is not None:
                self._thread.join()
            self._kept.drop()

    def _raise_failed(self) -> None:
        if self._failed:
            failed, self._failed = self._failed[0], []
            raise failed
        self._raise_held()

    def _raise_held(self) -> None:
        if self._held and self._held[0].error is not None:
            raise self._held[0].error

    def _add_held(self) -> None:
        """Hand in again what a failed commit has not stored, before all that waits."""
        if self._held and not self._closed:
            held, self._held = self._held, []
            self._waiting[:0] = held
            self._waiting_bytes += sum(call.size_bytes for call in held)
            self._added += len(held)
            self._last_later = self._added
            self._changed.notify()

    def _add(self, call: _Append) -> int:
        """Add a call; return its number."""
        if self._closed:
            raise UsageError(f"{self._dirs.paths[0]} is closed", remedy="open it again")
        if not self._waiting:
            now = self._dirs.clock.monotonic()
            self._lingers_from = self._began if now - self._began < self._linger_seconds() else now
        self._waiting.append(call)
        self._waiting_bytes += call.size_bytes
        self._added += 1
        if self._thread is None:
            self._thread = threading.Thread(target=self._commit_all, name="lastword-commits", daemon=True)
            self._thread.start()
        if len(self._waiting) == 1 or self._is_due():
            self._changed.notify()
        return self._added

    def _has_room(self) -> bool:
        most_bytes = self._dirs.settings.instance.lastword_commit_bytes + MOST_WAITING_BYTES
        return self._closed or self._waiting_bytes + CALL_BYTES * len(self._waiting) < most_bytes

    def _commit_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                # The calls that came during the commit before have waited already.
                waited_seconds = self._dirs.clock.monotonic() - self._lingers_from
                self._changed.wait_for(self._is_due, max(0.0, self._linger_seconds() - waited_seconds))
            self.commit_waiting()

    def commit_waiting(self) -> None:
        """Commit the calls that wait. For one thread."""
        with self._changed:
            calls, self._waiting, self._waiting_bytes = self._waiting, [], 0
            self._began = self._dirs.clock.monotonic()
            taken = len(calls)
            if self._held:  # older calls wait, too
                self._held += [call for call in calls if call.done is None]
                calls = [call for call in calls if call.done is not None]
            self._taken.notify_all()
        failed = self._commit(calls)
        with self._changed:
            later = [call for call in calls if call.done is None]
            if failed:
                self._held += [call for call in later if not call.refused]
                later = [call for call in later if call.refused]
            for call in later:
                if call.error is not None:
                    self._failed.append(call.error)
                    call.on_refused(call.error)
            self._committed += taken
            self._taken.notify_all()
        for call in calls:
            if call.done is None:
                continue
            if call.error is None:
                call.done.set_result(call.result)
            else:
                call.done.set_exception(call.error)

    def _linger_seconds(self) -> float:
        return self._dirs.settings.instance.lastword_commit_linger_ms / 1000

    def _is_due(self) -> bool:
        due_bytes = self._dirs.settings.instance.lastword_commit_bytes
        return self._awaited > self._committed or self._closed or self._waiting_bytes >= due_bytes

    def _commit(self, calls: list[_Append]) -> bool:
        """Commit calls that are not refused; return whether that failed, so that none of them is stored."""
        left = calls
        while left:
            try:
                work = partial(_apply, left)
                if self._short.commit(work, self._kept.copy):
                    self._kept.drop()
                else:
                    self._dirs._in_private(work, self._kept)
                self._dirs.committed(left)
                break
            except _Refused:
                left = [call for call in left if not call.refused]
            except BaseException as error:  # no commit: every call fails with its reason
                for call in left:
                    call.error, call.refused = error, False
                return True
        return False


def _apply(calls: list[_Append], dirs: OpenDirs) -> None:
    for call in calls:
        call.error, call.refused = None, False
        try:
            call.result = call.work(dirs)
        except PartialFailure as error:  # what it has done is committed with the others
            call.error = error
        except StorageError:  # the commit fails, or runs again because its version is too old
            raise
        except Exception as error:  # of the caller's serializer too
            call.error, call.refused = error, True
            raise _Refused from error


def merged_settings(
    url: str, config: PathLike | None, arguments: Mapping[str, Any]
) -> Callable[[BucketFiles], Settings]:
    """Return a function that merges the settings of a log in a bucket."""

    def load(files: BucketFiles) -> Settings:
        cluster = BrokerSettings(files, [url])
        return Settings.load([url], config, arguments=arguments, files=files).with_cluster(cluster.refresh())

    return load
