"""Writes the reference part of docs/python.md from docstrings. A test checks that the page is current."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import lastword
from lastword import errors, metrics, testing
from lastword.api.cleaner import CleanerStatus
from lastword.cleaner.plan import Reason
from lastword.values import Value

PAGE = Path(__file__).with_name("python.md")
MARK = "<!-- From here on written by docs/make_python.py from the docstrings; edit those. -->\n"

FUNCTIONS = ("open", "dump")
HANDLES = ("LogDir", "Topic", "State", "Reader", "Lease", "Cleaner")
RECORDS = ("Record", "Appended")
WIDTH = 100


class _Text:
    """An annotation as it is written in the source."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def _shown(parameter: inspect.Parameter) -> inspect.Parameter:
    if parameter.annotation is not parameter.empty:
        parameter = parameter.replace(annotation=_Text(str(parameter.annotation)))
    if " at 0x" in repr(parameter.default):
        parameter = parameter.replace(default=_Text("..."))
    return parameter


def signature(name: str, function: Callable[..., Any], *, bound: bool = False) -> str:
    """`name(a, *, b=1) -> C`, one parameter on each line if it is long."""
    found = inspect.signature(function)
    given = [_shown(one) for one in found.parameters.values()][int(bound) :]
    returns = found.return_annotation
    after = "" if returns is found.empty else f" -> {returns}"
    short = f"{name}{found.replace(parameters=given, return_annotation=found.empty)}{after}"
    if len(short) <= WIDTH:
        return short
    lines = [f"{name}("]
    star = False
    for one in given:
        if one.kind is one.KEYWORD_ONLY and not star:
            lines.append("    *,")
        star = star or one.kind in (one.KEYWORD_ONLY, one.VAR_POSITIONAL)
        lines.append(f"    {one},")
    return "\n".join([*lines, f"){after}"])


def described(thing: Any) -> list[str]:
    text = inspect.getdoc(thing)
    assert text, thing
    return ["```text", text, "```", ""]


def members(kind: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties that a class of this package has, in the order of their definition."""
    seen = set()
    for base in kind.__mro__:
        if not base.__module__.startswith("lastword"):
            continue
        for name, value in vars(base).items():
            public = not name.startswith("_") and name not in seen
            if public and hasattr(value, "__get__") and inspect.getdoc(value):
                seen.add(name)
                yield name, value


def reference_of(name: str, kind: type) -> Iterator[str]:
    yield from [f"## {name}", "", *described(kind)]
    for member, value in members(kind):
        shown = f"{name}.{member}"
        if isinstance(value, (property, cached_property)):
            yield f"`{shown}`"
        elif inspect.isfunction(value):
            yield from ["```python", signature(shown, value, bound=True), "```"]
        else:
            continue
        yield from described(value)


def fields_of(kind: type) -> Iterator[str]:
    """A value: its docstring, and its fields with their types."""
    yield from [f"### {kind.__name__}", "", *described(kind)]
    fields = [f"`{field.name}`: {field.type}".replace("|", "\\|") for field in dataclasses.fields(kind)]
    yield from ["Fields: " + ", ".join(fields) + ".", ""]


def page() -> str:
    """The reference part."""
    lines = ["# Reference", ""]
    for name in FUNCTIONS:
        function = getattr(lastword, name)
        shown = signature(f"lastword.{name}", function)
        lines += [f"## lastword.{name}", "", "```python", shown, "```", *described(function)]
    for name in HANDLES:
        lines += reference_of(name, getattr(lastword, name))
    for name in RECORDS:
        lines += reference_of(name, getattr(lastword, name))
    lines += ["## Values that calls return", "", *described(Value)]
    values = [getattr(lastword, name) for name in lastword.__all__]
    for kind in [*values, Reason, CleanerStatus]:
        if inspect.isclass(kind) and issubclass(kind, Value) and kind.__name__ not in RECORDS:
            lines += fields_of(kind)
    lines += ["## lastword.errors", "", *described(errors)]
    lines += ["## lastword.metrics", "", "```python"]
    lines += [signature("lastword.metrics.register", metrics.register), "```", *described(metrics.register)]
    lines += ["## lastword.testing", "", *described(testing)]
    for name in testing.__all__:
        lines += reference_of(name, getattr(testing, name))
    return "\n".join(lines).rstrip() + "\n"


def current(text: str) -> str:
    """The whole page: what is written by hand, and below it the reference as it should be."""
    return text.partition(MARK)[0] + MARK + "\n" + page()


if __name__ == "__main__":
    PAGE.write_text(current(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
