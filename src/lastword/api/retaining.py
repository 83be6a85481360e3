"""The verbs `expire` and `trim`: what goes by age, size and log start, and what somebody gives up by hand."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING

from lastword.errors import (
    CapacityError,
    DataError,
    LastwordError,
    NoPolicyError,
    PartialFailure,
    StorageError,
)

if TYPE_CHECKING:
    from lastword.api.found import Found
    from lastword.retention import Deletion


def expire(
    found: Found, topic: str | None, partition: int | None, stop: Callable[[], bool] | None = None
) -> list[Deletion]:
    """See `LogDir.expire`."""
    from lastword.retention.expire import expire as expire_one

    found._check_writable()
    chosen = found._chosen(topic, partition)
    if topic is not None and found._config(topic).cleanup_policy is None:
        raise NoPolicyError.of(topic, found.paths[0])
    done: list[Deletion] = []
    failed: list[LastwordError] = []
    for name, number in chosen:
        if found._config(name).cleanup_policy is None:
            continue
        if stop is not None and stop():  # between two partitions: each is whole
            break
        try:
            deletion = expire_one(found._home(name, number), name, number)
        except (DataError, CapacityError, StorageError) as error:
            failed.append(error)
            continue
        if deletion.removes:
            done.append(deletion)
    for home in found._directories:
        home.remove_waste()
    if failed:
        raise PartialFailure.of(done, failed) from failed[0]
    return done


def expire_outlook(found: Found, topic: str | None, partition: int | None) -> list[Deletion]:
    """What `expire` would do with every partition, also with those that lose nothing.

    A partition that cannot be viewed does not stop the others: PartialFailure, raised at the end, holds
    their deletions.
    """
    from lastword.retention.expire import outlook

    now_ms = found._clock.now_ms()
    done: list[Deletion] = []
    views, errors = found._viewed(found._chosen(topic, partition))
    failed = list(errors.values())
    for (name, _), view in views.items():
        try:
            done.append(outlook(view, found._config(name), now_ms))
        except (DataError, StorageError) as error:
            failed.append(error)
    if failed:
        raise PartialFailure.of(done, failed) from failed[0]
    return done


def trim(
    found: Found, topic: str, partition: int | None, before: int | datetime, *, dry_run: bool = False
) -> dict[int, int]:
    """See `Topic.trim`. All partitions are looked at before the first one is changed; with `dry_run` none is,
    and what would be the log starts is returned."""
    from lastword.retention.trim import trim_offset

    numbers = [number for _, number in found._chosen(topic, partition)]
    wanted = {number: trim_offset(found._view(topic, number), before) for number in numbers}
    if dry_run:
        return wanted
    found._check_writable()
    for number, offset in wanted.items():
        home = found._home(topic, number)
        with home.claim(topic, number):
            home.raise_log_start(topic, number, offset, "trim")
            home.log(topic, number).remove_front()
    return {number: found._home(topic, number).log(topic, number).log_start for number in numbers}
