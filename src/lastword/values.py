"""The base classes of results and handles, and the progress of long calls.

A value is a frozen dataclass that also inherits `Value`: it has a `to_dict()` with the fields of `--json`,
and a table for notebooks. The names of its fields are Python attributes, JSON fields and columns. Units are
part of the name (`_bytes`, `_ms`, `_ratio`).
"""

from __future__ import annotations

import dataclasses
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from lastword.errors import UsageError

V = TypeVar("V", bound="Value")
T = TypeVar("T")


class Value:
    """Mixin for frozen dataclasses: a dict for JSON, a table for notebooks."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Convert to a dict of plain values: nested values become dicts, tuples become lists."""
        return {field.name: _plain(getattr(self, field.name)) for field in dataclasses.fields(self)}  # type: ignore[arg-type]

    def _repr_html_(self) -> str:
        rows = [(name, _cell(value)) for name, value in self.to_dict().items()]
        return table_html(type(self).__name__, ("field", "value"), rows)


class Results(list[V]):
    """A list of values that Python's prompt shows as a table, one line for each value."""

    def __repr__(self) -> str:
        return "\n".join(map(str, self)) or "[]"

    def _repr_html_(self) -> str | None:
        if not self:
            return None
        rows = [value.to_dict() for value in self]
        return table_html(
            type(self[0]).__name__, list(rows[0]), [list(map(_cell, row.values())) for row in rows]
        )


def draft_of(kind: type[T]) -> type[T]:
    """Return a class with the slots of a frozen dataclass, whose objects are filled by plain assignments.

    A frozen dataclass sets every field by a call. To fill a draft and to change its class to `kind` takes a
    third to a half of the time.
    """
    draft: type[T] = type("_Draft", (), {"__slots__": tuple(kind.__slots__)})  # type: ignore[attr-defined]
    return draft


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
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(_plain(item) for item in value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def plural(number: int, noun: str) -> str:
    """Format a number and a noun: `1 record`, `2 records`, `2 batches`."""
    ending = "es" if noun.endswith("ch") else "s"
    return f"{number} {noun}" if number == 1 else f"{number} {noun}{ending}"


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
