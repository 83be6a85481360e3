"""Retention: remove whole segments from the front of a log.

Uses `logdir`. rules.py decides by sizes and times, without reading records: a `Deletion` is a value with its
reasons. expire.py carries it out, and computes the log start of a trim. Start reading at rules.py.

Retention runs in a call of `expire`, and every `log.retention.check.interval.ms` in the threads of the
background cleaner. `segment.ms` and `max.compaction.lag.ms` of a compacted log without appends are checked
when the partition is opened to append, before `expire`, and at each check of the background cleaner.
"""

from lastword.retention.rules import Deletion, decide

__all__ = ["Deletion", "decide"]
