"""The verbs that inspect a log and change nothing: `duplication`, `explain` and `simulate`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from lastword.api.schema import PartitionerLike, choose, partitioner_of
from lastword.errors import (
    DataError,
    FileVanishedError,
    LastwordError,
    PartialFailure,
    StorageError,
    UsageError,
    nearest,
)
from lastword.logdir.checkpoints import TopicPartition
from lastword.partition.transactions import Outcomes
from lastword.values import Meter, ProgressLike

if TYPE_CHECKING:
    from lastword.api.open_dirs import By, OpenDirs
    from lastword.cleaner import Plan
    from lastword.config import Settings
    from lastword.partition.view import PartitionView
    from lastword.tools.duplication import Duplication
    from lastword.tools.explain import Counted, Explanation
    from lastword.tools.overwrites import OverwriteTrace
    from lastword.tools.simulate import Simulated, Simulation


def duplication(
    dirs: OpenDirs,
    topic: str | None,
    partition: int | None,
    *,
    exact: bool,
    by: str,
    progress: ProgressLike | bool | None,
) -> list[Duplication]:
    """See `LogDir.duplication`."""
    from lastword.tools.duplication import counted, estimated

    check_by(by)
    chosen: dict[str, list[int]] = {}
    for name, number in dirs.select(topic, partition):
        chosen.setdefault(name, []).append(number)
    views, errors = _views(dirs, chosen, by)
    size = sum(
        segment.size for topics in views.values() for view in topics.values() for segment in view.segments
    )
    most_passes = 1 if not exact else 2 if by == "segment" else 3
    meter = Meter("duplication", progress, size * most_passes)
    rows: list[Duplication] = []
    failed = list(errors)
    for name, of_topic in views.items():
        whole = len(of_topic) == len(dirs.partitions(name))
        try:
            if exact:
                map_bytes = dirs.settings.instance.map_bytes
                rows += counted(name, of_topic, by, meter.part, whole=whole, map_bytes=map_bytes)
            else:
                rows += estimated(name, of_topic, by, meter.part, whole=whole)
        except (DataError, StorageError) as error:
            failed.append(error)
    if failed:
        raise PartialFailure.of(rows, failed) from failed[0]
    return rows


def _views(
    dirs: OpenDirs, chosen: dict[str, list[int]], by: str
) -> tuple[dict[str, dict[int, PartitionView]], list[LastwordError]]:
    """Return the views of each topic's partitions, and the errors of those without one.

    The rest of a topic with an error is counted, but no row stands for the whole topic.
    """
    views: dict[str, dict[int, PartitionView]] = {}
    errors: list[LastwordError] = []
    for name, numbers in chosen.items():
        readable, failed = dirs.checked_views((name, number) for number in numbers)
        errors += failed.values()
        if readable and not (failed and by == "topic"):
            views[name] = {number: view for (_, number), view in readable.items()}
    return views, errors


def check_by(by: str) -> By:
    """Return the unit of a row; UsageError if it is unknown."""
    from lastword.tools.duplication import BY

    if by not in BY:
        near = nearest(by, BY)
        raise UsageError(
            f"unknown by={by!r}" + (f"; nearest: {near}" if near else ""), remedy=f"one of {', '.join(BY)}"
        )
    return cast("By", by)


def explained(
    dirs: OpenDirs,
    topic: str,
    partition: int | None,
    key: bytes | None,
    partitioner: PartitionerLike | None,
) -> Explanation:
    """Explain one partition: the one that is named, the only one, or the one that holds the key.

    If the partition that the partitioner gives does not hold the key, the first that does is explained:
    another producer may use another partitioner.
    """
    numbers = [number for _, number in dirs.select(topic, partition)]
    if len(numbers) == 1:
        return _explain_partition(dirs, topic, numbers[0], key)
    if key is None:
        raise UsageError(
            f"{topic} has {len(numbers)} partitions",
            remedy=f"explain one of them: partition={numbers[0]}",
        )
    _, partition_of = partitioner_of(partitioner or dirs.config(topic).lastword_partitioner or "murmur2")
    expected = choose(partition_of, key, max(numbers) + 1)
    numbers.sort(key=lambda number: number != expected)
    first: Explanation | None = None
    for number in numbers:
        explanation = _explain_partition(dirs, topic, number, key)
        if explanation.versions:
            return explanation
        first = first or explanation
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


def _explain_partition(dirs: OpenDirs, topic: str, partition: int, key: bytes | None) -> Explanation:
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
    """Return the cleaning that is due for each partition, or the error that prevents a plan.

    By accounts, a partition is chosen among all on its drive, because they share its space target. So all of
    them are inspected, once.
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
                planned = plan_chosen(dirs, [(topic, partition)], due=True, strategy=None, progress=None)
                plans[topic, partition] = next(plan for plan in planned if plan.action != "delete")
            except (DataError, StorageError, UsageError) as error:
                plans[topic, partition] = error
    return plans


def _due_ms(dirs: OpenDirs, topic: str, partition: int, offset: int) -> int | None:
    """Return when a tombstone may be removed, by the garbage index in memory, else by the saved one."""
    from lastword.accounts.ledger import Ledger

    log_dir, view = dirs.log_dir(topic, partition), dirs.view(topic, partition)
    retention_ms = dirs.config(topic).delete_retention_ms
    if dirs.mode == "a":
        with log_dir.try_claim(topic, partition) as mine:
            if mine:
                with log_dir.ledgers.of(
                    TopicPartition(topic, partition), log_dir.log(topic, partition)
                ) as ledger:
                    return ledger.deletes.due_ms(offset, retention_ms)
    map_bytes = dirs.settings.instance.map_bytes
    saved = Ledger.open(view.files, view.directory, view.segments, map_bytes=map_bytes)
    return saved.deletes.due_ms(offset, retention_ms)


_ATTEMPTS = 20


def simulations(
    dirs: OpenDirs,
    topic: str | None,
    partition: int | None,
    strategy: str | None,
    progress: ProgressLike | bool | None,
    config: Mapping[str, Any],
) -> list[Simulation]:
    """See `LogDir.simulate`."""
    from lastword.tools.simulate import STRATEGIES

    if strategy is not None and strategy not in STRATEGIES:
        raise UsageError(f"unknown strategy {strategy!r}", remedy=f"use one of: {', '.join(STRATEGIES)}")
    today = dirs.settings
    tries: list[tuple[dict[str, Any], Settings, str | None]] = [({}, today, None)]
    if config or strategy is not None:
        shown = dict(config) | ({} if strategy is None else {"lastword.strategy": strategy})
        tries.append((shown, today.changed(config), strategy))
    views, errors = dirs.checked_views(dirs.select(topic, partition))
    failed = list(errors.values())
    of_view = {tp: sum(segment.size for segment in view.segments) for tp, view in views.items()}
    meter = Meter("simulate", progress, 2 * sum(of_view.values()))
    chosen, sizes, trace = [], [], []
    for tp, size in of_view.items():
        try:
            trace.append(_trace(dirs, *tp, meter, size))
        except FileVanishedError:
            raise
        except (DataError, StorageError) as error:
            failed.append(error)
            continue
        chosen.append(tp)
        sizes.append(size)
    by_log_dir: dict[str, list[int]] = {}
    for index, tp in enumerate(chosen):
        by_log_dir.setdefault(dirs.log_dir(*tp).path, []).append(index)
    answers: list[list[Simulation]] = [[] for _ in chosen]
    drives: list[Simulation] = []
    for members in by_log_dir.values():
        for shown, settings, wanted in tries:
            share = sum(sizes[index] for index in members) // len(tries)
            with meter.part(share) as tell:
                drive = _one_drive(
                    [(*chosen[index], trace[index]) for index in members], settings, wanted, shown, tell
                )
            for index, simulation in zip(members, drive.partitions, strict=True):
                answers[index].append(simulation)
            if len(members) > 1:
                drives.append(drive.drive)
    simulations = [simulation for answer in answers for simulation in answer] + drives
    if failed:
        raise PartialFailure.of(simulations, failed) from failed[0]
    return simulations


def _one_drive(
    members: Sequence[tuple[str, int, OverwriteTrace]],
    settings: Settings,
    strategy: str | None,
    shown: dict[str, Any],
    tell: Callable[[int, int], None] | None,
) -> Simulated:
    from lastword.tools.simulate import TracedPartition, simulate

    parts = [TracedPartition(name, number, trace, settings.topic(name)) for name, number, trace in members]
    return simulate(
        parts,
        strategy=strategy,
        space_target=settings.instance.lastword_space_target,
        settings=shown,
        progress=tell,
    )


def _trace(dirs: OpenDirs, topic: str, partition: int, meter: Meter, size_bytes: int) -> OverwriteTrace:
    """Trace the overwrites of a partition; if a file vanishes, list the view again and repeat."""
    from lastword.cleaner.policy.choose import corrected_first_dirty
    from lastword.tools.overwrites import trace_log

    view = dirs.checked_view(topic, partition)
    with meter.part(size_bytes) as tell:
        for attempt in range(_ATTEMPTS):
            first_dirty = dirs.first_dirty(topic, partition)
            try:
                return trace_log(
                    view.segments,
                    salt=os.urandom(16),
                    loaded_below=corrected_first_dirty(first_dirty, view.log_start, view.log_end),
                    outcomes=Outcomes(view, view.log_end),
                    progress=tell,
                )
            except FileVanishedError:
                if attempt == _ATTEMPTS - 1:
                    raise
                view.refresh()
    raise AssertionError("every attempt returns or raises")
