"""Writes docs/commands.md from the command line itself. A test checks that the page is current."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from lastword.cli.command import RANGE
from lastword.cli.main import Grouped, command_tree

PAGE = Path(__file__).with_name("commands.md")

HEAD = r"""# Commands

Written by `docs/make_commands.py` from the commands; edit them there. `lastword COMMAND --help` has the same
text.

- `DIR` is a log directory, the directory of one partition in place of `DIR TOPIC -p N`, or the URL of a log
  in a bucket.
- A time has a unit (`30s`, `5m`, `7d`), a size too (`80MiB`).
- A key is typed as it is shown: `--key '\xff\x00'`, or `--key '{"base64": "/wA="}'`.
- Data goes to stdout; progress, warnings and errors go to stderr. With `--json` each line is an object with a
  `type`, and the last object is the `summary`.
- `lastword --install-completion` completes commands, topics and settings in the shell.

**Exit codes** are the same for every command: 0 done, 2 fix the call, 3 data damaged, 4 the directory is in
use, 5 no room, 6 the storage failed, 7 a package is missing. `verify`, `audit` and `erase` end with 1 if they
find problems, `get` with 8 if a key has no value. [Exit codes](exit-codes.md) has a remedy for each, and what
a service does.
"""


def cell(text: str) -> str:
    """Return text for a cell of a table."""
    return " ".join(RANGE.sub("", text).split()).replace("<", "&lt;").replace("|", "&#124;")


def rows(parameters: list[Any], context: Any) -> list[str]:
    """Return a row of a table for each parameter: how it is typed, and its meaning."""
    lines = []
    for parameter in parameters:
        if parameter.param_type_name == "argument":
            typed, meaning = str(parameter.metavar), getattr(parameter, "help", None) or ""
        elif (record := parameter.get_help_record(context)) is not None and "--help" not in record[0]:
            typed, meaning = record
        else:
            continue
        code = f"<code>{cell(typed)}</code>" if "|" in typed else f"`{cell(typed)}`"
        lines.append(f"| {code} | {cell(meaning)} |")
    return lines


def paragraphs(text: str) -> list[str]:
    """Return the paragraphs of a docstring, each on one line."""
    return [line for part in inspect.cleandoc(text).split("\n\n") for line in (" ".join(part.split()), "")]


def section(name: str, command: Any, root: Any) -> list[str]:
    """Return the section of a command."""
    context = command.make_context(name, [], parent=root, resilient_parsing=True)
    own = [option for option in command.get_params(context) if option.name not in command.everywhere]
    table = rows(own, context)
    examples = [line.strip() for line in command.epilog.splitlines()[2:]]
    return [
        f"### {name}",
        "",
        *paragraphs(command.help or ""),
        *("```text", " ".join(["lastword", name, *command.usage.split(), "[options]"]), "```", ""),
        *(("| | |", "|---|---|", *table, "") if table else ()),
        *("```console", *(f"$ {line}" for line in examples), "```", ""),
    ]


def page() -> str:
    """Return the page: the shared options, then a section for each command."""
    tree = command_tree()
    root = tree.make_context("lastword", [], resilient_parsing=True)
    some = tree.get_command(root, "ls")
    context = some.make_context("ls", [], parent=root, resilient_parsing=True)
    shared = [option for option in some.get_params(context) if option.name in some.everywhere]
    lines = [HEAD, "## Options of every command", "", "| | |", "|---|---|", *rows(shared, context), ""]
    for title, names in Grouped.groups:
        lines += [f"## {title}", ""]
        for name in names:
            lines += section(name, tree.get_command(root, name), root)
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
