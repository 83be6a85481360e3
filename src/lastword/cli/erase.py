"""`lastword erase`: remove keys and their values from every file of a topic, with a certificate."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lastword.api.text import key_candidates, unescape
from lastword.cli.command import Session, Yes, command, confirm, dry_run_option, option
from lastword.cli.output import attempted
from lastword.cli.target import Directory, Keys, MoreDirs, Partition, Target, TopicName
from lastword.errors import DataError, LastwordError, StorageError, UsageError
from lastword.state.snapshot_file import check_place
from lastword.units import format_time
from lastword.values import plural

if TYPE_CHECKING:
    from lastword.api.logs import LogDir
    from lastword.tools.erasure import Erasure


SHOWN = 10
"""Copies of a partition that are shown without -v."""


@command("erase", usage="DIR TOPIC KEY...", changes=True)
def erase(
    out: Session,
    directory: Directory,
    topic: TopicName = None,
    keys: Keys = None,
    partition: Partition = None,
    prefix: Annotated[str | None, option("P", "also every key that begins with these bytes")] = None,
    keys_file: Annotated[str | None, option("FILE", "also the keys in this file, one a line")] = None,
    now: Annotated[
        bool,
        typer.Option("--now", help="remove the tombstones, too; readers may not have seen them"),
    ] = False,
    certificate: Annotated[str | None, option("FILE", "write what was removed and searched, as JSON")] = None,
    check: Annotated[
        str | None, option("FILE", "check a certificate, and whether a key of it came back")
    ] = None,
    dry_run: Annotated[bool, dry_run_option("count what would be removed")] = False,
    yes: Yes = False,
    more: MoreDirs = None,
) -> int:
    """Remove keys and all their values from every file of a topic.

    Appends a tombstone for each key, rewrites every segment that has an older record of it, removes derived
    files, and searches all files of the partitions for the keys and their old values. Without --now a
    tombstone holds its key until a cleaning after delete.retention.ms. Exit code 1: the search found a copy.
    The certificate lists what it cannot promise: copies elsewhere.

    Examples:
        lastword erase data users bob --dry-run
        lastword erase data users bob --certificate bob.json --yes
        lastword erase data users --keys-file keys.txt --now --certificate erased.json --yes
        lastword erase data users --prefix customer-17/ --now --yes
        lastword erase data --check erased.json
    """
    if check is not None:
        return _check(out, Target.of(directory, topic, partition, more), check)
    target, given = Target.with_keys("erase", directory, [topic, *(keys or ())], partition, more)
    texts = [*given]
    known = target.topic_for("erase", "KEY")
    if keys_file is not None:
        texts += _lines(keys_file)
    if not texts and prefix is None:
        raise UsageError("erase needs a KEY", remedy=target.command("erase", *target.words, "KEY"))
    start = None if prefix is None else unescape(prefix)
    options = [*(() if prefix is None else ("--prefix", prefix))]
    options += () if keys_file is None else ("--keys-file", keys_file)
    again = target.command("erase", *target.words, *given, *options)
    with out.open(target) as logs:
        wanted = _keys_of(logs, known, texts)
        planned = _erased(out, logs, target, known, wanted, start, now=now, dry_run=True)[0]
        if certificate is not None and not dry_run:  # what is erased now is in no later certificate
            check_place(logs.dirs.local_files, certificate)
    if dry_run:
        _show(out, planned, again)
        out.summary(f"{planned}; nothing was changed", **_totals(planned))
        return 0
    records = sum(part.records for part in planned.partitions)
    confirm(
        f"erase {plural(len(planned.keys), 'key')} ({plural(records, 'record')}) of {known} for good", yes
    )
    with out.change(target) as logs, out.progress("erase") as progress:
        done, failed = _erased(out, logs, target, known, wanted, start, now=now, progress=progress)
        if certificate is not None:
            done.save(certificate, files=logs.dirs.local_files)
    _show(out, done, again)
    _show_objects(out, done, again)
    wrote = "" if certificate is None else f"; certificate in {certificate}"
    out.summary(f"{done}{wrote}", ok=done.complete and not failed, **_totals(done))
    out.raise_all(failed)
    return 0 if done.complete else 1


def _lines(path: str) -> list[str]:
    """Return the lines of a file of keys that are not empty. Only LF and CR LF end one: keys hold others."""
    try:
        lines = [os.fsdecode(line.removesuffix(b"\r")) for line in Path(path).read_bytes().split(b"\n")]
    except OSError as error:
        raise UsageError(
            f"--keys-file {path}: {error.strerror}", remedy="a file that has a key in each line"
        ) from None
    return [line for line in lines if line]


def _keys_of(logs: LogDir, topic: str, texts: list[str]) -> set[bytes]:
    """Return the keys that the texts may mean."""
    serializer = logs.topic(topic).config.lastword_key_serializer
    return {data for text in texts for data in key_candidates(text, serializer)}


def _erased(
    out: Session,
    logs: LogDir,
    target: Target,
    topic: str,
    keys: set[bytes],
    prefix: bytes | None,
    **options: object,
) -> tuple[Erasure, list[LastwordError]]:
    source = logs.topic(topic, key_serializer="bytes", value_serializer="bytes")

    def call() -> list[Erasure]:
        # Options of the command pass through: mypy knows their values as objects only.
        return [source.erase(keys, prefix=prefix, partition=target.partition, **options)]  # type: ignore[arg-type]

    results, failed = attempted(call, DataError, StorageError, LastwordError)
    if not results:
        raise failed[-1]
    return results[0], failed


def _totals(erasure: Erasure) -> dict[str, Any]:
    parts = erasure.partitions
    return {
        "topic": erasure.topic,
        "keys": len(erasure.keys),
        "records": sum(part.records for part in parts),
        "tombstones": sum(part.tombstones for part in parts),
        "copies": sum(part.copies_found for part in parts),
        "others": sum(part.others_found for part in parts),
        "removed_objects": erasure.removed_objects,
        "waiting_objects": erasure.waiting_objects,
        "complete": erasure.complete,
    }


def _show(out: Session, erasure: Erasure, again: str) -> None:
    """Show what was erased. `again`: the command without its options."""
    for part in erasure.partitions:
        name = f"{erasure.topic}-{part.partition}"
        out.row("erasure", {"topic": erasure.topic, **part.to_dict()})
        verb = "would be removed" if erasure.dry_run else "removed"
        line = f"{name}: {plural(part.records, 'record')} {verb}"
        if erasure.now:
            line += f", {plural(part.tombstones, 'tombstone')} {verb}"
        if not erasure.dry_run:
            line += f"; searched {plural(part.files, 'file')}, {plural(part.records_searched, 'record')}"
        out.line(line)
        for kept in part.kept if out.verbose else part.kept[:SHOWN]:
            out.line(f"  {kept}")
        if part.kept:
            out.say(f"{name}: to remove {plural(len(part.kept), 'tombstone')} as well: {again} --now")
        for lease in part.leases:
            out.warning(f"{name}: lease {lease} is below a removed tombstone: its reader is refused")
        for copy in part.copies if out.verbose else part.copies[:SHOWN]:
            out.line(out.paint(f"  left: {copy}", "red"))
        if part.others_found:
            places = plural(part.others_found, "place")
            out.warning(
                f"{name}: records of other keys hold such bytes in {places}, and stay; "
                f"the first: {part.others[0]}"
            )


def _show_objects(out: Session, erasure: Erasure, again: str) -> None:
    if erasure.waiting_objects:
        waiting = plural(erasure.waiting_objects, "object")
        until = format_time(erasure.waiting_until_ms)
        out.warning(
            f"{waiting} of older versions may hold the records until a `lastword gc` after {until}; to "
            f"remove them now, although readers of these versions fail: {again} --now"
        )


def _check(out: Session, target: Target, path: str) -> int:
    from lastword.api.erasing import check

    with out.open(target) as logs:
        result = check(logs.dirs, path)
    out.row("certificate", result.to_dict())
    for places, text in ((result.came_back, "came back at"), (result.left, "is still at")):
        for number, offset in places if out.verbose else places[:SHOWN]:
            out.line(f"{result.topic}-{number}: a key {text} offset {offset}")
    good = not result.came_back and not result.left
    segments = result.same_segments + result.changed_segments
    out.summary(
        f"the certificate is unchanged; {result.same_segments} of {plural(segments, 'segment')} have the "
        f"certified bytes; {'no key came back' if good else 'keys are in the log'}",
        ok=good,
        topic=result.topic,
        came_back=len(result.came_back),
        left=len(result.left),
        same_segments=result.same_segments,
        changed_segments=result.changed_segments,
    )
    return 0 if good else 1
