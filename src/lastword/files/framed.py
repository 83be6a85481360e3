"""The frame of small private files: one line that names kind, version and checksum, then a JSON object.

```
lastword <kind> <version> <CRC-32C, 8 hex digits>\\n
{"position": 120, ...}\\n
```

The checksum covers kind, version and content, so that no flipped bit, no cut and no run of zeros leaves a
file that reads as another one. Files of version 0 have no such line and no checksum: they begin with the
JSON object, and are still read. docs/formats.md lists every private file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import google_crc32c

from lastword.errors import CorruptFileError, FileVanishedError, LastwordError
from lastword.files.interface import Files

_MAGIC = b"lastword "
MAX_BYTES = 256 << 20
"""A larger file of these kinds is not read: it was not written by this program."""

NEWER = "newer-version"
"""`code` of the error for a sound file that a newer program wrote."""


@dataclass(frozen=True, slots=True)
class Framed:
    """One kind of private file.

    version   written by this program, and the newest that it reads
    code      of the problem that `verify` reports for a damaged file
    remedy    for a damaged file
    """

    kind: str
    version: int
    code: str
    remedy: str

    def encode(self, fields: Mapping[str, Any]) -> bytes:
        """Return the bytes of a file with these fields."""
        body = json.dumps(fields, separators=(", ", ": ")).encode() + b"\n"
        return b"lastword %s %d %08x\n%s" % (
            self.kind.encode(),
            self.version,
            _crc(self.kind, self.version, body),
            body,
        )

    def decode(self, data: bytes, path: str) -> dict[str, Any]:
        """Return the fields of a file. CorruptFileError if it is damaged, or of a newer version."""
        version, body = 0, data
        if not data.startswith(b"{"):
            line, newline, body = data.partition(b"\n")
            parts = line.split(b" ")
            if not newline or not line.startswith(_MAGIC) or len(parts) != 4:
                raise self.damaged(path, f"it does not begin as a file of kind {self.kind!r}")
            try:
                version, stored = _digits(parts[2]), parts[3]
            except ValueError:
                raise self.damaged(path, "its version is no number") from None
            if parts[1] != self.kind.encode() or stored != b"%08x" % _crc(self.kind, version, body):
                raise self.damaged(path, "its checksum is wrong")
            if version > self.version:
                raise CorruptFileError(
                    f"{self.kind} of version {version}; this program reads versions up to {self.version}",
                    code=NEWER,
                    remedy="use the version of lastword that wrote it, or a newer one",
                    file=path,
                )
        try:
            fields = json.loads(body)
        except ValueError:
            raise self.damaged(path, "it holds no JSON object") from None
        if not isinstance(fields, dict):
            raise self.damaged(path, "it holds no JSON object")
        return fields

    def load(self, files: Files, path: str) -> dict[str, Any] | None:
        """Return the fields of the file at `path`; None if there is none. CorruptFileError if it is
        damaged."""
        facts = files.stat(path)
        if facts is None:
            return None
        if facts.size > MAX_BYTES:
            raise self.damaged(path, f"{facts.size} bytes are too many")
        try:
            return self.decode(files.read_bytes(path), path)
        except FileVanishedError:
            return None

    def save(self, files: Files, path: str, fields: Mapping[str, Any]) -> None:
        """Replace the file at `path` atomically; durable when it returns."""
        files.write_atomic(path, self.encode(fields))

    @contextmanager
    def reading(self, path: str) -> Iterator[None]:
        """Turn what fields of a wrong kind raise into the error for a damaged file."""
        try:
            yield
        except LastwordError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, LookupError) as error:
            raise self.damaged(path, f"its fields make no sense ({error})") from None

    def damaged(self, path: str, reason: str) -> CorruptFileError:
        """Return the error for a damaged file of this kind."""
        return CorruptFileError(
            f"damaged file of kind {self.kind!r}: {reason}", code=self.code, remedy=self.remedy, file=path
        )


def _crc(kind: str, version: int, body: bytes) -> int:
    return int(google_crc32c.extend(google_crc32c.value(b"%s %d\n" % (kind.encode(), version)), body))


def _digits(text: bytes) -> int:
    if not text.isdigit() or len(text) > 9 or text[:1] == b"0":
        raise ValueError
    return int(text)
