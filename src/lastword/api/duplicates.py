"""`duplication` for whoever holds a `LogDir`: which partitions are looked at, and how progress is told."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from lastword.api.progress import Meter
from lastword.errors import DataError, UsageError, nearest
from lastword.values import ProgressLike

if TYPE_CHECKING:
    from lastword.api.found import By, Found
    from lastword.tools.duplication import Duplication


def duplication(
    logs: Found,
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
    for name, number in logs._chosen(topic, partition):
        chosen.setdefault(name, []).append(number)
    views = {name: {n: logs._view(name, n) for n in numbers} for name, numbers in chosen.items()}
    size = sum(one.size for topics in views.values() for view in topics.values() for one in view.segments)
    most_passes = 1 if not exact else 2 if by == "segment" else 3
    meter = Meter("duplication", progress, size * most_passes)
    found: list[Duplication] = []
    failed: DataError | None = None
    for name, of_topic in views.items():
        whole = len(of_topic) == len(logs._partitions(name))
        try:
            if exact:
                map_bytes = logs.settings.instance.map_bytes
                found += counted(name, of_topic, by, meter.part, whole=whole, map_bytes=map_bytes)
            else:
                found += estimated(name, of_topic, by, meter.part, whole=whole)
        except DataError as error:
            failed = failed or error
    if failed is not None:
        failed.rows = found  # type: ignore[attr-defined]  # of the sound topics, for who catches it
        raise failed
    return found


def check_by(by: str) -> By:
    """The unit of a row, checked. UsageError for what no row can stand for."""
    from lastword.tools.duplication import BY

    if by not in BY:
        near = nearest(by, BY)
        raise UsageError(
            f"unknown by={by!r}" + (f"; nearest: {near}" if near else ""), remedy=f"one of {', '.join(BY)}"
        )
    return cast("By", by)
