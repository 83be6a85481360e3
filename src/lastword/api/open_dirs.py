"""`OpenDirs`: the open directories of a `LogDir`, and the partitions in them.

Every verb is a function over an `OpenDirs`, which resolves the partitions that a call names, their
directories and settings, and whether changes are allowed. It also owns the lifetime: objects to close, and
the warning about directories that were left open.
"""

from __future__ import annotations

import atexit
import copy
import json
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from functools import cached_property
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from lastword.clock import Clock
from lastword.config import TOPIC_SETTINGS, Settings, TopicConfig, parse_topic_settings, write_topic_settings
from lastword.errors import (
    BusyError,
    DataError,
    FileVanishedError,
    LastwordError,
    LeaseRefusedError,
    ReadOnlyError,
    StorageError,
    UnknownTopicError,
    UsageError,
)
from lastword.files import DEFAULT, Files
from lastword.logdir import LogDirectory, LogDirSet, move
from lastword.logdir.identity import read_move_note
from lastword.parse import as_int
from lastword.partition import leases
from lastword.partition.reads import read_again
from lastword.segment import names
from lastword.values import ProcessBound, partitions_text

if TYPE_CHECKING:
    from concurrent.futures import Future

    from lastword.bucket.collect import Collection
    from lastword.bucket.manifest import ServerNode
    from lastword.bucket.servers import ServerSession
    from lastword.cleaner.engine.throttle import Drives
    from lastword.keys.index import KeyIndex
    from lastword.keys.indexes import KeyIndexes
    from lastword.partition.committed_log import CommittedLog
    from lastword.partition.log import PartitionLog
    from lastword.partition.view import PartitionView
    from lastword.state.changes import KeptScan

T = TypeVar("T")
PathLike = str | os.PathLike[str]
Mode = Literal["r", "a"]
By = Literal["topic", "partition", "segment"]
Ack = Literal["os", "disk", "store"]
Topics = str | Sequence[str] | None
"""The topics of a verb: one, several, or None: all."""
ACKS = ("os", "disk")  # of a directory
SAVED_DEFAULTS = {
    "lastword.key.serializer": "bytes",
    "lastword.value.serializer": "bytes",
    "lastword.partitioner": "murmur2",
}
"""The values that apply if a topic has saved none. A new topic saves them."""


def named_topics(topics: str | Sequence[str]) -> list[str]:
    """Return the names that a verb was given, each once."""
    if isinstance(topics, Sequence) and not isinstance(topics, (str, bytes)):
        return list(dict.fromkeys(topics))
    return [topics]


def caller() -> str:
    """Return file and line of the first caller outside this package."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").split(".")[0] == "lastword":
        frame = frame.f_back
    return "an unknown place" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def refuse_unread(known: Settings, file: PathLike, topic: str, settings: Mapping[str, Any]) -> None:
    """Raise UsageError if settings of a new topic are not those of the named file, which is read instead.

    Args:
        known: The settings, as read from the file.
        file: The settings file that the caller named.
        topic: The name of the new topic.
        settings: The settings that would be saved in the directory.
    """
    values, lines = known.topic(topic, saved=True), []
    for name, value in parse_topic_settings(settings).items():
        setting = TOPIC_SETTINGS[name]
        there = getattr(values, setting.keyword)
        if value is not None and value != (SAVED_DEFAULTS.get(name) if there is None else there):
            lines.append(f'{name} = "{setting.show(value)}"')
    if lines:
        raise UsageError(
            f"the settings are read from {os.fspath(file)}, which has others for a new topic {topic!r}: "
            f"{', '.join(lines)} would not apply",
            remedy=f"add to that file, in a table [topics.{json.dumps(topic)}]: {', '.join(lines)}",
            file=os.fspath(file),
        )


class OpenDirs(ProcessBound):
    """Directories that are open in one mode, with their settings, files and clock.

    Attributes:
        dir_set: The directories as one set; assigns partitions to directories.
        directories: The directories in service.
        paths: All paths, those of failed directories last.
        opened_at: File and line of the caller that opened them.
        topics_lock: Held while a topic is created or deleted: several directories share its settings. It is
            taken after the claims of partitions, and before the lock of a directory.
        holds_logs: In mode "a" its partitions are open logs; False: changes are transactions.
        saves_key_indexes: In mode "a" an index of keys that a lookup makes is saved.
        commits: Held by a transaction (`api.transaction`) until its last marker is appended, and by a call
            that compares and sets. It is taken before the lock of a partition.
        moment: Held while the ends of several partitions are taken, and while a transaction appends its
            markers: so a read of several partitions shows it as a whole. It is taken between these two.
        committer: What commits transactions of these directories; None: there was none yet.
        scans: What exports keep of a partition, by topic and number, for the next export.
        has_transactions: This object has committed a transaction over several partitions.
        most_commit_bytes: The most bytes that a transaction should add; None: there is no limit.
    """

    holds_logs = True
    saves_key_indexes = True
    most_commit_bytes: int | None = None

    def __init__(
        self,
        dir_set: LogDirSet,
        mode: Mode,
        files: Files,
        clock: Clock,
        *,
        config_file: PathLike | None = None,
        opened_at: str = "an unknown place",
    ) -> None:
        self.dir_set = dir_set
        self.directories = dir_set.directories
        self.paths = [directory.path for directory in self.directories] + list(dir_set.offline)
        self.mode = mode
        self.files = files
        self.clock = clock
        self.opened_at = opened_at
        self.topics_lock = threading.RLock()
        self.commits = threading.RLock()
        self.moment = threading.RLock()
        self.scans: dict[tuple[str, int], KeptScan] = {}
        self.has_transactions = False
        self.committer: Any = None
        self.closed = False
        self._config_file = config_file
        self._forked = False
        self._warned = False
        self._closing: list[Callable[[], object]] = []
        self._listeners: list[Callable[[], object]] = []
        self._deletion_listeners: list[Callable[[str, Iterable[int]], object]] = []
        self._settings_seen: dict[str, object] = {}
        self._refreshed = clock.monotonic()
        if mode == "a":
            _writers.add(self)

    def __repr__(self) -> str:
        """Return the text of the `LogDir` that users hold."""
        shown = self.paths[0] if len(self.paths) == 1 else self.paths
        return f"LogDir({shown!r}, {self.mode!r}{', closed' if self.closed else ''})"

    # -------------------------------------------------------------- lifetime

    def require_open(self) -> None:
        """Raise UsageError if this is closed."""
        if self.closed:
            why = "was opened by the parent of this forked process" if self._forked else "is closed"
            raise UsageError(f"{self.paths[0]} {why}", remedy="open it again: lastword.open(...)")

    def require_writable(self) -> None:
        """Raise UsageError if this is closed or was opened in mode "r"."""
        self.require_open()
        if self.mode == "r":
            raise ReadOnlyError.opened(self.paths[0])

    def on_close(self, call: Callable[[], object]) -> None:
        """Call `call` at closing, before earlier registered calls and before the directories close."""
        self._closing.append(call)

    def transaction(self, work: Callable[[OpenDirs], T], *, any_mode: bool = False) -> T:
        """Run `work` on directories that it may change, and return its result.

        A directory is changed in place: `work` checks the mode. In a bucket `work` runs on a private copy,
        which is committed when it returns; it runs again if another process changed the same thing meanwhile.

        Args:
            work: The change.
            any_mode: Leases: a reader changes its own in mode "r", too.
        """
        return work(self)

    def checked_ack(self, ack: Ack) -> Ack | None:
        """Return the level of acknowledgement that a caller gave; None: that of the topic.

        Raises:
            UsageError: There is no such level here.
        """
        if ack not in ACKS:
            raise UsageError(f"unknown ack {ack!r}", remedy='"os" survives a kill, "disk" a power cut')
        return ack

    def append(self, topic: str, work: Callable[[OpenDirs], T], pair: tuple[Any, Any]) -> T:
        """Run `work`, which appends a record, and return its result when the record is acknowledged.

        In a directory the record is appended now. In a bucket `work` runs in a commit that it shares with
        others; it runs again if another process has changed the topic meanwhile.

        Args:
            topic: The topic.
            work: The append; its argument are the directories to append to.
            pair: Key and value of the record, which have its approximate size.
        """
        return work(self)

    def begin_append(
        self, topics: Container[str], work: Callable[[OpenDirs], T], size_bytes: int
    ) -> Future[T] | None:
        """As `append`, but do not wait: the result comes later. None: an append does not wait here.

        Args:
            topics: The topics to which `work` appends.
            work: The appends.
            size_bytes: The approximate size of their records.
        """
        return None

    def served_log(self, log_dir: LogDirectory, topic: str, partition: int) -> PartitionLog | CommittedLog:
        """Return the log of a partition that a server reads: what other processes may read, too.

        In a directory it is the open log, which is recovered at its first use.
        """
        return log_dir.log(topic, partition)

    def is_served_log_open(self, log_dir: LogDirectory, topic: str, partition: int) -> bool:
        """Return whether `served_log` returns immediately."""
        return log_dir.is_log_open(topic, partition)

    def serve(self, changed: Callable[[set[str]], object]) -> None:
        """Prepare for a server. In a bucket `changed` is called with the topics that were made or deleted.

        The call is made in any thread.
        """

    def server_session(self, address: str, name: str) -> ServerSession | None:
        """Return a session among the servers of a log in a bucket. None: this process holds a directory."""
        return None

    def active_server(self) -> ServerNode | None:
        """Return the server that connects Kafka's clients with a log in a bucket; None: there is none."""
        return None

    def confirm(self) -> None:
        """Read the newest version, for an answer that may not be older than the request."""

    def read_ahead_of_commits(self) -> None:
        """Read what the first commits of a new active server replay: batches behind producer snapshots."""

    def is_recent(self) -> bool:
        """Return whether a server may answer from memory: it had the newest version a second ago at most."""
        return True

    def settle(self) -> None:
        """Return when no append of this process that failed can take effect any more; read what is stored."""

    def extend(self, topic: str, work: Callable[[Any, OpenDirs], int], records: Any, *, is_one: bool) -> int:
        """Run `work`, which appends many records, and return how many are acknowledged.

        In a bucket an iterator is appended in groups, each in a commit; `is_one`: in one commit.
        """
        return work(records, self)

    def owned_log(self, topic: str, partition: int) -> PartitionLog | None:
        """Return the open log of a partition if this object holds its lock; None: others may append to it."""
        return self.log(topic, partition) if self.mode == "a" else None

    def move(self, topic: str, partition: int, target: str) -> None:
        """See `LogDir.move`."""
        self.require_writable()
        wanted = os.path.realpath(target)
        to = next(
            (directory for directory in self.directories if os.path.realpath(directory.path) == wanted), None
        )
        if to is None:
            raise UsageError(
                f"{target} is none of the directories that serve",
                remedy=f"one of {', '.join(directory.path for directory in self.directories)}",
            )
        self.select(topic, partition)
        move(self.log_dir(topic, partition), to, topic, partition, self.commits)
        self.dir_set.write_list()
        self.partitions_added()

    def collect(self, *, retention_ms: int | None = None, dry_run: bool = False) -> Collection:
        """Remove objects that no version needs. UsageError: a directory has none."""
        raise self._no_bucket()

    def drop_removed_bytes(self) -> None:
        """Let no object hold bytes of files that were removed. UsageError: a directory has none."""
        raise self._no_bucket()

    def object_of(self, path: str) -> tuple[str, int, int] | None:
        """Return the URL of the object that holds a file, and first and last byte. A directory has none."""
        return None

    def missing_objects(self) -> list[DataError]:
        """Return an error for each object of the log that is missing or too short. A directory has none."""
        return []

    def pin(self, max_age_ms: int) -> AbstractContextManager[None]:
        """Keep the objects of the newest version in a block. UsageError: a directory has none."""
        raise self._no_bucket()

    def _no_bucket(self) -> UsageError:
        self.require_open()
        return UsageError(
            f"{self.paths[0]} is a directory: only a log in a bucket keeps the objects of older versions",
            remedy="give the URL of a log in a bucket",
        )

    def refresh(self, *, at_most_every_ms: int = 0) -> None:
        """Take up what other processes have changed. A directory always shows its files."""
        self.require_open()
        now = self.clock.monotonic()
        if not at_most_every_ms or now - self._refreshed >= at_most_every_ms / 1000:
            self._refreshed = now
            self.refresh_settings(edited=not at_most_every_ms)

    def refresh_settings(self, topic: str | None = None, *, edited: bool = True) -> None:
        """Read the settings again, in mode "r" if another process has changed them.

        A topic has its settings before its partitions are there. So they are read after the listing that
        shows the topic; settings of a cluster are read again for each change of the listing.

        Args:
            topic: The topic whose file is compared, too, because an editor may have changed it in place.
            edited: Compare lastword.toml, too. False: only the names of the root, which a change by
                lastword changes.
        """
        if self.mode == "a":  # nobody else changes them
            return
        listings = [directory.last_listing for directory in self.directories]
        seen: dict[str, object] = {**self._settings_seen, "": listings}
        if self._config_file is not None:
            with suppress(StorageError):
                seen["config"] = DEFAULT.stat(os.fspath(self._config_file))
        for path in self.paths if self._config_file is None else ():
            version = self.files.dir_version(path)
            seen[path] = None if version is None else (version.stamp, version.is_settled)
            file = os.path.join(path, names.SETTINGS)
            with suppress(StorageError):  # of a drive that failed
                seen[file] = self.files.stat(file) if edited else seen.get(file)
        if seen != self._settings_seen or (topic is not None and not self.settings.is_current(topic)):
            self.settings_changed()
            self._settings_seen = seen

    def stamps(self) -> tuple[tuple[str, object], ...] | None:
        """Return the stamps of all on which settings and log starts depend.

        None: a name was added or removed a moment ago, so that a later change may leave the same stamp.
        """
        files = [os.path.join(path, names.SETTINGS) for path in self.paths]
        if self._config_file is not None:
            files = [os.fspath(self._config_file)]
        stamps = tuple((path, self.files.stamp(path)) for path in (*self.paths, *files))
        if self._config_file is None:  # a file that appears in a root changes the root's stamp
            stamps = tuple(
                (path, stamp) for path, stamp in stamps if stamp is not None or self.files.is_link(path)
            )
        versions = [self.files.dir_version(path) for path in self.paths]
        return stamps if all(version is not None and version.is_settled for version in versions) else None

    def sync(self) -> None:
        """Make everything durable that was acknowledged at level "os", also if a directory fails."""
        self.require_open()
        with ExitStack() as stack:
            for directory in reversed(self.directories):
                stack.callback(directory.sync)

    def close(self) -> None:
        """Close every directory, also if closing another directory raises. A second close does nothing."""
        if self.closed:
            return
        self.closed = True
        self.scans.clear()
        with ExitStack() as stack:
            for directory in reversed(self.directories):
                stack.callback(directory.close)
            for call in self._closing:
                stack.callback(call)

    def _close_after_fork(self) -> None:
        self.closed = self._forked = True

    def _warn_unclosed(self) -> None:
        if not self._warned and not self.closed:
            self._warned = True
            text = f"{self!r}, opened at {self.opened_at}, was not closed"
            warnings.warn(text, ResourceWarning, stacklevel=2, source=self)

    def __del__(self) -> None:
        if getattr(self, "mode", "r") == "a" and hasattr(self, "_warned"):
            self._warn_unclosed()

    # -------------------------------------------------------------- partitions

    @property
    def local_files(self) -> Files:
        """The storage of paths that a caller gives: snapshots and tables. Never a bucket."""
        return self.files

    @property
    def offline(self) -> dict[str, LastwordError]:
        """Directories that failed, by path, with the reason."""
        return self.dir_set.offline

    def topics(self) -> dict[str, dict[int, LogDirectory]]:
        """Return the topics, sorted by name, with the directory of each partition."""
        self.refresh()
        topics = self.dir_set.log_dirs_by_topic()
        self.refresh_settings()
        return topics

    def has_topic(self, topic: str) -> bool:
        """Return whether there is a topic of this name."""
        self.refresh()
        return bool(self.dir_set.log_dirs(topic))

    def partitions(self, topic: str) -> dict[int, LogDirectory]:
        """Return the partitions of a topic with their directories. UnknownTopicError names the nearest."""
        names.check_topic(topic)
        self.refresh()
        log_dirs = self.dir_set.log_dirs(topic)
        if not log_dirs:
            raise UnknownTopicError.named(topic, ", ".join(self.paths), self.dir_set.log_dirs_by_topic())
        self.refresh_settings(topic)
        return log_dirs

    def only_topic(self, topic: str | None) -> str:
        """Return the named topic, or the only topic. UsageError names the topics to choose from."""
        if topic is not None:
            return topic
        topics = list(self.topics())
        if len(topics) == 1:
            return topics[0]
        where = ", ".join(self.paths)
        if not topics:
            raise UsageError(f"{where} has no topics", remedy="create_topic makes one")
        named = ", ".join(topics[:10]) + (", ..." if len(topics) > 10 else "")
        raise UsageError(f"{where} has {len(topics)} topics", remedy=f"name one of them: {named}")

    def select(self, topic: Topics, partition: int | None) -> list[tuple[str, int]]:
        """Return the partitions that the first two arguments of a verb name; UsageError if one is unknown."""
        if topic is None:
            if partition is not None:
                raise UsageError("partition= needs a topic", remedy="give both")
            return [(name, number) for name, numbers in self.topics().items() for number in numbers]
        chosen = named_topics(topic)
        if partition is not None and len(chosen) != 1:
            raise UsageError("partition= needs one topic", remedy="name one topic, or omit the partition")
        return [tp for name in chosen for tp in self._select_in(name, partition)]

    def _select_in(self, topic: str, partition: int | None) -> list[tuple[str, int]]:
        numbers = self.partitions(topic)
        if partition is not None and as_int(partition) not in numbers:
            raise UsageError(f"{topic} has no partition {partition!r}", remedy=partitions_text(numbers))
        return [(topic, number) for number in numbers if partition is None or number == partition]

    def select_by_topic(self, topic: Topics, partition: int | None) -> dict[str, list[int]]:
        """Return the partitions of `select`, grouped by topic."""
        selected: dict[str, list[int]] = {}
        for name, number in self.select(topic, partition):
            selected.setdefault(name, []).append(number)
        return selected

    def log_dir(self, topic: str, partition: int) -> LogDirectory:
        """Return the directory that holds a partition."""
        directory = self.dir_set.log_dir(topic, partition)
        if directory is None:
            raise UsageError(f"{topic} has no partition {partition}", remedy="see lastword ls")
        return directory

    def log(self, topic: str, partition: int) -> PartitionLog:
        """Return a partition that is open to append."""
        self.require_open()
        return self.at(topic, partition, lambda log_dir: log_dir.log(topic, partition))

    def view(self, topic: str, partition: int) -> PartitionView:
        """Return a read-only view of a partition as it is now."""
        self.require_open()
        return self.at(topic, partition, lambda log_dir: log_dir.view(topic, partition))

    def at(self, topic: str, partition: int, use: Callable[[LogDirectory], T]) -> T:
        """Return what `use` returns of the directory of a partition, also if it is moved meanwhile."""
        log_dir = self.log_dir(topic, partition)
        try:
            return use(log_dir)
        except (UnknownTopicError, FileVanishedError, LeaseRefusedError, BusyError):
            now = self.dir_set.log_dirs(topic).get(partition)
            if now is None or now is log_dir:
                raise
            return use(now)

    def write_lease(self, topic: str, partition: int, write: Callable[[LogDirectory], T]) -> T:
        """As `at`, where `write` changes leases. Durable, also while the partition moves."""

        def moves_here(log_dir: LogDirectory) -> bool:
            directory = log_dir.directory(topic, partition)
            return len(self.directories) > 1 and read_move_note(log_dir.files, directory) is not None

        def write_in(log_dir: LogDirectory) -> T:
            try:
                result = write(log_dir)
            except LeaseRefusedError as error:
                if moves_here(log_dir):  # the lease may not have been copied yet
                    raise BusyError(
                        f"the move of {topic}-{partition} to {log_dir.path} has not come to its end",
                        remedy="try again; after a crash, first open the directories to append",
                        file=log_dir.directory(topic, partition),
                    ) from error
                raise
            if moves_here(log_dir):  # the new name may not be durable yet
                log_dir.files.fsync_dir(log_dir.path)
            return result

        return self.at(topic, partition, write_in)

    def views(
        self, topic: str, partitions: Mapping[int, LogDirectory] | None = None
    ) -> Mapping[int, PartitionView]:
        """Return the views of all partitions of a topic.

        Each is made at its first use, so a partition in an offline directory does not stop reads of the
        others; all in one moment, if a transaction of this process may end in between. `partitions`: those of
        the topic, if the directory was listed already (`topics`).
        """
        views = _Views(topic, self.partitions(topic) if partitions is None else partitions, self.view)
        if self.has_transactions:
            with self.moment:
                for number in views:
                    with suppress(LastwordError):
                        views[number]
        return views

    def checked_view(self, topic: str, partition: int) -> PartitionView:
        """Return the view for a figure over the whole log. CorruptBatchError if its end is missing."""

        def check() -> PartitionView:
            view = self.view(topic, partition)
            view.check_end()
            return view

        return read_again(check)

    def on_view(self, view: PartitionView, read: Callable[[PartitionView], T]) -> T:
        """Return `read(view)`, or that of a view of now if a cleaning replaced a file meanwhile."""
        latest = [view]

        def renew() -> None:
            latest[0] = self.checked_view(view.topic, view.partition)

        return read_again(lambda: read(latest[0]), renew)

    def checked_views(
        self, selected: Iterable[tuple[str, int]]
    ) -> tuple[dict[tuple[str, int], PartitionView], dict[tuple[str, int], LastwordError]]:
        """Return the checked views of partitions, and the errors of partitions without a view."""
        views: dict[tuple[str, int], PartitionView] = {}
        failed: dict[tuple[str, int], LastwordError] = {}
        for tp in selected:
            try:
                views[tp] = self.checked_view(*tp)
            except (DataError, StorageError) as error:
                failed[tp] = error
        return views, failed

    def first_dirty(self, topic: str, partition: int) -> int | None:
        """Return the cleaner checkpoint of a partition; None if it was never cleaned."""
        return self.log_dir(topic, partition).first_dirty(topic, partition)

    def gone_below(self, topic: str, partition: int) -> int:
        """Return the offset below which a deleted key may have left the log together with its tombstone."""
        view = self.view(topic, partition)
        cleaned = max(
            self.first_dirty(topic, partition) or 0, leases.dropped_up_to(self.files, view.directory)
        )
        return max(view.log_start, min(cleaned, view.log_end))

    def topic_id(self, topic: str) -> str | None:
        """Return the id of a topic; None in a bare directory."""
        return next(iter(self.partitions(topic).values())).topic_id(topic)

    @cached_property
    def drives(self) -> Drives:
        """The drive of each directory, and the I/O budget that cleanings have on it."""
        from lastword.cleaner.engine.throttle import Drives

        settings = self.settings.instance
        return Drives(
            [directory.path for directory in self.directories],
            self.files,
            self.clock,
            limit=settings.log_cleaner_io_max_bytes_per_second,
            own=settings.drives,
        )

    @cached_property
    def key_indexes(self) -> KeyIndexes:
        """The key indexes of partitions, saved at closing."""
        from lastword.keys.indexes import KeyIndexes

        indexes = KeyIndexes(
            self.files,
            writes=self.mode == "a" and self.saves_key_indexes,
            most_bytes=lambda: self.settings.instance.log_cleaner_dedupe_buffer_size,
        )
        self.on_close(indexes.close)
        self.on_topic_deleted(indexes.forget)
        return indexes

    def save_key_indexes(self) -> None:
        """Save what the key indexes that are in use have in memory, where it is much: for the background."""
        indexes = self.__dict__.get("key_indexes")
        if indexes is not None:
            indexes.save_large()

    def load_key_indexes(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Load the saved key indexes that a cleaning keeps right. A directory needs no call."""

    def grow_key_indexes(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Make the key index of each partition in which it pays. In a directory a lookup makes it."""

    def key_index(self, topic: str, partition: int, directory: str) -> KeyIndex | None:
        """Return the key index of a partition in one of the directories; None: there is none here."""
        return self.key_indexes.of(topic, partition, directory)

    # -------------------------------------------------------------- settings

    @property
    def settings(self) -> Settings:
        """Every setting with its source."""
        return self.directories[0].settings

    def config(self, topic: str) -> TopicConfig:
        """Return the settings of a topic."""
        return self.directories[0].topic_config(topic)

    @property
    def settings_file(self) -> str:
        """The path of the lastword.toml that all directories share.

        It is in the first directory that has such a file, else in the first directory. The files of topics
        are beside it.
        """
        return os.path.join(self.settings_directory.path, names.SETTINGS)

    @property
    def settings_directory(self) -> LogDirectory:
        """The directory that holds the settings."""

        def has_file(directory: LogDirectory) -> bool:
            return self.files.exists(os.path.join(directory.path, names.SETTINGS))

        return next(filter(has_file, self.directories), self.directories[0])

    def set_config(self, topic: str | None, settings: Mapping[str, Any]) -> None:
        """Change settings of a topic or (None) of all; a value of None resets a setting."""
        self.require_writable()
        if self._config_file is not None:
            raise UsageError(
                f"the settings were read from {os.fspath(self._config_file)}", remedy="change them there"
            )
        with self.topics_lock:  # a deletion in between would leave these settings behind
            if topic is not None:
                self.partitions(topic)
            self.settings_directory.set_config(topic, settings)
        self.settings_changed(None if topic is None else [topic])

    def check_new_topic(self, topic: str, settings: Mapping[str, Any]) -> None:
        """Raise UsageError if the settings of a new topic would not apply.

        They are saved in the directory, and a file that the caller named is read instead.
        """
        file = self._config_file
        if file is None or os.path.realpath(file) == os.path.realpath(self.settings_file):
            return
        if not self.has_topic(topic):
            refuse_unread(self.settings, file, topic, settings)

    def check_config(self, topic: str, settings: Mapping[str, Any]) -> None:
        """Raise InvalidSettingError if `set_config` would refuse the settings; the topic may be new."""
        write_topic_settings(self.files, self.settings_file, topic, settings, only_checks=True)

    def reload(self, topics: Iterable[str] | None = None) -> None:
        """Read the settings again; see `LogDirectory.reload_settings`."""
        for directory in self.directories:
            directory.reload_settings(topics)

    def on_settings_changed(self, call: Callable[[], object]) -> None:
        """Call `call` after every `settings_changed`."""
        self._listeners.append(call)

    def on_topic_deleted(self, call: Callable[[str, Iterable[int]], object]) -> None:
        """Call `call` with the name and partitions of each topic that is deleted.

        A topic of that name may be created again.
        """
        self._deletion_listeners.append(call)

    def topics_deleted(self, topics: Mapping[str, Iterable[int]]) -> None:
        """Notify the listeners of the deletion of topics with these partitions; read the settings again."""
        for name, partitions in topics.items():
            for call in self._deletion_listeners:
                call(name, partitions)
        self.settings_changed(topics)
        self.settings.forget(topics)

    def partitions_added(self) -> None:
        """Let open topics count their partitions again: they do when `settings` is another object."""
        first = self.directories[0]
        with first.lock:
            first.settings = copy.copy(first.settings)

    def settings_changed(self, topics: Iterable[str] | None = None) -> None:
        """Read the settings again, as `reload` does, and notify the listeners."""
        self.reload(topics)
        for call in self._listeners:
            call()


class _Views(Mapping[int, "PartitionView"]):
    """Views of the partitions of a topic, each made at its first use."""

    def __init__(
        self, topic: str, directories: Mapping[int, LogDirectory], view: Callable[[str, int], PartitionView]
    ) -> None:
        self._topic, self._view = topic, view
        self._directories = directories
        self._views: dict[int, PartitionView] = {}

    def __getitem__(self, partition: int) -> PartitionView:
        if partition not in self._views:
            try:
                view = self._directories[partition].view(self._topic, partition)
            except UnknownTopicError:  # it may have been moved since the directories were listed
                view = self._view(self._topic, partition)
            self._views[partition] = view
        return self._views[partition]

    def __contains__(self, partition: object) -> bool:
        return partition in self._directories

    def __iter__(self) -> Iterator[int]:
        return iter(self._directories)

    def __len__(self) -> int:
        return len(self._directories)


_writers: weakref.WeakSet[OpenDirs] = weakref.WeakSet()


def writers() -> list[OpenDirs]:
    """Return the directories that this process has open to append."""
    return [dirs for dirs in _writers if not dirs.closed]


def _warn_of_open() -> None:
    """Warn of directories that are open at the end of the process: the next opening has to recover them."""
    for dirs in writers():
        dirs._warn_unclosed()


atexit.register(_warn_of_open)


def _close_in_child() -> None:
    """Close everything in a forked child, which holds no lock.

    Its parent would overwrite the records that the child appends, and closing would write checkpoints of a
    log that the parent still changes.
    """
    for dirs in writers():
        dirs._close_after_fork()
    _writers.clear()


os.register_at_fork(after_in_child=_close_in_child)
