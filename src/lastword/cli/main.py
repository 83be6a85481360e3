"""Run the command `lastword`: one file per subject, one place that turns errors into exit codes.

Exit codes: 0 done; 1 done, problems found; 2 fix the call; 3 data damaged, the rest was finished; 4 busy;
5 disk full; 6 storage failed; 7 a package is missing; 8 a key has no value (`get`); 70 a bug in lastword;
130, 143, 129 ended by SIGINT, SIGTERM, SIGHUP (signals.py). A closed pipe ends with 0: its reader needs
no more output.
"""

from __future__ import annotations

import errno
import functools
import io
import os
import re
import shlex
import sys
from contextlib import suppress
from typing import Annotated, Any

import typer

from lastword.cli import signals
from lastword.cli.command import ClosedPipe, Commands, version_option
from lastword.cli.output import INTERRUPTED, Output, discard
from lastword.cli.remedies import PLACE
from lastword.errors import DiskFullError, LastwordError, StorageError, UsageError, WrongUserError, nearest
from lastword.parse import relative_paths

# The commands, in the order of `--help`, each with the module that registers it: its name in `lastword.cli`,
# or its full name.
INSPECT = {
    "ls": "ls",
    "read": "records",
    "get": "records",
    "explain": "analysis",
    "duplication": "analysis",
    "simulate": "analysis",
    "verify": "checks",
    "dump": "records",
    "audit": "checks",
    "restore": "records",
    "export": "export",
    "groups": "transactions",
    "console": "serve",
}
CHANGE = {
    "create": "topics",
    "config": "topics",
    "append": "records",
    "clean": "clean",
    "erase": "erase",
    "expire": "topics",
    "gc": "clean",
    "trim": "topics",
    "drop": "topics",
    "lease": "topics",
    "transactions": "transactions",
    "copy": "copy",
    "pull": "pull",
    "serve": "serve",
}
SET_UP = {"users": "serve", "demo": "lastword.demo.trial", "warm": "warm"}


class Grouped(Commands):
    """The commands of lastword in three groups."""

    groups = (
        ("Inspect: no lock, no change; works beside a running broker", INSPECT),
        ("Change: takes the lock (lease does not); --dry-run changes nothing", CHANGE),
        ("Try and set up", SET_UP),
    )


app = typer.Typer(
    name="lastword",
    cls=Grouped,
    help="A keyed, compacted commit log whose bytes are Kafka's.",
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(
    epilog="\b\nExamples:\n"
    "  lastword create data users --set cleanup.policy=compact\n"
    '  lastword append data users ada \'{"city": "London"}\'\n'
    "  lastword read data users\n"
    "  lastword clean data --dry-run\n"
    "  lastword help clean"
)
def root(version: Annotated[bool, version_option(hidden=False)] = False) -> None:
    """A keyed, compacted commit log whose bytes are Kafka's."""


def main(arguments: list[str] | None = None) -> None:
    """Run one command line and exit with its code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    _open_closed_streams()
    _set_up_streams()
    shell, _, action = os.environ.get("_LASTWORD_COMPLETE", "").partition("_")
    if action in ("source", "complete"):  # most programs write bash_source, typer expects source_bash
        os.environ["_LASTWORD_COMPLETE"] = f"{action}_{shell}"
    code = run(arguments)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        discard(1)
        code = 0
    except OSError as error:
        Output(as_json="--json" in arguments).error(_output_error(error))
        discard(1)
        code = _output_error(error).exit_code
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit code. A user's mistake never raises."""
    with signals.installed(), relative_paths():
        return _run(arguments)


@functools.cache
def command_tree() -> Any:
    """Return the root, built once. A command is built when it is first named (`Commands`)."""
    return typer.main.get_command(app)


def _run(arguments: list[str]) -> int:
    out = Output(as_json="--json" in arguments, color=_color(arguments))
    PLACE.clear()
    arguments = _behind_the_command([*arguments[1:], "--help"] if arguments[:1] == ["help"] else arguments)
    try:
        code = command_tree()(args=arguments, prog_name="lastword", standalone_mode=False)
        if code == INTERRUPTED or signals.noted():  # typer catches the exception itself
            return _interrupted(out)
        return code if isinstance(code, int) else 0
    except LastwordError as error:
        if isinstance(error, WrongUserError):
            command = shlex.join(["sudo", "-u", error.user, "lastword", *arguments])
            error.remedy = f"run it as that user: {command}"
        out.error(error)
        return error.exit_code
    except ClosedPipe:
        discard(1)
        return 0
    except (KeyboardInterrupt, typer.Abort):
        return _interrupted(out)
    except typer.Exit as leave:
        return leave.exit_code
    except SystemExit as leave:  # from completion, which has printed its answer
        return leave.code if isinstance(leave.code, int) else 0
    except OSError as error:  # files raise LastwordError; only stdout raises OSError
        if signals.noted():  # a terminal that hung up takes no output
            return _interrupted(out)
        out.error(_output_error(error))
        if error.filename is None:
            discard(1)
        return _output_error(error).exit_code
    except Exception as error:
        # Compared by name, and so without its type: the class belongs to the copy of click inside typer.
        if type(error).__name__ == "NoArgsIsHelpError":
            out.stderr.write(f"{error.format_message()}\n")  # type: ignore[attr-defined]
            return 2
        if hasattr(error, "format_message"):  # errors of the parser: the call must be fixed
            out.error(_usage(error, arguments))
            return 2
        return _internal_error(error, out)


def _behind_the_command(arguments: list[str]) -> list[str]:
    """Move the options of every command, and --help, from before the command to the end of the call."""
    moved: list[str] = []
    at = 0
    while at < len(arguments) and arguments[at].partition("=")[0] in _MOVABLE:
        word = arguments[at]
        width = 1 + (word in _WITH_VALUE)
        moved += arguments[at : at + width]
        at += width
    if not moved or at >= len(arguments) or arguments[at].startswith("-"):
        return arguments  # no command follows
    return [*arguments[at:], *moved]


def _interrupted(out: Output) -> int:
    with suppress(OSError):  # the terminal may be gone
        out.interrupted(signals.name(), signals.exit_code())
    return signals.exit_code()


_WITH_VALUE = ("--color", "--config")
_MOVABLE = (
    *_WITH_VALUE,
    *("-h", "--help", "--json", "-q", "--quiet", "-v", "--verbose", "--progress", "--no-progress"),
)
OTHER_NAMES = {
    **dict.fromkeys(("rm", "remove"), ("drop",)),
    **dict.fromkeys(("delete", "tombstone"), ("append --delete", "drop", "trim")),
    **dict.fromkeys(("cat", "consume", "consumer", "show", "tail", "head"), ("read",)),
    **dict.fromkeys(("lookup", "find", "query"), ("get",)),
    **dict.fromkeys(("list", "describe", "info", "status", "stats", "topics", "topic", "du"), ("ls",)),
    **dict.fromkeys(("put", "produce", "producer", "write", "upsert"), ("append",)),
    **dict.fromkeys(("compact", "compaction", "vacuum", "optimize", "shrink"), ("clean",)),
    **dict.fromkeys(("alter", "set", "settings", "configs", "configure"), ("config",)),
    **dict.fromkeys(("cp", "backup", "mirror"), ("copy", "pull")),
    **dict.fromkeys(("check", "fsck", "validate", "doctor"), ("verify",)),
    "snapshot": ("restore",),
    **dict.fromkeys(("compare", "diff"), ("audit",)),
    **dict.fromkeys(("truncate", "delete-records"), ("trim",)),
    **dict.fromkeys(("retention", "purge"), ("expire",)),
    **dict.fromkeys(("why", "analyze", "analyse"), ("explain",)),
    **dict.fromkeys(("broker", "server", "start"), ("serve",)),
    **dict.fromkeys(("transaction", "txn", "abort"), ("transactions",)),
    **dict.fromkeys(("consumer-groups", "group", "lag"), ("groups",)),
    **dict.fromkeys(("ui", "web", "dashboard"), ("console",)),
    "leases": ("lease",),
    **dict.fromkeys(("dump-log", "inspect"), ("dump",)),
    "mkdir": ("create",),
    "version": ("--version",),
}
"""Names that other programs have for our commands, with the calls that take their place."""

# Beginnings of the parser's messages, as all supported versions of its libraries write them.
_EXTRA = re.compile(r"unexpected extra arguments?(?:\(s\))? \((.+)\)")
_NOT_A_NUMBER = re.compile(
    r"nvalid value for (.+?): .*(?:greater than or equal to (\d+)|not in the range x>=(\d+)"
    r"|valid (?:integer|number|float|int range)|to parse string as an? )"
)


def _output_error(error: OSError) -> LastwordError:
    if error.filename is not None:  # a file of the command itself, such as a scratch directory
        return StorageError(f"{error.filename}: {error.strerror}", remedy="check the path", errno=error.errno)
    if error.errno == errno.ENOENT:  # of `getcwd`: an open stream has its file
        return UsageError("the working directory does not exist any more", remedy="cd to another directory")
    message = f"cannot write the output: {error.strerror}"
    if error.errno == errno.ENOSPC:
        return DiskFullError(message, remedy="free space there, or send the output elsewhere")
    return StorageError(message, remedy="send the output elsewhere", errno=error.errno)


def _usage(error: Any, arguments: list[str]) -> UsageError:
    """Return the parser's error in our words, with the nearest known name."""
    message = str(error.format_message()).rstrip(".")
    kind = type(error).__name__
    command = next((word for word in arguments if not word.startswith("-")), "")
    if kind == "NoSuchOption":
        option = getattr(error, "option_name", "")
        known_options = {name.lstrip("-"): name for name in _options(command)}
        near = nearest(option.lstrip("-"), known_options)  # without the dashes, which make all similar
        message = f"unknown option {option!r}" + (f"; nearest: {known_options[near]}" if near else "")
    elif "No such command" in message:
        near = nearest(command, command_tree().list_commands(None))
        meant = OTHER_NAMES.get(command.lower()) or ((near,) if near else ())
        quoted = " or ".join(f"`{call}`" for call in meant)
        return UsageError(
            f"no command {command!r}" + (f"; did you mean {quoted}?" if quoted else ""),
            remedy="lastword --help",
        )
    elif extra := _EXTRA.search(message):
        message = f"{extra[1].split()[0]!r} is one argument too many"
    elif not_a_number := _NOT_A_NUMBER.search(message):
        names, least = not_a_number[1].replace("'", ""), not_a_number[2] or not_a_number[3]
        message = f"{names} takes a number" + (f", at least {least}" if least else "")
    else:
        message = message[:1].lower() + message[1:]
    known = command in command_tree().list_commands(None)
    return UsageError(message, remedy=f"lastword {command} --help" if known else "lastword --help")


def _color(arguments: list[str]) -> str:
    """Return the value of --color, for errors of a call that the parser refuses."""
    for place, word in enumerate(arguments):
        if word == "--color" or word.startswith("--color="):
            return word.partition("=")[2] or "".join(arguments[place + 1 : place + 2])
    return "auto"


def _options(command: str) -> list[str]:
    chosen = command_tree().get_command(None, command) or command_tree()
    names = [
        name
        for parameter in chosen.params
        for name in (*parameter.opts, *parameter.secondary_opts)
        if name.startswith("-")
    ]
    return [*names, "--help", "--version"]


def _internal_error(error: Exception, out: Output) -> int:
    if os.environ.get("LASTWORD_TRACEBACK"):
        raise error
    where = ""
    trace = error.__traceback__
    while trace is not None:
        where = f" ({os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno})"
        trace = trace.tb_next
    bug = LastwordError(
        f"{type(error).__name__}: {error}{where}",
        remedy="a bug in lastword: please report it, with the output under LASTWORD_TRACEBACK=1",
    )
    out.error(bug)
    return bug.exit_code


def _open_closed_streams() -> None:
    """Open the null device in place of a closed stdin, stdout or stderr.

    A process may be started with some of them closed, as by `>&-`. Python then sets them to None, and the
    next file that is opened would get their descriptor. In place of stdout the device is read-only: output
    is an error then, as on a full drive, because a script would take no output for an empty result.
    """
    # In the order of their descriptors, because an opened file gets the lowest that is free.
    for name, mode, flags in (
        ("stdin", "r", os.O_RDONLY),
        ("stdout", "w", os.O_RDONLY),
        ("stderr", "w", os.O_WRONLY),
    ):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, flags)  # never closed
            setattr(sys, name, os.fdopen(descriptor, mode, encoding="utf-8", closefd=False))


BUFFER_BYTES = 1 << 16


def _set_up_streams() -> None:
    """Write UTF-8 in every locale, and 64 KiB at a time into pipes and files, also with PYTHONUNBUFFERED.

    File names and arguments that are not UTF-8 are written as their bytes. Records are escaped earlier.
    """
    # Python opens stderr as a TextIOWrapper; its annotation allows any text stream.
    sys.stderr.reconfigure(encoding="utf-8", errors="backslashreplace")  # type: ignore[union-attr]
    if sys.__stdout__ is None:  # closed: the null device took its place
        return
    if sys.stdout.isatty():
        sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")  # type: ignore[union-attr]
        return
    sys.stdout.flush()
    # `io.open`, because ruff wants a Path in place of `open`, and this is a descriptor. It is never closed.
    sys.stdout = io.open(  # noqa: SIM115, UP020
        sys.stdout.fileno(),
        "w",
        buffering=BUFFER_BYTES,
        encoding="utf-8",
        errors="surrogateescape",
        newline="\n",
        closefd=False,
    )
