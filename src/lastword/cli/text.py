"""Text for people: keys and values on one line of a terminal, and keys as they are typed.

UTF-8 as it is; bytes that are not UTF-8 and control characters as `\\xNN`, other characters that would not
be seen as `\\uNNNN`, a backslash as `\\\\`. A null value is `<tombstone>`, a null key `<no key>`, and real
data spelled so gets a leading backslash. `unescape` turns what `escape` shows into the same bytes: a key
can be typed as it is shown. JSON stands as JSON, with the escapes of JSON.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from lastword.records.internal import InternalRecord

_PLAIN = "\x1b[0m"
_COLOR = re.compile("(\x1b\\[[0-9;]*m)")
NO_KEY = "<no key>"
TOMBSTONE = "<tombstone>"
_NULLS = (NO_KEY, TOMBSTONE)
_ESCAPED = re.compile(
    rb"\\(?:([\\<])|x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U(000[0-9a-fA-F]{5}|0010[0-9a-fA-F]{4}))"
)


def escape(data: bytes | str) -> str:
    """One line of text that `unescape` turns into the same bytes."""
    if isinstance(data, bytes):
        # "surrogateescape" turns the byte NN into U+DCNN, which no valid UTF-8 can produce.
        data = data.decode("utf-8", "surrogateescape")
    if data.isprintable() and "\\" not in data:
        return data
    return "".join(_escaped(character) for character in data)


def _escaped(character: str) -> str:
    code = ord(character)
    if character == "\\":
        return "\\\\"
    if character.isprintable():
        return character
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x80:  # one byte in UTF-8, too; from 0x80 on \x is a byte and \u a character
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def unescape(text: str) -> bytes:
    """The bytes that `escape`, `key_text` or `value_text` shows as `text`.

    A backslash that begins no escape is itself.
    """
    return _ESCAPED.sub(_unescaped, os.fsencode(text))


def _unescaped(match: re.Match[bytes]) -> bytes:
    plain, byte, *characters = match.groups()
    if plain is not None:
        return plain
    if byte is not None:
        return bytes([int(byte, 16)])
    code = int(next(digits for digits in characters if digits is not None), 16)
    return chr(code).encode("utf-8", "surrogatepass")


def json_text(data: bytes) -> str:
    """JSON on one line, as JSON: characters that would not be seen get JSON's own escapes."""
    return json_escaped(data.decode())


def json_escaped(text: str) -> str:
    """A line of JSON in which every character can be seen and written as UTF-8; its value is the same."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else json.dumps(character)[1:-1] for character in text
    )


def key_text(key: bytes | str | None) -> str:
    return _or_null(key, NO_KEY)


def value_text(value: bytes | str | None) -> str:
    return _or_null(value, TOMBSTONE)


def internal_text(record: InternalRecord) -> str:
    """Return one line for a record of an internal topic: type, fields of the key, fields of the value."""
    shown = record.masked()
    parts = [shown.type]
    if shown.key:
        parts.append(_fields(shown.key))
    parts.append(TOMBSTONE if shown.value is None else _fields(shown.value))
    return "  ".join(part for part in parts if part)


def _fields(fields: dict[str, Any]) -> str:
    return " ".join(f"{name}={_field(value)}" for name, value in fields.items())


def _field(value: Any) -> str:
    return escape(value) if isinstance(value, str) and value else json.dumps(value, default=_bytes_text)


def _bytes_text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _or_null(data: bytes | str | None, null: str) -> str:
    if data is None:
        return null
    text = escape(data)
    return "\\" + text if text in _NULLS else text


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: str = "",
    *,
    width: int | None = None,
    spare: Sequence[str] = (),
) -> list[str]:
    """Lines of one table.

    Args:
        header: The titles of the columns.
        rows: Cells of text, as many as there are titles.
        right: An `r` for every column that is set to the right, else `l`.
        width: Fit the lines to this width; None: as wide as they are.
        spare: Titles of columns that are left out, in this order, where the width does not suffice. Then
            columns of text are cut, the widest first.
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
    """Make columns of text narrower, the widest first, not below their titles or 12 characters."""
    while (over := _width(widths, columns) - width) > 0:
        can = [column for column in texts if widths[column] > max(12, len(header[column]))]
        if not can:
            return
        widest = max(can, key=lambda column: widths[column])
        others = [widths[column] for column in can if widths[column] < widths[widest]]
        floor = max(12, len(header[widest]), max(others, default=0))
        widths[widest] = max(floor, widths[widest] - over)


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


def terminal_width(stream: TextIO) -> int:
    """Columns of the terminal that `stream` writes to; `COLUMNS` wins, as in every program."""
    with suppress(ValueError):
        if (columns := int(os.environ.get("COLUMNS", "0"))) > 0:
            return columns
    with suppress(OSError, ValueError):
        return os.get_terminal_size(stream.fileno()).columns or 80
    return 80
