"""`lastword lease`: readers that hold tombstones back, and how far they have come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from lastword.cli import signals
from lastword.cli.command import Session, command, now_ms
from lastword.cli.target import Directory, MoreDirs, Partition, Target, TopicName
from lastword.errors import LeaseRefusedError, UsageError
from lastword.units import format_time
from lastword.values import plural

if TYPE_CHECKING:
    from lastword.api.lease import LeaseInfo

EXAMPLES = """
lastword lease data users
lastword lease data users replica-2 -p 0 --advance 4711
lastword lease data users replica-2 --release
"""


def register(app: typer.Typer) -> None:
    command(app, "lease", usage="DIR TOPIC [NAME]", examples=EXAMPLES)(lease)


def lease(
    out: Session,
    directory: Directory,
    topic: TopicName = None,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="a lease's name")] = None,
    partition: Partition = None,
    advance: Annotated[
        int | None, typer.Option(metavar="OFFSET", help="its reader will read this next; taken if new")
    ] = None,
    release: Annotated[bool, typer.Option("--release", help="give it back")] = False,
    max_age: Annotated[
        str | None,
        typer.Option(
            "--max-age", metavar="AGE", help="of a new one: lapses so long after it was advanced; 7d"
        ),
    ] = None,
    more: MoreDirs = None,
) -> None:
    """List the leases on a topic, or change one.

    A tombstone stays until the reader of every lease has passed it. Works beside a writer, without a lock.
    """
    target, (name,) = Target.with_words("lease", directory, [topic, name], ["NAME"], partition, more)
    known_as = target.topic_for("lease")
    if name is None and (advance is not None or release):
        raise UsageError("whose lease?", remedy=target.command("lease", known_as))
    if max_age is not None and advance is None:
        raise UsageError("--max-age is for a lease that is taken", remedy="--advance OFFSET takes it")
    if advance is not None and release:
        raise UsageError("--advance and --release at once", remedy="give one of them")
    if release and target.partition is not None:
        raise UsageError(
            "a lease is released in all partitions",
            remedy=target.command("lease", known_as, name or "NAME", "--release"),
        )
    from lastword.api.lease import Lease

    with signals.held(), out.open(target) as logs:
        known = logs.topic(known_as)
        there = [one for one in known.leases(target.partition) if name in (None, one.name)]
        if release and name is not None:
            if not there:
                raise LeaseRefusedError(
                    f"{known_as} has no lease {name!r}",
                    remedy=target.command("lease", known_as),
                )
            Lease(logs.dirs, known_as, name).release()
            out.line(f"{known_as}: {name} is released")
            out.summary(topic=known_as, released=len(there))
            return
        if advance is not None and name is not None:
            position = advance if target.partition is None else {target.partition: advance}
            if there:
                Lease(logs.dirs, known_as, name).advance(position)
            else:
                known.lease(name, position=position, max_age=max_age or "7d")
            there = [one for one in known.leases(target.partition) if one.name == name]
    _show(out, there)
    out.summary(
        None if there else "no leases",
        topic=known_as,
        leases=len(there),
        lapsed=sum(x.lapsed for x in there),
    )


def _show(out: Session, found: list[LeaseInfo]) -> None:
    from lastword.api.lease import age_text

    now = now_ms()
    for one in found:
        out.row("lease", one.to_dict())
    out.table(
        ("PARTITION", "LEASE", "POSITION", "BEHIND", "ADVANCED", ""),
        [
            (
                f"{one.topic}-{one.partition}",
                one.name,
                str(one.position),
                plural(one.lag_offsets, "offset"),
                format_time(one.advanced_ms),
                age_text(one, now),
            )
            for one in found
        ],
        "llrrll",
    )
