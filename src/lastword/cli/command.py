"""Register commands: global options, `--help`, the session, and questions before data is removed.

`@command(name)` adds the global options to a command's own options and passes a `Session` as its first
argument.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import logging
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args, get_origin

import typer
import typer.core

from lastword.cli import signals
from lastword.cli.output import Output
from lastword.cli.remedies import PLACE
from lastword.cli.target import Target, storage_of
from lastword.clock import Clock, SystemClock
from lastword.errors import UsageError
from lastword.objects import is_url
from lastword.parse import one_of, parse_duration_ms
from lastword.version import __version__

if TYPE_CHECKING:
    from lastword.api.logs import LogDir


def argument(metavar: str, help_text: str) -> Any:
    """Return an argument of a command."""
    return typer.Argument(metavar=metavar, help=help_text)


def option(metavar: str, help_text: str, *names: str, **limits: Any) -> Any:
    """Return an option of a command that takes a value. None of `names`: it has that of its parameter."""
    return typer.Option(*names, metavar=metavar, help=help_text, **limits)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"lastword {__version__}")
        raise typer.Exit()


def version_option(*, hidden: bool) -> Any:
    """Return the option `--version`, which prints the version and exits.

    It works before and after the command name; only `lastword --help` shows it.
    """
    return typer.Option(
        "--version", callback=_show_version, is_eager=True, help="show the version", hidden=hidden
    )


def _everywhere(
    json: Annotated[bool, typer.Option("--json", help="one JSON object per line")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="print data and errors only")] = False,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="print more details")] = False,
    progress: Annotated[
        bool | None,
        typer.Option("--progress/--no-progress", help="show progress: a bar on a terminal, else JSON lines"),
    ] = None,
    color: Annotated[str, option("auto|always|never", "colour the text")] = "auto",
    config: Annotated[str | None, option("FILE", "read this settings file instead of those in DIR")] = None,
    version: Annotated[bool, version_option(hidden=True)] = False,
) -> None:
    """Have the options of every command as parameters."""


def _stored(
    storage: Annotated[
        list[str] | None,
        option(
            "key=value", "of a bucket: an option of its store, such as region=eu-central-1; may be repeated"
        ),
    ] = None,
) -> None:
    """Have the option of commands that take a log in a bucket."""


def _of_brokers(
    metadata: Annotated[
        str | None,
        option(
            "PATH",
            "of a broker's directory: the directory of __cluster_metadata-0 (metadata.log.dir), or "
            "server.properties; it is only read",
        ),
    ] = None,
) -> None:
    """Have the option of commands that take a broker's directories."""


def _changing(
    wait: Annotated[
        str | None, option("TIME", "wait up to this long for a directory that another process holds")
    ] = None,
) -> None:
    """Have the option of commands that change a directory."""


@functools.cache
def _options_of(declared: Callable[..., None]) -> list[inspect.Parameter]:
    """Return the parameters of one of the functions above, as options."""
    parameters = inspect.signature(declared, eval_str=True).parameters.values()
    return [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]


class ClosedPipe(Exception):
    """Raised when the reader of stdout has closed the pipe."""


@dataclass(slots=True)
class CommandContext:
    """Objects that the process passes to a command; tests set the clock."""

    clock: Clock | None = None


T = TypeVar("T")

CONTEXT = CommandContext()


class Session(Output):
    """Output plus the settings file, the clock, and opening of log directories."""

    config: str | None = None
    metadata: str | None = None  # of the cluster, if it is in no directory of the target
    wait_seconds: float = 0.0  # for the lock
    storage: Mapping[str, str] = MappingProxyType({})  # options of a bucket's store

    def open(
        self, target: Target, mode: Literal["r", "a"] = "r", *, cleans: bool = False, **settings: Any
    ) -> LogDir:
        """Open the directories of a target; waits for the lock as --wait allows.

        Args:
            target: The directories.
            mode: As for `lastword.open`.
            cleans: Run the background cleaner, as the settings say.
            **settings: Settings, as for `lastword.open`.
        """
        import lastword

        if not PLACE.paths:  # the command line names the first target that is opened
            PLACE.paths, PLACE.topic = target.paths, target.topic
        paths: Any = target.paths if len(target.paths) > 1 else target.paths[0]
        extra: dict[str, Any] = {} if CONTEXT.clock is None else {"clock": CONTEXT.clock}
        if self.metadata is not None:
            extra["metadata"] = self.metadata
        if self.storage and is_url(target.paths[0]):
            extra["storage_options"] = self.storage
        if mode == "a" and not cleans:
            settings.setdefault("log_cleaner_enable", False)

        def opened() -> LogDir:
            return lastword.open(paths, mode, config=self.config, **extra, **settings)

        return self.when_free(opened)

    def when_free(self, attempt: Callable[[], T]) -> T:
        """Return the result of `attempt`, repeated as --wait allows while another process has the lock."""
        if not self.wait_seconds:
            return attempt()
        from lastword.api.opening import wait_for_lock

        clock = CONTEXT.clock or SystemClock()

        def sleep(seconds: float) -> None:
            signals.interruptible(lambda: clock.sleep(seconds))

        return wait_for_lock(attempt, self.wait_seconds, clock, sleep)

    @contextmanager
    def change(self, target: Target) -> Iterator[LogDir]:
        """Open an existing directory, and existing topics in it, to change it.

        If one of them is missing, nothing is changed. Signals are held until the directory is closed. At the
        end, warn of what recovery cut off; with -v, list all repairs.
        """
        with self.open(target) as read_only:
            for topic in target.topics:
                read_only.topic(topic)
        with signals.held(), self.open(target, "a") as logs:
            try:
                yield logs
            finally:
                self.show_repairs(logs)

    def show_repairs(self, logs: LogDir) -> None:
        """Warn of what recovery cut off; with -v, list all repairs."""
        for repair in (repair for directory in logs.recovery for repair in directory.repaired):
            if repair.cut_bytes:
                self.warning(f"recovered: {repair}")
            elif self.verbose:
                self.say(f"recovered: {repair}")


def session(
    json: bool, quiet: bool, verbose: bool, progress: bool | None, color: str, config: str | None
) -> Session:
    """Return the session for the global options; UsageError for an unknown --color."""
    one_of(color, ("auto", "always", "never"), "--color")
    out = Session(as_json=json, quiet=quiet, verbose=verbose, progress=progress, color=color)
    out.config = config
    return out


def now_ms() -> int:
    """Return the current time; ages on the command line count back from it."""
    return (CONTEXT.clock or SystemClock()).now_ms()


_registered = typer.Typer()
"""Has the commands of the modules that were imported."""


def command(
    name: str, *, usage: str, changes: bool = False
) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Register `fn(out, ...)` as a command.

    Its help shows `usage` and the docstring, whose last section has command lines as `Examples:`; the list of
    commands shows the docstring's first line.

    Args:
        name: The name of the command.
        usage: The arguments as they are typed.
        changes: The command changes a directory, so it also takes --wait.

    A parameter `Annotated[T, function]` stands for the parameters of the function, which makes its value. The
    last of them is shown behind the command's own options.
    """

    def register(fn: Callable[..., T]) -> Callable[..., T]:
        parameters = list(inspect.signature(fn, eval_str=True).parameters.values())[1:]
        makers = _makers(parameters)
        words = [word for maker in makers.values() for word in _words_of(maker)]
        parameters = [parameter for parameter in parameters if parameter.name not in makers]
        parameters = [*words[:-1], *parameters, *words[-1:]]
        names = {parameter.name for parameter in parameters}
        everywhere = _options_of(_everywhere)
        shared = [*everywhere, *(_options_of(_changing) if changes else ())]
        if not {"directory", "files", "source"}.isdisjoint(names):
            shared += _options_of(_stored)
        if "more" in names:
            shared += _options_of(_of_brokers)
        parameters += shared

        @functools.wraps(fn)
        def run(**arguments: Any) -> Any:
            common = {option.name: arguments.pop(option.name) for option in shared}
            common.pop("version")  # its callback has run already
            wait, storage = common.pop("wait", None), common.pop("storage", None)
            metadata = common.pop("metadata", None)
            out = session(**common)
            out.metadata = metadata
            if storage is not None:
                _check_url(arguments)
                out.storage = storage_of(storage)
                PLACE.set_storage(out.storage)
            if wait is not None:
                out.wait_seconds = parse_duration_ms(wait) / 1000
            try:
                for name, maker in makers.items():
                    arguments[name] = maker(
                        **{word.name: arguments.pop(word.name) for word in _words_of(maker)}
                    )
                with shown_records("lastword.kernels", out.say, out):  # a compilation takes seconds, once
                    return fn(out, **arguments)
            except BrokenPipeError:
                # Typer would exit with 1; the exit code is 0, because the reader needs no more output.
                raise ClosedPipe from None

        parameters.sort(key=lambda parameter: parameter.kind)
        # typer reads the options from here; mypy has no such attribute for a function.
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer reads it
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        del run.__wrapped__
        text, _, examples = inspect.cleandoc(fn.__doc__ or "").partition("\n\nExamples:\n")
        shown = type(
            "Help", (Help,), {"usage": usage, "everywhere": frozenset(option.name for option in everywhere)}
        )
        _registered.command(
            name,
            cls=shown,
            help=text,
            short_help=text.partition("\n")[0],
            epilog="\b\nExamples:\n" + "\n".join(f"  {line.strip()}" for line in examples.splitlines()),
        )(run)
        return fn

    return register


@functools.cache
def _words_of(maker: Callable[..., Any]) -> list[inspect.Parameter]:
    return list(inspect.signature(maker, eval_str=True).parameters.values())


def _makers(parameters: Sequence[inspect.Parameter]) -> dict[str, Callable[..., Any]]:
    """Return the function that makes the value of a parameter, for the parameters that have one."""
    marks = {parameter.name: get_args(parameter.annotation)[1:] for parameter in parameters}
    return {name: mark[0] for name, mark in marks.items() if mark and inspect.isfunction(mark[0])}


def _check_url(arguments: Mapping[str, Any]) -> None:
    """Raise UsageError if no argument is a URL."""
    words = [word for value in arguments.values() for word in (value if isinstance(value, list) else [value])]
    if not any(isinstance(word, str) and is_url(word) for word in words):
        raise UsageError("--storage is for a log in a bucket", remedy="omit --storage, or give a URL")


@contextmanager
def shown_records(logger_name: str, show: Callable[[str], None], out: Session) -> Iterator[None]:
    """Show the messages of a logger on stderr, as they come, in place of passing them on."""
    logger, handler = logging.getLogger(logger_name), logging.Handler()

    def emit(record: logging.LogRecord) -> None:
        show(record.getMessage())
        out.stderr.flush()

    handler.emit = emit  # type: ignore[method-assign]  # a handler of one method needs no class
    logger.addHandler(handler)
    propagates, logger.propagate = logger.propagate, False
    try:
        yield
    finally:
        logger.propagate = propagates
        logger.removeHandler(handler)


# -- confirmation


Yes = Annotated[bool, typer.Option("--yes", help="do not ask for confirmation")]


def dry_run_option(shows: str) -> Any:
    """Return the option `--dry-run` of a command. `shows`: what it does instead of a change."""
    return typer.Option("--dry-run", help=f"{shows}; change nothing")


def metrics_option(serves: str) -> Any:
    """Return the option `--metrics` of a command. `serves`: what it does."""
    help_text = f"{serves}; without HOST only to this machine"
    return option("[HOST:]PORT", help_text, "--metrics")


def confirm(action: str, yes: bool, *, dry: bool = True) -> None:
    """Ask on a terminal; elsewhere require --yes.

    Args:
        action: The action, as an infinitive without "to".
        yes: --yes was given.
        dry: The command has --dry-run, which the remedy then names.

    Raises:
        UsageError: The answer is no, or there is no terminal and --yes is missing.
    """
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(
            f"{action}: needs a confirmation",
            remedy="--yes" + (", or --dry-run to see the effect first" if dry else ""),
        )
    if not typer.confirm(f"{action}?", err=True):
        raise UsageError("not confirmed: nothing was changed", remedy="answer y, or give --yes")


# -- values of parameters


class Unconverted:
    """A command that takes values as they are if they have the type of their parameter.

    Typer converts every value with Pydantic, also a text to a text, and defaults. To load Pydantic and to
    build its validators takes longer than most commands do, and few values need a conversion.
    """

    callback: Any

    def get_params(self, ctx: Any) -> list[Any]:
        """Return all parameters of the command, with that of `--help`."""
        # A mixin: the class that it is mixed into has the method.
        parameters: list[Any] = super().get_params(ctx)  # type: ignore[misc]  # untyped
        # Not the annotations: Typer's wrapper of the function has none from Python 3.14 on.
        declared = inspect.signature(self.callback, eval_str=True).parameters
        for parameter in parameters:
            if "process_value" not in vars(parameter):
                kind = (
                    _plain_type(declared[parameter.name].annotation) if parameter.name in declared else None
                )
                parameter.process_value = functools.partial(
                    _process_value, parameter, parameter.process_value, kind
                )
        return parameters


def _process_value(
    parameter: Any, convert: Callable[[Any, Any], Any], kind: Any, context: Any, value: Any
) -> Any:
    """Return the value of a parameter, converted by `convert` if it has not the type `kind`."""
    if value is None:
        is_converted = not parameter.required
    elif isinstance(value, (list, tuple)):
        is_converted = kind == list[str] and all(type(item) is str for item in value)
    else:
        is_converted = type(value) is kind
    if not is_converted:
        return convert(context, value)
    if value is None and (parameter.multiple or parameter.nargs != 1):
        value = ()
    return value if parameter.callback is None else parameter.callback(context, parameter, value)


def _plain_type(annotation: Any) -> Any:
    """Return `T` for the annotations `T`, `T | None` and `Annotated` of them."""
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    alternatives = [kind for kind in get_args(annotation) if kind is not type(None)]
    is_optional = isinstance(annotation, UnionType) and len(alternatives) == 1
    return alternatives[0] if is_optional else annotation


# -- help


Rows = list[tuple[str, str]]
RANGE = re.compile(r"\s*\[x>=\d+\]|; x>=\d+")
"""The bound of a number in a help text, which an error names if it is not kept."""


class Help(Unconverted, typer.core.TyperCommand):
    """A command with its own usage line, and with a separate section for the global options."""

    usage = ""
    everywhere: frozenset[str] = frozenset()

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words of the usage line."""
        return [*self.usage.split(), "[options]"]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, options and global options in sections."""
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
                rows.append((record[0], RANGE.sub("", record[1])))
        sections = (("Arguments", arguments), ("Options", own), ("Options of every command", common))
        for title, rows in sections:
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


class Commands(Unconverted, typer.core.TyperGroup):
    """The commands in groups, each with a title.

    A command is built when it is first named, and only its module is imported: to build all of them takes
    longer than most commands do.
    """

    groups: tuple[tuple[str, dict[str, str]], ...] = ()
    """Titles, and for each command its module: the name in `lastword.cli`, or the full name."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands."""
        return [name for _, modules in self.groups for name in modules]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command with this name; None if there is none."""
        for _, modules in self.groups:
            if cmd_name in modules and cmd_name not in self.commands:
                self.commands[cmd_name] = _built(cmd_name, modules[cmd_name])
        return self.commands.get(cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands in groups."""
        for title, names in self.groups:
            with formatter.section(title):
                formatter.write_dl([(name, str(self.get_command(ctx, name).short_help)) for name in names])


def _built(name: str, module: str) -> Any:
    """Import a module of commands and build the command with this name."""
    importlib.import_module(module if "." in module else f"lastword.cli.{module}")
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.registered_commands = [one for one in _registered.registered_commands if one.name == name]
    return typer.main.get_command(app)
