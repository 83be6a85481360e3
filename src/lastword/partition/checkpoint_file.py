"""The shape that all of Kafka's text checkpoints share.

```
0            version
2            number of lines that follow
orders 3 42  fields, split on blanks; every line ends with \\n
users 0 7
```

An empty file is an empty checkpoint. Anything else that is not exactly this shape is CorruptFileError;
whoever reads one decides what that costs (usually nothing but a longer recovery).
"""

from __future__ import annotations

from collections.abc import Sequence

from lastword.errors import CorruptFileError, FileVanishedError
from lastword.files import Files

MAX_CHECKPOINT_BYTES = 64 << 20
"""A million partitions; a longer file is damaged."""
_VERSION = 0


def read_lines(files: Files, path: str, fields: int) -> list[list[str]]:
    """The lines of a checkpoint, each split into `fields` fields. No file: no lines."""
    facts = files.stat(path)
    if facts is None:
        return []
    if facts.size > MAX_CHECKPOINT_BYTES:
        raise _corrupt(path, f"{facts.size} bytes are too many for a checkpoint")
    try:
        text = files.read_bytes(path).decode("utf-8")
    except FileVanishedError:
        return []
    except UnicodeDecodeError as error:
        raise _corrupt(path, f"not UTF-8 at byte {error.start}") from None
    return parse_lines(text, path, fields)


def parse_lines(text: str, path: str, fields: int) -> list[list[str]]:
    """As `read_lines`, of a text; `path` names it in errors."""
    if not text:
        return []
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    version = number(lines[0], path)
    if version != _VERSION:
        raise _corrupt(path, f"version {version}, expected {_VERSION}")
    if len(lines) < 2:
        raise _corrupt(path, "ends after its version")
    announced = number(lines[1], path)
    found = [line.split() for line in lines[2:]]
    if announced != len(found):
        raise _corrupt(path, f"{len(found)} lines, {announced} announced")
    for line, parts in enumerate(found, 3):
        if len(parts) != fields:
            raise _corrupt(path, f"line {line}: {len(parts)} fields, expected {fields}")
    return found


def format_lines(lines: Sequence[str]) -> bytes:
    """The bytes of a checkpoint with these lines."""
    return "".join(f"{line}\n" for line in (str(_VERSION), str(len(lines)), *lines)).encode("utf-8")


def number(text: str, path: str) -> int:
    """A non-negative 64-bit number in plain digits."""
    if not (text.isascii() and text.isdigit()) or len(text) > 19 or int(text) >= 1 << 63:
        raise _corrupt(path, f"{text[:40]!r} is no number")
    return int(text)


def _corrupt(path: str, text: str) -> CorruptFileError:
    return CorruptFileError(
        text, remedy="delete the file: it is made again, recovery takes longer", file=path
    )
