"""`lastword explain`, `duplication` and `simulate`: the plan of a cleaning, its garbage and its cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, cast

from lastword.api.text import field_text, key_candidates, key_text
from lastword.cli.command import Session, command, now_ms, option
from lastword.cli.output import attempted
from lastword.cli.remedies import policy_remedy, remedy_of
from lastword.cli.target import AnyTopics, OneTopic, Sets, Target, WhatIf, settings_of, what_if
from lastword.cli.transactions import held_texts
from lastword.errors import LastwordError, NoPolicyError, UsageError
from lastword.parse import one_of
from lastword.units import format_bytes, format_duration, format_time
from lastword.values import sums

if TYPE_CHECKING:
    from lastword.api.open_dirs import By
    from lastword.config import TopicConfig
    from lastword.partition.leases import LeaseFacts
    from lastword.tools.as_kafka import KafkaVerdict
    from lastword.tools.explain import Explanation
    from lastword.tools.simulate import Simulation


WEIGHED = 3  # rejected runs of segments that are shown without -v


@command("explain", usage="DIR [TOPIC]")
def explain(
    out: Session,
    target: OneTopic,
    key: Annotated[
        str | None, option("K", "show every record of this key, typed as `read` shows it, and its rule")
    ] = None,
    cleaner: Annotated[
        str | None, option("kafka", "what Kafka's own cleaner would do now, and why not", "--as")
    ] = None,
    sets: WhatIf = None,
) -> None:
    """Show why a log is cleaned or not, and why a record is kept.

    With --key: every record of the key, and the rule that keeps or frees it. With --as kafka: the decision of
    Kafka's cleaner, by the cluster's settings and its checkpoint, beside that of `lastword clean`.
    Changes nothing and takes no lock: it works on the directory of a running broker.

    Examples:
        lastword explain data users
        lastword explain data
        lastword explain data users --key bob
        lastword explain /srv/kafka users -p 3 --key bob --json
        lastword explain /srv/kafka users --as kafka
    """
    from lastword.api.explaining import explain_as_kafka, explain_each, explained

    if cleaner not in (None, "kafka") or (cleaner is not None and key is not None):
        raise UsageError(
            "--as takes kafka, and no --key", remedy=target.command("explain", "TOPIC", "--as", "kafka")
        )
    explanations: list[Explanation] = []
    verdicts: list[KafkaVerdict] = []
    failed: list[LastwordError] = []
    with out.open(target, **what_if(sets)) as logs:
        if key is None:
            selected = logs.dirs.select(target.topic, target.partition)
            if cleaner is not None:
                verdicts += explain_as_kafka(logs.dirs, selected, failed)
            explanations += explain_each(logs.dirs, selected, failed)
        else:
            name = logs.dirs.only_topic(target.topic)
            serializer = logs.topic(name).config.lastword_key_serializer
            for data in key_candidates(key, serializer):
                explanations = [explained(logs.dirs, name, target.partition, data)]
                if explanations[0].versions:
                    break
            key = field_text(explanations[0].key, serializer, key_text)
        configs = [logs.dirs.config(explanation.topic) for explanation in explanations]
        held = held_texts(logs, target, {explanation.topic for explanation in explanations})
    for verdict in verdicts:
        _show_verdict_of_kafka(out, verdict)
    for explanation, config in zip(explanations, configs, strict=True):
        _show_explanation(out, explanation, config, target, key, assumed=bool(sets))
    for text in held:
        out.say(text)
    out.summary(
        None if explanations or failed else "no topics",
        ok=not failed,
        topic=target.topic,
        partitions=len(explanations),
        due=sum(explanation.plan.action == "clean" for explanation in explanations),
        versions=sum(len(explanation.versions) for explanation in explanations),
    )
    out.raise_all(failed)


def _show_verdict_of_kafka(out: Session, verdict: KafkaVerdict) -> None:
    out.row("kafka", verdict.to_dict())
    out.line(str(verdict) if verdict.action == "clean" else out.paint(str(verdict), "yellow"))
    for reason in verdict.reasons[1:]:
        out.line(f"  {reason}")
    given = [f"{name}={value} ({by})" for name, (value, by) in verdict.settings.items() if by != "default"]
    defaults = [f"{name}={value}" for name, (value, by) in verdict.settings.items() if by == "default"]
    out.line(f"  settings: {'; '.join([*given, 'defaults: ' + ', '.join(defaults)])}")


def _show_explanation(
    out: Session,
    explanation: Explanation,
    config: TopicConfig,
    target: Target,
    key: str | None,
    *,
    assumed: bool,
) -> None:
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
    _show_verdict(out, explanation, config, target, assumed)


def _show_verdict(
    out: Session, explanation: Explanation, config: TopicConfig, target: Target, assumed: bool
) -> None:
    plan = explanation.plan
    verdict = explanation.verdict
    if explanation.quarantine is not None:
        out.line(out.paint(verdict, "red"))
        retry = target.command("clean", explanation.topic, "-p", str(explanation.partition), "--retry")
        out.line(f"  restore the file from a copy, then: {retry}")
    elif plan.reasons and plan.reasons[0].code == "no-policy":
        if config.unread is not None:
            error = NoPolicyError.of(explanation.topic, target.paths[0], config.unread)
            out.line(f"{verdict}. To have it cleaned: {remedy_of(error)}")
        elif config.policy is None:
            out.line(f"{verdict}: {policy_remedy(target.paths, explanation.topic)}")
        elif not config.policy:
            out.line(verdict)
        else:
            fix = target.command("config", explanation.topic, "--set", "cleanup.policy=compact,delete")
            out.line(f"{verdict}. To have it cleaned: {fix}")
    elif plan.reasons and plan.reasons[0].code == "undecided-transaction":
        out.line(f"{verdict}. To see and end it: {target.command('transactions', explanation.topic)}")
    elif assumed:
        out.line(f"{verdict}. This assumes --set, which is not saved")
    else:
        out.line(f"{verdict}. To clean it now: {target.command('clean', explanation.topic)}")
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


@command("duplication", usage="DIR [TOPIC...]")
def duplication(
    out: Session,
    target: AnyTopics,
    by: Annotated[str, option("topic|partition|segment", "one row for each")] = "partition",
) -> None:
    """Count records that a newer record of their key superseded.

    BYTES is the size of superseded records; garbage in `lastword ls` also includes records of aborted
    transactions. SPLIT counts keys that are in several partitions.

    Examples:
        lastword duplication data
        lastword duplication data users --by segment
        lastword duplication data users --by topic
    """
    from lastword.tools.duplication import BY, Duplication

    one_of(by, BY, "--by")
    with out.open(target) as logs, out.progress("duplication") as progress:
        rows, failed = attempted(
            lambda: logs.duplication(target.chosen, target.partition, by=cast("By", by), progress=progress)
        )
    for row in rows:
        out.row("duplication", row.to_dict())
    out.rows(
        [row.cells() for row in rows], Duplication.text_columns, spare=("KEYLESS", "TOMBSTONES", "SPLIT")
    )
    out.summary(
        Duplication.totals(rows) if rows else None if failed else "no topics",
        ok=not failed,
        rows=len(rows),
        **sums(rows, "records", "superseded_records", "superseded_bytes"),
    )
    out.raise_all(failed[:1])


@command("simulate", usage="DIR [TOPIC...]")
def simulate(
    out: Session,
    target: AnyTopics,
    sets: Sets = None,
    strategy: Annotated[
        str | None, option("NAME", "generational, kafka, or broker (Kafka's own cleaner)")
    ] = None,
) -> None:
    """Compare the cost of cleaning under other settings.

    Simulates the log's history, without writing, under the current and the given settings. PER BYTE is bytes
    written by cleaning per byte appended; SPACE is the average and PEAK the maximum of bytes on disk over
    live bytes. --json has them over time, as points of a curve. Changes nothing.

    Examples:
        lastword simulate data users --set lastword.space.target=1.25
        lastword simulate data users --set segment.bytes=64MiB --strategy kafka
        lastword simulate data users --strategy broker --json
    """
    config = settings_of(sets)
    with out.open(target) as logs, out.progress("simulate") as progress:
        simulations, failed = attempted(
            lambda: logs.simulate(
                target.chosen, target.partition, strategy=strategy, progress=progress, **config
            )
        )
    for simulation in simulations:
        out.row("simulation", simulation.to_dict())
    out.rows(
        [_simulation_cells(simulation) for simulation in simulations],
        ("PARTITION", "SETTINGS", "STRATEGY"),
        spare=("PEAK", "READ"),
    )
    for simulation in simulations:
        if simulation.topic and simulation.records and simulation.idle:
            out.line(f"no round: {_simulation_name(simulation)}: {simulation.idle}")
    parts = [simulation for simulation in simulations if simulation.topic and not simulation.settings]
    totals = sums(parts, "records", "appended_bytes")
    text = (
        f"replayed {totals['records']} records, {format_bytes(totals['appended_bytes'])}, cleaned as soon as "
        "due; nothing was changed"
    )
    if not totals["records"]:
        text = "nothing to replay: nothing was appended since the last cleaning"
    if not simulations:
        out.raise_all(failed[:1])
    out.summary(text, ok=not failed, simulations=len(simulations), **totals)
    out.raise_all(failed[:1])


def _simulation_cells(simulation: Simulation) -> dict[str, str]:
    about = "" if simulation.share == 1.0 else "~ "
    return {
        "PARTITION": f"{simulation.topic}-{simulation.partition}" if simulation.topic else "all",
        "SETTINGS": _settings_text(simulation),
        "STRATEGY": simulation.strategy,
        "ROUNDS": str(simulation.rounds),
        "READ": about + format_bytes(simulation.read_bytes),
        "WRITTEN": about + format_bytes(simulation.written_bytes),
        "PER BYTE": f"{about}{simulation.write_amplification:.2f}",
        "SPACE": f"{about}{simulation.space_amplification:.2f}",
        "PEAK": f"{about}{simulation.space_amplification_peak:.2f}",
    }


def _settings_text(simulation: Simulation) -> str:
    shown = " ".join(
        f"{name}={value}" for name, value in simulation.settings.items() if name != "lastword.strategy"
    )
    return shown or ("as set" if simulation.settings else "today's")


def _simulation_name(simulation: Simulation) -> str:
    where = f"{simulation.topic}-{simulation.partition}: " if simulation.topic else ""
    return f"{where}{_settings_text(simulation)}, {simulation.strategy}"
