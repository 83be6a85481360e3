"""Open one log directory, to read or to append: `LogDirectory`.

Mode "r" takes no lock and writes nothing. It gives views, also beside a running broker or writer. Mode "a"
takes Kafka's lock, removes the clean-shutdown marker before anything else, and recovers a partition when it
is first used (`OpenPartitions`). Closing writes the marker again only if every partition keeps the promises
of a clean stop. Open partitions report this; the others are as the last writer left them.

Locks are taken in this order: `claim` of a partition, `lock`, the log's own, that of `PartitionCheckpoints`.
"""

from __future__ import annotations

import os
import random
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from functools import cache
from typing import Any

from lastword import files as storage
from lastword.clock import Clock, SystemClock
from lastword.config import (
    Settings,
    TopicConfig,
    create_topic_settings,
    is_topic_file,
    remove_topic_settings,
    write_topic_settings,
)
from lastword.errors import (
    CorruptFileError,
    DataError,
    InconsistentTopicIdError,
    LastwordError,
    OfflineError,
    ReadOnlyError,
    StorageError,
    TopicExistsError,
    UnknownTopicError,
    UsageError,
)
from lastword.files import FileLock, Files, Steps, run_steps, run_together
from lastword.logdir.broker import BrokerSettings
from lastword.logdir.checkpoints import Checkpoints, LogStart, PartitionCheckpoints, TopicPartition
from lastword.logdir.identity import (
    check_topic_id,
    leave_clean_shutdown,
    new_id,
    read_move_note,
    read_topic_id,
    take_clean_shutdown,
    write_meta_properties,
)
from lastword.logdir.ledgers import Ledgers
from lastword.logdir.open_partitions import DirRecovery, LogGauges, OpenPartitions, PartitionLocks
from lastword.logdir.topics import (
    Listing,
    RootListing,
    SetAside,
    check_log_dir,
    check_writable,
    is_partition,
    make_dirs,
    make_partitions,
    mark_deleted,
    partition_numbers,
)
from lastword.partition import cut
from lastword.partition.directory_segments import DirectorySegments, check_directory
from lastword.partition.log import PartitionLog
from lastword.partition.view import PartitionView
from lastword.records import compression
from lastword.segment import names
from lastword.values import Closing


class LogDirectory(Closing):
    """One log directory. Safe from any thread. Also a context manager."""

    def __init__(
        self,
        path: str,
        mode: str,
        files: Files,
        clock: Clock,
        load_settings: Callable[[], Settings],
        rng: random.Random,
    ) -> None:
        self.path = path
        self.mode = mode
        self.files = files
        self.clock = clock
        self.settings = load_settings()
        self._register_limits()
        self.lock = threading.RLock()
        self.checkpoints = Checkpoints(files, path)
        self._load_settings = load_settings
        self._rng = rng
        self._file_lock: FileLock | None = None
        self._closed = False
        self._opened = OpenPartitions(files, clock, rng, self._checkpoint_if_due)
        self._partition_checkpoints = PartitionCheckpoints(files, clock, self.checkpoints)
        self._locks = PartitionLocks(self.lock)
        self._contents = RootListing(files, path)
        self._deferred_deletes = cut.DeferredDeletes(files, clock)
        self._topic_ids: dict[str, str | None] = {}
        self._checked: set[TopicPartition] = set()  # partitions whose topic id was checked
        self._gauges = LogGauges(path, files, lambda: self._opened.logs) if mode == "a" else None
        self.half_deleted: set[str] = set()
        """Topics without a partition here whose deletion or creation a kill interrupted."""
        self.directory_count = 1  # the directories that share the memory of `ledgers`
        self.ledgers = self.new_ledgers()
        self.shared_topic_id: Callable[[str], str | None] = lambda topic: None
        """Returns the topic's id in the other directories of a `LogDirSet`."""

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        mode: str = "r",
        files: Files | None = None,
        clock: Clock | None = None,
        settings: Settings | Callable[[], Settings] | None = None,
        *,
        rng: random.Random | None = None,
        beside: Mapping[str, str] | None = None,
    ) -> LogDirectory:
        """Open a log directory. Changes nothing if it raises.

        Args:
            path: The root. In mode "r" it must exist; in mode "a" it is made if it is absent.
            mode: "r" to read, "a" to append; "a" takes the lock.
            files: The storage.
            clock: The clock.
            settings: The merged settings, or a function that merges them, called again after a topic's
                settings change. None: the root's lastword.toml and the environment.
            rng: The source of new ids.
            beside: The properties of a directory that is opened together with this one, for a new directory.

        Raises:
            NotALogDirError: The root exists and is no log directory.
            LogDirLockedError: Another writer, or a broker, holds the lock.
            UsageError: The mode is neither "r" nor "a".
        """
        if mode not in ("r", "a"):
            raise UsageError(
                f"mode {mode!r} is neither 'r' nor 'a'", remedy='"r" looks, "a" reads, appends and cleans'
            )
        root = os.fspath(path)
        files = files or storage.DEFAULT
        if callable(settings):
            load = settings
        elif settings is not None:
            fixed = settings
            load = lambda: fixed  # noqa: E731
        else:
            cluster = BrokerSettings(files, [root])
            load = lambda: Settings.load([root], files=files).with_cluster(cluster.refresh())  # noqa: E731
        contents = RootListing(files, root)
        if mode == "r":
            check_log_dir(contents.get(), root)
        fresh = mode == "a" and check_writable(files, root, contents)
        opened = cls(root, mode, files, clock or SystemClock(), load, rng or random.SystemRandom())
        opened._contents = contents
        if mode == "a":
            opened._take(fresh, beside)
        return opened

    def _take(self, fresh: bool, beside: Mapping[str, str] | None) -> None:
        files = self.files
        if fresh:
            make_dirs(files, self.path)
        files.check_owner(self.path)
        self._file_lock = files.lock(os.path.join(self.path, names.LOCK))
        files.guard(self.path)  # not before: this process may have the directory open, and a failure of it
        if isinstance(self._file_lock, FileLock):  # dropped without a close: as after a kill
            weakref.finalize(self, self._file_lock.drop).atexit = False
        try:
            if fresh and not files.exists(os.path.join(self.path, names.META_PROPERTIES)):
                write_meta_properties(files, self.path, self._rng, beside)
            self._opened.found(
                take_clean_shutdown(files, self.path),
                self.checkpoints.recovery_points.read_valid(),
                self.checkpoints.log_starts.read_valid(),
            )
            listing = self._contents.get()
            for name in self._contents.names:  # left by an atomic write that was killed
                stem, extension = os.path.splitext(name)  # noqa: PTH122  names are strings here
                if extension == ".tmp" and (stem in names.ROOT_FILES or is_topic_file(stem)):
                    files.unlink(os.path.join(self.path, name), missing_ok=True)
            topics = {names.topic_partition(name)[0] for name in listing.deleted}
            self.half_deleted = topics.difference(listing.numbers)
            if self.half_deleted and not files.exists(os.path.join(self.path, names.PARTITION_LIST)):
                self.remove_settings(self.half_deleted)  # before the directories, which show the deletion
            for name in listing.deleted:  # an unfinished deletion
                with suppress(StorageError):  # it is tried again at the next opening
                    files.remove_tree(os.path.join(self.path, name))
            for set_aside in listing.set_aside:
                path = os.path.join(self.path, set_aside.name)
                if set_aside.marker == "future" and read_move_note(files, path) is not None:
                    with suppress(StorageError):
                        files.remove_tree(path)  # an unfinished copy of a move
        except BaseException:
            self._file_lock.release()
            raise

    def __repr__(self) -> str:
        return f"LogDirectory({self.path!r}, {self.mode!r})"

    # -------------------------------------------------------------- topics

    def new_ledgers(self, *, saves: bool = True) -> Ledgers:
        """Return garbage accounts of the partitions here.

        The attribute `ledgers` holds those that cleanings update. A dry run has its own, which are not
        written (`saves`).
        """
        return Ledgers(
            self.files,
            lambda: self.settings.instance.log_cleaner_dedupe_buffer_size // self.directory_count,
            lambda: [os.path.join(self.path, str(tp)) for tp in self._contents.get().partitions],
            saves=saves and self.mode == "a",
            scratch=lambda: self.settings.instance.lastword_map_scratch,
            clock=self.clock,
        )

    def set_aside(self) -> tuple[SetAside, ...]:
        """Return the directories of partitions that are not served.

        These are unfinished copies, and strays of a broker.
        """
        return self._contents.get().set_aside

    def holds(self, topic: str, partition: int) -> bool:
        """Return whether the partition is in this directory. Reads the partition's directory only."""
        name = names.partition_dir(topic, partition)
        path = os.path.join(self.path, name)
        return self.files.is_dir(path) and (self._contents.was_found(name) or is_partition(self.files, path))

    def topics(self) -> list[str]:
        """Return the names of all topics, sorted."""
        return sorted(self._contents.get().numbers)

    def partitions_by_topic(self) -> dict[str, list[int]]:
        """Return all topics, sorted by name, each with its partition numbers, ascending."""
        return self._contents.get().topics()

    def partitions(self, topic: str) -> list[int]:
        """Return the partition numbers of a topic, ascending. UnknownTopicError names the nearest topic."""
        topics = self._contents.get().numbers
        if topic not in topics:
            raise UnknownTopicError.named(topic, self.path, sorted(topics))
        return list(topics[topic])

    def listing(self) -> Listing:
        """Return the partitions here; the same object until one is added or removed."""
        return self._contents.get()

    @property
    def last_listing(self) -> Listing:
        """The partitions when the root was last listed: those of a directory that has failed since."""
        return self._contents.last or self._contents.get()

    def topic_partitions(self) -> tuple[TopicPartition, ...]:
        """Return all partitions of all topics; the same tuple until one is added or removed."""
        return self._contents.get().partitions

    def topic_id(self, topic: str) -> str | None:
        """Return the topic's id, from the first of its partitions that has one; None if none has.

        The partitions are those of the last listing, if it has the topic: directories of many topics are not
        listed for each of them.
        """
        for partition in self.last_listing.numbers.get(topic) or self.partitions(topic):
            with suppress(CorruptFileError, StorageError):  # raised when that partition is used
                topic_id = read_topic_id(self.files, self.directory(topic, partition))
                if topic_id is not None:
                    return topic_id
        return None

    def check_serves(self) -> None:
        """Raise OfflineError if the directory has failed since it was opened.

        A directory that could not be opened has a stand-in, which raises this error for every call.
        """
        error = self.files.offline(self.path)
        if error is not None:
            raise OfflineError.of("a partition", self.path, error)

    def check_deletable(self, topic: str, partition: int) -> None:
        """Raise an error if a deletion of the topic would remove something else; damage is no error.

        That is what a link points to, a file of this name, or a partition of another topic of that name.
        """
        self.check_serves()
        check_directory(self.files, self.directory(topic, partition))
        with suppress(CorruptFileError):
            self.check_topic_id(topic, partition)

    def check_topic_id(self, topic: str, partition: int) -> None:
        """Raise InconsistentTopicIdError if the partition belongs to another topic of that name.

        Checked once for each partition.
        """
        self._check_topic_id(TopicPartition(topic, partition), self.directory(topic, partition))

    def _check_topic_id(self, tp: TopicPartition, directory: str) -> None:
        if tp in self._checked:
            return
        is_known = tp.topic in self._topic_ids
        if not is_known:
            self._topic_ids[tp.topic] = self.shared_topic_id(tp.topic) or self.topic_id(tp.topic)
        try:
            check_topic_id(self.files, directory, self._topic_ids[tp.topic])
        except InconsistentTopicIdError:
            if not is_known:
                raise
            del self._topic_ids[tp.topic]  # the topic may have been deleted and created again since
            self._check_topic_id(tp, directory)
        self._checked.add(tp)

    def topic_config(self, topic: str) -> TopicConfig:
        """Return the effective settings of a topic. cleanup_policy is None if no source sets it."""
        return self.settings.topic(topic)

    def directory(self, topic: str, partition: int) -> str:
        """Return the path of a partition's directory."""
        return os.path.join(self.path, names.partition_dir(topic, partition))

    def create_topic(
        self,
        topic: str,
        partitions: int | Iterable[int] = 1,
        settings: Mapping[str, Any] | None = None,
        *,
        exist_ok: bool = False,
        topic_id: str | None = None,
    ) -> bool:
        """Make a topic and save its settings. It is durable when this returns.

        Args:
            topic: The name of the topic.
            partitions: The count, or the numbers of the partitions in this directory, with a given
                `topic_id`.
            settings: Its settings.
            exist_ok: Return False, and change nothing, if the topic exists.
            topic_id: Its id; None: a new one.

        Raises:
            InvalidTopicError, TopicExistsError, InvalidSettingError, UnknownSettingError: Nothing was made.
        """
        with self.lock:
            self._check_writable()
            names.check_topic(topic)
            numbers = partition_numbers(partitions)
            if exist_ok and topic in self._contents.get().numbers:
                return False
            self.create_topics({topic: numbers}, {topic: settings or {}}, {topic: topic_id})
            return True

    def create_topics(
        self,
        topics: Mapping[str, Sequence[int]],
        settings: Mapping[str, Mapping[str, Any]],
        topic_ids: Mapping[str, str | None],
        settings_file: str | None = None,
    ) -> dict[str, str]:
        """Make topics as `create_topic` does, and save their settings, each in a file.

        After an error, none was made.

        Args:
            topics: The numbers of their partitions in this directory.
            settings: The settings to save, also of topics that have no partition here.
            topic_ids: Their ids, as far as they have one.
            settings_file: The lastword.toml beside which settings are saved; None: that of this directory.

        Returns:
            The id of each topic.
        """
        file = settings_file or self._settings_path
        is_saved = False

        def save() -> None:
            nonlocal is_saved
            if settings:
                create_topic_settings(self.files, file, settings)
                is_saved = True
            self.reload_settings(topics)

        with self.lock:
            self._check_writable()
            there = self._contents.get().numbers
            for topic in topics:
                names.check_topic(topic)
                if topic in there:
                    raise TopicExistsError(
                        f"{self.path} already has a topic {topic!r}", remedy="exist_ok=True returns it"
                    )
            with self._contents.changing():
                try:
                    return self._make(topics, topic_ids, save)
                except BaseException:
                    if is_saved:
                        with suppress(LastwordError):
                            remove_topic_settings(self.files, file, *settings)
                            self.reload_settings(topics)
                    raise

    def set_config(self, topic: str | None, settings: Mapping[str, Any]) -> None:
        """Change the settings of a topic, or (None) of all, that this directory holds.

        The new file is a change of the root that needs no listing of its partitions.
        """
        with self.lock:
            self._check_writable()
            with self._contents.changing():
                write_topic_settings(self.files, self._settings_path, topic, settings)

    def add_partitions(self, topic: str, numbers: Sequence[int], topic_id: str | None) -> None:
        """Make empty partitions of a topic, durably. `topic_id`: None: a new id."""
        with self.lock:
            self._check_writable()
            self._make({topic: numbers}, {topic: topic_id})

    def _make(
        self,
        numbers: Mapping[str, Sequence[int]],
        topic_ids: Mapping[str, str | None],
        save: Callable[[], object] = lambda: None,
    ) -> dict[str, str]:
        """Make empty partitions, and save the settings of their topics. Return the id of each topic."""
        ids = {topic: topic_ids.get(topic) or new_id(self._rng) for topic in numbers}
        created = [TopicPartition(topic, number) for topic, given in numbers.items() for number in given]
        # Before there are partitions: the lines are of a topic of that name that was removed by hand.
        self._partition_checkpoints.forget(created)
        with self._contents.changing(added=created):
            make_partitions(self.files, self.path, created, ids, self._rng, save)
        for topic in numbers:
            self._topic_ids.pop(topic, None)
        self._opened.made(created)
        return ids

    def delete_topic(self, topic: str) -> None:
        """Remove a topic with all its records and settings, durably.

        Its bytes are freed after `file.delete.delay.ms`, or when the directory is closed.
        """
        for error in self.delete_topics([topic]).values():
            raise error
        self.remove_settings([topic])

    def delete_topics(self, topics: Sequence[str]) -> dict[str, LastwordError]:
        """Remove the partitions of topics here; return the error of each that could not be removed.

        One sync of the root serves all of them. The caller removes the settings after that
        (`remove_settings`), so a topic has its settings until it is gone.
        """
        errors: dict[str, LastwordError] = {}
        gone: list[TopicPartition] = []
        marked: list[tuple[str, int]] = []
        with self.lock:
            self._check_writable()
            partitions: dict[str, list[int]] = {}
            for topic in topics:
                try:
                    partitions[topic] = self.partitions(topic)
                except UnknownTopicError as error:
                    errors[topic] = error
            with self._contents.changing(removed=gone):
                for topic, numbers in partitions.items():
                    delay_ms = self.topic_config(topic).file_delete_delay_ms
                    try:
                        for number in numbers:
                            tp = TopicPartition(topic, number)
                            self.let_go(tp)
                            marked.append((mark_deleted(self.files, self.path, tp, self._rng), delay_ms))
                            gone.append(tp)
                    except LastwordError as error:
                        errors[topic] = error
                self.files.fsync_dir(self.path)
                for path, delay_ms in marked:
                    self._deferred_deletes.add([path], delay_ms)
                self._opened.gone(gone)
                self._partition_checkpoints.forget(gone)
                for topic in topics:
                    if topic not in errors:
                        self._topic_ids.pop(topic, None)
        return errors

    def remove_settings(self, topics: Collection[str]) -> None:
        """Remove the settings of topics that were deleted from all directories.

        A kill before this leaves a file, which the next opening to append removes. A new topic of the same
        name does not get its values: a creation writes another file.
        """
        with self.lock:
            with self._contents.changing():
                remove_topic_settings(self.files, self._settings_path, *topics)
            self.reload_settings(topics)

    def let_go(self, tp: TopicPartition) -> None:
        """Close a partition that leaves this directory, and drop what is kept of it in memory."""
        with self.lock:
            self._opened.let_go(tp)
            self.ledgers.forget(tp)
            self._checked.discard(tp)

    def refuse(self, tp: TopicPartition, why: LastwordError) -> None:
        """Raise `why` in every further use of a partition, until the directory is opened again."""
        with self.lock:
            self._opened.refuse(tp, why)

    def discard(self, tp: TopicPartition) -> None:
        """Remove one partition that was moved elsewhere. Its name is gone when this returns."""
        with self.lock:
            self._check_writable()
            self.let_go(tp)
            delay_ms = self.topic_config(tp.topic).file_delete_delay_ms
            marked = mark_deleted(self.files, self.path, tp, self._rng)
            self.files.fsync_dir(self.path)
            self._deferred_deletes.add([marked], delay_ms)
            self._opened.gone([tp])
            self._partition_checkpoints.forget([tp])

    def attach(
        self, tp: TopicPartition, recovery_point: int, log_start: int, first_dirty: int | None
    ) -> None:
        """Save the checkpoints of a partition that is moved here, durably.

        The partition is recovered when it is first used.
        """
        with self.lock:
            self._partition_checkpoints.came(tp, recovery_point, log_start, first_dirty)
            self._opened.came(tp, recovery_point, log_start)

    @property
    def _settings_path(self) -> str:
        return os.path.join(self.path, names.SETTINGS)

    def reload_settings(self, topics: Iterable[str] | None = None) -> None:
        """Read the settings again and apply them to the open partitions.

        `topics`: the only topics whose settings were changed; None: any may have changed.
        """
        with self.lock:
            before, self.settings = self.settings, self._load_settings()
            self._register_limits()
            changed = self.settings.take_over(before, topics)
            logs = self._opened.logs
            for tp in logs if changed is None else self._partitions_of(changed):
                if tp in logs:
                    logs[tp].config = self.settings.topic(tp.topic)

    def _partitions_of(self, topics: Iterable[str]) -> list[TopicPartition]:
        numbers = self.last_listing.numbers
        return [TopicPartition(topic, number) for topic in topics for number in numbers.get(topic, ())]

    def _register_limits(self) -> None:
        compression.set_limit(self.path, self.settings.instance.lastword_decompression_max_bytes)

    # -------------------------------------------------------------- partitions

    def log(self, topic: str, partition: int) -> PartitionLog:
        """Return the open log of a partition, which is recovered at its first use.

        ReadOnlyError in mode "r". A damaged partition raises its DataError each time and is not changed; the
        other partitions are served.
        """
        tp = TopicPartition(topic, partition)
        log = self._opened.logs.get(tp)
        if log is not None:
            return log
        with self.lock:
            self._check_writable()
            log = self._opened.logs.get(tp)
            return run_steps(self._opening_log(tp, self.topic_config)) if log is None else log

    def is_log_open(self, topic: str, partition: int) -> bool:
        """Return whether `log` returns immediately, because the partition was used before."""
        return TopicPartition(topic, partition) in self._opened.logs

    def logs(self, partitions: Iterable[tuple[str, int]]) -> Mapping[tuple[str, int], PartitionLog]:
        """Return the open logs of partitions, as `log` does; many are recovered at the same time.

        Raises:
            DataError: The first damaged partition, in their order. Others may have been opened.
        """
        with self.lock:
            self._check_writable()
            wanted = [TopicPartition(*tp) for tp in partitions]
            config_of = cache(self.topic_config)  # the lock keeps the settings
            missing = [self._opening_log(tp, config_of) for tp in wanted if tp not in self._opened.logs]
            for log in run_together(missing, self.files, self.path, any_thread=True):
                if isinstance(log, LastwordError):
                    raise log
            return {tp: self._opened.logs[tp] for tp in wanted}

    def _opening_log(
        self, tp: TopicPartition, config_of: Callable[[str], TopicConfig]
    ) -> Steps[PartitionLog]:
        if tp in self._opened.offline:
            raise self._opened.offline[tp]
        directory = self._own_directory(tp)
        try:
            self._check_topic_id(tp, directory)
            self.files.check_owner(directory)
            return (
                yield from self._opened.opening(
                    tp,
                    directory,
                    config_of(tp.topic),
                    first_dirty=lambda: self.first_dirty(*tp),
                    producer_expiration_ms=self.settings.instance.producer_id_expiration_ms,
                )
            )
        except DataError as error:
            self._opened.offline[tp] = error
            raise

    def close_logs(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Close open logs before the directory. Their next use opens them again.

        Everything in the logs is durable when this returns. Their checkpoints are written when the directory
        is closed.
        """
        logs = {tp: self._opened.logs[TopicPartition(*tp)] for tp in partitions}
        # Without the lock: it waits.
        results = run_together([log.closing() for log in logs.values()], self.files, self.path)
        with self.lock:
            for tp, result in zip(logs, results, strict=True):
                if result is True:
                    self._opened.closed(TopicPartition(*tp))
        for log, result in zip(logs.values(), results, strict=True):
            if isinstance(result, LastwordError):
                raise result
            if not result:
                log.sync()  # raises the failure that stopped the log

    def end_commit(self) -> None:
        """Remove the note of where a commit began, and release the logs: it is complete or refused."""
        with self.lock:
            self.files.unlink(os.path.join(self.path, names.BEGUN), missing_ok=True)
            for log in self._opened.logs.values():
                log.end_commit()

    def claim(self, topic: str, partition: int) -> AbstractContextManager[bool]:
        """Wait for the exclusive right to remove, rewrite or move the segments of a partition.

        A background cleaning that holds it ends at its next safe point, because it checks `wanted`.
        """
        return self._locks.claim(TopicPartition(topic, partition), waits=True)

    def try_claim(self, topic: str, partition: int) -> AbstractContextManager[bool]:
        """As `claim`, without waiting. Yields False if another thread has the right."""
        return self._locks.claim(TopicPartition(topic, partition), waits=False)

    def wanted(self, topic: str, partition: int) -> bool:
        """Return whether a thread waits for the claim of a partition."""
        return self._locks.wanted(TopicPartition(topic, partition))

    def view(self, topic: str, partition: int) -> PartitionView:
        """Return a snapshot of a partition to read from, in either mode."""
        if self.mode == "a":
            return self.log(topic, partition).view()
        tp = TopicPartition(topic, partition)
        directory = self._own_directory(tp)
        with suppress(CorruptFileError):  # a power cut leaves an empty file, and a read needs no id
            self._check_topic_id(tp, directory)
        view = PartitionView.load(DirectorySegments(self.files, directory))
        view.producer_expiration_ms = self.settings.instance.producer_id_expiration_ms
        return view

    def _own_directory(self, tp: TopicPartition) -> str:
        directory = self.directory(*tp)
        facts = self.files.stat(directory)
        if facts is not None and facts.kind == "dir" and self._contents.was_found(str(tp)):
            return directory
        if not self.holds(*tp) and tp.partition not in self.partitions(tp.topic):
            raise UnknownTopicError(
                f"{tp.topic} has no partition {tp.partition} in {self.path}",
                remedy=f"it has {self.partitions(tp.topic)}",
                file=self.path,
            )
        check_directory(self.files, directory)
        return directory

    @property
    def recovery(self) -> DirRecovery:
        """The repairs so far. A partition is recovered when it is first used."""
        with self.lock:
            return self._opened.recovery(self.path, self.mode)

    # -------------------------------------------------------------- where they start, end and are clean to

    def first_dirty(self, topic: str, partition: int) -> int | None:
        """Return the cleaner's checkpoint: everything below was cleaned. None if there is none."""
        return self._partition_checkpoints.first_dirty(TopicPartition(topic, partition))

    def set_first_dirty(self, topic: str, partition: int, offset: int) -> None:
        """Move the cleaner's checkpoint, durably. It stays between log start and log end."""
        self._partition_checkpoints.set_first_dirty(self.log(topic, partition), offset)

    def checkpoints_together(self) -> AbstractContextManager[None]:
        """Clean many partitions in the block: the cleaner's checkpoint is not written after each of them."""
        return self._partition_checkpoints.together()

    def raise_log_starts(
        self, starts: Mapping[TopicPartition, LogStart]
    ) -> dict[TopicPartition, LastwordError]:
        """Raise the log starts of partitions durably, with one write of their checkpoint.

        The checkpoint has a line for each partition, so a write for each of them would be quadratic. A
        partition that starts at its offset or above already stays as it is. Whole segments below a log start
        may be removed then (`PartitionLog.remove_prefix`). The caller holds the partitions' claims.

        Returns:
            The errors of partitions whose log start was not raised; the others are not affected.
            OffsetOutOfRangeError: the offset is above the log end. BusyError: it is above the beginning of an
            incomplete commit. If the checkpoint cannot be written, its error for all, and nothing is changed.
        """
        errors: dict[TopicPartition, LastwordError] = {}
        logs: list[tuple[PartitionLog, LogStart]] = []
        for tp, start in starts.items():
            try:
                logs.append((self.log(*tp), start))
            except LastwordError as error:
                errors[tp] = error
        return errors | self._partition_checkpoints.raise_log_starts(logs)

    def truncate(self, topic: str, partition: int, offset: int, *, fully: bool = False) -> None:
        """Remove a partition's records from `offset` on, or all of them (`fully`), and continue at `offset`.

        Waits for a cleaning. A crash leaves either log, with checkpoints that are valid for it.
        """
        with self.claim(topic, partition):
            log = self.log(topic, partition)
            self.ledgers.forget(TopicPartition(topic, partition), cut=True)
            self._partition_checkpoints.truncate(log, offset, fully=fully)

    def note_copies(self, topic: str, partition: int) -> None:
        """Note durably that a partition takes batches of another replica (`PartitionLog.append_copies`)."""
        self._partition_checkpoints.note_copies(self.log(topic, partition))

    def remove_deferred(self) -> int:
        """Remove deleted files whose delay has passed. Return the number of files and directories removed."""
        with self.lock:
            removed = self._deferred_deletes.remove()
            return removed + sum(log.remove_deferred() for log in self._opened.logs.values())

    def expire_producers(self) -> None:
        """Drop the state of idle producers in open partitions: a log that does not roll takes no snapshot."""
        with self.lock:
            logs = list(self._opened.logs.values())
        for log in logs:
            log.expire_producers()

    def _checkpoint_if_due(self) -> None:
        """Write the checkpoints after a roll, so that a kill does not cost a long recovery.

        Never waits: the roll holds a partition's lock, and closing takes the two locks in the other order.
        """
        if self._partition_checkpoints.due and self.lock.acquire(blocking=False):
            try:
                if not self._closed:
                    self._partition_checkpoints.write(self._opened.logs)
                    self._deferred_deletes.remove()
            finally:
                self.lock.release()

    # -------------------------------------------------------------- sync, close

    @property
    def has_unsynced(self) -> bool:
        """Return whether an open partition has records that may not survive a power cut."""
        with self.lock:
            return any(log.synced_to < log.log_end for log in self._opened.logs.values())

    def sync(self) -> None:
        """Make everything that was acknowledged at level `os` durable, in all partitions.

        If a partition fails, the others are still synced, and its error is raised at the end.
        """
        with self.lock:
            self._check_writable()
            with ExitStack() as stack:
                for log in reversed(self._opened.logs.values()):
                    stack.callback(log.flush)
            if self._opened.logs:
                self._partition_checkpoints.write(self._opened.logs)
            self._deferred_deletes.remove()

    def roll(self) -> None:
        """Close the active segments that hold records, of all open partitions."""
        with self.lock:
            for log in self._opened.logs.values():
                log.roll()

    def leave_clean(self) -> bool:
        """Leave the files as `close` does, and stay open: for files that no one else opens meanwhile.

        Returns:
            Whether all promises of a clean stop hold. Otherwise the directory must be closed.
        """
        with self.lock:
            self.sync()
            marked = self.files.exists(os.path.join(self.path, names.CLEAN_SHUTDOWN))
            if self._opened.offline or not (marked or self._opened.left_clean):
                take_clean_shutdown(self.files, self.path)
                return False
            if not marked:
                leave_clean_shutdown(self.files, self.path)
            return True

    def close(self) -> None:
        """Sync, write the checkpoints, write the marker if all promises hold, and release the lock.

        In mode "r" it does nothing. If a partition cannot be closed cleanly, the others are still
        closed, and its error is raised at the end. A second close does nothing.
        """
        with self.lock:
            if self._closed:
                return
            self._closed = True
            if self._gauges is not None:
                self._gauges.close()
            if self.mode == "r":
                return
            failed: LastwordError | None = None
            try:
                promised, failed = self._opened.close(self.path)
                used = self._opened.used
                if used and failed is None:
                    self._partition_checkpoints.write(used)
                self.ledgers.close()
                others = self._opened.were_left_clean(self._contents.get().partitions)
                if promised and failed is None and others:
                    leave_clean_shutdown(self.files, self.path)
            except LastwordError as error:
                failed = failed or error
            finally:
                try:
                    self._deferred_deletes.remove(all=True)
                finally:  # also after an interrupt: a second close does nothing
                    self._opened.drop()
                    if self._file_lock is not None:
                        self._file_lock.release()
            if failed is not None:
                raise failed

    def abandon(self) -> None:
        """Release everything as a killed process would: no sync, no checkpoint, no marker."""
        with self.lock:
            self._closed = True
            if self._gauges is not None:
                self._gauges.close()
            self._opened.abandon()
            if self._file_lock is not None:
                self._file_lock.release()

    def _check_writable(self) -> None:
        if self.mode == "r":
            raise ReadOnlyError.opened(self.path)
        if self._closed:
            raise ValueError(f"{self.path} is closed")
