"""`lastword create`, `config` and `drop`: create topics, show and change settings, delete topics."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from lastword.cli import signals
from lastword.cli.command import Session, Yes, command, confirm
from lastword.cli.target import Directory, MoreDirs, Sets, Target, TopicName, settings_of
from lastword.errors import UsageError
from lastword.units import format_bytes
from lastword.values import plural

CREATE_EXAMPLES = """
lastword create data users --set cleanup.policy=compact
lastword create data events --partitions 4 --set cleanup.policy=delete --set retention.ms=7d
lastword create data totals --key-serializer str --value-serializer int64 --set cleanup.policy=compact
"""


MANY = 10_000  # more partitions than this take minutes to create, at about 100 per second


def register(app: typer.Typer) -> None:
    """Add the commands `create`, `config` and `drop`."""
    command(app, "create", usage="DIR TOPIC", examples=CREATE_EXAMPLES, changes=True)(create)
    command(app, "config", usage="DIR [TOPIC]", examples=CONFIG_EXAMPLES, changes=True)(config)
    command(app, "drop", usage="DIR TOPIC", examples=DROP_EXAMPLES, changes=True)(drop)


def create(
    out: Session,
    directory: Directory,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="the name of the new topic")],
    partitions: Annotated[int, typer.Option(metavar="N", help="number of partitions", min=1)] = 1,
    settings: Sets = None,
    key_serializer: Annotated[str, typer.Option(metavar="NAME", help="how keys are stored")] = "bytes",
    value_serializer: Annotated[str, typer.Option(metavar="NAME", help="how values are stored")] = "bytes",
    partitioner: Annotated[str, typer.Option(metavar="NAME", help="murmur2 or crc32")] = "murmur2",
    yes: Yes = False,
    more: MoreDirs = None,
) -> None:
    """Create a topic, and the directory if it does not exist.

    Without --set cleanup.policy=... nothing is ever removed from the topic.
    """
    if partitions > MANY:
        confirm(
            f"create {partitions:,} partitions, which takes about {partitions // 100 // 60 + 1} minutes",
            yes,
            dry=False,
        )
    config: dict[str, Any] = dict(settings_of(settings))
    with signals.held(), out.open(Target([directory, *(more or ())], topic, None), "a") as logs:
        with signals.released():  # an interruption removes what was created so far
            created = logs.create_topic(
                topic,
                partitions,
                key_serializer=key_serializer,
                value_serializer=value_serializer,
                partitioner=partitioner,
                **config,
            )
        policy = created.config.cleanup_policy
    text = ",".join(sorted(policy)) if policy else None
    out.summary(
        f"created {topic}: {plural(partitions, 'partition')}, "
        + (f"cleanup.policy={text}" if text else "no cleanup.policy: nothing is removed"),
        topic=topic,
        partitions=partitions,
        policy=text,
    )


CONFIG_EXAMPLES = """
lastword config data
lastword config data users
lastword config data users --set cleanup.policy=compact --set segment.bytes=64MiB
lastword config data users --unset segment.bytes
"""


def config(
    out: Session,
    directory: Directory,
    topic: TopicName = None,
    settings: Sets = None,
    unset: Annotated[
        list[str] | None, typer.Option(metavar="name", help="remove a setting: the default applies again")
    ] = None,
    yes: Yes = False,
    more: MoreDirs = None,
) -> None:
    """Show settings with their sources, or change them.

    Without TOPIC: the settings of the directory, and the defaults for topics without their own. Changes are
    written to lastword.toml in the directory; its comments stay.
    """
    target = Target.of(directory, topic, None, more)
    changes = settings_of(settings)
    if changes or unset:
        if target.topic is None:
            _confirm_for_all(out, target, [*changes, *(unset or ())], yes)
        with out.change(target) as logs:
            absent = [name for name in unset or () if not logs.settings.is_set(name, target.topic)]
            logs.set_config(target.topic, **changes, **dict.fromkeys(unset or ()))
        done = [f"{name}={value}" for name, value in changes.items()]
        done += [f"{name} was not set" if name in absent else f"{name} unset" for name in unset or ()]
        out.summary(
            f"{target.topic or 'all topics'}: {', '.join(done)}",
            topic=target.topic,
            set=changes,
            unset=unset or [],
        )
        return
    with out.open(target) as logs:
        if target.topic is not None:
            logs.topic(target.topic)  # raises UnknownTopicError with the nearest name
        rows = logs.settings.rows(target.topic)
        values = logs.settings.values(target.topic)
        if target.topic is None:
            rows += [row for row in logs.settings.rows("") if row[0] not in values]
            values = {**logs.settings.values(""), **values}
    for name, _, source in rows:
        out.row("setting", {"topic": target.topic, "name": name, "value": values[name], "source": source})
    out.table(("SETTING", "VALUE", "SOURCE"), rows)
    out.summary(settings=len(rows))


# Settings whose default for all topics may remove records.
REMOVES = ("cleanup.policy", "retention.ms", "retention.bytes", "delete.retention.ms")


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


DROP_EXAMPLES = """
lastword drop data events --dry-run
lastword drop data events --yes
"""


def drop(
    out: Session,
    directory: Directory,
    topic: TopicName = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="show what would be deleted; change nothing")
    ] = False,
    yes: Yes = False,
    more: MoreDirs = None,
) -> None:
    """Delete a topic, with its records and settings."""
    target = Target.of(directory, topic, None, more)
    topic = target.topic_for("drop")
    if target.partition is not None:
        raise UsageError(
            f"{directory} is one partition, but drop deletes all partitions of the topic",
            remedy=target.command("drop", topic),
        )
    with out.open(target) as logs:
        logs.topic(topic)
        views = logs.dirs.views(topic)
        size = sum(segment.size for view in views.values() for segment in view.segments)
    what = f"{topic}: {plural(len(views), 'partition')}, {format_bytes(size)}"
    totals: dict[str, Any] = {"topic": topic, "partitions": len(views), "size_bytes": size}
    if dry_run:
        out.summary(f"would delete {what}; nothing was changed", **totals)
        return
    confirm(f"delete {what} for good", yes)
    with out.change(target) as logs:
        logs.delete_topic(topic)
    out.summary(f"deleted {what}", **totals)
