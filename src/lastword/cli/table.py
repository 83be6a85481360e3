"""Tables and lines that fit the width of a terminal."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import TextIO

_PLAIN = "\x1b[0m"
_COLOR = re.compile("(\x1b\\[[0-9;]*m)")


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
            if _width(widths, columns) > width:
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
            end = _PLAIN
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
