"""`lastword create`: create a topic."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from lastword.cli import signals
from lastword.cli.command import Session, Yes, command, confirm
from lastword.cli.target import Directory, MoreDirs, Sets, Target, settings_of
from lastword.values import plural

EXAMPLES = """
lastword create data users --set cleanup.policy=compact
lastword create data events --partitions 4 --set cleanup.policy=delete --set retention.ms=7d
lastword create data totals --key-serializer str --value-serializer int64 --set cleanup.policy=compact
"""


MANY = 10_000  # more partitions than this take minutes to create, at about 100 per second


def register(app: typer.Typer) -> None:
    """Add the command `create`."""
    command(app, "create", usage="DIR TOPIC", examples=EXAMPLES, changes=True)(create)


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
