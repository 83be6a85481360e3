"""The target of a command: `DIR [TOPIC] [-p N]` and `--set name=value` as they are typed.

`Target` turns the words into what to open; a partition's own directory may stand for all three.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from lastword.cli.remedies import PLACE, command_line
from lastword.errors import LastwordError, UsageError

Directory = Annotated[
    str, typer.Argument(metavar="DIR", help="a log directory, or one partition's directory")
]


def _topics(ctx: typer.Context, incomplete: str) -> list[str]:
    """Topics of the directory that was typed, for the shell's completion."""
    from lastword.files import DEFAULT
    from lastword.logdir.discover import discover

    try:
        found = discover(DEFAULT, ctx.params.get("directory") or "").topics()
    except (LastwordError, OSError):
        return []
    return [name for name in found if name.startswith(incomplete)]


def _settings(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of settings, for the shell's completion."""
    from lastword.config.settings import ALL_SETTINGS

    return [f"{name}=" for name in ALL_SETTINGS if name.startswith(incomplete)]


TopicName = Annotated[
    str | None, typer.Argument(metavar="TOPIC", help="a topic's name", autocompletion=_topics)
]
Partition = Annotated[
    int | None, typer.Option("-p", "--partition", metavar="N", help="only this partition", min=0)
]
MoreDirs = Annotated[
    list[str] | None, typer.Option("--dir", metavar="D", help="another of Kafka's log.dirs; may be repeated")
]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="name=value", help="a setting; may be repeated", autocompletion=_settings),
]
WhatIf = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="name=value",
        help="look as if this setting held for every topic; may be repeated",
        autocompletion=_settings,
    ),
]


@dataclass(frozen=True, slots=True)
class Target:
    """The directories to open, the topic and the partition that a command line names."""

    paths: list[str]
    topic: str | None
    partition: int | None

    @classmethod
    def of(
        cls, directory: str, topic: str | None, partition: int | None, more: list[str] | None = None
    ) -> Target:
        """`DIR TOPIC -p N`, or a partition's own directory in place of DIR."""
        from lastword.segment import names

        if not directory:
            raise UsageError("the directory's name is empty", remedy="give a log directory; . is this one")
        trimmed = directory.rstrip("/") or "/"
        real = os.path.realpath(trimmed)
        parsed = names.parse_partition_dir(os.path.basename(real))
        if parsed is not None and _looks_like_partition(trimmed):
            # "." and links do not show where the partition lies: there the real path does.
            shown = trimmed if os.path.basename(trimmed) == os.path.basename(real) else real
            above = os.path.dirname(shown) or "."
            if topic is None and partition in (None, parsed.partition):
                return cls([above, *(more or ())], parsed.topic, parsed.partition)._named()
            raise UsageError(
                f"{directory} is the directory of partition {parsed.topic}-{parsed.partition} already",
                remedy=f"leave TOPIC and -p out, or give the log directory: {above}",
            )
        if partition is not None and topic is None:
            raise UsageError(
                "--partition needs a topic", remedy=f"give the topic: {directory} TOPIC -p {partition}"
            )
        return cls([directory, *(more or ())], topic, partition)._named()

    def _named(self) -> Target:
        """Note what the command line names, for the commands in remedies; the first directory counts."""
        if PLACE.paths in ([], self.paths):
            PLACE.paths, PLACE.topic = self.paths, self.topic
        return self

    @classmethod
    def with_words(
        cls,
        command: str,
        directory: str,
        words: Sequence[str | None],
        names: Sequence[str],
        partition: int | None,
        more: list[str] | None = None,
    ) -> tuple[Target, list[str | None]]:
        """`DIR TOPIC WORD...`: the target, which has a topic, and the words that follow it, None for those
        left out. A partition's own directory takes the place of DIR and TOPIC: words begin right after it.
        """
        given = [word for word in words if word is not None]
        target = cls.of(directory, None, None, more) if partition is None else None
        if target is None or target.topic is None:
            target, given = cls.of(directory, given[0] if given else None, partition, more), given[1:]
        target.topic_for(command, *names)
        if len(given) > len(names):
            raise UsageError(
                f"{given[len(names)]!r} is one argument too many", remedy=f"lastword {command} --help"
            )
        return target, [*given, *[None] * (len(names) - len(given))]

    def command(self, verb: str, *words: str) -> str:
        """A command over the same directories, as it can be pasted."""
        return command_line(verb, self.paths, *words)

    def topic_for(self, command: str, *rest: str) -> str:
        """The topic; UsageError for a command that needs one and was given none."""
        if self.topic is None:
            self._check_there()
            raise UsageError(
                f"{command} needs a topic",
                remedy=f"`{self.command(command, 'TOPIC', *rest)}`; `{self.command('ls')}` shows them",
            )
        return self.topic

    def _check_there(self) -> None:
        """NotALogDirError for a directory that does not exist: it lacks more than a topic."""
        from lastword.errors import NotALogDirError
        from lastword.files import DEFAULT

        for path in self.paths:
            if not DEFAULT.exists(path):
                raise NotALogDirError(f"{path} does not exist", remedy="check the path", file=path)


def _looks_like_partition(directory: str) -> bool:
    """A directory whose name ends with -N is a partition's if it holds its files, not if it holds
    partitions."""
    from lastword.files import DEFAULT

    if not DEFAULT.is_dir(directory):
        return False
    marks = ("partition.metadata", "leader-epoch-checkpoint")
    return any(name.endswith((".log", ".index")) or name in marks for name in DEFAULT.listdir(directory))


def settings_of(pairs: list[str] | None) -> dict[str, str]:
    """`name=value` pairs of --set as a dict; names as Kafka writes them."""
    settings = {}
    for pair in pairs or ():
        name, equals, value = pair.partition("=")
        if name.startswith("drives."):  # in a dotted name nobody could tell where the path's own dots are
            raise UsageError(
                "the limit of one drive is not set by --set",
                remedy='in lastword.toml, above all tables: drives."/srv/d2" = "20MiB"',
            )
        if not equals or not name.strip():
            raise UsageError(f"--set {pair!r} has no '='", remedy="--set name=value")
        settings[name.strip()] = value.strip()
    return settings


def what_if(pairs: list[str] | None) -> dict[str, Any]:
    """`--set` of a command that only looks: keywords for `Session.open`, which win over lastword.toml."""
    from lastword.config.settings import keyword_names

    return keyword_names(settings_of(pairs))
