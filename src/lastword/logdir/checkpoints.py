"""Kafka's checkpoints of a whole log directory: one offset for each partition, in text files in the root.

recovery-point    everything below it is on the drive with its indexes; recovery begins there
log-start         only for logs that begin above their first segment's base
cleaner           first dirty offset: everything below was cleaned
replication       high watermark; a broker's business, read by nobody here

Each is replaced as a whole and durable when `update` returns. All of them may be lost: that costs a longer
recovery or a round of cleaning, never a record. So a damaged one counts as empty. Lines of partitions that
are not ours to know are kept.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from lastword.errors import CorruptFileError
from lastword.files import FileFacts, Files
from lastword.partition.checkpoint_file import format_lines, number, read_lines
from lastword.segment import names


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class OffsetCheckpoint:
    """One checkpoint file. Reading needs no lock; `update` is for the holder of the directory's."""

    def __init__(self, files: Files, root: str, name: str) -> None:
        self._files = files
        self.path = os.path.join(root, name)
        self._known: tuple[FileFacts, dict[TopicPartition, int]] | None = None

    def read(self) -> dict[TopicPartition, int]:
        """All its lines. CorruptFileError if it is damaged."""
        return read_offsets(self._files, self.path)

    def read_sound(self) -> dict[TopicPartition, int]:
        """The same, and nothing if it is damaged."""
        try:
            return self.read()
        except CorruptFileError:
            return {}

    def get(self, tp: TopicPartition) -> int | None:
        """One line of it, as of `read_sound`; the file is read again only if it is another one by now."""
        facts = self._files.stat(self.path)
        if facts is None:
            return None
        known = self._known
        if known is None or known[0] != facts:
            known = self._known = (facts, self.read_sound())
        return known[1].get(tp)

    def update(self, offsets: Mapping[TopicPartition, int], *, drop: Iterable[TopicPartition] = ()) -> None:
        """Set some lines, take others out; the rest stays. Unchanged and sound, the file is not written."""
        self._known = None
        before: dict[TopicPartition, int] | None
        try:
            before = self.read()
        except CorruptFileError:
            before = None
        gone = set(drop)
        after = {tp: offset for tp, offset in {**(before or {}), **offsets}.items() if tp not in gone}
        if after != before or not self._files.exists(self.path):
            lines = [f"{tp.topic} {tp.partition} {offset}" for tp, offset in sorted(after.items())]
            self._files.write_atomic(self.path, format_lines(lines))


def read_offsets(files: Files, path: str) -> dict[TopicPartition, int]:
    """The lines of an offset checkpoint, `topic partition offset`; CorruptFileError names what is wrong."""
    found: dict[TopicPartition, int] = {}
    for topic, partition, offset in read_lines(files, path, 3):
        tp = TopicPartition(topic, number(partition, path))
        if tp in found:
            raise CorruptFileError(f"{tp} is there twice", file=path)
        found[tp] = number(offset, path)
    return found


class Checkpoints:
    """The files of one root."""

    def __init__(self, files: Files, root: str) -> None:
        self.recovery_points = OffsetCheckpoint(files, root, names.RECOVERY_POINTS)
        self.log_starts = OffsetCheckpoint(files, root, names.LOG_STARTS)
        self.first_dirty = OffsetCheckpoint(files, root, names.FIRST_DIRTY)
        self.high_watermarks = OffsetCheckpoint(files, root, names.HIGH_WATERMARKS)

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Take deleted partitions out of all of them."""
        gone = list(partitions)
        for checkpoint in (self.recovery_points, self.log_starts, self.first_dirty, self.high_watermarks):
            if checkpoint.read_sound().keys() & set(gone):
                checkpoint.update({}, drop=gone)
