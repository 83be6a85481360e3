"""Carrying retention out, partition by partition.

The order is that of `partition.prefix`: the log start is durable before a file loses its name. A partition
that the cleaner has in quarantine expires all the same.
"""

from __future__ import annotations

from lastword.config import TopicConfig
from lastword.logdir import LogDirectory
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
            found = decide(
                topic,
                partition,
                log.segments,
                config,
                log_start=log.log_start,
                log_end=log.log_end,
                now_ms=home.clock.now_ms(),
                upper_offset=log.removable_offset,
            )
            if not found.removes:
                return found
            if found.segments == len(log.segments):
                log.roll()
            home.raise_log_start(topic, partition, found.log_start, found.codes[-1])
            log.remove_prefix()
        return found
