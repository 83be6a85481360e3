"""`lastword copy`: copy topics between directories and logs in buckets."""

from __future__ import annotations

from typing import Annotated

import typer

from lastword.cli import signals
from lastword.cli.command import CONTEXT, Session, argument, command, option
from lastword.cli.output import attempted
from lastword.cli.target import MoreDirs, Target, storage_of
from lastword.errors import PartialFailure, UsageError
from lastword.objects import is_url
from lastword.units import format_bytes
from lastword.values import plural, sums


@command("copy", usage="SRC DST [TOPIC...]", changes=True)
def copy(
    out: Session,
    source: Annotated[str, argument("SRC", "a log directory or a URL; it is not changed")],
    target: Annotated[str, argument("DST", "a log directory or a URL; made if absent")],
    topics: Annotated[list[str] | None, argument("TOPIC...", "only these topics")] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="read source and target again, and compare their digests")
    ] = False,
    source_storage: Annotated[
        list[str] | None, option("key=value", "an option of the store of SRC, if it is not --storage")
    ] = None,
    more: MoreDirs = None,
) -> None:
    """Copy topics to another log: to a bucket, back, or between two directories or buckets.

    Offsets, timestamps, settings, leases and names of batches stay. A second copy sends what is new or was
    cleaned, and goes on where a stopped copy ended.

    Examples:
        lastword copy /srv/kafka s3://bucket/backup users
        lastword copy s3://bucket/backup restored users --verify
        lastword copy data copied
    """
    import lastword

    origin = Target.of(source, None, None, more)
    origin.refuse_partition("copy", target, *origin.topics)
    if source_storage and not is_url(origin.paths[0]):
        raise UsageError("--source-storage is for a SRC in a bucket", remedy="omit --source-storage")
    with signals.held(), out.progress("copy") as progress:
        results, failed = attempted(
            lambda: out.when_free(
                lambda: lastword.copy(
                    origin.paths if len(origin.paths) > 1 else origin.paths[0],
                    target,
                    topics or None,
                    verify=verify,
                    storage_options=out.storage or None,
                    source_storage_options=storage_of(source_storage) or None,
                    config=out.config,
                    clock=CONTEXT.clock,
                    progress=progress,
                    stop=signals.noted,
                )
            ),
            PartialFailure,
        )
    for result in results:
        out.row("copy", result.to_dict())
        out.line(str(result))
    segments = ("copied_segments", "kept_segments", "removed_segments")
    totals = sums(results, "copied_bytes", *segments, "verified")
    out.summary(
        f"copied {plural(totals['copied_segments'], 'segment')}, {format_bytes(totals['copied_bytes'])}; "
        f"kept {totals['kept_segments']}",
        ok=not failed and not signals.noted(),
        partitions=len(results),
        **totals,
    )
    out.raise_all(failed)
