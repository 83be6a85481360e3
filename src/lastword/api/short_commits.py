"""`ShortCommits`: commit small appends to a bucket without a private copy of the log.

A process that commits alone has the newest version in memory. The files of a small commit follow from it
(`lastword.bucket.short_commit`), so no log directory is opened or kept open for them. Everything else is a
transaction, and so is each commit that another process overtakes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

from lastword.bucket.files import BucketFiles, Numbers
from lastword.bucket.manifest import Entry, ManifestVersion
from lastword.bucket.short_commit import OpenLogNeeded, PartitionEnd, ShortAppend, SnapshotDue
from lastword.logdir import LogDirectory
from lastword.logdir.checkpoints import TopicPartition, format_offsets
from lastword.segment import names

if TYPE_CHECKING:
    from lastword.api.open_dirs import OpenDirs
    from lastword.bucket.commit import Bucket, KeptCopy
    from lastword.clock import Clock
    from lastword.config import Settings, TopicConfig
    from lastword.partition.appending import AppendedBatch, Batch

T = TypeVar("T")
MOST_PAUSE = 31
"""After a commit that needs an open log, at most this number of commits goes to the kept one: it is dropped
by a commit without it, and costs some ms to open again."""
_COMMITS = (names.BEGUN, names.INBOX, names.APPLYING)


class ShortCommits:
    """Commits small appends to the partitions of one bucket. For one thread.

    Args:
        bucket: The log.
        load: Merges the settings; its argument is where the settings file is.
        clock: The clock.
    """

    def __init__(self, bucket: Bucket, load: Callable[[BucketFiles], Settings], clock: Clock) -> None:
        self._bucket = bucket
        self._load = load
        self._clock = clock
        self._numbers = Numbers(bucket.rng)
        self._dirs: _Directories | None = None  # of the version of the last commit
        self._pause = self._next_pause = 0
        self._is_due = False  # the last commit that was tried needed the open log for a producer snapshot

    def commit(self, work: Callable[[OpenDirs], object], kept: KeptCopy) -> bool:
        """Run `work`, which appends, and commit. False: nothing is in the log, and a transaction must run it.

        Raises:
            UncertainCommitError: As `Bucket.commit_entries`, as other errors of the store.
        """
        if self._pause:
            self._pause -= 1
            return False
        dirs, self._dirs = self._dirs, None  # an error drops them
        is_tried = False

        def entries_of(version: ManifestVersion) -> Mapping[str, Entry] | None:
            nonlocal dirs, is_tried
            is_tried = True  # and counts as a reason to pause
            try:
                if dirs is None or dirs.nonce != version.manifest.nonce:
                    dirs = _Directories(self._bucket, version, self._load, self._clock)
                work(cast("OpenDirs", dirs))
                return dirs.entries(self._numbers.next)
            except SnapshotDue:
                is_tried, self._is_due = self._is_due, True  # the open log may know more producers
                return None
            except Exception:  # the transaction raises it, if it is no `OpenLogNeeded`
                return None

        is_in = self._bucket.commit_entries(entries_of, kept)
        if is_in and dirs is not None:
            dirs.committed(kept.nonce)
            self._dirs, self._next_pause, self._is_due = dirs, self._next_pause // 2, False
        elif is_tried:
            self._pause = self._next_pause = min(2 * self._next_pause + 1, MOST_PAUSE)
        return is_in


class _Directories:
    """The directories of a version to which a topic appends, in place of `OpenDirs`.

    Everything that `OpenDirs` has besides raises OpenLogNeeded. So does the log of a partition (`_Log`).
    """

    closed = False
    mode = "a"

    def __init__(
        self, bucket: Bucket, version: ManifestVersion, load: Callable[[BucketFiles], Settings], clock: Clock
    ) -> None:
        root = version.children("")
        if names.CLEAN_SHUTDOWN not in root or any(name.startswith(_COMMITS) for name in root):
            raise OpenLogNeeded
        files = bucket.files(version)
        directory = LogDirectory.open(bucket.url, "r", files, clock, lambda: load(files))
        self.nonce = version.manifest.nonce
        self.clock = clock
        self.directories = [directory]
        self.settings = directory.settings
        self._version = version
        self._numbers = directory.listing().numbers
        self._offsets = directory.checkpoints.recovery_points.read()
        self._starts = directory.checkpoints.log_starts.read()
        self._configs: dict[str, TopicConfig] = {}
        self.topic_id = cache(directory.topic_id)  # appends do not change it
        self._partition_ends: dict[TopicPartition, PartitionEnd] = {}
        self._logs: dict[TopicPartition, _Log] = {}  # of the commit that runs
        self._after: dict[TopicPartition, PartitionEnd] = {}
        self.needs_log = False
        """Whether something was refused, also if `work` went on."""

    def __getattr__(self, name: str) -> NoReturn:
        self.refuse()

    def refuse(self) -> NoReturn:
        """Raise OpenLogNeeded."""
        self.needs_log = True
        raise OpenLogNeeded

    # -------------------------------------------------------------- as OpenDirs

    def partitions(self, topic: str) -> Sequence[int]:
        """Return the numbers of the partitions of a topic."""
        return self._numbers.get(topic) or self.refuse()

    def config(self, topic: str) -> TopicConfig:
        """Return the settings of a topic."""
        config = self._configs.get(topic)
        if config is None:
            config = self._configs[topic] = self.settings.topic(topic)
        return config

    def require_writable(self) -> None:
        """Do nothing."""

    def append(self, topic: str, work: Callable[[OpenDirs], T], pair: tuple[Any, Any]) -> T:
        """As `OpenDirs.append`."""
        return work(cast("OpenDirs", self))

    def extend(self, topic: str, work: Callable[[Any, OpenDirs], int], records: Any, *, is_one: bool) -> int:
        """As `OpenDirs.extend`."""
        return work(records, cast("OpenDirs", self))

    def log(self, topic: str, partition: int) -> _Log:
        """Return a partition, to append to."""
        tp = TopicPartition(topic, partition)
        log = self._logs.get(tp)
        if log is None:
            commit = ShortAppend(self._end_of(tp), self.config(topic), self.clock)
            log = self._logs[tp] = _Log(self, str(tp), commit, self._starts.get(tp, 0))
        return log

    def _end_of(self, tp: TopicPartition) -> PartitionEnd:
        end = self._partition_ends.get(tp)
        if end is None:
            offset = self._offsets.get(tp, -1)
            if tp.partition not in self.partitions(tp.topic) or self._starts.get(tp, 0) > offset:
                self.refuse()
            self.directories[0].check_topic_id(*tp)
            end = self._partition_ends[tp] = PartitionEnd.of(self._version, str(tp), offset)
        return end

    # -------------------------------------------------------------- the commit

    def entries(self, new_number: Callable[[], int]) -> Mapping[str, Entry] | None:
        """Return the files that the appends have changed; None: the open log is needed, or there was none."""
        if self.needs_log or not self._logs:
            return None
        entries: dict[str, Entry] = {}
        for tp, log in self._logs.items():
            changed, self._after[tp] = log.commit.entries(new_number)
            entries.update(changed)
        offsets = {**self._offsets, **{tp: end.log_end for tp, end in self._after.items()}}
        data = format_offsets(offsets)
        entries[names.RECOVERY_POINTS] = Entry(new_number(), len(data), self.clock.now_ms(), data=data)
        return entries

    def committed(self, nonce: str) -> None:
        """Go on in the version that has the entries."""
        self.nonce = nonce
        self._partition_ends |= self._after
        self._offsets |= {tp: end.log_end for tp, end in self._after.items()}
        self._after, self._logs = {}, {}


class _Log:
    """A partition, in place of `PartitionLog`."""

    def __init__(self, dirs: _Directories, name: str, commit: ShortAppend, log_start: int) -> None:
        self.name = name
        self.config = commit.config
        self.log_start = log_start
        self.commit = commit
        self._dirs = dirs

    def __getattr__(self, name: str) -> NoReturn:
        self._dirs.refuse()

    def append_single(self, key: object, value: object, timestamp: int, most_bytes: int) -> None:
        """Return None, as `PartitionLog.append_single` does if `append_batch` is to be used."""

    def append_batch(self, data: Batch, *, is_checked: bool = False) -> AppendedBatch:
        """As `PartitionLog.append_batch`."""
        return self.append_batches((data,), is_checked=is_checked)[0]

    def append_batches(
        self, batches: Sequence[Batch], *, sync_follows: bool = False, is_checked: bool = False
    ) -> list[AppendedBatch]:
        """As `PartitionLog.append_batches`."""
        try:
            return self.commit.append(batches, is_checked=is_checked)
        except BaseException:  # some of the batches may have been appended
            self._dirs.needs_log = True
            raise

    def sync(self) -> None:
        """Do nothing: a record is acknowledged when it is in the store."""
