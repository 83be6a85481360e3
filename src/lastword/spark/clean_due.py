"""What is due by garbage accounts, as Spark tasks: `api.due` with its scans and rewrites elsewhere.

The same looks, the same choices. Where the library looks again after each round, here all rounds that are due
by one look are made at once, a task for each partition, and then it is looked again, until no obligation is
left that anything can be done about. A look costs a task only for partitions that changed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from lastword.errors import LastwordError
from lastword.spark import clean_tasks
from lastword.spark.clean_tasks import ChosenTask, LookTask, RoundTask

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lastword.accounts.values import DriveAccount
    from lastword.cleaner.distributed.remote import LedgerParams
    from lastword.cleaner.drive import Place
    from lastword.cleaner.policy.generational import Choice, Run
    from lastword.cleaner.policy.plan import Plan
    from lastword.config import TopicConfig
    from lastword.logdir.checkpoints import TopicPartition
    from lastword.logdir.ledgers import Ledgers
    from lastword.logdir.log_dir import LogDirectory
    from lastword.spark.clean_publish import Publishing


def by_accounts(config: TopicConfig, strategy: str | None) -> bool:
    """Is a topic with these settings cleaned by accounts?"""
    return config.compacts and (strategy or config.lastword_strategy) == "generational"


def opening(directory: LogDirectory, ledgers: Ledgers, tp: TopicPartition) -> LedgerParams:
    """With what a task opens a partition's accounts; the drive's time runs on by what was appended here."""
    from lastword.accounts.snapshot import saved_time
    from lastword.cleaner.distributed.remote import LedgerParams

    time = saved_time(directory.files, directory.directory(*tp))
    ledgers.advance(tp, directory.view(*tp).segments, time)
    return LedgerParams(
        time.t, time.seen, directory.path, directory.settings.instance.lastword_survivorship_alpha
    )


def clean_due(
    spark: SparkSession,
    directory: LogDirectory,
    wanted: Collection[TopicPartition],
    strategy: str | None,
    publishing: Publishing,
) -> None:
    """Rounds over wanted partitions until nothing more is due. One whose round fails is left alone."""
    from lastword.cleaner.drive import outlook
    from lastword.cleaner.engine.partition import alone, prepare
    from lastword.cleaner.policy.plan import Request
    from lastword.spark.tasks import as_answered

    places = _places(directory, strategy)
    held = {one.partition for one in places if one.partition not in wanted}
    done: set[tuple[TopicPartition, int, int, int]] = set()
    while True:
        now_ms = directory.clock.now_ms()
        failed = publishing.failed
        account = _looked(spark, directory, directory.ledgers, places, held, now_ms, failed, dry=False)
        runs = _runs(outlook(account, now_ms)[0])
        if not runs:
            return
        marks = {
            tp: {(tp, one.base_offset, one.next_offset, one.read_bytes) for one in each}
            for tp, each in runs.items()
        }
        stuck = {tp for tp in runs if marks[tp] <= done}
        held |= stuck  # they were rewritten just now, and are as they were: no more can be done here
        done = done.union(*marks.values())
        tasks: list[tuple[TopicPartition, RoundTask]] = []
        with ExitStack() as held_alone:
            for tp, each in runs.items():
                if tp in stuck:
                    continue
                log, config = directory.log(*tp), directory.topic_config(tp.topic)
                held_alone.enter_context(alone(log.directory))
                map_bytes = directory.settings.instance.map_bytes
                request = Request(directory.first_dirty(*tp), True, "generational", map_bytes)
                plan = prepare(log, config, request)
                if plan.action != "clean":
                    held.add(tp)
                    continue
                accounts = opening(directory, directory.ledgers, tp)
                tasks.append((tp, RoundTask(log.directory, plan, config, accounts, tuple(each))))
            tasks.sort(key=lambda one: -sum(run.read_bytes for run in one[1].runs or ()))
            for number, built in as_answered(spark, clean_tasks.build, [task for _, task in tasks]):
                tp, task = tasks[number]
                if not publishing.take(task.plan, built):
                    held.add(tp)


def plan_due(
    spark: SparkSession,
    directory: LogDirectory,
    wanted: Sequence[TopicPartition],
    strategy: str | None,
) -> dict[TopicPartition, Plan]:
    """What `clean_due` would do now with each wanted partition, or why nothing; changes nothing."""
    from lastword.cleaner.drive import outlook, plan_of
    from lastword.cleaner.policy import quarantine
    from lastword.cleaner.policy.plan import QUARANTINED
    from lastword.spark.tasks import run_tasks

    places = _places(directory, strategy)
    ledgers = directory.new_ledgers(saves=False)
    held = {one.partition for one in places if one.partition not in wanted}
    now_ms = directory.clock.now_ms()
    failed: list[LastwordError] = []
    account = _looked(spark, directory, ledgers, places, held, now_ms, failed, dry=True)
    if failed:
        raise failed[0]
    choices = tuple(outlook(account, now_ms)[0])
    found: dict[TopicPartition, Plan] = {}
    tasks: dict[TopicPartition, ChosenTask] = {}
    for place in places:
        tp = place.partition
        if tp not in wanted:
            continue
        view = directory.view(*tp)
        plan = plan_of(place, view, now_ms)
        set_aside = quarantine.load(directory.files, view.directory)
        if set_aside is not None:
            found[tp] = plan.kept(QUARANTINED, set_aside.reason)
        elif plan.action != "clean":
            found[tp] = plan
        else:
            config = directory.topic_config(tp.topic)
            own = tuple(
                one
                for one in choices[:-1]
                if one.run is not None and (one.run.topic, one.run.partition) == tp
            )
            tasks[tp] = ChosenTask(
                view.directory, plan, config, opening(directory, ledgers, tp), (*own, choices[-1])
            )
    found.update(zip(tasks, run_tasks(spark, clean_tasks.plan_chosen, list(tasks.values())), strict=True))
    return found


def _places(directory: LogDirectory, strategy: str | None) -> list[Place]:
    """All partitions on the drive that are cleaned by accounts: its target is for all of them together."""
    from lastword.cleaner.drive import Place

    return [
        Place(tp, directory)
        for tp in directory.topic_partitions()
        if by_accounts(directory.topic_config(tp.topic), strategy)
    ]


def _looked(
    spark: SparkSession,
    directory: LogDirectory,
    ledgers: Ledgers,
    places: list[Place],
    held: Collection[TopicPartition],
    now_ms: int,
    failed: list[LastwordError],
    *,
    dry: bool,
) -> DriveAccount:
    """The drive's accounts, up to date. A partition that cannot be looked at leaves `places`, and its error
    goes to `failed`."""
    from lastword.cleaner.distributed import remote
    from lastword.cleaner.drive import look, plan_of
    from lastword.spark.tasks import as_answered

    def look_here(stale: list[Place], failed: list[LastwordError]) -> DriveAccount:
        return look(
            places,
            directory.path,
            now_ms=now_ms,
            space_target=directory.settings.instance.lastword_space_target,
            held=held,
            ledgers=lambda home: ledgers,
            failed=failed,
            stale=stale,
        )

    stale: list[Place] = []
    account = look_here(stale, [])
    if not stale:
        return account
    tasks = []
    for place in sorted(stale, key=lambda one: -_size(directory, one.partition)):
        tp = place.partition
        view = directory.view(*tp)
        plan = plan_of(place, view, now_ms)
        config = directory.topic_config(tp.topic)
        tasks.append((place, LookTask(view.directory, plan, config, opening(directory, ledgers, tp), dry)))
    for number, found in as_answered(spark, clean_tasks.look, [task for _, task in tasks]):
        place, task = tasks[number]
        if isinstance(found, LastwordError):
            failed.append(found)
            places.remove(place)
            continue
        remote.save(directory.files, task.directory, found.accounts)
        ledgers.seen[place.partition] = found.seen
    return look_here([], failed)


def _runs(choices: Sequence[Choice]) -> dict[TopicPartition, list[Run]]:
    """Of each partition what is rewritten now: runs that do not touch each other, the best first; others
    wait for the next look."""
    from lastword.cleaner.policy.generational import disjoint
    from lastword.logdir.checkpoints import TopicPartition

    found: dict[TopicPartition, list[Run]] = {}
    for one in choices:
        if one.run is not None:
            found.setdefault(TopicPartition(one.run.topic, one.run.partition), []).append(one.run)
    apart = {tp: disjoint(runs) for tp, runs in found.items()}
    return {tp: [run for run in runs if run in apart[tp]] for tp, runs in found.items()}


def _size(directory: LogDirectory, tp: TopicPartition) -> int:
    return sum(one.size for one in directory.view(*tp).segments)
