"""Parse the target of a command, `DIR [TOPIC...] [-p N]`, `--set name=value` and `--storage key=value`.

DIR may be the URL of a log in a bucket. The directory of one partition may replace DIR, TOPIC and -p.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from lastword.cli.remedies import PLACE, command_line
from lastword.errors import LastwordError, NotALogDirError, UsageError
from lastword.objects import is_url

Directory = Annotated[
    str,
    typer.Argument(
        metavar="DIR", help="a log directory, the directory of one partition, or the URL of a log in a bucket"
    ),
]
LogDirectory = Annotated[
    str, typer.Argument(metavar="DIR", help="a log directory, or the URL of a log in a bucket")
]


def _topics(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete a topic's name from the topics of the directory that was typed."""
    from lastword.files import DEFAULT
    from lastword.logdir.topics import RootListing

    try:
        topics = RootListing(DEFAULT, ctx.params.get("directory") or "").get().topics()
    except (LastwordError, OSError):
        return []
    return [name for name in topics if name.startswith(incomplete)]


def _settings(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a setting."""
    from lastword.config.settings import ALL_SETTINGS

    return [f"{name}=" for name in ALL_SETTINGS if name.startswith(incomplete)]


TopicName = Annotated[
    str | None, typer.Argument(metavar="TOPIC", help="the name of a topic", autocompletion=_topics)
]


def _topics_argument(meaning: str) -> Any:
    return typer.Argument(metavar="TOPIC", help=f"the names of topics{meaning}", autocompletion=_topics)


TopicNames = Annotated[list[str] | None, _topics_argument("; none: all")]
ChosenTopics = Annotated[list[str] | None, _topics_argument("")]
ConfiguredTopics = Annotated[
    list[str] | None, _topics_argument("; none: the directory, and the defaults of all topics")
]
Keys = Annotated[list[str] | None, typer.Argument(metavar="KEY...", help="keys, typed as `read` shows them")]
Partition = Annotated[
    int | None, typer.Option("-p", "--partition", metavar="N", help="only this partition", min=0)
]
MoreDirs = Annotated[
    list[str] | None, typer.Option("--dir", metavar="D", help="another of Kafka's log.dirs; may be repeated")
]


def _set_option(meaning: str) -> Any:
    return typer.Option(
        "--set", metavar="name=value", help=f"{meaning}; may be repeated", autocompletion=_settings
    )


Sets = Annotated[list[str] | None, _set_option("a setting")]
DryRunSets = Annotated[list[str] | None, _set_option("with --dry-run: assume this setting for every topic")]
WhatIf = Annotated[list[str] | None, _set_option("assume this setting for every topic, without saving it")]


@dataclass(frozen=True, slots=True)
class Target:
    """The directories to open, the topics and the partition that a command line names.

    Attributes:
        paths: The directories.
        topics: The topics; none: all.
        partition: The partition of the only topic; None: all.
    """

    paths: list[str]
    topics: list[str]
    partition: int | None

    @classmethod
    def of(
        cls,
        directory: str,
        topic: str | list[str] | None,
        partition: int | None,
        more: list[str] | None = None,
    ) -> Target:
        """Return the target of `DIR TOPIC... -p N`, or of a partition's directory in place of all three."""
        from lastword.segment import names

        topics = [topic] if isinstance(topic, str) else list(dict.fromkeys(topic or ()))

        if not directory:
            raise UsageError("the directory's name is empty", remedy="give a log directory; . is this one")
        if any(is_url(path) for path in (directory, *(more or ()))):
            if more:
                raise UsageError(
                    "a log in a bucket is one URL: --dir is for directories", remedy="omit --dir"
                )
            return cls([directory], _of_one(directory, topics, partition), partition)._named()
        trimmed = directory.rstrip("/") or "/"
        real = os.path.realpath(trimmed)
        parsed = names.parse_partition_dir(os.path.basename(real))
        if parsed is not None and _is_partition_dir(trimmed):
            if parsed.marker:  # the partition of this name is another directory, or none
                raise UsageError(
                    f"{directory} is not served: its name ends with -{parsed.marker}",
                    remedy=f"`{command_line('dump', [trimmed])}` shows its records",
                )
            # "." and links do not name the partition: the real path does.
            shown = trimmed if os.path.basename(trimmed) == os.path.basename(real) else real
            above = os.path.dirname(shown) or "."
            if not topics and partition in (None, parsed.partition):
                return cls([above, *(more or ())], [parsed.topic], parsed.partition)._named()
            raise UsageError(
                f"{directory} is already the directory of partition {parsed.topic}-{parsed.partition}",
                remedy=f"omit TOPIC and -p, or give the log directory: {above}",
            )
        topics = _of_one(directory, topics, partition)
        return cls([directory, *(more or ())], topics, partition)._named()

    @property
    def topic(self) -> str | None:
        """The only topic; None: the command line names none, or several."""
        return self.topics[0] if len(self.topics) == 1 else None

    @property
    def chosen(self) -> list[str] | None:
        """The topics as the verbs take them; None: all."""
        return self.topics or None

    def _named(self) -> Target:
        """Record the target for the commands in remedies; the first target counts."""
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
        """Return the target of `DIR TOPIC WORD...` and the words after TOPIC; a missing word is None.

        The directory of a partition replaces DIR and TOPIC: the words then follow it directly.

        Raises:
            UsageError: There is no topic, or there are too many words.
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

    @classmethod
    def with_keys(
        cls,
        command: str,
        directory: str,
        words: Sequence[str | None],
        partition: int | None,
        more: list[str] | None,
    ) -> tuple[Target, list[str]]:
        """Return the target of `DIR TOPIC KEY...` and the keys, as `with_words` does."""
        target, keys = cls.with_words(command, directory, words, ["KEY"] * len(words), partition, more)
        return target, [key for key in keys if key is not None]

    def command(self, verb: str, *words: str) -> str:
        """Return a command over the same directories that can be pasted."""
        return command_line(verb, self.paths, *words)

    @property
    def words(self) -> list[str]:
        """TOPIC... and -p as typed."""
        return self.topics if self.partition is None else [*self.topics, "-p", str(self.partition)]

    def refuse_set(self, command: str, sets: list[str] | None) -> None:
        """Raise UsageError if there are `sets`, for a command that takes --set only with --dry-run."""
        if sets:
            settings = [word for pair in sets for word in ("--set", pair)]
            raise UsageError(
                "--set is for --dry-run",
                remedy=f"`{self.command(command, *self.words, '--dry-run', *settings)}` to see the effect, "
                f"`{self.command('config', *(self.topics or ['TOPIC']), *settings)}` to change the setting",
            )

    def refuse_partition(self, command: str, *words: str) -> None:
        """Raise UsageError if the target is one partition, for a command that takes whole topics."""
        if self.partition is not None:
            raise UsageError(
                f"{self.topic}-{self.partition} is one partition, and {command} takes whole topics",
                remedy=self.command(command, *words),
            )

    def topic_for(self, command: str, *rest: str) -> str:
        """Return the topic.

        Raises:
            UsageError: The command line names no topic.
        """
        if self.topic is None:
            self._check_paths_exist()
            raise UsageError(
                f"{command} needs a topic",
                remedy=f"`{self.command(command, 'TOPIC', *rest)}`; `{self.command('ls')}` shows them",
            )
        return self.topic

    def _check_paths_exist(self) -> None:
        """Raise NotALogDirError if a directory is missing, before the error about a missing topic."""
        from lastword.files import DEFAULT

        for path in self.paths:
            if not is_url(path) and not DEFAULT.exists(path):
                raise NotALogDirError(f"{path} does not exist", remedy="check the path", file=path)


def _one_topic(
    directory: Directory, topic: TopicName = None, partition: Partition = None, more: MoreDirs = None
) -> Target:
    return Target.of(directory, topic, partition, more)


def _any_topics(
    directory: Directory, topics: TopicNames = None, partition: Partition = None, more: MoreDirs = None
) -> Target:
    return Target.of(directory, topics, partition, more)


def _whole_topic(directory: LogDirectory, topic: TopicName = None, more: MoreDirs = None) -> Target:
    return Target.of(directory, topic, None, more)


def _whole_topics(directory: LogDirectory, topics: ChosenTopics = None, more: MoreDirs = None) -> Target:
    return Target.of(directory, topics, None, more)


def _settings_of(directory: Directory, topics: ConfiguredTopics = None, more: MoreDirs = None) -> Target:
    return Target.of(directory, topics, None, more)


OneTopic = Annotated[Target, _one_topic]
AnyTopics = Annotated[Target, _any_topics]
WholeTopic = Annotated[Target, _whole_topic]
WholeTopics = Annotated[Target, _whole_topics]
SettingsOf = Annotated[Target, _settings_of]
"""Targets of commands: each has the words on the command line that are the parameters of its function."""


def _of_one(directory: str, topics: list[str], partition: int | None) -> list[str]:
    """Return the topics. UsageError: there is a partition, and not one topic."""
    if partition is not None and len(topics) != 1:
        which = "one" if topics else "the"
        raise UsageError(
            f"--partition needs {'one' if topics else 'a'} topic",
            remedy=f"give {which} topic: {directory} TOPIC -p {partition}",
        )
    return topics


def _is_partition_dir(directory: str) -> bool:
    """Return whether a directory named *-N holds the files of a partition, and not partitions."""
    from lastword.files import DEFAULT

    if not DEFAULT.is_dir(directory):
        return False
    marks = ("partition.metadata", "leader-epoch-checkpoint")
    return any(name.endswith((".log", ".index")) or name in marks for name in DEFAULT.listdir(directory))


def settings_of(pairs: list[str] | None) -> dict[str, str]:
    """Return the `name=value` pairs of --set as a dict; names as they were typed.

    Raises:
        UnknownSettingError: A name is unknown. The names become arguments, and these have others, too.
    """
    from lastword.config.settings import keyword_names

    settings = {}
    for pair in pairs or ():
        name, equals, value = pair.partition("=")
        if name.startswith("drives."):  # a path may contain dots, so the dotted name is ambiguous
            raise UsageError(
                "--set cannot set the limit of one drive",
                remedy='in lastword.toml, above all tables: drives."/srv/d2" = "20MiB"',
            )
        if not equals or not name.strip():
            raise UsageError(f"--set {pair!r} has no '='", remedy="--set name=value")
        settings[name.strip()] = value.strip()
    keyword_names(settings)
    return settings


def storage_of(pairs: list[str] | None, example: str = "--storage region=eu-central-1") -> dict[str, str]:
    """Return the `key=value` pairs of --storage, or of the option of `example`, as a dict."""
    options = {}
    for pair in pairs or ():
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"a {example.partition(' ')[0]} has no '='", remedy=example)
        options[name.strip()] = value
    return options


def what_if(pairs: list[str] | None) -> dict[str, Any]:
    """Return the `--set` of a read-only command as keywords for `Session.open`."""
    from lastword.config.settings import keyword_names

    return keyword_names(settings_of(pairs))
