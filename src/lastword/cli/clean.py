"""`lastword clean`: remove superseded records, or show the plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from lastword.cli import signals
from lastword.cli.command import Session, command
from lastword.cli.keep_cleaning import keep_cleaning
from lastword.cli.output import split_failure
from lastword.cli.remedies import policy_remedy
from lastword.cli.target import Directory, MoreDirs, Partition, Target, TopicName, WhatIf, what_if
from lastword.errors import DataError, LastwordError, StorageError, UsageError
from lastword.parse import parse_bytes, parse_duration_ms
from lastword.units import format_bytes
from lastword.values import plural

if TYPE_CHECKING:
    from lastword.api.logs import LogDir
    from lastword.cleaner import Plan

EXAMPLES = """
lastword clean data --dry-run
lastword clean data --dry-run --set cleanup.policy=compact
lastword clean data users
lastword clean data --due --max-rate 80MiB
lastword clean data --every 15s --metrics 9464
lastword clean data users -p 0 --retry
"""


def register(app: typer.Typer) -> None:
    """Add the command `clean`."""
    command(app, "clean", usage="DIR [TOPIC]", examples=EXAMPLES, changes=True)(clean)


def clean(
    out: Session,
    directory: Directory,
    topic: TopicName = None,
    partition: Partition = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="show the plan; change nothing")] = False,
    sets: WhatIf = None,
    due: Annotated[bool, typer.Option("--due", help="clean only what its settings make due")] = False,
    strategy: Annotated[
        str | None, typer.Option(metavar="NAME", help="how segments are chosen: kafka or generational")
    ] = None,
    max_rate: Annotated[
        str | None,
        typer.Option("--max-rate", metavar="SIZE", help="limit reads and writes per second on each drive"),
    ] = None,
    every: Annotated[
        str | None,
        typer.Option(
            "--every", metavar="TIME", help="keep running; clean and expire what is due at this interval"
        ),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            "--metrics",
            metavar="[HOST:]PORT",
            help="with --every: serve Prometheus metrics; without HOST only to this machine",
        ),
    ] = None,
    retry: Annotated[
        bool,
        typer.Option(
            "--retry", help="verify partitions in quarantine; release and clean those that are sound"
        ),
    ] = False,
    more: MoreDirs = None,
) -> None:
    """Remove records that a newer record of their key superseded.

    Removes all garbage; with --due, only what the settings make due. Skips topics without a cleanup.policy.
    """
    from lastword.api.cleaning import quarantined

    target = Target.of(directory, topic, partition, more)
    rate = None if max_rate is None else parse_bytes(max_rate)
    if rate is not None and rate < 1:
        raise UsageError(
            f"--max-rate {max_rate} is not a rate", remedy="a size such as 80MiB; omit it for no limit"
        )
    again = target.words
    if retry and (dry_run or every is not None):
        raise UsageError(
            "--retry cannot be combined with --dry-run or --every",
            remedy=target.command("clean", *again, "--retry"),
        )
    assumed = what_if(sets)
    if not dry_run:
        target.refuse_set("clean", sets)
    if every is not None:
        _refuse_with_every(target, dry_run, strategy)
        keep_cleaning(out, target, _interval_ms(every), metrics, rate)
        return
    if metrics is not None:
        raise UsageError(
            "--metrics needs --every",
            remedy=target.command("clean", *again, "--every", "15s", "--metrics", "9464"),
        )
    if dry_run:
        wrong: list[LastwordError] = []
        with out.open(target, **assumed) as logs, out.progress("plan") as progress:
            try:
                plans = logs.plan(
                    target.topic, target.partition, due=due, strategy=strategy, progress=progress
                )
            except (DataError, StorageError) as error:
                plans, wrong = split_failure(error)  # plans are shown before errors
        plans = [plan for plan in plans if plan.action != "delete"]  # `lastword expire` shows deletions
        _show_plans(out, plans, target, ok=not wrong)
        out.raise_all(wrong)
        return
    failed: list[LastwordError] = []
    with out.change(target) as logs, out.progress("clean") as progress:
        if rate is not None:
            logs.cleaner.set_budget(rate)
        if retry:
            _retry(out, logs, target)
        aside = quarantined(logs.dirs, target.topic, target.partition)  # no cleaning includes these
        try:
            results = logs.clean(
                target.topic,
                target.partition,
                due=due,
                strategy=strategy,
                progress=progress,
                stop=signals.noted,
            )
        except LastwordError as error:
            results, failed = split_failure(error)  # results are shown before errors
        messages = [error.message for error in failed]
        failed += [error for error in aside if not any(text.startswith(error.message) for text in messages)]
    for result in results:
        out.row("round", result.to_dict())
        out.line(str(result))
        if result.stopped_by == "lease":
            out.warning(
                f"{result.topic}-{result.partition}: a lease moved below a due tombstone; clean again"
            )
        if out.verbose and result.certificate is not None:
            out.line(f"  certificate: {result.certificate}")
    freed = sum(result.freed_bytes for result in results)
    read = sum(result.read_bytes for result in results)
    written = sum(result.written_bytes for result in results)
    text: str | None = (
        f"read {format_bytes(read)}, wrote {format_bytes(written)}, freed {format_bytes(freed)}"
    )
    if not results:
        text = (
            None
            if failed
            else f"nothing to clean; `{target.command('clean', *again, '--dry-run')}` shows why"
        )
    out.summary(
        text,
        ok=not failed and not signals.noted(),
        rounds=len(results),
        read_bytes=read,
        written_bytes=written,
        freed_bytes=freed,
    )
    out.raise_all(failed)


def _retry(out: Session, logs: LogDir, target: Target) -> None:
    """Verify partitions in quarantine and release those that are sound.

    Raises:
        QuarantinedError: A partition is still damaged.
    """
    for topic in logs.topics() if target.topic is None else [logs.topic(target.topic)]:
        for number in topic.bounds() if target.partition is None else [target.partition]:
            if logs.cleaner.retry(topic.name, number) is not None:
                out.say(f"{topic.name}-{number} is sound and left quarantine")


def _interval_ms(text: str) -> int:
    interval_ms = parse_duration_ms(text)
    if interval_ms < 1:
        raise UsageError(f"--every {text} is not an interval", remedy="a time such as 15s or 5m")
    return interval_ms


def _refuse_with_every(target: Target, dry_run: bool, strategy: str | None) -> None:
    if dry_run:
        raise UsageError("--dry-run cannot be combined with --every", remedy="give one of them")
    if strategy is not None:
        raise UsageError(
            "--every uses the strategy of each topic's settings",
            remedy=target.command(
                "config", target.topic or "TOPIC", "--set", f"lastword.strategy={strategy}"
            ),
        )


def _show_plans(out: Session, plans: list[Plan], target: Target, *, ok: bool) -> None:
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
                _why(plan),
            )
            for plan in plans
        ],
        "lrrrrl",
        spare=("READ", "WRITE"),
    )
    unknown = dict.fromkeys(plan.topic for plan in plans if _has_no_policy(plan))
    if unknown:
        topic = next(iter(unknown)) if len(unknown) == 1 else "TOPIC"
        out.say(f"no-policy: {policy_remedy(target.paths, topic)}")
    chosen = [plan for plan in plans if plan.action == "clean"]
    read, write = sum(plan.read_bytes for plan in chosen), sum(plan.write_bytes for plan in chosen)
    free = sum(plan.free_bytes for plan in chosen)
    about = "" if all(plan.exact for plan in chosen) else "~ "
    out.summary(
        f"would read {about}{format_bytes(read)}, write {about}{format_bytes(write)}, "
        f"free {about}{format_bytes(free)}; "
        "nothing was changed",
        ok=ok,
        plans=len(plans),
        read_bytes=read,
        write_bytes=write,
        free_bytes=free,
    )


def _size(plan: Plan, size_bytes: int) -> str:
    return format_bytes(size_bytes) if plan.exact else f"~ {format_bytes(size_bytes)}"


def _has_no_policy(plan: Plan) -> bool:
    return bool(plan.reasons) and plan.reasons[0].code == "no-policy" and "not known" in plan.reasons[0].text


def _why(plan: Plan) -> str:
    if plan.action == "clean":
        share = 100 * plan.free_bytes // max(1, plan.total_bytes)
        return f"clean: frees {share} %; rewrites {plan.segments} of {plural(plan.total_segments, 'segment')}"
    if _has_no_policy(plan):
        return "keep: no-policy, cleanup.policy is unknown"
    if plan.reasons and plan.reasons[0].code == "no-policy":
        return f"keep: {plan.reasons[0].text}"
    return f"keep: {'; '.join(str(reason) for reason in plan.reasons) or 'nothing to do'}"
