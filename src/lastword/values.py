"""The base classes of results and handles, their tables of text, and the progress of long calls.

A value is a frozen dataclass that also inherits `Value`: it has a `to_dict()` with the fields of `--json`,
and a table for notebooks. The names of its fields are Python attributes, JSON fields and columns. Units are
part of the name (`_bytes`, `_ms`, `_ratio`).
"""

from __future__ import annotations

import dataclasses
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import new_class
from typing import Any, ClassVar, NoReturn, Self, TextIO, TypeVar

from lastword.errors import UsageError

V = TypeVar("V", bound="Value")
T = TypeVar("T")


class Value:
    """Mixin for frozen dataclasses: a dict for JSON, a table for notebooks, a row of a table of text."""

    __slots__ = ()
    text_columns: ClassVar[tuple[str, ...]] = ("PARTITION",)
    """The columns of `cells` that are aligned left; the others are numbers."""

    def cells(self) -> dict[str, str]:
        """Return the row of the value in a table of many, as cells by column; none: it has no table."""
        return {}

    @classmethod
    def totals(cls, values: Sequence[Self]) -> str:
        """Return the line below a table of values."""
        return plural(len(values), "row")

    def to_dict(self) -> dict[str, Any]:
        """Convert to a dict of plain values: nested values become dicts, tuples become lists."""
        return {field.name: _plain(getattr(self, field.name)) for field in dataclasses.fields(self)}  # type: ignore[arg-type]

    def _repr_html_(self) -> str:
        rows = [(name, _cell(value)) for name, value in self.to_dict().items()]
        return table_html(type(self).__name__, ("field", "value"), rows)


MOST_ROWS = 40
"""Rows of a table that Python's prompt shows; the totals are those of all."""


class Results(list[V]):
    """A list of values that Python's prompt shows as a table with totals, or as a line for each value."""

    def __repr__(self) -> str:
        if not self or not self[0].cells():
            return "\n".join(map(str, self)) or "[]"
        shown = [value.cells() for value in self[:MOST_ROWS]]
        width = terminal_width(sys.stdout) if sys.stdout.isatty() else None
        lines = table_of(shown, self[0].text_columns, width=width)
        if len(self) > MOST_ROWS:
            lines.append(f"... {len(self) - MOST_ROWS} more")
        return "\n".join([*lines, self[0].totals(self)])

    def _repr_html_(self) -> str | None:
        if not self:
            return None
        rows = [value.cells() or value.to_dict() for value in self[:MOST_ROWS]]
        title = self[0].totals(self) if self[0].cells() else type(self[0]).__name__
        if len(self) > MOST_ROWS:
            title += f"; {len(self) - MOST_ROWS} more rows"
        return table_html(title, list(rows[0]), [list(map(_cell, row.values())) for row in rows])


def draft_of(kind: type[T]) -> type[T]:
    """Return a class with the slots of a frozen dataclass, whose objects are filled by plain assignments.

    A frozen dataclass sets every field by a call. To fill a draft and to change its class to `kind` takes a
    third to a half of the time.
    """
    slots = {"__slots__": tuple(kind.__slots__)}  # type: ignore[attr-defined]
    bases = getattr(kind, "__orig_bases__", ())  # a base without slots counts, if a class is changed
    return new_class("_Draft", bases, exec_body=lambda body: body.update(slots))


class Closing:
    """Mixin for an object that is closed at the end of a `with` block."""

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the object."""
        raise NotImplementedError


class ProcessBound:
    """Mixin for objects that belong to one process (open files, threads, a lock): refuses pickle and copy."""

    __slots__ = ()

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            f"a {type(self).__name__} belongs to one process and cannot be pickled or copied",
            remedy="pass the path, and open the directory there: lastword.open(path)",
        )


@dataclass(frozen=True, slots=True)
class Progress(Value):
    """The progress of a long call. `eta_seconds` is None until the first bytes are processed."""

    verb: str
    done_bytes: int
    total_bytes: int
    seconds: float
    eta_seconds: float | None

    @classmethod
    def at(cls, verb: str, done_bytes: int, total_bytes: int, seconds: float) -> Progress:
        """Make a Progress whose `eta_seconds` assumes the average speed so far."""
        known = 0 < done_bytes <= total_bytes and seconds > 0
        return cls(
            verb,
            done_bytes,
            total_bytes,
            seconds,
            seconds * (total_bytes - done_bytes) / done_bytes if known else None,
        )

    def __str__(self) -> str:
        share = 100 if self.total_bytes <= 0 else 100 * self.done_bytes // self.total_bytes
        return f"{self.verb}: {share} %"


ProgressLike = Callable[[Progress], None]


# ---------------------------------------------------------------- tables of text


PLAIN = "\x1b[0m"
_COLOR = re.compile("(\x1b\\[[0-9;]*m)")


def table_of(
    rows: Sequence[Mapping[str, str]],
    text_columns: Sequence[str],
    *,
    width: int | None = None,
    spare: Sequence[str] = (),
) -> list[str]:
    """Return the lines of a table whose rows are cells by column; see `table`."""
    header = list(rows[0])
    right = "".join("l" if title in text_columns else "r" for title in header)
    return table(header, [list(row.values()) for row in rows], right, width=width, spare=spare)


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: str = "",
    *,
    width: int | None = None,
    spare: Sequence[str] = (),
) -> list[str]:
    """Return the lines of one table.

    Args:
        header: Titles of the columns.
        rows: Cells of text, one per title.
        right: For each column `r` (aligned right) or `l`.
        width: Fit the lines to this width; None means no limit.
        spare: Titles of columns to omit, in this order, until the lines fit. After that, columns of text
            are cut, the widest first.
    """
    columns = list(range(len(header)))
    widths = [max(len(row[column]) for row in (header, *rows)) for column in columns]
    if width is not None:
        for title in spare:
            if title in header and _width(widths, columns) > width:
                columns.remove(header.index(title))
        _shrink(widths, [c for c in columns if right[c : c + 1] != "r"], columns, header, width)
    lines = []
    for row in (header, *rows):
        cells = []
        for column in columns:
            cell = cut(row[column], widths[column])
            on_the_right = right[column : column + 1] == "r"
            cells.append(cell.rjust(widths[column]) if on_the_right else cell.ljust(widths[column]))
        line = "  ".join(cells).rstrip()
        lines.append(line if width is None else cut(line, width))
    return lines


def _width(widths: Sequence[int], columns: Sequence[int]) -> int:
    return sum(widths[column] for column in columns) + 2 * (len(columns) - 1)


def _shrink(
    widths: list[int], texts: Sequence[int], columns: Sequence[int], header: Sequence[str], width: int
) -> None:
    """Narrow columns of text, the widest first, to no less than their titles or 12 characters."""
    while (over := _width(widths, columns) - width) > 0:
        can = [column for column in texts if widths[column] > max(12, len(header[column]))]
        if not can:
            return
        widest = max(can, key=lambda column: widths[column])
        others = [widths[column] for column in can if widths[column] < widths[widest]]
        floor = max(12, len(header[widest]), max(others, default=0))
        widths[widest] = max(floor, widths[widest] - over)


def cut(line: str, width: int) -> str:
    """Cut a line to `width` visible characters; colour codes have no width, and an open colour is closed."""
    if len(_COLOR.sub("", line)) <= width:
        return line
    kept, left, end = [], max(0, width - 1), ""
    for part in _COLOR.split(line):  # text, colour, text, ...
        if _COLOR.fullmatch(part):
            kept.append(part)
            end = PLAIN
            continue
        kept.append(part[:left])
        left -= len(kept[-1])
        if not left:
            break
    return "".join(kept) + "…" + end


def terminal_width(stream: TextIO) -> int:
    """Return the width of the terminal behind `stream`; the variable COLUMNS overrides it."""
    with suppress(ValueError):
        if (columns := int(os.environ.get("COLUMNS", "0"))) > 0:
            return columns
    with suppress(OSError, ValueError):
        return os.get_terminal_size(stream.fileno()).columns or 80
    return 80


def table_html(title: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Format an HTML table, with every text escaped."""
    import html  # rarely used: a notebook shows a result

    head = "".join(f"<th>{html.escape(name)}</th>" for name in header)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><caption>{html.escape(title)}</caption><tr>{head}</tr>{body}</table>"


def _cell(value: Any) -> str:
    return "" if value is None else str(value)


def _plain(value: Any) -> Any:
    if isinstance(value, Value):
        return value.to_dict()
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return [_plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(_plain(item) for item in value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def sums(values: Collection[Any], *names: str) -> dict[str, int]:
    """Return the sum of each of these attributes of some values, by its name."""
    return {name: sum(getattr(value, name) for value in values) for name in names}


def plural(number: int, noun: str) -> str:
    """Format a number and a noun: `1 record`, `2 records`, `2 batches`."""
    ending = "es" if noun.endswith(("ch", "ss")) else "s"
    return f"{number} {noun}" if number == 1 else f"{number} {noun}{ending}"


def partitions_text(numbers: Collection[int]) -> str:
    """Format the partitions of a topic for a remedy: `it has partitions 0 to 2`."""
    first, last = min(numbers), max(numbers)
    if first == last:
        return f"it has partition {first}"
    if len(numbers) == last - first + 1:
        return f"it has partitions {first} to {last}"
    known = sorted(numbers)
    shown = ", ".join(map(str, known)) if len(known) <= 20 else f"{len(known)} from {first} to {last}"
    return f"it has partitions {shown}"


def in_groups(
    items: Iterable[T], size_of: Callable[[T], int], group_bytes: int
) -> Iterator[tuple[list[T], int]]:
    """Yield the items in lists that end at `group_bytes` or above, each with its bytes."""
    group: list[T] = []
    size_bytes = 0
    for item in items:
        group.append(item)
        size_bytes += size_of(item)
        if size_bytes >= group_bytes:
            yield group, size_bytes
            group, size_bytes = [], 0
    if group:
        yield group, size_bytes


def listener(progress: ProgressLike | bool | None) -> ProgressLike | None:
    """Return the function to call with each Progress, or None."""
    if progress is True:
        return _Line()
    if progress and not callable(progress):
        raise UsageError(f"progress={progress!r} is not a function", remedy="True, or a function of Progress")
    return progress or None


class _Line:
    """A line on stderr that is overwritten at most ten times per second."""

    def __init__(self) -> None:
        self._last = 0.0

    def __call__(self, progress: Progress) -> None:
        finished = progress.done_bytes >= progress.total_bytes
        now = time.monotonic()
        if finished or now - self._last >= 0.1:
            self._last = now
            eta = "" if progress.eta_seconds is None else f", {progress.eta_seconds:.0f} s left"
            sys.stderr.write(f"\r{progress}{eta}\x1b[K" + ("\n" if finished else ""))
            sys.stderr.flush()


class Meter:
    """Adds up the parts of a long call; each counts its own bytes from zero. Parts may run on threads."""

    def __init__(self, verb: str, progress: ProgressLike | bool | None, total_bytes: int) -> None:
        self._verb = verb
        self._listener = listener(progress)
        self._total = total_bytes
        self._done = 0
        self._within: dict[object, int] = {}  # bytes done of each part that runs
        self._lock = threading.RLock()
        self._began = time.monotonic()

    @contextmanager
    def part(self, size_bytes: int) -> Iterator[Callable[[int, int], None] | None]:
        """Yield a function of (done, total) for one part, or None without a listener.

        The part may count in its own units; its share of the whole is `size_bytes`.
        """
        listener = self._listener
        if listener is None:
            yield None
            return

        part = object()

        def update(done: int, total: int) -> None:
            within = size_bytes * done // total if total else size_bytes
            with self._lock:
                self._within[part] = min(within, size_bytes)
                self._report(listener)

        try:
            yield update
        finally:
            self._within.pop(part, None)
        with self._lock:
            self._done += size_bytes
            self._report(listener)

    @contextmanager
    def progress_part(self, size_bytes: int) -> Iterator[ProgressLike | None]:
        """Yield a function of `Progress` for one part, as `part` does."""
        with self.part(size_bytes) as update:
            yield None if update is None else (lambda value: update(value.done_bytes, value.total_bytes))

    def _report(self, listener: ProgressLike) -> None:
        done = self._done + sum(self._within.values())
        listener(Progress.at(self._verb, done, max(self._total, done), time.monotonic() - self._began))
