"""Repair a partition directory before a batch is read, and report all repairs of an opening.

`Recovery` is the report. The functions finish or undo interrupted swaps, remove files of unpublished
rewrites, and split segments that are too wide for their indexes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import pairwise

from lastword.files import Files
from lastword.partition import swap
from lastword.partition.split import overflows, split
from lastword.segment import names
from lastword.segment.names import MAX_RELATIVE_OFFSET
from lastword.segment.segment import Segment
from lastword.segment.stored import SegmentFiles


@dataclass(frozen=True, slots=True)
class Repaired:
    """One repair.

    Attributes:
        code: torn-tail, lost-segment, swap-finished, swap-undone, split, index, snapshot, leftover or
            checkpoint.
        file: The file or directory.
        text: For the user.
        cut_bytes: Bytes that were cut off.
        offset: The new end of a log that was cut.
    """

    topic: str
    partition: int
    code: str
    file: str
    text: str
    cut_bytes: int = 0
    offset: int | None = None

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}: {self.text} ({self.file})"


@dataclass(frozen=True, slots=True)
class Recovery:
    """Report of the opening of one partition. `walked`: segments whose checksums were all verified."""

    topic: str
    partition: int
    clean: bool
    log_start: int
    log_end: int
    walked: int
    repaired: tuple[Repaired, ...]

    @property
    def cut_bytes(self) -> int:
        """Bytes that were cut off in all."""
        return sum(r.cut_bytes for r in self.repaired)


class Repairs:
    """Collect the repairs of one partition."""

    def __init__(self, topic: str, partition: int) -> None:
        self.done: list[Repaired] = []
        self._topic = topic
        self._partition = partition

    def tell(self, code: str, file: str, text: str, *, cut_bytes: int = 0, offset: int | None = None) -> None:
        """Add a repair; see `Repaired`."""
        self.done.append(Repaired(self._topic, self._partition, code, file, text, cut_bytes, offset))


def finish_swaps(files: Files, directory: str, repairs: Repairs) -> None:
    """Finish or undo an interrupted swap, and remove files that rewrites left beside segments."""
    done = swap.recover(files, directory)
    for base in done.finished:
        repairs.tell("swap-finished", names.segment_file(base, names.LOG), "an interrupted swap was finished")
    for base in done.undone:
        repairs.tell("swap-undone", names.segment_file(base, names.LOG), "an interrupted swap was undone")
    if done.removed:
        repairs.tell("leftover", directory, f"{len(done.removed)} leftover files of rewrites were removed")


def remove_leftovers(files: Files, directory: str, repairs: Repairs) -> None:
    """Remove unpublished rewrites, temporary files, and indexes without a log."""
    private = os.path.join(directory, names.PRIVATE)
    if files.exists(private):
        for name in files.listdir(private):
            if name.startswith(names.REWRITE_PREFIX):
                files.remove_tree(os.path.join(private, name))
                repairs.tell("leftover", os.path.join(private, name), "an unpublished rewrite was removed")
            elif name.endswith(".tmp"):  # replaced as a whole, or not at all
                files.unlink(os.path.join(private, name), missing_ok=True)
    for name in (names.LEADER_EPOCHS, names.PARTITION_METADATA):  # replaced as a whole, or not at all
        files.unlink(os.path.join(directory, name + ".tmp"), missing_ok=True)
    for name in files.listdir(directory):
        if name.endswith(names.SNAPSHOT + ".tmp"):
            files.unlink(os.path.join(directory, name), missing_ok=True)
    parsed = [names.parse_segment_file(name) for name in files.listdir(directory)]
    logs = {p.base_offset for p in parsed if p is not None and p.extension == names.LOG}
    for p in parsed:
        if p is None or p.base_offset in logs or p.extension not in names.SEGMENT_EXTENSIONS:
            continue
        files.unlink(os.path.join(directory, p.name), missing_ok=True)
        repairs.tell("leftover", p.name, "an index without its log was removed")


def split_overflowed(files: Files, directory: str, index_interval_bytes: int, repairs: Repairs) -> set[int]:
    """Split segments that an old cleaner made too wide for their indexes (`partition.split`).

    Returns:
        The base offsets of the parts.
    """
    bases: set[int] = set()
    for base, following in pairwise(log_bases(files, directory)):
        if following - base <= MAX_RELATIVE_OFFSET + 1:
            continue
        segment = Segment.load(SegmentFiles(files, directory, base))
        if not overflows(segment, following):
            continue
        private = os.path.join(directory, names.PRIVATE, f"{names.REWRITE_PREFIX}split-{base}")
        parts = split(files, segment, private, index_interval_bytes=index_interval_bytes)
        bases.update(parts)
        repairs.tell(
            "split", os.path.basename(segment.file), f"was split at {', '.join(map(str, parts[1:]))}"
        )
    return bases


def log_bases(files: Files, directory: str) -> list[int]:
    """Return the base offsets of the segments in a partition's directory, ascending."""
    parsed = (names.parse_segment_file(name) for name in files.listdir(directory))
    return sorted(
        p.base_offset for p in parsed if p is not None and p.extension == names.LOG and not p.suffix
    )
