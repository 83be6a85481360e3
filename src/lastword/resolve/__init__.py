"""Resolve: which records of a log a newer record with the same key has replaced.

One pass over the segments, oldest first, fills an exact `OffsetMap` of a fixed size and sets a bit in
`DeadBitmaps` for every record that is replaced on the way; rewriting, views, true counts and reports only
read those bits. `resolve` does it for a whole log at once; a `RunningResolution` is kept and continued.
Stands on `records.chunk` and the kernels; knows no policies, and of files only the scratch one that keys may
spill into. Start reading at `walk.py`, then `kernels/key_batch.py` and `kernels/offset_map.py`.
"""

from lastword.resolve.bitmaps import DeadBitmaps
from lastword.resolve.facts import (
    MapFull,
    Resolution,
    SegmentFacts,
    SegmentSource,
    Tombstones,
    fates_of,
)
from lastword.resolve.offset_map import OffsetMap
from lastword.resolve.resolver import resolve
from lastword.resolve.running import RunningResolution

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
