"""The verbs that remove records: `plan`, `clean`, `expire` and `trim`.

A partition that fails does not stop the others: `PartialFailure` is raised at the end, with their results.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from typing import TYPE_CHECKING

from lastword.api.open_dirs import OpenDirs, Topics, named_topics
from lastword.cleaner.policy.choose import by_accounts
from lastword.cleaner.policy.plan import CleanRequest, Plan, Reason
from lastword.errors import (
    CapacityError,
    DataError,
    DiskFullError,
    FileVanishedError,
    LastwordError,
    NoPolicyError,
    PartialFailure,
    QuarantinedError,
    StorageError,
    UnknownTopicError,
)
from lastword.files import OVERLAP_FROM, overlapped
from lastword.logdir.checkpoints import TopicPartition
from lastword.partition import joining
from lastword.partition.reads import read_again
from lastword.values import Meter, ProgressLike, plural

if TYPE_CHECKING:
    from lastword.cleaner.drive import DriveCleaner, InlineExecutor
    from lastword.cleaner.engine.report import CleanRound
    from lastword.cleaner.inspection import DrivePartition
    from lastword.config.tables import Unread
    from lastword.logdir.log_dir import LogDirectory
    from lastword.partition.view import PartitionView
    from lastword.retention import Deletion

_log = logging.getLogger("lastword.settings")

ROLL_BYTES = 32 << 10
"""Room for the small files of a cleaning and of a new active segment: eight blocks of the drive."""

SMALL_BYTES = 1 << 20
"""Partitions up to this size are cleaned at the same time, if there are many: the memory of each is small."""


def plan_chosen(
    dirs: OpenDirs,
    chosen: Sequence[tuple[str, int]],
    *,
    due: bool,
    strategy: str | None,
    progress: ProgressLike | bool | None,
) -> list[Plan]:
    """Plan the cleaning of selected partitions: see `LogDir.plan`."""
    from lastword.cleaner.engine.cleaning import CleanContext
    from lastword.cleaner.engine.partition import plan_partition
    from lastword.retention import outlook

    views, unviewed = dirs.checked_views(chosen)
    size = sum(segment.size for view in views.values() for segment in view.segments)
    meter = Meter("plan", progress, size)
    accounts = {name for name, _ in chosen if due and by_accounts(dirs.config(name), strategy)}
    wanted = {tp for tp in chosen if tp[0] in accounts}
    by_drive, unseen = plan_due(dirs, wanted, strategy) if wanted else ([], {})
    planned: dict[tuple[str, int], Plan] = {(plan.topic, plan.partition): plan for plan in by_drive}
    failed = [error for tp, error in unseen.items() if tp in wanted]
    failed += [error for tp, error in unviewed.items() if tp not in wanted]
    plans: list[Plan] = []

    def plan_one(view: PartitionView) -> list[Plan]:
        tp = TopicPartition(view.topic, view.partition)
        config = dirs.config(tp.topic)
        retention = outlook(view, config, dirs.clock.now_ms())
        found = [_plan_of(retention, view)] if retention.removes else []
        if tp in planned:
            return [*found, planned[tp]]
        with meter.progress_part(view.segment_set.size) as part:
            log_dir = dirs.log_dir(*tp)
            request = CleanRequest.of(log_dir, tp, strategy, due=due)
            context = CleanContext(dirs.files, dirs.clock, progress=part, dry=True)
            held = log_dir.ledgers.held(tp)
            return [*found, plan_partition(view, config, request, context, held=held)]

    for tp, view in views.items():
        if tp in unseen:
            continue
        with PartialFailure.collecting(failed):
            plans += dirs.on_view(view, plan_one)
    return PartialFailure.check(plans, failed)


def clean(
    dirs: OpenDirs,
    topic: Topics,
    partition: int | None,
    *,
    due: bool,
    strategy: str | None,
    progress: ProgressLike | bool | None,
    stop: Callable[[], bool] | None,
) -> list[CleanRound]:
    """See `LogDir.clean`."""
    dirs.require_writable()
    chosen = dirs.select(topic, partition)
    if topic is None:
        _warn_unread(dirs)
    for name in () if topic is None else named_topics(topic):
        _check_policy(dirs, name)
    compacted = [(name, number) for name, number in chosen if dirs.config(name).compacts]
    dirs.load_key_indexes(compacted)
    results: list[CleanRound] = []
    failed: list[LastwordError] = []
    for tp in compacted:
        if dirs.config(tp[0]).lastword_ttl_ms >= 0 and not (stop is not None and stop()):
            with PartialFailure.collecting(failed, DataError, CapacityError, StorageError):
                expire_old_values(dirs, *tp)
    sizes = _sizes(dirs, compacted)
    meter = Meter("clean", progress, sum(sizes.values()))
    accounts = {tp for tp in compacted if due and by_accounts(dirs.config(tp[0]), strategy)}

    def clean_next(tp: tuple[str, int], *, closed_only: bool = False) -> CleanRound | LastwordError | None:
        if stop is not None and stop():
            return None
        try:
            with meter.progress_part(sizes[tp]) as part:
                done = _clean_one(dirs, *tp, due, strategy, part, stop, closed_only=closed_only)
            if done is None and topic is not None:
                check_quarantine(dirs, *tp)
            return done
        except (DataError, CapacityError, StorageError) as error:
            return error

    with ExitStack() as together:
        for log_dir in dirs.directories:
            together.enter_context(log_dir.checkpoints_together())
        if accounts:
            compacted = [tp for tp in compacted if tp not in accounts]
            results += _clean_due(dirs, accounts, strategy, meter, stop, failed)
            if topic is not None and not failed and not results:
                for tp in sorted(accounts):
                    check_quarantine(dirs, *tp)
        short = [] if due else _short_of_room(dirs, compacted, sizes)
        if short:
            done, errors = _clean_short(dirs, short, strategy, clean_next)
            results += done
            failed += errors
            compacted = [tp for tp in compacted if tp not in short]
        small = [tp for tp in compacted if sizes[tp] <= SMALL_BYTES]
        if len(small) < OVERLAP_FROM:
            small = []
        cleaned_small = dict(zip(small, overlapped(clean_next, small), strict=True))
        for tp in compacted:
            result = cleaned_small[tp] if tp in cleaned_small else clean_next(tp)
            if isinstance(result, LastwordError):
                failed.append(result)
            elif result is not None:
                results.append(result)
    if stop is None or not stop():
        dirs.grow_key_indexes(sizes)
    note = ""
    if failed and len(sizes) > 1:
        cleaned = {(result.topic, result.partition) for result in results}
        note = f"{plural(len(cleaned), 'other')} cleaned"
    return PartialFailure.check(results, failed, note)


def _short_of_room(
    dirs: OpenDirs, chosen: Sequence[tuple[str, int]], sizes: dict[tuple[str, int], int]
) -> list[tuple[str, int]]:
    """Return the partitions on drives that may have too little room to clean them in any order.

    There is enough for the largest output and for a new active segment of each partition.
    """
    short: list[tuple[str, int]] = []
    with_bytes = [tp for tp in chosen if sizes[tp]]  # the others are empty, or cannot be opened
    for log_dir, partitions in _by_directory(dirs, with_bytes).items():
        largest = max(min(sizes[tp], dirs.config(tp[0]).segment_bytes) for tp in partitions)
        if log_dir.files.free_bytes(log_dir.path) < largest + ROLL_BYTES * len(partitions):
            short += partitions
    return short


def _clean_short(
    dirs: OpenDirs,
    chosen: Sequence[tuple[str, int]],
    strategy: str | None,
    clean_next: Callable[..., CleanRound | LastwordError | None],
) -> tuple[list[CleanRound], list[LastwordError]]:
    """Clean partitions whose drives are short of room, one after another; return results and errors.

    Each cleaning frees room for the next: those of closed segments come first, and the smallest output first.
    A cleaning that cannot fit is not begun, because it would close the active segment for nothing.
    """
    needs = dict.fromkeys(chosen, 0)
    try:
        plans = plan_chosen(dirs, chosen, due=False, strategy=strategy, progress=False)
    except PartialFailure as failure:
        plans = failure.results  # the others fail below
    for plan in plans:
        if plan.action == "clean":
            needs[plan.topic, plan.partition] = min(plan.write_bytes, plan.segment_bytes)
    results: list[CleanRound] = []
    errors: dict[tuple[str, int], LastwordError] = {}
    cleaned: set[tuple[str, int]] = set()
    pending = sorted(needs, key=needs.__getitem__)
    for closed_only in (True, False):
        for tp in pending:
            log_dir = dirs.log_dir(*tp)
            free = log_dir.files.free_bytes(log_dir.path)
            if tp in cleaned and not log_dir.log(*tp).active.size:
                continue
            if not isinstance(errors.get(tp), DiskFullError | None):
                continue
            result: CleanRound | LastwordError | None = None
            if needs[tp] <= free:
                result = clean_next(tp, closed_only=closed_only)
            if needs[tp] > free or isinstance(result, DiskFullError):
                where = log_dir.directory(*tp)
                needed = needs[tp] + ROLL_BYTES
                errors[tp] = DiskFullError.of(f"{tp[0]}-{tp[1]}", log_dir.path, needed, free, where)
            elif isinstance(result, LastwordError):
                errors[tp] = result
            else:
                errors.pop(tp, None)
                if result is not None:
                    results.append(result)
                    cleaned.add(tp)
    return results, list(errors.values())


@contextmanager
def _claimed(dirs: OpenDirs, name: str, number: int) -> Iterator[LogDirectory]:
    """Claim a partition in the block, and return its directory, in which it stays."""
    while True:
        log_dir = dirs.log_dir(name, number)
        with log_dir.claim(name, number):
            if dirs.log_dir(name, number) is log_dir:  # else it was moved while this waited
                yield log_dir
                return


def join(dirs: OpenDirs, name: str, number: int) -> int:
    """Join small segments of a partition until it is not crowded; return how many were joined.

    The partition is not compacted: no record is removed.
    """
    joined = 0
    with _claimed(dirs, name, number) as log_dir:
        while sources := joining.join(log_dir.log(name, number)):
            joined += sources
    return joined


def expire_old_values(dirs: OpenDirs, name: str, number: int) -> None:
    """Append tombstones for values whose time to live has passed, so that the cleaning removes them."""
    from lastword.state.ttl import ExpiryWatch, expire_values

    map_bytes = dirs.settings.instance.map_bytes
    with _claimed(dirs, name, number) as log_dir:
        expire_values(
            log_dir.log(name, number), dirs.config(name), ExpiryWatch(), map_bytes=map_bytes, at_once=True
        )


def _clean_one(
    dirs: OpenDirs,
    name: str,
    number: int,
    due: bool,
    strategy: str | None,
    progress: ProgressLike | None,
    stop: Callable[[], bool] | None,
    *,
    closed_only: bool,
) -> CleanRound | None:
    from lastword.cleaner.drive import clean_one
    from lastword.cleaner.engine.cleaning import CleanContext
    from lastword.cleaner.inspection import DrivePartition

    with _claimed(dirs, name, number) as log_dir:
        context = CleanContext(
            log_dir.files,
            dirs.clock,
            threads=dirs.settings.instance.log_cleaner_threads,
            budget=dirs.drives.budget(log_dir.path),
            progress=progress,
            stop=stop,
        )
        return clean_one(
            DrivePartition.of(TopicPartition(name, number), log_dir),
            context,
            strategy=strategy or dirs.config(name).lastword_strategy,
            due=due,
            closed_only=closed_only,
        )


# ---------------------------------------------------------------- due by garbage accounts


def plan_due(
    dirs: OpenDirs,
    wanted: Collection[tuple[str, int]],
    strategy: str | None,
    only: Collection[tuple[str, int]] | None = None,
) -> tuple[list[Plan], dict[TopicPartition, LastwordError]]:
    """Plan the due cleanings of each wanted partition; a plan may be to keep it. Changes nothing.

    Args:
        dirs: The open directories.
        wanted: Partitions that may be chosen.
        strategy: Overrides the settings of the topics.
        only: The wanted partitions to return plans of; None: all.

    Returns:
        The plans, and the errors of partitions that cannot be inspected.
    """
    from lastword.cleaner.drive import InlineExecutor
    from lastword.cleaner.inspection import dry_partitions

    plans: list[Plan] = []
    errors: dict[TopicPartition, LastwordError] = {}
    for drive, partitions in _drives(dirs, wanted, strategy):
        held = {partition.tp for partition in partitions if partition.tp not in wanted}
        dry = dry_partitions(partitions)

        def plan_drive(
            drive: str = drive, held: set[TopicPartition] = held, dry: Sequence[DrivePartition] = dry
        ) -> tuple[list[Plan], dict[TopicPartition, LastwordError]]:
            cleaner = _drive_cleaner(dirs, drive, dry, InlineExecutor())
            found = list(cleaner.plan(held, only))
            for error in cleaner.errors.values():
                if isinstance(error, FileVanishedError):
                    raise error
            return found, cleaner.errors

        def renew(dry: Sequence[DrivePartition] = dry) -> None:
            for partition in dry:
                if partition.views is not None:
                    partition.views.clear()  # the scans of unchanged partitions stay

        found, failed = read_again(plan_drive, renew)
        plans += found
        errors.update(failed)
    return plans, errors


def _clean_due(
    dirs: OpenDirs,
    wanted: Collection[tuple[str, int]],
    strategy: str | None,
    meter: Meter,
    stop: Callable[[], bool] | None,
    failed: list[LastwordError],
) -> Iterator[CleanRound]:
    """Run the due cleanings and yield each result. The errors of wanted partitions are added to `failed`."""
    from lastword.cleaner.drive import InlineExecutor

    for drive, partitions in _drives(dirs, wanted, strategy):
        held = {partition.tp for partition in partitions if partition.tp not in wanted}
        executor = InlineExecutor(dirs.drives.budget(drive), stop, meter.progress_part)
        cleaner = _drive_cleaner(dirs, drive, partitions, executor)
        yield from cleaner.clean(held, stop)
        failed += [error for tp, error in cleaner.errors.items() if tp in wanted]


def _drives(
    dirs: OpenDirs, wanted: Collection[tuple[str, int]], strategy: str | None
) -> Iterator[tuple[str, list[DrivePartition]]]:
    """Yield each drive that holds a wanted partition, with all partitions on it that are cleaned by accounts.

    The space target of a drive is for all of them together.
    """
    from lastword.cleaner.inspection import DrivePartition

    drives: dict[str, list[DrivePartition]] = {}
    for topic, numbers in dirs.dir_set.log_dirs_by_topic().items():  # of the version that the verb uses
        if not by_accounts(dirs.config(topic), strategy):
            continue
        for number, log_dir in numbers.items():
            if dirs.dir_set.serves(log_dir):
                partition = DrivePartition.of(TopicPartition(topic, number), log_dir)
                drives.setdefault(dirs.drives.drive_of(log_dir.path), []).append(partition)
    for drive, partitions in drives.items():
        if any(partition.tp in wanted for partition in partitions):
            yield drive, partitions


def _drive_cleaner(
    dirs: OpenDirs, drive: str, partitions: Sequence[DrivePartition], executor: InlineExecutor
) -> DriveCleaner:
    from lastword.cleaner.drive import DriveCleaner

    space_target = dirs.settings.instance.lastword_space_target
    return DriveCleaner(drive, partitions, executor, space_target=space_target, clock=dirs.clock)


# ---------------------------------------------------------------- checks


def _sizes(dirs: OpenDirs, partitions: Sequence[tuple[str, int]]) -> dict[tuple[str, int], int]:
    """Open partitions and return their bytes; 0 if one cannot be opened: cleaning it raises the error."""

    def size(tp: tuple[str, int]) -> int:
        try:
            return dirs.log(*tp).segment_set.size
        except (DataError, StorageError, UnknownTopicError):
            return 0

    for log_dir, inside in _by_directory(dirs, partitions).items():
        with suppress(DataError, StorageError, UnknownTopicError):  # or it is moved now
            log_dir.logs(inside)
    return {tp: size(tp) for tp in partitions}


def _by_directory(
    dirs: OpenDirs, partitions: Sequence[tuple[str, int]]
) -> dict[LogDirectory, list[TopicPartition]]:
    grouped: dict[LogDirectory, list[TopicPartition]] = {}
    for tp in partitions:
        grouped.setdefault(dirs.log_dir(*tp), []).append(TopicPartition(*tp))
    return grouped


def _check_policy(dirs: OpenDirs, topic: str) -> None:
    config = dirs.config(topic)
    if config.policy is None:
        raise NoPolicyError.of(topic, dirs.paths[0], config.unread)
    if not config.policy:
        raise NoPolicyError(
            f"{topic} has cleanup.policy=none: all its records stay",
            remedy="nothing is to be done: the topic's owner chose to keep everything",
        )
    if not config.compacts:
        where = f"{shlex.quote(dirs.paths[0])} {topic}"
        raise NoPolicyError(
            f"{topic} has cleanup.policy={config.policy_text}: superseded records stay",
            remedy=f"`lastword expire {where}` applies that policy; "
            f"`lastword config {where} --set cleanup.policy=compact,delete` removes superseded records, too",
        )


def unread_topics(dirs: OpenDirs, topics: Iterable[str]) -> list[str]:
    """Return a sentence for each reason why settings of topics cannot be read: which, why, the remedy."""
    by_reason: dict[Unread, list[str]] = {}
    for name in topics:
        reason = dirs.config(name).unread
        if reason is not None:
            by_reason.setdefault(reason, []).append(name)
    sentences = []
    for reason, named in by_reason.items():
        error = NoPolicyError.of(named[0] if len(named) == 1 else "TOPIC", dirs.paths[0], reason)
        shown = named[0] if len(named) == 1 else f"{len(named)} topics ({', '.join(named[:3])}"
        shown += "" if len(named) == 1 else ")" if len(named) <= 3 else ", ...)"
        sentences.append(f"nothing is removed from {shown}: {reason.why}; {error.remedy}")
    return sentences


def _warn_unread(dirs: OpenDirs) -> None:
    """Log why nothing is removed from topics whose settings cannot be read."""
    for sentence in unread_topics(dirs, dirs.topics()):
        _log.warning("lastword: %s", sentence)


def quarantined(dirs: OpenDirs, topic: Topics, partition: int | None) -> list[QuarantinedError]:
    """Return the error of each chosen partition that is compacted and quarantined."""
    why = []
    for name, number in dirs.select(topic, partition):
        if dirs.config(name).compacts and dirs.dir_set.serves(dirs.log_dir(name, number)):
            try:
                check_quarantine(dirs, name, number)
            except QuarantinedError as error:
                why.append(error)
            except StorageError:  # raised by the call that uses the partition
                continue
    return why


def check_quarantine(dirs: OpenDirs, name: str, number: int) -> None:
    """Raise QuarantinedError if a partition is in quarantine."""
    from lastword.cleaner.policy import quarantine

    directory = dirs.log_dir(name, number).directory(name, number)
    noted = quarantine.load(dirs.files, directory)
    if noted is not None:
        raise QuarantinedError(
            f"{name}-{number} is quarantined: {noted.reason}",
            remedy=f"{quarantine.RESTORE}, then {quarantine.retrying(directory, f'{name}-{number}')}",
            file=noted.file,
            position=noted.position,
            offset=noted.offset,
        )


def _plan_of(deletion: Deletion, view: PartitionView) -> Plan:
    """Convert a deletion by retention to a plan."""
    return Plan(
        topic=deletion.topic,
        partition=deletion.partition,
        action="delete",
        due=True,
        strategy="retention",
        segments=deletion.segments,
        read_bytes=0,
        write_bytes=0,
        free_bytes=deletion.freed_bytes,
        exact=True,
        reasons=tuple(Reason(code, deletion.reason) for code in deletion.codes[:1]),
        log_start=deletion.log_start,
        total_segments=len(view.segments),
        total_bytes=view.segment_set.size,
    )


def expire(
    dirs: OpenDirs, topic: Topics, partition: int | None, stop: Callable[[], bool] | None = None
) -> list[Deletion]:
    """See `LogDir.expire`."""
    from lastword.retention import Deletion
    from lastword.retention import expire as expire_partitions

    dirs.require_writable()
    chosen = dirs.select(topic, partition)
    if topic is None:
        _warn_unread(dirs)
    for name in () if topic is None else named_topics(topic):
        if dirs.config(name).policy is None:
            raise NoPolicyError.of(name, dirs.paths[0], dirs.config(name).unread)
    known = [tp for tp in chosen if dirs.config(tp[0]).policy is not None]
    results: dict[TopicPartition, Deletion | LastwordError] = {}
    for log_dir, inside in _by_directory(dirs, known).items():
        results |= expire_partitions(log_dir, inside, stop=stop)
    for log_dir in dirs.directories:
        log_dir.remove_deferred()
    in_order = [results[tp] for tp in map(TopicPartition._make, known) if tp in results]
    done = [result for result in in_order if isinstance(result, Deletion) and result.removes]
    failed = [result for result in in_order if isinstance(result, LastwordError)]
    return PartialFailure.check(done, failed)


def expire_outlook(dirs: OpenDirs, topic: Topics, partition: int | None) -> list[Deletion]:
    """Return for every partition the deletion that `expire` would make, also if it removes nothing.

    Raises:
        PartialFailure: Partitions cannot be viewed; raised at the end, with the deletions of the others.
    """
    from lastword.retention import outlook

    now_ms = dirs.clock.now_ms()
    done: list[Deletion] = []
    views, errors = dirs.checked_views(dirs.select(topic, partition))
    failed = list(errors.values())
    for (name, _), view in views.items():
        with PartialFailure.collecting(failed):
            done.append(outlook(view, dirs.config(name), now_ms))
    return PartialFailure.check(done, failed)


def trim(
    dirs: OpenDirs, topic: str, partition: int | None, before: int | datetime, *, dry_run: bool = False
) -> dict[int, int]:
    """See `Topic.trim`. All partitions are checked before the first is changed.

    Args:
        dirs: The open directories.
        topic: The topic.
        partition: One partition; None: all.
        before: Offset or time of the first record to keep.
        dry_run: Change nothing, and return the log starts that would result.
    """
    from lastword.retention import trim as trim_partitions
    from lastword.retention import trim_offset

    numbers = [number for _, number in dirs.select(topic, partition)]
    wanted = {number: trim_offset(dirs.view(topic, number), before) for number in numbers}
    if dry_run:
        return wanted
    dirs.require_writable()
    errors: dict[TopicPartition, LastwordError] = {}
    for log_dir, inside in _by_directory(dirs, [(topic, number) for number in numbers]).items():
        errors |= trim_partitions(log_dir, {tp: wanted[tp.partition] for tp in inside})
    failed = [errors[tp] for tp in sorted(errors)]
    log_starts = {
        number: dirs.log(topic, number).log_start
        for number in numbers
        if TopicPartition(topic, number) not in errors
    }
    return PartialFailure.check(log_starts, failed)
