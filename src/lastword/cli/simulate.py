"""`lastword simulate`: what cleaning would have moved under other settings, beside today's."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lastword.cli.command import Session, command
from lastword.cli.output import split_failure
from lastword.cli.target import Directory, MoreDirs, Partition, Sets, Target, TopicName, settings_of
from lastword.errors import DataError, LastwordError, StorageError, UsageError
from lastword.units import format_bytes

if TYPE_CHECKING:
    from lastword.tools.simulate import Simulation

EXAMPLES = """
lastword simulate data users --set lastword.space.target=1.25
lastword simulate data users --set segment.bytes=64MiB --strategy kafka
lastword simulate data users --strategy broker --picture users.svg
"""

_COLUMNS = ("PARTITION", "SETTINGS", "STRATEGY", "ROUNDS", "READ", "WRITTEN", "PER BYTE", "SPACE", "PEAK")


def register(app: typer.Typer) -> None:
    command(app, "simulate", usage="DIR [TOPIC]", examples=EXAMPLES)(simulate)


def simulate(
    out: Session,
    directory: Directory,
    topic: TopicName = None,
    partition: Partition = None,
    sets: Sets = None,
    strategy: Annotated[
        str | None, typer.Option(metavar="NAME", help="generational, kafka, or broker: Kafka's own cleaner")
    ] = None,
    picture: Annotated[
        str | None, typer.Option("--picture", metavar="FILE.svg", help="draw it into this file too")
    ] = None,
    more: MoreDirs = None,
) -> None:
    """Show what cleaning would move under other settings.

    Replays on paper which record replaced which, under today's settings and the others. PER BYTE is what
    cleaning writes for each byte appended; SPACE is bytes on disk over live bytes, on average, and PEAK at
    most. Changes nothing.
    """
    from lastword.files import DEFAULT

    target = Target.of(directory, topic, partition, more)
    config = settings_of(sets)
    if picture is not None and not picture.endswith(".svg"):
        raise UsageError(
            f"--picture draws SVG, and {picture} does not end with .svg",
            remedy=f"--picture {shlex.quote(str(Path(picture).with_suffix('.svg')))}",
        )
    if picture is not None and not DEFAULT.is_dir(os.path.dirname(picture) or "."):
        raise UsageError(
            f"there is no directory {os.path.dirname(picture)}", remedy="make it, or name another file"
        )
    failed: LastwordError | None = None
    with out.open(target) as logs, out.progress("simulate") as progress:
        try:
            found = logs.simulate(
                target.topic, target.partition, strategy=strategy, progress=progress, **config
            )
        except (DataError, StorageError) as error:
            found, (failed, *_) = split_failure(error)  # results are shown before errors
    for one in found:
        out.row("simulation", one.to_dict())
    out.table(_COLUMNS, [_row(one) for one in found], "lllrrrrrr", spare=("PEAK", "READ"))
    for one in found:
        if one.topic and one.records and one.idle:
            out.line(f"no round: {_name(one)}: {one.idle}")
    if picture is not None:
        from lastword.tools.picture import picture as drawn

        shown = [one for one in found if not one.topic] or found
        DEFAULT.write_atomic(picture, drawn(shown, [_name(one) for one in shown]).encode())
        out.say(f"drawn: {picture}")
    parts = [one for one in found if one.topic and not one.settings]
    records, appended = sum(one.records for one in parts), sum(one.appended_bytes for one in parts)
    text = (
        f"replayed {records} records, {format_bytes(appended)}, cleaned as soon as due; nothing was changed"
    )
    if not records:
        text = "nothing was appended since the last cleaning: there is nothing to replay"
    if failed is not None and not found:
        raise failed
    out.summary(text, ok=failed is None, simulations=len(found), records=records, appended_bytes=appended)
    if failed is not None:
        raise failed


def _row(one: Simulation) -> tuple[str, ...]:
    about = "" if one.share == 1.0 else "~ "
    return (
        f"{one.topic}-{one.partition}" if one.topic else "all",
        _settings(one),
        one.strategy,
        str(one.rounds),
        about + format_bytes(one.read_bytes),
        about + format_bytes(one.written_bytes),
        f"{about}{one.write_amplification:.2f}",
        f"{about}{one.space_amplification:.2f}",
        f"{about}{one.space_amplification_peak:.2f}",
    )


def _settings(one: Simulation) -> str:
    shown = " ".join(f"{name}={value}" for name, value in one.settings.items() if name != "lastword.strategy")
    return shown or ("as set" if one.settings else "today's")


def _name(one: Simulation) -> str:
    where = f"{one.topic}-{one.partition}: " if one.topic else ""
    return f"{where}{_settings(one)}, {one.strategy}"
