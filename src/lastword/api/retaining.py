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
    from lastword.api.open_dirs import OpenDirs
    from lastword.retention import Deletion


def expire(
    dirs: OpenDirs, topic: str | None, partition: int | None, stop: Callable[[], bool] | None = None
) -> list[Deletion]:
    """See `LogDir.expire`."""
    from lastword.retention.expire import expire as expire_one

    dirs.require_writable()
    chosen = dirs.select(topic, partition)
    if topic is not None and dirs.config(topic).cleanup_policy is None:
        raise NoPolicyError.of(topic, dirs.paths[0])
    done: list[Deletion] = []
    failed: list[LastwordError] = []
    for name, number in chosen:
        if dirs.config(name).cleanup_policy is None:
            continue
        if stop is not None and stop():  # between two partitions: each is whole
            break
        try:
            deletion = expire_one(dirs.log_dir(name, number), name, number)
        except (DataError, CapacityError, StorageError) as error:
            failed.append(error)
            continue
        if deletion.removes:
            done.append(deletion)
    for home in dirs.directories:
        home.remove_deferred()
    if failed:
        raise PartialFailure.of(done, failed) from failed[0]
    return done


def expire_outlook(dirs: OpenDirs, topic: str | None, partition: int | None) -> list[Deletion]:
    """What `expire` would do with every partition, also with those that lose nothing.

    A partition that cannot be viewed does not stop the others: PartialFailure, raised at the end, holds
    their deletions.
    """
    from lastword.retention.expire import outlook

    now_ms = dirs.clock.now_ms()
    done: list[Deletion] = []
    views, errors = dirs.checked_views(dirs.select(topic, partition))
    failed = list(errors.values())
    for (name, _), view in views.items():
        try:
            done.append(outlook(view, dirs.config(name), now_ms))
        except (DataError, StorageError) as error:
            failed.append(error)
    if failed:
        raise PartialFailure.of(done, failed) from failed[0]
    return done


def trim(
    dirs: OpenDirs, topic: str, partition: int | None, before: int | datetime, *, dry_run: bool = False
) -> dict[int, int]:
    """See `Topic.trim`. All partitions are looked at before the first one is changed; with `dry_run` none is,
    and what would be the log starts is returned."""
    from lastword.retention.expire import trim_offset

    numbers = [number for _, number in dirs.select(topic, partition)]
    wanted = {number: trim_offset(dirs.view(topic, number), before) for number in numbers}
    if dry_run:
        return wanted
    dirs.require_writable()
    for number, offset in wanted.items():
        home = dirs.log_dir(topic, number)
        with home.claim(topic, number):
            home.raise_log_start(topic, number, offset, "trim")
            home.log(topic, number).remove_prefix()
    return {number: dirs.log_dir(topic, number).log(topic, number).log_start for number in numbers}
