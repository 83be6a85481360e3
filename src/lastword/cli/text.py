"""Text for people: keys and values on one line of a terminal.

UTF-8 as it is; control characters and bytes that are not UTF-8 as `\\x1b`; a null value as `<tombstone>`,
a null key as `<no key>`, and real data spelled so gets a leading backslash: a null is never taken for
text, nor text for a null.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence

_PLAIN = "\x1b[0m"
_COLOR = re.compile("(\x1b\\[[0-9;]*m)")
NO_KEY = "<no key>"
TOMBSTONE = "<tombstone>"


def escape(data: bytes | str) -> str:
    """One line: every control character and every byte that is not UTF-8 becomes `\\xNN`."""
    if isinstance(data, bytes):
        # "surrogateescape" turns the byte NN into U+DCNN, which no valid UTF-8 can produce.
        data = data.decode("utf-8", "surrogateescape")
    if data.isprintable():
        return data
    return "".join(_escaped(character) for character in data)


def _escaped(character: str) -> str:
    code = ord(character)
    if character == " " or character.isprintable():
        return character
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def key_text(key: bytes | str | None) -> str:
    return _or_null(key, NO_KEY)


def value_text(value: bytes | str | None) -> str:
    return _or_null(value, TOMBSTONE)


def _or_null(data: bytes | str | None, null: str) -> str:
    if data is None:
        return null
    text = escape(data)
    # `\<tombstone>` must stay apart from an escaped `<tombstone>` as well, so any run of backslashes gets
    # one more.
    return "\\" + text if text.lstrip("\\") in (NO_KEY, TOMBSTONE) else text


def table(header: Sequence[str], rows: Sequence[Sequence[str]], right: str = "") -> list[str]:
    """Lines of one table. `right` has an `r` for every column that is set to the right, else `l`."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    lines = []
    for row in (header, *rows):
        cells = [
            cell.rjust(width) if column < len(right) and right[column] == "r" else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def cut(line: str, width: int) -> str:
    """At most `width` characters that are seen: colours take no room, and the last one ends."""
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


def terminal_width() -> int:
    return shutil.get_terminal_size((100, 24)).columns
