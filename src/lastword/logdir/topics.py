"""Make and delete the directories of a topic."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Sequence

from lastword.errors import UsageError
from lastword.files import Files
from lastword.logdir.checkpoints import TopicPartition
from lastword.logdir.identity import format_partition_metadata, new_id
from lastword.partition.snapshots import write_empty_snapshot
from lastword.segment import names
from lastword.segment.append import SegmentAppender
from lastword.segment.stored import SegmentFiles


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
    built: list[tuple[str, str]] = []
    try:
        for partition in partitions:
            token = f"{rng.getrandbits(128):032x}"
            path = os.path.join(root, names.marked_partition_dir(topic, partition, "delete", token))
            files.mkdir(path)
            built.append((path, os.path.join(root, names.partition_dir(topic, partition))))
            SegmentAppender.create(
                SegmentFiles(files, path, 0), index_interval_bytes=index_interval_bytes
            ).close()
            write_empty_snapshot(files, path, 0)
            files.write_atomic(
                os.path.join(path, names.PARTITION_METADATA), format_partition_metadata(topic_id)
            )
        files.fsync_dir(root)
        for path, final in built:
            files.rename(path, final)
        files.fsync_dir(root)
    except BaseException:  # including a signal
        for path, final in built:
            for left in (path, final):
                if files.exists(left):
                    files.remove_tree(left)
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
