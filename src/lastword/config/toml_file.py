"""Read a settings file with the line of each value, and edit it: comments and order stay.

The parser of the standard library reports no line numbers. A TOML statement can be parsed alone, so a valid
file is cut into the shortest runs of lines that parse, and each run is parsed for its keys.

A lastword.toml has tables: the top level, [defaults], and [topics.NAME] for topics that have no file.
The file of one topic has only a top level.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from lastword.errors import InvalidSettingError, LastwordError


class TomlEntry(NamedTuple):
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


def read_entries(text: str, shown_name: str) -> tuple[TomlEntry, ...]:
    """Read all values of a file. `shown_name` names the file in errors."""
    return _read_text(text, shown_name)[0]


_Header = tuple[int, tuple[str, ...], bool]
"""The line of a table's header, from 1, its path, and whether it begins an array's element."""


@functools.lru_cache(maxsize=8)
def _read_text(text: str, shown_name: str) -> tuple[tuple[TomlEntry, ...], tuple[_Header, ...]]:
    """Return all values of a file, and the headers of its tables.

    A process that opens a directory reads an unchanged text several times; the last texts are kept.
    """
    _check_toml(text, shown_name)
    entries: list[TomlEntry] = []
    headers: list[_Header] = []
    base: tuple[str, ...] = ()
    for line, first, content in _statements(text):
        if first.startswith("["):
            base = _only_path(content)
            headers.append((line, base, first.startswith("[[")))
        else:
            entries += [_entry(base + path, value, line) for path, value in _flatten(content)]
    return tuple(entries), tuple(headers)


def _check_toml(text: str, shown_name: str) -> None:
    if not text:
        return
    import tomllib  # takes 2 ms to load, and only a file with settings needs it

    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        at = re.search(r" \(at line (\d+), column (\d+)\)", str(error))
        line = int(at[1]) if at else max(1, len(text.splitlines()))
        why = str(error).partition(" (at ")[0]
        raise InvalidSettingError(
            f"{shown_name}:{line}: not TOML: {why}", remedy="correct that line", file=shown_name
        ) from None


_PLAIN_LINE = re.compile(r'([\w-]+(?:\.[\w-]+)*) = (?:"([\w.,-]*)"|(-?[0-9]+)|true|(false))', re.ASCII)


def _statements(text: str) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Yield (line number from 1, first line, content) for each header and assignment of a valid file."""
    import tomllib

    lines = text.replace("\r\n", "\n").split("\n")
    start = 0
    while start < len(lines):
        end = start + 1
        content = _plain_statement(lines[start])
        while content is None:
            try:
                content = tomllib.loads("\n".join(lines[start:end]))
            except tomllib.TOMLDecodeError:
                end += 1
                if end > len(lines):
                    return
        if content:
            yield start + 1, lines[start].lstrip(), content
        start = end


def _plain_statement(line: str) -> dict[str, Any] | None:
    """Return the content of a line as most files have them; None: the line needs a parser."""
    if not line:
        return {}
    plain = _PLAIN_LINE.fullmatch(line)
    if plain is None:
        return None
    name, text, number, false = plain.groups()
    content: Any = text if text is not None else int(number) if number is not None else false is None
    for key in reversed(name.split(".")):
        content = {key: content}
    assert isinstance(content, dict)
    return content


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


def _entry(path: tuple[str, ...], value: Any, line: int) -> TomlEntry:
    if path[0] == "topics" and len(path) > 2:
        return TomlEntry("topics", path[1], ".".join(path[2:]), value, line)
    if path[0] == "defaults" and len(path) > 1:
        return TomlEntry("defaults", None, ".".join(path[1:]), value, line)
    if path[0] == "drives" and len(path) > 1:
        return TomlEntry("", None, "drives", {"/".join(path[1:]): value}, line)
    return TomlEntry("", None, ".".join(path), value, line)


# ---------------------------------------------------------------- changes


Change = tuple[tuple[str, ...], Any]
"""A path of keys and the value to set there; None removes the value."""


def cut_tables(text: str, topics: Collection[str], shown_name: str) -> tuple[str, dict[str, str]]:
    """Return a text without the tables of some topics, and the text of a file for each that has a table.

    The file of a topic has the lines behind the header of its table, with their comments.
    """
    entries, headers = _read_text(text, shown_name)
    by_topic: dict[str, list[TomlEntry]] = {}
    for entry in entries:
        if entry.topic is not None and entry.topic in topics:
            by_topic.setdefault(entry.topic, []).append(entry)
    lines = re.findall(".*\n|.+", text)
    files: dict[str, str] = {}
    ends = [*(line - 1 for line, *_ in headers[1:]), len(lines)]
    for (line, path, is_array), end in reversed(list(zip(headers, ends, strict=False))):
        topic = path[-1]
        inside = all(line < entry.line <= end for entry in by_topic.get(topic, ()))
        if path == ("topics", topic) and topic in topics and inside and not is_array:
            files[topic] = "".join(lines[line:end]).rstrip("\n") + "\n"
            del lines[line - 1 : end]
    others = {topic: given for topic, given in by_topic.items() if topic not in files}
    if not others:
        return "".join(lines), files
    for topic, given in others.items():  # in several places of the file, or without a header
        files[topic] = edit("", [(tuple(entry.name.split(".")), entry.value) for entry in given])
    return edit("".join(lines), [(("topics", topic), None) for topic in others]), files


def edit(text: str, changes: list[Change]) -> str:
    """Return a text with changes, as tomlkit makes them."""
    new = None if text else _new_text(changes)
    if new is not None:
        return new
    import tomllib

    import tomlkit  # takes 10 ms to load, and only a change of an existing text needs it

    document = tomlkit.parse(text)
    expected = tomllib.loads(text)
    for path, value in changes:
        if value is None:
            _take_out(document, path)
            _take_out(expected, path)
        else:
            _put(document, path, value)
            _put_plain(expected, path, value)
    new = tomlkit.dumps(document)
    if _without_empty(tomllib.loads(new)) != _without_empty(expected):
        raise LastwordError("these settings cannot be edited in place", remedy="edit the file by hand")
    return new


_PLAIN = re.compile(r"[\w-]+", re.ASCII)
_PLAIN_TEXT = re.compile(r"[\w.,-]+", re.ASCII)


def _new_text(changes: list[Change]) -> str | None:
    """Return the text of a new file without tables, as tomlkit writes it; None if it needs tomlkit."""
    lines: list[str] = []
    for path, value in changes:
        if path[0] == "defaults" or not all(map(_PLAIN.fullmatch, path)):
            return None
        if isinstance(value, bool):
            shown = str(value).lower()
        elif isinstance(value, int):
            shown = str(value)
        elif isinstance(value, str) and _PLAIN_TEXT.fullmatch(value):
            shown = f'"{value}"'
        elif value is None:
            continue
        else:
            return None
        lines.append(f"{'.'.join(path)} = {shown}\n")
    return "".join(lines)


def _put(document: Any, path: tuple[str, ...], value: Any) -> None:
    import tomlkit

    node, rest = document, path
    if path[0] == "defaults":  # a table with a header; inside, the name of the setting stays dotted
        if "defaults" not in node:
            node.add("defaults", tomlkit.table())
        node, rest = node["defaults"], path[1:]
    table = node
    for depth, key in enumerate(rest[:-1]):
        if key not in node:
            if hasattr(node, "append"):
                node.append(tomlkit.key(list(rest[depth:])), value)
            else:  # dotted names with a common prefix: one table for tomlkit, separate lines in the file
                table.append(tomlkit.key(list(rest)), value)
            return
        node = node[key]
    node[rest[-1]] = value


def _put_plain(tree: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for key in path[:-1]:
        tree = tree.setdefault(key, {})
    tree[path[-1]] = value


def _take_out(tree: Any, path: tuple[str, ...]) -> None:
    for key in path[:-1]:
        if key not in tree:
            return
        tree = tree[key]
    if path[-1] in tree:
        del tree[path[-1]]


def _without_empty(tree: dict[str, Any]) -> dict[str, Any]:
    """Remove empty tables: a table that was emptied may or may not keep its header."""
    pruned = {k: _without_empty(v) if isinstance(v, dict) else v for k, v in tree.items()}
    return {k: v for k, v in pruned.items() if v != {}}
