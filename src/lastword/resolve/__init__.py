"""Resolve: which records of a log a newer record with the same key has replaced.

One pass over the segments, oldest first, fills an exact `OffsetMap` of a fixed size and sets a bit in
`DeadBitmaps` for every record that is replaced on the way; rewriting, views, true counts and reports only
read those bits. `resolve` does it for a whole log at once; a `RunningResolution` is kept and continued.
Stands on `records.chunk` and the kernels; knows neither files nor policies. Start reading at `walk.py`, then
`kernels/piece.py` and `kernels/offset_map.py`.
"""

from lastword.resolve.bitmaps import DeadBitmaps
from lastword.resolve.facts import Resolution, SegmentFacts, SegmentSource, fates_of
from lastword.resolve.offset_map import OffsetMap
from lastword.resolve.resolver import resolve
from lastword.resolve.running import MapFull, RunningResolution, Tombstones

__all__ = [
    "DeadBitmaps",
    "MapFull",
    "OffsetMap",
    "Resolution",
    "RunningResolution",
    "SegmentFacts",
    "SegmentSource",
    "Tombstones",
    "fates_of",
    "resolve",
]
