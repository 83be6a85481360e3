"""`lastword.copy`: copy topics from one log to another: directories and logs in buckets.

`lastword.logdir.copies` copies the files of one partition. Here are the logs and topics, the rounds of a copy
into a bucket, and the check of the result. A directory is changed partition by partition. A bucket gets a
commit after every `OpenDirs.most_commit_bytes`, so a copy that is stopped goes on from there, and the scratch
directory is bounded.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from lastword.api.logs import LogDir
from lastword.api.open_dirs import OpenDirs, PathLike
from lastword.api.opening import open as open_log
from lastword.clock import Clock
from lastword.config import write_topic_settings
from lastword.config.setting import NO_POLICY
from lastword.config.settings import UNKNOWN
from lastword.errors import (
    CorruptFileError,
    InconsistentTopicIdError,
    LastwordError,
    PartialFailure,
    UsageError,
)
from lastword.files import real_path
from lastword.logdir import copies
from lastword.logdir.checkpoints import TopicPartition
from lastword.logdir.copies import Brought, SourceLog
from lastword.objects import is_url
from lastword.parse import check_path
from lastword.partition.reads import read_again
from lastword.units import format_bytes
from lastword.values import Meter, ProgressLike, Value, plural


@dataclass(frozen=True, slots=True)
class CopyResult(Value):
    """The result of `copy` for one partition.

    Attributes:
        topic: The topic.
        partition: The partition.
        log_end: The log end of the copy.
        copied_bytes: Bytes that were read from the source.
        copied_segments: Segments that were sent.
        kept_segments: Segments that were there already.
        removed_segments: Segments of the target that the source does not have any more.
        verified: The target was read again, and its segments are those of the source.
    """

    topic: str
    partition: int
    log_end: int
    copied_bytes: int
    copied_segments: int
    kept_segments: int
    removed_segments: int
    verified: bool = False

    def __str__(self) -> str:
        removed = f", {self.removed_segments} removed" if self.removed_segments else ""
        return (
            f"{self.topic}-{self.partition}: {plural(self.copied_segments, 'segment')} copied "
            f"({format_bytes(self.copied_bytes)}), {self.kept_segments} kept{removed}, "
            f"up to offset {self.log_end}{', verified' if self.verified else ''}"
        )


def copy(
    source: PathLike | Sequence[PathLike],
    target: PathLike,
    topics: str | Sequence[str] | None = None,
    *,
    verify: bool = False,
    storage_options: Mapping[str, str] | None = None,
    source_storage_options: Mapping[str, str] | None = None,
    config: PathLike | None = None,
    clock: Clock | None = None,
    progress: ProgressLike | bool | None = None,
    stop: Callable[[], bool] | None = None,
) -> list[CopyResult]:
    """Copy topics to another log: from a directory to a bucket, back, or between two of a kind.

    Offsets, timestamps, settings, leases, names of batches and the clocks of tombstones stay as they are. A
    second copy sends the segments that are new or were cleaned, and removes those that the source has not any
    more. Each partition is copied as of one moment; the source may be written and cleaned meanwhile. A copy
    that was stopped goes on where it ended.

    Args:
        source: A log directory, several of them, or the URL of a log in a bucket. It is not changed.
        target: A directory or a URL. It is made if it is absent.
        topics: Their names; None: every topic.
        verify: Read the source and the target again and compare the digests of all segments.
        storage_options: Options of the bucket; of both, if both are URLs.
        source_storage_options: Options of the source's bucket, if they are others.
        config: Another settings file of the source than those in it.
        clock: For tests: another source of the time.
        progress: True, or a function of `Progress`.
        stop: Called while it runs; True ends the copy, with the results so far.

    Returns:
        A `CopyResult` for each partition.

    Raises:
        InconsistentTopicIdError: The target has another topic of the same name.
        UsageError: The target has records of its own in one of the partitions; or options of a bucket are
            given for directories.
        PartialFailure: Partitions are damaged, for example. It is raised at the end, with the results of the
            others. It is also an instance of the first error's class.
    """
    if isinstance(source, str | os.PathLike):
        source = check_path("source", source)
    target = check_path("target", target)
    sources = [source] if isinstance(source, str) else list(source)
    check_different(sources, target)
    read_with, write_with = storage_of_both(sources, target, storage_options, source_storage_options)
    extra: dict[str, Any] = {} if clock is None else {"clock": clock}
    with ExitStack() as stack:
        read = stack.enter_context(open_log(source, "r", config=config, storage_options=read_with, **extra))
        names = wanted_topics(read, topics)
        written = stack.enter_context(
            open_log(target, "a", log_cleaner_enable=False, storage_options=write_with, **extra)
        )
        return Copying(read.dirs, written.dirs, stop or (lambda: False)).run(names, verify, progress)


def check_different(sources: Sequence[PathLike], target: PathLike) -> None:
    """Raise UsageError if the target is one of the sources."""
    for path in sources:
        if real_path(path).rstrip("/") == real_path(target).rstrip("/"):
            raise UsageError("the source and the target are the same log", remedy="name another target")


def storage_of_both(
    sources: Sequence[PathLike],
    target: PathLike,
    options: Mapping[str, str] | None,
    source_options: Mapping[str, str] | None,
) -> tuple[Mapping[str, str] | None, Mapping[str, str] | None]:
    """Return the storage options of the source and of the target; None for directories.

    Raises:
        UsageError: Options are given, but the log that they are for is a directory.
    """
    from_bucket, to_bucket = any(is_url(str(path)) for path in sources[:1]), is_url(str(target))
    if source_options and not from_bucket:
        raise UsageError(
            "source_storage_options are for a source in a bucket", remedy="leave them out for a directory"
        )
    if options and not (from_bucket or to_bucket):
        raise UsageError("storage_options are for a log in a bucket", remedy="leave them out for a directory")
    return (source_options or options) if from_bucket else None, options if to_bucket else None


def wanted_topics(source: LogDir, topics: str | Sequence[str] | None) -> list[str]:
    """Return the topics to copy. UnknownTopicError, before the target is made."""
    wanted = [topics] if isinstance(topics, str) else topics
    if wanted is not None and not isinstance(wanted, Iterable):
        raise UsageError(f"topics={topics!r} are no topics", remedy="give a list of names; None: every topic")
    names = list(source) if wanted is None else list(dict.fromkeys(wanted))
    for name in names:
        source.dirs.partitions(name)
    return names


class _Stopped(Exception):
    """The caller wants the copy to end."""


class CopyFailed(Exception):
    """A partition failed in a private copy: the round runs again without it."""


class Copying:
    """One call of `copy`. Another way to bring the files overrides `bring_all`, `bring` and `difference`.

    Attributes:
        source: The directories to copy from.
        target: The directories to copy to.
        most_bytes: The most bytes of a round; None: no limit.
        failed: The error of each partition that is not copied.
        results: The result of each partition that is.
        logs: The logs of the source, as copied.
    """

    def __init__(self, source: OpenDirs, target: OpenDirs, stop: Callable[[], bool]) -> None:
        self.source = source
        self.target = target
        self.most_bytes = target.most_commit_bytes
        self._stop = stop
        self.failed: dict[TopicPartition, LastwordError] = {}
        self.results: dict[TopicPartition, CopyResult] = {}
        self.logs: dict[TopicPartition, SourceLog] = {}
        self._on_bytes: Callable[[int], None] = lambda count: None

    def run(
        self, topics: Sequence[str], verify: bool, progress: ProgressLike | bool | None
    ) -> list[CopyResult]:
        """Copy the topics and check the copies."""
        todo = [TopicPartition(name, number) for name in topics for number in self.source.partitions(name)]
        with ExitStack() as stack:
            if progress:
                self._count_bytes(stack, todo, progress)
            try:
                for name in topics:
                    if not self._prepare(name):
                        todo = [tp for tp in todo if tp.topic != name]
                self.bring_all(todo)
                if verify:
                    self.verify_all(todo)
            except _Stopped:
                pass
        results = [self.results[tp] for tp in todo if tp in self.results]
        return PartialFailure.check(results, list(self.failed.values()))

    def _count_bytes(
        self, stack: ExitStack, todo: Sequence[TopicPartition], progress: ProgressLike | bool
    ) -> None:
        views, _ = self.source.checked_views(todo)
        total = sum(segment.size for view in views.values() for segment in view.segments)
        update = stack.enter_context(Meter("copy", progress, total).part(total))
        done = 0

        def count(size: int) -> None:
            nonlocal done
            done += size
            if update is not None:
                update(done, total)

        self._on_bytes = count

    # -------------------------------------------------------------- topics

    def _prepare(self, topic: str) -> bool:
        """Make the topic in the target, with the settings of the source; False if that is refused."""
        numbers = sorted(self.source.partitions(topic))
        topic_id = self.source.topic_id(topic)
        try:
            settings = settings_of(self.source, topic)
            self.target.transaction(lambda dirs: make_topic(dirs, topic, numbers, topic_id, settings))
        except LastwordError as error:
            self.failed[TopicPartition(topic, -1)] = error
            return False
        self.target.settings_changed([topic])
        return True

    # -------------------------------------------------------------- partitions

    def bring_all(self, partitions: Sequence[TopicPartition]) -> None:
        """Copy partitions, in a bucket with a commit after every `most_commit_bytes`."""
        todo = list(partitions)
        while todo:
            try:
                done = self.target.transaction(partial(self.round, todo))
            except CopyFailed:
                done = {}
            for tp, (log, brought) in done.items():
                self.note(tp, log, brought)
            whole = {tp for tp, (_, brought) in done.items() if brought.whole}
            todo = [tp for tp in todo if tp not in whole and tp not in self.failed]

    def round(
        self, todo: Sequence[TopicPartition], dirs: OpenDirs
    ) -> dict[TopicPartition, tuple[SourceLog, Brought]]:
        """Copy partitions, into a bucket until the round has `most_commit_bytes`."""
        done: dict[TopicPartition, tuple[SourceLog, Brought]] = {}
        left = self.most_bytes
        for tp in todo:
            if left is not None and left <= 0:
                break
            try:
                log, brought = self.bring(dirs, tp, left)
            except LastwordError as error:
                self.failed[tp] = error
                if self.most_bytes is not None:  # in a bucket
                    raise CopyFailed from error
                continue
            done[tp] = log, brought
            if left is not None:
                left -= brought.copied_bytes
        return done

    def bring(self, dirs: OpenDirs, tp: TopicPartition, most_bytes: int | None) -> tuple[SourceLog, Brought]:
        """Copy one partition; again with a new view if a cleaning has removed a file."""

        def bring() -> tuple[SourceLog, Brought]:
            first_dirty = self.source.first_dirty(*tp)
            log = SourceLog.of(self.source.checked_view(*tp), first_dirty)
            return log, copies.bring(log, dirs.log_dir(*tp), tp, most_bytes=most_bytes, on_bytes=self.count)

        return read_again(bring, self.source.refresh)

    def count(self, size: int) -> None:
        """Report copied bytes; end the call if it is to stop."""
        self._check_stop()
        self._on_bytes(size)

    def _check_stop(self) -> None:
        if self._stop():
            raise _Stopped

    def note(self, tp: TopicPartition, log: SourceLog, brought: Brought) -> None:
        """Add what was done to the result of the partition."""
        before = self.results.get(tp, CopyResult(*tp, 0, 0, 0, 0, 0))
        self.logs[tp] = log
        self.results[tp] = CopyResult(
            *tp,
            log.log_end,
            before.copied_bytes + brought.copied_bytes,
            before.copied_segments + brought.copied_segments,
            max(0, len(log.segments) - before.copied_segments - brought.copied_segments),
            before.removed_segments + brought.removed_segments,
        )

    # -------------------------------------------------------------- verify

    def verify_all(self, partitions: Sequence[TopicPartition]) -> None:
        """Compare the copies of partitions with the source."""
        self.target.refresh()
        for tp in partitions:
            if tp in self.failed:
                continue
            try:
                self._verify(tp)
            except LastwordError as error:
                self.failed[tp] = error

    def _verify(self, tp: TopicPartition) -> None:
        """Compare the segments of the source and the target; copy again if the source was cleaned since."""

        def bring_again() -> None:
            self.source.refresh()
            self.bring_all([tp])
            self.target.refresh()

        differs = read_again(partial(self.difference, tp), bring_again)
        if differs is not None:
            self.target.transaction(lambda dirs: _forget(dirs, tp))
            raise CorruptFileError(
                f"{differs} differs from the source",
                remedy="copy again: every segment of the partition is sent again",
                file=differs,
            )
        self.results[tp] = replace(self.results[tp], verified=True)

    def difference(self, tp: TopicPartition) -> str | None:
        """Return the first log of the target whose bytes are not those of the source; None: there is none."""
        log, copied = self.logs[tp], self.target.log_dir(*tp).directory(*tp)
        logs = [segment.log for segment in log.segments]
        return copies.difference(log.files, log.directory, logs, self.target.files, copied, self._check_stop)


def settings_of(dirs: OpenDirs, topic: str) -> dict[str, str]:
    """Return the settings that the settings file or a broker holds for a topic, as text.

    If a value that decides what is removed cannot be read, the policy of the copy is `none`.
    """
    config = dirs.settings.topic(topic, saved=True)
    shown = {
        name: text for name, text, source in dirs.settings.rows(topic, saved=True) if source != "default"
    }
    known = {name: text for name, text in shown.items() if text != UNKNOWN}
    return known if config.unread is None else {**known, "cleanup.policy": NO_POLICY}


def make_topic(
    dirs: OpenDirs, topic: str, numbers: Sequence[int], topic_id: str | None, settings: Mapping[str, str]
) -> None:
    """Make the partitions that are missing, and give the topic the settings of the source."""
    if topic in dirs.topics():
        known = dirs.topic_id(topic)
        if None not in (known, topic_id) and known != topic_id:
            raise InconsistentTopicIdError(
                f"{dirs.paths[0]} has another topic {topic}: its topic id is not that of the source",
                remedy="use another target, or drop the topic there first",
                file=dirs.paths[0],
            )
        missing = [number for number in numbers if number not in dirs.partitions(topic)]
        if missing:
            dirs.directories[0].add_partitions(topic, missing, known)
            dirs.partitions_added()
    else:
        dirs.directories[0].create_topic(topic, numbers, topic_id=topic_id)
    dirs.dir_set.write_list()
    before = settings_of(dirs, topic)
    changes: dict[str, str | None] = {
        name: value for name, value in settings.items() if before.get(name) != value
    }
    changes |= {name: None for name in before if name not in settings and dirs.settings.is_set(name, topic)}
    if changes:
        write_topic_settings(dirs.files, dirs.settings_file, topic, changes)
        dirs.reload([topic])


def _forget(dirs: OpenDirs, tp: TopicPartition) -> None:
    copies.forget_note(dirs.files, dirs.log_dir(*tp).directory(*tp))
