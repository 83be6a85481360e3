"""Loader of the golden cases in `data/`: files, and the records that Kafka's own classes read from them.

A stage of a case is one log directory. Records, batches and index entries are returned as the dicts of the
JSON lines, with byte strings already decoded, so that a test compares bytes with bytes.
"""

from __future__ import annotations

import base64
import functools
import gzip
import hashlib
import io
import json
import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

DATA = Path(__file__).parent / "data"


def names(pattern: str = "*") -> list[str]:
    """Return the names of the cases that match a glob, sorted."""
    return sorted(path.parent.name for path in DATA.glob(f"{pattern}/case.json"))


@functools.cache
def case(name: str) -> Case:
    return Case(name)


def partition_files(directory: Path, suffix: str = ".log") -> list[Path]:
    """Return the files of one kind below a log or partition directory, by partition and base offset."""
    return sorted(directory.rglob(f"*{suffix}"))


class Member(NamedTuple):
    """A file of an archive; `data` is None for a directory."""

    path: str
    modified: float  # seconds since 1970
    data: bytes | None


@functools.cache
def read_archive(path: Path) -> tuple[Member, ...]:
    """Read an archive into memory, once: most tests go through all cases, which have 51 MB."""
    members = []
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(path.read_bytes())), mode="r:") as archive:
        for entry in archive:
            file = archive.extractfile(entry)
            name = entry.name.removeprefix("./")
            members.append(Member(name, entry.mtime, None if file is None else file.read()))
    return tuple(members)


@dataclass(frozen=True)
class Case:
    name: str

    @property
    def directory(self) -> Path:
        return DATA / self.name

    @cached_property
    def facts(self) -> dict[str, Any]:
        """Return case.json: kafka, codecs, config, stages, files, summary."""
        return json.loads((self.directory / "case.json").read_text(encoding="utf-8"))

    @property
    def config(self) -> dict[str, str]:
        """Return the topic's settings in Kafka's spelling."""
        return self.facts["config"]

    @property
    def stages(self) -> list[str]:
        return sorted(self.facts["stages"])

    def expected(self, stage: str) -> list[dict[str, Any]]:
        """Return the records in file order, with bytes as bytes; of a value over 4 KiB only a digest."""
        return [_record(line) for line in self._lines(stage, "expected")]

    def batches(self, stage: str) -> list[dict[str, Any]]:
        return list(self._lines(stage, "batches"))

    def indexes(self, stage: str) -> list[dict[str, Any]]:
        return list(self._lines(stage, "indexes"))

    def unpack(self, target: Path, *stages: str) -> Path:
        """Extract the archive, or some stages of it, into `target`; keep mtimes; return `target`."""
        members = [
            member
            for member in read_archive(self.directory / "data.tar.gz")
            if not stages or member.path.partition("/")[0] in stages
        ]
        target.mkdir(parents=True, exist_ok=True)
        for member in members:
            path = target / member.path
            if member.data is None:
                path.mkdir(exist_ok=True)
            else:
                path.write_bytes(member.data)
                os.utime(path, (member.modified, member.modified))
        for member in members:  # a new file changed its directory's time
            if member.data is None:
                os.utime(target / member.path, (member.modified, member.modified))
        return target

    def _lines(self, stage: str, kind: str) -> Iterator[dict[str, Any]]:
        with gzip.open(self.directory / f"{stage}.{kind}.jsonl.gz", "rt", encoding="utf-8") as lines:
            for line in lines:
                yield json.loads(line)


def value_matches(expected: dict[str, Any], value: bytes | None) -> bool:
    """Compare a value with a line of `expected`, which holds the value or its digest."""
    if "value_sha256" in expected:
        return (
            value is not None
            and len(value) == expected["value_len"]
            and hashlib.sha256(value).hexdigest() == expected["value_sha256"]
        )
    return value == expected["value"]


def _record(line: dict[str, Any]) -> dict[str, Any]:
    line["key"] = _bytes(line["key"])
    if "value" in line:
        line["value"] = _bytes(line["value"])
    line["headers"] = tuple((name, _bytes(value)) for name, value in line["headers"])
    return line


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
