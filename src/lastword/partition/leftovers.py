"""What rewrites and replacements that did not come to their end have left in a partition: put right before
anything of it is read.
"""

from __future__ import annotations

import os
from itertools import pairwise

from lastword.files import Files
from lastword.partition import swap
from lastword.partition.recovery import Repairs
from lastword.partition.split import overflows, split
from lastword.segment import names
from lastword.segment.names import MAX_RELATIVE_OFFSET
from lastword.segment.segment import Segment


def finish_swaps(files: Files, directory: str, repairs: Repairs) -> None:
    """An interrupted swap is finished or undone, and what rewrites left beside segments goes."""
    done = swap.recover(files, directory)
    for base in done.finished:
        repairs.tell("swap-finished", names.segment_file(base, names.LOG), "an interrupted swap was finished")
    for base in done.undone:
        repairs.tell("swap-undone", names.segment_file(base, names.LOG), "an interrupted swap was undone")
    if done.removed:
        repairs.tell("leftover", directory, f"{len(done.removed)} leftover files of rewrites were removed")


def remove_leftovers(files: Files, directory: str, repairs: Repairs) -> None:
    """Unpublished rewrites, files that were to replace others, and indexes without a log."""
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
    """Segments that a cleaner of old made too wide for their indexes (`partition.split`); the base offsets of
    the parts."""
    found: set[int] = set()
    for base, following in pairwise(log_bases(files, directory)):
        if following - base <= MAX_RELATIVE_OFFSET + 1:
            continue
        segment = Segment.load(files, directory, base)
        if not overflows(segment, following):
            continue
        private = os.path.join(directory, names.PRIVATE, f"{names.REWRITE_PREFIX}split-{base}")
        parts = split(files, segment, private, index_interval_bytes=index_interval_bytes)
        found.update(parts)
        repairs.tell(
            "split", os.path.basename(segment.file), f"was split at {', '.join(map(str, parts[1:]))}"
        )
    return found


def log_bases(files: Files, directory: str) -> list[int]:
    """Base offsets of the segments that lie in a partition's directory, ascending."""
    parsed = (names.parse_segment_file(name) for name in files.listdir(directory))
    return sorted(
        p.base_offset for p in parsed if p is not None and p.extension == names.LOG and not p.suffix
    )
