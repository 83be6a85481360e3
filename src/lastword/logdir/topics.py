"""The topics of a root: list its partitions, make the directories of a topic, and delete them.

As in Kafka, plain files in the root, `remote-log-index-cache`, the metadata partition and partitions marked
`-delete`, `-future`, `-stray` are not topics. Unlike Kafka, a directory that is no partition is not an error:
it is ignored, and so is a directory with a partition's name that holds nothing of a log.

A `-delete` directory waits for its removal, which opening to append finishes. A `-future` directory is an
unfinished copy from another directory, and a `-stray` one was set aside by a broker: neither is served, and
`lastword` removes only directories that it made.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from lastword.config import Settings
from lastword.errors import (
    CorruptFileError,
    FileTakenError,
    FileVanishedError,
    LastwordError,
    NotALogDirError,
    StorageError,
    UsageError,
)
from lastword.files import DEFAULT, DirVersion, Files, overlapped, real_path
from lastword.logdir.checkpoints import TopicPartition
from lastword.logdir.identity import format_partition_metadata
from lastword.partition.checkpoint_file import read_lines
from lastword.partition.snapshots import write_empty_snapshot
from lastword.records import compression
from lastword.segment import names
from lastword.segment.append import SegmentAppender
from lastword.segment.stored import SegmentFiles

IGNORED = frozenset({"remote-log-index-cache", names.METADATA_DIR})


class SetAside(NamedTuple):
    """A partition's directory that is not served. `marker`: `future` or `stray`."""

    name: str
    topic: str
    partition: int
    marker: str


@dataclass(frozen=True)
class Listing:
    """The contents of a root.

    Attributes:
        numbers: The partition numbers of each topic, ascending. The topics are in no order.
        size: The number of partitions.
        deleted: Directories to be removed.
        is_log_dir: Whether the root is a log directory.
        is_empty: Whether the root has at most the files of a first opening that was killed.
        set_aside: Directories that are not served.
    """

    numbers: Mapping[str, tuple[int, ...]]
    size: int
    deleted: tuple[str, ...]
    is_log_dir: bool
    is_empty: bool
    set_aside: tuple[SetAside, ...] = ()

    @cached_property
    def partitions(self) -> tuple[TopicPartition, ...]:
        """All partitions of all topics, sorted."""
        topics = sorted(self.numbers.items())
        return tuple(TopicPartition(topic, number) for topic, numbers in topics for number in numbers)

    def topics(self) -> dict[str, list[int]]:
        """Return the topic names, sorted, each with its partition numbers, ascending."""
        return {topic: list(numbers) for topic, numbers in sorted(self.numbers.items())}

    def changed(self, added: Iterable[TopicPartition], removed: Iterable[TopicPartition]) -> Listing:
        """Return the listing after partitions were removed and added."""
        topics, size = dict(self.numbers), self.size
        for tp, is_added in [*((tp, False) for tp in removed), *((tp, True) for tp in added)]:
            before = topics.pop(tp.topic, ())
            after = tuple(sorted({*before, tp.partition} if is_added else {*before} - {tp.partition}))
            size += len(after) - len(before)
            if after:
                topics[tp.topic] = after
        return replace(self, numbers=topics, size=size, is_log_dir=True, is_empty=False)


class _Listed(NamedTuple):
    """A listing, and the state of the root that it shows.

    Attributes:
        listing: The listing.
        names: The names in the root. None: the listing was changed since they were read.
        version: The root's version before it was listed, or after a change of this process.
        is_own: Whether the version is that of a change of this process.
        is_whole: Whether the listing holds as long as the names are the same: no directory with a
            partition's name is empty.
    """

    listing: Listing
    names: list[str] | None
    version: DirVersion | None
    is_own: bool
    is_whole: bool


OWN_CHANGE_MS = 2000
"""The time after the last change of this process from which on the root is listed again."""


class RootListing:
    """The partitions of a root. No other object keeps which partitions there are.

    The root is listed again only if its names have changed (`Files.dir_version`), so that a call for each of
    many topics does not list all of them. A change of this process inside `changing` needs no listing. The
    lock excludes other processes that make or remove partitions. If one is removed by hand at the same time,
    the listing OWN_CHANGE_MS later shows it.

    `get` is for any thread; `changing` is for the holder of the directory's lock.

    Args:
        files: The storage.
        root: The log directory.
    """

    def __init__(self, files: Files, root: str) -> None:
        self._files = files
        self._root = root
        self._found: dict[str, names.PartitionDir] = {}  # partitions by name: neither parsed nor read again
        self._listed: _Listed | None = None
        self._changes: list[tuple[Sequence[TopicPartition], Sequence[TopicPartition]]] | None = None

    @property
    def last(self) -> Listing | None:
        """The last listing, which may be old."""
        return None if self._listed is None else self._listed.listing

    @property
    def names(self) -> list[str]:
        """The names in the root when it was last listed."""
        return (self._listed.names if self._listed is not None else None) or []

    def was_found(self, name: str) -> bool:
        """Return whether an earlier listing found that the directory is a partition."""
        return name in self._found

    def get(self) -> Listing:
        """Return the contents of the root.

        NotALogDirError if it is no directory, or is a partition's directory.
        """
        version, listed = self._files.dir_version(self._root), self._listed
        if version is not None and listed is not None and listed.version is not None and listed.is_whole:
            is_sure = version.quiet_ms < OWN_CHANGE_MS if listed.is_own else listed.version.is_settled
            if is_sure and version.stamp == listed.version.stamp:
                return listed.listing
        return self._list(version)

    @contextmanager
    def changing(
        self, *, added: Sequence[TopicPartition] = (), removed: Sequence[TopicPartition] = ()
    ) -> Iterator[None]:
        """Change names of the root inside the block. If the block raises, the root is listed again.

        Blocks may be nested.

        Args:
            added: Partitions that exist at the end of the block.
            removed: Partitions that do not exist then.
        """
        if self._changes is not None:
            yield
            self._changes.append((added, removed))
            return
        self.get()
        changes: list[tuple[Sequence[TopicPartition], Sequence[TopicPartition]]] = []
        self._changes = changes
        try:
            yield
        finally:
            self._changes = None
        listed = self._listed
        assert listed is not None
        listing = listed.listing
        for also_added, also_removed in (*changes, (added, removed)):
            for tp in also_removed:
                self._found.pop(str(tp), None)
            for tp in also_added:
                self._found[str(tp)] = names.PartitionDir(*tp)
            listing = listing.changed(also_added, also_removed)
        version = self._files.dir_version(self._root)
        self._listed = _Listed(listing, None, version, is_own=True, is_whole=listed.is_whole)

    def _list(self, version: DirVersion | None) -> Listing:
        files, root, listed = self._files, self._root, self._listed
        if listed is not None:  # else partitions of a drive that was unmounted would seem to be removed
            files.check_lock(root)
        if not files.is_dir(root):
            if files.exists(root):
                raise NotALogDirError(
                    f"{root} is no directory", remedy="give the directory itself", file=root
                )
            raise NotALogDirError(
                f"{root} does not exist", remedy=f'lastword.open("{root}", "a") makes one', file=root
            )
        present = files.listdir(root)
        if listed is not None and listed.is_whole and listed.names == present:
            listing, is_whole = listed.listing, True
        else:
            listing, is_whole = self._read(present)
            if listed is not None and listing == listed.listing:
                listing = listed.listing  # the same object, which callers compare
        self._listed = _Listed(listing, present, version, is_own=False, is_whole=is_whole)
        return listing

    def _read(self, present: list[str]) -> tuple[Listing, bool]:
        """Return the listing of a root with these names, and whether it holds as long as they stay."""
        files, root, found = self._files, self._root, self._found
        if any(name not in found and names.parse_segment_file(name) is not None for name in present):
            parent = os.path.dirname(real_path(root))
            raise NotALogDirError(f"{root} is one partition's directory", remedy=f"open {parent}", file=root)
        self._found = {}  # without those that are gone
        numbers: dict[str, list[int]] = {}
        deleted: list[str] = []
        set_aside: list[SetAside] = []
        is_whole = True  # an empty directory with a partition's name may become a partition
        for name in present:
            parsed = found.get(name)
            if name.endswith((".toml", ".tmp")):  # no partition's directory
                continue
            if parsed is None:
                parsed = None if name in IGNORED else names.parse_partition_dir(name)
                if parsed is None:
                    continue
                path = os.path.join(root, name)
                is_found = is_partition(files, path, parsed.marker)
                is_whole &= is_found
                if not is_found and (parsed.marker or not _is_unexpected(files, root, path, name)):
                    continue
            else:
                is_found = True
            if is_found:
                self._found[name] = parsed
            if not parsed.marker:
                numbers.setdefault(parsed.topic, []).append(parsed.partition)
            elif parsed.marker == "delete":
                deleted.append(name)
            else:
                set_aside.append(SetAside(name, parsed.topic, parsed.partition, parsed.marker))
        begun = {
            names.LOCK,
            *(f"{name}.tmp" for name in names.ROOT_FILES),
        }  # of a first opening that was killed
        marked = not set(names.ROOT_FILES).isdisjoint(present)
        listing = Listing(
            {topic: tuple(sorted(given)) for topic, given in numbers.items()},
            sum(map(len, numbers.values())),
            tuple(deleted),
            is_log_dir=marked or bool(numbers or deleted or set_aside),
            is_empty=begun.issuperset(present),
            set_aside=tuple(set_aside),
        )
        return listing, is_whole


def _is_unexpected(files: Files, root: str, path: str, name: str) -> bool:
    """Return whether this is no directory where a partition was: a broken link, a pipe, a file.

    Plain files of other programs may have such a name, so a checkpoint must name the partition.
    """
    if files.is_dir(path):
        return False
    for checkpoint in (names.RECOVERY_POINTS, names.LOG_STARTS, names.HIGH_WATERMARKS, names.FIRST_DIRTY):
        try:
            lines = read_lines(files, os.path.join(root, checkpoint), 3)
        except (CorruptFileError, StorageError):
            continue
        if any(f"{topic}-{partition}" == name for topic, partition, _ in lines):
            return True
    return False


def is_partition(files: Files, path: str, marker: str = "") -> bool:
    """Return whether a directory with a partition's name holds anything of a log."""
    try:
        if files.exists(f"{path}/{names.PARTITION_METADATA}"):
            return True
    except StorageError:  # the listing decides; it costs more
        pass
    if not files.is_dir(path):
        return False
    try:
        listing = files.listdir(path)
    except FileVanishedError:
        return False
    except StorageError:
        return True  # using it raises the error; the other partitions are served
    return marker in ("delete", "future") or any(
        name in (names.PARTITION_METADATA, names.LEADER_EPOCHS) or names.parse_segment_file(name) is not None
        for name in listing
    )


# ---------------------------------------------------------------- the root that is to be opened


def check_log_dir(listing: Listing, root: str) -> None:
    """Raise NotALogDirError unless the root holds something of a log directory."""
    if not listing.is_log_dir:
        state = "is empty" if listing.is_empty else "holds no log"
        raise NotALogDirError(
            f"{root} {state}",
            remedy=f'lastword.open("{root}", "a") makes a log directory of an empty one'
            if listing.is_empty
            else "name a log directory",
            file=root,
        )


def check_writable(files: Files, root: str, contents: RootListing) -> bool:
    """Return True if the root is to be made: it is absent or empty.

    NotALogDirError if it holds something else, or would be in a log directory.
    """
    if files.exists(root):
        listing = contents.get()
        if not listing.is_empty:
            check_log_dir(listing, root)
            return False
    check_outside(files, root)
    return True


def check_outside(files: Files, path: str) -> None:
    """Raise NotALogDirError if a path is in a log directory, where a broker would not start."""
    above = "" if "://" in path else real_path(path)
    while above:
        if files.exists(f"{above}/{names.META_PROPERTIES}"):
            raise NotALogDirError(
                f"{path} is in the log directory {above}, where a broker accepts partitions only",
                remedy="choose a path outside of it",
                file=path,
            )
        above = above.rpartition("/")[0]


def register_limits(root: str, files: Files = DEFAULT) -> None:
    """Apply the settings' limit for decompression to files that are read without opening the directory.

    `dump` and Spark tasks read so. If the settings cannot be read, the default applies.
    """
    with suppress(LastwordError):
        settings = Settings.load([root], files=files)
        compression.set_limit(root, settings.instance.lastword_decompression_max_bytes)


def make_dirs(files: Files, path: str) -> None:
    """Make a directory and its parents, each durable before the next.

    Another process may make them at the same time: there is no lock before there is a directory.
    """
    if files.exists(path):
        return
    parent = os.path.dirname(real_path(path))
    make_dirs(files, parent)
    with suppress(FileTakenError):
        files.mkdir(path)
    files.fsync_dir(parent)


# ---------------------------------------------------------------- make and delete


def make_partitions(
    files: Files,
    root: str,
    partitions: Sequence[TopicPartition],
    topic_ids: Mapping[str, str],
    rng: random.Random,
    save: Callable[[], object] = lambda: None,
) -> None:
    """Make the empty partitions of new topics, durably. After an error, none was made.

    They are built under names that mark them as deleted and then renamed. So a crash leaves directories that
    the next opening removes, and almost never a topic with too few partitions.

    Args:
        files: The storage.
        root: The log directory.
        partitions: The partitions.
        topic_ids: The id of each topic.
        rng: For the names of the directories.
        save: Saves the settings of the topics. It is called when all partitions are built, because a crash
            before leaves no topic, and should leave no settings of one.
    """
    built = [
        (os.path.join(root, names.marked_partition_dir(*tp, "delete", f"{rng.getrandbits(128):032x}")), tp)
        for tp in partitions
    ]
    created: set[str] = set()

    def build(marked: tuple[str, TopicPartition]) -> None:
        path, (topic, _) = marked
        created.add(path)
        files.mkdir(path)
        SegmentAppender.create(SegmentFiles(files, path, 0), index_interval_bytes=0).close()
        write_empty_snapshot(files, path, 0)
        metadata = format_partition_metadata(topic_ids[topic])
        files.write_atomic(os.path.join(path, names.PARTITION_METADATA), metadata)

    try:
        overlapped(build, built)
        files.fsync_dir(root)
        save()
        for path, tp in built:
            files.rename(path, os.path.join(root, str(tp)))
        files.fsync_dir(root)
    except BaseException:  # including a signal
        for path, tp in built:
            final = os.path.join(root, str(tp))
            if files.exists(path):
                files.remove_tree(path)
            elif path in created and files.exists(final):
                files.remove_tree(final)
        raise


def mark_deleted(files: Files, root: str, tp: TopicPartition, rng: random.Random) -> str:
    """Rename a partition so that it is gone once the root is synced. Return the path to remove later."""
    marked = os.path.join(root, names.marked_partition_dir(*tp, "delete", f"{rng.getrandbits(128):032x}"))
    files.rename(os.path.join(root, str(tp)), marked)
    return marked


def partition_numbers(given: int | Iterable[int]) -> list[int]:
    """Return 0 to n - 1 for a count, or the given numbers. UsageError for anything else."""
    if isinstance(given, int) and not isinstance(given, bool) and given > 0:
        return list(range(given))
    if not isinstance(given, Iterable) or isinstance(given, str):
        raise UsageError(f"a topic cannot have {given!r} partitions", remedy="give 1 or more")
    return [names.check_partition(number) for number in given]
