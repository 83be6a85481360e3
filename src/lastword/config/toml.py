"""Read lastword.toml as a flat list: setting, table, line number.

The parser of the standard library reports no line numbers. A TOML statement can be parsed alone, so a valid
file is cut into the shortest runs of lines that parse, and each run is parsed for its keys.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from lastword.errors import InvalidSettingError


class Entry(NamedTuple):
    """One value of the file.

    Attributes:
        table: "" at the top level, "defaults", "topics", or an unknown table.
        topic: The topic in table "topics"; None elsewhere.
        name: The dotted name of the setting.
        value: The value as TOML gives it.
        line: Line number, from 1.
    """

    table: str
    topic: str | None
    name: str
    value: Any
    line: int

    @property
    def where(self) -> str:
        """The table as it is written in the file; empty at the top level."""
        if self.topic is not None:
            return f"[topics.{self.topic}]"
        return f"[{self.table}]" if self.table else ""


def read_entries(text: str, shown_name: str) -> list[Entry]:
    """Read all values of a lastword.toml. `shown_name` names the file in errors."""
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        at = re.search(r" \(at line (\d+), column (\d+)\)", str(error))
        line = int(at[1]) if at else max(1, len(text.splitlines()))
        why = str(error).partition(" (at ")[0]
        raise InvalidSettingError(
            f"{shown_name}:{line}: not TOML: {why}", remedy="correct that line", file=shown_name
        ) from None
    entries = []
    base: tuple[str, ...] = ()
    for line, lines, content in _statements(text):
        if lines[0].lstrip().startswith("["):
            base = _only_path(content)
        else:
            entries += [_entry(base + path, value, line) for path, value in _flatten(content)]
    return entries


def _statements(text: str) -> Iterator[tuple[int, list[str], dict[str, Any]]]:
    """Yield (line number from 1, lines, content) for each header and assignment of a valid file."""
    lines = text.splitlines()
    start = 0
    while start < len(lines):
        end = start + 1
        while True:
            try:
                content = tomllib.loads("\n".join(lines[start:end]))
                break
            except tomllib.TOMLDecodeError:
                end += 1
                if end > len(lines):
                    return
        if content:
            yield start + 1, lines[start:end], content
        start = end


def _only_path(content: dict[str, Any]) -> tuple[str, ...]:
    """Return the path of a table header parsed alone: a chain of single keys, also for an array of tables."""
    path: tuple[str, ...] = ()
    node: Any = content
    while isinstance(node, (dict, list)) and node:
        if isinstance(node, list):
            node = node[0]
            continue
        ((key, node),) = node.items()
        path += (key,)
    return path


def _flatten(content: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in content.items():
        if isinstance(value, dict) and value:
            for path, leaf in _flatten(value):
                yield (key, *path), leaf
        else:
            yield (key,), value


def _entry(path: tuple[str, ...], value: Any, line: int) -> Entry:
    if path[0] == "topics" and len(path) > 2:
        return Entry("topics", path[1], ".".join(path[2:]), value, line)
    if path[0] == "defaults" and len(path) > 1:
        return Entry("defaults", None, ".".join(path[1:]), value, line)
    if path[0] == "drives" and len(path) > 1:
        return Entry("", None, "drives", {"/".join(path[1:]): value}, line)
    return Entry("", None, ".".join(path), value, line)
