"""`BucketLanes`: commit small appends to a bucket without a private copy of the log.

A process that commits alone has the newest version in memory. The files of a small commit follow from it
(`lastword.bucket.lane`), so no log directory is opened or kept open for them. Everything else, and each
commit that another process overtakes, is a transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

from lastword.bucket.files import new_number
from lastword.bucket.lane import Lane, LaneCommit, NoLane
from lastword.bucket.manifest import Entry
from lastword.logdir import LogDirectory
from lastword.logdir.checkpoints import TopicPartition, format_offsets
from lastword.segment import names

if TYPE_CHECKING:
    from lastword.api.open_dirs import OpenDirs
    from lastword.bucket.commit import Bucket, KeptCopy
    from lastword.bucket.files import BucketFiles
    from lastword.bucket.manifest import ManifestVersion
    from lastword.clock import Clock
    from lastword.config import Settings, TopicConfig
    from lastword.partition.appending import AppendedBatch, Batch

T = TypeVar("T")
MOST_PAUSE = 31
"""After a commit that needs an open log, at most this number of commits goes to the kept one: it is dropped
by a commit without it, and costs some ms to open again."""
_COMMITS = (names.BEGUN, names.INBOX, names.APPLYING)


class BucketLanes:
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
        self._dirs: _LaneDirs | None = None  # of the version of the last commit
        self._pause = self._next_pause = 0

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
            is_tried = True
            try:
                if dirs is None or dirs.nonce != version.manifest.nonce:
                    dirs = _LaneDirs(self._bucket, version, self._load, self._clock)
                work(cast("OpenDirs", dirs))
                return dirs.entries(partial(new_number, self._bucket.rng))
            except Exception:  # the transaction raises it, if it is no `NoLane`
                return None

        is_in = self._bucket.commit_entries(entries_of, kept)
        if is_in and dirs is not None:
            dirs.committed(kept.nonce)
            self._dirs, self._next_pause = dirs, self._next_pause // 2
        elif is_tried:
            self._pause = self._next_pause = min(2 * self._next_pause + 1, MOST_PAUSE)
        return is_in


class _LaneDirs:
    """The directories of a version to which a topic appends, in place of `OpenDirs`.

    Everything that `OpenDirs` has besides raises NoLane. So does the log of a partition (`_LaneLog`).
    """

    closed = False
    mode = "a"

    def __init__(
        self,
        bucket: Bucket,
        version: ManifestVersion,
        load: Callable[[BucketFiles], Settings],
        clock: Clock,
    ) -> None:
        root = version.children("")
        if names.CLEAN_SHUTDOWN not in root or any(name.startswith(_COMMITS) for name in root):
            raise NoLane
        files = bucket.files(version)
        directory = LogDirectory.open(bucket.url, "r", files, clock, lambda: load(files))
        self.nonce = version.manifest.nonce
        self.clock = clock
        self.directories = [directory]
        self.settings = directory.settings
        self._version = version
        self._numbers = directory.listing().numbers
        self._ends = directory.checkpoints.recovery_points.read()
        self._starts = directory.checkpoints.log_starts.read()
        self._configs: dict[str, TopicConfig] = {}
        self._lanes: dict[TopicPartition, Lane] = {}
        self._logs: dict[TopicPartition, _LaneLog] = {}  # of the commit that runs
        self._after: dict[TopicPartition, Lane] = {}
        self.needs_log = False
        """Whether something was refused, also if `work` went on."""

    def __getattr__(self, name: str) -> NoReturn:
        self.refuse()

    def refuse(self) -> NoReturn:
        """Raise NoLane."""
        self.needs_log = True
        raise NoLane

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

    def log(self, topic: str, partition: int) -> _LaneLog:
        """Return a partition, to append to."""
        tp = TopicPartition(topic, partition)
        log = self._logs.get(tp)
        if log is None:
            log = self._logs[tp] = _LaneLog(self, LaneCommit(self._lane(tp), self.config(topic), self.clock))
        return log

    def _lane(self, tp: TopicPartition) -> Lane:
        lane = self._lanes.get(tp)
        if lane is None:
            end = self._ends.get(tp, -1)
            if tp.partition not in self.partitions(tp.topic) or self._starts.get(tp, 0) > end:
                self.refuse()
            self.directories[0].check_topic_id(*tp)
            lane = self._lanes[tp] = Lane.of(self._version, str(tp), end)
        return lane

    # -------------------------------------------------------------- the commit

    def entries(self, new_number: Callable[[], int]) -> Mapping[str, Entry] | None:
        """Return the files that the appends have changed; None: the open log is needed, or there was none."""
        if self.needs_log or not self._logs:
            return None
        entries: dict[str, Entry] = {}
        for tp, log in self._logs.items():
            changed, self._after[tp] = log.commit.entries(new_number)
            entries.update(changed)
        ends = {**self._ends, **{tp: lane.log_end for tp, lane in self._after.items()}}
        data = format_offsets(ends)
        entries[names.RECOVERY_POINTS] = Entry(new_number(), len(data), self.clock.now_ms(), data=data)
        return entries

    def committed(self, nonce: str) -> None:
        """Go on in the version that has the entries."""
        self.nonce = nonce
        self._lanes |= self._after
        self._ends |= {tp: lane.log_end for tp, lane in self._after.items()}
        self._after, self._logs = {}, {}


class _LaneLog:
    """A partition, in place of `PartitionLog`."""

    def __init__(self, dirs: _LaneDirs, commit: LaneCommit) -> None:
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
