"""True counts: every record of a log is looked at once, and the dead bitmaps say what is garbage."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from lastword.api.progress import Meter
from lastword.api.values import PartitionInfo, SegmentInfo
from lastword.cleaner import quarantine
from lastword.cleaner.choose import corrected_first_dirty
from lastword.errors import FileVanishedError
from lastword.logdir.checkpoints import TopicPartition
from lastword.partition.outcomes import Outcomes
from lastword.partition.view import PartitionView
from lastword.values import ProgressLike

if TYPE_CHECKING:
    from lastword.api.logs import LogDir
    from lastword.resolve import Resolution

_ATTEMPTS = 100


def describe(logs: LogDir, topic: str, progress: ProgressLike | bool | None) -> list[PartitionInfo]:
    views = logs._views(topic)
    meter = Meter(
        "count", progress, sum(segment.size for view in views.values() for segment in view.segments)
    )
    found = []
    for number, view in sorted(views.items()):
        resolution = _resolved(logs, view, meter)
        size = sum(segment.size for segment in view.segments)
        policy = logs._config(topic).cleanup_policy
        set_aside = quarantine.load(view.files, view.directory)
        facts = resolution.segments
        found.append(
            PartitionInfo(
                topic=topic,
                partition=number,
                dir=os.path.dirname(os.path.normpath(view.directory)),
                policy=",".join(sorted(policy)) if policy else None,
                log_start=view.log_start,
                first_dirty=corrected_first_dirty(
                    logs._first_dirty(topic, number), view.log_start, view.log_end
                ),
                stable=view.stable_offset,
                log_end=view.log_end,
                segments=len(view.segments),
                size_bytes=size,
                live_bytes=sum(one.live_bytes for one in facts),
                garbage_bytes=sum(one.dead_bytes for one in facts),
                records=sum(one.records for one in facts),
                live_records=sum(one.live_records for one in facts),
                tombstones=sum(one.tombstones for one in facts),
                exact=True,
                quarantine=None if set_aside is None else set_aside.reason,
            )
        )
    return found


def segments(
    logs: LogDir, topic: str, partition: int | None, progress: ProgressLike | bool | None
) -> list[SegmentInfo]:
    views = {n: view for n, view in logs._views(topic).items() if partition is None or n == partition}
    meter = Meter(
        "count", progress, sum(segment.size for view in views.values() for segment in view.segments)
    )
    found = []
    for number, view in sorted(views.items()):
        resolution = _resolved(logs, view, meter)
        rewritten = _rewritten(logs, view)
        for segment, facts in zip(view.segments, resolution.segments, strict=True):
            generation, survived = rewritten.get((segment.base_offset, segment.inode), (None, None))
            found.append(
                SegmentInfo(
                    topic=topic,
                    partition=number,
                    base_offset=segment.base_offset,
                    next_offset=segment.next_offset,
                    size_bytes=segment.size,
                    live_bytes=facts.live_bytes,
                    garbage_bytes=facts.dead_bytes,
                    records=facts.records,
                    exact=True,
                    generation=generation,
                    survivorship=survived,
                    largest_timestamp=segment.largest_timestamp,
                    active=segment is view.active,
                )
            )
    return found


def _rewritten(logs: LogDir, view: PartitionView) -> dict[tuple[int, int], tuple[int, float | None]]:
    """How often each segment was rewritten, and what share of the bytes the last rewrite kept, as far as the
    garbage accounts know; by base offset and inode."""
    from lastword.accounts.saved import saved_entries

    held = logs._home(view.topic, view.partition).ledgers.held(TopicPartition(view.topic, view.partition))
    entries = held.entries if held is not None else saved_entries(view.files, view.directory)
    return {
        (one.base_offset, one.inode): (
            one.generation,
            None if one.survived_ratio < 0 else round(one.survived_ratio, 4),
        )
        for one in list(entries)
    }


def _resolved(logs: LogDir, view: PartitionView, meter: Meter) -> Resolution:
    """Resolve a whole log. What is of an undecided transaction counts as live, and replaces nothing yet.

    A file that vanishes was rewritten: the view is listed again, and then all of it is counted anew.
    """
    from lastword.resolve import resolve

    size = sum(segment.size for segment in view.segments)
    attempt = 0
    while True:
        try:
            with meter.part(size) as done:
                return resolve(
                    view.segments,
                    map_bytes=logs.settings.instance.map_bytes,
                    salt=os.urandom(16),
                    now_ms=None,
                    fates=Outcomes(view, view.log_end),
                    progress=done,
                )
        except FileVanishedError:
            attempt += 1
            if attempt == _ATTEMPTS:
                raise
            view.refresh()
