"""Run histories of a log in a bucket: processes that change and read it, with faults, judged at every swap.

    python -m tests.bucket.histories --histories 1000000 --jobs 2

A history is determined by its seed: which processes there are, which of them sends the next request, and
which requests fail, before or after their effect. The processes change small files that are named as those of
a real log (segments, checkpoints, leases, names of batches), so that the commit protocol has every kind of
conflict, and a history takes milliseconds. The judge checks each version when it is swapped in, and each
removal of an object when it takes effect. The command exits with 1 if a rule is violated, and prints the
command that repeats the history:

    python -m tests.bucket.histories --seed 4711
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import multiprocessing
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

from lastword.bucket import commit
from lastword.bucket.collect import collect
from lastword.bucket.commit import Bucket, KeptCopy
from lastword.bucket.files import BucketFiles, Numbers
from lastword.bucket.manifest import (
    MANIFEST,
    Entry,
    Layer,
    Manifest,
    ManifestVersion,
    Patch,
    Servers,
)
from lastword.bucket.merge import ChangedMeanwhile
from lastword.bucket.reading import ObjectReads
from lastword.bucket.scratch import LocalFile, ScratchSpace
from lastword.bucket.servers import ServerSession
from lastword.bucket.tenure import Role
from lastword.errors import (
    BusyError,
    FileVanishedError,
    LastwordError,
    ServerFencedError,
    TruncatedObjectError,
    UncertainCommitError,
    UncertainRequestError,
    UploadsGoneError,
)
from lastword.files import FileFacts, Handle
from lastword.keys import manifest as saved
from lastword.keys.run import (
    PLAIN,
    SALT_BYTES,
    Memory,
    Run,
    RunWriter,
    digest_function,
    entry_of,
    home_blocks,
)
from lastword.partition import cut, removal_log
from lastword.partition.directory_segments import topic_facts
from lastword.partition.segment_store import SegmentSet
from lastword.segment import names
from lastword.segment.stored import SegmentId
from tests.bucket.turns import Process, Turns, patched
from tests.fakes import objects
from tests.fakes.manifests import in_memory
from tests.fakes.objects import POSSIBLE, FakeStore, Fault, Request, Stopped, Weakness
from tests.support.cpu import seldom_collected

ROOT = "s3://double"
TOPIC = "t"
PARTITIONS = 2
KEYS = 4
HOUR_MS = 3_600_000
SESSION_MS, HEARTBEAT_MS = 9_000, 2_000
RETENTIONS_MS = (0, 20_000, HOUR_MS // 2)
PER_TASK = 500
CODEC_EVERY = 16
"""One history of this number encodes and decodes each manifest."""
CLOCK_ERROR_MS = 1000
"""A store may round its times down to a second, so a retention may end this much too early."""


class Violation(AssertionError):
    """A rule does not hold. `rule` is its short name."""

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(f"{rule}: {text}")
        self.rule = rule


# ---------------------------------------------------------------- uploads without threads


class _Inline:
    """An executor that runs each task in the calling thread: the turns stay those of the seed."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __enter__(self) -> _Inline:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def submit(self, task: Callable[[], None]) -> _Inline:
        task()
        return self

    def result(self) -> None:
        pass


# ---------------------------------------------------------------- the log: records in small text files


class Record(NamedTuple):
    offset: int
    key: int
    id: int
    tombstone: int


def encoded(records: Sequence[Record]) -> bytes:
    return b"".join(b"%06d %d %d %d\n" % record for record in records)


@lru_cache(maxsize=4096)
def decoded(data: bytes) -> tuple[Record, ...]:
    return tuple(Record(*map(int, line.split())) for line in data.splitlines())


def log_name(offset: int) -> str:
    return f"{offset:020d}.log"


def directory_of(partition: int) -> str:
    return f"{TOPIC}-{partition}"


def read(files: BucketFiles, path: str) -> bytes:
    return files.read_bytes(f"{ROOT}/{path}")


def logs_of(files: BucketFiles, directory: str) -> list[int]:
    """Return the base offsets of the segments, ascending."""
    return [int(name[:20]) for name in files.listdir(f"{ROOT}/{directory}") if name.endswith(names.LOG)]


def create(files: BucketFiles, path: str, data: bytes) -> None:
    with files.open_append(f"{ROOT}/{path}", create=True) as handle:
        if data:
            handle.append(data)


def adopt(files: BucketFiles, path: str, entry: Entry, rows: Sequence[Record]) -> None:
    """Add an uploaded segment, and replace the offsets of its records."""
    files.adopt({path: entry})
    with files.open_append(f"{ROOT}/{path}") as handle:
        position = 0
        for row in rows:
            handle.pwrite(b"%06d" % row.offset, position)
            position += len(encoded([row]))


@lru_cache(maxsize=4096)
def lines(data: bytes) -> Mapping[int, int]:
    """Return the offsets of a checkpoint by partition."""
    return {int(p): int(offset) for _, p, offset in (line.split() for line in data.splitlines()[2:])}


def set_line(files: BucketFiles, name: str, partition: int, offset: int | None) -> None:
    before = lines(read(files, name)) if files.stat(f"{ROOT}/{name}") is not None else {}
    if before.get(partition) == offset:
        return
    after = {**before, partition: offset}
    rows = [f"{TOPIC} {p} {o}\n" for p, o in sorted(after.items()) if o is not None]
    files.write_atomic(f"{ROOT}/{name}", f"0\n{len(rows)}\n{''.join(rows)}".encode())


def private(files: BucketFiles, directory: str, name: str, data: bytes | None) -> None:
    """Write or remove a file in the private directory of a partition."""
    folder = f"{ROOT}/{directory}/{names.PRIVATE}"
    if data is None:
        files.unlink(f"{folder}/{name}", missing_ok=True)
        return
    if not files.is_dir(folder):
        files.mkdir(folder)
    files.write_atomic(f"{folder}/{name}", data)


def producers_of(files: BucketFiles, directory: str) -> dict[str, int]:
    path = f"{directory}/{names.PRIVATE}/{names.PRODUCERS}"
    if files.stat(f"{ROOT}/{path}") is None:
        return {}
    rows = (line.split() for line in read(files, path).decode().splitlines())
    return {name: int(offset) for name, offset in rows}


Active = dict[int, tuple[int, Handle]]
"""Active segments that stay open from one transaction to the next: log end and handle by partition."""


@dataclass
class Batch:
    """Records that are appended together, to one partition or to both, in one transaction.

    Attributes:
        name: Under this name the batch may be sent again; "": it has none.
        records: Key, id and kind by partition.
        outcome: "open", "refused", "uncertain" or "acknowledged".
        session: The session of the server that appends it; "": no server does.
        placed: Incarnation and first offset by partition, of an acknowledged batch.
    """

    name: str
    records: dict[int, list[tuple[int, int, int]]]
    outcome: str = "open"
    placed: dict[int, tuple[bytes, int]] = field(default_factory=dict)
    session: str = ""

    def append(
        self,
        files: BucketFiles,
        world: World,
        uploaded: Mapping[int, Entry] | None = None,
        active: Active | None = None,
    ) -> dict[int, tuple[bytes, int]]:
        """Append the batch, as a transaction does.

        `uploaded`: the records, which have no offsets yet. `active`: the active segments that stay open.
        """
        placed = {}
        for partition, records in self.records.items():
            directory = directory_of(partition)
            if not files.is_dir(f"{ROOT}/{directory}"):
                files.mkdir(f"{ROOT}/{directory}")
                create(files, f"{directory}/{names.PARTITION_METADATA}", b"%d" % world.number())
                create(files, f"{directory}/{log_name(0)}", b"")
            incarnation = read(files, f"{directory}/{names.PARTITION_METADATA}")
            known = producers_of(files, directory) if self.name else {}
            if self.name in known:
                placed[partition] = (incarnation, known[self.name])
                continue
            end, handle = active.pop(partition, (-1, None)) if active is not None else (-1, None)
            if handle is None:
                end = logs_of(files, directory)[-1]
            rows = [Record(end + i, *record) for i, record in enumerate(records)]
            if handle is not None:
                with handle:
                    handle.append(encoded(rows))
            elif uploaded is None:
                create(files, f"{directory}/{log_name(end)}", encoded(rows))
            else:
                adopt(files, f"{directory}/{log_name(end)}", uploaded[partition], rows)
            create(files, f"{directory}/{log_name(end + len(rows))}", b"")
            if active is not None:
                handle = files.open_append(f"{ROOT}/{directory}/{log_name(end + len(rows))}")
                active[partition] = end + len(rows), handle
            if self.name:
                text = "".join(f"{n} {o}\n" for n, o in {**known, self.name: end}.items())
                private(files, directory, names.PRODUCERS, text.encode())
            if end % 3 == 0:
                private(files, directory, names.ACCOUNTS, b"appended to %d" % end)
            set_line(files, names.RECOVERY_POINTS, partition, end + len(rows))
            placed[partition] = (incarnation, end)
        return placed


def clean(files: BucketFiles, partition: int, upto: float, drop_tombstones: bool) -> bool:
    """Clean the older segments of a partition into one. Returns whether it changed the log."""
    directory = directory_of(partition)
    if not files.is_dir(f"{ROOT}/{directory}"):
        return False
    bases = logs_of(files, directory)
    closed = bases[:-1]
    if not closed:
        return False
    contents = {base: decoded(read(files, f"{directory}/{log_name(base)}")) for base in closed}
    newest = {record.key: record for base in closed for record in contents[base]}
    floor = min((int(data) for data in leases_of(files, directory).values()), default=sys.maxsize)
    group = closed[: max(1, round(upto * len(closed)))]
    before = [record for base in group for record in contents[base]]
    kept = [
        record
        for record in before
        if newest[record.key] is record
        and not (drop_tombstones and record.tombstone and record.offset < floor)
    ]
    if len(group) == 1 and kept == before:
        return False
    path = f"{directory}/{log_name(group[0])}"
    create(files, path + names.CLEANED, encoded(kept))
    files.rename(f"{ROOT}/{path}{names.CLEANED}", f"{ROOT}/{path}{names.SWAP}")
    for base in group:
        files.unlink(f"{ROOT}/{directory}/{log_name(base)}")
    files.rename(f"{ROOT}/{path}{names.SWAP}", f"{ROOT}/{path}")
    private(files, directory, names.ACCOUNTS, b"cleaned to %d" % bases[-1])
    if len(group) == len(closed):
        set_line(files, names.FIRST_DIRTY, partition, bases[-1])
    return True


def leases_of(files: BucketFiles, directory: str) -> dict[str, bytes]:
    folder = f"{directory}/{names.PRIVATE}"
    if not files.is_dir(f"{ROOT}/{folder}"):
        return {}
    leases = [name for name in files.listdir(f"{ROOT}/{folder}") if name.startswith(names.LEASE)]
    return {name: read(files, f"{folder}/{name}") for name in leases if not name.endswith(".tmp")}


def trim(files: BucketFiles, partition: int, share: float) -> bool:
    """Raise the log start and remove the segments below it."""
    directory = directory_of(partition)
    if not files.is_dir(f"{ROOT}/{directory}"):
        return False
    bases = logs_of(files, directory)
    start = bases[round(share * (len(bases) - 1))]
    for base in bases:
        if base < start:
            files.unlink(f"{ROOT}/{directory}/{log_name(base)}")
    set_line(files, names.LOG_STARTS, partition, start)
    return True


def take_lease(files: BucketFiles, partition: int, share: float) -> bool:
    """Write a lease at an offset of the log; return whether there is a log."""
    directory = directory_of(partition)
    if not files.is_dir(f"{ROOT}/{directory}"):
        return False
    position = round(share * logs_of(files, directory)[-1])
    private(files, directory, f"{names.LEASE}x", b"%d" % position)
    return True


def release_lease(files: BucketFiles, partition: int) -> None:
    directory = directory_of(partition)
    if files.is_dir(f"{ROOT}/{directory}"):
        private(files, directory, f"{names.LEASE}x", None)


def drop(files: BucketFiles, partition: int) -> None:
    """Remove a partition with its lines."""
    path = f"{ROOT}/{directory_of(partition)}"
    if files.is_dir(path):
        files.remove_tree(path)
    for name in (names.RECOVERY_POINTS, names.LOG_STARTS, names.FIRST_DIRTY):
        set_line(files, name, partition, None)


def setting(files: BucketFiles, topic: str) -> int:
    """Return the number in the settings of a topic."""
    path = f"{ROOT}/lastword.topic-{topic}.toml"
    return int(files.read_bytes(path)) if files.exists(path) else 0


def count_up(files: BucketFiles, topic: str) -> int:
    """Add one to the number in the settings of a topic, and return it."""
    number = setting(files, topic) + 1
    files.write_atomic(f"{ROOT}/lastword.topic-{topic}.toml", b"%d" % number)
    return number


# ---------------------------------------------------------------- the saved key index


class _Segment(NamedTuple):
    base_offset: int
    id: SegmentId

    @property
    def size(self) -> int:
        return self.id.size


class View:
    """What a key index uses of a partition's view, over the text files."""

    def __init__(self, files: BucketFiles, partition: int) -> None:
        self.files, self.topic, self.partition = files, TOPIC, partition
        self.directory = f"{ROOT}/{directory_of(partition)}"
        self.topic_facts: FileFacts | None = topic_facts(files, self.directory)
        bases = logs_of(files, directory_of(partition))
        facts = [files.stat(f"{self.directory}/{log_name(base)}") for base in bases]
        listed = zip(bases, facts, strict=True)
        self.segments = [_Segment(base, SegmentId(f.inode, f.size)) for base, f in listed if f is not None]
        self.segment_set = SegmentSet(self.segments)  # type: ignore[arg-type]
        self.stable_offset = self.log_end = bases[-1]

    def records(self, start: int = 0) -> list[Record]:
        """Return the records of the segments from an offset on."""
        data = [
            self.files.read_bytes(f"{self.directory}/{log_name(segment.base_offset)}")
            for segment in self.segments
            if segment.base_offset >= start
        ]
        return [record for part in data for record in decoded(part)]

    def index(self) -> tuple[int, list[Run], Callable[[bytes], bytes]]:
        """Return end, runs and digest of the saved index that fits; 0 and no run: there is none."""
        found = saved.load(self.files, self.directory)
        if found is None or not found.fits(self):  # type: ignore[arg-type]
            return 0, [], digest_function(bytes(SALT_BYTES))
        runs = saved.open_runs(self.files, self.directory, found)
        return found.end, runs, digest_function(found.salt)

    def get(self, start: int, world: World) -> dict[int, Record]:
        """Return the newest record of each key from the log start on, by the index and what is above it."""
        end, runs, digest = self.index()
        world.counts["gets by an index"] += bool(runs)
        world.counts["gets above an index"] += 0 < end < self.log_end
        newest = {record.key: record for record in self.records(end)}
        for key in range(KEYS):
            words = (run.find(digest(b"%d" % key)) for run in runs)
            word = next((word for word in words if word is not None), None)
            if key not in newest and word is not None and word >> 1 >= start:
                newest[key] = Record(word >> 1, key, -1, word & 1)
        return {key: record for key, record in newest.items() if not record.tombstone}


def save_keys(files: BucketFiles, partition: int, rng: random.Random) -> None:
    """Save a key index of the whole log, unless one is there that fits, as a cleaning does."""
    if not files.is_dir(f"{ROOT}/{directory_of(partition)}"):
        return
    view = View(files, partition)
    if not view.log_end or view.index()[0] == view.log_end:
        return
    salt = rng.randbytes(SALT_BYTES)
    newest = {record.key: record for record in view.records()}
    entries = {
        digest_function(salt)(b"%d" % key): row.offset << 1 | row.tombstone for key, row in newest.items()
    }
    memory = Memory()
    writer = RunWriter(memory, home_blocks(len(entries)), salt, rng.getrandbits(32), PLAIN)
    writer.put_sorted(sorted(entry_of(digest, word) for digest, word in entries.items()))
    writer.finish(0, view.log_end)
    path = saved.path_of(view.directory, f"{names.KEY_RUN}{rng.getrandbits(64):016x}")
    private(files, directory_of(partition), path.rpartition("/")[2], bytes(memory.data))
    run = Run(memory, len(memory.data), salt, path)
    cuts = removal_log.load(files, view.directory).cut_count
    index = saved.Manifest.of(view, cuts, salt, [run])  # type: ignore[arg-type]
    if index is not None:
        saved.save(files, view.directory, index)
        saved.remove_others(files, view.directory, [name for name, _ in index.runs])


def cut_end(files: BucketFiles, partition: int, share: float) -> bool:
    """Take the segments from an offset on away, and begin an empty one there; return whether it did."""
    directory = directory_of(partition)
    if not files.is_dir(f"{ROOT}/{directory}"):
        return False
    bases = logs_of(files, directory)
    base = bases[round(share * (len(bases) - 1))]
    if base == bases[-1]:
        return False
    removal_log.note_cut(files, f"{ROOT}/{directory}", base)
    cut.forget_accounts(files, f"{ROOT}/{directory}")
    for gone in bases:
        if gone >= base:
            files.unlink(f"{ROOT}/{directory}/{log_name(gone)}")
    create(files, f"{directory}/{log_name(base)}", b"")
    for name in (names.RECOVERY_POINTS, names.LOG_STARTS, names.FIRST_DIRTY):
        known = lines(read(files, name)).get(partition) if files.exists(f"{ROOT}/{name}") else None
        if known is not None:
            set_line(files, name, partition, min(known, base))
    return True


# ---------------------------------------------------------------- the judge


class RootFiles(NamedTuple):
    """The objects of the files in the root of one version, and the offsets of the checkpoints there."""

    named: set[str]
    starts: Mapping[int, int]
    ends: Mapping[int, int]
    firsts_dirty: Mapping[int, int]


class PartitionFiles(NamedTuple):
    """The files of a partition in one version, those of its private directory, and the objects of both."""

    children: Mapping[str, Entry | None]
    hidden: Mapping[str, Entry | None]
    named: set[str]


@dataclass
class PartitionState:
    """A partition in one version."""

    files: PartitionFiles
    incarnation: bytes
    logs: dict[int, tuple[Record, ...]]
    end: int
    leases: dict[str, int]
    records: list[Record]
    newest: dict[int, Record]


@dataclass
class Version:
    """One version of the log, with what the judge derived from it."""

    manifest: Manifest
    snapshot: ManifestVersion
    named: set[str]
    root: RootFiles
    files: list[PartitionFiles]
    partitions: dict[int, PartitionState] = field(default_factory=dict)
    superseded_ms: int | None = None  # None: it is the newest


class Judge:
    """Checks each version when it is swapped in, and each removal of an object when it takes effect."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.versions: list[Version] = []
        self.by_nonce: dict[str, Version] = {}
        self.ever: dict[tuple[int, bytes], dict[int, int]] = {}
        """Id of the record at each offset, of every partition and incarnation."""
        self.homes: dict[int, tuple[int, bytes, int]] = {}
        """Newest partition, incarnation and offset of each record's id."""
        self.appearances: dict[int, int] = {}
        """Number of the version in which each record came in."""
        self.unnamed_ms: dict[str, int] = {}
        self.pinned: dict[str, tuple[set[str], int]] = {}
        self.settings: dict[str, set[int]] = {"a": set(), "b": set()}
        """The acknowledged numbers in the settings of two topics."""
        self.dropped = False  # a process asked for the removal of a partition
        self.released = False  # a process asked for the release of a lease
        self.cuts = False  # a process asked for a cut
        self.cut: set[tuple[int, bytes]] = set()
        """The partitions and incarnations that were cut."""
        self._layers: dict[str, Layer] = {}
        self._segments: dict[Entry, tuple[Record, ...]] = {}

    def begin_with(self, judge: Judge) -> None:
        """Begin with the last version of another judge, which has checked it."""
        last = replace(judge.versions[-1], superseded_ms=None)
        self.versions.append(last)
        self.by_nonce[last.manifest.nonce] = last
        self.ever.update((incarnation, dict(ids)) for incarnation, ids in judge.ever.items())
        self.homes.update(judge.homes)
        self.appearances.update(dict.fromkeys(judge.appearances, 0))
        self._layers.update(judge._layers)
        self._segments.update(judge._segments)

    # -------------------------------------------------------------- objects

    def _content(self, path: str, entry: Entry) -> bytes:
        if entry.object is None:
            return entry.data
        stored = self.world.objects.get(entry.object)
        if stored is None:
            raise Violation("missing object", f"{path} names {entry.object}, which does not exist")
        data = stored.data[entry.position : entry.position + entry.size]
        if len(data) != entry.size:
            raise Violation("missing object", f"{path} names bytes beyond the end of {entry.object}")
        if entry.patch is not None:
            key, position, size = entry.patch
            patched = bytearray(data)
            Patch.decode(self.world.objects[key].data[position : position + size], key).apply(patched, 0)
            data = bytes(patched)
        return data

    def removed(self, key: str) -> None:
        """Check a removal that takes effect now."""
        if key == MANIFEST:
            return
        now_ms = self.world.clock.now_ms()
        if self.versions and key in self.versions[-1].named:
            raise Violation("missing object", f"{key} was removed, and the newest version names it")
        unnamed_ms = self.unnamed_ms.get(key)
        if unnamed_ms is None:
            return
        self.world.counts["removed objects that had a name"] += 1
        for name, (named, until_ms) in self.pinned.items():
            if now_ms < until_ms and key in named:
                raise Violation("pin", f"{key} was removed, and {name} had pinned a version that names it")
        age_ms = now_ms - unnamed_ms
        if age_ms < self.world.retention_ms - CLOCK_ERROR_MS:
            raise Violation(
                "retention", f"{key} was removed {age_ms} ms after the last version with its name"
            )

    # -------------------------------------------------------------- versions

    def swapped(self, data: bytes) -> None:
        """Check a manifest that was swapped in now."""
        world = self.world
        current = Manifest.decode(data, MANIFEST)
        for page in current.pages:
            if page.object not in self._layers:
                stored = world.objects.get(page.object)
                if stored is None:
                    raise Violation("missing object", f"the manifest names the page {page.object}")
                self._layers[page.object] = commit.decode_page(stored.data, page.object, page)
        snapshot = commit.ManifestVersion(current, tuple(self._layers[page.object] for page in current.pages))
        before = self.versions[-1] if self.versions else None
        changed = None if before is None else _changed(current, before.manifest)
        root = self._root(snapshot) if before is None or changed or changed is None else before.root
        files = [self._files(snapshot, partition, before, changed) for partition in range(PARTITIONS)]
        named = root.named.union(*(each.named for each in files))
        named.update(page.object for page in current.pages)
        if current.condemned is not None:
            named.add(current.condemned)
        new = named if before is None else named - before.named  # `removed` checks the others
        missing = new - world.objects.keys()
        if missing:
            raise Violation("missing object", f"a version names {min(missing)}, which does not exist")
        now_ms = world.clock.now_ms()
        version = Version(current, snapshot, named, root, files)
        self._servers_followed(current.servers, before.manifest.servers if before else Servers())
        for partition in range(PARTITIONS):
            directory = directory_of(partition)
            earlier = before.partitions.get(partition) if before else None
            if not files[partition].children:
                if earlier is not None and not self.dropped:
                    raise Violation("lost partition", f"{directory} is gone")
                continue
            if earlier is not None and earlier.files is files[partition]:
                state = earlier
            else:
                state = self._state(directory, files[partition])
                self._followed(version, partition, state, earlier, before)
            version.partitions[partition] = state
            if root.ends.get(partition) != state.end:
                raise Violation("checkpoint", f"{directory} ends at {state.end}, checkpoint: {root.ends}")
        stale = (root.ends.keys() | root.starts.keys() | root.firsts_dirty.keys()) - version.partitions.keys()
        if stale:
            raise Violation("checkpoint", f"lines of partitions that do not exist: {stale}")
        if before is not None:
            before.superseded_ms = now_ms
            for key in before.named - named:
                self.unnamed_ms[key] = now_ms
        self.versions.append(version)
        self.by_nonce[current.nonce] = version

    def _servers_followed(self, now: Servers, before: Servers) -> None:
        """Check that a server is active in an epoch of its own, and that its commits are counted."""
        if now.epoch == before.epoch:
            if now.session not in (before.session, "") or now.renewals < before.renewals:
                raise Violation("epoch", f"{before} became {now}")
        elif (now.epoch, now.renewals) != (before.epoch + 1, 0) or now.session == before.session:
            raise Violation("epoch", f"{before} became {now}")
        else:
            self.world.counts["takeovers"] += 1
            self.world.counts["takeovers from a session that had not ended"] += bool(before.session)

    def answered(self, session: str) -> None:
        """Check an answer of a server to a client."""
        active = self.versions[-1].manifest.servers.session
        if active != session:
            raise Violation("answer", f"{session} answers, and {active} is the active server")
        self.world.counts["answers"] += 1

    def _lines(self, snapshot: ManifestVersion, name: str) -> Mapping[int, int]:
        entry = snapshot.entry(name)
        return {} if entry is None else lines(self._content(name, entry))

    def _root(self, snapshot: ManifestVersion) -> RootFiles:
        checkpoints = (names.LOG_STARTS, names.RECOVERY_POINTS, names.FIRST_DIRTY)
        named = _named_by(snapshot.children(""))
        return RootFiles(named, *(self._lines(snapshot, name) for name in checkpoints))

    def _files(
        self, snapshot: ManifestVersion, partition: int, before: Version | None, changed: set[str] | None
    ) -> PartitionFiles:
        """Return the files of a partition: the same object as in the version before if they are the same."""
        directory = directory_of(partition)
        if before is not None and changed is not None and directory not in changed:
            return before.files[partition]
        children = snapshot.children(directory)
        hidden = snapshot.children(f"{directory}/{names.PRIVATE}")
        earlier = before.files[partition] if before else None
        if earlier is not None and earlier.children == children and earlier.hidden == hidden:
            return earlier
        return PartitionFiles(children, hidden, _named_by(children) | _named_by(hidden))

    def _state(self, directory: str, files: PartitionFiles) -> PartitionState:
        children = files.children
        metadata = children.get(names.PARTITION_METADATA)
        if metadata is None:
            raise Violation("partial partition", f"{directory} has no {names.PARTITION_METADATA}")
        logs = {}
        for name in sorted(children):
            entry = children[name]
            if entry is None or name == names.PARTITION_METADATA:
                continue
            if not name.endswith(names.LOG):
                raise Violation("left behind", f"{directory}/{name}")
            segment = self._segments.get(entry)
            if segment is None:
                segment = self._segments[entry] = decoded(self._content(f"{directory}/{name}", entry))
                if any(record.offset >= after.offset for record, after in pairwise(segment)):
                    raise Violation("offsets", f"{directory}/{name} has {segment}")
            logs[int(name[:20])] = segment
        records = [record for segment in logs.values() for record in segment]
        bases = sorted(logs)
        if not bases or logs[bases[-1]]:
            raise Violation("log end", f"{directory} has no empty active segment")
        for base, after in pairwise([*bases, sys.maxsize]):
            if segment := logs[base]:
                first, last = segment[0].offset, segment[-1].offset
                if not base <= first <= last < after:
                    raise Violation("offsets", f"{directory}: {segment} in segment {base}")
        leases = {
            name: int(self._content(name, entry))
            for name, entry in files.hidden.items()
            if entry is not None and name.startswith(names.LEASE)
        }
        return PartitionState(
            files,
            self._content(names.PARTITION_METADATA, metadata),
            logs,
            bases[-1],
            leases,
            records,
            {record.key: record for record in records},
        )

    def _followed(
        self,
        version: Version,
        partition: int,
        state: PartitionState,
        earlier: PartitionState | None,
        before: Version | None,
    ) -> None:
        """Check a partition that changed against the version before."""
        directory = directory_of(partition)
        if earlier is not None and earlier.incarnation != state.incarnation:
            if not self.dropped:
                raise Violation("lost partition", f"{directory} was made again")
            earlier = None
        start = version.root.starts.get(partition, 0)
        end = 0
        if earlier is not None and state.end < earlier.end and self.cuts:
            self.cut.add((partition, state.incarnation))
            self.ever[partition, state.incarnation] = {}
            earlier = None
        if earlier is not None:
            assert before is not None
            end = earlier.end
            if state.end < end:
                raise Violation("log end", f"{directory} ended at {end}, now at {state.end}")
            if start < before.root.starts.get(partition, 0):
                raise Violation(
                    "log start", f"{directory}: {before.root.starts} became {version.root.starts}"
                )
            if version.root.firsts_dirty.get(partition, 0) < before.root.firsts_dirty.get(partition, 0):
                raise Violation("checkpoint", f"{directory}: the first dirty offset decreased")
            self._kept(directory, state, earlier, start)
        ever = self.ever.setdefault((partition, state.incarnation), {})
        checked = {} if earlier is None else earlier.logs  # segments whose records are as they were
        for record in [
            record
            for base, segment in state.logs.items()
            if checked.get(base) is not segment
            for record in segment
        ]:
            known = ever.get(record.offset)
            if record.offset < end or known is not None:
                if known != record.id:
                    raise Violation("offsets", f"{directory}: {record} is new below the log end {end}")
                continue
            home = self.homes.get(record.id)
            if home == (partition, state.incarnation, record.offset) and home[:2] in self.cut:
                home = None
            if home is not None and not self._sent_again(record.id, home, partition, state.incarnation):
                raise Violation("twice", f"{directory}: {record} is also at {home}")
            session = self.world.sessions.get(record.id, version.manifest.servers.session)
            if record.id not in self.homes and session != version.manifest.servers.session:
                raise Violation("fence", f"{directory}: {record} of {session} in {version.manifest.servers}")
            ever[record.offset] = record.id
            self.homes[record.id] = (partition, state.incarnation, record.offset)
            self.appearances.setdefault(record.id, len(self.versions))
        is_cut = (partition, state.incarnation) in self.cut
        if not is_cut and any(offset not in ever for offset in range(end, state.end)):
            raise Violation("lost record", f"{directory}: a hole between {end} and {state.end}")

    def _sent_again(
        self, number: int, home: tuple[int, bytes, int], partition: int, incarnation: bytes
    ) -> bool:
        """Return whether a record may come in again: under a name, after its partition was dropped.

        A drop removes the names of batches too. A writer whose answer was lost sends its batch again, into
        the partition that was made after the drop.
        """
        return number in self.world.named and home[0] == partition and home[1] != incarnation

    def _kept(self, directory: str, state: PartitionState, earlier: PartitionState, start: int) -> None:
        floor = min(
            (offset for name, offset in earlier.leases.items() if state.leases.get(name) == offset),
            default=sys.maxsize,
        )
        for name, offset in earlier.leases.items():
            if name not in state.leases and not self.released:
                raise Violation("lost lease", f"{directory}: {name} at {offset}")
        for key, record in earlier.newest.items():
            now = state.newest.get(key)
            if now is not None and now.offset >= record.offset:
                continue
            if now is not None:
                raise Violation("lost record", f"{directory}: {now} is newest again, after {record}")
            if record.offset < start:
                continue
            if not record.tombstone:
                raise Violation("lost record", f"{directory}: {record} was newest, and is gone")
            if record.offset >= floor:
                raise Violation("lease", f"{directory}: the tombstone {record} is gone, lease at {floor}")

    def finish(self, batches: Sequence[Batch]) -> None:
        """Check the outcome of every append against the versions that were."""
        if self.versions and self.versions[-1].named != self.versions[-1].snapshot.objects():
            raise Violation("objects", f"{sorted(self.versions[-1].named)} are those of the last version")
        for batch in batches:
            ids = {p: [record[1] for record in records] for p, records in batch.records.items()}
            all_ids = [number for numbers in ids.values() for number in numbers]
            present = [number for number in all_ids if number in self.homes]
            if present and len(present) != len(all_ids):
                raise Violation("partial commit", f"{batch}: only {present} came in")
            if len({self.appearances[number] for number in present}) > 1:
                raise Violation("partial commit", f"{batch} came in by more than one swap")
            if batch.outcome in ("open", "refused") and present:
                raise Violation("refused record", f"{batch}: {present} came in")
            if batch.outcome != "acknowledged":
                self.world.counts[f"{batch.outcome} append, {'in' if present else 'not in'} the log"] += 1
                continue
            for partition, (incarnation, first) in batch.placed.items():
                if (partition, incarnation) in self.cut:
                    continue
                ever = self.ever.get((partition, incarnation), {})
                for offset, number in enumerate(ids[partition], first):
                    if ever.get(offset) != number:
                        raise Violation(
                            "lost record", f"{batch}: {number} was acknowledged at {offset}: {ever}"
                        )


def _changed(current: Manifest, before: Manifest) -> set[str] | None:
    """Return the names in the root of all that two versions differ in; None: perhaps in everything."""
    if current.pages != before.pages:
        return None
    after, earlier = current.changes, before.changes
    if after is earlier:
        return set()
    paths = [path for path, entry in after.items() if path not in earlier or earlier[path] != entry]
    return {path.partition("/")[0] for path in (*paths, *(earlier.keys() - after.keys()))}


def _named_by(children: Mapping[str, Entry | None]) -> set[str]:
    """Return the objects that hold the bytes of files."""
    return {key for entry in children.values() if entry is not None for key in entry.objects()}


# ---------------------------------------------------------------- processes


class _Objects(dict[str, Any]):
    """The objects of the store; the judge checks each removal."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def pop(self, key: str, *default: Any) -> Any:
        if key in self:
            self._world.judge.removed(key)
        return super().pop(key, *default)


READ_FAULTS = (Fault.REFUSED.name, Fault.THROTTLED.name, Fault.TORN.name)


class World(objects.Bucket):
    """The store of one history, with its judge.

    Args:
        seed: Determines the history.
        only: Kinds of processes, instead of those that the seed chooses.
        faults: The faults that are possible, instead of all; they are not rare then.
        weaknesses: Faults of the whole store.
        retention_ms: How long objects without a name are kept.
        pause_rate: How often a process sleeps for an hour, of its requests.
        empty: Whether the log has no records at the beginning; None: the seed chooses.
        store: The class of the store of each process.
    """

    def __init__(
        self,
        seed: int,
        *,
        only: Sequence[str] = (),
        faults: Sequence[Fault] = (),
        weaknesses: Sequence[Weakness] | None = None,
        retention_ms: int | None = None,
        pause_rate: float | None = None,
        empty: bool | None = None,
        store: type[FakeStore] | None = None,
    ) -> None:
        self.seed = seed
        self.rng = rng = random.Random(seed)
        digests = rng.random() < 0.1  # a store that the protocol withstands
        super().__init__(
            weaknesses=weaknesses if weaknesses is not None else [Weakness.DIGEST_ETAGS] * digests
        )
        self.store = store or FakeStore
        self.judge = Judge(self)
        self.objects = _Objects(self)
        self.counts: Counter[str] = Counter()
        self._numbers = 0
        self.batches: list[Batch] = []
        self.named: set[int] = set()
        """Ids of the records of named batches."""
        self.buckets: list[Bucket] = []
        self.sessions: dict[int, str] = {}
        """Session of the server that appends a record, by the record's id."""
        self.retention_ms = rng.choice(RETENTIONS_MS) if retention_ms is None else retention_ms
        self.fault_rate = rng.choice((0.0, 0.04, 0.1, 0.25))
        self.pause_rate = rng.choice((0.0, 0.0, 0.02, 0.05)) if pause_rate is None else pause_rate
        self.possible = POSSIBLE
        if faults:
            self.fault_rate = max(self.fault_rate, 0.1)
            self.possible = {kind: tuple(f for f in own if f in faults) for kind, own in POSSIBLE.items()}
        self.turns = Turns(rng, self.clock, rng.choice((0.15, 0.4)), rng.choice((20, 2000)))
        self.delay_ms = lambda request: int(rng.random() ** 3 * 200 * rng.choice((20, 2000)))
        self.only = only
        self.saves_keys = seed % 4 == 1 or "getter" in only
        if not (rng.random() < 0.2 if empty is None else empty):
            self._begin_with(start_of_sizes())

    def _begin_with(self, start: Start) -> None:
        """Begin with a log that has records."""
        self.objects.update(start.objects)
        self._writes = start.writes
        self._numbers = start.numbers
        super().write(MANIFEST, start.version.manifest.encode())
        self.judge.begin_with(start.judge)
        self.clock.advance(self.rng.choice((0, 48 * HOUR_MS)))

    def number(self) -> int:
        self._numbers += 1
        return self._numbers

    def write(self, key: str, data: bytes) -> Any:
        version = super().write(key, data)
        if key == MANIFEST:
            self.judge.swapped(data)
        return version

    def run(self) -> World:
        """Run the history and judge it. Raises Violation."""
        processes = [Process(f"{kind} {n}", _SCRIPTS[kind](self)) for n, kind in enumerate(self._kinds())]
        self.turns.run(processes)
        self.clock.advance(HOUR_MS)
        self.settle()
        self.judge.finish(self.batches)
        self.counts["histories"] += 1
        self.counts["requests"] += self.turns.steps
        self.counts["versions"] += len(self.judge.versions)
        for request in self.log:
            if request.outcome != "ok":
                self.counts[f"{request.kind}: {request.outcome}"] += 1
        return self

    def _kinds(self) -> list[str]:
        if self.only:
            return list(self.only)
        rng = self.rng
        kinds = ["writer"] * rng.choice((2, 2, 3)) + ["cleaner"] * rng.choice((0, 1, 1, 2))
        kinds += ["collector"] * rng.choice((0, 1, 1, 1, 2)) + ["reader"] * rng.choice((0, 1))
        for kind, chance in (
            ("uploader", 0.2),
            ("pinned reader", 0.2),
            ("lessee", 0.3),
            ("trimmer", 0.15),
            ("dropper", 0.08),
        ):
            if rng.random() < chance:
                kinds.append(kind)
        kinds += ["cutter"] * (self.seed % 52 == 1) + ["cleaner", "getter"] * self.saves_keys
        kinds += ["server"] * (2 + self.seed % 2) * (self.seed % 7 == 3)
        return kinds + ["setter", "setter"] * (self.seed % 5 == 0)

    def choose_fault(self, request: Request) -> Fault | None:
        if self.fault_rate and self.rng.random() < self.fault_rate:
            possible = self.possible[request.kind]
            return self.rng.choice(possible) if possible else None
        return None

    def forget(self) -> None:
        """Forget everything, so that its memory is free without a garbage collection."""
        for bucket in self.buckets:
            vars(bucket).clear()
        vars(self).clear()

    def identity(self) -> int:
        """Return a number that two different histories do not share."""
        return hash(tuple([(r.process, r.kind, r.outcome) for r in self.log]))


class _Clock:
    """A clock of a process: its date is wrong, and its waits pass without waiting."""

    def __init__(self, world: World, skew_ms: int) -> None:
        self._clock = world.clock
        self._skew_ms = skew_ms
        self.monotonic = world.clock.monotonic
        self.sleep = world.clock.sleep

    def boottime(self) -> float:
        return self._clock.monotonic() - self._skew_ms  # no two machines were started together

    def now_ms(self) -> int:
        return self._clock.now_ms() + self._skew_ms


class Actor:
    """A process that runs steps of a kind, and starts again when it died."""

    def __init__(self, world: World, process: Process) -> None:
        self.world = world
        self.process = process
        self.rng = world.rng
        self.skew_ms = world.rng.choice((0, 0, -HOUR_MS, HOUR_MS, 30 * HOUR_MS))
        self.start()

    def start(self) -> None:
        """Start a process with nothing in memory."""
        world, process = self.world, self.process

        def before(request: Request) -> None:
            world.turns.before_request(process)
            if world.pause_rate and world.rng.random() < world.pause_rate:
                world.counts["pauses of an hour"] += 1
                world.turns.sleep(process, HOUR_MS, world.rng.randint(2, 40))
                world.turns.before_request(process)

        self.kept, self.kept_files, self.active = KeptCopy(), None, {}  # type: ignore[var-annotated]
        self.store = world.store(world, process.name, world.choose_fault, before)
        self.bucket = Bucket(
            self.store,
            clock=_Clock(world, self.skew_ms),  # type: ignore[arg-type]
            rng=world.rng,
            reads=ObjectReads(self.store, ahead_blocks=0),  # a thread of its own would take no turns
        )
        world.buckets.append(self.bucket)

    def attempt(self, step: Callable[[], object], *, repeatable: bool = False) -> str:
        """Run a step; return "done", "refused" or "uncertain". A repeatable step is tried three times."""
        outcome = "refused"
        for _ in range(3 if repeatable else 1):
            requests, began = len(self.world.log), self.world.clock.monotonic()
            try:
                step()
                return "done"
            except UncertainCommitError:
                self.world.counts["uncertain commits"] += 1
                outcome = "uncertain"
            except (UncertainRequestError, TruncatedObjectError) as error:
                self.world.counts["refused steps"] += 1
                if self.world.clock.monotonic() - began <= commit.READ_AGAIN_SECONDS:
                    self._check_reads(error, self.world.log[requests:])
            except ServerFencedError:
                self.world.counts["commits of fenced servers"] += 1
            except UploadsGoneError:
                self.world.counts["uploads that are gone"] += 1
            except BusyError:
                self.world.counts["busy steps"] += 1
            except Stopped:
                if self.world.turns.stopped:
                    raise
                self.world.counts["deaths"] += 1
                outcome = "uncertain"
                self.start()
            except LastwordError as error:
                raise Violation("error", f"{self.process.name}: {error!r}") from error
        return outcome

    def _check_reads(self, error: LastwordError, log: Sequence[Request]) -> None:
        """Raise Violation if a step failed because of a few reads: they have no effect, and are repeated."""
        own = [request for request in log if request.process == self.process.name]
        failed = [request for request in own if request.outcome in READ_FAULTS]
        if failed and own[-1] is failed[-1] and own[-1].kind in ("get", "range"):
            same = [request for request in failed if request.keys == own[-1].keys]
            if len(same) < commit.READ_ATTEMPTS:
                raise Violation("a read stops a step", f"{self.process.name}: {error!r} after {len(same)}")

    def append(self, batch: Batch) -> Any:
        """Append a batch.

        In half of the histories on the private copy of the last append, if it was kept; in half of these
        as entries of the last version, if no other process has committed.
        """
        if self.world.seed % 2:
            return self.transaction(lambda files: batch.append(files, self.world))
        placed: dict[int, tuple[bytes, int]] = {}

        def entries_of(version: ManifestVersion) -> dict[str, Entry] | None:
            scratch = ScratchSpace(None, self.bucket.clock)
            files = BucketFiles(self.bucket.url, version, self.bucket.reads, scratch=scratch, rng=self.rng)
            placed.update(batch.append(files, self.world))
            entries = {}
            for path, node in files.changes():
                if not isinstance(node, LocalFile):
                    return None
                facts = node.facts()
                entries[path] = Entry(facts.inode, facts.size, facts.mtime_ms, data=b"".join(node.content()))
            return entries or None

        if self.world.seed % 4 == 0 and self.bucket.commit_entries(entries_of, self.kept):
            self.world.counts["commits of entries"] += 1
            return placed

        def work(files: BucketFiles) -> Any:
            if self.kept_files is not files:
                self.kept_files, self.active = files, {}
            else:
                self.world.counts["appends to a kept copy"] += 1
            return batch.append(files, self.world, active=self.active)

        return self.transaction(work, kept=self.kept)

    def transaction(
        self, work: Callable[[BucketFiles], Any], *, uploads: str | None = None, kept: KeptCopy | None = None
    ) -> Any:
        runs = 0

        def counted(files: BucketFiles) -> Any:
            nonlocal runs
            runs += 1
            return work(files)

        result = self.bucket.transaction(counted, uploads=uploads, kept=kept)
        self.world.counts["transactions"] += 1
        self.world.counts["transactions that ran again"] += runs > 1
        return result


Script = Callable[[Process], None]


def _steps(world: World, step: Callable[[Actor], None], least: int, most: int) -> Script:
    def script(process: Process) -> None:
        actor = Actor(world, process)
        for _ in range(world.rng.randint(least, most)):
            step(actor)

    return script


def _partition(actor: Actor) -> int:
    return 0 if actor.rng.random() < 0.7 else 1


def _write(actor: Actor, session: str = "") -> None:
    world, rng = actor.world, actor.rng
    partitions = (0, 1) if rng.random() < 0.2 else (_partition(actor),)
    records = {
        p: [(rng.randrange(KEYS), world.number(), int(rng.random() < 0.25)) for _ in range(rng.randint(1, 2))]
        for p in partitions
    }
    batch = Batch(f"b{world.number()}" if rng.random() < 0.5 else "", records, session=session)
    world.batches.append(batch)
    if session:
        world.sessions.update((number, session) for rows in records.values() for _, number, _ in rows)
    if batch.name:
        world.named.update(number for rows in records.values() for _, number, _ in rows)

    def append() -> None:
        tenure = actor.bucket.tenure
        if session and (tenure is None or tenure.session != session):  # the process died
            raise ServerFencedError.of(ROOT, 0, 0)
        batch.placed = actor.append(batch)

    outcome = actor.attempt(append, repeatable=bool(batch.name))
    batch.outcome = "acknowledged" if outcome == "done" else outcome
    if outcome == "done":
        world.counts["acknowledged appends"] += 1


def _upload(actor: Actor) -> None:
    """Append segments that were uploaded before the transaction, as a job of many tasks does."""
    world, rng, name = actor.world, actor.rng, f"u{actor.world.number()}"
    records = {p: [(rng.randrange(KEYS), world.number(), 0) for _ in range(2)] for p in range(PARTITIONS)}
    batch = Batch("", records)
    world.batches.append(batch)
    keep_ms = rng.choice((10_000, 2 * HOUR_MS))

    def step() -> None:
        actor.bucket.begin_uploads(name, keep_ms)
        uploaded = {}
        for partition, rows in records.items():
            key = actor.bucket.new_key()
            data = encoded([Record(0, *row) for row in rows])
            actor.store.put(key, data)
            uploaded[partition] = Entry(Numbers(rng).next(), len(data), 0, key)
        batch.placed = actor.transaction(lambda files: batch.append(files, world, uploaded), uploads=name)

    outcome = actor.attempt(step)
    batch.outcome = "acknowledged" if outcome == "done" else outcome
    if outcome == "done":
        world.counts["acknowledged uploads"] += 1
    elif rng.random() < 0.5:
        actor.attempt(lambda: actor.bucket.end_uploads(name))


def _serve(world: World) -> Script:
    """Be a server: stand by, take over, append and answer, and end or die."""

    def script(process: Process) -> None:
        actor, session = Actor(world, process), None
        for number in range(world.rng.randint(6, 16)):
            if session is None or actor.bucket.tenure is not session.tenure or session.role is Role.FENCED:
                world.counts["fenced servers"] += session is not None and session.role is Role.FENCED
                session = ServerSession(
                    actor.bucket, f"{process.name}:1", "", timeout_ms=SESSION_MS, heartbeat_ms=HEARTBEAT_MS
                )
            actor.attempt(session.step)
            if actor.bucket.tenure is session.tenure and session.tenure.epoch:
                if world.rng.random() < 0.5:
                    _write(actor, session.tenure.session)
                if session.role is Role.ACTIVE:
                    world.judge.answered(session.tenure.session)
                world.counts["lapsed servers"] += session.role is Role.LAPSED
            world.turns.sleep(process, int(world.rng.random() * HEARTBEAT_MS), 1)
            if world.rng.random() < 0.02 * number and actor.bucket.tenure is session.tenure:
                actor.attempt(session.end)

    return script


def _clean(actor: Actor) -> None:
    rng = actor.rng
    partition, upto, tombstones = _partition(actor), rng.choice((0.5, 1.0)), rng.random() < 0.7

    def work(files: BucketFiles) -> bool:
        is_changed = clean(files, partition, upto, tombstones)
        if actor.world.saves_keys:
            save_keys(files, partition, rng)
        return is_changed

    _change(actor, "cleanings", work)


def _change(
    actor: Actor, counted: str, work: Callable[[BucketFiles], bool | None], *, repeatable: bool = False
) -> None:
    """Run a transaction; count it unless it returns False."""

    def step() -> None:
        actor.world.counts[counted] += actor.transaction(work) is not False

    actor.attempt(step, repeatable=repeatable)


def _trim(actor: Actor) -> None:
    partition, share = _partition(actor), actor.rng.random()
    _change(actor, "trims", lambda files: trim(files, partition, share))


def _lease(actor: Actor) -> None:
    partition, share = _partition(actor), actor.rng.random() / 2
    _change(actor, "leases", lambda files: take_lease(files, partition, share), repeatable=True)
    if actor.rng.random() < 0.4:
        actor.world.judge.released = True
        actor.attempt(lambda: actor.transaction(lambda files: release_lease(files, partition)))


def _drop(actor: Actor) -> None:
    actor.world.judge.dropped = True
    _change(actor, "drops", lambda files: drop(files, 1))


def _cut(actor: Actor) -> None:
    partition, share = _partition(actor), actor.rng.random()
    actor.world.judge.cuts = True
    _change(actor, "cuts", lambda files: cut_end(files, partition, share))


def _set(actor: Actor) -> None:
    """Change the settings of one of two topics. No acknowledged change is lost."""
    topic, judge = actor.rng.choice("ab"), actor.world.judge

    def step() -> None:
        number = actor.transaction(lambda files: count_up(files, topic))
        if number in judge.settings[topic]:
            raise Violation("settings", f"change {number} of {topic} was made twice")
        judge.settings[topic].add(number)
        actor.world.counts["settings"] += 1

    actor.attempt(step)


def _collect(actor: Actor) -> None:
    world = actor.world

    def step() -> None:
        result = collect(actor.bucket, retention_ms=world.retention_ms, dry_run=actor.rng.random() < 0.05)
        world.counts["collections"] += 1
        world.counts["collections that removed objects"] += bool(result.removed_objects)

    actor.attempt(step)


def _read_version(actor: Actor, version: Version, *, pinned_until_ms: int = 0) -> None:
    """Read a version, request by request, and compare it with what the judge has of it."""
    world = actor.world
    files = actor.bucket.files(version.snapshot)
    for partition, state in version.partitions.items():
        directory = directory_of(partition)
        for base, records in state.logs.items():
            try:
                data = files.read_bytes(f"{ROOT}/{directory}/{log_name(base)}")
            except FileVanishedError as error:
                _check_age(actor, version, error, pinned_until_ms=pinned_until_ms)
                return
            if data != encoded(records):
                raise Violation("read", f"{actor.process.name}: {directory}/{base} has {data!r}")
    world.counts["versions read"] += 1


def _get(actor: Actor) -> None:
    """Look up all keys in the newest version by its saved indexes, perhaps some time after it was loaded."""
    world = actor.world

    def step() -> None:
        loaded = actor.bucket.load()
        if loaded.version is None:
            return
        version, files = world.judge.by_nonce[loaded.manifest.nonce], actor.bucket.files(loaded.snapshot)
        if actor.rng.random() < 0.3:
            world.turns.sleep(actor.process, 30_000, actor.rng.randint(5, 30))
        for partition, state in version.partitions.items():
            start = version.root.starts.get(partition, 0)
            newest = {
                key: r.offset for key, r in state.newest.items() if r.offset >= start and not r.tombstone
            }
            try:
                found = View(files, partition).get(start, world)
            except FileVanishedError as error:
                _check_age(actor, version, error)
                return
            if {key: record.offset for key, record in found.items()} != newest:
                raise Violation(
                    "get", f"{actor.process.name}: {directory_of(partition)}: {found}, not {newest}"
                )
        world.counts["gets"] += 1

    actor.attempt(step)


def _check_age(actor: Actor, version: Version, error: FileVanishedError, *, pinned_until_ms: int = 0) -> None:
    """Raise Violation if an object of a version is gone that must be there still."""
    world, superseded_ms = actor.world, version.superseded_ms
    now_ms = world.clock.now_ms()
    young = superseded_ms is None or now_ms - superseded_ms < world.retention_ms - CLOCK_ERROR_MS
    if young or now_ms < pinned_until_ms:
        raise Violation("read", f"{actor.process.name}: {error}") from error
    world.counts["reads of versions that were too old"] += 1


def _read(actor: Actor) -> None:
    def step() -> None:
        loaded = actor.bucket.load()
        if loaded.version is not None:
            if actor.rng.random() < 0.5:
                actor.world.turns.sleep(actor.process, 30_000, actor.rng.randint(10, 60))
            _read_version(actor, actor.world.judge.by_nonce[loaded.manifest.nonce])

    actor.attempt(step)


def _read_pinned(actor: Actor) -> None:
    """Pin a version, read it again and again, and remove the pin."""
    world, keep_ms = actor.world, actor.rng.choice((1, 4)) * HOUR_MS
    until_ms = world.clock.now_ms() + keep_ms
    pins: list[tuple[str, Version]] = []

    def pin() -> None:
        if actor.bucket.load().version is not None:
            name = actor.bucket.pin(keep_ms)
            version = world.judge.by_nonce[actor.bucket.load().manifest.nonce]
            pins.append((name, version))
            world.judge.pinned[name] = (version.named, until_ms)
            world.counts["pins"] += 1

    actor.attempt(pin)
    for name, version in pins:
        for _ in range(2):
            actor.attempt(lambda version=version: _read_version(actor, version, pinned_until_ms=until_ms))  # type: ignore[misc]
            world.turns.sleep(actor.process, HOUR_MS // 3, 15)
        del world.judge.pinned[name]
        actor.attempt(lambda name=name: actor.bucket.unpin(name))  # type: ignore[misc]


_SCRIPTS: dict[str, Callable[[World], Script]] = {
    "writer": lambda world: _steps(world, _write, *((1, 2) if world.seed % 2 else (2, 4))),
    "uploader": lambda world: _steps(world, _upload, 1, 1),
    "cleaner": lambda world: _steps(world, _clean, 1, 2),
    "trimmer": lambda world: _steps(world, _trim, 1, 1),
    "lessee": lambda world: _steps(world, _lease, 1, 2),
    "dropper": lambda world: _steps(world, _drop, 1, 1),
    "cutter": lambda world: _steps(world, _cut, 1, 2),
    "getter": lambda world: _steps(world, _get, 2, 4),
    "server": _serve,
    "setter": lambda world: _steps(world, _set, 1, 3),
    "collector": lambda world: _steps(world, _collect, 2, 3),
    "reader": lambda world: _steps(world, _read, 1, 2),
    "pinned reader": lambda world: _steps(world, _read_pinned, 1, 1),
}


# ---------------------------------------------------------------- many histories


@dataclass(frozen=True)
class Start:
    """A log with records, with which histories begin."""

    objects: dict[str, Any]
    judge: Judge
    writes: int
    numbers: int

    @property
    def version(self) -> Version:
        return self.judge.versions[-1]


_starts: dict[tuple[int, ...], Start] = {}


def start_of_sizes() -> Start:
    """Return the log with which histories of the present limits begin."""
    sizes = (commit.INLINE_BYTES, commit.BUNDLE_BYTES, commit.CHANGES_BYTES, commit.HISTORY)
    if sizes not in _starts:
        world = World(1, weaknesses=(), empty=True)
        bucket = Bucket(FakeStore(world, "start", None, None), rng=world.rng)
        for partition, tombstone in ((0, 0), (0, 1), (1, 0), (0, 0), (0, 1)):
            records = [(key, world.number(), tombstone) for key in world.rng.sample(range(KEYS), 2)]
            batch = Batch(f"b{world.number()}", {partition: records})
            bucket.transaction(lambda files, batch=batch: batch.append(files, world))
        objects = {key: stored for key, stored in world.objects.items() if key != MANIFEST}
        _starts[sizes] = Start(objects, world.judge, world._writes, world._numbers)
    return _starts[sizes]


@contextlib.contextmanager
def sizes_of(seed: int, world_counts: Callable[[], Counter[str]]) -> Iterator[None]:
    """Run with limits that a log of a few records reaches."""
    rng = random.Random(-seed - 1)
    merged = commit.merged

    def counting_merged(*given: Any) -> Any:
        try:
            result = merged(*given)
        except ChangedMeanwhile:
            world_counts()["conflicts"] += 1
            raise
        world_counts()["merges"] += 1
        return result

    inline_bytes, bundle_bytes = rng.choice(((1024, 8 << 20), (24, 8 << 20), (8, 60), (0, 40)))
    with (
        patched(
            (commit, "ThreadPoolExecutor", _Inline),
            (commit, "INLINE_BYTES", inline_bytes),
            (commit, "CHECKPOINT_BYTES", inline_bytes),
            (commit, "BUNDLE_BYTES", bundle_bytes),
            (commit, "CHANGES_BYTES", rng.choice((128 << 10, 128 << 10, 900, 2000))),
            (commit, "HISTORY", rng.choice((64, 64, 3))),
            (commit, "SWAP_ATTEMPTS", rng.choice((12, 3))),
            (commit, "merged", counting_merged),
        ),
        patched(*(in_memory(start_of_sizes().version.snapshot) if seed % CODEC_EVERY else ())),
    ):
        yield


def run(seed: int, **given: Any) -> World:
    """Run and judge one history. Raises Violation."""
    with sizes_of(seed, lambda: world.counts):
        world = World(seed, **given)
        return world.run()


@dataclass
class Tally:
    """Counts of many histories, and the violations: seed and text."""

    counts: Counter[str] = field(default_factory=Counter)
    identities: set[int] = field(default_factory=set)
    violations: list[tuple[int, str]] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.counts.update(other.counts)
        self.identities |= other.identities
        self.violations += other.violations

    def text(self) -> str:
        """Return the counts as a table."""
        return "\n".join(f"{count:>12,}  {name}" for name, count in sorted(self.counts.items()))


def run_many(seeds: Iterable[int]) -> Tally:
    """Run the histories of these seeds."""
    tally = Tally()
    with seldom_collected():
        for seed in seeds:
            try:
                world = run(seed)
            except Exception as error:
                tally.violations.append((seed, f"{type(error).__name__}: {error}"))
                continue
            tally.counts.update(world.counts)
            tally.identities.add(world.identity())
            world.forget()
    return tally


def _freeze() -> None:
    """Exclude the modules from garbage collections."""
    gc.collect()
    gc.freeze()


def _again(seed: int) -> int:
    """Run one history and print its requests and its outcome."""
    with sizes_of(seed, lambda: world.counts):
        world = World(seed)
        try:
            world.run()
        finally:
            for request in world.log:
                print(f"{request.process:14} {request.kind:6} {request.outcome:14} {request.key}")
            for batch in world.batches:
                print(batch)
    print(Tally(world.counts).text())
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--histories", type=int, default=100_000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="run only this history and print its requests")
    given = parser.parse_args()
    if given.seed is not None:
        return _again(given.seed)
    started, total, last = time.monotonic(), Tally(), given.first + given.histories
    ranges = [range(s, min(s + PER_TASK, last)) for s in range(given.first, last, PER_TASK)]
    with multiprocessing.get_context("spawn").Pool(given.jobs, _freeze) as pool:
        for number, tally in enumerate(pool.imap_unordered(run_many, ranges), 1):
            total.add(tally)
            for seed, text in tally.violations[:3]:
                print(f"{text}\n  again: python -m tests.bucket.histories --seed {seed}", flush=True)
            if number % 20 == 0:
                seconds = time.monotonic() - started
                print(f"{min(number * PER_TASK, given.histories):,} histories, {seconds:.0f} s", flush=True)
    print(total.text())
    print(
        f"{given.histories:,} histories, {len(total.identities):,} different, "
        f"{len(total.violations)} violations, {time.monotonic() - started:.0f} s"
    )
    return 1 if total.violations else 0


if __name__ == "__main__":
    sys.exit(main())
