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
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from lastword.config import Settings
from lastword.errors import (
    CorruptFileError,
    FileVanishedError,
    LastwordError,
    NotALogDirError,
    StorageError,
    UsageError,
)
from lastword.files import DEFAULT, Files, overlapped, real_path
from lastword.logdir.checkpoints import TopicPartition
from lastword.logdir.identity import format_partition_metadata, new_id
from lastword.partition.checkpoint_file import read_lines
from lastword.partition.snapshots import write_empty_snapshot
from lastword.records import compression
from lastword.segment import names
from lastword.segment.append import SegmentAppender
from lastword.segment.stored import SegmentFiles

IGNORED = frozenset({"remote-log-index-cache", names.METADATA_DIR})


@dataclass(frozen=True, slots=True)
class SetAside:
    """A partition's directory that is not served. `marker`: `future` or `stray`."""

    name: str
    topic: str
    partition: int
    marker: str


@dataclass(frozen=True, slots=True)
class Listing:
    """The contents of a root.

    These are partitions, directories to be removed, directories that are set aside, and whether the root is a
    log directory.
    """

    partitions: tuple[TopicPartition, ...]
    deleted: tuple[str, ...]
    is_log_dir: bool
    is_empty: bool
    set_aside: tuple[SetAside, ...] = ()

    def topics(self) -> dict[str, list[int]]:
        """Return the topic names, sorted, each with its partition numbers, ascending."""
        topics: dict[str, list[int]] = {}
        for tp in self.partitions:
            topics.setdefault(tp.topic, []).append(tp.partition)
        return topics


@dataclass(slots=True)
class Known:
    """What earlier listings of a root found.

    Attributes:
        partitions: Directories that were found to be partitions, by name. They are neither parsed nor read
            again.
        names: The names of the last listing, if every directory with a partition's name was one.
        listing: Its result, which holds as long as the names are the same.
    """

    partitions: dict[str, names.PartitionDir] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    listing: Listing | None = None

    def forget(self, name: str) -> None:
        """Read a directory of this name again."""
        self.partitions.pop(name, None)
        self.listing = None


def discover(files: Files, root: str, known: Known | None = None) -> Listing:
    """List a root. NotALogDirError if it is no directory, or is a partition's directory.

    Args:
        files: The storage.
        root: The log directory.
        known: What earlier listings found; it is updated.
    """
    if not files.is_dir(root):
        if files.exists(root):
            raise NotALogDirError(f"{root} is no directory", remedy="give the directory itself", file=root)
        raise NotALogDirError(
            f"{root} does not exist", remedy=f'lastword.open("{root}", "a") makes one', file=root
        )
    listing = files.listdir(root)
    known = Known() if known is None else known
    if known.listing is not None and listing == known.names:
        return known.listing
    found = known.partitions
    if any(name not in found and names.parse_segment_file(name) is not None for name in listing):
        parent = os.path.dirname(real_path(root))
        raise NotALogDirError(f"{root} is one partition's directory", remedy=f"open {parent}", file=root)
    partitions: list[TopicPartition] = []
    deleted: list[str] = []
    set_aside: list[SetAside] = []
    doubtful = False  # a directory with a partition's name may become a partition
    for name in listing:
        parsed = found.get(name)
        if parsed is None:
            parsed = None if name in IGNORED else names.parse_partition_dir(name)
            if parsed is None:
                continue
            path = os.path.join(root, name)
            if is_partition(files, path, parsed.marker):
                found[name] = parsed
            else:
                doubtful = True
                if parsed.marker or not _is_odd(files, root, path, name):
                    continue
        if not parsed.marker:
            partitions.append(TopicPartition(parsed.topic, parsed.partition))
        elif parsed.marker == "delete":
            deleted.append(name)
        else:
            set_aside.append(SetAside(name, parsed.topic, parsed.partition, parsed.marker))
    begun = {names.LOCK, *(f"{name}.tmp" for name in names.ROOT_FILES)}  # of a first opening that was killed
    marked = bool(set(names.ROOT_FILES) & set(listing))
    is_empty = not set(listing) - begun
    is_log_dir = marked or bool(partitions or deleted or set_aside)
    result = Listing(tuple(sorted(partitions)), tuple(deleted), is_log_dir, is_empty, tuple(set_aside))
    known.names, known.listing = listing, None if doubtful else result
    return result


def _is_odd(files: Files, root: str, path: str, name: str) -> bool:
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
    """NotALogDirError unless the root holds something of a log directory."""
    if not listing.is_log_dir:
        state = "is empty" if listing.is_empty else "holds no log"
        raise NotALogDirError(
            f"{root} {state}",
            remedy=f'lastword.open("{root}", "a") makes a log directory of an empty one'
            if listing.is_empty
            else "name a log directory",
            file=root,
        )


def check_writable(files: Files, root: str, known: Known | None = None) -> bool:
    """Return True if the root is to be made: it is absent or empty. `known`: as of `discover`.

    NotALogDirError if it holds something else.
    """
    if not files.exists(root):
        return True
    listing = discover(files, root, known)
    if listing.is_empty:
        return True
    check_log_dir(listing, root)
    return False


def register_limits(root: str, files: Files = DEFAULT) -> None:
    """Apply the settings' limit for decompression to files that are read without opening the directory.

    `dump` and Spark tasks read so. If the settings cannot be read, the default applies.
    """
    with suppress(LastwordError):
        settings = Settings.load([root], files=files)
        compression.set_limit(root, settings.instance.lastword_decompression_max_bytes)


def make_dirs(files: Files, path: str) -> None:
    """Make a directory and its parents, each durable before the next."""
    if files.exists(path):
        return
    parent = os.path.dirname(real_path(path))
    make_dirs(files, parent)
    files.mkdir(path)
    files.fsync_dir(parent)


# ---------------------------------------------------------------- make and delete


def make_partitions(
    files: Files,
    root: str,
    topic: str,
    partitions: Sequence[int],
    rng: random.Random,
    *,
    index_interval_bytes: int,
    topic_id: str | None = None,
) -> None:
    """Make the empty partitions of a new topic under one topic id, durably. None: a new id.

    They are built under names that mark them as deleted and then renamed. So a crash leaves directories that
    the next opening removes, and almost never a topic with too few partitions.
    """
    topic_id = topic_id or new_id(rng)
    built = [
        (
            os.path.join(
                root, names.marked_partition_dir(topic, number, "delete", f"{rng.getrandbits(128):032x}")
            ),
            os.path.join(root, names.partition_dir(topic, number)),
        )
        for number in partitions
    ]

    created: set[str] = set()

    def build(paths: tuple[str, str]) -> None:
        path, _ = paths
        created.add(path)
        files.mkdir(path)
        SegmentAppender.create(
            SegmentFiles(files, path, 0), index_interval_bytes=index_interval_bytes
        ).close()
        write_empty_snapshot(files, path, 0)
        files.write_atomic(os.path.join(path, names.PARTITION_METADATA), format_partition_metadata(topic_id))

    try:
        overlapped(build, built)
        files.fsync_dir(root)
        for path, final in built:
            files.rename(path, final)
        files.fsync_dir(root)
    except BaseException:  # including a signal
        for path, final in built:
            if files.exists(path):
                files.remove_tree(path)
            elif path in created and files.exists(final):
                files.remove_tree(final)
        raise


def mark_deleted(
    files: Files, root: str, partitions: Sequence[TopicPartition], rng: random.Random
) -> list[str]:
    """Rename partitions so that they are gone durably. Return the new paths, to be removed later."""
    marked = []
    for tp in partitions:
        name = names.marked_partition_dir(tp.topic, tp.partition, "delete", f"{rng.getrandbits(128):032x}")
        files.rename(os.path.join(root, str(tp)), os.path.join(root, name))
        marked.append(os.path.join(root, name))
    files.fsync_dir(root)
    return marked


def partition_numbers(given: int | Iterable[int]) -> list[int]:
    """Return 0 to n - 1 for a count, or the given numbers. UsageError for anything else."""
    if isinstance(given, bool) or (isinstance(given, int) and given < 1) or isinstance(given, str):
        raise UsageError(f"a topic cannot have {given!r} partitions", remedy="give 1 or more")
    if isinstance(given, int):
        return list(range(given))
    if not isinstance(given, Iterable):
        raise UsageError(f"a topic cannot have {given!r} partitions", remedy="give 1 or more")
    return [names.check_partition(number) for number in given]
