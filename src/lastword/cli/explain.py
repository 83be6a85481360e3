"""`lastword explain`: show why a log is cleaned or not, and why a record is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from lastword.cli.command import Session, command, now_ms
from lastword.cli.remedies import policy_remedy
from lastword.cli.target import Directory, MoreDirs, Partition, Target, TopicName, WhatIf, what_if
from lastword.cli.text import field_text, key_candidates, key_text
from lastword.errors import LastwordError
from lastword.units import format_duration, format_time

if TYPE_CHECKING:
    from lastword.partition.leases import LeaseFacts
    from lastword.tools.explain import Explanation

EXAMPLES = """
lastword explain data users
lastword explain data
lastword explain data users --key bob
lastword explain /srv/kafka users -p 3 --key bob --json
"""

WEIGHED = 3  # rejected runs of segments that are shown without -v


def register(app: typer.Typer) -> None:
    """Add the command `explain`."""
    command(app, "explain", usage="DIR [TOPIC]", examples=EXAMPLES)(explain)


def explain(
    out: Session,
    directory: Directory,
    topic: TopicName = None,
    partition: Partition = None,
    key: Annotated[
        str | None,
        typer.Option(
            metavar="K", help="show every record of this key, typed as `read` shows it, and its rule"
        ),
    ] = None,
    sets: WhatIf = None,
    more: MoreDirs = None,
) -> None:
    """Show why a log is cleaned or not, and why a record is kept.

    With --key: every record of the key, and the rule that keeps or frees it.
    Changes nothing and takes no lock: it works on the directory of a running broker.
    """
    from lastword.api.inspections import explain_each, explained

    target = Target.of(directory, topic, partition, more)
    explanations: list[Explanation] = []
    failed: list[LastwordError] = []
    with out.open(target, **what_if(sets)) as logs:
        if key is None:
            selected = logs.dirs.select(target.topic, target.partition)
            explanations += explain_each(logs.dirs, selected, failed)
        else:
            name = logs.dirs.only_topic(target.topic)
            serializer = logs.topic(name).config.lastword_key_serializer
            for data in key_candidates(key, serializer):
                explanations = [explained(logs.dirs, name, target.partition, data, None)]
                if explanations[0].versions:
                    break
            key = field_text(explanations[0].key, serializer, key_text)
    for explanation in explanations:
        _show(out, explanation, target, key, assumed=bool(sets))
    out.summary(
        None if explanations or failed else "no topics",
        ok=not failed,
        topic=target.topic,
        partitions=len(explanations),
        due=sum(explanation.plan.action == "clean" for explanation in explanations),
        versions=sum(len(explanation.versions) for explanation in explanations),
    )
    out.raise_all(failed)


def _show(out: Session, explanation: Explanation, target: Target, key: str | None, *, assumed: bool) -> None:
    name = f"{explanation.topic}-{explanation.partition}"
    counted = {} if explanation.counted is None else {"counted": explanation.counted.to_dict()}
    out.row("plan", {**explanation.plan.to_dict(), **counted})
    for lease in (*explanation.leases.live, *explanation.leases.lapsed):
        out.row("lease", _lease_fields(explanation, lease))
    states = {True: "kept", False: "removable"}
    lines = []
    for version in explanation.versions:
        fields = version.to_dict()
        out.row("version", {"topic": explanation.topic, "key": explanation.key, **fields})
        lines.append((f"offset {version.offset}", format_time(version.timestamp), states[version.kept]))
    widths = [max((len(line[i]) for line in lines), default=0) for i in range(3)]
    for line, version in zip(lines, explanation.versions, strict=True):
        cells = "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        out.line(f"{cells}  {out.paint(version.text, 'dim') if version.kept else version.text}")
    if key is not None and not explanation.versions:
        out.line(f"{name} holds no record of {key}: it was never written there, or was deleted and cleaned")
    _show_verdict(out, explanation, target, assumed)


def _show_verdict(out: Session, explanation: Explanation, target: Target, assumed: bool) -> None:
    clean = target.command("clean", explanation.topic)
    plan = explanation.plan
    verdict = explanation.verdict
    if explanation.quarantine is not None:
        out.line(out.paint(verdict, "red"))
        retry = target.command("clean", explanation.topic, "-p", str(explanation.partition), "--retry")
        out.line(f"  restore the file from a copy, then: {retry}")
    elif plan.reasons and plan.reasons[0].code == "no-policy":
        if "not known" in plan.reasons[0].text:
            out.line(f"{verdict}: {policy_remedy(target.paths, explanation.topic)}")
        else:
            fix = target.command("config", explanation.topic, "--set", "cleanup.policy=compact,delete")
            out.line(f"{verdict}. To have it cleaned: {fix}")
    elif assumed:
        out.line(f"{verdict}. This assumes --set, which is not saved")
    else:
        out.line(f"{verdict}. To clean it now: {clean}")
    if explanation.counted is not None and explanation.counted.garbage_bytes:
        out.line(f"  {explanation.counted}")
    if explanation.key is None:
        reasons = plan.reasons[1:] if plan.action == "keep" else plan.reasons
        weighed = [reason for reason in reasons if reason.code == "weighed"]
        left_out = [] if out.verbose else weighed[WEIGHED:]
        for reason in reasons:
            if reason not in left_out:
                out.line(f"  {reason}")
        if left_out:
            out.line(f"  and {len(left_out)} more were considered: -v shows them")
    now = now_ms()
    name = f"{explanation.topic}-{explanation.partition}"
    for lease in explanation.leases.live:
        left = format_duration(lease.lapses_ms - now)
        out.line(
            f"{name}: tombstones from {lease.position} on wait for lease {lease.name}, which lapses in {left}"
        )
    for lease in explanation.leases.lapsed:
        ago = format_duration(now - lease.lapses_ms)
        out.line(
            out.paint(
                f"{name}: lease {lease.name} lapsed {ago} ago at {lease.position} and holds nothing back",
                "yellow",
            )
        )


def _lease_fields(explanation: Explanation, lease: LeaseFacts) -> dict[str, Any]:
    return {
        "topic": explanation.topic,
        "partition": explanation.partition,
        **lease.to_dict(),
        "lapses_ms": lease.lapses_ms,
        "lapsed": lease in explanation.leases.lapsed,
    }
