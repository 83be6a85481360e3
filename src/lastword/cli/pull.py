"""`lastword pull`: copy topics of a Kafka cluster into a log directory."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Annotated

import typer

from lastword.cli import signals
from lastword.cli.command import CONTEXT, Session, argument, command, dry_run_option, option, shown_records
from lastword.cli.output import attempted
from lastword.cli.remedies import PLACE
from lastword.errors import PartialFailure
from lastword.units import format_bytes
from lastword.values import plural, sums

if TYPE_CHECKING:
    from lastword.pulling import PullResult


@command("pull", usage="HOST:PORT [TOPIC...] --to DIR", changes=True)
def pull(
    out: Session,
    bootstrap: Annotated[str, argument("HOST:PORT", "a broker of the cluster; several with commas")],
    topics: Annotated[
        list[str] | None, argument("TOPIC...", "only these topics; else all that are public")
    ] = None,
    to: Annotated[str, option("TARGET", "a log directory; made if absent")] = ...,  # type: ignore[assignment]
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="go on with new records until a signal")
    ] = False,
    dry_run: Annotated[bool, dry_run_option("show the offsets that would be copied")] = False,
    groups: Annotated[
        bool, typer.Option("--groups/--no-groups", help="copy the positions of groups, too")
    ] = True,
    client_config: Annotated[
        str | None, option("FILE", "properties of a Kafka client: security.protocol, sasl.*, ssl.*")
    ] = None,
) -> None:
    """Copy topics of a Kafka cluster into a log directory, with their offsets.

    Whole batches are copied as they are, with the settings of the topics and the positions of groups. A
    second pull copies what is new, and goes on where a stopped one ended.

    Examples:
        lastword pull 127.0.0.1:9092 users orders --to data
        lastword pull 127.0.0.1:9092 --to data --dry-run
        lastword pull kafka:9093 users --to data --follow --client-config client.properties
    """
    import lastword

    PLACE.paths = [to]
    with signals.held(), shown_records("lastword.pull", out.warning, out), out.progress("pull") as progress:
        results, failed = attempted(
            lambda: out.when_free(
                lambda: lastword.pull(
                    bootstrap,
                    topics or None,
                    to,
                    follow=follow,
                    groups=groups,
                    dry_run=dry_run,
                    client_config=client_config,
                    clock=CONTEXT.clock,
                    progress=progress,
                    stop=signals.noted,
                )
            ),
            PartialFailure,
        )
    for result in results:
        out.row("pull", result.to_dict())
        out.line(_planned(result) if dry_run else str(result))
    totals = sums(results, "records", "pulled_bytes", "positions")
    offsets = sum(max(0, result.remote_end - result.next_offset) for result in results)
    out.summary(
        f"would pull {plural(offsets, 'offset')} at most; nothing was changed"
        if dry_run
        else f"pulled {plural(totals['records'], 'record')}, {format_bytes(totals['pulled_bytes'])}; "
        f"{plural(totals['positions'], 'position')} of groups",
        ok=not failed and (follow or not signals.noted()),
        partitions=len(results),
        **totals,
    )
    if follow:
        signals.settle(signal.SIGTERM, signal.SIGINT)
    out.raise_all(failed)


def _planned(result: PullResult) -> str:
    return f"{result.topic}-{result.partition}: offsets {result.next_offset} to {result.remote_end}"
