"""Write a command's values as text or JSON: data to stdout; progress, warnings and errors to stderr.

JSON output is one object per line with `"type"`; the last object is the `summary`. Bytes are strings if they
are UTF-8, else `{"base64": "..."}`. A key or value of a `json` topic is written as JSON. Some values are
written as base64 of their bytes, so that `append` reads back what `read --json` prints: the four bytes
`null`, which JSON cannot distinguish from a tombstone, values that look like the base64 form, and infinite
numbers and NaN, which JSON lacks.

Tables and lines are fitted to the width of a terminal.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol, TextIO, TypeVar

from lastword.api.serializers import bytes_json
from lastword.api.text import json_escaped
from lastword.cli.remedies import remedy_of
from lastword.errors import DataError, LastwordError, PartialFailure, StorageError
from lastword.values import Progress, cut, sums, table_of, terminal_width


class OfTopic(Protocol):
    """A result that has a topic."""

    @property
    def topic(self) -> str:
        """The name."""


T = TypeVar("T")
R = TypeVar("R", bound=OfTopic)


BAR_AFTER_SECONDS = 1.0
BAR_COLOR = "cyan"  # rich's own is red, and red means damaged
INTERRUPTED = 130  # exit code after Ctrl-C
COLORS = {"red": "31", "yellow": "33", "dim": "2"}


def wants_color(color: str, stream: TextIO) -> bool:
    """Return whether to colour a stream; `auto` means on a terminal, unless NO_COLOR is set."""
    return color == "always" or (color == "auto" and stream.isatty() and not os.environ.get("NO_COLOR"))


def painted(text: str, color: str) -> str:
    """Return text in a colour."""
    return f"\x1b[{COLORS[color]}m{text}\x1b[0m"


def attempted(call: Callable[[], list[T]], *errors: type[Exception]) -> tuple[list[T], list[LastwordError]]:
    """Return the results of a call and its errors, which a command raises after it has shown the results.

    The first error has the message of the call.

    Args:
        call: The call.
        errors: The classes of errors that are returned; others are raised immediately. Without any: DataError
            and StorageError.
    """
    caught = errors or (DataError, StorageError)
    try:
        return call(), []
    except caught as error:
        if isinstance(error, PartialFailure):
            return error.results, [error, *error.errors[1:]]
        assert isinstance(error, LastwordError)
        return [], [error]


def by_topic(results: Iterable[R]) -> dict[str, list[R]]:
    """Return results of partitions by their topic."""
    grouped: dict[str, list[R]] = {}
    for result in results:
        grouped.setdefault(result.topic, []).append(result)
    return grouped


class Output:
    """The output of one command: rows and lines on stdout; progress, warnings and errors on stderr."""

    def __init__(
        self,
        *,
        as_json: bool = False,
        quiet: bool = False,
        verbose: bool = False,
        progress: bool | None = None,
        color: str = "auto",
    ) -> None:
        self.as_json = as_json
        self.quiet = quiet
        self.verbose = verbose
        self.wants_progress = progress
        self.stdout: TextIO = sys.stdout
        self.stderr: TextIO = sys.stderr
        self.on_terminal = self.stdout.isatty()
        self.colored = wants_color(color, self.stdout)
        self.stderr_colored = wants_color(color, self.stderr)

    # -- data

    def line(self, text: str) -> None:
        """Write one line of text; nothing in JSON mode."""
        if not self.as_json:
            self.stdout.write(text + "\n")

    def data_line(self, text: str) -> None:
        """Write a line that ends with user data; a terminal gets no more than its width."""
        self.line(cut(text, terminal_width(self.stdout)) if self.on_terminal else text)

    def row(self, kind: str, fields: dict[str, Any]) -> None:
        """Write one JSON object; nothing in text mode."""
        if self.as_json:
            self.stdout.write(_json_line(kind, fields))

    def rows(
        self, rows: Sequence[Mapping[str, str]], text_columns: Sequence[str], spare: Sequence[str] = ()
    ) -> None:
        """Write a table: fitted to the width of a terminal, complete in pipes and files.

        Args:
            rows: The cells of each row by column, as `Value.cells` returns them.
            text_columns: The columns that are aligned left.
            spare: Columns to omit from a narrow terminal, in this order.
        """
        if rows and not self.as_json:
            width = terminal_width(self.stdout) if self.on_terminal else None
            for text in table_of(rows, text_columns, width=width, spare=spare):
                self.line(text)

    def summary(self, text: str | None = None, *, ok: bool = True, **totals: Any) -> None:
        """Write the last line of a command (unless quiet), or the object of type `summary`."""
        if self.as_json:
            self.row("summary", {"ok": ok, **totals})
        elif text and not self.quiet:
            self.line(text)

    def topic_totals(self, results: Sequence[OfTopic], *names: str) -> None:
        """Write an object of type `topic` with sums for each topic, if there are several; only JSON."""
        grouped = by_topic(results)
        for topic, inside in grouped.items() if len(grouped) > 1 else ():
            self.row("topic", {"topic": topic, "partitions": len(inside), **sums(inside, *names)})

    def paint(self, text: str, color: str) -> str:
        """Return text in a colour, if stdout has colours."""
        return painted(text, color) if self.colored else text

    # -- messages

    def say(self, text: str) -> None:
        """Write a message for people to stderr; not with -q, and not in JSON mode."""
        if not self.quiet and not self.as_json:
            self._write_stderr(text + "\n")

    def notice(self, kind: str, fields: dict[str, Any], text: str) -> None:
        """Write a message for people or programs to stderr: the text, or an object in JSON mode."""
        if self.as_json:
            self._object(kind, fields)
        else:
            self.say(text)

    def warning(self, message: str) -> None:
        """Write a warning to stderr; not with -q."""
        if self.as_json:
            self._object("warning", {"message": message})
        elif not self.quiet:
            self._write_stderr(self._paint(f"warning: {message}", "yellow") + "\n")

    def error(self, error: BaseException) -> None:
        """Write `error: ...` and `  fix: ...`, or one object; never a traceback."""
        message = error.message if isinstance(error, LastwordError) else str(error)
        kind = type(error.errors[0] if isinstance(error, PartialFailure) else error)
        remedy = remedy_of(error)
        file = getattr(error, "file", None)
        if self.as_json:
            self._object(
                "error",
                {
                    "class": kind.__name__,
                    "message": message,
                    "remedy": remedy,
                    "file": None if file is None else str(file),
                    "position": getattr(error, "position", None),
                    "code": getattr(error, "exit_code", 70),
                },
            )
            return
        self._write_stderr(self._paint("error:", "red") + f" {message}\n")
        if remedy:
            self._write_stderr(f"  fix: {remedy}\n")

    def raise_all(self, errors: Sequence[LastwordError]) -> None:
        """Write all errors but the last, and raise the last."""
        for error in errors[:-1]:
            self.error(error)
        if errors:
            raise errors[-1]

    def interrupted(self, signal_name: str, code: int) -> None:
        """Write that a signal ended the command."""
        how = "interrupted" if code == INTERRUPTED else f"ended by {signal_name}"
        message = f"{how}: stopped at a safe point; finished work stays"
        if not self.as_json:
            self.say(message)
            return
        fields = {"class": "KeyboardInterrupt", "message": message, "remedy": "run it again to continue"}
        self._object("error", {**fields, "file": None, "position": None, "code": code})

    def _paint(self, text: str, color: str) -> str:
        return painted(text, color) if self.stderr_colored else text

    def _object(self, kind: str, fields: dict[str, Any]) -> None:
        self._write_stderr(_json_line(kind, fields))

    def _write_stderr(self, line: str) -> None:
        """Write to stderr after the data so far, so that the order holds if both streams go to one file.

        A stderr that fails (a closed pipe, a full drive) does not end the command: its exit code counts.
        """
        with suppress(OSError):  # stdout's own failure is reported when it is flushed at the end
            self.stdout.flush()
        try:
            self.stderr.write(line)
            self.stderr.flush()
        except OSError:
            discard(2)

    # -- progress

    @contextmanager
    def progress(self, verb: str) -> Iterator[Any]:
        """Yield a function that takes a Progress, or None if no progress is shown.

        A terminal shows a bar after one second; else --progress writes objects to stderr.
        """
        shown = self.wants_progress
        if shown is None:
            shown = self.stderr.isatty() and not self.quiet and not self.as_json
        if not shown:
            yield None
        elif self.stderr.isatty() and not self.as_json:
            with _bar(verb) as update:
                yield update
        else:
            yield self._progress_lines()

    def _progress_lines(self) -> Any:
        last = [0.0]

        def update(progress: Progress) -> None:
            now = time.monotonic()
            if now - last[0] >= BAR_AFTER_SECONDS or progress.done_bytes >= progress.total_bytes:
                last[0] = now
                self._object("progress", progress.to_dict())

        return update


def discard(descriptor: int) -> None:
    """Point stdout or stderr at the null device, because Python flushes it at exit and would report it."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)


@contextmanager
def _bar(verb: str) -> Iterator[Any]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    began = time.monotonic()
    bar = Bar(
        TextColumn("{task.description}"),
        BarColumn(complete_style=BAR_COLOR, finished_style=BAR_COLOR, pulse_style=BAR_COLOR),
        DownloadColumn(binary_units=True),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    task = bar.add_task(verb, total=None)
    started = False

    def update(progress: Progress) -> None:
        nonlocal started
        if not started and time.monotonic() - began >= BAR_AFTER_SECONDS:
            bar.start()
            started = True
        bar.update(task, description=progress.verb, completed=progress.done_bytes, total=progress.total_bytes)

    try:
        yield update
    finally:
        if started:
            bar.stop()


# -- JSON


def _json_line(kind: str, fields: dict[str, Any]) -> str:
    """Return one object as a line of printable characters."""
    line = json.dumps({"type": kind, **fields}, ensure_ascii=False, separators=(",", ":"), default=plain)
    return json_escaped(line) + "\n"


def plain(value: Any) -> Any:
    """Convert a value that json.dumps does not support; passed to it as `default`."""
    if isinstance(value, bytes):
        return bytes_json(value)
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return str(value)
