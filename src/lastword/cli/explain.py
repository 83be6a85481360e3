"""`lastword explain`: why a log is not cleaned, or a record is still there."""

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

WEIGHED = 3  # of the runs that were weighed so many are shown without -v


def register(app: typer.Typer) -> None:
    command(app, "explain", usage="DIR [TOPIC]", examples=EXAMPLES)(explain)


def explain(
    out: Session,
    directory: Directory,
    topic: TopicName = None,
    partition: Partition = None,
    key: Annotated[
        str | None,
        typer.Option(metavar="K", help="every record of this key, typed as it is shown, and its rule"),
    ] = None,
    sets: WhatIf = None,
    more: MoreDirs = None,
) -> None:
    """Tell why a log is cleaned or not, or a record still there.

    With --key: every record of that key, and the rule that keeps or frees it.
    Changes nothing and takes no lock: it may look at the directory of a running broker.
    """
    from lastword.api.explaining import explain_each, explained

    target = Target.of(directory, topic, partition, more)
    found: list[Explanation] = []
    failed: list[LastwordError] = []
    with out.open(target, **what_if(sets)) as logs:
        if key is None:
            selected = logs.dirs.select(target.topic, target.partition)
            found += explain_each(logs.dirs, selected, failed)
        else:
            name = logs.dirs.only_topic(target.topic)
            serializer = logs.topic(name).config.lastword_key_serializer
            for data in key_candidates(key, serializer):
                found = [explained(logs.dirs, name, target.partition, data, None)]
                if found[0].versions:
                    break
            key = field_text(found[0].key, serializer, key_text)
    for one in found:
        _show(out, one, target, key, assumed=bool(sets))
    out.summary(
        None if found or failed else "no topics",
        ok=not failed,
        topic=target.topic,
        partitions=len(found),
        due=sum(one.plan.action == "clean" for one in found),
        versions=sum(len(one.versions) for one in found),
    )
    out.raise_all(failed)


def _show(out: Session, one: Explanation, target: Target, key: str | None, *, assumed: bool) -> None:
    name = f"{one.topic}-{one.partition}"
    counted = {} if one.counted is None else {"counted": one.counted.to_dict()}
    out.row("plan", {**one.plan.to_dict(), **counted})
    for lease in (*one.leases.live, *one.leases.lapsed):
        out.row("lease", _lease_fields(one, lease))
    states = {True: "kept", False: "removable"}
    lines = []
    for version in one.versions:
        fields = version.to_dict()
        out.row("version", {"topic": one.topic, "key": one.key, **fields})
        lines.append((f"offset {version.offset}", format_time(version.timestamp), states[version.kept]))
    widths = [max((len(line[i]) for line in lines), default=0) for i in range(3)]
    for line, version in zip(lines, one.versions, strict=True):
        cells = "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        out.line(f"{cells}  {out.paint(version.text, 'dim') if version.kept else version.text}")
    if key is not None and not one.versions:
        out.line(f"{name} holds no record of {key}: never written there, or deleted and long cleaned")
    _verdict(out, one, target, assumed)


def _verdict(out: Session, one: Explanation, target: Target, assumed: bool) -> None:
    clean = target.command("clean", one.topic)
    plan = one.plan
    verdict = one.verdict
    if one.quarantine is not None:
        out.line(out.paint(verdict, "red"))
        retry = target.command("clean", one.topic, "-p", str(one.partition), "--retry")
        out.line(f"  restore the file from a copy, then: {retry}")
    elif plan.reasons and plan.reasons[0].code == "no-policy":
        if "not known" in plan.reasons[0].text:
            out.line(f"{verdict}: {policy_remedy(target.paths, one.topic)}")
        else:
            fix = target.command("config", one.topic, "--set", "cleanup.policy=compact,delete")
            out.line(f"{verdict}. To have it cleaned: {fix}")
    elif assumed:
        out.line(f"{verdict}. That is with --set, which changes nothing")
    else:
        out.line(f"{verdict}. To clean it now: {clean}")
    if one.counted is not None and one.counted.garbage_bytes:
        out.line(f"  {one.counted}")
    if one.key is None:
        reasons = plan.reasons[1:] if plan.action == "keep" else plan.reasons
        weighed = [reason for reason in reasons if reason.code == "weighed"]
        left_out = [] if out.verbose else weighed[WEIGHED:]
        for reason in reasons:
            if reason not in left_out:
                out.line(f"  {reason}")
        if left_out:
            out.line(f"  and {len(left_out)} more were weighed: -v shows them")
    now = now_ms()
    name = f"{one.topic}-{one.partition}"
    for lease in one.leases.live:
        left = format_duration(lease.lapses_ms - now)
        out.line(f"{name}: tombstones from {lease.position} on wait for {lease.name}, which lapses in {left}")
    for lease in one.leases.lapsed:
        ago = format_duration(now - lease.lapses_ms)
        out.line(
            out.paint(
                f"{name}: {lease.name} lapsed {ago} ago at {lease.position}: it holds nothing", "yellow"
            )
        )


def _lease_fields(one: Explanation, lease: LeaseFacts) -> dict[str, Any]:
    return {
        "topic": one.topic,
        "partition": one.partition,
        **lease.to_dict(),
        "lapses_ms": lease.lapses_ms,
        "lapsed": lease in one.leases.lapsed,
    }
