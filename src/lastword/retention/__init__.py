"""Retention: whole segments go from the front of a log when a policy says so.

Stands on `logdir`. `rules.py` decides from sizes and times and reads no record: a `Deletion` is a value with
its reasons. `expire.py` carries it out. Start reading at rules.py.

It runs when somebody calls `expire`, and every `log.retention.check.interval.ms` in the threads of the
background cleaner. `segment.ms` and `max.compaction.lag.ms` of a quiet compacted log are looked at when the
partition is opened to append, before `expire`, and by the background at each of its looks.
"""

from lastword.retention.rules import Deletion, decide

__all__ = ["Deletion", "decide"]
