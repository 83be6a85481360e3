"""Which of a log's segments a swap is about, and what the log is after one that failed. The swap itself is
`partition.swap`.
"""

from __future__ import annotations

from collections.abc import Sequence

from lastword.files import Files
from lastword.partition import swap
from lastword.partition.segment_set import SegmentSet
from lastword.segment.segment import Segment


def own_segments(segments: Sequence[Segment], wanted: Sequence[Segment]) -> list[Segment]:
    """The log's segments for the given ones, which must be the same files and neighbours."""
    own = list(segments)
    bases = [s.base_offset for s in own]
    if not wanted or wanted[0].base_offset not in bases:
        raise ValueError("these segments are not in the log any more")
    first = bases.index(wanted[0].base_offset)
    found = own[first : first + len(wanted)]
    same = [(s.base_offset, s.inode) for s in found] == [(s.base_offset, s.inode) for s in wanted]
    if not same:
        raise ValueError("these segments are not neighbours in the log any more")
    return found


def after_failed_swap(files: Files, directory: str, segments: SegmentSet, active: Segment) -> SegmentSet:
    """Bring the directory to one of the two states that a swap has, and say which segments these are."""
    swap.recover(files, directory)
    listing = files.listdir(directory)
    logs = [base for base, _ in swap.decide(files, directory, listing).logs]
    here = {s.base_offset: s for s in segments}
    kept: list[Segment] = []
    for base in logs:
        fresh = Segment.load(files, directory, base)
        known = here.get(base)
        kept.append(known if known is not None and known.inode == fresh.inode else fresh)
    return SegmentSet([*(s for s in kept if s.base_offset != active.base_offset), active])
