r"""The journal of named producers: `<topic>-<lowest partition>/lastword/producers`.

```
<CRC-32C of the rest, 8 hex digits> <JSON>\n
{"version": 3, "name": "", "id": -1}                                   the first line
{"name": "loader", "id": 4611686018427387999}                          before the producer's first record
{"id": 4611686018427387999, "partition": 0, "from": 100, "ends": [[110, "93f5..."], [120, "0c1e..."]]}
                                                                       before records of a call
{"id": 4611686018427387999, "sequence": 42, "parts": {"0": [120, 4711]}}      after a call's last record
```

`ends`: the number of the producer's records in the partition after each batch, and a digest of the records of
the call up to there. When a call is repeated, and a cleaning has removed some of its records, the digest
shows that they were those of this call. Numbers above `from` that were noted before are of records that are
not in the log.

`parts`: for each partition that the call wrote to, the total number of the producer's records there, and the
offset of the last one. The first number is also the Kafka sequence of the producer's next record there
(modulo 2^31), so it can be compared with the partition's own producer state:

    log behind the journal   a power cut took records that were acknowledged at `os`: the newest calls that
                             are not complete any more are removed from the journal
    log ahead of it          a call did not complete: the records in front are its beginning, and repeating
                             the call writes only the rest

So the journal is written after the log. It is synced for a call that is acknowledged at `disk`, and for a
name before it is used: if a name were lost, its producer would write everything again.

A crash may tear the end: a line without its end, or with zeros that a power cut left in place of bytes. The
lines before are then the journal, and the log is at or ahead of them. Any other damaged line is damage, and
so is a torn line with a name behind it, because a name is synced with all lines before it. Damage is a
CorruptFileError: a call that the journal has lost would be written twice.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import google_crc32c

from lastword.errors import CorruptFileError
from lastword.files import Files, Handle
from lastword.partition.durability import GroupCommit
from lastword.partition.producer_state import FIRST_NAMED_ID
from lastword.segment import names

COMPACT_BYTES = 1 << 20
"""From this size on the journal is rewritten with only the newest call of each producer."""
VERSION = 3
_FIRST_LINE = {"version": VERSION, "name": "", "id": -1}


Ends = dict[int, dict[int, str]]
"""By partition: digests of the records of a call, by the number of the producer's records up to their end."""


class Part(NamedTuple):
    """A producer's share of one partition: the number of its records there, and the offset of the last."""

    written: int
    last_offset: int


@dataclass(frozen=True, slots=True)
class WholeCall:
    """A completed call.

    Attributes:
        sequence: Its sequence.
        parts: The producer's share so far of each partition written to.
        ends: The digests of its records; see `NamedProducer`.
    """

    sequence: int
    parts: dict[int, Part]
    ends: Ends = field(default_factory=dict)


@dataclass(slots=True)
class NamedProducer:
    """A named producer.

    Attributes:
        name: The name.
        producer_id: The id of its batches.
        calls: The completed calls in the journal, oldest first.
        parts: The shares after all of these calls, by partition.
        ends: The digests of the call that is not complete.
    """

    name: str
    producer_id: int
    calls: list[WholeCall] = field(default_factory=list)
    parts: dict[int, Part] = field(default_factory=dict)
    ends: Ends = field(default_factory=dict)

    @property
    def last_sequence(self) -> int | None:
        """Sequence of the last completed call; None without one."""
        return self.calls[-1].sequence if self.calls else None

    def add(self, call: WholeCall) -> None:
        """Add a completed call."""
        self.calls.append(replace(call, ends=self.ends))
        self.parts.update(call.parts)
        self.ends = {}

    def keep(self, count: int) -> None:
        """Keep only the oldest `count` calls. The next one is not complete any more."""
        kept, left, self.calls, self.parts = self.calls[:count], self.calls[count:], [], {}
        for call in kept:
            self.add(call)
        self.ends = left[0].ends if left else {}

    def note(self, partition: int, start: int, ends: Iterable[tuple[int, str]]) -> None:
        """Note the digests of records behind the first `start` ones of a partition."""
        known = self.ends.get(partition, {})
        below = {number: digest for number, digest in known.items() if number <= start}
        self.ends[partition] = below | dict(ends)


def read_journal(files: Files, directory: str) -> tuple[dict[str, NamedProducer], int]:
    """Read the journal of a partition directory.

    Returns:
        Producers by name, and how many bytes are sound; behind them is only what a crash tore.

    Raises:
        CorruptFileError: damage, or another version.
    """
    path = journal_path(directory)
    data = files.read_bytes(path) if files.exists(path) else b""
    by_id: dict[int, NamedProducer] = {}
    sound = number = 0
    while sound < len(data):
        number += 1
        end = data.find(b"\n", sound)
        try:
            if end < 0:
                raise ValueError("no end of line")
            line = _decode(data[sound:end])
            if "version" in line:
                if line["version"] != VERSION:
                    raise _damaged(path, sound, f"version {line['version']}, known is {VERSION}")
            elif "name" in line:
                by_id[line["id"]] = NamedProducer(line["name"], line["id"])
            elif "ends" in line:
                by_id[line["id"]].note(line["partition"], line["from"], line["ends"])
            else:
                parts = {int(number): Part(*part) for number, part in line["parts"].items()}
                by_id[line["id"]].add(WholeCall(line["sequence"], parts))
        except (ValueError, KeyError, TypeError):
            if not _is_torn(data, sound, end):
                raise _damaged(path, sound, f"line {number} is damaged") from None
            break
        sound = end + 1
    return {producer.name: producer for producer in by_id.values()}, sound


def _is_torn(data: bytes, start: int, end: int) -> bool:
    """Return whether a crash can have left the bytes at `start`, where no valid line begins.

    `end`: of that line, -1 without one. One wrong bit leaves no two zero bytes, no zero at the beginning or
    the end of the file, and does not remove the end of a whole line.
    """
    if end < 0:
        return data[-1] == 0 or not _is_sound(data[start:-1])
    if data[start] and b"\0\0" not in data[start:]:
        return False
    return not any(b'"name"' in line and _is_sound(line) for line in data[end + 1 :].split(b"\n"))


def _damaged(path: str, position: int, text: str) -> CorruptFileError:
    return CorruptFileError(
        f"{text}: calls of named producers could come in twice",
        code="bad-journal",
        remedy="restore the file from a copy. Without one, remove it, use new producer names, and repeat no "
        "call that was made before",
        file=path,
        position=position,
    )


def journal_path(directory: str) -> str:
    """Return the path of the journal in a partition's directory."""
    return os.path.join(directory, names.PRIVATE, names.PRODUCERS)


class Journal:
    """The journal of a topic that is open to append. Safe from any thread."""

    def __init__(self, files: Files, directory: str, rng: random.Random) -> None:
        self._files = files
        self._directory = directory
        self._rng = rng
        self._group_commit = GroupCommit()
        self._handle: Handle | None = None
        self._synced = 0
        self.producers, self.size_bytes = read_journal(files, directory)

    def name(self, name: str) -> NamedProducer:
        """Return the producer of that name. A new producer gets its id, durably."""
        known = self.producers.get(name)
        if known is None:
            with self._group_commit.turn():
                known = self.producers.get(name)
                if known is None:
                    known = NamedProducer(name, FIRST_NAMED_ID + self._rng.getrandbits(61))
                    if not self.size_bytes:
                        self._append(_FIRST_LINE)
                    self._append({"name": name, "id": known.producer_id})
                    self._open().fsync()
                    self._files.fsync_dir(os.path.join(self._directory, names.PRIVATE))
                    self.producers[name] = known
        return known

    def note(self, producer: NamedProducer, partition: int, start: int, ends: list[tuple[int, str]]) -> None:
        """Write the digests of records that are appended next; see `NamedProducer.note`."""
        with self._group_commit.turn():
            self._append(_ends_line(producer.producer_id, partition, start, ends))
            producer.note(partition, start, ends)

    def add(self, producer: NamedProducer, call: WholeCall, *, sync: bool) -> None:
        """Write a completed call, whose records are in the log; durable if `sync`.

        Callers that sync at the same time share one fsync.
        """
        with self._group_commit.turn():
            self._append(_call_line(producer.producer_id, call))
            producer.add(call)
            end = self.size_bytes
        if sync:
            with self._group_commit.turn(lambda: self._synced >= end) as mine:
                if mine:
                    upto = self.size_bytes
                    self._open().fsync()
                    self._synced = upto

    def rewrite(self) -> None:
        """Replace the journal by its newest entries, as a whole or not at all.

        Every record that it names must be durable.
        """
        with self._group_commit.turn():
            lines = _encode(_FIRST_LINE)
            for producer in self.producers.values():
                lines += _encode({"name": producer.name, "id": producer.producer_id})
                if producer.calls:
                    producer.calls = [WholeCall(producer.calls[-1].sequence, dict(producer.parts))]
                    lines += _encode(_call_line(producer.producer_id, producer.calls[-1]))
                for partition, ends in producer.ends.items():
                    lines += _encode(_ends_line(producer.producer_id, partition, 0, list(ends.items())))
            self._close()
            self._files.write_atomic(journal_path(self._directory), lines)
            self.size_bytes = self._synced = len(lines)

    def _append(self, line: dict[str, Any]) -> None:
        data = _encode(line)
        try:
            self._open().append(data)
            self.size_bytes += len(data)
        except BaseException:  # an interrupt, too
            self._close()  # a line that `size_bytes` leaves out is cut when it is opened again
            raise

    def _open(self) -> Handle:
        if self._handle is None:
            path = journal_path(self._directory)
            private = os.path.dirname(path)
            if not self._files.exists(private):
                self._files.mkdir(private)
                self._files.fsync_dir(self._directory)
            handle = self._files.open_append(path, create=True)
            if handle.size() > self.size_bytes:
                handle.truncate(self.size_bytes)
            self._handle = handle
        return self._handle

    def _close(self) -> None:
        if self._handle is not None:
            self._handle.close()
            self._handle = None


def _call_line(producer_id: int, call: WholeCall) -> dict[str, Any]:
    return {"id": producer_id, "sequence": call.sequence, "parts": call.parts}


def _ends_line(producer_id: int, partition: int, start: int, ends: list[tuple[int, str]]) -> dict[str, Any]:
    return {"id": producer_id, "partition": partition, "from": start, "ends": ends}


def _encode(line: dict[str, Any]) -> bytes:
    text = json.dumps(line, ensure_ascii=False).encode()
    return b"%08x %s\n" % (google_crc32c.value(text), text)


def _decode(data: bytes) -> dict[str, Any]:
    if not _is_sound(data):
        raise ValueError("a wrong checksum")
    return dict(json.loads(data[9:]))


def _is_sound(data: bytes) -> bool:
    return len(data) > 9 and data[:9] == b"%08x " % google_crc32c.value(bytes(data[9:]))
