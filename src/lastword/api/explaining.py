"""`explain` for whoever holds a `LogDir` or a `Topic`: which partition is meant, and what is known of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from lastword.api import partitioners
from lastword.errors import DataError, LastwordError, StorageError, UsageError
from lastword.logdir.checkpoints import TopicPartition

if TYPE_CHECKING:
    from lastword.api.open_dirs import OpenDirs
    from lastword.cleaner import Plan
    from lastword.tools.explain import Counted, Explanation

Partitioner = Callable[[bytes, int], int]


def explained(
    dirs: OpenDirs,
    topic: str,
    partition: int | None,
    key: bytes | None,
    partitioner: partitioners.PartitionerLike | None,
) -> Explanation:
    """One partition explained: the one that was named, the only one, or the one that the key lies in.

    A key lies where the topic's partitioner says, and if it does not, then in the first partition that has
    it: another producer may have partitioned in another way.
    """
    numbers = [number for _, number in dirs.select(topic, partition)]
    if len(numbers) == 1:
        return _one(dirs, topic, numbers[0], key)
    if key is None:
        raise UsageError(
            f"{topic} has {len(numbers)} partitions",
            remedy=f"explain one of them: partition={numbers[0]}",
        )
    _, choose = partitioners.partitioner_of(
        partitioner or dirs.config(topic).lastword_partitioner or "murmur2"
    )
    home = partitioners.choose(choose, key, max(numbers) + 1)
    numbers.sort(key=lambda number: number != home)
    first: Explanation | None = None
    for number in numbers:
        found = _one(dirs, topic, number, key)
        if found.versions:
            return found
        first = first or found
    assert first is not None
    return first


def explain_each(
    dirs: OpenDirs, chosen: Sequence[tuple[str, int]], failed: list[LastwordError]
) -> Iterator[Explanation]:
    """Explain partitions one after another; the error of one that cannot be read goes to `failed`.

    Each drive is inspected once for all of its partitions: the work is linear in them.
    """
    plans = _plans(dirs, chosen)
    for tp in chosen:
        plan = plans[tp]
        try:
            if isinstance(plan, LastwordError):
                raise plan
            yield _explanation(dirs, *tp, plan, None)
        except (DataError, StorageError, UsageError) as error:
            failed.append(error)


def _one(dirs: OpenDirs, topic: str, partition: int, key: bytes | None) -> Explanation:
    plan = _plans(dirs, [(topic, partition)])[topic, partition]
    if isinstance(plan, LastwordError):
        raise plan
    return _explanation(dirs, topic, partition, plan, key)


def _explanation(dirs: OpenDirs, topic: str, partition: int, plan: Plan, key: bytes | None) -> Explanation:
    from lastword.tools.explain import explain

    config = dirs.config(topic)
    explanation = explain(
        dirs.checked_view(topic, partition),
        config,
        plan,
        key=key,
        now_ms=dirs.clock.now_ms(),
        due_ms=lambda offset: _due_ms(dirs, topic, partition, offset),
    )
    if key is not None or not config.compacts:
        return explanation
    return replace(explanation, counted=_counted(dirs, topic, partition))


def _counted(dirs: OpenDirs, topic: str, partition: int) -> Counted | None:
    """Return the bytes of a partition as `describe` counts them; None if they cannot all be read."""
    from lastword.api.counts import count_each, segment_infos
    from lastword.tools.explain import Counted

    ((_, rows),) = count_each(dirs, [(topic, partition)], segment_infos, None)
    if isinstance(rows, LastwordError):
        return None
    return Counted(
        sum(segment.size_bytes for segment in rows),
        sum(segment.garbage_bytes for segment in rows),
        sum(segment.garbage_bytes for segment in rows if segment.active),
    )


def _plans(dirs: OpenDirs, chosen: Sequence[tuple[str, int]]) -> dict[tuple[str, int], Plan | LastwordError]:
    """What the scheduler would do with each partition, or why that is not known.

    By accounts a partition is chosen among all on its drive, whose target is for all of them together, so
    all of them are inspected, once.
    """
    from lastword.api.cleaning import plan_chosen, plan_due
    from lastword.cleaner.policy.choose import by_accounts

    plans: dict[tuple[str, int], Plan | LastwordError] = {}
    accounted = {tp for tp in chosen if by_accounts(dirs.config(tp[0]))}
    if accounted:
        due, failed = plan_due(dirs, set(dirs.select(None, None)), None, only=accounted)
        plans.update(((plan.topic, plan.partition), plan) for plan in due)
        plans.update((tp, failed[TopicPartition(*tp)]) for tp in accounted if tp in failed)
    for topic, partition in chosen:
        if (topic, partition) not in plans:
            try:
                found = plan_chosen(dirs, [(topic, partition)], due=True, strategy=None, progress=None)
                plans[topic, partition] = next(plan for plan in found if plan.action != "delete")
            except (DataError, StorageError, UsageError) as error:
                plans[topic, partition] = error
    return plans


def _due_ms(dirs: OpenDirs, topic: str, partition: int, offset: int) -> int | None:
    """When a tombstone may go by the clock of the garbage accounts: those in memory, if no round has them
    now, else those that were saved last."""
    from lastword.accounts.ledger import Ledger

    home, view = dirs.log_dir(topic, partition), dirs.view(topic, partition)
    retention_ms = dirs.config(topic).delete_retention_ms
    if dirs.mode == "a":
        with home.try_claim(topic, partition) as mine:
            if mine:
                with home.ledgers.of(TopicPartition(topic, partition), home.log(topic, partition)) as ledger:
                    return ledger.deletes.due_ms(offset, retention_ms)
    map_bytes = dirs.settings.instance.map_bytes
    saved = Ledger.open(view.files, view.directory, view.segments, map_bytes=map_bytes)
    return saved.deletes.due_ms(offset, retention_ms)
