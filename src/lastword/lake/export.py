"""One export: which rows are new, which are dead, what is rewritten, and one commit for all of it.

An attempt works on a snapshot of the table and on one moment of the log. If another commit takes its version,
the files of the attempt are removed, and the next attempt begins with a new snapshot and a new moment.
"""

from __future__ import annotations

import json
import logging
import os
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from lastword.arrow import pa
from lastword.clock import Clock
from lastword.errors import BusyError, InvalidSettingError, LastwordError, MissingError, ObjectVanishedError
from lastword.lake.data import DataReader, DataWriter, Written
from lastword.lake.directory import SCRATCH
from lastword.lake.rows import Key, TableRows
from lastword.lake.table import LAYOUT, LOG, OWN, TOPIC, VALUE_FORMAT, DataFile, Snapshot, Table
from lastword.lake.vectors import Offsets, VectorFile, numbers_of
from lastword.objects.interface import ObjectStore
from lastword.units import MIB, format_bytes
from lastword.values import Value, plural
from lastword.version import __version__

VECTORS = "vectors"
MERGE = "merge"
LAYOUTS = (VECTORS, MERGE)
"""How rows die: by a deletion vector of their file, or by a copy of the file without them, as in a MERGE."""
ATTEMPTS = 16
CHECKPOINT_COMMITS = 10
"""A checkpoint is written, and orphans are removed, at each version that this number divides."""
ORPHAN_MS = 7 * 86_400_000
"""A file without a commit is removed at this age. That is Delta's retention of removed files."""
SMALL_BYTES = 8 * MIB
MOST_SMALL = 16
"""More files below SMALL_BYTES than these are joined."""
NO_POSITION = -1
"""The version of an application id whose topic has no rows in the table: it was made again."""
_DATA = re.compile(r"lastword-(\d{20})-[0-9a-f]{16}-\d{4,}\.parquet")
_VECTORS = re.compile(r"deletion_vector_([0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f-]{21})\.bin")

logger = logging.getLogger(__name__)

Newest = Callable[[int, Offsets], "Iterator[pa.RecordBatch]"]


@dataclass(frozen=True)
class Reached:
    """The state of a partition's log of which a table has the newest values.

    Attributes:
        number: The partition.
        start: The log start.
        end: The committed end: no record from there on is live for the table.
        cuts: How often the log was cut, by its removal log.
    """

    number: int
    start: int
    end: int
    cuts: int


@dataclass(frozen=True)
class LivePartition(Reached):
    """The live records of a partition at one moment.

    Attributes:
        cut_since: Takes a number of cuts. Returns the lowest offset of the later cuts of the log.
        newest: Takes an offset and the offsets of records below it that have a row. Yields the rows of live
            records from the offset on, and removes from the other offsets those that are not live.
    """

    cut_since: Callable[[int], int] = field(repr=False)
    newest: Newest = field(repr=False)

    def since(self, before: Reached | None) -> int:
        """Return the offset below which the table has the records of the partition; 0: it has none.

        After a cut below the position, offsets may have other records, and a record whose successor was cut
        off is live again. If the log start is lower than before, as of another replica, trimmed records are
        live again. Then every row of the partition is replaced.
        """
        if before is None or self.start < before.start:
            return 0
        if min(self.end, self.cut_since(before.cuts)) < before.end:
            return 0
        return before.end


@dataclass(frozen=True, slots=True)
class Moment:
    """A topic at one moment."""

    topic_id: str
    partitions: Sequence[LivePartition]


@dataclass(frozen=True, slots=True)
class TableForm:
    """The form of a table: its topic, its columns and its layout.

    Attributes:
        topic: The name of the topic.
        schema: The columns; `partition` and `offset` are among them.
        layout: One of LAYOUTS.
        space_target: The table has at most this many times its live rows.
        value_format: The format that the column `value` is decoded from; None: it has the serializer's type.
    """

    topic: str
    schema: pa.Schema
    layout: str
    space_target: float
    value_format: str | None = None


@dataclass(frozen=True, slots=True)
class Exported(Value):
    """What an export wrote, or with `dry_run` would write.

    Attributes:
        topic: The topic.
        table: The path or URL of the table.
        version: The version of the table afterwards; None if nothing was committed.
        added_rows: Rows of records that were not in the table.
        removed_rows: Rows that were live in the table before.
        rewritten_rows: Live rows of files that were rewritten.
        files: Data files written.
        written_bytes: Bytes of data files and vectors.
        end_offsets: The committed end of each partition, which the table now has.
    """

    topic: str
    table: str
    version: int | None
    added_rows: int
    removed_rows: int
    rewritten_rows: int
    files: int
    written_bytes: int
    end_offsets: dict[int, int]

    def __str__(self) -> str:
        if self.version is None and not self.added_rows and not self.removed_rows:
            return f"{self.topic}: {self.table} is up to date"
        at = "" if self.version is None else f" at version {self.version}"
        return (
            f"{self.topic}: {plural(self.added_rows, 'row')} added, {self.removed_rows} removed, "
            f"{self.rewritten_rows} rewritten, {format_bytes(self.written_bytes)}{at}"
        )


def export(
    table: Table,
    moment: Callable[[], Moment],
    form: TableForm,
    *,
    clock: Clock,
    dry_run: bool = False,
    before_write: Callable[[], object] = lambda: None,
    checkpoint: Callable[[], object] = lambda: None,
    work: Callable[[Writing], Work] | None = None,
) -> Exported:
    """Bring a table to the newest values of a topic; see `Topic.export`.

    Args:
        table: The table, which may be absent.
        moment: Returns the topic as it is now. Called once for each attempt.
        form: The topic, the columns and the layout.
        clock: For the times in the log, and the age of orphans.
        dry_run: Measure, and write nothing.
        before_write: Called once before the first write.
        checkpoint: Writes a checkpoint of the table.
        work: Makes the workers of an attempt; None: this process.

    Raises:
        TableRefusedError: As `Table.check` and `Table.check_changes`.
        BusyError: Other commits came first 16 times.
        UncertainCommitError: As `Table.commit`.
    """
    columns = delta_schema(form.schema)
    prepared = False
    for _ in range(ATTEMPTS):
        snapshot = table.snapshot()
        if snapshot.version >= 0:
            table.check(snapshot, form.topic, form.layout, columns, form.value_format)
            table.check_changes(snapshot)
        now = moment()
        version = Version(snapshot.version + 1, now.topic_id, clock.now_ms())
        writing = Writing(table.store, form.schema, version, dry_run)
        workers = (work or LocalWork)(writing)
        attempt = _Attempt(table, snapshot, now, form, writing, workers)
        if attempt.is_current:
            return attempt.result(None)
        if dry_run:
            attempt.collect()
            return attempt.result(None)
        if not prepared:
            before_write()
            prepared = True
        try:
            attempt.collect()
        except BaseException:
            with suppress(LastwordError):  # the first error is the reason
                attempt.undo()
            raise
        if attempt.commit(columns):
            if attempt.version and attempt.version % CHECKPOINT_COMMITS == 0:
                _maintain(table, checkpoint, clock.now_ms())
            return attempt.result(attempt.version)
        attempt.undo()
    raise BusyError(
        f"{table.store.url}: commits of other writers came first {ATTEMPTS} times", remedy="export again"
    )


def delta_schema(schema: pa.Schema) -> dict[str, Any]:
    """Return a schema in the form of Delta's log.

    Raises:
        MissingError: deltalake is not installed.
        InvalidSettingError: Delta has no such columns.
    """
    try:
        from deltalake import Schema
    except ImportError:
        raise MissingError.package("a Delta table", "deltalake", "deltalake>=1.6,<2") from None
    try:
        parsed: dict[str, Any] = json.loads(Schema.from_arrow(schema).to_json())
    except Exception as error:  # deltalake raises the base class
        reason = str(error).partition("\n")[0].removeprefix("External error: ").strip()
        raise InvalidSettingError(
            f"Delta has no such columns: {reason}", remedy="give another value_schema"
        ) from None
    return parsed


@dataclass(frozen=True, slots=True)
class Version:
    """The version of a table that is written: its number, the topic, and the time."""

    number: int
    topic_id: str
    now_ms: int


@dataclass(frozen=True, slots=True)
class Writing:
    """The writing of a version. `dry`: measure files, and store none."""

    store: ObjectStore
    schema: pa.Schema
    version: Version
    dry: bool = False

    def writer(self) -> DataWriter:
        """Return a writer of data files, whose names no other writer gives."""
        prefix = f"lastword-{self.version.number:020}-{os.urandom(8).hex()}"
        return DataWriter(self.store, self.schema, prefix, self.version.now_ms, dry=self.dry)


@dataclass(frozen=True, slots=True)
class Change:
    """The change of a partition by an export: the added rows, and a bitmap of dead rows for each file."""

    reached: Reached
    added: int
    died: Mapping[Key, Any]


Part = tuple[LivePartition, Reached | None]


class Work(Protocol):
    """The workers of one attempt."""

    written: Written
    """The files so far; also of work that failed."""

    def change(self, parts: Sequence[Part], rows: TableRows) -> Iterable[Change]:
        """Write the new rows of partitions, each with what the table has of it; find the rows that died."""

    def rewrite(self, files: Sequence[tuple[DataFile, Any]]) -> None:
        """Write the rows of files again, without those in a bitmap."""

    def finish(self) -> None:
        """End the last file."""


class LocalWork:
    """Writes the files of an attempt in this process, one after another."""

    def __init__(self, writing: Writing) -> None:
        self._writing = writing
        self._writer = writing.writer()
        self.written = self._writer.written

    def change(self, parts: Sequence[Part], rows: TableRows) -> Iterator[Change]:
        """Write the new rows of partitions; find the rows that died."""
        for part, before in parts:
            yield change_of(part, before, rows, self._writer)

    def rewrite(self, files: Sequence[tuple[DataFile, Any]]) -> None:
        """Write the rows of files again, without those in a bitmap."""
        rewrite(files, self._writing, self._writer)

    def finish(self) -> None:
        """End the last file."""
        self._writer.close()


def change_of(part: LivePartition, before: Reached | None, rows: TableRows, writer: DataWriter) -> Change:
    """Write the new rows of a partition; find the rows that died. `before`: what the table has of it."""
    since = part.since(before)
    held = rows.known(part.number)
    live = held.copy() if since else Offsets()
    added = 0
    for batch in part.newest(since, live):
        added += batch.num_rows
        writer.write(batch)
    reached = Reached(part.number, part.start, part.end, part.cuts)
    return Change(reached, added, rows.died(part.number, held.minus(live)))


def rewrite(files: Sequence[tuple[DataFile, Any]], writing: Writing, writer: DataWriter) -> None:
    """Write the rows of files again, without those in a bitmap."""
    for file, dead in files:
        reader = DataReader(writing.store, file.object, file.size)
        mask = np.zeros(reader.rows, np.bool_)
        mask[numbers_of(dead)] = True
        for batch in reader.live(mask, writing.schema):
            writer.write(batch)


class _Attempt:
    """One attempt to commit the version after a snapshot."""

    def __init__(
        self, table: Table, snapshot: Snapshot, moment: Moment, form: TableForm, writing: Writing, work: Work
    ) -> None:
        self.version = writing.version.number
        self._table = table
        self._snapshot = snapshot
        self._moment = moment
        self._form = form
        self._writing = writing
        self._work = work
        self._vectors = VectorFile(_identity(self.version, int.from_bytes(os.urandom(10), "big")))
        self._own = f"{OWN}{moment.topic_id}/"
        self._others = [
            name
            for name, version in snapshot.positions.items()
            if name.startswith(OWN) and not name.startswith(self._own) and version != NO_POSITION
        ]
        self._is_remade = bool(self._others)
        self._changed = [part for part in moment.partitions if self._is_remade or self._txns(part)]
        self._reached: dict[int, Reached] = {}
        self._actions: list[dict[str, Any]] = []
        self._added = self._removed = self._rewritten = 0

    @property
    def is_current(self) -> bool:
        """Whether the table has the position of every partition."""
        return self._snapshot.version >= 0 and not self._changed and not self._is_remade

    def _txns(self, part: Reached) -> dict[str, int]:
        """Return the versions of application ids that a commit changes for a partition."""
        name = f"{self._own}{part.number}"
        values = {name: part.end, f"{name}/start": part.start, f"{name}/cuts": part.cuts}
        return {key: value for key, value in values.items() if self._snapshot.positions.get(key) != value}

    def _before(self, number: int) -> Reached | None:
        """Return what the table has of a partition; None: nothing that may stay."""
        name, known = f"{self._own}{number}", self._snapshot.positions
        values = [known.get(key, NO_POSITION) for key in (f"{name}/start", name, f"{name}/cuts")]
        return None if self._is_remade or NO_POSITION in values else Reached(number, *values)

    # -------------------------------------------------------------- the content of the commit

    def collect(self) -> None:
        """Write data files and vectors, and collect the actions; with a dry run, measure them."""
        rows = TableRows(self._writing.store, [*self._snapshot.files.values()])
        died: dict[Key, Any] = {}
        parts = [(part, self._before(part.number)) for part in self._changed]
        for change in self._work.change(parts, rows):
            self._reached[change.reached.number] = change.reached
            self._added += change.added
            for key, bitmap in change.died.items():
                died[key] = died[key] | bitmap if key in died else bitmap
        counts = [_Counts.of(file, rows, died.get(file.key), self._is_remade) for file in rows.files]
        self._removed = sum(each.died for each in counts)
        again = self._to_rewrite(counts)
        for each in counts:
            if each.died or each.file.key in again:
                self._replace(each, died.get(each.file.key), rows, again)
        self._work.rewrite([*again.values()])
        self._work.finish()
        if len(self._vectors) and not self._writing.dry:
            self._table.store.put(self._vectors.name, bytes(self._vectors.data))

    def _to_rewrite(self, counts: Sequence[_Counts]) -> dict[Key, tuple[DataFile, Any]]:
        """Return the files to rewrite so that the table keeps its space target, without their bitmaps.

        The files with the largest dead share are rewritten first; without vectors, all of which rows died.
        Many small files are joined.
        """
        kept = sorted((each for each in counts if each.alive), key=lambda each: each.alive / each.rows)
        small = [each for each in kept if each.file.size < SMALL_BYTES]
        chosen = small if len(small) > MOST_SMALL else []
        if self._form.layout == MERGE:
            chosen += [each for each in kept if each.died and each not in chosen]
        live = self._added + sum(each.alive for each in kept)
        total = self._added + sum(each.rows for each in kept) - sum(each.dead for each in chosen)
        for each in kept:
            if total <= self._form.space_target * live:
                break
            if each not in chosen:
                chosen.append(each)
                total -= each.dead
        self._rewritten = sum(each.alive for each in chosen)
        return {each.file.key: (each.file, None) for each in chosen}

    def _replace(
        self, counts: _Counts, died: Any, rows: TableRows, again: dict[Key, tuple[DataFile, Any]]
    ) -> None:
        """Remove a file, and unless it is rewritten or has no live row, add it with a vector."""
        file = counts.file
        self._actions.append(file.removed(self._writing.version.now_ms))
        if not counts.alive:
            return
        dead = rows.deleted(file) if died is None else rows.deleted(file) | died
        if file.key in again:
            again[file.key] = file, dead
        else:
            self._actions.append(file.added_with(self._vectors.add(dead), counts.rows))

    # -------------------------------------------------------------- the commit

    def commit(self, columns: Mapping[str, Any]) -> bool:
        """Commit what was collected. Return False if another commit took the version."""
        actions: list[dict[str, Any]] = [
            {
                "commitInfo": {
                    "timestamp": self._writing.version.now_ms,
                    "operation": "LASTWORD EXPORT",
                    "operationParameters": {"topic": self._form.topic, "layout": self._form.layout},
                    "isBlindAppend": False,
                    "engineInfo": f"lastword/{__version__}",
                }
            }
        ]
        if self.version == 0:
            actions += _created(self._form, columns, self._writing.version.now_ms)
        positions = dict.fromkeys(self._others, NO_POSITION)
        for part in self._changed:
            positions |= self._txns(self._reached[part.number])
        for name, value in positions.items():
            actions.append(
                {"txn": {"appId": name, "version": value, "lastUpdated": self._writing.version.now_ms}}
            )
        return self._table.commit(self.version, [*actions, *self._actions, *self._work.written.actions])

    def undo(self) -> None:
        """Remove the files of an attempt that failed or that another commit overtook."""
        vectors = [self._vectors.name] if len(self._vectors) else []
        self._table.store.delete([*self._work.written.names, *vectors])

    def result(self, version: int | None) -> Exported:
        """Return what the attempt wrote."""
        return Exported(
            self._form.topic,
            self._table.store.url,
            version,
            self._added,
            self._removed,
            self._rewritten,
            len(self._work.written.names),
            self._work.written.size_bytes + len(self._vectors),
            {part.number: self._reached.get(part.number, part).end for part in self._moment.partitions},
        )


@dataclass(frozen=True, slots=True)
class _Counts:
    """The rows of a file: how many there are, are dead, and have died since the last export."""

    file: DataFile
    rows: int
    dead: int
    died: int

    @property
    def alive(self) -> int:
        return self.rows - self.dead

    @classmethod
    def of(cls, file: DataFile, rows: TableRows, died: Any, is_remade: bool) -> _Counts:
        count, before = rows.count(file), 0 if file.vector is None else file.vector.rows
        new = count - before if is_remade else len(died or ())
        return cls(file, count, before + new, new)


def _created(form: TableForm, columns: Mapping[str, Any], now_ms: int) -> list[dict[str, Any]]:
    """Return the actions that make a table."""
    protocol: dict[str, Any] = {"minReaderVersion": 1, "minWriterVersion": 2}
    settings = {TOPIC: form.topic, LAYOUT: form.layout}
    if form.value_format is not None:
        settings[VALUE_FORMAT] = form.value_format
    if form.layout == VECTORS:
        features = {f"{side}Features": ["deletionVectors"] for side in ("reader", "writer")}
        protocol = {"minReaderVersion": 3, "minWriterVersion": 7, **features}
        settings["delta.enableDeletionVectors"] = "true"
    return [
        {"protocol": protocol},
        {
            "metaData": {
                "id": str(uuid.uuid4()),
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps(columns),
                "partitionColumns": [],
                "configuration": settings,
                "createdTime": now_ms,
            }
        },
    ]


# ---------------------------------------------------------------- files without a commit


def _identity(version: int, token: int) -> uuid.UUID:
    """Return a UUID of version 8, whose first 48 bits are the version of a commit."""
    high, low = token >> 62 & 0xFFF, token & (1 << 62) - 1
    return uuid.UUID(int=version << 80 | 8 << 76 | high << 64 | 2 << 62 | low)


def _version_of(name: str) -> int | None:
    """Return the version for which a file of ours was written; None for another file."""
    if match := _DATA.fullmatch(name):
        return int(match[1])
    if match := _VECTORS.fullmatch(name):
        return uuid.UUID(match[1]).int >> 80
    return None


def orphans(table: Table, newest: int, now_ms: int) -> list[str]:
    """Return the files of ours that no commit up to version `newest` names, and that are old enough."""
    found: list[str] = []
    named: dict[int, set[str] | None] = {}
    for facts in table.store.list():
        folder, _, name = facts.key.rpartition("/")
        if facts.modified_ms > now_ms - ORPHAN_MS:
            continue
        version = _version_of(name) if not folder else None
        if folder == LOG and SCRATCH.fullmatch(name):
            found.append(facts.key)
        if version is None:
            continue
        if version <= newest and version not in named:
            named[version] = _names(table, version)
        names = named.get(version, set())
        if names is not None and name not in names:
            found.append(facts.key)
    return found


def _names(table: Table, version: int) -> set[str] | None:
    """Return the names of files that a commit adds; None if the commit is gone."""
    names: set[str] = set()
    try:
        actions = table.actions(version)
    except ObjectVanishedError:
        return None
    for action in actions:
        if "add" in action:
            file = DataFile.of(action["add"])
            names.add(file.object)
            if file.vector is not None and file.vector.file is not None:
                names.add(file.vector.file)
    return names


def _maintain(table: Table, checkpoint: Callable[[], object], now_ms: int) -> None:
    """Write a checkpoint and remove orphans. The commit is there, so a failure is a warning."""
    try:
        checkpoint()
        table.store.delete(orphans(table, table.snapshot().version, now_ms))
    except Exception as error:  # deltalake has errors of its own
        logger.warning("%s: no checkpoint was written: %s", table.store.url, error)
