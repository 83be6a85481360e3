"""Define the two processes of a soak: a writer that also cleans, until it is killed, and a slow sink.

Both write lines with `tell` (`tests.support.child`).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import lastword
from tests.soak.workload import Workload

TOPIC = "soak"
LEASE = "slow-sink"


@dataclass(frozen=True)
class Plan:
    """The sizes of one soak. Each writer gets one of the key map sizes in `map_bytes`."""

    workload: Workload
    strategy: str
    chunk: int
    segment_bytes: int
    delete_retention_ms: int
    map_bytes: tuple[int, ...]
    patience_seconds: float  # mean time to a kill that does not wait for a round


def opened(root: str, plan: Plan, mode: Any, **more: Any) -> lastword.LogDir:
    return lastword.open(root, mode, log_cleaner_threads=1, lastword_strategy=plan.strategy, **more)


def write_on(root: str, plan: Plan, seed: int, tell: Callable[[str], None]) -> None:
    """Append, and clean between appends or in the background.

    Lines: `open end`, `try first end`, `ack end`, `round`, `cleaned`, `done`.
    """
    rng = random.Random(seed)
    background = rng.random() < 0.3
    total = plan.workload.records
    settings = {
        "log_cleaner_enable": background,
        "log_cleaner_backoff_ms": 50,
        "log_cleaner_dedupe_buffer_size": rng.choice(plan.map_bytes),
        "file_delete_delay_ms": rng.choice((0, 200)),  # of this process; the topic has its own
    }
    with opened(root, plan, "a", **settings) as logs:
        topic = logs.create_topic(
            TOPIC,
            exist_ok=True,
            key_serializer="bytes",
            value_serializer="bytes",
            cleanup_policy="compact",
            segment_bytes=plan.segment_bytes,
            delete_retention_ms=plan.delete_retention_ms,
        )
        end = topic.bounds()[0][1]
        tell(f"open {end}")
        while end < total and rng.random() > 0.04:
            after = min(end + rng.randint(1, plan.chunk), total)
            tell(f"try {end} {after}")
            topic.extend(plan.workload.pairs(end, after), ack=rng.choice(("os", "os", "disk")))
            end = after
            tell(f"ack {end}")
            if not background and rng.random() < 0.2:
                tell("round")
                logs.clean(TOPIC, due=rng.random() < 0.5)
                tell("cleaned")
    tell("done")


def follow(root: str, plan: Plan, seed: int, tell: Callable[[str], None]) -> None:
    """Read everything, more slowly than the writers, under a lease that advances.

    Lines: `at position` after each part; at the end `state` and the digest of the newest values, or `wrong`
    and the problem.
    """
    rng = random.Random(seed)
    held: dict[bytes, int] = {}
    position, last = 0, -1
    lease = None
    while position < plan.workload.records:
        time.sleep(rng.choice((0.0, 0.002, 0.02)))
        with opened(root, plan, "r") as logs:
            topic = logs.topic(TOPIC)
            if lease is None:
                topic.lease(LEASE)  # the sink is empty, so it needs no removed tombstone
                lease = True
            for record in topic.read(position):
                offset = record.offset
                if offset <= last:
                    return tell(f"wrong offset {offset} follows {last}")
                last = offset
                problem = plan.workload.wrong([offset], [record.key], [record.value])
                if problem is not None:
                    return tell(f"wrong {problem}")
                if record.value is None:
                    held.pop(record.key, None)
                else:
                    held[record.key] = offset
                position = offset + 1
                if offset % (4 * plan.chunk) == 0:
                    break
            end = topic.bounds()[0][1]
            if position >= end or last >= plan.workload.records - 1:
                position = max(position, end)
            topic.lease(LEASE).advance(position)
        tell(f"at {position}")
    with opened(root, plan, "r") as logs:
        logs.topic(TOPIC).lease(LEASE).release()
    return tell(f"state {digest(held)}")


def digest(held: dict[bytes, int]) -> str:
    import hashlib

    sha256 = hashlib.sha256()
    for key in sorted(held):
        sha256.update(b"%s %d\n" % (key, held[key]))
    return f"{len(held)} {sha256.hexdigest()}"
