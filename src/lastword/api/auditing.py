"""The verb `audit`: which partitions of the log, against what (`audited.py`), one topic after another."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from lastword.api.audited import delivered_of
from lastword.api.partitioners import Partitioner
from lastword.api.progress import Meter
from lastword.api.ranges import ranges
from lastword.errors import DataError, LastwordError, PartialFailure, StorageError, UnknownTopicError
from lastword.tools.audit import KINDS, Audit, AuditRow, Logged, audit
from lastword.values import ProgressLike

if TYPE_CHECKING:
    from lastword.api.logs import LogDir


def audited(
    logs: LogDir,
    topic: str | None,
    partition: int | None,
    delivered: Any,
    *,
    most_rows: int,
    progress: ProgressLike | bool | None,
    partitioner: Partitioner | None = None,
) -> Audit:
    """See `LogDir.audit`. `partitioner`: None takes the one that is saved with a topic."""
    if topic is None and hasattr(delivered, "topics"):
        here, there = list(logs._homes()), [one.name for one in delivered.topics()]
        for name in sorted(set(here) ^ set(there)):
            where, known = (delivered.paths, there) if name in here else (logs.paths, here)
            raise UnknownTopicError.named(name, ", ".join(where), known)
        topics = here
    else:
        topics = [logs._one_topic(topic)]
    failed: list[LastwordError] = []
    sizes: dict[str, int] = {}
    for name in topics:  # all partitions of a topic: a key that moved between two is no difference
        views, errors = logs._viewed(logs._chosen(name, partition))
        failed += errors.values()
        if not errors:
            sizes[name] = sum(segment.size for view in views.values() for segment in view.segments)
    meter = Meter("audit", progress, sum(sizes.values()))
    counts: Counter[str] = Counter(dict.fromkeys(("right", *KINDS), 0))
    rows: list[AuditRow] = []
    left_off, ok = 0, True
    for name, size in sizes.items():
        try:
            with meter.part(size) as tell:
                found = _one_topic(logs, name, partition, delivered, most_rows - len(rows), tell, partitioner)
        except (DataError, StorageError) as error:
            failed.append(error)
            continue
        counts.update(found.counts)
        rows += found.rows
        left_off += found.left_off
        ok &= found.ok
    result = Audit(ok and not failed, dict(counts), tuple(rows), left_off)
    if failed:
        raise PartialFailure.of(result, failed) from failed[0]
    return result


def _one_topic(
    logs: LogDir,
    name: str,
    partition: int | None,
    delivered: Any,
    most_rows: int,
    tell: Any,
    partitioner: Partitioner | None,
) -> Audit:
    views = [logs._view(name, number) for _, number in logs._chosen(name, partition)]
    logged = [
        Logged(one, logs._gone_below(name, one.partition))
        for one in ranges({view.partition: view for view in views}, "earliest", "latest")
    ]
    map_bytes = logs.settings.instance.map_bytes
    topic = logs.topic(name, partitioner=partitioner)
    return audit(
        name,
        logged,
        delivered_of(delivered, topic, logs._files, map_bytes),
        memory_bytes=map_bytes,
        partition=partition,
        partition_of=topic._partition_of,
        most_rows=most_rows,
        progress=tell,
    )
