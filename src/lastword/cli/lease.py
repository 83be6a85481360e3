"""`lastword lease`: show and change the leases of readers that hold tombstones back."""

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
    """Add the command `lease`."""
    command(app, "lease", usage="DIR TOPIC [NAME]", examples=EXAMPLES)(lease)


def lease(
    out: Session,
    directory: Directory,
    topic: TopicName = None,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="the name of a lease")] = None,
    partition: Partition = None,
    advance: Annotated[
        int | None,
        typer.Option(
            metavar="OFFSET", help="set the next offset of its reader; takes the lease if it is new"
        ),
    ] = None,
    release: Annotated[bool, typer.Option("--release", help="release the lease")] = False,
    max_age: Annotated[
        str | None,
        typer.Option(
            "--max-age",
            metavar="AGE",
            help="a new lease lapses this long after its last advance (default 7d)",
        ),
    ] = None,
    more: MoreDirs = None,
) -> None:
    """List the leases of a topic, or change one.

    A tombstone stays until the reader of every lease has passed it. Works beside a writer, without the lock.
    """
    target, (name,) = Target.with_words("lease", directory, [topic, name], ["NAME"], partition, more)
    known_as = target.topic_for("lease")
    if name is None and (advance is not None or release):
        raise UsageError(
            "--advance and --release need the NAME of a lease", remedy=target.command("lease", known_as)
        )
    if max_age is not None and advance is None:
        raise UsageError("--max-age needs --advance", remedy="--advance OFFSET takes the lease")
    if advance is not None and release:
        raise UsageError("--advance cannot be combined with --release", remedy="give one of them")
    if release and target.partition is not None:
        raise UsageError(
            "--release releases a lease in all partitions",
            remedy=target.command("lease", known_as, name or "NAME", "--release"),
        )
    from lastword.api.lease import Lease

    with signals.held(), out.open(target) as logs:
        known = logs.topic(known_as)
        infos = [info for info in known.leases(target.partition) if name in (None, info.name)]
        if release and name is not None:
            if not infos:
                raise LeaseRefusedError(
                    f"{known_as} has no lease {name!r}",
                    remedy=target.command("lease", known_as),
                )
            Lease(logs.dirs, known_as, name).release()
            out.line(f"{known_as}: {name} is released")
            out.summary(topic=known_as, released=len(infos))
            return
        if advance is not None and name is not None:
            position = advance if target.partition is None else {target.partition: advance}
            if infos:
                Lease(logs.dirs, known_as, name).advance(position)
            else:
                known.lease(name, position=position, max_age=max_age or "7d")
            infos = [info for info in known.leases(target.partition) if info.name == name]
    _show(out, infos)
    out.summary(
        None if infos else "no leases",
        topic=known_as,
        leases=len(infos),
        lapsed=sum(info.lapsed for info in infos),
    )


def _show(out: Session, infos: list[LeaseInfo]) -> None:
    from lastword.api.lease import age_text

    now = now_ms()
    for info in infos:
        out.row("lease", info.to_dict())
    out.table(
        ("PARTITION", "LEASE", "POSITION", "BEHIND", "ADVANCED", ""),
        [
            (
                f"{info.topic}-{info.partition}",
                info.name,
                str(info.position),
                plural(info.lag_offsets, "offset"),
                format_time(info.advanced_ms),
                age_text(info, now),
            )
            for info in infos
        ],
        "llrrll",
    )
