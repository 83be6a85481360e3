"""`lastword config`: settings with their source, or changes to them."""

from __future__ import annotations

from typing import Annotated

import typer

from lastword.cli.options import Directory, MoreDirs, Session, Sets, Target, TopicName, command, settings_of

EXAMPLES = """
lastword config data
lastword config data users
lastword config data users --set cleanup.policy=compact --set segment.bytes=64MiB
lastword config data users --unset segment.bytes
"""


def register(app: typer.Typer) -> None:
    command(app, "config", usage="DIR [TOPIC]", examples=EXAMPLES)(config)


def config(
    out: Session,
    directory: Directory,
    topic: TopicName = None,
    settings: Sets = None,
    unset: Annotated[list[str] | None, typer.Option(metavar="name", help="back to the default")] = None,
    more: MoreDirs = None,
) -> None:
    """Show settings and where each comes from, or change them.

    Changes go to lastword.toml in the directory; comments in it stay.
    """
    target = Target.of(directory, topic, None, more)
    changes = settings_of(settings)
    if changes or unset:
        with out.change(target) as logs:
            logs.set_config(target.topic, **changes, **dict.fromkeys(unset or ()))
        done = [f"{name}={value}" for name, value in changes.items()]
        done += [f"{name} unset" for name in unset or ()]
        out.summary(
            f"{target.topic or 'all topics'}: {', '.join(done)}",
            topic=target.topic,
            set=changes,
            unset=unset or [],
        )
        return
    with out.open(target) as logs:
        if target.topic is not None:
            logs.topic(target.topic)  # UnknownTopicError names the nearest
        rows = logs.settings.rows(target.topic)
    for name, value, source in rows:
        out.row("setting", {"topic": target.topic, "name": name, "value": value, "source": source})
    out.table(("SETTING", "VALUE", "SOURCE"), rows)
    out.summary(settings=len(rows))
