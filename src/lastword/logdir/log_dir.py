"""`LogDirectory`: topics and their partitions under one root, opened to read or to append.

"r" takes no lock and writes nothing: it gives views, also beside a running broker or writer. "a" takes
Kafka's lock, removes the clean-shutdown marker before anything else, and recovers a partition when it is
first used. Closing writes the marker again only if every partition keeps what it promises: those that were
opened say so themselves, the others are as they were.

Locks are taken in this order: `claim` of a partition, `lock`, the log's own, the one of the checkpoints.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from lastword import files as storage
from lastword.clock import Clock, SystemClock
from lastword.config import Settings, TopicConfig, remove_topic_settings, write_topic_settings
from lastword.errors import (
    BusyError,
    CorruptFileError,
    DataError,
    LastwordError,
    NotALogDirError,
    OffsetOutOfRangeError,
    ReadOnlyError,
    TopicExistsError,
    UnknownTopicError,
    UsageError,
)
from lastword.files import FileLock, Files
from lastword.logdir import inbox
from lastword.logdir.checkpoints import Checkpoints, TopicPartition
from lastword.logdir.claims import Claims
from lastword.logdir.discover import Listing, SetAside, discover, is_partition
from lastword.logdir.gauges import LogGauges
from lastword.logdir.identity import (
    check_topic_id,
    leave_clean_shutdown,
    read_topic_id,
    take_clean_shutdown,
    write_meta_properties,
)
from lastword.logdir.ledgers import Ledgers
from lastword.logdir.moved_from import read_note
from lastword.logdir.root import check_log_dir, check_writable, make_dirs, partition_numbers
from lastword.logdir.topics import make_partitions, mark_deleted
from lastword.partition import front, losses
from lastword.partition.log import PartitionLog
from lastword.partition.open import Recovery, Repaired, open_log
from lastword.partition.view import PartitionView
from lastword.segment import names

CHECKPOINT_INTERVAL_SECONDS = 60.0  # as Kafka's log.flush.offset.checkpoint.interval.ms


@dataclass(frozen=True, slots=True)
class DirRecovery:
    """What opening found: `clean` if the last writer stopped cleanly; `partitions` as they are opened one
    after another; `offline` those that could not be, with the reason.
    """

    path: str
    clean: bool
    partitions: tuple[Recovery, ...]
    offline: tuple[tuple[TopicPartition, LastwordError], ...]

    @property
    def repaired(self) -> tuple[Repaired, ...]:
        return tuple(one for partition in self.partitions for one in partition.repaired)


class LogDirectory:
    """One root. Safe from any thread. Also a context manager."""

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
        self.lock = threading.RLock()
        self.checkpoints = Checkpoints(files, path)
        self._load_settings = load_settings
        self._rng = rng
        self._file_lock: FileLock | None = None
        self._clean = False
        self._closed = False
        self._logs: dict[TopicPartition, PartitionLog] = {}
        self._made: set[TopicPartition] = set()
        self._offline: dict[TopicPartition, LastwordError] = {}
        self._recovered: list[Recovery] = []
        self._recovery_points: dict[TopicPartition, int] = {}
        self._log_starts: dict[TopicPartition, int] = {}
        self._checkpointed = clock.monotonic()
        self._checkpoint_lock = threading.RLock()
        self._claims = Claims(self.lock)
        self._known: set[str] = set()
        self._waste = front.Waste(files, clock)
        self._topic_ids: dict[str, str | None] = {}
        self._checked: set[TopicPartition] = set()
        self._adopted: set[TopicPartition] = set()
        self._gauges = LogGauges(path, files, lambda: self._logs) if mode == "a" else None
        self.directories = 1  # that are one, and share the memory of `ledgers`
        self.ledgers = self.new_ledgers()
        self.shared_topic_id: Callable[[str], str | None] = lambda topic: None
        """Of several directories that are one: the topic's id as the others have it."""

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
    ) -> LogDirectory:
        """Open a root. "r": it must exist. "a": made if absent, and locked.

        `settings`: the merged settings, or a function that merges them afresh (after a topic's were changed);
        None: those of the root's lastword.toml and the environment.

        NotALogDirError: there is something, but no log directory. LogDirLockedError: another writer, or a
        broker. UsageError: another mode. Nothing was changed then.
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
            load = lambda: Settings.load([root])  # noqa: E731
        if mode == "r":
            check_log_dir(discover(files, root), root)
            return cls(root, mode, files, clock or SystemClock(), load, rng or random.SystemRandom())
        fresh = check_writable(files, root)
        opened = cls(root, mode, files, clock or SystemClock(), load, rng or random.SystemRandom())
        opened._take(fresh)
        try:
            opened._take_in_commits()
        except BaseException:
            opened.close()
            raise
        return opened

    def _take(self, fresh: bool) -> None:
        files = self.files
        if fresh:
            make_dirs(files, self.path)
        files.guard(self.path)
        self._file_lock = files.lock(os.path.join(self.path, names.LOCK))
        try:
            if fresh and not files.exists(os.path.join(self.path, names.META_PROPERTIES)):
                write_meta_properties(files, self.path, self._rng)
            self._clean = take_clean_shutdown(files, self.path)
            self._recovery_points = self.checkpoints.recovery_points.read_sound()
            self._log_starts = self.checkpoints.log_starts.read_sound()
            for name in names.ROOT_FILES:  # replaced as a whole, or not at all
                files.unlink(os.path.join(self.path, name + ".tmp"), missing_ok=True)
            found = self._listing()
            for name in found.deleted:  # a deletion that was asked for and not finished
                files.remove_tree(os.path.join(self.path, name))
            for one in found.set_aside:
                path = os.path.join(self.path, one.name)
                if one.marker == "future" and read_note(files, path) is not None:
                    files.remove_tree(path)  # a copy of ours that did not come to its end
        except BaseException:
            self._file_lock.release()
            raise

    def _take_in_commits(self) -> None:
        """What writers have committed while nobody held the lock, and what a crash interrupted, before
        anything else is appended. What cannot be taken in now stays where it is."""
        if not inbox.pending(self.files, self.path):
            return
        try:
            inbox.take_in(self)
        except LastwordError as error:
            inbox.log.warning("lastword: the inbox of %s: %s", self.path, error)

    def __enter__(self) -> LogDirectory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"LogDirectory({self.path!r}, {self.mode!r})"

    # -------------------------------------------------------------- topics

    def _listing(self) -> Listing:
        return discover(self.files, self.path, self._known)

    def new_ledgers(self, *, saves: bool = True) -> Ledgers:
        """Garbage accounts of the partitions here. `ledgers` are those that rounds keep; a dry run has its
        own, which leave no trace (`saves`)."""
        return Ledgers(
            self.files,
            lambda: self.settings.instance.log_cleaner_dedupe_buffer_size // self.directories,
            lambda: [os.path.join(self.path, str(tp)) for tp in self._listing().partitions],
            saves=saves and self.mode == "a",
            scratch=lambda: self.settings.instance.lastword_map_scratch,
        )

    def set_aside(self) -> tuple[SetAside, ...]:
        """Directories of partitions that are not served: copies on their way, and strays of a broker."""
        return self._listing().set_aside

    def holds(self, topic: str, partition: int) -> bool:
        """Does this partition lie here? Looks at its directory only."""
        name = names.partition_dir(topic, partition)
        path = os.path.join(self.path, name)
        return self.files.is_dir(path) and (name in self._known or is_partition(self.files, path))

    def topics(self) -> list[str]:
        """Names of all topics, sorted."""
        return list(self._listing().topics())

    def partitions(self, topic: str) -> list[int]:
        """Partition numbers of a topic, ascending. UnknownTopicError names the nearest."""
        found = self._listing().topics()
        if topic not in found:
            raise UnknownTopicError.named(topic, self.path, found)
        return found[topic]

    def topic_partitions(self) -> list[TopicPartition]:
        """All partitions of all topics."""
        return list(self._listing().partitions)

    def topic_id(self, topic: str) -> str | None:
        """The topic's id as the first of its partitions that has one says; None in a bare directory."""
        for partition in self.partitions(topic):
            with suppress(CorruptFileError):  # told when that partition is used
                found = read_topic_id(self.files, self.directory(topic, partition))
                if found is not None:
                    return found
        return None

    def check_topic(self, topic: str, partition: int) -> None:
        """Does nothing here; a directory that is offline raises."""

    def check_topic_id(self, topic: str, partition: int) -> None:
        """InconsistentTopicIdError if the partition is of another topic of that name; looked at once."""
        tp = TopicPartition(topic, partition)
        if tp in self._checked:
            return
        if topic not in self._topic_ids:
            self._topic_ids[topic] = self.shared_topic_id(topic) or self.topic_id(topic)
        check_topic_id(self.files, self.directory(topic, partition), self._topic_ids[topic])
        self._checked.add(tp)

    def topic_config(self, topic: str) -> TopicConfig:
        """The settings that hold for a topic. Without a word about it, its cleanup_policy is None."""
        return self.settings.topic(topic)

    def directory(self, topic: str, partition: int) -> str:
        """Path of a partition's directory."""
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
        """Make a topic and save its settings; durable when it returns. False if it was there (`exist_ok`) and
        nothing was changed.

        partitions   how many, or the numbers of those that come to lie here, under a given `topic_id`

        InvalidTopicError, TopicExistsError, InvalidSettingError, UnknownSettingError: nothing was made.
        """
        with self.lock:
            self._check_writable()
            names.check_topic(topic)
            numbers = partition_numbers(partitions)
            if topic in self._listing().topics():
                if exist_ok:
                    return False
                raise TopicExistsError(
                    f"{self.path} has a topic {topic!r} already", remedy="exist_ok=True takes it as it is"
                )
            if settings:
                write_topic_settings(self.files, self._settings_path, topic, dict(settings))
                self.reload_settings()
            interval = self.topic_config(topic).index_interval_bytes
            make_partitions(
                self.files,
                self.path,
                topic,
                numbers,
                self._rng,
                index_interval_bytes=interval,
                topic_id=topic_id,
            )
            made = [TopicPartition(topic, number) for number in numbers]
            self._topic_ids.pop(topic, None)
            self.checkpoints.forget(made)  # of a topic of that name that was removed by hand
            for tp in made:
                self._recovery_points.pop(tp, None)
                self._log_starts.pop(tp, None)
            self._made.update(made)
            return True

    def delete_topic(self, topic: str) -> None:
        """Remove a topic with all its records and settings. It is gone when this returns; its bytes go after
        `file.delete.delay.ms`, or at closing.
        """
        with self.lock:
            self._check_writable()
            gone = [TopicPartition(topic, number) for number in self.partitions(topic)]
            delay_ms = self.topic_config(topic).file_delete_delay_ms
            for tp in gone:
                self.let_go(tp)
            self._waste.add(mark_deleted(self.files, self.path, gone, self._rng), delay_ms)
            with self._checkpoint_lock:
                self.checkpoints.forget(gone)
            self._topic_ids.pop(topic, None)
            remove_topic_settings(self.files, self._settings_path, topic)
            self.reload_settings()

    def let_go(self, tp: TopicPartition) -> None:
        """Close a partition that leaves this directory, and forget it."""
        with self.lock:
            log = self._logs.pop(tp, None)
            if log is not None:
                log.abandon()
            self.ledgers.forget(tp)
            self._offline.pop(tp, None)
            self._made.discard(tp)
            self._known.discard(str(tp))
            self._checked.discard(tp)
            self._adopted.discard(tp)
            self._recovery_points.pop(tp, None)
            self._log_starts.pop(tp, None)

    def discard(self, tp: TopicPartition) -> None:
        """Remove one partition that lies elsewhere by now. Its name is gone when this returns."""
        with self.lock:
            self._check_writable()
            self.let_go(tp)
            delay_ms = self.topic_config(tp.topic).file_delete_delay_ms
            self._waste.add(mark_deleted(self.files, self.path, [tp], self._rng), delay_ms)
            with self._checkpoint_lock:
                self.checkpoints.forget([tp])

    def adopt(self, tp: TopicPartition, recovery_point: int, log_start: int, first_dirty: int | None) -> None:
        """A partition comes here from elsewhere: what its checkpoints say there holds here, durably. It is
        recovered when it is first used.
        """
        with self._checkpoint_lock:
            self.checkpoints.recovery_points.update({tp: recovery_point})
            self.checkpoints.log_starts.update({tp: log_start} if log_start else {})
            self.checkpoints.first_dirty.update({} if first_dirty is None else {tp: first_dirty})
            self._recovery_points[tp], self._log_starts[tp] = recovery_point, log_start
            self._adopted.add(tp)
            self._offline.pop(tp, None)

    def set_topic_config(self, topic: str, set: Mapping[str, Any], unset: Iterable[str] = ()) -> None:
        """Change a topic's settings in lastword.toml; they hold at once. A value of None resets."""
        with self.lock:
            self._check_writable()
            self.partitions(topic)
            write_topic_settings(self.files, self._settings_path, topic, dict(set), unset)
            self.reload_settings()

    @property
    def _settings_path(self) -> str:
        return os.path.join(self.path, names.SETTINGS)

    def reload_settings(self) -> None:
        """Read the settings again and give them to the open partitions."""
        with self.lock:
            self.settings = self._load_settings()
            for tp, log in self._logs.items():
                log.config = self.settings.topic(tp.topic)

    # -------------------------------------------------------------- partitions

    def log(self, topic: str, partition: int) -> PartitionLog:
        """The open partition, recovered at its first use.

        ReadOnlyError in mode "r". A damaged one raises its DataError each time and stays as it is; the others
        serve.
        """
        tp = TopicPartition(topic, partition)
        log = self._logs.get(tp)
        if log is not None:
            return log
        with self.lock:
            self._check_writable()
            log = self._logs.get(tp)
            if log is None:
                log = self._open_log(tp)
                self._logs[tp] = log
            return log

    def _open_log(self, tp: TopicPartition) -> PartitionLog:
        if tp in self._offline:
            raise self._offline[tp]
        directory = self._own_directory(tp)
        try:
            self.check_topic_id(*tp)
            log, recovery = open_log(
                self.files,
                directory,
                tp.topic,
                tp.partition,
                self.topic_config(tp.topic),
                self.clock,
                recovery_point=self._recovery_points.get(tp, 0),
                log_start=self._log_starts.get(tp, 0),
                first_dirty=self.first_dirty(*tp) or 0,
                clean=(self._clean and tp not in self._adopted) or tp in self._made,
                rng=self._rng,
                producer_expiration_ms=self.settings.instance.producer_id_expiration_ms,
            )
        except DataError as error:
            self._offline[tp] = error
            raise
        log.on_roll = self._checkpoint_if_due
        self._recovered.append(recovery)
        if log.config.compacts and self._is_quiet(log):
            log.roll_if_due()
        return log

    def _is_quiet(self, log: PartitionLog) -> bool:
        """Was nothing appended for so long that only time can close the active segment? (Not by the records'
        own times: a log of old records would begin a segment with every opening.)
        """
        limit = min(log.config.segment_ms, log.config.max_compaction_lag_ms)
        return log.active.size > 0 and self.clock.now_ms() - log.active.mtime_ms > limit

    def claim(self, topic: str, partition: int) -> AbstractContextManager[None]:
        """For who removes or rewrites segments, or moves them: one at a time in each partition. Waits; a
        background round that is under way ends at its next safe point (it asks `wanted`).
        """
        return self._claims.claim(TopicPartition(topic, partition))

    def try_claim(self, topic: str, partition: int) -> AbstractContextManager[bool]:
        """The same without waiting, for work that can be done another time: False if somebody has it."""
        return self._claims.try_claim(TopicPartition(topic, partition))

    def wanted(self, topic: str, partition: int) -> bool:
        """Does somebody wait for the claim?"""
        return self._claims.wanted(TopicPartition(topic, partition))

    def view(self, topic: str, partition: int) -> PartitionView:
        """A snapshot to read from, in either mode."""
        if self.mode == "a":
            return self.log(topic, partition).view()
        directory = self._own_directory(TopicPartition(topic, partition))
        self.check_topic_id(topic, partition)
        view = PartitionView.load(self.files, directory)
        view.producer_expiration_ms = self.settings.instance.producer_id_expiration_ms
        return view

    def _own_directory(self, tp: TopicPartition) -> str:
        if not self.holds(*tp) and tp.partition not in self.partitions(tp.topic):
            raise UnknownTopicError(
                f"{tp.topic} has no partition {tp.partition} in {self.path}",
                remedy=f"it has {self.partitions(tp.topic)}",
                file=self.path,
            )
        directory = self.directory(tp.topic, tp.partition)
        if os.path.islink(directory):  # noqa: PTH114
            raise NotALogDirError(
                f"{directory} is a symbolic link, which is not followed",
                remedy="put the directory itself there",
                file=directory,
            )
        return directory

    @property
    def recovery(self) -> DirRecovery:
        """What opening repaired so far: a partition is recovered when it is first used."""
        with self.lock:
            return DirRecovery(
                self.path, self._clean, tuple(self._recovered), tuple(sorted(self._offline.items()))
            )

    # -------------------------------------------------------------- checkpoints

    def first_dirty(self, topic: str, partition: int) -> int | None:
        """The cleaner's checkpoint: everything below was cleaned. None if there is none."""
        return self.checkpoints.first_dirty.get(TopicPartition(topic, partition))

    def set_first_dirty(self, topic: str, partition: int, offset: int) -> None:
        """Move it, durably; it stays between log start and log end."""
        with self.lock:
            log = self.log(topic, partition)
            bounded = min(max(offset, log.log_start), log.log_end)
            with self._checkpoint_lock:
                self._note_cleaned(TopicPartition(topic, partition), bounded)
                self.checkpoints.first_dirty.update({TopicPartition(topic, partition): bounded})

    def _note_cleaned(self, tp: TopicPartition, offset: int) -> None:
        """Readers tell from it whether somebody else's cleaner has moved the checkpoint (`losses`)."""
        before = self.checkpoints.first_dirty.read_sound().get(tp, 0)
        losses.note_cleaned(self.files, self.directory(*tp), before, offset)

    def raise_log_start(self, topic: str, partition: int, offset: int, reason: str) -> bool:
        """Nothing below `offset` can be read from now on, durably; whole segments below it may go then
        (`PartitionLog.remove_front`). False if the log starts there or above already.

        OffsetOutOfRangeError above the log end, BusyError above where a commit begins that is not in as a
        whole. `reason` is what readers are told who come too late.
        """
        tp = TopicPartition(topic, partition)
        log = self.log(topic, partition)
        with log.lock:
            if offset > log.log_end:
                raise OffsetOutOfRangeError.above(log.name, offset, log.log_end)
            if offset <= log.log_start:
                return False
            if log.taking_in_from is not None and offset > log.taking_in_from:
                raise part_of_a_commit(log, f"cannot begin at {offset}")
            with self._checkpoint_lock:
                self.checkpoints.log_starts.update({tp: offset})
                self._log_starts[tp] = offset
                front.write_note(self.files, log.directory, offset, reason, self.clock.now_ms())
                return log.raise_log_start(offset)

    def truncate(self, topic: str, partition: int, offset: int, *, fully: bool = False) -> None:
        """Take back a partition's records from `offset` on, or all of them (`fully`), and go on at `offset`.

        Waits for a cleaning. No checkpoint may speak of more than the log has: they are lowered before
        anything is cut, and a start above the log is written before it is emptied, so that a crash leaves
        either log.
        """
        tp = TopicPartition(topic, partition)
        with self.claim(topic, partition):
            log = self.log(topic, partition)
            self.ledgers.forget(tp, cut=True)
            with log.lock, self._checkpoint_lock:
                segments = log.segment_set
                base = segments[max(0, segments.floor(offset))].base_offset
                lowered = {
                    self.checkpoints.recovery_points: offset,
                    self.checkpoints.high_watermarks: offset,
                    self.checkpoints.first_dirty: min(offset, base),
                    self.checkpoints.log_starts: offset,
                }
                for checkpoint, most in lowered.items():
                    if checkpoint.read_sound().get(tp, -1) > most:
                        if checkpoint is self.checkpoints.first_dirty:
                            self._note_cleaned(tp, most)
                        checkpoint.update({tp: most})
                if fully or log.log_start > offset:
                    self.checkpoints.log_starts.update({tp: offset})
                    self._log_starts[tp] = offset
                if fully:
                    log.truncate_fully_and_start_at(offset)
                else:
                    log.truncate_to(offset)

    def remove_waste(self) -> int:
        """Remove what was deleted long enough ago; returns how many files and directories."""
        with self.lock:
            removed = self._waste.remove()
            return removed + sum(log.remove_waste() for log in self._logs.values())

    def _write_checkpoints(self) -> None:
        with self._checkpoint_lock:
            logs = list(self._logs.items())
            self.checkpoints.recovery_points.update({tp: log.recovery_point for tp, log in logs})
            raised = {tp: log.log_start for tp, log in logs if log.log_start > log.segments[0].base_offset}
            self.checkpoints.log_starts.update(raised, drop=[tp for tp, _ in logs if tp not in raised])
            self._checkpointed = self.clock.monotonic()

    def _checkpoint_if_due(self) -> None:
        """After a roll: what is synced by then need not be walked after a kill. Never waits: the roll holds a
        partition's lock, and closing takes the two in the other order.
        """
        if self.clock.monotonic() - self._checkpointed < CHECKPOINT_INTERVAL_SECONDS:
            return
        if self.lock.acquire(blocking=False):
            try:
                if not self._closed:
                    self._write_checkpoints()
                    self._waste.remove()
            finally:
                self.lock.release()

    # -------------------------------------------------------------- sync, close

    def sync(self) -> None:
        """What was acknowledged at `os` is `disk` when this returns, in all partitions."""
        with self.lock:
            self._check_writable()
            for log in self._logs.values():
                log.flush()
            if self._logs:
                self._write_checkpoints()
            self._waste.remove()

    def close(self) -> None:
        """Sync, write the checkpoints, leave the marker if all promises hold, let go of the lock. In mode
        "r": nothing.

        If a partition cannot be closed cleanly the others still are; its error is raised at the end. A second
        close does nothing.
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
                promised = not self._offline
                for log in self._logs.values():
                    try:
                        promised = log.close() and promised
                    except LastwordError as error:
                        failed, promised = failed or error, False
                if self._logs and failed is None:
                    self._write_checkpoints()
                self.ledgers.close()
                unopened = [
                    tp for tp in self._listing().partitions if tp not in self._logs and tp not in self._made
                ]
                if promised and failed is None and (self._clean or not unopened):
                    leave_clean_shutdown(self.files, self.path)
            except LastwordError as error:
                failed = failed or error
            finally:
                with suppress(LastwordError):
                    self._waste.remove(all=True)
                if self._file_lock is not None:
                    self._file_lock.release()
            if failed is not None:
                raise failed

    def abandon(self) -> None:
        """Let go of everything as a killed process would: no sync, no checkpoint, no marker."""
        with self.lock:
            self._closed = True
            if self._gauges is not None:
                self._gauges.close()
            for log in self._logs.values():
                log.abandon()
            if self._file_lock is not None:
                self._file_lock.release()

    def _check_writable(self) -> None:
        if self.mode == "r":
            raise ReadOnlyError.opened(self.path)
        if self._closed:
            raise ValueError(f"{self.path} is closed")


def part_of_a_commit(log: PartitionLog, what: str) -> BusyError:
    """What must wait until the commit that `log.taking_in_from` tells of is in."""
    return BusyError(
        f"{log.name} {what}: the commit that begins at {log.taking_in_from} is not in as a whole",
        remedy="make room on its drive: it is taken in as soon as that is possible",
        file=log.directory,
    )
