"""`duplication` for whoever holds a `LogDir`: which partitions are looked at, and how progress is told."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from lastword.api.progress import Meter
from lastword.errors import DataError, LastwordError, PartialFailure, StorageError, UsageError, nearest
from lastword.values import ProgressLike

if TYPE_CHECKING:
    from lastword.api.open_dirs import By, OpenDirs
    from lastword.partition.view import PartitionView
    from lastword.tools.duplication import Duplication


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
    size = sum(one.size for topics in views.values() for view in topics.values() for one in view.segments)
    most_passes = 1 if not exact else 2 if by == "segment" else 3
    meter = Meter("duplication", progress, size * most_passes)
    found: list[Duplication] = []
    failed = list(errors)
    for name, of_topic in views.items():
        whole = len(of_topic) == len(dirs.partitions(name))
        try:
            if exact:
                map_bytes = dirs.settings.instance.map_bytes
                found += counted(name, of_topic, by, meter.part, whole=whole, map_bytes=map_bytes)
            else:
                found += estimated(name, of_topic, by, meter.part, whole=whole)
        except (DataError, StorageError) as error:
            failed.append(error)
    if failed:
        raise PartialFailure.of(found, failed) from failed[0]
    return found


def _views(
    dirs: OpenDirs, chosen: dict[str, list[int]], by: str
) -> tuple[dict[str, dict[int, PartitionView]], list[LastwordError]]:
    """Views of each topic's partitions, and the errors of those that have none: the rest of such a topic is
    counted, but no row stands for the whole of it."""
    views: dict[str, dict[int, PartitionView]] = {}
    errors: list[LastwordError] = []
    for name, numbers in chosen.items():
        found, failed = dirs.checked_views((name, number) for number in numbers)
        errors += failed.values()
        if found and not (failed and by == "topic"):
            views[name] = {number: view for (_, number), view in found.items()}
    return views, errors


def check_by(by: str) -> By:
    """The unit of a row, checked. UsageError for what no row can stand for."""
    from lastword.tools.duplication import BY

    if by not in BY:
        near = nearest(by, BY)
        raise UsageError(
            f"unknown by={by!r}" + (f"; nearest: {near}" if near else ""), remedy=f"one of {', '.join(BY)}"
        )
    return cast("By", by)
