"""Resolve: which records of a log a newer record with the same key has replaced.

One pass over the segments, oldest first, fills an exact `OffsetMap` of a fixed size and sets a bit in
`DeadBitmaps` for every record that is replaced on the way; rewriting, views, true counts and reports only
read those bits. Stands on `records.chunk` and the kernels; knows neither files nor policies. Start reading
at `resolver.py`, then `kernels/offset_map.py`.
"""

from lastword.resolve.bitmaps import DeadBitmaps
from lastword.resolve.offset_map import OffsetMap
from lastword.resolve.resolver import Resolution, SegmentFacts, SegmentSource, fates_of, resolve

__all__ = ["DeadBitmaps", "OffsetMap", "Resolution", "SegmentFacts", "SegmentSource", "fates_of", "resolve"]
