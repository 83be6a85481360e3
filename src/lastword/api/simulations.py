"""The verb `simulate`: each partition's death pattern, replayed with today's settings and with others."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lastword.api.progress import Meter
from lastword.errors import DataError, FileVanishedError, PartialFailure, StorageError, UsageError
from lastword.partition.transactions import Outcomes
from lastword.values import ProgressLike

if TYPE_CHECKING:
    from lastword.api.open_dirs import OpenDirs
    from lastword.config import Settings
    from lastword.tools.overwrites import OverwriteTrace
    from lastword.tools.simulate import Simulated, Simulation

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
    homes: dict[str, list[int]] = {}
    for index, one in enumerate(chosen):
        homes.setdefault(dirs.log_dir(*one).path, []).append(index)
    answers: list[list[Simulation]] = [[] for _ in chosen]
    drives: list[Simulation] = []
    for members in homes.values():
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
    """A file that vanishes was rewritten: the view is listed again, and read anew."""
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
