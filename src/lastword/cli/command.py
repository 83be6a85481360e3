"""What every command has in common: its global options, its help, its session, and how its errors leave.

`@command(app)` adds the options that hold everywhere to a command's own and gives it a `Session` first.
"""

from __future__ import annotations

import functools
import inspect
import logging
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
import typer.core

from lastword.cli import signals
from lastword.cli.output import Output
from lastword.cli.remedies import PLACE
from lastword.cli.target import Target
from lastword.errors import UsageError, nearest
from lastword.parse import parse_duration_ms

if TYPE_CHECKING:
    from lastword.api.logs import LogDir
    from lastword.clock import Clock


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


def now_ms() -> int:
    """The time that ages on the command line count from."""
    from lastword.clock import SystemClock

    return (CONTEXT.clock or SystemClock()).now_ms()


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


# -- asking


Yes = Annotated[bool, typer.Option("--yes", help="do not ask")]


def confirm(out: Output, what: str, yes: bool, *, dry: bool = True) -> None:
    """Returns if it may be done; else UsageError, as when the answer is no. `dry`: there is a --dry-run."""
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(
            f"{what}: not without a confirmation",
            remedy="--yes" + (", or --dry-run to look first" if dry else ""),
        )
    if not typer.confirm(f"{what}?", err=True):
        raise UsageError("not confirmed: nothing was changed", remedy="answer y, or give --yes")


# -- help


Rows = list[tuple[str, str]]
_RANGE = re.compile(r"\s*\[x>=\d+\]")


class Help(typer.core.TyperCommand):
    """A command whose usage is `usage`; the options named in `everywhere` stand in a section of their own."""

    usage = ""
    everywhere: frozenset[str] = frozenset()

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [*self.usage.split(), "[options]"]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        arguments: Rows = []
        own: Rows = []
        common: Rows = []
        for parameter in self.get_params(ctx):
            if parameter.param_type_name == "argument":
                arguments.append((str(parameter.metavar), getattr(parameter, "help", None) or ""))
                continue
            record = parameter.get_help_record(ctx)
            if record is not None:
                rows = common if parameter.name in self.everywhere else own
                rows.append((record[0], _RANGE.sub("", record[1])))
        sections = (("Arguments", arguments), ("Options", own), ("Options of every command", common))
        for title, rows in sections:
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


class Commands(typer.core.TyperGroup):
    """The commands, in groups: a title, and the names below it."""

    groups: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for title, names in self.groups:
            with formatter.section(title):
                formatter.write_dl([(name, str(self.commands[name].short_help)) for name in names])
