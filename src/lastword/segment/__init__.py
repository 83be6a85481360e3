"""One base offset on disk: the batches from it on, with their sparse indexes.

Stands on `records` (headers and checksums) and `files`. A segment is a `.log` that is the truth and indexes
that only say where to begin reading. Start reading at `names.py` (what all files are called), then
`segment.py` (the facts of one), `append.py` and `recover.py` (how it grows, and how far it is sound).
"""

from lastword.segment.append import SegmentAppender
from lastword.segment.recover import build_indexes, recover_segment
from lastword.segment.segment import Segment

__all__ = ["Segment", "SegmentAppender", "build_indexes", "recover_segment"]
