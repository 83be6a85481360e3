"""Retention: whole segments go from the front of a log when a policy says so.

Stands on `logdir`. `rules.py` decides from sizes and times and reads no record: a `Deletion` is a value with
its reasons. `expire.py` carries it out. Start reading at rules.py.

It runs when somebody calls `expire`; no thread does it in the background. `segment.ms` and
`max.compaction.lag.ms` of a quiet compacted log are looked at when the partition is opened to append, before
`expire`, and before a round that is due.
"""

from lastword.retention.rules import Deletion, decide

__all__ = ["Deletion", "decide"]
