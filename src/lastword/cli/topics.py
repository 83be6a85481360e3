"""`lastword create`, `config`, `drop`, `expire`, `trim` and `lease`: the commands that manage topics."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from lastword.cli import signals
from lastword.cli.command import Session, Yes, argument, command, confirm, dry_run_option, now_ms, option
from lastword.cli.output import attempted
from lastword.cli.remedies import PLACE, no_policy_lines
from lastword.cli.target import (
    AnyTopics,
    Directory,
    DryRunSets,
    LogDirectory,
    MoreDirs,
    OneTopic,
    Partition,
    Sets,
    SettingsOf,
    Target,
    TopicName,
    WholeTopics,
    settings_of,
    what_if,
)
from lastword.config import INSTANCE_SETTINGS, Settings
from lastword.errors import (
    DataError,
    InvalidSettingError,
    LastwordError,
    LeaseRefusedError,
    NotALogDirError,
    PartialFailure,
    StorageError,
    UsageError,
)
from lastword.objects import is_url
from lastword.parse import parse_duration_ms, parse_when
from lastword.units import format_bytes
from lastword.values import plural, sums

if TYPE_CHECKING:
    from lastword.api.lease import LeaseInfo
    from lastword.api.logs import LogDir
    from lastword.retention import Deletion


MANY = 10_000  # more partitions than this take minutes to create, at about 100 per second


@command("create", usage="DIR TOPIC", changes=True)
def create(
    out: Session,
    directory: LogDirectory,
    topic: Annotated[str, argument("TOPIC", "the name of the new topic")],
    partitions: Annotated[int, option("N", "number of partitions", min=1)] = 1,
    settings: Sets = None,
    key_serializer: Annotated[str, option("NAME", "how keys are stored")] = "bytes",
    value_serializer: Annotated[str, option("NAME", "how values are stored")] = "bytes",
    partitioner: Annotated[str, option("NAME", "murmur2 or crc32")] = "murmur2",
    yes: Yes = False,
    more: MoreDirs = None,
) -> None:
    """Create a topic, and the directory if it does not exist.

    Without a cleanup.policy, given with --set or as a default of the directory, neither cleaning nor
    retention removes anything from the topic.

    Examples:
        lastword create data users --set cleanup.policy=compact
        lastword create data events --partitions 4 --set cleanup.policy=delete --set retention.ms=7d
        lastword create data totals --key-serializer str --value-serializer int64 --set cleanup.policy=compact
    """
    from lastword.api.topics import settings_of_new

    if partitions > MANY:
        confirm(
            f"create {partitions:,} partitions, which takes about {partitions // 100 // 60 + 1} minutes",
            yes,
            dry=False,
        )
    target = Target([directory, *(more or ())], [topic], None)
    PLACE.paths, PLACE.topic = target.paths, target.topic
    formats: dict[str, Any] = {
        "key_serializer": key_serializer,
        "value_serializer": value_serializer,
        "partitioner": partitioner,
    }
    try:
        config: dict[str, Any] = dict(settings_of(settings))
        saved = settings_of_new(topic, **formats, config=config)  # a mistake leaves no new directory behind
        if out.config is not None:
            _refuse_unread(out, out.config, target, topic, saved)
    except InvalidSettingError as error:
        if not Path(directory).exists():
            error.remedy = "correct it; the page on settings in the documentation lists all of them"
        raise
    with signals.held(), out.open(target, "a") as logs:
        created = signals.interruptible(  # an interruption removes what was created so far
            lambda: logs.create_topic(topic, partitions, **formats, **config)
        )
        text = created.config.policy_text
    out.summary(
        f"created {topic}: {plural(partitions, 'partition')}, "
        + (f"cleanup.policy={text}" if text else "no cleanup.policy: nothing is removed"),
        topic=topic,
        partitions=partitions,
        policy=text,
    )


def _refuse_unread(out: Session, file: str, target: Target, topic: str, settings: dict[str, Any]) -> None:
    """Raise UsageError if settings of a new topic would not apply, before a directory or a log is made."""
    from lastword.api.open_dirs import refuse_unread
    from lastword.files import DEFAULT

    present = [
        path for path in target.paths if is_url(path) or (DEFAULT.is_dir(path) and DEFAULT.listdir(path))
    ]
    if present:
        with suppress(NotALogDirError), out.open(Target(present, [], None)) as logs:
            logs.dirs.check_new_topic(topic, settings)
            return
    refuse_unread(Settings.load((), file), file, topic, settings)


@command("config", usage="DIR [TOPIC...]", changes=True)
def config(
    out: Session,
    target: SettingsOf,
    settings: Sets = None,
    unset: Annotated[list[str] | None, option("name", "remove a setting: the default applies again")] = None,
    yes: Yes = False,
) -> None:
    """Show settings with their sources, or change them.

    Without TOPIC: the settings of the directory, and the defaults for topics without their own. Changes are
    written to lastword.toml in the directory, those of a topic to lastword.topic-NAME.toml; comments stay.

    Examples:
        lastword config data
        lastword config data users
        lastword config data users --set cleanup.policy=compact --set segment.bytes=64MiB
        lastword config data users --unset segment.bytes
        lastword config data users cities
    """
    changes = settings_of(settings)
    for name in unset or ():
        if name in changes:
            raise UsageError(f"--set and --unset of {name}", remedy="give one of them")
    subjects: list[str | None] = [*target.topics] or [None]  # None: the directory and all topics
    if changes or unset:
        if not target.topics:
            _confirm_for_all(out, target, [*changes, *(unset or ())], yes)
        done: list[str] = []
        with out.change(target) as logs:
            for topic in subjects:
                absent = [name for name in unset or () if not logs.settings.is_set(name, topic)]
                logs.set_config(topic, **changes, **dict.fromkeys(unset or ()))
                done += _changed(topic, changes, unset or [], absent)
        out.summary("; ".join(done), **_subject(target), set=changes, unset=unset or [])
        return
    shown = 0
    with out.open(target) as logs:
        for topic in subjects:
            if topic is not None:
                logs.topic(topic)  # raises UnknownTopicError with the nearest name
            rows, values = logs.settings.rows(topic), logs.settings.values(topic)
            if topic is None:
                rows += [row for row in logs.settings.rows("") if row[0] not in values]
                values = {**logs.settings.values(""), **values}
            for name, _, source in rows:
                out.row("setting", {"topic": topic, "name": name, "value": values[name], "source": source})
            if len(subjects) > 1:
                out.line(f"{topic}:")
            columns = ("SETTING", "VALUE", "SOURCE")
            out.rows([dict(zip(columns, row, strict=True)) for row in rows], columns)
            shown += len(rows)
    out.summary(settings=shown)


def _subject(target: Target) -> dict[str, Any]:
    """Return the field `topic` of a summary, or `topics` if the command line names several."""
    return {"topics": target.topics} if len(target.topics) > 1 else {"topic": target.topic}


def _changed(topic: str | None, changes: dict[str, str], unset: list[str], absent: list[str]) -> list[str]:
    """Return `TOPIC: name=value, ...` for what was changed, or the same of the directory and all topics."""
    done = {name: f"{name}={value}" for name, value in changes.items()}
    done |= {name: f"{name} was not set" if name in absent else f"{name} unset" for name in unset}
    subjects: dict[str, list[str]] = {}
    for name, text in done.items():
        of_directory = topic is None and name.replace("_", ".") in INSTANCE_SETTINGS
        subject = "the directory" if of_directory else topic or "all topics"
        subjects.setdefault(subject, []).append(text)
    return [f"{subject}: {', '.join(texts)}" for subject, texts in subjects.items()]


# Settings whose default for all topics may remove records.
REMOVES = ("cleanup.policy", "retention.ms", "retention.bytes", "delete.retention.ms", "lastword.ttl.ms")


def _confirm_for_all(out: Session, target: Target, names: list[str], yes: bool) -> None:
    """Ask before a change for all topics that may remove records."""
    removing = [name for name in names if name.replace("_", ".") in REMOVES]
    if not removing:
        return
    with out.open(target) as logs:
        touched = [
            topic.name
            for topic in logs.topics()
            if not all(logs.settings.is_set(name, topic.name, own=True) for name in removing)
        ]
    if touched:
        shown = ", ".join(touched[:5]) + (f" and {len(touched) - 5} more" if len(touched) > 5 else "")
        confirm(f"change {', '.join(removing)} of {plural(len(touched), 'topic')} ({shown})", yes, dry=False)


@command("drop", usage="DIR TOPIC...", changes=True)
def drop(
    out: Session,
    target: WholeTopics,
    dry_run: Annotated[bool, dry_run_option("show what would be deleted")] = False,
    yes: Yes = False,
) -> None:
    """Delete topics, with their records and settings.

    Damaged partitions are deleted, too. If a partition is a link, or belongs to another topic of that name,
    nothing is deleted.

    Examples:
        lastword drop data events users --dry-run
        lastword drop data events --yes
    """
    if len(target.topics) < 2:
        target.topic_for("drop")
    target.refuse_partition("drop", *target.topics)
    with out.open(target) as logs:
        extents = {topic: _extent(logs, topic) for topic in target.topics}
    totals = sums(extents.values(), *_Extent._fields)
    text = "; ".join(f"{topic}: {extent}" for topic, extent in extents.items())
    if len(extents) > 1:
        for topic, extent in extents.items():
            out.row("topic", {"topic": topic, **extent._asdict()})
        text += f"; {plural(len(extents), 'topic')}, {format_bytes(totals['size_bytes'])}"
    fields = _subject(target) | totals
    if dry_run:
        out.summary(f"would delete {text}; nothing was changed", **fields)
        return
    confirm(f"delete {text} for good", yes)
    with out.change(target) as logs:
        for topic in extents:
            logs.delete_topic(topic)
    out.summary(f"deleted {text}", **fields)


class _Extent(NamedTuple):
    """The partitions, records and bytes that a deletion removes. The size leaves out damaged partitions."""

    partitions: int
    unreadable: int
    size_bytes: int

    def __str__(self) -> str:
        damage = f" ({self.unreadable} damaged, not counted in the size)" if self.unreadable else ""
        return f"{plural(self.partitions, 'partition')}{damage}, {format_bytes(self.size_bytes)}"


def _extent(logs: LogDir, topic: str) -> _Extent:
    """Return what the deletion of a topic removes. Raises if a partition cannot be deleted."""
    partitions = logs.dirs.partitions(topic)
    size_bytes, unreadable = 0, 0
    for number, log_dir in partitions.items():
        log_dir.check_deletable(topic, number)
        try:
            size_bytes += log_dir.view(topic, number).segment_set.size
        except (DataError, StorageError):
            unreadable += 1
    return _Extent(len(partitions), unreadable, size_bytes)


@command("expire", usage="DIR [TOPIC...]", changes=True)
def expire(
    out: Session,
    target: AnyTopics,
    dry_run: Annotated[bool, dry_run_option("show what would be removed")] = False,
    sets: DryRunSets = None,
) -> None:
    """Remove old segments by size and age.

    Needs `delete` in cleanup.policy. Segments below the log start are removed under any known policy.

    Examples:
        lastword expire data --dry-run
        lastword expire data events
    """
    from lastword.api.cleaning import expire_outlook, unread_topics

    assumed = what_if(sets)
    if not dry_run:
        target.refuse_set("expire", sets)
    if dry_run:
        with out.open(target, **assumed) as logs:
            outlook, failed = attempted(lambda: expire_outlook(logs.dirs, target.chosen, target.partition))
            unread = unread_topics(logs.dirs, dict.fromkeys(deletion.topic for deletion in outlook))
        _show_deletions(out, outlook, target, unread, ok=not failed)
        out.raise_all(failed[:1])
        return
    with out.change(target) as logs:
        done, failed = attempted(
            lambda: logs.expire(target.chosen, target.partition, stop=signals.noted), LastwordError
        )
    for deletion in done:
        out.row("deletion", deletion.to_dict())
        out.line(str(deletion))
    out.topic_totals(done, "segments", "freed_bytes")
    totals = _totals(done)
    text: str | None = f"freed {format_bytes(totals['freed_bytes'])}"
    if not done:
        dry_run_command = target.command("expire", *target.words, "--dry-run")
        text = None if failed else f"nothing to remove; `{dry_run_command}` shows why"
    out.summary(text, ok=not failed and not signals.noted(), **totals)
    out.raise_all(failed[:1])


def _show_deletions(
    out: Session, deletions: list[Deletion], target: Target, unread: list[str], *, ok: bool
) -> None:
    for deletion in deletions:
        out.row("deletion", deletion.to_dict())
    out.rows(
        [
            {
                "PARTITION": f"{deletion.topic}-{deletion.partition}",
                "SEGMENTS": str(deletion.segments) if deletion.removes else "-",
                "FREES": format_bytes(deletion.freed_bytes) if deletion.removes else "-",
                "START": str(deletion.log_start),
                "WHY": _deletion_text(deletion),
            }
            for deletion in deletions
        ],
        ("PARTITION", "WHY"),
        spare=("START", "SEGMENTS"),
    )
    for line in no_policy_lines(
        target.paths, unread, (d.topic for d in deletions if _deletion_text(d).endswith("not set"))
    ):
        out.say(line)
    totals = _totals([deletion for deletion in deletions if deletion.removes])
    segments = plural(totals["segments"], "segment")
    out.summary(
        f"would remove {segments}, {format_bytes(totals['freed_bytes'])}; nothing was changed",
        ok=ok,
        **totals,
    )


def _totals(deletions: list[Deletion]) -> dict[str, int]:
    return {"deletions": len(deletions), **sums(deletions, "segments", "freed_bytes")}


def _deletion_text(deletion: Deletion) -> str:
    if deletion.removes:
        return f"delete: {deletion.reason}"
    if "no-policy" in deletion.codes:
        is_unread = deletion.reason.startswith("nothing may be removed")
        return f"keep: no-policy, {'its settings are unknown' if is_unread else 'cleanup.policy is not set'}"
    return f"keep: {deletion.reason}"


@command("trim", usage="DIR TOPIC --before OFFSET|TIME", changes=True)
def trim(
    out: Session,
    target: OneTopic,
    before: Annotated[
        str | None, option("OFFSET|TIME", "the first record to keep: an offset, a time or an age (90d)")
    ] = None,
    dry_run: Annotated[bool, dry_run_option("show the new log start")] = False,
    yes: Yes = False,
) -> None:
    """Raise the log start and remove the records before it.

    Applies to all partitions of the topic, or to one of them; under any cleanup.policy.

    Examples:
        lastword trim data events --before 90d --dry-run
        lastword trim data events --before 2026-11-01T00:00Z --yes
        lastword trim data events -p 0 --before 4000 --yes
    """
    from lastword.api import cleaning

    topic_name = target.topic_for("trim", "--before", "OFFSET")
    if before is None:
        raise UsageError("trim needs --before", remedy="--before OFFSET, a time or an age (90d)")
    when = _first_kept(before)
    with out.open(target) as logs:
        logs.topic(topic_name)  # raises UnknownTopicError with the nearest name
        wanted = cleaning.trim(logs.dirs, topic_name, target.partition, when, dry_run=True)
        starts = {number: logs.dirs.view(topic_name, number).log_start for number in wanted}
    moves = {number: offset for number, offset in wanted.items() if offset > starts[number]}
    if dry_run:
        _show_trim(out, topic_name, starts, wanted, "would start")
        out.summary(
            "nothing was changed",
            topic=topic_name,
            offsets=_removed_offsets(starts, moves),
            log_start=_by_partition(wanted),
        )
        return
    if moves:
        confirm(f"remove {plural(_removed_offsets(starts, moves), 'offset')} of {topic_name} for good", yes)
    failed: PartialFailure | None = None
    with out.change(target) as logs:
        try:
            done = logs.topic(topic_name).trim(when, partition=target.partition)
        except PartialFailure as error:
            done, failed = error.results, error
    _show_trim(out, topic_name, starts, done, "starts")
    out.summary(
        None if moves else "no records before it",
        ok=failed is None,
        topic=topic_name,
        offsets=_removed_offsets(starts, done),
        log_start=_by_partition(done),
    )
    if failed is not None:
        raise failed


def _first_kept(text: str) -> int | datetime:
    when = parse_when(text, now_ms=now_ms())
    if isinstance(when, str):
        raise UsageError(
            f"--before {text} is neither an offset nor a time", remedy="an offset, a time or an age (90d)"
        )
    return when


def _removed_offsets(starts: dict[int, int], after: dict[int, int]) -> int:
    return sum(max(0, offset - starts[number]) for number, offset in after.items())


def _by_partition(offsets: dict[int, int]) -> dict[str, int]:
    return {str(number): offset for number, offset in offsets.items()}


def _show_trim(out: Session, topic: str, before: dict[int, int], after: dict[int, int], verb: str) -> None:
    for number, offset in sorted(after.items()):
        out.row(
            "trim",
            {"topic": topic, "partition": number, "log_start_before": before[number], "log_start": offset},
        )
        if offset > before[number]:
            first, last = before[number], offset - 1
            gone = f"offset {first}" if first == last else f"offsets {first}-{last}"
            are = "would be" if verb != "starts" else "is" if first == last else "are"
            out.line(f"{topic}-{number}: {verb} at {offset}; {gone} {are} gone")
        else:
            out.line(f"{topic}-{number}: already starts at {offset}")


@command("lease", usage="DIR TOPIC [NAME]")
def lease(
    out: Session,
    directory: Directory,
    topic: TopicName = None,
    name: Annotated[str | None, argument("NAME", "the name of a lease")] = None,
    partition: Partition = None,
    advance: Annotated[
        int | None, option("OFFSET", "set the next offset of its reader; takes the lease if it is new")
    ] = None,
    release: Annotated[bool, typer.Option("--release", help="release the lease")] = False,
    max_age: Annotated[
        str | None, option("AGE", "a new lease lapses this long after its last advance (default 7d)")
    ] = None,
    more: MoreDirs = None,
) -> None:
    """List the leases of a topic, or change one.

    A tombstone stays until the reader of every lease has passed it. Works beside a writer, without the lock.

    Examples:
        lastword lease data users
        lastword lease data users replica-2 -p 0 --advance 4711
        lastword lease data users replica-2 --release
    """
    target, (name,) = Target.with_words("lease", directory, [topic, name], ["NAME"], partition, more)
    topic_name = target.topic_for("lease")
    if name is None and (advance is not None or release):
        raise UsageError(
            "--advance and --release need the NAME of a lease", remedy=target.command("lease", topic_name)
        )
    if max_age is not None and advance is None:
        raise UsageError("--max-age needs --advance", remedy="--advance OFFSET takes the lease")
    if advance is not None and release:
        raise UsageError("--advance cannot be combined with --release", remedy="give one of them")
    if release and target.partition is not None:
        raise UsageError(
            "--release releases a lease in all partitions",
            remedy=target.command("lease", topic_name, name or "NAME", "--release"),
        )
    from lastword.api.lease import Lease

    with signals.held(), out.open(target) as logs:
        known = logs.topic(topic_name)
        infos = [info for info in known.leases(target.partition) if name in (None, info.name)]
        if name is not None and advance is None and not infos:
            raise LeaseRefusedError(
                f"{topic_name} has no lease {name!r}", remedy=target.command("lease", topic_name)
            )
        if release and name is not None:
            Lease(logs.dirs, topic_name, name).release()
            out.line(f"{topic_name}: {name} is released")
            out.summary(topic=topic_name, released=len(infos))
            return
        if advance is not None and name is not None:
            position = advance if target.partition is None else {target.partition: advance}
            ages_ms = {info.lapses_ms - info.advanced_ms for info in infos}
            if ages_ms and max_age is not None and ages_ms != {parse_duration_ms(max_age)}:
                raise UsageError(
                    f"{topic_name} has a lease {name!r} of another age, and --max-age is for a new lease",
                    remedy="omit --max-age: a lease keeps the age that it was taken with",
                )
            if infos:
                Lease(logs.dirs, topic_name, name).advance(position)
            else:
                known.lease(name, position=position, max_age=max_age or "7d")
            infos = [info for info in known.leases(target.partition) if info.name == name]
    _show_leases(out, infos)
    out.summary(
        None if infos else "no leases",
        topic=topic_name,
        leases=len(infos),
        lapsed=sum(info.lapsed for info in infos),
    )


def _show_leases(out: Session, infos: list[LeaseInfo]) -> None:
    from lastword.api.lease import age_text

    now = now_ms()
    for info in infos:
        out.row("lease", info.to_dict())
    rows = [info.cells() | {"": age_text(info, now)} for info in infos]
    out.rows(rows, ("PARTITION", "LEASE", "ADVANCED", ""))
