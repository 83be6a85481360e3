"""Carrying retention out, partition by partition.

The order is that of `partition.prefix`: the log start is durable before a file loses its name. A partition
that the cleaner has in quarantine expires all the same.
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
    """What `expire` would do with a partition now; changes nothing."""
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


def expire(home: LogDirectory, topic: str, partition: int) -> Deletion:
    """Apply retention to one partition of a directory that is open to append. Waits for a cleaning of it.

    Errors of the storage leave the log as it was, or with a part of the deletion done.
    """
    with home.claim(topic, partition):
        config = home.topic_config(topic)
        log = home.log(topic, partition)
        log.remove_deferred()
        if config.compacts:
            log.roll_if_due()
        with log.lock:  # no append between deciding that everything goes and rolling
            deletion = decide(
                topic,
                partition,
                log.segments,
                config,
                log_start=log.log_start,
                log_end=log.log_end,
                now_ms=home.clock.now_ms(),
                upper_offset=log.removable_offset,
            )
            if not deletion.removes:
                return deletion
            if deletion.segments == len(log.segments):
                log.roll()
            home.raise_log_start(topic, partition, deletion.log_start, deletion.codes[-1])
            log.remove_prefix()
        return deletion


def trim_offset(view: PartitionView, before: int | datetime) -> int:
    """The new log start: the offset itself, or the first record that is not older; never below the present
    one. A time after the last record empties the log.

    OffsetOutOfRangeError above the log end; UsageError for what is neither an offset nor an aware datetime.
    """
    if isinstance(before, datetime):
        offset = view.offset_at(to_ms(before))
        return view.log_end if offset is None else max(offset, view.log_start)
    if isinstance(before, bool) or not isinstance(before, int) or before < 0:
        raise UsageError(
            f"before={before!r} is no place in a log", remedy="give an offset or an aware datetime"
        )
    if before > view.log_end:
        raise OffsetOutOfRangeError.above(f"{view.topic}-{view.partition}", before, view.log_end)
    return max(before, view.log_start)
