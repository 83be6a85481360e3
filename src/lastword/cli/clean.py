"""`lastword clean`: remove superseded records, or show what that would do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from lastword.cli.options import (
    Directory,
    MoreDirs,
    Partition,
    Session,
    Target,
    TopicName,
    command,
    interruptible,
)
from lastword.cli.text import plural
from lastword.errors import LastwordError
from lastword.units import format_bytes

if TYPE_CHECKING:
    from lastword.cleaner import Plan

EXAMPLES = """
lastword clean data --dry-run
lastword clean data users
lastword clean data --due
"""


def register(app: typer.Typer) -> None:
    command(app, "clean", examples=EXAMPLES)(clean)


def clean(
    out: Session,
    directory: Directory,
    topic: TopicName = None,
    partition: Partition = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="show the plan; change nothing")] = False,
    due: Annotated[bool, typer.Option("--due", help="only what is due by its settings")] = False,
    strategy: Annotated[str | None, typer.Option(metavar="NAME", help="which segments a round takes")] = None,
    more: MoreDirs = None,
) -> None:
    """Remove records that a newer one with the same key has replaced."""
    target = Target.of(directory, topic, partition, more)
    if dry_run:
        with out.open(target) as logs, out.progress("plan") as progress:
            plans = logs.plan(target.topic, target.partition, due=due, strategy=strategy, progress=progress)
        plans = [plan for plan in plans if plan.action != "delete"]  # those are `lastword expire`'s
        _show_plans(out, plans, directory)
        return
    failed: LastwordError | None = None
    with out.change(target) as logs, out.progress("clean") as progress, interruptible() as stop:
        try:
            rounds = logs.clean(
                target.topic, target.partition, due=due, strategy=strategy, progress=progress, stop=stop
            )
        except LastwordError as error:
            # What was finished is told before what was not.
            rounds, failed = getattr(error, "rounds", []), error
    for round_ in rounds:
        out.row("round", round_.to_dict())
        out.line(str(round_))
        if out.verbose and round_.certificate is not None:
            out.line(f"  certificate: {round_.certificate}")
    freed = sum(round_.freed_bytes for round_ in rounds)
    read, written = sum(r.read_bytes for r in rounds), sum(r.written_bytes for r in rounds)
    text: str | None = (
        f"read {format_bytes(read)}, wrote {format_bytes(written)}, freed {format_bytes(freed)}"
    )
    if not rounds:
        text = None if failed else f"nothing to clean; `lastword clean {directory} --dry-run` tells why"
    out.summary(
        text,
        ok=failed is None,
        rounds=len(rounds),
        read_bytes=read,
        written_bytes=written,
        freed_bytes=freed,
    )
    if failed is not None:
        raise failed
    if stop():
        raise KeyboardInterrupt


def _show_plans(out: Session, plans: list[Plan], directory: str) -> None:
    for plan in plans:
        out.row("plan", plan.to_dict())
    out.table(
        ("PARTITION", "SIZE", "READ", "WRITE", "FREES", "WHY"),
        [
            (
                f"{plan.topic}-{plan.partition}",
                format_bytes(plan.total_bytes),
                *(
                    (
                        _size(plan, plan.read_bytes),
                        _size(plan, plan.write_bytes),
                        _size(plan, plan.free_bytes),
                    )
                    if plan.action == "clean"
                    else ("-", "-", "-")
                ),
                _why(plan, directory),
            )
            for plan in plans
        ],
        "lrrrrl",
    )
    chosen = [plan for plan in plans if plan.action == "clean"]
    read, write = sum(plan.read_bytes for plan in chosen), sum(plan.write_bytes for plan in chosen)
    free = sum(plan.free_bytes for plan in chosen)
    out.summary(
        f"would read {format_bytes(read)}, write {format_bytes(write)}, free {format_bytes(free)}; "
        "nothing was changed",
        plans=len(plans),
        read_bytes=read,
        write_bytes=write,
        free_bytes=free,
    )


def _size(plan: Plan, size_bytes: int) -> str:
    return format_bytes(size_bytes) if plan.exact else f"~ {format_bytes(size_bytes)}"


def _why(plan: Plan, directory: str) -> str:
    if plan.action == "clean":
        share = 100 * plan.free_bytes // max(1, plan.total_bytes)
        return f"clean: {share} % garbage, in {plan.segments} of {plural(plan.total_segments, 'segment')}"
    text = "; ".join(str(reason) for reason in plan.reasons) or "nothing to do"
    if plan.reasons and plan.reasons[0].code == "no-policy" and "not known" in plan.reasons[0].text:
        return f"keep: no-policy (lastword config {directory} {plan.topic} --set cleanup.policy=compact)"
    return f"keep: {text}"
