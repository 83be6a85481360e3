"""Asking before something is removed for good: on a terminal a question, elsewhere only with --yes."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from lastword.cli.output import Output
from lastword.errors import UsageError

Yes = Annotated[bool, typer.Option("--yes", help="do not ask")]


def confirm(out: Output, what: str, yes: bool, *, dry: bool = True) -> None:
    """Returns if it may be done; else UsageError, as when the answer is no. `dry`: there is a --dry-run."""
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(
            f"{what}: not without a confirmation",
            remedy="--yes" + (", or --dry-run to look first" if dry else ""),
        )
    if not typer.confirm(f"{what}?", err=True):
        raise UsageError("not confirmed: nothing was changed", remedy="answer y, or give --yes")
