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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from lastword.arrow import pa
from lastword.clock import Clock
from lastword.errors import BusyError, InvalidSettingError, LastwordError, MissingError, ObjectVanishedError
from lastword.lake.data import DataReader, DataWriter
from lastword.lake.directory import SCRATCH
from lastword.lake.table import LAYOUT, LOG, OWN, TOPIC, DataFile, Snapshot, Table
from lastword.lake.vectors import Offsets, Vector, VectorFile, bitmap_of, numbers_of, read_vector
from lastword.units import MIB, format_bytes
from lastword.values import Value, plural
from lastword.version import __version__

if TYPE_CHECKING:
    from numpy.typing import NDArray

VECTORS = "vectors"
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
_FEATURES = ["deletionVectors"]
_DATA = re.compile(r"lastword-(\d{20})-[0-9a-f]{16}-\d{4,}\.parquet")
_VECTORS = re.compile(r"deletion_vector_([0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f-]{21})\.bin")

logger = logging.getLogger(__name__)

Newest = Callable[[int], "Iterator[tuple[NDArray[np.int64], pa.RecordBatch | None]]"]


@dataclass(frozen=True, slots=True)
class LivePartition:
    """The live records of a partition at one moment.

    Attributes:
        number: The partition.
        start: The log start.
        end: The committed end: no record from there on is live for the table.
        cuts: How often the log was cut, by its removal log.
        cut_since: Returns the lowest offset at which the log was cut after so many cuts.
        newest: Takes an offset. Yields (offsets of live records below it, rows of live records from it on).
    """

    number: int
    start: int
    end: int
    cuts: int
    cut_since: Callable[[int], int]
    newest: Newest = field(repr=False)


@dataclass(frozen=True, slots=True)
class Moment:
    """A topic at one moment."""

    topic_id: str
    partitions: Sequence[LivePartition]


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
    *,
    topic: str,
    schema: pa.Schema,
    space_target: float,
    clock: Clock,
    dry_run: bool = False,
    before_write: Callable[[], object] = lambda: None,
    checkpoint: Callable[[], object] = lambda: None,
) -> Exported:
    """Bring a table to the newest values of a topic; see `Topic.export`.

    Args:
        table: The table, which may be absent.
        moment: Returns the topic as it is now. Called once for each attempt.
        topic: The name of the topic.
        schema: The columns; `partition` and `offset` are among them.
        space_target: A file is rewritten if it has more than this many times its live rows.
        clock: For the times in the log, and the age of orphans.
        dry_run: Measure, and write nothing.
        before_write: Called once before the first write.
        checkpoint: Writes a checkpoint of the table.

    Raises:
        TableRefusedError: As `Table.check` and `Table.check_changes`.
        BusyError: Other commits came first 16 times.
        UncertainCommitError: As `Table.commit`.
    """
    columns = delta_schema(schema)
    prepared = False
    for _ in range(ATTEMPTS):
        snapshot = table.snapshot()
        if snapshot.version >= 0:
            table.check(snapshot, topic, VECTORS, columns)
            table.check_changes(snapshot)
        attempt = _Attempt(table, snapshot, moment(), topic, schema, space_target, clock.now_ms())
        if attempt.is_current:
            return attempt.result(None)
        if dry_run:
            attempt.collect(dry=True)
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


class _Attempt:
    """One attempt to commit the version after a snapshot."""

    def __init__(
        self,
        table: Table,
        snapshot: Snapshot,
        moment: Moment,
        topic: str,
        schema: pa.Schema,
        space_target: float,
        now_ms: int,
    ) -> None:
        self.version = snapshot.version + 1
        self._table = table
        self._snapshot = snapshot
        self._moment = moment
        self._topic = topic
        self._schema = schema
        self._space_target = space_target
        self._now_ms = now_ms
        token = int.from_bytes(os.urandom(10), "big")
        self._vectors = VectorFile(_identity(self.version, token))
        self._prefix = f"lastword-{self.version:020}-{token & (1 << 64) - 1:016x}"
        self._data = DataWriter(table.store, schema, self._prefix, now_ms)
        self._own = f"{OWN}{moment.topic_id}/"
        self._others = [
            name
            for name, version in snapshot.positions.items()
            if name.startswith(OWN) and not name.startswith(self._own) and version != NO_POSITION
        ]
        self._is_remade = bool(self._others)
        self._changed = [part for part in moment.partitions if self._is_remade or self._txns(part)]
        self._actions: list[dict[str, Any]] = []
        self._added = self._removed = self._rewritten = 0

    @property
    def is_current(self) -> bool:
        """Whether the table has the position of every partition."""
        return self._snapshot.version >= 0 and not self._changed and not self._is_remade

    def _position(self, number: int, suffix: str = "") -> int | None:
        version = self._snapshot.positions.get(f"{self._own}{number}{suffix}")
        return None if version == NO_POSITION else version

    def _txns(self, part: LivePartition) -> dict[str, int]:
        """Return the versions of application ids that a commit changes for a partition."""
        name = f"{self._own}{part.number}"
        values = {name: part.end, f"{name}/start": part.start, f"{name}/cuts": part.cuts}
        return {key: value for key, value in values.items() if self._snapshot.positions.get(key) != value}

    def _since(self, part: LivePartition) -> int:
        """Return the offset below which the table has the records of a partition; 0: it has none.

        After a cut below the position, offsets may have other records, and a record whose successor was cut
        off is live again. Then every row of the partition is replaced.
        """
        known, cuts = self._position(part.number), self._position(part.number, "/cuts")
        if self._is_remade or known is None or cuts is None or min(part.end, part.cut_since(cuts)) < known:
            return 0
        return known

    # -------------------------------------------------------------- the content of the commit

    def collect(self, *, dry: bool = False) -> None:
        """Write data files and vectors, and collect the actions. `dry`: measure them."""
        self._data = DataWriter(self._table.store, self._schema, self._prefix, self._now_ms, dry=dry)
        live: dict[int, Offsets] = {}
        for part in self._changed:
            below = live[part.number] = Offsets()
            for offsets, batch in part.newest(self._since(part)):
                below.add(offsets)
                if batch is not None:
                    self._added += batch.num_rows
                    self._data.write(batch)
        small = [file for file in self._snapshot.files.values() if file.size < SMALL_BYTES]
        joined = {file.key for file in small} if len(small) > MOST_SMALL else set()
        for file in self._snapshot.files.values():
            self._mark(file, live, joins=file.key in joined)
        self._data.close()
        if len(self._vectors) and not dry:
            self._table.store.put(self._vectors.name, bytes(self._vectors.data))

    def _mark(self, file: DataFile, live: Mapping[int, Offsets], *, joins: bool) -> None:
        """Remove a file, rewrite it, or give it a vector, if rows of it have died."""
        reader = DataReader(self._table.store, file.object, file.size)
        before = np.zeros(reader.rows, np.bool_)
        if file.vector is not None:
            before[numbers_of(read_vector(self._table.store, file.vector))] = True
        dead = before | self._is_remade
        if not self._is_remade:
            partitions, offsets = reader.positions()
            for number, below in live.items():
                rows = np.flatnonzero(partitions == number)
                dead[rows] |= below.missing(offsets[rows])
        count, died = int(np.count_nonzero(dead)), int(np.count_nonzero(dead & ~before))
        if not died and not joins:
            return
        self._removed += died
        alive = reader.rows - count
        vector: Vector | None = None
        if alive and not joins and reader.rows <= self._space_target * alive:
            vector = self._vectors.add(bitmap_of(np.flatnonzero(dead)))
        elif alive:
            self._rewritten += alive
            for batch in reader.live(dead, self._schema):
                self._data.write(batch)
        self._actions.append(file.removed(self._now_ms))
        if vector is not None:
            self._actions.append(file.added_with(vector, reader.rows))

    # -------------------------------------------------------------- the commit

    def commit(self, columns: Mapping[str, Any]) -> bool:
        """Commit what was collected. Return False if another commit took the version."""
        actions: list[dict[str, Any]] = [
            {
                "commitInfo": {
                    "timestamp": self._now_ms,
                    "operation": "LASTWORD EXPORT",
                    "operationParameters": {"topic": self._topic, "layout": VECTORS},
                    "isBlindAppend": False,
                    "engineInfo": f"lastword/{__version__}",
                }
            }
        ]
        if self.version == 0:
            actions += _created(self._topic, columns, self._now_ms)
        positions = dict.fromkeys(self._others, NO_POSITION)
        for part in self._changed:
            positions |= self._txns(part)
        for name, value in positions.items():
            actions.append({"txn": {"appId": name, "version": value, "lastUpdated": self._now_ms}})
        return self._table.commit(self.version, [*actions, *self._actions, *self._data.actions])

    def undo(self) -> None:
        """Remove the files of an attempt that failed or that another commit overtook."""
        self._table.store.delete([*self._data.names, *([self._vectors.name] if len(self._vectors) else [])])

    def result(self, version: int | None) -> Exported:
        """Return what the attempt wrote."""
        return Exported(
            self._topic,
            self._table.store.url,
            version,
            self._added,
            self._removed,
            self._rewritten,
            len(self._data.names),
            self._data.size + len(self._vectors),
            {part.number: part.end for part in self._moment.partitions},
        )


def _created(topic: str, columns: Mapping[str, Any], now_ms: int) -> list[dict[str, Any]]:
    """Return the actions that make a table."""
    return [
        {
            "protocol": {
                "minReaderVersion": 3,
                "minWriterVersion": 7,
                "readerFeatures": _FEATURES,
                "writerFeatures": _FEATURES,
            }
        },
        {
            "metaData": {
                "id": str(uuid.uuid4()),
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps(columns),
                "partitionColumns": [],
                "configuration": {"delta.enableDeletionVectors": "true", TOPIC: topic, LAYOUT: VECTORS},
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
