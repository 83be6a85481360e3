"""`lastword simulate`: compare the cost of cleaning under other settings with the current settings."""

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
    """Add the command `simulate`."""
    command(app, "simulate", usage="DIR [TOPIC]", examples=EXAMPLES)(simulate)


def simulate(
    out: Session,
    directory: Directory,
    topic: TopicName = None,
    partition: Partition = None,
    sets: Sets = None,
    strategy: Annotated[
        str | None, typer.Option(metavar="NAME", help="generational, kafka, or broker (Kafka's own cleaner)")
    ] = None,
    picture: Annotated[
        str | None, typer.Option("--picture", metavar="FILE.svg", help="also draw the result into this file")
    ] = None,
    more: MoreDirs = None,
) -> None:
    """Compare the cost of cleaning under other settings.

    Simulates the log's history, without writing, under the current and the given settings. PER BYTE is bytes
    written by cleaning per byte appended; SPACE is the average and PEAK the maximum of bytes on disk over
    live bytes. Changes nothing.
    """
    from lastword.files import DEFAULT

    target = Target.of(directory, topic, partition, more)
    config = settings_of(sets)
    if picture is not None and not picture.endswith(".svg"):
        raise UsageError(
            f"--picture writes SVG, but {picture} does not end with .svg",
            remedy=f"--picture {shlex.quote(str(Path(picture).with_suffix('.svg')))}",
        )
    if picture is not None and not DEFAULT.is_dir(os.path.dirname(picture) or "."):
        raise UsageError(
            f"there is no directory {os.path.dirname(picture)}", remedy="create it, or name another file"
        )
    failed: LastwordError | None = None
    with out.open(target) as logs, out.progress("simulate") as progress:
        try:
            simulations = logs.simulate(
                target.topic, target.partition, strategy=strategy, progress=progress, **config
            )
        except (DataError, StorageError) as error:
            simulations, (failed, *_) = split_failure(error)  # results are shown before errors
    for simulation in simulations:
        out.row("simulation", simulation.to_dict())
    out.table(_COLUMNS, [_row(simulation) for simulation in simulations], "lllrrrrrr", spare=("PEAK", "READ"))
    for simulation in simulations:
        if simulation.topic and simulation.records and simulation.idle:
            out.line(f"no round: {_name(simulation)}: {simulation.idle}")
    if picture is not None:
        from lastword.tools.simulate import picture as draw

        shown = [simulation for simulation in simulations if not simulation.topic] or simulations
        DEFAULT.write_atomic(picture, draw(shown, [_name(simulation) for simulation in shown]).encode())
        out.say(f"wrote {picture}")
    parts = [simulation for simulation in simulations if simulation.topic and not simulation.settings]
    records = sum(simulation.records for simulation in parts)
    appended = sum(simulation.appended_bytes for simulation in parts)
    text = (
        f"replayed {records} records, {format_bytes(appended)}, cleaned as soon as due; nothing was changed"
    )
    if not records:
        text = "nothing to replay: nothing was appended since the last cleaning"
    if failed is not None and not simulations:
        raise failed
    out.summary(
        text, ok=failed is None, simulations=len(simulations), records=records, appended_bytes=appended
    )
    if failed is not None:
        raise failed


def _row(simulation: Simulation) -> tuple[str, ...]:
    about = "" if simulation.share == 1.0 else "~ "
    return (
        f"{simulation.topic}-{simulation.partition}" if simulation.topic else "all",
        _settings(simulation),
        simulation.strategy,
        str(simulation.rounds),
        about + format_bytes(simulation.read_bytes),
        about + format_bytes(simulation.written_bytes),
        f"{about}{simulation.write_amplification:.2f}",
        f"{about}{simulation.space_amplification:.2f}",
        f"{about}{simulation.space_amplification_peak:.2f}",
    )


def _settings(simulation: Simulation) -> str:
    shown = " ".join(
        f"{name}={value}" for name, value in simulation.settings.items() if name != "lastword.strategy"
    )
    return shown or ("as set" if simulation.settings else "today's")


def _name(simulation: Simulation) -> str:
    where = f"{simulation.topic}-{simulation.partition}: " if simulation.topic else ""
    return f"{where}{_settings(simulation)}, {simulation.strategy}"
