"""`LogDir.explain`: why a partition is as it is, and why each record of a key is still there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from lastword.api.inspections import counted_bytes
from lastword.api.schema import choose, partitioner_of
from lastword.cleaner.policy.choose import by_accounts
from lastword.errors import DataError, LastwordError, PartialFailure, StorageError, UsageError
from lastword.logdir.checkpoints import TopicPartition
from lastword.partition.reads import read_again

if TYPE_CHECKING:
    from lastword.api.open_dirs import OpenDirs
    from lastword.cleaner.policy.plan import Plan
    from lastword.tools.as_kafka import KafkaVerdict
    from lastword.tools.explain import Explanation


def explained(dirs: OpenDirs, topic: str, partition: int | None, key: bytes | None) -> Explanation:
    """Explain one partition: the named partition, the only partition, or the partition that holds the key.

    If the partition that the saved partitioner returns does not hold the key, the first partition with the
    key is explained: another producer may use another partitioner.
    """
    if isinstance(partition, str | bytes) and key is None:
        raise UsageError(
            f"{topic} has no partition {partition!r}", remedy=f"to explain a key: explain(key={partition!r})"
        )
    numbers = [number for _, number in dirs.select(topic, partition)]
    if len(numbers) == 1:
        return _explain_partition(dirs, topic, numbers[0], key)
    if key is None:
        raise UsageError(
            f"{topic} has {len(numbers)} partitions", remedy=f"explain one of them: partition={numbers[0]}"
        )
    _, partition_of = partitioner_of(dirs.config(topic).lastword_partitioner or "murmur2")
    expected = choose(partition_of, key, max(numbers) + 1)
    numbers.sort(key=lambda number: number != expected)
    explanations = (_explain_partition(dirs, topic, number, key) for number in numbers)
    first = next(explanations)
    return next((each for each in chain((first,), explanations) if each.versions), first)


def explain_each(
    dirs: OpenDirs, chosen: Sequence[tuple[str, int]], failed: list[LastwordError]
) -> Iterator[Explanation]:
    """Explain partitions one after another; the errors of unreadable partitions are added to `failed`.

    Each drive is inspected once for all of its partitions, so the work is linear in the partitions.
    """
    plans = _plans(dirs, chosen)
    for tp in chosen:
        plan = plans[tp]
        with PartialFailure.collecting(failed, DataError, StorageError, UsageError):
            if isinstance(plan, LastwordError):
                raise plan
            yield read_again(partial(_explanation, dirs, *tp, plan, None))


def _explain_partition(dirs: OpenDirs, topic: str, partition: int, key: bytes | None) -> Explanation:
    plan = _plans(dirs, [(topic, partition)])[topic, partition]
    if isinstance(plan, LastwordError):
        raise plan
    return read_again(lambda: _explanation(dirs, topic, partition, plan, key))


def _explanation(dirs: OpenDirs, topic: str, partition: int, plan: Plan, key: bytes | None) -> Explanation:
    from lastword.tools.explain import explain

    config, view = dirs.config(topic), dirs.checked_view(topic, partition)
    explanation = explain(
        view,
        config,
        plan,
        key=key,
        now_ms=dirs.clock.now_ms(),
        due_ms=lambda offset: _due_ms(dirs, topic, partition, offset),
    )
    if key is not None or not config.compacts:
        return explanation
    return replace(explanation, counted=counted_bytes(dirs, view))


def explain_as_kafka(
    dirs: OpenDirs, chosen: Sequence[tuple[str, int]], failed: list[LastwordError]
) -> Iterator[KafkaVerdict]:
    """Yield what Kafka's cleaner would do with partitions; `failed` as for `explain_each`."""
    from lastword.tools.as_kafka import verdict_of

    def verdict(topic: str, partition: int) -> KafkaVerdict:
        view, first_dirty = dirs.checked_view(topic, partition), dirs.first_dirty(topic, partition)
        return verdict_of(view, dirs.config(topic), first_dirty, dirs.clock.now_ms())

    for tp in chosen:
        with PartialFailure.collecting(failed):
            yield read_again(partial(verdict, *tp))


def _plans(dirs: OpenDirs, chosen: Sequence[tuple[str, int]]) -> dict[tuple[str, int], Plan | LastwordError]:
    """Return the cleaning that is due for each partition, or the error that prevents a plan.

    By accounts, a partition is chosen among all partitions of its drive, because they share its space target.
    So all of these are inspected, once.
    """
    from lastword.api.cleaning import plan_chosen, plan_due

    plans: dict[tuple[str, int], Plan | LastwordError] = {}
    accounted = {tp for tp in chosen if by_accounts(dirs.config(tp[0]))}
    if accounted:
        due, failed = plan_due(dirs, set(dirs.select(None, None)), None, only=accounted)
        plans.update(((plan.topic, plan.partition), plan) for plan in due)
        plans.update((tp, failed[TopicPartition(*tp)]) for tp in accounted if tp in failed)
    for topic, partition in chosen:
        if (topic, partition) not in plans:
            try:
                planned = plan_chosen(dirs, [(topic, partition)], due=True, strategy=None, progress=None)
                plans[topic, partition] = next(plan for plan in planned if plan.action != "delete")
            except (DataError, StorageError, UsageError) as error:
                plans[topic, partition] = error
    return plans


def _due_ms(dirs: OpenDirs, topic: str, partition: int, offset: int) -> int | None:
    """Return when a tombstone may be removed, by the garbage index in memory, else by the saved index."""
    from lastword.accounts.ledger import Ledger

    log_dir, view = dirs.log_dir(topic, partition), dirs.view(topic, partition)
    retention_ms = dirs.config(topic).delete_retention_ms
    log = dirs.owned_log(topic, partition)
    if log is not None:
        with log_dir.try_claim(topic, partition) as mine:
            if mine:
                with log_dir.ledgers.of(TopicPartition(topic, partition), log) as ledger:
                    return ledger.deletes.due_ms(offset, retention_ms)
    map_bytes = dirs.settings.instance.map_bytes
    saved = Ledger.open(view.files, view.directory, view.segments, map_bytes=map_bytes)
    return saved.deletes.due_ms(offset, retention_ms)
