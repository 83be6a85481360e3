"""One segment: the batches from a base offset on, with their sparse indexes.

Stands on `records` (headers and checksums) and `files`. The `.log` is the truth; indexes only give positions
to begin reading at. Start reading at `names.py` (all file names), then `stored.py` (where the bytes are),
`segment.py` (one segment), `indexes.py`, `append.py` and `recover.py` (growth, and the valid part).
"""

from lastword.segment.append import SegmentAppender
from lastword.segment.recover import build_indexes, recover_segment
from lastword.segment.segment import Segment

__all__ = ["Segment", "SegmentAppender", "build_indexes", "recover_segment"]
