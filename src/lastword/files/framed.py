r"""The frame of small private files: a line with kind, version and checksum, then a JSON object.

```
lastword <kind> <version> <CRC-32C, 8 hex digits>\n
{"position": 120, ...}\n
```

The checksum covers kind, version and content, so a flipped bit, a cut or a run of zeros is always detected.
docs/formats.md lists every private file.
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

MAGIC = b"lastword "
"""The first bytes of a file."""
MAX_BYTES = 256 << 20
"""A larger file is not read: this program never writes one."""

NEWER = "newer-version"
"""`code` of the error for a valid file that a newer program wrote."""


@dataclass(frozen=True, slots=True)
class Framed:
    """One kind of private file.

    Attributes:
        kind: The kind that the first line names.
        version: The version that this program writes and reads.
        code: Code of the problem that `verify` reports for a damaged file.
        remedy: Remedy for a damaged file.
    """

    kind: str
    version: int
    code: str
    remedy: str

    def encode(self, fields: Mapping[str, Any], encoded: Mapping[str, str] | None = None) -> bytes:
        """Encode a file with these fields.

        Args:
            fields: The fields, at least one.
            encoded: Further fields, each as JSON.
        """
        text = json.dumps(fields)
        for name, value in (encoded or {}).items():
            text = f"{text[:-1]}, {json.dumps(name)}: {value}}}"
        body = text.encode() + b"\n"
        return b"lastword %s %d %08x\n%s" % (
            self.kind.encode(),
            self.version,
            _crc(self.kind, self.version, body),
            body,
        )

    def decode(self, data: bytes, path: str) -> dict[str, Any]:
        """Decode the fields of a file.

        Raises:
            CorruptFileError: the file is damaged, or of another version.
        """
        line, newline, body = data.partition(b"\n")
        parts = line.split(b" ")
        if not newline or not line.startswith(MAGIC) or len(parts) != 4:
            raise self.damaged(path, f"the first line is not that of kind {self.kind!r}")
        try:
            version, stored = _digits(parts[2]), parts[3]
        except ValueError:
            raise self.damaged(path, "the version is not a number") from None
        if parts[1] != self.kind.encode() or stored != b"%08x" % _crc(self.kind, version, body):
            raise self.damaged(path, "the checksum is wrong")
        if version > self.version:
            raise CorruptFileError(
                f"{self.kind} of version {version}; this program reads version {self.version}",
                code=NEWER,
                remedy="use the version of lastword that wrote it, or a newer one",
                file=path,
            )
        if version < self.version:
            raise self.damaged(path, f"version {version} is too old")
        try:
            fields = json.loads(body)
        except (ValueError, RecursionError):
            fields = None
        if not isinstance(fields, dict):
            raise self.damaged(path, "the content is not a JSON object")
        return fields

    def load(self, files: Files, path: str) -> dict[str, Any] | None:
        """Read the fields of the file at `path`; None if there is no such file.

        Raises:
            CorruptFileError: the file is damaged, or of another version.
        """
        data = self.read(files, path)
        return None if data is None else self.decode(data, path)

    def read(self, files: Files, path: str) -> bytes | None:
        """Read the bytes of the file at `path`; None if there is no such file.

        Raises:
            CorruptFileError: The file is too large.
        """
        facts = files.stat(path)
        if facts is None:
            return None
        if facts.size > MAX_BYTES:
            raise self.damaged(path, f"{facts.size} bytes is too large")
        try:
            return files.read_bytes(path)
        except FileVanishedError:
            return None

    def save(self, files: Files, path: str, fields: Mapping[str, Any]) -> None:
        """Replace the file at `path` atomically; it is durable when the call returns."""
        files.write_atomic(path, self.encode(fields))

    @contextmanager
    def reading(self, path: str) -> Iterator[None]:
        """Turn errors about missing or mistyped fields in the block into the error for a damaged file."""
        try:
            yield
        except LastwordError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, LookupError) as error:
            raise self.damaged(path, f"its fields are invalid ({error})") from None

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
