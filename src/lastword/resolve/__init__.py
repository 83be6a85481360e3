"""Resolve: find the records of a log that a newer record with the same key supersedes.

One scan over the segments, oldest first, fills an exact `OffsetMap` of a fixed size and sets a bit in
`DeadBitmaps` for every superseded record. Rewriting, views, counts and reports only read those bits.
`resolve` scans a whole log; a `RunningResolution` is kept and extended. `hash_map` scans a whole log from its
newest record on, with a map without the bytes of keys, for cleanings that are certified; `survivors` keeps
what their rewrite needs. The package uses `records.chunk` and the kernels. It contains
no policy, and its only files are scratch files for keys. Start reading at `resolver.py`, then
`kernels/key_batch.py` and `kernels/offset_map.py`.
"""

from lastword.resolve.bitmaps import DeadBitmaps
from lastword.resolve.facts import (
    MapFull,
    MapLoad,
    Resolution,
    SegmentFacts,
    SegmentSource,
    Tombstones,
    outcomes_of,
)
from lastword.resolve.offset_map import OffsetMap
from lastword.resolve.running import RunningResolution
from lastword.resolve.whole import ScratchPlace, resolve

__all__ = [
    "DeadBitmaps",
    "MapFull",
    "MapLoad",
    "OffsetMap",
    "Resolution",
    "RunningResolution",
    "ScratchPlace",
    "SegmentFacts",
    "SegmentSource",
    "Tombstones",
    "outcomes_of",
    "resolve",
]
