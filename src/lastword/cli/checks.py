"""`lastword verify` and `lastword audit`: check the files of a log, or compare it with delivered offsets."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lastword.api.serializers import bytes_json
from lastword.api.text import key_text
from lastword.cli.command import Session, argument, command, option
from lastword.cli.remedies import PLACE
from lastword.cli.target import AnyTopics, Directory, MoreDirs, Partition, Target, TopicName
from lastword.errors import LastwordError, PartialFailure, UsageError
from lastword.objects import is_url
from lastword.units import format_bytes
from lastword.values import plural

if TYPE_CHECKING:
    from lastword.tools.findings import Problem


@command("verify", usage="DIR [TOPIC...]")
def verify(
    out: Session,
    target: AnyTopics,
    quick: Annotated[
        bool, typer.Option("--quick", help="check headers, indexes and checkpoints, not records")
    ] = False,
    md5: Annotated[
        bool,
        typer.Option(
            "--md5", help="also find different keys with the same MD5, which Kafka's cleaner confuses"
        ),
    ] = False,
) -> int:
    """Check every checksum, index, checkpoint and invariant.

    Changes nothing. Exit code 1 if there are problems.

    Examples:
        lastword verify data
        lastword verify data users --quick
        lastword verify data users --md5
        lastword verify data/users-0 --json
    """
    from lastword.tools.findings import OPEN, RESTORE

    with out.open(target) as logs, out.progress("verify") as progress:
        verification = logs.verify(target.chosen, target.partition, quick=quick, md5=md5, progress=progress)
    for problem in verification.problems:
        out.row("problem", {**problem.to_dict(), "remove": problem.remove})
        out.line(out.paint(str(problem), "yellow" if problem.repairable else "red"))
        if problem.remedy not in (OPEN, RESTORE):
            out.line(f"  fix: {problem.remedy}")
    for cut in verification.cuts:
        out.row("cut", cut.to_dict())
        done = "removes" if cut.left_bytes is None else f"cuts at {cut.left_bytes}"
        out.line(f"the next opening to write {done}: {cut.file} ({plural(cut.size_bytes, 'byte')})")
    for collision in verification.collisions:
        out.row("md5-collision", collision.to_dict())
        out.line(
            out.paint(f"{collision}: Kafka's cleaner would remove records of one key for the other", "red")
        )
    for check in verification.topics:
        out.row("topic", check.to_dict())
        if len(verification.topics) > 1 and (out.verbose or check.problems):
            out.line(out.paint(str(check), "red" if check.problems else "green"))
    counts = f"{plural(verification.batches, 'batch')}, {plural(verification.records, 'record')}"
    if quick:
        counts += ", from headers only: checksums and records were not checked"
    else:
        counts += f", {format_bytes(verification.read_bytes)} read"
    if not verification.problems:
        text = f"all sound: {counts}" if verification.ok else counts
    else:
        wrong = plural(len(verification.problems), "problem")
        cuts = any(
            problem.code == "incomplete-batch" and problem.repairable for problem in verification.problems
        )
        how = ", which cuts off everything after the last sound batch" if cuts else ""
        text = f"{wrong}, {_repairs(verification.problems)}{how}: {counts}"
    if md5:
        pairs = plural(len(verification.collisions), "MD5") if verification.collisions else "no MD5"
        text += f"; {plural(verification.keys, 'key')} compared, {pairs} shared"
    more_totals = {"keys": verification.keys, "md5_collisions": len(verification.collisions)} if md5 else {}
    out.summary(
        text,
        ok=verification.ok,
        batches=verification.batches,
        records=verification.records,
        read_bytes=verification.read_bytes,
        problems=len(verification.problems),
        **more_totals,
    )
    return 0 if verification.ok else 1


def _repairs(problems: Sequence[Problem]) -> str:
    """Count the problems by remedy: opening to write, or the `rm` of the problem and then opening."""
    opened = sum(problem.repairable and problem.remove is None for problem in problems)
    removed = sum(problem.repairable and problem.remove is not None for problem in problems)
    by_opening = f"{opened} repaired by opening the log to write"
    if not removed:
        return by_opening
    by_removing = f"{removed} repaired by the rm shown and then opening the log to write"
    return f"{by_opening}, {by_removing}" if opened else by_removing


@command("audit", usage="DIR [TOPIC] OTHER")
def audit(
    out: Session,
    directory: Directory,
    topic: TopicName = None,
    other: Annotated[
        str | None,
        argument(
            "OTHER",
            "another log directory or URL, or a .parquet, .arrow or .jsonl file with columns key and offset",
        ),
    ] = None,
    most_rows: Annotated[int, option("N", "list at most N keys; all are counted", "--rows", min=0)] = 1000,
    partition: Partition = None,
    more: MoreDirs = None,
) -> int:
    """Compare the offset delivered for each key with the log.

    The newest delivered offset is compared with the newest logged offset. Exit code 1 if keys are missing,
    stale or phantom. Without TOPIC: all topics if OTHER is a directory, else the only topic.

    Examples:
        lastword audit data users consumer.parquet
        lastword audit data users delivered.jsonl --json
        lastword audit data users /backup/data
        lastword audit data/users-0 consumer.parquet
        lastword audit data /backup/data
    """
    from lastword.files import DEFAULT

    target, (delivered_by,) = Target.with_words(
        "audit", directory, [topic, other], ["OTHER"], partition, more
    )
    only_word = target.topic if target.partition is None else None
    if delivered_by is None and only_word is not None and (is_url(only_word) or DEFAULT.exists(only_word)):
        target, delivered_by = Target(target.paths, [], None), only_word
    if delivered_by is None:
        raise UsageError(
            "audit needs OTHER", remedy="OTHER: a file with columns key and offset, or a log directory"
        )
    failed: LastwordError | None = None
    with ExitStack() as stack:
        logs = stack.enter_context(out.open(target))
        delivered: Any = delivered_by
        replica = None
        if is_url(delivered_by) or DEFAULT.is_dir(delivered_by):
            replica = _replica(delivered_by, target)
            delivered = stack.enter_context(out.open(replica))
        progress = stack.enter_context(out.progress("audit"))
        try:
            report = logs.audit(
                target.topic, target.partition, delivered=delivered, most_rows=most_rows, progress=progress
            )
        except LastwordError as error:
            if replica is not None and f"{error.file}/".startswith(f"{replica.paths[0].rstrip('/')}/"):
                PLACE.paths = replica.paths  # the commands of the remedy are for the other log
            if not isinstance(error, PartialFailure):
                raise
            report, failed = error.results, error  # results are shown before errors
    for row in report.rows:
        out.row("audit", row.to_dict() | {"key": bytes_json(row.key)})
        where = row.topic if row.partition is None else f"{row.topic}-{row.partition}"
        logged, given = (
            "nothing" if offset is None else str(offset)
            for offset in (row.logged_offset, row.delivered_offset)
        )
        line = f"{row.kind:<8} {where}  {key_text(row.key)}  logged {logged}, delivered {given}"
        out.line(out.paint(line, "dim" if row.kind == "gone" else "red"))
    if report.left_off:
        out.say(f"{plural(report.left_off, 'more key')} not listed; --rows N lists more")
    out.summary(str(report), ok=report.ok, counts=dict(report.counts), left_off=report.left_off)
    if failed is not None:
        raise failed
    return 0 if report.ok else 1


def _replica(path: str, target: Target) -> Target:
    """Return the target of the other log directory; a partition's directory must be of the same partition."""
    other = Target.of(path, None, None)
    if other.topic is not None and (other.topic, other.partition) != (target.topic, target.partition):
        raise UsageError(
            f"{path} is partition {other.topic}-{other.partition}, not the partition to compare",
            remedy=target.command("audit", other.topic, "-p", str(other.partition), path),
        )
    return other
