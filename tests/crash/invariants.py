"""Check the invariants, each under its name; shared by power cuts, kills and faults.

I1   everything acknowledged at the level in question exists
I2   the records are a prefix of the attempts: no hole
I3   offsets rise, a record keeps its own, the log end is never below an acknowledgement
I4   the newest record of every key is that of the oracle
I5   every record was attempted
I6   a tombstone stays for its time; a deleted key does not return
I7   a lookup by index equals a scan; index files equal those of a rebuild from the log
I8   a second recovery changes nothing, a second cleaning changes nothing
I9   kept records keep timestamps and headers, batches their checksums
I10  no temporary file is left after opening
I11  no handle is left open after closing
I12  a reader without a lock sees the log before a swap or after it, never a mix, and what recovery finds
I13  a topic has its settings before a change or after it, whole; a topic that is gone leaves none

`check` opens one image and returns all violations; an image that cannot be opened violates I1.
"""

from __future__ import annotations

import gc
import itertools
import random
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from lastword.clock import Clock
from lastword.config import Settings
from lastword.errors import CorruptBatchError, DataError, LastwordError
from lastword.files import Files
from lastword.logdir import LogDirectory
from lastword.partition import PartitionLog, PartitionView, scan
from lastword.partition.directory_segments import DirectorySegments
from lastword.partition.transactions import control_of
from lastword.records.batch import read_records
from lastword.segment import names
from lastword.segment.recover import inspect
from tests.crash.history import Attempt, Partition
from tests.crash.memory import ROOT, MemoryFiles

NOW = 1_700_000_000_000
MAP_BYTES = 1 << 16
_TEMPORARY = (".cleaned", ".swap", ".deleted", ".tmp")


class Violation(NamedTuple):
    invariant: str
    text: str

    def __str__(self) -> str:
        return f"{self.invariant}: {self.text}"


class Subject(NamedTuple):
    """The settings and the clock with which an image is opened.

    `settings`: None: those in the directory, where each topic must have one of its states in `saved`.
    `again`: the recovered directories that were recovered again without a violation, with these settings and
    this clock; many images recover to the same directory. Each check adds its own.
    """

    settings: Settings | None
    clock: Clock
    kill: bool = False
    thorough: bool = False
    saved: Mapping[str, list[dict[str, Any]]] = {}
    again: set[int] | None = None


def loader(settings: Settings | None, files: Files, root: str = ROOT) -> Settings | Callable[[], Settings]:
    """Return the settings; None: a function that reads those in the directory."""
    return (lambda: Settings.load([root], env={}, files=files)) if settings is None else settings


def check(
    tree: Mapping[str, bytes | None],
    mtimes: Mapping[str, int],
    known: Mapping[str, Partition],
    subject: Subject,
) -> list[Violation]:
    """Open the image as a reader, as a writer, and again; check every result."""
    violations: list[Violation] = []
    try:
        for violation in _check(tree, mtimes, known, subject):
            violations.append(violation)
    except LastwordError as error:
        where = "".join(traceback.format_tb(error.__traceback__)[-3:])
        violations.append(Violation("I1", f"cannot be opened: {type(error).__name__}: {error}\n{where}"))
    return violations


def _check(
    tree: Mapping[str, bytes | None],
    mtimes: Mapping[str, int],
    known: Mapping[str, Partition],
    subject: Subject,
) -> Iterator[Violation]:
    files = MemoryFiles(tree, mtimes)
    seen: dict[str, list[Attempt] | None] = {}
    for name in known:
        if files.is_dir(f"{ROOT}/{name}"):
            seen[name] = yield from _as_reader(files, name, known[name])
    yield from saved_settings(files, subject.saved, opened=False)
    yield from _as_writer(files, known, seen, subject)
    yield from saved_settings(files, subject.saved, opened=True)
    yield from leftovers(files)
    yield from _handles(files)
    first = files.tree()
    if subject.again is None:
        yield from _again(files, first, known, subject)
        return
    rounds = frozenset((name, bool(partition.rounds)) for name, partition in known.items())
    given = frozenset(first.items()), frozenset(files.mtimes().items()), rounds, subject.thorough
    if hash(given) not in subject.again:
        violations = list(_again(files, first, known, subject))
        yield from violations
        if not violations:
            subject.again.add(hash(given))


def _as_writer(
    files: MemoryFiles,
    known: Mapping[str, Partition],
    seen: Mapping[str, list[Attempt] | None],
    subject: Subject,
) -> Iterator[Violation]:
    logs = _open(files, subject)
    there = {str(tp) for tp in logs.topic_partitions()}
    for name, partition in known.items():
        if name in there:
            log = logs.log(*_split(name))
            records = yield from judge(log, partition, kill=subject.kill)
            yield from _clean_as_said(name, records, logs.first_dirty(*_split(name)))
            if seen.get(name) is not None and [r.offset for r in records] != [
                r.offset for r in seen[name] or () if r.offset < log.log_end and r.offset >= log.log_start
            ]:
                yield Violation("I12", f"{name}: a reader saw other records than recovery found")
        elif partition.gone:
            continue
        elif partition.os if subject.kill else partition.disk:
            yield Violation("I1", f"{name} is gone with what was acknowledged in it")
        elif partition.made:
            yield Violation("I1", f"{name} is gone, its creation was acknowledged")
    logs.abandon()


def _clean_as_said(name: str, records: list[Attempt], first_dirty: int | None) -> Iterator[Violation]:
    """I8: below the cleaner's checkpoint there is nothing left to clean."""
    newest: dict[bytes | None, int] = {}
    for record in records:
        if first_dirty is not None and record.offset < first_dirty:
            if record.key in newest:
                yield Violation(
                    "I8",
                    f"{name}: {record.key!r} is there at {newest[record.key]} and {record.offset}, "
                    f"and is said to be clean up to {first_dirty}",
                )
                return
            newest[record.key] = record.offset


def _open(files: Files, subject: Subject, root: str = ROOT) -> LogDirectory:
    settings = loader(subject.settings, files, root)
    return LogDirectory.open(root, "a", files, subject.clock, settings, rng=random.Random(7))


def saved_settings(
    files: MemoryFiles, saved: Mapping[str, list[dict[str, Any]]], *, opened: bool
) -> Iterator[Violation]:
    """I13. `opened`: the directory was opened to append, so a topic that is gone has left nothing."""
    settings = Settings.load([ROOT], env={}, files=files) if saved else None
    for topic, states in saved.items():
        assert settings is not None
        config = settings.topic(topic)
        if files.is_dir(f"{ROOT}/{topic}-0") or files.is_dir(f"{ROOT}/{topic}-1"):
            values = {name: getattr(config, name) for name in states[-1]}
            if config.unread is not None or values not in states:
                yield Violation(
                    "I13", f"{topic} has {config.unread or values}, and should have one of {states}"
                )
        elif opened and any(settings.is_set(name, topic) for name in states[-1]):
            yield Violation("I13", f"{topic} is gone and has left {config} to the next topic of its name")


def _split(name: str) -> tuple[str, int]:
    topic, _, partition = name.rpartition("-")
    return topic, int(partition)


def _as_reader(files: MemoryFiles, name: str, known: Partition) -> Iterator[Violation]:
    """Read as a process without a lock, before any repair; return None at a hole."""
    records: list[Attempt] = []
    hole: DataError | None = None
    try:
        _read(PartitionView.load(DirectorySegments(files, f"{ROOT}/{name}")), [], records)
    except DataError as error:
        # Unsynced bytes may be missing before other bytes that exist: damage that the reader reports.
        hole = error
    yield from offsets_rise(name, records)
    if hole is None:
        return records
    newest = max((record.offset for record in records), default=-1)
    behind = [offset for offset in known.disk if offset > newest]
    if behind and not known.rounds:
        yield Violation("I1", f"{name}: a reader cannot read offset {behind[0]}: {hole}")
    return None


# ---------------------------------------------------------------- one open log


def _read(
    log: PartitionLog | PartitionView, damage: list[Violation], collected: list[Attempt] | None = None
) -> list[Attempt]:
    records: list[Attempt] = [] if collected is None else collected
    try:
        for segment, header, data in log.batches(log.log_start):
            if header.control:
                continue
            records += [
                Attempt(r.offset, r.timestamp, r.key, r.value, tuple(r.headers), header.producer_id)
                for r in read_records(data, header, segment.file, position=0)
                if r.offset >= log.log_start
            ]
    except CorruptBatchError as error:
        if error.code != "bad-crc":
            raise
        damage.append(Violation("I9", str(error)))
    return records


def judge(log: PartitionLog, known: Partition, *, kill: bool) -> Iterator[Violation]:
    """Check one recovered log in every way; return its records."""
    damage: list[Violation] = []
    records = _read(log, damage)
    yield from damage
    yield from offsets_rise(log.name, records)
    yield from contents(log, records, known, kill=kill)
    if not damage:  # else the calls below may raise
        yield from lookups(log)
        yield from index_files(log)
        yield from transactions(log)
    return records


def offsets_rise(name: str, records: list[Attempt]) -> Iterator[Violation]:
    for record, following in itertools.pairwise(records):
        if following.offset <= record.offset:
            yield Violation("I3", f"{name}: offset {following.offset} follows {record.offset}")
            return


def contents(
    log: PartitionLog, records: list[Attempt], known: Partition, *, kill: bool
) -> Iterator[Violation]:
    """I1 to I6, I9 and I12: compare the records with those attempted and acknowledged."""
    name = log.name
    line = _line(records, known)
    here = {record.offset: record for record in records}
    yield from _nothing_else(name, records, line)
    if log.log_end > known.end:
        yield Violation("I5", f"{name}: the log ends at {log.log_end}, only {known.end} were attempted")
    acked = known.os if kill else known.disk
    if acked and log.log_end <= max(acked):
        yield Violation("I3", f"{name}: the log ends at {log.log_end}, below the acknowledged {max(acked)}")
    if log.log_start not in known.starts and log.log_start not in _bases(log):
        yield Violation("I5", f"{name}: no call moved the log start to {log.log_start}")
    if log.log_start < known.least_start:
        yield Violation("I5", f"{name}: what was deleted below {known.least_start} is back")
    newest = {r.key: r.offset for r in records if r.key is not None}
    rounds = bool(known.rounds)
    for offset, record in line.items():
        if offset in here or offset >= max(log.log_end, max(acked, default=-1) + 1):
            continue
        if offset < log.log_start and offset < max(known.starts):
            continue
        if _may_be_gone(record, known, newest, line, log.log_end, rounds):
            continue
        if offset in acked:
            yield Violation("I1", f"{name}: offset {offset} was acknowledged and is gone")
        elif offset < log.log_end:
            yield Violation("I2", f"{name}: offset {offset} is missing before the log end {log.log_end}")
    yield from _newest_values(log, here, line, known)
    yield from _old_or_new(log, here, line, known)


def _bases(log: PartitionLog) -> set[int]:
    return {segment.base_offset for segment in log.segments}


def _line(records: list[Attempt], known: Partition) -> dict[int, Attempt]:
    """Return the lineage of these records: the newest that has all of them, otherwise the newest."""
    for line in reversed(known.lineages):
        if all(line.get(record.offset) == record for record in records):
            return line
    return known.lineages[-1]


def _nothing_else(name: str, records: list[Attempt], line: Mapping[int, Attempt]) -> Iterator[Violation]:
    for record in records:
        attempted = line.get(record.offset)
        if attempted == record:
            continue
        if attempted is not None and attempted[2:4] == record[2:4]:
            yield Violation("I9", f"{name}: {attempted} was appended, {record} is there")
        elif any(appended[1:] == record[1:] for appended in line.values()):
            yield Violation("I3", f"{name}: {record} was appended under another offset")
        else:
            yield Violation("I5", f"{name}: {record} was never attempted")


def _may_be_gone(
    record: Attempt,
    known: Partition,
    newest: Mapping[bytes, int],
    line: Mapping[int, Attempt],
    log_end: int,
    rounds: bool,
) -> bool:
    """Return whether a cleaning may have removed a record.

    It may remove a record that a newer record of its key superseded, a tombstone whose time has come, and the
    records that such a tombstone superseded.
    """
    if not rounds or record.key is None:
        return False
    if record.offset in known.aborted:
        return True
    if newest.get(record.key, -1) > record.offset:
        return True
    if record.tombstone and known.due(record):
        return True
    return any(
        later.tombstone and later.key == record.key and known.due(later)
        for offset, later in line.items()
        if record.offset < offset < log_end
    )


def _newest_values(
    log: PartitionLog, here: Mapping[int, Attempt], line: Mapping[int, Attempt], known: Partition
) -> Iterator[Violation]:
    newest = {
        r.key: r
        for o, r in sorted(line.items())
        if log.log_start <= o < log.log_end and r.key is not None and o not in known.aborted
    }
    left = {r.key: r for r in here.values() if r.key is not None}
    for key, record in newest.items():
        if record.offset in here:
            continue
        if not record.tombstone:
            yield Violation("I4", f"{log.name}: {key!r} was last {record}, the log has {left.get(key)}")
        elif not known.due(record):
            yield Violation("I6", f"{log.name}: the tombstone at {record.offset} went before its time")
        elif key in left:
            yield Violation("I6", f"{log.name}: {key!r} was deleted at {record.offset}, {left[key]} is back")


def _old_or_new(
    log: PartitionLog, here: Mapping[int, Attempt], line: Mapping[int, Attempt], known: Partition
) -> Iterator[Violation]:
    """Check that missing records were removed by whole swaps."""
    span = range(log.log_start, log.log_end)
    missing = {offset for offset in line if offset in span and offset not in here}
    states = [{o for o in state if o in span} for state in known.removed]
    if missing not in states:
        yield Violation("I12", f"{log.name}: {sorted(missing)} are missing: no state between two swaps")


def transactions(log: PartitionLog) -> Iterator[Violation]:
    """I5, I2: a committed read returns every committed record and no aborted record.

    The read ends where the first open transaction begins. It is compared with a walk over data and markers.
    """
    opened: dict[int, int] = {}
    waiting: dict[int, set[int]] = {}
    shown: set[int] = set()
    for segment, header, data in log.batches(log.log_start):
        if header.control:
            marker = control_of(data, header, segment.file, position=0)
            if marker is not None and marker.type == "commit":
                shown |= waiting.get(header.producer_id, set())
            waiting.pop(header.producer_id, None)
            opened.pop(header.producer_id, None)
            continue
        offsets = {r.offset for r in read_records(data, header, segment.file, position=0)}
        if header.transactional:
            opened.setdefault(header.producer_id, header.base_offset)
            waiting.setdefault(header.producer_id, set()).update(offsets)
        else:
            shown |= offsets
    end = min(opened.values(), default=log.log_end)
    if log.stable_offset != end:
        yield Violation("I7", f"{log.name}: the stable offset is {log.stable_offset}, a walk finds {end}")
        return
    if any(header.transactional for segment in log.segments for header in segment.headers()):
        wanted = {o for o in shown if log.log_start <= o < end}
        read = {r.offset for r in scan.records(log.view(), log.log_start, end, plain=True)}
        if read - wanted:
            yield Violation("I5", f"{log.name}: aborted records are shown: {sorted(read - wanted)}")
        if wanted - read:
            yield Violation("I2", f"{log.name}: committed records are hidden: {sorted(wanted - read)}")


def lookups(log: PartitionLog | PartitionView) -> Iterator[Violation]:
    """I7: lookups by offset and by timestamp equal a scan."""
    for segment in log.segments:
        headers = list(segment.headers())
        if not headers:
            continue
        wanted = sorted({o for h in headers for o in (h.base_offset, h.last_offset, h.last_offset + 1)})
        for offset in wanted:
            walked = next((h.position for h in headers if h.last_offset >= offset), segment.size)
            if segment.position_of(offset) != walked:
                yield Violation("I7", f"{segment.file}: offset {offset} is looked up at a wrong position")
        for timestamp in sorted({t for h in headers for t in (h.max_timestamp, h.max_timestamp + 1)}):
            if timestamp < 0:
                continue
            at = next((h.position for h in headers if h.max_timestamp >= timestamp), None)
            if segment.position_of_timestamp(timestamp) != at:
                yield Violation("I7", f"{segment.file}: time {timestamp} is looked up at a wrong position")


def index_files(log: PartitionLog) -> Iterator[Violation]:
    """I7: index files equal a rebuild, bit for bit."""
    for segment in log.segments:
        built = inspect(
            log.files,
            log.directory,
            segment.base_offset,
            index_interval_bytes=log.config.index_interval_bytes,
            active=segment.active,
        )
        for extension, entries in (
            (names.INDEX, built.offset_entries),
            (names.TIME_INDEX, built.time_entries),
        ):
            path = segment.stored.path(extension)
            if not log.files.exists(path) or log.files.read_bytes(path) != entries:
                yield Violation("I7", f"{path} is not what a rebuild makes")


# ---------------------------------------------------------------- the directory around it


def leftovers(files: MemoryFiles) -> Iterator[Violation]:
    for path in files.tree():
        name = path.rpartition("/")[2]
        if name.endswith(_TEMPORARY) or name.startswith("rewrite-") or "-delete" in name:
            yield Violation("I10", f"{path} is left after opening")


def _handles(files: MemoryFiles) -> Iterator[Violation]:
    for generation in (1, 2):  # young garbage first: a full collection takes longer than the whole check
        if files.open_handles:
            gc.collect(generation)
    if files.open_handles:
        yield Violation("I11", f"open after closing: {sorted(files.open_handles.values())}")


def _again(
    files: MemoryFiles,
    first: Mapping[str, bytes | None],
    known: Mapping[str, Partition],
    subject: Subject,
) -> Iterator[Violation]:
    """Recover again; continue; clean until nothing changes."""
    logs = _open(files, subject)
    there = [str(tp) for tp in logs.topic_partitions() if str(tp) in known]
    opened = {name: logs.log(*_split(name)) for name in there}
    second = files.tree()
    for path in sorted(set(first) | set(second)):
        if first.get(path, b"") != second.get(path, b""):
            yield Violation("I8", f"{path} changed when it was recovered again")
    if logs.recovery.repaired:
        yield Violation("I8", f"repaired again: {logs.recovery.repaired}")
    if not subject.thorough:
        logs.abandon()
        return
    from tests.crash.scenarios import one_batch

    for name, log in opened.items():
        before = log.log_end
        batch = one_batch(before, [(b"after", b"the crash")], timestamp=NOW + 10**9)
        log.append_batch(batch)
        damage: list[Violation] = []
        after = _read(log, damage)
        yield from damage
        if log.log_end != before + 1 or not after or after[-1].value != b"the crash":
            yield Violation("I3", f"{name}: an append after the recovery is not at {before}")
        if known[name].rounds:
            yield from _clean_twice(log)
    logs.abandon()


def _clean_twice(log: PartitionLog) -> Iterator[Violation]:
    from tests.support.cleaning import clean

    first_dirty: list[int] = []

    def clean_on() -> object:
        return clean(
            log,
            log.config,
            first_dirty=first_dirty[-1] if first_dirty else None,
            record_first_dirty=first_dirty.append,
            salt=b"0123456789abcdef",
            map_bytes=MAP_BYTES,
        )

    before = _state(log)
    for _ in range(3):
        if clean_on() is None:
            break
    if _state(log) != before:
        yield Violation("I4", f"{log.name}: a cleaning after the crash changed the state")
    logs = {s.file: log.files.read_bytes(s.file) for s in log.segments[:-1]}
    clean_on()
    for file, data in logs.items():
        if not log.files.exists(file) or log.files.read_bytes(file) != data:
            yield Violation("I8", f"{file} changed when it was cleaned once more")


def _state(log: PartitionLog) -> dict[bytes | None, bytes]:
    """Return the result of a committed read of the whole log."""
    state: dict[bytes | None, bytes] = {}
    for record in scan.records(log.view(), log.log_start, log.stable_offset, plain=True):
        if record.value is None:
            state.pop(record.key, None)
        else:
            state[record.key] = record.value
    return state
