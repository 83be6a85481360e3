"""What is due by garbage accounts, drive by drive: for `LogDir.clean` and `LogDir.plan` with `due=True`.

One round at a time: look at the drive, rewrite its best run, look again, until no obligation is left that
anything can be done about.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING

from lastword.api.progress import Meter
from lastword.errors import LastwordError
from lastword.logdir.checkpoints import TopicPartition

if TYPE_CHECKING:
    from lastword.accounts.values import DriveAccount
    from lastword.api.open_dirs import OpenDirs
    from lastword.cleaner import CleanRound, Plan
    from lastword.cleaner.drive import Place

Wanted = Collection[tuple[str, int]]


def by_accounts(dirs: OpenDirs, topic: str, strategy: str | None) -> bool:
    """Is this topic cleaned by accounts?"""
    config = dirs.config(topic)
    return config.compacts and (strategy or config.lastword_strategy) == "generational"


def drives(dirs: OpenDirs, wanted: Wanted, strategy: str | None) -> Iterator[tuple[str, list[Place]]]:
    """Each drive that holds a wanted partition, with all partitions on it that are cleaned by accounts: its
    target is for all of them together."""
    from lastword.cleaner.drive import Place

    places: dict[str, list[Place]] = {}
    for topic, numbers in dirs.topics().items():
        if not by_accounts(dirs, topic, strategy):
            continue
        for number, home in numbers.items():
            if dirs.dir_set.serves(home):
                name = dirs.drives.drive_of(home.path)
                places.setdefault(name, []).append(Place(TopicPartition(topic, number), home))
    for name, here in places.items():
        if any(one.partition in wanted for one in here):
            yield name, here


def clean_due(
    dirs: OpenDirs,
    wanted: Wanted,
    strategy: str | None,
    meter: Meter,
    stop: Callable[[], bool] | None,
    failed: list[LastwordError],
) -> Iterator[CleanRound]:
    """Rounds over wanted partitions, each as it is done. A partition whose round fails is left alone, its
    error goes to `failed`."""
    for name, places in drives(dirs, wanted, strategy):
        yield from _clean_drive(dirs, name, places, wanted, meter, stop, failed)


def _clean_drive(
    dirs: OpenDirs,
    name: str,
    places: list[Place],
    wanted: Wanted,
    meter: Meter,
    stop: Callable[[], bool] | None,
    failed: list[LastwordError],
) -> Iterator[CleanRound]:
    from lastword.cleaner.drive import look, rewrite
    from lastword.cleaner.engine.throttle import Stopped
    from lastword.cleaner.policy.generational import choose_drive

    held = {one.partition for one in places if one.partition not in wanted}
    here = {one.partition: one for one in places}
    done: set[tuple[TopicPartition, int, int, int]] = set()
    told: set[TopicPartition] = set()
    while stop is None or not stop():
        now_ms = dirs.clock.now_ms()
        errors: list[LastwordError] = []
        try:
            account = look(
                places,
                name,
                now_ms=now_ms,
                space_target=dirs.settings.instance.lastword_space_target,
                held=held,
                failed=errors,
                stop=stop,
                budget=dirs.drives.budget(name),
            )
        except Stopped:
            break
        for tp, error in _unseen(places, account, errors).items():
            if tp in wanted and tp not in told:
                told.add(tp)
                failed.append(error)
        choice = choose_drive(account, now_ms)
        if choice.run is None:
            break
        tp = TopicPartition(choice.run.topic, choice.run.partition)
        mark = (tp, choice.run.base_offset, choice.run.next_offset, choice.run.read_bytes)
        if mark in done:  # it was rewritten just now, and is as it was: no more can be done here
            held.add(tp)
            continue
        done.add(mark)
        place = here[tp]
        try:
            with meter.progress_part(choice.run.read_bytes) as part, place.home.claim(*tp):
                round_ = rewrite(place, choice.run, progress=part, stop=stop, budget=dirs.drives.budget(name))
        except LastwordError as error:
            failed.append(error)
            held.add(tp)
            continue
        if round_ is not None:
            yield round_
            if round_.stopped_by == "lease":
                held.add(tp)  # by the next look its tombstones wait
            elif not round_.complete:
                break


def _unseen(
    places: list[Place], account: DriveAccount, errors: list[LastwordError]
) -> dict[TopicPartition, LastwordError]:
    """The partitions that a look at a drive left out, each with its error."""
    seen = {(one.topic, one.partition) for one in account.partitions}
    return dict(zip((one.partition for one in places if one.partition not in seen), errors, strict=True))


def plan_due(
    dirs: OpenDirs,
    wanted: Wanted,
    strategy: str | None,
    failed: dict[TopicPartition, LastwordError],
    *,
    only: Wanted | None = None,
) -> Iterator[Plan]:
    """What `clean_due` would do now with each wanted partition, or why nothing; changes nothing.

    failed   takes the errors of partitions that cannot be looked at
    only     plans are for these of the wanted partitions; None: for all
    """
    from lastword.cleaner.drive import look, outlook, plan_of, planned
    from lastword.cleaner.engine.cleaning import Context
    from lastword.cleaner.policy import quarantine
    from lastword.cleaner.policy.plan import QUARANTINED

    for name, places in drives(dirs, wanted, strategy):
        now_ms = dirs.clock.now_ms()
        own = {one.home.path: one.home.new_ledgers(saves=False) for one in places}
        errors: list[LastwordError] = []
        account = look(
            places,
            name,
            now_ms=now_ms,
            space_target=dirs.settings.instance.lastword_space_target,
            held={one.partition for one in places if one.partition not in wanted},
            # mypy cannot infer a lambda with a default; the default binds this turn's ledgers.
            ledgers=lambda home, own=own: own[home.path],  # type: ignore[misc]
            failed=errors,
        )
        failed.update(_unseen(places, account, errors))
        dead_bytes = {TopicPartition(one.topic, one.partition): one.dead_bytes for one in account.partitions}
        choices, _ = outlook(account, now_ms)
        for place in places:
            if place.partition not in (wanted if only is None else only) or place.partition in failed:
                continue
            view = place.home.view(*place.partition)
            plan = plan_of(place, view, now_ms, dead_bytes.get(place.partition, 0))
            set_aside = quarantine.load(place.home.files, view.directory)
            if set_aside is not None:
                yield plan.kept(QUARANTINED, set_aside.reason)
                continue
            if plan.action != "clean":
                yield plan
                continue
            with own[place.home.path].of(place.partition, view) as ledger:
                yield planned(
                    view,
                    place.home.topic_config(place.partition.topic),
                    plan,
                    ledger,
                    choices,
                    Context(place.home.files, dirs.clock, dry=True),
                )
