"""The command `lastword`: one file per command, one way out for errors.

Exit codes: 0 done; 1 done, bad news; 2 fix the call; 3 data damaged, the rest was finished; 4 busy; 5 no
room; 6 storage failed; 7 install something; 70 our bug; 130, 143, 129 ended by SIGINT,
SIGTERM, SIGHUP (signals.py). A closed pipe ends with 0: its reader needs no more.
"""

from __future__ import annotations

import errno
import io
import os
import re
import shlex
import sys
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer

from lastword.cli import (
    append,
    audit,
    bench,
    clean,
    config,
    create,
    demo,
    drop,
    dump,
    duplication,
    expire,
    explain,
    lease,
    ls,
    read,
    restore,
    signals,
    simulate,
    trim,
    verify,
    warm,
)
from lastword.cli.command import ClosedPipe, Commands, version_option
from lastword.cli.output import INTERRUPTED, Output
from lastword.cli.remedies import PLACE
from lastword.errors import DiskFullError, LastwordError, StorageError, UsageError, WrongUserError, nearest

LOOKS = (ls, read, explain, duplication, simulate, verify, dump, audit, restore)
CHANGES = (create, config, append, clean, expire, trim, drop, lease)
TRIES = (demo, bench, warm)


def _names(modules: tuple[ModuleType, ...]) -> tuple[str, ...]:
    return tuple(module.__name__.rpartition(".")[2] for module in modules)


class Grouped(Commands):
    groups = (
        ("Look: no lock, no change, also beside a running broker", _names(LOOKS)),
        ("Change: takes the lock (lease does not); with --dry-run nothing is changed", _names(CHANGES)),
        ("Try, set up", _names(TRIES)),
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

for module in (*LOOKS, *CHANGES, *TRIES):
    module.register(app)


@app.callback(
    epilog="\b\nExamples:\n"
    "  lastword create data users --set cleanup.policy=compact\n"
    '  lastword append data users ada \'{"city": "London"}\'\n'
    "  lastword read data users\n"
    "  lastword clean data --dry-run\n"
    "  lastword help clean"
)
def root(
    version: Annotated[bool, version_option(hidden=False)] = False,
) -> None:
    """A keyed, compacted commit log whose bytes are Kafka's."""


def main(arguments: list[str] | None = None) -> None:
    """Run and leave with the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    _open_what_is_closed()
    _set_up_streams()
    shell, _, what = os.environ.get("_LASTWORD_COMPLETE", "").partition("_")
    if what in ("source", "complete"):  # as most programs spell it; typer has it the other way round
        os.environ["_LASTWORD_COMPLETE"] = f"{what}_{shell}"
    code = run(arguments)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _forget_stdout()
        code = 0
    except OSError as error:
        Output(as_json="--json" in arguments).error(_no_output(error))
        _forget_stdout()
        code = _no_output(error).exit_code
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit code. Never raises for what a user can meet."""
    with signals.installed():
        return _run(arguments)


def _run(arguments: list[str]) -> int:
    talk = Output(as_json="--json" in arguments, color=_color(arguments))
    PLACE.paths, PLACE.topic = [], None
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:], "--help"]
    try:
        code = app(args=arguments, prog_name="lastword", standalone_mode=False)
        if code == INTERRUPTED or signals.noted():  # the parser's library takes the exception
            return _interrupted(talk)
        return code if isinstance(code, int) else 0
    except LastwordError as error:
        if isinstance(error, WrongUserError):
            command = shlex.join(["sudo", "-u", error.user, "lastword", *arguments])
            error.remedy = f"run it as that user: {command}"
        talk.error(error)
        return error.exit_code
    except ClosedPipe:
        _forget_stdout()
        return 0
    except (KeyboardInterrupt, typer.Abort):
        return _interrupted(talk)
    except typer.Exit as leave:
        return leave.exit_code
    except SystemExit as leave:  # of the completion, which has printed what the shell wants
        return leave.code if isinstance(leave.code, int) else 0
    except OSError as error:  # of files, errors have their own names: what is left is stdout
        if signals.noted():  # a terminal that hung up takes no output
            return _interrupted(talk)
        talk.error(_no_output(error))
        if error.filename is None:
            _forget_stdout()
        return _no_output(error).exit_code
    except Exception as error:
        # By name, and with its method unknown to mypy: typer has it from the click inside it.
        if type(error).__name__ == "NoArgsIsHelpError":
            talk.stderr.write(f"{error.format_message()}\n")  # type: ignore[attr-defined]
            return 2
        if hasattr(error, "format_message"):  # the parser's own errors: the call must be fixed
            talk.error(_usage(error, arguments))
            return 2
        return _our_bug(error, talk)


def _interrupted(talk: Output) -> int:
    with suppress(OSError):  # the terminal may be gone
        talk.interrupted(signals.name(), signals.exit_code())
    return signals.exit_code()


# The parser's sentences, as they begin in every version of its libraries.
_EXTRA = re.compile(r"unexpected extra arguments?(?:\(s\))? \((.+)\)")
_NOT_A_NUMBER = re.compile(
    r"nvalid value for (.+?): .*(?:greater than or equal to (\d+)|not in the range x>=(\d+)"
    r"|valid (?:integer|number|float)|to parse string as an? )"
)


def _no_output(error: OSError) -> LastwordError:
    if error.filename is not None:  # of a file of the command's own, such as a scratch directory
        return StorageError(f"{error.filename}: {error.strerror}", remedy="check the path", errno=error.errno)
    message = f"cannot write what is to be told: {error.strerror}"
    if error.errno == errno.ENOSPC:
        return DiskFullError(message, remedy="free space there, or send it elsewhere")
    return StorageError(message, remedy="send it elsewhere", errno=error.errno)


def _usage(error: Any, arguments: list[str]) -> UsageError:
    """The parser's error in our words, with the nearest name for what it does not know."""
    message = str(error.format_message()).rstrip(".")
    kind = type(error).__name__
    command = next((word for word in arguments if not word.startswith("-")), "")
    if kind == "NoSuchOption":
        option = getattr(error, "option_name", "")
        near = nearest(option, _options(command))
        message = f"unknown option {option!r}" + (f"; nearest: {near}" if near else "")
        for place in range(arguments.index(command) if command else 0):
            if arguments[place] == option and option in _options(command):
                rest = [word for at, word in enumerate(arguments) if at != place and word != command]
                return UsageError(
                    f"{option} stands before the command",
                    remedy=shlex.join(["lastword", command, *rest, option]),
                )
    elif "No such command" in message:
        near = nearest(command, _commands())
        message = f"unknown command {command!r}" + (f"; nearest: {near}" if near else "")
        return UsageError(message, remedy="lastword --help")
    elif extra := _EXTRA.search(message):
        message = f"{extra[1].split()[0]!r} is one argument too many"
    elif not_a_number := _NOT_A_NUMBER.search(message):
        names, least = not_a_number[1].replace("'", ""), not_a_number[2] or not_a_number[3]
        message = f"{names} takes a number" + (f" from {least} on" if least else "")
    else:
        message = message[:1].lower() + message[1:]
    known = command in _commands()
    return UsageError(message, remedy=f"lastword {command} --help" if known else "lastword --help")


def _color(arguments: list[str]) -> str:
    """What --color says, for what is told of a call that was not understood."""
    for place, word in enumerate(arguments):
        if word == "--color" or word.startswith("--color="):
            return word.partition("=")[2] or "".join(arguments[place + 1 : place + 2])
    return "auto"


def _commands() -> dict[str, Any]:
    # Several commands make a group; the annotation says only command.
    return typer.main.get_command(app).commands  # type: ignore[attr-defined]


def _options(command: str) -> list[str]:
    chosen = _commands().get(command) or typer.main.get_command(app)
    names = [
        name for one in chosen.params for name in (*one.opts, *one.secondary_opts) if name.startswith("-")
    ]
    return [*names, "--help", "--version"]


def _our_bug(error: Exception, talk: Output) -> int:
    if os.environ.get("LASTWORD_TRACEBACK"):
        raise error
    where = ""
    trace = error.__traceback__
    while trace is not None:
        where = f" ({os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno})"
        trace = trace.tb_next
    bug = LastwordError(
        f"{type(error).__name__}: {error}{where}",
        remedy="this is our bug: please report it, with what LASTWORD_TRACEBACK=1 in front shows",
    )
    talk.error(bug)
    return bug.exit_code


def _open_what_is_closed() -> None:
    """A process may be started with stdout or stderr closed, as by `>&-`: Python then has None in its place,
    and the next file that is opened would get its number."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115  # for good


BUFFER_BYTES = 1 << 16


def _set_up_streams() -> None:
    """UTF-8 whatever the locale, and one write for 64 KiB into pipes and files, also with PYTHONUNBUFFERED.

    Names of files and arguments that are not UTF-8 pass as the bytes they are. (The data of logs is escaped
    before it comes here.)
    """
    sys.stderr.reconfigure(encoding="utf-8", errors="backslashreplace")  # type: ignore[union-attr]
    if sys.__stdout__ is None:  # closed, and replaced by the null device
        return
    if sys.stdout.isatty():
        sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")  # type: ignore[union-attr]
        return
    sys.stdout.flush()
    sys.stdout = io.open(  # noqa: SIM115, UP020  # for the life of the process
        sys.stdout.fileno(),
        "w",
        buffering=BUFFER_BYTES,
        encoding="utf-8",
        errors="surrogateescape",
        newline="\n",
        closefd=False,
    )


def _forget_stdout() -> None:
    """Python flushes stdout once more at exit; into nothing, or it would complain about the closed pipe."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)
