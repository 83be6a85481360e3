"""What every command has in common: its global options, its target, and how its errors leave.

`@command(app)` adds the options that hold everywhere to a command's own and gives it an `Output` first.
`Target` turns `DIR [TOPIC] [-p N]` into what to open; a partition's own directory may stand for all three.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from lastword.cli import signals
from lastword.cli.help import Help
from lastword.cli.output import Output
from lastword.cli.remedies import PLACE, command_line
from lastword.errors import LastwordError, UsageError, nearest
from lastword.parse import parse_duration_ms

if TYPE_CHECKING:
    from lastword.api.logs import LogDir
    from lastword.clock import Clock

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


def _show_version(wanted: bool) -> None:
    if wanted:
        from lastword.version import __version__

        typer.echo(f"lastword {__version__}")
        raise typer.Exit()


def version_option(*, hidden: bool) -> Any:
    """`--version`: told, and nothing else is done. Before or after the command; shown in the first help."""
    return typer.Option(
        "--version", callback=_show_version, is_eager=True, help="show the version", hidden=hidden
    )


_EVERYWHERE: dict[str, tuple[Any, Any]] = {
    "json": (Annotated[bool, typer.Option("--json", help="one JSON object a line")], False),
    "quiet": (Annotated[bool, typer.Option("-q", "--quiet", help="data and errors only")], False),
    "verbose": (Annotated[bool, typer.Option("-v", "--verbose", help="say more")], False),
    "progress": (
        Annotated[bool | None, typer.Option("--progress/--no-progress", help="JSON lines, or a bar")],
        None,
    ),
    "color": (Annotated[str, typer.Option(metavar="auto|always|never", help="colour in text")], "auto"),
    "config": (
        Annotated[str | None, typer.Option(metavar="FILE", help="another lastword.toml")],
        None,
    ),
    "version": (Annotated[bool, version_option(hidden=True)], False),
}


_CHANGING: dict[str, tuple[Any, Any]] = {
    "wait": (
        Annotated[
            str | None,
            typer.Option(metavar="TIME", help="if another process has the directory, wait so long for it"),
        ],
        None,
    ),
}


class ClosedPipe(Exception):
    """Whoever read stdout is gone."""


@dataclass(slots=True)
class Context:
    """What the process brings to a command; tests set the clock."""

    clock: Clock | None = None


CONTEXT = Context()


class Session(Output):
    """An Output that also knows the settings file, the clock and how to open."""

    config: str | None = None
    wait_seconds: float = 0.0  # for the lock

    def open(self, target: Target, mode: Literal["r", "a"] = "r", **settings: Any) -> LogDir:
        import lastword

        if not PLACE.paths:  # the first that is opened is what the command line names
            PLACE.paths, PLACE.topic = target.paths, target.topic
        paths: Any = target.paths if len(target.paths) > 1 else target.paths[0]
        extra: dict[str, Any] = {} if CONTEXT.clock is None else {"clock": CONTEXT.clock}
        if mode == "a":
            settings.setdefault("log_cleaner_enable", False)  # a command does what it says, no more

        def opened() -> LogDir:
            return lastword.open(paths, mode, config=self.config, **extra, **settings)

        if not self.wait_seconds:
            return opened()
        from lastword.api.opening import wait_for_lock
        from lastword.clock import SystemClock

        clock = CONTEXT.clock or SystemClock()

        def sleep(seconds: float) -> None:
            signals.interruptible(lambda: clock.sleep(seconds))

        return wait_for_lock(opened, self.wait_seconds, clock, sleep)

    @contextmanager
    def change(self, target: Target) -> Iterator[LogDir]:
        """Open a directory that is there, with a topic that is there, to change it; else nothing is
        touched. What recovery took away is told at the end, and with -v all that it put right. Signals are
        held until the directory is closed."""
        with self.open(target) as looked:
            if target.topic is not None:
                looked.topic(target.topic)
        with signals.held(), self.open(target, "a") as logs:
            try:
                yield logs
            finally:
                for repaired in (one for directory in logs.recovery for one in directory.repaired):
                    if repaired.cut_bytes:
                        self.warning(f"recovered: {repaired}")
                    elif self.verbose:
                        self.say(f"recovered: {repaired}")


WhatIf = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="name=value",
        help="look as if this setting held for every topic; may be repeated",
        autocompletion=_settings,
    ),
]


def what_if(pairs: list[str] | None) -> dict[str, Any]:
    """`--set` of a command that only looks: keywords for `Session.open`, which win over lastword.toml."""
    from lastword.config.settings import keyword_names

    return keyword_names(settings_of(pairs))


def now_ms() -> int:
    """The time that ages on the command line count from."""
    from lastword.clock import SystemClock

    return (CONTEXT.clock or SystemClock()).now_ms()


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


def command(
    app: typer.Typer, name: str, *, usage: str, examples: str, changes: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register `fn(out, ...)` as a command. Its help: `usage` (the arguments as they are typed), its
    docstring (whose first line stands in the list of commands), and `examples` at the end. One that `changes`
    a directory has --wait, too."""
    shared = {**_EVERYWHERE, **(_CHANGING if changes else {})}

    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        own = inspect.signature(fn, eval_str=True)
        parameters = list(own.parameters.values())[1:]
        for option, (annotation, default) in shared.items():
            parameters.append(
                inspect.Parameter(
                    option, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
                )
            )

        @functools.wraps(fn)
        def run(**arguments: Any) -> Any:
            common = {option: arguments.pop(option) for option in shared}
            common.pop("version")  # told already, if it was asked for
            wait = common.pop("wait", None)
            out = session(**common)
            if wait is not None:
                out.wait_seconds = parse_duration_ms(wait) / 1000
            try:
                with _compiling_announced(out):
                    return fn(out, **arguments)
            except BrokenPipeError:
                # Typer would end the process with 1; it ends with 0, for whoever reads has seen enough.
                raise ClosedPipe from None

        parameters.sort(key=lambda parameter: parameter.kind)
        # typer reads the options from here; functions are not annotated to have it.
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        del run.__wrapped__
        text = inspect.cleandoc(examples)
        shown = type("Help", (Help,), {"usage": usage, "everywhere": frozenset(_EVERYWHERE)})
        app.command(
            name,
            cls=shown,
            short_help=inspect.cleandoc(fn.__doc__ or "").splitlines()[0],
            epilog="\b\nExamples:\n" + "\n".join(f"  {line}" for line in text.splitlines()),
        )(run)
        return run

    return register


@contextmanager
def _compiling_announced(out: Session) -> Iterator[None]:
    """Say on stderr that kernels are compiled, where that is the case: it takes seconds, once."""

    class Announcer(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            out.say(record.getMessage())
            out.stderr.flush()

    logger, announcer = logging.getLogger("lastword.kernels"), Announcer()
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(announcer)
    try:
        yield
    finally:
        logger.removeHandler(announcer)
        logger.setLevel(level)


def session(
    json: bool, quiet: bool, verbose: bool, progress: bool | None, color: str, config: str | None
) -> Session:
    choices = ("auto", "always", "never")
    if color not in choices:
        near = nearest(color, choices)
        raise UsageError(
            f"unknown --color {color!r}" + (f"; nearest: {near}" if near else ""),
            remedy="auto, always or never",
        )
    out = Session(as_json=json, quiet=quiet, verbose=verbose, progress=progress, color=color)
    out.config = config
    return out


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
