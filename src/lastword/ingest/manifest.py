"""The files of commits in the root of a log directory.

A *manifest* is one commit: it names staged files (`staging`) in any number of partitions. Renaming it to its
`inbox` name is the commit: from then on it is ingested completely, after any crash.

```
<root>/lastword.inbox-<number>-<commit>       waits; numbers rise, the lowest is ingested first
<root>/lastword.applying-<number>-<commit>    is being ingested by the process that holds the lock
<root>/lastword.refused-<number>-<commit>     was refused; its text holds the reason
<root>/lastword.writers                       the last sequence of each named writer that was ingested
```

The process that has the directory open to append ingests: when it opens the directory, and when a manifest
arrives (`apply.Watch`). If no process holds the lock, the committing process ingests its own manifest. So a
pipeline can write while another process appends and cleans.

    committer (`apply.commit`)                holder of the lock (`apply`)
    --------------------------                ----------------------------
    stages; renames the manifest to inbox-
    waits until it is gone                    renames it to applying-; appends to each partition, syncs it;
                                              saves writer and sequence; removes the manifest
    still in the inbox after its patience:
    removes it, and nothing was written

A crash of the holder leaves `applying-`. The next process that opens the directory to append finishes it
first. Each partition records which batches it has (`partition.staged_batches`), so no batch is appended
twice. A manifest whose writer and sequence were ingested before, also under another commit id, appends
nothing: a named batch that is run again after a crash is ingested once. Writer and sequence are saved after
the last partition is synced, so that they never promise records that a power cut can take. Partitions may
show the commit one after another. Nothing is appended before all checksums of the commit are verified.

All of these are plain files: a broker does not start with an unknown directory in the root.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lastword.errors import CorruptFileError
from lastword.files import Files
from lastword.files.framed import Framed
from lastword.ingest.staging import StagedFile
from lastword.segment import names

KEEP_WRITERS_MS = 30 * 24 * 3600 * 1000
"""A writer that commits nothing for this long is forgotten."""
MOST_BETWEEN_COMMITS_MS = 24 * 3600 * 1000
"""The most that counts as time between two commits, of any writers."""
_FORMAT = 1

WRITERS_FORM = Framed(
    "writers",
    1,
    "bad-writers",
    "restore the file from a copy; without it, which batches were written is not known",
)
REFUSED_FORM = Framed("refused", 1, "bad-note", "remove the file: it only says why a commit was refused")


@dataclass(frozen=True, slots=True)
class Manifest:
    """One commit. `writer` and `sequence` name it for ever (a streaming query and its batch), or are None.

    sync   the records are durable when the commit is ingested; always true of a commit with a writer
    """

    commit_id: str
    files: tuple[StagedFile, ...]
    sync: bool
    writer: str | None = None
    sequence: int | None = None

    def encoded(self) -> bytes:
        """Return the bytes of the file: a CRC-32 and JSON, which calls the commit `job`."""
        fields = {
            "format": _FORMAT,
            "job": self.commit_id,
            "files": [file.to_json() for file in self.files],
            "sync": self.sync,
            "writer": self.writer,
            "sequence": self.sequence,
        }
        body = json.dumps(fields, separators=(",", ":")).encode()
        return b"%08x %s\n" % (zlib.crc32(body), body)

    @classmethod
    def decoded(cls, data: bytes, file: str) -> Manifest:
        """Parse the bytes of a file. CorruptFileError if they are no manifest."""
        body = data.partition(b" ")[2].removesuffix(b"\n")
        try:
            if data != b"%08x %s\n" % (zlib.crc32(body), body):
                raise ValueError("its checksum differs")
            fields = json.loads(body)
            if fields.pop("format") != _FORMAT:
                raise ValueError("another version wrote it")
            files = tuple(StagedFile.from_json(staged) for staged in fields.pop("files"))
            return cls(fields.pop("job"), files, **fields)
        except (ValueError, TypeError, KeyError) as error:
            raise CorruptFileError(
                f"{file} is no commit: {error}",
                code="bad-commit",
                remedy="remove it, and run the job again",
                file=file,
            ) from None


class Writers:
    """The last ingested sequence of each named writer, in one small file of the root."""

    def __init__(self, last: dict[str, tuple[int, int]]) -> None:
        self._last = last  # writer -> (sequence, time of the commit in ms)

    @classmethod
    def load(cls, files: Files, root: str) -> Writers:
        """Read the file.

        CorruptFileError if it is damaged: taking a writer for new could append its batch twice.
        """
        path = os.path.join(root, names.WRITERS)
        fields = WRITERS_FORM.load(files, path)
        try:
            return cls({str(name): (int(entry[0]), int(entry[1])) for name, entry in (fields or {}).items()})
        except (ValueError, TypeError, AttributeError, LookupError) as error:
            raise WRITERS_FORM.damaged(path, str(error)) from None

    def last(self, writer: str | None) -> int:
        """Return the last sequence of a writer, or -1."""
        return self._last.get(writer or "", (-1, 0))[0]

    def note(self, writer: str, sequence: int, now_ms: int) -> None:
        """Set the writer's last sequence, and forget writers that have been idle too long.

        Idle time is the time between commits, of which each interval counts as a day at most. So neither a
        step of the wall clock nor a long pause of all writers makes them forgotten.
        """
        before = max((at_ms for _, at_ms in self._last.values()), default=now_ms)
        skipped = max(0, now_ms - before - MOST_BETWEEN_COMMITS_MS)
        self._last = {name: (last, at_ms + skipped) for name, (last, at_ms) in self._last.items()}
        self._last[writer] = (sequence, now_ms)
        for name in [n for n, (_, at_ms) in self._last.items() if at_ms < now_ms - KEEP_WRITERS_MS]:
            del self._last[name]

    def save(self, files: Files, root: str) -> None:
        """Replace the file."""
        WRITERS_FORM.save(files, os.path.join(root, names.WRITERS), dict(sorted(self._last.items())))


class Entry(NamedTuple):
    """A manifest's file in the root. `name`: number and commit id; `prefix`: its state."""

    number: int
    name: str
    prefix: str

    @property
    def commit_id(self) -> str:
        """The id of the commit."""
        return self.name.partition("-")[2]


def entries(files: Files, root: str, prefixes: Sequence[str] = (names.INBOX, names.APPLYING)) -> list[Entry]:
    """List the manifests of the root, in the order of their numbers."""
    listed = []
    for name in files.listdir(root):
        for prefix in prefixes:
            rest = name.removeprefix(prefix)
            number, dash, _ = rest.partition("-")
            if rest != name and dash and number.isdecimal() and not name.endswith(".tmp"):
                listed.append(Entry(int(number), rest, prefix))
    return sorted(listed)


def pending(files: Files, root: str) -> bool:
    """Return whether a commit waits, or is partly ingested."""
    return bool(entries(files, root))


def pending_commits(files: Files, root: str) -> set[str]:
    """Return the ids of the commits that wait, or are partly ingested."""
    return {entry.commit_id for entry in entries(files, root)}


def next_number(files: Files, root: str, now_ms: int) -> int:
    """Return a number above all others in the inbox.

    So commits keep their order after a step of the clock.
    """
    return max([now_ms, *(entry.number + 1 for entry in entries(files, root))])


def read_refusal(files: Files, path: str) -> str:
    """Return the reason of a refusal, as far as the file can be read."""
    try:
        return str((REFUSED_FORM.load(files, path) or {}).get("reason", ""))
    except CorruptFileError as error:
        return error.message
