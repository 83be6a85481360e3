"""What `--help` shows: commands by what they do to a directory, a usage line as it is typed, and the options
that every command has apart from a command's own."""

from __future__ import annotations

import re
from typing import Any

import typer.core

Rows = list[tuple[str, str]]
_RANGE = re.compile(r"\s*\[x>=\d+\]")


class Help(typer.core.TyperCommand):
    """A command whose usage is `usage`; the options named in `everywhere` stand in a section of their own."""

    usage = ""
    everywhere: frozenset[str] = frozenset()

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [*self.usage.split(), "[options]"]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        arguments: Rows = []
        own: Rows = []
        common: Rows = []
        for parameter in self.get_params(ctx):
            if parameter.param_type_name == "argument":
                arguments.append((str(parameter.metavar), getattr(parameter, "help", None) or ""))
                continue
            record = parameter.get_help_record(ctx)
            if record is not None:
                rows = common if parameter.name in self.everywhere else own
                rows.append((record[0], _RANGE.sub("", record[1])))
        sections = (("Arguments", arguments), ("Options", own), ("Options of every command", common))
        for title, rows in sections:
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


class Commands(typer.core.TyperGroup):
    """The commands, in groups: a title, and the names below it."""

    groups: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for title, names in self.groups:
            with formatter.section(title):
                formatter.write_dl([(name, str(self.commands[name].short_help)) for name in names])
