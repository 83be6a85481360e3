"""Change lastword.toml: comments and order stay, and the file is replaced atomically."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from typing import Any

from lastword.config.settings import Problems, Settings, parse_named
from lastword.config.tables import INSTANCE_SETTINGS, TOPIC_SETTINGS
from lastword.errors import LastwordError
from lastword.files import Files

Change = tuple[tuple[str, ...], Any]
"""A path of keys and the value to set there; None removes the value."""


def write_topic_settings(
    files: Files,
    path: str | os.PathLike[str],
    topic: str | None,
    set: Mapping[str, Any] | None = None,
    unset: Iterable[str] = (),
) -> Settings:
    """Set and unset values in [topics.TOPIC] of a lastword.toml, which is made if absent.

    Values are written as they were given ("7d" stays "7d"). Everything is checked first: nothing is written
    if the new file would not be valid.

    Args:
        files: The storage.
        path: Path of the file.
        topic: The topic. None: settings of the directory are set at the top level, topic settings in
            [defaults].
        set: Values by keyword or dotted name; a value of None unsets.
        unset: Names to unset.

    Returns:
        The settings of the new file, without arguments and environment.
    """
    path = os.fspath(path)
    known = TOPIC_SETTINGS if topic is not None else {**TOPIC_SETTINGS, **INSTANCE_SETTINGS}
    given = {**dict.fromkeys(unset), **(set or {})}
    problems = Problems()
    parse_named(given, known, problems)
    problems.raise_any()
    changes = [_change(name, value, topic) for name, value in given.items()]
    old = files.read_bytes(path).decode("utf-8") if files.exists(path) else ""
    Settings.from_text(old, path)  # a file that is not valid is not edited
    new = _edit(old, changes)
    settings = Settings.from_text(new, path)
    files.write_atomic(path, new.encode("utf-8"))
    return settings


def remove_topic_settings(files: Files, path: str | os.PathLike[str], topic: str) -> None:
    """Remove [topics.TOPIC], as when the topic is deleted. A file without the table is not written."""
    path = os.fspath(path)
    if not files.exists(path):
        return
    old = files.read_bytes(path).decode("utf-8")
    if topic in tomllib.loads(old).get("topics", {}):
        files.write_atomic(path, _edit(old, [(("topics", topic), None)]).encode("utf-8"))


def _change(given: str, value: Any, topic: str | None) -> Change:
    name = given if "." in given or given == "drives" else given.replace("_", ".")
    if isinstance(value, frozenset | tuple | list):
        value = ",".join(sorted(value))
    if topic is not None:
        return ("topics", topic, *name.split(".")), value
    if name in INSTANCE_SETTINGS:
        return tuple(name.split(".")), value
    return ("defaults", *name.split(".")), value


def _edit(text: str, changes: list[Change]) -> str:
    first = None if text else _first_table(changes)
    if first is not None:
        return first
    import tomlkit  # takes 10 ms to load, and only a change of an existing file needs it

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
        raise LastwordError("these settings cannot be edited in place", remedy="edit lastword.toml by hand")
    return new


_PLAIN = re.compile(r"[\w.-]+", re.ASCII)


def _first_table(changes: list[Change]) -> str | None:
    """Return a file with one table [topics.NAME], as tomlkit writes it; None if a value needs tomlkit."""
    lines: list[str] = []
    for path, value in changes:
        if path[0] != "topics" or not all(map(_PLAIN.fullmatch, path)):
            return None
        if isinstance(value, bool):
            shown = str(value).lower()
        elif isinstance(value, int):
            shown = str(value)
        elif isinstance(value, str) and _PLAIN.fullmatch(value):
            shown = f'"{value}"'
        else:
            return None
        if not lines:
            topic = f'"{path[1]}"' if "." in path[1] else path[1]
            lines.append(f"[topics.{topic}]\n")
        lines.append(f"{'.'.join(path[2:])} = {shown}\n")
    return "".join(lines) or None


def _put(document: Any, path: tuple[str, ...], value: Any) -> None:
    import tomlkit

    node, tables = document, 0
    if path[0] in ("topics", "defaults"):
        # Each table gets its own header; inside, the name of the setting stays dotted.
        tables = 2 if path[0] == "topics" else 1
        for depth in range(tables):
            key = path[depth]
            if key not in node:
                node.add(key, tomlkit.table(is_super_table=path[0] == "topics" and depth == 0))
            node = node[key]
    rest, table = path[tables:], node
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
