"""`explain` for whoever holds a `LogDir` or a `Topic`: which partition is meant, and what is known of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from lastword.api import partitioners
from lastword.errors import LastwordError, UsageError
from lastword.logdir.checkpoints import TopicPartition

if TYPE_CHECKING:
    from lastword.api.verbs import Verbs
    from lastword.cleaner import Plan
    from lastword.tools.explain import Explanation

Partitioner = Callable[[bytes, int], int]


def explained(
    logs: Verbs,
    topic: str,
    partition: int | None,
    key: bytes | None,
    partitioner: partitioners.PartitionerLike | None,
) -> Explanation:
    """One partition explained: the one that was named, the only one, or the one that the key lies in.

    A key lies where the topic's partitioner says, and if it does not, then in the first partition that has
    it: another producer may have partitioned in another way.
    """
    numbers = [number for _, number in logs._chosen(topic, partition)]
    if len(numbers) == 1:
        return _one(logs, topic, numbers[0], key)
    if key is None:
        raise UsageError(
            f"{topic} has {len(numbers)} partitions",
            remedy=f"explain one of them: partition={numbers[0]}",
        )
    _, choose = partitioners.partitioner_of(
        partitioner or logs._config(topic).lastword_partitioner or "murmur2"
    )
    home = partitioners.choose(choose, key, max(numbers) + 1)
    numbers.sort(key=lambda number: number != home)
    first: Explanation | None = None
    for number in numbers:
        found = _one(logs, topic, number, key)
        if found.versions:
            return found
        first = first or found
    assert first is not None
    return first


def _one(logs: Verbs, topic: str, partition: int, key: bytes | None) -> Explanation:
    from lastword.tools.explain import explain

    return explain(
        logs._view(topic, partition),
        logs._config(topic),
        _plan(logs, topic, partition),
        key=key,
        now_ms=logs._clock.now_ms(),
        due_ms=lambda offset: _due_ms(logs, topic, partition, offset),
    )


def _plan(logs: Verbs, topic: str, partition: int) -> Plan:
    """What the scheduler would do with the partition. By accounts it is chosen among all on its drive, whose
    target is for all of them together, so all of them are looked at."""
    from lastword.api.due import by_accounts, plan_due

    one = (topic, partition)
    if by_accounts(logs, topic, None):
        failed: dict[TopicPartition, LastwordError] = {}
        plans = list(plan_due(logs, set(logs._chosen(None, None)), None, failed, only={one}))
        if not plans and one in failed:
            raise failed[TopicPartition(*one)]
    else:
        plans = [plan for plan in logs.plan(topic, partition, due=True) if plan.action != "delete"]
    return plans[0]


def _due_ms(logs: Verbs, topic: str, partition: int, offset: int) -> int | None:
    """When a tombstone may go by the clock of the garbage accounts: those in memory, if no round has them
    now, else those that were saved last."""
    from lastword.accounts.ledger import Ledger

    home, view = logs._home(topic, partition), logs._view(topic, partition)
    retention_ms = logs._config(topic).delete_retention_ms
    if logs.mode == "a":
        with home.try_claim(topic, partition) as mine:
            if mine:
                with home.ledgers.of(TopicPartition(topic, partition), home.log(topic, partition)) as ledger:
                    return ledger.deletes.due_ms(offset, retention_ms)
    map_bytes = logs.settings.instance.map_bytes
    saved = Ledger.open(view.files, view.directory, view.segments, map_bytes=map_bytes)
    return saved.deletes.due_ms(offset, retention_ms)
