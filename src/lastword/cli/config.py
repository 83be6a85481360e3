"""`lastword config`: show settings with their sources, or change them."""

from __future__ import annotations

from typing import Annotated

import typer

from lastword.cli.command import Session, Yes, command, confirm
from lastword.cli.target import Directory, MoreDirs, Sets, Target, TopicName, settings_of
from lastword.values import plural

EXAMPLES = """
lastword config data
lastword config data users
lastword config data users --set cleanup.policy=compact --set segment.bytes=64MiB
lastword config data users --unset segment.bytes
"""


def register(app: typer.Typer) -> None:
    """Add the command `config`."""
    command(app, "config", usage="DIR [TOPIC]", examples=EXAMPLES, changes=True)(config)


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
