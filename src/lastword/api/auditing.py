"""The verb `audit`: which partitions of the log, against what (`audited.py`), one topic after another."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from lastword.api.audited import delivered_of
from lastword.api.partitioners import Partitioner
from lastword.api.progress import Meter
from lastword.api.ranges import ranges
from lastword.errors import UnknownTopicError
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
    sizes = {
        name: sum(s.size for _, n in logs._chosen(name, partition) for s in logs._view(name, n).segments)
        for name in topics
    }
    meter = Meter("audit", progress, sum(sizes.values()))
    counts: Counter[str] = Counter(dict.fromkeys(("right", *KINDS), 0))
    rows: list[AuditRow] = []
    left_off, ok = 0, True
    for name in topics:
        with meter.part(sizes[name]) as tell:
            found = _one_topic(logs, name, partition, delivered, most_rows - len(rows), tell, partitioner)
        counts.update(found.counts)
        rows += found.rows
        left_off += found.left_off
        ok &= found.ok
    return Audit(ok, dict(counts), tuple(rows), left_off)


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
