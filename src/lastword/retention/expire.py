"""Carry out retention on one partition, and compute the log start of a trim.

The order is that of `partition.cut`: the log start is durable before a file is renamed or removed.
Retention also applies to a partition in quarantine.
"""

from __future__ import annotations

from datetime import datetime

from lastword.config import TopicConfig
from lastword.errors import OffsetOutOfRangeError, UsageError
from lastword.logdir import LogDirectory
from lastword.parse import to_ms
from lastword.partition.view import PartitionView
from lastword.retention.rules import Deletion, decide


def outlook(view: PartitionView, config: TopicConfig, now_ms: int) -> Deletion:
    """Return the deletion that `expire` would carry out now. Changes nothing."""
    return decide(
        view.topic,
        view.partition,
        view.segments,
        config,
        log_start=view.log_start,
        log_end=view.log_end,
        now_ms=now_ms,
        upper_offset=view.removable_offset,
    )


def expire(log_dir: LogDirectory, topic: str, partition: int) -> Deletion:
    """Apply retention to one partition of a directory that is open to append.

    Waits for a cleaning of the partition. After a storage error the log is unchanged, or a part of the
    deletion is done.
    """
    with log_dir.claim(topic, partition):
        config = log_dir.topic_config(topic)
        log = log_dir.log(topic, partition)
        log.remove_deferred()
        if config.compacts:
            log.roll_if_due()
        with log.lock:  # no append between the decision to remove all segments and the roll
            deletion = decide(
                topic,
                partition,
                log.segments,
                config,
                log_start=log.log_start,
                log_end=log.log_end,
                now_ms=log_dir.clock.now_ms(),
                upper_offset=log.removable_offset,
            )
            if not deletion.removes:
                return deletion
            if deletion.segments == len(log.segments):
                log.roll()
            log_dir.raise_log_start(topic, partition, deletion.log_start, deletion.codes[-1])
            log.remove_prefix()
        return deletion


def trim_offset(view: PartitionView, before: int | datetime) -> int:
    """Return the log start after a trim; it is never below the current log start.

    Args:
        view: The partition.
        before: The new log start, or a time: the first record that is not older becomes the log start. A time
            after the last record empties the log.

    Raises:
        OffsetOutOfRangeError: the offset is above the log end.
        UsageError: `before` is neither an offset nor an aware datetime.
    """
    if isinstance(before, datetime):
        offset = view.offset_at(to_ms(before))
        return view.log_end if offset is None else max(offset, view.log_start)
    if isinstance(before, bool) or not isinstance(before, int) or before < 0:
        raise UsageError(
            f"before={before!r} is not a position in a log", remedy="give an offset or an aware datetime"
        )
    if before > view.log_end:
        raise OffsetOutOfRangeError.above(f"{view.topic}-{view.partition}", before, view.log_end)
    return max(before, view.log_start)
